"""One graph over many processes: each has some nodes, and training is that of one process that has them all."""

from graphjoule.distributed.description import Partition, read_partition
from graphjoule.distributed.operator import Halo, PartedPropagation
from graphjoule.distributed.part_files import load_part, write_partition
from graphjoule.distributed.process_group import ProcessGroup
from graphjoule.distributed.task import SplitPart, TaskPart

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
