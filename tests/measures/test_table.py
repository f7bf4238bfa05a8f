import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.measures import DEFAULT_MEASURES, MEASURES, Measure, measure_names
from tests.graphs import edge_lists, few, no_edges, normal, random_edges

PAGE = Path(__file__).parents[2] / "docs" / "measures.md"
every = pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
seeds = st.integers(0, 2**16)


def bounds(name: str, x: torch.Tensor, graph) -> tuple[float, float]:
    """The range that the table states, for features that are not zero."""
    square, rank = float(x.double().square().sum()), min(x.shape)
    variance = (1 + graph.degree) @ (x - (1 + graph.degree) @ x / (1 + graph.degree).sum()).square().sum(dim=1)
    return {
        "energy": (0, 2 * square),
        "norm": (0, torch.inf),
        "rayleigh": (0, 2),
        "kernel_distance": (0, square**0.5),
        "mad": (0, 2),
        "pair_cosine": (-1, 1),
        "effective_rank": (1, rank),
        "stable_rank": (1, rank),
        "correlation": (0, 1),
        "combinatorial_energy": (0, 2 * float(graph.degree.max()) * square),
        "random_walk_energy": (0, 2 * float(variance / (1 + graph.degree).sum())),
        "rank_one_distance": (0, 1),
        "second_energy": (0, 4 * square),
        "third_energy": (0, 8 * square),
    }[name]


def test_the_table_has_these_rows():
    assert list(MEASURES) == [
        *("energy", "norm", "rayleigh", "kernel_distance", "mad", "pair_cosine", "effective_rank", "stable_rank"),
        *("correlation", "combinatorial_energy", "random_walk_energy"),
        *("rank_one_distance", "second_energy", "third_energy"),
    ]
    assert DEFAULT_MEASURES == ("energy", "norm", "rayleigh", "effective_rank")
    for name, measure in MEASURES.items():
        assert measure.name == name
        assert all((measure.formula, measure.range, measure.meaning, measure.reference))


@every
@few
@given(edges=edge_lists(), seed=seeds, channels=st.integers(1, 4))
def test_it_stays_within_its_range(measure: Measure, edges, seed, channels):
    x, graph = normal(edges.num_nodes, channels, seed=seed), edges.graph64()
    low, high = bounds(measure.name, x, graph)
    value = float(measure.function(x, graph))
    assert low - 1e-12 <= value <= high * (1 + 1e-12) + 1e-12


@every
@few
@given(edges=edge_lists(), seed=seeds, random=st.randoms(use_true_random=False))
def test_renaming_the_nodes_changes_nothing(measure: Measure, edges, seed, random):
    x = normal(edges.num_nodes, 3, seed=seed)
    permutation = torch.tensor(random.sample(range(edges.num_nodes), edges.num_nodes))
    renamed = measure.function(x[permutation], edges.permuted(permutation).graph64())
    torch.testing.assert_close(renamed, measure.function(x, edges.graph64()), rtol=1e-9, atol=1e-12)


@every
@pytest.mark.parametrize("num_edges", [6, 40])  # several components, and one
def test_runs_are_measured_each_by_itself(measure: Measure, num_edges):
    graph, x = random_edges(12, num_edges).graph(), normal(2, 3, 12, 4, dtype=torch.float32)
    values = measure.function(x, graph)
    assert values.shape == (2, 3)
    assert values.dtype == torch.float64
    alone = torch.stack([torch.stack([measure.function(run, graph) for run in runs]) for runs in x])
    torch.testing.assert_close(values, alone, rtol=1e-12, atol=1e-14)
    mapped = torch.vmap(lambda run: measure.function(run, graph), in_dims=2)(x.movedim(1, 2))
    torch.testing.assert_close(mapped, values.t(), rtol=1e-12, atol=1e-14)
    with torch.no_grad():
        assert measure.function(x, graph).equal(values)


@every
def test_its_gradient_is_that_of_finite_differences_and_maps_over_runs(measure: Measure):
    graph, x = random_edges(9, 14, weighted=True).graph64(), normal(2, 9, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: measure.function(x, graph), x)
    (expected,) = torch.autograd.grad(measure.function(x, graph).sum(), x)
    mapped = torch.vmap(torch.func.grad(lambda run: measure.function(run, graph)))(x.detach())
    torch.testing.assert_close(mapped, expected, rtol=1e-10, atol=1e-12)


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_features_of_any_dtype_are_measured_in_float64(measure: Measure, dtype):
    graph, x = random_edges(9, 14).graph(), normal(9, 3).to(dtype)
    expected = measure.function(x.double(), graph)
    torch.testing.assert_close(measure.function(x, graph), expected, rtol=1e-12, atol=1e-14)


@every
@pytest.mark.parametrize("num_nodes", [1, 4])
def test_a_graph_without_edges_gives_numbers(measure: Measure, num_nodes):
    for x in (normal(num_nodes, 3), torch.zeros(num_nodes, 3), torch.ones(num_nodes, 1)):
        x.requires_grad_()
        value = measure.function(x, no_edges(num_nodes).graph())
        assert value.isfinite()
        assert torch.autograd.grad(value, x)[0].isfinite().all()


@every
def test_features_that_are_not_finite_give_no_number(measure: Measure):
    graph, x = random_edges(9, 14).graph(), normal(9, 3)
    x[graph.degree.argmax(), 1] = torch.nan
    assert measure.function(x, graph).isnan()


@pytest.mark.gpu
@every
@pytest.mark.parametrize("num_edges", [30, 400])
def test_a_gpu_gives_the_same_numbers_and_gradients(measure: Measure, num_edges):
    graph, x = random_edges(100, num_edges, weighted=True).graph64(), normal(2, 100, 8).requires_grad_()
    values = measure.function(x, graph)
    there = x.detach().cuda().requires_grad_()
    values_there = measure.function(there, graph.to("cuda"))
    torch.testing.assert_close(values_there.cpu(), values, rtol=1e-10, atol=1e-12)
    (gradient,), (gradient_there,) = (
        torch.autograd.grad(v.sum(), at) for v, at in ((values, x), (values_there, there))
    )
    torch.testing.assert_close(gradient_there.cpu(), gradient, rtol=1e-9, atol=1e-11)


def test_names_are_checked_and_kept_once():
    assert measure_names(["norm", "energy", "norm"]) == ("norm", "energy")
    assert measure_names([]) == ()
    with pytest.raises(GraphjouleError, match=r"no measure 'engery'; choose from combinatorial_energy, correlation, "):
        measure_names(["norm", "engery"])
    with pytest.raises(GraphjouleError, match=r"no measure 'reach'.* a backward pass: call `graphjoule.trace.reach`"):
        measure_names(["reach"])
    with pytest.raises(GraphjouleError, match=r"the text 'energy'; expected a list of names such as \['energy'\]"):
        measure_names("energy")


def test_the_page_has_a_row_for_every_measure():
    table = PAGE.read_text().split("## The measures")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)
    assert rows == list(MEASURES)
