"""The benchmark over the number of nodes: what it generates, measures and writes, and what becomes of failures."""

import argparse
import json
import sys

import numpy as np
import pytest
import scipy.sparse
import torch

from graphjoule.graph import Propagation
from reproduction.bench import scaling
from reproduction.bench.synthetic import PowerLawGraph
from reproduction.experiments.record import read_cells

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def task():
    return PowerLawGraph(2000).task("small")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scaling")
    scaling.generate(folder, 300, with_product=False)
    return folder


def given(**options):
    return argparse.Namespace(**{"device": "cpu", "budget": 0.0, "longest": 60.0, "limit": 120.0} | options)


def test_the_generated_operator_is_that_of_its_edges(task):
    graph = task.graph
    same = Propagation.from_edge_index(graph.edge_index, num_nodes=2000)
    for name in ("rowptr", "col", "degree"):
        assert getattr(graph, name).equal(getattr(same, name)), name
        assert getattr(graph, name).dtype == getattr(same, name).dtype, name
    torch.testing.assert_close(graph.value, same.value, rtol=2e-7, atol=0)


def test_its_degrees_have_hubs_and_leaves(task):
    degree = task.graph.degree
    assert float(degree.mean()) == pytest.approx(10, rel=0.05)
    assert float(degree.median()) <= 8
    assert float(degree.max()) > 100
    assert int(degree.topk(20).indices.max()) > 1000  # not all in the first rows


def test_the_seed_decides_everything_and_the_global_generators_are_left_alone(task):
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    again, other = PowerLawGraph(2000).task("small"), PowerLawGraph(2000, seed=1).task("other")
    assert (np.random.get_state()[1] == before[0]).all()
    assert torch.get_rng_state().equal(before[1])
    assert again.graph.col.equal(task.graph.col)
    assert again.features.equal(task.features)
    assert not other.graph.col.equal(task.graph.col)


@pytest.mark.parametrize("num_nodes", [1, 2, 3])
def test_tiny_graphs_are_generated(num_nodes):
    graph = PowerLawGraph(num_nodes).task("tiny").graph
    assert graph.num_nodes == num_nodes
    torch.testing.assert_close(graph.to_dense(), graph.to_dense().T)


def test_a_task_is_read_as_it_was_written(folder):
    task, made = scaling.load(folder), PowerLawGraph(300).task("made")
    assert task.graph.col.equal(made.graph.col)
    assert task.features.equal(made.features)
    assert task.split().sha256 == made.split().sha256


def test_scipys_product_is_the_same_product(task):
    graph = task.graph
    matrix = scipy.sparse.csr_array((graph.value.numpy(), graph.col.numpy(), graph.rowptr.numpy()), shape=graph.shape)
    torch.testing.assert_close(torch.from_numpy(matrix @ task.features.numpy()), graph.product(task.features))
    assert 0 < scaling.scipy_seconds(graph) < 10


@pytest.mark.parametrize("name", scaling.STEPS)
def test_a_side_alone_has_time_and_memory_of_both_phases(folder, name):
    found = scaling.alone(folder, CPU, name)
    assert found["device"].startswith("cpu")
    for phase in scaling.PHASES:
        assert found[phase]["seconds"] > 0
        assert found[phase]["is_warm"]
        assert found[phase]["peak_bytes"] is None or found[phase]["peak_bytes"] >= 0


def test_turns_have_medians_and_a_paired_ratio(folder):
    found = scaling.in_turns(folder, CPU, 0.0)
    for phase in scaling.PHASES:
        assert found[phase]["repeats"] == scaling.LEAST
        median, low, high = found[phase]["ratio"]
        assert 0 < low <= median <= high
        assert set(found[phase]["ms"]) == {"ours", "pyg-csr"}


def test_what_is_out_of_memory_says_so_and_other_errors_are_not_swallowed():
    def no_memory():
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    def wrong():
        raise RuntimeError("shapes do not match")

    assert scaling.attempt(no_memory) == {"failed": "out of memory"}
    with pytest.raises(RuntimeError, match="shapes"):
        scaling.attempt(wrong)


def test_a_process_that_fails_or_takes_too_long_is_a_reason(folder, tmp_path):
    assert "task.pt" in scaling.child(given(), "alone", tmp_path, "ours")["failed"]
    assert scaling.child(given(limit=0.01), "alone", folder, "ours") == {"failed": "not done after 0 s"}


FITS = {"seconds": 1.0, "is_warm": True, "peak_bytes": 2**30}


@pytest.mark.parametrize(
    ("peer", "options", "reason"),
    [
        ({"failed": "killed by SIGKILL"}, {}, "a side does not fit"),
        ({"inference": FITS, "epoch": {"failed": "out of memory"}}, {}, "a side does not fit"),
        ({"inference": FITS, "epoch": FITS}, {"longest": 15.0}, "would take too long"),
        ({"inference": FITS, "epoch": {**FITS, "peak_bytes": 2**60}}, {}, "too large together"),
    ],
)
def test_turns_that_cannot_be_are_a_reason(monkeypatch, tmp_path, peer, options, reason):
    said = {"ours": {"device": "cpu", "body": "ops", "inference": FITS, "epoch": FITS}, "pyg-csr": peer}
    monkeypatch.setattr(
        scaling, "child", lambda given, job, folder, *words: said[words[0]] if job == "alone" else {"nodes": 5}
    )
    found = scaling.measure_size(given(**options), 5, tmp_path)
    assert found["turns"] == {"failed": reason}
    assert found["alone"]["ours"]["epoch"] == FITS
    assert set(found["alone"]["pyg-csr"]) == set(scaling.PHASES)


@pytest.mark.parametrize("way", ["exact", "clusters"])
def test_a_way_to_train_has_seconds_and_memory(folder, way):
    pytest.importorskip("pymetis")
    found = scaling.train_way(folder, CPU, way)
    assert found["seconds_per_epoch"] > 0
    assert len(found["peak_bytes"]) == 1


@pytest.mark.slow  # four processes that import torch
def test_processes_train_together(folder):
    found = scaling.child(given(), "way", folder, "processes")
    assert "failed" not in found, found
    assert found["seconds_per_epoch"] > 0
    assert len(found["peak_bytes"]) == scaling.PROCESSES
    assert found["cut_edges"] > 0
    assert found["device"].endswith("2 processes")


def test_a_size_that_is_there_is_not_measured_again(monkeypatch, tmp_path, capsys):
    out = tmp_path / "new" / "cpu.jsonl"
    monkeypatch.setattr(scaling, "child", lambda given, job, *words: {"failed": f"{job} is tired"})
    monkeypatch.setattr(sys, "argv", ["scaling", "--nodes", "10,20", "--ways", "10", "--out", str(out)])
    scaling.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["key"], row["nodes"]) for row in rows] == [("cpu 10", 10), ("cpu 20", 20), ("cpu ways 10", 10)]
    assert {row["failed"] for row in rows} == {"generate is tired"}
    assert all("torch" in row["versions"] for row in rows)
    capsys.readouterr()
    scaling.main()
    assert capsys.readouterr().out.count("is there") == 3
    assert len(read_cells(out)) == len(out.read_text().splitlines()) == 3
