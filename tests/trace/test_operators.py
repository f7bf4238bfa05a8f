"""Energies by the layer's own operator, held against dense ones made edge by edge from the tensors of the call."""

import warnings
from functools import partial

import pytest
import torch
import torch_geometric.nn as pyg
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from graphjoule.errors import GraphjouleError
from graphjoule.terms import EnergyConstraint
from graphjoule.trace import Trace, graphs
from graphjoule.trace.graphs import GraphReader
from graphjoule.trace.operators import (
    attention_weights,
    operator_of,
    operators_in,
    pair_operator,
    passes_messages,
    square_operator,
    weighted_operator,
)
from tests.graphs import Edges, dense_propagation, edge_lists, path3, random_edges

from . import energy, single

C = 4  # channels

# The dense truth.


def dense_energy(weights: Tensor, x: Tensor) -> float:
    """1/2 sum w_ij ||x_i - x_j||^2, one pair at a time; rows of the weights are targets."""
    x = x.detach().double().flatten(1)
    return float(sum(w * (x[i] - x[j]).square().sum() for i, row in enumerate(weights) for j, w in enumerate(row)) / 2)


def counts(index: Tensor, num_nodes: int, weight: Tensor | None = None) -> Tensor:
    """a_ij for the edges j -> i, duplicates added up."""
    a = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    for k, (source, target) in enumerate(index.t().tolist()):
        a[target, source] += 1 if weight is None else weight[k].double()
    return a


def means(a: Tensor) -> Tensor:
    return a / a.sum(dim=1, keepdim=True).clamp(min=1e-300)


def symmetric(layer, x, index, out, weight=None, fill=1.0):
    a = counts(index, len(x), weight)
    p = dense_propagation((a - a.diag().diag()) / fill)
    h = out.detach().double().flatten(1)
    return float(torch.trace(h.t() @ (h - p @ h)))


def loopless(layer, x, index, out):
    """The edges that the layer passes messages along: without loops of its own, and for ChebConv without any."""
    a = counts(index, len(x))
    degree = (a - a.diag().diag() if isinstance(layer, pyg.ChebConv) else a).sum(dim=1)
    h = out.detach().double() * torch.where(degree > 0, degree.rsqrt(), 0)[:, None]
    return dense_energy(a, h)


def random_walk(layer, x, index, out):
    return dense_energy(means(counts(index, len(x))), out)


def adjacency_sum(layer, x, index, out, weight=None):
    return dense_energy(counts(index, len(x), weight), out)


def returned_attention(layer, x, index, out):
    _, (index, alpha) = layer(x, index, return_attention_weights=True)
    return dense_energy(counts(index, len(x), alpha.detach().mean(dim=1)), out)


def with_loops(index, num_nodes):
    loops = torch.arange(num_nodes)
    return torch.cat([index[:, index[0] != index[1]], torch.stack([loops, loops])], dim=1)


def walk_with_loops(layer, x, index, out):
    return dense_energy(means(counts(with_loops(index, len(x)), len(x))), out)


def walk_with_more_loops(layer, x, index, out):
    return dense_energy(means(counts(index, len(x)) + torch.eye(len(x))), out)


def agnn_attention(layer, x, index, out):
    index = with_loops(index, len(x))
    unit = nn.functional.normalize(x, dim=-1)
    logits = (layer.beta * (unit[index[0]] * unit[index[1]]).sum(dim=-1)).exp().detach()
    return dense_energy(means(counts(index, len(x), logits)), out)


def supergat_attention(layer, x, index, out):
    index = with_loops(index, len(x))
    h = layer.lin(x).view(-1, layer.heads, C)
    alpha = layer.get_attention(index[1], h[index[1]], h[index[0]], num_nodes=len(x))
    return dense_energy(counts(index, len(x), alpha.detach().mean(dim=1)), out)


def mlp(size: int = 2 * C, out: int = C) -> nn.Module:
    return nn.Sequential(nn.Linear(size, out), nn.Tanh())


# Layers that are called with more than features and edges. What they are called with follows from those.


def kinds(index: Tensor) -> Tensor:
    return index.sum(dim=0) % 2


def edge_features(x: Tensor, index: Tensor) -> Tensor:
    return torch.tanh(x[index[0], :2] - x[index[1], :2])


def on_kinds(layer, x, index):
    return layer(x, index, kinds(index))


def on_edge_features(layer, x, index):
    return layer(x, index, edge_features(x, index))


def on_first(layer, x, index):
    return layer(x, 2 * x, index)


def on_points(layer, x, index):
    return layer(x, x[:, :3], index)


def on_layers(layer, x, index):
    return layer(torch.stack([x, 2 * x, 3 * x], dim=1), index)


def on_signs(layer, x, index):
    return layer(x, index[:, kinds(index) == 0], index[:, kinds(index) == 1])


def on_types(layer, x, index):
    return layer(x, index, torch.arange(len(x)) % 2, kinds(index), edge_features(x, index))


def walk_by_kind(layer, x, index, out):
    each = [means(counts(index[:, kinds(index) == kind], len(x))) for kind in (0, 1)]
    return dense_energy(each[0] + each[1], out)


def softmax_by_target(logits: Tensor, index: Tensor) -> Tensor:
    """The mean over heads of ``exp(logit) / sum exp(logit)``, one target at a time."""
    alpha = torch.zeros_like(logits)
    for target in index[1].unique():
        alpha[index[1] == target] = logits[index[1] == target].softmax(dim=0)
    return alpha.detach().mean(dim=1)


def attention_with(extra):
    def truth(layer, x, index, out):
        _, (index, alpha) = layer(x, index, extra(x, index), return_attention_weights=True)
        return dense_energy(counts(index, len(x), alpha.detach().mean(dim=1)), out)

    return truth


def general_attention(layer, x, index, out):
    message = (layer.lin_msg(x[index[0]]) + layer.lin_edge(edge_features(x, index))).view(-1, layer.heads, C)
    logits = nn.functional.leaky_relu((message * layer.att_msg).sum(dim=-1), 0.2)
    return dense_energy(counts(index, len(x), softmax_by_target(logits, index)), out)


