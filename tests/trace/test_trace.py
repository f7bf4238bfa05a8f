import gc
import json
import math
import tracemalloc
import weakref
from functools import partial

import pytest
import torch
import torch_geometric.nn as pyg
from hypothesis import given
from torch import nn
from torch.func import functional_call

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.features import SparseFeatures
from graphjoule.measures import MEASURES, Measure
from graphjoule.measures.energy import dirichlet_energy
from graphjoule.nn import EGNN, GCN
from graphjoule.trace import LayerTrace, Trace, read_trace
from graphjoule.trace.entry import Entry, settle
from graphjoule.trace.outputs import count_nodes, find_features
from graphjoule.trace.watch import layer_modules
from tests.graphs import Edges, edge_lists, few, no_edges, normal, path3, random_edges

single = partial(normal, dtype=torch.float32)


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
        self.pool(h[:, :2].t())  # as many rows as channels: not node features
        return h


def hooks(model: nn.Module) -> int:
    tables = [(m._forward_hooks, m._forward_pre_hooks) for m in model.modules()]
    tables += [(p._backward_hooks or (),) for p in model.parameters()]
    return sum(len(table) for group in tables for table in group)


def names(trace):
    return [row.name for row in trace.layers]


def norm(x: torch.Tensor) -> float:
    return float(x.detach().double().norm())


def energy(x: torch.Tensor, edges: Edges) -> float:
    return float(dirichlet_energy(x.detach(), edges.graph()))


# What is recorded.


def test_it_records_every_layer_of_any_model_whose_output_is_node_features():
    model, edges, x = Plain(), path3(), single(3, 2)
    with Trace(model, edges.graph()) as trace:
        model(x)
    h = model.first(x)
    outputs = [h, model.second(h.relu())]
    assert names(trace) == ["first", "second"]
    assert [row.energy for row in trace.layers] == [energy(h, edges) for h in outputs]
    assert [row.norm for row in trace.layers] == [pytest.approx(norm(h)) for h in outputs]
    assert [(row.channels, row.module, row.run) for row in trace.layers] == [(4, "Linear", None), (3, "Linear", None)]
    assert all(type(number) is float for row in trace.layers for number in row.values.values())


@few
@given(edge_lists())
def test_every_measure_is_what_its_function_gives_on_any_graph(edges):
    x, model = normal(edges.num_nodes, 2), nn.Sequential(nn.Linear(2, 3).double())
    with torch.no_grad(), Trace(model, edges.graph64(), measures=list(MEASURES)) as trace:
        output = model(x)
    (row,) = trace.layers
    assert list(row.values) == list(MEASURES)
    for name, value in row.values.items():
        assert value == pytest.approx(float(MEASURES[name].function(output, edges.graph64())), nan_ok=True)


def test_a_measure_of_ones_own_is_recorded_beside_the_known_ones():
    largest = Measure("largest", lambda x, graph: x.abs().amax(dim=(-2, -1)), "max |x|", "[0, inf)", "", "")
    model, x = nn.Sequential(nn.Linear(2, 3)), single(3, 2)
    with Trace(model, path3().graph(), measures=["norm", largest, "norm"]) as trace:
        out = model(x)
    assert trace.measures == ("norm", "largest")
    assert trace.layers[0]["largest"] == pytest.approx(float(out.detach().abs().max()))


def test_every_call_is_recorded_with_its_number_its_mark_and_its_mode():
    model = Plain()
    with Trace(model, path3().graph(), watch=["first"]) as trace:
        model(torch.ones(3, 2))
        trace.mark("epoch 1")
        model.eval()
        model(2 * torch.ones(3, 2))
    assert [(row.name, row.call, row.mark, row.training) for row in trace.layers] == [
        ("first", 0, None, True),
        ("first", 1, "epoch 1", False),
    ]
    assert trace.layers[0].energy != trace.layers[1].energy
    assert names(trace.select(call=-1)) == ["first"]
    assert trace.select(call=-1).layers == trace.select(mark="epoch 1").layers == trace.layers[1:]


