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

from graphjoule.cli.places import check_place, run_name
from graphjoule.cli.processes import check_number
from graphjoule.cli.source import GraphSource, takes_a_graph
from graphjoule.cli.terminal import (
    ClassWeights,
    Device,
    FocalGamma,
    Json,
    Layers,
    SelectOn,
    aligned,
    overrides_of,
    parse_seeds,
)
from graphjoule.cli.train import warn_of_accuracy
from graphjoule.errors import GraphjouleError, choices, counted
from graphjoule.files import json_text
from graphjoule.nn.table import MODELS
from graphjoule.terms.settings import METHOD_NAMES
from graphjoule.training.defaults import choose_settings, default_layers
from graphjoule.training.recipe import Recipe, load_recipe
from graphjoule.training.settings import resolve, setting_names
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

- `graphjoule tune --dataset cora --layers 8 --class-weights balanced --select-on macro_f1`

- `graphjoule tune --dataset cora --storage postgresql://user@host/searches` on as many machines as you like

Killed or stopped, the same command goes on; started twice, the two share the trials. The test split is never read.
"""


@takes_a_graph
def tune(
    source: GraphSource,
    model: Annotated[str, typer.Option(help=f"Model: {choices(MODELS)}.")] = "egnn",
    layers: Layers = None,
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
    select_on: SelectOn = None,
    class_weights: ClassWeights = None,
    focal_gamma: FocalGamma = None,
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
    json: Json = False,
) -> None:
    """Search a recipe's settings by validation alone: any number of workers, safe to kill; the winner is a recipe."""
    import_optuna()
    chosen = {
        "train.epochs": epochs,
        "terms.energy.method": constraint,
        "train.select_on": select_on,
        "train.class_weights": class_weights,
        "train.focal_gamma": focal_gamma,
    }
    overrides = overrides_of(set_, chosen)
    source.check_split(overrides)
    source.check()
    if workers > 1:
        check_number("--workers", workers, "start the same command on other machines with one --storage")
    layers = default_layers(model, source.name) if layers is None else layers
    start = load_recipe(model, source.name, layers, overrides, file=recipe)
    numbers = parse_seeds(seeds)
    ranges = choose_ranges(start, range_ or [], overrides)

    from graphjoule.tuning.outcome import check_folder, mark_folder, read_outcome
    from graphjoule.tuning.search import Search, Team
    from graphjoule.tuning.validation import hide_test

    source.check_before_loading(device)
    ref, folder = _choose_places(storage, name or run_name(start), out)

    task = source.load()
    if recipe is None:
        searched = [name for key in ranges for name in spelled(start, key)]
        start = choose_settings(start, task, numbers[0], searched).recipe
    warn_of_accuracy(task, start)
    search = Search(start.with_split_of(task), ranges, tuple(numbers), search_seed)
    seen = hide_test(task, search.recipe, numbers)
    del task  # from here on no test label is in reach
    about = search.about(seen)
    check_folder(folder, ref.name, about, ref.file_names)
    stored = search.open(ref, seen)
    mark_folder(folder, ref.name, about)
    queue = search.queue(stored, trials)
    goal = "lowest" if stored.study.direction.name == "MINIMIZE" else "highest"
    lines = [
        f"{start.title}: {counted(queue.num_trials, 'trial')} of {counted(len(numbers), 'seed')} by "
        f"{counted(workers, 'worker')}, kept in {ref} as {ref.name!r}",
        f"searched for the {goal} mean val_{search.recipe.train.select_on}: "
        + ", ".join(f"{key} {found.text}" for key, found in ranges.items()),
    ]
    if queue.num_trials < trials:
        settings = counted(queue.num_trials, "setting")
        lines.append(f"the ranges hold {settings}, so there are not {trials} trials: each is tried once")
    typer.echo("\n".join(lines), err=True)
    num_dead = _carry_out(Team(source.load, search, ref, trials, device, timeout), queue, seen, workers)

    outcome = read_outcome(stored, search.recipe)
    num_over = len(outcome.rows)
    if outcome.ranked:
        check_folder(folder, ref.name, about)  # another search may have begun there at the same moment
        command = _train_command(source, search.recipe, folder)
        files, lines = _write_winner(outcome, search, folder, command, has_test=seen.has_test)
        typer.echo("\n".join(lines), err=json)
        if json:
            best = outcome.best
            result = {
                "name": ref.name,
                "storage": str(ref),
                "select_on": outcome.metric,
                "direction": outcome.direction,
                "num_trials": num_over,
                "num_failed": num_over - len(outcome.ranked),
                "ranges": {key: found.text for key, found in ranges.items()},
                "best": {"trial": best.slot, "value": best.value, **best.metrics, "params": dict(best.params)},
                "importance": dict(outcome.importance),
                "files": {key: str(path) for key, path in files.items()},
                "command": command,
            }
            typer.echo(json_text(result))
    if not outcome.ranked or not queue.is_finished():
        dead = f"{counted(num_dead, 'worker')} ended early; " if num_dead else ""
        left = f"{num_over} of {counted(queue.num_trials, 'trial')} are over; the same command goes on."
        if num_over >= queue.num_trials:
            left = f"no trial has a result; the first failure: {outcome.rows[0].failure}"
        typer.echo(f"graphjoule: {dead}{left}", err=True)
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


