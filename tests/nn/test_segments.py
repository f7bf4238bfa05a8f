import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from graphjoule import EnergyConstraint, Trace
from graphjoule.nn import MODELS, segments
from graphjoule.ops import make_key
from graphjoule.training import CapturedStep
from tests.graphs import normal, random_edges
from tests.ops.live_bytes import LiveBytes

GRAPH, X = random_edges(30, 60).graph(), normal(30, 6, dtype=torch.float32)
LEAN = [
    ("gcn", {}),
    ("gcn", {"batch_norm": True}),
    ("pairnorm", {}),
    ("jknet", {}),
    ("jknet", {"batch_norm": True}),
    ("dropedge", {}),
    ("resgcn", {}),
]
every_lean_model = pytest.mark.parametrize(("name", "options"), LEAN, ids=str)


def build(name, num_layers=8, checkpoint=None, **options):
    torch.manual_seed(0)
    model = MODELS[name](6, 8, 3, num_layers, **options)
    model.checkpoint = checkpoint
    return model


@pytest.fixture
def parts(monkeypatch) -> list[int]:
    """How many tensors went into each part that is computed again."""
    found, recompute = [], segments.recompute
    monkeypatch.setattr(segments, "recompute", lambda part, *t: (found.append(len(t)), recompute(part, *t))[1])
    return found


@every_lean_model
def test_scores_gradients_and_buffers_are_the_same_to_the_bit(parts, name, options):
    found = []
    for checkpoint in (None, 3):
        model = build(name, checkpoint=checkpoint, **options)
        scores = model(X, GRAPH, key=make_key(1))
        scores.square().sum().backward()
        found.append([scores.detach(), *(p.grad for p in model.parameters()), *model.buffers()])
    assert len(parts) == 3
    assert all(a.equal(b) for a, b in zip(*found, strict=True))


@every_lean_model
def test_so_are_those_of_many_runs(name, options):
    found = []
    for checkpoint in (None, 3):
        model, keys = build(name, checkpoint=checkpoint, **options), make_key(torch.tensor([1, 2]))
        weights = {k: torch.stack([w.detach(), 1.1 * w.detach()]).requires_grad_() for k, w in model.named_parameters()}
        buffers = {k: torch.stack([b, b]) for k, b in model.named_buffers()}
        call = lambda w, b, key: functional_call(model, {**w, **b}, (X, GRAPH), {"key": key})  # noqa: B023, E731
        scores = torch.vmap(call)(weights, buffers, keys)
        found.append([scores.detach(), *torch.autograd.grad(scores.square().sum(), list(weights.values()))])
        found[-1] += buffers.values()
    assert all(a.equal(b) for a, b in zip(*found, strict=True))


def test_beyond_64_layers_segments_are_the_root_of_the_depth(parts):
    for num_layers in (64, 65):
        build("gcn", num_layers, "auto")(X, GRAPH)
    assert parts == [1 + 8 + 2 * 8] * 8
    build("gcn", 65, "auto").eval()(X, GRAPH).sum().backward()  # without dropout there are no keys
    assert parts[8:] == [1 + 2 * 8] * 8
    with torch.no_grad():
        build("gcn", 65, "auto")(X, GRAPH)
    assert len(parts) == 16


def add_hook(model):
    model.convs[2].register_forward_hook(lambda module, given, out: 2 * out)


def trace(model):
    Trace(model, GRAPH).__enter__()


def constrain(model):
    EnergyConstraint(model, GRAPH)


def change_a_norm(model):
    model.convs[2].norm = torch.nn.Dropout(0.5)


def parametrize(model):
    torch.nn.utils.parametrizations.spectral_norm(model.convs[2].linear)


@pytest.mark.parametrize("change", [add_hook, trace, constrain, change_a_norm, parametrize])
def test_what_may_see_or_change_a_layer_has_it_called_once_by_itself(parts, change):
    model = build("gcn", checkpoint=3)
    change(model)
    model(X, GRAPH, key=make_key(0)).sum().backward()
    assert parts == []


def test_under_autocast_layers_are_called_once(parts):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        build("gcn", checkpoint=3)(X, GRAPH).sum().backward()
    assert parts == []


def test_a_setting_that_is_a_tensor_has_its_gradient(parts):
    model, scale = build("pairnorm", checkpoint=3), torch.tensor(2.0, requires_grad=True)
    model.convs[2].norm.scale = scale
    model(X, GRAPH, key=make_key(0)).sum().backward()
    assert parts == []
    assert scale.grad is not None


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("gcn", "pairnorm", "dropedge", "resgcn")]


@pytest.mark.parametrize("name", ["jknet", *SLOW])
def test_a_step_in_segments_needs_no_more_memory_than_planned_and_much_less_than_all_layers(name):
    graph, x = random_edges(500, 1000).graph(), normal(500, 20, dtype=torch.float32)
    model, peaks = MODELS[name](20, 32, 5, 25), []
    model(x, graph, key=make_key(0))  # makes what is kept with the graph
    for model.checkpoint in (None, 5):
        with LiveBytes() as live:
            F.cross_entropy(model(x, graph, key=make_key(0)), torch.arange(500) % 5).backward()
        model.zero_grad(set_to_none=True)
        peaks.append(live.peak)
        planned = model.kept_activations(is_fused=True) * 500 * 32 * 4 + 4 * sum(p.nbytes for p in model.parameters())
        assert 0.2 * planned < live.peak <= planned
    assert peaks[1] < 0.6 * peaks[0]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gcn", "dropedge"])
def test_a_captured_step_on_a_gpu_is_the_same_in_segments(name):
    graph, x, found = GRAPH.to("cuda"), X.cuda(), []
    for checkpoint in (None, 3):
        model, key = build(name, checkpoint=checkpoint).cuda(), make_key(0).cuda()
        gradients = [torch.zeros_like(p) for p in model.parameters()]

        def step(model=model, key=key, gradients=gradients):
            loss = model(x, graph, key=key).square().sum()
            for kept, gradient in zip(gradients, torch.autograd.grad(loss, list(model.parameters())), strict=True):
                kept.add_(gradient)

        captured = CapturedStep(step, torch.device("cuda"))
        for _ in range(5):
            captured()
        torch.cuda.synchronize()
        found.append(gradients)
    assert all(a.equal(b) for a, b in zip(*found, strict=True))
