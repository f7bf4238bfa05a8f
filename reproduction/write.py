"""Write every table and figure of README.md and the docs from the records in reproduction/results/; nothing is trained.

    python -m reproduction.write           # all of them
    python -m reproduction.write --check   # write nothing, name what differs and exit with 1

The same records give the same bytes. Pictures depend on the drawing library too, so their numbers are written beside
them, in reproduction/data/, with the versions that drew them.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterable
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from graphjoule import GraphjouleError
from graphjoule.report import picture
from graphjoule.studies import STUDIES, ledger_text
from reproduction.bench.plot import plot_all
from reproduction.pages import Results, fill_page, pulse, read_results, scaling
from reproduction.pages.drawings import Figure, drawn_with
from reproduction.pages.gallery import gallery_figures, gallery_rows
from reproduction.pages.numbers import with_numbers
from reproduction.pages.stated import FILE, pages, with_stated
from reproduction.pages.tables import DOCUMENTS, GALLERY, with_tables
from reproduction.pages.wave import ring_picture

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("reproduction/RESULTS.md", "reproduction/CONSTRAINT.md")
MORE_RECORDS = ("protocols",)
"""Folders in reproduction/results/ with runs of the studies, besides those that are called like a study."""
UNAVAILABLE = ("arxiv",)
"""Datasets that could not be had where the records were made."""
SUMS = "SHA256SUMS"
DIGITS = "reproduction/pages/digits.sha256"
STATED = FILE.relative_to(ROOT).as_posix()
BENCH_CURVES = ("h200-curves", "cpu-curves")


def all_results(root: Path = ROOT) -> Results:
    """What is recorded."""
    return read_results(root / "reproduction/results", MORE_RECORDS, UNAVAILABLE)


def results_files(results: Results, root: Path = ROOT) -> dict[str, bytes]:
    """The pages of results, the numbers behind their pictures, and the ledgers as data."""
    texts = {page: with_tables(fill_page((root / page).read_text(), results)) for page in PAGES}
    files = {page: with_numbers(text, results).encode() for page, text in texts.items()}
    for name, rows in results.ledgers.items():
        for form in ("csv", "json"):
            files[f"reproduction/data/{name}.{form}"] = ledger_text(STUDIES[name], rows, form).encode()
    for figure in all_figures(results):
        data = {**figure.data(), "drawn_with": drawn_with()}
        files[f"reproduction/data/{figure.name}.json"] = data_text(data).encode()
    return files


def pictures(results: Results) -> dict[str, bytes]:
    """The pictures of the studies and of the gallery."""
    return {f"docs/images/{figure.name}.png": picture(figure.drawing) for figure in all_figures(results)}


def all_figures(results: Results) -> list[Figure]:
    """Those of the studies, then those of the gallery."""
    return [*chain(*results.figures.values()), *gallery_figures(gallery_rows(GALLERY))]


def data_text(data: dict[str, Any]) -> str:
    """A drawing's numbers as JSON with a line for each of its charts: indented, every number would have one."""
    charts = ",\n".join(json.dumps(chart) for chart in data["charts"])
    fields = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in data.items() if key != "charts"]
    return "{" + ",\n".join([*fields, f'"charts": [\n{charts}\n]']) + "}\n"


def documents(results: Results, root: Path = ROOT) -> dict[str, str]:
    """README and the other pages, with their tables and numbers."""
    return {name: with_numbers(with_tables((root / name).read_text()), results) for name in DOCUMENTS}


def unbacked(root: Path = ROOT) -> dict[str, str]:
    """The pages on which a number stands by hand that is not listed, with words in its place."""
    texts = {page: (root / page).read_text() for page in pages(root)}
    return {page: made for page, text in texts.items() if (made := with_stated(page, text)) != text}


