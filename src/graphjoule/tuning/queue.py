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
from graphjoule.tuning.storage import SearchStorage, import_optuna, quiet

__all__ = ["MOST_DEATHS", "TrialQueue", "attempts_of", "slot_of"]

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
        self._draft: Any = None  # a study in memory, where settings are drawn
        self._copied: set[int] = set()  # the numbers of the trials with a result that it has

    def is_finished(self) -> bool:
        """Whether every slot has its result."""
        attempts = self._attempts()
        return all(slot in attempts and is_over(attempts[slot][-1]) for slot in range(self.num_trials))

    @contextmanager
    def next_trial(self) -> Iterator[Any]:
        """A trial that is ours while the block lasts; None if other workers have all that is left.

        An error in the block, Ctrl-C too, puts it back, so that nobody has to find out that we are gone.
        """
        trial = None
        with ExitStack() as held:
            try:
                with self.storage.leases.turn():
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
        # The facts come first, so that a trial with a result has them.
        if facts and not self.storage.note(trial, facts):
            return False
        return self.storage.tell(trial.number, "PRUNED" if value is None else "COMPLETE", value)

    def put_back(self, trial: Any) -> bool:
        """Give up a trial of ours, for the next attempt; a trial that is over stays as it is."""
        return self.storage.note(trial, {_STOPPED: True}) and self.storage.tell(trial.number, "FAIL")

    def _take(self) -> Any:
        """Start the next trial; None if there is none to start."""
        while True:
            self._bury()
            attempts = self._attempts()
            if all(_state(tries[-1]) != "WAITING" for tries in attempts.values()):
                slots = range(self.num_trials)
                slot = next((s for s in slots if s not in attempts or _state(attempts[s][-1]) == "FAIL"), None)
                if slot is None:
                    return None
                self._submit(slot, attempts)
            if any(slot_of(one) < 0 and _state(one) == "WAITING" for one in self.storage.trials()):
                ref = self.storage.ref  # Optuna would start that one for us
                raise GraphjouleError(
                    f"Another program has queued a trial in the search {ref.name!r} in {ref}; choose another `name`."
                )
            trial = self.storage.ask()
            if self._counts(trial):
                return trial
            self.storage.tell(trial.number, "FAIL")

    def _bury(self) -> None:
        """End the running trials of workers that are gone, so that they can be put back."""
        for tries in self._attempts().values():
            trial = tries[-1]
            if _state(trial) == "RUNNING" and self.storage.leases.is_dead(trial):
                deaths = sum(_STOPPED not in one.user_attrs for one in tries)
                self.storage.tell(trial.number, "FAIL" if deaths < MOST_DEATHS else "PRUNED")

    def _submit(self, slot: int, attempts: Mapping[int, Sequence[Any]]) -> None:
        """Queue the next attempt of a slot: with the settings it had, unless an earlier trial has them."""
        tries, owners = attempts.get(slot, []), _owners(attempts)
        drawn = [one for one in tries if one.params.keys() == self._distributions.keys() and owners[_key(one)] == slot]
        params = drawn[0].params if drawn else self._draw(slot, attempts)
        self.storage.add(params, self._distributions, {"slot": slot, "attempt": len(tries)})

    def _draw(self, slot: int, attempts: Mapping[int, Sequence[Any]]) -> dict[str, Any]:
        """Settings for a slot that no other slot has, by TPE from the search's seed and the slot.

        They are drawn in a study in memory, so that a trial is stored with all its settings at once. One generator for
        the whole search would start anew when the search continues after a stop, and repeat itself.
        """
        optuna = import_optuna()
        seed = int(np.random.SeedSequence([self._seed, slot]).generate_state(1)[0])
        trials, taken = _in_order(attempts), _owners(attempts)
        with quiet():
            if self._draft is None:
                self._draft = optuna.create_study(direction=self.storage.study.direction)
            draft = self._draft
            draft.add_trials([one for one in trials if is_over(one) and one.number not in self._copied])
            self._copied |= {one.number for one in trials if is_over(one)}
            num_lasting = len(draft.get_trials(deepcopy=False))
            draft.add_trials([one for one in trials if _state(one) == "RUNNING"])
            if slot == 0 and self._first:
                draft.enqueue_trial(self._first)
            # Several settings are drawn together, and those that others are trying count as bad: they are not repeated.
            draft.sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
            trial = draft.ask(self._distributions)
            draft.sampler = optuna.samplers.RandomSampler(seed=seed)  # the last of few settings TPE finds by luck only
            while _key(trial) in taken:
                trial = draft.ask(self._distributions)
            for number in range(num_lasting, trial.number + 1):  # the next draw shall not see these
                draft.tell(number, state=optuna.trial.TrialState.FAIL)
        return dict(trial.params)

    def _counts(self, trial: Any) -> bool:
        """Whether a trial that just began is the first with its slot and attempt, and its settings are its own."""
        slot, attempts = slot_of(trial), self._attempts()
        return slot >= 0 and attempts[slot][-1].number == trial.number and _owners(attempts)[_key(trial)] == slot

    def _attempts(self) -> dict[int, list[Any]]:
        return attempts_of(self.storage.trials())


def attempts_of(trials: Sequence[Any]) -> dict[int, list[Any]]:
    """The trials that count, by slot in the order of their attempts.

    Args:
        trials: all that a storage holds, in the order of their numbers.
    """
    found: dict[int, dict[int, Any]] = {}
    for trial in trials:
        if (slot := slot_of(trial)) >= 0:
            found.setdefault(slot, {}).setdefault(trial.user_attrs["attempt"], trial)
    return {slot: [tries[attempt] for attempt in sorted(tries)] for slot, tries in sorted(found.items())}


def num_begun(slot: int, attempts: Mapping[int, Sequence[Any]]) -> int:
    """How many times the training of a slot was begun; a trial with the settings of an earlier one is never trained."""
    owners = _owners(attempts)
    return sum(owners[_key(trial)] == slot for trial in attempts[slot])


def slot_of(trial: Any) -> int:
    """The place of a trial in its search; -1 if another program has added it."""
    return int(trial.user_attrs.get("slot", -1))


def is_over(trial: Any) -> bool:
    """Whether a trial has its result: a value, or that there cannot be one."""
    return _state(trial) in ("COMPLETE", "PRUNED")


def _owners(attempts: Mapping[int, Sequence[Any]]) -> dict[Any, int]:
    """The slot of the first trial with certain settings, by these settings."""
    owners: dict[Any, int] = {}
    for trial in _in_order(attempts):
        owners.setdefault(_key(trial), slot_of(trial))
    return owners


def _in_order(attempts: Mapping[int, Sequence[Any]]) -> list[Any]:
    return sorted((one for tries in attempts.values() for one in tries), key=lambda one: int(one.number))


def _key(trial: Any) -> tuple[Any, ...]:
    return tuple(sorted(trial.params.items()))


def _state(trial: Any) -> str:
    return str(trial.state.name)
