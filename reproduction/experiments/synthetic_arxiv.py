"""Write a generated graph of ogbn-arxiv's size as the CSV folder that OGB publishes, to run the whole way from it.

    python -m reproduction.experiments.synthetic_arxiv DATA_ROOT
    graphjoule train --dataset arxiv --data-root DATA_ROOT --layers 32 --device cuda

Papers cite without regard to subject and features are noise around one centre per class, so an accuracy reached on it
says nothing about ogbn-arxiv; time and memory do.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Iterable
from pathlib import Path

from graphjoule.tasks import DATASETS, Task
from reproduction.bench import CASES

ARXIV = DATASETS["arxiv"].raw
DECIMALS = 6  # as many as OGB writes


def write_ogb(task: Task, folder: Path) -> None:
    """Write a task with dense features and a public split in OGB's layout."""
    row, col = task.graph.row(), task.graph.col
    edges = [(i, j) for i, j in zip(row.tolist(), col.tolist(), strict=True) if i < j]
    split = task.split("public")
    features = task.features.double().numpy().round(DECIMALS)
    _write(folder / "raw/num-node-list.csv.gz", [[task.num_nodes]])
    _write(folder / "raw/num-edge-list.csv.gz", [[len(edges)]])
    _write(folder / "raw/edge.csv.gz", edges)
    _write(folder / "raw/node-label.csv.gz", task.targets.view(-1, 1).tolist())
    _write(folder / "raw/node-feat.csv.gz", (line.tolist() for line in features))
    for name, part in (("train", split.train), ("valid", split.val), ("test", split.test)):
        _write(folder / "split/time" / f"{name}.csv.gz", part.view(-1, 1).tolist())


def _write(path: Path, rows: Iterable[Iterable[float]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Level 1: this is for a test, and level 9 would take minutes.
    with gzip.open(path, "wt", compresslevel=1, encoding="ascii") as stream:
        stream.writelines(",".join(map(repr, row)) + "\n" for row in rows)


def main() -> None:
    """Write the folder ``arxiv`` under the data root that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data_root", type=Path, help="a folder without ogbn-arxiv in it")
    root = parser.parse_args().data_root
    if DATASETS["arxiv"].is_present(root):
        parser.error(f"{root} holds an ogbn-arxiv already; name another folder.")
    write_ogb(CASES["arxiv-32"].graph.task("arxiv"), root / "arxiv")
    print(f"Wrote {root / 'arxiv'}; train on it with --dataset arxiv --data-root {root}")


if __name__ == "__main__":
    main()
