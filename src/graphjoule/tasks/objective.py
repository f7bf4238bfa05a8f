"""What a task asks for: the loss, the metrics, and which of them selects the epoch.

Nothing else in the house names a loss: the trainer, records, studies, searches and pages read it from here, and the
metrics from `graphjoule.tasks.metrics`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from graphjoule.errors import GraphjouleError, choices, counted
from graphjoule.graph.edges import as_int64
from graphjoule.tasks import metrics as m
from graphjoule.tasks.metrics import Metric as Metric

LOSS = "loss"
"""The name under which the loss itself can select."""

ClassWeights = Literal["balanced"] | tuple[float, ...] | None
Error = Literal["squared", "absolute"]
OfTensor = Callable[[Tensor], Tensor]


def _as_it_is(values: Tensor) -> Tensor:
    return values


class Objective(ABC):
    """The loss and the metrics of a task.

    Attributes:
        name: a key of `OBJECTIVES`.
        metrics: all that records have; the first is the headline, unless another one selects.
        tabled: those that tables of many runs show.
        is_scaled: whether outputs are numbers in the unit of the targets, see `graphjoule.nn.OutputScale`.
    """

    name: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]
    tabled: ClassVar[tuple[Metric, ...]]
    is_scaled: ClassVar[bool] = False

    @property
    @abstractmethod
    def out_channels(self) -> int:
        """How many numbers a model gives for each node."""

    @abstractmethod
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of every node, shape ``[n]``; the loss of a task is the mean.

        An objective with `class_factors` takes them as a third argument.
        """

    def prediction(self, output: Tensor) -> Tensor:
        """What a model's outputs ``[num_nodes, out_channels]`` say to people; the mean over runs makes sense."""
        return output

    @property
    def names(self) -> tuple[str, ...]:
        """Name of every class, label or target: its number without one, and nothing for a single target."""
        return ("",) if self.out_channels == 1 else tuple(map(str, range(self.out_channels)))

    def scored(self, prediction: Tensor, target: Tensor, centered: OfTensor = _as_it_is) -> tuple[Tensor, Tensor]:
        """Predictions and targets as metrics take them, float64.

        Args:
            prediction: see `prediction`.
            target: of the same nodes.
            centered: takes a number from both that they have in common, for metrics that do not change by it.
        """
        return prediction.double(), target

    def columns(self, targets: Tensor) -> Tensor:
        """Targets as numbers, float64, NaN where unknown, shape ``[n, k]``: of classes a column of 1 and 0 each."""
        return (targets if targets.dim() == 2 else targets[:, None]).double()

    @abstractmethod
    def check(self, targets: Tensor, num_nodes: int, task: str, unit: str = "node") -> Tensor:
        """The targets as they are trained on, one per node or graph; refused with a sentence if they do not fit."""

    @abstractmethod
    def is_known(self, targets: Tensor) -> Tensor:
        """Which nodes have a target, or one of several, bool, shape ``[num_nodes]``."""

    @abstractmethod
    def unknown(self, num_nodes: int) -> Tensor:
        """The targets of nodes of which nothing is known."""

    def strata(self, targets: Tensor) -> tuple[Tensor, tuple[str, ...]]:
        """The group of every node, -1 without a target, and the groups' names: a random split divides each alike."""
        return self.is_known(targets).long() - 1, ("all",)

    def prepare(self, model: nn.Module, targets: Tensor, count: int, total: OfTensor) -> None:  # noqa: B027
        """Set what a model must know of its training targets before it trains; by default nothing.

        Args:
            model: the model.
            targets: of the training nodes that are here.
            count: how many training nodes there are, here and elsewhere.
            total: adds a tensor up over all places.
        """

    def class_factors(self, targets: Tensor, total: OfTensor) -> Tensor:
        """What the loss of a class is multiplied with, from the training targets; empty if by nothing.

        Args:
            targets: of the training nodes that are here.
            total: adds a tensor up over all places.
        """
        return torch.empty(0, device=targets.device)

    def reweighted(
        self, class_weights: ClassWeights, focal_gamma: float | None, label_smoothing: float | None = None
    ) -> Self:
        """The same objective with another weight of classes, a focal loss or smoother labels; None changes nothing."""
        asked = {"class_weights": class_weights, "focal_gamma": focal_gamma, "label_smoothing": label_smoothing}
        asked = {name: value for name, value in asked.items() if value is not None}
        own = {each.name for each in fields(self)}  # type: ignore[arg-type]
        if foreign := [name for name in asked if name not in own]:
            raise GraphjouleError(
                f"`{foreign[0]}` is {asked[foreign[0]]!r}, but it is for classes"
                f"{'' if foreign[0] == 'label_smoothing' else ' and labels'}, and the objective is {self.name}; leave "
                "it out."
            )
        return replace(self, **asked)  # type: ignore[type-var]

    @property
    def headline(self) -> Metric:
        """The metric that tables and pages show where none selects."""
        return self.metrics[0]

    @classmethod
    def metric(cls, name: str) -> Metric:
        """The metric of a name."""
        found = {metric.name: metric for metric in cls.metrics}
        if name not in found:
            raise GraphjouleError(f"{name!r} is not a metric of {cls.name}; the choices are: {choices(found)}.")
        return found[name]

    @classmethod
    def watched(cls, select_on: str) -> tuple[Metric, ...]:
        """The metrics of every epoch: the headline, and the one that selects; all others are made once, at the end."""
        names = [LOSS, *(metric.name for metric in cls.metrics)]
        if select_on not in names:
            raise GraphjouleError(f"`select_on` is {select_on!r}; for {cls.name} the choices are: {choices(names)}.")
        selecting = () if select_on == LOSS else (cls.metric(select_on),)
        return tuple(dict.fromkeys([cls.metrics[0], *selecting]))

    @classmethod
    def column(cls, select_on: str) -> tuple[int, bool]:
        """The place of what selects among the loss and the watched metrics, and whether higher is better."""
        watched = cls.watched(select_on)
        place = [LOSS, *(metric.name for metric in watched)].index(select_on)
        return place, place > 0 and watched[place - 1].is_higher_better


