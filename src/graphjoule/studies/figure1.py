"""Figure 1 of the paper: the Dirichlet energy of every layer of deep trained networks, and the limits of EGNN.

    python -m graphjoule.studies.figure1                 # train what has no record yet, then draw
    python -m graphjoule.studies.figure1 --draw-only     # draw from the records
    python -m graphjoule.studies.figure1 --draw-only --records runs/study    # from what `graphjoule study figure1` left

A record is one file per dataset, model and depth; what has one is not trained again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphjoule.errors import GraphjouleError
from graphjoule.files import ensure_folder, write_json
from graphjoule.nn import MODELS
from graphjoule.plots import BLUE, GREEN, PURPLE, VERMILION, Band, Line, Panel, draw_panels, save_figure
from graphjoule.recipe import Recipe, load_recipe, model_options
from graphjoule.studies.energies import EnergyRecord, State, measure_energies
from graphjoule.tasks import NodeTask, load_task
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
SIZE = (6.4, 3.4)
"""Inches of one panel."""
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
    result = fit(recipe, task, seeds, device=device)
    return measure_energies(recipe, task, result.records, result.models, device)


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
    """The figure from the records of its networks."""
    return draw_panels(panels(records), size=SIZE)


def panels(records: Sequence[EnergyRecord]) -> list[Panel]:
    """A panel per dataset and state: every run a thin line, the median in bold, the limits as a band."""
    datasets = dict.fromkeys(record.dataset for record in records)
    return [
        _panel([record for record in records if record.dataset == dataset], state)
        for state in _STATES
        for dataset in datasets
    ]


def style_of(model: str) -> tuple[str, str]:
    """Colour and line style of a model, the same in every figure; those the paper does not draw share one."""
    return STYLES.get(model, (PURPLE, "-."))


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
    colour, style = style_of(record.model)
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
    return Band(label, range(1, len(lower) + 1), lower, [upper] * len(lower), style_of(record.model)[0])


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
    found = [path for dataset in SETTINGS for model in STYLES if (path := _record_path(folder, dataset, model, layers))]
    if not found:
        raise GraphjouleError(f"There is no record of {layers} layers in {folder}; run it without --draw-only first.")
    return found


def _record_path(folder: Path, dataset: str, model: str, layers: int) -> Path | None:
    """The record of one network: this module's own, or what ``graphjoule study figure1`` left beside the models."""
    name = f"{dataset}-{model}-{layers}"
    if (path := folder / f"{name}.json").exists():
        return path
    for path in sorted(folder.glob(f"{name}-*/energies.json")):  # other studies measure energies with other settings
        settings = EnergyRecord.read(path).recipe
        if all(settings.get(key, value) == value for key, value in SETTINGS[dataset].items()):
            return path
    return None


if __name__ == "__main__":
    main()
