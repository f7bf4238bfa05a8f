"""The one shape in which every source of data arrives, `Task`; and what a trained model is applied to, `ModelInput`."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError, choices
from graphjoule.graph import Propagation
from graphjoule.graph.edges import as_int64
from graphjoule.graph.features import Features, SparseFeatures, checked_features
from graphjoule.graph.nodes import moved
from graphjoule.graph.relations import RelationPropagation
from graphjoule.tasks.encoders import PoolingName
from graphjoule.tasks.facts import Source, TaskFacts
from graphjoule.tasks.objective import OBJECTIVES, Classification, Objective, Regression
from graphjoule.tasks.pooling import Pooling
from graphjoule.tasks.splits import PARTS, RULES, Split, check_labelled, draw_split, is_rule, split_of_masks

if TYPE_CHECKING:
    from torch_geometric.data import Data

MAX_SPARSE_DENSITY = 0.25
"""Features with a smaller share of non-zeros are kept sparse.

A stored value takes 20 bytes (value, two int32 columns, an int64 position) against 4 in a dense matrix, so memory is
about even here, while products and dropout touch a quarter of the entries at most.
"""


@dataclass(frozen=True, eq=False)
class Task:
    """A graph with features and targets, and what is asked of a model; checked when it is made.

    A task about whole graphs is one graph of many parts without an edge between them, with a `pooling`: then targets,
    splits and predictions are one per graph, and what is said below about nodes holds for graphs.

    Attributes:
        name: what the task is called in records and error sentences.
        features: finite floating-point matrix, one row per node, as stored by its source: a dense tensor, or
            `SparseFeatures`, which a tensor of a sparse layout becomes.
        graph: the normalised operator.
        targets: what is to be predicted for every node, in the form of its objective: classes are int64, -1 where
            unknown; numbers and several labels are floating-point, NaN where unknown.
        objective: the loss, the metrics, and which of them selects.
        fixed_splits: splits that came with the data.
        default_split: the split to use when none is asked for.
        node_ids: what the source calls every node, where it has names for them.
        source: the files it was read from, where they are the user's own.
        pooling: which graph every node is of, where graphs are predicted; None where nodes are.
    """

    name: str
    features: Features
    graph: Propagation
    targets: Tensor
    objective: Objective
    fixed_splits: tuple[Split, ...] = ()
    default_split: str = "per-class-20-30"
    node_ids: tuple[str, ...] | None = None
    source: Source | None = None
    pooling: Pooling | None = None

    def __post_init__(self) -> None:
        _check_kinds(self)
        object.__setattr__(self, "features", checked_features(self.features))
        if self.features.size(0) != self.graph.num_nodes:
            raise GraphjouleError(
                f"The features of task {self.name!r} have {self.features.size(0)} rows; "
                f"expected {self.graph.num_nodes}, one per node of the graph."
            )
        if self.pooling is not None and self.pooling.batch.numel() != self.num_nodes:
            raise GraphjouleError(
                f"Task {self.name!r} has graph numbers for {self.pooling.batch.numel()} nodes; expected "
                f"{self.num_nodes}, one per node."
            )
        checked = self.objective.check(self.targets, self.num_units, self.name, self.unit)
        object.__setattr__(self, "targets", checked)
        for split in self.fixed_splits:
            check_labelled(split, self.objective.is_known(self.targets))
        self._check_split_name(self.default_split)
        if self.node_ids is not None and len(self.node_ids) != self.num_units:
            raise GraphjouleError(
                f"Task {self.name!r} has {len(self.node_ids)} {self.unit} ids; expected {self.num_units}, one per "
                f"{self.unit}."
            )

    @classmethod
    def from_data(
        cls,
        data: Data | Sequence[Data],
        *,
        name: str = "data",
        symmetrize: bool = False,
        objective: Objective | None = None,
        pooling: PoolingName = "mean",
    ) -> Task:
        """A task from PyG's `Data` with ``x``, ``edge_index`` and ``y``, and ``edge_weight`` if there is one.

        ``edge_attr`` is not read; one number per edge, which might be meant as weights, is warned of.

        From a `Batch`, or a list of `Data`, whose ``y`` has one row per graph, it is a task about graphs.

        If it has ``train_mask`` and ``val_mask``, they become the split ``public``, whose test part is empty without a
        ``test_mask``; any other choice of masks is refused.

        Args:
            data: one homogeneous graph, or several; they are not changed.
            name: what to call the task.
            symmetrize: let every edge of a directed graph count in both directions.
            objective: what is asked; by default integers in ``y`` are classes, floating-point numbers are targets of a
                regression.
            pooling: how outputs of nodes become those of graphs: "mean", "sum" or "max".
        """
        if not hasattr(data, "edge_index"):
            data = _joined(data)
        given, edge_index, targets = (_tensor(data, key) for key in ("x", "edge_index", "y"))
        x = checked_features(given)
        if targets.dim() == 2 and targets.size(1) == 1:  # OGB keeps its labels as a column
            targets = targets.view(-1)
        pooled = _pooling(data, x.size(0), targets, pooling, name)
        if objective is None and targets.is_floating_point():
            objective = Regression(targets.size(1) if targets.dim() == 2 else 1)
        elif objective is None:
            targets = as_int64(targets, f"The labels of task {name!r} have")
            objective = Classification.of(targets)
        masks = {key: getattr(data, key, None) for key in (f"{part}_mask" for part in PARTS)}
        public = split_of_masks("public", {key: mask.cpu() for key, mask in masks.items() if mask is not None})
        return cls(
            name=name,
            features=pack_features(x),
            graph=Propagation.from_edge_index(edge_index, edge_weight_of(data), x.size(0), symmetrize=symmetrize),
            targets=targets,
            objective=objective,
            fixed_splits=(public,) if public else (),
            default_split="public" if public else cls.default_split,
            pooling=pooled,
        )

    @property
    def num_nodes(self) -> int:
        """Number of nodes, labelled or not."""
        return self.graph.num_nodes

    @property
    def is_directed(self) -> bool:
        """Whether edges count in one direction alone."""
        return self.graph.is_directed

    @property
    def num_edge_types(self) -> int:
        """How many types of edges have operators of their own; 1 where all are one."""
        return self.graph.num_edge_types

    @property
    def num_units(self) -> int:
        """Number of nodes, or of graphs where these are predicted, with a known target or not."""
        return self.num_nodes if self.pooling is None else self.pooling.num_graphs

    @property
    def unit(self) -> str:
        """What is predicted, for error sentences: "node" or "graph"."""
        return "node" if self.pooling is None else "graph"

    def readout(self, output: Tensor, center: Tensor | float = 0.0) -> Tensor:
        """What a model's outputs of all nodes are for the objective: themselves, or one per graph.

        Args:
            output: shape ``[num_nodes, out_channels]``.
            center: see `Pooling`.
        """
        return output if self.pooling is None else self.pooling(output, center)

    @property
    def num_features(self) -> int:
        """Number of columns of the features."""
        return self.features.size(1)

    @property
    def out_channels(self) -> int:
        """How many numbers a model gives for each node: one per class, or one per target."""
        return self.objective.out_channels

    @property
    def is_known(self) -> Tensor:
        """Which nodes have a target, or one of several, bool, shape ``[num_units]``."""
        return self.objective.is_known(self.targets)

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits it offers by name; besides these, any ``per-class-A-B`` and ``stratified-V-T``."""
        return tuple(dict.fromkeys([*(split.name for split in self.fixed_splits), self.default_split]))

    def split(self, name: str | None = None, seed: int = 0) -> Split:
        """The split of a given name, on the targets' device; a fixed one is the same for every seed.

        Where the data come with several, ``public-0``, ``public-1`` and so on, ``public`` is the one of the seed.

        Args:
            name: one of `split_names`; or ``per-class-A-B``: A training and B validation nodes of every class, the
                other labelled nodes test; or ``stratified-V-T``: of every class V percent validate, T percent test and
                the others train. By default `default_split`.
            seed: seeds the drawing by one of the two rules.
        """
        name = self.default_split if name is None else name
        self._check_split_name(name)
        fixed = {split.name: split for split in self.fixed_splits}
        if several := self._several(name):
            return several[seed % len(several)].to(self.targets.device)
        split = fixed.get(name) or draw_split(name, *self.objective.strata(self.targets), seed, self.unit)
        return split.to(self.targets.device)

    def facts(self) -> TaskFacts:
        """The facts that a run folder stores about the task, with a hash by which the same task is known again."""
        return TaskFacts(
            name=self.name,
            num_nodes=self.num_nodes,
            num_edges=self.graph.num_edges,
            num_features=self.num_features,
            num_labels=int(self.is_known.sum()),
            objective=self.objective,
            sha256=self._sha256(),
            source=self.source,
            num_graphs=None if self.pooling is None else self.pooling.num_graphs,
            pooling=None if self.pooling is None else self.pooling.how,
            is_directed=self.is_directed,
            num_edge_types=self.num_edge_types,
        )

    def _sha256(self) -> str:
        """A hash of features, graph and targets; of ``P`` the pattern and the degrees, which decide the rest."""
        x = self.features
        features = (x.rowptr, x.col, x.value) if isinstance(x, SparseFeatures) else (x,)
        digest = hashlib.sha256()
        pooled: tuple[Tensor, ...] = () if self.pooling is None else (self.pooling.batch,)
        if self.pooling is not None:
            digest.update(self.pooling.how.encode())
        # Of edges with directions or types the entries too: another operator may have their pattern.
        entries = (self.graph.value,) if isinstance(self.graph, RelationPropagation) else ()
        graph = (self.graph.rowptr, self.graph.col, self.graph.degree, *entries)
        for tensor in (*features, *graph, self.targets, *pooled):
            digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
            if tensor.numel():  # an empty one may have the stride 0, and then has no view as bytes
                digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Task:
        """The same task on another device, or with features and graph of another dtype."""
        features, graph = self.features.to(device=device, dtype=dtype), self.graph.to(device, dtype)
        return replace(self, **moved(self, device, features=features, graph=graph))

    def _several(self, name: str) -> list[Split]:
        """The fixed splits that a name without a number stands for."""
        return [split for split in self.fixed_splits if split.name.rpartition("-")[0] == name]

    def _check_split_name(self, name: str) -> None:
        if not isinstance(name, str):
            raise GraphjouleError(f"The split is {name!r}; expected the name of one: {choices(self.split_names)}.")
        fixed = {split.name for split in self.fixed_splits}
        if name not in fixed and not self._several(name) and not is_rule(name):
            offered = choices([*fixed, *(f"{rule} ({meaning})" for rule, meaning in RULES.items())])
            raise GraphjouleError(f"Unknown split {name!r} for task {self.name!r}; expected one of: {offered}.")


