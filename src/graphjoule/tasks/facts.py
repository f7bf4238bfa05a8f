"""What a run folder stores about its data: how to read new files the same way, and hashes that show a change."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal, Self

from pydantic import ConfigDict, field_serializer, field_validator, model_validator

from graphjoule.tasks.encoders import Exact, TableColumns
from graphjoule.tasks.objective import Classification, Objective, read_objective


class SourceFile(Exact):
    """A file of the user's that a task was read from, and the hash of what it held then."""

    role: Literal["nodes", "edges", "npz", "graphs"]
    path: str
    sha256: str


class Source(Exact):
    """The files of a task that is the user's own.

    Attributes:
        files: the files.
        columns: how tables were read; None for an ``.npz`` archive, which needs no reading rule.
    """

    files: tuple[SourceFile, ...]
    columns: TableColumns | None = None

    @model_validator(mode="after")
    def _has_its_file(self) -> Self:
        if self.file(role := "npz" if self.columns is None else "nodes") is None:
            raise ValueError(f"there is no file of the role {role}")
        return self

    def file(self, role: str) -> SourceFile | None:
        """The file of a role, or None where there is none."""
        return next((file for file in self.files if file.role == role), None)


class TaskFacts(Exact):
    """A task in numbers.

    Attributes:
        name: what the task is called.
        num_nodes: number of nodes.
        num_edges: number of undirected edges without self-loops.
        num_features: number of columns of the features.
        num_labels: number of nodes whose target is known.
        objective: what is asked; files that are older than the field hold the number and names of classes instead.
        sha256: of features, graph and targets: another task with the same is the same task.
        source: the user's files, if it was read from some.
        num_graphs: number of graphs, where these are predicted and not nodes.
        pooling: how outputs of nodes become those of graphs.
        is_directed: whether edges count in one direction alone; `num_edges` counts each direction then.
        num_edge_types: how many types of edges have operators of their own; 1 where all are one.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)  # beside what `Exact` has

    name: str
    num_nodes: int
    num_edges: int
    num_features: int
    num_labels: int
    objective: Objective
    sha256: str
    source: Source | None = None
    num_graphs: int | None = None
    pooling: str | None = None
    is_directed: bool = False
    num_edge_types: int = 1

    @property
    def unit(self) -> str:
        """What is predicted: "node" or "graph"."""
        return "node" if self.num_graphs is None else "graph"

    @model_validator(mode="before")
    @classmethod
    def _from_before(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and "num_classes" in fields:
            fields = dict(fields)
            names = fields.pop("class_names", None)
            fields["objective"] = Classification(fields.pop("num_classes"), None if names is None else tuple(names))
        return fields

    @field_validator("objective", mode="before")
    @classmethod
    def _read_objective(cls, given: Any) -> Any:
        return given if isinstance(given, Objective) else read_objective(given)

    @field_serializer("objective")
    def _write_objective(self, objective: Objective) -> dict[str, Any]:
        return {"name": objective.name, **asdict(objective)}  # type: ignore[call-overload]

    @property
    def classes(self) -> tuple[str, ...]:
        """Name of every class; empty for a task without classes."""
        return self.objective.classes if isinstance(self.objective, Classification) else ()
