"""Training: settings, one or many seeds in one program, records, run folders; `graphjoule.fit` puts them together."""

from graphjoule.training.folder import RunFolder
from graphjoule.training.loop import Progress, TrainingInterrupted, deferred_interrupt
from graphjoule.training.recipe import Recipe, load_recipe
from graphjoule.training.records import Record, Summary, read_records, summarise
from graphjoule.training.saving import load_model, save_model

__all__ = [
    "Progress",
    "Recipe",
    "Record",
    "RunFolder",
    "Summary",
    "TrainingInterrupted",
    "deferred_interrupt",
    "load_model",
    "load_recipe",
    "read_records",
    "save_model",
    "summarise",
]
