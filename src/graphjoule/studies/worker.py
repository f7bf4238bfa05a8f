"""The one who does a study's work: a cell at a time, beside others who do the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.files import write_json
from graphjoule.fitting import FitResult, fit
from graphjoule.studies.energies import measure_energies
from graphjoule.studies.estimate import Pace
from graphjoule.studies.plan import Job, Plan, Tasks
from graphjoule.training import Progress
from graphjoule.training.environment import describe_device, resolve_device
from graphjoule.training.trainer import is_out_of_memory

__all__ = ["StudyProgress", "work"]

_POLL_SECONDS = 0.5  # how soon the work of a process that died is taken over


@dataclass(frozen=True)
class StudyProgress:
    """How far a study is: what a progress display shows.

    Attributes:
        job: what is trained now; None while another process has all that is left.
        num_done: runs that are recorded, by anyone.
        num_runs: runs of the whole study.
        seconds_left: a guess; None while there is nothing to judge by.
        training: how far the job's runs are; None at its beginning and at its end.
    """

    job: str | None
    num_done: int
    num_runs: int
    seconds_left: float | None
    training: Progress | None = None


def work(
    plan: Plan,
    tasks: Tasks,
    *,
    device: str = "auto",
    pace: Pace | None = None,
    checkpoint_every: int = 50,
    on_progress: Callable[[StudyProgress], None] = lambda progress: None,
) -> dict[str, str]:
    """Train what the plan lacks; safe to kill at any moment and to run in several processes at once.

    Each job is claimed before it is trained, so no two processes train one. When all that is left is claimed by others,
    this one waits: should one of them die, its claim is free and its runs go on from their last checkpoint.

    Args:
        plan: what to do.
        tasks: where to get datasets.
        device: "auto", "cpu" or "cuda".
        pace: what is known about the time of runs; it learns from the runs trained here.
        checkpoint_every: epochs between two checkpoints.
        on_progress: called at the beginning and end of every job and about once an epoch.

    Returns:
        The sentence of every job that could not be finished, by its name. Full disks are no such thing.

    Raises:
        GraphjouleError: A file could not be written.
        TrainingInterrupted: Ctrl-C; the state is saved.
    """
    pace = pace or Pace(describe_device(resolve_device(device)))
    worker = _Worker(plan, tasks, device, pace, checkpoint_every, on_progress)
    pending = [job for job in plan.jobs if not job.is_done()]
    while pending:
        taken = [job for job in pending if not worker.try_job(job, pending)]
        pending = [job for job in taken if not job.is_done()]
        if pending:
            worker.tell(None, pending)
            time.sleep(_POLL_SECONDS)
    return worker.refused


@dataclass
class _Worker:
    plan: Plan
    tasks: Tasks
    device: str
    pace: Pace
    checkpoint_every: int
    on_progress: Callable[[StudyProgress], None]

    def __post_init__(self) -> None:
        self.refused: dict[str, str] = {}

    def try_job(self, job: Job, pending: Sequence[Job]) -> bool:
        """Do a job unless another process holds it; False if one does."""
        with job.claim() as is_ours:
            if is_ours and not job.is_done():  # another may have done it since we looked
                self._do(job, pending)
            return is_ours

    def _do(self, job: Job, pending: Sequence[Job]) -> None:
        clock = time.monotonic()
        show = self.tell(job, pending)

        def on_epoch(training: Progress) -> None:
            left = None if show.seconds_left is None else max(0.0, show.seconds_left - (time.monotonic() - clock))
            done = show.num_done + training.num_runs - training.num_active
            self.on_progress(StudyProgress(job.name, done, show.num_runs, left, training))

        missing = set(job.missing())
        try:
            result = self._train(job, on_epoch)
        except GraphjouleError as error:
            if isinstance(error.__cause__, OSError):  # the disk's trouble is every job's
                raise
            self.refused[job.name] = str(error)
            return
        finally:
            _leave_device()
        for record in result.records:
            if record.seed in missing:
                self.pace.add(record)
        self.tell(job, pending)

    def _train(self, job: Job, on_epoch: Callable[[Progress], None]) -> FitResult:
        task = self.tasks[job.recipe.data.name]
        result = fit(
            job.recipe,
            task,
            job.seeds,
            device=self.device,
            out=job.folder.path,
            resume=True,
            checkpoint_every=self.checkpoint_every,
            on_progress=on_epoch,
        )
        if job.lacks_energies():
            done = [(r, m) for r, m in zip(result.records, result.models, strict=True) if r.status == "done"]
            records, models = zip(*done, strict=True)
            try:
                found = measure_energies(job.recipe, task, records, models, self.device)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                where = describe_device(resolve_device(self.device))
                raise GraphjouleError(
                    f"The energies of its layers do not fit in the memory of {where}; its runs are recorded, and the "
                    "same command measures them when there is more."
                ) from error
            write_json(job.energies_path, found.model_dump())
        return result

    def tell(self, job: Job | None, pending: Sequence[Job]) -> StudyProgress:
        """Say how far all is, by what the folders hold."""
        estimate = self.pace.estimate(pending)
        progress = StudyProgress(
            None if job is None else job.name,
            self.plan.num_runs - estimate.num_runs,
            self.plan.num_runs,
            estimate.seconds if estimate.num_judged == estimate.num_runs else None,
        )
        self.on_progress(progress)
        return progress


def _leave_device() -> None:
    """Leave a GPU as a job found it: no memory kept from the other workers, no peak that the next job would report."""
    torch.cuda.empty_cache()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats()
