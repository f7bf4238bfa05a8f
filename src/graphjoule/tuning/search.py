"""A search: what is varied, what a trial is worth, and the workers that try, in this process or in several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.tasks import Task
from graphjoule.tasks.objective import LOSS
from graphjoule.training import Progress, TrainingInterrupted
from graphjoule.training.recipe import Recipe
from graphjoule.training.threads import share_threads
from graphjoule.tuning.outcome import Outcome, read_outcome
from graphjoule.tuning.queue import TrialQueue, slot_of
from graphjoule.tuning.ranges import Range, default_ranges, fit_ranges, own_values, with_settings
from graphjoule.tuning.storage import SearchStorage, StorageRef
from graphjoule.tuning.validation import ValidationTask, hide_test

_POLL_SECONDS = 0.5  # how soon the trial of a worker that died is taken over
_TEAM_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Search:
    """What is searched, apart from the data.

    Attributes:
        recipe: where the search begins; it also says by what trials are compared.
        ranges: a range by the name of each setting that is searched.
        seeds: one run each, in every trial.
        seed: what the trials' settings are drawn from.
    """

    recipe: Recipe
    ranges: Mapping[str, Range]
    seeds: tuple[int, ...] = (0, 1, 2)
    seed: int = 0

    def about(self, task: ValidationTask) -> dict[str, Any]:
        """What makes it this search: if any of it changed, its trials could not be compared."""
        return {
            **self.recipe.settings(),
            **{f"range of {key}": found.text for key, found in self.ranges.items()},
            "seeds": list(self.seeds),
            "seed of the search": self.seed,
            "data": task.facts().sha256,
            "splits": task.splits_sha256,
        }

    def open(self, ref: StorageRef, task: ValidationTask) -> SearchStorage:
        """Continue or begin the search in its storage."""
        _, is_higher_better = task.objective.column(self.recipe.train.select_on)
        return ref.open(self.about(task), "maximize" if is_higher_better else "minimize")

    def queue(self, storage: SearchStorage, num_trials: int) -> TrialQueue:
        """Its trials; the first has the recipe's own settings, so that the best is never worse than those."""
        return TrialQueue(storage, num_trials, self.ranges, self.seed, own_values(self.recipe, self.ranges))


@dataclass(frozen=True)
class Evaluation:
    """The result of a trial's runs, by validation alone.

    Attributes:
        value: the mean over the runs of the metric that selects; None if a run failed.
        failure: why a run failed; None if all are done.
        facts: what is worth storing with it, as JSON can hold it: ``metrics`` by name and run, ``seconds``.
    """

    value: float | None
    failure: str | None
    facts: dict[str, Any]


