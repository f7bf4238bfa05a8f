import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.relations import DirectedPropagation, MixedPropagation
from graphjoule.ops import use_backend, wave, wave_layer, wave_stack, wave_start
from tests.graphs import edge_lists, few, no_edges, normal, random_edges
from tests.ops.live_bytes import LiveBytes

EDGES = random_edges(weighted=True)
SETTINGS = [  # h, delta, mu; the largest eigenvalue of I - P + mu I is below 2 + mu
    (0.9, 0.0, 0.0),
    (1.1, 0.3, 0.1),
    (1.2, 0.0, 0.5),
    (0.8, 1.0, 0.2),
]
SPEEDS = [None, torch.tensor([0.25, 0.5, 1.0], dtype=torch.float64)]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def dense_wave(p, x0, num_layers, h, delta, mu, speed=None):
    """The recursion with a dense P, in float64."""
    c = 1.0 if speed is None else speed
    x, v = x0, h / (2 - delta) * c * (x0 - p @ x0)
    for _ in range(num_layers):
        v = (1 - delta) * v - h * (c * (x - p @ x) + mu * (x - x0))
        x = x + h * v
    return x


def closed_form(p, x0, num_layers, h, delta, mu):
    """The same mode by mode: a 2 x 2 matrix to the power of the depth for every eigenvalue of P."""
    value, vector = torch.linalg.eigh(p)
    out = torch.zeros_like(x0)
    for k, eigenvalue in enumerate(value.tolist()):
        a = 1 - eigenvalue + mu
        one = torch.tensor([[1 - h * h * a, h * (1 - delta)], [-h * a, 1 - delta]], dtype=x0.dtype)
        power = torch.linalg.matrix_power(one, num_layers)
        ratio = power[0, 0] + power[0, 1] * h * a / (2 - delta)
        start = vector[:, k] @ x0
        rest = mu / a * start if a > 1e-14 else start
        out += torch.outer(vector[:, k], rest + ratio * (start - rest))
    return out


@few
@given(edge_lists(), st.sampled_from(SETTINGS), st.integers(1, 9), st.sampled_from(SPEEDS))
def test_the_stack_is_the_dense_recursion(edges, settings, num_layers, speed):
    h, delta, mu = settings
    x0 = normal(edges.num_nodes, 3)
    out = wave_stack(x0, edges.graph64(), num_layers, h=h, delta=delta, mu=mu, speed=speed)
    torch.testing.assert_close(
        out, dense_wave(edges.dense(), x0, num_layers, h, delta, mu, speed), rtol=1e-11, atol=1e-12
    )


@few
@given(edge_lists(), st.sampled_from(SETTINGS), st.sampled_from([1, 10, 300]))
def test_the_stack_is_the_closed_form(edges, settings, num_layers):
    h, delta, mu = settings
    x0 = normal(edges.num_nodes, 3)
    out = wave_stack(x0, edges.graph64(), num_layers, h=h, delta=delta, mu=mu)
    torch.testing.assert_close(out, closed_form(edges.dense(), x0, num_layers, h, delta, mu), rtol=1e-8, atol=1e-9)


@few
@given(edge_lists(), st.sampled_from([0.1, 0.5, 0.999]), st.sampled_from([0.0, 0.2]), st.integers(1, 40))
def test_without_damping_the_wave_is_a_chebyshev_polynomial(edges, step, mu, num_layers):
    """``X_k = X* + T_k(I - h^2 A / 2) (X_0 - X*)`` with ``A = I - P + mu I`` and ``A X* = mu X_0``."""
    x0, graph = normal(edges.num_nodes, 2), edges.graph64()
    h = step * math.sqrt(4 / (graph.laplacian_bound + mu))
    value, vector = torch.linalg.eigh(edges.dense())
    a = (1 - value + mu).clamp(min=0)
    start = vector.T @ x0
    rest = (torch.where(a > 1e-12, mu / a, 1.0)[:, None]) * start
    chebyshev = torch.cos(num_layers * torch.arccos((1 - h * h * a / 2).clamp(-1, 1)))
    expected = vector @ (rest + chebyshev[:, None] * (start - rest))
    out = wave_stack(x0, graph, num_layers, h=h, delta=0.0, mu=mu)
    torch.testing.assert_close(out, expected, rtol=1e-7, atol=1e-6)


