"""Which modules of a model a trace watches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from fnmatch import fnmatch

import torch
from torch import nn

from graphjoule.errors import GraphjouleError
from graphjoule.trace.operators import passes_messages

Watch = str | type[nn.Module]
_LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


def watched_modules(model: nn.Module, watch: Watch | Sequence[Watch] | None) -> dict[str, nn.Module]:
    """The modules to watch by name.

    Args:
        model: the whole model.
        watch: names, where ``*`` stands for anything between two dots, or types of modules; by default every module
            but the parts of a layer, see `layer_modules`.
    """
    if watch is None:
        found_layers = {} if _is_layer(model) else dict(layer_modules(model))
        return found_layers or {type(model).__name__: model}
    modules = {name: module for name, module in model.named_modules() if name}
    found: set[str] = set()
    for wanted in watch if isinstance(watch, Sequence | Set) and not isinstance(watch, str) else [watch]:
        if isinstance(wanted, str):
            matching = [name for name in modules if name_matches(name, wanted)]
        elif not isinstance(wanted, type):
            raise GraphjouleError(
                f'The modules to watch have {type(wanted).__name__} among them; expected names, such as "convs.*", or '
                "types of modules, such as GCNConv."
            )
        else:
            matching = [name for name, module in modules.items() if isinstance(module, wanted)]
        if not matching:
            missing = f"called {wanted!r}" if isinstance(wanted, str) else f"a {wanted.__name__}"
            raise GraphjouleError(f"No module is {missing}; the model has {', '.join(modules) or 'none'}.")
        found.update(matching)
    return {name: module for name, module in modules.items() if name in found}


def name_matches(name: str, pattern: str) -> bool:
    """Whether a wildcard names a module; it stays within one level of the model.

    >>> name_matches("convs.3", "convs.*"), name_matches("convs.3.lin", "convs.*")
    (True, False)

    The name of a module stands for all its uses, a name with a number for one:

    >>> name_matches("act#2", "act"), name_matches("act#2", "act#3")
    (True, False)
    """
    uses = (name, name.partition("#")[0])
    return any(fnmatch(use, pattern) for use in uses) and name.count(".") == pattern.count(".")


def layer_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module below `model` but the parts of a layer.

    One layer is a message-passing layer of PyG, a `HeteroConv` of them, or a member of a list of modules that has at
    most one of those and no list in it; what a message-passing layer has inside does not count. Its linear maps,
    activations and norms are parts: they can be watched by name.
    """
    seen: set[nn.Module] = set()

    def descend(parent: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
        for name, child in parent.named_children():
            if child in seen:
                continue
            seen.add(child)
            yield prefix + name, child
            inside = list(_down_to_layers(child))
            is_member = isinstance(parent, _LISTS) and not any(isinstance(module, _LISTS) for module in inside)
            if not (_is_layer(child) or (is_member and sum(map(_is_layer, inside)) <= 1)):
                yield from descend(child, f"{prefix}{name}.")

    return descend(model, "")


def modules_around_layers(model: nn.Module) -> list[nn.Module]:
    """The modules below `model` that hold layers, or what a trace watches: they may be called with other graphs."""
    found: list[nn.Module] = []

    def descend(parent: nn.Module) -> None:
        for child in parent.children():
            if child in found or _is_layer(child) or next(child.children(), None) is None:
                continue
            inside = list(_down_to_layers(child))
            is_part = isinstance(parent, _LISTS) and not any(isinstance(module, _LISTS) for module in inside)
            if not is_part or any(map(_is_layer, inside)):
                if not isinstance(child, nn.ModuleList | nn.ModuleDict):  # which are never called
                    found.append(child)
                descend(child)

    descend(model)
    return found


def is_in_backward() -> bool:
    """Whether a backward pass is at work: `torch.utils.checkpoint` calls layers again there, for what it did not keep.

    Where torch does not say, the answer is no.
    """
    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and int(task()) != -1


def _down_to_layers(module: nn.Module) -> Iterator[nn.Module]:
    """The module and all below it, but nothing inside a message-passing layer: the list in GENConv is its own MLP."""
    yield module
    if not _is_layer(module):
        for child in module.children():
            yield from _down_to_layers(child)


def _is_layer(module: nn.Module) -> bool:
    """Whether it is a message-passing layer, or one of those per relation, whose sum is the layer."""
    return passes_messages(module) or any(kind.__name__ == "HeteroConv" for kind in type(module).__mro__)
