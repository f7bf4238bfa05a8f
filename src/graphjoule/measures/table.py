"""The table of measures that a trace, the command line and the documentation read: one row each, all linear in size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from graphjoule.errors import GraphjouleError, choices
from graphjoule.graph import Propagation
from graphjoule.measures.distances import neighbour_mad
from graphjoule.measures.diversity import (
    effective_rank,
    feature_correlation,
    mean_pair_cosine,
    rank_one_distance,
    stable_rank,
)
from graphjoule.measures.energy import (
    combinatorial_energy,
    dirichlet_energy,
    frobenius_norm,
    higher_energy,
    kernel_distance,
    random_walk_energy,
    rayleigh_quotient,
)
from graphjoule.measures.information import group_distance_ratio, instance_information_gain


@dataclass(frozen=True)
class Measure:
    """One number that says how different the nodes of a graph still are.

    Attributes:
        name: what a trace and the command line call it.
        function: features ``[..., num_nodes, channels]`` and the graph to float64 numbers ``[...]``, differentiable.
        formula: its definition in one line of plain text.
        range: the values it can take.
        meaning: what it says, in one sentence.
        reference: where it comes from.

    Example:
        >>> import torch
        >>> graph = Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]]))
        >>> float(MEASURES["norm"].function(torch.tensor([[3.0], [4.0]]), graph))
        5.0
    """

    name: str
    function: Callable[[Tensor, Propagation], Tensor]
    formula: str
    range: str
    meaning: str
    reference: str


MEASURES: dict[str, Measure] = {}
DEFAULT_MEASURES = ("energy", "norm", "rayleigh", "effective_rank")

for _row in (
    Measure(
        "energy",
        dirichlet_energy,
        "E(X) = tr(X^T (I - P) X)",
        "[0, 2 ||X||^2)",
        "how much neighbours differ after each is divided by sqrt(1 + degree)",
        "Cai and Wang 2020; Zhou et al. 2021, Definition 1",
    ),
    Measure(
        "norm",
        frobenius_norm,
        "||X|| = sqrt(sum x_ik^2)",
        "[0, inf)",
        "how large the features are",
        "Frobenius norm",
    ),
    Measure(
        "rayleigh",
        rayleigh_quotient,
        "E(X) / ||X||^2, and 0 for X = 0",
        "[0, 2)",
        "the mean frequency of the features, whatever their size",
        "Di Giovanni et al. 2023",
    ),
    Measure(
        "kernel_distance",
        kernel_distance,
        "||X - K X||, K the projection onto sqrt(1 + degree) on each connected component",
        "[0, ||X||]",
        "how far the features are from the limit of endless propagation",
        "Oono and Suzuki 2020",
    ),
    Measure(
        "mad",
        neighbour_mad,
        "mean over nodes of the mean of 1 - cos(x_i, x_j) over neighbours j",
        "[0, 2]",
        "how much the directions of neighbours differ",
        "Chen et al. 2020",
    ),
    Measure(
        "pair_cosine",
        mean_pair_cosine,
        "mean of cos(x_i, x_j) over all pairs of nodes",
        "[-1, 1]",
        "whether all nodes point the same way, neighbours or not",
        "Chen et al. 2020, over all pairs",
    ),
    Measure(
        "effective_rank",
        effective_rank,
        "exp(-sum p_k log p_k), p_k = s_k / sum s_k over the singular values s of X",
        "[1, min(num_nodes, channels)], and 0 for X = 0",
        "how many directions the features fill",
        "Roy and Vetterli 2007",
    ),
    Measure(
        "stable_rank",
        stable_rank,
        "||X||^2 / s_1^2, s_1 the largest singular value of X",
        "[1, min(num_nodes, channels)], and 0 for X = 0",
        "how many directions as strong as the strongest the features fill",
        "Rudelson and Vershynin 2007",
    ),
    Measure(
        "correlation",
        feature_correlation,
        "mean of |Pearson correlation| over all pairs of columns of X",
        "[0, 1]",
        "how much the channels repeat each other",
        "Jin et al. 2022",
    ),
    Measure(
        "combinatorial_energy",
        combinatorial_energy,
        "tr(X^T (D - A) X)",
        "[0, 2 max(degree) ||X||^2]",
        "how much neighbours differ, without any normalisation",
        "Rusch et al. 2023",
    ),
    Measure(
        "random_walk_energy",
        random_walk_energy,
        "tr(X^T (D - A) X) / sum(1 + degree)",
        "[0, 2 Var(X)), Var weighted by 1 + degree",
        "half the mean squared change of the features over one step of the random walk",
        "Levin and Peres 2017, chapter 13",
    ),
    Measure(
        "rank_one_distance",
        rank_one_distance,
        "sqrt(1 - s_1^2 / ||X||^2), s_1 the largest singular value of X, and 0 for X = 0",
        "[0, 1)",
        "how far the features are from one direction that all channels repeat",
        "Eckart and Young 1936; Roth and Liebig 2024",
    ),
    Measure(
        "second_energy",
        higher_energy,
        "tr(X^T (I - P)^2 X) = ||(I - P) X||^2",
        "[0, 4 ||X||^2)",
        "how much one propagation changes the features",
        "Zhou and Schoelkopf 2005",
    ),
    Measure(
        "third_energy",
        partial(higher_energy, order=3),
        "tr(X^T (I - P)^3 X)",
        "[0, 8 ||X||^2)",
        "how much of the features is of high frequency",
        "Zhou and Schoelkopf 2005",
    ),
):
    MEASURES[_row.name] = _row


def _with_labels(labels: Tensor) -> Measure:
    return Measure(
        "group_distance_ratio",
        lambda x, graph: group_distance_ratio(x, labels.to(x.device)),
        "mean distance of nodes of two classes / mean distance of nodes of one class",
        "[0, inf), 1 for X = 0",
        "how much farther apart classes are than the nodes of one class",
        "Zhou et al. 2020 (DGN)",
    )


def _with_inputs(inputs: Tensor) -> Measure:
    return Measure(
        "instance_information_gain",
        lambda x, graph: instance_information_gain(x, inputs.to(x.device)),
        "mean of log(m sum_j a_ij b_ij / (sum_j a_ij sum_j b_ij)), Gaussian kernels a of inputs and b of features",
        "(-inf, log m], m the number of sampled nodes",
        "what the features still say about the input features of the same node",
        "Zhou et al. 2020 (DGN)",
    )


DATA_MEASURES: dict[str, Callable[[Tensor], Measure]] = {
    "group_distance_ratio": _with_labels,
    "instance_information_gain": _with_inputs,
}
"""Measures that need more than features and graph: each makes a `Measure` from the labels, or from the input features.

``Trace(model, measures=["energy", DATA_MEASURES["group_distance_ratio"](labels)])`` records one.
"""


def measure_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names in the order given, each once, or a sentence that lists the choices.

    Example:
        >>> measure_names(["energy", "norm", "energy"])
        ('energy', 'norm')
    """
    if isinstance(names, str):
        raise GraphjouleError(f"The measures are the text {names!r}; expected a list of names such as [{names!r}].")
    unique = tuple(dict.fromkeys(names))
    for name in unique:
        if name not in MEASURES:
            more = " A reach needs a backward pass: call `graphjoule.trace.reach`." if name == "reach" else ""
            raise GraphjouleError(f"There is no measure {name!r}; choose from {choices(MEASURES)}.{more}")
    return unique
