"""Settings that were tried before a study was fixed, judged by validation nodes alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from graphjoule import GraphjouleError

__all__ = ["Trial", "read_trials", "trials_table"]


class Trial(BaseModel):
    """Some runs with one choice of settings.

    Attributes:
        settings: what was chosen; empty for the recipe as it is.
        val_accuracy: per run, in [0, 1].
        selected_epoch: per run.
        seconds: of all runs together.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    settings: dict[str, Any]
    val_accuracy: list[float] = Field(min_length=1)
    selected_epoch: list[int] = Field(min_length=1)
    seconds: float


def read_trials(path: Path) -> list[Trial]:
    """The trials of a file with one in every line."""
    try:
        return [Trial.model_validate_json(line) for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise GraphjouleError(
            f"{path} is not a file of trials: expected {', '.join(sorted(Trial.model_fields))} in JSON in every line."
        ) from error


def trials_table(trials: Sequence[Trial]) -> str:
    """Every trial with its validation accuracy, the best first.

    >>> trial = Trial(settings={"constraint.rho": 1.0}, val_accuracy=[0.5], selected_epoch=[7], seconds=1.0)
    >>> print(trials_table([trial]))
    | constraint.rho | validation accuracy (n) | selected epoch, median |
    |---|---|---|
    | 1.0 | 50.0 (1) | 7 |
    """
    names = list(dict.fromkeys(name for trial in trials for name in trial.settings))
    head = [*names, "validation accuracy (n)", "selected epoch, median"]
    ordered = sorted(trials, key=lambda trial: -statistics.fmean(trial.val_accuracy))
    rows = [[*(str(trial.settings.get(name, "")) for name in names), *_numbers(trial)] for trial in ordered]
    first, *lines = (f"| {' | '.join(row)} |" for row in [head, *rows])
    return "\n".join([first, "|---" * len(head) + "|", *lines])


def _numbers(trial: Trial) -> tuple[str, str]:
    percent = [100 * accuracy for accuracy in trial.val_accuracy]
    spread = f" ± {statistics.stdev(percent):.1f}" if len(percent) > 1 else ""
    return (
        f"{statistics.fmean(percent):.1f}{spread} ({len(percent)})",
        f"{statistics.median(trial.selected_epoch):g}",
    )
