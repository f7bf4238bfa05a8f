"""The attack, as tests of our own: faults at every call that touches the disk, files that lie, load, and time."""