def _check_names(what: str, names: Sequence[str] | None, task: str) -> None:
    first: dict[str, int] = {}
    for number, name in enumerate(map(str, names or ())):
        if first.setdefault(name, number) != number:
            raise GraphjouleError(
                f"The {what} {first[name]} and {number} of task {task!r} are both called {name!r}; names must "
                "differ, because predictions have a column for each."
            )


def _check_weights(weights: ClassWeights, focal_gamma: float, expected: int, each: str) -> None:
    if isinstance(weights, str) and weights != "balanced":
        raise GraphjouleError(f"`class_weights` is {weights!r}; expected 'balanced' or {expected} numbers.")
    if isinstance(weights, tuple) and (len(weights) != expected or not all(0 < w < float("inf") for w in weights)):
        raise GraphjouleError(
            f"`class_weights` is {list(weights)}; expected 'balanced' or {expected} numbers above 0, one per {each}."
        )
    if not 0 <= focal_gamma < float("inf"):
        raise GraphjouleError(f"`focal_gamma` is {focal_gamma}; it must be 0 or more, such as 2.")


def _focal(log_probability: Tensor, gamma: float) -> Tensor:
    """``(1 - p)^gamma`` of the probability that the truth has; near p = 1 a root would have no gradient."""
    tiny = torch.finfo(log_probability.dtype).tiny
    return (-torch.expm1(log_probability)).clamp(min=tiny).pow(gamma)


def _balanced(counts: Tensor) -> Tensor:
    """What makes all classes that are there weigh the same, from how often each is; 1 for one that is not there."""
    factors = counts.sum(dim=0) / ((counts > 0).sum(dim=0) * counts)
    return torch.where(counts > 0, factors, 1.0).to(torch.get_default_dtype())


def _columns(values: Tensor) -> Tensor:
    return values if values.dim() == 2 else values[:, None]


