"""A graph cut into parts, and a task cut into one file per part: how it is cut, written and read again."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.files import check_free, ensure_folder, json_text, remove_temporaries, write_json
from graphjoule.graph import Propagation
from graphjoule.graph.csr import entries_of_rows, row_starts
from graphjoule.graph.features import Features, SparseFeatures
from graphjoule.graph.nodes import Excerpt
from graphjoule.parallel.graph import Halo, PartedPropagation
from graphjoule.parallel.group import ALONE, Group
from graphjoule.parallel.task import TARGETS_KIND, SplitPart, TaskPart
from graphjoule.tasks import Task
from graphjoule.tasks.facts import TaskFacts
from graphjoule.tasks.splits import PARTS
from graphjoule.training.tensorfile import read_tensors, write_tensors

CutMethod = Literal["metis", "blocks"]
_KIND = "part of a partition"
_HEAVIEST = 1000  # METIS takes whole weights only; this is what the heaviest edge becomes


def cut_nodes(graph: Propagation, num_parts: int, method: CutMethod = "metis", seed: int = 0) -> Tensor:
    """Cut the nodes into parts of about equal size, none of them empty.

    "metis" looks for parts with few edges between them (Karypis and Kumar, 1998), heavy edges counting more, and keeps
    sizes within a few percent. "blocks" cuts the nodes in the order in which they are numbered, sizes within one node;
    it suits graphs whose order says where a node is, and needs nothing installed.

    Args:
        graph: the graph.
        num_parts: number of parts, from 1 to the number of nodes.
        method: "metis" or "blocks".
        seed: what METIS draws from; the same seed gives the same parts. Blocks are always the same.

    Returns:
        The part of every node, int64 on the CPU, shape ``[num_nodes]``.

    Raises:
        GraphjouleError: there are no such parts, or METIS is not installed.

    Example:
        >>> path = Propagation.from_edge_index(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]), symmetrize=True)
        >>> cut_nodes(path, 2, "blocks")
        tensor([0, 0, 0, 1, 1])
    """
    _check_cut(graph, num_parts, method, seed)
    blocks = torch.arange(graph.num_nodes) * num_parts // graph.num_nodes
    # One part, parts of one node each, and parts of nothing but isolated nodes have no edge to save.
    if method == "blocks" or num_parts in (1, graph.num_nodes) or graph.num_edges == 0:
        return blocks
    return _without_empty(_metis(graph, num_parts, seed), num_parts)


def cut_edges(graph: Propagation, part: Tensor) -> int:
    """Number of undirected edges whose ends lie in different parts.

    Args:
        graph: the graph.
        part: the part of every node, shape ``[num_nodes]``.

    Returns:
        The count; a training on one part at a time does not see these edges.

    Example:
        >>> path = Propagation.from_edge_index(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]), symmetrize=True)
        >>> cut_edges(path, torch.tensor([0, 0, 0, 1, 1]))
        1
    """
    part = part.to(graph.device)
    return int((part[graph.row()] != part[graph.col.long()]).sum()) // 2


def _check_cut(graph: Propagation, num_parts: int, method: str, seed: int) -> None:
    if method not in get_args(CutMethod):
        raise GraphjouleError(f"The method to cut nodes by is {method!r}; choose one of metis, blocks.")
    if not 1 <= num_parts <= graph.num_nodes:
        raise GraphjouleError(
            f"The number of parts is {num_parts}; for a graph of {graph.num_nodes} nodes it must be "
            f"from 1 to {graph.num_nodes}."
        )
    if not 0 <= seed < 2**31 - 1:
        raise GraphjouleError(f"The seed to cut nodes by is {seed}; it must be from 0 to {2**31 - 2}.")


def _metis(graph: Propagation, num_parts: int, seed: int) -> Tensor:
    try:
        import pymetis
    except ImportError as error:
        raise GraphjouleError(
            "Cutting nodes by METIS needs the package pymetis: install graphjoule[partition], "
            'or choose "blocks", which cuts them in the order of their numbers.'
        ) from error
    row, col = graph.row().cpu(), graph.col.cpu().long()
    edge = row != col
    starts = row_starts(row[edge], graph.num_nodes).long()
    _, part = pymetis.part_graph(
        num_parts,
        pymetis.CSRAdjacency(starts.numpy(), col[edge].numpy()),
        eweights=_whole_weights(graph.laplacian.weight.cpu()[edge]),
        options=pymetis.Options(seed=seed + 1),  # the C library's generator takes 0 for 1
    )
    return torch.tensor(part, dtype=torch.int64)


def _whole_weights(weight: Tensor) -> list[int] | None:
    """Weights as METIS takes them: whole and positive, the heaviest edge `_HEAVIEST`; None where all are alike."""
    heaviest = weight.max()
    if bool((weight == heaviest).all()):
        return None
    whole: list[int] = (weight * (_HEAVIEST / heaviest)).round().long().clamp(min=1).tolist()
    return whole


def _without_empty(part: Tensor, num_parts: int) -> Tensor:
    """The same parts, except that an empty one gets the last node of the largest: METIS may leave some empty."""
    count = torch.bincount(part, minlength=num_parts)
    for empty in (count == 0).nonzero().flatten().tolist():
        largest = int(count.argmax())
        part[(part == largest).nonzero()[-1]] = empty
        count[largest] -= 1
        count[empty] = 1
    return part


class Partition(BaseModel):
    """The content of ``partition.json``: of what a partition is, and into which parts it is cut.

    Attributes:
        format: version of this list of fields.
        id: what makes the partition this one: a hash of the task, its splits and the part of every node.
        data: facts of the whole task.
        default_split: the split that is used when none is asked for.
        splits_sha256: of the splits that came with the data, which `data` leaves out, and of `default_split`.
        method: how the nodes were cut.
        num_parts: number of parts, each for one process.
        num_nodes: number of nodes of every part.
        num_halo: number of other parts' nodes that every part fetches in each layer.
        num_cut_edges: number of undirected edges between parts.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[2] = 2
    id: str
    data: TaskFacts
    default_split: str
    splits_sha256: str
    method: str
    num_parts: int
    num_nodes: tuple[int, ...]
    num_halo: tuple[int, ...]
    num_cut_edges: int

    def is_of(self, facts: TaskFacts, task: Task) -> bool:
        """Whether it is a partition of a task with these facts, whose splits are the same too."""
        return (self.data.sha256, self.splits_sha256) == (facts.sha256, _splits_sha256(task))

    def check_size(self, folder: str | Path, num_processes: int) -> None:
        """Refuse another number of processes than there are parts in the folder."""
        if num_processes != self.num_parts:
            raise GraphjouleError(
                f"{folder} is cut into {self.num_parts} parts, but there are {num_processes} processes; start as many "
                "processes as parts, or cut anew with `graphjoule partition`."
            )


