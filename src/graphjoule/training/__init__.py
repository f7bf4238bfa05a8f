"""Training: settings, one or many seeds in one program, records, run folders; `graphjoule.fit` puts them together."""

from graphjoule.training.build import architecture_of, build_model
from graphjoule.training.environment import describe_device, resolve_device, versions
from graphjoule.training.folder import RunFolder
from graphjoule.training.loop import CapturedStep, Progress, TrainingInterrupted, deferred_interrupt
from graphjoule.training.recipe import Recipe, load_recipe
from graphjoule.training.records import Record, Summary, append_record, read_records, summarise
from graphjoule.training.saving import load_model, save_model
from graphjoule.training.seed_batch import SeedBatch
from graphjoule.training.trainer import free_bytes, is_out_of_memory

__all__ = [
    "CapturedStep",
    "Progress",
    "Recipe",
    "Record",
    "RunFolder",
    "SeedBatch",
    "Summary",
    "TrainingInterrupted",
    "append_record",
    "architecture_of",
    "build_model",
    "deferred_interrupt",
    "describe_device",
    "free_bytes",
    "is_out_of_memory",
    "load_model",
    "load_recipe",
    "read_records",
    "resolve_device",
    "save_model",
    "summarise",
    "versions",
]
