"""``graphjoule verify``."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphjoule.cli.terminal import Device
from graphjoule.errors import GraphjouleError
from graphjoule.files import json_text, parse_json, read_bytes, write_text
from graphjoule.studies.study import STUDIES, Study, find_study

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphjoule.studies.verify import Check


def verify(
    results: Annotated[list[Path], typer.Argument(metavar="RESULTS...", help="Folders or files of records.")],
    study: Annotated[
        list[str] | None, typer.Option(help="A study file whose ledgers are among RESULTS; repeatable.")
    ] = None,
    pages: Annotated[
        bool, typer.Option("--pages/--no-pages", help="Write the project's pages anew in memory and compare them.")
    ] = True,
    retrain: Annotated[int, typer.Option(min=0, help="Train this many runs again, drawn at random, and compare.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw.")] = 0,
    device: Device = "auto",
    data_root: Annotated[
        Path | None, typer.Option(help="Where datasets are; by default GRAPHJOULE_DATA, else a cache folder.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the page to this file too.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Check records and everything that was written from them; exit with 1 where something is not as it says.

    Hashes, seeds, the choice of the epoch, the code and the protocol of every record; the ledgers that a study left
    beside its runs; and, in a project whose pyproject.toml names what writes its pages, every number on them.

    Examples:

    - `graphjoule verify reproduction/results` in a clone: the paper's records, README and docs

    - `graphjoule verify runs/study` checks a study of your own

    - `graphjoule verify runs/study --retrain 2` trains two of its runs again
    """
    for path in results:
        if not path.exists():
            raise GraphjouleError(f"There is no file or folder {path} to verify.")
    studies: dict[str, Study] = dict(STUDIES)
    for one in map(find_study, study or []):
        studies[one.name] = one

    from graphjoule.studies import verify as checks_of

    if out is not None:
        _check_out(out, checks_of.is_page)
    placed, whole = checks_of.read_placed(results)
    if not placed and not whole.problems:
        raise GraphjouleError("No record of a run is in what was given; expected folders or files of records.")
    checks = [
        whole,
        checks_of.check_sums(results),
        checks_of.check_conflicts(placed),
        checks_of.check_data(placed),
        checks_of.check_selection(placed),
        checks_of.check_code(placed),
        checks_of.check_protocols(results, placed, {name: s.protocol for name, s in studies.items()}),
        checks_of.check_seeds(placed),
        _ledgers(results, studies),
    ]
    if pages and (written := _written_pages()) is not None:
        checks.append(written)
    if retrain:
        from graphjoule.studies.retrain import retrain_some

        checks.append(retrain_some(placed, retrain, seed=seed, device=device, data_root=data_root))
    page = checks_of.page_of(checks)
    if out is not None:
        write_text(out, page)
    typer.echo(json_text([vars(check) for check in checks]) if json else page, nl=json)
    if any(check.problems for check in checks):
        sys.exit(1)


def _check_out(out: Path, is_page: Callable[[bytes], bool]) -> None:
    """Refuse a place that is not free, unless it holds an earlier page of this command."""
    if not out.absolute().parent.is_dir():
        raise GraphjouleError(f"--out is {out}, but there is no folder {out.absolute().parent}.")
    if out.exists() and not (out.is_file() and is_page(read_bytes(out, 200))):
        raise GraphjouleError(f"--out is {out}, which is there and is no page of graphjoule verify; name another file.")


def _ledgers(results: Sequence[Path], studies: Mapping[str, Study]) -> Check:
    """The ledgers that studies left, written anew from the records of all that was given."""
    from graphjoule.cli.study import ledger_files
    from graphjoule.studies import read_collection
    from graphjoule.studies.verify import Check, compare_texts

    files: dict[str, str] = {}
    total = Check("ledgers beside the runs are what their records give")
    found_files = (file for folder in results if folder.is_dir() for file in sorted(folder.glob("*.json")))
    for path in filter(Path.is_file, found_files):
        try:
            content: Any = parse_json(read_bytes(path))
        except ValueError:  # a ledger that was cut off would be passed over
            total.problems.append(f"{path}: is not JSON.")
            continue
        if not isinstance(content, dict) or not isinstance(asked := content.get("asked"), dict):
            continue
        if (name := str(content.get("study"))) not in studies:
            total.problems.append(f"{path}: {name} is not a known study; give its file with --study.")
            continue
        try:
            cells = studies[name].cells(asked["datasets"], asked["models"], asked["layers"], asked["overrides"])
            texts = ledger_files(studies[name], cells, read_collection(results), asked)
        except GraphjouleError as error:
            total.problems.append(f"{path}: {error}")
            continue
        except (LookupError, TypeError, ValueError, AttributeError):  # `asked` is not what a study writes
            total.problems.append(f"{path}: what it says was asked for is damaged; graphjoule study writes it anew.")
            continue
        files |= {str(path.with_suffix(f".{ending}")): text for ending, text in texts.items()}
    found = compare_texts(files, _text, total.name)
    found.problems = total.problems + found.problems
    return found


def _text(name: str) -> str | None:
    path = Path(name)
    return read_bytes(path).decode(errors="replace") if path.is_file() else None


def _written_pages() -> Check | None:
    """The pages of the project in the current folder, if its pyproject.toml names what writes them.

    The folder is the one that the user stands in, never the one that is verified: records from elsewhere run no code.
    """
    from graphjoule.studies.verify import Check, compare_texts

    here = Path.cwd()
    project = here / "pyproject.toml"
    if not project.is_file():
        return None
    try:
        writer = tomllib.loads(project.read_text()).get("tool", {}).get("graphjoule", {}).get("pages")
    except (ValueError, AttributeError) as error:
        raise GraphjouleError(
            f"Cannot read {project}: {error}; mend it, or leave the pages out by --no-pages."
        ) from None
    if not isinstance(writer, str):
        return None
    sys.path.insert(0, str(here))
    module, _, name = writer.partition(":")
    try:
        write: Callable[[], dict[str, str]] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise GraphjouleError(
            f"{project} says that {writer} writes the pages, which cannot be imported: {error}; mend it, or leave the "
            "pages out by --no-pages."
        ) from error
    what = f"pages and their data are what {module} writes from the records"
    try:
        return compare_texts(write(), _text, what)
    except Exception as error:  # the records lack what a page needs; what a writer does then is its own affair
        return Check(what, problems=[f"The pages cannot be written: {type(error).__name__}: {error}"])
