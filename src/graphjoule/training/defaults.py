"""Settings for data that no recipe is for: facts of the task, and a table of rules from facts to settings."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from graphjoule.training.recipe import Recipe, load_recipe

if TYPE_CHECKING:
    from graphjoule.tasks.task import Task

DEFAULT_LAYERS = 32


def recipe_for(
    task: Task,
    model: str = "egnn",
    num_layers: int | None = None,
    overrides: Mapping[str, Any] = MappingProxyType({}),
) -> Recipe:
    """The recipe of a task."""
    return load_recipe(model, task.name, num_layers or DEFAULT_LAYERS, overrides)
