"""Which of the options about several processes go together, and which graph they name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from graphjoule.cli.source import GraphSource
from graphjoule.errors import GraphjouleError
from graphjoule.parallel.clusters import check_shares
from graphjoule.parallel.description import read_partition
from graphjoule.tasks import DATASETS
from graphjoule.training.recipe import Recipe


def check_processes(processes: int | None, distributed: bool, parts: Path | None) -> None:
    """Refuse options that contradict each other.

    Whether processes without parts can train depends on the recipe, see `check_clustered`.
    """
    if distributed and processes is not None:
        raise GraphjouleError(
            f"--distributed and --processes {processes} contradict each other: the one is for processes that torchrun "
            "starts, the other starts them."
        )
    if parts is not None and not distributed and processes is None:
        raise GraphjouleError(f"--parts is {parts}, but it is for --distributed or --processes, which is not given.")


def check_clustered(recipe: Recipe, processes: int | None, distributed: bool, parts: Path | None) -> None:
    """Refuse parts of a graph where every process needs all of it to take clusters from, and none where it does not."""
    if recipe.train.clusters is not None and parts is not None:
        raise GraphjouleError(
            f"--parts is {parts}, but the recipe has clusters, for which every process reads the whole graph; leave "
            "one of the two out."
        )
    if recipe.train.clusters is not None and processes is not None:
        check_shares(recipe.train.clusters, processes)
    if recipe.train.clusters is None and distributed and parts is None:
        raise GraphjouleError("--distributed needs --parts: the folder that `graphjoule partition` has made.")


def source_beside_parts(source: GraphSource, distributed: bool, parts: Path | None) -> tuple[GraphSource, str]:
    """Which graph, and what its data are called, where a partition may say so instead of the options.

    With `distributed` the data are in the folder of the parts, so no other data may be asked for. Without, the whole
    graph is read too; where no option names it, the partition of a dataset does.
    """
    given = [name for name in ("dataset", "nodes", "npz") if getattr(source, name) is not None]
    if parts is None or (given and not distributed):
        return source, source.name
    if given:
        raise GraphjouleError(
            f"--{given[0]} and --distributed contradict each other: the data are in the folder of --parts."
        )
    name = read_partition(parts).data.name
    if distributed:
        return source, name
    if name not in DATASETS:
        raise GraphjouleError(
            f"{parts} is a partition of {name}, which is no dataset; name its files too, with --nodes or --npz."
        )
    return replace(source, dataset=name), name
