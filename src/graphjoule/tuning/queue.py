"""Which trial is next: every place of a search is filled exactly once, however many workers there are and die.

A search of N trials has N slots. A slot's trial carries the slot's number and an attempt; after a worker died or was
stopped, the next attempt has the same settings. Under a lock that is all. Where there is none, in a database, two
workers may queue the same attempt of the same slot, or the same settings for two slots, at the same moment: then the
trial with the lower number counts, and the other is dropped as soon as a worker starts it. Optuna lets one worker start
a trial and one end it, so a slot has one result. Trials that another program has put there have no slot and do not
count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np

from graphjoule.errors import GraphjouleError
from graphjoule.tuning.ranges import Range, count_settings
from graphjoule.tuning.storage import SearchStorage, import_optuna, quiet, sentences

_STOPPED = "stopped"
MOST_DEATHS = 8
"""Workers that may die of one trial; then it is given up: it may kill every worker, such as by filling the memory."""


class TrialQueue:
    """The trials of one search, for one worker.

    Args:
        storage: the search.
        num_trials: how many slots there are; at most as many as there are different settings.
        ranges: what is drawn for a trial, by the name of each setting.
        seed: what it is drawn from.
        first: settings of slot 0 that are not drawn.
    """

    def __init__(
        self,
        storage: SearchStorage,
        num_trials: int,
        ranges: Mapping[str, Range],
        seed: int = 0,
        first: Mapping[str, Any] | None = None,
    ) -> None:
        self.storage = storage
        self.num_trials = min(num_trials, count_settings(ranges) or num_trials)
        self._distributions = {name: found.distribution() for name, found in ranges.items()}
        self._seed, self._first = seed, dict(first or {})

    def is_finished(self) -> bool:
        """Whether every slot has its result."""
        attempts = attempts_of(self.storage.trials())
        return all(slot in attempts and is_over(attempts[slot][-1]) for slot in range(self.num_trials))

    @contextmanager
    def next_trial(self) -> Iterator[Any]:
        """A trial that is ours while the block lasts; None if other workers have all that is left.

        An error in the block, Ctrl-C too, puts it back, so that nobody has to find out that we are gone.
        """
        trial = None
        with ExitStack() as held:
            try:
                with sentences(self.storage.ref), self.storage.leases.turn():
                    trial = self._take()
                    if trial is not None:
                        held.enter_context(self.storage.leases.hold(trial))
                yield trial
            except BaseException:
                if trial is not None:
                    with suppress(GraphjouleError):  # of a storage that has failed: the first error is the one to show
                        self.put_back(trial)
                raise

    def finish(self, trial: Any, value: float | None, facts: Mapping[str, Any] | None = None) -> bool:
        """Store the result of a trial; None is for settings that cannot be trained, which are the worst there are.

        Returns:
            False if the worker had been taken for dead and the trial given to another.
        """
        return self.storage.end(trial, "PRUNED" if value is None else "COMPLETE", value, facts)

    def put_back(self, trial: Any) -> bool:
        """Give up a trial of ours, for the next attempt; a trial that is over stays as it is."""
        return self.storage.end(trial, "FAIL", facts={_STOPPED: True})

    def _take(self) -> Any:
        """Start the next trial; None if there is none to start."""
        optuna, storage = import_optuna(), self.storage
        while True:
            for tries in attempts_of(storage.trials()).values():  # end the trials of workers that are gone
                if _state(tries[-1]) == "RUNNING" and storage.leases.is_dead(tries[-1]):
                    deaths = sum(_STOPPED not in one.user_attrs for one in tries)
                    storage.end(tries[-1], "FAIL" if deaths < MOST_DEATHS else "PRUNED")
            trials = storage.trials()
            attempts = attempts_of(trials)
            if all(_state(tries[-1]) != "WAITING" for tries in attempts.values()):
                slots = range(self.num_trials)
                slot = next((s for s in slots if s not in attempts or _state(attempts[s][-1]) == "FAIL"), None)
                if slot is None:
                    return None
                tries = attempts.get(slot, [])
                storage.study.add_trial(
                    optuna.create_trial(
                        state=optuna.trial.TrialState.WAITING,
                        params=tries[0].params if tries else self._draw(slot, attempts),
                        distributions=self._distributions,
                        user_attrs={"slot": slot, "attempt": len(tries)},
                    )
                )
            if any(slot_of(one) < 0 and _state(one) == "WAITING" for one in trials):  # Optuna would start it for us
                raise GraphjouleError(
                    f"Another program has queued a trial in the search {storage.ref.name!r} in {storage.ref}; choose "
                    "another `name`."
                )
            trial = storage.study.ask()  # the first that is queued; if none is, Optuna starts one without settings
            counted = attempts_of(storage.trials()).get(slot_of(trial), [])
            if counted and counted[-1].number == trial.number:
                return trial
            storage.end(trial, "FAIL")

    def _draw(self, slot: int, attempts: Mapping[int, Sequence[Any]]) -> dict[str, Any]:
        """Settings for a slot that no other slot has, by TPE from the search's seed and the slot.

        They are drawn in a study in memory, so that a trial is stored with all its settings at once. One generator for
        the whole search would start anew when the search continues after a stop, and repeat itself.
        """
        optuna = import_optuna()
        seed = int(np.random.SeedSequence([self._seed, slot]).generate_state(1)[0])
        trials = sorted((one for tries in attempts.values() for one in tries), key=lambda one: int(one.number))
        taken = {_key(one) for one in trials}
        with quiet():
            draft = optuna.create_study(direction=self.storage.study.direction)
            draft.add_trials([one for one in trials if is_over(one) or _state(one) == "RUNNING"])
            if slot == 0 and self._first:
                draft.enqueue_trial(self._first)
            # Several settings are drawn together, and those that others are trying count as bad: they are not repeated.
            draft.sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
            trial = draft.ask(self._distributions)
            draft.sampler = optuna.samplers.RandomSampler(seed=seed)  # the last of few settings TPE finds by luck only
            while _key(trial) in taken:
                trial = draft.ask(self._distributions)
        return dict(trial.params)


def attempts_of(trials: Sequence[Any]) -> dict[int, list[Any]]:
    """The trials that count, by slot in the order of their attempts.

    Of two with the same slot and attempt the first counts, and so it does of two slots with the same settings.

    Args:
        trials: all that a storage holds, in the order of their numbers.
    """
    found: dict[int, list[Any]] = {}
    owners: dict[Any, int] = {}
    for trial in trials:
        slot = slot_of(trial)
        is_first = slot >= 0 and trial.user_attrs["attempt"] == len(found.get(slot, []))
        if is_first and owners.setdefault(_key(trial), slot) == slot:
            found.setdefault(slot, []).append(trial)
    return dict(sorted(found.items()))


def slot_of(trial: Any) -> int:
    """The place of a trial in its search; -1 if another program has added it."""
    return int(trial.user_attrs.get("slot", -1))


def is_over(trial: Any) -> bool:
    """Whether a trial has its result: a value, or that there cannot be one."""
    return _state(trial) in ("COMPLETE", "PRUNED")


def _key(trial: Any) -> tuple[Any, ...]:
    return tuple(sorted(trial.params.items()))


def _state(trial: Any) -> str:
    return str(trial.state.name)
