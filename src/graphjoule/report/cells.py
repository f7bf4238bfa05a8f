"""Cells of a report, read from files: the runs of one recipe, and what the instruments say about one of them."""

from __future__ import annotations

import gc
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.files import json_text
from graphjoule.fitting import TrainedRuns, read_runs
from graphjoule.nn import MODELS, GraphModel
from graphjoule.studies.collection import differences, record_files
from graphjoule.tasks.facts import TaskFacts
from graphjoule.tasks.objective import OBJECTIVES, Classification, Metric
from graphjoule.tasks.task import ModelInput
from graphjoule.trace import LayerTrace
from graphjoule.trace.view import without_scores
from graphjoule.training.build import initialised
from graphjoule.training.comparison import Comparison
from graphjoule.training.evaluation import Evaluation
from graphjoule.training.examine import Examination, examine, graph_layers
from graphjoule.training.folder import RunFolder
from graphjoule.training.recipe import Recipe, load_recipe, recipe_and_fingerprint
from graphjoule.training.records import Record, mean, read_records, sample_std

BEFORE, AFTER = "at initialisation", "after training"
Part = Literal["val", "test"]
PARTS: dict[Part, str] = {"val": "validation", "test": "test"}
"""The nodes that a score is of, in words."""
_OWN_MODEL = (
    "{} is a model of your own, which its files alone cannot build, so its energies are not measured here; "
    "graphjoule.Trace measures it in Python."
)


# Scores of a run: which ones its record holds. Nothing else of the report reads a score from a record.


def metrics_of(records: Sequence[Record]) -> tuple[Metric, ...]:
    """The metrics that tables show of runs of one objective; the first is the headline."""
    if not records:
        return Classification.tabled
    return tuple(dict.fromkeys([records[0].metric, *OBJECTIVES[records[0].objective].tabled]))


def score_of(record: Record, part: Part, metric: Metric) -> float | None:
    """A run's score at its selected epoch; None where there is none, as on a split without test nodes."""
    return (record.val if part == "val" else record.test).get(metric.name)


