"""What is searched: for each setting an interval or some choices, and which settings of a recipe they stand for."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from graphjoule.errors import GraphjouleError, unknown
from graphjoule.nn import MODELS
from graphjoule.terms import TERMS
from graphjoule.training.recipe import Recipe
from graphjoule.training.settings import parse_overrides, resolve, setting_names
from graphjoule.tuning.storage import import_optuna

# What the run is, and what it is judged by and on: a search that changed them would compare what cannot be compared.
_ARGUMENTS = ("model", "dataset", "num_layers", "layers", "seeds", "constraint")
_CHOSEN = ("train.select_on", "data.split", "terms.energy.method", "train.clusters")
_EXPECTED = "expected key=low..high, key=low..high:log or key=one,another"


@dataclass(frozen=True)
class Interval:
    """Numbers from `low` to `high`, both included.

    Attributes:
        low: the smallest value.
        high: the largest value.
        log: whether every factor is as likely as any other, rather than every difference.
        is_whole: whether only whole numbers are meant.

    >>> Interval(1e-4, 0.1, log=True).text, Interval(16, 64, is_whole=True).num_values, Interval(0.1, 0.5).contains(0.2)
    ('0.0001..0.1:log', 49, True)
    """

    low: float
    high: float
    log: bool = False
    is_whole: bool = False

    @property
    def text(self) -> str:
        """As it is typed."""
        return f"{self.low!r}..{self.high!r}{':log' if self.log else ''}"

    @property
    def ends(self) -> tuple[float, ...]:
        """The values that are tried before a search begins."""
        return (self.low, self.high)

    @property
    def num_values(self) -> int | None:
        """How many values there are; None where they cannot be counted."""
        return int(self.high) - int(self.low) + 1 if self.is_whole else None

    def contains(self, value: Any) -> bool:
        """Whether it could be drawn."""
        return isinstance(value, int | float) and self.low <= value <= self.high

    def at(self, share: float) -> float:
        """The value at a share of the way from `low` to `high`, 0 to 1, to three digits."""
        way = self.low * (self.high / self.low) ** share if self.log else self.low + share * (self.high - self.low)
        return round(way) if self.is_whole else min(max(float(f"{way:.3g}"), self.low), self.high)

    def distribution(self) -> Any:
        """The same for Optuna."""
        distributions = import_optuna().distributions
        kind = distributions.IntDistribution if self.is_whole else distributions.FloatDistribution
        return kind(self.low, self.high, log=self.log)


@dataclass(frozen=True)
class Choices:
    """Some values, none nearer to another; for the rest see `Interval`.

    >>> Choices(("srelu", True, 16)).text
    'srelu,true,16'
    """

    values: tuple[Any, ...]

    @property
    def text(self) -> str:
        """As it is typed."""
        return ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in self.values)

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that are tried before a search begins: all of them."""
        return self.values

    @property
    def num_values(self) -> int:
        """How many values there are."""
        return len(set(self.values))

    def contains(self, value: Any) -> bool:
        """Whether it could be drawn."""
        return value in self.values

    def at(self, share: float) -> Any:
        """The value at a share of the way through them, 0 to 1."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def distribution(self) -> Any:
        """The same for Optuna."""
        return import_optuna().distributions.CategoricalDistribution(list(self.values))


Range = Interval | Choices


def count_settings(ranges: Mapping[str, Range]) -> int | None:
    """How many different settings some ranges hold; None where they cannot be counted.

    >>> count_settings(parse_ranges(["batch_norm=true,false", "hidden_channels=16,64,256"]))
    6
    >>> count_settings(parse_ranges(["batch_norm=true,false", "lr=0.1..0.2"]))
    """
    counts = [count for found in ranges.values() if (count := found.num_values) is not None]
    return math.prod(counts) if len(counts) == len(ranges) else None


def parse_ranges(texts: Iterable[str]) -> dict[str, Range]:
    """Ranges from texts such as "lr=1e-4..1e-1:log"; a key given twice is refused."""
    ranges: dict[str, Range] = {}
    for key, found in map(parse_range, texts):
        if key in ranges:
            raise GraphjouleError(f"{key} has two ranges, {ranges[key].text} and {found.text}: give one.")
        ranges[key] = found
    return ranges


def parse_range(text: str) -> tuple[str, Range]:
    """A setting and what is searched of it.

    >>> parse_range("lr=1e-4..0.1:log")
    ('lr', Interval(low=0.0001, high=0.1, log=True, is_whole=False))
    >>> parse_range("activation=srelu,relu")
    ('activation', Choices(values=('srelu', 'relu')))
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    wrong = f"{text!r} is not a range: "
    if not key or not equals or not value:
        raise GraphjouleError(f"{wrong}{_EXPECTED}.")
    if ".." in value:
        bounds, _, scale = value.partition(":")
        ends = []
        for part in bounds.split("..", 1):
            try:
                ends.append(float(part))
            except ValueError:
                ends.append(math.nan)
            if not math.isfinite(ends[-1]):
                raise GraphjouleError(f"{wrong}{part.strip()!r} is not a number; {_EXPECTED}.")
        low, high = ends
        if scale.strip() not in ("", "log"):
            raise GraphjouleError(f"{wrong}after the colon it says {scale.strip()!r}, expected log.")
        if not low < high:
            raise GraphjouleError(f"{wrong}{low!r} is not below {high!r}.")
        if scale and low <= 0:
            raise GraphjouleError(f"{wrong}on a logarithmic scale {low!r} must be above 0.")
        return key, Interval(low, high, log=bool(scale))
    parts = value.split(",")
    if len(parts) < 2:
        raise GraphjouleError(f"{wrong}there is nothing to choose; {_EXPECTED}, or set `{text}`.")
    if not all(part.strip() for part in parts):
        raise GraphjouleError(f"{wrong}a choice is empty; {_EXPECTED}.")
    values = [parse_overrides([f"{key}={part}"])[key] for part in parts]
    if any(not isinstance(one, bool | int | float | str) for one in values):
        raise GraphjouleError(f"{wrong}expected numbers, words, true or false.")
    if len(set(values)) != len(values):  # 1 and 1.0 too, which Optuna cannot tell apart
        raise GraphjouleError(f"{wrong}a choice is there twice.")
    return key, Choices(tuple(values))


