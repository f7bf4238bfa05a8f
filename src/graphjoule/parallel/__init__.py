"""One graph over many processes: each has some nodes, and training is that of one process that has them all."""

from graphjoule.parallel.description import Partition, read_partition
from graphjoule.parallel.operator import Halo, PartedPropagation
from graphjoule.parallel.part_files import load_part, write_partition
from graphjoule.parallel.process_group import ProcessGroup
from graphjoule.parallel.task import SplitPart, TaskPart

__all__ = [
    "Halo",
    "PartedPropagation",
    "Partition",
    "ProcessGroup",
    "SplitPart",
    "TaskPart",
    "load_part",
    "read_partition",
    "write_partition",
]
