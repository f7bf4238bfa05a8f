"""Whether a module still computes what its class was written to compute, so that a fused backend may replace it."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn
from torch.nn.modules import module as torch_module

ModuleType = TypeVar("ModuleType", bound=type[nn.Module])

_KNOWN: dict[type[nn.Module], tuple[Any, frozenset[str]]] = {}
"""By class the `forward` that it was written with, and all names it has, which an instance could hide."""


def stock(kind: ModuleType) -> ModuleType:
    """A class decorator: what modules of this very class compute, as it is written, may be computed in another way."""
    _KNOWN[kind] = kind.forward, frozenset(dir(kind))
    return kind


stock(nn.ReLU)
stock(nn.Identity)


def is_stock(module: nn.Module) -> bool:
    """Whether calling a module is calling the `forward` that its class was written with, and nothing else.

    It is not where the class is another one (a subclass, or the one that a parametrization puts in its place), where
    the class or the module was given another `forward` or the module any other method, and where a hook waits for the
    call or its gradient. What the module's settings are is not asked here.
    """
    kind = type(module)
    forward, names = _KNOWN.get(kind, (None, frozenset()))
    return (
        forward is kind.forward
        and not (
            module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
        )
        and not _has_hooks_on_all_modules()
        and vars(module).keys().isdisjoint(names)
    )


def _has_hooks_on_all_modules() -> bool:
    return bool(
        torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    )
