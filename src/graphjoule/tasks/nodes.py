"""A table of nodes: which column is what, the nodes' names, and their classes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.columns import keep_constant, measure_categories, measure_numbers, shorten
from graphjoule.tasks.facts import CategoryColumn, NumberColumn, TableColumns
from graphjoule.tasks.reading import read_table
from graphjoule.tasks.table import Header, Table, Wanted

DEFAULT_ID, DEFAULT_LABEL = "id", "label"
logger = logging.getLogger("graphjoule")


@dataclass(frozen=True)
class NodeOptions:
    """Which column of a table of nodes is what; None is the default.

    Attributes:
        id: the nodes' names: by default "id"; if there is none, the first column where edges name the nodes, else none.
        label: the classes: by default "label".
        features: the columns that are features: by default all but id and label.
        one_hot: the text columns among them, or besides them.
    """

    id: str | None = None
    label: str | None = None
    features: tuple[str, ...] | None = None
    one_hot: tuple[str, ...] = ()


def read_nodes(
    path: str | Path, options: NodeOptions, *, has_edges: bool, needs_labels: bool = True
) -> tuple[Table, TableColumns]:
    """Read a table of nodes to train on, and measure its columns.

    Args:
        path: the table.
        options: which column is what.
        has_edges: whether a table of edges will name the nodes.
        needs_labels: whether the column of the classes must be there even if no option names it.

    Returns:
        The table, and how it was read, with mean and standard deviation of every number and the categories.
    """
    id_column: str | None = None
    label = DEFAULT_LABEL if options.label is None else options.label

    def choose(header: Header) -> Wanted:
        nonlocal id_column
        id_column = _id_column(header, options, has_edges=has_edges)
        has_labels = needs_labels or options.label is not None or label in header.names
        labels = [header.find(label, "--label")] if has_labels else []
        numbers, categories = _feature_columns(header, options, {id_column, label})
        hint = "; every feature must be a finite number, unless --one-hot names the column or --features leaves it out"
        ids = [id_column] if id_column is not None else []
        return Wanted([*ids, *labels, *categories], numbers, hint)

    table = read_table(path, choose)
    numbers = tuple(measure_numbers(name, values) for name, values in table.numbers.items())
    categories = tuple(measure_categories(name, table) for name in _categories(options))
    if table.num_rows > 1 and not _tell_apart(table, numbers, categories):
        _tell_constant(table, has_edges=has_edges)
        # Zeros, which constants become otherwise, would leave a network nothing to multiply with.
        numbers = tuple(keep_constant(column) for column in numbers)
    return table, TableColumns(id=id_column, label=label, numbers=numbers, categories=categories)


def _tell_apart(table: Table, numbers: Sequence[NumberColumn], categories: Sequence[CategoryColumn]) -> bool:
    """Whether any two nodes have different features."""
    return any(column.std for column in numbers) or any(len(set(table.text[c.name])) > 1 for c in categories)


def _tell_constant(table: Table, *, has_edges: bool) -> None:
    """Say that the features tell no two nodes apart; refuse them where they are to say who is linked."""
    if not has_edges:
        raise GraphjouleError(
            f"{table.path}: every feature is constant, so that no node is nearer than another; give the edges with "
            "--edges, or a feature in which the nodes differ."
        )
    logger.warning(
        "%s: every feature is constant and is kept, scaled to size 1; the edges alone tell the nodes apart",
        table.path,
    )


def read_ids(path: str | Path, options: NodeOptions) -> tuple[tuple[str, ...], str]:
    """The nodes' names alone and their column, for a graph whose edges name them; no other column is looked at."""
    id_column = ""

    def choose(header: Header) -> Wanted:
        nonlocal id_column
        id_column = _id_column(header, options, has_edges=True) or header.names[0]
        return Wanted([id_column])

    table = read_table(path, choose)
    return node_ids(table, id_column, options), id_column


def read_nodes_like(path: str | Path, columns: TableColumns) -> Table:
    """Read another table of nodes with the columns of the first; labels may be missing."""

    def choose(header: Header) -> Wanted:
        needed = [columns.id] if columns.id is not None else []
        needed += [column.name for column in columns.categories]
        numbers = [column.name for column in columns.numbers]
        for name in (*needed, *numbers):
            header.find(name, None)
        labels = [columns.label] if columns.label in header.names else []
        return Wanted([*needed, *labels], numbers, "; every feature must be a finite number")

    return read_table(path, choose)


