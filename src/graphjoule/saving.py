"""A trained model as a file, and back: parameters as safetensors, the recipe beside them in the same file."""

from __future__ import annotations

import os

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.nn import MODELS, GraphModel
from graphjoule.recipe import Recipe
from graphjoule.tensorfile import read_tensors, write_tensors


def save_model(path: str | os.PathLike[str], model: GraphModel, recipe: Recipe, *, seed: int) -> None:
    """Write a model so that `load_model` gives it back on any machine and device."""
    about = {
        "recipe": recipe.model_dump(),
        "seed": seed,
        "in_channels": model.in_channels,
        "out_channels": model.out_channels,
    }
    write_tensors(path, "model", model.state_dict(), about)


def load_model(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> GraphModel:
    """The model of a file that `save_model` wrote, in evaluation mode. Nothing in the file is ever executed."""
    tensors, about = read_tensors(path, "model")
    try:
        recipe = Recipe.model_validate(about["recipe"])
        model = MODELS[recipe.model](
            about["in_channels"], recipe.hidden_channels, about["out_channels"], recipe.num_layers, **recipe.options
        )
        model.load_state_dict(tensors)
    except (KeyError, TypeError, RuntimeError, ValueError) as error:
        raise GraphjouleError(f"{path} does not hold a model this version of graphjoule knows: {error}") from error
    return model.to(device).eval()
