"""Where depth is necessary: the wave network and its rivals, over distance, on real graphs, and with 10,000 layers.

python -m reproduction.experiments.depth --device cuda --out reproduction/results/depth/wave.jsonl --seconds 470

A line per cell; a second call goes on where the first stopped, and a cell whose settings have changed is made anew: of
two lines with a key the later one counts. Settings are chosen by validation among four for every model. Parts: ``ring``
(the wave), ``accuracy``, ``ten-thousand``, ``rivals`` (on the rings), ``distances`` (six families of graphs, all
models), ``norms`` (the wave's, with other batch norms), ``cost`` (time and memory of an epoch of those,
alone on the device).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from graphjoule import fit, load_recipe, load_task
from graphjoule.graph import as_dense
from graphjoule.nn import Wave
from graphjoule.tasks import Task
from graphjoule.theory import wave_energies
from graphjoule.training import resolve_device
from reproduction.experiments.record import Cells, ranked
from reproduction.experiments.rivals import ADGN, GPS, GraphCON, in_the_table

__all__ = ["main"]

DISTANCES = (5, 10, 20, 50, 100, 500)
_RING: dict[str, Any] = {
    **{"hidden_channels": 16, "dropout": 0.0, "output_dropout": 0.0, "weight_decay": 0.0, "edge_dropout": 0.0},
    **{"epochs": 150, "patience": 150, "select_on": "loss"},
}
_RATES = ({"lr": 0.02}, {"lr": 0.005})
# A pass sees all nodes, and running statistics that lag behind the weights would spoil what is validated.
IN_STEP: dict[str, Any] = {"norm_momentum": 1.0}
# By model what is searched on the shortest distance beside the learning rate: two values each.
_SEARCHED: dict[str, tuple[dict[str, Any], ...]] = {
    # At d hops step^(2 d) of a pulse arrives in one piece: 37 % of it at 500 hops with 0.999, 90 % with 0.9999.
    "wave": ({"step": 0.9999, "delta": 0.0, "mu": 0.0}, {"step": 0.95, "delta": 0.0, "mu": 0.0}),
    "egnn": ({"c_min": 0.2, "beta": 0.1}, {"c_min": 0.2, "beta": 0.01}),
    "gcnii": ({"alpha": 0.1}, {"alpha": 0.01}),
    "appnp": ({"alpha": 0.1}, {"alpha": 0.01}),
    "resgcn": ({"batch_norm": True} | IN_STEP, {"batch_norm": False}),
    "adgn": ({"epsilon": 0.1}, {"epsilon": 0.5}),
    "graphcon": ({"dt": 0.5}, {"dt": 1.0}),
    "gps": ({"encoding": "laplacian"} | IN_STEP, {"encoding": "walk"} | IN_STEP),
}
# Seeds of a rival by distance: its chance level is plain long before 500 hops, where its epoch costs most.
_RIVAL_SEEDS = {5: 10, 10: 10, 20: 10, 50: 10, 100: 3}
_LEAN = ("egnn", "gcnii", "appnp")  # those that can afford 500 hops too
_GPS_SEEDS = {5: 3, 10: 3, 20: 3, 50: 3, 100: 3}  # one run after the other
_GPS_LAYERS = 8  # attention sees all nodes at once
_BY_CLASS: dict[str, Any] = {"adgn": ADGN, "graphcon": GraphCON, "gps": GPS}


@cache
def _task(name: str) -> Task:
    return load_task(name)


_TRAINING = ("lr", "weight_decay", "epochs", "patience", "select_on", "split", "normalize_features", *IN_STEP)
_OPTIONS = ("hidden_channels", "dropout", "epsilon", "dt", "encoding")


def train(model: str, dataset: str, layers: int, settings: Mapping[str, Any], seeds: int, device: torch.device):
    """Train a model of the zoo, or a rival by its class; features that are missing do not change the recipe."""
    if model not in _BY_CLASS:
        base = dataset.partition("-missing-")[0]
        names = load_recipe(model, base, layers).settings()
        short = {name.rpartition(".")[2] for name in names} | {"weight_decay", *IN_STEP}
        own = {k: v for k, v in settings.items() if k in short or k.startswith("terms.")}
        recipe = load_recipe(model, base, layers, own)
        return fit(recipe, _task(dataset), range(seeds), device=device)
    options = {k: settings[k] for k in _OPTIONS if k in settings}
    if model == "gps":
        options |= {"dataset": dataset}
    training = {k: settings[k] for k in _TRAINING if k in settings}
    network = partial(_BY_CLASS[model], num_layers=layers, **options)
    with in_the_table(model, _BY_CLASS[model]):
        return fit(network, _task(dataset), range(seeds), settings=training, device=device)


def cell(result: Any, **more: Any) -> dict[str, Any]:
    """What is kept of a training."""
    records = result.records
    done = [record for record in records if record.test]
    names = [name for name in ("accuracy", "roc_auc", "mae", "loss") if done and name in done[0].val]
    return {
        **more,
        **{f"val_{name}": sum(record.val[name] for record in done) / len(done) for name in names},
        **{f"test_{name}": [round(record.test[name], 5) for record in done] for name in names},
        "failed": len(records) - len(done),
        "epochs": [record.epochs_run for record in records],
        "seconds_per_run": sum(record.seconds for record in records) / len(records),
        "backend": records[0].backend,
    }


def drifts(result: Any, dataset: str, device: torch.device) -> list[float]:
    """How far each trained wave's energy balance is from exact, in float64 over all layers."""
    task = _task(dataset).to(device, torch.float64)
    rows = as_dense(task.features)
    if result.records[0].recipe["data"]["normalize_features"]:
        rows = rows / rows.sum(dim=1, keepdim=True).clamp(min=1e-12)
    found = []
    for model in result.models:
        assert isinstance(model, Wave)
        found.append(wave_energies(model.to(device).double(), rows, task.graph).drift)
        model.cpu()
    return found


