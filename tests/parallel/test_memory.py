"""Peak bytes of a rank against the formula of docs/distributed.md, on a small graph with every tensor counted."""

import json
import re
from pathlib import Path

import pytest

from graphjoule.parallel import load_part, write_partition
from graphjoule.training.seed_batch import Runs
from reproduction.bench import CitationGraph
from reproduction.experiments.distributed_memory import Part
from tests.ops.live_bytes import LiveBytes

from .tasks import small_recipe

LAYERS, WIDTH = 8, 32
ROOT = Path(__file__).parents[2]


def step_bytes(group, folder, recipe):
    """What the second epoch adds to what was there, the sizes of the part, and the bytes received in it."""
    task = load_part(folder, group.rank, group)
    runs = Runs(recipe, task, [0], [task.split("public")])
    runs.train_epoch()
    received, swap = [], group.swap_rows

    def counted(rows, send, receive):
        received.append(sum(receive) * rows.size(1) * rows.itemsize)
        return swap(rows, send, receive)

    group.swap_rows = counted
    with LiveBytes() as live:
        runs.train_epoch()
    halo = task.graph.halo
    sizes = task.num_nodes, halo.num_nodes, len(halo.send), task.graph.col.numel(), task.num_features
    return live.peak, (*sizes, WIDTH, LAYERS, runs.layout.size), sum(received)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_step_needs_what_the_formula_says(world, tmp_path, size):
    task = CitationGraph(6000, 24_000, num_features=32).task("synthetic")
    recipe = small_recipe("egnn", LAYERS, hidden_channels=WIDTH)
    write_partition(task, size, tmp_path, "blocks")
    for peak, sizes, received in world.run(step_bytes, size, str(tmp_path), recipe):
        part = Part(*sizes)
        # What stays from epoch to epoch was there before: of eight copies of the parameters, four.
        expected = part.step_bytes() - 4 * 4 * part.parameters
        assert peak == pytest.approx(expected, rel=0.15)
        assert received == part.received_bytes()
        assert part.nodes == pytest.approx(6000 / size, abs=1)


def test_what_the_page_tells_of_an_untouched_malloc_is_what_was_recorded():
    record = json.loads((ROOT / "reproduction/results/distributed/memory-default-malloc.json").read_text())
    assert record["malloc_mmap_threshold"] is None
    ratios: dict[int, list[float]] = {}
    for row in record["rows"]:
        ratios.setdefault(row["processes"], []).append(row["ratio"])
    page = " ".join((ROOT / "docs/distributed.md").read_text().split())
    said = re.search(
        r"with ([\d.]+) times the formula in one process, ([\d.]+) to ([\d.]+) times in 2 and ([\d.]+) to ([\d.]+)",
        page,
    )
    ends = [min(ratios[1]), min(ratios[2]), max(ratios[2]), min(ratios[4]), max(ratios[4])]
    assert list(said.groups()) == [f"{end:.2f}" for end in ends]
