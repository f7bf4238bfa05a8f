"""Training: one or many seeds in one program, stopped and selected by validation, safe to kill."""

from graphjoule.training.fit import FitResult, fit
from graphjoule.training.loop import Progress, TrainingInterrupted
from graphjoule.training.objective import build_model

__all__ = ["FitResult", "Progress", "TrainingInterrupted", "build_model", "fit"]
