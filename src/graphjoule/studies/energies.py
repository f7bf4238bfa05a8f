"""The record of a study of energies: those of every layer of several runs, before and after training."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from graphjoule.errors import GraphjouleError

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
