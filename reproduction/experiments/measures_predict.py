"""Which measure, taken at initialisation and during training, predicts the final accuracy.

    python -m reproduction.experiments.measures_predict --device cuda [--out reproduction/results/trace/predict.json]

Every network of this package at every depth on every graph is trained by a plain loop with Adam, the model with the
settings of its recipe. Its last graph layer is measured before the first step and at the middle of the training.
Within each graph, Spearman's rank correlation of a measure with the final test accuracy over networks, depths and
seeds; then the mean over graphs, with a 95 % interval by a bootstrap over the trainings. By default 180 trainings of
60 epochs, meant for a GPU.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr

from graphjoule import Trace, load_recipe, load_task
from graphjoule.graph import SparseFeatures
from graphjoule.measures import DATA_MEASURES, MEASURES
from graphjoule.nn import MODELS
from graphjoule.training import build_model, describe_device, versions
from reproduction.experiments.record import write_record


def measured(model, task, measures):
    """All measures of the output of the last graph layer, in evaluation mode."""
    trace = Trace.of(model, task.graph, (task.features, task.graph), measures, watch=["convs.*"])
    return trace.layers[-1].values


def train(name, layers, task, seed, epochs):
    """One training: the measures at its beginning and middle, and its test accuracy at the best validation."""
    torch.manual_seed(seed)
    recipe = load_recipe(name, task.name, layers)
    model = build_model(recipe, task, seed=seed).to(task.targets.device)
    features = task.features.to_dense() if isinstance(task.features, SparseFeatures) else task.features
    split = task.split(seed=seed)
    known = torch.full_like(task.targets, -1)
    known[split.train] = task.targets[split.train]  # a prediction of the test accuracy may not read test labels
    measures = [
        *MEASURES,
        DATA_MEASURES["group_distance_ratio"](known),
        DATA_MEASURES["instance_information_gain"](features),
    ]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    found = {"model": name, "layers": layers, "dataset": task.name, "seed": seed}
    found["initial"] = measured(model, task, measures)
    best = (-1.0, 0.0)
    for epoch in range(1, epochs + 1):
        model.train()
        loss = F.cross_entropy(model(task.features, task.graph)[split.train], task.targets[split.train])
        optimizer.zero_grad()
        (loss + model.penalty()).backward()
        optimizer.step()
        if epoch == epochs // 2:
            found["middle"] = measured(model, task, measures)
        if epoch % 5 == 0 or epoch == epochs:
            model.eval()
            with torch.no_grad():
                right = (model(task.features, task.graph).argmax(dim=1) == task.targets).double()
            val, test = float(right[split.val].mean()), float(right[split.test].mean())
            best = (val, test) if val > best[0] else best  # the first of equals: the test split chooses nothing
    return found | {"accuracy": best[1]}


def correlation(runs, when, name, chosen):
    """Mean over graphs of the rank correlation; NaN where a measure is the same for all."""
    values = []
    for dataset in sorted({run["dataset"] for run in runs}):
        pairs = [(runs[i][when][name], runs[i]["accuracy"]) for i in chosen if runs[i]["dataset"] == dataset]
        pairs = np.nan_to_num(np.array(pairs), posinf=1e300, neginf=-1e300)
        constant = len(pairs) < 3 or np.ptp(pairs[:, 0]) == 0 or np.ptp(pairs[:, 1]) == 0
        values.append(0.0 if constant else float(spearmanr(pairs[:, 0], pairs[:, 1]).statistic))
    return float(np.mean(values))


def table(runs, draws):
    """A row for each measure and time: the correlation and its interval, strongest first."""
    random, rows = np.random.default_rng(0), []
    samples = [random.integers(len(runs), size=len(runs)) for _ in range(draws)]
    for when in ("initial", "middle"):
        for name in runs[0][when]:
            low, high = np.quantile([correlation(runs, when, name, sample) for sample in samples], [0.025, 0.975])
            value = correlation(runs, when, name, range(len(runs)))
            rows.append({"measure": name, "when": when, "correlation": value, "low": float(low), "high": float(high)})
    return sorted(rows, key=lambda row: (row["when"], -abs(row["correlation"])))


def main():
    """Train all, print the table and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--datasets", nargs="+", default=["cora", "citeseer", "pubmed"])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--layers", nargs="+", type=int, default=[2, 8, 32])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("reproduction/results/trace/predict.json"))
    args = parser.parse_args()
    begin, runs = time.perf_counter(), []
    for dataset in args.datasets:
        task = load_task(dataset).to(args.device)
        for name in args.models:
            for layers in args.layers:
                runs += [train(name, layers, task, seed, args.epochs) for seed in range(args.seeds)]
        print(f"{dataset}: {len(runs)} trainings, {time.perf_counter() - begin:.0f} s", flush=True)
    rows = table(runs, args.draws)
    for run in runs:  # JSON has no infinity
        for when in ("initial", "middle"):
            run[when] = {name: value if np.isfinite(value) else None for name, value in run[when].items()}
    device = describe_device(torch.device(args.device))
    settings = {"epochs": args.epochs, "lr": 0.005, "weight_decay": 5e-4, "draws": args.draws}
    write_record(
        args.out, {"settings": settings, "device": device, "versions": versions(), "table": rows, "trainings": runs}
    )
    print("| measure | when | rank correlation | 95 % interval |\n|---|---|---|---|")
    for row in rows:
        interval = f"{row['low']:+.2f} to {row['high']:+.2f}"
        print(f"| `{row['measure']}` | {row['when']} | {row['correlation']:+.2f} | {interval} |")


if __name__ == "__main__":
    main()
