import torch

from graphjoule.nn import EGNN, GCN, OutputScale
from graphjoule.ops import make_key
from tests.graphs import normal, random_edges

EDGES, X = random_edges(), normal(9, 5, dtype=torch.float32)


def scaled(model):
    around = OutputScale(model)
    around.set_scale(torch.tensor([10.0, -3.0]), torch.tensor([2.0, 0.5]))
    return around


def test_outputs_are_in_the_unit_of_the_targets_and_back():
    model = GCN(5, 4, 2, num_layers=3)
    around, key = scaled(model), make_key(3)
    inside = model(X, EDGES.index, key=key)
    output = around(X, EDGES.index, key=key)
    torch.testing.assert_close(output, torch.tensor([10.0, -3.0]) + torch.tensor([2.0, 0.5]) * inside.double())
    assert output.dtype == torch.float64
    torch.testing.assert_close(around.in_loss_units(output), inside)
    assert around.in_loss_units(output).dtype == torch.float32
    torch.testing.assert_close(around.centered(output), output - torch.tensor([10.0, -3.0]))


def test_a_single_target_may_be_a_vector():
    around = OutputScale(GCN(5, 4, 1, num_layers=2))
    around.set_scale(torch.tensor([10.0]), torch.tensor([2.0]))
    assert around.in_loss_units(torch.tensor([12.0, 8.0])).tolist() == [[1.0], [-1.0]]


def test_numbers_far_from_zero_keep_their_differences():
    around = OutputScale(GCN(5, 4, 1, num_layers=2))
    around.set_scale(torch.tensor([1e9]), torch.tensor([0.1]))
    output = around.eval()(X, EDGES.index)
    torch.testing.assert_close(around.in_loss_units(output), around.model(X, EDGES.index))
    assert len(set(output.flatten().tolist())) > 3


def test_groups_penalty_and_state_are_the_models():
    model = EGNN(5, 4, 2, num_layers=3)
    around = scaled(model)
    assert {name: len(names) for name, names in around.parameter_groups().items()} == {
        name: len(names) for name, names in model.parameter_groups().items()
    }
    assert around.penalty().equal(model.penalty())
    assert set(around.state_dict()) == {"center", "scale", *(f"model.{name}" for name in model.state_dict())}
    assert (around.num_layers, around.out_channels, around.is_stackable) == (3, 2, True)
    assert around.kept_activations(is_fused=True) == model.kept_activations(is_fused=True)
