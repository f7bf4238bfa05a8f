"""Every call is measured on its own graph, or says that it was not."""

import gc
import re
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch.func import functional_call
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import (
    CachedLoader,
    DataLoader,
    DynamicBatchSampler,
    ImbalancedSampler,
    PrefetchLoader,
    RandomNodeLoader,
)

from graphjoule import diagnose, limits
from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.measures import MEASURES, dirichlet_energy, effective_rank
from graphjoule.nn import GCN
from graphjoule.terms import EnergyConstraint
from graphjoule.trace import Trace
from tests.graphs import Edges, path3, random_edges

from . import Plain, names, norm, single
from .test_operators import (
    adjacency_sum,
    counts,
    dense_energy,
    means,
    random_walk,
    returned_attention,
    softmax_by_target,
    symmetric,
)

C = 4
UNREAD = (
    r"^The attention weights of {} cannot be read in some calls: its energy is that of 'random_walk'.*operator=...$"
)


def graph_data(num_nodes: int, seed: int) -> Data:
    return Data(x=single(num_nodes, C, seed=seed), edge_index=random_edges(num_nodes, 2 * num_nodes, seed=seed).index)


def outputs_of(model, module):
    seen = []
    module.register_forward_hook(lambda module, args, output: seen.append(output))
    return seen


