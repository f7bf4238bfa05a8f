"""Which trial is next: every place of a search is filled exactly once, however many workers there are and die.

A search of N trials has N slots. A slot's trial carries its number and an attempt; where a worker died, or was stopped,
the next attempt has the same settings. Of two trials with the same slot and attempt, as two workers may make them at
the same moment, the one that the storage numbered first counts and the other is never started; neither is a trial that
somebody else's program has put there. Optuna lets one worker start a trial and one finish it, so a slot has one result.
Where the settings can be counted, no slot has those of another: what repeats is drawn again, as the next attempt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from graphjoule.tuning.board import Board
from graphjoule.tuning.engine import import_optuna, is_taken_over, make_sampler, start_waiting
from graphjoule.tuning.ranges import Range, count_settings

__all__ = ["MOST_DEATHS", "TrialQueue", "attempts_of", "count_begun", "slot_of"]

_STOPPED = "stopped"
_REPEATED = "repeated"  # the settings that were drawn are another slot's: the next attempt has others
MOST_DEATHS = 8
"""Workers that may die of one trial. One that is killed whenever it is tried, such as by a full memory, must not kill
every worker that there will ever be."""


@dataclass(frozen=True)
class TrialQueue:
    """The trials of one search, for one worker.

    Attributes:
        board: the search.
        num_trials: how many slots there are.
        ranges: what is drawn for a trial, by the name of each setting.
        seed: what it is drawn from.
        first: settings of slot 0 that are not drawn.
    """

    board: Board
    num_trials: int
    ranges: Mapping[str, Range]
    seed: int = 0
    first: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_settings(self) -> int | None:
        """How many different settings the ranges hold; None where they cannot be counted."""
        return count_settings(self.ranges)

    def is_finished(self) -> bool:
        """Whether every slot has its result."""
        attempts = self._attempts()
        return all(slot in attempts and _is_over(attempts[slot][-1]) for slot in range(self.num_trials))

    @contextmanager
    def next_trial(self) -> Iterator[Any]:
        """A trial that is ours while the block lasts, its settings drawn; None if all that is left is with others.

        An error in the block, Ctrl-C too, puts it back: whoever comes next shall not have to find out that we are gone.
        """
        trial, is_ours = None, False
        with ExitStack() as held:
            try:
                with self.board.leases.turn():
                    while (trial := self._ask()) is not None:
                        held.enter_context(self.board.leases.hold(trial))
                        is_ours = _unless_taken_over(partial(self._draw, trial))
                        if not (is_ours and self._is_repeated(trial)):
                            break
                        self.note(trial, {_REPEATED: True})
                        self.put_back(trial)
                yield trial if is_ours else None
            except BaseException:
                if trial is not None:
                    self.put_back(trial)
                raise

    def note(self, trial: Any, facts: Mapping[str, Any]) -> bool:
        """Keep facts beside a trial; False if it had been taken for dead and given to another."""
        return _unless_taken_over(lambda: [trial.set_user_attr(name, value) for name, value in facts.items()])

    def finish(self, trial: Any, value: float) -> bool:
        """Tell a trial's result; False if it had been taken for dead and given to another."""
        return self._tell(trial.number, "COMPLETE", value)

    def refuse(self, trial: Any) -> bool:
        """Tell that a trial's settings cannot be trained; the sampler takes them for the worst there are."""
        return self._tell(trial.number, "PRUNED")

    def put_back(self, trial: Any) -> bool:
        """Give up a trial of ours, for the next attempt; one that is over stays as it is."""
        self.note(trial, {_STOPPED: True})
        return self._tell(trial.number, "FAIL")

    def _ask(self) -> Any:
        """Start the next trial; None if there is none to start."""
        while True:
            self._bury()
            attempts = self._attempts()
            waiting = [tries[-1] for tries in attempts.values() if _state(tries[-1]) == "WAITING"]
            if waiting:
                trial = start_waiting(self.board.study, min(waiting, key=lambda one: int(one.number)))
                if trial is not None:
                    return trial
                continue  # another worker was as quick
            slot = next((s for s in range(self.num_trials) if s not in attempts or _is_lost(attempts[s][-1])), None)
            if slot is None:
                return None
            self._submit(slot, attempts.get(slot, []))

    def _submit(self, slot: int, tries: list[Any]) -> None:
        """Put the next attempt of a slot in the storage, with all that has been drawn for it before."""
        params = dict(self.first) if slot == 0 else {}
        if any(_is_repeat(trial) for trial in tries):
            params = self._untried(slot, len(tries))
        for trial in tries:
            if not _is_repeat(trial):
                params |= trial.params
        self.board.study.enqueue_trial(params, user_attrs={"slot": slot, "attempt": len(tries)})

    def _bury(self) -> None:
        """Mark the running trials of workers that are gone, so that they can be put back."""
        for tries in self._attempts().values():
            trial = tries[-1]
            if _state(trial) == "RUNNING" and self.board.leases.is_dead(trial):
                deaths = sum(_STOPPED not in one.user_attrs for one in tries)
                self._tell(trial.number, "FAIL" if deaths < MOST_DEATHS else "PRUNED")

    def _draw(self, trial: Any) -> None:
        self.board.study.sampler = make_sampler(self.seed, slot_of(trial))
        for name, found in self.ranges.items():
            found.suggest(trial, name)

    def _is_repeated(self, trial: Any) -> bool:
        """Whether another slot has the settings already, and there are some that none has.

        Of two workers that draw the same at the same moment, the one with the earlier slot keeps it.
        """
        if self.num_settings is None:
            return False
        others, mine = self._others(slot_of(trial)), self._key(trial.params)
        has_room = len({key for key, _ in others.values()}) < self.num_settings
        same = [slot for slot, (key, is_over) in others.items() if key == mine and (is_over or slot < slot_of(trial))]
        return has_room and bool(same)

    def _untried(self, slot: int, attempt: int) -> dict[str, Any]:
        """Any settings that no other slot has: the last of a small space the sampler would find by luck only."""
        taken = {key for key, _ in self._others(slot).values()}
        generator = random.Random(f"{self.seed}/{slot}/{attempt}")
        while True:
            params = {name: found.pick(generator) for name, found in self.ranges.items()}
            if self._key(params) not in taken or len(taken) == self.num_settings:
                return params

    def _others(self, slot: int) -> dict[int, tuple[Any, bool]]:
        """The settings of every other slot that has drawn them all, and whether it has its result."""
        found: dict[int, tuple[Any, bool]] = {}
        for other, tries in self._attempts().items():
            params = {name: value for trial in tries if not _is_repeat(trial) for name, value in trial.params.items()}
            if other != slot and params.keys() >= self.ranges.keys():
                found[other] = (self._key(params), _is_over(tries[-1]))
        return found

    def _key(self, params: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(params[name] for name in self.ranges)

    def _attempts(self) -> dict[int, list[Any]]:
        return attempts_of(self.board.study)

    def _tell(self, number: int, state: str, value: float | None = None) -> bool:
        told = import_optuna().trial.TrialState[state]
        return _unless_taken_over(lambda: self.board.study.tell(number, value, state=told))


def _unless_taken_over(act: Callable[[], Any]) -> bool:
    """Do something to a trial of ours; False if somebody has taken us for dead and finished it."""
    try:
        act()
    except Exception as error:
        if is_taken_over(error):
            return False
        raise
    return True


def attempts_of(study: Any) -> dict[int, list[Any]]:
    """The trials that count, by slot in the order of their attempts."""
    found: dict[int, dict[int, Any]] = {}
    for trial in study.get_trials(deepcopy=False):  # in the order of their numbers
        if (slot := slot_of(trial)) >= 0:
            found.setdefault(slot, {}).setdefault(trial.user_attrs["attempt"], trial)
    return {slot: [tries[attempt] for attempt in sorted(tries)] for slot, tries in found.items()}


def slot_of(trial: Any) -> int:
    """The place of a trial in its search; -1 for one that somebody else's program has added."""
    return int(trial.user_attrs.get("slot", -1))


def count_begun(tries: Sequence[Any]) -> int:
    """How many times the training of a slot was begun; settings that are another slot's are never trained."""
    return sum(not _is_repeat(trial) for trial in tries)


def _is_repeat(trial: Any) -> bool:
    return _REPEATED in trial.user_attrs


def _state(trial: Any) -> str:
    return str(trial.state.name)


def _is_over(trial: Any) -> bool:
    return _state(trial) in ("COMPLETE", "PRUNED")


def _is_lost(trial: Any) -> bool:
    return _state(trial) == "FAIL"
