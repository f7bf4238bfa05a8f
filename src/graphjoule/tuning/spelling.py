"""What the name of a setting stands for: a range and an override may name several settings at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphjoule.training.recipe import Recipe
from graphjoule.training.recipes.constrained import constraint_setting

__all__ = ["SHARED", "fixed_settings", "spelled"]

SHARED = "weight_decay"
"""Stands for every parameter group that is not also named by itself."""


def spelled(recipe: Recipe, key: str) -> list[str]:
    """The keys of `Recipe.settings` that a name stands for, as ``--set`` understands it.

    ``weight_decay`` is that of every parameter group. A limit of the model's that the constraint has taken from it is
    the constraint's too; one that the model does not have is the constraint's alone.

    >>> from graphjoule.training.recipe import load_recipe
    >>> spelled(load_recipe("gcnii", "digits", 2), "weight_decay")
    ['weight_decay.conv', 'weight_decay.dense']
    >>> spelled(load_recipe("egnn", "digits", 2, {"constraint": "penalty"}), "c_min")
    ['c_min', 'constraint.c_min']
    """
    if key == SHARED:
        return [f"{SHARED}.{group}" for group in recipe.train.weight_decay]
    settings, limit = recipe.settings(), constraint_setting(key)
    if limit not in settings:
        return [key]
    if key not in settings:
        return [limit]
    # A limit that is taken from the model comes with its value and its source.
    is_taken = settings[limit] == settings[key] and recipe.sources.get(limit) == recipe.sources.get(key)
    return [key, limit] if is_taken else [key]


def fixed_settings(recipe: Recipe, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """What overrides fix, by the keys of `Recipe.settings`.

    Args:
        recipe: the recipe with the overrides.
        overrides: as `parse_overrides` gives them.

    >>> from graphjoule.training.recipe import load_recipe
    >>> overrides = {"weight_decay": 0.0, "weight_decay.conv": 0.5}
    >>> fixed_settings(load_recipe("gcnii", "digits", 2, overrides), overrides)
    {'weight_decay.dense': 0.0, 'weight_decay.conv': 0.5}
    """
    given = dict(overrides)
    if isinstance(shared := given.get(SHARED), Mapping):  # a table with one value for each of some groups
        del given[SHARED]
        given |= {f"{SHARED}.{group}": value for group, value in shared.items()}
    return {
        name: value for key, value in given.items() for name in spelled(recipe, key) if name == key or name not in given
    }
