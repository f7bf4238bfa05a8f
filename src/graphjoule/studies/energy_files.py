"""Records of energies from any number of files and folders."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from graphjoule.errors import GraphjouleError
from graphjoule.files import each_once
from graphjoule.studies.energies import EnergyRecord
from graphjoule.studies.study import Cell
from graphjoule.training.recipe import Recipe, model_options

__all__ = ["energies_of", "read_energies"]

_ENDINGS = (".json", ".json.gz", ".jsonl", ".jsonl.gz")


def read_energies(paths: Iterable[str | os.PathLike[str]]) -> list[EnergyRecord]:
    """The records of energies below some folders, in the order of their files' names.

    A file is one record, or has one in every line; it may be compressed. What is no such record is left aside: folders
    of runs hold many other files.

    Args:
        paths: files or folders.

    Raises:
        GraphjouleError: A file cannot be read, or is a record of energies with a field missing.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        below = sorted(path.rglob("*.json*")) if path.is_dir() else [path]
        files += [file for file in below if file.name.endswith(_ENDINGS)]
    return [record for file in each_once(files) for record in _records(file)]


def energies_of(cell: Cell, records: Iterable[EnergyRecord]) -> EnergyRecord | None:
    """The record with most runs of a cell, or None; a setting that a record is too old to have is at its default.

    A constraint, a penalty or clusters that only one of both has tell them apart: by default there is none.
    """
    defaults = _defaults(cell)
    settings = defaults | cell.recipe.settings()
    if cell.recipe.data.split == "default":  # the data say which, and the record has its name
        del settings["split"]
    found = [record for record in records if _is_same(settings, defaults | record.recipe)]
    return max(found, key=lambda record: len(record.seeds), default=None)


def _defaults(cell: Cell) -> dict[str, Any]:
    """What the settings of a cell are where nobody sets them; those that must be set are left out."""
    fields = Recipe.model_fields | model_options(cell.model).model_fields
    return {name: field.default for name, field in fields.items() if not field.is_required()}


def _is_same(settings: Mapping[str, Any], recorded: Mapping[str, Any]) -> bool:
    """Whether all settings are the recorded ones; a split that is not given is any.

    >>> _is_same({"lr": 1}, {"lr": 1, "split": "public"}), _is_same({"lr": 1}, {"lr": 1, "constraint": "penalty"})
    (True, False)
    """
    return {"split": recorded.get("split"), **settings} == {"split": None, **recorded}


def _records(path: Path) -> Iterator[EnergyRecord]:
    for content in _contents(path):
        if isinstance(content, dict) and "first_layer" in content:
            try:
                yield EnergyRecord.model_validate(content)
            except ValidationError as error:
                raise GraphjouleError(f"{path} is not a record of energies: {type(error).__name__}.") from error


def _contents(path: Path) -> Iterator[Any]:
    """What a file holds; of one with a line per record the first line says whether the others are read."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            if ".jsonl" not in path.name:
                yield json.loads(file.read())
                return
            for line in file:
                content = json.loads(line)
                if "first_layer" not in content:
                    return
                yield content
    except (OSError, EOFError) as error:
        raise GraphjouleError(f"Cannot read energies from {path}: {error}.") from error
    except (ValueError, TypeError):  # not JSON, or no object
        return