def heat_attention(layer, x, index, out):
    leaky, h = partial(nn.functional.leaky_relu, negative_slope=0.2), layer.hetero_lin(x, torch.arange(len(x)) % 2)
    edges = leaky(layer.edge_type_emb(kinds(index))), leaky(layer.edge_attr_emb(edge_features(x, index)))
    logits = leaky(layer.att(torch.cat([h[index[1]], h[index[0]], *edges], dim=-1)))
    return dense_energy(counts(index, len(x), softmax_by_target(logits, index)), out)


def pair_energy(weights: Tensor, y: Tensor) -> float:
    """1/2 sum w_ij ||y_i - m_j||^2, m_j the mean of what source j leads to by these weights; rows are targets."""
    y = y.detach().double()
    m = means(weights.t()) @ y
    return float(sum(w * (y[i] - m[j]).square().sum() for i, row in enumerate(weights) for j, w in enumerate(row)) / 2)


def shared_hyperedges(layer, x, index, out):
    return pair_energy(means(counts(index, len(x)).t()), out)


PNA = {"aggregators": ["mean", "max"], "scalers": ["identity"], "deg": torch.tensor([1, 2, 1])}
ZOO = {
    "GCNConv": (partial(pyg.GCNConv, C, C), symmetric),
    "GCNConv improved": (partial(pyg.GCNConv, C, C, improved=True), symmetric),  # it changes nothing without weights
    "GCNConv without loops": (partial(pyg.GCNConv, C, C, add_self_loops=False), loopless),
    "SGConv": (partial(pyg.SGConv, C, C, K=2), symmetric),
    "SSGConv": (partial(pyg.SSGConv, C, C, alpha=0.1, K=2), symmetric),
    "TAGConv": (partial(pyg.TAGConv, C, C, K=2), loopless),
    "APPNP": (partial(pyg.APPNP, K=2, alpha=0.1), symmetric),
    "ARMAConv": (partial(pyg.ARMAConv, C, C), loopless),
    "ChebConv": (partial(pyg.ChebConv, C, C, K=2), loopless),
    "LGConv": (pyg.LGConv, loopless),
    "SAGEConv": (partial(pyg.SAGEConv, C, C), random_walk),
    "ClusterGCNConv": (partial(pyg.ClusterGCNConv, C, C), walk_with_loops),
    "SAGEConv max": (partial(pyg.SAGEConv, C, C, aggr="max"), random_walk),
    "EdgeConv": (lambda: pyg.EdgeConv(mlp()), random_walk),
    "GENConv": (partial(pyg.GENConv, C, C), random_walk),
    "FiLMConv": (partial(pyg.FiLMConv, C, C), random_walk),
    "PNAConv": (partial(pyg.PNAConv, C, C, **PNA), random_walk),
    "GATConv": (partial(pyg.GATConv, C, C, heads=2), returned_attention),
    "GATv2Conv": (partial(pyg.GATv2Conv, C, C, heads=2, concat=False), returned_attention),
    "TransformerConv": (partial(pyg.TransformerConv, C, C, heads=2, concat=False), returned_attention),
    "AGNNConv": (pyg.AGNNConv, agnn_attention),
    "SuperGATConv": (partial(pyg.SuperGATConv, C, C, heads=2, concat=False), supergat_attention),
    "GINConv": (lambda: pyg.GINConv(nn.Linear(C, C)), adjacency_sum),
    "GraphConv": (partial(pyg.GraphConv, C, C), adjacency_sum),
    "GatedGraphConv": (partial(pyg.GatedGraphConv, C, 2), adjacency_sum),
    "ResGatedGraphConv": (partial(pyg.ResGatedGraphConv, C, C), adjacency_sum),
    "CGConv": (partial(pyg.CGConv, C), adjacency_sum),
    "LEConv": (partial(pyg.LEConv, C, C), adjacency_sum),
    # Further ones, some with the call that they need.
    "SimpleConv": (pyg.SimpleConv, adjacency_sum),
    "SimpleConv mean": (partial(pyg.SimpleConv, aggr="mean", combine_root="self_loop"), walk_with_more_loops),
    "MFConv": (partial(pyg.MFConv, C, C), adjacency_sum),
    "FeaStConv": (partial(pyg.FeaStConv, C, C, heads=2), walk_with_loops),
    "WLConvContinuous": (pyg.WLConvContinuous, random_walk),
    "MixHopConv": (partial(pyg.MixHopConv, C, C), symmetric),
    "EGConv": (partial(pyg.EGConv, C, C, num_heads=2), symmetric),
    "EGConv without loops": (partial(pyg.EGConv, C, C, num_heads=2, add_self_loops=False), loopless),
    "EGConv of two": (partial(pyg.EGConv, C, C, ["symnorm", "max"], num_heads=2), walk_with_loops),
    "EGConv sum": (partial(pyg.EGConv, C, C, ["sum"], num_heads=2, add_self_loops=False), adjacency_sum),
    "HypergraphConv": (partial(pyg.HypergraphConv, C, C), shared_hyperedges),
    "GPSConv": (lambda: pyg.GPSConv(C, pyg.GINConv(nn.Linear(C, C)), heads=2), adjacency_sum),
    "AntiSymmetricConv": (partial(pyg.AntiSymmetricConv, C), symmetric),
    "GCN2Conv": (partial(pyg.GCN2Conv, C, 0.1), symmetric, on_first),
    "FAConv": (partial(pyg.FAConv, C), symmetric, on_first),
    "DNAConv": (partial(pyg.DNAConv, C, heads=2), symmetric, on_layers),
    "SignedConv": (partial(pyg.SignedConv, C, C, True), walk_by_kind, on_signs),
    "RGCNConv": (partial(pyg.RGCNConv, C, C, 2), walk_by_kind, on_kinds),
    "FastRGCNConv": (partial(pyg.FastRGCNConv, C, C, 2), walk_by_kind, on_kinds),
    "RGATConv": (partial(pyg.RGATConv, C, C, 2, heads=2), attention_with(lambda x, i: kinds(i)), on_kinds),
    "GATConv of edges": (partial(pyg.GATConv, C, C, edge_dim=2), attention_with(edge_features), on_edge_features),
    "GeneralConv": (partial(pyg.GeneralConv, C, C, 2), adjacency_sum, on_edge_features),
    "GeneralConv attention": (
        partial(pyg.GeneralConv, C, C, 2, heads=2, attention=True),
        general_attention,
        on_edge_features,
    ),
    "HEATConv": (partial(pyg.HEATConv, C, C, 2, 2, 3, 2, 3, heads=2), heat_attention, on_types),
    "NNConv": (lambda: pyg.NNConv(C, C, nn.Linear(2, C * C)), adjacency_sum, on_edge_features),
    "GMMConv": (partial(pyg.GMMConv, C, C, 2, 2), random_walk, on_edge_features),
    "GINEConv": (lambda: pyg.GINEConv(nn.Linear(C, C), edge_dim=2), adjacency_sum, on_edge_features),
    "PointNetConv": (lambda: pyg.PointNetConv(mlp(C + 3)), walk_with_loops, on_points),
    "PointGNNConv": (lambda: pyg.PointGNNConv(mlp(C, 3), mlp(C + 3), mlp(C)), random_walk, on_points),
}