def default_ranges(model: str) -> dict[str, Range]:
    """The ranges of a model's settings that are worth a search on any dataset.

    Args:
        model: A key of `MODELS`.

    Returns:
        A range by the name of each setting.

    >>> default_ranges("sgc")["lr"].text
    '0.001..0.3:log'
    """
    if model not in MODELS:
        raise GraphjouleError(unknown(model, MODELS, "model"))
    table = tomllib.loads((resources.files(__package__) / "ranges.toml").read_text(encoding="utf-8"))
    return parse_ranges(f"{key}={text}" for key, text in table.get(model, table["default"]).items())


# Which settings of a recipe a name stands for.


def spelled(recipe: Recipe, key: str) -> list[str]:
    """The keys of `Recipe.settings` that a name stands for, as in an override; one that is unknown is refused.

    ``weight_decay`` is that of every parameter group. A limit that a term has taken from the model is the term's too.

    >>> from graphjoule.training.recipe import load_recipe
    >>> spelled(load_recipe("gcnii", "digits", 2), "weight_decay")
    ['train.weight_decay.conv', 'train.weight_decay.dense']
    >>> spelled(load_recipe("egnn", "digits", 2, {"terms.energy.method": "penalty"}), "c_min")
    ['model.c_min', 'terms.energy.c_min']
    """
    model = recipe.model.name
    names = list(resolve({key: 0}, setting_names(model), model, recipe.terms))
    settings, (table, _, name) = recipe.settings(), names[0].partition(".")
    for limit in (f"terms.{term}.{name}" for term in recipe.terms if table == "model" and name.startswith("c_")):
        # A limit that is taken from the model comes with its value and its source.
        if settings.get(limit) == settings[names[0]] and recipe.sources.get(limit) == recipe.sources.get(names[0]):
            names.append(limit)
    return names


