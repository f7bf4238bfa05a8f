"""Adam (Kingma and Ba, 2015) on the parameter matrix of many runs, with L2 decay as `torch.optim.Adam` has it."""

from __future__ import annotations

import torch
from torch import Tensor

_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8


@torch.no_grad()
def adam_step(
    parameters: Tensor,
    gradient: Tensor,
    moment1: Tensor,
    moment2: Tensor,
    step: Tensor,
    lr: Tensor,
    weight_decay: Tensor,
    active: Tensor,
) -> None:
    """One step in place for every active run; an inactive run does not change at all.

    Plain tensor operations instead of an optimiser object: the whole state is two matrices, which checkpoints, drops
    and resumes like the parameters themselves, and the step can be captured in a CUDA graph.

    Args:
        parameters: shape ``[runs, size]``.
        gradient: shape ``[runs, size]``; not finite in a run that has failed.
        moment1: running mean of the gradient.
        moment2: running mean of its square.
        step: number of this step, from 1, a scalar tensor.
        lr: learning rate of every element, shape ``[size]``; zero freezes it.
        weight_decay: L2 factor of every element, shape ``[size]``.
        active: bool, shape ``[runs]``.
    """
    gradient = torch.where(active[:, None], gradient + weight_decay * parameters, 0.0)
    moment1.lerp_(gradient, 1 - _BETA1)
    moment2.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
    step = step.double()  # in float32, 1 - 0.999 alone would be off by 6e-5
    correction1 = 1 - _BETA1**step
    correction2 = (1 - _BETA2**step).sqrt()
    denominator = (moment2.sqrt() / correction2).add_(_EPS)
    update = (moment1 / denominator).mul_(lr / correction1)
    parameters.sub_(torch.where(active[:, None], update, 0.0))
