"""From files to cells: the run folders under a folder, or records alone, and a trace of one run of each."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from operator import itemgetter
from pathlib import Path

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.files import json_text
from graphjoule.predicting import TrainedRuns, read_runs
from graphjoule.report.cell import Cell, states_of
from graphjoule.studies import record_files
from graphjoule.tasks.inputs import ModelInput
from graphjoule.training.folder import RunFolder
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import Record, read_records

_ONLY_RECORDS = "There are records of these runs but no models, so their energies cannot be measured."


def read_cells(
    folder: Path,
    load_graph: Callable[[TrainedRuns], ModelInput],
    *,
    trace: bool = True,
    device: str | torch.device = "cpu",
    on_cell: Callable[[int, int], None] = lambda done, total: None,
) -> list[Cell]:
    """All cells of a run folder, of a folder of run folders, or of a folder of records.

    Args:
        folder: what ``graphjoule train`` or ``graphjoule study`` wrote, or a folder with ``.jsonl`` or ``.jsonl.gz``
            files of records.
        load_graph: the graph that runs were trained on; a `GraphjouleError` of it becomes the reason on the page.
        trace: whether to measure energies: one run of every cell, the lowest seed that has finished.
        device: where to trace.
        on_cell: told how many cells are traced, of how many.

    Returns:
        The cells by dataset, model and depth; energies that cannot be measured are missing, with the reason.
    """
    if not folder.is_dir():
        raise GraphjouleError(f"There is no folder {folder}; expected one that graphjoule train made, or one of these.")
    places = _run_folders(folder)
    cells = sorted(map(_of_folder(folder), places), key=_order) if places else _of_records(folder)
    if not any(cell.records for cell in cells):
        raise GraphjouleError(
            f"{folder} holds no record of a run; expected a folder that graphjoule train made, one with such folders "
            "in it, or one with .jsonl files of records."
        )
    cells = [cell for cell in cells if cell.records]
    if not (trace and places):
        reason = "" if places else _ONLY_RECORDS
        return [replace(cell, untraced=reason or "Tracing was switched off.") for cell in cells]
    traced = []
    for number, cell in enumerate(cells, start=1):
        traced.append(_traced(folder, cell, load_graph, device))
        on_cell(number, len(cells))
    return traced


def _run_folders(root: Path) -> list[Path]:
    """The run folders at any depth, each once however many links lead to it; one is not looked into further."""
    found: list[Path] = []
    seen = set(map(str, root.resolve().parents))  # a link to a folder above would bring in what was not asked about
    folders: list[Path] = [root]
    links: list[Path] = []
    while folders or links:
        folder = folders.pop() if folders else links.pop()  # links last, so that a folder goes by its own name
        real = os.path.realpath(folder)
        if real in seen:
            continue
        seen.add(real)
        if RunFolder(folder).is_taken and (folder / "run.json").exists():
            found.append(folder)
            continue
        for path in sorted(folder.iterdir(), reverse=True):
            if path.is_dir() and not path.name.startswith("."):
                (links if path.is_symlink() else folders).append(path)
    return sorted(found)


def _of_folder(root: Path) -> Callable[[Path], Cell]:
    def read(path: Path) -> Cell:
        run = RunFolder(path)
        about, place = run.about(), path.relative_to(root).as_posix()
        records = sorted(run.records().values(), key=lambda record: record.seed)
        return Cell(about.recipe, records, about.data, place=place)

    return read


def _of_records(folder: Path) -> list[Cell]:
    """A cell per file and recipe."""
    return sorted((cell for path in record_files([folder]) for cell in _of_file(path, folder)), key=_order)


def _of_file(path: Path, root: Path) -> Iterator[Cell]:
    cells: dict[str, tuple[Recipe, list[Record]]] = {}
    for record in read_records(path):
        try:
            recipe, fingerprint = _recipe_of(json_text(record.recipe))
        except GraphjouleError as error:
            warnings.warn(f"{path}: the run {record.run_id} is left out. {error}", stacklevel=2)
            continue
        cells.setdefault(fingerprint, (recipe, []))[1].append(record)
    for _, (recipe, records) in sorted(cells.items(), key=itemgetter(0)):
        once = {record.run_id: record for record in sorted(records, key=lambda record: record.seed)}
        yield Cell(recipe, list(once.values()), place=path.relative_to(root).as_posix())


@lru_cache(maxsize=1024)
def _recipe_of(text: str) -> tuple[Recipe, str]:
    """A recipe and its fingerprint, read once for all runs that share it."""
    recipe = Recipe.from_json(text)
    return recipe, recipe.fingerprint()


def _order(cell: Cell) -> tuple[tuple[str, str, int], str]:
    return cell.key, cell.place


def _traced(
    root: Path, cell: Cell, load_graph: Callable[[TrainedRuns], ModelInput], device: str | torch.device
) -> Cell:
    """The cell with what the instruments say, or with the reason why they cannot."""
    finished = [record.seed for record in cell.records if record.status == "done"]
    if not finished:
        return replace(cell, untraced="No run has finished, so there is no trained network to look at.")
    seed = min(finished)
    try:
        runs = read_runs(root / cell.place, seed=seed)
        given = load_graph(runs)
    except GraphjouleError as error:
        return replace(cell, untraced=str(error))
    return replace(cell, seed=seed, states=states_of(runs.models[seed], cell.recipe, given, seed, device))
