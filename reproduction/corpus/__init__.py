"""Graphs that nobody tuned for: a half to make rules for settings on, and a half to judge them on once."""
