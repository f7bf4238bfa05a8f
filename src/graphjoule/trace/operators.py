"""The operator of a layer, by what it does: which energy its output is measured by."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from graphjoule.errors import GraphjouleError, choices
from graphjoule.graph import Propagation
from graphjoule.measures.energy import combinatorial_energy, dirichlet_energy, frobenius_norm, ratio, rayleigh_quotient

OPERATORS = {
    "symmetric": "GCN's P = D~^-1/2 (A + I) D~^-1/2: E = tr(X^T (I - P) X)",
    "loopless": "P = D^-1/2 A D^-1/2, GCN's without self-loops: E = 1/2 sum a_ij ||x_i / d_i^1/2 - x_j / d_j^1/2||^2",
    "random_walk": "the mean over neighbours, w_ij = a_ij / d_i: E = 1/2 sum w_ij ||x_i - x_j||^2",
    "attention": "the weights of this very call, the mean over heads: E = 1/2 sum w_ij ||x_i - x_j||^2",
    "sum": "the sum over neighbours, w_ij = a_ij: E = 1/2 sum w_ij ||x_i - x_j||^2",
}
"""The operators by name, and the energy of each."""

# By the names of PyG's classes, for importing PyG takes seconds. What is in neither list is judged by its aggregation.
_SYMMETRIC = {
    *("GCNConv", "GCN2Conv", "SGConv", "SSGConv", "TAGConv", "APPNP", "ARMAConv", "ChebConv", "LGConv", "MixHopConv"),
    "DNAConv",
    "FAConv",  # its weights have signs, and what they are multiplied with is P
}
_LOOPLESS = {"TAGConv", "ARMAConv", "ChebConv", "LGConv"}  # they add no self-loops, and cannot be told to
_ATTENTION = {
    *("GATConv", "GATv2Conv", "TransformerConv", "SuperGATConv", "AGNNConv", "RGATConv", "HGTConv", "HANConv"),
    *("HEATConv", "PointTransformerConv", "GATEConv"),
    "PDNConv",  # weights that it learns from the features of edges
}
_WALKS = {"ClusterGCNConv", "WLConvContinuous", "HypergraphConv"}  # they sum, and divide by the degree themselves
_FACTORS = ("norm", "edge_weight", "weight")  # what an own layer calls the numbers that it multiplies messages by
_SEEN_AS_ONE = 2**12  # messages that are held against those numbers
_AS_CALLED = {"SAGEConv", "GINConv", "GINEConv", "GraphConv", "EdgeConv"}
_EDGES_AT_ONCE = 2**16  # bounds the memory of the gathered differences
_MOST_STEPS = 300  # products to find the vector that weights like GCN's leave as it is
_STOCHASTIC = {"random_walk", "attention"}  # rows of both add up to one, so their energies can be compared


def passes_messages(module: nn.Module) -> bool:
    """Whether it is a message-passing layer of PyG, judged by its methods: importing PyG to ask would take seconds."""
    return all(callable(getattr(module, method, None)) for method in ("propagate", "message", "aggregate"))


def passes_as_called(layer: nn.Module) -> bool:
    """Whether it is known to pass messages along the very edges, with the very weights, that it is called with."""
    return any(kind.__name__ in _AS_CALLED for kind in type(layer).__mro__)


def has_own_messages(layer: nn.Module) -> bool:
    """Whether its messages are written outside of PyG, so that only they say what they are multiplied by."""
    message = getattr(type(layer), "message", None)
    return not getattr(message, "__module__", "").startswith("torch_geometric.")


def has_own_forward(layer: nn.Module) -> bool:
    """Whether what it does before and after it passes messages is written outside of PyG."""
    return not getattr(type(layer).forward, "__module__", "").startswith("torch_geometric.")


def expects_norm(layer: nn.Module) -> bool:
    """Whether an own layer multiplies its messages by a ``norm``, by its name alone: it has not been called yet."""
    if not passes_messages(layer) or not has_own_messages(layer) or operator_of(layer) != "sum":
        return False
    return "norm" in inspect.signature(type(layer).message).parameters  # type: ignore[attr-defined]


def operator_of(layer: nn.Module) -> str:
    """The operator of a message-passing layer of PyG; a "sum" of weighted messages may turn out to be another one.

    The mean, and whatever else leaves equal neighbours as they are (max, softmax, several at once), is "random_walk".
    """
    names = {kind.__name__ for kind in type(layer).__mro__}
    if "ChebConv" in names and layer.normalization != "sym":
        return "sum" if layer.normalization is None else "random_walk"
    if names & _SYMMETRIC and getattr(layer, "normalize", True):
        return "symmetric" if loops_of(layer).added else "loopless"
    if "EGConv" in names:
        kinds = set(getattr(layer, "aggregators", ()))
        normalised = "symmetric" if layer.add_self_loops else "loopless"
        return normalised if kinds == {"symnorm"} else "sum" if kinds <= {"sum", "add"} else "random_walk"
    if names & _ATTENTION or any(getattr(layer, name, False) is True for name in ("attention", "use_attention")):
        return "attention"
    if names & _WALKS:
        return "random_walk"
    return "sum" if getattr(layer, "aggr", "sum") in ("sum", "add") else "random_walk"


class Loops(NamedTuple):
    """The self-loops in a normalisation like GCN's.

    Attributes:
        added: weight of those that are added to nodes without one; 0 where none are.
        kept: whether those that the graph has count.
    """

    added: float = 1.0
    kept: bool = True


def loops_of(layer: nn.Module) -> Loops:
    """The self-loops of a layer with a normalisation like GCN's."""
    names = {kind.__name__ for kind in type(layer).__mro__}
    if names & _LOOPLESS or getattr(layer, "add_self_loops", True) is False:
        return Loops(0.0, "ChebConv" not in names)
    return Loops(2.0 if getattr(layer, "improved", False) is True else 1.0)


