"""How nodes are cut, and a partition on disk: its parts are the whole task, and what is damaged is a sentence."""

import json
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from graphjoule.cli import app
from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.features import as_dense, normalize_rows
from graphjoule.parallel import PartedPropagation, load_part, partition, read_partition, write_partition
from graphjoule.parallel.partition import cut_edges, cut_nodes, is_partition_of, remove_partition
from graphjoule.tasks.objective import Classification
from reproduction.bench import CitationGraph
from tests.graphs import edge_lists, few, no_edges, path3, random_edges

from .tasks import Sized, ring_task


def grid(side: int) -> Propagation:
    node = torch.arange(side * side).view(side, side)
    right, down = torch.stack([node[:, :-1], node[:, 1:]]), torch.stack([node[:-1], node[1:]])
    return Propagation.from_edge_index(torch.cat([right.flatten(1), down.flatten(1)], dim=1), symmetrize=True)


@few
@given(edge_lists(), st.integers(1, 7), st.sampled_from(["metis", "blocks"]), st.integers(0, 3))
def test_every_node_has_a_part_and_no_part_is_empty(edges, num_parts, method, seed):
    num_parts = min(num_parts, edges.num_nodes)
    part = cut_nodes(edges.graph(), num_parts, method, seed)
    assert part.shape == (edges.num_nodes,)
    assert part.dtype == torch.int64
    assert part.unique().tolist() == list(range(num_parts))


@pytest.mark.parametrize("num_parts", [2, 3, 16, 50])
def test_metis_parts_are_even_and_the_same_for_the_same_seed(num_parts):
    graph = random_edges(1600, 4000).graph()
    part = cut_nodes(graph, num_parts)
    assert part.equal(cut_nodes(graph, num_parts))
    sizes = torch.bincount(part)
    assert sizes.max() <= 1.1 * 1600 / num_parts + 1


def test_another_seed_cuts_otherwise():
    graph = CitationGraph(3_000, 9_000, num_features=2, num_classes=2).task("citations").graph
    assert len({tuple(cut_nodes(graph, 10, seed=seed).tolist()) for seed in (0, 1, 2)}) == 3


def test_metis_cuts_fewer_edges_than_blocks_of_a_shuffled_grid():
    graph, order = grid(30), torch.randperm(900, generator=torch.Generator().manual_seed(0))
    row, col = graph.row(), graph.col.long()
    shuffled = Propagation.from_edge_index(order[torch.stack([row, col])])
    by_metis, by_blocks = (cut_edges(shuffled, cut_nodes(shuffled, 9, method)) for method in ("metis", "blocks"))
    assert by_metis < 200 < 1400 < by_blocks  # of 1740 edges; the best nine squares cut 120


def test_blocks_are_in_order_and_within_one_node_of_each_other():
    part = cut_nodes(no_edges(11).graph(), 4, "blocks")
    assert part.equal(part.sort().values)
    assert sorted(torch.bincount(part).tolist()) == [2, 3, 3, 3]


def test_two_components_are_not_cut():
    two = torch.cat([torch.combinations(torch.arange(8)), torch.combinations(torch.arange(8, 16))]).t()
    graph = Propagation.from_edge_index(two, symmetrize=True)
    part = cut_nodes(graph, 2)
    assert cut_edges(graph, part) == 0
    assert torch.bincount(part).tolist() == [8, 8]


def test_heavy_edges_are_kept_and_light_ones_cut():
    ring = torch.stack([torch.arange(16), (torch.arange(16) + 1) % 16])
    weight = torch.ones(16, dtype=torch.float64)
    weight[[3, 11]] = 1e-4
    graph = Propagation.from_edge_index(ring, weight, symmetrize=True)
    part = cut_nodes(graph, 2)
    assert cut_edges(graph, part) == 2
    assert part[3] != part[4]
    assert part[11] != part[12]


@pytest.mark.parametrize("edges", [no_edges(1), no_edges(5), path3()], ids=["one node", "no edges", "path"])
@pytest.mark.parametrize("method", ["metis", "blocks"])
def test_one_part_and_one_node_per_part(edges, method):
    assert cut_nodes(edges.graph(), 1, method).tolist() == [0] * edges.num_nodes
    assert sorted(cut_nodes(edges.graph(), edges.num_nodes, method).tolist()) == list(range(edges.num_nodes))


def test_nearly_as_many_parts_as_nodes_leave_none_empty():
    graph = random_edges(60, 200).graph()
    for num_parts in range(50, 60):
        assert cut_nodes(graph, num_parts).unique().numel() == num_parts


