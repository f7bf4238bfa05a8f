"""The picture in the README: Dirichlet energy per layer of a deep GCN and a deep EGNN, trained on the embedded digits.

python examples/energy_per_layer.py                 # train, write the record, draw
python examples/energy_per_layer.py --draw-only     # draw from the record
"""

import argparse
import json
import statistics
from pathlib import Path

import matplotlib as mpl
import torch

from graphjoule import Trace, fit, load_recipe, load_task
from graphjoule.files import write_json
from graphjoule.training import versions

mpl.use("Agg")
import matplotlib.pyplot as plt

RECORD, FIGURE = Path("reproduction/results/energy-digits-32.json"), Path("docs/images/energy-per-layer.png")
LAYERS, SEEDS = 32, range(5)
# Embeddings alone: EGNN's from the encoder on; the last layer of GCN gives class scores and is left out.
WATCHED = {"egnn": ["encoder", "convs.*"], "gcn": [f"convs.{k}" for k in range(LAYERS - 1)]}
COLOURS = {"egnn": "#0072b2", "gcn": "#d55e00"}  # Okabe and Ito's palette, safe for colour-blind eyes


def measure(name):
    """Test accuracy and energies per layer of every seed."""
    task = load_task("digits")
    recipe = load_recipe(name, "digits", LAYERS)
    result = fit(recipe, task, SEEDS, device="cpu")
    energies = [layer_energies(model, task, WATCHED[name]) for model in result.models]
    accuracy = [record.test_score for record in result.records]
    return {"recipe": recipe.model.options, "test_accuracy": accuracy, "energy": energies}


def layer_energies(model, task, watched):
    with torch.no_grad(), Trace(model, task.graph, ["energy"], watch=watched) as trace:
        model(task.features, task.graph)
    return [layer.energy for layer in trace.layers]


def draw(record):
    """Log energy over layers; the limits of the principle as a band around EGNN."""
    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    for name, colour in COLOURS.items():
        runs = record["models"][name]["energy"]
        first = 0 if name == "egnn" else 1
        accuracy = 100 * statistics.fmean(record["models"][name]["test_accuracy"])
        for run in runs:
            axes.plot(range(first, first + len(run)), run, color=colour, alpha=0.25, linewidth=1)
        median = [statistics.median(values) for values in zip(*runs, strict=True)]
        axes.plot(range(first, first + len(median)), median, color=colour, linewidth=2.4)
        place = (0.99, 0.80) if name == "egnn" else (0.68, 0.42)
        label = f"{name.upper()}: {accuracy:.0f} % of test digits right"
        axes.text(*place, label, color=colour, weight="bold", ha="right", transform=axes.transAxes)
        if name == "egnn":
            settings = record["models"][name]["recipe"]
            lower = [settings["c_min"] * before for before in median[:-1]]
            axes.fill_between(range(1, len(median)), lower, settings["c_max"] * median[0], color=colour, alpha=0.12,
                              linewidth=0, label="limits of the principle for EGNN")  # fmt: skip
    axes.set(yscale="log", xlabel="layer", ylabel="Dirichlet energy E(X)", xlim=(0, LAYERS))
    axes.set_title(f"{LAYERS} layers, handwritten digits, {len(SEEDS)} seeds (bold: median)", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right", frameon=False, fontsize=8)
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, dpi=150, metadata={"Software": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw-only", action="store_true", help="draw from the record instead of training")
    if not parser.parse_args().draw_only:
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        write_json(RECORD, {"versions": versions(), "models": {name: measure(name) for name in COLOURS}})
    draw(json.loads(RECORD.read_text()))


if __name__ == "__main__":
    main()