def operators_in(
    model: nn.Module, wanted: str | None, watched: Iterable[nn.Module] | None = None
) -> dict[nn.Module, str]:
    """The operator of every message-passing layer of a model; under the model itself, that of everything else.

    All rows of a trace must be comparable. So layers of different kinds, such as a mean and a sum, are all measured by
    the paper's operator, "symmetric", with a warning; the mean and attention can be compared and stay as they are.

    Args:
        model: any module.
        wanted: a key of `OPERATORS` for all of them; None to read it from each layer.
        watched: modules that were asked for: if layers are among them or inside, these alone decide.
    """
    if wanted is not None and wanted not in OPERATORS:
        raise GraphjouleError(f"operator is {wanted!r}; the choices are: {choices(OPERATORS)}, and None to read it.")
    layers = [module for module in model.modules() if passes_messages(module)]
    found = {layer: wanted or operator_of(layer) for layer in layers}
    inside = {module for each in watched or () for module in each.modules()}
    deciding = {layer: kind for layer, kind in found.items() if layer in inside} or found
    kinds = set(deciding.values())
    if len(kinds) > 1 and not kinds <= _STOCHASTIC:
        named = ", ".join(sorted({f"{type(layer).__name__} {kind}" for layer, kind in deciding.items()}))
        warnings.warn(
            f"The layers have operators of different kinds ({named}), whose energies cannot be compared; all are "
            "measured by 'symmetric'. Choose another with operator=..., or name the layers to measure if some of these "
            "are never called.",
            stacklevel=4,
        )
        found, kinds = dict.fromkeys(found, "symmetric"), {"symmetric"}
    rest = wanted or (next(iter(kinds)) if len(kinds) == 1 else "random_walk" if kinds else "symmetric")
    comparable = _STOCHASTIC if kinds <= _STOCHASTIC else kinds
    return {**{layer: kind if kind in comparable else rest for layer, kind in found.items()}, model: rest}