@contextmanager
def hearing() -> Iterator[list[str]]:
    """All warnings of a block, in alphabetical order once it ends."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield said
    said += sorted(str(each.message) for each in found)


class WholeGraphs(nn.Module):
    """A classifier of graphs that takes a `Data`."""

    def __init__(self):
        super().__init__()
        self.encoder, self.conv, self.head = nn.Linear(C, C), pyg.SAGEConv(C, C), nn.Linear(C, 2)

    def forward(self, data):
        h = self.conv(self.encoder(data.x), data.edge_index)
        return self.head(pyg.global_mean_pool(h, data.batch))


# Loaders of batches.


@pytest.mark.parametrize("sizes", [[5] * 6, [4, 9, 6, 3, 8, 7]])
def test_every_batch_of_a_loader_is_measured_on_its_own_edges(sizes):
    batches = list(DataLoader([graph_data(n, k) for k, n in enumerate(sizes)], batch_size=2))
    model = WholeGraphs().eval()
    encoded, convolved = outputs_of(model, model.encoder), outputs_of(model, model.conv)
    with torch.no_grad(), Trace(model) as trace:
        for batch in batches:
            model(batch)
    assert names(trace) == ["encoder", "conv"] * 3  # pooled outputs are of graphs, not of nodes
    for k, batch in enumerate(batches):
        weights = means(counts(batch.edge_index, batch.num_nodes))
        for row, h in zip(trace.select(call=k).layers, (encoded[k], convolved[k]), strict=True):
            assert row.energy == pytest.approx(dense_energy(weights, h), rel=1e-5)
            assert (row.operator, row.num_nodes) == ("random_walk", batch.num_nodes)


TRUTHS = {
    pyg.GCNConv: symmetric,
    pyg.SAGEConv: random_walk,
    pyg.GATConv: returned_attention,
    pyg.GraphConv: adjacency_sum,
}
LOADERS = {  # those that need no compiled extension
    "of a varying number of graphs": lambda data: DataLoader(
        data, batch_sampler=DynamicBatchSampler(data, max_num=12, mode="node")
    ),
    "of some classes more often": lambda data: DataLoader(
        data, batch_size=2, sampler=ImbalancedSampler(torch.tensor([0, 0, 0, 1]))
    ),
    "of parts of one graph": lambda data: RandomNodeLoader(Batch.from_data_list(data), num_parts=3),
    "that is read ahead": lambda data: PrefetchLoader(DataLoader(data, batch_size=3, shuffle=True)),
    "that is kept": lambda data: CachedLoader(DataLoader(data, batch_size=3)),
}


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("layer", [pyg.GCNConv, pyg.SAGEConv, pyg.GATConv, pyg.GraphConv])
def test_any_loader_gives_rows_of_its_own_batches(kind, layer):
    torch.manual_seed(0)
    model = pyg.Sequential("x, edge_index", [(nn.Linear(C, C), "x -> x"), (layer(C, C), "x, edge_index -> x")]).eval()
    conv, seen = model[1], []
    conv.register_forward_hook(lambda module, args, output: seen.append((*args, output)))
    with torch.no_grad(), Trace(model, watch=layer) as trace:
        for batch in LOADERS[kind]([graph_data(n, k) for k, n in enumerate([4, 9, 6, 3])]):
            model(batch.x, batch.edge_index)
    rows, calls = trace.layers, list(seen)
    assert len(rows) == len(calls) > 1
    for row, (x, index, out) in zip(rows, calls, strict=True):
        expected = TRUTHS[layer](conv, x, index, out)
        assert row.energy == pytest.approx(expected, rel=1e-5, abs=1e-9 * (1 + row.norm**2))


def test_rows_are_averaged_over_an_epoch_as_if_all_batches_were_one_graph():
    data = [graph_data(n, k) for k, n in enumerate([4, 9, 6, 3])]
    model = pyg.GCN(C, C, num_layers=2).eval()
    with torch.no_grad(), Trace(model, watch="convs.*") as trace:
        for epoch in range(2):
            trace.mark(epoch)
            for batch in DataLoader(data, batch_size=1):
                model(batch.x, batch.edge_index)
    (whole,) = DataLoader(data, batch_size=4)
    expected = Trace.of(model, None, (whole.x, whole.edge_index), watch="convs.*")
    average = trace.averaged()
    assert [(row.name, row.mark, row.call) for row in average.layers] == [
        (f"convs.{k}", epoch, epoch) for epoch in range(2) for k in range(2)
    ]
    for row, all_at_once in zip(average.select(mark=1).layers, expected.layers, strict=True):
        assert row.num_nodes == all_at_once.num_nodes == 22
        assert row.energy == pytest.approx(all_at_once.energy / 4, rel=1e-5)
        assert row.norm == pytest.approx(all_at_once.norm / 2, rel=1e-5)
        assert row["rayleigh"] == pytest.approx(all_at_once["rayleigh"], rel=1e-5)
        ranks = [(r["effective_rank"], r.num_nodes) for r in trace.select(row.name, mark=1).layers]
        assert row["effective_rank"] == pytest.approx(sum(r * n for r, n in ranks) / 22)
    assert diagnose(average.select(mark=1)).evidence


@pytest.mark.parametrize("network", [pyg.GCN, pyg.GraphSAGE, pyg.GAT, pyg.GIN])
def test_each_graph_of_a_batch_has_rows_of_its_own(network):
    data = [graph_data(n, k) for k, n in enumerate([4, 9, 6])]
    model = network(C, C, num_layers=2).eval()
    (batch,) = DataLoader(data, batch_size=3)
    with torch.no_grad(), Trace(model, watch="convs.*", by_graph=True) as trace:
        model(batch.x, batch.edge_index, batch=batch.batch)
    assert [(row.name, row.part) for row in trace.layers] == [
        (f"convs.{k}", f"graph {g}") for k in (0, 1) for g in range(3)
    ]
    for k, one in enumerate(data):
        alone = Trace.of(model, None, (one.x, one.edge_index), watch="convs.*")
        for row, expected in zip(trace.select(part=f"graph {k}").layers, alone.layers, strict=True):
            assert row.values == pytest.approx(dict(expected.values), rel=1e-4)
            assert (row.num_nodes, row.operator) == (expected.num_nodes, expected.operator)
    with pytest.raises(GraphjouleError, match=r"holds 3 parts.*trace.select\(part='graph 0'\)"):
        limits(trace, 0.2, 1.0)
    assert limits(trace.select(part="graph 1"), 0.2, 1.0).layers
    assert "graph 2" in trace.table()


def test_another_batch_vector_for_the_same_edges_makes_other_graphs():
    edges, x = random_edges(6, 0).index, single(6, C)
    model, batch = pyg.GCN(C, C, num_layers=1).eval(), torch.tensor([0, 0, 1, 1, 2, 2])
    with torch.no_grad(), Trace(model, watch="convs.*", by_graph=True) as trace:
        model(x, edges, batch=batch)
        model(x, edges, batch=torch.tensor([0, 0, 0, 0, 0, 1]))
        batch[2:] = 1
        model(x, edges, batch=batch)
    sizes = [[row.num_nodes for row in trace.layers if row.call == call] for call in range(3)]
    assert sizes == [[2, 2, 2], [5, 1], [2, 4]]


def test_a_diagnosis_names_the_graphs_that_are_ill():
    dead = Data(x=torch.ones(5, C), edge_index=random_edges(5, 12, seed=1).index)
    (batch,) = DataLoader([graph_data(6, 0), dead, dead], batch_size=3)

    class Fading(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList(nn.Identity() for _ in range(3))

        def forward(self, x, edge_index, batch):
            for k, conv in enumerate(self.convs):
                x = conv(torch.where((batch > 0)[:, None], x * 1e-3**k, x * 1.0))
            return x

    model = Fading()
    with Trace(model, watch="convs.*", by_graph=True) as trace:
        model(torch.where((batch.batch > 0)[:, None], single(16, C), batch.x), batch.edge_index, batch.batch)
    found = diagnose(trace)
    assert found.verdict == "over-smoothing by norm collapse"
    assert str(found).startswith("2 of 3 parts (graph 1, graph 2): over-smoothing by norm collapse, from convs.1 on")
    assert len(found.not_judged) == 2  # gradients, said once for all


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.conv = nn.Linear(C, C), pyg.SAGEConv(C, C)

    def forward(self, x, edge_index):
        return self.conv(self.lin(x), edge_index)


class Pair(nn.Module):
    """Compares two graphs."""

    def __init__(self):
        super().__init__()
        self.encoder, self.last = Encoder(), nn.Linear(C, C)

    def forward(self, first, second, is_joined=False):
        h = self.encoder(first.x, first.edge_index) - self.encoder(second.x, second.edge_index)
        return self.last(h) if is_joined else h


def test_a_module_that_is_called_with_two_graphs_is_measured_on_each():
    model, data = Pair(), [graph_data(6, k) for k in range(2)]
    encoded, convolved = outputs_of(model, model.encoder.lin), outputs_of(model, model.encoder.conv)
    with torch.no_grad(), Trace(model) as trace:
        model(*data)
    assert names(trace) == ["encoder.lin", "encoder", "encoder.lin#2", "encoder#2"]
    for k, graph in enumerate(data):
        weights = means(counts(graph.edge_index, 6))
        for row, h in zip(trace.layers[2 * k : 2 * k + 2], (encoded[k], convolved[k]), strict=True):
            assert row.energy == pytest.approx(dense_energy(weights, h), rel=1e-5)
    with pytest.warns(UserWarning, match=r"Pair is called with two tensors .* that of the last layer"), Trace(model):
        model(*data, is_joined=True)


def test_an_error_in_a_layer_leaves_no_edges_behind():
    """Where the model itself is never called, nothing else clears them."""
    model, first, second = nn.ModuleDict({"conv": pyg.RGCNConv(C, C, 2)}), graph_data(6, 1), graph_data(6, 2)

    def encode(data):
        return model["conv"](data.x, data.edge_index, torch.arange(data.num_edges) % 2)

    def fail(*_):
        raise RuntimeError("on purpose")

    with torch.no_grad(), Trace(model) as expected:
        encode(second)
    with torch.no_grad(), Trace(model) as trace:
        handle = model["conv"].register_message_forward_hook(fail)
        with pytest.raises(RuntimeError, match="on purpose"):
            encode(first)
        handle.remove()
        encode(second)
    assert trace.layers[0].energy == pytest.approx(expected.layers[0].energy)


def test_features_of_edges_are_no_node_features_where_there_are_as_many():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.node, self.edge = nn.Linear(C, C), nn.Sequential(nn.Linear(3, C), nn.Tanh())
            self.conv = pyg.GINEConv(nn.Linear(C, C))

        def forward(self, x, edge_index, edge_attr):
            return self.conv(self.node(x), edge_index, self.edge(edge_attr))

    ring = torch.stack([torch.arange(6), torch.arange(6).roll(1)])
    model = Model()
    with Trace(model) as trace:
        model(single(6, C), ring, single(6, 3))
    assert names(trace) == ["node", "conv"]


class EdgeModel(nn.Module):
    """Makes features of edges by functions, which `edge` maps: of those that a layer takes, or of others."""

    def __init__(self):
        super().__init__()
        self.edge, self.conv, self.last = nn.Linear(2 * C, C), pyg.GINEConv(nn.Linear(C, C)), nn.Linear(C, C)

    def forward(self, x, edge_index, edge_label_index=None):
        pairs = edge_index if edge_label_index is None else edge_label_index
        edges = self.edge(torch.cat([x[pairs[0]], x[pairs[1]]], dim=-1))
        return self.last(self.conv(x, edge_index, edges if pairs is edge_index else x[edge_index[0]]))


@pytest.mark.parametrize("watch", [Trace, EnergyConstraint])
@pytest.mark.parametrize("labelled", [False, True])
def test_where_edges_are_as_many_as_nodes_a_module_does_what_it_did_elsewhere_or_warns(watch, labelled):
    ring, other, more = (
        torch.stack([torch.arange(6), torch.arange(6).roll(1)]),
        *(random_edges(6, n).index for n in (9, 7)),
    )
    model = EdgeModel()
    with watch(model) as watcher:
        for index in (other, ring):
            model(single(6, C), *([more, index] if labelled else [index]))
    found = names(watcher.select(call=1)) if watch is Trace else watcher.names()
    assert [name.removeprefix("input of ") for name in dict.fromkeys(found)][-2:] == ["conv", "last"]
    assert "edge" not in found
    with hearing() as said, watch(model):
        for _ in range(2):
            model(single(6, C), *([more, ring] if labelled else [ring]))
    (sentence,) = said
    assert sentence.startswith("There are as many edges as nodes (6), so edge, and others after it, may")


@pytest.mark.parametrize("network", [pyg.EdgeCNN, pyg.GIN])
def test_an_activation_that_layers_use_inside_is_a_part_of_them_there(network):
    """EdgeCNN calls it on edges, of which a ring has as many as nodes."""
    ring = torch.stack([torch.arange(6), torch.arange(6).roll(1)])
    model = network(C, C, num_layers=2)
    with EnergyConstraint(model) as constraint, Trace(model) as trace:
        model(single(6, C), ring)
    assert names(trace) == ["convs.0", "act", "convs.1"]
    assert constraint.names() == ["input of convs.0", "convs.0", "act", "convs.1"]


def test_a_graph_without_edges_has_not_collapsed():
    model, empty = pyg.GAT(C, C, num_layers=2), torch.zeros(2, 0, dtype=torch.long)
    with Trace(model, on_collapse="stop") as trace:
        model(single(5, C), empty)
    assert trace.layers[0]["rayleigh"] == 0


def test_a_layer_by_itself_has_one_row():
    model, data = pyg.GCNConv(C, C), graph_data(6, 0)
    with torch.no_grad(), Trace(model) as trace:
        out = model(data.x, data.edge_index)
    assert names(trace) == ["GCNConv"]
    assert trace.layers[0].energy == pytest.approx(symmetric(model, data.x, data.edge_index, out), rel=1e-5)


# Samples of neighbours.


def other_forms():
    """A path of 3 nodes and two without edges, in all that a call can say its number of nodes by."""
    index, x = path3().index, single(5, C)
    sparse = torch.zeros(5, 5).index_put(tuple(index), torch.ones(index.size(1))).to_sparse_csr()
    return {
        "features": (Encoder(), x, index),
        "data": (WholeGraphs(), Batch.from_data_list([Data(x=x, edge_index=index)])),
        "matrix": (Encoder(), x, sparse),
        "propagation": (GCN(C, 8, 2, num_layers=2), x, Propagation.from_edge_index(index, num_nodes=5)),
    }


@pytest.mark.parametrize("form", ["features", "data", "matrix", "propagation"])
@pytest.mark.parametrize("wrong", [2, 3, 40])
def test_a_number_of_nodes_that_a_call_contradicts_is_refused(form, wrong):
    model, *given = other_forms()[form]
    says = rf"num_nodes is {wrong}, but \w+ is called with a graph of 5 nodes; expected 5, or leave it out"
    with pytest.raises(GraphjouleError, match=says), Trace(model, num_nodes=wrong):
        model(*given)
    with Trace(model, num_nodes=5) as trace:
        model(*given)
    assert {row.num_nodes for row in trace.layers} == {5}


def test_nodes_that_neither_edges_nor_features_name_are_counted_by_a_stated_number():
    index = path3().index

    class Table(Encoder):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, C)

        def forward(self, edge_index, edge_attr):
            return super().forward(self.table.weight * 1.0, edge_index)

    model, weights = Table(), torch.ones(index.size(1), 1)
    with Trace(model, num_nodes=5) as trace:
        model(index, weights)
    assert {row.num_nodes for row in trace.layers} == {5}
    with pytest.raises(GraphjouleError, match=r"is 2, .* a graph of 3 nodes"), Trace(model, num_nodes=2):
        model(index, weights)


def test_layers_on_trimmed_hops_are_measured_on_what_is_left():
    """As a `NeighborLoader` samples them: edges lead to the nodes of the hop before, which stand first."""
    index = torch.tensor([[1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 2, 2]])
    hops = {"num_sampled_nodes_per_hop": [1, 2, 4], "num_sampled_edges_per_hop": [2, 4]}
    model = pyg.GraphSAGE(C, C, num_layers=2).eval()
    seen = outputs_of(model, model.convs[0]), outputs_of(model, model.convs[1])
    with torch.no_grad(), Trace(model, watch="convs.*") as trace:
        model(single(7, C), index, **hops)
    first, second = trace.layers
    assert (first.num_nodes, second.num_nodes) == (7, 3)
    assert first.energy == pytest.approx(dense_energy(means(counts(index, 7)), seen[0][0]), rel=1e-5)
    assert second.energy == pytest.approx(dense_energy(means(counts(index[:, :2], 3)), seen[1][0]), rel=1e-5)


def test_targets_of_a_pair_are_neighbours_as_far_as_they_share_sources():
    index = torch.tensor([[0, 1, 2, 3, 3, 4], [0, 0, 1, 1, 2, 2]])
    x = single(5, C)

    class Hops(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = pyg.SAGEConv(C, C), nn.Linear(C, 2)

        def forward(self, x, edge_index):
            return self.head(self.conv((x, x[:3]), edge_index).relu())

    model = Hops()
    with torch.no_grad(), Trace(model, measures=[*MEASURES]) as trace:
        model(x, index)
        y = model.conv((x, x[:3]), index).double()
    weight = torch.tensor([0.5] * 6, dtype=torch.float64)
    centres = torch.zeros(5, C, dtype=torch.float64)
    for source in range(5):
        at = index[0] == source
        centres[source] = y[index[1][at]].mean(dim=0)
    wanted = (weight[:, None] * (y[index[1]] - centres[index[0]]).square()).sum() / 2
    conv, head, *_ = trace.layers
    assert conv.energy == pytest.approx(float(wanted), rel=1e-5)
    assert conv.norm == pytest.approx(norm(y), rel=1e-6)
    assert conv["effective_rank"] == pytest.approx(float(effective_rank(y)), rel=1e-5)
    assert "mad" not in conv  # there are no edges among targets
    assert head.num_nodes == 3


# Other forms of a graph.


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_adj_t_is_read():
    edges = random_edges(6, 9, seed=2)
    dense = (counts(edges.index, 6) > 0).float().fill_diagonal_(0)
    model, x = pyg.GCN(C, C, num_layers=2), single(6, C)
    with torch.no_grad(), Trace(model, watch="convs.*") as trace:
        out = model(x, dense.to_sparse_csr())
    assert trace.layers[1].energy == pytest.approx(float(dirichlet_energy(out, edges.graph())), rel=1e-5)


def test_our_own_networks_are_read_with_a_propagation_and_with_an_edge_index():
    edges, x = random_edges(6, 9), single(6, C)
    model = GCN(C, C, 3, num_layers=2).eval()
    found = [
        Trace.of(model, graph, (x, given)) for graph in (None, edges.graph()) for given in (edges.graph(), edges.index)
    ]
    assert len({tuple(row.energy for row in trace.layers) for trace in found[:1] + found[2:3]}) == 1
    for trace in found:
        assert [row.energy for row in trace.layers] == pytest.approx([row.energy for row in found[0].layers], rel=1e-6)
        assert {row.operator for row in trace.layers} == {"symmetric"}


def test_edges_that_a_layer_makes_itself_are_seen():
    class Dynamic(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.EdgeConv(nn.Linear(2 * C, C))

        def forward(self, x):
            return self.conv(x, path3().index)

    model, x = Dynamic(), single(3, C)
    with torch.no_grad(), Trace(model) as trace:
        out = model(x)
    assert trace.layers[0].energy == pytest.approx(dense_energy(means(counts(path3().index, 3)), out), rel=1e-5)


def test_inside_vmap_attention_differs_from_run_to_run_and_counts_as_equal():
    edges, x, model = random_edges(6, 9), single(6, C), pyg.GATConv(C, C)
    weights = single(2, C, C)
    net = nn.ModuleDict({"conv": model})
    net.forward = lambda x, edge_index: model(x, edge_index)
    with torch.no_grad(), pytest.warns(UserWarning, match=UNREAD.format(r"conv \(GATConv\)")), Trace(net) as trace:
        out = torch.vmap(lambda w: functional_call(net, {"conv.lin.weight": w}, (x, edges.index)))(weights)
    assert [(row.run, row.operator) for row in trace.layers] == [(0, "random_walk"), (1, "random_walk")]
    loops = torch.arange(6).expand(2, 6)
    index = torch.cat([edges.index[:, edges.index[0] != edges.index[1]], loops], dim=1)
    for row, y in zip(trace.layers, out, strict=True):
        assert row.energy == pytest.approx(dense_energy(means(counts(index, 6)), y), rel=1e-5)


def test_a_block_around_a_layer_is_measured_as_the_layer():
    layer = pyg.DeepGCNLayer(pyg.GATConv(C, C), nn.LayerNorm(C), nn.ReLU())
    model = pyg.Sequential("x, edge_index", [(layer, "x, edge_index -> x")])
    with torch.no_grad(), Trace(model) as trace:
        model(single(6, C), random_edges(6, 9).index)
    assert trace.layers[-1].operator == "attention"


@pytest.mark.parametrize("watch", [Trace, EnergyConstraint])
def test_attention_that_cannot_be_read_warns_once_by_the_layers_name(watch):
    layers = [(pyg.PointTransformerConv(C, C), "x, pos, edge_index -> x") for _ in range(2)]
    model, edges = pyg.Sequential("x, pos, edge_index", layers), random_edges(6, 9).index
    with hearing() as said, watch(model):
        for _ in range(2):
            model(single(6, C), single(6, 3), edges)
    assert len(said) == 2
    for k, sentence in enumerate(said):
        assert re.match(UNREAD.format(rf"module_{k} \(PointTransformerConv\)"), sentence)
    with watch(model, operator="random_walk"):  # as chosen
        model(single(6, C), single(6, 3), edges)


def test_attention_to_hyperedges_cannot_be_read():
    model, index = pyg.HypergraphConv(C, C, use_attention=True), torch.tensor([[0, 1, 1, 2], [0, 0, 1, 1]])
    with pytest.warns(UserWarning, match=UNREAD.format("HypergraphConv")):
        Trace.of(model, None, (single(3, C), index, None, single(2, C)))


def test_attention_that_one_layer_has_for_two_relations_warns():
    x = {"a": single(5, C), "b": single(5, C, seed=1)}
    edges = {("a", "likes", "b"): random_edges(5, 4).index, ("b", "likes", "a"): random_edges(5, 9).index}
    model = nn.Sequential()
    model.conv = pyg.HeteroConv(dict.fromkeys(edges, pyg.GATConv((C, C), C, add_self_loops=False)))
    model.forward = lambda x_dict, edge_index_dict: model.conv(x_dict, edge_index_dict)
    with torch.no_grad(), pytest.warns(UserWarning, match=UNREAD.format(r"\S+ \(GATConv\)")), Trace(model) as trace:
        model(x, edges)
    assert [row.operator for row in trace.layers] == ["random_walk", "attention", "random_walk", "attention"]


def test_nodes_that_share_a_hyperedge_are_neighbours():
    index = torch.tensor([[0, 1, 1, 2], [0, 0, 1, 1]])  # two hyperedges, as (node, hyperedge)
    model = nn.Sequential()
    model.conv = pyg.HypergraphConv(C, C)
    model.forward = lambda x, hyperedge_index: model.conv(x, hyperedge_index)
    with torch.no_grad(), Trace(model) as trace:
        y = model(single(3, C), index)
    assert 0 < trace.layers[0].energy < norm(y) ** 2
    assert trace.layers[0].num_nodes == 3


def test_hyperedges_are_no_nodes_beside_a_stated_number():
    index = torch.tensor([[0, 1, 1, 2, 0], [0, 0, 1, 1, 4]])  # five hyperedges of three nodes
    model = nn.Sequential()
    model.conv = pyg.HypergraphConv(C, C)
    model.forward = lambda x, hyperedge_index: model.conv(x, hyperedge_index)
    with torch.no_grad(), Trace(model, num_nodes=3) as trace:
        model(single(3, C), index)
    assert trace.layers[0].num_nodes == 3


def test_an_operator_is_built_once_for_all_layers_and_calls_of_one_graph(monkeypatch):
    built = []
    make = Propagation.from_edge_index.__func__
    monkeypatch.setattr(
        Propagation, "from_edge_index", classmethod(lambda cls, *a, **k: built.append(1) or make(cls, *a, **k))
    )
    edges, x = random_edges(6, 9), single(6, C)
    model = pyg.GCN(C, C, num_layers=3)
    with torch.no_grad(), Trace(model):
        for _ in range(3):
            model(x, edges.index)
    assert len(built) == 1
    edges.index.copy_(edges.index.flip(1))  # changed in place: another graph
    with torch.no_grad(), Trace(model):
        model(x, edges.index)
    assert len(built) == 2


# Different types of nodes.


def hetero_data() -> HeteroData:
    data = HeteroData()
    data["paper"].x, data["author"].x = single(5, C), single(3, C, seed=1)
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 1, 2], [0, 1, 2, 4]])
    data["paper", "by", "author"].edge_index = torch.tensor([[0, 1, 2, 4], [0, 1, 1, 2]])
    data["paper", "cites", "paper"].edge_index = random_edges(5, 6, seed=3).index
    return data


class Hetero(nn.Module):
    def __init__(self, kind):
        super().__init__()
        relations = [("author", "writes", "paper"), ("paper", "by", "author"), ("paper", "cites", "paper")]
        options = {"add_self_loops": False} if kind is pyg.GATConv else {}
        self.convs = nn.ModuleList(
            pyg.HeteroConv({r: kind((-1, -1), C, **options) for r in relations}) for _ in range(2)
        )

    def forward(self, x_dict, edge_index_dict):
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        return x_dict


@pytest.mark.parametrize("kind", [pyg.SAGEConv, pyg.GATConv, pyg.GraphConv])
def test_relations_and_node_types_have_rows_of_their_own(kind):
    data, model = hetero_data(), Hetero(kind).eval()
    model(data.x_dict, data.edge_index_dict)  # makes the lazy weights
    weights = {}

    def keep(relation):
        def hook(module, inputs, message):
            given = inputs[0].get("alpha")
            weights[relation] = given.mean(dim=1).double() if kind is pyg.GATConv else None

        return hook

    for relation, conv in model.convs[1].convs.items():
        conv.register_message_forward_hook(keep(relation))
    with torch.no_grad(), Trace(model) as trace:
        out = model(data.x_dict, data.edge_index_dict)
    rows = {row.part: row for row in trace.select("convs.1").layers}
    assert list(rows) == ["author writes paper", "paper by author", "paper cites paper", "paper", "author"]
    assert names(trace) == ["convs.0"] * 5 + ["convs.1"] * 5
    energies = {}
    for (source, name, target), index in data.edge_index_dict.items():
        stacked = out[target] if source == target else torch.cat([out[source], out[target]])
        index = index if source == target else torch.stack([index[0], index[1] + len(out[source])])
        a = counts(index, len(stacked), weights[source, name, target])
        a = means(a) if kind is pyg.SAGEConv else a
        energies[f"{source} {name} {target}"] = dense_energy(a, stacked)
    for part, expected in energies.items():
        assert rows[part].energy == pytest.approx(expected, rel=1e-5)
    assert rows["paper"].energy == pytest.approx(
        energies["author writes paper"] + energies["paper cites paper"], rel=1e-5
    )
    assert rows["author"].energy == pytest.approx(energies["paper by author"], rel=1e-5)
    assert rows["paper"].norm == pytest.approx(norm(out["paper"]), rel=1e-5)
    assert rows["paper"]["rayleigh"] == pytest.approx(rows["paper"].energy / rows["paper"].norm ** 2)
    found = diagnose(trace)
    assert found.is_decided
    assert "paper" in trace.select(part="paper").table()


def test_a_hetero_model_whose_layers_work_on_pairs_has_a_row_for_each_relation():
    data = hetero_data()
    model = pyg.to_hetero(pyg.GraphSAGE((-1, -1), C, num_layers=2), data.metadata())
    model(data.x_dict, data.edge_index_dict)
    with torch.no_grad(), Trace(model) as trace:
        model(data.x_dict, data.edge_index_dict)
    rows = [row.name for row in trace.layers]
    assert "convs.0.author__writes__paper" in rows
    assert sum("convs" in name for name in rows) == 6
    cites = trace.select(part="paper cites paper").layers
    assert [row.name for row in cites] == ["convs.0.paper__cites__paper", "convs.1.paper__cites__paper"]
    assert diagnose(trace).evidence.startswith("author writes paper, convs.0.author__writes__paper to convs.1.author__")
    assert diagnose(trace.select(part="paper cites paper")).is_decided
    with EnergyConstraint(model, layers="convs.*.*") as constraint:
        model(data.x_dict, data.edge_index_dict)
        lower = constraint.gaps()[0].detach()
    assert constraint.names() == ["convs.0", "convs.1"]
    totals = [sum(row.energy for row in trace.layers if row.name.startswith(f"convs.{k}")) for k in (0, 1)]
    assert lower.exp().tolist() == pytest.approx([0.2 * totals[0] / totals[1]], rel=1e-4)


def test_dead_node_types_and_relations_sound_the_alarm():
    data, model = hetero_data(), Hetero(pyg.SAGEConv)
    model(data.x_dict, data.edge_index_dict)
    for parameter in model.convs[1].parameters():
        nn.init.zeros_(parameter)
    dead = []
    with torch.no_grad(), Trace(model, on_collapse=lambda row: dead.append((row.name, row.part))):
        model(data.x_dict, data.edge_index_dict)
    parts = ["author writes paper", "paper by author", "paper cites paper", "paper", "author"]
    assert dead == [("convs.1", part) for part in parts]


def test_a_layer_that_serves_two_relations_is_measured_on_the_edges_of_each():
    x = {"a": single(5, C), "b": single(5, C, seed=1)}
    edges = {
        ("a", "likes", "b"): random_edges(5, 4, seed=1).index,
        ("b", "likes", "a"): random_edges(5, 9, seed=2).index,
    }
    model = nn.Sequential()
    model.conv = pyg.HeteroConv(dict.fromkeys(edges, pyg.SAGEConv(C, C)))
    model.forward = lambda x_dict, edge_index_dict: model.conv(x_dict, edge_index_dict)
    with torch.no_grad(), Trace(model) as trace:
        out = model(x, edges)
    rows = {row.part: row for row in trace.layers}
    for (source, name, target), index in edges.items():
        stacked, index = torch.cat([out[source], out[target]]), torch.stack([index[0], index[1] + 5])
        expected = dense_energy(means(counts(index, 10)), stacked)
        assert rows[f"{source} {name} {target}"].energy == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", [pyg.HGTConv, pyg.HANConv])
@pytest.mark.parametrize("training", [False, True])
def test_a_layer_that_takes_all_relations_at_once_has_rows_by_the_attention_of_each(kind, training):
    data, options = hetero_data(), {"dropout": 0.5} if kind is pyg.HANConv else {}
    model = nn.Sequential()
    model.conv = kind(-1, C, data.metadata(), heads=2, **options)
    model.forward = lambda x_dict, edge_index_dict: model.conv(x_dict, edge_index_dict)
    model(data.x_dict, data.edge_index_dict)
    logits = []

    def keep(module, inputs, message):
        given = inputs[0]
        if kind is pyg.HGTConv:
            logits.append((given["q_i"] * given["k_j"]).sum(dim=-1) * given["edge_attr"] / 2**0.5)
        else:
            logits.append(nn.functional.leaky_relu(given["alpha_i"] + given["alpha_j"], 0.2))

    model.train(training).conv.register_message_forward_hook(keep)
    data["paper"].x[2] = 0  # what is weighed, and tells nothing of its weight
    torch.manual_seed(1)
    with torch.no_grad(), Trace(model) as trace:
        out = model(data.x_dict, data.edge_index_dict)
    torch.manual_seed(1)
    with torch.no_grad():
        assert all(x.equal(out[key]) for key, x in model(data.x_dict, data.edge_index_dict).items())
    edges, sizes = data.edge_index_dict, {"paper": 5, "author": 3}
    if kind is pyg.HGTConv:  # a softmax over all relations that lead to a node
        targets = torch.cat(
            [index + torch.tensor([[0], [5 * (key[2] == "author")]]) for key, index in edges.items()], 1
        )
        alphas = softmax_by_target(logits[0], targets).split([index.size(1) for index in edges.values()])
    else:
        alphas = [softmax_by_target(each, index) for each, index in zip(logits, edges.values(), strict=False)]
    rows = {row.part: row for row in trace.layers}
    assert list(rows)[-2:] == list(out)
    for (source, name, target), alpha in zip(edges, alphas, strict=True):
        row, index = rows[f"{source} {name} {target}"], edges[source, name, target]
        stacked = out[target] if source == target else torch.cat([out[source], out[target]])
        index = index if source == target else torch.stack([index[0], index[1] + sizes[source]])
        assert row.energy == pytest.approx(dense_energy(counts(index, len(stacked), alpha), stacked), rel=1e-5)
        assert row.operator == "attention"


def test_a_hetero_model_is_held_by_the_sum_of_its_relations():
    data, model = hetero_data(), Hetero(pyg.SAGEConv)
    model(data.x_dict, data.edge_index_dict)
    with EnergyConstraint(model, layers="convs.*") as constraint:
        model(data.x_dict, data.edge_index_dict)
        constraint().backward()
    with torch.no_grad(), Trace(model) as trace:
        model(data.x_dict, data.edge_index_dict)
    totals = [sum(row.energy for row in trace.select(f"convs.{k}").layers if " " in row.part) for k in (0, 1)]
    lower = constraint.gaps()[0].detach()
    assert lower.exp().tolist() == pytest.approx([0.2 * totals[0] / totals[1]], rel=1e-4)
    assert all(p.grad is not None for p in model.convs[1].parameters())


# The constraint measures what the trace does.


@pytest.mark.parametrize("network", [pyg.GCN, pyg.GraphSAGE, pyg.GAT, pyg.GIN, partial(pyg.GCN, add_self_loops=False)])
def test_limits_of_a_constraint_are_those_of_the_trace_on_every_batch(network):
    data = [graph_data(n, k) for k, n in enumerate([4, 9, 6, 5])]
    model = network(C, C, num_layers=3).eval()
    with EnergyConstraint(model, c_min=0.5, layers="convs.*") as constraint, Trace(model, watch="convs.*") as trace:
        for batch in DataLoader(data, batch_size=2):
            model(batch.x, batch.edge_index)
            constraint().backward()
            found = limits(trace, 0.5, 1.0).layers
            lower = [layer.lower / layer.energy for layer in found]
            assert constraint.gaps()[0, -2:].detach().exp().tolist() == pytest.approx(lower, rel=1e-3)
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


# What is said where something does not fit.


@pytest.mark.parametrize("watch", [Trace, EnergyConstraint])
def test_a_fixed_graph_that_is_not_that_of_the_call_warns_once(watch):
    data = [graph_data(5, k) for k in range(3)]
    model = pyg.GCN(C, C, num_layers=2)
    with hearing() as said, watch(model, data[0].edge_index):
        for each in data:
            model(each.x, each.edge_index)
    (sentence,) = said
    assert sentence.startswith("GCN is called with another graph than the fixed one, which has 5 nodes and ")
    assert sentence.endswith("leave out the graph to measure each call on its own.")
    with watch(model, data[0].edge_index):  # the same graph in another order
        model(data[0].x, data[0].edge_index.flip(1))


def test_a_layer_whose_features_do_not_fit_warns_once_by_its_name():
    model = pyg.GCN(C, C, num_layers=2)
    graph = random_edges(5, 9)
    with hearing() as said, Trace(model, graph.graph(), watch="convs.1") as trace:
        for n in (5, 7, 7):
            model(single(n, C), graph.index if n == 5 else random_edges(7, 9).index)
    no_row, another, by_name = said
    assert no_row == "A call of GCN gave no row: no output fits its graph."
    assert another.startswith("GCN is called with another graph")
    assert by_name == (
        "convs.1 has no row in some calls: its output is not node features of the graph of 5 nodes; it returned [7, 4]."
    )
    assert len(trace.layers) == 1


def test_a_module_that_had_a_row_and_has_none_warns():
    model = Plain()
    with hearing() as said, Trace(model, path3().graph(), watch="first"):
        model(single(3, 2))
        model(single(4, 2))
    assert [sentence.partition(":")[0] for sentence in said] == [
        "A call of Plain gave no row",
        "first has no row in some calls",
    ]


def test_a_module_before_any_graph_is_seen_warns():
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.conv = nn.Linear(2, C), pyg.GCNConv(C, C)

        def forward(self, x):
            return self.conv(self.encoder(x), path3().index)

    model = Late()
    with hearing() as said, Trace(model) as trace:
        model(single(3, 2))
    (sentence,) = said
    assert sentence.startswith("encoder has no row: it is called before any graph is seen")
    assert names(trace) == ["conv"]


def test_two_tensors_that_can_be_edges_warn():
    class Nameless(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(2, C)

        def forward(self, x, a, b):
            return self.first(x)

    with pytest.warns(UserWarning, match="two tensors that can be edges, and neither is called edge_index"):
        Trace.of(model := Nameless(), None, (single(3, 2), path3().index, path3().index.flip(1)))
    assert model.training


def test_weights_that_make_no_graph_are_said_by_the_layers_name():
    model = pyg.GraphConv(C, C)
    net = pyg.Sequential("x, edge_index, edge_weight", [(model, "x, edge_index, edge_weight -> x")])
    with hearing() as said, Trace(net):
        net(single(3, C), path3().index, torch.tensor([1.0, 1.0, -1.0, -1.0]))
    assert said[0].startswith("The trace recorded nothing")
    assert said[1].startswith(
        "module_0 has no row in some calls: the weight of an edge is -1.0; expected finite ones, not"
    )


def test_a_constraint_that_was_called_in_vain_says_so():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with EnergyConstraint(model, path3().graph()) as constraint:
        model(single(5, 2))
        with pytest.raises(GraphjouleError, match="last call of the model has no energies"):
            constraint()


def test_a_batch_that_cannot_be_told_apart_warns_once():
    model = pyg.GCN(C, C, num_layers=2)
    with hearing() as said, Trace(model, by_graph=True) as trace:
        for _ in range(2):
            model(single(6, C), random_edges(6, 9).index)
    assert [sentence.partition(" for the 6 nodes")[0] for sentence in said] == ["GCN is called without a batch vector"]
    assert {row.part for row in trace.layers} == {None}


def test_a_model_whose_encode_is_called_has_a_call_for_each():
    """As in the loops for links: the module itself is never called, its layers are."""

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList(pyg.SAGEConv(C, C) for _ in range(3))

        def encode(self, x, edge_index):
            for conv in self.convs:
                x = conv(x, edge_index).relu()
            return x

    model, x = Encoder(), single(6, C)
    with EnergyConstraint(model, layers="convs.*") as constraint, Trace(model) as trace:
        for k in range(3):
            model.encode(x, random_edges(6, 9, seed=k).index).sum().backward()
            assert constraint.names() == ["input of convs.0", "convs.0", "convs.1", "convs.2"]
    assert [(row.name, row.call) for row in trace.layers] == [(f"convs.{j}", k) for k in range(3) for j in range(3)]


def test_layers_that_two_models_share_are_told_apart_by_who_calls_them():
    first, other = Encoder(), Encoder()
    other.lin, other.conv = first.lin, first.conv
    data = [graph_data(6, k) for k in range(2)]
    with hearing() as said, EnergyConstraint(first) as constraint, Trace(first) as trace:
        for _ in range(2):
            first(data[0].x, data[0].edge_index)
            held = constraint.names(), constraint.gaps().tolist()
            other(data[1].x, data[1].edge_index)
            assert (constraint.names(), constraint.gaps().tolist()) == held
    assert [(row.name, row.call) for row in trace.layers] == [
        (name, call) for k in (0, 2) for name, call in (("lin", k), ("conv", k), ("conv", k + 1))
    ]
    out = first(data[1].x, data[1].edge_index)
    weights = means(counts(data[1].edge_index, 6))
    assert trace.select("conv", call=1).layers[0].energy == pytest.approx(dense_energy(weights, out), rel=1e-5)
    assert [sentence.partition(":")[0] for sentence in said] == [
        "'lin' is called outside of Encoder, which was called before, as by another model that has it too; the "
        "constraint holds the calls of the whole model. Make one for the part that is called.",
        "lin has no row",
    ]


def test_what_comes_before_the_layers_of_a_part_is_not_measured_on_the_graph_of_the_call_before():
    """Where a loop calls `encode`, only its layers show the graph."""

    class Encode(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.conv, self.last = nn.Linear(C, C), pyg.SAGEConv(C, C), nn.Linear(C, C)

        def encode(self, x, edge_index):
            return self.last(self.conv(self.first(x), edge_index))

    model = Encode()
    with hearing() as said, Trace(model) as trace:
        for k in range(3):
            model.encode(single(6, C), random_edges(6, 9, seed=k).index)
    assert [(row.name, row.call) for row in trace.layers] == [(n, k) for k in range(3) for n in ("conv", "last")]
    assert [sentence.partition(":")[0] for sentence in said] == ["first has no row"]


def test_a_call_without_a_row_warns_also_if_it_is_the_first_but_not_if_it_ended_in_an_error():
    model = Plain()
    with hearing() as said, Trace(model, path3().graph()):
        model(single(4, 2))
        model(single(3, 2))
    assert "A call of Plain gave no row: no output fits its graph." in said
    with Trace(model, path3().graph()):
        model(single(3, 2))
        with pytest.raises(RuntimeError):
            model(single(3, 5))


def test_a_layer_by_itself_has_a_row_in_each_so_many_th_call():
    model, data = pyg.GCNConv(C, C), [graph_data(6, k) for k in range(5)]
    with Trace(model, every=2, on_collapse="stop") as trace:
        outputs = [model(each.x, each.edge_index) for each in data]
    assert [row.call for row in trace.layers] == [0, 2, 4]
    for row in trace.layers:
        expected = symmetric(model, data[row.call].x, data[row.call].edge_index, outputs[row.call])
        assert row.energy == pytest.approx(expected, rel=1e-5)


def test_a_directed_graph_of_a_call_counts_in_both_directions():
    one_way = Edges(torch.tensor([[0, 1], [1, 2]]), None, 3)
    model, x = pyg.GCN(C, C, num_layers=1), single(3, C)
    with torch.no_grad(), Trace(model, watch="convs.*") as trace:
        out = model(x, one_way.index)
    assert trace.layers[0].energy == pytest.approx(float(dirichlet_energy(out, path3().graph())), rel=1e-5)
    with (
        pytest.raises(
            GraphjouleError, match=r"Propagation.from_edge_index\(..., symmetrize=True\) lets each edge count"
        ),
        Trace(model, one_way.index),
    ):
        model(x, one_way.index)


def test_a_closed_trace_keeps_no_operator_alive():
    model, x = pyg.GCN(4, 4, 2), torch.randn(6, 4)
    with Trace(model) as trace:
        index = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
        model(x, index)
        operator = weakref.ref(next(iter(trace._graphs._kept.values()))[1])
    gc.collect()
    assert operator() is not None  # which the same graph needs when the trace is entered again
    del index
    gc.collect()
    assert operator() is None
    assert len(trace.layers) == len(trace.select().layers) > 0
    with trace:
        model(x, torch.tensor([[0, 1], [1, 0]]))