def test_every_third_call_alone_is_recorded_and_the_others_have_no_hook():
    model, edges, seen = EGNN(2, 4, 3, num_layers=2).eval(), path3(), []
    with Trace(model, edges.graph(), every=3) as trace:
        for _ in range(7):
            model(torch.ones(3, 2), edges.graph())
            seen.append(len(model.convs[0]._forward_hooks))
    assert sorted({row.call for row in trace.layers}) == [0, 3, 6]
    assert seen == [1, 0, 0, 1, 0, 0, 1]
    assert hooks(model) == 0


def test_modes_are_as_before_after_the_trace_of_one_call_also_when_it_fails():
    model, graph = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), nn.Linear(3, 3)), path3().graph()
    model[0].eval()
    trace = Trace.of(model, graph, (torch.ones(3, 2),), ["energy"])
    assert [module.training for module in model] == [False, True, True]
    assert names(trace) == ["0", "2"]
    assert not any(row.training for row in trace.layers)
    with pytest.raises(RuntimeError, match="mat1"):
        Trace.of(model, graph, (torch.ones(3, 7),))
    assert [module.training for module in model] == [False, True, True]


# Which modules.


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


def test_a_tensor_handed_on_has_one_row_under_the_outermost_name():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.inner = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())

        def forward(self, x):
            return self.inner(self.linear(x))

    model = nn.Sequential(nn.Linear(2, 4), nn.Identity(), nn.Dropout(0.5), Block(), nn.Identity()).eval()
    with Trace(model, path3().graph()) as trace:
        model(torch.ones(3, 2))
    assert names(trace) == ["0", "3.linear", "3.inner.0", "3"]
    assert trace.layers[-1].module == "Block"


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_change_in_place_is_a_new_row(mode):
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(inplace=True), nn.Identity())
    with mode(), Trace(model, path3().graph(), ["norm"]) as trace:
        out = model(single(3, 2))
    assert names(trace) == ["0", "1"]
    assert trace.layers[0].norm > trace.layers[1].norm == pytest.approx(norm(out))


def test_memory_that_is_used_again_is_not_taken_for_the_same_tensor():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)))
    with torch.no_grad(), Trace(model, path3().graph(), ["norm"]) as trace:
        model(single(3, 4))
    assert names(trace) == [str(k) for k in range(20)]


def test_a_module_used_twice_in_a_call_has_two_rows():
    shared = nn.Linear(3, 3)
    model = nn.ModuleDict({"shared": shared})
    model.forward = lambda x: shared(shared(x).relu())
    with Trace(model, path3().graph(), ["norm"]) as trace:
        model(single(3, 3))
        model(single(3, 3))
    assert [(row.name, row.call) for row in trace.layers] == [
        (name, k) for k in (0, 1) for name in ("shared", "shared#2")
    ]
    assert trace.layers[0].norm != trace.layers[1].norm
    assert len(trace.select("shared").layers) == 4
    assert names(trace.select("shared#2")) == ["shared#2", "shared#2"]


def test_one_activation_for_all_layers_has_numbered_rows():
    model, edges = pyg.GCN(2, 4, num_layers=4, out_channels=3).eval(), path3()
    with torch.no_grad(), Trace(model, edges.index) as trace:
        model(single(3, 2), edges.index)
    assert names(trace) == ["convs.0", "act", "convs.1", "act#2", "convs.2", "act#3", "convs.3"]
    with torch.no_grad(), Trace(model, edges.index, watch="act") as trace:
        model(single(3, 2), edges.index)
    assert names(trace) == ["act", "act#2", "act#3"]