def ring_settings(cells: Cells, model: str, distances: list[int]) -> dict[str, Any]:
    """The settings of a model that validation chooses among four on the shortest distance, where rivals can learn."""
    rows = []
    first = distances[0]
    for number, (own, rate) in enumerate(product(_SEARCHED[model], _RATES)):
        settings = _RING | own | rate
        run = partial(train, model, f"ring-{first}", ring_layers(model, first, settings), settings, 2, cells.device)
        key = f"search ring-{first} {model} {number}"
        rows.append(cells.get(key, settings, lambda run=run: cell(run())))
    return cells.best(rows)


def ring_layers(model: str, distance: int, settings: Mapping[str, Any]) -> int:
    """As many layers as the wave's front needs; GPS has few, other rivals get a quarter more than there are hops."""
    if model == "gps":
        return _GPS_LAYERS
    return math.floor(distance / settings["step"]) if model == "wave" else math.ceil(1.25 * distance)


def ring(cells: Cells, models: list[str], distances: list[int], seeds_of: Callable[[str, int], int]) -> None:
    """Accuracy over distance."""
    for model in models:
        settings = ring_settings(cells, model, distances)
        for distance in distances:
            if not (seeds := seeds_of(model, distance)):
                continue
            dataset, layers = f"ring-{distance}", ring_layers(model, distance, settings)

            def make(dataset=dataset, layers=layers, settings=settings, seeds=seeds, model=model):
                result = train(model, dataset, layers, settings, seeds, cells.device)
                extra = {"drift": drifts(result, dataset, cells.device)} if model == "wave" else {}
                return cell(result, model=model, layers=layers, **extra)

            cells.get(f"{dataset} {model}", settings, make)


_DISTANCE_SETTINGS: dict[str, Any] = {
    **{"hidden_channels": 64, "dropout": 0.0, "output_dropout": 0.0, "weight_decay": 0.0, "edge_dropout": 0.0},
    **{"epochs": 300, "patience": 100, "select_on": "loss"},
}
_SPREAD = {"delta": 0.0, "mu": 0.0, "speeds": "spread", "head": "mlp"} | IN_STEP
_DISTANCE_SEARCHED = {
    "wave": (_SPREAD | {"step": 0.95}, _SPREAD | {"step": 0.8}),
    **{name: _SEARCHED[name] for name in ("adgn", "gcnii", "gps", "graphcon", "egnn", "appnp", "resgcn")},
}
_DISTANCE_TASKS = ["shortest-paths", "eccentricity", "diameter"]
_TEN_SEEDS = ("wave", "adgn", "gcnii")  # on shortest paths and eccentricity; three on diameter, and for the others
_SEARCH_DIAMETER = 40
_LARGE = {"epochs": 100, "patience": 100}  # of larger graphs, with the settings of the others; the wave has three seeds


