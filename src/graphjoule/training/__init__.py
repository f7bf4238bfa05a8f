"""Training: one or many seeds in one program, stopped and selected by validation, safe to kill."""

from graphjoule.training.capture import CapturedStep
from graphjoule.training.environment import describe_device, resolve_device, versions
from graphjoule.training.fit import FitResult, fit
from graphjoule.training.loop import Progress, TrainingInterrupted
from graphjoule.training.memory import free_bytes, is_out_of_memory
from graphjoule.training.objective import build_model
from graphjoule.training.recipe import Recipe, load_recipe
from graphjoule.training.records import Record, append_record, read_records, summarise
from graphjoule.training.seed_batch import Runs

__all__ = [
    "CapturedStep",
    "FitResult",
    "Progress",
    "Recipe",
    "Record",
    "Runs",
    "TrainingInterrupted",
    "append_record",
    "build_model",
    "describe_device",
    "fit",
    "free_bytes",
    "is_out_of_memory",
    "load_recipe",
    "read_records",
    "resolve_device",
    "summarise",
    "versions",
]
