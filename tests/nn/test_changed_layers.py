"""A layer that was changed is computed as it is now; the fused stack computes those alone that it was made for."""

import copy
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrize, prune

from graphjoule.graph import Propagation
from graphjoule.measures.energy import dirichlet_energy
from graphjoule.nn import EGNN, GCNII, EGNNConv, GCNIIConv, SReLU, Wave, egnn
from graphjoule.ops import dropout, make_key, split_key, use_backend
from graphjoule.trace import Trace
from tests.graphs import normal, random_edges

EDGES, NUM_LAYERS, WIDTH = random_edges(12, 20, weighted=True), 4, 4
X = normal(12, 5)


def build(kind, **options):
    """A float32 model with random weights and shifts, so that a stack has something to get wrong."""
    model = {"egnn": EGNN, "gcnii": GCNII}[kind](5, WIDTH, 3, NUM_LAYERS, dropout=0.5, **options)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5, generator=generator)
    return model


# Layers from their formula, dense and in float64. A change returns the formula of the changed layer.


def dense_layer(conv, x, x0, p, key, activation):
    x = dropout(x, conv.dropout, key)
    weight = conv.weight.detach().double()
    if isinstance(conv, GCNIIConv):
        weight = conv.identity * torch.eye(WIDTH) + (1 - conv.identity) * weight
    c_min, beta = float(conv.c_min), float(conv.beta)
    return activation(((1 - c_min) * p @ x + (c_min - beta) * x + beta * x0) @ weight)


def stock_activation(conv):
    act = getattr(conv, "activation", None)
    if act is None or isinstance(act, nn.ReLU):
        return lambda z: z.clamp(min=0)
    return lambda z: torch.maximum(z, act.shift.detach().double()) if isinstance(act, SReLU) else z


def plain(conv):
    """The layer's formula with the settings that it has when it is called."""
    return lambda x, x0, p, key: dense_layer(conv, x, x0, p, key, stock_activation(conv))


def with_activation(conv, activation):
    return lambda x, x0, p, key: dense_layer(conv, x, x0, p, key, activation)


def twice(layer):
    return lambda x, x0, p, key: 2 * layer(x, x0, p, key)


def set_c_min(model, k):
    model.convs[k].c_min = 0.9
    return plain(model.convs[k])


def set_beta(model, k):
    model.convs[k].beta = 0.03
    return plain(model.convs[k])


def set_dropout(model, k):
    model.convs[k].dropout = 0.2
    return plain(model.convs[k])


def set_c_min_to_a_tensor(model, k):
    model.convs[k].c_min = torch.tensor(0.75)
    return plain(model.convs[k])


def set_identity(model, k):
    model.convs[k].identity = 0.3
    return plain(model.convs[k])


def replace_forward(model, k):
    conv, old = model.convs[k], model.convs[k].forward
    conv.forward = lambda *given: 2 * old(*given)
    return twice(plain(conv))


class _DoubledEGNN(EGNNConv):
    def forward(self, *given):
        return 2 * super().forward(*given)


class _DoubledGCNII(GCNIIConv):
    def forward(self, *given):
        return 2 * super().forward(*given)


def take_a_subclass(model, k):
    kind = _DoubledEGNN if isinstance(model, EGNN) else _DoubledGCNII
    changed = kind(WIDTH, dropout=0.5)
    with torch.no_grad():
        changed.weight.copy_(model.convs[k].weight)
    model.convs[k] = changed
    return twice(plain(changed))


class _Foreign(nn.Module):
    def forward(self, x, x0, graph, key=None):
        return 0.5 * x + x0


def take_a_layer_of_ones_own(model, k):
    model.convs[k] = _Foreign()
    return lambda x, x0, p, key: 0.5 * x + x0


class _Symmetric(nn.Module):
    def forward(self, weight):
        return weight + weight.t()


def parametrize_the_weight(model, k):
    parametrize.register_parametrization(model.convs[k], "weight", _Symmetric())
    return plain(model.convs[k])


def prune_the_weight(model, k):
    prune.l1_unstructured(model.convs[k], "weight", amount=6)
    return plain(model.convs[k])


