"""What a study is: a table of cells, each a recipe to train with every seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from graphjoule.errors import GraphjouleError
from graphjoule.nn import MODELS
from graphjoule.studies.paper_tables import Place
from graphjoule.tasks import DATASETS
from graphjoule.training.recipe import Recipe, load_recipe, model_options, unknown
from graphjoule.training.recipes.constrained import CONSTRAINT_NAMES

__all__ = ["Cell", "Local", "Study", "Variant"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Variant:
    """One way in which a study changes a recipe.

    Attributes:
        component: what is changed, such as "c_min"; empty for the recipe as it is.
        value: to what, as a table shows it.
        settings: overrides of the recipe; models without such a setting are left as they are.
        at_most: settings that are lowered to this value where the recipe has a larger one.
    """

    component: str = ""
    value: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    at_most: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Local:
    """Settings that a study gives to a part of its cells, or to all.

    Attributes:
        settings: overrides of the recipe; models without such a setting are left as they are.
        dataset: the part's dataset; None for every one.
        min_layers: the part's smallest depth.

    >>> Local({"epochs": 200}, "pubmed", min_layers=128).holds("pubmed", 64)
    False
    """

    settings: Mapping[str, Any]
    dataset: str | None = None
    min_layers: int = 1

    def holds(self, dataset: str, num_layers: int) -> bool:
        """Whether a cell belongs to the part."""
        return self.dataset in (None, dataset) and num_layers >= self.min_layers


@dataclass(frozen=True)
class Cell:
    """One cell of a study: what is trained with every seed, and what the paper says about it.

    Attributes:
        model: a key of `MODELS`.
        dataset: a key of `DATASETS`.
        num_layers: the depth.
        variant: what is changed in the recipe.
        overrides: further settings, the user's own; the variant wins over them.
        paper: the paper's test accuracy in percent; None where it gives none.
        base: settings that the study gives to cells here; the user's own and the variant win over them.

    >>> Cell("egnn", "cora", 64, Variant("activation", "relu", {"activation": "relu"})).name
    'egnn, 64 layers, cora, activation relu'
    """

    model: str
    dataset: str
    num_layers: int
    variant: Variant = Variant()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    paper: float | None = None
    base: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The cell in words."""
        changed = f", {self.variant.component} {self.variant.value}" if self.variant.component else ""
        return f"{self.model}, {self.num_layers} layers, {self.dataset}{changed}"

    @cached_property
    def recipe(self) -> Recipe:
        """All settings of the cell, resolved."""
        known = {*model_options(self.model).model_fields, *Recipe.model_fields, *CONSTRAINT_NAMES}
        base = {key: value for key, value in self.base.items() if key in known}
        changes = {key: value for key, value in self.variant.settings.items() if key in known}
        plain = load_recipe(self.model, self.dataset, self.num_layers, {**base, **self.overrides})
        capped = {
            key: limit
            for key, limit in self.variant.at_most.items()
            if key in plain.options and plain.options[key] > limit
        }
        if not changes and not capped:
            return plain
        return load_recipe(self.model, self.dataset, self.num_layers, {**base, **self.overrides, **changes, **capped})


@dataclass(frozen=True)
class Study:
    """A table or a figure of the paper, or one of our own, as data.

    Attributes:
        name: a key of `STUDIES`.
        title: one line about it.
        datasets: those it is made of if none is asked for.
        models: those it is made of if none is asked for.
        depths: numbers of layers by dataset; `other_depths` for a dataset that is not in it.
        other_depths: numbers of layers for any other dataset.
        variants: what is changed, one cell each.
        choices: models that can be asked for; None for every model.
        paper: the paper's percent by model, component and value, then by dataset and depth.
        has_energies: whether the energy of every layer is measured too.
        local: settings of some or all cells; of two that hold at a place, the later one wins.
    """

    name: str
    title: str
    datasets: tuple[str, ...]
    models: tuple[str, ...]
    depths: Mapping[str, tuple[int, ...]]
    other_depths: tuple[int, ...]
    variants: tuple[Variant, ...] = (Variant(),)
    choices: tuple[str, ...] | None = None
    paper: Mapping[tuple[str, str, str], Mapping[Place, float]] = field(default_factory=dict)
    has_energies: bool = False
    local: tuple[Local, ...] = ()

    def cells(
        self,
        datasets: Sequence[str] | None = None,
        models: Sequence[str] | None = None,
        layers: Sequence[int] | None = None,
        overrides: Mapping[str, Any] = _NOTHING,
    ) -> list[Cell]:
        """The cells of the study, or of the part that is asked for.

        Args:
            datasets: names of datasets, any of `DATASETS`.
            models: names of models among the study's choices.
            layers: numbers of layers instead of the study's own.
            overrides: settings that win over the recipes in every cell.

        Returns:
            One cell per dataset, model, depth and variant, those of a dataset together.
        """
        datasets = self._known(datasets or self.datasets, DATASETS, "dataset")
        models = self._known(models or self.models, self.choices or MODELS, f"model of {self.name}")
        for depth in layers or ():
            if depth < 1:
                raise GraphjouleError(f"layers are {list(layers or ())}; expected numbers of at least 1.")
        return [
            self._cell(model, dataset, depth, variant, overrides)
            for dataset in datasets
            for model in models
            for depth in layers or self.depths.get(dataset, self.other_depths)
            for variant in self.variants
        ]

    def _cell(self, model: str, dataset: str, depth: int, variant: Variant, overrides: Mapping[str, Any]) -> Cell:
        base: dict[str, Any] = {}
        for part in self.local:
            if part.holds(dataset, depth):
                base.update(part.settings)
        return Cell(model, dataset, depth, variant, overrides, self._paper_value(model, dataset, depth, variant), base)

    def _paper_value(self, model: str, dataset: str, depth: int, variant: Variant) -> float | None:
        return self.paper.get((model, variant.component, variant.value), {}).get((dataset, depth))

    @staticmethod
    def _known(names: Sequence[str], choices: Mapping[str, Any] | tuple[str, ...], what: str) -> list[str]:
        for name in names:
            if name not in choices:
                raise GraphjouleError(unknown(name, choices, what))
        return list(dict.fromkeys(names))
