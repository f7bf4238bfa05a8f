import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from graphjoule.nn import MODELS
from graphjoule.training.optimizer import Layout

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
