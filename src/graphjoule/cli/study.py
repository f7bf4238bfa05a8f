"""``graphjoule study``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from graphjoule.cli.terminal import DataRoot, Device, Json, parse_seeds, seeds_text, show_study, split_list, value_text
from graphjoule.errors import GraphjouleError, choices, counted
from graphjoule.files import check_free, ensure_folder, json_text, write_bytes, write_text
from graphjoule.studies.study import STUDIES, Cell, Study, find_study
from graphjoule.tasks.datasets import DATASETS, load_task, resolve_data_root
from graphjoule.training.settings import parse_overrides

if TYPE_CHECKING:
    from graphjoule.studies import Collection, LedgerRow
    from graphjoule.tasks import Task

_SEEDS: Final = tuple(range(10))
_ENDINGS: Final = {"markdown": "md", "csv": "csv", "json": "json"}  # the forms of a ledger, and of its files
_EPILOG = """
Examples:

- `graphjoule study --list` lists the studies

- `graphjoule study table1 --datasets digits --models egnn,gcn --layers 2,8 --seeds 3` is a quick try

- `graphjoule study table1 --datasets cora,pubmed --device cuda`

- `graphjoule study table1 --ledger --records reproduction/results/table1` trains nothing, compares

- `graphjoule study mine.toml` runs a study of your own