def other_files(results: Results, root: Path = ROOT) -> dict[str, bytes]:
    """The tables in README and the other pages, and the pictures of the benchmarks and of the wave."""
    files = {name: text.encode() for name, text in documents(results, root).items()}
    files |= {"docs/images/wave-rings.png": ring_picture(), "docs/images/wave-pulse.png": pulse.grid_picture()}
    files["docs/images/wave-ten-thousand.png"] = pulse.ring_picture()
    with tempfile.TemporaryDirectory() as folder:
        for name in BENCH_CURVES:
            plot_all(root / f"reproduction/results/bench/{name}.jsonl", Path(folder))
        scaling.pictures(scaling.read_scaling(root / "reproduction/results/scaling"), Path(folder))
        files |= {f"docs/images/{path.name}": path.read_bytes() for path in sorted(Path(folder).iterdir())}
    return files


def texts() -> dict[str, str]:
    """Everything that is written from records but the pictures, for `graphjoule verify`.

    The versions that drew a picture are left as they stand beside its numbers: they are not numbers of a record.
    """
    results = all_results()
    found = {name: content.decode() for name, content in results_files(results).items()}
    for name in [name for name in found if name.startswith("reproduction/data/") and name.endswith(".json")]:
        there = ROOT / name
        if there.is_file() and "drawn_with" in (content := json.loads(found[name])):
            found[name] = data_text({**content, "drawn_with": json.loads(there.read_text()).get("drawn_with")})
    found |= documents(results)
    return found | {page: with_stated(page, found.get(page, text)) for page, text in unbacked().items()} | sums()


def sums(root: Path = ROOT) -> dict[str, str]:
    """The hashes of records and pictures by folder, as ``sha256sum`` writes them, and of the digits of all pages."""
    found = {DIGITS: digits(root)}
    for folder in sorted(path for path in (root / "reproduction/results").iterdir() if path.is_dir()):
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS)
        found[f"reproduction/results/{folder.name}/{SUMS}"] = _sums(folder, files)
    top = root / "reproduction/results"
    found[f"reproduction/results/{SUMS}"] = _sums(top, sorted(top.glob("*.json*")))
    found[f"docs/images/{SUMS}"] = _sums(root / "docs/images", sorted((root / "docs/images").glob("*.png")))
    return found


def digits(root: Path = ROOT) -> str:
    """The hash of the digits of every page, in their order: of numbers that are in no record too."""
    lines = ["# Hashes of all digits of a page, in order. After a change on purpose: python -m reproduction.write"]
    for page in pages(root):
        found = "".join(re.findall("[0-9]", (root / page).read_text()))
        lines.append(f"{sha256(found.encode()).hexdigest()}  {page}")
    return "\n".join(lines) + "\n"


def _sums(folder: Path, files: Iterable[Path]) -> str:
    lines = (f"{sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}\n" for path in files)
    return "".join(lines)


def main() -> None:
    """Write what differs from what is there, or say what does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, exit with 1 where something differs")
    check = parser.parse_args().check
    results = all_results()
    files = results_files(results) | pictures(results) | other_files(results)
    differing = bring(files, check=check)
    differing |= bring({name: text.encode() for name, text in sums().items()}, check=check)  # of what is written now
    for page in unbacked():
        print(f"{page}: has a number by hand that is not in {STATED}, or lacks one that is; graphjoule verify names it")
    sys.exit(1 if (check and differing) or unbacked() else 0)


def bring(files: dict[str, bytes], *, check: bool) -> set[str]:
    """Name the files that differ from what they should be, and write them unless this is but a check."""
    differing = {name for name, content in files.items() if not is_there(ROOT / name, content)}
    for name in sorted(differing):
        print(name)
        if not check:
            (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / name).write_bytes(files[name])
    return differing


def is_there(path: Path, content: bytes) -> bool:
    """Whether a file has this content."""
    return path.exists() and path.read_bytes() == content


if __name__ == "__main__":
    try:
        main()
    except GraphjouleError as error:  # a mark without its record
        print(error, file=sys.stderr)
        sys.exit(2)
