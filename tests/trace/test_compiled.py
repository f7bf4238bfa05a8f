"""Hooks on what `torch.compile` made: every row that the plain model has, and the same constraint."""

import shutil
import sys
import warnings

import pytest
import torch
import torch_geometric.nn as pyg

from graphjoule import EnergyConstraint, Trace
from graphjoule.nn import EGNN, GCN
from graphjoule.trace.compiled import as_written, compile_anew, not_compiled, uncompiled
from tests.graphs import normal, path3

EDGES, X = path3().index, normal(3, 4, dtype=torch.float32)
pytestmark = [  # the compiler has several of its own
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
MODELS = [
    lambda: torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3))),
    pytest.param(lambda: EGNN(4, 4, 2, num_layers=2).eval(), marks=pytest.mark.slow),
]
any_model = pytest.mark.parametrize("make", MODELS, ids=["linear", "egnn"])


def compiled(model: torch.nn.Module, backend: str = "eager") -> torch.nn.Module:
    torch.compiler.reset()
    return torch.compile(model, backend=backend)


def call(model: torch.nn.Module, like: torch.nn.Module) -> torch.Tensor:
    return model(X, EDGES) if isinstance(like, EGNN) else model(X)


@any_model
def test_a_compiled_model_has_the_rows_of_the_plain_one_and_is_compiled_again_after_the_block(make):
    model = make()
    with Trace(model, EDGES) as plain:
        call(model, model)
    fast = compiled(model)
    call(fast, model)  # code that was compiled before sees no new hook
    for watched in (fast, model):
        with Trace(watched, EDGES) as trace:
            call(fast, model)
        assert [row.name for row in trace.layers] == [row.name for row in plain.layers]
        assert [row.values for row in trace.layers] == [row.values for row in plain.layers]
    calls = []
    function = torch.compile(lambda x: x + 1, backend=lambda graph, _: calls.append(1) or graph.forward)
    with Trace(model, EDGES):
        function(X)
        call(model, model)
    assert not calls
    function(X)
    assert calls


def test_code_is_compiled_again_after_blocks_that_end_in_another_order():
    torch.compiler.reset()
    calls = []
    function = torch.compile(lambda x: x + 1, backend=lambda graph, _: calls.append(1) or graph.forward)
    first, second = uncompiled(), uncompiled()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    function(X)
    assert not calls
    second.__exit__(None, None, None)
    function(X)
    assert calls


@any_model
@pytest.mark.parametrize("is_called", [True, False])
def test_a_constraint_holds_a_compiled_model(make, is_called):
    model = make()
    with EnergyConstraint(model, EDGES, c_min=0.9) as constraint:
        call(model, model)
        expected = constraint()
    fast = compiled(model)
    if is_called:
        call(fast, model)
    with EnergyConstraint(fast, EDGES, c_min=0.9) as constraint:
        for _ in range(2):
            call(fast, model)
            torch.testing.assert_close(constraint(), expected)
        constraint().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    call(fast, model)


@pytest.mark.parametrize(("network", "is_seen"), [(pyg.GCN, True), (pyg.GraphSAGE, True), (pyg.GAT, False)])
def test_a_constraint_on_compiled_layers_of_pyg_is_the_same_or_says_what_it_cannot_see(network, is_seen):
    model, graph = network(4, 4, num_layers=2), (X, EDGES)
    fast = compiled(model)
    with warnings.catch_warnings(record=True) as found, EnergyConstraint(fast, layers="convs.*") as constraint:
        warnings.simplefilter("always")
        fast(*graph)
        gaps = constraint.gaps().detach()
    with EnergyConstraint(model, layers="convs.*") as constraint:
        model(*graph)
        assert torch.allclose(gaps, constraint.gaps()) is is_seen
    said = [str(each.message) for each in found if "cannot be seen, as in compiled code" in str(each.message)]
    assert len(said) == (not is_seen)


@pytest.mark.slow  # it compiles C++
def test_a_model_of_inductor_is_trained_as_the_plain_one_with_trace_and_constraint():
    if not any(map(shutil.which, ("g++", "clang++"))):
        pytest.skip("inductor needs a C++ compiler")
    found = []
    for backend in (None, "inductor"):
        torch.manual_seed(0)
        model = GCN(4, 4, 2, num_layers=3, dropout=0.0)
        fast = model if backend is None else compiled(model, backend)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with EnergyConstraint(fast, layers=["convs.*"], c_min=0.9) as constraint:
            for _ in range(3):
                optimizer.zero_grad()
                (fast(X, EDGES).square().mean() + constraint()).backward()
                optimizer.step()
                constraint.update()
        with Trace(fast) as trace:
            fast(X, EDGES)
        found.append(([row.energy for row in trace.layers], constraint.multipliers.flatten().tolist()))
    (energies, multipliers), (of_inductor, its_multipliers) = found
    assert of_inductor == pytest.approx(energies, rel=1e-4)
    assert its_multipliers == pytest.approx(multipliers, rel=1e-4)


def test_nothing_is_compiled_where_nothing_was(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    model = torch.nn.Linear(2, 2)
    assert as_written(model) is model
    assert not_compiled(model.forward) == model.forward
    with uncompiled():
        compile_anew()