Killed or stopped, the same command goes on; started twice, the two share the work.
"""


def study(
    name: Annotated[
        str | None,
        typer.Argument(metavar="STUDY", help=f"One of {choices(STUDIES)}, or a study file of your own, mine.toml."),
    ] = None,
    datasets: Annotated[str | None, typer.Option(help="Such as cora,pubmed; the study's own by default.")] = None,
    models: Annotated[str | None, typer.Option(help="Such as egnn,gcn; the study's own by default.")] = None,
    layers: Annotated[str | None, typer.Option(help="Depths such as 2,16; the study's own by default.")] = None,
    seeds: Annotated[str, typer.Option(help="How many seeds (10 means 0 to 9), or a list such as 3,7.")] = "10",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting in every cell; repeatable."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="The most epochs of a run; the recipes say by default.")] = None,
    device: Device = "auto",
    out: Annotated[Path, typer.Option(help="Folder of all runs; studies share what they have in common.")] = Path(
        "runs/study"
    ),
    records: Annotated[
        list[Path] | None,
        typer.Option(help="More records, .jsonl(.gz) files or folders of them; their runs are not repeated."),
    ] = None,
    ledger: Annotated[
        bool, typer.Option("--ledger", help="Train nothing, compare the records with the reference.")
    ] = False,
    form: Annotated[
        str, typer.Option("--format", help=f"How the ledger is printed: {choices(_ENDINGS)}.")
    ] = "markdown",
    list_: Annotated[bool, typer.Option("--list", help="List the studies.")] = False,
    data_root: DataRoot = None,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Epochs between two checkpoints.")] = 50,
    json: Json = False,
) -> None:
    """Train a study, such as a table of the paper: only what has no record yet; compare it with reference values."""
    if list_ or name is None:
        typer.echo(list_studies(as_json=json))
        return
    chosen = find_study(name)
    if form not in _ENDINGS:
        raise GraphjouleError(f"--format is {form!r}; expected one of {choices(_ENDINGS)}.")
    overrides = parse_overrides([*(set_ or []), *([f"epochs={epochs}"] if epochs is not None else [])])
    names, depths = "names, such as cora,pubmed", _parts(layers, "--layers numbers, such as 2,16", int)
    cells = chosen.cells(_parts(datasets, names), _parts(models, names), depths, overrides)
    numbers = parse_seeds(seeds)
    for cell in cells:
        _ = cell.recipe  # a setting that cannot be used is refused now, before torch is imported

    from graphjoule.studies import ledger_text, make_ledger, read_collection

    def read() -> Collection:
        return read_collection([*(records or []), *([out] if out.exists() else [])])

    refused: dict[str, str] = {}
    if ledger:
        root, asked = resolve_data_root(data_root), dict.fromkeys(cell.dataset for cell in cells)
        unavailable = [dataset for dataset in asked if not DATASETS[dataset].is_present(root)]
    else:
        load = cache(lambda dataset: load_task(dataset, data_root))
        protocol = chosen.protocol.cited(chosen.name, overrides)
        options = {"device": device, "checkpoint_every": checkpoint_every}
        unavailable, refused = _train_missing(chosen, cells, numbers, out, load, read, protocol, options)
    recorded = read()
    rows = make_ledger(chosen, cells, recorded, seeds=numbers, unavailable=unavailable)
    missing = missing_commands(chosen, rows, numbers)
    if not ledger:
        asked = {
            "datasets": _parts(datasets, names),
            "models": _parts(models, names),
            "layers": depths,
            "overrides": overrides,
            "seeds": numbers,
            "not_available": unavailable,
        }
        for ending, text in ledger_files(chosen, cells, recorded, asked).items():
            write_text(out / f"{chosen.name}.{ending}", text)
        _draw(chosen, cells, numbers, recorded, out, records or [])
    typer.echo(ledger_text(chosen, rows, form, missing), err=json, nl=False)
    for what, why in refused.items():
        typer.echo(f"graphjoule: {what} could not be finished: {why}", err=True)
    if json:
        fields = {
            "study": chosen.name,
            "out": str(out),
            "seeds": numbers,
            "not_available": unavailable,
            "refused": refused,
            "rows": [row.fields() for row in rows],
        }
        typer.echo(json_text(fields))
    if refused:
        sys.exit(1)


study.__doc__ = f"{study.__doc__}\n{_EPILOG}"


def _train_missing(
    study: Study,
    cells: Sequence[Cell],
    seeds: Sequence[int],
    out: Path,
    load: Callable[[str], Task],
    read: Callable[[], Collection],
    protocol: str,
    options: dict[str, Any],
) -> tuple[list[str], dict[str, str]]:
    """Train what has no record yet; returns the datasets that are not here, and what was refused with the reason."""
    from graphjoule.studies import Pace, plan_study, work
    from graphjoule.studies.worker import LOCKS
    from graphjoule.training import TrainingInterrupted, describe_device, resolve_device

    where = describe_device(resolve_device(options["device"]))
    if not (out / LOCKS).is_dir():
        check_free(out)
    ensure_folder(out)
    known = read()
    plan = plan_study(cells, seeds, out, load, elsewhere=known, has_energies=study.has_energies, protocol=protocol)
    for dataset, why in plan.unavailable.items():
        commands = study_commands(study, [cell for cell in cells if cell.dataset == dataset], seeds)
        said = " and ".join(f"`{command}`" for command in commands)
        typer.echo(f"{dataset}: not run: data not available here; {said} runs it. {why}", err=True)
    pace, to_do = Pace(where, known), plan.num_runs - plan.num_recorded
    of_all = f" of {plan.num_runs}, the others are recorded" if plan.num_recorded else ""
    left = f"{counted(to_do, 'run')} to train{of_all}; {pace.estimate(plan.jobs)}"
    typer.echo(f"{study.name}: {left if to_do else f'all {plan.num_runs} runs are recorded'}", err=True)
    ensure_folder(out / LOCKS)  # first, even with nothing to lock: it says that the folder is the study's
    # Written before the runs that cite it; another wording is another file, for those that cited this one.
    write_text(out / f"{study.name}-{study.protocol.sha256[:8]}.protocol.json", study.protocol.text(study.name))
    try:
        with show_study(study.name) as show:
            refused = work(plan, load, pace=pace, on_progress=show, **options)
    except (TrainingInterrupted, KeyboardInterrupt) as stopped:  # the second while it waits or measures
        typer.echo(f"graphjoule: {str(stopped) or 'stopped'}; the same command goes on from there.", err=True)
        sys.exit(130)
    return list(plan.unavailable), refused


def ledger_files(study: Study, cells: Sequence[Cell], recorded: Collection, asked: Mapping[str, Any]) -> dict[str, str]:
    """The ledgers that a study leaves beside its runs, by the endings of their files.

    Of what the command was asked for, its `seeds` and the datasets that were `not_available` count here.
    """
    from graphjoule.studies import ledger_text, make_ledger

    rows = make_ledger(study, cells, recorded, seeds=asked["seeds"], unavailable=asked["not_available"])
    missing = missing_commands(study, rows, asked["seeds"])
    return {ending: ledger_text(study, rows, kind, missing, asked) for kind, ending in _ENDINGS.items()}


def _draw(
    study: Study, cells: list[Cell], seeds: list[int], recorded: Collection, out: Path, records: list[Path]
) -> None:
    """Leave the study's figures beside its ledgers; without matplotlib, say what would draw them."""
    from graphjoule.report.drawings import Evidence, drawings_of, picture
    from graphjoule.studies import read_energies
    from graphjoule.trace.plots import MissingLibraryError

    metrics = {record.metric.name for cell in cells for record in recorded.runs(cell.recipe, seeds)}
    if study.drawing is not None and len(metrics) > 1:
        typer.echo(
            f"graphjoule: nothing is drawn: a drawing shows one metric, these runs have {choices(metrics)}.", err=True
        )
        return
    energies = read_energies([out, *records]) if study.has_energies else []
    try:
        for drawing in drawings_of(Evidence(study, cells, recorded, energies, seeds)):
            write_bytes(out / f"{drawing.name}.png", picture(drawing))
            typer.echo(f"{study.name}: drawn in {out / f'{drawing.name}.png'}", err=True)
    except MissingLibraryError as error:
        typer.echo(f"graphjoule: nothing is drawn. {error}", err=True)


