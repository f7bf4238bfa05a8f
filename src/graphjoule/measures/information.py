"""What node features say about labels and about the input features, by distances between sampled nodes."""

from __future__ import annotations

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError

_SAMPLED = 2048  # all pairs of as many nodes take 32 MB and 50 ms on one core
# The kernels' variance, in units of the mean squared length of the rows. With 0.1, independent features of 32 channels
# seem to know all; from 0.3 on, the same, a linear map, noise and nothing are told apart at 4 and 32 channels.
_BANDWIDTH = 0.5


def group_distance_ratio(x: Tensor, labels: Tensor, *, num_nodes: int = _SAMPLED, seed: int = 0) -> Tensor:
    r"""How much farther apart nodes of different classes are than nodes of one class (Zhou et al. 2020, DGN).

    .. math::
        \frac{\frac{1}{(C - 1)^2} \sum_{i \ne j} \operatorname{mean}_{v \in L_i, w \in L_j} \| x_v - x_w \|}
        {\frac1C \sum_i \operatorname{mean}_{v, w \in L_i} \| x_v - x_w \|}

    Over ``C`` classes ``L_i``; a node is its own partner in the denominator too, as in the paper. Exact up to
    `num_nodes` nodes with a label, of more a sample of so many. It is 1 where no two nodes differ.

    Args:
        x: node features, shape ``[..., num_nodes, channels]``.
        labels: the class of every node, shape ``[num_nodes]``; below 0 is unknown.
        num_nodes: most nodes to compare.
        seed: what they are drawn with.

    Returns:
        Float64 numbers, shape ``[...]``.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [4.0], [5.0]])
        >>> float(group_distance_ratio(x, torch.tensor([0, 0, 1, 1])))
        16.0
    """
    if labels.dim() != 1 or labels.size(0) != x.size(-2) or labels.is_floating_point():
        raise GraphjouleError(
            f"The labels have shape {list(labels.shape)}, {labels.dtype}; expected one whole number for each of the "
            f"{x.size(-2)} nodes."
        )
    known = (labels >= 0).nonzero().flatten()
    chosen = known[_sample(known.numel(), num_nodes, seed).to(known.device)]
    classes, group = labels[chosen].unique(return_inverse=True)  # type: ignore[no-untyped-call]
    if classes.numel() < 2:
        raise GraphjouleError("The labels have one class; a ratio of distances needs two.")
    member = torch.nn.functional.one_hot(group).double()
    share = member / member.sum(dim=0)
    rows = x[..., chosen, :].double()
    between = share.mT @ torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist") @ share
    count = classes.numel()
    within = between.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    across = (between.sum(dim=(-2, -1)) - within) / (count - 1) ** 2
    both = (within == 0) & (across == 0)
    return torch.where(both, 1, across) / torch.where(both, 1, within / count)


def instance_information_gain(x: Tensor, inputs: Tensor, *, num_nodes: int = _SAMPLED, seed: int = 0) -> Tensor:
    r"""What the features of a node still say about its input features: an estimate of their mutual information.

    .. math:: I(Z; X) \approx \frac1m \sum_i \log \frac{m \sum_j a_{ij} b_{ij}}{\sum_j a_{ij} \sum_j b_{ij}}, \qquad
        a_{ij} = e^{-\|z_i - z_j\|^2 / 2 \sigma_z^2}, \quad b_{ij} = e^{-\|x_i - x_j\|^2 / 2 \sigma_x^2}

    The instance information gain of Zhou et al. (2020, DGN), ``sum p(z, x) log p(z, x) / (p(z) p(x))``, as a mean over
    nodes with densities by Gaussian kernels, which is ``H(Z) + H(X) - H(Z, X)`` of kernel estimates. Their variance is
    half the mean squared length of the rows, so the scale of features does not matter and a collapse onto one direction
    and length does. The authors' code puts the predicted class in place of ``x``, ``H(Z) - H(Z | argmax x)`` in bits
    with bounds of Kolchinsky and Tracey (2017), variance 0.1 and rows of length 1, which fits an output layer alone;
    its numbers cannot be compared with these, in nats. Kernel estimates are biased: compare layers, not networks of
    other inputs. At most ``log m``; 0 where all rows are the same. Exact up to `num_nodes` nodes, of more a sample.

    Args:
        x: node features, shape ``[..., num_nodes, channels]``.
        inputs: the input features ``Z``, shape ``[num_nodes, in_channels]``.
        num_nodes: most nodes to compare.
        seed: what they are drawn with.

    Returns:
        Float64 numbers, shape ``[...]``.

    Example:
        >>> inputs = torch.eye(3)
        >>> same, lost = instance_information_gain(torch.stack([inputs, torch.ones(3, 3)]), inputs)
        >>> bool(same > 0.2), abs(round(float(lost), 9))
        (True, 0.0)
    """
    if inputs.dim() != 2 or inputs.size(0) != x.size(-2):
        raise GraphjouleError(
            f"The inputs have shape {list(inputs.shape)}; expected [{x.size(-2)}, in_channels], a row for each node."
        )
    chosen = _sample(x.size(-2), num_nodes, seed).to(x.device)
    a, b = _kernel(inputs[chosen]), _kernel(x[..., chosen, :])
    joint, alone, other = (a * b).sum(dim=-1), a.sum(dim=-1), b.sum(dim=-1)
    return (chosen.numel() * joint / (alone * other)).log().mean(dim=-1)


def _kernel(x: Tensor) -> Tensor:
    x = x.double()
    size = x.square().sum(dim=-1).mean(dim=-1)[..., None, None]
    square = (x.unsqueeze(-2) - x.unsqueeze(-3)).square().sum(dim=-1) if x.size(-2) <= 64 else _squares(x)
    return torch.exp(-square / (2 * _BANDWIDTH * torch.where(size == 0, 1, size)))


def _squares(x: Tensor) -> Tensor:
    """All squared distances by one product, after the mean is taken off."""
    x = x - x.mean(dim=-2, keepdim=True)
    lengths = x.square().sum(dim=-1)
    return (lengths.unsqueeze(-1) + lengths.unsqueeze(-2) - 2 * x @ x.mT).clamp(min=0)


def _sample(count: int, most: int, seed: int) -> Tensor:
    if count <= most:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:most].sort().values
