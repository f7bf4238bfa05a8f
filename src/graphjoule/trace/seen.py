"""What a call of the model has shown so far: which tensors have a row already, and how often a module gave one."""

from __future__ import annotations

import weakref
from collections import Counter

from torch import Tensor, nn

from graphjoule.trace.entry import Entry


class Seen:
    """The rows of one call of the model, by the tensors that they are about."""

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[weakref.ref[Tensor], int | None, Entry]] = {}  # by id
        self._times: Counter[str] = Counter()

    def clear(self) -> None:
        """Forget everything: a new call begins."""
        self._tensors.clear()
        self._times.clear()

    def count(self, name: str) -> int:
        """How often the module of this name has given a row, this one counted."""
        self._times[name] += 1
        return self._times[name]

    def add(self, features: Tensor, entry: Entry) -> None:
        """Remember the row of a tensor."""
        self._tensors[id(features)] = (weakref.ref(features), _version(features), entry)

    def entry_of(self, features: Tensor, module: nn.Module) -> Entry | None:
        """The row of this very tensor, which `module` gave now, if it has one.

        A tensor is known by the object itself, alive, and by its version, which every change in place raises; addresses
        are no help, for memory is used again.
        """
        found = self._tensors.get(id(features))
        if found is None or found[0]() is not features:
            return None
        version, entry = found[1:]
        if version != _version(features) or (version is None and getattr(module, "inplace", False)):
            return None
        return entry


def _version(x: Tensor) -> int | None:
    """How often a tensor was changed in place; tensors of inference mode do not count it."""
    return None if x.is_inference() else x._version