def hook_the_output(model, k):
    model.convs[k].register_forward_hook(lambda module, given, out: 2 * out)
    return twice(plain(model.convs[k]))


def hook_the_input(model, k):
    model.convs[k].register_forward_pre_hook(lambda module, given: (3 * given[0], *given[1:]))
    layer = plain(model.convs[k])
    return lambda x, x0, p, key: layer(3 * x, x0, p, key)


def put_a_norm_in(model, k):
    model.convs[k].norm = nn.Hardtanh(-0.1, 0.1)
    activation = stock_activation(model.convs[k])
    return with_activation(model.convs[k], lambda z: activation(z.clamp(-0.1, 0.1)))


def take_another_activation(model, k):
    model.convs[k].activation = nn.Tanh()
    return with_activation(model.convs[k], torch.tanh)


def take_no_activation(model, k):
    model.convs[k].activation = nn.Identity()
    return plain(model.convs[k])


def take_relu(model, k):
    model.convs[k].activation = nn.ReLU()
    return plain(model.convs[k])


def take_one_shift_for_all_channels(model, k):
    model.convs[k].activation = SReLU(1, 0.2)
    return plain(model.convs[k])


class _DoubledSReLU(SReLU):
    def forward(self, z):
        return 2 * super().forward(z)


def take_a_subclass_of_the_activation(model, k):
    model.convs[k].activation = _DoubledSReLU(WIDTH, 0.1)
    return twice(plain(model.convs[k]))


def replace_the_activations_forward(model, k):
    model.convs[k].activation.forward = torch.sin
    return with_activation(model.convs[k], torch.sin)


def parametrize_the_shift(model, k):
    class Negative(nn.Module):
        def forward(self, shift):
            return -shift.exp()

    parametrize.register_parametrization(model.convs[k].activation, "shift", Negative())
    return plain(model.convs[k])


def hook_the_activation(model, k):
    model.convs[k].activation.register_forward_hook(lambda module, given, out: 2 * out)
    return twice(plain(model.convs[k]))


ANY = [
    *(set_c_min, set_beta, set_dropout, set_c_min_to_a_tensor, replace_forward, take_a_subclass),
    *(take_a_layer_of_ones_own, parametrize_the_weight, prune_the_weight, hook_the_output, hook_the_input),
    put_a_norm_in,
]
OF_THE_ACTIVATION = [
    *(take_another_activation, take_no_activation, take_relu, take_one_shift_for_all_channels),
    *(take_a_subclass_of_the_activation, replace_the_activations_forward, parametrize_the_shift, hook_the_activation),
]
CHANGES = [("egnn", change) for change in ANY + OF_THE_ACTIVATION] + [("gcnii", change) for change in ANY]
CHANGES.append(("gcnii", set_identity))
every_change = pytest.mark.parametrize(("kind", "change"), CHANGES, ids=lambda v: getattr(v, "__name__", v))


def dense_scores(model, layers, keys):
    """Encoder, the layers' formulas, head, in float64."""

    def linear(module, x):
        return x @ module.weight.detach().double().t() + module.bias.detach().double()

    p = EDGES.dense()
    h = x0 = linear(model.encoder.first, dropout(X, model.encoder.dropout, keys[0])).clamp(min=0)
    for layer, key in zip(layers, keys[1:-1], strict=True):
        h = layer(h, x0, p, key)
    return linear(model.head, dropout(h, model.output_dropout, keys[-1]))


