"""A model's scores of all nodes in bounded memory, layer by layer."""

from __future__ import annotations

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.features import Features
from graphjoule.nn import GraphModel
from graphjoule.ops import use_body
from graphjoule.parallel.streaming.matrix import StreamedMatrix
from graphjoule.parallel.streaming.rows import Blocks

BLOCK_BYTES = 2**26
"""About what one block takes on the device, and what a step makes of it a few times that."""


@torch.no_grad()
def evaluate_in_blocks(model: GraphModel, x: Features, graph: Propagation, *, block_bytes: int = BLOCK_BYTES) -> Tensor:
    """Class scores of all nodes, as ``model.eval()(x, graph)`` gives them up to rounding, in bounded memory.

    The model's own forward runs once, with matrices that lie in host memory and go through the device a block of rows
    at a time: layer after layer, each exact, since all rows of a layer are there before the next one begins. Host
    memory holds a few activations ``[num_nodes, channels]`` whatever the depth, the device a few blocks and the model.

    Args:
        model: any model of the zoo, on the device that shall do the arithmetic; left in evaluation mode.
        x: features of all nodes, dense or sparse, in host memory.
        graph: the operator, in host memory.
        block_bytes: about what one block of rows takes.

    Returns:
        Shape ``[num_nodes, out_channels]``, in host memory.

    Example:
        >>> from graphjoule import EGNN
        >>> path = Propagation.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 3]]), symmetrize=True)
        >>> model, x = EGNN(5, 8, 3, num_layers=16).eval(), torch.randn(4, 5)
        >>> torch.allclose(evaluate_in_blocks(model, x, path, block_bytes=64), model(x, path), atol=1e-6)
        True
    """
    if block_bytes < 1:
        raise GraphjouleError(f"block_bytes is {block_bytes}; it must be at least 1.")
    blocks = Blocks(next(model.parameters()).device, block_bytes)
    with use_body("reference"):  # a fused body wants all rows at once
        scores: Tensor = model.eval()(StreamedMatrix(x.to("cpu"), blocks), graph.to("cpu"))
    if not isinstance(scores, StreamedMatrix) or not isinstance(scores.source, Tensor):
        raise GraphjouleError(f"The scores of the model are {type(scores).__name__}, not one row per node.")
    return scores.source
