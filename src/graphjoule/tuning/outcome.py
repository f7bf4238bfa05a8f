"""What came of a search: every trial as a row, the best one, and how much each setting mattered."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from graphjoule.errors import GraphjouleError
from graphjoule.training.recipe import Recipe
from graphjoule.tuning.engine import import_optuna
from graphjoule.tuning.queue import attempts_of, count_begun
from graphjoule.tuning.settings import with_settings

__all__ = ["Outcome", "Row", "measure_importance", "read_outcome"]

_FEWEST_TRIALS = 4  # below, a share of the variance is noise


@dataclass(frozen=True)
class Row:
    """One trial that is over.

    Attributes:
        slot: its place in the search.
        params: the settings that were drawn.
        value: what trials are compared by, the mean over its seeds; None if it failed.
        failure: why it failed; None if it did not.
        val_loss: mean validation loss at the selected epochs; None if it failed.
        val_accuracy: mean validation accuracy there, in [0, 1]; None if it failed.
        seconds: wall-clock time of its last attempt.
        num_attempts: how many times it was begun: more than once where a worker died or was stopped.
    """

    slot: int
    params: Mapping[str, Any]
    value: float | None
    failure: str | None
    val_loss: float | None
    val_accuracy: float | None
    seconds: float
    num_attempts: int


@dataclass(frozen=True)
class Outcome:
    """A search as far as it is.

    Attributes:
        rows: the trials that are over, in the order of their slots.
        direction: "minimize" or "maximize".
        recipe: where the search began.
        importance: the share of each setting in how much the trials differ, largest first; empty if there are too few.
    """

    rows: list[Row]
    direction: Literal["minimize", "maximize"]
    recipe: Recipe
    importance: Mapping[str, float]

    @property
    def ranked(self) -> list[Row]:
        """The trials that have a value, the best first, the earlier of two equal ones first."""
        sign = 1 if self.direction == "minimize" else -1
        done = [row for row in self.rows if row.value is not None]
        return sorted(done, key=lambda row: (sign * (row.value or 0.0), row.slot))

    @property
    def best(self) -> Row:
        """The trial that validates best."""
        if not (ranked := self.ranked):
            why = next((row.failure for row in self.rows if row.failure), None)
            raise GraphjouleError(f"No trial has a result{f'; the first failure: {why}' if why else ' yet.'}")
        return ranked[0]

    @property
    def best_recipe(self) -> Recipe:
        """The recipe of the best trial."""
        return with_settings(self.recipe, self.best.params)

    def table(self) -> str:
        """All trials as CSV, a setting per column."""
        names = list(dict.fromkeys(name for row in self.rows for name in row.params))
        own = ["value", "val_loss", "val_accuracy", "seconds", "num_attempts", "failure"]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["trial", *names, *own])
        for row in self.rows:
            params = [row.params.get(name) for name in names]
            writer.writerow([row.slot, *params, *(getattr(row, name) for name in own)])
        return text.getvalue()


def read_outcome(study: Any, recipe: Recipe) -> Outcome:
    """Read all that a study holds by now.

    Args:
        study: Optuna's.
        recipe: where the search began.
    """
    attempts = attempts_of(study)
    last = {slot: tries[-1] for slot, tries in sorted(attempts.items())}
    over = {slot: trial for slot, trial in last.items() if trial.state.name in ("COMPLETE", "PRUNED")}
    rows = [_row(slot, trial, count_begun(attempts[slot])) for slot, trial in over.items()]
    direction: Literal["minimize", "maximize"] = "maximize" if study.direction.name == "MAXIMIZE" else "minimize"
    return Outcome(rows, direction, recipe, measure_importance(study))


def measure_importance(study: Any) -> dict[str, float]:
    """How much of the difference between trials is each setting's doing, by functional ANOVA on a random forest.

    The shares sum to 1. With fewer than four trials, or trials that are all worth the same, there are none.
    """
    optuna = import_optuna()
    done = [t for t in study.get_trials(deepcopy=False) if t.state.name == "COMPLETE"]
    if len(done) < _FEWEST_TRIALS or len({t.value for t in done}) == 1:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))


def _row(slot: int, trial: Any, num_attempts: int) -> Row:
    known = trial.user_attrs
    failed = trial.value is None
    failure = known.get("failure", f"its worker died, {num_attempts} times") if failed else None
    loss, accuracy = (None if failed else statistics.fmean(known[name]) for name in ("val_loss", "val_accuracy"))
    seconds = float(known.get("seconds", 0.0))
    return Row(slot, dict(trial.params), trial.value, failure, loss, accuracy, seconds, num_attempts)