def mean_score(records: Sequence[Record], part: Part, metric: Metric) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation over the runs that are done; None where there are too few."""
    scores = [score_of(record, part, metric) for record in records if record.status == "done"]
    known = [score for score in scores if score is not None]
    return mean(known) if known else None, sample_std(known)


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
        evaluation: predictions of the best run; None where the folder has none, such as an old one.
        comparison: what the runs are worth beside simpler models; None where they were not compared.
    """

    recipe: Recipe
    records: Sequence[Record]
    data: TaskFacts | None = None
    states: Mapping[str, Examination] = field(default_factory=dict)
    seed: int | None = None
    untraced: str = ""
    place: str = ""
    evaluation: Evaluation | None = None
    comparison: Comparison | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """Dataset, model and depth."""
        return self.recipe.data.name, self.recipe.model.name, self.recipe.model.num_layers

    @property
    def name(self) -> str:
        """What it is, in words."""
        return self.recipe.title

    @property
    def is_own_model(self) -> bool:
        """Whether the user wrote the network: then files alone cannot build it, and no command can train it."""
        return self.recipe.model.name not in MODELS

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What its runs were scored by; the first is the headline."""
        return metrics_of(self.records)

    @cached_property
    def question(self) -> str:
        """What its runs were asked and scored by, in words; only scores of the same question can be compared."""
        source = None if self.data is None else self.data.source
        columns = None if source is None else source.columns
        asked = self.records[0].objective if self.records else Classification.name
        target = f" of {', '.join(columns.labels)}" if columns is not None else ""
        return f"{asked}{target}, by {self.metrics[0].label}"

    @cached_property
    def changed_settings(self) -> list[str]:
        """Settings that are not what the recipe's file says today: overridden, or the file has changed since.

        Of a model of the user's own there are none: it has no such file.

        >>> Cell(load_recipe("gcn", "cora", 2, {"lr": 0.1}), []).changed_settings
        ['train.lr']
        """
        dataset, model, layers = self.key
        if self.is_own_model:
            return []
        mine, today = self.recipe.settings(), load_recipe(model, dataset, layers).settings()
        if today["data.split"] == "default":  # the data say which, and the cell has its name
            today["data.split"] = mine["data.split"]
        return [key for key in mine if today.get(key) != mine[key]]

    def energies(self, state: str) -> tuple[int, list[LayerTrace]]:
        """The rows of ``X_0`` and of the graph layers without the outputs, and the number of the first of them.

        That is 0 where it is ``X_0``, and 1 for a model without an encoder.
        """
        trace = self.states[state].trace
        rows = list(without_scores(graph_layers(trace).layers or trace.layers))
        return int(bool(rows) and rows[0].name == "convs.0"), rows


def states_of(
    model: GraphModel,
    recipe: Recipe,
    inputs: ModelInput,
    seed: int,
    device: str | torch.device = "cpu",
    *,
    reaches: bool = False,
) -> dict[str, Examination]:
    """What the instruments say about a trained network, and about the one its training began with.

    Args:
        model: the trained network.
        recipe: its settings.
        inputs: the graph it was trained on.
        seed: of its training.
        device: "auto", "cpu" or "cuda".
        reaches: measure how far some layers see, too.
    """
    first = initialised(recipe, model.in_channels, model.out_channels, seed)
    return {
        state: examine(network, recipe, inputs, reaches=reaches, device=device)
        for state, network in ((BEFORE, first), (AFTER, model))
    }


def variants(cells: Sequence[Cell]) -> list[str]:
    """What sets each cell apart from the others of its dataset, model and depth; empty where it is the only one.

    Returns:
        Texts such as "model.c_min=0.3"; cells of equal settings differ by their place.
    """
    families: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    settings = [cell.recipe.settings() for cell in cells]
    for cell, mine in zip(cells, settings, strict=True):
        families.setdefault(cell.key, []).append(mine)
    differing = {  # from the first of the family: that is enough, and takes time that grows with the cells alone
        key: {name for one in family for name in one | family[0] if one.get(name) != family[0].get(name)}
        for key, family in families.items()
    }
    copies = Counter(cell.recipe.fingerprint() for cell in cells)
    texts = []
    for cell, mine in zip(cells, settings, strict=True):
        words = [f"{name}={value}" for name, value in mine.items() if name in differing[cell.key]]
        is_copy = copies[cell.recipe.fingerprint()] > 1 and cell.place
        texts.append(", ".join([*words, *([cell.place] if is_copy else [])]))
    return texts


def read_cells(
    folder: Path,
    load_graph: Callable[[TrainedRuns], ModelInput],
    *,
    trace: bool = True,
    reaches: bool = False,
    device: str | torch.device = "cpu",
    on_cell: Callable[[int, int], None] = lambda done, total: None,
) -> list[Cell]:
    """All cells of a run folder and its members, of a folder of run folders, or of a folder of records.

    Args:
        folder: what ``graphjoule train`` or ``graphjoule study`` wrote, or a folder with ``.jsonl`` or ``.jsonl.gz``
            files of records.
        load_graph: the graph that runs were trained on; a `GraphjouleError` of it becomes the reason on the page.
        trace: whether to measure energies: one run of every cell, the lowest seed that has finished.
        reaches: whether to measure, with the energies, how far some layers see.
        device: where to trace.
        on_cell: called with the number of cells that are traced, and of all.

    Returns:
        The cells by dataset, model and depth; energies that cannot be measured are missing, with the reason.
    """
    if not folder.is_dir():
        raise GraphjouleError(f"There is no folder {folder}; expected one that graphjoule train made, or one of these.")
    places = _run_folders(folder)
    found: list[Cell] = []
    with _without_gc():
        for path in places:
            run, place = RunFolder(path), path.relative_to(folder).as_posix()
            records = sorted(run.records().values(), key=lambda record: record.seed)
            about = run.about()
            cell = Cell(about.recipe, records, about.data, place=place, evaluation=run.evaluation())
            found.append(replace(cell, comparison=run.comparison()))
        if not places:
            found = [cell for path in record_files([folder]) for cell in _of_file(path, folder)]
    cells = sorted((cell for cell in found if cell.records), key=lambda cell: (cell.key, cell.place))
    if not cells:
        raise GraphjouleError(
            f"{folder} holds no record of a run; expected a folder that graphjoule train made, one with such folders "
            "in it, or one with .jsonl files of records."
        )
    if not (trace and places):
        only_records = "There are records of these runs but no models, so their energies cannot be measured."
        return [replace(cell, untraced="Tracing was switched off." if places else only_records) for cell in cells]
    traced = []
    for number, cell in enumerate(cells, start=1):
        seed = min((record.seed for record in cell.records if record.status == "done"), default=None)
        if seed is None:
            traced.append(replace(cell, untraced="No run has finished, so there is no trained network to look at."))
        elif cell.is_own_model:
            traced.append(replace(cell, untraced=_OWN_MODEL.format(cell.recipe.model.name)))
        else:
            try:  # one network that cannot be traced must not cost the report on the others
                runs = read_runs(folder / cell.place, seed=seed)
                graph = load_graph(runs)
                states = states_of(runs.models[seed], cell.recipe, graph, seed, device, reaches=reaches)
                traced.append(replace(cell, seed=seed, states=states))
            except GraphjouleError as error:
                traced.append(replace(cell, untraced=str(error)))
        on_cell(number, len(cells))
    return traced


@contextmanager
def _without_gc() -> Iterator[None]:
    """Let Python not look for cycles while a million records come in, which have none: a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _run_folders(root: Path) -> list[Path]:
    """The run folders at any depth, each once however many links lead to it; in one only its members count."""
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
        if (run := RunFolder(folder)).is_taken and (folder / "run.json").exists():
            found += [folder, *(run.member(name).path for name in run.about().members)]
            continue
        for path in sorted(folder.iterdir(), reverse=True):
            if path.is_dir() and not path.name.startswith("."):
                (links if path.is_symlink() else folders).append(path)
    return sorted(found)


def _of_file(path: Path, root: Path) -> Iterator[Cell]:
    """A cell per recipe of a file of records."""
    cells: dict[str, tuple[Recipe, list[Record]]] = {}
    known: dict[int, tuple[Recipe, str]] = {}  # by the dict, which runs of one recipe share
    for record in read_records(path):
        try:
            if id(record.recipe) not in known:
                known[id(record.recipe)] = recipe_and_fingerprint(json_text(record.recipe))
            recipe, fingerprint = known[id(record.recipe)]
        except GraphjouleError as error:
            warnings.warn(f"{path}: the run {record.run_id} is left out. {error}", stacklevel=2)
            continue
        cells.setdefault(fingerprint, (recipe, []))[1].append(record)
    for _, (recipe, records) in sorted(cells.items(), key=itemgetter(0)):
        once: dict[tuple[str, str | None, str], Record] = {}
        for record in sorted(records, key=lambda record: record.seed):
            if differences(record, once.setdefault(record.identity, record)):
                raise GraphjouleError(
                    f"{path}: the run {record.run_id} is recorded twice, and the two differ. Find out which is true "
                    "and leave the other out of the file."
                )
        yield Cell(recipe, list(once.values()), place=path.relative_to(root).as_posix())