def _mean_of_known(values: Tensor, is_known: Tensor) -> Tensor:
    """Of every node the mean over its known entries; 0 if it has none."""
    return torch.where(is_known, values, 0.0).sum(dim=1) / is_known.sum(dim=1).clamp(min=1)


# What targets look like: one class per node, or columns of numbers; and numbers that are learnt in their own unit.


@dataclass(frozen=True)
class _ClassPerNode(Objective):
    """Targets are int64 from 0 to the number of classes less 1, -1 where unknown."""

    num_classes: int
    class_names: tuple[str, ...] | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """Name of every class: its number where the source has no names."""
        return self.class_names or tuple(map(str, range(self.num_classes)))

    @property
    def names(self) -> tuple[str, ...]:
        """The classes."""
        return self.classes

    @abstractmethod
    def found_classes(self, prediction: Tensor) -> Tensor:
        """The number of the class that every prediction says, shape ``[n]``."""

    def is_known(self, targets: Tensor) -> Tensor:
        """Which nodes have a class."""
        return targets >= 0

    def unknown(self, num_nodes: int) -> Tensor:
        """-1 for every node."""
        return torch.full((num_nodes,), -1)

    def strata(self, targets: Tensor) -> tuple[Tensor, tuple[str, ...]]:
        """Every class is a group."""
        return targets, self.classes

    def check(self, targets: Tensor, num_nodes: int, task: str, unit: str = "node") -> Tensor:
        """Integer labels from 0 to the number of classes less 1, or -1, one per node."""
        number, names = self.num_classes, self.class_names
        if targets.shape != (num_nodes,):
            raise GraphjouleError(
                f"The labels of task {task!r} have shape {list(targets.shape)}; expected [{num_nodes}], one per {unit}."
            )
        labels = as_int64(targets, f"The labels of task {task!r} have")
        if bool((labels == -1).all()):
            raise GraphjouleError(f"Task {task!r} has no label: all {num_nodes} are -1, at least one is needed.")
        if number < 2:
            raise GraphjouleError(f"Task {task!r} has {counted(number, 'class', 'classes')}; at least two are needed.")
        if names is not None and len(names) != number:
            raise GraphjouleError(f"Task {task!r} has {number} classes but {len(names)} class names.")
        _check_names("classes", names, task)
        wrong = ((labels < -1) | (labels >= number)).nonzero().view(-1)
        if wrong.numel():
            node = int(wrong[0])
            raise GraphjouleError(
                f"The label of {unit} {node} in task {task!r} is {int(labels[node])}; "
                f"expected 0 to {number - 1}, or -1 where it is unknown."
            )
        return labels


class _ColumnsPerNode(Objective):
    """Targets are floating-point, NaN where unknown, a column for each output."""

    def scored(self, prediction: Tensor, target: Tensor, centered: OfTensor = _as_it_is) -> tuple[Tensor, Tensor]:
        """See `Objective.scored`."""
        return prediction.double(), self.columns(target)

    def is_known(self, targets: Tensor) -> Tensor:
        """Which nodes have a known target."""
        return ~_columns(targets).isnan().all(dim=1)

    def _check_columns(
        self, targets: Tensor, num_nodes: int, names: tuple[str, ...] | None, task: str, what: str
    ) -> None:
        """A floating-point row per node."""
        number = self.out_channels
        shape = (num_nodes,) if targets.dim() == 1 and number == 1 else (num_nodes, number)
        if targets.shape != shape:
            raise GraphjouleError(
                f"The {what}s of task {task!r} have shape {list(targets.shape)}; expected {list(shape)}."
            )
        if not targets.is_floating_point():
            raise GraphjouleError(
                f"The {what}s of task {task!r} have dtype {targets.dtype}; expected a floating-point dtype."
            )
        if names is not None and len(names) != number:
            raise GraphjouleError(f"Task {task!r} has {number} {what}s but {len(names)} {what} names.")
        _check_names(f"{what}s", names, task)
        if bool(targets.isnan().all()):
            raise GraphjouleError(f"Task {task!r} has no {what}: all {num_nodes} are NaN, at least one is needed.")


