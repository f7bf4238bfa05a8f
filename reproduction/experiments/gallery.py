"""Twelve well-known architectures at 2 to 64 layers on Cora: energy, rank and reach, at initialisation and trained.

    python -m reproduction.experiments.gallery --device cuda --out reproduction/results/gallery

A line per architecture, depth and seed in ``gallery.jsonl``; a second call goes on where the first stopped, and calls
with other `--models` may run at once. Trainings are short (100 epochs): this shows what depth does to each
architecture as it comes, it does not rank them. Layers of PyG stand in one plain stack of width 64; APPNP, GCNII and
EGNN are this package's, with the settings of their recipes for Cora.
"""

from __future__ import annotations

import argparse
import copy
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.utils import degree

from graphjoule import Trace, load_recipe, load_task
from graphjoule.tasks import Task
from graphjoule.trace import reach
from graphjoule.training import build_model, resolve_device
from reproduction.experiments.record import Cells
from reproduction.pages.gallery import ARCHITECTURES

__all__ = ["ARCHITECTURES", "build", "main", "train"]

DEPTHS = (2, 4, 8, 16, 32, 64)
WIDTH, HEADS, DROPOUT = 64, 8, 0.5
MEASURES = ("energy", "norm", "rayleigh", "effective_rank", "rank_one_distance")
_LR, _WEIGHT_DECAY, _PROBES, _VALIDATE_EVERY = 0.005, 5e-4, 32, 5


class Layer(nn.Module):
    """``act(norm(conv(dropout(x))))``: one layer of a stack, so that a trace sees what the next layer sees."""

    def __init__(self, conv: nn.Module, act: nn.Module, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.conv, self.act, self.norm, self.dropout = conv, act, norm, dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Node features of the next layer."""
        x = F.dropout(x, self.dropout, self.training)
        return self.act(self.norm(self.conv(x, edge_index)))  # type: ignore[no-any-return]


class Stack(nn.Module):
    """A linear map to the width, the layers, and a linear map to the classes."""

    def __init__(self, in_channels: int, out_channels: int, convs: list[Layer]) -> None:
        super().__init__()
        self.encoder = nn.Linear(in_channels, WIDTH)
        self.convs = nn.ModuleList(convs)
        self.head = nn.Linear(WIDTH, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Scores of every node."""
        x = self.encoder(F.dropout(x, DROPOUT, self.training)).relu()
        for conv in self.convs:
            x = conv(x, edge_index)
        return self.head(x)  # type: ignore[no-any-return]

    def penalty(self) -> Tensor:
        """What it adds to the loss: nothing."""
        return self.head.weight.new_zeros(())


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def _gps() -> nn.Module:
    """Attention that is linear in the nodes, as 2,708 squared times 64 layers would be the whole cost."""
    return pyg.GPSConv(WIDTH, pyg.GINConv(_mlp()), heads=4, dropout=DROPOUT, attn_type="performer")


def _pna(in_degree: Tensor) -> nn.Module:
    aggregators, scalers = ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]
    return pyg.PNAConv(WIDTH, WIDTH, aggregators, scalers, deg=torch.bincount(in_degree.long()))


def _adgn() -> nn.Module:
    phi = pyg.GCNConv(WIDTH, WIDTH, bias=False)
    return pyg.AntiSymmetricConv(WIDTH, phi, num_iters=1, act="tanh")


