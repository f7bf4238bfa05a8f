"""New rows beside the graph that a model was trained on: joined to it by edges, or by their nearest nodes in it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
import torch

from graphjoule.errors import GraphjouleError, counted
from graphjoule.graph import Propagation
from graphjoule.graph.extension import ExtendedPropagation, joined, links_to
from graphjoule.graph.features import Features, as_dense
from graphjoule.tasks.columns import encode, positions
from graphjoule.tasks.digits import nearest_rows
from graphjoule.tasks.facts import Source
from graphjoule.tasks.objective import Objective
from graphjoule.tasks.own_edges import EdgeTable, edge_columns, read_edges
from graphjoule.tasks.own_graph import NodeTable, read_nodes_like
from graphjoule.tasks.reading import Table, file_sha256
from graphjoule.tasks.tables import (
    DEFAULT_NEIGHBORS,
    graph_of,
    linked_graph,
    load_tables_like,
    options_like,
    targets_like,
    unchanged,
)
from graphjoule.tasks.task import ModelInput, pack_features

logger = logging.getLogger("graphjoule")


def load_new_nodes(
    source: Source,
    objective: Objective,
    nodes: str | Path,
    edges: str | Path | None = None,
    *,
    knn: int | None = None,
    update_old: bool = False,
) -> ModelInput:
    r"""New rows to predict: beside the training graph where they belong to it, else as a graph of their own.

    They belong to it if `edges` name nodes that are not in `nodes` but in the training table; or, without `edges`, if
    no row has the id of a training node: then each is linked with its nearest training nodes in the encoded features.
    New nodes read from old ones and from each other. Old nodes do not read from new ones, so nothing about them
    changes, unless `update_old` says so.

    Args:
        source: the files of the training graph, which must be there and unchanged, and how they were read.
        objective: what the model predicts.
        nodes: a table with the columns of the training table; the label's may be missing.
        edges: a table with the columns of the training graph's edges.
        knn: nearest training nodes of each new one, without `edges`; by default as many as the training graph was
            built with, or 10.
        update_old: let the new edges count in both directions, which changes the predictions of old nodes too.

    Returns:
        Old and then new nodes, with `num_old`; 0 if the rows are a graph of their own.

    Example:
        >>> import tempfile
        >>> from graphjoule.tasks import load_tables
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name, text in {
        ...     "old.csv": "id,x,label\na,1,red\nb,2,blue\nc,4,red\n",
        ...     "links.csv": "source,target\na,b\nb,c\n",
        ...     "new.csv": "id,x\nd,3\n",
        ...     "new-links.csv": "source,target\nd,c\n",
        ... }.items():
        ...     _ = (folder / name).write_text(text)
        >>> task = load_tables(folder / "old.csv", folder / "links.csv")
        >>> given = load_new_nodes(task.source, task.objective, folder / "new.csv", folder / "new-links.csv")
        >>> given.node_ids, given.num_old
        (('a', 'b', 'c', 'd'), 3)
        >>> given.graph.to_dense()[3].tolist()  # it reads from c, which has one edge in the training graph
        [0.0, 0.0, 0.5, 0.5]
    """
    columns = source.columns
    if columns is None:
        raise GraphjouleError("The model was not trained on a table, so a table of new nodes cannot be read.")
    if columns.graphs is not None:
        raise GraphjouleError("The model predicts graphs, not nodes; read new graphs with `load_tables_like`.")
    if knn is not None and knn < 1:
        raise GraphjouleError(f"`knn` is {knn}; it must be at least 1.")
    if edges is not None and knn is not None:
        raise GraphjouleError(f"`knn` is {knn} and `edges` is {edges}; give one of them, the links come from one.")
    new = read_nodes_like(nodes, columns)
    named = None
    if edges is not None and not (named := _foreign_names(edges, new)):
        return load_tables_like(columns, objective, nodes, edges)
    try:
        paths = {file.role: unchanged(file) for file in source.files}
    except GraphjouleError as error:
        logger.warning(
            "%s is read as a graph of its own, since that of the training cannot be: %s",
            nodes,
            str(error).split(";")[0],
        )
        return load_tables_like(columns, objective, nodes, edges)
    old = read_nodes_like(paths["nodes"], columns)
    known = [] if columns.id is None else sorted(set(new.ids.to_pylist()) & set(old.ids.to_pylist()))
    if edges is not None and named is not None and not named & set(old.ids.to_pylist()):
        # Where most rows name neither new nodes nor old ones, the refusal is to name both tables.
        read_edges(edges, options_like(columns, len(new.ids)), replace(new, beside=paths["nodes"]), is_trained=True)
        return load_tables_like(columns, objective, nodes, edges)
    if known and edges is not None:
        raise GraphjouleError(
            f"{nodes}: the id {known[0]!r} is a node of the training graph too, and {edges} links with that graph; "
            "give new nodes ids of their own, and leave the rows of old ones out."
        )
    is_same = columns.id is None and file_sha256(Path(nodes)) == file_sha256(paths["nodes"])
    if known or is_same:
        logger.info("%s has nodes of the training graph and no edges: it is read as a graph of its own", nodes)
        return load_tables_like(columns, objective, nodes, edges)

    dtype = torch.empty(0).numpy().dtype
    (x_old, _), (x_new, said) = (encode(each.table, columns, each.values, dtype) for each in (old, new))
    x = _packed(x_old, x_new)
    if said:
        logger.warning("%s: %s", nodes, "; ".join(said))
    options = options_like(columns, len(old.ids))
    graph, _ = graph_of(paths.get("edges"), options, old, _packed(x_old), is_trained=True)
    both = NodeTable(new.table, {}, columns, pa.concat_arrays([old.ids, new.ids]), beside=paths["nodes"])
    if edges is None:
        links = _nearest(x, graph, knn or columns.knn or DEFAULT_NEIGHBORS, nodes)
    else:
        linked = read_edges(edges, options, both, is_trained=True)
        links = linked_graph(linked)
        _log_links(edges, linked, links, graph, is_all=update_old)
    whole = joined(graph, links) if update_old else ExtendedPropagation.of(graph, links)
    targets = torch.cat([targets_like(each, objective) for each in (old, new)])
    return ModelInput(x, whole, targets, tuple(both.ids.to_pylist()), num_old=len(old.ids))


def _foreign_names(edges: str | Path, nodes: NodeTable) -> set[str]:
    """The names in a table of edges that no row of the nodes has."""
    table = Table(edges)
    found = edge_columns(table, options_like(nodes.columns, len(nodes.ids)), is_trained=True)
    ends = [name for name in (found["source"], found["target"]) if name is not None]
    values = table.read(ends, may_be_empty=True)
    return {
        name
        for end in ends
        for name in values[end].filter(pa.array(positions(values[end], nodes.ids) < 0)).to_pylist()
        if name is not None
    }


def _packed(*parts: np.ndarray | sp.csr_matrix) -> Features:
    """The rows of all parts; the same columns make them all dense or all sparse."""
    if isinstance(parts[0], np.ndarray):
        return pack_features(torch.from_numpy(np.vstack(parts)))
    return pack_features(sp.vstack(parts, format="csr"))


def _nearest(x: Features, graph: Propagation, knn: int, nodes: str | Path) -> Propagation:
    """Links of every new node with its nearest old ones, each as heavy as an edge of the graph is on average."""
    dense, num_old = as_dense(x), graph.num_nodes
    knn = min(knn, num_old)
    weight = float(graph.edge_weight.double().mean()) if graph.is_weighted else 1.0
    heavy = f", each of weight {weight:.4g}, the mean" if graph.is_weighted else ""
    num_new = len(dense) - num_old
    logger.info(
        "%s: no edges given, so %s %d nearest in the features of the training graph%s",
        nodes,
        "1 new node reads from its" if num_new == 1 else f"{num_new:,} new nodes read from their",
        knn,
        heavy,
    )
    return links_to(nearest_rows(dense[num_old:], dense[:num_old], knn), graph, weight)


def _log_links(edges: str | Path, read: EdgeTable, links: Propagation, old: Propagation, *, is_all: bool) -> None:
    num_old, num_new = old.num_nodes, links.num_nodes - old.num_nodes
    between_old = int((links.edge_index < num_old).all(dim=0).sum()) // (1 if links.is_directed else 2)
    alone = int((links.degree[num_old:] == 0).sum())
    parts = [
        f"{counted(links.num_edges - between_old, 'edge')} of {counted(num_new, 'new node')} with each other and with "
        f"the {num_old:,} of the training graph"
    ]
    parts += read.unused()
    parts += [f"{counted(read.dangling, 'row')} naming no node left out"] if read.dangling else []
    parts += [f"{counted(read.untyped, 'row')} of a type the model does not know left out"] if read.untyped else []
    if between_old:
        what = f"count{'s' * (between_old == 1)} too" if is_all else "left out, as these nodes stay as they are"
        parts.append(f"{counted(between_old, 'edge')} between its own nodes {what}")
    parts += [f"{counted(alone, 'new node')} without an edge{' that leads to it' * links.is_directed}"] if alone else []
    logger.info("%s: %s", edges, "; ".join(parts))
