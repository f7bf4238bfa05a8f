"""The run folder of many processes: the first one reads and writes, the others hear what it read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from torch import Tensor

from graphjoule.graph.group import Group
from graphjoule.nn import GraphModel
from graphjoule.tasks import Split
from graphjoule.tasks.facts import TaskFacts
from graphjoule.training.folder import About, RunFolder
from graphjoule.training.loop import RunResult
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import Record

_OF_EACH_PROCESS = ("train_index", "val_index")  # of a checkpoint; everything else is the same on all


class JointFolder(RunFolder):
    """A `RunFolder` that only the first process touches, so that the others need not even see its disk.

    What is read, and what is wrong with it, all processes are told; so they go the same way. They wait for a checkpoint
    to be whole. Where writing something else fails, the first process ends, and with it the training.

    Args:
        path: the folder.
        group: the processes.
    """

    def __init__(self, path: str | Path, group: Group) -> None:
        super().__init__(path)
        self._group = group
        self._own = RunFolder(path)  # of the first process: methods of this class that call each other would call all

    def check(
        self,
        recipe: Recipe,
        data: TaskFacts | None = None,
        split_of: Callable[[int], Split] | None = None,
        *,
        resume: bool,
    ) -> None:
        """See `RunFolder.check`."""
        self._group.from_first(lambda: self._own.check(recipe, data, split_of, resume=resume))

    @property
    def is_taken(self) -> bool:
        """See `RunFolder.is_taken`."""
        return bool(self._group.from_first(lambda: self._own.is_taken))

    def about(self) -> About:
        """See `RunFolder.about`."""
        return About.model_validate(self._group.from_first(lambda: self._own.about().model_dump(mode="json")))

    @contextmanager
    def open(self) -> Iterator[None]:
        """See `RunFolder.open`."""
        with ExitStack() as stack:
            self._group.from_first(lambda: stack.enter_context(self._own.open()))
            yield

    def begin(
        self,
        recipe: Recipe,
        groups: list[list[int]],
        data: TaskFacts | None = None,
        splits: Mapping[int, str] | None = None,
    ) -> None:
        """See `RunFolder.begin`."""
        if self._group.is_first:
            self._own.begin(recipe, groups, data, splits)

    def records(self) -> dict[int, Record]:
        """See `RunFolder.records`."""
        said = self._group.from_first(
            lambda: [record.model_dump(mode="json") for record in self._own.records().values()]
        )
        return {record.seed: record for record in map(Record.model_validate, said)}

    def add(self, result: RunResult, record: Record, recipe: Recipe, data: TaskFacts) -> None:
        """See `RunFolder.add`."""
        if self._group.is_first:
            self._own.add(result, record, recipe, data)

    def write_card(self) -> None:
        """See `RunFolder.write_card`."""
        if self._group.is_first:
            self._own.write_card()

    def save_checkpoint(self, state: dict[str, Tensor], recipe: Recipe, group: Sequence[int], seconds: float) -> None:
        """See `RunFolder.save_checkpoint`; without what each process has for itself."""
        shared = {name: value for name, value in state.items() if name not in _OF_EACH_PROCESS}
        # All wait: one that ended earlier, on Ctrl-C, would be taken for a failure, and the first be ended too.
        self._group.from_first(lambda: self._own.save_checkpoint(shared, recipe, group, seconds))

    def load_checkpoint(self, recipe: Recipe, group: Sequence[int]) -> tuple[dict[str, Tensor], float] | None:
        """See `RunFolder.load_checkpoint`."""
        seconds = 0.0

        def load() -> dict[str, Tensor] | None:
            nonlocal seconds
            found = self._own.load_checkpoint(recipe, group)
            if found is None:
                return None
            state, seconds = found
            return {name: value for name, value in state.items() if name not in _OF_EACH_PROCESS}

        state = self._group.tensors_from_first(load)
        return None if state is None else (state, seconds)

    def drop_checkpoint(self) -> None:
        """See `RunFolder.drop_checkpoint`."""
        if self._group.is_first:
            self._own.drop_checkpoint()

    def load_model(self, seed: int, model: GraphModel) -> GraphModel:
        """See `RunFolder.load_model`."""
        state = self._group.tensors_from_first(lambda: self._own.load_model(seed, model).state_dict())
        assert state is not None
        model.load_state_dict(state)
        return model
