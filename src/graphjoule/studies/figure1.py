"""Figure 1 of the paper: the Dirichlet energy of every layer of deep trained networks, and the limits of EGNN.

    python -m graphjoule.studies.figure1                 # train what has no record yet, then draw
    python -m graphjoule.studies.figure1 --draw-only     # draw from the records

A record is one file per dataset, model and depth; what has one is not trained again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphjoule.environment import describe_device, resolve_device, versions
from graphjoule.errors import GraphjouleError
from graphjoule.examine import examine, graph_layers, initialised
from graphjoule.files import ensure_folder, write_json
from graphjoule.nn import MODELS, GraphModel
from graphjoule.plots import BLUE, GREEN, VERMILION, Band, Line, Panel, draw_panels, save_figure
from graphjoule.recipe import Recipe, load_recipe, model_options
from graphjoule.studies.energies import EnergyRecord, State
from graphjoule.tasks import NodeTask, load_task
from graphjoule.tasks.inputs import ModelInput
from graphjoule.training import fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETTINGS: dict[str, dict[str, float]] = {
    "cora": {"c_max": 0.4, "c_min": 0.15, "beta": 0.1},
    "pubmed": {"c_max": 0.4, "c_min": 0.11, "beta": 0.11},
}
"""The paper's settings of this figure by dataset, for models that have them; its tables were made with c_max = 1."""
STYLES = {"gcn": (VERMILION, ":"), "gcnii": (GREEN, "--"), "egnn": (BLUE, "-")}
"""The networks of the figure, in the order they are trained, with their colours and line styles."""
LAYERS, SEEDS = 64, 5
_STATES: dict[State, str] = {"initial": "at initialisation", "trained": "after training"}
_DECADES = 7  # shown: a GCN at initialisation falls through 25, and EGNN with its limits takes two or three
RECORDS, PICTURE = Path("results/figure1"), Path("docs/images/figure1.png")


def figure_recipe(model: str, dataset: str, layers: int, epochs: int | None = None) -> Recipe:
    """The recipe of one network of the figure; a setting of the figure counts for the models that have it."""
    known = model_options(model).model_fields
    overrides: dict[str, Any] = {key: value for key, value in SETTINGS[dataset].items() if key in known}
    return load_recipe(model, dataset, layers, overrides | ({} if epochs is None else {"epochs": epochs}))


def measure(recipe: Recipe, task: NodeTask, seeds: Sequence[int], device: str) -> EnergyRecord:
    """Train one network with all seeds and record its energies before and after.

    Args:
        recipe: what to train.
        task: on which graph.
        seeds: one run each.
        device: "auto", "cpu" or "cuda".
    """
    where, given = resolve_device(device), ModelInput.of(task)
    result = fit(recipe, task, seeds, device=where)
    first = [initialised(recipe, task.num_features, task.num_classes, seed) for seed in seeds]
    traced = [[_energies(model, recipe, given, device) for model in models] for models in (first, result.models)]
    return EnergyRecord(
        dataset=task.name,
        model=recipe.model,
        recipe=recipe.settings(),
        seeds=list(seeds),
        first_layer=traced[0][0][0],
        initial=[energies for _, energies in traced[0]],
        trained=[energies for _, energies in traced[1]],
        test_accuracy=[record.test_accuracy for record in result.records],
        epochs_run=[record.epochs_run for record in result.records],
        seconds=round(sum(record.seconds for record in result.records), 3),
        device=describe_device(where),
        versions=versions(),
    )


def _energies(model: GraphModel, recipe: Recipe, given: ModelInput, device: str) -> tuple[int, list[float]]:
    """Number of the first row, and energies of all rows as wide as the hidden layers."""
    found = examine(model, recipe, given, measures=["energy"], device=device)
    rows = [row for row in graph_layers(found.trace).layers if row.channels == recipe.hidden_channels]
    return int(rows[0].name == "convs.0"), [float(f"{row.energy:.6g}") for row in rows]


def collect(
    folder: Path,
    *,
    layers: int = LAYERS,
    seeds: Sequence[int] = range(SEEDS),
    epochs: int | None = None,
    device: str = "auto",
    data_root: Path | None = None,
    tell: Callable[[str], None] = print,
) -> list[EnergyRecord]:
    """All records of the figure: read where there is a file, else trained and written.

    Args:
        folder: where the records are or go.
        layers: depth of all networks.
        seeds: one run each.
        epochs: the most epochs a run may take; the recipes say by default.
        device: "auto", "cpu" or "cuda".
        data_root: where the datasets are.
        tell: called with a line about every record.
    """
    ensure_folder(folder)
    records = []
    for dataset in SETTINGS:
        task = None
        for model in (name for name in STYLES if name in MODELS):
            path = folder / f"{dataset}-{model}-{layers}.json"
            if not path.exists():
                task = task or load_task(dataset, data_root)
                recipe = figure_recipe(model, dataset, layers, epochs)
                write_json(path, measure(recipe, task, seeds, device).model_dump())
            records.append(EnergyRecord.read(path))
            tell(describe(records[-1]))
    return records