def distances(
    cells: Cells, models: list[str], largest: int, epochs: int | None, tasks: list[str], most_seeds: int
) -> None:
    """Shortest paths, eccentricity and diameter; settings by validation on shortest paths with one seed."""
    common = _DISTANCE_SETTINGS | ({"epochs": epochs, "patience": epochs} if epochs else {})
    diameter, is_large = min(largest, _SEARCH_DIAMETER), largest > _SEARCH_DIAMETER
    for model in models:
        layers, rows = _GPS_LAYERS if model == "gps" else diameter, []
        for number, (own, rate) in enumerate(product(_DISTANCE_SEARCHED[model], ({"lr": 0.01}, {"lr": 0.002}))):
            settings = common | own | rate

            def search(settings=settings, model=model, layers=layers):
                short = settings | {"epochs": min(settings["epochs"], 100)}
                return cell(train(model, f"shortest-paths-{diameter}", layers, short, 1, cells.device))

            rows.append(cells.get(f"search shortest-paths-{diameter} {model} {number}", settings, search))
        chosen = min(rows, key=lambda row: row.get("val_mae", math.inf))["settings"] | (_LARGE if is_large else {})
        layers = largest if is_large and model != "gps" else layers
        for what in tasks:
            seeds = 10 if model in _TEN_SEEDS and what != "diameter" else 3
            seeds = min(most_seeds, (3 if model == "wave" else 1) if is_large else seeds)

            def make(what=what, model=model, settings=chosen, layers=layers, seeds=seeds):
                result = train(model, f"{what}-{largest}", layers, settings, seeds, cells.device)
                return cell(result, model=model, layers=layers)

            cells.get(f"{what}-{largest} {model}", chosen, make, runs=seeds)


def cost(cells: Cells, models: list[str]) -> None:
    """An epoch of one run on shortest paths with the settings that were chosen, on a device that nobody else uses."""
    for model in models:
        trained = cells.found[f"shortest-paths-{_SEARCH_DIAMETER} {model}"]
        settings = trained["settings"] | {"epochs": 30}

        def make(model=model, settings=settings, layers=trained["layers"]):
            run = partial(train, model, f"shortest-paths-{_SEARCH_DIAMETER}", layers, settings, 1, cells.device)
            run()  # compiles
            return cell(run(), model=model, layers=layers)

        cells.get(f"cost shortest-paths-{_SEARCH_DIAMETER} {model}", settings, make)


def norms(cells: Cells) -> None:
    """The wave's shortest paths with and without a batch norm in the encoder, in step or with torch's own momentum."""
    trained = cells.found[f"shortest-paths-{_SEARCH_DIAMETER} wave"]
    data, layers = f"shortest-paths-{_SEARCH_DIAMETER}", trained["layers"]
    plain = {name: value for name, value in trained["settings"].items() if name not in IN_STEP}
    mlp = {"encoder": "mlp"}
    for name, settings in (("linear lag", plain), ("mlp lag", plain | mlp), ("mlp in step", plain | mlp | IN_STEP)):
        run = partial(train, "wave", data, layers, settings, 10, cells.device)
        cells.get(f"norms {data} wave {name}", settings, lambda run=run: cell(run()))


def rival_seeds(model: str, distance: int) -> int:
    """How many runs a rival gets."""
    seeds = _GPS_SEEDS if model == "gps" else _RIVAL_SEEDS | ({500: 3} if model in _LEAN else {})
    return seeds.get(distance, 0)


_REAL = ("cora", "pubmed", "physics")
_REAL_SETTINGS: dict[str, Any] = {"lr": 0.01, "epochs": 1500, "patience": 100}


def _grid(dataset: str) -> Iterator[dict[str, Any]]:
    """What is searched on a real graph: a coarse grid, then a finer one around what validation liked.

    EGNN with identity weights ends at the same filter as a damped wave with ``mu = beta / (1 - c_min)``, which is about
    0.12 in all of its recipes.
    """
    damped = [(0.3, 0.1), (0.3, 0.05), (0.1, 0.1), (0.8, 0.1)]
    plain = [(5e-4, 0.6), (2e-3, 0.6), (5e-4, 0.8)]  # weight decay and dropout
    if dataset == "physics":
        damped, plain = damped[:2], [(5e-5, 0.6), (5e-4, 0.6)]
    for (delta, mu), (decay, drop) in product(damped, plain):
        yield {"delta": delta, "mu": mu, "step": 0.8, "weight_decay": decay, "dropout": drop, "output_dropout": drop}
    fine = {
        "cora": product((0.12, 0.16, 0.2), (5e-3, 1e-2), (0.6, 0.7), (0.0, 0.6), (5e-4,)),
        "pubmed": product((0.12, 0.16), (5e-3, 1e-2), (0.5,), (0.0, 0.5), (5e-4, 2e-4)),
        "physics": product((0.12, 0.16, 0.2), (5e-3,), (0.6,), (0.6,), (5e-5, 2e-5)),
    }[dataset]
    for mu, rate, drop, output_drop, decay in fine:
        own = {"weight_decay": decay, "dropout": drop, "output_dropout": output_drop, "lr": rate}
        yield {"delta": 0.3, "mu": mu, "step": 0.8} | own
    if dataset == "cora":  # around the best, and views that agree
        best = {"delta": 0.3, "mu": 0.12, "step": 0.8, "weight_decay": 5e-4, "lr": 0.01}
        around = [(0.1, 0.7, 0.6), (0.12, 0.7, 0.7), *product((0.1, 0.12), (0.8,), (0.6, 0.7)), (0.14, 0.7, 0.6)]
        for mu, drop, output_drop in around:
            yield best | {"mu": mu, "dropout": drop, "output_dropout": output_drop}
        for drop, weight, share in [*product((0.5,), (0.5, 1.0), (0.0, 0.5)), (0.7, 0.5, 0.0)]:
            views = {"terms.consistency.views": 2, "terms.consistency.weight": weight, "terms.consistency.p": share}
            yield best | {"dropout": drop, "output_dropout": drop} | views


