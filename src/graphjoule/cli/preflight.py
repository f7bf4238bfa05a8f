"""What can be refused before a graph is loaded, which may take minutes."""

from __future__ import annotations

import os
from pathlib import Path

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.splits import stratified_rule
from graphjoule.training.environment import resolve_device
from graphjoule.training.folder import RunFolder
from graphjoule.training.recipe import Recipe


def check_training(recipe: Recipe, *, device: str, test_fraction: float | None, out: Path | None, resume: bool) -> None:
    """Refuse options that no graph could make right.

    Args:
        recipe: the settings; its split may still be "default".
        device: "auto", "cpu" or "cuda".
        test_fraction: share of the labels to hold back; None if it is not given.
        out: the folder that is asked for; None if it is to be a new one.
        resume: whether the folder may hold this training already.
    """
    resolve_device(device)
    if test_fraction is not None:
        stratified_rule(test_fraction)
    if out is not None:
        check_folder(out, recipe, resume=resume)


def check_folder(path: Path, recipe: Recipe, *, resume: bool) -> None:
    """Refuse a folder that holds another training or cannot be made; nothing is written.

    Whether files can really be written shows when the training begins: asking is not enough, see `ensure_folder`.
    """
    nearest = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise GraphjouleError(f"Cannot use {path} as an output folder: {nearest.name} is a file.")
    if not os.access(nearest, os.W_OK):
        raise GraphjouleError(f"Cannot use {path} as an output folder: {nearest} cannot be written to.")
    folder = RunFolder(path)
    if resume and not path.exists():
        raise GraphjouleError(
            f"There is no folder {path}, so there is nothing to resume; name the folder of the training with --out, or "
            "leave out --resume to begin one."
        )
    if resume and folder.is_taken and recipe.data.split == "default":  # the graph will say which split that is
        data = recipe.data.model_copy(update={"split": folder.about().recipe.data.split})
        recipe = recipe.model_copy(update={"data": data})
    folder.check(recipe, resume=resume)
