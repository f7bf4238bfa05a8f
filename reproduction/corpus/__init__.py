"""Graphs that nobody tuned for: a half on which rules for settings are made, and a half on which they are judged once."""
