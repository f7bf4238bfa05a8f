"""One kernel for all layers, in Triton's interpreter, where each layer is a launch; on a GPU it is one."""

import json
import os
import sys
from unittest.mock import patch

import pytest
import torch

from graphjoule.graph import Propagation
from graphjoule.ops import egnn_stack, fold_in, make_key, use_backend

DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="no kernels here")),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


def graph_of(edges):
    return Propagation.from_edge_index(edges, num_nodes=53, symmetrize=True)


RANDOM = graph_of(torch.randint(0, 53, (2, 120), generator=torch.Generator().manual_seed(0)))
HUB = graph_of(torch.stack([torch.zeros(50, dtype=torch.long), torch.arange(1, 51)]))
GRAPHS = {"random": RANDOM, "a hub and isolated nodes": HUB, "no edges": graph_of(torch.zeros(2, 0, dtype=torch.long))}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("channels", [16, 64])
@pytest.mark.parametrize("p", [0.0, 0.6])
@pytest.mark.parametrize("has_shift", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 5])
def test_it_equals_the_plain_stack_in_value_and_gradient(name, channels, p, has_shift, layers, device):
    from tools.persistent import persistent
    from tools.persistent_stack import PersistentStack, Plan

    generator = torch.Generator().manual_seed(1)
    graph, runs = GRAPHS[name].to(device), 3
    x0 = torch.randn(runs, 53, channels, generator=generator)
    weights = torch.eye(channels) + 0.1 * torch.randn(runs, layers, channels, channels, generator=generator)
    shifts = 0.3 * torch.randn(runs, layers, channels, generator=generator) if has_shift else None
    keys = fold_in(make_key(torch.arange(runs))[:, None], torch.arange(layers, dtype=torch.int32)).to(device)

    def found(backend):
        leaves = [None if t is None else t.to(device).requires_grad_() for t in (x0, weights, shifts)]
        given = [leaf for leaf in leaves if leaf is not None]

        def stack(x0, weights, *rest):
            shifts, keys = rest if has_shift else (None, *rest)
            return egnn_stack(x0, graph, weights, shifts, c_min=0.2, beta=0.1, p=p, keys=keys)

        with use_backend(backend):
            out = torch.vmap(stack)(*given, keys)
            return [out, *torch.autograd.grad((out * torch.linspace(-1, 1, 53, device=device)[:, None]).sum(), given)]

    with (
        persistent(Plan()),
        patch.object(PersistentStack, "_launch", autospec=True, side_effect=PersistentStack._launch) as launch,
    ):
        ours = found("triton")
    assert launch.call_count == 2
    for a, b in zip(ours, found("reference"), strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm()


@pytest.mark.parametrize("device", DEVICES)
def test_every_row_has_all_its_entries_once(device):
    from tools.persistent_stack import Plan, Slots

    for graph in GRAPHS.values():
        slots = Slots.of(graph.to(device).rows, Plan(slots=4, entries=3))
        entries = [
            entry
            for start, end in zip(slots.start.tolist(), slots.end.tolist(), strict=True)
            for entry in range(start, end)
        ]
        assert sorted(entries) == list(range(graph.col.numel()))
        rows = slots.row[(slots.row >= 0) & (slots.is_first == 1)]
        assert sorted(rows.tolist()) == list(range(graph.num_nodes))


@pytest.mark.parametrize("device", DEVICES)
def test_plans_are_checked_measured_and_recorded(device, tmp_path, monkeypatch):
    from reproduction.bench import Case, CitationGraph
    from tools import persistent

    tiny = Case("tiny", "synthetic", 2, {"hidden_channels": 16, "split": "public"}, CitationGraph(200, 400))
    monkeypatch.setattr(persistent, "find_case", lambda name: tiny)
    monkeypatch.setattr(persistent, "PLANS", {"first": persistent.Plan(), "too strict": persistent.Plan()})
    errors = iter([1e-7, 1.0])
    monkeypatch.setattr(persistent, "worst_error", lambda *args: next(errors))
    out = tmp_path / "record.json"
    settings = ["--cases", "digits-2", "--runs", "1", "--device", device, "--budget", "0", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["persistent", *settings])
    with use_backend("triton"):
        persistent.main()
    (case,) = json.loads(out.read_text())["cases"]
    assert case["first"]["ms"] > 0
    assert "too strict" not in case
