"""A partition on disk: its parts are the whole task, and what is damaged, missing or of another one is a sentence."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from graphjoule.cli import app
from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.features import SparseFeatures, normalize_rows
from graphjoule.parallel import load_part, part_files, read_partition, write_partition
from graphjoule.parallel.part_files import is_partition_of, remove_partition
from graphjoule.parallel.partition import cut_nodes

from .tasks import Sized, ring_task


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
        own = part.features.to_dense() if isinstance(part.features, SparseFeatures) else part.features
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
    assert moved.graph.part is not None
    assert moved.graph.part.nodes.index.equal(part.nodes)
    assert moved.graph.dtype == moved.features.dtype == torch.float64
    assert moved.features.among.total == part.features.among.total
    assert part.to("cpu").graph is part.graph


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
    task = replace(task, graph=graph, class_names=("a", "b", "c"))
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


def test_labels_of_another_partition_are_refused(tmp_path):
    """They have the same shape; a split by rule would be drawn from them without complaint."""
    (part, _) = parts_of(ring_task(), tmp_path / "a", num_parts=2)
    other = replace(ring_task(), labels=ring_task().labels.roll(1))
    write_partition(other, 2, tmp_path / "b", "blocks")
    (tmp_path / "b" / "labels.safetensors").replace(tmp_path / "a" / "labels.safetensors")
    assert part.split("public").sizes == ring_task().split("public").sizes
    with pytest.raises(GraphjouleError, match=r"labels\.safetensors is of another partition than the parts"):
        part.split("per-class-3-4")


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
        with pytest.raises(GraphjouleError, match=f"holds {name}, and nothing there says that graphjoule wrote it"):
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
            patch.setattr(part_files, name, or_die(getattr(part_files, name)))
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


def test_the_command_says_what_a_training_will_need(tmp_path):
    options = ["--dataset", "digits", "--parts", "3", "--method", "blocks", "--out", str(tmp_path / "p"), "--json"]
    done = CliRunner().invoke(app, ["partition", *options])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["num_nodes"] == [599, 599, 599]
    assert said["num_cut_edges"] > 0
    assert "3 parts by blocks, 599 nodes each; " in done.stderr
    assert f"{said['num_cut_edges']:,} of " in done.stderr
    made = read_partition(tmp_path / "p")
    assert made.data.name == "digits"
    part = load_part(tmp_path / "p", 1, Sized(3))
    assert part.graph.halo.num_nodes == made.num_halo[1] == said["num_halo"][1]
    graph_parts = cut_nodes(part.to("cpu").graph, 1, "blocks")
    assert graph_parts.numel() == 599


def test_one_part_is_said_in_the_singular(tmp_path):
    done = CliRunner().invoke(app, ["partition", "--parts", "1", "--method", "blocks", "--out", str(tmp_path / "p")])
    assert done.exit_code == 0, done.output
    assert "digits: 1 part by blocks, 1,797 nodes each; 0 of " in done.stdout
    assert "edges cut (0.0 %), a part fetches 0 rows per layer" in done.stdout


def test_the_command_refuses_more_parts_than_nodes(tmp_path):
    done = CliRunner().invoke(app, ["partition", "--parts", "9999", "--out", str(tmp_path / "p")])
    assert isinstance(done.exception, GraphjouleError)
    assert "it must be from 1 to 1797" in str(done.exception)
    assert not (tmp_path / "p").exists()