class _Scaled(Objective):
    """Numbers that are learnt in standard deviations of the training targets, by their squared or absolute error."""

    error: Error
    is_scaled: ClassVar[bool] = True

    def prepare(self, model: nn.Module, targets: Tensor, count: int, total: OfTensor) -> None:
        """Give a model mean and standard deviation of the known targets, see `graphjoule.nn.OutputScale`."""
        values = _columns(targets).double()
        is_known = ~values.isnan()
        values = torch.where(is_known, values, 0.0)
        num_known, value = total(torch.stack([is_known.sum(dim=0).double(), values.sum(dim=0)]))
        num_known = num_known.clamp(min=1)
        mean = value / num_known
        std = (total(torch.where(is_known, values - mean, 0.0).square().sum(dim=0)) / num_known).sqrt()
        is_flat = std <= 1e-12 * mean.abs()
        model.set_scale(mean, torch.where(is_flat, 1.0, std))  # type: ignore[operator]

    def _distance(self, output: Tensor, target: Tensor) -> Tensor:
        distance = _columns(output) - target
        return distance.square() if self.error == "squared" else distance.abs()


# The objectives.


@dataclass(frozen=True)
class Classification(_ClassPerNode):
    """One class per node: cross entropy, and the share of nodes whose class is found.

    Targets are int64, -1 where unknown.

    Attributes:
        num_classes: number of classes, at least two.
        class_names: name of every class, where the source has names.
        class_weights: what the loss of each class is multiplied with: one number per class, or "balanced" for
            ``n / (num_classes * count)`` by the training nodes of the run, so that all classes weigh the same.
        focal_gamma: gamma of the focal loss ``(1 - p)^gamma * cross entropy`` (Lin et al. 2017); 0 is cross entropy.
        label_smoothing: the share of every target that is spread over all classes; 0 is cross entropy.
    """

    class_weights: ClassWeights = None
    focal_gamma: float = 0.0
    label_smoothing: float = 0.0

    name: ClassVar[str] = "classification"
    metrics: ClassVar[tuple[Metric, ...]] = (
        *(m.ACCURACY, m.BALANCED_ACCURACY, m.MACRO_F1, m.MICRO_F1, m.ROC_AUC, m.AVERAGE_PRECISION),
        *(m.LOG_LOSS, m.BRIER, m.ECE),
    )
    tabled: ClassVar[tuple[Metric, ...]] = (m.ACCURACY,)

    @classmethod
    def of(cls, labels: Tensor, class_names: tuple[str, ...] | None = None) -> Classification:
        """The objective of labels 0, 1, 2, ...: as many classes as the largest says."""
        return cls(int(labels.long().max()) + 1 if labels.numel() else 0, class_names)

    @property
    def out_channels(self) -> int:
        """One score per class."""
        return self.num_classes

    def loss(self, output: Tensor, target: Tensor, factors: Tensor | None = None) -> Tensor:
        """Cross entropy of every node, times the factor of its class; 0 where the class is unknown."""
        losses = F.cross_entropy(
            output, target, reduction="none", ignore_index=-1, label_smoothing=self.label_smoothing
        )
        if self.focal_gamma:
            losses = losses * _focal(-losses, self.focal_gamma)
        return losses if factors is None else losses * factors.to(losses)[target.clamp(min=0)]

    def prediction(self, output: Tensor) -> Tensor:
        """The probability of every class."""
        return output.softmax(dim=-1)

    def found_classes(self, prediction: Tensor) -> Tensor:
        """The most probable class."""
        return prediction.argmax(dim=-1)

    def columns(self, targets: Tensor) -> Tensor:
        """See `Objective.columns`."""
        one_hot = F.one_hot(targets.clamp(min=0), self.num_classes).double()
        return torch.where((targets >= 0)[:, None], one_hot, torch.nan)

    def class_factors(self, targets: Tensor, total: OfTensor) -> Tensor:
        """One factor per class; 1 for a class that no training node has."""
        if self.class_weights is None:
            return super().class_factors(targets, total)
        if isinstance(self.class_weights, tuple):
            return torch.tensor(self.class_weights, device=targets.device)
        classes = torch.arange(self.num_classes, device=targets.device)
        return _balanced(total((targets[:, None] == classes).sum(dim=0).double()))

    def check(self, targets: Tensor, num_nodes: int, task: str, unit: str = "node") -> Tensor:
        """See `_ClassPerNode.check`; weights and smoothing that fit the classes."""
        labels = super().check(targets, num_nodes, task, unit)
        _check_weights(self.class_weights, self.focal_gamma, self.num_classes, "class")
        if not 0 <= self.label_smoothing < 1:
            raise GraphjouleError(f"`label_smoothing` is {self.label_smoothing}; it must be from 0 to below 1.")
        if self.label_smoothing and self.focal_gamma:
            raise GraphjouleError(
                f"`label_smoothing` is {self.label_smoothing} and `focal_gamma` is {self.focal_gamma}: the focal loss "
                "needs the probability of one class; leave out one of them."
            )
        return labels


