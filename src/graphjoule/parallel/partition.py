"""A graph cut into parts, and a task cut into one file per part: how it is cut, written and read again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.files import (
    check_free,
    ensure_folder,
    json_text,
    parse_json,
    read_bytes,
    remove_temporaries,
    write_json,
)
from graphjoule.graph import Propagation
from graphjoule.graph.csr import entries_of_rows, row_starts
from graphjoule.graph.features import Features, SparseFeatures, check_features
from graphjoule.graph.nodes import Excerpt
from graphjoule.graph.relations import RelationPropagation
from graphjoule.parallel.graph import Halo, PartedPropagation
from graphjoule.parallel.group import ALONE, Group
from graphjoule.tasks import Split, Task
from graphjoule.tasks.facts import TaskFacts
from graphjoule.tasks.splits import PARTS, draw_split, is_rule
from graphjoule.training.saving import read_tensors, write_tensors

CutMethod = Literal["metis", "blocks"]
_KIND, _TARGETS_KIND = "part of a partition", "labels of a partition"  # what headers of files call them
_ABOUT, _TARGETS = "partition.json", "labels.safetensors"
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
    if method not in get_args(CutMethod):
        raise GraphjouleError(f"The method to cut nodes by is {method!r}; choose one of metis, blocks.")
    if not 1 <= num_parts <= graph.num_nodes:
        raise GraphjouleError(
            f"The number of parts is {num_parts}; for a graph of {graph.num_nodes} nodes it must be "
            f"from 1 to {graph.num_nodes}."
        )
    if not 0 <= seed < 2**31 - 1:
        raise GraphjouleError(f"The seed to cut nodes by is {seed}; it must be from 0 to {2**31 - 2}.")
    if isinstance(graph, RelationPropagation):
        graph.require_whole("A partition")
    # One part, parts of one node each, and parts of nothing but isolated nodes have no edge to save.
    if method == "blocks" or num_parts in (1, graph.num_nodes) or graph.num_edges == 0:
        return torch.arange(graph.num_nodes) * num_parts // graph.num_nodes
    part = _metis(graph, num_parts, seed)
    count = torch.bincount(part, minlength=num_parts)
    for empty in (count == 0).nonzero().flatten().tolist():  # METIS may leave some; the largest gives its last node
        largest = int(count.argmax())
        part[(part == largest).nonzero()[-1]] = empty
        count[largest] -= 1
        count[empty] = 1
    return part


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
    weight, starts = graph.laplacian.weight.cpu()[edge], row_starts(row[edge], graph.num_nodes).long()
    heaviest = weight.max()  # weights that are not all alike become whole and positive ones
    whole = (weight * (_HEAVIEST / heaviest)).round().long().clamp(min=1)
    _, part = pymetis.part_graph(
        num_parts,
        pymetis.CSRAdjacency(starts.numpy(), col[edge].numpy()),
        eweights=None if bool((weight == heaviest).all()) else whole.tolist(),
        options=pymetis.Options(seed=seed + 1),  # the C library's generator takes 0 for 1
    )
    return torch.tensor(part, dtype=torch.int64)


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
    path = Path(folder, _ABOUT)
    try:
        return Partition.model_validate_json(read_bytes(path))
    except FileNotFoundError as error:
        raise GraphjouleError(
            f"There is no partition in {folder}: {path.name} is missing; make one with `graphjoule partition`."
        ) from error
    except (OSError, ValidationError) as error:
        said: Any = None
        with suppress(OSError, ValueError):
            said = parse_json(read_bytes(path))
        number = said.get("format") if isinstance(said, dict) else None
        is_other = isinstance(number, int) and number != Partition.model_fields["format"].default
        what = "was made by another version of graphjoule" if is_other else "is damaged"
        raise GraphjouleError(
            f"{path} {what}; cut the graph anew with `graphjoule partition`, into another folder or after deleting "
            "this one."
        ) from error


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
    if task.pooling is not None:
        raise GraphjouleError(
            f"Task {task.name!r} predicts graphs, and a part of its nodes may hold half a graph; train it in one "
            "process."
        )
    owner = cut_nodes(task.graph, num_parts, method, seed)
    needs, facts, splits = _needs(task.graph, owner), task.facts(), _splits_sha256(task)
    whose = f"{facts.sha256} {splits} ".encode()
    partition = Partition(
        id=hashlib.sha256(whose + owner.numpy().astype(np.int64).tobytes()).hexdigest()[:16],
        data=facts,
        default_split=task.default_split,
        splits_sha256=splits,
        method=method,
        num_parts=num_parts,
        num_nodes=tuple(torch.bincount(owner, minlength=num_parts).tolist()),
        num_halo=tuple(torch.bincount(needs[0], minlength=num_parts).tolist()),
        num_cut_edges=cut_edges(task.graph, owner),
    )
    ensure_folder(folder)
    if (folder / _ABOUT).exists() and read_partition(folder).id != partition.id:
        raise GraphjouleError(f"{folder} already holds another partition; choose another folder with `out`.")
    # First: what comes after it is known as ours, should this break off.
    write_json(folder / _ABOUT, partition.model_dump(mode="json"))
    targets = task.targets if task.targets.is_floating_point() else task.targets.int()
    write_tensors(folder / _TARGETS, _TARGETS_KIND, {"labels": targets}, {"id": partition.id})
    for part, (tensors, about) in enumerate(_pieces(task, owner, needs)):
        write_tensors(_part_path(folder, part), _KIND, tensors, about | {"id": partition.id, "part": part})
    return partition


def check_partition_folder(folder: Path) -> None:
    """Refuse a folder that holds something else than a partition, before anything is computed."""
    if not (folder / _ABOUT).exists():
        check_free(folder)


def remove_partition(folder: str | Path) -> None:
    """Remove the files of a partition, and their folder if it holds nothing else; without one, nothing happens."""
    folder = Path(folder)
    remove_temporaries(folder)
    # The description last: while it is there the others are known as ours.
    for path in (*folder.glob("part-*.safetensors"), folder / _TARGETS, folder / _ABOUT):
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
    files = [folder / _TARGETS, *(_part_path(folder, part) for part in range(partition.num_parts))]
    return partition.is_of(facts, task) and all(path.exists() for path in files)


def _part_path(folder: Path, part: int) -> Path:
    return folder / f"part-{part}.safetensors"


def _needs(graph: Propagation, owner: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which part needs which node of which other part, each once: needer, owner, node, sorted in this order."""
    needer, node = owner[graph.row()], graph.col.long()
    other = needer != owner[node]
    needer, node = needer[other], node[other]
    num_parts = int(owner.max()) + 1
    key = torch.unique((needer * num_parts + owner[node]) * graph.num_nodes + node)
    pair, node = key // graph.num_nodes, key % graph.num_nodes
    return pair // num_parts, pair % num_parts, node


