import functools
import re

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.nn import APPNP, EGNN, GCN
from graphjoule.terms import OrthogonalPenalty, SpectralLimit, SpectralSettings
from graphjoule.terms.weights import square_weights
from tests.graphs import path3
from tests.training import small_recipe, small_regression, small_task


def test_the_orthogonal_penalty_of_an_egnn_is_its_own():
    torch.manual_seed(3)
    model = EGNN(5, 4, 2, num_layers=3, gamma=0.7, c_max=0.4).double()
    with torch.no_grad():
        for conv in model.convs:
            conv.weight.add_(0.3 * torch.randn(4, 4))
    penalty = OrthogonalPenalty(model, layers="convs.*", gamma=0.7, c_max=0.4)
    torch.testing.assert_close(penalty(), model.penalty())
    parameters = [conv.weight for conv in model.convs]
    for found, expected in zip(
        torch.autograd.grad(penalty(), parameters), torch.autograd.grad(model.penalty(), parameters), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_the_orthogonal_penalty_takes_the_square_weights_of_any_model_and_its_gradient_vanishes_at_the_identity():
    model = pyg.GCN(6, 4, num_layers=4, out_channels=3)
    penalty = OrthogonalPenalty(model, layers="convs.*")
    assert penalty.names == ["convs.1.lin.weight", "convs.2.lin.weight"]
    with torch.no_grad():
        for name in penalty.names:
            model.get_parameter(name).copy_(torch.eye(4))
    value = penalty()
    value.backward()
    assert value.item() == 0
    assert all(model.get_parameter(name).grad.eq(0).all() for name in penalty.names)


def test_a_model_without_square_weights_has_no_orthogonal_penalty():
    assert OrthogonalPenalty(GCN(5, 4, 2, num_layers=2), layers="convs.*")().item() == 0


@pytest.mark.parametrize(
    ("options", "sentence"), [({"gamma": -1.0}, "gamma is -1.0"), ({"c_max": 0.0}, "c_max is 0.0")]
)
def test_bad_settings_of_the_orthogonal_penalty_are_refused_with_a_sentence(options, sentence):
    with pytest.raises(GraphjouleError, match=sentence):
        OrthogonalPenalty(GCN(5, 4, 2, num_layers=3), **options)


def test_flat_parts_of_weights_are_refused_and_not_counted_as_no_weights():
    model = GCN(5, 4, 2, num_layers=3)
    penalty = OrthogonalPenalty(model, layers="convs.*")
    weight = model.convs[1].linear.weight
    weight.data, weight._fsdp_flattened = weight.data.flatten()[:4], True  # what FullyShardedDataParallel leaves
    with pytest.raises(GraphjouleError, match=re.escape("has the shape [4] and not that of a matrix")):
        penalty()
    with pytest.raises(GraphjouleError, match="before the model is wrapped"):
        OrthogonalPenalty(model, layers="convs.*")


def norms(model, names):
    return [float(torch.linalg.matrix_norm(model.get_parameter(name).detach(), ord=2)) for name in names]


def test_in_a_loop_of_ones_own_hold_puts_the_square_weights_back():
    model = pyg.GCN(6, 4, num_layers=4, out_channels=3)
    term = SpectralLimit(model, layers="convs.*", limit=0.5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    before = model.convs[0].lin.weight.clone()
    term.hold()
    assert term.names == ["convs.1.lin.weight", "convs.2.lin.weight"]
    assert max(norms(model, term.names)) <= 0.5
    assert model.convs[0].lin.weight.equal(before)  # leads in, and is not square
    value, state = term.value(torch.zeros(0))
    assert (value.item(), state.numel()) == (0, 0)


@pytest.mark.parametrize("make", [small_task, small_regression])
def test_fit_holds_the_weights_of_a_network_of_ours(make):
    recipe = small_recipe("gcn", num_layers=4, lr=0.3, epochs=3, **{"terms.spectral.limit": 0.9})
    for model in fit(recipe, make(), range(2), device="cpu").models:
        network = getattr(model, "model", model)
        assert all(0.5 < norm <= 0.9 for norm in norms(network, ["convs.1.linear.weight", "convs.2.linear.weight"]))


def test_fit_holds_the_weights_of_anybodys_module():
    build = functools.partial(pyg.GCN, hidden_channels=4, num_layers=4)
    term = functools.partial(SpectralLimit, layers="convs.*")
    settings = {"lr": 0.3, "epochs": 3}
    result = fit(build, small_task(), [0], terms=[lambda model, graph: term(model)], settings=settings, device="cpu")
    model = result.models[0]
    found = {
        name: weight for name, weight in model.named_parameters() if name.endswith(("1.lin.weight", "2.lin.weight"))
    }
    assert len(found) == 2
    assert all(float(torch.linalg.matrix_norm(weight.detach(), ord=2)) <= 1 for weight in found.values())


def test_a_limit_that_cannot_be_held_is_refused_with_a_sentence():
    with pytest.raises(GraphjouleError, match=r"limit is 0\.0; it must be positive"):
        SpectralLimit(GCN(5, 4, 2, num_layers=3), limit=0.0)
    with pytest.raises(GraphjouleError, match="no graph layer of APPNP has a square weight to hold"):
        SpectralSettings()(APPNP(3, 4, 2, num_layers=5), path3().graph())


@pytest.mark.parametrize("term", [OrthogonalPenalty, SpectralLimit])
def test_a_term_that_adds_nothing_is_a_plain_zero_where_weights_are_sharded(term):
    """Else the loss of a model under `fully_shard` would become a DTensor."""

    class Sharded(torch.Tensor):
        pass

    model = torch.nn.Sequential(torch.nn.Linear(2, 3, bias=False))
    model[0].weight = torch.nn.Parameter(torch.zeros(3, 2).as_subclass(Sharded))
    value, _ = term(model).value(torch.empty(0))
    assert type(value) is torch.Tensor
    assert float(value) == 0


def test_factors_that_are_no_numbers_are_refused():
    model = GCN(3, 4, 2, num_layers=4)
    with pytest.raises(GraphjouleError, match="gamma is 'a'; expected a number"):
        OrthogonalPenalty(model, gamma="a")
    with pytest.raises(GraphjouleError, match="limit is None; expected a number"):
        SpectralLimit(model, limit=None)


def test_a_weight_that_layers_share_counts_once():
    shared = nn.Linear(3, 3, bias=False)
    model = nn.Sequential(shared, nn.ReLU(), nn.Sequential(shared), nn.Linear(3, 3, bias=False))
    assert square_weights(model, "*") == ["0.weight", "3.weight"]
    with pytest.raises(GraphjouleError, match="The model is of type NoneType"):
        OrthogonalPenalty(None)
