"""``graphjoule tune``: the options, and the result in words."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphjoule.cli.source import GraphSource, takes_a_graph
from graphjoule.cli.terminal import Device, parse_seeds
from graphjoule.cli.train import run_name
from graphjoule.errors import GraphjouleError, choices, counted
from graphjoule.files import json_text
from graphjoule.nn.table import MODELS
from graphjoule.terms.settings import METHOD_NAMES
from graphjoule.training.recipe import Recipe, load_recipe
from graphjoule.training.settings import parse_overrides, resolve, setting_names
from graphjoule.tuning.ranges import Range, count_settings, default_ranges, fit_ranges, parse_ranges, spelled
from graphjoule.tuning.storage import StorageRef, import_optuna

if TYPE_CHECKING:
    from graphjoule.tuning.outcome import Outcome
    from graphjoule.tuning.queue import TrialQueue
    from graphjoule.tuning.search import Search, Team
    from graphjoule.tuning.validation import ValidationTask

_SHOWN = 5  # trials in the table at the end
_SEEDS = 10  # of the training that reads the test split

_EPILOG = """
Examples:

- `graphjoule tune --dataset digits --layers 8 --trials 20` searches the model's own ranges

- `graphjoule tune --dataset cora --layers 64 --range lr=1e-3..1e-1:log --range c_min=0.1..0.5 --workers 4`

- `graphjoule tune --model gcn --layers 2 --range hidden_channels=16,64,256 --range dropout=0..0.8`

- `graphjoule tune --dataset cora --storage postgresql://user@host/searches` on as many machines as you like

Killed or stopped, the same command goes on; started twice, the two share the trials. The test split is never read.
"""


@takes_a_graph
def tune(
    source: GraphSource,
    model: Annotated[str, typer.Option(help=f"Model: {choices(MODELS)}.")] = "egnn",
    layers: Annotated[int, typer.Option(min=1, help="Number of graph layers.")] = 32,
    trials: Annotated[
        int, typer.Option(min=1, help="How many settings to try, no two the same, by all workers together.")
    ] = 20,
    seeds: Annotated[str, typer.Option(help="Seeds of every trial: how many, or a list such as 3,7.")] = "3",
    range_: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            metavar="KEY=RANGE",
            help="What to search: low..high, low..high:log or one,another; repeatable. By default the model's own.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting in every trial; repeatable."),
    ] = None,
    constraint: Annotated[
        str | None,
        typer.Option(help=f"Hold every layer's energy between c_min and c_max, by: {choices(METHOD_NAMES)}."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="The most epochs of a run; the recipe says by default.")] = None,
    recipe: Annotated[Path | None, typer.Option(metavar="FILE", help="Recipe file to begin from.")] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="FILE_OR_URL", help="Journal file, or database URL, that workers share; by default in --out."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The search's name; by default from dataset, model, depth.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes on this machine.")] = 1,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds after which no further trial is begun.")] = None,
    search_seed: Annotated[int, typer.Option(min=0, help="What the trials' settings are drawn from.")] = 0,
    device: Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the winner, table and pictures; by default beside --storage or in runs/tune/."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on the last line.")] = False,
) -> None:
    """Search a recipe's settings by validation alone: any number of workers, safe to kill; the winner is a recipe."""
    import_optuna()
    chosen = {"train.epochs": epochs, "terms.energy.method": constraint}
    overrides = parse_overrides(
        [*(set_ or []), *(f"{key}={value}" for key, value in chosen.items() if value is not None)]
    )
    source.check()
    start = load_recipe(model, source.name, layers, overrides, file=recipe)
    numbers = parse_seeds(seeds)
    ranges = choose_ranges(start, range_ or [], overrides)

    from graphjoule.tasks.splits import stratified_rule
    from graphjoule.training.environment import resolve_device
    from graphjoule.tuning.outcome import RECIPE_NAME, check_folder, mark_folder, read_outcome, write_outcome
    from graphjoule.tuning.search import Search, Team
    from graphjoule.tuning.validation import hide_test, metric_of

    resolve_device(device)
    if source.test_fraction is not None:
        stratified_rule(source.test_fraction)
    ref, folder = choose_places(storage, name, out, start)

    task = source.load()
    search = Search(start.with_split_of(task), ranges, tuple(numbers), search_seed)
    seen = hide_test(task, search.recipe, numbers)
    del task  # from here on no test label is in reach
    about = search.about(seen)
    check_folder(folder, ref.name, about, ref.file_names)
    stored = search.open(ref, seen)
    mark_folder(folder, ref.name, about)
    queue = search.queue(stored, trials)
    typer.echo(announce(search, seen, ref, trials, queue.num_trials, workers), err=True)
    num_dead = _carry_out(Team(source.load, search, ref, trials, device, timeout), queue, seen, workers)

    outcome = read_outcome(stored, search.recipe)
    if outcome.ranked:
        check_folder(folder, ref.name, about)  # another search may have begun there at the same moment
        command = train_command(source, outcome.recipe, folder / RECIPE_NAME)
        header = header_of(outcome, search.seeds, command, has_test=seen.has_test)
        files, missing = write_outcome(outcome, folder, header=header)
        typer.echo(describe(outcome, ranges, files, missing), err=json)
        once = "; the test split is read then, once" if seen.has_test else ""
        typer.echo(f"train the winner with ten seeds{once}:\n  {command}", err=json)
        if json:
            best = outcome.best
            result = {
                "name": ref.name,
                "storage": str(ref),
                "select_on": metric_of(outcome.recipe),
                "direction": outcome.direction,
                "num_trials": len(outcome.rows),
                "num_failed": len(outcome.rows) - len(outcome.ranked),
                "ranges": {key: found.text for key, found in ranges.items()},
                "best": {"trial": best.slot, "value": best.value, **best.metrics, "params": dict(best.params)},
                "importance": dict(outcome.importance),
                "files": {key: str(path) for key, path in files.items()},
                "command": command,
            }
            typer.echo(json_text(result))
    if not outcome.ranked or not queue.is_finished():
        typer.echo(f"graphjoule: {_what_is_left(outcome, queue.num_trials, num_dead)}", err=True)
    if not outcome.ranked or num_dead == workers:
        sys.exit(1)