@dataclass(frozen=True)
class TrialProgress:
    """How far a worker is.

    Attributes:
        slot: the trial it trains; None while other workers have all that is left.
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
        recipe = with_settings(search.recipe, changes)
        records = fit(recipe, task, search.seeds, device=device, on_progress=on_progress).records
    except GraphjouleError as error:
        if isinstance(error.__cause__, OSError):
            raise
        return Evaluation(None, str(error), {})
    shown = {LOSS, search.recipe.train.select_on, *(metric.name for metric in task.objective.tabled)}
    metrics: dict[str, list[Any]] = {
        f"val_{name}": [record.val.get(name) for record in records] for name in records[0].val if name in shown
    }
    facts = {
        "metrics": metrics,
        "epochs_run": [record.epochs_run for record in records],
        "seconds": round(time.monotonic() - begin, 3),
    }
    # Settings with which one seed in three diverges are not good, however well the other two do.
    if failures := [record.failure for record in records if record.failure]:
        return Evaluation(None, failures[0], facts)
    return Evaluation(statistics.fmean(metrics[f"val_{search.recipe.train.select_on}"]), None, facts)


def work(
    queue: TrialQueue,
    evaluate: Evaluate,
    *,
    timeout: float | None = None,
    parent: int | None = None,
    on_progress: Callable[[TrialProgress], None] = lambda progress: None,
) -> None:
    """Try one trial after the other until every slot has its result; safe to kill, beside any number of others.

    When other workers have all that is left, this one waits: if one of them dies, its trial is put back and taken here.

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
                slot = slot_of(trial)
                on_progress(TrialProgress(slot))
                found = evaluate(trial.params, lambda training: on_progress(TrialProgress(slot, training)))  # noqa: B023
                queue.finish(trial, found.value, found.facts | ({"failure": found.failure} if found.failure else {}))
                on_progress(TrialProgress(slot))
                continue
        on_progress(TrialProgress(None))
        time.sleep(_POLL_SECONDS)


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

    With one worker, the same seed gives the same search, stopped and continued or not. Called with the same storage in
    other processes or on other machines, the calls share the trials.

    Args:
        recipe: where the search begins; trials are compared by what it selects on, the mean over the seeds.
        task: the graph, features, labels and splits; test labels are hidden before the first trial.
        ranges: what to search, see `parse_ranges`; by default `default_ranges` of the model.
        trials: how many settings to try, no two the same: the search ends earlier when the ranges hold no more. The
            first is the recipe itself, where the ranges hold it.
        seeds: one run each, trained together in every trial.
        seed: what the trials' settings are drawn from.
        storage: a journal file or the URL of a database, to stop, continue and share the search; by default memory.
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
    stored = search.open(StorageRef(None if storage is None else os.fspath(storage), name), seen)
    queue = search.queue(stored, trials)
    work(queue, partial(evaluate, search, seen, device), timeout=timeout, on_progress=on_progress)
    return read_outcome(stored, search.recipe)


# Several workers on one machine.


@dataclass(frozen=True)
class Team:
    """All that a worker process needs to know; it is sent to the process, so it holds no graph and nothing open.

    Attributes:
        load: reads the task.
        search: what is searched.
        ref: where the search is stored.
        num_trials: how many settings to try.
        device: "auto", "cpu" or "cuda".
        timeout: seconds after which no further trial is begun.
    """

    load: Callable[[], Task]
    search: Search
    ref: StorageRef
    num_trials: int
    device: str
    timeout: float | None = None

    def run_worker(self, num_workers: int, parent: int) -> None:
        """Work until all is done; the exit code shows the parent how it ended."""
        share_threads(num_workers)
        # Before a training there is nothing to save: SIGTERM then does what Ctrl-C does.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            task = hide_test(self.load(), self.search.recipe, self.search.seeds)
            queue = self.search.queue(self.search.open(self.ref, task), self.num_trials)
            work(queue, partial(evaluate, self.search, task, self.device), timeout=self.timeout, parent=parent)
        except GraphjouleError as error:
            print(f"graphjoule: {error}", file=sys.stderr)
            sys.exit(2)
        except (TrainingInterrupted, KeyboardInterrupt):
            sys.exit(130)


def run_team(team: Team, num_workers: int, *, on_poll: Callable[[], None] = lambda: None) -> list[int]:
    """Run several workers until all have ended; Ctrl-C and SIGTERM end them, and their trials are put back.

    Args:
        team: what each of them does.
        num_workers: how many; they share the machine's cores.
        on_poll: called a few times a second.

    Returns:
        Their exit codes; the negative of a signal's number for one that was killed.

    Raises:
        KeyboardInterrupt: it was stopped; by then every worker has ended.
    """
    context = multiprocessing.get_context("spawn")  # a fork would copy locks of threads that do not exist in it
    workers = [context.Process(target=team.run_worker, args=(num_workers, os.getpid())) for _ in range(num_workers)]
    before = signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # a parent that is killed by it could not end its workers
    try:
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            on_poll()
            time.sleep(_TEAM_POLL_SECONDS)
    finally:
        started = [worker for worker in workers if worker.pid is not None]
        for worker in started:
            worker.terminate()  # nothing happens to one that has ended
        for worker in started:
            worker.join()
        signal.signal(signal.SIGTERM, before)
    return [worker.exitcode or 0 for worker in workers]