def list_studies(*, as_json: bool = False) -> str:
    """The studies, a line each."""
    if as_json:
        return json_text([{"name": s.name, "title": s.title, "num_cells": len(s.cells())} for s in STUDIES.values()])
    width = max(map(len, STUDIES)) + 2
    return "\n".join(f"{s.name:<{width}}{s.title} ({len(s.cells())} cells)" for s in STUDIES.values())


def missing_commands(study: Study, rows: Iterable[LedgerRow], seeds: Sequence[int] = _SEEDS) -> list[str]:
    """The commands that train what was not run."""
    return study_commands(study, (row.cell for row in rows if row.outcome.verdict == "not run"), seeds)


def study_commands(study: Study, cells: Iterable[Cell], seeds: Sequence[int] = _SEEDS) -> list[str]:
    """The commands that train some cells of a study, those of a dataset in one where one command can say it.

    What is the study's own (its models, its depths, ten seeds) is left out. Variants cannot be chosen: the command
    trains all of a model and depth, and repeats no run that is recorded.

    Args:
        study: which study.
        cells: some of its cells.
        seeds: one run each.

    Example:
        >>> table1 = find_study("table1")
        >>> study_commands(table1, table1.cells(["cora"], ["gcn", "sgc"], [2, 16], {"epochs": 5}), range(3))
        ['graphjoule study table1 --datasets cora --models gcn,sgc --layers 2,16 --seeds 3 --set epochs=5']
        >>> study_commands(table1, table1.cells(["cora"]))
        ['graphjoule study table1 --datasets cora']
    """
    wanted: dict[tuple[str, str], dict[int, None]] = {}
    settings: dict[str, Mapping[str, Any]] = {}
    for cell in cells:
        wanted.setdefault((cell.dataset, cell.model), {})[cell.num_layers] = None
        settings[cell.dataset] = cell.overrides
    together: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for (dataset, model), layers in wanted.items():
        together.setdefault((dataset, tuple(layers)), []).append(model)
    commands = []
    for (dataset, depths), models in together.items():
        words = ["graphjoule", "study", study.source, "--datasets", dataset]
        if tuple(models) != study.models:
            words += ["--models", ",".join(models)]
        if depths != study.depths.get(dataset, study.depths.get("default")):
            words += ["--layers", ",".join(map(str, depths))]
        if tuple(seeds) != _SEEDS:
            words += ["--seeds", seeds_text(seeds)]
        for key, value in settings[dataset].items():
            words += ["--set", f"{key}={value_text(value)}"]
        commands.append(shlex.join(words))
    return commands


def _parts(text: str | None, expected: str, kind: Callable[[str], Any] = str) -> list[Any] | None:
    """What stands between commas; None if the option is not there."""
    if text is None:
        return None
    if not (parts := split_list(text, kind)):
        raise GraphjouleError(f"{text!r} cannot be used: expected {expected}.")
    return parts