@dataclass(frozen=True, eq=False)
class ModelInput:
    """A graph to predict on.

    Attributes:
        features: finite floating-point matrix, one row per node.
        graph: the normalised operator.
        targets: what is known to be right for every node, see `Task`.
        node_ids: what the source calls every node, or graph where these are predicted.
        pooling: which graph every node is of, where graphs are predicted.
        num_old: how many of the nodes, the first ones, are those of the training graph, beside which new ones stand.
    """

    features: Features
    graph: Propagation
    targets: Tensor
    node_ids: tuple[str, ...]
    pooling: Pooling | None = None
    num_old: int = 0

    @property
    def unit(self) -> str:
        """What is predicted: "node" or "graph"."""
        return "node" if self.pooling is None else "graph"

    @classmethod
    def of(cls, task: Task) -> ModelInput:
        """The input that a task is; nodes without names are called by their number from 0."""
        ids = task.node_ids or tuple(str(number) for number in range(task.num_units))
        return cls(task.features, task.graph, task.targets, ids, task.pooling)

    def to(self, device: torch.device | str) -> ModelInput:
        """The same input on another device."""
        return replace(self, **moved(self, device))


def pack_features(x: Features | sp.sparray | sp.spmatrix) -> Features:
    """Features in the form that suits how many of them are zero: sparse below `MAX_SPARSE_DENSITY`, else dense."""
    if isinstance(x, SparseFeatures):
        return x if x.value.numel() < MAX_SPARSE_DENSITY * x.shape.numel() else x.to_dense()
    if isinstance(x, Tensor):
        is_sparse = x.dim() == 2 and int(x.count_nonzero()) < MAX_SPARSE_DENSITY * x.numel()
        return SparseFeatures.from_dense(x) if is_sparse else x
    if x.count_nonzero() < MAX_SPARSE_DENSITY * x.shape[0] * x.shape[1]:
        return SparseFeatures.from_scipy(x)
    return torch.from_numpy(x.toarray()).to(torch.get_default_dtype())


