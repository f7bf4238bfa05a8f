"""A trained model as a folder that `huggingface_hub` pushes and pulls: safetensors, ``config.json``, ``README.md``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torch import nn

from graphjoule.errors import GraphjouleError
from graphjoule.files import UNFINISHED, check_free, ensure_folder, reason, write_bytes, write_json, write_text
from graphjoule.tasks.facts import TaskFacts
from graphjoule.training.calibration import Calibration
from graphjoule.training.export import as_graph_model
from graphjoule.training.model_card import model_card
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import Record
from graphjoule.training.saving import save_model
from graphjoule.version import __version__

MODEL_FILE = "model.safetensors"
_CONFIG_FILE = "config.json"


def export_to_hub(
    folder: str | os.PathLike[str],
    model: nn.Module,
    recipe: Recipe,
    record: Record,
    data: TaskFacts,
    calibration: Calibration | None = None,
) -> None:
    """Write a run's model as a folder for a model hub; `graphjoule.load` and ``graphjoule predict`` read it again.

    ``model.safetensors`` is all that is read, and reading it executes nothing. ``config.json`` says the same about the
    model for people and programs, ``README.md`` is the model card. Paths of the user's files are left out.

    Args:
        folder: made if it is not there; refused if it holds anything.
        model: the run's model; one of the user's own is read again by `graphjoule.training.load_model`.
        recipe: how it was trained.
        record: what came of it.
        data: what it was trained on.
        calibration: what its validation nodes say about its predictions; without it there are no sets or intervals.

    Raises:
        GraphjouleError: the folder holds something, or cannot be made.
    """
    path = Path(folder)
    check_free(path)
    data = without_paths(data)
    network = as_graph_model(model, data)
    ensure_folder(path)
    write_bytes(path / UNFINISHED, b"")
    save_model(path / MODEL_FILE, network, recipe, seed=record.seed, data=data, calibration=calibration)
    write_text(path / "README.md", _front_matter(recipe, record, data) + model_card(recipe, [record], data, MODEL_FILE))
    scores = {"val": record.val, "test": record.test}
    write_json(path / _CONFIG_FILE, describe_model(recipe, record.seed, data) | scores)  # last: now the folder counts
    try:
        (path / UNFINISHED).unlink()
    except OSError as error:
        raise GraphjouleError(f"Cannot finish {path}: {reason(error)}; export it again.") from error


def model_file(path: Path) -> Path:
    """The model file of a folder for a hub; any other path as it is."""
    is_hub_folder = (path / _CONFIG_FILE).is_file() and (path / MODEL_FILE).is_file()
    return path / MODEL_FILE if is_hub_folder else path


def describe_model(recipe: Recipe, seed: int, data: TaskFacts) -> dict[str, Any]:
    """What a model that leaves its run folder says about itself, for JSON."""
    return {
        "library_name": "graphjoule",
        "graphjoule_version": __version__,
        "model_type": recipe.model.name,
        "seed": seed,
        "recipe": recipe.model_dump(mode="json"),
        "data": without_paths(data).model_dump(mode="json"),
    }


def without_paths(data: TaskFacts) -> TaskFacts:
    """The same facts with the names of files alone: which folders somebody has is nobody's business."""
    if data.source is None:
        return data
    files = tuple(file.model_copy(update={"path": Path(file.path).name}) for file in data.source.files)
    return data.model_copy(update={"source": data.source.model_copy(update={"files": files})})


def _front_matter(recipe: Recipe, record: Record, data: TaskFacts) -> str:
    """The head of a card as hubs read it; values are written as JSON, which is YAML in which nothing is special."""
    metric, unit = record.metric.name, data.unit
    fields: dict[str, Any] = {
        "library_name": "graphjoule",
        "pipeline_tag": "graph-ml",
        "tags": ["graph-neural-network", "graph-ml", "safetensors", recipe.model.name],
    }
    scores = record.test or record.val
    if (score := scores.get(metric)) is not None:
        split = "test" if record.test else "validation"
        result = {
            "task": {"type": "graph-ml", "name": f"{unit} {record.objective}"},
            "dataset": {"name": recipe.data.name, "type": recipe.data.name, "split": split},
            "metrics": [{"type": metric, "name": f"{split} {metric}", "value": score}],
        }
        fields["model-index"] = [{"name": f"{recipe.model.name}-{recipe.model.num_layers}", "results": [result]}]
    lines = [f"{name}: {json.dumps(value)}" for name, value in fields.items()]
    return "\n".join(["---", *lines, "---", "", ""])
