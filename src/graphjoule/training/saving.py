"""A trained model as a file, and back: parameters as safetensors, the recipe beside them in the same file."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.nn import GraphModel
from graphjoule.tasks.facts import TaskFacts
from graphjoule.training.build import OwnModel, in_units_of, initialised, user_module
from graphjoule.training.calibration import Calibration
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
        calibration: what its validation nodes say about its predictions; None in a file that does not say.
    """

    model: GraphModel
    recipe: Recipe
    seed: int
    data: TaskFacts | None
    status: str = "done"
    calibration: Calibration | None = None


def save_model(
    path: str | os.PathLike[str],
    model: GraphModel,
    recipe: Recipe,
    *,
    seed: int,
    data: TaskFacts | None = None,
    status: str = "done",
    calibration: Calibration | None = None,
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
    tensors = dict(model.state_dict())
    if calibration is not None:
        scores, more = calibration.stored()
        tensors |= scores
        about |= more
    write_tensors(path, "model", tensors, about)


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
    tensors, about = read_tensors(path, "model")
    Calibration.read(tensors, about)
    model.load_state_dict(tensors)
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
        calibration = Calibration.read(tensors, about)
        model.load_state_dict(tensors)
        seed = int(about["seed"])
        status = str(about.get("status", "done"))  # older files do not say
    except (KeyError, TypeError, RuntimeError, ValueError) as error:
        raise GraphjouleError(f"{path} does not hold a model this version of graphjoule knows: {error}") from error
    return SavedModel(model.to(device).eval(), recipe, seed, data, status, calibration)