def _pieces(
    task: Task, owner: Tensor, needs: tuple[Tensor, Tensor, Tensor]
) -> Iterator[tuple[dict[str, Tensor], dict[str, Any]]]:
    """Tensors of one part after the other, and the numbers that go with them.

    Columns of the rows of ``P`` are renumbered: own nodes first, then the halo by owner and number.
    """
    graph, laplacian, (needer, giver, node) = task.graph, task.graph.laplacian, needs
    num_parts, mirror = int(owner.max()) + 1, graph.edge_ids()[1]
    for part in range(num_parts):
        nodes, halo, sent = (owner == part).nonzero().flatten(), node[needer == part], giver == part
        row, position = entries_of_rows(graph.rowptr, nodes)
        columns = torch.cat([nodes, halo])
        number = torch.full((graph.num_nodes,), -1)
        number[columns] = torch.arange(columns.numel())
        tensors = {
            "nodes": nodes,
            "labels": task.targets[nodes],
            "rowptr": row_starts(row, nodes.numel()),
            "col": number[graph.col[position].long()].int(),
            "value": graph.value[position],
            "degree": graph.degree[nodes],
            "column_degrees": graph.degree[columns],
            "component": laplacian.component[nodes],
            "entries": position,
            "mirror": mirror[position],
            "send": number[node[sent]],
        }
        about: dict[str, Any] = {
            "splits": [],
            "num_nodes": graph.num_nodes,
            "num_entries": graph.col.numel(),
            "num_components": laplacian.num_components,
            "send_counts": torch.bincount(needer[sent], minlength=num_parts).tolist(),
            "receive_counts": torch.bincount(giver[needer == part], minlength=num_parts).tolist(),
            "is_halo_empty": node.numel() == 0,
            "is_sparse": isinstance(task.features, SparseFeatures),
        }
        if isinstance(x := task.features, SparseFeatures):
            row, position = entries_of_rows(x.rowptr, nodes)
            tensors |= {
                "features.rowptr": row_starts(row, nodes.numel()),
                "features.col": x.col[position],
                "features.value": x.value[position],
                "features.entries": position,
            }
            about |= {"num_features": x.num_features, "num_values": x.value.numel()}
        else:
            tensors["features"] = x[nodes]
        for index, whole in enumerate(task.fixed_splits):
            split = SplitPart.of(whole, nodes)
            tensors |= {f"split.{index}.{name}": getattr(split, name) for name in PARTS}
            about["splits"].append({"name": split.name, "counts": split.counts, "sha256": split.sha256})
        yield tensors, about


