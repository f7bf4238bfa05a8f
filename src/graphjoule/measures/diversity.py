"""Measures of the directions of node features: how many there are, and how much those of two nodes differ."""

from __future__ import annotations

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph.nodes import ALL_NODES, Nodes


def mean_pair_cosine(x: Tensor, nodes: Nodes = ALL_NODES) -> Tensor:
    r"""Mean cosine similarity over all pairs of nodes, whether or not an edge joins them.

    .. math:: \frac{1}{m (m - 1)} \sum_{i \ne j} \cos(x_i, x_j)
        = \frac{\| \sum_i u_i \|^2 - m}{m (m - 1)}, \qquad u_i = \frac{x_i}{\|x_i\|}

    Exact and linear in the number of nodes. It is 1 when all nodes point the same way, about 0 for random features of
    zero mean, and never below ``-1 / (m - 1)``. Zero rows have no direction and do not count: ``m`` is the number of
    others. It is 1 when fewer than two are left.

    Args:
        x: node features, shape ``[..., num_nodes, channels]``.
        nodes: whose features they are: a graph, if it may be one part of several.

    Returns:
        Float64 numbers, shape ``[...]``.

    Example:
        >>> float(mean_pair_cosine(torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])))
        0.0
    """
    unit, has_direction = unit_rows(x)
    count = nodes.global_sum(has_direction.sum(dim=-1).double())
    pairs = count * (count - 1)
    total = nodes.global_sum(unit.sum(dim=-2)).square().sum(dim=-1) - nodes.global_sum(unit.square().sum(dim=(-2, -1)))
    cosine = (total / torch.where(pairs == 0, 1, pairs)).clamp(-1, 1)
    return torch.where(pairs == 0, 1, cosine)


def effective_rank(x: Tensor, nodes: Nodes = ALL_NODES) -> Tensor:
    r"""Effective rank of node features: the number of directions they fill, weak ones counting less.

    .. math:: \exp\Big( -\sum_k p_k \log p_k \Big), \qquad p_k = \frac{s_k}{\sum_l s_l}

    for the singular values ``s`` of ``X`` (Roy and Vetterli 2007). From 1 to the rank of ``X``, and 0 for ``X = 0``;
    multiplying the features by a number changes nothing. It is found from the Gram matrix in float64, so the cost is
    linear in the number of nodes, and singular values below about 1e-7 of the largest count as zero.

    Arguments and result are those of `mean_pair_cosine`.

    Example:
        >>> round(float(effective_rank(torch.eye(3))), 9), round(float(effective_rank(torch.ones(3, 3))), 9)
        (3.0, 1.0)
    """
    squared = _squared_singular_values(x, nodes)
    positive = squared != 0
    values = torch.where(positive, squared, 1).sqrt() * positive
    total = values.sum(dim=-1, keepdim=True)
    share = values / torch.where(total == 0, 1, total)
    entropy = -(share * torch.where(positive, share, 1).log()).sum(dim=-1)
    return torch.where(positive.any(dim=-1), entropy.exp(), 0)


def stable_rank(x: Tensor, nodes: Nodes = ALL_NODES) -> Tensor:
    r"""Stable rank of node features: how many directions as strong as the strongest would make up their size.

    .. math:: \frac{\|X\|_F^2}{\|X\|_2^2} = \frac{\sum_k s_k^2}{s_1^2}

    for the singular values ``s`` of ``X`` (Rudelson and Vershynin 2007). From 1 to the rank of ``X``, and 0 for
    ``X = 0``. Never above `effective_rank`: one strong direction hides the others more.

    Arguments and result are those of `mean_pair_cosine`.

    Example:
        >>> round(float(stable_rank(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))), 9)
        1.25
    """
    squared = _squared_singular_values(x, nodes)
    largest = squared.amax(dim=-1)
    return squared.sum(dim=-1) / torch.where(largest == 0, 1, largest)


