"""``graphjoule study``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from graphjoule.cli.study_progress import show_study
from graphjoule.cli.train import parse_seeds
from graphjoule.errors import GraphjouleError, choices
from graphjoule.files import check_free, ensure_folder, json_text, write_bytes, write_text
from graphjoule.report.drawings import Evidence, drawings_of, picture
from graphjoule.studies import (
    STUDIES,
    Cell,
    Collection,
    LedgerRow,
    Plan,
    Study,
    Tasks,
    find_study,
    ledger_text,
    make_ledger,
    plan_study,
    read_collection,
    work,
)
from graphjoule.studies.command import study_commands
from graphjoule.studies.energy_files import read_energies
from graphjoule.studies.estimate import Pace
from graphjoule.studies.ledger_text import FORMATS
from graphjoule.studies.plan import CLAIMS
from graphjoule.tasks import DATASETS, load_task, resolve_data_root
from graphjoule.trace.plots import MissingLibraryError
from graphjoule.training import TrainingInterrupted
from graphjoule.training.environment import describe_device, resolve_device
from graphjoule.training.recipe import parse_overrides

_ENDINGS = {"markdown": "md", "csv": "csv", "json": "json"}
_EPILOG = """
Examples:

- `graphjoule study --list` says which studies there are

- `graphjoule study table1 --datasets digits --models egnn,gcn --layers 2,8 --seeds 3` is a quick try

- `graphjoule study table1 --datasets cora,pubmed --device cuda`

- `graphjoule study table1 --ledger --records results/table1` trains nothing, compares

