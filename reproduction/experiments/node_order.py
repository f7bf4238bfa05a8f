"""Does the order of the nodes matter? A step of EGNN's stack with nodes in four orders, in turns, in one process.

    python -m reproduction.experiments.node_order [--device cuda] [--out reproduction/results/order/cpu.json]

Neighbours with close numbers may find each other in a cache. The orders are that of the data, reverse Cuthill-McKee,
hubs first, and a random one. A step is a forward and a backward pass with dropout, 16 layers, 64 channels.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import reverse_cuthill_mckee

from graphjoule import load_task
from graphjoule.graph import Propagation
from graphjoule.ops import describe_backend, egnn_stack, make_key
from graphjoule.training import describe_device, versions
from reproduction.bench.measure import Side, Spread, measure_sides, paired_ratio
from reproduction.bench.synthetic import PowerLawGraph
from reproduction.experiments.record import write_record

GRAPHS = ("cora", "pubmed", "physics", "power-law")
POWER_LAW = 100_000
LAYERS, WIDTH = 16, 64
ORDERS = ("as it is", "Cuthill-McKee", "hubs first", "random")


def graph_of(name):
    """A dataset's graph, or a generated one with power-law degrees."""
    return (PowerLawGraph(POWER_LAW).task(name) if name == "power-law" else load_task(name)).graph


def orders(graph):
    """The nodes in the order in which each would number them."""
    n = graph.num_nodes
    matrix = csr_array((graph.value.numpy(), graph.col.numpy(), graph.rowptr.numpy()), shape=(n, n))
    cuthill_mckee = np.array(reverse_cuthill_mckee(matrix, symmetric_mode=True))
    hubs_first = np.argsort(-np.diff(matrix.indptr), kind="stable")
    found = np.arange(n), cuthill_mckee, hubs_first, np.random.default_rng(0).permutation(n)
    return dict(zip(ORDERS, found, strict=True))


def renumbered(graph, order):
    """The same graph with its nodes in an order."""
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    edges = torch.from_numpy(number[graph.edge_index.numpy()])
    return Propagation.from_edge_index(edges, num_nodes=graph.num_nodes)


def step_of(graph, device):
    """A training step of the stack on a graph."""
    x0 = torch.randn(graph.num_nodes, WIDTH, device=device, requires_grad=True)
    weights = torch.eye(WIDTH, device=device).repeat(LAYERS, 1, 1).requires_grad_()
    shifts = torch.full((LAYERS, WIDTH), -10.0, device=device, requires_grad=True)
    keys = make_key(torch.arange(LAYERS)).to(device)

    def step():
        out = egnn_stack(x0, graph, weights, shifts, c_min=0.2, beta=0.1, p=0.5, keys=keys)
        out.sum().backward()
        x0.grad = weights.grad = shifts.grad = None

    return step


def measure(name, device, budget):
    """Milliseconds of every order, and how many times faster it is than the order of the data."""
    graph = graph_of(name)
    sides = []
    for order, nodes in orders(graph).items():
        ordered = renumbered(graph, nodes).to(device)
        sides.append(Side(order, lambda ordered=ordered: step_of(ordered, device)))
    begin = time.perf_counter()
    measure_sides(sides, device, budget)
    found = {"nodes": graph.num_nodes, "edges": graph.num_edges, "seconds": round(time.perf_counter() - begin, 1)}
    for side in sides:
        ratio = paired_ratio(sides[0], side)
        found[side.name] = {
            "ms": round(1e3 * Spread.of(side.seconds).median, 2),
            "faster": round(ratio.median, 3),
            "quartiles": [round(ratio.low, 3), round(ratio.high, 3)],
        }
    return found


def main():
    """Measure all graphs, print, and write the record if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of timed turns for a graph")
    parser.add_argument("--out", type=Path, help="write the record to this JSON file")
    given = parser.parse_args()
    device = torch.device(given.device)
    found = {}
    for name in GRAPHS:
        found[name] = measure(name, device, given.budget)
        times = (f"{order} {found[name][order]['ms']} ms, {found[name][order]['faster']} times" for order in ORDERS)
        print(f"{name}: {', '.join(times)}", flush=True)
    if given.out is not None:
        described = {"device": describe_device(device), "ops": describe_backend(device), "versions": versions()}
        write_record(given.out, {**described, "layers": LAYERS, "width": WIDTH, "graphs": found})


if __name__ == "__main__":
    main()