def rank_one_distance(x: Tensor, nodes: Nodes = ALL_NODES) -> Tensor:
    r"""How far node features are from the nearest matrix of rank one, relative to their size.

    .. math:: \min_{u, v} \frac{\| X - u v^\top \|}{\|X\|} = \sqrt{1 - s_1^2 / \|X\|_F^2}

    by the theorem of Eckart and Young (1936). Zero where all channels are multiples of one, which no energy sees: the
    rank collapse of Roth and Liebig (2024), whose measure takes the largest row and column instead of the best ones.
    Below 1, and 0 for ``X = 0``; what is below about 1e-7 is rounding and counts as zero.

    Arguments and result are those of `mean_pair_cosine`.

    Example:
        >>> round(float(rank_one_distance(torch.eye(2))), 6), float(rank_one_distance(torch.ones(3, 3)))
        (0.707107, 0.0)
    """
    squared = _squared_singular_values(x, nodes)
    total = squared.sum(dim=-1)
    rest = squared.sort(dim=-1).values[..., :-1].sum(dim=-1)
    share = torch.where(rest == 0, 1, rest / torch.where(total == 0, 1, total))
    return torch.where(rest == 0, 0, share.sqrt())


def feature_correlation(x: Tensor, nodes: Nodes = ALL_NODES) -> Tensor:
    r"""Mean absolute Pearson correlation of the channels (Jin et al. 2022): how much they repeat each other.

    .. math:: \frac{1}{c (c - 1)} \sum_{k \ne l} | \rho(x_{:k}, x_{:l}) |

    From 0 to 1. Channels that are the same number on all nodes have no correlation and do not count: ``c`` is the
    number of others. It is 0 when fewer than two are left, as there is nothing to repeat.

    Arguments and result are those of `mean_pair_cosine`.

    Example:
        >>> round(float(feature_correlation(torch.tensor([[1.0, -2.0], [2.0, -4.0], [4.0, -8.0]]))), 9)
        1.0
    """
    x = _checked(x)
    centred = x - nodes.global_mean(x, -2)[..., None, :]
    length, size = (nodes.global_norm(torch.linalg.vector_norm(c, dim=-2, keepdim=True)) for c in (centred, x))
    # A constant column is not zero after its rounded mean is taken off; what is left is rounding, not a signal.
    rounding = 64 * torch.finfo(torch.float64).eps * size
    varies = ~(length <= rounding)
    centred = torch.where(varies, centred / torch.where(varies, length, 1), 0)
    count = varies.sum(dim=(-2, -1)).double()
    pairs = count * (count - 1)
    correlation = nodes.global_sum(centred.mT @ centred).abs()
    total = correlation.sum(dim=(-2, -1)) - correlation.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    return (total / torch.where(pairs == 0, 1, pairs)).clamp(max=1)


def unit_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Every row divided by its length, in float64, and which rows have a direction; the others stay zero."""
    x = _checked(x)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    has_direction = length != 0
    unit = torch.where(has_direction, x / torch.where(has_direction, length, 1), 0)
    return unit, has_direction.squeeze(-1)


def _squared_singular_values(x: Tensor, nodes: Nodes) -> Tensor:
    """Squares of the singular values, from the smaller Gram matrix; those lost in rounding are exactly zero."""
    gram = nodes.global_gram(_checked(x))
    if gram.size(-1) == 0:
        return gram.new_zeros(*gram.shape[:-2], 1)
    # LAPACK refuses what is not finite; a trace of a model that blew up should say so, not stop.
    finite = gram.isfinite().all(dim=-1, keepdim=True).all(dim=-2, keepdim=True)
    values = torch.linalg.eigvalsh(torch.where(finite, gram, 0))
    rounding = gram.size(-1) * torch.finfo(torch.float64).eps * values.amax(dim=-1, keepdim=True)
    return torch.where(finite.squeeze(-1), torch.where(values > rounding, values, 0), torch.nan)


def _checked(x: Tensor) -> Tensor:
    if x.dim() < 2:
        raise GraphjouleError(f"The features have shape {list(x.shape)}; expected [..., num_nodes, channels].")
    return x.double()
