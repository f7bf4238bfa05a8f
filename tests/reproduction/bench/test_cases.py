import re

import numpy as np
import pytest
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.tasks import DATASETS
from reproduction.bench import (
    CASES,
    CURVES,
    CitationGraph,
    append_bench_records,
    citation_edges,
    find_case,
    find_curves,
    read_bench_records,
    run_cases,
)
from reproduction.bench.cases import MODELS_WITH_PEER
from reproduction.bench.peer import PEER_MODELS

SMALL = CitationGraph(num_nodes=3000, num_edges=12_000, num_features=8, num_classes=5)
EVERY = [*CASES.values(), *(case for curve in CURVES.values() for case in curve)]


@pytest.fixture(scope="module")
def task():
    return SMALL.task("small")


def test_a_generated_task_has_the_sizes_asked_for(task):
    assert (task.num_nodes, task.graph.num_edges) == (3000, 12_000)
    assert (task.num_features, task.out_channels) == (8, 5)
    split = task.split()
    assert split.name == "public"
    assert (len(split.train), len(split.val), len(split.test)) == (1611, 528, 861)
    assert int(split.train.max()) < 3000


def test_its_graph_is_symmetric_with_hubs_and_leaves(task):
    graph, degree = task.graph, task.graph.degree
    pairs = torch.stack([graph.row(), graph.col.long()])
    assert set(map(tuple, pairs.t().tolist())) == set(map(tuple, pairs.flip(0).t().tolist()))
    # An even graph of this size has no node with more than thirty neighbours.
    assert float(degree.mean()) == 8
    assert float(degree.median()) < 8
    assert float(degree.max()) > 200
    top = degree.sort(descending=True).values[:30].sum() / degree.sum()
    assert 0.1 < float(top) < 0.5
    hubs = degree.topk(30).indices
    assert int(hubs.max()) > 2000  # not all in the first rows


def test_the_seed_decides_everything(task):
    again = SMALL.task("small")
    assert again.graph.col.equal(task.graph.col)
    assert again.features.equal(task.features)
    assert again.targets.equal(task.targets)
    assert again.split().sha256 == task.split().sha256
    other = CitationGraph(3000, 12_000, 8, 5, seed=1).task("other")
    assert not other.graph.col.equal(task.graph.col)


def test_generating_leaves_the_global_generators_alone():
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    SMALL.task("small")
    assert (np.random.get_state()[1] == before[0]).all()
    assert torch.get_rng_state().equal(before[1])


@pytest.mark.parametrize(("num_nodes", "num_edges"), [(1, 0), (2, 0), (9, 9), (40, 195)])
def test_small_and_dense_graphs_end(num_nodes, num_edges):
    edges = citation_edges(num_nodes, num_edges, np.random.RandomState(0))
    assert edges.shape == (2, num_edges)
    assert bool((edges[0] < edges[1]).all())
    assert torch.unique(edges, dim=1).shape == edges.shape


def test_more_edges_than_can_be_are_refused():
    with pytest.raises(GraphjouleError, match="10 edges were asked for; with 9 nodes it must be 0 to 9"):
        citation_edges(9, 10, np.random.RandomState(0))


@pytest.mark.parametrize("case", EVERY, ids=lambda case: f"{case.curve}-{case.name}")
def test_every_case_has_a_recipe_and_data(case):
    recipe = case.recipe()
    assert (recipe.model.name, recipe.model.num_layers) == (case.model, case.num_layers)
    assert case.model in MODELS_WITH_PEER
    assert case.model == "egnn" or case.name.startswith(case.model)  # a record's table goes by the name
    assert case.graph is not None or case.dataset in DATASETS


def test_the_sizes_of_arxiv():
    case = CASES["arxiv-32"]
    graph, recipe = case.graph, case.recipe()
    assert (graph.num_nodes, graph.num_edges, graph.num_features, graph.num_classes) == (169_343, 1_166_243, 128, 40)
    assert (recipe.model.hidden_channels, recipe.model.options["batch_norm"]) == (256, True)


