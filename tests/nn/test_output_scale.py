import torch

from graphjoule.nn import GCN, OutputScale
from graphjoule.ops import make_key
from tests.graphs import normal, random_edges

GRAPH, X = random_edges(weighted=True).graph64(), normal(9, 5)


def scaled():
    model = OutputScale(GCN(5, 4, 2, num_layers=3, dropout=0.5).double()).double()
    model.set_scale(torch.tensor([100.0, -3.0]), torch.tensor([20.0, 0.5]))
    return model


def test_it_gives_the_models_numbers_in_the_unit_of_the_targets():
    model = scaled().eval()
    expected = torch.tensor([100.0, -3.0]) + torch.tensor([20.0, 0.5]) * model.model(X, GRAPH)
    torch.testing.assert_close(model(X, GRAPH), expected)
    torch.testing.assert_close(model.in_loss_units(model(X, GRAPH)), model.model(X, GRAPH))


def test_dropout_penalty_and_groups_are_the_models():
    model, key = scaled(), make_key(3)
    expected = model.center + model.scale * model.model(X, GRAPH, key=key)
    torch.testing.assert_close(model(X, GRAPH, key=key), expected)
    assert model.penalty() == model.model.penalty()
    assert {len(names) for names in model.parameter_groups().values()} == {len(list(model.parameters()))}
    assert model.kept_activations(is_fused=True) == model.model.kept_activations(is_fused=True)


def test_the_unit_is_kept_with_the_parameters():
    other = OutputScale(GCN(5, 4, 2, num_layers=3, dropout=0.5).double()).double()
    other.load_state_dict(scaled().state_dict())
    assert other.center.tolist() == [100.0, -3.0]
    assert other.scale.tolist() == [20.0, 0.5]


def test_a_single_target_may_be_a_vector():
    model = OutputScale(GCN(5, 4, 1, num_layers=2))
    model.set_scale(torch.tensor([10.0]), torch.tensor([2.0]))
    assert model.in_loss_units(torch.tensor([12.0, 8.0])).tolist() == [[1.0], [-1.0]]


def test_numbers_of_a_float32_network_far_from_zero_keep_their_differences():
    model = OutputScale(GCN(5, 4, 1, num_layers=2)).eval()
    model.set_scale(torch.tensor([1e9]), torch.tensor([0.1]))
    graph, x = random_edges().graph(), X.float()
    torch.testing.assert_close(model.in_loss_units(model(x, graph)), model.model(x, graph))
