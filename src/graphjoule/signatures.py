"""Calls of autograd functions, made cheaper."""

from __future__ import annotations

import inspect
from typing import TypeVar

import torch

FunctionType = TypeVar("FunctionType", bound=type[torch.autograd.Function])


def with_signature(function: FunctionType) -> FunctionType:
    """An autograd function whose `forward` knows its own signature: a class decorator.

    Torch binds the arguments of every call by that signature, which Python otherwise works out anew each time. This
    saves about 10 of a call's 25 us, as much as the arithmetic of a layer's small operations.

    Args:
        function: a class with `forward` and `setup_context`.
    """
    function.forward.__signature__ = inspect.signature(function.forward)  # type: ignore[attr-defined]
    return function