class Net(nn.Module):
    """A PyG layer between two linear ones."""

    def __init__(self, layer: nn.Module, call=None):
        super().__init__()
        self.encoder, self.conv, self.call = nn.Linear(3, C), layer, call or (lambda layer, x, index: layer(x, index))

    def forward(self, x, edge_index, batch=None):
        return self.call(self.conv, self.encoder(x), edge_index)


def joined(graphs: list[Edges]) -> tuple[Tensor, int]:
    """The edges of a batch, and its number of nodes."""
    offsets = torch.tensor([0, *(g.num_nodes for g in graphs)]).cumsum(0)
    return torch.cat([g.index + o for g, o in zip(graphs, offsets, strict=False)], dim=1), int(offsets[-1])


def check_zoo(name: str, batches: list[list[Edges]]) -> None:
    make, truth, *call = ZOO[name]
    torch.manual_seed(0)
    model = Net(make(), *call).eval()
    encoded = []
    model.encoder.register_forward_hook(lambda module, args, output: encoded.append(output))
    calls = []
    with torch.no_grad(), Trace(model) as trace:
        for k, graphs in enumerate(batches):
            index, num_nodes = joined(graphs)
            out = model(single(num_nodes, 3, seed=k), index)
            calls.append((encoded[-1], index, out))
        rows = trace.select("conv").layers
        assert len(rows) == len(batches)  # no call without its row
        for row, (x, index, out) in zip(rows, calls, strict=True):
            expected = truth(model.conv, x, index, out)
            assert row.energy == pytest.approx(expected, rel=1e-5, abs=1e-9 * (1 + row.norm**2)), name
            assert row.num_nodes == len(x)
            assert row.operator == operator_of(next(filter(passes_messages, model.conv.modules())))


batches = st.lists(st.lists(edge_lists(weighted=False), min_size=1, max_size=3), min_size=2, max_size=3)


@pytest.mark.parametrize("name", ZOO)
@example([[random_edges(5, 7, seed=k), random_edges(4, 5, seed=k + 9)] for k in range(2)])  # of equal size
@settings(deadline=None, max_examples=1)
@given(batches)
def test_a_layer_of_pyg_is_measured_by_its_own_operator_on_the_graph_of_each_call(name, batches):
    check_zoo(name, batches)


@pytest.mark.filterwarnings("ignore:There are as many edges as nodes")  # such graphs are among the drawn ones
@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
@settings(deadline=None, max_examples=30)
@given(batches)
def test_the_zoo_over_many_batches(name, batches):
    check_zoo(name, batches)


# Layers of one's own, whose messages are weighted by what only they say.


class Own(pyg.MessagePassing):
    """A sum of features times a number for each edge, as PyG's tutorial writes a GCN."""

    def __init__(self, norm, flow="source_to_target"):
        super().__init__(aggr="add", flow=flow)
        self.norm, self.linear = norm, nn.Linear(C, C, bias=False)

    def forward(self, x, edge_index, edge_weight=None):
        edge_index, norm = self.norm(edge_index, edge_weight, len(x))
        return self.propagate(edge_index, x=self.linear(x), norm=norm)

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j


class Scaled(pyg.MessagePassing):
    """GCN's sum with the degrees in the message."""

    def __init__(self):
        super().__init__(aggr="add")
        self.linear = nn.Linear(C, C, bias=False)

    def forward(self, x, edge_index):
        edge_index = with_loops(edge_index, len(x))
        deg = counts(edge_index, len(x)).sum(dim=1, keepdim=True).float()
        return self.propagate(edge_index, x=self.linear(x), deg=deg)

    def message(self, x_j, deg_i, deg_j):
        return x_j * (deg_i * deg_j).rsqrt()


class Bent(Own):
    """Messages that are no multiples of features."""

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j.tanh()


class Around(pyg.MessagePassing):
    """A plain sum of features that are divided by powers of the degree before and after it."""

    def __init__(self, first=0.5, last=0.5, where="before", loops=True):
        super().__init__(aggr="add")
        self.first, self.last, self.where, self.loops = first, last, where, loops
        self.linear, self.bias = nn.Linear(C, C, bias=False), nn.Parameter(single(1, C, seed=7)[0])

    def forward(self, x, edge_index):
        edge_index = with_loops(edge_index, len(x)) if self.loops else edge_index
        degree = counts(edge_index, len(x)).sum(dim=1, keepdim=True).float()
        if self.where == "before":
            x = self.linear(x)
        elif self.where == "unseen":
            x = x @ self.linear.weight
        x = degree**-self.last * self.propagate(edge_index, x=degree**-self.first * x)
        return (self.linear(x) if self.where == "after" else x) + self.bias