# Of PyG: a layer, the activation after it, and whether batch normalisation stands between the two.
_LAYERS: dict[str, tuple[Callable[[Tensor], nn.Module], type[nn.Module], bool]] = {
    "GCN": (lambda deg: pyg.GCNConv(WIDTH, WIDTH), nn.ReLU, False),
    "GAT": (lambda deg: pyg.GATConv(WIDTH, WIDTH // HEADS, HEADS), nn.ELU, False),
    "GATv2": (lambda deg: pyg.GATv2Conv(WIDTH, WIDTH // HEADS, HEADS), nn.ELU, False),
    "GIN": (lambda deg: pyg.GINConv(_mlp()), nn.ReLU, True),
    "SAGE": (lambda deg: pyg.SAGEConv(WIDTH, WIDTH), nn.ReLU, False),
    "GPS": (lambda deg: _gps(), nn.Identity, False),
    "A-DGN": (lambda deg: _adgn(), nn.Identity, False),
    "TransformerConv": (lambda deg: pyg.TransformerConv(WIDTH, WIDTH // HEADS, HEADS), nn.ReLU, False),
    "PNA": (_pna, nn.ReLU, True),
}
_RESIDUAL = ("GPS", "A-DGN")  # dropout before each layer would drop what the layers before have added up
_OWN = {"APPNP": "appnp", "GCNII": "gcnii", "EGNN": "egnn"}


def build(name: str, layers: int, task: Task, seed: int) -> tuple[nn.Module, tuple[Any, Any]]:
    """A network with so many layers, and what it is called with: dense features with rows that add up to one."""
    features = task.features if isinstance(task.features, Tensor) else task.features.to_dense()
    features = features / features.sum(dim=1, keepdim=True).clamp(min=1e-12)
    torch.manual_seed(seed)
    if name in _OWN:
        recipe = load_recipe(_OWN[name], task.name, layers)
        return build_model(recipe, task, seed=seed).to(features.device), (features, task.graph)
    make, act, is_normed = _LAYERS[name]
    in_degree = degree(task.graph.edge_index[1], task.graph.num_nodes).cpu()
    shared = make(in_degree) if name == "A-DGN" else None  # its paper has one weight for all layers
    norms = [nn.BatchNorm1d(WIDTH) if is_normed else nn.Identity() for _ in range(layers)]
    dropout = 0.0 if name in _RESIDUAL else DROPOUT
    convs = [Layer(shared or make(in_degree), act(), norm, dropout) for norm in norms]
    model = Stack(features.size(1), task.out_channels, convs).to(features.device)
    return model, (features, task.graph.edge_index)


def look(model: nn.Module, task: Task, inputs: tuple[Any, Any]) -> dict[str, Any]:
    """Energy by its own operator and rank of every layer, and the reach of the last; what is not finite is None."""
    rows = Trace.of(model, None, inputs, MEASURES, watch=["convs.*"]).layers
    found = {name: [_number(row[name]) for row in rows] for name in MEASURES}
    source = "encoder" if hasattr(model, "encoder") else "second"  # the input of the first graph layer
    seen = reach(model, task.graph, inputs, rows[-1].name, source=source, num_probes=_PROBES)[rows[-1].name]
    far = {"mean": _number(seen.mean), "error": _number(seen.mean_error), "range": seen.range()}
    total = seen.elsewhere + float(seen.influence.sum())
    far["elsewhere"] = _number(seen.elsewhere / total if total else math.nan)
    return {**found, "reach": far if far["mean"] is not None else None}


def _number(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def train(name: str, layers: int, task: Task, seed: int, epochs: int) -> dict[str, Any]:
    """One cell: looked at before the first step and at the epoch that validation chose."""
    model, inputs = build(name, layers, task, seed)
    split, targets = task.split(seed=0), task.targets
    optimizer = torch.optim.Adam(model.parameters(), lr=_LR, weight_decay=_WEIGHT_DECAY)
    row: dict[str, Any] = {"model": name, "layers": layers, "seed": seed}
    row["initial"] = look(model, task, inputs)
    best, kept = (-1.0, math.nan, 0), copy.deepcopy(model.state_dict())
    for epoch in range(1, epochs + 1):
        model.train()
        loss = F.cross_entropy(model(*inputs)[split.train], targets[split.train]) + model.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % _VALIDATE_EVERY == 0 or epoch == epochs:
            model.eval()
            with torch.no_grad():
                right = (model(*inputs).argmax(dim=1) == targets).double()
            val = float(right[split.val].mean())
            if val > best[0]:  # the first of equals: the test split chooses nothing
                best = val, float(right[split.test].mean()), epoch
                kept = copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)
    row["trained"] = look(model, task, inputs)
    return {**row, "val_accuracy": best[0], "test_accuracy": best[1], "best_epoch": best[2]}


def main() -> None:
    """Train what is asked for and not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("reproduction/results/gallery"))
    parser.add_argument("--models", nargs="+", choices=ARCHITECTURES, default=list(ARCHITECTURES), metavar="NAME")
    parser.add_argument("--layers", nargs="+", type=int, default=list(DEPTHS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--dataset", default="cora")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no cell after so many seconds")
    args = parser.parse_args()
    device = resolve_device(args.device)
    task = load_task(args.dataset).to(device)
    cells = Cells(args.out / "gallery.jsonl", args.seconds, device)
    warnings.filterwarnings("ignore", message=".*sparse.*", category=UserWarning)
    for seed in range(args.seeds):
        for layers in args.layers:  # the shallow ones first: a run that is cut has whole rows of the table
            for name in args.models:
                key = f"{name} {layers} seed {seed}"
                make = lambda n=name, d=layers, s=seed: train(n, d, task, s, args.epochs)  # noqa: E731
                cells.get(key, {"epochs": args.epochs, "dataset": args.dataset}, make)


if __name__ == "__main__":
    main()
