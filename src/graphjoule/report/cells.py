"""Cells of a report, read from files: the runs of one recipe, and what the instruments say about one of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.files import json_text
from graphjoule.nn import GraphModel
from graphjoule.report.metrics import Metric, metrics_of
from graphjoule.studies.collection import record_files
from graphjoule.tasks.facts import TaskFacts
from graphjoule.tasks.inputs import ModelInput
from graphjoule.trace import LayerTrace
from graphjoule.trace.view import without_scores
from graphjoule.training.examine import Examination, examine, graph_layers, initialised
from graphjoule.training.folder import RunFolder
from graphjoule.training.recipe import Recipe, load_recipe
from graphjoule.training.records import Record, read_records
from graphjoule.training.trained import TrainedRuns, read_runs

BEFORE, AFTER = "at initialisation", "after training"
_ONLY_RECORDS = "There are records of these runs but no models, so their energies cannot be measured."


@dataclass(frozen=True, eq=False)
class Cell:
    """The runs of one recipe.

    Attributes:
        recipe: the settings of all runs.
        records: one per seed.
        data: what was trained on; None where the files do not say.
        states: what the instruments say, by the state of the network; empty where nothing was traced.
        seed: the run that was traced.
        untraced: why nothing was traced, as a sentence; empty where something was.
        place: the folder or file, as seen from the one that is reported on.
    """

    recipe: Recipe
    records: Sequence[Record]
    data: TaskFacts | None = None
    states: Mapping[str, Examination] = field(default_factory=dict)
    seed: int | None = None
    untraced: str = ""
    place: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        """Dataset, model and depth."""
        return self.recipe.dataset, self.recipe.model, self.recipe.num_layers

    @property
    def name(self) -> str:
        """What it is, in words."""
        dataset, model, layers = self.key
        return f"{model}, {layers} layers, {dataset}"

    @property
    def metrics(self) -> list[Metric]:
        """What its runs were scored by; the first metric selects."""
        return metrics_of(self.records)

    def changed_settings(self) -> list[str]:
        """Settings that are not what the recipe's file says today: overridden, or the file has changed since.

        >>> Cell(load_recipe("gcn", "cora", 2, {"lr": 0.1}), []).changed_settings()
        ['lr']
        """
        dataset, model, layers = self.key
        mine, today = self.recipe.settings(), load_recipe(model, dataset, layers).settings()
        if today["split"] == "default":  # the data say which, and the cell has its name
            today["split"] = mine["split"]
        return [key for key in mine if today.get(key) != mine[key]]

    def energies(self, state: str) -> tuple[int, list[LayerTrace]]:
        """The rows of ``X_0`` and of the graph layers without class scores, and the number of the first of them.

        That is 0 where it is ``X_0``, and 1 for a model without an encoder.
        """
        trace = self.states[state].trace
        rows = list(without_scores(graph_layers(trace).layers or trace.layers))
        return int(bool(rows) and rows[0].name == "convs.0"), rows


def states_of(
    model: GraphModel, recipe: Recipe, given: ModelInput, seed: int, device: str | torch.device = "cpu"
) -> dict[str, Examination]:
    """What the instruments say about a trained network, and about the one its training began with.

    Args:
        model: the trained network.
        recipe: its settings.
        given: the graph it was trained on.
        seed: of its training.
        device: "auto", "cpu" or "cuda".
    """
    first = initialised(recipe, model.in_channels, model.out_channels, seed)
    return {
        state: examine(network, recipe, given, device=device) for state, network in ((BEFORE, first), (AFTER, model))
    }


def variants(cells: Sequence[Cell]) -> list[str]:
    """What sets each cell apart from the others of its dataset, model and depth; empty where it is the only one.

    Returns:
        Texts such as "c_min=0.3"; cells of equal settings differ by their place.
    """
    texts = []
    for cell in cells:
        family = [other for other in cells if other.key == cell.key]
        settings = [other.recipe.settings() for other in family]
        words = [
            f"{key}={value}"
            for key, value in cell.recipe.settings().items()
            if any(one.get(key) != value for one in settings)
        ]
        equal = [other for other in family if not cell.recipe.differences(other.recipe)]
        texts.append(", ".join([*words, *([cell.place] if len(equal) > 1 and cell.place else [])]))
    return texts


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
        on_cell: called with the number of cells that are traced, and of all.

    Returns:
        The cells by dataset, model and depth; energies that cannot be measured are missing, with the reason.
    """
    if not folder.is_dir():
        raise GraphjouleError(f"There is no folder {folder}; expected one that graphjoule train made, or one of these.")
    places = _run_folders(folder)
    if places:
        found = [_of_folder(path, folder) for path in places]
    else:
        found = [cell for path in record_files([folder]) for cell in _of_file(path, folder)]
    cells = sorted((cell for cell in found if cell.records), key=lambda cell: (cell.key, cell.place))
    if not cells:
        raise GraphjouleError(
            f"{folder} holds no record of a run; expected a folder that graphjoule train made, one with such folders "
            "in it, or one with .jsonl files of records."
        )
    if not (trace and places):
        reason = "Tracing was switched off." if places else _ONLY_RECORDS
        return [replace(cell, untraced=reason) for cell in cells]
    traced = []
    for number, cell in enumerate(cells, start=1):
        traced.append(_traced(folder, cell, load_graph, device))
        on_cell(number, len(cells))
    return traced


def _run_folders(folder: Path) -> list[Path]:
    """The run folders at any depth; one run folder is not searched further."""
    if RunFolder(folder).is_taken and (folder / "run.json").exists():
        return [folder]
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [place for path in inside for place in _run_folders(path)]


def _of_folder(path: Path, root: Path) -> Cell:
    run = RunFolder(path)
    about, records = run.about(), sorted(run.records().values(), key=lambda record: record.seed)
    return Cell(about.recipe, records, about.data, place=path.relative_to(root).as_posix())


def _of_file(path: Path, root: Path) -> Iterator[Cell]:
    """A cell per recipe of a file of records."""
    pairs = [(Recipe.from_json(json_text(record.recipe)), record) for record in read_records(path)]
    pairs.sort(key=lambda pair: (pair[0].fingerprint(), pair[1].seed))
    for _, group in itertools.groupby(pairs, key=lambda pair: pair[0].fingerprint()):
        recipes, records = zip(*group, strict=True)
        once = {record.run_id: record for record in records}
        yield Cell(recipes[0], list(once.values()), place=path.relative_to(root).as_posix())


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
