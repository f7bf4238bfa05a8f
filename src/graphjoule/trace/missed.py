"""Why a trace has no rows: what the watched modules gave instead of node features."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from graphjoule.trace.outputs import tensors_in

_MOST_SHOWN = 5


def describe_output(output: Any) -> str:
    """What a module gave, in a few words.

    >>> import torch
    >>> describe_output((torch.zeros(5, 2), torch.tensor([1]))), describe_output(None)
    ('[5, 2], [1] int64', 'NoneType')
    """
    shapes = [f"{list(x.shape)}{'' if x.is_floating_point() else f' {x.dtype}'}" for x in tensors_in(output)]
    return ", ".join(shapes).replace("torch.", "") or type(output).__name__


def why_nothing(num_nodes: int | None, watched: Collection[str], missed: Mapping[str, str]) -> str:
    """The warning of a trace without rows.

    Args:
        num_nodes: number of nodes of the graph, if it is known.
        watched: names of the modules that it watches.
        missed: what they gave, in words, by name; empty if none was called.
    """
    if not missed:
        return (
            f"The trace recorded nothing: of the modules that it watches ({_first(watched, ', ')}) none was called "
            "inside the block."
        )
    rows = "one row per node" if num_nodes is None else f"{num_nodes} rows, one per node of the graph"
    given = _first([f"{name} {shapes}" for name, shapes in missed.items()], "; ")
    return (
        f"The trace recorded nothing: no output is node features, floating-point with {rows}; the outputs were: "
        f"{given}."
    )


def _first(names: Collection[str], between: str) -> str:
    shown = list(names)[:_MOST_SHOWN]
    return between.join([*shown, *(["..."] if len(names) > len(shown) else [])])
