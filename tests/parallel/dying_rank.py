"""A rank that kills itself before an epoch: ``python dying_rank.py JOB PARTS RANK EPOCH``."""

import os
import signal
import sys

from graphjoule.cli import main
from graphjoule.training.seed_batch import SeedBatch

_train_epoch = SeedBatch.train_epoch


def train_or_die(batch: SeedBatch) -> None:
    if os.environ["RANK"] == rank and int(batch.epoch) == epoch:
        os.kill(os.getpid(), signal.SIGKILL)
    _train_epoch(batch)


if __name__ == "__main__":
    job, parts, rank, number = sys.argv[1:]
    epoch = int(number)
    SeedBatch.train_epoch = train_or_die
    sys.argv = ["graphjoule", "rank", job, parts]
    main()