@pytest.mark.parametrize("speed", SPEEDS, ids=["equal", "spread"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_the_gradient_is_that_of_plain_autograd_to_1e_10(settings, speed):
    h, delta, mu = settings
    graph, x0 = EDGES.graph64(), normal(9, 3).requires_grad_()
    x, v = x0, wave_start(x0, graph, h=h, delta=delta, speed=speed)
    for _ in range(40):
        x, v = wave_layer(x, v, x0, graph, h=h, delta=delta, mu=mu, speed=speed)
    target = normal(9, 3, seed=5)
    (expected,) = torch.autograd.grad((x - target).pow(3).sum(), x0)
    out = wave_stack(x0, graph, 40, h=h, delta=delta, mu=mu, speed=speed)
    (found,) = torch.autograd.grad((out - target).pow(3).sum(), x0)
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-10


def test_gradcheck_and_the_second_derivative():
    x0, graph = normal(9, 2).requires_grad_(), EDGES.graph64()

    def run(x):
        return wave_stack(x, graph, 5, h=0.9, delta=0.2, mu=0.1).square()

    assert torch.autograd.gradcheck(run, x0)
    assert torch.autograd.gradgradcheck(run, x0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("speed", SPEEDS, ids=["equal", "spread"])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("edges", [EDGES, no_edges(3), random_edges(200, 900)], ids=["weighted", "none", "hubs"])
def test_float32_by_its_fast_backend_has_the_values_and_gradients_of_float64(device, speed, settings, edges):
    h, delta, mu = settings
    graph, exact = edges.graph().to(device), edges.graph64()
    x0 = normal(edges.num_nodes, 3)
    results = []
    for start, where in ((x0, exact), (x0.float().to(device), graph)):
        start = start.clone().requires_grad_()
        speeds = None if speed is None else speed.to(start)
        out = wave_stack(start, where, 30, h=h, delta=delta, mu=mu, speed=speeds)
        (grad,) = torch.autograd.grad((out * torch.arange(1, 4).to(start)).sum(), start)
        results.append((out.detach().double().cpu(), grad.double().cpu()))
    for found, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("channels", [3, 64, 80])
def test_runs_in_one_program_are_runs_alone(device, channels):
    graph = random_edges(50, 120).graph().to(device)
    x0 = normal(4, 50, channels, dtype=torch.float32).to(device).requires_grad_()

    def run(x):
        return wave_stack(x, graph, 12, h=1.0, delta=0.1, mu=0.1)

    together = torch.vmap(run)(x0)
    (grads,) = torch.autograd.grad(together.square().sum(), x0)
    for k in range(4):
        one = x0[k].detach().requires_grad_()
        alone = run(one)
        torch.testing.assert_close(alone, together[k])
        torch.testing.assert_close(torch.autograd.grad(alone.square().sum(), one)[0], grads[k])


def test_the_reference_backend_is_the_fused_one():
    graph, x0 = EDGES.graph(), normal(9, 3, dtype=torch.float32)
    fused = wave_stack(x0, graph, 50, h=1.0, delta=0.1, mu=0.2)
    with use_backend("reference"):
        torch.testing.assert_close(wave_stack(x0, graph, 50, h=1.0, delta=0.1, mu=0.2), fused)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_memory_of_a_step_does_not_depend_on_the_depth(dtype):
    graph = random_edges(400, 900).graph(dtype=dtype)

    def peak(num_layers):
        x0 = normal(400, 8, dtype=dtype).requires_grad_()
        with LiveBytes() as live:
            wave_stack(x0, graph, num_layers, h=1.0, delta=0.1, mu=0.1).square().sum().backward()
        return live.peak

    peak(100)  # what the graph keeps is made once
    assert peak(100) == peak(4)
    assert peak(100) <= 12 * 400 * 8 * dtype.itemsize


@pytest.mark.gpu
def test_the_memory_on_a_gpu_does_not_depend_on_the_depth():
    graph = random_edges(20_000, 60_000).graph().to("cuda")

    def peak(num_layers):
        x0 = torch.randn(20_000, 64, device="cuda", requires_grad=True)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        wave_stack(x0, graph, num_layers, h=1.0, delta=0.1, mu=0.1).square().sum().backward()
        return torch.cuda.max_memory_allocated() - before

    peak(4)
    assert peak(2000) <= peak(4)


@pytest.mark.parametrize("num_layers", [20, 60])
def test_on_a_ring_a_front_moves_one_hop_a_layer_at_the_largest_stable_step(num_layers):
    ring = torch.stack([torch.arange(200), (torch.arange(200) + 1) % 200])
    graph = type(EDGES)(ring, None, 200).graph(symmetrize=True, dtype=torch.float64)
    pulse = torch.zeros(200, 1, dtype=torch.float64)
    pulse[0] = 1.0
    h = math.sqrt(4 / graph.laplacian_bound)  # marginal, and exact: sin(w / 2) = sin(k / 2)
    out = wave_stack(pulse, graph, num_layers, h=h, delta=0.0, mu=0.0).flatten()
    assert out[num_layers] == pytest.approx(0.5, abs=1e-9)
    assert float(out.abs().sum()) == pytest.approx(1.0, abs=1e-8)
    assert out[-num_layers] == pytest.approx(0.5, abs=1e-9)
    slower = wave_stack(pulse, graph, num_layers, h=0.8 * h, delta=0.0, mu=0.0).flatten()[:100].abs()
    assert abs(int(slower.argmax()) - 0.8 * num_layers) <= 3
    assert float(slower[num_layers]) == pytest.approx(0.8 ** (2 * num_layers) / 2, rel=1e-6)  # what keeps the pace


def test_features_that_do_not_fit_are_refused():
    with pytest.raises(GraphjouleError, match=r"over a graph of 9 nodes, torch.float32"):
        wave_stack(normal(9, 3), EDGES.graph(), 2, h=1.0, delta=0.0, mu=0.0)


def test_edges_that_keep_their_direction_are_refused():
    arrows = DirectedPropagation.of(torch.tensor([[0, 1, 2], [1, 2, 0]]))
    with pytest.raises(GraphjouleError, match="A wave needs edges that count in both directions"):
        wave_stack(torch.eye(3), arrows, 2, h=0.5, delta=0.1, mu=0.0)


@pytest.mark.parametrize("speed", [None, torch.arange(1, 65) / 64], ids=["equal", "spread"])
def test_many_graphs_are_taken_in_blocks_that_no_edge_joins_and_with_the_same_bits(speed, monkeypatch):
    graphs = [random_edges(num_nodes=9, num_edges=num, seed=num) for num in range(5, 13)]
    edges = torch.cat([one.index + 9 * place for place, one in enumerate(graphs)], dim=1)
    graph = Propagation.from_edge_index(edges, num_nodes=9 * len(graphs) + 2, symmetrize=True)  # two are alone
    x = torch.randn(graph.num_nodes, 64, generator=torch.Generator().manual_seed(0))
    settings = {"h": 0.9, "delta": 0.1, "mu": 0.2, "speed": speed}
    with use_backend("cpu"):
        whole = wave_stack(x, graph, 5, **settings)
        monkeypatch.setattr(wave, "_BLOCK_BYTES", 9 * 64 * 4)
        blocks = graph.blocks(8)
        assert wave_stack(x, graph, 5, **settings).equal(whole)
    assert 3 < len(blocks) <= 8
    assert [blocks[0][0], *(end for _, end in blocks)] == [*(start for start, _ in blocks), graph.num_nodes]
    place = torch.zeros(graph.num_nodes, dtype=torch.long)
    place[[start for start, _ in blocks]] = 1
    row, col = place.cumsum(0)[graph.edge_index]
    assert row.equal(col)


def rings(*lengths):
    """A ring beside the other, and a node alone."""
    starts = torch.tensor([0, *lengths]).cumsum(0)
    ends = [torch.arange(length) for length in lengths]
    edges = [torch.stack([end, end.roll(-1)]) + start for end, start in zip(ends, starts.tolist(), strict=False)]
    return Propagation.from_edge_index(torch.cat(edges, dim=1), num_nodes=int(starts[-1]) + 1, symmetrize=True)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(("delta", "mu"), [(0.0, 0.0), (0.01, 0.0), (0.0, 9e-4), (0.0, 1.1e-3)])
def test_roundings_of_p_do_not_make_a_wave_grow_however_deep(backend, delta, mu):
    graph, x0 = rings(6, 9), normal(16, 3, dtype=torch.float32) + 2
    settings = {"h": 1.1, "delta": delta, "mu": mu}
    exact = wave_stack(x0.double(), graph.to(dtype=torch.float64), 3000, **settings)
    with use_backend(backend):
        out = wave_stack(x0, graph, 3000, **settings)
    assert out.norm() <= 1.001 * x0.norm()
    torch.testing.assert_close(out.double(), exact, atol=5e-3, rtol=0)


@pytest.mark.parametrize("speed", [None, torch.tensor([0.2, 0.6, 1.0]).bfloat16()])
def test_half_precision_rounds_the_result_of_float32_and_not_every_layer(speed):
    graph, x0 = rings(40), normal(41, 3, dtype=torch.float32).bfloat16() + 1
    settings = {"h": 1.1, "delta": 0.0, "mu": 0.0}
    out = wave_stack(x0, graph.to(dtype=torch.bfloat16), 64, **settings, speed=speed)
    whole = None if speed is None else speed.double()
    exact = wave_stack(x0.double(), graph.to(dtype=torch.float64), 64, **settings, speed=whole)
    assert out.dtype == torch.bfloat16
    assert out.float().norm() <= 1.01 * x0.float().norm()
    assert (out.double() - exact).norm() < 0.2 * exact.norm()  # the entries of P are those of bfloat16


@pytest.mark.parametrize("mu", [0.0, 0.1])
def test_no_layers_change_nothing(mu):
    x0 = normal(9, 3)
    assert wave_stack(x0, EDGES.graph64(), 0, h=1.0, delta=0.1, mu=mu).equal(x0)


def test_edges_of_several_types_are_taken_in_half_precision_too():
    graph = MixedPropagation.of([EDGES.graph(), random_edges(9, 7, seed=1).graph()])
    x0, settings = normal(9, 3, dtype=torch.float32), {"h": 1.0, "delta": 0.0, "mu": 0.1}
    out = wave_stack(x0.bfloat16(), graph.to(dtype=torch.bfloat16), 70, **settings)
    torch.testing.assert_close(out.float(), wave_stack(x0, graph, 70, **settings), atol=0.3, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_layers", [10, 65])
def test_on_a_part_of_a_graph_the_stack_is_the_recursion_too(dtype, num_layers):
    """A node without all of its neighbours feels a pull along ``sqrt(1 + d)``, so nothing is held there."""
    whole = random_edges(60, 150).graph64()
    part, x0 = whole.induced(torch.arange(0, 60, 2)), normal(30, 3)
    truth = dense_wave(part.to_dense(), x0, num_layers, 0.9, 0.0, 0.0)
    found = wave_stack(x0.to(dtype), part.to(dtype=dtype), num_layers, h=0.9, delta=0.0, mu=0.0)
    off = torch.linalg.vector_norm(found.double() - truth) / torch.linalg.vector_norm(truth)
    assert off < (1e-5 if dtype == torch.float32 else 0.1)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_part_of_a_graph_does_not_keep_what_flows_out_of_it(backend, dtype):
    part = rings(40).induced(torch.arange(30)).to(dtype=dtype)
    x0 = (normal(30, 3, dtype=torch.float32) + 1).to(dtype)
    settings = {"h": 0.9, "delta": 0.1, "mu": 0.0}
    exact = dense_wave(part.to_dense().double(), x0.double(), 200, **settings)
    with use_backend(backend):
        out = wave_stack(x0, part, 200, **settings)
    assert exact.norm() < 0.1 * x0.norm()
    torch.testing.assert_close(out.double(), exact, atol=1e-5, rtol=0.01 if dtype == torch.bfloat16 else 1e-5)