def test_a_block_that_is_used_again_is_numbered_by_its_own_uses():
    """The first use gives what its part gave, so its row changes its name, and must take the number with it."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.act = nn.Linear(3, 3), nn.Tanh()

        def forward(self, x):
            return self.act(self.linear(x))

    model = nn.Module()
    model.block = Block()
    model.forward = lambda x: model.block(model.block(x))
    with Trace(model, path3().graph(), gradients=True) as trace:
        model(single(3, 3)).sum().backward()
    assert names(trace) == ["block.linear", "block", "block.linear#2", "block#2"]
    assert [row.weight_gradient is not None for row in trace.layers] == [False, False, True, True]


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


# PyG's models and others with outputs of their own.


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
    with torch.no_grad(), Trace(model, edges.index) as trace:
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


class Odd(nn.Module):
    """Gives whatever it is told to."""

    def __init__(self, give):
        super().__init__()
        self.give, self.linear = give, nn.Linear(2, 4)

    def forward(self, x):
        return self.give(self.linear(x))


@pytest.mark.parametrize(
    "give",
    [
        lambda h: (torch.zeros(7, 1), h),  # edge features first
        lambda h: [None, {"h": h}],
        lambda h: h.to_sparse(),
        lambda h: SparseFeatures.from_dense(h),
        lambda h: h.view(3, 2, 2),  # heads
        lambda h: (h, h.new_zeros(4, 2)),
    ],
)
def test_node_features_are_found_in_tuples_lists_mappings_sparse_tensors_and_heads(give):
    model, x = Odd(give), single(3, 2)
    with torch.no_grad(), Trace(nn.Sequential(model), path3().graph(), watch=["0"]) as trace:
        model(x)
    (row,) = trace.layers
    assert (row.channels, row.run) == (4, None)
    assert row.energy == pytest.approx(energy(model.linear(x), path3()), rel=1e-6)


@pytest.mark.parametrize("output", [None, 3, torch.zeros(3), torch.zeros(3, 2, dtype=torch.int64), torch.zeros(4, 2)])
def test_what_is_no_node_features_is_left_alone(output):
    assert find_features(output, 3) is None


# How many nodes there are.


def test_the_number_of_nodes_is_taken_from_the_models_input_not_from_a_wide_output():
    """The first output here has more rows than there are nodes, one per edge."""

    class Edgewise(nn.Module):
        def __init__(self):
            super().__init__()
            self.edge, self.node = nn.Linear(1, 2), nn.Linear(2, 2)

        def forward(self, x, edge_index):
            self.edge(torch.ones(edge_index.size(1), 1))
            return self.node(x)

    model, edges = Edgewise(), path3()
    for inputs, options in [((single(3, 2), edges.index), {}), ((single(3, 2), edges.index), {"num_nodes": 3})]:
        with Trace(model, edges.index, **options) as trace:
            model(*inputs)
        assert names(trace) == ["node"]
    with Trace(model, edges.index) as trace:
        model(edge_index=edges.index, x=single(3, 2))
    assert names(trace) == ["node"]


def test_the_number_of_nodes_is_told_by_features_before_edge_features_or_by_a_graph():
    index = path3().index
    assert count_nodes([index, torch.zeros(4, 7), torch.zeros(3, 2)], index) == 3  # four edges
    assert count_nodes([index, torch.zeros(4, 7)], index) == 4
    assert count_nodes([path3().graph()], index) == 3
    assert count_nodes([torch.zeros(2, 2)], index) is None  # node 2 would be missing
    assert count_nodes([torch.zeros(5, 3, 2)], index) == 3  # five runs
    assert count_nodes([SparseFeatures.from_dense(torch.ones(3, 2))], index) == 3


def test_parts_called_by_themselves_are_recorded_too():
    model, edges = Plain(), path3()
    with Trace(model, edges.index) as trace:
        model.first(single(3, 2))
    assert [(row.name, row.call) for row in trace.layers] == [("first", 0)]


def test_a_directed_edge_index_is_refused():
    model = Plain()
    with pytest.raises(GraphjouleError, match="symmetrize=True"), Trace(model, torch.tensor([[0], [1]])):
        model(torch.ones(3, 2))
    assert hooks(model) == 0


@pytest.mark.parametrize("edges", [no_edges(1), no_edges(4)])
def test_no_edges_and_one_node_have_no_energy(edges):
    model = nn.Sequential(nn.Linear(2, 3))
    with Trace(model, edges.index) as trace:
        out = model(single(edges.num_nodes, 2))
    (row,) = trace.layers
    assert row.energy == row["rayleigh"] == 0
    assert row.norm == pytest.approx(norm(out))


# A trace without rows.


def test_a_trace_without_rows_warns_with_what_it_saw():
    model, graph = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3)), path3().graph()
    said = r"nothing.* with 3 rows, .* the outputs were: 0 \[5, 4\]; 1 \[5, 3\]\."
    with pytest.warns(UserWarning, match=said), Trace(model, graph):
        model(torch.ones(5, 2))
    said = r"nothing: of the modules that it watches \(0, 1\) none was called"
    with pytest.warns(UserWarning, match=said), Trace(model, graph):
        pass
    deep = nn.Sequential(*(nn.Linear(2, 2) for _ in range(7)))
    with pytest.warns(UserWarning, match=r"4 \[2, 2\]; \.\.\.\."), Trace(deep, path3().index):
        deep(torch.ones(2, 2))  # too few rows for three nodes: their number is never told
    assert hooks(model) == hooks(deep) == 0


def test_outputs_that_are_no_tensors_are_told_by_their_type():
    model = nn.ModuleDict({"odd": Odd(lambda h: h.argmax(dim=1))})
    with pytest.warns(UserWarning, match=r"odd \[3\] int64\."), Trace(model, path3().graph(), watch="odd"):
        model["odd"](torch.ones(3, 2))
    model = nn.ModuleDict({"odd": Odd(lambda h: "text")})
    with pytest.warns(UserWarning, match=r"odd str\."), Trace(model, path3().graph(), watch="odd"):
        model["odd"](torch.ones(3, 2))


def test_an_error_inside_the_block_is_not_hidden_by_the_warning():
    with pytest.raises(ZeroDivisionError), Trace(Plain(), path3().graph()):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("model", "graph", "said"),
    [
        (torch.ones(3, 2), path3().index, r"The model is of type Tensor; expected a torch\.nn\.Module\."),
        (3, path3().index, "The model is of type int; expected a torch"),
        (Plain(), path3().index.float(), r"edge_index has shape \[2, 4\] and dtype torch\.float32; expected \[2, num_"),
        (Plain(), path3().index.t(), r"edge_index has shape \[4, 2\]"),
        (Plain(), path3().index[0], r"edge_index has shape \[4\]"),
        (Plain(), path3().index.bool(), "dtype torch.bool"),
        (Plain(), path3().index.numpy(), "The graph is of type ndarray; expected a Propagation, or an edge_index"),
    ],
)
def test_what_is_no_model_and_what_is_no_graph_is_refused_at_once(model, graph, said):
    with pytest.raises(GraphjouleError, match=said):
        Trace(model, graph)


# It leaves no trace itself.


def test_it_lets_go_when_the_block_ends_also_after_an_error():
    model = Plain()
    with Trace(model, path3().index, gradients=True):
        assert hooks(model) == 4 + 1 + 5  # modules, the model itself, parameters
        model(torch.ones(3, 2))
    assert hooks(model) == 0
    with pytest.raises(RuntimeError, match="mat1"), Trace(model, path3().index, gradients=True):
        model(torch.ones(3, 7))
    assert hooks(model) == 0


def test_a_hook_of_someone_else_stays():
    model = Plain()
    model.first.register_forward_hook(lambda *_: None)
    with Trace(model, path3().index):
        model(torch.ones(3, 2))
    assert hooks(model) == 1


@pytest.mark.parametrize("gradients", [False, True])
def test_it_changes_neither_scores_nor_gradients_nor_random_numbers(gradients):
    edges, x = random_edges(), single(9, 2)
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(4, 3))

    def step():
        torch.manual_seed(0)
        scores = model(x)
        return scores, *torch.autograd.grad(scores.square().sum(), list(model.parameters())), torch.get_rng_state()

    plain = step()
    with Trace(model, edges.graph(), list(MEASURES), gradients=gradients):
        watched = step()
    assert all(a.equal(b) for a, b in zip(plain, watched, strict=True))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_its_numbers_are_the_same_with_and_without_gradients(mode):
    edges, x = random_edges(weighted=True), single(9, 2)
    model = GCN(2, 4, 3, num_layers=2).eval()
    with mode(), Trace(model, edges.graph(), watch=["convs.*"]) as trace:
        scores = model(x, edges.graph())
    assert trace.layers[1].energy == energy(scores, edges)


@pytest.mark.parametrize("gradients", [False, True])
def test_it_keeps_no_activation(gradients):
    model, activations = Plain(), []
    model.first.register_forward_hook(lambda module, inputs, output: activations.append(weakref.ref(output)))
    with Trace(model, path3().index, gradients=gradients) as trace:
        model(torch.ones(3, 2)).sum().backward()
        gc.collect()
        assert activations[0]() is None
        assert len(trace.layers) == 2
        assert all(not isinstance(number, torch.Tensor) for entry in trace._entries for number in entry.values.values())


def test_numbers_stay_on_the_device_until_they_are_read_and_come_home_together(monkeypatch):
    module = "graphjoule.trace.trace"
    monkeypatch.setattr(f"{module}._MOST_WAITING", 3)
    model, entries = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), []
    with Trace(model, path3().graph(), ["norm"]) as trace:
        for _ in range(3):
            model(torch.ones(3, 2))
            entries.append([isinstance(entry.values["norm"], torch.Tensor) for entry in trace._entries])
    assert entries == [[True] * 2, [True] * 4, [False] * 4 + [True] * 2]
    assert len(trace.layers) == 6
    assert not any(isinstance(entry.values["norm"], torch.Tensor) for entry in trace._entries)


def test_settling_splits_numbers_as_they_were():
    entries = [Entry("a", "A", 0, None, True, num_runs=2), Entry("b", "B", 0, None, True)]
    entries[0].values = {"energy": torch.tensor([1.0, 2.0]), "norm": torch.tensor(3.0)}
    entries[1].gradient = {"gradient": torch.tensor(4.0)}
    settle(entries)
    settle(entries)  # again: nothing waits
    assert [(row.run, row.energy, row.norm) for row in entries[0].rows()] == [(0, 1.0, 3.0), (1, 2.0, 3.0)]
    assert [(row.run, row.gradient) for row in entries[1].rows()] == [(None, 4.0)]


# Gradients.


def test_gradients_by_outputs_and_by_parameters_are_those_of_autograd():
    model, x = Plain(), single(3, 2)
    with Trace(model, path3().graph(), gradients=True, watch=["first", "second"]) as trace:
        h = model.first(x)
        out = model.second(h.relu())
        wanted = torch.autograd.grad(out.square().sum(), [h, out, *model.first.parameters()], retain_graph=True)
        out.square().sum().backward()
    first, second = trace.layers
    assert (first.gradient, second.gradient) == tuple(pytest.approx(float(g.norm())) for g in wanted[:2])
    assert first.weight_gradient == pytest.approx(math.sqrt(sum(float(g.square().sum()) for g in wanted[2:])))
    assert first["gradient"] == first.gradient


def test_a_backward_pass_after_the_block_is_not_recorded_and_none_is_none():
    model = Plain()
    with Trace(model, path3().graph(), gradients=True) as trace:
        out = model(single(3, 2))
    out.sum().backward()
    assert all(row.gradient is None and row.weight_gradient is None for row in trace.layers)
    with pytest.raises(GraphjouleError, match=r"first has no 'gradient'; recorded are: effective_rank, energy, norm"):
        trace.layers[0]["gradient"]


def test_weights_count_for_the_module_that_gives_its_name_to_the_row():
    model = nn.ModuleDict({"block": nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3))})
    model.forward = lambda x: model["block"](x)
    with Trace(model, path3().graph(), gradients=True) as trace:
        model(single(3, 2)).square().sum().backward()
    assert names(trace) == ["block.0", "block"]
    whole = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    assert trace.layers[1].weight_gradient == pytest.approx(whole)


def test_an_evaluation_after_the_training_step_does_not_take_its_gradients():
    model, x = Plain(), single(3, 2)
    with Trace(model, path3().graph(), gradients=True) as trace:
        loss = model(x).square().sum()
        with torch.no_grad():
            model.eval()(x)
        loss.backward()
    assert [row.gradient is None for row in trace.layers] == [False, False, True, True]
    assert [row.weight_gradient is None for row in trace.layers] == [False, False, True, True]


# Many runs.


def test_a_leading_axis_is_runs():
    edges, x = random_edges(), single(4, 9, 2)
    model = nn.Sequential(nn.Linear(2, 3))
    with Trace(model, edges.graph(), list(MEASURES), gradients=True) as trace:
        out = model(x)
        (out * torch.arange(4)[:, None, None]).sum().backward()
    assert [row.run for row in trace.layers] == [0, 1, 2, 3]
    for row, run in zip(trace.layers, out, strict=True):
        with Trace(alone := nn.Sequential(nn.Identity()), edges.graph(), list(MEASURES)) as single_trace:
            alone(run.detach())
        assert row.values == pytest.approx(dict(single_trace.layers[0].values), rel=1e-6)
        assert row.gradient == pytest.approx(row.run * 27**0.5)
    assert [row.run for row in trace.select(run=2).layers] == [2]


@pytest.mark.parametrize("axis", [0, 1])
def test_inside_vmap_every_run_is_recorded_with_its_gradient(axis):
    """As training does it: parameters with a run axis, `functional_call` under `vmap`, autograd around it."""
    edges, x = random_edges(), single(9, 2)
    models = [GCN(2, 4, 3, num_layers=2).eval() for _ in range(3)]
    template = models[0]
    stacked = {
        name: torch.stack([dict(m.named_parameters())[name].detach() for m in models], dim=axis).requires_grad_()
        for name, _ in template.named_parameters()
    }
    loss_of = lambda p: functional_call(template, p, (x, edges.graph())).square().sum()  # noqa: E731
    with Trace(template, edges.graph(), gradients=True) as trace:
        torch.vmap(loss_of, in_dims=axis)(stacked).sum().backward()
    assert hooks(template) == 0
    assert [(row.name, row.run) for row in trace.layers] == [(f"convs.{k}", run) for k in range(2) for run in range(3)]
    for run, model in enumerate(models):
        with Trace(model, edges.graph(), gradients=True) as alone:
            model(x, edges.graph()).square().sum().backward()
        for row, expected in zip(trace.select(run=run).layers, alone.layers, strict=True):
            assert row.values == pytest.approx(dict(expected.values), rel=1e-4)
            assert row.gradient == pytest.approx(expected.gradient, rel=1e-4)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_inside_vmap_the_run_axis_may_be_anywhere(axis):
    runs = single(4, 9, 3)
    x = runs.movedim(0, axis).clone().requires_grad_()
    model, edges = nn.Sequential(nn.Identity()), random_edges()
    with Trace(model, edges.graph(), gradients=True) as trace:
        (torch.vmap(model, in_dims=axis)(x).sum(dim=(1, 2)) * torch.arange(4)).sum().backward()
    assert [row.energy for row in trace.layers] == pytest.approx([energy(run, edges) for run in runs])
    assert [row.gradient for row in trace.layers] == pytest.approx([run * 27**0.5 for run in range(4)])


def test_inside_vmap_what_all_runs_share_stands_once():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3))
    weights = single(4, 3, 3)
    with Trace(model, path3().graph()) as trace:
        torch.vmap(lambda w: functional_call(model, {"1.weight": w}, (torch.ones(3, 2),)))(weights)
    assert [(row.name, row.run) for row in trace.layers] == [("0", None), *(("1", run) for run in range(4))]
    assert [row.name for row in trace.select(run=1).layers] == ["0", "1"]


def test_a_transform_by_torch_func_is_measured_without_gradients():
    model = nn.Sequential(nn.Linear(2, 3))
    weights, x = single(2, 3, 2), single(3, 2)
    step = torch.func.grad(lambda w: functional_call(model, {"0.weight": w}, (x,)).square().sum())
    with Trace(model, path3().graph(), gradients=True) as trace:
        torch.vmap(step)(weights)
    assert [row.run for row in trace.layers] == [0, 1]
    expected = [energy(x @ w.t() + model[0].bias, path3()) for w in weights]
    assert [row.energy for row in trace.layers] == pytest.approx(expected, rel=1e-5)


# Telling it.


def recorded():
    model = Plain()
    with Trace(model, path3().graph(), ["energy", "norm"], gradients=True) as trace:
        model(single(3, 2)).sum().backward()
        trace.mark(7)
        model.eval()(single(3, 2))
    return trace


def test_the_table_has_a_line_per_row_and_columns_for_what_differs():
    trace = recorded()
    head, *lines = trace.table().splitlines()
    assert head.split() == ["call", "mark", "mode", "layer", "energy", "norm", "gradient", "weight_gradient"]
    assert [line.split()[:4] for line in lines[2:]] == [["1", "7", "eval", "first"], ["1", "7", "eval", "second"]]
    assert float(lines[0].split()[3]) == pytest.approx(trace.layers[0].energy, rel=0.01)
    one = trace.select(call=1)
    assert one.table().splitlines()[0].split() == ["layer", "energy", "norm"]
    empty = Trace(Plain(), path3().index, ["energy"])
    assert empty.table().split() == ["layer", "energy"]


def test_json_gives_the_trace_back_and_has_null_for_what_is_not_finite():
    trace = recorded()
    again = read_trace(trace.to_json())
    assert again.layers == trace.layers
    assert again.measures == trace.measures
    assert again.table() == trace.table()
    broken = Trace(Plain(), path3().graph(), ["norm"])
    with broken:
        broken._model(torch.full((3, 2), math.nan))
    assert json.loads(broken.to_json())["layers"][0]["values"] == {"norm": None}
    assert math.isnan(read_trace(broken.to_json()).layers[0].norm)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"measures": [], "layers": [{"name": "x"}]}', "null"])
def test_what_is_no_trace_is_refused(text):
    with pytest.raises(GraphjouleError, match="This is not a trace that graphjoule wrote"):
        read_trace(text)


def test_all_measures_take_less_than_30_kb_per_layer_and_epoch():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(8)))
    trace = Trace(model, random_edges().graph(), list(MEASURES), gradients=True)

    def epochs(count):
        for _ in range(count):
            model(single(9, 4)).sum().backward()
        settle(trace._entries)

    with trace:
        epochs(1)  # what is kept once, the graph's operators
        tracemalloc.start()
        epochs(5)
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    assert taken / 40 < 30_000
    assert len(trace.to_json()) / 48 < 30_000


def test_a_row_without_a_measure_says_what_there_is():
    row = LayerTrace("convs.0", {"norm": 1.0})
    with pytest.raises(GraphjouleError, match=r"convs.0 has no 'energy'; recorded are: norm\."):
        row.energy  # noqa: B018
    assert "norm" in row
    assert "energy" not in row


def test_a_graph_on_the_cpu_serves_a_float64_model():
    graph = Propagation.from_edge_index(path3().index)
    model = nn.Sequential(nn.Linear(2, 3).double())
    with Trace(model, graph) as trace:
        out = model(normal(3, 2))
    assert trace.layers[0].energy == pytest.approx(float(dirichlet_energy(out.detach(), graph)), rel=1e-12)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_on_a_gpu_a_graph_from_the_cpu_serves_and_nothing_waits_inside_the_hooks():
    edges, x = random_edges(), single(9, 2)
    model = GCN(2, 4, 3, num_layers=2).eval()
    on_cpu = Trace.of(model, edges.graph(), (x, edges.graph()))
    model, x, graph = model.cuda(), x.cuda(), edges.graph().to("cuda")
    with torch.no_grad(), Trace(model, edges.graph(), ["energy", "norm"]) as trace:
        model(x, graph)  # moves the graph, once
        torch.cuda.set_sync_debug_mode("error")
        try:
            model(x, graph)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert all(entry.values["energy"].is_cuda for entry in trace._entries)
    for row, expected in zip(trace.select(call=1).layers, on_cpu.layers, strict=True):
        assert row.energy == pytest.approx(expected.energy, rel=1e-4)