tune.__doc__ = f"{tune.__doc__}\n{_EPILOG}"


def choose_ranges(recipe: Recipe, texts: Sequence[str], overrides: Mapping[str, Any]) -> dict[str, Range]:
    """The ranges that are asked for, else the model's own apart from what is overridden; checked."""
    model = recipe.model.name
    given, fixed = parse_ranges(texts), resolve(overrides, setting_names(model), model, recipe.terms)
    for key in given:
        for name in spelled(recipe, key):
            if name in fixed:
                raise GraphjouleError(f"{name} is both set, to {fixed[name]!r}, and searched: do one of the two.")
    own = default_ranges(model).items()
    left = {key: found for key, found in own if fixed.keys().isdisjoint(spelled(recipe, key))}
    return fit_ranges(recipe, given or left)


def choose_places(storage: str | None, name: str | None, out: Path | None, recipe: Recipe) -> tuple[StorageRef, Path]:
    """Where the search is stored and where its results go: the same places for the same command."""
    from graphjoule.tuning.outcome import SEARCH_NAME

    name = name or run_name(recipe)
    folder = out or Path("runs") / "tune" / name
    ref = StorageRef(storage or str(folder / "journal.log"), name)
    if storage is not None and ref.journal is not None and out is None:
        beside = ref.journal.parent  # where other things may be, unless a search has marked it as its own
        folder = beside if (beside / SEARCH_NAME).exists() else beside / name
    nearest = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise GraphjouleError(f"Cannot use {folder} as an output folder: {nearest.name} is a file.")
    return ref, folder