class AroundStated(Around):
    """The same with its messages spelt out."""

    def message(self, x_j):
        return x_j


class Further(Around):
    """What sums may become beside a product with a number for each node."""

    def forward(self, x, edge_index):
        return self.linear(x + self.propagate(edge_index, x=x)).relu() + nn.functional.normalize(x)


def gcn_weights(index, weight, num_nodes, *, add_self_loops=True):
    return gcn_norm(index, weight, num_nodes, add_self_loops=add_self_loops)


def mean_weights(index, weight, num_nodes):
    return index, means(counts(index, num_nodes))[index[1], index[0]].float()


def source_weights(index, weight, num_nodes):
    return index, (1 / counts(index, num_nodes).sum(dim=0)).float()[index[0]]


def uneven_weights(index, weight, num_nodes):
    return index, (1 + index.sum(dim=0)).float()


def normalised(layer, x, out, index, weight):
    """tr(H^T (I - P) H) for weights that are P."""
    h, p = out.detach().double(), counts(index, len(x), weight)
    return float(torch.trace(h.t() @ (h - p @ h)))


def summed(layer, x, out, index, weight):
    return dense_energy(counts(index, len(x), weight), out)


OWN = {
    "gcn": (gcn_weights, False, "symmetric", normalised),
    "gcn of weighted edges": (gcn_weights, True, "symmetric", normalised),
    "gcn without loops": (partial(gcn_weights, add_self_loops=False), False, "loopless", normalised),
    "weighted without loops": (partial(gcn_weights, add_self_loops=False), True, "loopless", normalised),
    "mean": (mean_weights, False, "random_walk", summed),
    "any": (uneven_weights, False, "sum", summed),
}


def triangles(num_nodes: int = 8) -> Tensor:
    """A connected graph with degrees of 2 to 4 and odd cycles, both directions, each edge once."""
    pairs = {(i, i + k) for i in range(num_nodes) for k in (1, 2) if i + k < num_nodes}
    edges = torch.tensor(sorted(pairs)).t()
    return torch.cat([edges, edges.flip(0)], dim=1)


def called(model, *given, **options):
    with torch.no_grad(), Trace(model, **options) as trace:
        out = model(*given)
    return trace.layers, out


@pytest.mark.parametrize(("name", "flow"), [*((name, "source_to_target") for name in OWN), ("gcn", "target_to_source")])
def test_a_layer_of_ones_own_is_measured_by_what_it_multiplies_messages_by(name, flow):
    norm, is_weighted, operator, truth = OWN[name]
    index, x = triangles(), single(8, C)
    weight = 1 + index.sum(dim=0).float() % 3 if is_weighted else None
    layer = Own(norm, flow)
    rows, out = called(pyg.Sequential("x, e, w", [(layer, "x, e, w -> x")]), x, index, weight, watch=Own)
    edges, weights = norm(index, weight, 8)
    edges = edges.flip(0) if flow == "target_to_source" else edges
    assert rows[0].operator == operator
    assert rows[0].energy == pytest.approx(truth(layer, x, out, edges, weights), rel=1e-4)
    if operator in ("symmetric", "loopless"):
        assert rows[0]["rayleigh"] == pytest.approx(rows[0].energy / rows[0].norm ** 2)


def test_weights_that_were_normalised_before_the_layer_are_not_normalised_again():
    index, x = triangles(), single(8, C)
    given = gcn_norm(index, None, 8)
    model = pyg.Sequential("x, e, w", [(pyg.GCNConv(C, C, bias=False, normalize=False), "x, e, w -> x")] * 2)
    for operator in (None, "symmetric"):
        rows, out = called(model, x, *given, operator=operator)
        assert {row.operator for row in rows} == {"symmetric"}
        assert rows[-1].energy == pytest.approx(normalised(None, x, out, *given), rel=1e-4)


