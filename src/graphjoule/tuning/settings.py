"""A recipe with some settings replaced, and which settings can be searched at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from graphjoule.errors import GraphjouleError
from graphjoule.training.build import initialised
from graphjoule.training.objective import build_penalty
from graphjoule.training.recipe import Recipe, explain, unknown
from graphjoule.training.recipes import explain, unknown
from graphjoule.tuning.ranges import Choices, Interval, Range
from graphjoule.tuning.spelling import SHARED, spelled

__all__ = ["fit_ranges", "own_values", "with_settings"]

# What the run is, and what it is judged by and on: a search that changed them would compare what cannot be compared.
_GIVEN = ("model", "dataset", "num_layers", "select_on", "split", "split_seed", "constraint", "clusters")


def with_settings(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with some settings replaced, checked as those of a file are.

    Args:
        recipe: what to change; it stays as it is.
        changes: new values by the names that `spelled` knows; one that stands for several settings is for those that
            are not also named by themselves.

    >>> from graphjoule.training.recipe import load_recipe
    >>> with_settings(load_recipe("gcn", "digits", 2), {"lr": 0.5}).differences(load_recipe("gcn", "digits", 2))
    ['lr: 0.5 -> 0.005']
    """
    fields = recipe.model_dump()
    for key, value in changes.items():
        for name in spelled(recipe, key):
            if name == key or name not in changes:
                _put(fields, name, value)
    try:
        return Recipe.model_validate(fields)
    except ValidationError as error:
        raise GraphjouleError(explain(error)[1]) from error


def _put(fields: dict[str, Any], name: str, value: Any) -> None:
    table, _, part = name.partition(".")
    if part:
        fields[table][part] = value
    elif name in fields["options"]:
        fields["options"][name] = value
    else:
        fields[name] = value
    fields["sources"][name] = "override"


def own_values(recipe: Recipe, ranges: Mapping[str, Range]) -> dict[str, Any]:
    """The recipe's own values of what is searched, where they are within the ranges: the first trial's."""
    settings = _settings(recipe)
    values = {key: {settings[name] for name in spelled(recipe, key)} for key in ranges}
    found = {key: next(iter(several)) for key, several in values.items() if len(several) == 1}
    return {key: value for key, value in found.items() if ranges[key].contains(value)}


def fit_ranges(recipe: Recipe, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """The ranges in the types of the recipe's settings, or a sentence for one that cannot be searched.

    Both ends of every interval and every choice must work with some values of the other settings that are searched;
    whether a trial's own values go together is seen when it is drawn.

    Args:
        recipe: what is searched from.
        ranges: a range by the name of each setting.
    """
    if not ranges:
        raise GraphjouleError("There is nothing to search: give at least one range, such as lr=1e-4..1e-1:log.")
    fitted = {key: _typed(recipe, key, given) for key, given in ranges.items()}
    for key in ranges:
        _check_needed(recipe, ranges, key)
    for key, found in fitted.items():
        for end in found.ends:
            _check_end(recipe, fitted, key, end)
    return fitted


def _typed(recipe: Recipe, key: str, given: Range) -> Range:
    settings = _settings(recipe)
    known = [*(name for name in settings if name not in _GIVEN), SHARED]
    if key in _GIVEN:
        raise GraphjouleError(f"{key} is what a search is about, it cannot be searched; choose it beforehand.")
    name = spelled(recipe, key)[0]
    if name not in known:
        raise GraphjouleError(unknown(key, known, f"setting of {recipe.model.name}"))
    value = settings[name]
    if isinstance(given, Choices):
        return given
    if isinstance(value, bool | str):
        raise GraphjouleError(f"{key}={given.text} cannot be searched: {key} takes choices, such as {key}=one,another.")
    return _whole(key, given) if isinstance(value, int) else given


def _whole(key: str, given: Interval) -> Interval:
    if not (float(given.low).is_integer() and float(given.high).is_integer()):
        raise GraphjouleError(f"{key}={given.text} cannot be searched: {key} takes whole numbers.")
    return given.of_whole_numbers()


def _settings(recipe: Recipe) -> dict[str, Any]:
    """`Recipe.settings`, and None for what a recipe leaves out of them while it has none of it."""
    absent = [name for name, field in Recipe.model_fields.items() if not field.is_required() and field.default is None]
    return dict.fromkeys(absent) | recipe.settings()


def _check_needed(recipe: Recipe, ranges: Mapping[str, Range], key: str) -> None:
    """Refuse a range of which nothing is left, because all it stands for has ranges of its own."""
    names = spelled(recipe, key)
    if all(name != key and name in ranges for name in names):
        raise GraphjouleError(f"{key} has two ranges, its own and that of {' and '.join(names)}: give one.")


def _check_end(recipe: Recipe, ranges: Mapping[str, Range], key: str, end: Any) -> None:
    said: GraphjouleError | None = None
    for others in _surroundings(recipe, ranges):
        try:
            changed = with_settings(recipe, others | {key: end})
            shallow = changed.model_copy(update={"num_layers": 1})
            build_penalty(shallow, initialised(shallow, in_channels=2, out_channels=3, seed=0))
        except GraphjouleError as error:
            said = said or error
        else:
            return
    raise GraphjouleError(f"{key}={ranges[key].text} cannot be searched: {said}") from said


def _surroundings(recipe: Recipe, ranges: Mapping[str, Range]) -> Iterator[dict[str, Any]]:
    """Values of all searched settings that one of them is tried among: the recipe's own, all first, all last."""
    yield {}
    yield {key: found.ends[0] for key, found in ranges.items()}
    yield {key: found.ends[-1] for key, found in ranges.items()}