class Operator:
    """What an output is measured by: a graph of the nodes, and whether features are divided by ``sqrt(1 + d)``.

    Args:
        name: a key of `OPERATORS`.
        graph: for "symmetric" the graph itself, else the weights ``(W + W^T) / 2``, which have the energy of ``W``.
        mean: where the output is of targets alone, the edges from sources and their shares: a source has the mean of
            its targets. The energy is then that between targets that share a source.
        scale: what every node's features are multiplied by, where that is not ``1 / sqrt(1 + d)``.
    """

    def __init__(
        self,
        name: str,
        graph: Propagation,
        mean: tuple[Tensor, Tensor] | None = None,
        *,
        scale: Tensor | None = None,
    ) -> None:
        self.name, self.graph, self._mean, self._scale = name, graph, mean, scale
        self._elsewhere: dict[torch.device, Operator] = {}

    @property
    def is_scaled(self) -> bool:
        """Whether features are divided by ``sqrt(1 + d)``."""
        return self.name == "symmetric" and self._scale is None

    @property
    def has_edges(self) -> bool:
        """Whether any two nodes are neighbours; of targets alone, whether two share a source."""
        if self._mean is not None:
            return self._mean[0].size(1) > 0 and int(self._mean[0][0].bincount().max()) > 1
        return self.graph.num_edges > 0

    def to(self, device: torch.device) -> Operator:
        """The same on a device, moved once."""
        if device == self.graph.device:
            return self
        if device not in self._elsewhere:
            mean = None if self._mean is None else (self._mean[0].to(device), self._mean[1].to(device))
            scale = None if self._scale is None else self._scale.to(device)
            self._elsewhere[device] = Operator(self.name, self.graph.to(device), mean, scale=scale)
        return self._elsewhere[device]

    def induced(self, nodes: Tensor) -> Operator:
        """That of some of the nodes, which have no neighbours among the others."""
        return Operator(self.name, self.graph.induced(nodes), scale=None if self._scale is None else self._scale[nodes])

    def nodes_of(self, x: Tensor) -> Tensor:
        """Features of all nodes of the graph: `x` itself, scaled `x`, or the sources' means and `x`."""
        if self._scale is not None:
            return x * self._scale.to(x.dtype)[:, None]
        if self._mean is None:
            return x
        (source, target), share = self._mean
        sources = x.new_zeros(*x.shape[:-2], self.graph.num_nodes - x.size(-2), x.size(-1))
        sources = sources.index_add(-2, source, share.to(x.dtype)[:, None] * x[..., target, :])
        return torch.cat([sources, x], dim=-2)

    def energy(self, x: Tensor) -> Tensor:
        """The energy of features ``[..., num_nodes, channels]`` by this operator, in float64."""
        energy = dirichlet_energy if self.is_scaled else combinatorial_energy
        is_plain = self._mean is None and self._scale is None
        return energy(x if is_plain else self.nodes_of(x.double()), self.graph)

    def rayleigh(self, x: Tensor) -> Tensor:
        """``E / ||X||^2``, from 0 to 2; without GCN's normalisation, nodes weigh what their edges add up to."""
        if self.is_scaled:
            return rayleigh_quotient(x, self.graph)
        if self._scale is not None:
            return ratio(self.energy(x), frobenius_norm(x, self.graph).square())
        squares = self.nodes_of(x.double()).square().sum(dim=-1)
        return ratio(self.energy(x), (self.graph.degree * squares).sum(dim=-1))