@every_change
@settings(deadline=None, max_examples=8)
@given(
    k=st.integers(0, NUM_LAYERS - 1),
    is_training=st.booleans(),
    has_gradient=st.booleans(),
    num_runs=st.sampled_from([None, 2]),
    backend=st.sampled_from(["cpu", "reference"]),
)
def test_a_changed_layer_is_computed_as_it_is_with_and_without_a_trace(
    kind, change, k, is_training, has_gradient, num_runs, backend
):
    model, graph = build(kind), EDGES.graph()
    layers = [plain(conv) for conv in model.convs]
    layers[k] = change(model, k)
    model.train(is_training)
    keys = make_key(torch.arange(num_runs or 1))
    expected = [
        dense_scores(model, layers, split_key(key if is_training else None, NUM_LAYERS + 2)).float() for key in keys
    ]
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    watched = ["encoder", *(f"convs.{i}" for i in range(NUM_LAYERS)), "head"]

    def scores():
        if num_runs is None:
            return model(X.float(), graph, key=keys[0])[None]
        many = {name: torch.stack([value.detach()] * num_runs) for name, value in state.items()}
        return torch.vmap(lambda one, key: functional_call(model, one, (X.float(), graph), {"key": key}))(many, keys)

    with torch.set_grad_enabled(has_gradient), use_backend(backend):
        for tracing in (nullcontext(), Trace(model, graph, watch=watched)):
            with tracing:
                torch.testing.assert_close(scores().detach(), torch.stack(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "part"), [("egnn", "layer"), ("egnn", "activation"), ("gcnii", "layer")])
