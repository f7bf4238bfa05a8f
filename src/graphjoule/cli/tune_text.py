"""What ``graphjoule tune`` says: before, and when it is done."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from graphjoule.cli.source import GraphSource
from graphjoule.errors import counted
from graphjoule.training.recipe import Recipe
from graphjoule.tuning.board import Address
from graphjoule.tuning.outcome import Outcome, Row
from graphjoule.tuning.ranges import Range, count_settings
from graphjoule.tuning.search import Search

_SHOWN = 5  # trials in the table at the end
_SEEDS = 10  # of the training that reads the test split
_TRAIN = "train the winner with ten seeds"
_TEST = "the test split is read then, once"


def announce(search: Search, address: Address, num_asked: int, num_workers: int) -> str:
    """What is about to be done."""
    num_trials = search.num_trials(num_asked)
    recipe = search.recipe
    goal = {"minimize": "lowest", "maximize": "highest"}[search.direction]
    ranges = ", ".join(f"{key} {found.text}" for key, found in search.ranges.items())
    return (
        f"{recipe.model.name}, {recipe.model.num_layers} layers, {recipe.data.name}: {counted(num_trials, 'trial')} of "
        f"{counted(len(search.seeds), 'seed')} by {counted(num_workers, 'worker')}, kept in {address} as "
        f"{address.name!r}\nsearched for the {goal} mean {recipe.train.select_on}: {ranges}"
        f"{_fewer(num_trials, num_asked)}"
    )


def _fewer(num_trials: int, num_asked: int) -> str:
    if num_trials == num_asked:
        return ""
    return (
        f"\nthe ranges hold {counted(num_trials, 'setting')}, so there are not {num_asked} trials: each is tried once"
    )


def train_command(source: GraphSource, recipe: Recipe, file: Path) -> str:
    """The command that trains a recipe file on the graph of the search with ten seeds."""
    given = {field.name.replace("_", "-"): getattr(source, field.name) for field in fields(source)}
    if not source.is_own:
        given["dataset"] = source.name
    options = [f"--{name} {shlex.quote(str(value))}" for name, value in given.items() if value is not None]
    options += [f"--model {recipe.model.name}", f"--layers {recipe.model.num_layers}"]
    return f"graphjoule train {' '.join(options)} --recipe {shlex.quote(str(file))} --seeds {_SEEDS}"


def header_of(outcome: Outcome, seeds: Sequence[int], command: str, *, has_test: bool) -> list[str]:
    """The comment on top of the winner's file."""
    best = outcome.best
    lines = [
        f"{outcome.recipe.model.name}, {outcome.recipe.model.num_layers} layers, {outcome.recipe.data.name}: the best of "
        f"{counted(len(outcome.rows), 'trial')} of graphjoule tune.",
        "",
        f"Command   {command}",
        f"Expect    {outcome.recipe.train.select_on} {best.value:.4f} on the validation nodes, the mean over the seeds "
        f"{', '.join(map(str, seeds))}{';' if has_test else ''}",
    ]
    told = "the search has not read a test label, so it cannot say what to expect of the test nodes"
    return [*lines, f"{'':10}{told}"] if has_test else lines


def describe(outcome: Outcome, ranges: Mapping[str, Range], files: Mapping[str, Path], missing: Sequence[str]) -> str:
    """The result in words."""
    num_failed = len(outcome.rows) - len(outcome.ranked)
    failed = f", {num_failed} failed" if num_failed else ""
    if len(outcome.rows) == count_settings(ranges):
        failed += ", all settings that the ranges hold"
    lines = [
        f"{counted(len(outcome.rows), 'trial')}{failed}; the best by {outcome.recipe.train.select_on}:",
        *_table(outcome),
    ]
    if outcome.importance:
        shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in outcome.importance.items())
        lines.append(f"importance: {shares}")
    lines += [f"{name}: {path}" for name, path in files.items()]
    return "\n".join([*lines, *missing])


def advise(command: str, *, has_test: bool) -> str:
    """What to do with the winner."""
    return f"{_TRAIN}{f'; {_TEST}' if has_test else ''}:\n  {command}"


def _table(outcome: Outcome) -> list[str]:
    names = list(outcome.best.params)
    other = next(name for name in ("val_loss", "val_accuracy") if name != outcome.recipe.train.select_on)
    head = ["trial", outcome.recipe.train.select_on, other, *names]
    rows = [_cells(row, other, names) for row in outcome.ranked[:_SHOWN]]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
    return [f"  {line}" for line in lines]


def _cells(row: Row, other: str, names: Sequence[str]) -> list[str]:
    params = (_short(row.params.get(name)) for name in names)
    return [str(row.slot), f"{row.value:.4f}", f"{getattr(row, other):.4f}", *params]


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def result_fields(
    outcome: Outcome, address: Address, ranges: Mapping[str, Range], files: Mapping[str, Path], command: str
) -> dict[str, Any]:
    """What ``--json`` prints; accuracies are fractions."""
    best = outcome.best
    return {
        "name": address.name,
        "storage": str(address),
        "select_on": outcome.recipe.train.select_on,
        "direction": outcome.direction,
        "num_trials": len(outcome.rows),
        "num_failed": len(outcome.rows) - len(outcome.ranked),
        "ranges": {key: found.text for key, found in ranges.items()},
        "best": {
            "trial": best.slot,
            "value": best.value,
            "val_loss": best.val_loss,
            "val_accuracy": best.val_score,
            "params": dict(best.params),
        },
        "importance": dict(outcome.importance),
        "files": {name: str(path) for name, path in files.items()},
        "command": command,
    }
