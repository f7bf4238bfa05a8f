import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from graphjoule.errors import GraphjouleError
from graphjoule.nn import EGNN, GCN
from graphjoule.trace import Trace
from graphjoule.trace.watch import layer_modules, watched_modules
from tests.graphs import Edges, path3

from . import Plain, energy, names, single


def test_a_wildcard_names_modules_of_its_own_depth_only():
    model, edges = EGNN(2, 4, 3, num_layers=12), path3()
    with Trace(model, edges.graph(), watch=["convs.*", "encoder"]) as trace:
        model(torch.ones(3, 2), edges.graph())
    assert names(trace) == ["encoder", *(f"convs.{k}" for k in range(12))]
    assert names(trace.select("convs.1*")) == ["convs.1", "convs.10", "convs.11"]


def test_modules_are_named_by_type_too():
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh())
    for watch, expected in [([nn.Linear], ["0", "2"]), (nn.Tanh, ["3"]), (["1", nn.Tanh], ["1", "3"]), ("2", ["2"])]:
        with Trace(model, path3().graph(), watch=watch) as trace:
            model(torch.ones(3, 2))
        assert names(trace) == expected


def test_what_is_not_there_is_refused_with_what_there_is():
    with pytest.raises(GraphjouleError, match=r"No module is called 'conv\.\*'; the model has first, second, pool"):
        Trace(Plain(), path3().index, watch=["conv.*"])
    with pytest.raises(GraphjouleError, match="No module is a Conv1d; the model has first"):
        Trace(Plain(), path3().index, watch=nn.Conv1d)
    with pytest.raises(GraphjouleError, match="the model has none"):
        Trace(nn.ReLU(), path3().index, watch=["x"])
    with pytest.raises(GraphjouleError, match="There is no measure 'enrgy'; choose from combinatorial_energy"):
        Trace(Plain(), path3().index, ["enrgy"])
    with pytest.raises(GraphjouleError, match=r"expected a list of names such as \['energy'\]"):
        Trace(Plain(), path3().index, "energy")
    with pytest.raises(GraphjouleError, match="every is 0; it must be at least 1"):
        Trace(Plain(), path3().index, every=0)
    with pytest.raises(GraphjouleError, match="num_nodes is 4, but the graph has 3 nodes"):
        Trace(Plain(), path3().graph(), num_nodes=4)


def test_a_model_that_is_one_layer_is_watched_itself():
    with Trace(model := nn.Linear(2, 3), path3().graph()) as trace:
        model(torch.ones(3, 2))
    assert names(trace) == ["Linear"]


@pytest.mark.parametrize("part", ["activation", "norm"])
def test_a_part_of_a_layer_can_be_watched_alone(part):
    edges, expected = path3(), [f"convs.{k}.{part}" for k in range(3)]
    for model in (EGNN(2, 4, 3, num_layers=3, batch_norm=part == "norm"), GCN(2, 4, 3, num_layers=3)):
        with Trace(model, edges.graph(), watch=[f"convs.*.{part}"]) as trace:
            model(torch.ones(3, 2), edges.graph())
        assert names(trace) == expected


def pyg_models():
    gat = pyg.GAT(2, 4, num_layers=2, out_channels=3, heads=2)
    blocks = [pyg.DeepGCNLayer(pyg.GCNConv(4, 4), nn.LayerNorm(4), nn.ReLU(), block=b) for b in ("res+", "plain")]
    deep = pyg.Sequential("x, edge_index", [(nn.Linear(2, 4), "x -> x"), *((b, "x, edge_index -> x") for b in blocks)])
    return {
        "gcn": (pyg.GCN(2, 4, num_layers=2, out_channels=3), ["convs.0", "act", "convs.1"]),
        "gat": (gat, ["convs.0", "act", "convs.1"]),
        "sage": (pyg.GraphSAGE(2, 4, num_layers=2, out_channels=3), ["convs.0", "act", "convs.1"]),
        "jumping": (
            pyg.GCN(2, 4, num_layers=2, out_channels=3, jk="max"),
            ["convs.0", "act", "convs.1", "act#2", "jk", "lin"],
        ),
    }, deep


@pytest.mark.parametrize("kind", ["gcn", "gat", "sage", "jumping"])
def test_it_watches_a_pyg_model_on_a_graph_whose_last_nodes_have_no_edges(kind):
    model, expected = pyg_models()[0][kind]
    x, edges = single(6, 2), Edges(path3().index, None, 6)  # path3 and three isolated nodes behind it
    model.eval()
    with torch.no_grad(), Trace(model, edges.index, operator="symmetric") as trace:
        scores = model(x, edges.index)
    assert names(trace) == expected
    assert trace.layers[-1].energy == pytest.approx(energy(scores, edges), rel=1e-6)


def test_it_watches_a_stack_of_deep_gcn_layers():
    _, deep = pyg_models()
    edges, x = path3(), single(3, 2)
    with torch.no_grad(), Trace(deep.eval(), edges.index) as trace:
        out = deep(x, edges.index)
    blocks = [name for name in names(trace) if name.endswith(("1", "2"))]
    assert len(blocks) == 2
    assert trace.layers[-1].energy == pytest.approx(energy(out, edges), rel=1e-6)
    listed = nn.ModuleList([pyg.DeepGCNLayer(pyg.GCNConv(4, 4), nn.LayerNorm(4), nn.ReLU()) for _ in range(3)])
    model = nn.ModuleDict({"layers": listed})
    assert [name for name, _ in layer_modules(model)] == ["layers", "layers.0", "layers.1", "layers.2"]


def test_a_list_inside_a_message_passing_layer_is_a_part_of_it():
    """GENConv and GINConv have an MLP, which is a list of modules."""
    convs = [pyg.GENConv(4, 4), pyg.GINConv(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))]
    layers = nn.ModuleList([pyg.DeepGCNLayer(conv, nn.LayerNorm(4), nn.ReLU()) for conv in convs])
    assert [name for name, _ in layer_modules(nn.ModuleDict({"layers": layers}))] == ["layers", "layers.0", "layers.1"]
    listed = nn.ModuleList([nn.ModuleDict({"mlp": nn.Sequential(nn.Linear(4, 4)), "conv": pyg.GENConv(4, 4)})])
    assert [name for name, _ in layer_modules(listed)] == ["0", "0.mlp", "0.mlp.0", "0.conv"]


def test_the_layers_of_a_network_inside_a_list_are_found():
    inside = nn.Sequential(nn.Linear(2, 4), pyg.GCN(4, 4, num_layers=2, out_channels=3))
    assert [name for name, _ in layer_modules(inside)][:5] == ["0", "1", "1.dropout", "1.act", "1.convs"]
    assert "1.convs.1" in dict(layer_modules(inside))
    assert "1.convs.1.lin" not in dict(layer_modules(inside))


class TwoConvs(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(2, 4), pyg.SAGEConv(4, 4)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


def test_a_layer_of_pyg_is_one_layer_wherever_it_stands_and_two_of_them_are_two():
    assert [name for name, _ in layer_modules(TwoConvs())] == ["conv1", "conv2"]
    listed = nn.ModuleList([TwoConvs()])
    assert [name for name, _ in layer_modules(listed)] == ["0", "0.conv1", "0.conv2"]


@pytest.mark.parametrize("watch", [nn.ReLU(), [nn.ReLU()], 3, ["convs.*", None]])
def test_what_is_neither_a_name_nor_a_type_is_refused(watch):
    with pytest.raises(GraphjouleError, match=r'(ReLU|int|NoneType) among them; expected names, such as "convs'):
        watched_modules(pyg.GCN(4, 4, 2), watch)
