"""What a task asks for: the loss, the metrics, and which of them selects the epoch.

Nothing else in the house names a metric: the trainer, records, studies, searches and pages read them from here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphjoule.errors import GraphjouleError, choices, counted
from graphjoule.graph.edges import as_int64

LOSS = "loss"
"""The name under which the loss itself can select."""


@dataclass(frozen=True)
class Metric:
    """A number that says how good predictions are.

    It is made from sums over nodes, so that parts of a graph can be added up before the number is made.

    Attributes:
        name: as records and settings call it.
        is_higher_better: the direction.
        sums: from the outputs and targets of n nodes numbers of shape ``[n, k]``, to be added up over them.
        finish: from these sums, shape ``[..., k]``, and the number of nodes the metric, shape ``[...]``.
        is_share: whether it is a share in [0, 1], which people read in percent.
        sums_per_output: how many sums there are for each output; 0 if there is one for all of them.
    """

    name: str
    is_higher_better: bool
    sums: Callable[[Tensor, Tensor], Tensor]
    finish: Callable[[Tensor, int], Tensor]
    is_share: bool = False
    sums_per_output: int = 0

    def num_sums(self, out_channels: int) -> int:
        """The number k of sums for a model with so many outputs."""
        return self.sums_per_output * out_channels or 1

    def text(self, value: float | None, spread: float | None = None) -> str:
        """The value as people read it.

        >>> ACCURACY.text(0.8125), ACCURACY.text(0.8, 0.012), R2.text(0.75), ACCURACY.text(None)
        ('81.25 %', '80.00 ± 1.20 %', '0.75', '')
        """
        if value is None:
            return ""
        if self.is_share:
            return f"{100 * value:.2f}{f' ± {100 * spread:.2f}' if spread is not None else ''} %"
        return f"{value:.4g}{f' ± {spread:.2g}' if spread is not None else ''}"


def _mean(total: Tensor, count: int) -> Tensor:
    return total[..., 0] / count


def _r2_sums(output: Tensor, target: Tensor) -> Tensor:
    output, target = _columns(output).double(), _columns(target).double()
    return torch.stack([(output - target).square(), target, target.square()], dim=-1).flatten(1)


def _r2(total: Tensor, count: int) -> Tensor:
    """``1 - sum (y - f)^2 / sum (y - mean)^2``, the mean over targets; 0 where a target does not vary."""
    error, value, square = torch.unflatten(total, -1, (-1, 3)).unbind(dim=-1)
    spread = square - value.square() / count
    flat = spread <= 1e-14 * square
    return torch.where(flat, 0.0, 1 - error / torch.where(flat, 1.0, spread)).mean(dim=-1)


def _columns(values: Tensor) -> Tensor:
    return values if values.dim() == 2 else values[:, None]


def _errors(output: Tensor, target: Tensor) -> Tensor:
    return _columns(output) - _columns(target)


ACCURACY = Metric("accuracy", True, lambda out, y: (out.argmax(dim=-1) == y)[:, None], _mean, is_share=True)
R2 = Metric("r2", True, _r2_sums, _r2, sums_per_output=3)
MAE = Metric("mae", False, lambda out, y: _errors(out, y).abs().mean(dim=1, keepdim=True), _mean)
RMSE = Metric(
    "rmse",
    False,
    lambda out, y: _errors(out, y).square().mean(dim=1, keepdim=True),
    lambda total, count: _mean(total, count).sqrt(),
)


class Objective(ABC):
    """The loss and the metrics of a task.

    Attributes:
        name: a key of `OBJECTIVES`.
        metrics: the first is the headline, which tables and pages show.
    """

    name: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]

    @property
    @abstractmethod
    def out_channels(self) -> int:
        """How many numbers a model gives for each node."""

    @abstractmethod
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of every node, shape ``[n]``; the loss of a task is the mean."""

    def prediction(self, output: Tensor) -> Tensor:
        """What a model's outputs ``[num_nodes, out_channels]`` say to people; the mean over runs makes sense."""
        return output

    @abstractmethod
    def check(self, targets: Tensor, num_nodes: int, task: str) -> Tensor:
        """The targets as they are trained on; refused with a sentence if they do not fit."""

    @abstractmethod
    def is_known(self, targets: Tensor) -> Tensor:
        """Which nodes have a target, bool, shape ``[num_nodes]``."""

    @abstractmethod
    def unknown(self, num_nodes: int) -> Tensor:
        """The targets of nodes of which nothing is known."""

    def strata(self, targets: Tensor) -> tuple[Tensor, tuple[str, ...]]:
        """The group of every node, -1 without a target, and the groups' names: a random split divides each alike."""
        return self.is_known(targets).long() - 1, ("all",)

    def prepare(  # noqa: B027 - nothing is right for most
        self, model: nn.Module, targets: Tensor, count: int, total: Callable[[Tensor], Tensor]
    ) -> None:
        """Set what a model must know of its training targets before it trains; by default nothing.

        Args:
            model: the model.
            targets: of the training nodes that are here.
            count: how many training nodes there are, here and elsewhere.
            total: adds a tensor up over all places.
        """

    @property
    def headline(self) -> Metric:
        """The metric that tables and pages show."""
        return self.metrics[0]

    def metric(self, name: str) -> Metric:
        """The metric of a name."""
        found = {metric.name: metric for metric in self.metrics}
        if name not in found:
            raise GraphjouleError(f"{name!r} is not a metric of {self.name}; the choices are: {choices(found)}.")
        return found[name]

    @classmethod
    def column(cls, select_on: str) -> tuple[int, bool]:
        """The place of what selects among the loss and the metrics, and whether higher is better."""
        names = [LOSS, *(metric.name for metric in cls.metrics)]
        if select_on not in names:
            raise GraphjouleError(f"select_on is {select_on!r}; for {cls.name} the choices are: {choices(names)}.")
        place = names.index(select_on)
        return place, place > 0 and cls.metrics[place - 1].is_higher_better