class Spmm(torch.nn.Module):
    """A layer as it is written without PyG."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(C) + 0.1 * single(C, C))

    def forward(self, x, adj):
        return torch.sparse.mm(adj, x @ self.weight)


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = torch.nn.ModuleList([Spmm(), Spmm()])

    def forward(self, x, adj):
        for conv in self.convs:
            x = conv(x, adj).tanh()
        return x


@pytest.mark.parametrize("layout", ["to_sparse_csr", "to_sparse_coo"])
@pytest.mark.parametrize(("kind", "operator"), [("gcn", "symmetric"), ("mean", "random_walk"), ("none", "symmetric")])
@pytest.mark.filterwarnings("ignore:Sparse (CSR|invariant)")
def test_a_layer_of_plain_torch_on_a_normalised_matrix_is_measured_by_it(kind, operator, layout):
    index, x = triangles(), single(8, C)
    adjacency = torch.zeros(8, 8)
    adjacency[index[0], index[1]] = 1
    looped = adjacency + torch.eye(8)
    degree = looped.sum(1, keepdim=True)
    matrix = {"gcn": looped / (degree * degree.T).sqrt(), "mean": looped / degree, "none": adjacency}[kind]
    model = Plain()
    rows, _ = called(model, x, getattr(matrix, layout)())
    assert {row.operator for row in rows} == {operator}
    out = model.convs[0](x, matrix).detach().double()
    p = looped.double() / (degree * degree.T).double().sqrt()
    truth = out.T @ (torch.eye(8) - p) @ out if operator == "symmetric" else None
    differences = (out[:, None] - out).square().sum(-1)
    energy = float((matrix * differences).sum() / 2) if truth is None else float(truth.trace())
    assert rows[0].energy == pytest.approx(energy, rel=1e-4)


def test_weights_that_stay_the_same_tensors_are_looked_at_once(monkeypatch):
    """On a GPU a look waits for the device, which the capture of a CUDA graph does not allow."""
    index, x = triangles(), single(8, C)
    given, looks = gcn_norm(index, None, 8), []
    model = pyg.Sequential("x, e, w", [(pyg.GCNConv(C, C, normalize=False), "x, e, w -> x")] * 3)
    monkeypatch.setattr(graphs, "weighted_operator", lambda *args: looks.append(1) or weighted_operator(*args))
    read = GraphReader._of_weights
    monkeypatch.setattr(GraphReader, "_of_weights", lambda *args: looks.append(2) or read(*args))
    with torch.no_grad(), Trace(model):
        for _ in range(3):
            model(x, *given)
    assert sorted(looks) == [1, 2]


def test_degrees_inside_of_the_message_are_read_from_it():
    index, x = triangles(), single(8, C)
    layer = Scaled()
    rows, out = called(layer, x, index)
    assert rows[0].operator == "symmetric"
    assert rows[0].energy == pytest.approx(symmetric(layer, x, index, out), rel=1e-4)


@pytest.mark.parametrize("kind", [Around, AroundStated])
@pytest.mark.parametrize("where", ["before", "after", "nowhere"])
@pytest.mark.parametrize(
    ("powers", "loops", "operator"),
    [
        ((0.5, 0.5), True, "symmetric"),
        ((0.5, 0.5), False, "loopless"),
        ((0, 1), False, "random_walk"),
        ((0.5, 0), False, "sum"),
        ((0, 0), False, "sum"),
    ],
)
def test_degrees_before_and_after_a_plain_sum_are_read(kind, where, powers, loops, operator):
    index, x, (first, last) = triangles(), single(8, C), powers
    layer = kind(first, last, where, loops)
    rows, out = called(pyg.Sequential("x, e", [(layer, "x, e -> x")] * 2), x, index, watch=kind)
    edges = with_loops(index, 8) if loops else index
    degree = counts(edges, 8).sum(dim=1)
    weight = degree[edges[1]] ** -last * degree[edges[0]] ** -first
    truth = normalised if operator in ("symmetric", "loopless") else summed
    assert [row.operator for row in rows] == [operator] * 2
    assert rows[1].energy == pytest.approx(truth(layer, x, out, edges, weight), rel=1e-4)


def test_other_numbers_beside_a_plain_sum_do_not_matter():
    class Ranked(Around):
        def forward(self, x, edge_index):
            out = super().forward(x, edge_index)
            return out, out.argsort(dim=1)

    model = pyg.Sequential("x, e", [(Ranked(), "x, e -> x, order")])
    with torch.no_grad(), Trace(model, watch=["*"]) as trace:
        model(single(8, C), triangles())
    assert trace.layers[0].operator == "symmetric"


def test_layers_with_the_same_degrees_around_their_sums_share_one_operator_for_a_constraint():
    index, model = triangles(), pyg.Sequential("x, e", [(Around(), "x, e -> x") for _ in range(3)])
    constraint = EnergyConstraint(model)
    for seed in range(2):
        model(single(8, C, seed=seed), index)
        constraint.gaps()
    assert len(constraint._hooks._smoothing) == 1


@pytest.mark.parametrize(("powers", "is_heard"), [((0.5, 0.5), True), ((0, 1), True), ((1, 0), False), ((0, 0), False)])
def test_a_sum_that_is_divided_after_features_that_nobody_saw_warns(powers, is_heard):
    """Nobody sees ``x @ W``: ``D^-1/2 A`` may be a half of a GCN's product, while ``A`` alone is a plain sum."""
    model = pyg.Sequential("x, e", [(Around(*powers, where="unseen"), "x, e -> x")])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        rows, _ = called(model, single(8, C), triangles(), watch=Around)
    assert rows[0].operator == "sum"
    assert [str(each.message).startswith("What module_0 (Around) multiplies") for each in seen] == [True] * is_heard


def test_degrees_around_a_sum_are_read_in_half_precision_and_after_an_error_but_not_inside_vmap():
    index, x = triangles(), single(8, C)
    layer = Around()
    with torch.no_grad(), Trace(layer) as trace:
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            layer(x[:, 1:], index)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layer(x, index)
        torch.vmap(lambda each: layer(each, index))(torch.stack([x, x]))
    assert [row.operator for row in trace.layers] == ["symmetric", "sum", "sum"]