_FINALISTS = {"cora": 3}  # settings that train with ten seeds before validation chooses among them; else one


def accuracy(cells: Cells, datasets: list[str], layers: int, epochs: int | None) -> None:
    """64 layers on the real graphs: a search by validation with three seeds, then ten; test scores choose nothing."""
    for dataset in datasets:
        rows = []
        for number, settings in enumerate(_grid(dataset)):
            settings = _REAL_SETTINGS | settings | ({"epochs": epochs} if epochs else {})
            key = f"search {dataset} wave {layers} {number}"

            def make(settings=settings, dataset=dataset):
                return cell(train("wave", dataset, layers, settings, 3, cells.device))

            rows.append(cells.get(key, settings, make))

        def make_ten(settings, dataset=dataset):
            result = train("wave", dataset, layers, settings, 10, cells.device)
            return cell(result, layers=layers, drift=drifts(result, dataset, cells.device))

        if dataset in _FINALISTS:
            finalists = [row["settings"] for row in ranked(rows)[: _FINALISTS[dataset]]]
            rows = [
                cells.get(f"again {dataset} wave {layers} {place}", settings, partial(make_ten, settings))
                for place, settings in enumerate(finalists)
            ]
            cells.copy(ranked(rows)[0], f"{dataset} wave {layers}")
        else:
            chosen = cells.best(rows)
            cells.get(f"{dataset} wave {layers}", chosen, partial(make_ten, chosen))


def ten_thousand(cells: Cells, layers: int, epochs: int) -> None:
    """10,000 layers on Cora, damped and not at all; the memory of 4 layers beside it."""
    chosen = {"delta": 0.3, "mu": 0.1, "step": 0.8, "lr": 0.01}
    for name, more in (("damped", {}), ("conserving", {"delta": 0.0})):
        for depth in (4, layers):
            settings = chosen | more | {"epochs": epochs, "patience": epochs}

            def make(settings=settings, depth=depth):
                result = train("wave", "cora", depth, settings, 10, cells.device)
                return cell(result, layers=depth, drift=drifts(result, "cora", cells.device))

            cells.get(f"cora wave {depth} {name}", settings, make)


def main() -> None:
    """Run the parts that are asked for, in order."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["ring", "accuracy", "ten-thousand", "rivals"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("reproduction/results/depth/wave.jsonl"))
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--distances", type=int, nargs="+", default=list(DISTANCES))
    parser.add_argument("--datasets", nargs="+", default=list(_REAL))
    parser.add_argument("--models", nargs="+", help="of rivals, distances and cost")
    parser.add_argument("--layers", type=int, default=10_000, help="of the part ten-thousand")
    parser.add_argument("--diameter", type=int, default=40, help="the largest, and the depth, of the part distances")
    parser.add_argument("--tasks", nargs="+", default=_DISTANCE_TASKS, choices=_DISTANCE_TASKS, help="of distances")
    parser.add_argument("--seeds", type=int, default=10, help="at most, of distances")
    parser.add_argument("--epochs", type=int, help="at most; for tries")
    given = parser.parse_args()
    cells = Cells(given.out, given.seconds, resolve_device(given.device))
    if given.epochs:
        _RING.update(epochs=given.epochs, patience=given.epochs)
    for part in given.parts:
        if part == "ring":
            ring(cells, ["wave"], given.distances, lambda model, distance: 10)
        elif part == "accuracy":
            accuracy(cells, given.datasets, 64, given.epochs)
        elif part == "ten-thousand":
            ten_thousand(cells, given.layers, given.epochs or 200)
        elif part == "rivals":
            ring(cells, given.models or [name for name in _SEARCHED if name != "wave"], given.distances, rival_seeds)
        elif part == "distances":
            models = given.models or list(_DISTANCE_SEARCHED)
            distances(cells, models, given.diameter, given.epochs, given.tasks, given.seeds)
        elif part == "cost":
            cost(cells, given.models or list(_DISTANCE_SEARCHED))
        elif part == "norms":
            norms(cells)
        else:
            choices = "ring, accuracy, ten-thousand, rivals, distances, norms and cost"
            parser.error(f"{part} is no part; the choices are {choices}.")


if __name__ == "__main__":
    main()
