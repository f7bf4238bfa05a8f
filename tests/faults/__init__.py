"""The attack, as tests of our own: faults at every call that touches the disk, files that lie, load, and time.

What the first attack from outside found, and the tests that show that it is gone, is a table in docs/reliability.md.
"""
