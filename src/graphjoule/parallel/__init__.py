"""One graph over many processes: each has some nodes, and training is that of one process that has them all."""

from graphjoule.parallel.description import Partition, read_partition
from graphjoule.parallel.launch import launch
from graphjoule.parallel.operator import Halo, PartedPropagation
from graphjoule.parallel.part_files import load_part, write_partition
from graphjoule.parallel.partition import cut_edges, cut_nodes
from graphjoule.parallel.process_group import ProcessGroup
from graphjoule.parallel.start import joined_processes
from graphjoule.parallel.task import SplitPart, TaskPart

__all__ = [
    "Halo",
    "PartedPropagation",
    "Partition",
    "ProcessGroup",
    "SplitPart",
    "TaskPart",
    "cut_edges",
    "cut_nodes",
    "joined_processes",
    "launch",
    "load_part",
    "read_partition",
    "write_partition",
]