def describe(record: EnergyRecord) -> str:
    """One line about a record."""
    energy = record.median("trained")
    accuracy = _accuracy(record)
    return (
        f"{record.dataset}, {record.model}: test accuracy {accuracy}, energy {energy[0]:.3g} at layer "
        f"{record.first_layer}, {energy[-1]:.3g} at layer {record.first_layer + len(energy) - 1}{_held(record)}"
    )


def _accuracy(record: EnergyRecord) -> str:
    known = [accuracy for accuracy in record.test_accuracy if accuracy is not None]
    return f"{100 * statistics.fmean(known):.1f} %" if known else "none"


def _limits(record: EnergyRecord, energy: list[float]) -> tuple[list[float], float] | None:
    """Lower limit of every layer after the first and the upper one; None for a model without."""
    if not {"c_min", "c_max"} <= record.recipe.keys():
        return None
    return [record.recipe["c_min"] * before for before in energy[:-1]], record.recipe["c_max"] * energy[0]


def _held(record: EnergyRecord) -> str:
    energy = record.median("trained")
    found = _limits(record, energy)
    if found is None:
        return ""
    lower, upper = found
    within = [low <= now <= upper for low, now in zip(lower, energy[1:], strict=True)]
    return f", {sum(within)} of {len(within)} layers within both limits"


def draw(records: Sequence[EnergyRecord]) -> Figure:
    """The figure: a panel per dataset and state, every run a thin line, the median in bold, the limits as a band."""
    datasets = dict.fromkeys(record.dataset for record in records)
    return draw_panels(
        [
            _panel([record for record in records if record.dataset == dataset], state)
            for state in _STATES
            for dataset in datasets
        ],
        size=(6.4, 3.4),
    )


def _panel(records: Sequence[EnergyRecord], state: State) -> Panel:
    first = records[0]
    return Panel(
        title=f"{first.dataset.capitalize()}, {first.recipe['num_layers']} layers, {_STATES[state]}",
        y_label="Dirichlet energy E(X)",
        lines=[line for record in records for line in _lines(record, state)],
        bands=[band for record in records if (band := _band(record, state)) is not None],
        decades=_DECADES,
    )


def _lines(record: EnergyRecord, state: State) -> list[Line]:
    colour, style = STYLES[record.model]
    energies = record.energies(state)
    x = range(record.first_layer, record.first_layer + len(energies[0]))
    runs = [Line("", run, x, colour, width=0.8, alpha=0.25) for run in energies]
    accuracy = f"\n{_accuracy(record)} right" if state == "trained" else ""
    return [*runs, Line(record.model.upper() + accuracy, record.median(state), x, colour, style, width=2.4)]


def _band(record: EnergyRecord, state: State) -> Band | None:
    found = _limits(record, record.median(state))
    if found is None:
        return None
    lower, upper = found
    label = f"limits of {record.model.upper()}"
    return Band(label, range(1, len(lower) + 1), lower, [upper] * len(lower), STYLES[record.model][0])


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what has no record, draw, and say what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=Path, default=RECORDS, help="folder of the records")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="where to draw; its ending says the format")
    parser.add_argument("--draw-only", action="store_true", help="train nothing")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many")
    parser.add_argument("--epochs", type=int, help="the most epochs; the recipes say by default")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--data-root", type=Path)
    given = parser.parse_args(arguments)
    try:
        if given.draw_only:
            records = [EnergyRecord.read(path) for path in _record_paths(given.records, given.layers)]
        else:
            records = collect(
                given.records,
                layers=given.layers,
                seeds=range(given.seeds),
                epochs=given.epochs,
                device=given.device,
                data_root=given.data_root,
            )
        ensure_folder(given.picture.parent)
        save_figure(draw(records), given.picture)
    except GraphjouleError as error:
        sys.exit(f"graphjoule: {error}")
    print(given.picture)


def _record_paths(folder: Path, layers: int) -> list[Path]:
    """The records that are there, in the order of the figure."""
    wanted = [folder / f"{dataset}-{model}-{layers}.json" for dataset in SETTINGS for model in STYLES]
    found = [path for path in wanted if path.exists()]
    if not found:
        raise GraphjouleError(f"There is no record of {layers} layers in {folder}; run it without --draw-only first.")
    return found


if __name__ == "__main__":
    main()
