"""A recipe with some settings replaced, and which settings can be searched at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from graphjoule.errors import GraphjouleError
from graphjoule.examine import initialised
from graphjoule.recipe import Recipe
from graphjoule.recipes import explain, unknown
from graphjoule.tuning.ranges import Choices, Interval, Range

__all__ = ["fit_ranges", "own_values", "with_settings"]

# What the run is, and what it is judged by and on: a search that changed them would compare what cannot be compared.
_GIVEN = ("model", "dataset", "num_layers", "select_on", "split", "split_seed", "constraint", "clusters")
_SHARED = "weight_decay"  # stands for every parameter group that has no range of its own


def with_settings(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with some settings replaced, checked as those of a file are.

    Args:
        recipe: what to change; it stays as it is.
        changes: new values by the keys of `Recipe.settings`; ``weight_decay`` is that of every parameter group that is
            not also named by itself.

    >>> from graphjoule.recipe import load_recipe
    >>> with_settings(load_recipe("gcn", "digits", 2), {"lr": 0.5}).differences(load_recipe("gcn", "digits", 2))
    ['lr: 0.5 -> 0.005']
    """
    fields = recipe.model_dump()
    for key, value in sorted(changes.items(), key=lambda change: change[0] != _SHARED):  # the shared one first
        name, _, part = key.partition(".")
        if key == _SHARED:
            fields[_SHARED] = dict.fromkeys(fields[_SHARED], value)
        elif part:
            fields[name][part] = value
        elif key in fields["options"]:
            fields["options"][key] = value
        else:
            fields[key] = value
        fields["sources"] |= dict.fromkeys(_spelled(recipe, key), "override")
    try:
        return Recipe.model_validate(fields)
    except ValidationError as error:
        raise GraphjouleError(explain(error)[1]) from error


def own_values(recipe: Recipe, ranges: Mapping[str, Range]) -> dict[str, Any]:
    """The recipe's own values of what is searched, where they are within the ranges: the first trial's."""
    settings = recipe.settings()
    values = {key: {settings[name] for name in _spelled(recipe, key)} for key in ranges}
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
    for key, found in fitted.items():
        for end in found.ends:
            _check_end(recipe, fitted, key, end)
    return fitted


def _typed(recipe: Recipe, key: str, given: Range) -> Range:
    settings = recipe.settings()
    known = [*(name for name in settings if name not in _GIVEN), _SHARED]
    if key in _GIVEN:
        raise GraphjouleError(f"{key} is what a search is about, it cannot be searched; choose it beforehand.")
    if key not in known:
        raise GraphjouleError(unknown(key, known, f"setting of {recipe.model}"))
    value = settings[_spelled(recipe, key)[0]]
    if isinstance(given, Choices):
        return given
    if isinstance(value, bool | str):
        raise GraphjouleError(f"{key}={given.text} cannot be searched: {key} takes choices, such as {key}=one,another.")
    return _whole(key, given) if isinstance(value, int) else given


def _whole(key: str, given: Interval) -> Interval:
    if not (float(given.low).is_integer() and float(given.high).is_integer()):
        raise GraphjouleError(f"{key}={given.text} cannot be searched: {key} takes whole numbers.")
    return given.of_whole_numbers()


def _spelled(recipe: Recipe, key: str) -> list[str]:
    """The keys of `Recipe.settings` that a searched setting stands for."""
    return [f"{_SHARED}.{group}" for group in recipe.weight_decay] if key == _SHARED else [key]


def _check_end(recipe: Recipe, ranges: Mapping[str, Range], key: str, end: Any) -> None:
    said: GraphjouleError | None = None
    for others in _surroundings(recipe, ranges):
        try:
            changed = with_settings(recipe, others | {key: end})
            initialised(changed.model_copy(update={"num_layers": 1}), in_channels=2, out_channels=2, seed=0)
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
