import gc
import weakref

import pytest
import torch
from torch import nn

from graphjoule.energy import dirichlet_energy
from graphjoule.errors import GraphjouleError
from graphjoule.nn import EGNN, GCN
from graphjoule.trace import LayerTrace, Trace
from graphs import Edges, normal, path3, random_edges


class Plain(nn.Module):
    """A model that knows nothing of graphjoule, with outputs that are node features and some that are not."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 4), nn.Linear(4, 3)
        self.pool = nn.AdaptiveAvgPool1d(1)
        self.embedding = nn.Embedding(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.embedding(torch.tensor([0]))  # one row: not node features
        h = self.second(self.first(x).relu())
        self.pool(h.t()[None])  # three dimensions: not node features
        return h


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


def expected(name: str, x: torch.Tensor, edges: Edges) -> LayerTrace:
    x = x.detach()
    return LayerTrace(name, float(dirichlet_energy(x, edges.graph())), float(x.double().norm()))


def test_it_records_every_layer_of_any_model_whose_output_is_node_features():
    model, edges, x = Plain(), path3(), normal(3, 2, dtype=torch.float32)
    with Trace(model, edges.graph()) as trace:
        model(x)
    h = model.first(x)
    assert trace.layers == [expected("first", h, edges), expected("second", model.second(h.relu()), edges)]


def test_a_plain_edge_index_skips_outputs_with_fewer_rows_than_nodes():
    model, edges = Plain(), path3()
    with Trace(model, edges.index) as trace:
        model(normal(3, 2, dtype=torch.float32))
    assert [layer.name for layer in trace.layers] == ["first", "second"]


def test_a_wildcard_names_modules_of_its_own_depth_only():
    model, edges = EGNN(2, 4, 3, num_layers=12), path3()
    names = ["encoder", *(f"convs.{k}" for k in range(12))]
    with Trace(model, edges.graph(), watch=["convs.*", "encoder"]) as trace:
        model(torch.ones(3, 2), edges.graph())
    assert [layer.name for layer in trace.layers] == names


def test_an_unknown_name_is_refused_with_the_names_there_are():
    with pytest.raises(GraphjouleError, match=r"No module is called 'conv\.\*'; the model has first, second, pool"):
        Trace(Plain(), path3().index, watch=["conv.*"])
    with pytest.raises(GraphjouleError, match="the model has none"):
        Trace(nn.ReLU(), path3().index, watch=["x"])


def test_it_lets_go_when_the_block_ends_also_after_an_error():
    model = Plain()
    with Trace(model, path3().index):
        assert hooks(model) == 4
    assert hooks(model) == 0
    with pytest.raises(RuntimeError, match="mat1"), Trace(model, path3().index):
        model(torch.ones(3, 7))
    assert hooks(model) == 0


def test_a_hook_of_someone_else_stays():
    model = Plain()
    model.first.register_forward_hook(lambda *_: None)
    with Trace(model, path3().index):
        pass
    assert hooks(model) == 1


def test_it_changes_neither_scores_nor_gradients():
    edges, x = random_edges(), normal(9, 2, dtype=torch.float32)
    model = GCN(2, 4, 3, num_layers=3).eval()
    plain = model(x, edges.index)
    plain_grads = torch.autograd.grad(plain.sum(), list(model.parameters()))
    with Trace(model, edges.graph()):
        watched = model(x, edges.index)
    watched_grads = torch.autograd.grad(watched.sum(), list(model.parameters()))
    assert watched.equal(plain)
    assert all(a.equal(b) for a, b in zip(plain_grads, watched_grads, strict=True))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_its_numbers_are_the_same_with_and_without_gradients(mode):
    edges, x = random_edges(weighted=True), normal(9, 2, dtype=torch.float32)
    model = GCN(2, 4, 3, num_layers=2).eval()
    with mode(), Trace(model, edges.graph(), watch=["convs.*"]) as trace:
        scores = model(x, edges.graph())
    assert trace.layers[1] == expected("convs.1", scores, edges)
    assert all(type(number) is float for number in (trace.layers[0].energy, trace.layers[0].norm))


def test_it_keeps_no_activation():
    model, activations = Plain(), []
    model.first.register_forward_hook(lambda module, inputs, output: activations.append(weakref.ref(output)))
    with Trace(model, path3().index) as trace:
        with torch.no_grad():
            model(torch.ones(3, 2))
        gc.collect()
        assert len(trace.layers) == 2
        assert activations[0]() is None


def test_every_call_is_recorded():
    model = Plain()
    with Trace(model, path3().index, watch=["first"]) as trace:
        model(torch.ones(3, 2))
        model(2 * torch.ones(3, 2))
    assert [layer.name for layer in trace.layers] == ["first", "first"]
    assert trace.layers[0] != trace.layers[1]


def test_it_watches_a_pyg_model_on_a_graph_whose_last_nodes_have_no_edges():
    import torch_geometric.nn

    x = normal(6, 2, dtype=torch.float32)  # path3 and three isolated nodes behind it
    edges = Edges(path3().index, None, 6)
    model = torch_geometric.nn.GCN(2, 4, num_layers=2, out_channels=3).eval()
    with torch.no_grad(), Trace(model, edges.index, watch=["convs.*"]) as trace:
        scores = model(x, edges.index)
    assert [layer.name for layer in trace.layers] == ["convs.0", "convs.1"]
    assert trace.layers[1] == expected("convs.1", scores, edges)


def test_a_directed_edge_index_is_refused():
    model = Plain()
    with pytest.raises(GraphjouleError, match="symmetrize=True"), Trace(model, torch.tensor([[0], [1]])):
        model(torch.ones(3, 2))
    assert hooks(model) == 0


def test_the_table_has_a_line_per_layer():
    trace = Trace(Plain(), path3().index)
    assert trace.table().split() == ["layer", "energy", "norm"]
    trace.layers.append(LayerTrace("convs.31", 1.5e-9, 12.0))
    assert trace.table().splitlines()[1].split() == ["convs.31", "1.5e-09", "12"]


@pytest.mark.parametrize("part", ["activation", "norm"])
def test_a_part_of_a_layer_can_be_watched_alone(part):
    edges, names = path3(), [f"convs.{k}.{part}" for k in range(3)]
    for model in (EGNN(2, 4, 3, num_layers=3, batch_norm=part == "norm"), GCN(2, 4, 3, num_layers=3)):
        with Trace(model, edges.graph(), watch=[f"convs.*.{part}"]) as trace:
            model(torch.ones(3, 2), edges.graph())
        assert [layer.name for layer in trace.layers] == names
