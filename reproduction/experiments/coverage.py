"""Do sets with a coverage hold the truth of test nodes as often as they promise, after validation chose the epoch?

    python -m reproduction.experiments.coverage --dataset cora --split stratified-20-60 \
        --out reproduction/results/coverage/cora-stratified.json

Every split trains some runs. `alone` is the share of test nodes whose score is within the threshold of one run,
`together` that of the mean of the runs of a split with the mean of their thresholds; `sets` is what sets hold, which
always have the predicted class. Standard errors are over splits.
"""

import argparse
import statistics
from pathlib import Path

import torch

from graphjoule import fit, load_recipe, load_task
from graphjoule.graph import normalize_rows
from graphjoule.training import Calibration, describe_device, prediction_sets, resolve_device, versions
from reproduction.experiments.record import write_record

COVERAGES = (0.8, 0.9, 0.95)


@torch.no_grad()
def measure_split(task, models, x, split):
    """Shares of one split's test nodes that are held, and the calibration error before and after the temperature."""
    objective, ece = task.objective, task.objective.metric("ece")
    outputs = [model(x, task.graph).double() for model in models]
    found = [Calibration.of(objective, output[split.val], task.targets[split.val]) for output in outputs]
    truth = task.targets[split.test]
    plain = [objective.prediction(output[split.test]) for output in outputs]
    warm = [objective.prediction(each.tempered(out[split.test])) for each, out in zip(found, outputs, strict=True)]

    def held(prediction, threshold):
        return float((1 - prediction.gather(1, truth[:, None]) <= threshold).double().mean())

    measured = {
        "accuracy": [float((p.argmax(dim=1) == truth).double().mean()) for p in plain],
        "ece": [float(ece.value(p, truth)) for p in plain],
        "ece_calibrated": [float(ece.value(p, truth)) for p in warm],
        "temperature": [each.temperature for each in found],
    }
    for coverage in COVERAGES:
        thresholds = [each.threshold(coverage) for each in found]
        sets = [prediction_sets(objective, p, t) for p, t in zip(plain, thresholds, strict=True)]
        mean = torch.stack(plain).mean(dim=0), torch.stack(thresholds).mean(dim=0)
        measured |= {
            f"alone_{coverage}": [held(p, t) for p, t in zip(plain, thresholds, strict=True)],
            f"together_{coverage}": [held(*mean)],
            f"sets_{coverage}": [float(each.gather(1, truth[:, None]).double().mean()) for each in sets],
            f"size_{coverage}": [float(each.sum(dim=1).double().mean()) for each in sets],
        }
    return {name: statistics.mean(values) for name, values in measured.items()}


def main():
    """Train, measure, write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--split", default="stratified-10-60")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    task, rows = load_task(given.dataset), []
    for number in range(given.splits):
        settings = {"epochs": given.epochs, "data.split": given.split, "data.split_seed": number}
        recipe = load_recipe("gcn", task.name, 2, settings)
        models = [model.eval() for model in fit(recipe, task, range(given.runs), device="cpu").models]
        x = normalize_rows(task.features) if recipe.data.normalize_features else task.features
        split = task.split(given.split, number)
        rows.append(measure_split(task, models, x, split))
        print(number, rows[-1], flush=True)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    record = {
        "dataset": given.dataset,
        "recipe": recipe.settings(),
        "num_val": split.val.numel(),
        "num_test": split.test.numel(),
        "splits": given.splits,
        "runs_per_split": given.runs,
        "mean": {name: statistics.mean(values) for name, values in columns.items()},
        "standard_error": {name: statistics.stdev(v) / given.splits**0.5 for name, v in columns.items()},
        "device": describe_device(resolve_device("cpu")),
        "versions": versions(),
    }
    write_record(given.out, record)


if __name__ == "__main__":
    main()
