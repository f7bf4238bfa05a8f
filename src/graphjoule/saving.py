"""A trained model as a file, and back: parameters as safetensors, the recipe beside them in the same file."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.initial import initialised
from graphjoule.nn import GraphModel
from graphjoule.recipe import Recipe
from graphjoule.tasks.facts import TaskFacts
from graphjoule.tensorfile import read_tensors, write_tensors


@dataclass(frozen=True, eq=False)
class SavedModel:
    """What a model's file holds.

    Attributes:
        model: in evaluation mode.
        recipe: how it was trained.
        seed: the run's seed.
        data: what it was trained on; None in a file that does not say.
        status: "done", or "failed" if the run broke off and the model is what it had until then.
    """

    model: GraphModel
    recipe: Recipe
    seed: int
    data: TaskFacts | None
    status: str = "done"


def save_model(
    path: str | os.PathLike[str],
    model: GraphModel,
    recipe: Recipe,
    *,
    seed: int,
    data: TaskFacts | None = None,
    status: str = "done",
) -> None:
    """Write a model so that `load_model` gives it back on any machine and device."""
    about = {
        "recipe": recipe.model_dump(),
        "seed": seed,
        "status": status,
        "in_channels": model.in_channels,
        "out_channels": model.out_channels,
    }
    if data is not None:
        about["data"] = data.model_dump(mode="json")
    write_tensors(path, "model", model.state_dict(), about)


def load_model(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> GraphModel:
    """The model of a file that `save_model` wrote, in evaluation mode. Nothing in the file is ever executed."""
    return read_model(path, device).model


def read_model(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> SavedModel:
    """The model of a file with what the file says about it."""
    tensors, about = read_tensors(path, "model")
    try:
        recipe = Recipe.model_validate(about["recipe"])
        model = initialised(recipe, about["in_channels"], about["out_channels"], seed=0)
        model.load_state_dict(tensors)
        data = TaskFacts.model_validate(about["data"]) if "data" in about else None
        seed = int(about["seed"])
        status = str(about.get("status", "done"))  # older files do not say
    except (KeyError, TypeError, RuntimeError, ValueError) as error:
        raise GraphjouleError(f"{path} does not hold a model this version of graphjoule knows: {error}") from error
    return SavedModel(model.to(device).eval(), recipe, seed, data, status)
