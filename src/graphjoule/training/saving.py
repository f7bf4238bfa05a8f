"""Trained models and other tensors as files, and back: safetensors with a checksum, never executed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError, counted
from graphjoule.files import parse_json, printable, write_bytes
from graphjoule.nn import GraphModel
from graphjoule.tasks.facts import TaskFacts
from graphjoule.training.build import OwnModel, count_state, in_units_of, initialised, user_module
from graphjoule.training.calibration import Calibration
from graphjoule.training.recipe import Recipe

_FORMAT = 1  # of any file of tensors


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
    try:
        Calibration.read(tensors, about)
        model.load_state_dict(tensors)
    except (KeyError, RuntimeError, ValueError) as error:  # other names or shapes
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
        calibration = Calibration.read(tensors, about)
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
    return SavedModel(model.to(device).eval(), recipe, seed, data, status, calibration)


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


# Named tensors in a file, whole or not at all.


def write_tensors(path: str | os.PathLike[str], kind: str, tensors: Mapping[str, Tensor], about: Any) -> None:
    """Write tensors and a JSON description of them.

    Args:
        path: the file; its folder must exist.
        kind: what the file is, such as "model" or "checkpoint"; `read_tensors` asks for the same word.
        tensors: any shapes and dtypes, from any device.
        about: whatever JSON can hold.
    """
    stored = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    description = json.dumps(about)
    header = {"format": _FORMAT, "kind": kind, "about": description, "sha256": _digest(stored, description)}
    # One entry: safetensors writes several in any order, and equal content shall be equal bytes.
    write_bytes(path, safetensors.torch.save(stored, {"graphjoule": json.dumps(header)}))


def read_tensors(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], Any]:
    """Tensors and description from a file that `write_tensors` wrote; anything else is refused with a sentence."""
    path = Path(path)
    if not path.is_file():
        raise GraphjouleError(f"There is no file {path}; expected a graphjoule {kind}.")
    try:
        with path.open("rb") as held, safetensors.safe_open(_in_utf8(path, held), framework="pt") as file:
            header = parse_json((file.metadata() or {}).get("graphjoule", "{}"))
            json.dumps(header, ensure_ascii=False).encode()  # half a character has no bytes, so no checksum
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a dict
    except (safetensors.SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise GraphjouleError(
            f"{path} is not a whole graphjoule {kind}: it is truncated or of another kind."
        ) from error
    if not isinstance(header, dict) or header.get("format") != _FORMAT or header.get("kind") != kind:
        raise GraphjouleError(f"{path} is not a graphjoule {kind} of format {_FORMAT}.")
    description = str(header.get("about", "null"))
    if header.get("sha256") != _digest(tensors, description):
        raise GraphjouleError(f"{path} is damaged: its content does not match its checksum.")
    try:
        return tensors, parse_json(description)
    except ValueError as error:
        raise GraphjouleError(f"{path} does not hold a {kind} that graphjoule knows: {error}.") from error


def _in_utf8(path: Path, held: BinaryIO) -> Path:
    """A path to an open file that safetensors takes: it knows UTF-8 alone."""
    return path if printable(str(path)) == str(path) else Path(f"/proc/self/fd/{held.fileno()}")


def _digest(tensors: Mapping[str, Tensor], description: str) -> str:
    """SHA-256 over the description and every tensor with its name, dtype and shape."""
    digest = hashlib.sha256(description.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