class Heads(pyg.MessagePassing):
    """A plain sum of features with two axes of channels."""

    def __init__(self):
        super().__init__(aggr="add", node_dim=0)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x.view(-1, 2, C // 2))


def test_a_sum_of_several_heads_is_one():
    rows, out = called(Heads(), single(8, C), triangles())
    assert rows[0].operator == "sum"
    assert rows[0].energy == pytest.approx(dense_energy(counts(triangles(), 8), out), rel=1e-4)


def test_what_else_is_done_around_a_sum_leaves_it_one():
    index, x = triangles(), single(8, C)
    rows, out = called(pyg.Sequential("x, e", [(Further(), "x, e -> x")]), x, index, watch=Further)
    assert rows[0].operator == "sum"
    assert rows[0].energy == pytest.approx(dense_energy(counts(index, 8), out), rel=1e-4)


@pytest.mark.parametrize(
    ("edges", "layer"),
    [
        (triangles(), Own(source_weights)),
        (with_loops(triangles(), 8), Own(source_weights)),
        (triangles()[:, 1:], Own(source_weights)),  # of which one edge has no edge back
        (triangles(), Around(1, 0, loops=False)),
    ],
)
def test_weights_that_are_divided_by_the_degree_of_the_source_are_no_gcns_and_warn(edges, layer):
    """Their limit is proportional to the degree, which no energy here calls smooth."""
    x, says = single(8, C), r"^module_0 \(\w+\) multiplies its messages by weights .* neither like GCN's .* a mean's"
    model = pyg.Sequential("x, e", [(layer, "x, e -> x")])
    with pytest.warns(UserWarning, match=says) as seen, torch.no_grad(), Trace(model, watch="module_0") as trace:
        out = [model(x, edges) for _ in range(2)][-1]
    assert len(seen) == 1
    assert {row.operator for row in trace.layers} == {"sum"}
    assert trace.layers[1].energy == pytest.approx(summed(None, x, out, *source_weights(edges, None, 8)), rel=1e-4)
    rows, _ = called(model, x, edges, watch="module_0", operator="random_walk")  # chosen, so there is nothing to say
    assert rows[0].operator == "random_walk"


def test_a_deep_network_of_ones_own_layers_sounds_the_alarm_and_its_first_rows_can_be_compared():
    index, x = triangles(), single(8, C)
    layers = [Own(gcn_weights) for _ in range(64)]
    for layer in layers:
        nn.init.orthogonal_(layer.linear.weight)
    model = pyg.Sequential("x, e", [(nn.Linear(C, C), "x -> x"), *((layer, "x, e -> x") for layer in layers)])
    dead = []
    rows, _ = called(model, x, index, on_collapse=lambda row: dead.append(row.name))
    assert dead
    assert {row.operator for row in rows} == {"symmetric"}
    fixed, _ = called(model, x, index, graph=index)
    assert [row.energy for row in fixed] == pytest.approx([row.energy for row in rows], rel=1e-4, abs=1e-9)
    assert {row.operator for row in fixed} == {"symmetric"}


def test_layers_of_ones_own_with_the_same_weights_share_one_operator_for_a_constraint():
    index, x = triangles(), single(8, C)
    torch.manual_seed(0)
    own = pyg.Sequential("x, e", [(Own(gcn_weights), "x, e -> x") for _ in range(3)])
    theirs = pyg.Sequential("x, e", [(pyg.GCNConv(C, C, bias=False), "x, e -> x") for _ in range(3)])
    for mine, other in zip(own, theirs, strict=True):
        other.lin.weight = mine.linear.weight
    first, second = EnergyConstraint(own), EnergyConstraint(theirs)
    for _ in range(2):
        own(x, index)
        theirs(x, index)
        assert torch.allclose(first.gaps(), second.gaps(), rtol=1e-4, atol=1e-5)
    assert len(first._hooks._smoothing) == 1


def test_weights_inside_vmap_are_read_by_their_name():
    index, x = triangles(), torch.stack([single(8, C, seed=k) for k in range(3)])
    layer = Own(gcn_weights)
    with torch.no_grad(), Trace(layer) as trace:
        torch.vmap(lambda each: layer(each, index))(x)
    assert [row.operator for row in trace.layers] == ["symmetric"] * 3
    alone, _ = called(layer, x[1], index)
    assert trace.layers[1].energy == pytest.approx(alone[0].energy, rel=1e-5)


def test_a_layer_whose_weights_cannot_be_read_is_a_plain_sum_with_one_warning_by_its_name():
    index, x = triangles(), single(8, C)
    model = pyg.Sequential("x, e", [(Bent(gcn_weights), "x, e -> x")])
    says = r"What module_0 \(Bent\) multiplies .* 'sum' .* operator='symmetric'"
    with pytest.warns(UserWarning, match=says) as seen, torch.no_grad(), Trace(model, watch=Bent) as trace:
        out = [model(x, index) for _ in range(2)][-1]
    assert len(seen) == 1
    looped = with_loops(index, 8)
    assert trace.layers[1].operator == "sum"
    assert trace.layers[1].energy == pytest.approx(dense_energy(counts(looped, 8), out), rel=1e-4)
    rows, out = called(model, x, index, watch=Bent, operator="symmetric")  # chosen, so there is nothing to say
    assert rows[0].energy == pytest.approx(symmetric(None, x, index, out), rel=1e-4)


# Pairs: sources and targets are two sets of nodes, and the output is of the targets.


def pair_counts(index: Tensor, shape: tuple[int, int], weight: Tensor | None = None) -> Tensor:
    return counts(index, max(shape), weight)[: shape[0], : shape[1]]


def pair_attention(layer, pair, index):
    _, (index, alpha) = layer(pair, index, return_attention_weights=True)
    return pair_counts(index, (len(pair[1]), len(pair[0])), alpha.detach().mean(dim=1))


def pair_sum(layer, pair, index):
    return pair_counts(index, (len(pair[1]), len(pair[0])))


def pair_mean(layer, pair, index):
    return means(pair_sum(layer, pair, index))


PAIRS = {
    "SAGEConv": (partial(pyg.SAGEConv, C, C), pair_mean),
    "EdgeConv": (lambda: pyg.EdgeConv(mlp()), pair_mean),
    "GENConv": (partial(pyg.GENConv, C, C), pair_mean),
    "GraphConv": (partial(pyg.GraphConv, C, C), pair_sum),
    "GINConv": (lambda: pyg.GINConv(nn.Linear(C, C)), pair_sum),
    "ResGatedGraphConv": (partial(pyg.ResGatedGraphConv, C, C), pair_sum),
    "GATConv": (partial(pyg.GATConv, (C, C), C, add_self_loops=False), pair_attention),
    "GATv2Conv": (partial(pyg.GATv2Conv, C, C, heads=2, add_self_loops=False), pair_attention),
    "TransformerConv": (partial(pyg.TransformerConv, C, C, heads=2), pair_attention),
}


@pytest.mark.parametrize("name", PAIRS)
@settings(deadline=None, max_examples=3)
@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=9), min_size=2, max_size=3))
def test_a_layer_on_pairs_is_measured_between_targets_on_the_edges_of_each_call(name, batches):
    make, weights = PAIRS[name]
    torch.manual_seed(0)
    model = pyg.Sequential("x, edge_index", [(make().eval(), "x, edge_index -> x")])
    with torch.no_grad(), Trace(model) as trace:
        for k, edges in enumerate(batches):
            pair = single(6, C, seed=k), single(4, C, seed=k + 9)
            index = torch.tensor(edges, dtype=torch.int64).view(-1, 2).t()
            expected = pair_energy(weights(model[0], pair, index), out := model(pair, index))
            row = trace.layers[-1]
            assert row.num_nodes == 4
            assert row.energy == pytest.approx(expected, rel=1e-5, abs=1e-9 * (1 + row.norm**2))
            assert row.norm == pytest.approx(float(out.norm()), rel=1e-5)


