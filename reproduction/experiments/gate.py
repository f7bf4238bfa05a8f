"""Whether a head that weighs all layers, by DAGNN's gate, helps EGNN; judged by validation nodes alone.

    python -m reproduction.experiments.gate --device cuda --out reproduction/results/tuned/gate.jsonl

The gate is ``sum_k sigmoid(X_k s) X_k`` over the encoder's and all layers' outputs, with one trained vector ``s`` (Liu
et al., KDD 2020), in place of the last layer's output. Both sides have the published settings and the same seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from functools import partial
from pathlib import Path

import torch
from torch import nn

from graphjoule import fit, load_recipe, load_task
from graphjoule.nn import EGNN
from graphjoule.training import describe_device, resolve_device, versions

SEEDS = [1000, 1001, 1002]  # those of `tuned.toml`: no test node is read with them


class GatedEGNN(EGNN):
    """EGNN whose head sees a weighted sum of all layers."""

    def __init__(self, in_channels, hidden_channels, out_channels, num_layers, **options):
        super().__init__(in_channels, hidden_channels, out_channels, num_layers, **options)
        self.gate = nn.Linear(self.hidden_channels, 1)

    def _forward(self, x, graph, keys):
        h = h0 = self.encoder(x, keys[0])
        total = torch.sigmoid(self.gate(h)) * h
        for conv, key in zip(self.convs, keys[1:-1], strict=True):
            h = conv(h, h0, graph, key)
            total = total + torch.sigmoid(self.gate(h)) * h
        return self.head(total, self.output_dropout, keys[-1])


def main() -> None:
    """Train both on every dataset and append a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", nargs="+", default=["cora", "pubmed"])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    for dataset in given.datasets:
        recipe, task = load_recipe("egnn", dataset, given.layers), load_task(dataset)
        options = recipe.model.options | {"hidden_channels": recipe.model.hidden_channels, "num_layers": given.layers}
        settings = {"lr": recipe.train.lr, "epochs": given.epochs, "patience": 100, "select_on": "accuracy"}
        settings["data.normalize_features"] = recipe.data.normalize_features
        settings["data.split"] = recipe.data.split
        for kind in (EGNN, GatedEGNN):
            result = fit(partial(kind, **options), task, SEEDS, settings=settings, device=given.device)
            scores = [record.val["accuracy"] for record in result.records]
            line = {"dataset": dataset, "layers": given.layers, "network": kind.__name__, "seeds": SEEDS, "val": scores}
            line |= {"epochs": [record.epochs_run for record in result.records]}
            line |= {"device": describe_device(resolve_device(given.device)), "versions": versions()}
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{dataset}, {kind.__name__}: validation {100 * statistics.fmean(scores):.2f}", flush=True)


if __name__ == "__main__":
    main()
