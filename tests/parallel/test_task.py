"""One process's part of a task: its splits and features are those of the whole."""

from dataclasses import replace

import pytest
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.graph.features import normalize_rows
from graphjoule.parallel import PartedPropagation, write_partition

from .tasks import ring_task
from .test_partition import parts_of


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