@dataclass(frozen=True)
class Binary(Classification):
    """Two classes, one of which is positive: precision, recall, F1 and average precision are about that one.

    It trains as a `Classification` with two classes does, to the bit.

    Attributes:
        positive: the number of the positive class, 1 or 0.

    Example:
        >>> Binary(class_names=("sound", "ill")).metric("recall").name
        'recall'
    """

    num_classes: int = 2
    positive: int = 1

    name: ClassVar[str] = "binary"
    metrics: ClassVar[tuple[Metric, ...]] = (
        *(m.ACCURACY, m.BALANCED_ACCURACY, m.PRECISION, m.RECALL, m.F1, m.MACRO_F1, m.MICRO_F1, m.ROC_AUC),
        *(m.POSITIVE_AVERAGE_PRECISION, m.LOG_LOSS, m.POSITIVE_BRIER, m.ECE),
    )
    tabled: ClassVar[tuple[Metric, ...]] = (m.ACCURACY, m.F1)

    def scored(self, prediction: Tensor, target: Tensor, centered: OfTensor = _as_it_is) -> tuple[Tensor, Tensor]:
        """With the positive class as the second of the two."""
        if self.positive == 0:
            prediction, target = prediction.flip(-1), torch.where(target >= 0, 1 - target, target)
        return prediction.double(), target

    def check(self, targets: Tensor, num_nodes: int, task: str, unit: str = "node") -> Tensor:
        """See `Classification.check`; two classes."""
        if self.num_classes != 2 or self.positive not in (0, 1):
            raise GraphjouleError(
                f"Task {task!r} has {counted(self.num_classes, 'class', 'classes')} and the positive class "
                f"{self.positive}; a binary objective has two classes, 0 and 1, one of which is positive."
            )
        return super().check(targets, num_nodes, task, unit)