class CallOperator(Operator):
    """The weights of one call, measured edge by edge where they are: the next call has others, so none are sorted.

    Args:
        name: a key of `OPERATORS`.
        index: sources and targets, shape ``[2, num_edges]``.
        weight: weight of every edge.
        num_nodes: number of nodes.
        scale: what every node's features are multiplied by, of weights like GCN's.
        is_skew: whether the weights are normalised, but neither like GCN's nor like a mean's.
    """

    def __init__(
        self,
        name: str,
        index: Tensor,
        weight: Tensor,
        num_nodes: int,
        *,
        scale: Tensor | None = None,
        is_skew: bool = False,
    ) -> None:
        self.is_skew = is_skew
        self.name, self._index, self._weight, self.num_nodes = name, index, weight.double(), num_nodes
        self._mean, self._scale = None, scale

    @property
    def is_normalised(self) -> bool:
        """Whether the weights are those of the edges before they were normalised like GCN's."""
        return self._scale is not None

    @property
    def has_edges(self) -> bool:
        """Whether any two nodes are neighbours."""
        return bool((self._index[0] != self._index[1]).any())

    @cached_property
    def graph(self) -> Propagation:  # type: ignore[override]
        """The weights ``(W + W^T) / 2``, for what needs them sorted: a constraint, or a part of the nodes."""
        averaged = _averaged(*_weighed("sum", [(self._index, self._weight)], self.num_nodes), self.num_nodes)
        return averaged.to(self._weight.device)

    def to(self, device: torch.device) -> Operator:
        """The same on a device."""
        if device == self._weight.device:
            return self
        scale = None if self._scale is None else self._scale.to(device)
        return CallOperator(self.name, self._index.to(device), self._weight.to(device), self.num_nodes, scale=scale)

    def energy(self, x: Tensor) -> Tensor:
        """``1/2 sum w_ij ||x_i - x_j||^2``; differences of float32 numbers are as good as these are."""
        x = self.nodes_of(x if x.dtype in (torch.float32, torch.float64) else x.float())
        energy = torch.zeros(x.shape[:-2], dtype=torch.float64, device=x.device)
        for start in range(0, len(self._weight), _EDGES_AT_ONCE):
            piece = slice(start, start + _EDGES_AT_ONCE)
            source, target = self._index[:, piece]
            differences = x.index_select(-2, target) - x.index_select(-2, source)
            squares = torch.linalg.vector_norm(differences, dim=-1, dtype=torch.float64).square()
            energy = energy + (self._weight[piece] * squares).sum(dim=-1) / 2
        return energy

    def rayleigh(self, x: Tensor) -> Tensor:
        """``E / sum d_i ||x_i||^2``; of weights like GCN's ``E / ||X||^2``."""
        squares = x.double().square().sum(dim=-1)
        if self._scale is not None:
            return ratio(self.energy(x), squares.sum(dim=-1))
        weight = torch.where(self._index[0] == self._index[1], 0, self._weight) / 2
        degree = weight.new_zeros(self.num_nodes).index_add(0, self._index.flatten(), weight.repeat(2))
        return ratio(self.energy(x), (degree * squares).sum(dim=-1))


def weighted_operator(index: Tensor, weight: Tensor, num_nodes: int) -> CallOperator:
    """The operator of a sum of weighted messages, by what the weights are.

    Those of GCN, ``P_ij = a_ij / (v_i v_j)``, leave ``v`` as it is: with it, their energy is ``tr(X^T (I - P) X)``.
    Those of a mean add up to one. Any others are "sum", also those that leave a ``v`` as it is but are not symmetric
    beside it, such as ``A D^-1``: there ``a_ij`` differs from ``a_ji``, and the energy is not that of ``I - P``.

    Args:
        index: sources and targets, shape ``[2, num_edges]``; loops that the layer added are among them.
        weight: what the messages are multiplied by, not negative.
        num_nodes: number of nodes.
    """
    source, target = index
    weight = weight.detach().double()

    def into(values: Tensor) -> Tensor:
        return values.new_zeros(num_nodes).index_add(0, target, values)

    count, total = into(torch.ones_like(weight)), into(weight)
    loops = into(torch.where(source == target, weight, 0))
    has_loops = bool((loops > 0).all())
    name = "symmetric" if has_loops else "loopless"
    root = count.sqrt()
    if _is_close(weight * root[source] * root[target], torch.ones_like(weight)):
        return _unnormalised(name, index, weight, root)
    for v in [loops.rsqrt()] * has_loops:  # a loop has the weight 1 / d_i where all were as heavy before
        if _is_close(into(weight * v[source]), v):
            return _unnormalised(name, index, weight, v)
    if _is_close(total, (count > 0).double()):
        return CallOperator("random_walk", index, weight, num_nodes)
    v = root
    for _ in range(_MOST_STEPS):  # edges that had weights, or loops of several: the vector is looked for
        moved = into(weight * v[source])
        if _is_close(moved, v):
            if _is_skew(index, weight, v):
                return CallOperator("sum", index, weight, num_nodes, is_skew=True)
            return _unnormalised(name, index, weight, v)
        growth = moved[count > 0] / v[count > 0]
        if growth.numel() == 0 or not float(growth.min()) <= 1 <= float(growth.max()):
            break  # by Collatz and Wielandt no vector stays as it is
        v = torch.where(count > 0, (v + moved) / 2, 0)
    return CallOperator("sum", index, weight, num_nodes)


