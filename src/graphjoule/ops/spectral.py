"""Weights held to a spectral norm: one Newton-Schulz step, with a bound that makes it safe for any weight."""

from __future__ import annotations

import torch
from torch import Tensor

_LARGEST = 3**0.5  # s (3 - s^2) / 2 lies in [0, 1] for every s up to here


@torch.no_grad()
def limit_spectral_norm(weight: Tensor, limit: Tensor | float = 1.0) -> Tensor:
    r"""The weight after one Newton-Schulz step, of spectral norm at most `limit`.

    .. math:: W' = \tfrac12 W (3 I - W^\top W / \text{limit}^2)

    With the limit 1 every singular value ``s`` becomes ``s (3 - s^2) / 2``, which is at most 1 for ``s`` up to
    ``sqrt(3)``: a norm of ``1 + e`` becomes about ``1 - 1.5 e^2``, orthogonal weights stay, and small values grow. A
    weight that may be larger, by the bound ``||W||_2 <= ||(W^T W)^4||_F^(1/8)``, is first scaled down to that; the
    bound is at most ``channels^(1/16)`` times too large, 1.3 for 64 channels. That is four products of a batch of
    small matrices, whatever the weights are, and nothing waits for a device. The result is smaller by
    ``4 channels eps`` than the formula says, so that rounding does not lead over the limit.

    Args:
        weight: shape ``[..., rows, channels]``, a batch of any shape.
        limit: positive, a number or one for each weight, shape ``[...]``.

    Returns:
        The shape of `weight`; of a weight that is not finite NaN.

    Example:
        >>> limit_spectral_norm(torch.tensor([[1.2, 0.0], [0.0, 1.0]])).round(decimals=3)
        tensor([[0.9360, 0.0000],
                [0.0000, 1.0000]])
    """
    limit = torch.as_tensor(limit, dtype=weight.dtype, device=weight.device)
    size = weight.abs()  # sqrt(||W||_1 ||W||_inf) is a bound too, loose but without products: powers do not overflow
    first = (size.sum(dim=-1).amax(dim=-1) * size.sum(dim=-2).amax(dim=-1)).sqrt()
    first = first.clamp(min=torch.finfo(weight.dtype).tiny ** 0.25)
    scaled = weight / first[..., None, None]
    gram = scaled.mT @ scaled
    fourth = torch.linalg.matrix_power(gram, 4)
    bound = first * torch.linalg.matrix_norm(fourth).pow(0.125)
    factor = first / torch.maximum(limit, bound / _LARGEST)  # of `scaled`: its norm is now at most sqrt(3)
    stepped = 1.5 * scaled - 0.5 * factor.square()[..., None, None] * (scaled @ gram)
    room = 1 - 4 * max(weight.shape[-2:]) * torch.finfo(weight.dtype).eps
    return (room * limit * factor)[..., None, None] * stepped
