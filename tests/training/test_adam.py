import torch
from torch import Tensor

from graphjoule.training.optimizer import adam_step

RUNS, STEPS, LR = 3, 20, 0.01
DECAYS = (0.0, 5e-4, 1e-1)  # of three groups of elements; a fourth group is frozen
GROUP = 4


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def settings() -> tuple[Tensor, Tensor]:
    """Learning rate and decay of every element; the last group has lr 0, and a decay that must do nothing."""
    lr = torch.tensor([LR, LR, LR, 0.0], dtype=torch.float64).repeat_interleave(GROUP)
    decay = torch.tensor([*DECAYS, 0.5], dtype=torch.float64).repeat_interleave(GROUP)
    return lr, decay


def torch_adam(start: Tensor, gradients: Tensor) -> Tensor:
    """One run by torch's own optimiser with a parameter group per decay."""
    groups = [piece.clone().requires_grad_(True) for piece in start.split(GROUP)[:3]]
    frozen = start.split(GROUP)[3]
    optimiser = torch.optim.Adam(
        [{"params": [p], "weight_decay": decay} for p, decay in zip(groups, DECAYS, strict=True)], lr=LR
    )
    for gradient in gradients:
        for p, piece in zip(groups, gradient.split(GROUP)[:3], strict=True):
            p.grad = piece.clone()
        optimiser.step()
    return torch.cat([*(p.detach() for p in groups), frozen])


def gradient_sequence() -> Tensor:
    """Shape [steps, runs, size], over many orders of magnitude."""
    scale = 10.0 ** random(STEPS, 1, 1, seed=2)
    return scale * random(STEPS, RUNS, 4 * GROUP, seed=1)


def run_ours(start: Tensor, gradients: Tensor, active: Tensor) -> Tensor:
    """All runs; `active` has a row per step."""
    lr, decay = settings()
    parameters, moment1, moment2 = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    for number, (gradient, is_active) in enumerate(zip(gradients, active, strict=True), start=1):
        adam_step(parameters, gradient, moment1, moment2, torch.tensor(number), lr, decay, is_active)
    return parameters


def test_twenty_steps_of_several_runs_are_those_of_torch_with_parameter_groups():
    start, gradients = random(RUNS, 4 * GROUP, seed=0), gradient_sequence()
    ours = run_ours(start, gradients, torch.ones(STEPS, RUNS, dtype=torch.bool))
    theirs = torch.stack([torch_adam(start[run], gradients[:, run]) for run in range(RUNS)])
    assert (theirs - start).abs().max() > 5 * LR  # they did move
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_frozen_elements_do_not_change():
    start = random(RUNS, 4 * GROUP, seed=0)
    ours = run_ours(start, gradient_sequence(), torch.ones(STEPS, RUNS, dtype=torch.bool))
    assert ours[:, 3 * GROUP :].equal(start[:, 3 * GROUP :])
    assert (ours[:, : 3 * GROUP] != start[:, : 3 * GROUP]).all()


def test_an_inactive_run_is_the_same_to_the_bit_even_with_a_gradient_that_is_not_a_number():
    stop = 10
    start, gradients = random(RUNS, 4 * GROUP, seed=0), gradient_sequence()
    active = torch.ones(STEPS, RUNS, dtype=torch.bool)
    active[stop:, 1] = False
    at_stop = run_ours(start, gradients[:stop], active[:stop])
    gradients[stop:, 1, ::2] = torch.nan
    gradients[stop:, 1, 1::2] = torch.inf
    ours = run_ours(start, gradients, active)
    assert ours[1].view(torch.int64).equal(at_stop[1].view(torch.int64))
    for run in (0, 2):  # and its neighbours go on as if alone
        torch.testing.assert_close(ours[run], torch_adam(start[run], gradients[:, run]), rtol=0, atol=1e-12)


def test_the_first_step_in_single_precision_is_the_learning_rate_itself():
    """1 - 0.999 in float32 would be off by 6e-5."""
    parameters = torch.zeros(1, 2)
    state = torch.zeros(1, 2), torch.zeros(1, 2)
    lr, decay = torch.full((2,), 0.5), torch.zeros(2)
    gradient = torch.tensor([[3.0, -0.25]])
    adam_step(parameters, gradient, *state, torch.tensor(1), lr, decay, torch.tensor([True]))
    torch.testing.assert_close(parameters, torch.tensor([[-0.5, 0.5]]), rtol=1e-6, atol=0)
