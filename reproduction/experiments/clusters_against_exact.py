"""What training on clusters loses against exact training: the same recipe, both ways, test accuracy read once.

    python -m reproduction.experiments.clusters_against_exact --dataset physics --layers 2 --clusters 50 --per-step 5 \
        --out reproduction/results/clusters/physics-2.json

Epochs are capped so that it ends in minutes on a CPU; an epoch on clusters makes many steps, an exact one makes one.

With ``--against renormalised`` the other side is not exact training but clusters too, where each group's subgraph is
normalised anew. That is a choice of method, so it is made by validation, and the record has no test accuracy:

    python -m reproduction.experiments.clusters_against_exact --against renormalised --layers 2 --epochs 60 \
        --out reproduction/results/clusters/operator-2.json
"""

import argparse
import statistics
from pathlib import Path
from unittest.mock import patch

import torch

from graphjoule import Propagation, fit, load_recipe, load_task
from graphjoule.parallel import cut_edges, cut_nodes
from graphjoule.training import describe_device, resolve_device, versions
from reproduction.experiments.record import write_record


def renormalised_graph(graph, nodes):
    """The operator of some nodes with the degrees that they have among themselves."""
    place = torch.full((graph.num_nodes,), -1)
    place[nodes] = torch.arange(len(nodes))
    row, col, scale = graph.row(), graph.col.long(), (1 + graph.degree).sqrt()
    weight = graph.value.double() * (scale[row] * scale[col])
    inside = (place[row] >= 0) & (place[col] >= 0)
    edges = torch.stack([place[row], place[col]])[:, inside]
    return Propagation.from_edge_index(edges, weight[inside], len(nodes), dtype=graph.dtype)


def train(task, given, settings):
    """All seeds by one way of training, and what came of them."""
    recipe = load_recipe(given.model, task.name, given.layers, {"epochs": given.epochs, **settings})
    result = fit(recipe, task, range(given.seeds), device="cpu")
    runs = result.records
    accuracies = [run.test_score for run in runs]
    return {
        "recipe": recipe.settings(),
        "test_accuracy": accuracies,
        "test_mean": statistics.mean(accuracies),
        "val_accuracy": [run.val_score for run in runs],
        "val_loss": [run.val["loss"] for run in runs],
        "selected_epoch": [run.selected_epoch for run in runs],
        "epochs_run": [run.epochs_run for run in runs],
        "seconds": [round(run.seconds, 1) for run in runs],
        "run_ids": [run.run_id for run in runs],
    }


def train_renormalised(task, given, settings):
    """As `train`, on subgraphs that are normalised anew; the package has no such option, for it was worse."""
    with patch.object(Propagation, "induced", renormalised_graph):
        return train(task, given, settings)


def compare(task, given, clusters):
    """The record of both sides."""
    if given.against == "renormalised":
        sides = {
            "renormalised": train_renormalised(task, given, clusters),
            "clusters": train(task, given, clusters),
        }
        return {side: without_test(result) for side, result in sides.items()}
    record = {"exact": train(task, given, {}), "clusters": train(task, given, clusters)}
    return record | {"lost": record["exact"]["test_mean"] - record["clusters"]["test_mean"]}


def without_test(result):
    """What came of a training, but for the test labels, and for ids of runs, which do not know the operator."""
    return {name: value for name, value in result.items() if not name.startswith(("test", "run_ids"))}


def show(given, record):
    """Print both sides, by test accuracy or, where a method is chosen, by validation."""
    for side in (given.against, "clusters"):
        result, name = record[side], "test_accuracy" if given.against == "exact" else "val_accuracy"
        accuracies = ", ".join(f"{100 * value:.2f}" for value in result[name])
        mean, losses = 100 * statistics.mean(result[name]), ", ".join(f"{loss:.5f}" for loss in result["val_loss"])
        print(f"{side}: {name} {mean:.2f} % ({accuracies}), val_loss {losses}, {sum(result['seconds']):.0f} s")
    if "lost" in record:
        print(f"lost: {100 * record['lost']:.2f} points")
    print(f"{100 * record['cut_share']:.1f} % of the edges are between clusters")


def main():
    """Train both sides and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", choices=("exact", "renormalised"), default="exact", help="the other side")
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
        "train.clusters.parts": given.clusters,
        "train.clusters.per_step": given.per_step,
        "train.clusters.validate_every": given.validate_every,
        "epochs": given.cluster_epochs or given.epochs,
    }
    cut = cut_edges(task.graph, cut_nodes(task.graph, given.clusters))
    record = compare(task, given, clusters) | {
        "cut_edges": cut,
        "cut_share": cut / task.graph.num_edges,
        "device": describe_device(resolve_device("cpu")),
        "versions": versions(),
    }
    show(given, record)
    if given.out:
        write_record(given.out, record)


if __name__ == "__main__":
    main()