def test_the_curves():
    assert [case.num_layers for case in CURVES["depth"]] == [2**k for k in range(1, 11)]
    assert [case.runs for case in CURVES["runs"]] == [1, 2, 4, 8, 16]
    sizes = [(case.graph.num_nodes, case.graph.num_edges) for case in CURVES["nodes"]]
    assert sizes == [(n, 4 * n) for n in (1000, 4000, 16_000, 64_000, 256_000)]
    assert find_curves(["runs", "depth"]) == [*CURVES["runs"], *CURVES["depth"]]


@pytest.mark.parametrize("name", [*CASES, "nodes-4k", "cora-64x8"])
def test_a_case_is_found_by_its_name(name):
    assert find_case(name).name == name


def test_every_model_that_can_be_compared_has_a_peer():
    assert set(MODELS_WITH_PEER) == PEER_MODELS.keys()


def test_a_name_can_begin_with_its_model():
    case = find_case("gcnii-digits-3")
    assert (case.model, case.dataset, case.num_layers, case.recipe().model.name) == ("gcnii", "digits", 3, "gcnii")
    (record,) = run_cases([case], "cpu", 0.0, peers=["pyg"])
    assert (record.model, record.case, record.layers) == ("gcnii", "gcnii-digits-3", 3)
    assert record.peer_failure is None


def test_any_dataset_and_depth_is_a_case():
    case = find_case("pubmed-7")
    assert (case.dataset, case.num_layers, case.graph, case.runs, case.curve) == ("pubmed", 7, None, 1, None)


@pytest.mark.parametrize("name", ["coar-64", "cora", "cora-0", "cora-x", ""])
def test_an_unknown_case_lists_the_choices(name):
    with pytest.raises(GraphjouleError, match=f"Unknown case '{name}'; expected one of: .*arxiv-32.*cora-64.*digits"):
        find_case(name)


def test_an_unknown_curve_lists_the_choices():
    with pytest.raises(GraphjouleError, match="Unknown curve 'width'; expected one of: depth, nodes, runs"):
        find_curves(["width"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"peers": ["dgl"]}, "Unknown peer 'dgl'; expected one of: pyg, pyg-csr."), ({"runs": 0}, "runs is 0;")],
)
def test_run_cases_refuses_what_it_cannot_do(options, sentence):
    with pytest.raises(GraphjouleError, match=re.escape(sentence)):
        run_cases(["digits-2"], "cpu", 0.0, **options)


@pytest.mark.slow
def test_a_generated_case_is_measured_with_its_runs_and_its_record_comes_back(tmp_path):
    seen = []
    records = run_cases(["nodes-1k"], "cpu", 0.0, runs=2, on_case=seen.append)
    assert seen == [records]
    assert [record.peer for record in records] == ["pyg", "pyg-csr"]
    for record in records:
        assert (record.case, record.curve, record.nodes, record.edges) == ("nodes-1k", "nodes", 1000, 4000)
        assert (record.layers, record.width, record.runs, record.repeats) == (32, 64, 2, 5)
        assert record.ratio_spread[0] <= record.ratio <= record.ratio_spread[1]
        assert record.ours_spread_ms[0] <= record.ours_ms <= record.ours_spread_ms[1]
        assert (record.ours_failure, record.peer_failure, record.ours_peak_bytes) == (None, None, None)
    path = tmp_path / "bench.jsonl"
    append_bench_records(path, records[:1])
    append_bench_records(path, records[1:])
    assert read_bench_records(path) == records


def test_a_file_that_holds_something_else_is_refused(tmp_path):
    path = tmp_path / "bench.jsonl"
    path.write_text('{"case": "cora-64"}\n')
    with pytest.raises(GraphjouleError, match=r"bench\.jsonl, line 1 is not a bench record"):
        read_bench_records(path)
    with pytest.raises(GraphjouleError, match=r"Cannot read bench records from .*missing"):
        read_bench_records(tmp_path / "missing")
    with pytest.raises(GraphjouleError, match=r"Cannot append bench records to .*missing"):
        append_bench_records(tmp_path / "missing" / "bench.jsonl", [])
