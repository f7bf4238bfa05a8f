"""``graphjoule tune``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from graphjoule.cli.source import GraphSource, takes_a_graph
from graphjoule.cli.train import parse_seeds, run_name
from graphjoule.cli.tune_progress import show_search
from graphjoule.cli.tune_text import advise, announce, describe, header_of, result_fields, train_command
from graphjoule.errors import GraphjouleError, choices, counted
from graphjoule.files import json_text
from graphjoule.nn import MODELS
from graphjoule.tasks.rules import stratified_rule
from graphjoule.terms import METHODS
from graphjoule.training import TrainingInterrupted
from graphjoule.training.environment import resolve_device
from graphjoule.training.recipe import Recipe, load_recipe, parse_overrides
from graphjoule.tuning.board import Address, Board
from graphjoule.tuning.defaults import default_ranges
from graphjoule.tuning.engine import import_optuna, quiet
from graphjoule.tuning.folder import RECIPE_NAME, SEARCH_NAME, check_folder, mark_folder, write_outcome
from graphjoule.tuning.outcome import Outcome, read_outcome
from graphjoule.tuning.ranges import Range, parse_ranges
from graphjoule.tuning.search import Search, evaluate, work
from graphjoule.tuning.settings import fit_ranges
from graphjoule.tuning.spelling import fixed_settings, spelled
from graphjoule.tuning.team import Member, run_team
from graphjoule.tuning.validation import ValidationTask, hide_test

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
        typer.Option(help=f"Hold every layer's energy between c_min and c_max, by: {choices(METHODS)}."),
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
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the winner, table and pictures; by default beside --storage or in runs/tune/."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on the last line.")] = False,
) -> None:
    """Search a recipe's settings by validation alone: any number of workers, safe to kill; the winner is a recipe."""
    import_optuna()
    chosen = {"epochs": epochs, "constraint": constraint}
    overrides = parse_overrides(
        [*(set_ or []), *(f"{key}={value}" for key, value in chosen.items() if value is not None)]
    )
    start = load_recipe(model, source.name, layers, overrides, file=recipe)
    ranges = choose_ranges(start, range_ or [], overrides)
    numbers = parse_seeds(seeds)
    resolve_device(device)
    if source.test_fraction is not None:
        stratified_rule(source.test_fraction)
    address, folder = choose_places(storage, name, out, start)

    task = source.load()
    search = Search(start.with_split_of(task), ranges, tuple(numbers), search_seed)
    seen = hide_test(task, search.recipe, numbers)
    del task  # from here on nobody has a test label
    about = search.about(seen)
    check_folder(folder, address.name, about, address.file_names)
    board = address.open(about, search.direction)
    mark_folder(folder, address.name, about)
    typer.echo(announce(search, address, trials, workers), err=True)
    member = Member(source.load, search, address, search.num_trials(trials), device, timeout)
    num_dead = _carry_out(member, board, seen, workers)

    outcome = read_outcome(board.study, search.recipe)
    is_whole = search.queue(board, trials).is_finished()
    if outcome.ranked:
        check_folder(folder, address.name, about)  # another search may have begun there at the same moment
        _tell(source, outcome, address, folder, search, has_test=seen.has_test, as_json=json)
    if not outcome.ranked or not is_whole:
        typer.echo(f"graphjoule: {_what_is_left(outcome, member.num_trials, num_dead)}", err=True)
    if not outcome.ranked or num_dead == workers:
        sys.exit(1)


tune.__doc__ = f"{tune.__doc__}\n{_EPILOG}"


def choose_ranges(recipe: Recipe, texts: Sequence[str], overrides: Mapping[str, Any]) -> dict[str, Range]:
    """The ranges that are asked for, else the model's own apart from what is overridden; checked."""
    given, fixed = parse_ranges(texts), fixed_settings(recipe, overrides)
    for key in given:
        for name in spelled(recipe, key):
            if name in fixed:
                raise GraphjouleError(f"{name} is both set, to {fixed[name]!r}, and searched: do one of the two.")
    own = default_ranges(recipe.model.name).items()
    left = {key: found for key, found in own if fixed.keys().isdisjoint(spelled(recipe, key))}
    return fit_ranges(recipe, given or left)


def choose_places(storage: str | None, name: str | None, out: Path | None, recipe: Recipe) -> tuple[Address, Path]:
    """Where the search is kept and where its results go: the same places for the same command."""
    name = name or run_name(recipe)
    folder = out or Path("runs") / "tune" / name
    address = Address(storage or str(folder / "journal.log"), name)
    if storage is not None and not address.is_url and out is None:
        beside = Path(storage).parent  # where other things may be, unless a search has marked it as its own
        folder = beside if (beside / SEARCH_NAME).exists() else beside / name
    nearest = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise GraphjouleError(f"Cannot use {folder} as an output folder: {nearest.name} is a file.")
    return address, folder


def _carry_out(member: Member, board: Board, task: ValidationTask, num_workers: int) -> int:
    """Try what is left, here or in several processes; returns how many of those ended before their time."""
    search = member.search
    queue = search.queue(board, member.num_trials)
    try:
        with quiet(), show_search(member.address.name, board.study, member.num_trials) as show:
            if num_workers == 1:
                work(queue, partial(evaluate, search, task, member.device), timeout=member.timeout, on_progress=show)
                return 0
            codes = [] if queue.is_finished() else run_team(member, num_workers, on_poll=lambda: show(None))
            show(None)
    except (TrainingInterrupted, KeyboardInterrupt):
        typer.echo("graphjoule: stopped; the same command goes on from there.", err=True)
        sys.exit(130)
    return sum(code != 0 for code in codes)


def _tell(
    source: GraphSource,
    outcome: Outcome,
    address: Address,
    folder: Path,
    search: Search,
    *,
    has_test: bool,
    as_json: bool,
) -> None:
    command = train_command(source, outcome.recipe, folder / RECIPE_NAME)
    header = header_of(outcome, search.seeds, command, has_test=has_test)
    files, missing = write_outcome(outcome, search.ranges, folder, header=header)
    typer.echo(describe(outcome, search.ranges, files, missing), err=as_json)
    typer.echo(advise(command, has_test=has_test), err=as_json)
    if as_json:
        typer.echo(json_text(result_fields(outcome, address, search.ranges, files, command)))


def _what_is_left(outcome: Outcome, num_trials: int, num_dead: int) -> str:
    dead = f"{counted(num_dead, 'worker')} ended early; " if num_dead else ""
    if len(outcome.rows) < num_trials:
        return f"{dead}{len(outcome.rows)} of {counted(num_trials, 'trial')} are over; the same command goes on."
    return f"{dead}no trial has a result; the first failure: {outcome.rows[0].failure}"
