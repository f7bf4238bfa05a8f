"""How far predictions can be trusted: probabilities that mean what they say, and sets that hold the truth as promised.

Temperature scaling (Guo et al. 2017) divides a run's outputs by one number, fitted to the log loss of its validation
nodes. Split conformal prediction (Vovk et al. 2005, Lei et al. 2018) says how far off the validation nodes were, and
makes sets or intervals of that size. Validation nodes have chosen the epoch too, so their scores are slightly too good;
docs/trust.md says what that costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError, counted
from graphjoule.tasks.objective import Classification, MultiLabel, Objective, Ordinal

FEW_NODES = 30
"""With fewer validation nodes than these a promise comes with a warning."""
_LOWEST, _HIGHEST = 0.05, 20.0  # temperatures; outputs that say nothing about the classes have no best one


@dataclass(frozen=True, eq=False)
class Calibration:
    """What the validation nodes of a run say about its predictions.

    Attributes:
        temperature: what outputs are divided by; None for numbers, which have no probabilities.
        scores: how far off the prediction of each validation node was, see `conformal_scores`, float64, shape
            ``[num_val, columns]``, every column sorted, NaN last where a target is unknown.

    Example:
        >>> import torch
        >>> pets = Classification(2, ("cat", "dog"))
        >>> outputs = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [2.0, 0.0]])
        >>> found = Calibration.of(pets, outputs, torch.tensor([0, 1, 0, 1]))
        >>> found.temperature > 1  # three of four are right, which is less than the outputs say
        True
        >>> threshold = found.threshold(0.75)
        >>> prediction_sets(pets, pets.prediction(outputs[:1].double()), threshold).tolist()
        [[True, True]]
    """

    temperature: float | None
    scores: Tensor

    @classmethod
    def of(cls, objective: Objective, output: Tensor, target: Tensor) -> Calibration:
        """The calibration of a run from the outputs and targets of its validation nodes.

        Args:
            objective: what was asked.
            output: of the model, shape ``[num_val, out_channels]``.
            target: of the same nodes.
        """
        output = output.double()
        scores = conformal_scores(objective, objective.prediction(output), target)
        return cls(fit_temperature(objective, output, target), scores.cpu().sort(dim=0).values)

    def tempered(self, output: Tensor) -> Tensor:
        """A model's outputs divided by the temperature: the most probable class stays the same."""
        return output if self.temperature is None else output / self.temperature

    def threshold(self, coverage: float) -> Tensor:
        """The largest score that a set with a coverage holds, one for every column of `scores`.

        Of n scores it is the one in place ``ceil((n + 1) coverage)``; infinite if n is too small for that, and then
        nothing can be left out.

        Args:
            coverage: the share of nodes whose truth the sets shall hold, between 0 and 1.
        """
        check_coverage(coverage)
        found = []
        for column, num_known in zip(self.scores.T, self.num_known, strict=True):
            place = math.ceil((num_known + 1) * coverage - 1e-9)  # 0.9 of 10 is 9, whatever the last bit says
            found.append(float(column[place - 1]) if place <= num_known else math.inf)
        return torch.tensor(found, dtype=torch.float64)

    @property
    def num_known(self) -> list[int]:
        """Of how many validation nodes each column of `scores` is known."""
        return [int(count) for count in (~self.scores.isnan()).sum(dim=0)]

    def doubt(self, coverage: float, unit: str = "node") -> str | None:
        """A sentence on what the number of validation nodes, or graphs, makes of a promise; None if they are enough."""
        num_known, needed = min(self.num_known), math.ceil(coverage / (1 - coverage) - 1e-9)
        if num_known < needed:
            return (
                f"a coverage of {coverage:g} needs {needed} validation {unit}s or more, and there "
                f"{'is' if num_known == 1 else 'are'} {num_known}: sets hold every class, and intervals every number"
            )
        if num_known >= FEW_NODES:
            return None
        # Given the validation nodes, the coverage of new ones has a Beta distribution.
        error = math.sqrt(coverage * (1 - coverage) / (num_known + 2))
        return (
            f"with {counted(num_known, f'validation {unit}')} a coverage of {coverage:g} has a standard error of "
            f"{error:.2f}, and an accuracy one of up to {0.5 / math.sqrt(num_known):.2f}; from {FEW_NODES} validation "
            f"{unit}s on this is not said"
        )

    def stored(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON for a file; `read` makes the same calibration of them."""
        return {_SCORES: self.scores}, {"temperature": self.temperature}

    @classmethod
    def read(cls, tensors: dict[str, Tensor], about: Mapping[str, Any]) -> Calibration | None:
        """The calibration in a file's tensors, which is taken out of them; None if the file is older than these."""
        scores = tensors.pop(_SCORES, None)
        if scores is None:
            return None
        temperature, widths = about["temperature"], (1, about["out_channels"])
        if scores.dtype != torch.float64 or scores.dim() != 2 or scores.size(1) not in widths:
            raise GraphjouleError(f"its calibration has scores of {scores.dtype} and shape {list(scores.shape)}.")
        if temperature is not None and not 0 < temperature < math.inf:
            raise GraphjouleError(f"its temperature is {temperature}, which is not a positive number.")
        return cls(temperature, scores)


_SCORES = "calibration.scores"  # beside a model's parameters, whose names never begin so


def check_coverage(coverage: float) -> None:
    """Refuse a coverage that is not between 0 and 1."""
    if not 0 < coverage < 1:
        raise GraphjouleError(f"coverage is {coverage:g}; it must be between 0 and 1, such as 0.9.")


# Temperature.


def fit_temperature(objective: Objective, output: Tensor, target: Tensor) -> float | None:
    """The number that outputs are divided by so that the log loss of these nodes is least; None for numbers.

    The temperature T has a prior, which adds ``(log T)^2 / 2`` to the sum of losses: where all nodes are right, the
    losses alone would have the temperature be 0 and every probability 1, however few the nodes are.

    Args:
        objective: what was asked; weights of classes and a focal loss do not count here. Of several labels the loss of
            a node is the mean over its labels.
        output: of the model, shape ``[n, out_channels]``.
        target: of the same nodes.
    """
    if not isinstance(objective, Classification | MultiLabel):
        return None
    known = objective.is_known(target)
    num_known = int(known.sum())
    if not num_known:
        return 1.0
    from scipy.optimize import minimize_scalar

    z, y = output[known].double(), target[known]
    plain = replace(objective, class_weights=None, focal_gamma=0.0)
    plain = replace(plain, label_smoothing=0.0) if isinstance(plain, Classification) else plain

    def loss(log_t: float) -> float:
        return float(plain.loss(z * math.exp(-log_t), y).sum()) + log_t**2 / 2

    found = minimize_scalar(
        loss, bounds=(math.log(_LOWEST), math.log(_HIGHEST)), method="bounded", options={"xatol": 1e-7}
    )
    return math.exp(found.x)


# Conformal sets and intervals.


def conformal_scores(objective: Objective, prediction: Tensor, target: Tensor) -> Tensor:
    """How far off predictions are, NaN where a target is unknown, shape ``[n, columns]``.

    Of one class per node ``1 - p`` of the true class; of several labels the largest ``1 - p`` of the labels that are
    there; of numbers and ranks the absolute error, a column for every target.

    Args:
        objective: what was asked.
        prediction: as `Objective.prediction` makes them.
        target: of the same nodes.
    """
    prediction = prediction.double()
    if isinstance(objective, Classification):
        score = 1 - prediction.gather(1, target.clamp(min=0)[:, None])
        return torch.where(target[:, None] >= 0, score, torch.nan)
    prediction, target = objective.scored(prediction, target)
    if isinstance(objective, MultiLabel):
        score = torch.where(target == 1, 1 - prediction, 0.0).amax(dim=1, keepdim=True)
        return torch.where(target.isnan().all(dim=1, keepdim=True), torch.nan, score)
    return (prediction - target).abs()


def has_sets(objective: Objective) -> bool:
    """Whether predictions come with sets of classes or labels; if not, with intervals."""
    return isinstance(objective, Classification | MultiLabel | Ordinal)


def prediction_sets(objective: Objective, prediction: Tensor, threshold: Tensor) -> Tensor:
    """Which classes or labels each node's set holds, bool, shape ``[n, num_classes]``.

    A class is in if its score is no larger than the threshold. The predicted class is always in: a set that is empty
    would say nothing, and one that holds more keeps its promise.

    Args:
        objective: what was asked, with classes or labels.
        prediction: as `Objective.prediction` makes them.
        threshold: see `Calibration.threshold`; the mean over runs where the prediction is.
    """
    prediction = prediction.double()
    if isinstance(objective, Ordinal):
        ranks = torch.arange(objective.num_classes, dtype=torch.float64)
        return ((prediction - ranks).abs() <= threshold) | (prediction.round() == ranks)
    is_in = 1 - prediction <= threshold
    if isinstance(objective, Classification):
        is_in[torch.arange(len(is_in)), prediction.argmax(dim=1)] = True
    return is_in


def prediction_intervals(prediction: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    """The lower and the upper end of every number's interval, each of the shape of `prediction`.

    >>> lower, upper = prediction_intervals(torch.tensor([[1.0]]), torch.tensor([0.25]))
    >>> float(lower), float(upper)
    (0.75, 1.25)
    """
    return prediction.double() - threshold, prediction.double() + threshold