def _carry_out(team: Team, queue: TrialQueue, task: ValidationTask, num_workers: int) -> int:
    """Try what is left, here or in several processes; returns how many of those ended early."""
    from graphjoule.cli.terminal import show_search
    from graphjoule.training import TrainingInterrupted
    from graphjoule.tuning.search import evaluate, run_team, work

    try:
        with show_search(queue.storage, queue.num_trials) as show:
            if num_workers == 1:
                one = partial(evaluate, team.search, task, team.device)
                work(queue, one, timeout=team.timeout, on_progress=show)
                return 0
            codes = [] if queue.is_finished() else run_team(team, num_workers, on_poll=lambda: show(None))
            show(None)
    except (TrainingInterrupted, KeyboardInterrupt):
        typer.echo("graphjoule: stopped; the same command goes on from there.", err=True)
        sys.exit(130)
    return sum(code != 0 for code in codes)


def _what_is_left(outcome: Outcome, num_trials: int, num_dead: int) -> str:
    dead = f"{counted(num_dead, 'worker')} ended early; " if num_dead else ""
    if len(outcome.rows) < num_trials:
        return f"{dead}{len(outcome.rows)} of {counted(num_trials, 'trial')} are over; the same command goes on."
    return f"{dead}no trial has a result; the first failure: {outcome.rows[0].failure}"


# Words.


def announce(
    search: Search, task: ValidationTask, ref: StorageRef, num_asked: int, num_trials: int, num_workers: int
) -> str:
    """What is about to be done."""
    from graphjoule.tuning.validation import direction_of, metric_of

    recipe = search.recipe
    goal = "lowest" if direction_of(recipe, task) == "minimize" else "highest"
    ranges = ", ".join(f"{key} {found.text}" for key, found in search.ranges.items())
    lines = [
        f"{_run(recipe)}: {counted(num_trials, 'trial')} of "
        f"{counted(len(search.seeds), 'seed')} by {counted(num_workers, 'worker')}, kept in {ref} as {ref.name!r}",
        f"searched for the {goal} mean {metric_of(recipe)}: {ranges}",
    ]
    if num_trials < num_asked:
        settings = counted(num_trials, "setting")
        lines.append(f"the ranges hold {settings}, so there are not {num_asked} trials: each is tried once")
    return "\n".join(lines)


def _run(recipe: Recipe) -> str:
    return f"{recipe.model.name}, {recipe.model.num_layers} layers, {recipe.data.name}"


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
    from graphjoule.tuning.validation import metric_of

    recipe = outcome.recipe
    lines = [
        f"{_run(recipe)}: the best of {counted(len(outcome.rows), 'trial')} of graphjoule tune.",
        "",
        f"Command   {command}",
        f"Expect    {metric_of(recipe)} {outcome.best.value:.4f} on the validation nodes, the mean over the "
        f"seeds {', '.join(map(str, seeds))}{';' if has_test else ''}",
    ]
    unread = "the search has not read a test label, so it cannot say what to expect of the test nodes"
    return [*lines, f"{'':10}{unread}"] if has_test else lines


def describe(outcome: Outcome, ranges: Mapping[str, Range], files: Mapping[str, Path], missing: Sequence[str]) -> str:
    """The result in words."""
    from graphjoule.tuning.validation import metric_of

    num_failed = len(outcome.rows) - len(outcome.ranked)
    failed = f", {num_failed} failed" if num_failed else ""
    if len(outcome.rows) == count_settings(ranges):
        failed += ", all settings that the ranges hold"
    selects, names = metric_of(outcome.recipe), list(outcome.best.params)
    others = [name for name in outcome.best.metrics if name != selects]
    rows = [["trial", selects, *others, *names]]
    for row in outcome.ranked[:_SHOWN]:
        params = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in map(row.params.get, names)]
        rows.append([str(row.slot), f"{row.value:.4f}", *(f"{row.metrics[name]:.4f}" for name in others), *params])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines = [f"{counted(len(outcome.rows), 'trial')}{failed}; the best by {selects}:", *(f"  {row}" for row in table)]
    if outcome.importance:
        shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in outcome.importance.items())
        lines.append(f"importance: {shares}")
    return "\n".join([*lines, *(f"{name}: {path}" for name, path in files.items()), *missing])