def _id_column(header: Header, options: NodeOptions, *, has_edges: bool) -> str | None:
    if options.id is not None:
        return header.find(options.id, "--id")
    if DEFAULT_ID in header.names:
        return DEFAULT_ID
    return header.names[0] if has_edges else None


def id_hint(column: str | None, options: NodeOptions | None) -> str:
    """Where the ids came from, if nobody said so, for the end of a sentence about one that does not fit.

    >>> id_hint("age", NodeOptions())
    "; ids were taken from the column 'age', as there is no column 'id': name the right one with --id"
    """
    if column in (None, DEFAULT_ID) or options is None or options.id is not None:
        return ""
    return (
        f"; ids were taken from the column {column!r}, as there is no column {DEFAULT_ID!r}: name the right one with "
        "--id"
    )


def _categories(options: NodeOptions) -> tuple[str, ...]:
    return tuple(dict.fromkeys(options.one_hot))


def _feature_columns(
    header: Header, options: NodeOptions, others: set[str | None]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The numeric and the text columns that are features."""
    categories = _categories(options)
    given = options.features if options.features is not None else tuple(n for n in header.names if n not in others)
    for option, names in (("--one-hot", categories), ("--features", given)):
        for name in names:
            if header.find(name, option) in others:
                raise GraphjouleError(
                    f"{header.path}, line 1: the column {name!r} is named by {option}, but it is the id or the label."
                )
    numbers = tuple(name for name in dict.fromkeys(given) if name not in categories)
    if not numbers and not categories:
        raise GraphjouleError(
            f"{header.path}, line 1: there is no column of features besides id and label; at least one is needed."
        )
    return numbers, categories


def node_ids(table: Table, column: str | None, options: NodeOptions | None = None) -> tuple[str, ...]:
    """The nodes' names, each given once; the row's number from 1 where there is no column of names.

    Args:
        table: the nodes.
        column: the column of their names.
        options: what was asked for, to say of a wrong column why it is the one; None if it is a trained model's.
    """
    if column is None:
        return tuple(str(number) for number in range(1, table.num_rows + 1))
    ids = table.text[column]
    if "" in ids:
        table.refuse(ids.index(""), column, f"the id is blank; every node needs one{id_hint(column, options)}.")
    if nul := next((name for name in ids if "\0" in name), None):
        table.refuse(ids.index(nul), column, f"the id {nul!r} holds a NUL byte; expected text.")
    if len(set(ids)) < len(ids):
        name, _ = next(pair for pair in Counter(ids).most_common(1))
        first = ids.index(name)
        second = ids.index(name, first + 1)
        table.refuse(
            second,
            column,
            f"the id {name!r} stands on {table.unit} {table.rows[first]} already; ids must differ"
            f"{id_hint(column, options)}.",
        )
    return tuple(ids)


def find_classes(table: Table, column: str) -> tuple[str, ...]:
    """The different labels of a table, sorted: by value if all are numbers, else as text; two or more."""
    values = table.text[column]
    names = sorted({value for value in values if value})
    if not names:
        raise GraphjouleError(
            f"{table.path}, {table.unit}s {table.rows[0]} to {table.rows[-1]}, column {column!r}: every label is "
            "blank; some nodes must be labelled, with at least two classes, to learn from."
        )
    if len(names) == 1:
        table.refuse(
            values.index(names[0]), column, f"all labels that are given are {names[0]!r}; expected two classes or more."
        )
    try:
        return tuple(sorted(names, key=lambda name: (float(name), name)))
    except ValueError:
        return tuple(names)


def class_numbers(table: Table, column: str, classes: Sequence[str]) -> np.ndarray:
    """Every row's class as a number, -1 where the label is blank; a label that is no class is refused."""
    index = {name: number for number, name in enumerate(classes)} | {"": -1}
    values = table.text[column]
    numbers = np.fromiter((index.get(value, -2) for value in values), dtype=np.int64, count=len(values))
    unknown = np.flatnonzero(numbers == -2)
    if unknown.size:
        row = int(unknown[0])
        table.refuse(
            row, column, f"{values[row]!r} is not a class of the model; those are: {shorten(list(classes))}, or blank."
        )
    return numbers