Killed or stopped, the same command goes on; started twice, the two share the work.
"""


def study(
    name: Annotated[str | None, typer.Argument(metavar="STUDY", help=f"One of {choices(STUDIES)}.")] = None,
    datasets: Annotated[str | None, typer.Option(help="Such as cora,pubmed; the study's own by default.")] = None,
    models: Annotated[str | None, typer.Option(help="Such as egnn,gcn; the study's own by default.")] = None,
    layers: Annotated[str | None, typer.Option(help="Depths such as 2,16; the study's own by default.")] = None,
    seeds: Annotated[str, typer.Option(help="How many seeds (10 means 0 to 9), or a list such as 3,7.")] = "10",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting in every cell; repeatable."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="The most epochs of a run; the recipes say by default.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder of all runs; studies share what they have in common.")] = Path(
        "runs/study"
    ),
    records: Annotated[
        list[Path] | None,
        typer.Option(help="More records, .jsonl(.gz) files or folders of them; their runs are not repeated."),
    ] = None,
    ledger: Annotated[
        bool, typer.Option("--ledger", help="Train nothing, compare the records with the paper.")
    ] = False,
    form: Annotated[str, typer.Option("--format", help=f"How the ledger is printed: {choices(FORMATS)}.")] = "markdown",
    list_: Annotated[bool, typer.Option("--list", help="List the studies.")] = False,
    data_root: Annotated[
        Path | None, typer.Option(help="Where datasets are or go; by default GRAPHJOULE_DATA, else a cache folder.")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Epochs between two checkpoints.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on the last line.")] = False,
) -> None:
    """Train a table or figure of the paper, filling in only what has no record yet, and compare it with the paper."""
    if list_ or name is None:
        typer.echo(list_studies(as_json=json))
        return
    chosen = find_study(name)
    if form not in FORMATS:
        raise GraphjouleError(f"--format is {form!r}; expected one of {choices(FORMATS)}.")
    overrides = parse_overrides([*(set_ or []), *([f"epochs={epochs}"] if epochs is not None else [])])
    cells = chosen.cells(_names(datasets), _names(models), _depths(layers), overrides)
    request = _Request(chosen, cells, parse_seeds(seeds), out, records or [], data_root)
    refused: dict[str, str] = {}
    if ledger:
        unavailable = request.absent()
    else:
        plan, refused = _train(request, device, checkpoint_every)
        unavailable = list(plan.unavailable)
    rows = make_ledger(cells, request.recorded(), seeds=request.seeds, unavailable=unavailable)
    if not ledger:
        _write_ledgers(request, rows)
        _draw(request)
    typer.echo(ledger_text(chosen, rows, form, request.seeds), err=json, nl=False)
    for what, why in refused.items():
        typer.echo(f"graphjoule: {what} could not be finished: {why}", err=True)
    if json:
        typer.echo(json_text(_fields(request, rows, refused, unavailable)))
    if refused:
        sys.exit(1)


study.__doc__ = f"{study.__doc__}\n{_EPILOG}"


@dataclass(frozen=True)
class _Request:
    """What is asked for."""

    study: Study
    cells: list[Cell]
    seeds: list[int]
    out: Path
    records: list[Path]
    data_root: Path | None

    def recorded(self) -> Collection:
        """All records there are by now."""
        return read_collection([*self.records, *([self.out] if self.out.exists() else [])])

    def absent(self) -> list[str]:
        """Datasets whose files are not here."""
        root = resolve_data_root(self.data_root)
        return [name for name in dict.fromkeys(c.dataset for c in self.cells) if not DATASETS[name].is_present(root)]


def _train(request: _Request, device: str, checkpoint_every: int) -> tuple[Plan, dict[str, str]]:
    """Say what is to be done, and do it."""
    name, has_energies = request.study.name, request.study.has_energies
    where = describe_device(resolve_device(device))
    if not (request.out / CLAIMS).is_dir():
        check_free(request.out)
    ensure_folder(request.out)
    tasks = Tasks(lambda dataset: load_task(dataset, request.data_root))
    known = request.recorded()
    plan = plan_study(request.cells, request.seeds, request.out, tasks, elsewhere=known, has_energies=has_energies)
    for dataset, why in plan.unavailable.items():
        cells = [cell for cell in request.cells if cell.dataset == dataset]
        commands = " and ".join(f"`{text}`" for text in study_commands(request.study, cells, request.seeds))
        typer.echo(f"{dataset}: not run: data not available here; {commands} runs it. {why}", err=True)
    pace = Pace(where, known)
    typer.echo(f"{name}: {_announce(plan, pace)}", err=True)
    ensure_folder(request.out / CLAIMS)  # also if there is nothing to claim: the ledgers make the folder the study's
    try:
        with show_study(name) as on_progress:
            refused = work(
                plan, tasks, device=device, pace=pace, checkpoint_every=checkpoint_every, on_progress=on_progress
            )
    except (TrainingInterrupted, KeyboardInterrupt) as stopped:  # the second while it waits or measures
        typer.echo(f"graphjoule: {str(stopped) or 'stopped'}; the same command goes on from there.", err=True)
        sys.exit(130)
    return plan, refused


def _announce(plan: Plan, pace: Pace) -> str:
    to_do = plan.num_runs - plan.num_recorded
    if not to_do:
        return f"all {plan.num_runs} runs are recorded"
    recorded = f" of {plan.num_runs}, the others are recorded" if plan.num_recorded else ""
    return f"{to_do} runs to train{recorded}; {pace.estimate(plan.jobs)}"


def _write_ledgers(request: _Request, rows: Sequence[LedgerRow]) -> None:
    for form, ending in _ENDINGS.items():
        text = ledger_text(request.study, rows, form, request.seeds)
        write_text(request.out / f"{request.study.name}.{ending}", text)


def _draw(request: _Request) -> None:
    """Leave the study's figures beside its ledgers; without matplotlib, say what would draw them."""
    energies = read_energies([request.out, *request.records]) if request.study.has_energies else []
    evidence = Evidence(request.study, request.cells, request.recorded(), energies, request.seeds)
    try:
        for drawing in drawings_of(evidence):
            path = request.out / f"{drawing.name}.png"
            write_bytes(path, picture(drawing))
            typer.echo(f"{request.study.name}: drawn in {path}", err=True)
    except MissingLibraryError as error:
        typer.echo(f"graphjoule: nothing is drawn. {error}", err=True)


def _fields(
    request: _Request, rows: Sequence[LedgerRow], refused: dict[str, str], unavailable: Sequence[str]
) -> dict[str, Any]:
    return {
        "study": request.study.name,
        "out": str(request.out),
        "seeds": request.seeds,
        "not_available": list(unavailable),
        "refused": refused,
        "rows": [row.fields() for row in rows],
    }


def list_studies(*, as_json: bool = False) -> str:
    """The studies, a line each."""
    if as_json:
        return json_text([{"name": s.name, "title": s.title, "num_cells": len(s.cells())} for s in STUDIES.values()])
    width = max(map(len, STUDIES)) + 2
    return "\n".join(f"{s.name:<{width}}{s.title} ({len(s.cells())} cells)" for s in STUDIES.values())


def _names(text: str | None) -> list[str] | None:
    return None if text is None else _parts(text, str, "names, such as cora,pubmed")


def _depths(text: str | None) -> list[int] | None:
    return None if text is None else _parts(text, int, "--layers numbers, such as 2,16")


def _parts(text: str, kind: Callable[[str], Any], expected: str) -> list[Any]:
    try:
        parts = [kind(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError:
        parts = []
    if not parts:
        raise GraphjouleError(f"{text!r} cannot be used: expected {expected}.")
    return parts