def _unnormalised(name: str, index: Tensor, weight: Tensor, v: Tensor) -> CallOperator:
    """The operator of weights ``a_ij / (v_i v_j)``."""
    scale = torch.where(v > 0, 1 / v, 0)
    return CallOperator(name, index, weight * v[index[0]] * v[index[1]], len(v), scale=scale)


def _is_skew(index: Tensor, weight: Tensor, v: Tensor) -> bool:
    """Whether ``w_ij v_i v_j`` is not symmetric, or, of directed edges, weights out of a node add up to one."""
    source, target = index
    matrix = torch.sparse_coo_tensor(index, weight * v[source] * v[target], (len(v), len(v)), check_invariants=False)
    one, other = matrix.coalesce(), matrix.t().coalesce()
    if torch.equal(one.indices(), other.indices()):
        return not _is_close(one.values(), other.values())
    total = torch.zeros_like(v).index_add(0, source, weight)
    return _is_close(total[source], torch.ones_like(weight))


def _is_close(x: Tensor, y: Tensor) -> bool:
    """Whether numbers are equal up to what float32 weights leave of them."""
    return bool(((x - y).abs() <= 1e-5 * y).all())


Edges = tuple[Tensor, Tensor | None]
"""Both ends of every edge, from its source to its target, ``[2, num_edges]``, and maybe its weight."""


def square_operator(
    name: str, parts: Iterable[Edges], num_nodes: int, loops: Loops | None = None, *, is_matrix: bool = False
) -> Operator:
    """The operator of edges among one set of nodes.

    Args:
        name: a key of `OPERATORS`; for "attention" the weights of the edges are its own.
        parts: edges that are normalised each by itself, such as those of the relations of one layer.
        num_nodes: number of nodes.
        loops: of "symmetric", how its self-loops are made if edges that stand there twice add up, as in PyG; None if
            edges count once and every node has one loop, as in this package.
        is_matrix: whether the edges are those of a sparse matrix.
    """
    if name not in ("symmetric", "loopless"):
        return Operator(name, _averaged(*_weighed(name, parts, num_nodes), num_nodes))
    index, weight = _joined(parts)
    make = partial(Propagation.from_edge_index, num_nodes=num_nodes, symmetrize=True, dtype=torch.float64)
    if name == "symmetric" and loops is None:
        return Operator(name, make(index, weight))
    loops = Loops(0.0 if name == "loopless" else loops.added or 1.0 if loops else 1.0, loops is None or loops.kept)
    own = _loop_weights(index, weight, num_nodes, loops, is_matrix=is_matrix)
    weight = torch.ones(index.size(1), dtype=torch.float64) if weight is None else weight.double()
    if name == "symmetric" and num_nodes and bool((own == own[0]).all()):  # A + f I and A / f + I have the same P
        return Operator(name, make(index, weight / own[0]))
    graph = make(index, weight)
    degree = graph.degree + own
    return Operator(name, graph, scale=torch.where(degree > 0, degree.rsqrt(), 0.0))


