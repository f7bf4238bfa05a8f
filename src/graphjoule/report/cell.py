"""A cell of a report: the runs of one recipe, and what the instruments say about one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from graphjoule.nn import GraphModel
from graphjoule.tasks.facts import TaskFacts
from graphjoule.tasks.inputs import ModelInput
from graphjoule.trace import LayerTrace
from graphjoule.training.build import initialised
from graphjoule.training.examine import Examination, examine, graph_layers
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import Record, Summary, summarise

BEFORE, AFTER = "at initialisation", "after training"


@dataclass(frozen=True, eq=False)
class Cell:
    """The runs of one recipe.

    Attributes:
        recipe: the settings of all runs.
        records: one per seed.
        data: what was trained on; None where the files do not say.
        states: what the instruments say, by the state of the network; empty where nothing was traced.
        seed: the run that was traced.
        untraced: why nothing was traced, as a sentence; empty where something was.
        place: the folder or file, as seen from the one that is reported on.
    """

    recipe: Recipe
    records: Sequence[Record]
    data: TaskFacts | None = None
    states: Mapping[str, Examination] = field(default_factory=dict)
    seed: int | None = None
    untraced: str = ""
    place: str = ""

    @cached_property
    def summary(self) -> Summary:
        """Mean and spread over the runs."""
        return summarise(self.records)

    @property
    def key(self) -> tuple[str, str, int]:
        """Dataset, model and depth."""
        return self.recipe.data.name, self.recipe.model.name, self.recipe.model.num_layers

    @property
    def name(self) -> str:
        """What it is, in words."""
        return f"{self.recipe.model.name}, {self.recipe.model.num_layers} layers, {self.recipe.data.name}"


def states_of(
    model: GraphModel, recipe: Recipe, given: ModelInput, seed: int, device: str | torch.device = "cpu"
) -> dict[str, Examination]:
    """What the instruments say about a trained network, and about the one its training began with.

    Args:
        model: the trained network.
        recipe: its settings.
        given: the graph it was trained on.
        seed: of its training.
        device: "auto", "cpu" or "cuda".
    """
    first = initialised(recipe, model.in_channels, model.out_channels, seed)
    return {
        state: examine(network, recipe, given, device=device) for state, network in ((BEFORE, first), (AFTER, model))
    }


def embeddings(found: Examination) -> list[LayerTrace]:
    """The rows of ``X_0`` and of the graph layers; a last row of another width is class scores and left out."""
    rows = graph_layers(found.trace).layers or found.trace.layers
    return rows[:-1] if len(rows) > 2 and rows[-1].channels != rows[-2].channels else rows


def first_layer(rows: Sequence[LayerTrace]) -> int:
    """Number of the first row: 0 where it is ``X_0``, 1 for a model without an encoder.

    >>> first_layer([LayerTrace("encoder"), LayerTrace("convs.0")]), first_layer([LayerTrace("convs.0")])
    (0, 1)
    """
    return int(bool(rows) and rows[0].name == "convs.0")


def variants(cells: Sequence[Cell]) -> list[str]:
    """What tells each cell from the others of its dataset, model and depth; empty where it is the only one.

    Returns:
        Texts such as "c_min=0.3"; cells of equal settings are told apart by their place.
    """
    families: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    settings = [cell.recipe.settings() for cell in cells]
    for cell, mine in zip(cells, settings, strict=True):
        families.setdefault(cell.key, []).append(mine)
    differing = {key: _differing(family) for key, family in families.items()}
    copies = Counter(cell.recipe.fingerprint() for cell in cells)
    told = []
    for cell, mine in zip(cells, settings, strict=True):
        words = [f"{name}={value}" for name, value in mine.items() if name in differing[cell.key]]
        is_copy = copies[cell.recipe.fingerprint()] > 1 and cell.place
        told.append(", ".join([*words, *([cell.place] if is_copy else [])]))
    return told


def _differing(family: Sequence[Mapping[str, Any]]) -> set[str]:
    """The names of the settings that are not the same in a whole family."""
    names = {name for settings in family for name in settings}
    return {name for name in names if any(one.get(name) != family[0].get(name) for one in family)}