@dataclass(frozen=True)
class MultiLabel(_ColumnsPerNode):
    """Several labels per node, each there or not: binary cross entropy, the mean over the known labels of a node.

    Targets are floating-point, 1, 0 or NaN where a label is unknown, shape ``[num_nodes, num_labels]``.

    Attributes:
        num_labels: number of labels.
        label_names: name of every label, where the source has names.
        class_weights: what the loss is multiplied with where a label is there: one number per label, or "balanced",
            where being there and not being there weigh the same for each label, by the training nodes of the run.
        focal_gamma: gamma of the focal loss; 0 is cross entropy.

    Example:
        >>> MultiLabel(2).loss(torch.zeros(1, 2), torch.tensor([[1.0, torch.nan]]))
        tensor([0.6931])
    """

    num_labels: int
    label_names: tuple[str, ...] | None = None
    class_weights: ClassWeights = None
    focal_gamma: float = 0.0

    name: ClassVar[str] = "multilabel"
    metrics: ClassVar[tuple[Metric, ...]] = (
        *(m.LABELS_MICRO_F1, m.LABELS_MACRO_F1, m.LABEL_ACCURACY, m.LABELS_BALANCED_ACCURACY, m.LABELS_ROC_AUC),
        *(m.LABELS_AVERAGE_PRECISION, m.LABELS_LOG_LOSS, m.LABELS_BRIER, m.LABELS_ECE),
    )
    tabled: ClassVar[tuple[Metric, ...]] = (m.LABELS_MICRO_F1, m.LABELS_ROC_AUC, m.LABELS_AVERAGE_PRECISION)

    @property
    def out_channels(self) -> int:
        """One score per label."""
        return self.num_labels

    @property
    def labels(self) -> tuple[str, ...]:
        """Name of every label: its number where the source has no names."""
        return self.label_names or tuple(map(str, range(self.num_labels)))

    @property
    def names(self) -> tuple[str, ...]:
        """The labels."""
        return self.labels

    def loss(self, output: Tensor, target: Tensor, factors: Tensor | None = None) -> Tensor:
        """Binary cross entropy of every node, the mean over its known labels, each times its factor."""
        target, is_known = _columns(target), ~_columns(target).isnan()
        known = torch.where(is_known, target, 0.0).to(output)
        losses = F.binary_cross_entropy_with_logits(output, known, reduction="none")
        if self.focal_gamma:
            losses = losses * _focal(-losses, self.focal_gamma)
        if factors is not None:
            losses = losses * torch.where(known == 1, factors[1], factors[0]).to(losses)
        return _mean_of_known(losses, is_known)

    def prediction(self, output: Tensor) -> Tensor:
        """The probability of every label."""
        return output.sigmoid()

    def unknown(self, num_nodes: int) -> Tensor:
        """NaN for every node and label."""
        return torch.full((num_nodes, self.num_labels), torch.nan)

    def class_factors(self, targets: Tensor, total: OfTensor) -> Tensor:
        """Factors of labels that are not there and of those that are, shape ``[2, num_labels]``."""
        if self.class_weights is None:
            return super().class_factors(targets, total)
        if isinstance(self.class_weights, tuple):
            there = torch.tensor(self.class_weights, device=targets.device)
            return torch.stack([torch.ones_like(there), there])
        targets = _columns(targets)
        return _balanced(total(torch.stack([(targets == 0).sum(dim=0), (targets == 1).sum(dim=0)]).double()))

    def check(self, targets: Tensor, num_nodes: int, task: str, unit: str = "node") -> Tensor:
        """A row of 1, 0 and NaN per node."""
        self._check_columns(targets, num_nodes, self.label_names, task, "label")
        _check_weights(self.class_weights, self.focal_gamma, self.num_labels, "label")
        rows = _columns(targets)
        wrong = ~((rows == 0) | (rows == 1) | rows.isnan())
        if bool(wrong.any()):
            node, label = (int(place) for place in wrong.nonzero()[0])
            raise GraphjouleError(
                f"Label {label} of {unit} {node} in task {task!r} is {float(rows[node, label]):g}; expected 1, 0, or "
                "NaN where it is unknown."
            )
        return rows