def _loop_weights(index: Tensor, weight: Tensor | None, num_nodes: int, loops: Loops, *, is_matrix: bool) -> Tensor:
    """The self-loop of every node, as PyG's `gcn_norm` makes it."""
    is_loop = index[0] == index[1]
    nodes = index[0][is_loop]
    own = (torch.ones(index.size(1)) if weight is None else weight).double()[is_loop]
    added = torch.full((num_nodes,), loops.added, dtype=torch.float64)
    if not loops.kept:
        return added
    if not loops.added or is_matrix:
        return added.index_add(0, nodes, own)
    if weight is None:  # then `improved` does nothing
        return torch.ones_like(added)
    added[nodes] = own
    return added


def pair_operator(name: str, parts: Iterable[Edges], num_sources: int, num_targets: int, *, both: bool) -> Operator:
    """The operator of edges between two sets of nodes, sources first.

    Args:
        name: a key of `OPERATORS` but "symmetric".
        parts: edges that are normalised each by itself.
        num_sources: number of sources.
        num_targets: number of targets.
        both: whether features are of sources and targets, or of the targets alone.
    """
    index, weight = _weighed(name, parts, num_targets)
    mean = None
    if not both:
        total = torch.zeros(num_sources, dtype=torch.float64).index_add_(0, index[0], weight)
        share = weight / total.clamp(min=torch.finfo(torch.float64).tiny)[index[0]]
        mean = index, share
    stacked = torch.stack([index[0], index[1] + num_sources])
    return Operator(name, _averaged(stacked, weight, num_sources + num_targets), mean)


def _weighed(name: str, parts: Iterable[Edges], num_targets: int) -> tuple[Tensor, Tensor]:
    """The entries of ``W``, row by target, in float64 on the CPU."""
    weighed: list[tuple[Tensor, Tensor]] = []
    for index, given in parts:
        if given is not None and is_of_many_runs(given):
            raise GraphjouleError("its weights differ from run to run inside torch.vmap")
        index = index.detach().cpu().long()
        if index.numel() and int(index[1].max()) >= num_targets:
            raise GraphjouleError(f"an edge leads to node {int(index[1].max())}, but there are {num_targets} rows")
        weight = torch.ones(index.size(1), dtype=torch.float64) if given is None else given.detach().cpu().double()
        if not bool(((weight >= 0) & weight.isfinite()).all()):
            wrong = weight[~((weight >= 0) & weight.isfinite())]
            raise GraphjouleError(f"the weight of an edge is {float(wrong[0])}; expected finite ones, not negative")
        if name == "random_walk":
            total = torch.zeros(num_targets, dtype=torch.float64).index_add_(0, index[1], weight)
            weight = weight / torch.where(total == 0, 1, total)[index[1]]
        weighed.append((index, weight))
    index, weights = _joined(weighed)
    assert weights is not None
    return index, weights


def _joined(parts: Iterable[Edges]) -> Edges:
    edges = [
        (index.detach().cpu().long(), None if weight is None else weight.detach().cpu()) for index, weight in parts
    ]
    if len(edges) == 1:
        return edges[0]
    index = torch.cat([index for index, _ in edges], dim=1)
    if all(weight is None for _, weight in edges):
        return index, None
    return index, torch.cat([torch.ones(i.size(1)) if w is None else w for i, w in edges])


def _averaged(index: Tensor, weight: Tensor, num_nodes: int) -> Propagation:
    """``(W + W^T) / 2`` as a graph."""
    both = torch.cat([index, index.flip(0)], dim=1), weight.repeat(2) / 2
    return Propagation.from_edge_index(*both, num_nodes, dtype=torch.float64)


def is_of_many_runs(x: Any) -> bool:
    """Whether a tensor inside `torch.vmap` differs from run to run, so that no number can be read from it."""
    is_batched = getattr(getattr(torch._C, "_functorch", None), "is_batchedtensor", None)
    return isinstance(x, Tensor) and is_batched is not None and bool(is_batched(x))