# Which operator.


def test_a_weighted_layer_has_its_weights():
    edges = random_edges(6, 8, weighted=True)
    for layer, truth in ((pyg.GCNConv(3, C), symmetric), (pyg.GraphConv(3, C), adjacency_sum)):
        model = pyg.Sequential("x, edge_index, edge_weight", [(layer, "x, edge_index, edge_weight -> x")])
        x, weight = single(6, 3), edges.weight.float()
        with torch.no_grad(), Trace(model) as trace:
            out = model(x, edges.index, weight)
        assert trace.layers[0].energy == pytest.approx(truth(layer, x, edges.index, out, weight), rel=1e-5)


@pytest.mark.parametrize("improved", [False, True])
@pytest.mark.parametrize("form", ["index", "matrix"])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_self_loops_weigh_what_the_layer_makes_of_them(form, improved):
    edges = random_edges(6, 8, weighted=True)
    index = torch.cat([edges.index[:, edges.index[0] != edges.index[1]], torch.tensor([[1, 4], [1, 4]])], dim=1)
    weight = counts(edges.index, 6, edges.weight)[index[1], index[0]].float()
    weight[-2:] = torch.tensor([3.0, 0.5])
    layer, x = pyg.GCNConv(3, C, improved=improved), single(6, 3)
    model = pyg.Sequential("x, edge_index, edge_weight", [(layer, "x, edge_index, edge_weight -> x")])
    given = (index, weight)
    if form == "matrix":
        given = torch.sparse_coo_tensor(index.flip(0), weight, (6, 6)).coalesce().to_sparse_csr(), None
    p, entries = gcn_norm(*given, 6, improved)
    p = p.to_dense() if form == "matrix" else counts(p, 6, entries)
    with torch.no_grad(), Trace(model) as trace:
        h = model(x, *given).double()
    assert trace.layers[0].energy == pytest.approx(float(torch.trace(h.t() @ (h - p.double() @ h))), rel=1e-5)
    assert trace.layers[0]["rayleigh"] == pytest.approx(trace.layers[0].energy / trace.layers[0].norm ** 2, rel=1e-5)


def test_weights_may_come_as_one_column():
    edges, x = random_edges(6, 8, weighted=True), single(6, 3)
    layer = pyg.GraphConv(3, C)
    model = pyg.Sequential("x, edge_index, edge_weight", [(layer, "x, edge_index, edge_weight -> x")])
    with torch.no_grad(), Trace(model) as trace:
        out = model(x, edges.index, edges.weight.float()[:, None])
    assert trace.layers[0].energy == pytest.approx(adjacency_sum(layer, x, edges.index, out, edges.weight), rel=1e-5)


@pytest.mark.parametrize("kind", [pyg.GCNConv, pyg.LGConv])
def test_a_deep_network_dies_by_its_own_operator_with_and_without_self_loops(kind):
    edges, x = random_edges(30, 70, seed=3), single(30, C)
    layer = pyg.LGConv() if kind is pyg.LGConv else pyg.SGConv(C, C, K=1, bias=False)
    if kind is pyg.GCNConv:
        nn.init.eye_(layer.lin.weight)
    model = pyg.Sequential("x, edge_index", [(layer, "x, edge_index -> x") for _ in range(128)])
    with torch.no_grad(), Trace(model, watch=type(layer)) as trace:
        model(x, edges.index)
    assert trace.layers[0]["rayleigh"] > 1e-2
    assert trace.layers[-1]["rayleigh"] < 1e-6


def test_weights_that_are_learnt_from_edges_are_those_of_the_call():
    edges, layer = random_edges(6, 8), pyg.PDNConv(3, C, edge_dim=2, hidden_channels=4)
    model = pyg.Sequential("x, edge_index, edge_attr", [(layer, "x, edge_index, edge_attr -> x")])
    x, features = single(6, 3), single(edges.index.size(1), 2, seed=1)
    with torch.no_grad(), Trace(model) as trace:
        out = model(x, edges.index, features)
        index, weight = gcn_norm(edges.index, layer.mlp(features).squeeze(-1), 6)
    assert trace.layers[0].operator == "attention"
    assert trace.layers[0].energy == pytest.approx(dense_energy(counts(index, 6, weight), out), rel=1e-5)
    assert operator_of(pyg.GeneralConv(3, C, attention=True)) == "attention"
    assert operator_of(pyg.GeneralConv(3, C)) == "sum"
    assert set(operators_in(pyg.AttentiveFP(C, C, C, 2, 2, 1), None).values()) == {"attention"}


def test_an_operator_can_be_chosen_for_all_layers():
    edges, x = random_edges(6, 8), single(6, 3)
    model = pyg.GraphSAGE(3, C, num_layers=2)
    with torch.no_grad(), Trace(model, operator="symmetric", watch="convs.1") as trace:
        out = model(x, edges.index)
    assert trace.layers[0].energy == pytest.approx(symmetric(None, x, edges.index, out), rel=1e-5)
    with pytest.raises(
        GraphjouleError, match="operator is 'mean'; the choices are: attention, loopless, random_walk, su"
    ):
        Trace(model, operator="mean")


def test_layers_whose_energies_cannot_be_compared_are_measured_by_the_papers_with_a_warning():
    mixed = nn.ModuleList([pyg.GCNConv(3, C), pyg.SAGEConv(C, C)])
    with pytest.warns(UserWarning, match=r"different kinds \(GCNConv symmetric, SAGEConv random_walk\).*operator="):
        found = operators_in(mixed, None)
    assert set(found.values()) == {"symmetric"}
    comparable = nn.ModuleList([pyg.GATConv(3, C), pyg.SAGEConv(C, C)])
    assert sorted(operators_in(comparable, None).values()) == ["attention", "random_walk", "random_walk"]
    assert operators_in(nn.Linear(2, 2), None).popitem()[1] == "symmetric"


