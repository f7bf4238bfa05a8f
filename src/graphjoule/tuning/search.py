"""A search: what is varied, what a trial is worth, and the one who tries."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.tasks import Task
from graphjoule.training import Progress
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import Record
from graphjoule.tuning.board import Address, Board
from graphjoule.tuning.defaults import default_ranges
from graphjoule.tuning.outcome import Outcome, read_outcome
from graphjoule.tuning.queue import TrialQueue, slot_of
from graphjoule.tuning.ranges import Range, count_settings
from graphjoule.tuning.settings import fit_ranges, own_values, with_settings
from graphjoule.tuning.validation import ValidationTask, hide_test

__all__ = ["Evaluation", "Search", "TrialProgress", "tune", "work"]

_POLL_SECONDS = 0.5  # how soon the trial of a worker that died is taken over
_FACTS = ("val_loss", "val_accuracy", "epochs_run")  # of every seed
_DIRECTIONS: dict[str, Literal["minimize", "maximize"]] = {"val_loss": "minimize", "val_accuracy": "maximize"}


@dataclass(frozen=True)
class Search:
    """What is searched, apart from the data.

    Attributes:
        recipe: where the search begins; its `select_on` says by what trials are compared.
        ranges: a range by the name of each setting that is searched.
        seeds: one run each, in every trial.
        seed: what the trials' settings are drawn from.
    """

    recipe: Recipe
    ranges: Mapping[str, Range]
    seeds: tuple[int, ...] = (0, 1, 2)
    seed: int = 0

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        """Which way is better."""
        return _DIRECTIONS[self.recipe.train.select_on]

    def about(self, task: ValidationTask) -> dict[str, Any]:
        """What makes it this search: with any of it changed, its trials could not be compared."""
        return {
            **self.recipe.settings(),
            **{f"range of {key}": found.text for key, found in self.ranges.items()},
            "seeds": list(self.seeds),
            "seed of the search": self.seed,
            "data": task.facts().sha256,
            "splits": task.splits_sha256,
        }

    def queue(self, board: Board, num_trials: int) -> TrialQueue:
        """Its trials; the first has the recipe's own settings, so that the best is never worse than those."""
        own = own_values(self.recipe, self.ranges)
        return TrialQueue(board, self.num_trials(num_trials), self.ranges, self.seed, own)

    def num_trials(self, asked: int) -> int:
        """As many trials as are asked for, but no more than there are different settings."""
        return min(asked, count_settings(self.ranges) or asked)


@dataclass(frozen=True)
class Evaluation:
    """What a trial's runs came to, by validation alone.

    Attributes:
        value: the mean over the runs of what the recipe selects on; None if a run failed.
        failure: why a run failed; None if all are done.
        facts: what is worth keeping beside it, as JSON can hold it.
    """

    value: float | None
    failure: str | None
    facts: dict[str, Any]


@dataclass(frozen=True)
class TrialProgress:
    """How far a worker is.

    Attributes:
        slot: the trial it trains; None while all that is left is with other workers.
        training: how far the trial's runs are; None at its beginning and at its end.
    """

    slot: int | None
    training: Progress | None = None


Evaluate = Callable[[Mapping[str, Any], Callable[[Progress], None]], Evaluation]


def evaluate(
    search: Search,
    task: ValidationTask,
    device: str | torch.device,
    changes: Mapping[str, Any],
    on_progress: Callable[[Progress], None],
) -> Evaluation:
    """Train all seeds of a trial together; settings that cannot be trained are a failure, a full disk is an error."""
    begin = time.monotonic()
    try:
        records = fit(
            with_settings(search.recipe, changes), task, search.seeds, device=device, on_progress=on_progress
        ).records
    except GraphjouleError as error:
        if isinstance(error.__cause__, OSError):
            raise
        return Evaluation(None, str(error), {})
    return _judged(records, search.recipe.train.select_on, time.monotonic() - begin)


def _judged(records: Sequence[Record], select_on: str, seconds: float) -> Evaluation:
    facts: dict[str, Any] = {name: [getattr(record, name) for record in records] for name in _FACTS}
    facts["seconds"] = round(seconds, 3)
    # Settings with which one seed in three diverges are no good ones, however well the other two do.
    if failures := [record.failure for record in records if record.failure]:
        return Evaluation(None, failures[0], facts)
    return Evaluation(statistics.fmean(facts[select_on]), None, facts)


