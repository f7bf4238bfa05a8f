"""Hooks and `torch.compile`: compiled code does not see hooks that come later, so they would silently see nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def as_written(model: nn.Module) -> nn.Module:
    """The model itself where it is what ``torch.compile(model)`` returns, so that its layers have their own names.

    >>> model = nn.Linear(2, 2)
    >>> as_written(model) is model
    True
    """
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else model


_stances: list[Any] = []  # torch's, one for each open block; the first knows what was before


@contextmanager
def uncompiled() -> Iterator[None]:
    """A block in which whatever `torch.compile` made runs as it is written, with all hooks.

    Blocks may end in any order, as traces may. Torch's own would then stay: the last to end sets what it found.
    """
    if not _is_loaded():
        yield
        return
    _stances.append(_stances[0] if _stances else torch.compiler.set_stance("force_eager"))
    try:
        yield
    finally:
        stance = _stances.pop()
        if not _stances:
            stance.__exit__(None, None, None)


def compile_anew() -> None:
    """Let compiled code be made again at its next call, after hooks came or went."""
    if _is_loaded():
        torch.compiler.reset()


def not_compiled(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that compiled code calls as it is: it is left for the hook and entered again after it."""
    if not _is_loaded():
        return hook
    hidden: Callable[..., Any] = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]
    return hidden


def _is_loaded() -> bool:
    """Whether anything can have been compiled; the compiler itself takes two seconds to import."""
    return "torch._dynamo" in sys.modules
