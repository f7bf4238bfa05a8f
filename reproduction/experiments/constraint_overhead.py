"""What the energy constraint costs: epochs of a 64-layer network with and without it, in turns, in one process.

    python -m reproduction.experiments.constraint_overhead [--out reproduction/results/constraint/overhead.json]

An epoch is a training step and a validation pass, as `fit` makes them. EGNN and GCNII leave their fused stack when a
hook wants to see every layer; their epoch layer by layer, with hooks that do nothing, is measured beside it, to tell
the two costs apart. `--model pyg-gcn` is PyTorch Geometric's own GCN in a plain loop. Seconds are those of the
processor as well as of the clock: others may be using the machine.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch_geometric.nn import GCN

from graphjoule import EnergyConstraint, load_recipe, load_task
from graphjoule.training import SeedBatch, architecture_of, describe_device, resolve_device, versions
from reproduction.experiments.record import write_record

SIDES = {"plain": {}, "hooks alone": {}, "constrained": {"terms.energy.method": "augmented_lagrangian"}}


class PlainLoop:
    """PyG's GCN and a training loop as anybody writes it, with the same epoch as `SeedBatch`."""

    def __init__(self, side, given, task):
        self.model = GCN(task.num_features, 64, given.layers, task.out_channels, dropout=0.5).to(task.targets.device)
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        self.inputs = task.features.to_dense(), task.graph.edge_index
        self.labels, self.split = task.targets, task.split("public", 0)
        if side == "hooks alone":
            for conv in self.model.convs:
                conv.register_forward_hook(lambda module, inputs, output: None)
        self.constraint = None
        if side == "constrained":
            self.constraint = EnergyConstraint(self.model, task.graph, layers="convs.*", rho=0.1)

    def loss(self, nodes):
        """Cross entropy of some nodes."""
        return F.cross_entropy(self.model(*self.inputs)[nodes], self.labels[nodes])

    def train_epoch(self):
        """A training step and a validation pass."""
        self.model.train()
        self.optimiser.zero_grad()
        loss = self.loss(self.split.train)
        (loss if self.constraint is None else loss + self.constraint()).backward()
        self.optimiser.step()
        if self.constraint is not None:
            self.constraint.update()
        self.model.eval()
        with torch.no_grad():
            self.loss(self.split.val)


def make(side, given, task):
    """The runs of one side."""
    if given.model == "pyg-gcn":
        return PlainLoop(side, given, task)
    recipe = load_recipe(given.model, task.name, given.layers, {**SIDES[side], "epochs": 1000}).with_split_of(task)
    seeds = list(range(given.runs))
    runs = SeedBatch(
        architecture_of(recipe), recipe, task, seeds, [task.split(recipe.data.split, seed) for seed in seeds]
    )
    if side == "hooks alone":
        for conv in runs.model.convs:
            conv.register_forward_hook(lambda module, inputs, output: None)
    return runs


def seconds(runs, device):
    """Clock and processor seconds of one epoch."""
    begin, begin_cpu = time.perf_counter(), time.process_time()
    runs.train_epoch()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin, time.process_time() - begin_cpu


def main():
    """Measure, print, and write the record if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--dataset", default="cora")
    parser.add_argument("--layers", type=int, default=64)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="write the record to this JSON file")
    given = parser.parse_args()

    device = resolve_device(given.device)
    task = load_task(given.dataset, given.data_root).to(device)
    sides = {side: make(side, given, task) for side in SIDES}
    for runs in sides.values():  # what is made once per graph, and cold caches
        seconds(runs, device)
    turns = [{side: seconds(runs, device) for side, runs in sides.items()} for _ in range(given.repeats)]
    record = {name: getattr(given, name) for name in ("model", "dataset", "layers", "runs", "repeats")}
    record |= {"device": describe_device(device), "threads": torch.get_num_threads(), "versions": versions()}
    for clock, kind in enumerate(("wall", "processor")):
        record[kind] = {
            side: {
                "ms": round(1e3 * statistics.median(turn[side][clock] for turn in turns), 2),
                "cost": round(statistics.median(turn[side][clock] / turn["plain"][clock] for turn in turns) - 1, 3),
            }
            for side in SIDES
        }
        words = ", ".join(
            f"{side} {row['ms']:.0f} ms ({100 * row['cost']:+.0f} %)" for side, row in record[kind].items()
        )
        print(f"{given.model}, {given.layers} layers, {given.dataset}, {given.runs} at once, {kind}: {words}")
    if given.out is not None:
        write_record(given.out, record)


if __name__ == "__main__":
    main()
