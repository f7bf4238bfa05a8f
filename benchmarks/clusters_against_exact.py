"""What training on clusters loses against exact training: the same recipe, both ways, test accuracy read once.

    python benchmarks/clusters_against_exact.py --dataset physics --layers 2 --clusters 50 --per-step 5 \
        --out results/clusters/physics-2.json

Epochs are capped so that it ends in minutes on a CPU; an epoch on clusters makes many steps, an exact one makes one.
"""

import argparse
import statistics
from pathlib import Path

from graphjoule import fit, load_recipe, load_task
from graphjoule.environment import describe_device, resolve_device, versions
from graphjoule.files import ensure_folder, write_json
from graphjoule.partition import cut_edges, cut_nodes


def train(task, given, settings):
    """All seeds by one way of training, and what came of them."""
    recipe = load_recipe(given.model, task.name, given.layers, {"epochs": given.epochs, **settings})
    result = fit(recipe, task, range(given.seeds), device="cpu")
    runs = result.records
    accuracies = [run.test_accuracy for run in runs]
    return {
        "recipe": recipe.settings(),
        "test_accuracy": accuracies,
        "test_mean": statistics.mean(accuracies),
        "val_accuracy": [run.val_accuracy for run in runs],
        "val_loss": [run.val_loss for run in runs],
        "selected_epoch": [run.selected_epoch for run in runs],
        "epochs_run": [run.epochs_run for run in runs],
        "seconds": [round(run.seconds, 1) for run in runs],
        "run_ids": [run.run_id for run in runs],
    }


def main():
    """Train both ways and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="physics")
    parser.add_argument("--model", default="egnn")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--cluster-epochs", type=int, help="epochs on clusters, which have more steps; as --epochs")
    parser.add_argument("--clusters", type=int, default=50)
    parser.add_argument("--per-step", type=int, default=5)
    parser.add_argument("--validate-every", type=int, default=5)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, help="write the record to this JSON file")
    given = parser.parse_args()

    task = load_task(given.dataset, given.data_root)
    clusters = {
        "clusters": given.clusters,
        "clusters.per_step": given.per_step,
        "clusters.validate_every": given.validate_every,
        "epochs": given.cluster_epochs or given.epochs,
    }
    cut = cut_edges(task.graph, cut_nodes(task.graph, given.clusters))
    record = {
        "exact": train(task, given, {}),
        "clusters": train(task, given, clusters),
        "cut_edges": cut,
        "cut_share": cut / task.graph.num_edges,
        "device": describe_device(resolve_device("cpu")),
        "versions": versions(),
    }
    record["lost"] = record["exact"]["test_mean"] - record["clusters"]["test_mean"]
    for way in ("exact", "clusters"):
        accuracies = ", ".join(f"{100 * value:.2f}" for value in record[way]["test_accuracy"])
        print(f"{way}: {100 * record[way]['test_mean']:.2f} % ({accuracies}), {sum(record[way]['seconds']):.0f} s")
    print(
        f"lost: {100 * record['lost']:.2f} points; {100 * record['cut_share']:.1f} % of the edges are between clusters"
    )
    if given.out:
        ensure_folder(given.out.parent)
        write_json(given.out, record)


if __name__ == "__main__":
    main()