def _tensor(data: Data, key: str) -> Tensor:
    value = getattr(data, key, None)
    if not isinstance(value, Tensor):
        raise GraphjouleError(f"The graph given as Data has no tensor {key!r}; expected x, edge_index and y.")
    return value.cpu()


def edge_weight_of(data: Data) -> Tensor | None:
    """The ``edge_weight`` of PyG's `Data`, None without one; an ``edge_attr`` that might mean weights is warned of."""
    if getattr(data, "edge_weight", None) is not None:
        return _tensor(data, "edge_weight")
    attributes = getattr(data, "edge_attr", None)
    if isinstance(attributes, Tensor) and attributes.dim() and attributes.numel() == len(attributes) > 0:
        # They may be weights, or distances, which mean the opposite, or types of edges.
        warnings.warn(
            "edge_attr has one number per edge, which is not used; if they are weights, say data.edge_weight = "
            "data.edge_attr.view(-1).",
            stacklevel=3,
        )
    return None


def _check_kinds(task: Task) -> None:
    """Refuse a graph, targets or an objective of a type that is none, and say how one of it is made."""
    if not isinstance(task.graph, Propagation):
        how = ": Propagation.from_edge_index(edge_index, num_nodes=len(x))" if isinstance(task.graph, Tensor) else ""
        raise GraphjouleError(
            f"The graph of task {task.name!r} is {_type_of(task.graph)}; expected a Propagation{how}."
        )
    if not isinstance(task.targets, Tensor):
        raise GraphjouleError(
            f"The targets of task {task.name!r} are {_type_of(task.targets)}; expected a tensor, such as "
            "torch.tensor(y)."
        )
    if not isinstance(task.objective, Objective):
        names = choices(f"{kind.__name__}(...)" for kind in OBJECTIVES.values())
        raise GraphjouleError(
            f"The objective of task {task.name!r} is {_type_of(task.objective)}; expected an objective, such as "
            f"Classification(num_classes=3) or Regression(). The choices are: {names}."
        )


