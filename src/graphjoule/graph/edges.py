"""Edges as they are given: what makes no graph is refused, what stands there twice is merged."""

from __future__ import annotations

from numbers import Integral

import numpy as np
import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph.csr import has_derivative, unwrapped


def check_edges(
    edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int | None
) -> tuple[Tensor, Tensor | None, int]:
    """Refuse edges that cannot be a graph; returns them in int64 and float64 on the CPU, and the number of nodes."""
    for name, given in (("edge_index", edge_index), ("edge_weight", edge_weight)):
        if not isinstance(given, Tensor) and not (given is None and name == "edge_weight"):
            raise GraphjouleError(
                f"{name} is of type {type(given).__name__}; expected a tensor, such as torch.as_tensor({name}) makes."
            )
    edge_index, edge_weight = unwrapped(edge_index), unwrapped(edge_weight)
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise GraphjouleError(f"edge_index has shape {list(edge_index.shape)}; expected [2, num_edges].")
    edge_index = as_int64(edge_index.cpu(), "edge_index has")
    largest = int(edge_index.max()) if edge_index.numel() else -1
    if num_nodes is None:
        num_nodes = largest + 1
    if not isinstance(num_nodes, Integral):
        raise GraphjouleError(f"num_nodes is {num_nodes!r}; expected a whole number, of type int.")
    if num_nodes < 1:
        raise GraphjouleError(
            f"The graph has {num_nodes} nodes; at least one is needed. Pass num_nodes if it has no edges."
        )
    smallest = int(edge_index.min()) if edge_index.numel() else 0
    if smallest < 0 or largest >= num_nodes:
        wrong = smallest if smallest < 0 else largest
        raise GraphjouleError(f"edge_index names node {wrong}; with {num_nodes} nodes it must be 0 to {num_nodes - 1}.")
    if edge_weight is None:
        return edge_index, None, int(num_nodes)
    num_edges = edge_index.size(1)
    if edge_weight.shape != (num_edges,):
        raise GraphjouleError(f"edge_weight has shape {list(edge_weight.shape)}; expected [{num_edges}], one per edge.")
    if edge_weight.is_complex():
        raise GraphjouleError(f"edge_weight has dtype {edge_weight.dtype}; expected real numbers.")
    weight = edge_weight.cpu().double()
    wrong = ~torch.isfinite(weight) | (weight < 0)
    if wrong.any():
        at = int(wrong.nonzero()[0])
        raise GraphjouleError(f"edge_weight[{at}] is {float(weight[at])}; weights must be finite and not negative.")
    return edge_index, weight, int(num_nodes)


def check_fixed(edge_weight: Tensor | None) -> None:
    """Refuse weights by which a derivative is asked for."""
    if has_derivative(edge_weight):
        raise GraphjouleError(
            "edge_weight has a gradient, which no graph passes on; give edge_weight.detach() to hold the weights fixed."
        )


def check_degrees(degree: Tensor) -> None:
    """Refuse weights whose sum at a node is beyond the largest number: divided by it, they would all be zero."""
    wrong = ~torch.isfinite(degree)
    if wrong.any():
        raise GraphjouleError(
            f"The weights of the edges at node {int(wrong.nonzero()[0])} add up to more than the largest number, "
            f"{torch.finfo(degree.dtype).max:.1e}; expected smaller ones: divide all weights by the same number."
        )


def merge_edges(row: Tensor, col: Tensor, weight: Tensor, num_nodes: int, reduce: str) -> tuple[Tensor, Tensor, Tensor]:
    """One entry per (row, col), sorted; weights of duplicates are reduced in order of size.

    The order matters: summed in any other, the two directions of an edge could differ in the last bit.
    """
    by_weight = torch.argsort(weight)
    row, col, weight = row[by_weight], col[by_weight], weight[by_weight]
    key, inverse = torch.unique(row * num_nodes + col, return_inverse=True)
    merged = torch.zeros(key.numel(), dtype=torch.float64).scatter_reduce_(
        0, inverse, weight, reduce="amax" if reduce == "max" else "sum"
    )
    return key // num_nodes, key % num_nodes, merged


def with_loops(
    row: Tensor, col: Tensor, weight: Tensor, num_nodes: int, loop: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Merged edges and an edge of weight `loop` from every node to itself, sorted; then the degrees without it."""
    degree = torch.zeros(num_nodes, dtype=torch.float64).index_add_(0, row, weight)
    check_degrees(degree)
    nodes = torch.arange(num_nodes)
    row, col = torch.cat([row, nodes]), torch.cat([col, nodes])
    weight = torch.cat([weight, torch.full((num_nodes,), loop, dtype=torch.float64)])
    order = torch.argsort(row * num_nodes + col)
    return row[order], col[order], weight[order], degree


def check_symmetric(row: Tensor, col: Tensor, weight: Tensor, num_nodes: int) -> None:
    """Refuse merged edges of which one has no edge back, or one of another weight, naming the first."""
    order = torch.argsort(col * num_nodes + row)
    same = row.equal(col[order]) and col.equal(row[order])
    if not same:
        mirrored = torch.isin(col * num_nodes + row, row * num_nodes + col)
        at = int((~mirrored).nonzero()[0])
        found = f"the edge {int(row[at])} -> {int(col[at])} has no edge back"
    elif not weight.equal(weight[order]):
        at = int((weight != weight[order]).nonzero()[0])
        found = f"the edge {int(row[at])} -> {int(col[at])} has another weight than its edge back"
    else:
        return
    raise GraphjouleError(
        f"The graph is directed: {found}. An undirected graph is expected; "
        "Propagation.from_edge_index(..., symmetrize=True) lets each edge count in both directions, as "
        "symmetrize=True of Task.from_data does."
    )


def as_int64(numbers: Tensor, subject: str) -> Tensor:
    """The same numbers in int64; another kind of dtype, or a number that int64 does not hold, is refused.

    Args:
        numbers: of any integer dtype.
        subject: how the sentence begins, such as "edge_index has".
    """
    if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise GraphjouleError(f"{subject} dtype {numbers.dtype}; expected an integer dtype such as torch.int64.")
    whole = numbers.long()
    if numbers.dtype == torch.uint64 and bool((whole < 0).any()):  # they have become negative
        raise GraphjouleError(f"{subject} the number {int(whole[whole < 0][0]) + 2**64}; expected numbers below 2^63.")
    return whole


def int64_array(array: np.ndarray, name: str) -> np.ndarray:
    """The same numbers in int64, in the machine's byte order; one that is not whole, or too large, is refused.

    Args:
        array: numbers of any dtype.
        name: how to call the array in the sentence.

    >>> int64_array(np.array([1.0, 2.0]), "labels").tolist()
    [1, 2]
    """
    with np.errstate(invalid="ignore"):  # infinity
        whole: np.ndarray = array.astype(np.int64)
    wrong = np.argwhere(whole != array)
    if wrong.size:
        at = tuple(wrong[0])
        raise GraphjouleError(
            f"{name}[{', '.join(map(str, at))}] is {array[at]}; expected a whole number from -2^63 to 2^63 - 1."
        )
    return whole
