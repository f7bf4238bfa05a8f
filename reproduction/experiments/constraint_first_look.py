r"""A 16-layer GCN on Cora with and without the energy constraint: accuracy, limits, energies and ranks by layer.

    python -m reproduction.experiments.constraint_first_look CASE \
        --out reproduction/results/constraint/first-look-CASE.json

A first look on a CPU with few seeds and epochs, to see what the constraint does, not how good it can get.
"""

import argparse
import statistics
from pathlib import Path

from graphjoule import Trace, diagnose, fit, limits, load_recipe, load_task
from graphjoule.graph import normalize_rows
from graphjoule.training import describe_device, resolve_device, versions
from reproduction.experiments.record import write_record

AL = "augmented_lagrangian"
CASES = {
    "plain": {},
    "c_min-0.2": {"terms.energy.method": AL, "terms.energy.c_min": 0.2},
    "c_min-0.9": {"terms.energy.method": AL, "terms.energy.c_min": 0.9},
    "plain-no-dropout": {"dropout": 0.0},
    "c_min-0.9-no-dropout": {"terms.energy.method": AL, "terms.energy.c_min": 0.9, "dropout": 0.0},
}
MEASURES = ("energy", "norm", "effective_rank")


def look(model, task, recipe):
    """What the instruments say about one selected model, in evaluation mode."""
    x = normalize_rows(task.features) if recipe.data.normalize_features else task.features
    trace = Trace.of(model, task.graph, (x, task.graph), MEASURES, watch=["convs.*"])
    rows = trace.select(*(f"convs.{k}" for k in range(recipe.model.num_layers - 1)))  # the last gives class scores
    checked = {c: limits(rows, c, 1.0) for c in (0.2, 0.9)}
    return {
        **{name: [float(f"{layer[name]:.4g}") for layer in rows.layers] for name in MEASURES},
        "layers_outside": {f"c_min = {c}": len(found.broken) for c, found in checked.items()},
        "verdict": diagnose(trace).verdict,
    }


def main():
    """Train one case, look at its models, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, help="write the record to this JSON file")
    given = parser.parse_args()

    task = load_task("cora", given.data_root)
    recipe = load_recipe("gcn", "cora", given.layers, {**CASES[given.case], "epochs": given.epochs})
    result = fit(recipe, task, range(given.seeds), device="cpu")
    record = {
        "case": given.case,
        "recipe": recipe.settings(),
        "test_accuracy": [run.test_score for run in result.records],
        "val_accuracy": [run.val_score for run in result.records],
        "selected_epoch": [run.selected_epoch for run in result.records],
        "seconds": round(sum(run.seconds for run in result.records), 1),
        "models": [look(model, task, recipe) for model in result.models],
        "device": describe_device(resolve_device("cpu")),
        "versions": versions(),
    }
    print(f"{given.case}: test {[round(100 * a, 1) for a in record['test_accuracy']]}, mean "
          f"{100 * statistics.fmean(record['test_accuracy']):.1f} %")  # fmt: skip
    for model in record["models"]:
        print(f"  {model['verdict']}; outside: {model['layers_outside']}; rank {model['effective_rank']}")
    if given.out is not None:
        write_record(given.out, record)


if __name__ == "__main__":
    main()