def test_a_class_that_was_given_another_forward_is_computed_by_it(monkeypatch, kind, part):
    model, graph = build(kind).eval(), EDGES.graph()
    expected = dense_scores(model, [twice(plain(conv)) for conv in model.convs], [None] * (NUM_LAYERS + 2)).float()
    owner = type(model.convs[0] if part == "layer" else model.convs[0].activation)
    old = owner.forward
    monkeypatch.setattr(owner, "forward", lambda self, *given: 2 * old(self, *given))
    for has_gradient in (True, False):
        with torch.set_grad_enabled(has_gradient):
            torch.testing.assert_close(model(X.float(), graph).detach(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["egnn", "gcnii"])
@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_a_hook_on_a_layers_gradient_is_called(kind, register):
    model, graph, seen = build(kind).eval(), EDGES.graph(), []
    model(X.float(), graph).square().sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    getattr(model.convs[1], register)(lambda module, *gradients: seen.append(module))
    model(X.float(), graph).square().sum().backward()
    assert seen == [model.convs[1]]
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_what_a_hook_on_a_layers_norm_keeps_is_not_written_over():
    conv, graph, seen = EGNNConv(4, batch_norm=True, srelu_init=0.1).eval(), EDGES.graph(), []
    x = normal(12, 4, dtype=torch.float32)
    conv.norm.register_forward_hook(lambda module, given, out: seen.extend([out, out.clone()]))
    conv(x, x, graph)
    assert seen[0].equal(seen[1])


# The stack is used where it may be.


@pytest.fixture
def stacked(monkeypatch) -> list[int]:
    """The depth of every stack that was called."""
    depths, stack = [], egnn.egnn_stack

    def spy(*given, weights, **options):
        depths.append(len(weights))
        return stack(*given, weights=weights, **options)

    monkeypatch.setattr(egnn, "egnn_stack", spy)
    return depths


def untouched(model):
    return model


def copied(model):
    return copy.deepcopy(model)


def with_a_note(model):
    model.convs[1].note = "an attribute that nothing reads"
    return model


def with_a_hook_taken_off(model):
    model.convs[1].register_forward_hook(lambda module, given, out: 2 * out).remove()
    return model


def with_one_setting_for_all_layers(model):
    for conv in model.convs:
        conv.c_min, conv.beta, conv.dropout = 0.5, 0, 0.3
    return model


def with_a_frozen_layer(model):
    model.convs[1].requires_grad_(False)
    return model.train()


@pytest.mark.parametrize("options", [{}, {"activation": "relu"}, {"activation": "linear"}], ids=str)
@pytest.mark.parametrize(
    "prepare",
    [untouched, copied, with_a_note, with_a_hook_taken_off, with_one_setting_for_all_layers, with_a_frozen_layer],
)
def test_layers_that_are_alike_are_one_stack(stacked, options, prepare):
    for model in (build("egnn", **options), build("gcnii")):
        prepare(model)(X.float(), EDGES.graph())
    assert stacked == [NUM_LAYERS] * 2


@every_change
def test_a_network_with_a_changed_layer_plans_for_the_memory_of_its_layers_one_by_one(kind, change):
    model = build(kind)
    stacked_plan, plan = (model.kept_activations(is_fused=is_fused) for is_fused in (True, False))
    change(model, 1)
    assert stacked_plan < plan
    assert model.kept_activations(is_fused=True) == (stacked_plan if change in (take_relu, set_identity) else plan)


# Those who only look on are shown the layers of a stack.


@pytest.mark.parametrize("measures", [("energy",), ("rayleigh", "energy", "norm", "effective_rank")], ids=len)
@pytest.mark.parametrize("num_nodes", [12, 4200])  # of many nodes, energies come from the products of the next layer
@pytest.mark.parametrize("kind", ["egnn", "gcnii", "wave"])
@torch.no_grad()
def test_a_trace_of_a_stack_has_the_rows_of_its_layers_one_by_one(stacked, kind, num_nodes, measures):
    graph = random_edges(num_nodes, 2 * num_nodes).graph()
    model = {"egnn": EGNN, "gcnii": GCNII, "wave": Wave}[kind](5, 64, 3, 3).eval()
    x = normal(num_nodes, 5, dtype=torch.float32)
    plain = model(x, graph)
    with Trace(model, None, measures) as shown:
        assert model(x, graph).equal(plain)
    assert len(stacked) == (0 if kind == "wave" else 2)
    model.convs[0].register_forward_hook(lambda module, given, out: None)  # might change something
    with Trace(model, graph, measures) as one_by_one:
        model(x, graph)
    for row, expected in zip(shown.layers, one_by_one.layers, strict=True):
        assert (row.name, row.module, row.channels) == (expected.name, expected.module, expected.channels)
        assert row.values == pytest.approx(expected.values, rel=1e-5)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_is_shown_again_in_the_same_memory_is_another_row(mode):
    model, graph = build("egnn").eval(), EDGES.graph()
    with mode(), Trace(model, graph) as trace:
        model(X.float(), graph)
    assert [row.name for row in trace.layers if row.name.startswith("convs")] == [
        f"convs.{k}" for k in range(NUM_LAYERS)
    ]


@torch.no_grad()
def test_each_graph_of_a_batch_has_its_own_numbers_in_a_stack_too():
    num_nodes = 9000
    halves = [random_edges(num_nodes // 2, 9000, seed=k) for k in range(2)]
    index = torch.cat([halves[0].index, halves[1].index + num_nodes // 2], dim=1)
    graph = Propagation.from_edge_index(index, num_nodes=num_nodes, symmetrize=True)
    model, x = EGNN(5, 64, 3, 2).eval(), normal(num_nodes, 5, dtype=torch.float32)

    class Batched(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x, graph, batch):
            return self.inner(x, graph)

    batch = (torch.arange(num_nodes) >= num_nodes // 2).long()
    with Trace(Batched().eval(), graph, ["energy"], watch=["inner.convs.*"], by_graph=True) as trace:
        trace._model(x, graph, batch)
    h = x0 = model.encoder(x)
    for k, conv in enumerate(model.convs):
        h = conv(h, x0, graph)
        for number, half in enumerate(halves):
            rows = slice(number * num_nodes // 2, (number + 1) * num_nodes // 2)
            on = Propagation.from_edge_index(half.index, num_nodes=num_nodes // 2, symmetrize=True)
            (row,) = [r for r in trace.layers if (r.name, r.part) == (f"inner.convs.{k}", f"graph {number}")]
            assert row.energy == pytest.approx(float(dirichlet_energy(h[rows], on)), rel=1e-4)


def test_with_gradients_and_in_training_layers_are_called_one_by_one(stacked):
    model, graph = build("egnn"), EDGES.graph()
    with Trace(model, graph, gradients=True):
        model.eval()(X.float(), graph)
    with torch.no_grad(), Trace(model, graph):
        model.train()(X.float(), graph)
    with Trace(model, graph):
        model.eval()(X.float(), graph)
    assert stacked == []


def test_a_part_that_is_looked_at_is_called(stacked):
    model, graph = build("egnn").eval(), EDGES.graph()
    with torch.no_grad(), Trace(model, graph, watch=["convs.*.activation"]) as trace:
        model(X.float(), graph)
    assert len(trace.layers) == NUM_LAYERS
    assert stacked == []
