"""Memory and traffic of a training over 1, 2 and 4 processes against the formulas of docs/distributed.md.

    python -m reproduction.experiments.distributed_memory [--out reproduction/results/distributed/memory.json]
    python -m reproduction.experiments.distributed_memory --default-malloc --graphs ring --out FILE

Two graphs of the size of ogbn-arxiv: one drawn without any locality, where almost every node of another process is in
the halo, and a ring of nodes that know their near ones, where almost none is. EGNN, dense features, one run, on CPUs.
A process's memory is its resident size at its peak, less what it had before it loaded its part.
"""

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from graphjoule.graph import Propagation
from graphjoule.parallel import PartBatch, joined_processes, launch, load_part, read_partition, write_partition
from graphjoule.tasks import Task
from graphjoule.training import architecture_of, describe_device, load_recipe, versions
from reproduction.bench import CitationGraph
from reproduction.experiments.record import write_record

NODES, EDGES, FEATURES, LAYERS, WIDTH, EPOCHS = 169_343, 1_157_799, 128, 16, 64, 2


@dataclass(frozen=True)
class Part:
    """What the formulas take of a part: rows, halo rows, rows sent, entries of ``P``, and the model's sizes."""

    nodes: int
    halo: int
    sent: int
    entries: int
    features: int
    width: int
    layers: int
    parameters: int

    def held_bytes(self) -> int:
        """Graph (five numbers per entry, and some per node), features, labels and split, all the time."""
        graph = 20 * self.entries + 44 * self.nodes + 8 * (self.nodes + self.halo) + 8 * self.sent
        return graph + 4 * self.nodes * self.features + 16 * self.nodes

    def step_bytes(self) -> int:
        """What a training step adds at its peak.

        The dropped features and their mask; an activation per layer and ten more (X_0, the gradients of it and of the
        layer, three buffers, four for the hashes of a mask); the layer's entries of ``S``; a layer's rows with those of
        the halo, and the messages; eight copies of the parameters.
        """
        activation, channels = 4 * self.nodes * self.width, 4 * self.width
        kept = 8 * self.nodes * self.features + (self.layers + 10) * activation
        fetched = channels * (self.nodes + 2 * self.halo + self.sent) if self.halo else 0
        return kept + 4 * self.entries + fetched + 8 * 4 * self.parameters

    def bytes(self) -> int:
        """Peak bytes of the process."""
        return self.held_bytes() + self.step_bytes()

    def received_bytes(self) -> int:
        """Bytes that come from others in an epoch: each layer forward, backward and in evaluation."""
        return 3 * self.layers * self.halo * 4 * self.width


def ring_of_neighbours() -> Task:
    """Every node knows seven of the twenty nodes after it, in a ring: a graph with locality."""
    generator = torch.Generator().manual_seed(0)
    steps = torch.rand(NODES, 20, generator=generator).argsort(dim=1)[:, : EDGES // NODES + 1] + 1
    row = torch.arange(NODES)[:, None].expand_as(steps).flatten()
    col = (row + steps.flatten()) % NODES
    like = CitationGraph(NODES, 1000, FEATURES).task("ring")
    graph = Propagation.from_edge_index(torch.stack([row, col]), num_nodes=NODES, symmetrize=True)
    return Task("ring", like.features, graph, like.targets, like.objective, like.fixed_splits, "public")


GRAPHS = {"random": lambda: CitationGraph(NODES, EDGES, FEATURES).task("random"), "ring": ring_of_neighbours}


def resident(field):
    """Bytes that the system says this process has (`VmRSS`) or had at most (`VmHWM`)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measure_rank(parts, out):
    """One process: load, train, write what was measured."""
    with joined_processes("cpu") as (group, _):
        gc.collect()
        before = resident("VmRSS")
        task = load_part(parts, group.rank, group)
        recipe = load_recipe(
            "egnn", "synthetic", LAYERS, {"split": "public", "hidden_channels": WIDTH, "epochs": EPOCHS}
        )
        runs = PartBatch(architecture_of(recipe), recipe, task, [0], [task.split("public")])
        gc.collect()
        held = resident("VmRSS") - before
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        received = 0
        swap = group.swap_rows

        def counted(rows, send, receive):
            nonlocal received
            received += sum(receive) * rows.size(1) * rows.itemsize
            return swap(rows, send, receive)

        group.swap_rows = counted
        begin = time.perf_counter()
        for _ in range(EPOCHS):
            runs.train_epoch()
        seconds = (time.perf_counter() - begin) / EPOCHS
        graph = task.graph
        sizes = graph.num_nodes, graph.halo.num_nodes, len(graph.halo.send), graph.col.numel()
        part = Part(*sizes, task.num_features, WIDTH, LAYERS, runs.layout.size)
        found = {
            "part": asdict(part),
            "peak_bytes": resident("VmHWM") - before,
            "held_bytes": held,
            "received_bytes": received // EPOCHS,
            "seconds": seconds,
            "loss": float(runs.curve[0, EPOCHS - 1, 0]),
        }
    write_record(out / f"rank-{os.environ['RANK']}.json", found)


def measure(name, folder, sizes):
    """Rows of one graph: cut it, train it in each number of processes, and compare."""
    task = GRAPHS[name]()
    for size in sizes:
        parts = folder / f"{name}-{size}"
        write_partition(task, size, parts, "blocks")
    del task
    for size in sizes:
        parts = folder / f"{name}-{size}"
        command = [sys.executable, "-m", "reproduction.experiments.distributed_memory", "--rank", str(parts)]
        if (ending := launch(command, size)).code:
            sys.exit(ending.sentence(size))
        for rank in range(size):
            found = json.loads((parts / f"rank-{rank}.json").read_text())
            part = Part(**found.pop("part"))
            yield {
                "graph": name,
                "processes": size,
                "rank": rank,
                "cut_edges": read_partition(parts).num_cut_edges,
                **asdict(part),
                **found,
                "formula_bytes": part.bytes(),
                "formula_received_bytes": part.received_bytes(),
                "ratio": found["peak_bytes"] / part.bytes(),
            }


def main():
    """Measure, print a table, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS), choices=list(GRAPHS))
    parser.add_argument("--default-malloc", action="store_true", help="leave MALLOC_MMAP_THRESHOLD_ as it is")
    parser.add_argument("--out", type=Path, default=Path("reproduction/results/distributed/memory.json"))
    given = parser.parse_args()
    if given.rank is not None:
        measure_rank(given.rank, given.rank)
        return
    if not given.default_malloc:
        # Else glibc keeps freed blocks of less than 32 MiB for later, and what is resident tells more of it than of us.
        os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in given.graphs:
            for row in measure(name, Path(folder), given.processes):
                rows.append(row)
                print(
                    f"{row['graph']}, process {row['rank']} of {row['processes']}: {row['nodes']} nodes, "
                    f"{row['halo']} in the halo; peak {row['peak_bytes'] / 2**20:.0f} MiB, formula "
                    f"{row['formula_bytes'] / 2**20:.0f} MiB ({row['ratio']:.2f}); received "
                    f"{row['received_bytes'] / 2**20:.1f} MiB per epoch, formula "
                    f"{row['formula_received_bytes'] / 2**20:.1f}; {row['seconds']:.1f} s per epoch",
                    flush=True,
                )
    about = {"layers": LAYERS, "width": WIDTH, "features": FEATURES, "epochs": EPOCHS, "versions": versions()}
    about["malloc_mmap_threshold"] = os.environ.get("MALLOC_MMAP_THRESHOLD_")
    write_record(given.out, about | {"device": describe_device(torch.device("cpu")), "rows": rows})


if __name__ == "__main__":
    main()
