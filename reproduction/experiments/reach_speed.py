"""Influence per hop of a 64-layer network on Cora: random cotangents against PyG's `total_influence`, in turns.

    python -m reproduction.experiments.reach_speed --device cuda --nodes 64 --out FILE

Both measure the same network, PyG's own GCN, from its outputs to its input features, over as many nodes. PyG computes
all derivatives of a node's outputs, one node after the other; a cotangent takes one output of a node, and all nodes go
through one backward pass. So ours is faster by about the number of outputs (`--channels`: 7 classes, or 64 for the
reach of embeddings), and on a GPU by more. Both estimate the same numbers; the record has them with the standard errors
of both, because one output of a node says less than all. Seconds are those of the processor as well as of the clock:
others may be using the machine.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN
from torch_geometric.utils import total_influence

from graphjoule import load_task
from graphjoule.trace import reach
from graphjoule.training import describe_device, resolve_device, versions
from reproduction.experiments.record import write_record

HOPS = 20  # the farthest two nodes of Cora are 19 hops apart


def timed(function, device):
    """What a function returns, and its seconds by the clock and of the processor."""
    begin, begin_cpu = time.perf_counter(), time.process_time()
    found = function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return found, (time.perf_counter() - begin, time.process_time() - begin_cpu)


def main():
    """Measure, print, and write the record if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="cora")
    parser.add_argument("--layers", type=int, default=64)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--channels", type=int, help="number of outputs; by default that of the classes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, help="write the record to this JSON file")
    given = parser.parse_args()

    device, task = resolve_device(given.device), load_task(given.dataset, given.data_root)
    x, edges = task.features.to_dense().to(device), task.graph.edge_index.to(device)
    torch.manual_seed(0)
    channels = given.channels or task.out_channels
    model = GCN(task.num_features, 64, given.layers, channels).to(device).eval()
    with torch.no_grad():  # a fresh GCN of 64 layers lets nothing through; weights near the identity do
        for conv in model.convs[1:-1]:
            conv.lin.weight.copy_(torch.eye(64))
    data, graph, last = Data(x=x, edge_index=edges), task.graph.to(device), f"convs.{given.layers - 1}"

    def ours():
        return reach(model, graph, (x, edges), last, num_probes=given.nodes, seed=turn)[last]

    def theirs():
        return total_influence(model, data, HOPS, num_samples=given.nodes, average=False, device=device)

    sides = {"graphjoule": ours, "pyg": theirs}
    small = GCN(task.num_features, 8, 2, 2).to(device).eval()  # what is imported and compiled at the first call
    reach(small, graph, (x, edges), "convs.1", num_probes=2)
    total_influence(small, data, 2, num_samples=1, device=device)
    turns = []
    for turn in range(given.repeats):  # noqa: B007 - the seed of ours
        found = {side: timed(call, device) for side, call in sides.items()}
        turns.append(found)
        print({side: round(seconds[0], 2) for side, (_, seconds) in found.items()}, flush=True)
    record = {name: getattr(given, name) for name in ("dataset", "layers", "nodes", "repeats")} | {"channels": channels}
    record |= {"device": describe_device(device), "threads": torch.get_num_threads(), "versions": versions()}
    for place, kind in enumerate(("wall", "processor")):
        seconds = {side: [turn[side][1][place] for turn in turns] for side in sides}
        ratios = [theirs / ours for ours, theirs in zip(*seconds.values(), strict=True)]
        record[kind] = {side: round(statistics.median(each), 3) for side, each in seconds.items()}
        record[kind]["times_faster"] = round(statistics.median(ratios), 1)
        print(f"{kind}: {record[kind]}")
    ours_found, (theirs_found, breadth) = turns[-1]["graphjoule"][0], turns[-1]["pyg"][0]
    record["reach"] = ours_found.fields()
    errors = theirs_found.std(dim=0) / len(theirs_found) ** 0.5
    record["pyg"] = {"influence": theirs_found.mean(dim=0).tolist(), "breadth": breadth}
    record["pyg"]["standard_error"] = errors.tolist()
    print(f"mean reach {ours_found}; PyG's breadth {breadth:.3g} hops")
    if given.out is not None:
        write_record(given.out, record)


if __name__ == "__main__":
    main()