@dataclass(frozen=True)
class Regression(_ColumnsPerNode, _Scaled):
    """One or several numbers per node: the mean squared or absolute error, and how much of the variance is explained.

    Targets are floating-point, NaN where unknown, shape ``[num_nodes]`` or ``[num_nodes, num_targets]``; a node with
    some of its targets counts with those. The loss counts in standard deviations of the training targets, so that
    learning rates mean the same for prices and for shares; metrics count in the targets' own unit.

    Attributes:
        num_targets: how many numbers per node.
        error: "squared" or "absolute".
        target_names: name of every target, where the source has names.
    """

    num_targets: int = 1
    error: Error = "squared"
    target_names: tuple[str, ...] | None = None

    name: ClassVar[str] = "regression"
    metrics: ClassVar[tuple[Metric, ...]] = (m.R2, m.MAE, m.RMSE)
    tabled: ClassVar[tuple[Metric, ...]] = (m.R2, m.MAE, m.RMSE)

    @property
    def out_channels(self) -> int:
        """One number per target."""
        return self.num_targets

    @property
    def names(self) -> tuple[str, ...]:
        """The targets."""
        return self.target_names or super().names

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Squared or absolute error of every node, the mean over its known targets."""
        target = _columns(target)
        is_known = ~target.isnan()
        return _mean_of_known(self._distance(output, torch.where(is_known, target, 0.0)), is_known)

    def scored(self, prediction: Tensor, target: Tensor, centered: OfTensor = _as_it_is) -> tuple[Tensor, Tensor]:
        """Less the number that they have in common: squares are smaller, and more exact."""
        return centered(prediction.double()), centered(self.columns(target))

    def unknown(self, num_nodes: int) -> Tensor:
        """NaN for every node and target."""
        return torch.full((num_nodes,) if self.num_targets == 1 else (num_nodes, self.num_targets), torch.nan)

    def check(self, targets: Tensor, num_nodes: int, task: str, unit: str = "node") -> Tensor:
        """Floating-point numbers, finite or NaN, a row per node."""
        self._check_columns(targets, num_nodes, self.target_names, task, "target")
        if targets.isinf().any():
            node = int(targets.isinf().nonzero()[0, 0])
            raise GraphjouleError(
                f"The target of {unit} {node} in task {task!r} is infinite; expected a number or NaN."
            )
        return targets


@dataclass(frozen=True)
class Ordinal(_ClassPerNode, _Scaled):
    """One of several ordered classes per node, learnt as a number: the rank of the class.

    Targets are int64 ranks from 0, -1 where unknown. A model has one output, the rank; its prediction is cut to the
    ranks there are, and rounded to the nearest one where a class is asked for.

    Attributes:
        num_classes: number of classes, at least two.
        class_names: name of every class in their order, where the source has names.
        error: "squared" or "absolute" error of the ranks.
    """

    error: Error = "squared"

    name: ClassVar[str] = "ordinal"
    metrics: ClassVar[tuple[Metric, ...]] = (m.MAE, m.ROUNDED_ACCURACY, m.RMSE, m.R2)
    tabled: ClassVar[tuple[Metric, ...]] = (m.MAE, m.ROUNDED_ACCURACY)

    @property
    def out_channels(self) -> int:
        """One: the rank."""
        return 1

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Squared or absolute error of every rank."""
        return self._distance(output, _columns(target)).squeeze(1)

    def prediction(self, output: Tensor) -> Tensor:
        """The rank, from 0 to the number of classes less 1."""
        return output.clamp(0, self.num_classes - 1)

    def found_classes(self, prediction: Tensor) -> Tensor:
        """The nearest rank."""
        return prediction.round().long().view(-1)

    def columns(self, targets: Tensor) -> Tensor:
        """The ranks."""
        return torch.where(targets >= 0, targets.double(), torch.nan)[:, None]

    def scored(self, prediction: Tensor, target: Tensor, centered: OfTensor = _as_it_is) -> tuple[Tensor, Tensor]:
        """Ranks as numbers, NaN where unknown."""
        return prediction.double(), self.columns(target)


OBJECTIVES: dict[str, type[Objective]] = {
    each.name: each for each in (Classification, Binary, MultiLabel, Regression, Ordinal)
}
"""The objectives by the name that a record has."""


def read_objective(given: Any) -> Objective:
    """The objective of a dict that has its name and its attributes."""
    if not isinstance(given, dict) or given.get("name") not in list(OBJECTIVES):  # a list has no hash
        raise GraphjouleError(f"{given!r} is not an objective; expected a name among: {choices(OBJECTIVES)}.")
    own = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items() if key != "name"}
    kind = OBJECTIVES[given["name"]]
    try:
        kind(**own)  # refuses what it does not know, which pydantic would leave out
        found: Objective = TypeAdapter(kind).validate_python(own)
        return found
    except (TypeError, ValidationError) as error:
        raise GraphjouleError(f"{given!r} is not an objective that this version knows.") from error