def read_partition(folder: str | Path) -> Partition:
    """What ``partition.json`` of a folder says."""
    path = _about_path(Path(folder))
    try:
        return Partition.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise GraphjouleError(
            f"There is no partition in {folder}: {path.name} is missing; make one with `graphjoule partition`."
        ) from error
    except (OSError, ValidationError) as error:
        what = "was made by another version of graphjoule" if _is_of_another_version(path) else "is damaged"
        raise GraphjouleError(
            f"{path} {what}; cut the graph anew with `graphjoule partition`, into another folder or after deleting "
            "this one."
        ) from error


def _is_of_another_version(path: Path) -> bool:
    """Whether a description that cannot be read says another format than ours."""
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    number = said.get("format") if isinstance(said, dict) else None
    return isinstance(number, int) and number != Partition.model_fields["format"].default


def _splits_sha256(task: Task) -> str:
    """A hash of what a task says about splits: the default one's name, and names and nodes of those it came with."""
    said = [task.default_split, *((split.name, split.sha256) for split in task.fixed_splits)]
    return hashlib.sha256(json_text(said).encode()).hexdigest()


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
    cut, facts, splits = _Cut(task, owner, num_parts), task.facts(), _splits_sha256(task)
    whose = f"{facts.sha256} {splits} ".encode()
    partition = Partition(
        id=hashlib.sha256(whose + owner.numpy().astype(np.int64).tobytes()).hexdigest()[:16],
        data=facts,
        default_split=task.default_split,
        splits_sha256=splits,
        method=method,
        num_parts=num_parts,
        num_nodes=tuple(torch.bincount(owner, minlength=num_parts).tolist()),
        num_halo=tuple(torch.bincount(cut.needs[0], minlength=num_parts).tolist()),
        num_cut_edges=cut_edges(task.graph, owner),
    )
    ensure_folder(folder)
    if _about_path(folder).exists() and read_partition(folder).id != partition.id:
        raise GraphjouleError(f"{folder} already holds another partition; choose another folder with `out`.")
    # First: what comes after it is known as ours, should this break off.
    write_json(_about_path(folder), partition.model_dump(mode="json"))
    targets = task.targets if task.targets.is_floating_point() else task.targets.int()
    write_tensors(_targets_path(folder), TARGETS_KIND, {"labels": targets}, {"id": partition.id})
    for part in range(num_parts):
        tensors, about = cut.pieces(part)
        write_tensors(_part_path(folder, part), _KIND, tensors, about | {"id": partition.id, "part": part})
    return partition