def test_layers_that_were_not_asked_for_do_not_decide_the_operator():
    index, x = triangles(), single(8, C)

    class Leftover(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.old = nn.ModuleList([pyg.SAGEConv(C, C) for _ in range(2)]), pyg.GCNConv(C, C)

        def forward(self, x, edge_index):
            return self.layers[1](self.layers[0](x, edge_index), edge_index)

    model = Leftover()
    for asked in ("layers.*", pyg.SAGEConv):
        rows, out = called(model, x, index, watch=asked)
        assert {row.operator for row in rows} == {"random_walk"}
        assert rows[-1].energy == pytest.approx(random_walk(None, x, index, out), rel=1e-5)
        EnergyConstraint(model, layers=asked)
    with pytest.warns(UserWarning, match="different kinds .* name the layers to measure if some of these are never"):
        Trace(model)
    assert operators_in(model, None, [model.layers])[model.old] == "random_walk"


def test_a_layer_without_its_normalisation_is_a_sum():
    assert operator_of(pyg.GCNConv(3, C, normalize=False)) == "sum"
    assert operator_of(pyg.GraphConv(3, C, aggr="mean")) == "random_walk"
    kinds = {None: "sum", "rw": "random_walk", "sym": "loopless"}
    assert {n: operator_of(pyg.ChebConv(3, C, K=2, normalization=n)) for n in kinds} == kinds
    assert passes_messages(pyg.GCNConv(3, C))
    assert not passes_messages(nn.Linear(2, 2))


def test_the_energy_of_a_deep_mean_dies_while_that_of_another_operator_does_not():
    edges, x = random_edges(40, 90, seed=3), single(40, 8)
    torch.manual_seed(0)
    model = pyg.GraphSAGE(8, 8, num_layers=16, root_weight=False).eval()
    energies = {}
    for operator in (None, "symmetric"):
        with torch.no_grad(), Trace(model, operator=operator, watch="convs.*") as trace:
            model(x, edges.index)
        energies[operator] = trace.layers[-1].energy / trace.layers[-1].norm ** 2
    assert energies[None] < 1e-9 < 1e-3 < energies["symmetric"]


# The operator itself.


def test_its_energy_is_that_of_definition_1_or_of_the_differences():
    edges, x = path3(), single(3, 2)
    plain = square_operator("symmetric", [(edges.index, None)], 3)
    assert float(plain.energy(x)) == pytest.approx(energy(x, edges), rel=1e-6)
    walk = square_operator("random_walk", [(edges.index, None)], 3)
    weights = torch.tensor([[0, 1, 0], [0.5, 0, 0.5], [0, 1, 0]])
    assert float(walk.energy(x)) == pytest.approx(dense_energy(weights, x))
    degree = (weights + weights.t()).sum(dim=1) / 2
    assert float(walk.rayleigh(x)) == pytest.approx(float(walk.energy(x)) / float((degree * x.square().sum(1)).sum()))
    assert float(walk.energy(torch.ones(3, 2))) == float(walk.rayleigh(torch.zeros(3, 2))) == 0
    assert walk.energy(x.expand(4, 3, 2)).shape == (4,)


def test_targets_that_share_a_source_are_neighbours():
    index = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 2]])  # two sources, three targets
    y = single(3, 2)
    operator = pair_operator("sum", [(index, None)], 2, 3, both=False)
    centres = torch.stack([(y[0] + y[1]) / 2, (y[1] + y[2]) / 2]).double()
    wanted = sum((y[t].double() - centres[s]).square().sum() for s, t in index.t().tolist()) / 2
    assert float(operator.energy(y)) == pytest.approx(float(wanted), rel=1e-6)
    assert operator.energy(y.expand(2, 3, 2)).tolist() == pytest.approx([float(wanted)] * 2, rel=1e-6)
    stacked = pair_operator("sum", [(index, None)], 2, 3, both=True)
    assert float(stacked.energy(torch.cat([centres, y.double()]))) == pytest.approx(float(wanted), rel=1e-6)
    with pytest.raises(GraphjouleError, match="an edge leads to node 2, but there are 2 rows"):
        pair_operator("sum", [(index, None)], 2, 2, both=True)


def test_attention_that_cannot_be_read_is_none():
    message = single(5, 2, 3)
    assert attention_weights(nn.Identity(), {}, message, 5) is None
    assert attention_weights(nn.Identity(), {"x_j": single(5, 2, 3, seed=1)}, message, 5) is None
    assert attention_weights(nn.Identity(), {"x_j": message / 2}, message, 5).tolist() == pytest.approx([2.0] * 5)


@pytest.mark.parametrize(("layer", "truth"), [(pyg.AGNNConv(), agnn_attention), ZOO["SuperGATConv"]])
def test_attention_to_a_node_whose_features_are_zero_is_read(layer, truth):
    """As after a ReLU: its messages are zero, whatever their weights are."""
    layer, edges = layer if isinstance(layer, nn.Module) else layer(), random_edges(6, 8)
    x = single(6, C) * torch.tensor([1, 0, 1, 0, 1, 1])[:, None]
    model = pyg.Sequential("x, edge_index", [(layer.eval(), "x, edge_index -> x")])
    with torch.no_grad(), Trace(model) as trace:
        out = model(x, edges.index)
    assert trace.layers[0].operator == "attention"
    assert trace.layers[0].energy == pytest.approx(truth(layer, x, edges.index, out), rel=1e-5)


@pytest.mark.gpu
def test_an_operator_is_moved_once():
    index, y = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 2]]), single(3, 2)
    operator = pair_operator("sum", [(index, None)], 2, 3, both=False)
    there = operator.to(torch.device("cuda:0"))
    assert operator.to(torch.device("cuda:0")) is there is not operator.to(torch.device("cpu")) is operator
    assert float(there.energy(y.cuda())) == pytest.approx(float(operator.energy(y)))
