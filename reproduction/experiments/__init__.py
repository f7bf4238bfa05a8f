"""The measurements behind single sentences of the docs, each a command: `python -m reproduction.experiments.NAME`."""