def check_partition_folder(folder: Path) -> None:
    """Refuse a folder that holds something else than a partition, before anything is computed."""
    if not _about_path(folder).exists():
        check_free(folder)


def remove_partition(folder: str | Path) -> None:
    """Remove the files of a partition, and their folder if it holds nothing else; without one, nothing happens."""
    folder = Path(folder)
    remove_temporaries(folder)
    # The description last: while it is there the others are known as ours.
    for path in (*folder.glob("part-*.safetensors"), _targets_path(folder), _about_path(folder)):
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
    files = [_targets_path(folder), *(_part_path(folder, part) for part in range(partition.num_parts))]
    return partition.is_of(facts, task) and all(path.exists() for path in files)


def _about_path(folder: Path) -> Path:
    return folder / "partition.json"


def _part_path(folder: Path, part: int) -> Path:
    return folder / f"part-{part}.safetensors"


def _targets_path(folder: Path) -> Path:
    return folder / "labels.safetensors"


@dataclass(frozen=True, eq=False)
class _Cut:
    """A task and the part of every node, from which `pieces` makes what each process gets.

    Attributes:
        task: the whole task, on the CPU.
        owner: part of every node, int64, shape ``[num_nodes]``.
        num_parts: number of parts.
    """

    task: Task
    owner: Tensor
    num_parts: int

    @cached_property
    def needs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Which part needs which node of which other part, each once: needer, owner, node, sorted in this order."""
        graph = self.task.graph
        needer, node = self.owner[graph.row()], graph.col.long()
        other = needer != self.owner[node]
        needer, node = needer[other], node[other]
        pair = needer * self.num_parts + self.owner[node]
        key = torch.unique(pair * graph.num_nodes + node)
        pair, node = key // graph.num_nodes, key % graph.num_nodes
        return pair // self.num_parts, pair % self.num_parts, node

    @cached_property
    def mirror(self) -> Tensor:
        """Number of the entry across the diagonal of every stored entry."""
        return self.task.graph.edge_ids()[1]

    def pieces(self, part: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors of one part, and the numbers that go with them."""
        nodes = (self.owner == part).nonzero().flatten()
        tensors = {"nodes": nodes, "labels": self.task.targets[nodes]}
        about: dict[str, Any] = {"splits": []}
        for pieces, facts in (self._rows(part, nodes), self._features(nodes)):
            tensors |= pieces
            about |= facts
        for number, whole in enumerate(self.task.fixed_splits):
            split = SplitPart.of(whole, nodes)
            tensors |= {f"split.{number}.{name}": getattr(split, name) for name in PARTS}
            about["splits"].append({"name": split.name, "counts": split.counts, "sha256": split.sha256})
        return tensors, about

    def _rows(self, part: int, nodes: Tensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The rows of ``P`` with columns renumbered: own nodes first, then the halo by owner and number."""
        graph, laplacian = self.task.graph, self.task.graph.laplacian
        row, position = entries_of_rows(graph.rowptr, nodes)
        needer, owner, node = self.needs
        halo, sent = node[needer == part], (owner == part)
        columns = torch.cat([nodes, halo])
        number = torch.full((graph.num_nodes,), -1)
        number[columns] = torch.arange(columns.numel())
        tensors = {
            "rowptr": row_starts(row, nodes.numel()),
            "col": number[graph.col[position].long()].int(),
            "value": graph.value[position],
            "degree": graph.degree[nodes],
            "column_degrees": graph.degree[columns],
            "component": laplacian.component[nodes],
            "entries": position,
            "mirror": self.mirror[position],
            "send": number[node[sent]],
        }
        return tensors, {
            "num_nodes": graph.num_nodes,
            "num_entries": graph.col.numel(),
            "num_components": laplacian.num_components,
            "send_counts": torch.bincount(needer[sent], minlength=self.num_parts).tolist(),
            "receive_counts": torch.bincount(owner[needer == part], minlength=self.num_parts).tolist(),
            "is_halo_empty": node.numel() == 0,
        }

    def _features(self, nodes: Tensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
        x = self.task.features
        if not isinstance(x, SparseFeatures):
            return {"features": x[nodes]}, {"is_sparse": False}
        row, position = entries_of_rows(x.rowptr, nodes)
        tensors = {
            "features.rowptr": row_starts(row, nodes.numel()),
            "features.col": x.col[position],
            "features.value": x.value[position],
            "features.entries": position,
        }
        return tensors, {"is_sparse": True, "num_features": x.num_features, "num_values": x.value.numel()}


def load_part(folder: str | Path, part: int, group: Group = ALONE) -> TaskPart:
    """One process's part of a task, checked against its checksum and against the partition it must be of.

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
    try:
        if (about["id"], about["part"]) == (partition.id, part):
            return _assemble(folder, partition, tensors, about, group)
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError):  # it does not say what it holds
        pass
    raise GraphjouleError(f"{path} is not part {part} of this partition; make it anew with `graphjoule partition`.")