def _choose_places(storage: str | None, name: str, out: Path | None) -> tuple[StorageRef, Path]:
    """Where the search is stored and where its results go: the same places for the same command."""
    from graphjoule.tuning.outcome import SEARCH_NAME

    folder = out or Path("runs") / "tune" / name
    ref = StorageRef(storage or str(folder / "journal.log"), name)
    if storage is not None and ref.journal is not None and out is None:
        beside = ref.journal.parent  # where other things may be, unless a search has marked it as its own
        folder = beside if (beside / SEARCH_NAME).exists() else beside / name
    check_place(folder, resume=False)
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


def _train_command(source: GraphSource, recipe: Recipe, folder: Path) -> str:
    """The command that trains the winner on the graph of the search."""
    from graphjoule.tuning.outcome import RECIPE_NAME

    given = {field.name.replace("_", "-"): getattr(source, field.name) for field in fields(source)}
    given |= {} if source.is_own else {"dataset": source.name}
    given |= {"model": recipe.model.name, "layers": recipe.model.num_layers}
    given |= {"recipe": folder / RECIPE_NAME, "seeds": _SEEDS}
    options = [f"--{name} {shlex.quote(str(value))}" for name, value in given.items() if value is not None]
    return f"graphjoule train {' '.join(options)}"


def _write_winner(
    outcome: Outcome, search: Search, folder: Path, command: str, *, has_test: bool
) -> tuple[dict[str, Path], list[str]]:
    """Write the winner, the table and the pictures; returns the files and the result in words."""
    from graphjoule.tuning.outcome import write_outcome

    num_over, num_failed = len(outcome.rows), len(outcome.rows) - len(outcome.ranked)
    header = [
        f"{search.recipe.title}: the best of {counted(num_over, 'trial')} of graphjoule tune.",
        "",
        f"Command   {command}",
        f"Expect    {outcome.metric} {outcome.best.value:.4f} on the validation nodes, the mean over the seeds "
        f"{', '.join(map(str, search.seeds))}{';' if has_test else ''}",
    ]
    if has_test:
        unread = "the search has not read a test label, so it cannot say what to expect of the test nodes"
        header.append(f"{'':10}{unread}")
    files, missing = write_outcome(outcome, folder, header=header)
    failed = f", {num_failed} failed" if num_failed else ""
    whole = ", all settings that the ranges hold" if num_over == count_settings(search.ranges) else ""
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in outcome.importance.items())
    lines = [f"{counted(num_over, 'trial')}{failed}{whole}; the best by {outcome.metric}:", *_table(outcome)]
    lines += [f"importance: {shares}"] if shares else []
    lines += [*(f"{name}: {path}" for name, path in files.items()), *missing]
    once = "; the test split is read then, once" if has_test else ""
    return files, [*lines, f"train the winner with ten seeds{once}:", f"  {command}"]


def _table(outcome: Outcome) -> list[str]:
    """The best trials, a line each."""
    names = list(outcome.best.params)
    others = [name for name in outcome.best.metrics if name != outcome.metric]
    rows = [["trial", outcome.metric, *others, *names]]
    for row in outcome.ranked[:_SHOWN]:
        params = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in map(row.params.get, names)]
        rows.append([str(row.slot), f"{row.value:.4f}", *(f"{row.metrics[name]:.4f}" for name in others), *params])
    return ["  ".join(["", *cells]) for cells in aligned(rows)]
