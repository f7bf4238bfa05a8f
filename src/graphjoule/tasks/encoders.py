"""How columns of tables become features and edges, in numbers that a run folder keeps; imports no torch, no pyarrow."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Direction = Literal["both", "mutual", "kept"]
DIRECTIONS: dict[Direction, str] = {
    "both": "every row counts in both directions",
    "mutual": "only edges that stand in both directions count",
    "kept": "edges keep their direction: a node reads from the sources of the edges that lead to it",
}
EdgeTypes = Literal["merged", "separate"]
EDGE_TYPES: dict[EdgeTypes, str] = {
    "merged": "merged into one graph, weights added",
    "separate": "an operator for each, normalised by itself, and P is their mean",
}
ObjectiveName = Literal["classification", "binary", "ordinal", "multilabel", "regression"]
LossName = Literal["squared", "absolute"]
PoolingName = Literal["mean", "sum", "max"]
MOST_CATEGORIES = 100
"""Categories of a column that nobody named: the most frequent ones."""


class Exact(BaseModel):
    """Something that a run folder stores, without unknown fields or numbers that are not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class NumberColumn(Exact):
    """A column of numbers, booleans or dates, standardised as ``(value - mean) / std``; a missing value becomes 0.

    Attributes:
        name: its name in the header.
        mean: over all nodes of the training graph; a date counts in days since 1970.
        std: the same nodes' standard deviation; 0 for a column that is constant, which becomes 0 everywhere. Where all
            columns are constant, mean and std are such that each becomes 1 or -1.
        kind: what it looked like.
        dates: how dates are written where they are text, such as "D.M.Y".
        low: the smallest value of the training graph; None in models of earlier versions.
        high: the largest.
        has_missing: whether values were missing, which a feature of 0 and 1 then marks.
    """

    name: str
    mean: float
    std: float = Field(ge=0)
    kind: Literal["number", "boolean", "date"] = "number"
    dates: str | None = None
    low: float | None = None
    high: float | None = None
    has_missing: bool = False


class CategoryColumn(Exact):
    """A text column, one feature of 0 or 1 for every category; a blank and an unknown value have none.

    Attributes:
        name: its name in the header.
        categories: the values it has in the training graph, sorted; the most frequent ones where there are many.
    """

    name: str
    categories: tuple[str, ...]


class TextColumn(Exact):
    """A column of free text, one feature of 0 or 1 for every word, in small letters.

    Attributes:
        name: its name in the header.
        words: the words that occur in most rows of the training graph, sorted.
    """

    name: str
    words: tuple[str, ...]


Encoder = NumberColumn | CategoryColumn | TextColumn


class GraphColumns(Exact):
    """Which columns say of which graph a node is, where graphs are predicted, and how one output comes from its nodes'.

    Attributes:
        id: the graphs' names, in the table of graphs.
        node: the name of every node's graph, in the table of nodes.
        edge: the name of every edge's graph, in the table of edges: then nodes of two graphs may have the same id. None
            if there is no such column: then all ids differ.
        pooling: see `graphjoule.tasks.pooling.Pooling`.
    """

    id: str
    node: str
    edge: str | None = None
    pooling: PoolingName = "mean"


class TableColumns(Exact):
    """How the columns of a table of nodes and a table of edges become a graph with features.

    Attributes:
        id: the nodes' names; None if they are called by their row's number.
        label: what to predict; blank where unknown. Several names are several targets of a node.
        numbers: the features that are numbers, in the order of the model's input.
        categories: the text features, whose columns follow those of `numbers`.
        texts: free text, whose columns follow; last come those that mark missing numbers.
        source: one end of an edge; None if there is no table of edges.
        target: the other end.
        weight: the edges' weights; None if every edge weighs 1.
        edge_type: the column of the edges' types; None if there is none.
        types: the types that have operators of their own, in order; None if all are merged.
        direction: what a row says of the other direction, see `DIRECTIONS`.
        knn: neighbours per node where the graph is built from the features; None if there is a table of edges.
        graphs: of a task about many graphs, whose table has the columns of `label`; None if nodes are predicted.
    """

    id: str | None
    label: str | Annotated[tuple[str, ...], Field(min_length=1)]
    numbers: tuple[NumberColumn, ...]
    categories: tuple[CategoryColumn, ...] = ()
    texts: tuple[TextColumn, ...] = ()
    source: str | None = None
    target: str | None = None
    weight: str | None = None
    edge_type: str | None = None
    types: tuple[str, ...] | None = None
    direction: Direction = "both"
    knn: Annotated[int, Field(ge=1)] | None = None
    graphs: GraphColumns | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns of what to predict: one, or several."""
        return (self.label,) if isinstance(self.label, str) else self.label

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name for every input of the model; a category's is ``column=category``, a word's ``column:word``."""
        return (
            *(column.name for column in self.numbers),
            *(f"{column.name}={category}" for column in self.categories for category in column.categories),
            *(f"{column.name}:{word}" for column in self.texts for word in column.words),
            *(f"{column.name} missing" for column in self.numbers if column.has_missing),
        )
