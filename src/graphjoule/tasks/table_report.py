"""What a user hears about tables before anything trains, and `graphjoule data check` without training.

Nothing here imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphjoule.errors import GraphjouleError, counted
from graphjoule.tasks.columns import Finding, read_numbers
from graphjoule.tasks.labels import alike
from graphjoule.tasks.own_edges import read_edges
from graphjoule.tasks.own_graph import (
    NodeTable,
    TableOptions,
    about_split,
    check_neighbors,
    check_one_graph,
    read_graphs,
    read_nodes,
    split_parts,
)
from graphjoule.tasks.reading import shorten

OTHER_OPERATORS = (
    "energies will be those of the merged undirected graph; directions are for all models but egnn, dropedge and wave, "
    "separate types for all but dropedge, and neither for audits, the constraint, clusters and processes"
)
UNBALANCED = 0.95
"""From this share of one class on, accuracy says little."""
FEW_LABELS = 10
"""Of fewer a column may say every label by chance."""


@dataclass(frozen=True)
class TableReport:
    """What was found in two tables.

    Attributes:
        nodes: about the nodes, one line.
        columns: what becomes of every column of features.
        target: about the target, one line; None if it is refused.
        edges: about the edges, one line.
        warnings: what a training goes on in spite of.
        problems: what a training refuses.
    """

    nodes: str
    columns: tuple[Finding, ...]
    target: str | None
    edges: str | None
    warnings: tuple[str, ...]
    problems: tuple[str, ...]


def check_tables(
    nodes: str | Path,
    edges: str | Path | None,
    options: TableOptions,
    graphs: str | Path | None = None,
    test_fraction: float = 0.0,
) -> TableReport:
    """Read two tables, or three with `graphs`, as a training would, and say what becomes of them."""
    check_one_graph(edges, options.knn)
    units = None
    if graphs is not None:
        units, options = read_graphs(graphs, nodes, edges, options)
    read = read_nodes(nodes, options, has_edges=edges is not None, is_check=True, graphs=units)
    labelled = units or read
    problems = [finding.problem for finding in read.findings if finding.problem is not None]
    about_target = about_edges = None
    more: list[str] = []
    try:
        objective, names = labelled.find_objective(options)
        targets = labelled.targets(objective, names)
        about_target = _about_target(labelled, objective, names, targets)
        parts = split_parts(labelled, _is_known(targets), test_fraction, "node" if units is None else "graph")
        about_target += "" if parts is None else f"; {about_split(parts)}"
        has_classes = objective in ("classification", "binary", "ordinal")
        most = np.bincount(targets[targets >= 0]).max() if has_classes else _is_known(targets).sum()
        if most < 2 and parts is None:
            raise GraphjouleError(
                f"{labelled.table.path}: {'no class has two labels' if has_classes else 'there is one known target'}; "
                "expected two, so that one can train and one validate."
            )
        more = warnings_of_names(names) + (warnings_of_copies(read, targets) if units is None else [])
        if objective in ("classification", "binary"):
            more += doubt_of_accuracy(names, np.bincount(targets[targets >= 0], minlength=len(names)).tolist())
    except GraphjouleError as error:
        problems.append(str(error))
    try:
        if edges is None and options.knn is not None:
            check_neighbors(options.knn, len(read.ids))
        if edges is not None:
            linked = read_edges(edges, options, read)
            if (linked.weight is not None and not linked.weight.any()) or not linked.counts()[0]:
                more.append(f"{edges}: no row is left to be an edge: the graph has no edges")
            about_edges = ", ".join([f"{edges}: {counted(linked.num_rows, 'row')}", *linked.facts()])
            if options.direction == "kept" or options.types == "separate":
                more.append(OTHER_OPERATORS)
    except GraphjouleError as error:
        problems.append(str(error))
    called = f"called by {read.columns.id!r}" if read.columns.id else "called 1, 2, and so on"
    about_nodes = f"{nodes}: {counted(len(read.ids), 'node')}, {called}"
    if units is not None:
        about_nodes += f", {about_graphs(units, read)}"
        more += unused_columns(units)
    warnings = (*warnings_of(read.findings), *more)
    return TableReport(about_nodes, read.findings, about_target, about_edges, warnings, tuple(problems))


def about_graphs(graphs: NodeTable, nodes: NodeTable) -> str:
    """How many graphs there are, what they are called by, and how many nodes they have."""
    assert nodes.graph is not None
    sizes = np.bincount(nodes.graph)
    return (
        f"of {counted(len(graphs.ids), 'graph')} called by {graphs.columns.id!r} in {graphs.table.path}, "
        f"{f'{sizes.min():,} to ' if sizes.min() < sizes.max() else ''}{counted(int(sizes.max()), 'node')} each"
    )


def unused_columns(graphs: NodeTable) -> list[str]:
    """One line if a table of graphs has columns beside ids and targets: features are those of nodes."""
    unused = [name for name in graphs.table.names if name not in graphs.values]
    return [f"{graphs.table.path}: columns not used: {shorten(unused)}; features are those of nodes"] if unused else []


def _about_target(read: NodeTable, objective: str, names: Sequence[str], targets: np.ndarray) -> str:
    """What is to be learnt, in words; refused as a training would."""
    read.refuse_large(targets)
    num_known, many = int(_is_known(targets).sum()), ""
    if objective != "regression":
        labels = targets.ndim == 2
        counts = np.nansum(targets, axis=0) if labels else np.bincount(targets[targets >= 0], minlength=len(names))
        many = f" of {len(names):,} ({shorten([f'{n} {int(c):,}' for n, c in zip(names, counts, strict=True)])})"
        many += f", positive is {names[1]!r}" if objective == "binary" else ""
    shown = ", ".join(map(repr, read.columns.labels))
    said = f"{shown}, {objective}{many}; {num_known:,} known, {len(targets) - num_known:,} to predict"
    if targets.ndim == 2 and (blank := int(np.isnan(targets[_is_known(targets)]).sum())):
        said += f", and {counted(blank, 'single value')} of the others that {'is' if blank == 1 else 'are'} blank"
    return said


def _is_known(targets: np.ndarray) -> np.ndarray:
    """Which rows have a target, or one of several."""
    rows = targets if targets.ndim == 2 else targets[:, None]
    is_known = (rows >= 0) if targets.dtype == np.int64 else ~np.isnan(rows)
    return np.asarray(is_known.any(axis=1))


def warnings_of_names(names: Sequence[str]) -> list[str]:
    """One line if two classes or labels may have been meant to be one."""
    found = alike(names)
    how = "are two, and differ in case, accents or invisible signs alone"
    return [f"the labels {found[0]!r} and {found[1]!r} {how}"] if found else []


def doubt_of_accuracy(names: Sequence[str], counts: Sequence[int]) -> list[str]:
    """One line if nearly all labels are of one class, so that to say it always is right nearly always.

    >>> doubt_of_accuracy(["fraud", "honest"], [1, 399])[0][:60]
    "always saying 'honest' is right for 99.75 % of the labels, s"
    """
    most, total = max(counts, default=0), sum(counts)
    if most <= UNBALANCED * total:
        return []
    return [
        f"always saying {names[list(counts).index(most)]!r} is right for {100 * most / total:.4g} % of the labels, so "
        "accuracy says little; `select_on=balanced_accuracy` or `select_on=average_precision` chooses and shows a "
        "score that says more, and `class_weights=balanced` lets all classes weigh the same"
    ]


def warnings_of(findings: Sequence[Finding]) -> list[str]:
    """One line for every reason why columns are left out, or are suspicious."""
    said = []
    for finding in findings:
        if finding.becomes.startswith("left out"):
            said.append(f"{finding.name!r} is {finding.becomes}")
        elif "is a code" in finding.becomes or "like dates" in finding.becomes:
            said.append(f"{finding.name!r} is a {finding.kind}: {finding.becomes}")
        elif finding.kind == "number" and re.search(r"(^|[_ ])(id|no|number|code|zip)$", finding.name.lower()):
            said.append(f"{finding.name!r} is taken for a number, whatever its name says")
    return said + [finding.doubt for finding in findings if finding.doubt is not None]


def warnings_of_copies(read: NodeTable, targets: np.ndarray) -> list[str]:
    """One line if columns of features say the target by themselves in every row where it is known.

    Of classes such a column has a value for each, of a regression it has the same numbers.
    """
    if targets.ndim > 1:
        return []
    is_known = _is_known(targets)
    if is_known.sum() < FEW_LABELS:
        return []
    test = _has_one_value_per_class if targets.dtype == np.int64 else _has_the_same_numbers
    copies = [each.name for each in read.findings if test(read, each, targets, is_known)]
    if not copies:
        return []
    one = len(copies) == 1
    nodes = counted(int(is_known.sum()), "labelled node")
    return [
        f"{shorten([repr(name) for name in copies])} {'says' if one else 'each say'} the label by "
        f"{'itself' if one else 'themselves'} in all {nodes}; leave {'it' if one else 'them'} out unless "
        f"{'it is' if one else 'they are'} known before the label is"
    ]


def _has_one_value_per_class(read: NodeTable, column: Finding, targets: np.ndarray, is_known: np.ndarray) -> bool:
    if column.encoder is None or column.kind not in ("number", "boolean", "date", "category"):
        return False
    rows = np.flatnonzero(is_known)
    for some in (rows[:1_000], rows):  # most columns are told by the first rows, at no cost
        values = read.values[column.name].take(pa.array(some)).combine_chunks()
        codes = pc.dictionary_encode(values, null_encoding="encode").indices.to_numpy()
        num_pairs = len(np.unique(codes * (targets.max() + 1) + targets[some]))
        if not num_pairs == len(np.unique(codes)) == len(np.unique(targets[some])):
            return False
    return True


def _has_the_same_numbers(read: NodeTable, column: Finding, targets: np.ndarray, is_known: np.ndarray) -> bool:
    if column.encoder is None or column.kind != "number":
        return False
    return np.array_equal(read_numbers(read.table, column.name, read.values[column.name])[is_known], targets[is_known])
