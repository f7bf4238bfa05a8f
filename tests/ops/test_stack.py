"""Every backend of the EGNN stack against the plain one, in value and gradient."""

import math

import pytest
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.ops import backend_for, describe_backend, egnn_stack, fold_in, make_key, use_backend
from graphjoule.ops.backend import has_triton
from tests.ops.live_bytes import LiveBytes

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SETTING = {"c_min": 0.2, "beta": 0.1}


def random_graph(num_nodes, num_edges, seed=0):
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(0, num_nodes, (2, num_edges), generator=generator)
    return Propagation.from_edge_index(edge_index, num_nodes=num_nodes, symmetrize=True)


def star(num_leaves):
    leaves = torch.arange(1, num_leaves + 1)
    edge_index = torch.stack([torch.zeros_like(leaves), leaves])
    return Propagation.from_edge_index(edge_index, symmetrize=True)


GRAPHS = {
    "random": random_graph(53, 120),
    "odd count": random_graph(7, 9),
    "no edges": random_graph(5, 0),
    "one node": random_graph(1, 0),
    "isolated nodes": random_graph(40, 10),
    "a hub": star(300),
}


def parameters(graph, channels, num_layers, *lead, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x0 = torch.randn(*lead, graph.num_nodes, channels, generator=generator)
    noise = torch.randn(*lead, num_layers, channels, channels, generator=generator)
    weights = torch.eye(channels) + 0.1 * noise
    shifts = 0.3 * torch.randn(*lead, num_layers, channels, generator=generator)
    return x0, weights, shifts


def value_and_gradients(backend, tensors, graph, device, **setting):
    x0, weights, shifts = (t.to(device).requires_grad_() for t in tensors)
    with use_backend(backend):
        out = egnn_stack(x0, graph.to(device), weights, shifts, **SETTING, **setting)
    pull = torch.linspace(-1, 1, out.numel(), device=device).view(out.shape).sin()
    return [t.detach().cpu() for t in (out, *torch.autograd.grad((out * pull).sum(), (x0, weights, shifts)))]


def fast_body(device):
    return "triton" if device == "cuda" else "cpu"


def relative(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("p", [0.0, 0.6])
@pytest.mark.parametrize("channels", [16, 5, 64])
def test_fused_equals_reference(name, p, channels, device):
    graph, num_layers = GRAPHS[name], 4
    tensors = parameters(graph, channels, num_layers)
    keys = fold_in(make_key(3), torch.arange(num_layers, dtype=torch.int32)).to(device)
    setting = {"p": p, "keys": keys}
    fast = value_and_gradients(fast_body(device), tensors, graph, device, **setting)
    plain = value_and_gradients("reference", tensors, graph, device, **setting)
    for ours, truth in zip(fast, plain, strict=True):
        assert relative(ours, truth) < 1e-5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("segment", [1, 2, 3, 5])
def test_checkpoint_segments_change_nothing_to_the_bit(segment, device):
    graph, num_layers = GRAPHS["random"], 5
    tensors = parameters(graph, 16, num_layers)
    keys = fold_in(make_key(0), torch.arange(num_layers, dtype=torch.int32)).to(device)
    backend = fast_body(device)
    whole = value_and_gradients(backend, tensors, graph, device, p=0.5, keys=keys)
    pieces = value_and_gradients(backend, tensors, graph, device, p=0.5, keys=keys, segment=segment)
    for a, b in zip(pieces, whole, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("device", DEVICES)
def test_many_runs_equal_each_alone(device):
    graph, num_layers, runs = GRAPHS["random"], 3, 4
    x0, weights, shifts = (t.to(device) for t in parameters(graph, 16, num_layers, runs))
    keys = fold_in(make_key(torch.arange(runs))[:, None], torch.arange(num_layers, dtype=torch.int32)).to(device)
    on_device = graph.to(device)

    def stack(x0, weights, shifts, keys):
        return egnn_stack(x0, on_device, weights, shifts, **SETTING, p=0.4, keys=keys)

    together = torch.vmap(stack)(x0, weights, shifts, keys)
    alone = torch.stack([stack(*one) for one in zip(x0, weights, shifts, keys, strict=True)])
    torch.testing.assert_close(together, alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_linear_layers_have_no_shift(device):
    graph = GRAPHS["random"]
    x0, weights, _ = (t.to(device) for t in parameters(graph, 16, 3))
    weights.requires_grad_()
    outs, grads = [], []
    for backend in (fast_body(device), "reference"):
        with use_backend(backend):
            out = egnn_stack(x0, graph.to(device), weights, None, **SETTING)
        outs.append(out.detach().cpu())
        grads.append(torch.autograd.grad(out.sin().sum(), weights)[0].cpu())
    assert relative(*outs) < 1e-5
    assert relative(*grads) < 1e-5


def test_a_not_finite_value_stays_visible():
    graph = GRAPHS["random"]
    x0, weights, shifts = parameters(graph, 16, 2)
    x0[3, 4] = math.nan
    out = egnn_stack(x0, graph, weights, shifts, **SETTING)
    assert not torch.isfinite(out).all()


def test_float64_falls_back_to_the_reference_and_passes_gradcheck():
    graph = random_graph(6, 8).to(dtype=torch.float64)
    tensors = [t.double().requires_grad_() for t in parameters(graph, 3, 2)]
    keys = fold_in(make_key(1), torch.arange(2, dtype=torch.int32))
    assert backend_for(tensors[0]) == "reference"
    assert torch.autograd.gradcheck(
        lambda x0, w, b: egnn_stack(x0, graph, w, b, **SETTING, p=0.3, keys=keys), tensors, eps=1e-6, atol=1e-8
    )


def test_bodies_are_chosen_in_one_place_and_named():
    x = torch.zeros(1)
    assert backend_for(x) == "cpu"
    assert "cpu (fused" in describe_backend(torch.device("cpu"))
    with use_backend("reference"):
        assert backend_for(x) == "reference"
    assert backend_for(x) == "cpu"
    with pytest.raises(GraphjouleError, match="reference, cpu, triton"), use_backend("fast"):
        pass


def test_a_thousand_layers_keep_at_most_eighty_activations():
    num_layers, channels = 1024, 16
    graph = random_graph(300, 900)
    x0, weights, shifts = (t.requires_grad_() for t in parameters(graph, channels, num_layers))
    keys = fold_in(make_key(0), torch.arange(num_layers, dtype=torch.int32))
    activation = graph.num_nodes * channels * 4
    parameters_bytes = weights.numel() * 4 + shifts.numel() * 4
    with LiveBytes() as live:
        out = egnn_stack(x0, graph, weights, shifts, **SETTING, p=0.5, keys=keys, segment=32)
        torch.autograd.grad(out.sum(), (x0, weights, shifts))
    # The gradients of the parameters are as large as the parameters and not activations.
    assert (live.peak - parameters_bytes) / activation <= 80
    assert (live.peak - parameters_bytes) / activation > 32  # or the counter does not count


def test_without_segments_one_activation_per_layer_is_kept():
    num_layers, channels = 128, 16
    graph = random_graph(300, 900)
    x0, weights, shifts = (t.requires_grad_() for t in parameters(graph, channels, num_layers))
    keys = fold_in(make_key(0), torch.arange(num_layers, dtype=torch.int32))
    with LiveBytes() as live:
        out = egnn_stack(x0, graph, weights, shifts, **SETTING, p=0.5, keys=keys)
        bits = num_layers / 32  # where each SReLU is active, one bit per element
        assert live.now / (graph.num_nodes * channels * 4) <= num_layers + bits + 1.5
        del out


@pytest.mark.skipif(not has_triton(), reason="Triton is not installed")
@pytest.mark.gpu
def test_triton_repeats_to_the_bit():
    graph = star(5000)
    tensors = parameters(graph, 64, 3)
    keys = fold_in(make_key(0), torch.arange(3, dtype=torch.int32)).cuda()
    first, second = (value_and_gradients("triton", tensors, graph, "cuda", p=0.5, keys=keys) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