def work(
    queue: TrialQueue,
    evaluate: Evaluate,
    *,
    timeout: float | None = None,
    parent: int | None = None,
    on_progress: Callable[[TrialProgress], None] = lambda progress: None,
) -> None:
    """Try one trial after the other until every slot has its result; safe to kill, beside any number of others.

    When all that is left is with others, this one waits: should one of them die, its trial is put back and taken here.

    Args:
        queue: the trials.
        evaluate: trains one, given its settings and a callback for its progress.
        timeout: seconds after which no further trial is begun.
        parent: the process to work for; no further trial is begun when it is gone.
        on_progress: called at the beginning and end of every trial and about once an epoch.
    """
    end = None if timeout is None else time.monotonic() + timeout
    while not queue.is_finished():
        if (end is not None and time.monotonic() >= end) or (parent is not None and os.getppid() != parent):
            return
        with queue.next_trial() as trial:
            if trial is not None:
                _try(queue, trial, evaluate, on_progress)
                continue
        on_progress(TrialProgress(None))
        time.sleep(_POLL_SECONDS)


def _try(queue: TrialQueue, trial: Any, evaluate: Evaluate, on_progress: Callable[[TrialProgress], None]) -> None:
    slot = slot_of(trial)
    on_progress(TrialProgress(slot))
    show = partial(_show, on_progress, slot)
    found = evaluate(trial.params, show)
    facts = found.facts if found.failure is None else found.facts | {"failure": found.failure}
    if queue.note(trial, facts):  # before the result, so that a trial with a result has them all
        if found.value is None:
            queue.refuse(trial)
        else:
            queue.finish(trial, found.value)
    on_progress(TrialProgress(slot))


def _show(on_progress: Callable[[TrialProgress], None], slot: int, training: Progress) -> None:
    on_progress(TrialProgress(slot, training))


def tune(
    recipe: Recipe,
    task: Task,
    ranges: Mapping[str, Range] | None = None,
    *,
    trials: int = 20,
    seeds: Sequence[int] = (0, 1, 2),
    seed: int = 0,
    storage: str | os.PathLike[str] | None = None,
    name: str = "search",
    device: str | torch.device = "auto",
    timeout: float | None = None,
    on_progress: Callable[[TrialProgress], None] = lambda progress: None,
) -> Outcome:
    """Search a recipe's ranges for the settings that validate best, and never read a test label.

    With one worker, the same seed gives the same search, stopped and gone on with or not. Called with the same storage
    in other processes or on other machines, the calls share the trials.

    Args:
        recipe: where the search begins; its `select_on` is what trials are compared by, the mean over the seeds.
        task: the graph, features, labels and splits; test labels are hidden before the first trial.
        ranges: what to search, see `parse_ranges`; by default `default_ranges` of the model.
        trials: how many settings to try, no two the same: the search ends earlier when the ranges hold no more. The
            first is the recipe itself, where the ranges hold it.
        seeds: one run each, trained together in every trial.
        seed: what the trials' settings are drawn from.
        storage: a journal file or a database's URL, to be stopped, gone on with and shared; by default memory.
        name: the search's name in the storage.
        device: "auto" (CUDA if there is one), "cpu" or "cuda".
        timeout: seconds after which no further trial is begun.
        on_progress: called at the beginning and end of every trial and about once an epoch.

    Returns:
        All trials so far, the best of them and its recipe.

    >>> from graphjoule import load_recipe, load_task
    >>> from graphjoule.tuning import parse_ranges, tune
    >>> recipe = load_recipe("sgc", "digits", 2, {"epochs": 3})
    >>> found = tune(recipe, load_task("digits"), parse_ranges(["lr=1e-3..1:log"]), trials=2, seeds=[0], device="cpu")
    >>> len(found.rows), found.direction, sorted(found.best.params)
    (2, 'minimize', ['lr'])
    """
    if trials < 1:
        raise GraphjouleError(f"trials is {trials}; it must be at least 1.")
    recipe = recipe.with_split_of(task)
    chosen = fit_ranges(recipe, default_ranges(recipe.model.name) if ranges is None else ranges)
    search = Search(recipe, chosen, tuple(seeds), seed)
    seen = hide_test(task, recipe, search.seeds)
    board = Address(None if storage is None else os.fspath(storage), name).open(search.about(seen), search.direction)
    work(
        search.queue(board, trials),
        partial(evaluate, search, seen, device),
        timeout=timeout,
        on_progress=on_progress,
    )
    return read_outcome(board.study, search.recipe)