def _type_of(given: Any) -> str:
    """What something of the wrong type is, in a sentence: a class by its name, else its type."""
    return f"the class {given.__name__}" if isinstance(given, type) else f"of type {type(given).__name__}"


def _joined(given: Any) -> Data:
    """Several graphs as one `Batch`."""
    from torch_geometric.data import Batch

    is_list = isinstance(given, Iterable) and not isinstance(given, str | Mapping | Tensor | np.ndarray)
    graphs = list(given) if is_list and not hasattr(given, "node_types") else [given]
    if foreign := [graph for graph in graphs if not hasattr(graph, "edge_index")]:
        kind = type(foreign[0]).__name__
        how = "; to_homogeneous() makes one of several types" if kind == "HeteroData" else ""
        raise GraphjouleError(
            f"The graph is of type {kind}; expected PyG's Data with x, edge_index and y, or a list of such{how}."
        )
    if not graphs:
        raise GraphjouleError("The list of graphs is empty; at least one is needed.")
    try:
        return Batch.from_data_list(graphs)
    except (KeyError, RuntimeError, ValueError, AttributeError, TypeError) as error:
        raise GraphjouleError(
            f"The {len(graphs)} graphs cannot be joined; expected Data with the same attributes each: {error}."
        ) from error


def _pooling(data: Data, num_nodes: int, targets: Tensor, how: PoolingName, name: str) -> Pooling | None:
    """The pooling of a `Batch` whose ``y`` has one row per graph; None where it has one per node."""
    batch = getattr(data, "batch", None)
    if not isinstance(batch, Tensor):
        return None
    pooling = Pooling(batch.cpu(), how)
    if len(targets) == pooling.num_graphs:
        return pooling
    if len(targets) != num_nodes:
        raise GraphjouleError(
            f"y of task {name!r} has {len(targets)} rows; expected {pooling.num_graphs}, one per graph, or "
            f"{num_nodes}, one per node. A graph with several targets needs a y of shape [1, num_targets]."
        )
    return None