def attention_weights(layer: nn.Module, message_inputs: dict[str, Any], message: Any, num_edges: int) -> Tensor | None:
    """The attention of a call from what went into its messages, the mean over heads; None where it cannot be read.

    It is an input of the messages (GAT), or kept for the time of the call (TransformerConv), or computed again from
    their inputs (AGNN, SuperGAT, HAN, HGT), or how many times as long a message is as the features that it weighs.
    """
    if not isinstance(message, Tensor) or message.size(0) != num_edges or is_of_many_runs(message):
        return None
    if num_edges == 0:
        return message.new_zeros(0)
    alphas = message_inputs.get("alpha"), message_inputs.get("edge_weight"), getattr(layer, "_alpha", None)
    alpha = next((x for x in alphas if isinstance(x, Tensor) and x.size(0) == num_edges), None)
    try:
        with torch.no_grad():
            alpha = _computed_attention(layer, message_inputs) if alpha is None else alpha
            values = _weighed_features(layer, message_inputs) if alpha is None else None
    except (AttributeError, KeyError, TypeError):  # a layer of another version of PyG
        return None
    if alpha is not None:
        return alpha.detach().reshape(num_edges, -1).mean(dim=1)
    return _times_as_long(message, values, num_edges)


def _times_as_long(message: Tensor, values: Tensor | None, num_edges: int) -> Tensor | None:
    """How many times as long as some features each message is, the mean over heads; None where that is no number."""
    if not isinstance(values, Tensor) or values.size(0) != num_edges or message.size(-1) != values.size(-1):
        return None
    heads = message.detach().double().reshape(num_edges, -1, message.size(-1))
    values = values.detach().double().reshape(num_edges, -1, values.size(-1))
    squares = values.square().sum(dim=-1)
    if values.size(1) not in (1, heads.size(1)) or not bool(squares.all()):  # of zeros, a weight cannot be read
        return None
    weights = (heads * values).sum(dim=-1) / squares
    if not torch.allclose(weights[..., None] * values, heads, rtol=1e-3, atol=1e-6 * float(heads.abs().amax())):
        return None
    return weights.mean(dim=1)


def message_weights(message_inputs: dict[str, Any], message: Any, num_edges: int) -> tuple[Tensor | None, bool]:
    """What an own layer multiplies its messages by, and whether that is known; None for messages as they come.

    It is an argument of the messages, by its name, if they are the features times it; else how many times as long as
    the features they are. A layer whose messages are something else, with no such argument, is a plain sum.
    """
    if not isinstance(message, Tensor) or message.size(0) != num_edges or num_edges == 0:
        return None, True
    columns = {name: _column(value, num_edges) for name, value in message_inputs.items()}
    named = next((x for x in map(columns.get, _FACTORS) if x is not None), None)
    if named is not None and is_of_many_runs(named):
        return None, False
    if is_of_many_runs(message):  # inside vmap messages cannot be looked at
        return named, named is not None or not _may_weigh(columns)
    features = (x for name, x in message_inputs.items() if name.endswith("_j") and isinstance(x, Tensor))
    values = next((x for x in features if x.dim() > 1 and x.shape == message.shape), None)
    weights = named if named is not None and values is not None and _are_times(message, values, named) else None
    weights = _times_as_long(message, values, num_edges) if weights is None else weights
    if weights is None:
        return None, not _may_weigh(columns)
    if not bool((weights.isfinite() & (weights >= 0)).all()):
        return None, False
    return (None if bool((weights == 1).all()) else weights.detach()), True