def _assemble(
    folder: Path, partition: Partition, tensors: dict[str, Tensor], about: dict[str, Any], group: Group
) -> TaskPart:
    features: Features
    if about["is_sparse"]:
        rowptr, col, value = (tensors[f"features.{name}"] for name in ("rowptr", "col", "value"))
        among = Excerpt(tensors["features.entries"], about["num_values"])
        features = SparseFeatures.from_csr(rowptr, col, value, about["num_features"], among)
    else:
        features = tensors["features"]
    of_graph = ("rowptr", "col", "value", "degree", "column_degrees", "component", "mirror")
    counts = tuple(about["send_counts"]), tuple(about["receive_counts"])
    graph = PartedPropagation(
        **{name: tensors[name] for name in of_graph},
        num_components=about["num_components"],
        entries=Excerpt(tensors["entries"], about["num_entries"]),
        halo=Halo(tensors["send"], *counts, about["is_halo_empty"]),
        nodes=Excerpt(tensors["nodes"], about["num_nodes"]),
        group=group,
    )
    splits = (
        SplitPart(
            name=split["name"],
            seed=None,
            **{name: tensors[f"split.{number}.{name}"] for name in PARTS},
            counts=tuple(split["counts"]),
            whole_sha256=split["sha256"],
        )
        for number, split in enumerate(about["splits"])
    )
    return TaskPart(
        name=partition.data.name,
        features=features,
        graph=graph,
        targets=tensors["labels"],
        objective=partition.data.objective,
        fixed_splits=tuple(splits),
        default_split=partition.default_split,
        source=partition.data.source,
        whole=partition.data,
        nodes=tensors["nodes"],
        labels_path=_targets_path(folder),
        partition_id=partition.id,
    )
