"""``graphjoule report``."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from graphjoule.cli.predict import training_graph
from graphjoule.errors import GraphjouleError
from graphjoule.predicting import TrainedRuns
from graphjoule.report import check_report_path, paper_table, read_cells, report_page, write_report
from graphjoule.tasks.inputs import ModelInput
from graphjoule.training.environment import resolve_device

_EPILOG = """
Examples:

- `graphjoule report runs/cora-egnn-64 --open`

- `graphjoule report runs --out runs.html` reports on all trainings in a folder, side by side

- `graphjoule report reproduction/results/table1 --out records.html` makes do with records alone
"""


def report(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A run folder of `graphjoule train`, a folder of such, or one of records."),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The HTML file to write; by default DIR/report.html.")
    ] = None,
    energy: Annotated[
        bool,
        typer.Option("--energy/--no-energy", help="Measure the energies; needs the data the runs were trained on."),
    ] = True,
    device: Annotated[str, typer.Option(help="Where to measure them: auto, cpu or cuda.")] = "auto",
    data_root: Annotated[
        Path | None, typer.Option(help="Where datasets are; by default GRAPHJOULE_DATA, else a cache folder.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Write one HTML page on a run or a study: accuracies, energies, curves, diagnosis, settings; it loads nothing."""
    path = out or folder / "report.html"
    if folder.is_dir():
        check_report_path(path)  # said now, not after minutes
    cells = read_cells(folder, _Graphs(data_root).load, trace=energy, device=resolve_device(device), on_cell=_tell)
    write_report(path, report_page(cells, title=folder.absolute().name, paper=paper_table()))
    typer.echo(f"report: {path}")
    if open_ and not webbrowser.open(path.absolute().as_uri()):
        raise GraphjouleError(f"No browser could be started; open {path} yourself.")


report.__doc__ = f"{report.__doc__}\n{_EPILOG}"


class _Graphs:
    """The graphs of a study, each read once."""

    def __init__(self, data_root: Path | None) -> None:
        self._data_root = data_root
        self._read: dict[str, ModelInput] = {}

    def load(self, runs: TrainedRuns) -> ModelInput:
        if runs.data is None:  # an old folder: nothing says whether two of its kind are the same data
            return training_graph(runs, self._data_root)
        if runs.data.sha256 not in self._read:
            self._read[runs.data.sha256] = training_graph(runs, self._data_root)
        return self._read[runs.data.sha256]


def _tell(done: int, total: int) -> None:
    if total > 1:
        typer.echo(f"traced {done} of {total} networks", err=True)
