"""A recipe from a file of the user's, such as the winner of ``graphjoule tune``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphjoule.training.recipe import Recipe, load_recipe


def load_recipe_from(
    file: Path | None, model: str, dataset: str, num_layers: int, overrides: Mapping[str, Any]
) -> Recipe:
    """The recipe of a file, or without one that comes with graphjoule.

    What a file changes against the recipe that comes with graphjoule counts as overridden, so that a report does not
    take it for the paper's experiment and its command repeats the training without the file.

    Args:
        file: a recipe file; None for none.
        model: a key of `MODELS`.
        dataset: the dataset's name.
        num_layers: the depth.
        overrides: settings that win over the file.
    """
    found = load_recipe(model, dataset, num_layers, overrides, file=file)
    if file is None:
        return found
    usual = load_recipe(model, dataset, num_layers).settings()
    changed = [key for key, value in found.settings().items() if key not in usual or usual[key] != value]
    return found.model_copy(update={"sources": found.sources | dict.fromkeys(changed, "override")})
