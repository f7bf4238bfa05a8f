"""The record of a study of energies: those of every layer of several runs, before and after training."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from graphjoule.errors import GraphjouleError
from graphjoule.nn import GraphModel
from graphjoule.tasks import Task
from graphjoule.tasks.inputs import ModelInput
from graphjoule.trace import LayerTrace
from graphjoule.training.build import initialised
from graphjoule.training.environment import describe_device, resolve_device, versions
from graphjoule.training.examine import examine, graph_layers
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import Record

State = Literal["initial", "trained"]


class EnergyRecord(BaseModel):
    """The energies of one model's runs.

    Attributes:
        dataset: the dataset's name.
        model: a key of `MODELS`.
        recipe: all settings.
        seeds: one run each.
        first_layer: number of the first energy: 0 is ``X_0``, 1 the first graph layer of a model without an encoder.
        initial: energies at initialisation, per run and layer, six digits.
        trained: energies after training; class scores are left out.
        effective_rank: of the same outputs after training; empty in records that are older than the field.
        gradient: ``||dL/dX_k||`` of the same outputs after training, for classes drawn at random; empty likewise.
        test_accuracy: per run.
        epochs_run: per run.
        seconds: of all runs together.
        device: in words.
        versions: package versions.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    format: Literal[1] = 1
    dataset: str
    model: str
    recipe: dict[str, Any]
    seeds: list[int]
    first_layer: int
    initial: list[list[float]]
    trained: list[list[float]]
    effective_rank: list[list[float]] = []
    gradient: list[list[float]] = []
    test_accuracy: list[float | None]
    epochs_run: list[int]
    seconds: float
    device: str
    versions: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> Self:
        """The record of a file."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise GraphjouleError(f"{path} is not a record of energies: {type(error).__name__}.") from error

    def energies(self, state: State) -> list[list[float]]:
        """The energies of one state, per run and layer."""
        return self.initial if state == "initial" else self.trained

    def median(self, state: State) -> list[float]:
        """The median over the runs of every layer's energy."""
        return [statistics.median(values) for values in zip(*self.energies(state), strict=True)]


def measure_energies(
    recipe: Recipe, task: Task, records: Sequence[Record], models: Sequence[GraphModel], device: str
) -> EnergyRecord:
    """The energies of trained runs, and of the networks they began with.

    Args:
        recipe: how they were trained.
        task: on which graph.
        records: of the runs, one at least.
        models: the trained models, in the order of the records.
        device: "auto", "cpu" or "cuda".
    """
    seeds, given = [record.seed for record in records], ModelInput.of(task)
    first = [initialised(recipe, task.num_features, task.out_channels, seed) for seed in seeds]
    before = [_layers(model, recipe, given, device, measures=["energy"]) for model in first]
    after = [_layers(model, recipe, given, device, ["energy", "effective_rank"], gradients=True) for model in models]
    return EnergyRecord(
        dataset=task.name,
        model=recipe.model.name,
        recipe=recipe.settings(),
        seeds=seeds,
        first_layer=int(before[0][0].name == "convs.0"),
        initial=[_six_digits(row["energy"] for row in rows) for rows in before],
        trained=[_six_digits(row["energy"] for row in rows) for rows in after],
        effective_rank=[_six_digits(row["effective_rank"] for row in rows) for rows in after],
        gradient=[_six_digits(row.gradient or 0.0 for row in rows) for rows in after],
        test_accuracy=[record.test_score for record in records],
        epochs_run=[record.epochs_run for record in records],
        seconds=round(sum(record.seconds for record in records), 3),
        device=describe_device(resolve_device(device)),
        versions=versions(),
    )


def _layers(
    model: GraphModel,
    recipe: Recipe,
    given: ModelInput,
    device: str,
    measures: Sequence[str],
    *,
    gradients: bool = False,
) -> list[LayerTrace]:
    """The rows of all outputs as wide as the hidden layers."""
    found = examine(model, recipe, given, measures=measures, gradients=gradients, device=device)
    return [row for row in graph_layers(found.trace).layers if row.channels == recipe.model.hidden_channels]


def _six_digits(numbers: Iterable[float]) -> list[float]:
    return [float(f"{number:.6g}") for number in numbers]
