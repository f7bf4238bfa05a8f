"""The run folder of many processes: the first one reads and writes, the others hear what came of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from graphjoule.nn import GraphModel
from graphjoule.parallel.group import Group
from graphjoule.training.folder import RunFolder
from graphjoule.training.recipe import Recipe

_OF_EACH_PROCESS = ("train_index", "val_index")  # of a checkpoint; everything else is the same on all


def _by_first(name: str) -> Callable[..., Any]:
    """A method of `RunFolder` that the first process calls; what it returns or refuses, all return or refuse."""
    method = getattr(RunFolder, name)

    @functools.wraps(method)
    def call(self: JointFolder, *args: Any, **kwargs: Any) -> Any:
        return self._group.from_first(lambda: getattr(self._own, name)(*args, **kwargs))

    return call


class JointFolder(RunFolder):
    """A `RunFolder` that only the first process touches, so that the others need not even see its disk.

    All processes make every call and wait for it, so they go the same way, and none goes on before a file is whole:
    one that ended earlier, on Ctrl-C, would be taken for a failure, and the first be ended while it writes.

    Args:
        path: the folder.
        group: the processes.
    """

    def __init__(self, path: str | Path, group: Group) -> None:
        super().__init__(path)
        self._group = group
        self._own = RunFolder(path)  # of the first process: methods of this class that call each other would call all

    check = _by_first("check")
    about = _by_first("about")
    begin = _by_first("begin")
    records = _by_first("records")
    add = _by_first("add")
    write_card = _by_first("write_card")
    drop_checkpoint = _by_first("drop_checkpoint")

    @property
    def is_taken(self) -> bool:
        """See `RunFolder.is_taken`."""
        return self._group.from_first(lambda: self._own.is_taken)

    @contextmanager
    def open(self) -> Iterator[None]:
        """See `RunFolder.open`."""
        with ExitStack() as stack:
            self._group.from_first(lambda: stack.enter_context(self._own.open()))
            yield

    def save_checkpoint(self, state: dict[str, Tensor], recipe: Recipe, group: Sequence[int], seconds: float) -> None:
        """See `RunFolder.save_checkpoint`; without what each process has for itself."""
        shared = {name: value for name, value in state.items() if name not in _OF_EACH_PROCESS}
        self._group.from_first(lambda: self._own.save_checkpoint(shared, recipe, group, seconds))

    def load_checkpoint(self, recipe: Recipe, group: Sequence[int]) -> tuple[dict[str, Tensor], float] | None:
        """See `RunFolder.load_checkpoint`."""
        found = self._group.from_first(lambda: self._own.load_checkpoint(recipe, group))
        if found is None:
            return None
        state, seconds = found
        return {name: value for name, value in state.items() if name not in _OF_EACH_PROCESS}, seconds

    def load_model(self, seed: int, model: GraphModel) -> GraphModel:
        """See `RunFolder.load_model`."""
        model.load_state_dict(self._group.from_first(lambda: self._own.load_model(seed, model).state_dict()))
        return model
