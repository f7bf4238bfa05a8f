"""Train some recorded runs again and compare: to the bit on the same device, backend and code, else within a bound."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Final, get_args

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.ops import backend_for, use_backend
from graphjoule.ops.backend import Backend
from graphjoule.studies.collection import differences
from graphjoule.studies.verify import Check, Placed
from graphjoule.tasks.datasets import load_task
from graphjoule.training.records import Record
from graphjoule.training.trainer import resolve_device

FIRST_EPOCHS: Final = 10
BOUND: Final = 5e-3
"""How far the training loss of the first epochs may be from the record, relatively, on another device or code: later
rounding has grown, and a network near the edge may fall on either side."""


def retrain_some(
    placed: Sequence[Placed], number: int, *, seed: int = 0, device: str = "auto", data_root: Path | None = None
) -> Check:
    """Train runs again that are drawn at random from the records.

    Args:
        placed: the records.
        number: how many runs.
        seed: of the draw.
        device: "auto", "cpu" or "cuda".
        data_root: where datasets are.
    """
    check = Check("runs that were trained again are those of the records")
    able = [one for one in placed if one.recipe is not None and one.record.objective and one.recipe.model.name]
    load = cache(lambda dataset: load_task(dataset, data_root))
    for one in random.Random(seed).sample(able, len(able)):
        if check.count == number:
            break
        try:
            again = _again(one, load(one.record.dataset), device)
        except GraphjouleError as error:
            check.notes.append(f"{one.place}: not trained again: {error}")
            continue
        check.count += 1
        _compare(check, one, again)
    if check.count < number:
        check.problems.append(f"{number} runs were to be trained again, and {check.count} could be.")
    return check


def _again(one: Placed, task: Any, device: str) -> Record:
    record, recipe = one.record, one.recipe
    assert recipe is not None
    # Not forced where it would be chosen anyway: small tensors of the run, or clusters of nodes, may have had another.
    numbers = torch.empty(task.num_nodes, recipe.model.hidden_channels or 1, device=resolve_device(device))
    is_forced = record.backend in get_args(Backend) and record.backend != backend_for(numbers)
    with use_backend(record.backend) if is_forced else nullcontext():  # type: ignore[arg-type]
        (again,) = fit(recipe, task, [record.seed], device=device, protocol=record.protocol).records
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return again


def _compare(check: Check, one: Placed, again: Record) -> None:
    record = one.record
    named = f"{record.model}, {record.num_layers} layers, {record.dataset}, seed {record.seed} ({one.place})"
    if again.split_sha256 != record.split_sha256 or record.task_sha256 not in (None, again.task_sha256):
        check.problems.append(f"{named}: the data or the split here are others.")
        return
    code = ("source", "torch")
    is_same = (again.device, again.backend, again.runs_at_once) == (record.device, record.backend, record.runs_at_once)
    is_same = is_same and all(again.versions.get(name) == record.versions.get(name) for name in code)
    differing = differences(record, again)
    if is_same and differing:
        check.problems += [f"{named}: {name} was {was} and is now {now}." for name, was, now in differing]
        return
    was, now = (run.curve.get("train_loss", [])[:FIRST_EPOCHS] for run in (record, again))
    gaps = [abs(a - b) / max(abs(a), 1e-9) for a, b in zip(was, now, strict=False) if a is not None and b is not None]
    worst = max(gaps, default=0.0)
    if worst > BOUND:
        check.problems.append(f"{named}: the training loss of the first {len(gaps)} epochs is off by {worst:.1e}.")
        return
    equal = "the same to the bit" if not differing else f"the first {len(gaps)} epochs agree within {worst:.0e}"
    score = "" if record.test_score is None else f"; test was {record.test_score:.4f}, is {again.test_score:.4f}"
    check.notes.append(f"{named}: {equal}{score}.")