@dataclass(frozen=True)
class Classification(Objective):
    """One class per node: cross entropy, and the share of nodes whose class is found.

    Targets are int64, -1 where unknown.

    Attributes:
        num_classes: number of classes, at least two.
        class_names: name of every class, where the source has names.
    """

    num_classes: int
    class_names: tuple[str, ...] | None = None

    name: ClassVar[str] = "classification"
    metrics: ClassVar[tuple[Metric, ...]] = (ACCURACY,)

    @classmethod
    def of(cls, labels: Tensor, class_names: tuple[str, ...] | None = None) -> Classification:
        """The objective of labels 0, 1, 2, ...: as many classes as the largest says."""
        return cls(int(labels.long().max()) + 1 if labels.numel() else 0, class_names)

    @property
    def out_channels(self) -> int:
        """One score per class."""
        return self.num_classes

    @property
    def classes(self) -> tuple[str, ...]:
        """Name of every class: its number where the source has no names."""
        return self.class_names or tuple(map(str, range(self.num_classes)))

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Cross entropy of every node."""
        return F.cross_entropy(output, target, reduction="none")

    def prediction(self, output: Tensor) -> Tensor:
        """The probability of every class."""
        return output.softmax(dim=-1)

    def is_known(self, targets: Tensor) -> Tensor:
        """Which nodes have a label."""
        return targets >= 0

    def unknown(self, num_nodes: int) -> Tensor:
        """-1 for every node."""
        return torch.full((num_nodes,), -1)

    def strata(self, targets: Tensor) -> tuple[Tensor, tuple[str, ...]]:
        """Every class is a group."""
        return targets, self.classes

    def check(self, targets: Tensor, num_nodes: int, task: str) -> Tensor:
        """Integer labels from 0 to the number of classes less 1, or -1, one per node."""
        if targets.shape != (num_nodes,):
            raise GraphjouleError(
                f"The labels of task {task!r} have shape {list(targets.shape)}; expected [{num_nodes}], one per node."
            )
        labels = as_int64(targets, f"The labels of task {task!r} have")
        if bool((labels == -1).all()):
            raise GraphjouleError(f"Task {task!r} has no label: all {num_nodes} are -1, at least one is needed.")
        if self.num_classes < 2:
            raise GraphjouleError(
                f"Task {task!r} has {counted(self.num_classes, 'class', 'classes')}; at least two are needed."
            )
        if self.class_names is not None and len(self.class_names) != self.num_classes:
            raise GraphjouleError(
                f"Task {task!r} has {self.num_classes} classes but {len(self.class_names)} class names."
            )
        first: dict[str, int] = {}
        for number, name in enumerate(map(str, self.class_names or ())):
            if first.setdefault(name, number) != number:
                raise GraphjouleError(
                    f"The classes {first[name]} and {number} of task {task!r} are both called {name!r}; names must "
                    "differ, because predictions have a column for each."
                )
        wrong = ((labels < -1) | (labels >= self.num_classes)).nonzero().view(-1)
        if wrong.numel():
            node = int(wrong[0])
            raise GraphjouleError(
                f"The label of node {node} in task {task!r} is {int(labels[node])}; "
                f"expected 0 to {self.num_classes - 1}, or -1 where it is unknown."
            )
        return labels


@dataclass(frozen=True)
class Regression(Objective):
    """One or several numbers per node: the mean squared or absolute error, and how much of the variance is explained.

    Targets are floating-point, NaN where unknown, shape ``[num_nodes]`` or ``[num_nodes, num_targets]``. The loss
    counts in standard deviations of the training targets, so that learning rates mean the same for prices and for
    shares; metrics count in the targets' own unit.

    Attributes:
        num_targets: how many numbers per node.
        error: "squared" or "absolute".
        target_names: name of every target, where the source has names.
    """

    num_targets: int = 1
    error: Literal["squared", "absolute"] = "squared"
    target_names: tuple[str, ...] | None = None

    name: ClassVar[str] = "regression"
    metrics: ClassVar[tuple[Metric, ...]] = (R2, MAE, RMSE)

    @property
    def out_channels(self) -> int:
        """One number per target."""
        return self.num_targets

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Squared or absolute error of every node, the mean over its targets."""
        distance = _columns(output) - _columns(target)
        return (distance.square() if self.error == "squared" else distance.abs()).mean(dim=1)

    def is_known(self, targets: Tensor) -> Tensor:
        """Which nodes have all their targets."""
        return ~_columns(targets).isnan().any(dim=1)

    def unknown(self, num_nodes: int) -> Tensor:
        """NaN for every node and target."""
        return torch.full((num_nodes,) if self.num_targets == 1 else (num_nodes, self.num_targets), torch.nan)

    def prepare(self, model: nn.Module, targets: Tensor, count: int, total: Callable[[Tensor], Tensor]) -> None:
        """Give a model mean and standard deviation of the training targets, see `graphjoule.nn.OutputScale`."""
        values = _columns(targets).double()
        mean = total(values.sum(dim=0)) / count
        std = (total((values - mean).square().sum(dim=0)) / count).sqrt()
        is_flat = std <= 1e-12 * mean.abs()
        model.set_scale(mean, torch.where(is_flat, 1.0, std))  # type: ignore[operator]

    def check(self, targets: Tensor, num_nodes: int, task: str) -> Tensor:
        """Floating-point numbers, finite or NaN, a row per node."""
        shape = (num_nodes,) if targets.dim() == 1 and self.num_targets == 1 else (num_nodes, self.num_targets)
        if targets.shape != shape:
            raise GraphjouleError(
                f"The targets of task {task!r} have shape {list(targets.shape)}; expected {list(shape)}."
            )
        if not targets.is_floating_point():
            raise GraphjouleError(
                f"The targets of task {task!r} have dtype {targets.dtype}; expected a floating-point dtype."
            )
        if self.target_names is not None and len(self.target_names) != self.num_targets:
            raise GraphjouleError(
                f"Task {task!r} has {self.num_targets} targets but {len(self.target_names)} target names."
            )
        if targets.isinf().any():
            node = int(targets.isinf().nonzero()[0, 0])
            raise GraphjouleError(f"The target of node {node} in task {task!r} is infinite; expected a number or NaN.")
        if not self.is_known(targets).any():
            raise GraphjouleError(f"Task {task!r} has no target: all {num_nodes} are NaN, at least one is needed.")
        return targets


OBJECTIVES: dict[str, type[Objective]] = {each.name: each for each in (Classification, Regression)}
"""The objectives by the name that a record has."""


def read_objective(fields: Any) -> Objective:
    """The objective of a dict that has its name and its attributes."""
    if not isinstance(fields, dict) or fields.get("name") not in list(OBJECTIVES):  # a list has no hash
        raise GraphjouleError(f"{fields!r} is not an objective; expected a name among: {choices(OBJECTIVES)}.")
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items() if key != "name"}
    try:
        return OBJECTIVES[fields["name"]](**given)
    except TypeError as error:
        raise GraphjouleError(f"{fields!r} is not an objective that this version knows.") from error