# What one process has of a task and of its splits, in its own numbers, with the facts of the whole.


@dataclass(frozen=True, eq=False)
class SplitPart(Split):
    """The nodes of a split that one process has, as rows of its part; any of the three may be empty.

    Attributes:
        counts: number of training, validation and test nodes of the whole split.
        whole_sha256: fingerprint of the whole split.
    """

    counts: tuple[int, int, int]
    whole_sha256: str

    def __post_init__(self) -> None:
        """Nothing to check: the whole split was, and a part of it may be empty."""

    @classmethod
    def of(cls, split: Split, nodes: Tensor) -> SplitPart:
        """The part of a split whose nodes are among `nodes`, which are sorted."""
        rows, nodes = {}, nodes.cpu()
        for part in PARTS:
            index = getattr(split, part).cpu()
            row = torch.searchsorted(nodes, index).clamp_(max=len(nodes) - 1)
            rows[part] = row[nodes[row] == index]
        return cls(name=split.name, seed=split.seed, **rows, counts=split.sizes, whole_sha256=split.sha256)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of training, validation and test nodes of all processes."""
        return self.counts

    @property
    def sha256(self) -> str:
        """Fingerprint of the whole split: a record is the same whoever trained."""
        return self.whole_sha256


@dataclass(frozen=True, eq=False, kw_only=True)
class TaskPart(Task):
    """The features, labels and rows of ``P`` of one process's nodes, behind the attributes of a whole task.

    Attributes:
        whole: facts of the whole task.
        nodes: number in the whole graph of every row, sorted.
        labels_path: the labels of all nodes, read only to draw a split by a rule.
        partition_id: the partition that the part, and so the file of labels, must be of.
    """

    whole: TaskFacts
    nodes: Tensor
    labels_path: Path
    partition_id: str

    def __post_init__(self) -> None:
        # The whole task was checked when it was cut; a part may have no label at all.
        check_features(self.features)
        if not self.targets.is_floating_point():
            object.__setattr__(self, "targets", self.targets.long())

    def split(self, name: str | None = None, seed: int = 0) -> Split:
        """This process's part of a split; see `Task.split`."""
        name = self.default_split if name is None else name
        fixed = {split.name for split in self.fixed_splits}
        if name in fixed or not is_rule(name):
            return super().split(name, seed)
        whole = draw_split(name, *self.objective.strata(self.all_targets()), seed)
        return SplitPart.of(whole, self.nodes).to(self.targets.device)

    def all_targets(self) -> Tensor:
        """The targets of the whole task, in whose numbers a split is drawn."""
        tensors, about = read_tensors(self.labels_path, _TARGETS_KIND)
        if about.get("id") != self.partition_id:
            raise GraphjouleError(
                f"{self.labels_path} is of another partition than the parts; make it again with `graphjoule partition`."
            )
        targets = tensors["labels"]
        return targets if targets.is_floating_point() else targets.long()

    def facts(self) -> TaskFacts:
        """The facts of the whole task."""
        return self.whole


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
        labels_path=folder / _TARGETS,
        partition_id=partition.id,
    )
