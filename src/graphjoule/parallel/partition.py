"""The nodes of a graph cut into parts, for clusters of a mini-batch and for the ranks of a distributed training."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.csr import row_starts

CutMethod = Literal["metis", "blocks"]
_HEAVIEST = 1000  # METIS takes whole weights only; this is what the heaviest edge becomes


def cut_nodes(graph: Propagation, num_parts: int, method: CutMethod = "metis", seed: int = 0) -> Tensor:
    """Cut the nodes into parts of about equal size, none of them empty.

    "metis" looks for parts with few edges between them (Karypis and Kumar, 1998), heavy edges counting more, and keeps
    sizes within a few percent. "blocks" cuts the nodes in the order in which they are numbered, sizes within one node;
    it suits graphs whose order says where a node is, and needs nothing installed.

    Args:
        graph: the graph.
        num_parts: number of parts, from 1 to the number of nodes.
        method: "metis" or "blocks".
        seed: what METIS draws from; the same seed gives the same parts. Blocks are always the same.

    Returns:
        The part of every node, int64 on the CPU, shape ``[num_nodes]``.

    Raises:
        GraphjouleError: there are no such parts, or METIS is not installed.

    Example:
        >>> path = Propagation.from_edge_index(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]), symmetrize=True)
        >>> cut_nodes(path, 2, "blocks")
        tensor([0, 0, 0, 1, 1])
    """
    _check_cut(graph, num_parts, method, seed)
    blocks = torch.arange(graph.num_nodes) * num_parts // graph.num_nodes
    # One part, parts of one node each, and parts of nothing but isolated nodes have no edge to save.
    if method == "blocks" or num_parts in (1, graph.num_nodes) or graph.num_edges == 0:
        return blocks
    return _without_empty(_metis(graph, num_parts, seed), num_parts)


def cut_edges(graph: Propagation, part: Tensor) -> int:
    """Number of undirected edges whose ends lie in different parts.

    Args:
        graph: the graph.
        part: the part of every node, shape ``[num_nodes]``.

    Returns:
        The count; a training on one part at a time does not see these edges.

    Example:
        >>> path = Propagation.from_edge_index(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]), symmetrize=True)
        >>> cut_edges(path, torch.tensor([0, 0, 0, 1, 1]))
        1
    """
    part = part.to(graph.device)
    return int((part[graph.row()] != part[graph.col.long()]).sum()) // 2


def _check_cut(graph: Propagation, num_parts: int, method: str, seed: int) -> None:
    if method not in get_args(CutMethod):
        raise GraphjouleError(f"The method to cut nodes by is {method!r}; choose one of metis, blocks.")
    if not 1 <= num_parts <= graph.num_nodes:
        raise GraphjouleError(
            f"The number of parts is {num_parts}; for a graph of {graph.num_nodes} nodes it must be "
            f"from 1 to {graph.num_nodes}."
        )
    if not 0 <= seed < 2**31 - 1:
        raise GraphjouleError(f"The seed to cut nodes by is {seed}; it must be from 0 to {2**31 - 2}.")


def _metis(graph: Propagation, num_parts: int, seed: int) -> Tensor:
    try:
        import pymetis
    except ImportError as error:
        raise GraphjouleError(
            "Cutting nodes by METIS needs the package pymetis: install graphjoule[partition], "
            'or choose "blocks", which cuts them in the order of their numbers.'
        ) from error
    row, col = graph.row().cpu(), graph.col.cpu().long()
    edge = row != col
    starts = row_starts(row[edge], graph.num_nodes).long()
    _, part = pymetis.part_graph(
        num_parts,
        pymetis.CSRAdjacency(starts.numpy(), col[edge].numpy()),
        eweights=_whole_weights(graph.laplacian.weight.cpu()[edge]),
        options=pymetis.Options(seed=seed + 1),  # the C library's generator takes 0 for 1
    )
    return torch.tensor(part, dtype=torch.int64)


def _whole_weights(weight: Tensor) -> list[int] | None:
    """Weights as METIS takes them: whole and positive, the heaviest edge `_HEAVIEST`; None where all are alike."""
    heaviest = weight.max()
    if bool((weight == heaviest).all()):
        return None
    whole: list[int] = (weight * (_HEAVIEST / heaviest)).round().long().clamp(min=1).tolist()
    return whole


def _without_empty(part: Tensor, num_parts: int) -> Tensor:
    """The same parts, except that an empty one gets the last node of the largest: METIS may leave some empty."""
    count = torch.bincount(part, minlength=num_parts)
    for empty in (count == 0).nonzero().flatten().tolist():
        largest = int(count.argmax())
        part[(part == largest).nonzero()[-1]] = empty
        count[largest] -= 1
        count[empty] = 1
    return part
