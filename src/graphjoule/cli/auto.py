"""``graphjoule auto``, and what ``graphjoule train`` does with files of the user's where nothing says which model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphjoule.cli.places import check_place, data_name, named_folder
from graphjoule.cli.source import GraphSource, takes_a_graph
from graphjoule.cli.terminal import (
    DEFAULT_BUDGET,
    Device,
    Json,
    Overrides,
    Worth,
    aligned,
    parse_budget,
    parse_seeds,
    show_auto,
    split_list,
)
from graphjoule.cli.train import Job, compares, print_result, warn_of_accuracy
from graphjoule.errors import GraphjouleError, choices, counted
from graphjoule.nn.table import MODELS
from graphjoule.training.budget import Budget, in_words
from graphjoule.training.recipe import Recipe, load_recipe
from graphjoule.training.settings import parse_overrides

if TYPE_CHECKING:
    from graphjoule.tuning.automatic import AutoResult
    from graphjoule.tuning.halving import Trial

_SHOWN = 10  # candidates in the table at the end
_COMPARING, _LEAST_COMPARING = 0.15, 5.0  # of the budget, and seconds; never more than a third of it
_MODELS, _DEPTHS, _SEEDS = "gcn,appnp,gcnii,resgcn,egnn", "2,8,32", "5"


@takes_a_graph
def auto(
    source: GraphSource,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Wall time, such as 90s, 2min or 1h.")] = DEFAULT_BUDGET,
    models: Annotated[str, typer.Option(help=f"Models to try: {choices(MODELS)}.")] = _MODELS,
    depths: Annotated[str, typer.Option(help="Numbers of graph layers to try with each of them.")] = _DEPTHS,
    seeds: Annotated[str, typer.Option(help="Seeds that the best may have: how many, or a list such as 3,7.")] = _SEEDS,
    set_: Overrides = None,
    device: Device = "auto",
    out: Annotated[Path | None, typer.Option(help="Run folder for the best; by default a new one under runs/.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a search that was interrupted or killed.")
    ] = False,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Epochs between two checkpoints.")] = 50,
    worth: Worth = None,
    json: Json = False,
) -> None:
    """Try models and depths for a stated time, by validation alone, and keep the best as a run folder.

    Examples:

    - `graphjoule auto --nodes nodes.csv --edges edges.csv --test-fraction 0.2`

    - `graphjoule auto --dataset cora --budget 5min --models gcn,gcnii,egnn --depths 2,16`

    - `graphjoule auto --dataset digits --budget 30s --set select_on=macro_f1`

    Killed or stopped, the same command with `--resume` goes on, and the time that was spent counts.
    """
    seconds = parse_budget(budget)
    if seconds is None:
        raise GraphjouleError("--budget is none; expected a time, such as 90s, 2min or 1h.")
    try_models(
        source,
        seconds,
        seeds,
        models=split_list(models),
        depths=_parse_depths(depths),
        overrides=parse_overrides(set_ or []),
        device=device,
        out=out,
        resume=resume,
        checkpoint_every=checkpoint_every,
        worth=worth,
        is_json=json,
    )


def _parse_depths(text: str) -> list[int]:
    depths = split_list(text, int)
    if not depths or min(depths) < 1:
        raise GraphjouleError(f"--depths is {text!r}; expected numbers of layers from 1 on, such as 2,8,32.")
    return depths


def try_models(
    source: GraphSource,
    seconds: float,
    seeds: str | None,
    *,
    models: Sequence[str] = tuple(_MODELS.split(",")),
    depths: Sequence[int] = tuple(map(int, _DEPTHS.split(","))),
    overrides: Mapping[str, Any],
    device: str,
    out: Path | None,
    resume: bool,
    checkpoint_every: int,
    worth: bool | None,
    is_json: bool,
    hint: str = "",
) -> None:
    """Search a graph for so many seconds, print the ranking and what came out; `hint` is said before it begins."""
    whole = Budget(seconds)  # from here on: reading the files and importing torch are part of what the user waits for
    numbers, is_compared = parse_seeds(seeds or _SEEDS), compares(source, worth)
    comparing = min(max(_COMPARING * seconds, _LEAST_COMPARING), seconds / 3) if is_compared else 0.0
    of_search = whole.part(seconds - comparing)
    source.check()
    for model in models or ("",):  # what can be refused by names alone is refused before torch is imported
        load_recipe(model, source.name, max(depths), overrides)
    if out is not None:
        check_place(out, resume=resume)

    from graphjoule.training import deferred_interrupt
    from graphjoule.training.folder import SEARCH_NAME, SUMMARY_NAME, RunFolder
    from graphjoule.tuning.automatic import RANKING_NAME, models_that_fit
    from graphjoule.tuning.automatic import auto as search

    def is_search(path: Path) -> bool:
        return (path / SEARCH_NAME).is_dir() or (path / SUMMARY_NAME).is_file()

    source.check_before_loading(device)
    folder = out or named_folder(f"{data_name(source.name)}-auto", is_search, resume=resume)
    first = load_recipe(models[0], source.name, depths[0], overrides)
    if not resume and not is_search(folder):  # of a search that is there, `search` says so
        RunFolder(folder).check(first, resume=False)
    task = source.load()
    models = models_that_fit(task, models)
    warn_of_accuracy(task, first)
    layers = f"{', '.join(map(str, depths))} layer{'s' if depths != [1] else ''}"
    typer.echo(
        f"{source.name}: {', '.join(models)} with {layers}, then variations of the best, for "
        f"{in_words(seconds)} in all; kept in {folder}{hint}",
        err=True,
    )
    with show_auto(source.name, of_search.seconds) as show, deferred_interrupt() as stop:
        result = search(
            task,
            of_search,
            models=models,
            depths=depths,
            seeds=numbers,
            settings=overrides,
            device=device,
            out=folder,
            resume=resume,
            checkpoint_every=checkpoint_every,
            on_progress=show,
            should_stop=lambda: stop.requested,
        )
    typer.echo("\n".join(ranking_lines(result, folder)), err=is_json)
    recipe = Recipe.from_fields(result.records[0].recipe)
    options: dict[str, Any] = {"seeds": numbers, "device": device, "out": folder, "resume": resume}
    options |= {"checkpoint_every": checkpoint_every, "source": source, "is_json": is_json}
    options["is_compared"] = is_compared
    more = {
        "model": recipe.model.name,
        "layers": recipe.model.num_layers,
        "chosen": result.chosen,
        "num_together": _num_runs(result),
        "val_together": result.val_score,
        "test_together": result.test_score,
        "num_tried": len(result.trials),
        "ranking": str(folder / RANKING_NAME),
    }
    # A search that goes on has spent its time in an earlier call.
    print_result(Job(recipe=recipe, **options), task, result, more, whole.part(comparing if resume else whole.left))


def ranking_lines(result: AutoResult, folder: Path) -> list[str]:
    """The best candidates, a line each, and what was made of the winner."""
    tried = [trial for trial in result.trials if trial.score is not None]
    rows = [["", "model", "layers", "seeds", "epochs", f"val {result.metric}", "changed settings"]]
    rows += [[str(rank), *_cells(trial)] for rank, trial in enumerate(tried[:_SHOWN], 1)]
    lines = [f"{counted(len(tried), 'candidate')} tried, the best first; all of them: {folder / 'ranking.csv'}"]
    for (*_, changes), (*cells, _) in zip(rows, aligned(rows), strict=True):
        lines.append("  ".join(["", *cells, changes]).rstrip())
    if num_failed := len(result.trials) - len(tried):
        lines.append(f"{counted(num_failed, 'other')} without a result; the file says why")
    if (number := _num_runs(result)) > 1:
        test = "" if result.test_score is None else f", test {result.test_score:.4f}"
        lines.append(
            f"{number} runs of {' and '.join(result.chosen)} predict together: validation {result.metric} "
            f"{result.val_score:.4f}{test}"
        )
    if result.members:
        lines.append(f"what follows is of {result.chosen[0]} alone, but for the predictions")
    return lines


def _num_runs(result: AutoResult) -> int:
    return sum(len(each.records) for each in (result, *result.members))


def _cells(trial: Trial) -> list[str]:
    epochs = f"{trial.epochs}{'' if trial.is_over else '+'}"  # the others were paused
    changes = " ".join(f"{key}={value}" for key, value in trial.changes.items())
    return [trial.model, str(trial.num_layers), str(len(trial.seeds)), epochs, f"{trial.score:.4f}", changes]
