"""Records of energies: those of every layer of several runs, before and after training, measured, read and found."""

from __future__ import annotations

import os
import statistics
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from graphjoule.errors import GraphjouleError
from graphjoule.files import open_file, parse_json
from graphjoule.nn import GraphModel
from graphjoule.studies.collection import files_below, is_same
from graphjoule.studies.study import Cell
from graphjoule.tasks import Task
from graphjoule.tasks.task import ModelInput
from graphjoule.trace import LayerTrace
from graphjoule.training import describe_device, resolve_device, versions
from graphjoule.training.build import initialised
from graphjoule.training.examine import examine, graph_layers
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import MOST_BYTES_OF_LINE, Record
from graphjoule.training.settings import model_options

State = Literal["initial", "trained"]


class EnergyRecord(BaseModel):
    """The energies of one model's runs.

    Attributes:
        dataset: the dataset's name.
        model: a key of `MODELS`.
        recipe: all settings; flat in older records.
        seeds: one run each.
        first_layer: number of the first energy: 0 is ``X_0``, 1 the first graph layer of a model without an encoder.
        initial: energies at initialisation, per run and layer, six digits.
        trained: energies after training; class scores are left out.
        effective_rank: of the same outputs after training; empty in records that are older than the field.
        gradient: ``||dL/dX_k||`` of the same outputs after training, for classes drawn at random; empty likewise.
        test_score: the objective's metric on the test nodes, per run; older records call it `test_accuracy`.
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
    test_score: list[float | None] = Field(validation_alias=AliasChoices("test_score", "test_accuracy"))
    epochs_run: list[int]
    seconds: float
    device: str
    versions: dict[str, str]

    @cached_property
    def resolved(self) -> Recipe:
        """The recipe; a setting that the record is too old to have is at its default."""
        fields = dict(self.recipe)
        if "num_layers" in fields:
            options = {name: fields.pop(name) for name in model_options(self.model).model_fields if name in fields}
            tables: dict[str, dict[str, Any]] = {"weight_decay": {}, "constraint": {}, "clusters": {}}
            for key in [key for key in fields if key.partition(".")[0] in tables]:
                table, _, name = key.partition(".")
                tables[table][name or {"constraint": "method", "clusters": "parts"}[table]] = fields.pop(key)
            fields |= {"options": options} | {name: table for name, table in tables.items() if table}
        return Recipe.from_fields(fields)

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
    seeds, inputs = [record.seed for record in records], ModelInput.of(task)

    def layers(model: GraphModel, *measures: str, gradients: bool = False) -> list[LayerTrace]:
        """The rows of all outputs as wide as the hidden layers."""
        found = examine(model, recipe, inputs, measures=measures, gradients=gradients, device=device)
        return [row for row in graph_layers(found.trace).layers if row.channels == recipe.model.hidden_channels]

    def measured(runs: list[list[LayerTrace]], name: str) -> list[list[float]]:
        return [
            [float(f"{row[name] if name != 'gradient' else row.gradient or 0.0:.6g}") for row in run] for run in runs
        ]

    first = (initialised(recipe, task.num_features, task.out_channels, seed) for seed in seeds)
    before = [layers(model, "energy") for model in first]
    after = [layers(model, "energy", "effective_rank", gradients=True) for model in models]
    return EnergyRecord(
        dataset=task.name,
        model=recipe.model.name,
        recipe=recipe.model_dump(),
        seeds=seeds,
        first_layer=int(before[0][0].name == "convs.0"),
        initial=measured(before, "energy"),
        trained=measured(after, "energy"),
        effective_rank=measured(after, "effective_rank"),
        gradient=measured(after, "gradient"),
        test_score=[record.test_score for record in records],
        epochs_run=[record.epochs_run for record in records],
        seconds=round(sum(record.seconds for record in records), 3),
        device=describe_device(resolve_device(device)),
        versions=versions(),
    )


def read_energies(paths: Iterable[str | os.PathLike[str]]) -> list[EnergyRecord]:
    """The records of energies below some folders, in the order of their files' names.

    A file is one record, or has one in every line; it may be compressed. Other files are ignored: folders of runs hold
    many.

    Args:
        paths: files or folders.

    Raises:
        GraphjouleError: A file cannot be read, or is a record of energies with a field missing.
    """
    found: list[EnergyRecord] = []
    for path in files_below(paths, (".json", ".json.gz", ".jsonl", ".jsonl.gz")):
        try:
            with open_file(path) as file:
                read = file.readline if ".jsonl" in path.name else file.read
                for text in iter(partial(read, MOST_BYTES_OF_LINE), b""):
                    content = parse_json(text)
                    if not isinstance(content, dict) or "first_layer" not in content:
                        break  # the first line says whether the others are read
                    found.append(EnergyRecord.model_validate(content))
        except ValidationError as error:
            raise GraphjouleError(f"{path} is not a record of energies: {type(error).__name__}.") from error
        except (OSError, EOFError, zlib.error) as error:
            raise GraphjouleError(f"Cannot read energies from {path}: {error}.") from error
        except ValueError:  # not JSON
            continue
    return found


def energies_of(cell: Cell, records: Iterable[EnergyRecord]) -> EnergyRecord | None:
    """The record with most runs of a cell, or None; one whose settings this version does not know is of no cell."""
    found: list[EnergyRecord] = []
    for record in records:
        with suppress(GraphjouleError):
            if (record.model, record.dataset) == (cell.model, cell.dataset) and is_same(cell.recipe, record.resolved):
                found.append(record)
    return max(found, key=lambda record: len(record.seeds), default=None)
