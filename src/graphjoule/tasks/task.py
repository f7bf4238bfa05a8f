"""The one shape in which every source of data arrives: features, graph, labels and the splits it offers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import scipy.sparse as sp
import torch
from torch import Tensor

from graphjoule.counting import counted
from graphjoule.errors import GraphjouleError, choices
from graphjoule.features import Features, SparseFeatures, check_features
from graphjoule.graph import Propagation
from graphjoule.tasks.facts import Source, TaskFacts
from graphjoule.tasks.rules import RULES, draw_split, is_rule
from graphjoule.tasks.splits import PARTS, Split, check_labelled, split_of_masks
from graphjoule.whole_numbers import as_int64

if TYPE_CHECKING:
    from torch_geometric.data import Data

MAX_SPARSE_DENSITY = 0.25
"""Features with a smaller share of non-zeros are kept sparse.

A stored value takes 20 bytes (value, two int32 columns, an int64 position) against 4 in a dense matrix, so memory is
about even here, while products and dropout touch a quarter of the entries at most.
"""


@dataclass(frozen=True, eq=False)
class NodeTask:
    """Node classification on one graph, checked when it is made.

    Attributes:
        name: what the task is called in records and error sentences.
        features: finite floating-point matrix, dense or sparse, one row per node, as stored by its source.
        graph: the normalised operator.
        labels: class of every node, int64, -1 where unknown.
        num_classes: number of classes, at least two.
        class_names: name of every class, where the source has names.
        fixed_splits: splits that came with the data.
        default_split: the split to use when none is asked for.
        node_ids: what the source calls every node, where it has names for them.
        source: the files it was read from, where they are the user's own.
    """

    name: str
    features: Features
    graph: Propagation
    labels: Tensor
    num_classes: int
    class_names: tuple[str, ...] | None = None
    fixed_splits: tuple[Split, ...] = ()
    default_split: str = "per-class-20-30"
    node_ids: tuple[str, ...] | None = None
    source: Source | None = None

    def __post_init__(self) -> None:
        check_features(self.features)
        if self.features.size(0) != self.graph.num_nodes:
            raise GraphjouleError(
                f"The features of task {self.name!r} have {self.features.size(0)} rows; "
                f"expected {self.graph.num_nodes}, one per node of the graph."
            )
        object.__setattr__(self, "labels", _check_labels(self))
        _check_classes(self)
        for split in self.fixed_splits:
            check_labelled(split, self.labels)
        self._check_split_name(self.default_split)
        if self.node_ids is not None and len(self.node_ids) != self.num_nodes:
            raise GraphjouleError(
                f"Task {self.name!r} has {len(self.node_ids)} node ids; expected {self.num_nodes}, one per node."
            )

    @classmethod
    def from_data(cls, data: Data, *, name: str = "data", symmetrize: bool = False) -> NodeTask:
        """A task from PyG's `Data` with ``x``, ``edge_index`` and ``y``, and ``edge_weight`` if there is one.

        If it has ``train_mask`` and ``val_mask``, they become the split ``public``, whose test part is empty without a
        ``test_mask``; any other choice of masks is refused.

        Args:
            data: one homogeneous graph; it is not changed.
            name: what to call the task.
            symmetrize: let every edge of a directed graph count in both directions.
        """
        x, edge_index, labels = (_tensor(data, key) for key in ("x", "edge_index", "y"))
        check_features(x)
        labels = as_int64(labels, f"The labels of task {name!r} have")
        weight = _tensor(data, "edge_weight") if getattr(data, "edge_weight", None) is not None else None
        masks = {key: getattr(data, key, None) for key in (f"{part}_mask" for part in PARTS)}
        public = split_of_masks("public", {key: mask.cpu() for key, mask in masks.items() if mask is not None})
        return cls(
            name=name,
            features=pack_features(x),
            graph=Propagation.from_edge_index(edge_index, weight, x.size(0), symmetrize=symmetrize),
            # OGB keeps its labels as a column.
            labels=labels.view(-1) if labels.dim() == 2 and labels.size(1) == 1 else labels,
            num_classes=count_classes(labels),
            fixed_splits=(public,) if public else (),
            default_split="public" if public else cls.default_split,
        )

    @property
    def num_nodes(self) -> int:
        """Number of nodes, labelled or not."""
        return self.graph.num_nodes

    @property
    def num_features(self) -> int:
        """Number of columns of the features."""
        return self.features.size(1)

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits it offers by name; besides these, any ``per-class-A-B`` and ``stratified-V-T``."""
        return tuple(dict.fromkeys([*(split.name for split in self.fixed_splits), self.default_split]))

    def split(self, name: str | None = None, seed: int = 0) -> Split:
        """The split of a given name, on the labels' device; a fixed one is the same for every seed.

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
            return several[seed % len(several)].to(self.labels.device)
        split = fixed.get(name) or draw_split(name, self.labels, self.num_classes, seed, self.class_names)
        return split.to(self.labels.device)

    def facts(self) -> TaskFacts:
        """What is worth knowing about the task once it is gone, with a hash that tells whether another is the same."""
        return TaskFacts(
            name=self.name,
            num_nodes=self.num_nodes,
            num_edges=self.graph.num_edges,
            num_features=self.num_features,
            num_classes=self.num_classes,
            num_labels=int((self.labels >= 0).sum()),
            class_names=self.class_names,
            sha256=self._sha256(),
            source=self.source,
        )

    def _sha256(self) -> str:
        """A hash of features, graph and labels; of ``P`` the pattern and the degrees, which decide the rest."""
        x = self.features
        features = (x.rowptr, x.col, x.value) if isinstance(x, SparseFeatures) else (x,)
        digest = hashlib.sha256()
        for tensor in (*features, self.graph.rowptr, self.graph.col, self.graph.degree, self.labels):
            digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
            if tensor.numel():  # an empty one may have the stride 0, and then has no view as bytes
                digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> NodeTask:
        """The same task on another device, or with features and graph of another dtype."""
        features, graph = self.features.to(device=device, dtype=dtype), self.graph.to(device, dtype)
        return replace(self, features=features, graph=graph, labels=self.labels.to(device))

    def _several(self, name: str) -> list[Split]:
        """The fixed splits that a name without a number stands for."""
        return [split for split in self.fixed_splits if split.name.rpartition("-")[0] == name]

    def _check_split_name(self, name: str) -> None:
        fixed = {split.name for split in self.fixed_splits}
        if name not in fixed and not self._several(name) and not is_rule(name):
            offered = choices([*fixed, *(f"{rule} ({meaning})" for rule, meaning in RULES.items())])
            raise GraphjouleError(f"Unknown split {name!r} for task {self.name!r}; expected one of: {offered}.")


def pack_features(x: Tensor | sp.sparray | sp.spmatrix) -> Features:
    """Features in the form that suits how many of them are zero: sparse below `MAX_SPARSE_DENSITY`, else dense."""
    if isinstance(x, Tensor):
        is_sparse = x.dim() == 2 and int(x.count_nonzero()) < MAX_SPARSE_DENSITY * x.numel()
        return SparseFeatures.from_dense(x) if is_sparse else x
    if x.count_nonzero() < MAX_SPARSE_DENSITY * x.shape[0] * x.shape[1]:
        return SparseFeatures.from_scipy(x)
    return torch.from_numpy(x.toarray()).to(torch.get_default_dtype())


def count_classes(labels: Tensor) -> int:
    """Number of classes that labels 0, 1, 2, ... speak of: the largest plus one."""
    return int(labels.long().max()) + 1 if labels.numel() else 0


def _tensor(data: Data, key: str) -> Tensor:
    value = getattr(data, key, None)
    if not isinstance(value, Tensor):
        raise GraphjouleError(f"The graph given as Data has no tensor {key!r}; expected x, edge_index and y.")
    return value.cpu()


def _check_classes(task: NodeTask) -> None:
    if task.num_classes < 2:
        raise GraphjouleError(
            f"Task {task.name!r} has {counted(task.num_classes, 'class', 'classes')}; at least two are needed."
        )
    if task.class_names is not None and len(task.class_names) != task.num_classes:
        raise GraphjouleError(
            f"Task {task.name!r} has {task.num_classes} classes but {len(task.class_names)} class names."
        )
    first: dict[str, int] = {}
    for number, name in enumerate(map(str, task.class_names or ())):
        if first.setdefault(name, number) != number:
            raise GraphjouleError(
                f"The classes {first[name]} and {number} of task {task.name!r} are both called {name!r}; names must "
                "differ, because predictions have a column for each."
            )


def _check_labels(task: NodeTask) -> Tensor:
    """The labels in int64."""
    labels = task.labels
    if labels.shape != (task.num_nodes,):
        raise GraphjouleError(
            f"The labels of task {task.name!r} have shape {list(labels.shape)}; "
            f"expected [{task.num_nodes}], one per node."
        )
    labels = as_int64(labels, f"The labels of task {task.name!r} have")
    wrong = ((labels < -1) | (labels >= task.num_classes)).nonzero().view(-1)
    if wrong.numel():
        node = int(wrong[0])
        raise GraphjouleError(
            f"The label of node {node} in task {task.name!r} is {int(labels[node])}; "
            f"expected 0 to {task.num_classes - 1}, or -1 where it is unknown."
        )
    if not (labels >= 0).any():
        raise GraphjouleError(f"Task {task.name!r} has no label: all {task.num_nodes} are -1, at least one is needed.")
    return labels
