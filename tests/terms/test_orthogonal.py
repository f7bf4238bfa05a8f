import pytest
import torch
import torch_geometric.nn as pyg

from graphjoule.errors import GraphjouleError
from graphjoule.nn import EGNN, GCN
from graphjoule.terms import OrthogonalPenalty


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
