"""Hooks of a watcher: a copy of the model has none of them, and compiled code calls them as they are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from graphjoule.trace.compiled import not_compiled


def nothing(*args: Any, **kwargs: Any) -> None:
    """What stands for a hook in a copy of a model, which nobody watches."""


class Hook:
    """A hook that belongs to the model it was made for.

    ``copy.deepcopy`` and ``torch.save`` copy a module's hooks with it. A copy must not be measured, and what has been
    measured cannot be copied, so a copy has a hook that does nothing.

    Args:
        see: what torch calls; it changes nothing.

    Example:
        >>> import copy
        >>> seen = []
        >>> hook = Hook(seen.append)
        >>> hook(1), copy.deepcopy(hook)(2), seen
        (None, None, [1])
    """

    only_reads = True  # see `graphjoule.nn.base.is_only_seen`

    def __init__(self, see: Callable[..., None]) -> None:
        self._see = see

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """What torch calls."""
        self._see(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_nothing, ()


def uncompiled_hook(see: Callable[..., None]) -> Hook:
    """A hook that compiled code calls as it is."""
    return Hook(not_compiled(see))


def _make_nothing() -> Callable[..., None]:
    return nothing


class OneThread:
    """Who may be watched: while a call of the model runs, only the thread that made it.

    Hooks of two threads at once would mix up their graphs.
    """

    def __init__(self) -> None:
        self._owner: int | None = None

    def begin(self) -> bool:
        """Whether this thread may be watched from now on: no call of another one is running."""
        if not self.is_here:
            return False
        self._owner = threading.get_ident()
        return True

    def end(self) -> None:
        """The call of the model is over."""
        if self.is_here:
            self._owner = None

    @property
    def is_here(self) -> bool:
        """Whether no other thread is being watched."""
        return self._owner in (None, threading.get_ident())
