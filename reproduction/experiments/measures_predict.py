"""Which measure, taken at initialisation and during training, predicts the final accuracy.

    python -m reproduction.experiments.measures_predict --device cuda [--out reproduction/results/trace/predict.jsonl]

Every network of this package at every depth on every graph is trained by a plain loop with Adam, the model with the
settings of its recipe. Its last graph layer is measured before the first step and at the middle of the training. A
line per training; a second call goes on where the first stopped, and calls with other `--datasets` may run at once.
By default 180 trainings of 60 epochs, meant for a GPU. `reproduction.pages.predictors` makes the table.
"""

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F

from graphjoule import Trace, load_recipe, load_task
from graphjoule.graph import as_dense
from graphjoule.measures import DATA_MEASURES, MEASURES
from graphjoule.nn import MODELS
from graphjoule.training import build_model, resolve_device
from reproduction.experiments.record import Cells
from reproduction.pages.predictors import predictors_table


def measured(model, graph, features, measures):
    """All measures of the output of the last graph layer, in evaluation mode; None where one is not finite."""
    last = f"convs.{len(model.convs) - 1}"
    (row,) = Trace.of(model, graph, (features, graph), measures, watch=[last]).layers
    return {name: value if math.isfinite(value) else None for name, value in row.values.items()}


def train(name, layers, task, seed, epochs):
    """One training: the measures at its beginning and middle, and its test accuracy at the best validation."""
    torch.manual_seed(seed)
    recipe = load_recipe(name, task.name, layers)
    model = build_model(recipe, task, seed=seed).to(task.targets.device)
    x = as_dense(task.features)
    if recipe.data.normalize_features:
        x = x / x.sum(dim=1, keepdim=True).clamp(min=1e-12)
    split = task.split(seed=seed)
    known = torch.full_like(task.targets, -1)
    known[split.train] = task.targets[split.train]  # a prediction of the test accuracy may not read test labels
    measures = [
        *MEASURES,
        DATA_MEASURES["group_distance_ratio"](known),
        DATA_MEASURES["instance_information_gain"](x),
    ]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    found = {"model": name, "layers": layers, "dataset": task.name, "seed": seed}
    found["initial"] = measured(model, task.graph, x, measures)
    best = (-1.0, 0.0)
    for epoch in range(1, epochs + 1):
        model.train()
        loss = F.cross_entropy(model(x, task.graph)[split.train], task.targets[split.train])
        optimizer.zero_grad()
        (loss + model.penalty()).backward()
        optimizer.step()
        if epoch == epochs // 2:
            found["middle"] = measured(model, task.graph, x, measures)
        if epoch % 5 == 0 or epoch == epochs:
            model.eval()
            with torch.no_grad():
                right = (model(x, task.graph).argmax(dim=1) == task.targets).double()
            val, test = float(right[split.val].mean()), float(right[split.test].mean())
            best = (val, test) if val > best[0] else best  # the first of equals: the test split chooses nothing
    return found | {"val_accuracy": best[0], "test_accuracy": best[1]}


def main():
    """Train what is asked for and not there yet, and print the table of all that is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--datasets", nargs="+", default=["cora", "pubmed", "physics"])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--layers", nargs="+", type=int, default=[2, 8, 32])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no training after so many seconds")
    parser.add_argument("--out", type=Path, default=Path("reproduction/results/trace/predict.jsonl"))
    args = parser.parse_args()
    cells = Cells(args.out, args.seconds, resolve_device(args.device))
    for dataset in args.datasets:
        task = load_task(dataset).to(cells.device)
        for seed in range(args.seeds):
            for layers in args.layers:
                for name in args.models:
                    make = lambda n=name, d=layers, s=seed, t=task: train(n, d, t, s, args.epochs)  # noqa: E731
                    cells.get(f"{dataset} {name} {layers} seed {seed}", {"epochs": args.epochs}, make)
    print(predictors_table(list(cells.found.values())))


if __name__ == "__main__":
    main()
