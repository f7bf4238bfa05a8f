"""Where depth could pay: a minefield, real graphs with features missing, real graphs with few labels.

    python -m reproduction.experiments.suite mines missing labels --datasets cora pubmed --device cuda --seconds 470

All models have the same search: four settings, two of their own at two depths, by validation with two seeds on one task
of a kind (90 % of the features missing; five labels per class). What it chooses is trained on all tasks of that kind
with ten seeds, GPS with three. The rest is a model's recipe on that graph; A-DGN, GraphCON and GPS, which have none,
have EGNN's learning rate, weight decay and dropout. A line per cell, as in `depth`.
"""

from __future__ import annotations

import argparse
import math
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from graphjoule import load_recipe
from graphjoule.training import resolve_device
from reproduction.experiments.depth import IN_STEP, cell, train
from reproduction.experiments.record import Cells, ranked

__all__ = ["main"]

MODELS = ("wave", "gcnii", "egnn", "appnp", "resgcn", "adgn", "graphcon", "gps")
MISSING = (0, 50, 90, 100)  # percent of the nodes
LABELS = (1, 3, 5, 20)  # per class
_OWN: dict[str, tuple[dict[str, Any], ...]] = {
    "wave": ({"delta": 0.3, "mu": 0.1, "step": 0.8}, {"delta": 0.3, "mu": 0.02, "step": 0.8}),
    "gcnii": ({"alpha": 0.1}, {"alpha": 0.02}),
    "egnn": ({"c_min": 0.15, "beta": 0.1}, {"c_min": 0.15, "beta": 0.02}),
    "appnp": ({"alpha": 0.1}, {"alpha": 0.02}),
    "resgcn": ({"batch_norm": True} | IN_STEP, {"batch_norm": False}),
    "adgn": ({"epsilon": 0.1}, {"epsilon": 0.5}),
    "graphcon": ({"dt": 0.5}, {"dt": 1.0}),
    "gps": ({"encoding": "laplacian"} | IN_STEP, {"encoding": "walk"} | IN_STEP),
}
_DEPTHS = {"gps": (2, 4)}  # attention sees all nodes at once; of the others
_OTHER_DEPTHS = (4, 32)
_QUADRATIC = ("pubmed", "physics")  # too many nodes for attention of all to all
_NO_RECIPE = ("adgn", "graphcon", "gps")
# A linear filter of the input cannot count; channels of many speeds between two small networks can.
_SPREAD = {"speeds": "spread", "encoder": "mlp", "head": "mlp"} | IN_STEP
_MINES_OWN = _OWN | {"wave": (_SPREAD | {"delta": 0.0, "mu": 0.0, "step": 0.95}, _SPREAD | _OWN["wave"][0])}
_MINES = {"hidden_channels": 64, "lr": 0.01, "weight_decay": 0.0, "dropout": 0.2, "select_on": "roc_auc"}


def search(cells: Cells, model: str, dataset: str, name: str, common: dict[str, Any], score: str) -> tuple[Any, int]:
    """Settings and depth of a model that validation chooses among four."""
    own = _MINES_OWN if dataset.startswith("mines") else _OWN
    rows = []
    for number, (mine, layers) in enumerate(product(own[model], _DEPTHS.get(model, _OTHER_DEPTHS))):
        settings = common | mine
        run = partial(train, model, dataset, layers, settings, 2, cells.device)
        make = lambda run=run, layers=layers: cell(run(), model=model, layers=layers)  # noqa: E731
        rows.append(cells.get(f"search {name} {model} {number}", settings, make))
    best = ranked(rows, score)[0]
    return best["settings"], best["layers"]


def final(cells: Cells, model: str, dataset: str, name: str, settings: dict[str, Any], layers: int) -> None:
    """Ten seeds of what was chosen, GPS three."""
    seeds = 3 if model == "gps" else 10
    cells.get(
        f"{name} {model}",
        settings,
        lambda: cell(train(model, dataset, layers, settings, seeds, cells.device), model=model, layers=layers),
    )


def of_no_recipe(model: str, dataset: str) -> dict[str, Any]:
    """What a model without a recipe on a real graph trains with."""
    if model not in _NO_RECIPE:
        return {}
    egnn = load_recipe("egnn", dataset, 4).settings()
    names = ("model.dropout", "train.lr", "data.normalize_features", "model.hidden_channels", "train.select_on")
    return {name.partition(".")[2]: egnn[name] for name in names} | {
        "weight_decay": egnn["train.weight_decay.dense"],
        "patience": egnn["train.patience"],
    }


def main() -> None:
    """Run the parts that are asked for, in order."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=("mines", "missing", "labels"))
    parser.add_argument("--datasets", nargs="+", default=["cora"], help="of missing and labels")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("reproduction/results/depth/suite.jsonl"))
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--size", type=int, default=100, help="of the minefield")
    parser.add_argument("--epochs", type=int, default=500, help="at most")
    given = parser.parse_args()
    cells = Cells(given.out, given.seconds, resolve_device(given.device))
    for part, dataset, model in product(given.parts, given.datasets, given.models):
        if part == "mines":
            name = f"mines-{given.size}"
            common = _MINES | {"epochs": given.epochs, "patience": 100}
            final(cells, model, name, name, *search(cells, model, name, name, common, "roc_auc"))
            continue
        if model == "gps" and dataset in _QUADRATIC:
            continue
        common = of_no_recipe(model, dataset) | {"epochs": given.epochs}
        if part == "missing":
            names = {percent: f"{dataset}-missing-{percent}" for percent in MISSING}
            chosen, layers = search(cells, model, names[90], names[90], common | {"split": "public"}, "accuracy")
            for name in names.values():
                final(cells, model, name, name, chosen, layers)
        else:
            splits = {labels: {"split": f"per-class-{labels}-30"} for labels in LABELS}
            chosen, layers = search(cells, model, dataset, f"{dataset}-labels-5", common | splits[5], "accuracy")
            for labels, split in splits.items():
                final(cells, model, dataset, f"{dataset}-labels-{labels}", chosen | split, layers)


if __name__ == "__main__":
    main()
