import copy

import pytest
import torch

from graphjoule import Trace
from graphjoule.errors import GraphjouleError
from graphjoule.nn import APPNP, Wave, WaveConv
from graphjoule.ops import make_key
from tests.graphs import Edges, no_edges, normal, random_edges
from tests.ops.live_bytes import LiveBytes

EDGES = random_edges(weighted=True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"step": 1.0}, r"step is 1.0; it must be above 0 and below 1"),
        ({"step": 0.0}, r"step is 0.0; it must be above 0"),
        ({"step": torch.nan}, "step is nan"),
        ({"delta": 1.1}, r"delta is 1.1; it must be in \[0, 1\]"),
        ({"mu": -0.1}, "mu is -0.1; it must be 0 or more"),
        ({"mu": torch.inf}, "mu is inf"),
        ({"speeds": "fast"}, "speeds is 'fast'; choose one of equal, spread"),
        ({"head": "deep"}, "head is 'deep'; choose one of linear, mlp"),
        ({"output_dropout": 1.0}, "output_dropout is 1.0"),
    ],
)
def test_what_is_not_stable_or_unknown_is_refused(options, sentence):
    with pytest.raises(GraphjouleError, match=sentence):
        Wave(5, 4, 3, 2, **options)


@pytest.mark.parametrize("edges", [EDGES, no_edges(4), random_edges(30, 100)], ids=["weighted", "none", "dense"])
@pytest.mark.parametrize("delta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_the_step_is_below_the_largest_that_is_stable_on_the_graph(edges, delta, mu):
    """Eigenvalues of a layer as a linear map lie in the unit disc, those of the exact largest step on its rim."""
    conv = WaveConv(0.999, delta, mu)
    h = conv.h(edges.graph64())
    eigenvalues = 1 - torch.linalg.eigvalsh(edges.dense()) + mu
    assert h**2 * float(eigenvalues.max()) < 2 * (2 - delta)
    for a in eigenvalues.tolist():
        layer = torch.tensor([[1 - h * h * a, h * (1 - delta)], [-h * a, 1 - delta]], dtype=torch.float64)
        assert float(torch.linalg.eigvals(layer).abs().max()) <= 1 + 1e-7


def test_a_trace_sees_every_layer_and_changes_nothing():
    model, graph, x = Wave(5, 4, 3, 7).double().eval(), EDGES.graph64(), normal(9, 5)
    scores = model(x, graph)
    with torch.no_grad(), Trace(model, graph, ["energy"], watch=["encoder", "convs.*"]) as trace:
        torch.testing.assert_close(model(x, graph), scores, rtol=1e-12, atol=1e-13)
    assert [layer.name for layer in trace.layers] == ["encoder", *(f"convs.{k}" for k in range(7))]
    assert all(layer.energy <= trace.layers[0].energy * (1 + 1e-12) for layer in trace.layers)


def test_a_layer_that_was_changed_is_called_as_it_is():
    model, graph, x = Wave(5, 4, 3, 4).double().eval(), EDGES.graph64(), normal(9, 5)
    plain = model(x, graph)
    other = copy.deepcopy(model)
    other.convs[2].delta = 0.9
    assert not torch.allclose(other(x, graph), plain)
    other.convs[2].delta = model.convs[2].delta
    other.convs[1].register_forward_hook(lambda module, given, out: (out[0] * 0, out[1]))
    assert not torch.allclose(other(x, graph), plain)


def test_full_damping_at_one_step_is_appnp():
    """With delta = 1 and h^2 = 1 / (1 + mu) a layer is ``(P X + mu X_0) / (1 + mu)``: alpha = mu / (1 + mu)."""
    mu, graph = 0.25, EDGES.graph64()
    bound = graph.laplacian_bound + mu
    step = (bound / (2 * (1 + mu))) ** 0.5
    model = Wave(5, 4, 3, 6, step=step, delta=1.0, mu=mu).double().eval()
    x0 = normal(9, 4)
    z = x0
    for conv in APPNP(5, 4, 3, 6, alpha=mu / (1 + mu), edge_dropout=0.0).convs:
        z = conv(z, x0, graph)
    torch.testing.assert_close(model.propagated(x0, graph), z, rtol=1e-12, atol=1e-13)


def test_a_training_step_of_any_depth_takes_the_memory_of_a_few_layers():
    graph, x = random_edges(300, 700).graph(), normal(300, 5, dtype=torch.float32)

    def peak(num_layers):
        model = Wave(5, 8, 3, num_layers)
        with LiveBytes() as live:
            model(x, graph, key=make_key(0)).square().sum().backward()
        return live.peak

    peak(1)
    assert peak(24) - peak(4) <= 24 * 3 * 8  # dropout keys, two numbers a layer
    assert Wave(5, 8, 3, 1000).kept_activations(is_fused=True) == Wave(5, 8, 3, 4).kept_activations(is_fused=True)


@pytest.mark.parametrize(("dtype", "num_layers", "off"), [(torch.float32, 2000, 1e-3), (torch.bfloat16, 64, 0.1)])
def test_a_wave_without_a_force_does_not_grow_under_hooks_that_only_read(dtype, num_layers, off):
    """A trace of gradients needs the layers one by one, and a wave must not depend on who looks."""
    ring = Edges(torch.stack([torch.arange(60), torch.arange(1, 61) % 60]), None, 60)
    graph, x = ring.graph(symmetrize=True), normal(60, 5).to(dtype)
    model = Wave(5, 4, 3, num_layers, delta=0.0, mu=0.0).eval().to(dtype)
    with torch.no_grad():
        with Trace(model, watch=["convs.0"], gradients=True):
            seen = model(x, graph.to(dtype=dtype))
        exact = model.double()(x.double(), ring.graph(symmetrize=True, dtype=torch.float64))
    assert float((seen.double() - exact).norm() / exact.norm()) < off


def test_the_gradient_is_the_same_where_layers_are_called_one_by_one():
    graph, x = EDGES.graph(), normal(9, 5).float()
    model = Wave(5, 4, 3, 150, delta=0.0, mu=0.0).eval()
    parameters = dict(model.named_parameters())

    def gradient(parameters):
        return torch.func.grad(lambda p: torch.func.functional_call(model, p, (x, graph)).sin().sum())(parameters)

    plain = gradient(parameters)
    many = {name: torch.stack([p, 2 * p]).detach() for name, p in parameters.items()}
    with Trace(model, watch=["convs.0"], gradients=True):
        seen, of_runs = gradient(parameters), torch.vmap(gradient)(many)
    for name, expected in plain.items():
        torch.testing.assert_close(seen[name], expected, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(of_runs[name][0], expected, rtol=1e-3, atol=1e-4)


def test_what_a_hook_changes_in_a_deep_wave_stays_changed():
    graph, x = EDGES.graph64(), normal(9, 5)
    model = Wave(5, 4, 3, 70, delta=0.0, mu=0.0).double().eval()
    x0 = model.encoder(x)
    kernel = (1 + graph.degree).sqrt()[:, None].expand(-1, 4)
    plain = model.propagated(x0, graph)
    with model.convs[9].register_forward_hook(lambda module, inputs, output: (output[0] + kernel, output[1])):
        changed = model.propagated(x0, graph)
    torch.testing.assert_close(changed, plain + kernel)  # there nothing pulls it back
