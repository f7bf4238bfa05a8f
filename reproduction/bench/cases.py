"""What is measured: a table of cases, and curves that are series of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from graphjoule import GraphjouleError
from graphjoule.tasks import DATASETS, Task, load_task
from graphjoule.training import Recipe, load_recipe
from reproduction.bench.synthetic import CitationGraph, PowerLawGraph

MODELS_WITH_PEER = ("egnn", "gcnii")
"""What can be compared; the first is meant where a name does not say."""
MAX_EPOCHS = 10_000
"""More epochs than one measurement makes, so that no run stops while it is timed."""


@dataclass(frozen=True)
class Case:
    """One thing to measure: a model of some depth on some graph.

    Attributes:
        name: what the user calls it.
        dataset: whose blocks of the recipe hold, and the data to load unless there is a `graph`.
        num_layers: depth.
        overrides: settings that differ from the recipe.
        graph: a graph to generate instead of loading one.
        runs: how many runs ours trains at once; the peer always trains one.
        curve: the curve it is a point of.
        model: what is trained, a key of `MODELS` that has a peer.
    """

    name: str
    dataset: str
    num_layers: int
    overrides: Mapping[str, Any] = field(default_factory=dict)
    graph: CitationGraph | PowerLawGraph | None = None
    runs: int = 1
    curve: str | None = None
    model: str = MODELS_WITH_PEER[0]

    def recipe(self) -> Recipe:
        """The settings, with early stopping out of the way."""
        endless = {"epochs": MAX_EPOCHS, "patience": MAX_EPOCHS}
        return load_recipe(self.model, self.dataset, self.num_layers, {**endless, **self.overrides})

    def task(self, data_root: str | os.PathLike[str] | None = None) -> Task:
        """Load or generate the data."""
        return load_task(self.dataset, data_root) if self.graph is None else self.graph.task(self.name)


_ARXIV = CitationGraph(num_nodes=169_343, num_edges=1_166_243, num_features=128, num_classes=40)
_WIDE = {"hidden_channels": 256}
_HALF = {"activations": "bfloat16"}
_PLAIN = {"encoder": "linear", "batch_norm": False}

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("digits-32", "digits", 32),
        Case("cora-64", "cora", 64),
        Case("pubmed-64", "pubmed", 64),
        Case("physics-32", "physics", 32),
        Case("cora-64-bf16", "cora", 64, _HALF),
        Case("pubmed-64-bf16", "pubmed", 64, _HALF),
        Case("physics-32-bf16", "physics", 32, _HALF),
        Case("arxiv-32", "arxiv", 32, _WIDE, _ARXIV),
        Case("arxiv-32-bf16", "arxiv", 32, {**_WIDE, **_HALF}, _ARXIV),
        # The same without the batch norms that the paper has on ogbn-arxiv alone: the layer as on the other graphs.
        Case("arxiv-32-plain", "arxiv", 32, {**_WIDE, **_PLAIN}, _ARXIV),
        Case("gcnii-cora-64", "cora", 64, model="gcnii"),
        Case("gcnii-physics-32", "physics", 32, model="gcnii"),
    )
}
"""The cases with a name of their own; `find_case` knows any dataset and depth besides."""


def _sized(num_nodes: int) -> Case:
    """32 layers on a generated graph with an average degree of 8."""
    graph = CitationGraph(num_nodes=num_nodes, num_edges=4 * num_nodes)
    return Case(f"nodes-{num_nodes // 1000}k", "synthetic", 32, {"split": "public"}, graph, curve="nodes")


CURVES: dict[str, tuple[Case, ...]] = {
    "depth": tuple(Case(f"cora-{2**k}", "cora", 2**k, curve="depth") for k in range(1, 11)),
    "nodes": tuple(_sized(1000 * 4**k) for k in range(5)),
    "runs": tuple(Case(f"cora-64x{runs}", "cora", 64, runs=runs, curve="runs") for runs in (1, 2, 4, 8, 16)),
}
"""The scaling curves by what grows along them."""


def find_case(name: str) -> Case:
    """The case of a name: one of `CASES`, a point of a curve, or [MODEL-]DATASET-LAYERS such as "cora-128".

    >>> find_case("gcnii-digits-4").num_layers
    4
    """
    points = {case.name: case for curve in CURVES.values() for case in curve if case.curve != "depth"}
    if named := CASES.get(name) or points.get(name):
        return named
    asked = re.fullmatch(rf"(?:({'|'.join(MODELS_WITH_PEER)})-)?(.+)-([1-9]\d*)", name)
    if asked and asked[2] in DATASETS:
        return Case(name, asked[2], int(asked[3]), model=asked[1] or MODELS_WITH_PEER[0])
    raise GraphjouleError(
        f"Unknown case {name!r}; expected one of: {', '.join(sorted([*CASES, *points]))}, "
        f"or DATASET-LAYERS, or gcnii-DATASET-LAYERS, with one of the datasets {', '.join(sorted(DATASETS))}."
    )


def find_curves(names: Iterable[str]) -> list[Case]:
    """All points of some curves."""
    cases: list[Case] = []
    for name in names:
        if name not in CURVES:
            raise GraphjouleError(f"Unknown curve {name!r}; expected one of: {', '.join(sorted(CURVES))}.")
        cases += CURVES[name]
    return cases