def test_cut_edges_counts_each_edge_once_and_no_loop():
    edges = random_edges(9, 14)
    part = torch.arange(9) % 3
    a = edges.adjacency() > 0
    between = sum(1 for i in range(9) for j in range(i) if a[i, j] and part[i] != part[j])
    assert cut_edges(edges.graph(), part) == between


def test_a_graph_with_hubs_is_cut_evenly_too():
    graph = CitationGraph(20_000, 100_000, num_features=4, num_classes=2).task("citations").graph
    assert torch.bincount(cut_nodes(graph, 50)).max() < 500


@pytest.mark.parametrize(
    ("num_parts", "method", "seed", "words"),
    [
        (0, "metis", 0, "number of parts is 0; for a graph of 3 nodes it must be from 1 to 3"),
        (4, "blocks", 0, "number of parts is 4; for a graph of 3 nodes it must be from 1 to 3"),
        (2, "louvain", 0, "'louvain'; choose one of metis, blocks"),
        (2, "metis", -1, "seed to cut nodes by is -1"),
    ],
)
def test_parts_that_cannot_be_are_refused_in_a_sentence(num_parts, method, seed, words):
    with pytest.raises(GraphjouleError, match=words):
        cut_nodes(path3().graph(), num_parts, method, seed)


def test_without_metis_the_sentence_names_the_extra_and_the_other_method(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(GraphjouleError, match=r'graphjoule\[partition\].*"blocks"'):
        cut_nodes(path3().graph(), 2)
    assert cut_nodes(path3().graph(), 2, "blocks").tolist() == [0, 0, 1]


def parts_of(task, folder, num_parts=3, method="blocks"):
    write_partition(task, num_parts, folder, method)
    return [load_part(folder, part, Sized(num_parts)) for part in range(num_parts)]


@pytest.mark.parametrize("sparse", [False, True])
def test_the_parts_together_are_the_task(tmp_path, sparse):
    task = ring_task(sparse=sparse)
    parts = parts_of(task, tmp_path)
    dense, labels, p = torch.zeros(task.features.shape), torch.zeros_like(task.targets), torch.zeros(41, 41)
    whole = task.features.to_dense() if sparse else task.features
    for part in parts:
        columns = torch.cat([part.nodes, halo_of(parts, part)])
        own = as_dense(part.features)
        dense[part.nodes], labels[part.nodes] = own, part.targets
        p[part.nodes[:, None], columns] = part.graph.to_dense()
        assert part.graph.num_edges == task.graph.num_edges
        assert part.graph.column_degree.equal(task.graph.degree[columns])
        assert part.facts() == task.facts()
    assert dense.equal(whole)
    assert labels.equal(task.targets)
    assert p.equal(task.graph.to_dense())


def halo_of(parts, part):
    """The nodes that a part is sent, by what the others send."""
    rank = parts.index(part)
    sent = []
    for other in parts:
        start = sum(other.graph.halo.send_counts[:rank])
        count = other.graph.halo.send_counts[rank]
        assert count == part.graph.halo.receive_counts[parts.index(other)]
        sent.append(other.nodes[other.graph.halo.send[start : start + count]])
    return torch.cat(sent)


def test_one_part_is_the_whole(tmp_path):
    task = ring_task()
    (part,) = parts_of(task, tmp_path, num_parts=1)
    assert part.graph.to_dense().equal(task.graph.to_dense())
    assert part.graph.halo.is_empty


def test_partitions_are_repeatable(tmp_path):
    task = ring_task()
    one, two = (write_partition(task, 3, tmp_path / name, "blocks") for name in "ab")
    assert one == two
    for name in ("part-0.safetensors", "part-2.safetensors", "labels.safetensors", "partition.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_weights_and_class_names_survive(tmp_path):
    task = ring_task()
    row, col = task.graph.row(), task.graph.col.long()
    weight = 1 + (row * col % 5).double() / 3
    graph = Propagation.from_edge_index(torch.stack([row, col]), weight, task.num_nodes)
    task = replace(task, graph=graph, objective=Classification(3, ("a", "b", "c")))
    part = parts_of(task, tmp_path)[2]
    assert part.objective.class_names == ("a", "b", "c")
    assert part.graph.value.equal(graph.value[part.graph.entries.index])


def test_a_damaged_part_is_one_sentence(tmp_path):
    write_partition(ring_task(), 2, tmp_path, "blocks")
    path = tmp_path / "part-1.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(GraphjouleError, match=r"part-1\.safetensors is damaged: its content does not match"):
        load_part(tmp_path, 1, Sized(2))
    path.write_bytes(content[:-5])
    with pytest.raises(GraphjouleError, match="is not a whole graphjoule part of a partition"):
        load_part(tmp_path, 1, Sized(2))
    path.unlink()
    with pytest.raises(GraphjouleError, match=r"There is no file .*part-1\.safetensors"):
        load_part(tmp_path, 1, Sized(2))


def test_a_damaged_description_is_one_sentence(tmp_path):
    write_partition(ring_task(), 2, tmp_path, "blocks")
    (tmp_path / "partition.json").write_text("{}")
    for look in (lambda: read_partition(tmp_path), lambda: write_partition(ring_task(), 2, tmp_path, "blocks")):
        with pytest.raises(GraphjouleError, match=r"partition\.json is damaged; .* or after deleting this one"):
            look()
    assert (tmp_path / "partition.json").read_text() == "{}"


@pytest.mark.parametrize("leave_out", [[], ["splits_sha256"]])
def test_a_description_of_another_version_is_one_sentence(tmp_path, leave_out):
    made = write_partition(ring_task(), 2, tmp_path, "blocks").model_dump(mode="json")
    older = {name: value for name, value in made.items() if name not in leave_out} | {"format": 1}
    (tmp_path / "partition.json").write_text(json.dumps(older))
    for look in (lambda: read_partition(tmp_path), lambda: write_partition(ring_task(), 2, tmp_path, "blocks")):
        with pytest.raises(GraphjouleError, match="made by another version of graphjoule; cut the graph anew"):
            look()


def test_a_part_of_another_partition_is_refused(tmp_path):
    write_partition(ring_task(), 2, tmp_path / "a", "blocks")
    write_partition(ring_task(sparse=True), 2, tmp_path / "b", "blocks")
    (tmp_path / "b" / "part-0.safetensors").rename(tmp_path / "a" / "part-0.safetensors")
    with pytest.raises(GraphjouleError, match="is not part 0 of this partition"):
        load_part(tmp_path / "a", 0, Sized(2))
    (tmp_path / "b" / "part-1.safetensors").rename(tmp_path / "b" / "part-0.safetensors")
    with pytest.raises(GraphjouleError, match="is not part 0 of this partition"):
        load_part(tmp_path / "b", 0, Sized(2))


@pytest.mark.parametrize(
    "other",
    [
        ring_task(train=torch.arange(9)),
        replace(ring_task(), default_split="per-class-3-4"),
        replace(ring_task(), fixed_splits=(), default_split="per-class-3-4"),
    ],
    ids=["other nodes", "other default", "none"],
)
def test_a_partition_knows_its_splits(tmp_path, other):
    made, task = write_partition(ring_task(), 2, tmp_path, "blocks"), ring_task()
    assert made.is_of(task.facts(), task)
    assert is_partition_of(tmp_path, task.facts(), task)
    assert other.facts() == task.facts()
    assert not made.is_of(other.facts(), other)
    assert not is_partition_of(tmp_path, other.facts(), other)
    assert write_partition(other, 2, tmp_path / "other", "blocks").id != made.id
    with pytest.raises(GraphjouleError, match="already holds another partition"):
        write_partition(other, 2, tmp_path, "blocks")


def test_a_partition_is_removed_and_nothing_else(tmp_path):
    write_partition(ring_task(), 2, tmp_path / "a", "blocks")
    remove_partition(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    write_partition(ring_task(), 2, tmp_path / "b", "blocks")
    (tmp_path / "b" / "notes.txt").write_text("mine")
    remove_partition(tmp_path / "b")
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["notes.txt"]
    remove_partition(tmp_path / "nothing")


@pytest.mark.parametrize("name", ["labels.safetensors", "part-0.safetensors", "notes.txt"])
def test_a_folder_with_a_file_that_is_not_ours_is_refused(tmp_path, name):
    (tmp_path / name).write_text("mine")
    for cut in (
        lambda: write_partition(ring_task(), 2, tmp_path, "blocks"),
        lambda: CliRunner().invoke(app, ["partition", "--parts", "2", "--out", str(tmp_path)], catch_exceptions=False),
    ):
        with pytest.raises(GraphjouleError, match=f"holds {name}, which this command did not begin"):
            cut()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


class Killed(BaseException):
    """From one moment on, nothing happens any more."""


@pytest.mark.parametrize("moment", range(4))
def test_a_partition_that_broke_off_is_not_whole_and_is_made_anew(tmp_path, monkeypatch, moment):
    task, count = ring_task(), iter(range(10))

    def or_die(write):
        def operation(*given):
            if next(count) == moment:
                raise Killed
            write(*given)

        return operation

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    write_partition(task, 2, whole, "blocks")
    with monkeypatch.context() as patch:
        for name in ("write_json", "write_tensors"):
            patch.setattr(partition, name, or_die(getattr(partition, name)))
        with pytest.raises(Killed):
            write_partition(task, 2, broken, "blocks")
    assert len(list(broken.iterdir())) == moment
    assert not is_partition_of(broken, task.facts(), task)
    write_partition(task, 2, broken, "blocks")
    assert is_partition_of(broken, task.facts(), task)
    files = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in (whole, broken)]
    assert files[0] == files[1]


@pytest.mark.parametrize("moment", range(4))
def test_a_removal_that_broke_off_can_be_done_again(tmp_path, monkeypatch, moment):
    path, count, real = tmp_path / "parts", iter(range(10)), type(tmp_path).unlink
    task = ring_task()
    write_partition(task, 2, path, "blocks")

    def unlink(path, missing_ok=False):
        if next(count) == moment:
            raise Killed
        real(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(type(tmp_path), "unlink", unlink)
        with pytest.raises(Killed):
            remove_partition(path)
    assert is_partition_of(path, task.facts(), task) == (moment == 0)
    write_partition(task, 2, path, "blocks")
    remove_partition(path)
    assert not path.exists()


def test_the_number_of_processes_must_be_that_of_the_parts(tmp_path):
    write_partition(ring_task(), 3, tmp_path, "blocks")
    with pytest.raises(GraphjouleError, match="is cut into 3 parts, but there are 2 processes"):
        load_part(tmp_path, 0, Sized(2))


def test_a_folder_with_another_partition_is_not_written_over(tmp_path):
    write_partition(ring_task(), 2, tmp_path, "blocks")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(GraphjouleError, match="already holds another partition"):
        write_partition(ring_task(), 3, tmp_path, "blocks")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


# One process's part of a task: its splits and features are those of the whole.


def test_rows_of_sparse_features_are_normalised_by_themselves(tmp_path):
    task = ring_task(sparse=True)
    expected = normalize_rows(task.features).to_dense()
    for part in parts_of(task, tmp_path):
        scaled = normalize_rows(part.features)
        assert scaled.among is part.features.among
        torch.testing.assert_close(scaled.to_dense(), expected[part.nodes])


@pytest.mark.parametrize("name", ["public", "per-class-3-4"])
def test_splits_are_those_of_the_whole(tmp_path, name):
    task = ring_task()
    whole = task.split(name, seed=5)
    splits = [(part, part.split(name, seed=5)) for part in parts_of(task, tmp_path)]
    for kind in ("train", "val", "test"):
        found = torch.cat([part.nodes[getattr(split, kind)] for part, split in splits]).sort().values
        assert found.equal(getattr(whole, kind))
    for _, split in splits:
        assert split.sha256 == whole.sha256
        assert split.sizes == whole.sizes


def test_an_unknown_split_is_refused(tmp_path):
    part = parts_of(ring_task(), tmp_path)[0]
    with pytest.raises(GraphjouleError, match="Unknown split 'other' for task 'ring'"):
        part.split("other")


def test_to_keeps_a_part_a_part(tmp_path):
    part = parts_of(ring_task(sparse=True), tmp_path)[1]
    moved = part.to(dtype=torch.float64)
    assert isinstance(moved.graph, PartedPropagation)
    assert moved.graph.row_ids.index.equal(part.nodes)
    assert moved.graph.dtype == moved.features.dtype == torch.float64
    assert moved.features.among.total == part.features.among.total
    assert part.to("cpu").graph is part.graph


def test_labels_of_another_partition_are_refused(tmp_path):
    """They have the same shape; a split by rule would be drawn from them without complaint."""
    (part, _) = parts_of(ring_task(), tmp_path / "a", num_parts=2)
    other = replace(ring_task(), targets=ring_task().targets.roll(1))
    write_partition(other, 2, tmp_path / "b", "blocks")
    (tmp_path / "b" / "labels.safetensors").replace(tmp_path / "a" / "labels.safetensors")
    assert part.split("public").sizes == ring_task().split("public").sizes
    with pytest.raises(GraphjouleError, match=r"labels\.safetensors is of another partition than the parts"):
        part.split("per-class-3-4")
