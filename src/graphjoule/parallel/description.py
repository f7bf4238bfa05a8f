"""What ``partition.json`` says: of what a partition is, and into which parts it is cut."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from graphjoule.errors import GraphjouleError
from graphjoule.files import json_text
from graphjoule.tasks import Task
from graphjoule.tasks.facts import TaskFacts


class Partition(BaseModel):
    """The content of ``partition.json``.

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
        return (self.data.sha256, self.splits_sha256) == (facts.sha256, splits_sha256(task))

    def check_size(self, folder: str | Path, num_processes: int) -> None:
        """Refuse another number of processes than there are parts in the folder."""
        if num_processes != self.num_parts:
            raise GraphjouleError(
                f"{folder} is cut into {self.num_parts} parts, but there are {num_processes} processes; start as many "
                "processes as parts, or cut anew with `graphjoule partition`."
            )


def read_partition(folder: str | Path) -> Partition:
    """What ``partition.json`` of a folder says."""
    path = about_path(Path(folder))
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


def splits_sha256(task: Task) -> str:
    """A hash of what a task says about splits: the default one's name, and names and nodes of those it came with."""
    said = [task.default_split, *((split.name, split.sha256) for split in task.fixed_splits)]
    return hashlib.sha256(json_text(said).encode()).hexdigest()


def about_path(folder: Path) -> Path:
    """Where a folder's description is."""
    return folder / "partition.json"
