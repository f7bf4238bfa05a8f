"""Which graph a command is about: the options for a dataset by name, for tables, and for an archive, in one place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from graphjoule.cli.terminal import split_list
from graphjoule.errors import GraphjouleError
from graphjoule.tasks.datasets import find_dataset, load_task
from graphjoule.tasks.encoders import Direction, EdgeTypes, LossName, ObjectiveName, PoolingName

if TYPE_CHECKING:
    from graphjoule.graph import Propagation
    from graphjoule.tasks import Task

DEFAULT_DATASET = "digits"
_OWN = "Your own graph"


def _own(help_text: str, metavar: str | None = None, param_decls: tuple[str, ...] = (), **more: Any) -> Any:
    return typer.Option(*param_decls, help=help_text, metavar=metavar, rich_help_panel=_OWN, **more)


@dataclass(frozen=True)
class GraphSource:
    """The options that say which graph; every command that `takes_a_graph` has them all."""

    dataset: Annotated[
        str | None, typer.Option(help="Dataset; `graphjoule data` lists them.", show_default=DEFAULT_DATASET)
    ] = None
    nodes: Annotated[Path | None, _own("Table of nodes, CSV or Parquet.", "FILE")] = None
    edges: Annotated[Path | None, _own("Table of edges; without one, nearest neighbours are linked.", "FILE")] = None
    graphs: Annotated[
        Path | None, _own("Table of graphs, if these are to be predicted and not nodes; it has the labels.", "FILE")
    ] = None
    graph_column: Annotated[
        str | None, _own("Of --graphs the column of nodes that names their graph: graph.", "COLUMN")
    ] = None
    pooling: Annotated[
        PoolingName | None, _own("Of --graphs how outputs of nodes become those of graphs: mean by default.")
    ] = None
    npz: Annotated[Path | None, _own("One archive of arrays instead of tables.", "FILE")] = None
    id: Annotated[str | None, _own("Column of the nodes' names: id, else the first.", "COLUMN")] = None
    label: Annotated[
        str | None, _own("Column to learn, or several such as a,b: label. Blank: to be predicted.", "COLUMN")
    ] = None
    objective: Annotated[
        ObjectiveName | None,
        _own("What labels are; asked for where it is not clear.", None, param_decls=("--objective", "--task")),
    ] = None
    loss: Annotated[LossName | None, _own("Error of numbers and of ordered classes: squared by default.")] = None
    positive: Annotated[str | None, _own("Of --objective binary the positive class: the second in order.", "CLASS")] = (
        None
    )
    order: Annotated[
        str | None, _own("Of --objective ordinal the classes, lowest first, such as low,high.", "CLASSES")
    ] = None
    features: Annotated[str | None, _own("Columns to use, such as a,b,c: all but id, label and split.", "COLUMNS")] = (
        None
    )
    one_hot: Annotated[str | None, _own("Columns that are categories, whatever they look like.", "COLUMNS")] = None
    source: Annotated[str | None, _own("Column of an edge's one end: source, src, from or the first.", "COLUMN")] = None
    target: Annotated[str | None, _own("Column of its other end: target, dst, to or the second.", "COLUMN")] = None
    weight: Annotated[str | None, _own("Column of its weight: weight if there is one, else 1.", "COLUMN")] = None
    edge_type: Annotated[str | None, _own("Column of its type.", "COLUMN")] = None
    types: Annotated[
        EdgeTypes | None,
        _own("Whether types of edges are one graph, weights added (the default), or have an operator each."),
    ] = None
    direction: Annotated[
        Direction | None,
        _own("Whether a row counts in both directions (the default), if both are there, or in its own alone."),
    ] = None
    knn: Annotated[int | None, _own("Without --edges: link with so many nearest; 10 by default.", "N", min=1)] = None
    test_fraction: Annotated[
        float | None, _own("Share of the labels to hold back and score once; 0 by default.", "SHARE")
    ] = None
    data_root: Annotated[
        Path | None, typer.Option(help="Where datasets are or go; by default GRAPHJOULE_DATA, else a cache folder.")
    ] = None

    @property
    def is_own(self) -> bool:
        """Whether it is from the user's files."""
        return self.nodes is not None or self.npz is not None

    @property
    def name(self) -> str:
        """What a record calls the data: a dataset's name, or the name of the user's file with its suffix."""
        own = self.graphs or self.nodes or self.npz
        if own is None:
            return DEFAULT_DATASET if self.dataset is None else find_dataset(self.dataset).name
        return own.name if own.suffix else f"{own.name}.csv"  # a file called "cora" is not Cora

    def load(self) -> Task:
        """Read the task; options that contradict each other are refused."""
        self.check()
        if not self.is_own:
            return load_task(self.name, self.data_root)
        from graphjoule.tasks import load_npz, load_tables

        options = self.table_options() | {"test_fraction": self.test_fraction or 0.0}
        if self.nodes is None:
            assert self.npz is not None
            return load_npz(
                self.npz, **{name: options[name] for name in ("objective", "loss", "positive", "test_fraction")}
            )
        return load_tables(self.nodes, self.edges, graphs=self.graphs, **options)

    def load_graph(self) -> Propagation:
        """Read the graph alone, which needs no labels."""
        self.check()
        if not self.is_own:
            return load_task(self.name, self.data_root).graph
        from graphjoule.tasks.archive import load_npz_graph
        from graphjoule.tasks.tables import load_graph

        if self.nodes is None:
            assert self.npz is not None
            return load_npz_graph(self.npz)
        return load_graph(self.nodes, self.edges, self.graphs, **self.table_options())

    def table_options(self) -> dict[str, Any]:
        """Which column of the tables is what, and what is asked; see `load_tables`."""
        same = ("id", "label", "source", "target", "weight", "edge_type", "knn", "objective", "loss", "positive")
        return {name: getattr(self, name) for name in (*same, "graph_column")} | {
            "features": split_names(self.features),
            "one_hot": split_names(self.one_hot) or (),
            "direction": self.direction or "both",
            "types": self.types or "merged",
            "order": split_names(self.order),
            "pooling": self.pooling or "mean",
        }

    def check(self) -> None:
        """Refuse options that contradict each other or mean nothing without another one, and an unknown dataset."""
        given = [name for name in ("dataset", "nodes", "npz") if getattr(self, name) is not None]
        if len(given) > 1:
            raise GraphjouleError(f"--{given[0]} and --{given[1]} contradict each other: give one.")
        for option, needs in _NEEDS.items():
            if getattr(self, option) is not None and not any(getattr(self, other) is not None for other in needs):
                owners = " or ".join(f"--{other.replace('_', '-')}" for other in needs)
                raise GraphjouleError(
                    f"--{option.replace('_', '-')} is {getattr(self, option)}, but it is for {owners}, which is not "
                    "given."
                )
        if self.dataset is not None:
            find_dataset(self.dataset)
        if self.graphs is not None and self.edges is None:
            raise GraphjouleError(
                f"--graphs is {self.graphs}, but --edges is missing; of graphs without an edge it is a file with a "
                "header alone."
            )
        for path in (self.nodes, self.edges, self.graphs, self.npz):
            if path is not None and any("\udc80" <= letter <= "\udcff" for letter in str(path.absolute())):
                raise GraphjouleError(
                    f"The path {str(path)!a} is not UTF-8, and a run folder could not store it; rename the file or "
                    "folder."
                )

    def check_split(self, overrides: Mapping[str, Any]) -> None:
        """Refuse two answers to who tests: a share, and a rule by ``--set``, which would win without a word."""
        rule = next((f"{key}={overrides[key]}" for key in ("split", "data.split") if key in overrides), None)
        if rule is not None and self.test_fraction is not None:
            raise GraphjouleError(
                f"--test-fraction is {self.test_fraction:g} and --set has {rule}; give one of them, both say who tests."
            )

    def check_before_loading(self, device: str) -> None:
        """Refuse a device that is not there and a split that cannot be: reading a graph may take minutes."""
        from graphjoule.tasks.splits import stratified_rule
        from graphjoule.training import resolve_device

        resolve_device(device)
        if self.test_fraction is not None:
            stratified_rule(self.test_fraction)


_NEEDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("edges", "graphs", "id", "label", "features", "one_hot", "knn", "order"), ("nodes",)),
    **dict.fromkeys(("graph_column", "pooling"), ("graphs",)),
    **dict.fromkeys(("source", "target", "weight", "edge_type", "direction"), ("edges",)),
    **dict.fromkeys(("objective", "test_fraction"), ("nodes", "npz")),
    **dict.fromkeys(("loss", "positive"), ("objective",)),
    "types": ("edge_type",),
}
"""Options that mean something only beside another one."""


def split_names(text: str | None) -> tuple[str, ...] | None:
    """Column names from a list with commas; None stays None.

    >>> split_names("a, b"), split_names(None)
    (('a', 'b'), None)
    """
    return None if text is None else tuple(split_list(text))


def takes_a_graph(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all options of `GraphSource`; it receives them as its first argument, one `GraphSource`.

    Typer reads a command's options from its signature, so the wrapper gets one with the fields in front.
    """
    hints = get_type_hints(GraphSource, include_extras=True)
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    kind = inspect.Parameter.KEYWORD_ONLY
    options = [
        inspect.Parameter(field.name, kind, default=field.default, annotation=hints[field.name])
        for field in fields(GraphSource)
    ]
    own = [parameter.replace(kind=kind) for parameter in own]

    def run(**given: Any) -> None:
        source = GraphSource(**{option.name: given.pop(option.name) for option in options})
        command(source, **given)

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    run.__signature__ = inspect.Signature([*options, *own])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*options, *own)}
    return run
