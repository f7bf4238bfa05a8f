import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from graphjoule.nn import MODELS
from graphjoule.training.run_axis import Layout, adam_step

few = settings(deadline=None, max_examples=40)
shapes = st.lists(st.lists(st.integers(0, 7), max_size=3).map(tuple), min_size=1, max_size=6)  # scalars, empty ones too


def model_of(shapes):
    """Any model: parameters of these shapes, each filled with numbers of its own."""
    model = nn.Module()
    for number, shape in enumerate(shapes):
        model.register_parameter(f"p{number}", nn.Parameter(torch.randn(shape)))
    return model


def occupied(layout):
    """Which elements of the flat vector belong to a parameter, counted one by one."""
    mask = torch.zeros(layout.size, dtype=torch.bool)
    for name, start in layout.offsets.items():
        for element in range(layout.shapes[name].numel()):
            assert not mask[start + element], "two parameters share an element"
            mask[start + element] = True
    return mask


@few
@given(shapes)
def test_any_models_parameters_come_back_from_the_vector_unchanged(shapes):
    model = model_of(shapes)
    parameters = dict(model.named_parameters())
    layout = Layout.of(model)
    back = layout.unflatten(layout.flatten(parameters))
    assert list(back) == list(parameters)
    assert all(back[name].equal(parameters[name]) and back[name].shape == parameters[name].shape for name in back)


@few
@given(shapes)
def test_every_parameter_starts_on_a_64_byte_boundary_and_the_gaps_are_zero(shapes):
    model = model_of(shapes)
    layout = Layout.of(model)
    flat = layout.flatten({name: torch.ones_like(p) for name, p in model.named_parameters()})
    assert all(start * flat.element_size() % 64 == 0 for start in layout.offsets.values())
    assert flat.equal(occupied(layout).float())


@few
@given(shapes)
def test_a_gradient_through_the_vector_is_each_parameters_own_and_zero_in_the_gaps(shapes):
    model = model_of(shapes)
    layout = Layout.of(model)
    weights = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    flat = layout.flatten(dict(model.named_parameters())).requires_grad_(True)
    loss = sum((weights[name] * p).sum() for name, p in layout.unflatten(flat).items())
    (gradient,) = torch.autograd.grad(loss, flat)
    assert gradient.equal(layout.flatten(weights))


@pytest.mark.parametrize("name", MODELS)
def test_each_model_of_the_zoo_fits_its_layout(name):
    norms = {"batch_norm": True} if "batch_norm" in inspect.signature(MODELS[name]).parameters else {}
    model = MODELS[name](5, 8, 3, 2, **norms)
    layout = Layout.of(model)
    parameters = dict(model.named_parameters())
    back = layout.unflatten(layout.flatten(parameters))
    assert back.keys() == parameters.keys()
    assert all(back[key].equal(parameters[key]) for key in back)


def test_many_runs_are_the_rows_of_a_matrix():
    models = [model_of([(3, 5), (), (4,)]) for _ in range(3)]
    layout = Layout.of(models[0])
    flat = torch.stack([layout.flatten(dict(model.named_parameters())) for model in models])
    rows = torch.vmap(layout.unflatten)(flat)
    for run, model in enumerate(models):
        for name, parameter in model.named_parameters():
            assert rows[name][run].equal(parameter)


def test_a_setting_per_parameter_is_spread_over_its_elements_and_is_zero_in_the_gaps():
    layout = Layout.of(model_of([(3, 5), (), (17,)]))
    flat = layout.spread({"p0": 2.0, "p1": 3.0, "p2": 0.5})
    values = layout.unflatten(flat)
    assert [values[name].unique().tolist() for name in ("p0", "p1", "p2")] == [[2.0], [3.0], [0.5]]
    assert not flat[~occupied(layout)].any()


# Adam on many runs.

RUNS, STEPS, LR = 3, 20, 0.01
DECAYS = (0.0, 5e-4, 1e-1)  # of three groups of elements; a fourth group is frozen
GROUP = 4


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def adam_settings() -> tuple[Tensor, Tensor]:
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
    lr, decay = adam_settings()
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
