"""A trained model as a file, and back: parameters as safetensors, the recipe beside them in the same file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from graphjoule.errors import GraphjouleError, counted
from graphjoule.nn import GraphModel
from graphjoule.tasks.facts import TaskFacts
from graphjoule.training.build import OwnModel, count_state, in_units_of, initialised, user_module
from graphjoule.training.recipe import Recipe
from graphjoule.training.tensorfile import read_tensors, write_tensors


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


def load_model(
    path: str | os.PathLike[str], device: torch.device | str = "cpu", *, model: torch.nn.Module | None = None
) -> torch.nn.Module:
    """The model of a file that `save_model` wrote, in evaluation mode. Nothing in the file is ever executed.

    Args:
        path: the file.
        device: where to put it.
        model: for a model of your own, one of its kind, freshly built: it gets the parameters and is returned, for a
            regression within a network that gives numbers in the unit of the targets.
    """
    return user_module(_read(path, device, model).model)


def load_parameters(path: str | os.PathLike[str], model: GraphModel) -> GraphModel:
    """A model with the parameters of a file, in evaluation mode; `model` is one of its kind."""
    tensors, _ = read_tensors(path, "model")
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:  # other names or shapes
        raise GraphjouleError(f"{path} is not the model of this training: {error}") from error
    return model.eval()


def read_model(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> SavedModel:
    """The model of a file with what the file says about it."""
    return _read(path, device, None)


def _read(path: str | os.PathLike[str], device: torch.device | str, own: torch.nn.Module | None) -> SavedModel:
    tensors, about = read_tensors(path, "model")
    try:
        recipe = Recipe.from_fields(about["recipe"])
        data = TaskFacts.model_validate(about["data"]) if "data" in about else None
        sizes = about["in_channels"], about["out_channels"]
        _check_sizes(recipe, *sizes, tensors)
        if own is not None:
            model: GraphModel = OwnModel(own, *sizes)
        elif recipe.model.is_own:
            raise GraphjouleError(
                f"the model {recipe.model.name} is the user's own; pass a new one to "
                "graphjoule.training.load_model as `model`"
            )
        else:
            model = initialised(recipe, *sizes, seed=0)
        model = in_units_of(data.objective, model) if data is not None else model
        model.load_state_dict(tensors)
        seed = int(about["seed"])
        status = str(about.get("status", "done"))  # older files do not say
    except (KeyError, TypeError, RuntimeError, ValueError, OverflowError) as error:
        raise GraphjouleError(f"{path} does not hold a model this version of graphjoule knows: {error}") from error
    return SavedModel(model.to(device).eval(), recipe, seed, data, status)


def _check_sizes(recipe: Recipe, in_channels: int, out_channels: int, tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse a file whose recipe asks for a larger network than it has numbers for, before that network is built."""
    numbers = sum(tensor.numel() for tensor in tensors.values())
    if in_channels > numbers or out_channels > numbers:
        raise GraphjouleError(
            f"it has {counted(numbers, 'number')}, but is to have {in_channels} inputs and {out_channels} outputs."
        )
    needed = count_state(recipe.model, in_channels, out_channels)
    if needed is not None and (needed[0] > len(tensors) or needed[1] > numbers):
        raise GraphjouleError(
            f"its recipe asks for {counted(needed[1], 'number')} in {counted(needed[0], 'tensor')}, and it has "
            f"{counted(numbers, 'number')} in {counted(len(tensors), 'tensor')}."
        )
