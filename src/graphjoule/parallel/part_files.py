"""The files of a partition: one of tensors per process and the labels, checked when they are read."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.files import check_free, ensure_folder, remove_temporaries, write_json
from graphjoule.graph.features import Features, SparseFeatures
from graphjoule.graph.group import ALONE, Group
from graphjoule.graph.part import Excerpt
from graphjoule.parallel.cut import Cut
from graphjoule.parallel.description import Partition, about_path, read_partition, splits_sha256
from graphjoule.parallel.operator import Halo, PartedPropagation
from graphjoule.parallel.partition import CutMethod, cut_edges, cut_nodes
from graphjoule.parallel.task import SplitPart, TaskPart
from graphjoule.tasks import Task
from graphjoule.tasks.facts import TaskFacts
from graphjoule.tasks.splits import PARTS
from graphjoule.training.tensorfile import read_tensors, write_tensors

_KIND, _LABELS_KIND = "part of a partition", "labels of a partition"


def write_partition(
    task: Task, num_parts: int, folder: str | Path, method: CutMethod = "metis", seed: int = 0
) -> Partition:
    """Cut a task and write one file per process, for `load_part`.

    Args:
        task: any task; of it only `node_ids` is left out.
        num_parts: number of parts.
        folder: where to; created if there is none, and must hold nothing but this partition, whole or broken off.
        method: see `cut_nodes`.
        seed: see `cut_nodes`.

    Returns:
        What ``partition.json`` says.
    """
    folder, task = Path(folder), task.to("cpu")
    check_partition_folder(folder)
    owner = cut_nodes(task.graph, num_parts, method, seed)
    cut, facts, splits = Cut(task, owner, num_parts), task.facts(), splits_sha256(task)
    whose = f"{facts.sha256} {splits} ".encode()
    name = hashlib.sha256(whose + owner.numpy().astype(np.int64).tobytes()).hexdigest()[:16]
    partition = Partition(
        id=name,
        data=facts,
        default_split=task.default_split,
        splits_sha256=splits,
        method=method,
        num_parts=num_parts,
        num_nodes=tuple(torch.bincount(owner, minlength=num_parts).tolist()),
        num_halo=tuple(cut.halo_sizes()),
        num_cut_edges=cut_edges(task.graph, owner),
    )
    ensure_folder(folder)
    _check_same(folder, partition)
    # First: what comes after it is known as ours, should this break off.
    write_json(about_path(folder), partition.model_dump(mode="json"))
    write_tensors(
        _labels_path(folder),
        _LABELS_KIND,
        {"labels": task.targets if task.targets.is_floating_point() else task.targets.int()},
        {"id": name},
    )
    for part, (tensors, about) in enumerate(cut.all_pieces()):
        write_tensors(_part_path(folder, part), _KIND, tensors, about | {"id": name, "part": part})
    return partition


def check_partition_folder(folder: Path) -> None:
    """Refuse a folder that holds something else than a partition, before anything is computed."""
    if not about_path(folder).exists():
        check_free(folder)


def remove_partition(folder: str | Path) -> None:
    """Remove the files of a partition, and their folder if it holds nothing else; without one, nothing happens."""
    folder = Path(folder)
    remove_temporaries(folder)
    # The description last: while it is there the others are known as ours.
    for path in (*folder.glob("part-*.safetensors"), _labels_path(folder), about_path(folder)):
        path.unlink(missing_ok=True)
    with suppress(OSError):  # there is none, or something else is in it
        folder.rmdir()


def is_partition_of(folder: str | Path, facts: TaskFacts, task: Task) -> bool:
    """Whether a folder holds a whole partition of a task, see `Partition.is_of`."""
    folder = Path(folder)
    try:
        partition = read_partition(folder)
    except GraphjouleError:  # there is none, or it is damaged
        return False
    files = [_labels_path(folder), *(_part_path(folder, part) for part in range(partition.num_parts))]
    return partition.is_of(facts, task) and all(path.exists() for path in files)


def load_part(folder: str | Path, part: int, group: Group = ALONE) -> TaskPart:
    """One process's part of a task, checked against its checksum and against the partition it shall be of.

    Args:
        folder: where `write_partition` has put the parts; every process reads two files there and no other.
        part: which part.
        group: the processes, as many as there are parts.

    Returns:
        The task, whose graph fetches what it needs from the others.
    """
    folder = Path(folder)
    partition = read_partition(folder)
    partition.check_size(folder, group.size)
    path = _part_path(folder, part)
    tensors, about = read_tensors(path, _KIND)
    if about["id"] != partition.id or about["part"] != part:
        raise GraphjouleError(f"{path} is not part {part} of this partition; make it anew with `graphjoule partition`.")
    return TaskPart(
        name=partition.data.name,
        features=_features(tensors, about),
        graph=_graph(tensors, about, group),
        targets=tensors["labels"],
        objective=partition.data.objective,
        fixed_splits=tuple(_splits(tensors, about)),
        default_split=partition.default_split,
        source=partition.data.source,
        whole=partition.data,
        nodes=tensors["nodes"],
        labels_path=_labels_path(folder),
        partition_id=partition.id,
    )


def _graph(tensors: dict[str, Tensor], about: dict[str, Any], group: Group) -> PartedPropagation:
    names = ("rowptr", "col", "value", "degree", "column_degrees", "component", "mirror")
    counts = tuple(about["send_counts"]), tuple(about["receive_counts"])
    return PartedPropagation(
        **{name: tensors[name] for name in names},
        num_components=about["num_components"],
        entries=Excerpt(tensors["entries"], about["num_entries"]),
        halo=Halo(tensors["send"], *counts, about["is_halo_empty"]),
        nodes=Excerpt(tensors["nodes"], about["num_nodes"]),
        processes=group,
    )


def _features(tensors: dict[str, Tensor], about: dict[str, Any]) -> Features:
    if not about["is_sparse"]:
        return tensors["features"]
    rowptr, col, value = (tensors[f"features.{name}"] for name in ("rowptr", "col", "value"))
    shape = (rowptr.numel() - 1, about["num_features"])
    # The pattern alone goes through scipy, which would drop a stored zero and change the dtype.
    ones = np.ones(value.numel(), dtype=np.float32)
    pattern = SparseFeatures.from_scipy(sp.csr_matrix((ones, col.numpy(), rowptr.numpy()), shape=shape))
    among = Excerpt(tensors["features.entries"], about["num_values"])
    return SparseFeatures(
        pattern.rowptr, pattern.col, value, pattern.t_rowptr, pattern.t_col, pattern.to_transposed, among
    )


def _splits(tensors: dict[str, Tensor], about: dict[str, Any]) -> list[SplitPart]:
    return [
        SplitPart(
            name=split["name"],
            seed=None,
            **{part: tensors[f"split.{number}.{part}"] for part in PARTS},
            counts=tuple(split["counts"]),
            whole_sha256=split["sha256"],
        )
        for number, split in enumerate(about["splits"])
    ]


def _check_same(folder: Path, partition: Partition) -> None:
    """Refuse to mix the files of two partitions; one that broke off may be made anew."""
    if about_path(folder).exists() and read_partition(folder).id != partition.id:
        raise GraphjouleError(f"{folder} already holds another partition; choose another folder with --out.")


def _part_path(folder: Path, part: int) -> Path:
    return folder / f"part-{part}.safetensors"


def _labels_path(folder: Path) -> Path:
    return folder / "labels.safetensors"