def weights_around(
    index: Tensor, before: Sequence[Tensor], sent: Tensor, summed: Tensor, after: Sequence[Tensor]
) -> tuple[Tensor | None, bool]:
    """The weights of a plain sum by what its layer does before and after it, and whether they are known.

    A GCN may multiply features by ``D^-1/2``, sum, and multiply by it again; a mean may divide the sum by the degree.
    It does if the numbers say so. Where one half is seen and the other is not, as between an activation and the sum,
    the weights are not known. Anything else that a layer does leaves it a plain sum.

    Args:
        index: sources and targets, shape ``[2, num_edges]``.
        before: what may have been multiplied.
        sent: what was sent to the neighbours.
        summed: what came of that.
        after: what may be the product.
    """
    degree = index[1].bincount(minlength=len(summed)).double()
    nodes = degree.nonzero().flatten()
    nodes = nodes[:: -(-len(nodes) // _SEEN_AS_ONE)]

    def power(products: Sequence[Tensor], factors: Sequence[Tensor]) -> float | None:
        """The first power of the degree by which one of the products is one of the factors divided."""
        pairs = [(x[nodes], y[nodes].double()) for x in products for y in factors if x.shape == y.shape]
        for power in (0.0, 0.5, 1.0):
            scale = degree[nodes].pow(-power)[:, None]
            if any(_is_near(x, scale * y) for x, y in pairs):
                return power
        return None

    first, last = power([sent], before), power(after, [summed])
    if first is None or last is None:
        return None, not (first or last)
    if not first and not last:
        return None, True
    inverse = torch.where(degree > 0, 1 / degree, 0)
    return inverse[index[0]].pow(first) * inverse[index[1]].pow(last), True


def _is_near(x: Tensor, y: Tensor) -> bool:
    """Whether features are the same up to rounding."""
    return torch.allclose(
        x.double(), y, rtol=max(1e-4, 4 * torch.finfo(x.dtype).eps), atol=1e-6 * float(x.abs().amax())
    )


def _column(value: Any, num_edges: int) -> Tensor | None:
    """One number for each edge, if it is that."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.numel() != num_edges:
        return None
    return value.flatten()


def _may_weigh(columns: Mapping[str, Tensor | None]) -> bool:
    """Whether an argument with one number for each edge is called like a weight or a degree."""
    return any(x is not None and any(word in name for word in ("norm", "weight", "deg")) for name, x in columns.items())


def _are_times(message: Tensor, values: Tensor, weights: Tensor) -> bool:
    """Whether messages are features times weights, by some thousand of them."""
    some = slice(None, None, -(-len(weights) // _SEEN_AS_ONE))
    wanted = (weights[some].view(-1, *[1] * (values.dim() - 1)) * values[some]).detach()
    seen = message[some].detach()
    return torch.allclose(seen, wanted.to(seen.dtype), rtol=1e-3, atol=1e-6 * float(seen.abs().amax()))


def _computed_attention(layer: Any, inputs: dict[str, Any]) -> Tensor | None:
    """The weights before dropout, of layers that say them or that weigh something else than what they compare."""
    names = {kind.__name__ for kind in type(layer).__mro__}
    if "SuperGATConv" in names:
        alpha: Tensor = layer.get_attention(inputs["edge_index_i"], inputs["x_i"], inputs["x_j"], inputs["size_i"])
        return alpha
    if not names & {"AGNNConv", "HANConv", "HGTConv"}:
        return None
    name = "v_j" if "HGTConv" in names else "x_j"
    mode, layer.training = layer.training, False  # dropout would use up random numbers
    try:  # messages of ones
        ones: Tensor = layer.message(**{**inputs, name: torch.ones_like(inputs[name])})
    finally:
        layer.training = mode
    return ones


def _weighed_features(layer: Any, inputs: dict[str, Any]) -> Tensor | None:
    """What messages are some weights times of; ``forward`` is called by itself, for nobody's hooks should see it."""
    x: Tensor | None
    names, x, edge_attr = {kind.__name__ for kind in type(layer).__mro__}, inputs.get("x_j"), inputs.get("edge_attr")
    if "HEATConv" in names:
        edges = nn.functional.leaky_relu(layer.edge_attr_emb.forward(edge_attr), layer.negative_slope)
        x = layer.lin.forward(torch.cat([inputs["x_j"], edges], dim=-1))
    elif "GeneralConv" in names:
        message = layer.lin_msg.forward(x)
        message = message if layer.directed_msg else message + layer.lin_msg_i.forward(inputs["x_i"])
        message = message if edge_attr is None else message + layer.lin_edge.forward(edge_attr)
        x = message.view(-1, layer.heads, layer.out_channels)
    return x
