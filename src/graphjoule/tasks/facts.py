"""What a run folder remembers of its data: enough to read new files the same way and to tell whether they changed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator, model_validator

from graphjoule.tasks.objective import Classification, Objective, read_objective

_EXACT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class NumberColumn(BaseModel):
    """A numeric column, standardised as ``(value - mean) / std``.

    Attributes:
        name: its name in the header.
        mean: over all nodes of the training graph.
        std: the same nodes' standard deviation; 0 for a column that is constant, which becomes 0 everywhere. Where all
            columns are constant, mean and std are such that each becomes 1 or -1.
    """

    model_config = _EXACT

    name: str
    mean: float
    std: float = Field(ge=0)


class CategoryColumn(BaseModel):
    """A text column, one feature of 0 or 1 for every category; a blank value has none.

    Attributes:
        name: its name in the header.
        categories: the values it has in the training graph, sorted.
    """

    model_config = _EXACT

    name: str
    categories: tuple[str, ...]


class TableColumns(BaseModel):
    """How the columns of a table of nodes and a table of edges become a graph with features.

    Attributes:
        id: the nodes' names; None if they are called by their row's number.
        label: the classes or numbers to predict; blank where unknown.
        numbers: the numeric features, in the order of the model's input.
        categories: the text features, whose columns follow those of `numbers`.
        source: one end of an edge; None if there is no table of edges.
        target: the other end.
        weight: the edges' weights; None if every edge weighs 1.
        knn: neighbours per node where the graph is built from the features; None if there is a table of edges.
    """

    model_config = _EXACT

    id: str | None
    label: str
    numbers: tuple[NumberColumn, ...]
    categories: tuple[CategoryColumn, ...] = ()
    source: str | None = None
    target: str | None = None
    weight: str | None = None
    knn: Annotated[int, Field(ge=1)] | None = None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name for every input of the model; a category's is ``column=category``."""
        encoded = (f"{column.name}={category}" for column in self.categories for category in column.categories)
        return (*(column.name for column in self.numbers), *encoded)


class SourceFile(BaseModel):
    """A file of the user's that a task was read from, and the hash of what it held then."""

    model_config = _EXACT

    role: Literal["nodes", "edges", "npz"]
    path: str
    sha256: str


class Source(BaseModel):
    """The files of a task that is the user's own.

    Attributes:
        files: the files.
        columns: how tables were read; None for an ``.npz`` archive, which needs no reading rule.
    """

    model_config = _EXACT

    files: tuple[SourceFile, ...]
    columns: TableColumns | None = None

    def file(self, role: str) -> SourceFile | None:
        """The file of a role, or None where there is none."""
        return next((file for file in self.files if file.role == role), None)


class TaskFacts(BaseModel):
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
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, arbitrary_types_allowed=True)

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
