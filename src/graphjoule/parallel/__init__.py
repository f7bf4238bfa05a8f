"""One graph over many processes, clusters of its nodes, and evaluation in blocks: for graphs larger than a memory."""

from graphjoule.parallel.graph import Halo, PartedPropagation
from graphjoule.parallel.group import ProcessGroup
from graphjoule.parallel.partition import (
    Partition,
    SplitPart,
    TaskPart,
    cut_edges,
    cut_nodes,
    load_part,
    read_partition,
    write_partition,
)
from graphjoule.parallel.ranks import joined_processes, launch
from graphjoule.parallel.streaming import evaluate_in_blocks
from graphjoule.parallel.trainer import PartBatch

__all__ = [
    "Halo",
    "PartBatch",
    "PartedPropagation",
    "Partition",
    "ProcessGroup",
    "SplitPart",
    "TaskPart",
    "cut_edges",
    "cut_nodes",
    "evaluate_in_blocks",
    "joined_processes",
    "launch",
    "load_part",
    "read_partition",
    "write_partition",
]