def with_settings(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with some settings replaced, checked as those of a file are.

    Args:
        recipe: what to change; it stays as it is.
        changes: new values by the names that `spelled` knows; one that stands for several settings is for those that
            are not also named by themselves.

    >>> from graphjoule.training.recipe import load_recipe
    >>> with_settings(load_recipe("gcn", "digits", 2), {"lr": 0.5}).differences(load_recipe("gcn", "digits", 2))
    ['train.lr: 0.5 -> 0.005']
    """
    values: dict[str, Any] = {}
    for key in sorted(changes, key=lambda key: -len(spelled(recipe, key))):
        values |= dict.fromkeys(spelled(recipe, key), changes[key])
    return recipe.with_settings(values)


def own_values(recipe: Recipe, ranges: Mapping[str, Range]) -> dict[str, Any]:
    """The recipe's own values of what is searched, where they are within the ranges: the first trial's."""
    settings, found = recipe.settings(), {}
    for key, given in ranges.items():
        first, *others = (settings.get(name) for name in spelled(recipe, key))
        if all(other == first for other in others) and given.contains(first):
            found[key] = first
    return found


def fit_ranges(recipe: Recipe, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """The ranges in the types of the recipe's settings, or a sentence for one that cannot be searched.

    Both ends of every interval and every choice must work with some values of the other settings that are searched;
    whether a trial's own values go together is seen when it is drawn.

    Args:
        recipe: what is searched from.
        ranges: a range by the name of each setting.
    """
    import torch  # here, so that a range that cannot be read is refused at once

    from graphjoule.graph import Propagation
    from graphjoule.training.build import initialised

    if not ranges:
        raise GraphjouleError("There is nothing to search: give at least one range, such as lr=1e-4..1e-1:log.")
    names, settings, fitted = {}, recipe.settings(), dict(ranges)
    for key, given in ranges.items():
        names[key] = spelled(recipe, key) if key.rpartition(".")[2] not in _ARGUMENTS else [*_CHOSEN]
        if names[key][0].startswith(_CHOSEN):
            raise GraphjouleError(f"{key} is what a search is about, it cannot be searched; choose it beforehand.")
        value = settings.get(names[key][0])
        if isinstance(given, Interval) and isinstance(value, bool | str):
            raise GraphjouleError(
                f"{key}={given.text} cannot be searched: {key} takes choices, such as {key}=one,another."
            )
        if isinstance(given, Interval) and isinstance(value, int):
            if not (float(given.low).is_integer() and float(given.high).is_integer()):
                raise GraphjouleError(f"{key}={given.text} cannot be searched: {key} takes whole numbers.")
            fitted[key] = replace(given, low=int(given.low), high=int(given.high), is_whole=True)
    own = {several[0]: key for key, several in names.items() if len(several) == 1}
    for key in ranges:
        others = [own.get(name, key) for name in names[key]]
        if key not in others:
            raise GraphjouleError(f"{key} has two ranges, its own and that of {' and '.join(others)}: give one.")

    # A value that no network can be built with, neither with the recipe's other values nor at the others' ends.
    first, last = ({name: found.ends[place] for name, found in fitted.items()} for place in (0, -1))
    graph = Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]]))
    for key, end in ((key, end) for key, found in fitted.items() for end in found.ends):
        said: list[GraphjouleError] = []
        for others_at in ({}, first, last):
            try:
                changed = with_settings(recipe, others_at | {key: end})
                shallow = changed.model.model_copy(update={"num_layers": min(3, changed.model.num_layers)})
                small = changed.model_copy(update={"model": shallow})
                model = initialised(small, in_channels=2, out_channels=3, seed=0)
                for term, options in changed.terms.items():
                    TERMS[term](**options)(model, graph)
                break
            except GraphjouleError as error:
                said.append(error)
        else:
            raise GraphjouleError(f"{key}={fitted[key].text} cannot be searched: {said[0]}") from said[0]
    return fitted
