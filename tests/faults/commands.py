"""The commands that are attacked, and what must be true of the folder they leave."""

import base64
import csv
import itertools
import json
import re
import tomllib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphjoule.files import UNFINISHED
from graphjoule.report import drawings
from graphjoule.trace import plots
from graphjoule.training import model_card, versions
from graphjoule.training.budget import Budget
from graphjoule.training.records import read_records
from graphjoule.training.saving import read_tensors
from graphjoule.tuning import worth

_TABLES = ("--nodes", "in/nodes.csv", "--edges", "in/edges.csv")
_SMALL = ("--layers", "2", "--set", "hidden_channels=4", "--device", "cpu")


@dataclass(frozen=True)
class Command:
    """A command line, run in a folder with ``in/`` and ``out/``.

    Attributes:
        words: what is typed; it writes below ``out/``.
        again: what is typed after a fault, from the folder; the same words by default.
        old: files that are there before, by name below ``out/``: afterwards they are as they were, or new.
        is_timed: the clock decides what it finds, so a repetition must end, with whole files, but not in the same bits.
            While it is attacked, its budget is counted in looks at the clock: a search that ends after a few trials on
            any machine.
    """

    words: tuple[str, ...]
    again: Callable[[Path], tuple[str, ...]] | None = None
    old: dict[str, bytes] = field(default_factory=dict)
    is_timed: bool = False

    def repeated(self, folder: Path) -> tuple[str, ...]:
        """What is typed after a fault."""
        return self.words if self.again is None else self.again(folder)


def _resumed(words: tuple[str, ...]) -> Callable[[Path], tuple[str, ...]]:
    return lambda folder: (*words, "--resume") if (folder / "out/run").exists() else words


_TRAIN = ("train", *_TABLES, "--seeds", "2", "--epochs", "4", "--checkpoint-every", "2", *_SMALL, "--out", "out/run")
_STUDY = (
    "study",
    "table1",
    "--datasets",
    "digits",
    "--models",
    "gcn",
    "--layers",
    "2",
    "--seeds",
    "2",
    "--epochs",
    "2",
)
_TUNE_OUT = ("--out", "out/tune")
_AUTO = ("auto", *_TABLES, "--models", "gcn", "--depths", "2", "--seeds", "2", "--budget", "2s", "--no-worth")
_AUTO = (*_AUTO, "--set", "hidden_channels=4", "--set", "epochs=4", "--device", "cpu", "--out", "out/run")
_EXPORT = ("export", "in/run", "--format", "hub", "--out", "out/hub")
_DOT = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=")
_OLD_PAGE = b'<!doctype html><meta name="generator" content="graphjoule 0"></html>'


def _exported_again(folder: Path) -> tuple[str, ...]:
    """A folder that is whole refuses a second export, so there is nothing left to repeat."""
    hub = folder / "out/hub"
    is_whole = (hub / "config.json").exists() and not (hub / UNFINISHED).exists()
    return ("--version",) if is_whole else _EXPORT


def count_time_by_looks(seconds: float = 0.1) -> None:
    """Let every look at a budget's clock cost so much of it, from now on, in this process."""
    looks = itertools.count()
    Budget.__init__.__defaults__ = (lambda: seconds * next(looks),)  # type: ignore[attr-defined]


def spare_work() -> None:
    """Leave out, from now on, what takes most of a command's time and does nothing to files.

    Of boosted trees there are three, a picture is one dot, and templates and versions are there before a fork.
    """
    make = worth._boosters
    worth._boosters = lambda iterations, rows, weights: make(min(iterations, 3), rows, weights)
    plots.picture_bytes = drawings.picture_bytes = lambda figure, ending="png": _DOT
    model_card._template()
    versions()


COMMANDS = {
    "train": Command(_TRAIN, _resumed(_TRAIN)),
    "auto": Command(_AUTO, _resumed(_AUTO), is_timed=True),
    "study": Command((*_STUDY, "--set", "hidden_channels=4", "--device", "cpu", "--out", "out/study")),
    "tune": Command(
        ("tune", *_TABLES, "--model", "gcn", *_SMALL, "--epochs", "2", "--trials", "2", "--seeds", "1", *_TUNE_OUT)
    ),
    "report": Command(("report", "in/run", "--no-energy", "--out", "out/report.html"), old={"report.html": _OLD_PAGE}),
    "demo": Command(
        ("demo", "--layers", "2", "--epochs", "2", "--report", "out/demo.html"), old={"demo.html": _OLD_PAGE}
    ),
    "verify": Command(
        ("verify", "in/run", "--no-pages", "--out", "out/page.md"),
        old={"page.md": b"# Verified\n\n- **ok** (0): nothing.\n"},
    ),
    "predict": Command(("predict", "in/run", "--out", "out/p.csv", "--force"), old={"p.csv": b"id\n"}),
    "export": Command(_EXPORT, _exported_again),
    "export to a file": Command(
        ("export", "in/run", "--format", "torch", "--out", "out/m.pt2", "--force"), old={"m.pt2": b"old"}
    ),
    "partition": Command(("partition", *_TABLES, "--parts", "2", "--method", "blocks", "--out", "out/parts")),
    "trace": Command(("trace", "in/run", "--plot", "out/energy.png", "--force"), old={"energy.png": b"old"}),
}


def write_inputs(folder: Path) -> None:
    """A graph of thirty nodes as tables, in ``in/``, and an empty ``out/``."""
    for name in ("in", "out"):
        (folder / name).mkdir()
    with (folder / "in/nodes.csv").open("w", newline="") as file:
        rows = (
            [f"n{i}", f"{i % 3 + 0.1 * (i % 7):.1f}", f"{i % 5}", "abc"[i % 3] if i < 27 else ""] for i in range(30)
        )
        csv.writer(file).writerows([["id", "x", "y", "label"], *rows])
    with (folder / "in/edges.csv").open("w", newline="") as file:
        edges = ([f"n{i}", f"n{(i + step) % 30}"] for i in range(30) for step in (1, 3))
        csv.writer(file).writerows([["source", "target"], *edges])


def contents(folder: Path) -> dict[str, bytes]:
    """The files below a folder by name, without locks and what is only there while a file is written."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".graphjoule-") and not path.name.endswith(".lock")
    }


def fault_in(folder: Path, command: Command, expected: dict[str, Any], *, is_repeated: bool = False) -> str | None:
    """What is wrong with the files after a fault; None if each is whole.

    A file that was there before is as it was or as it shall be. A line of records that a kill has torn stays, and once
    the command is repeated others come after it: from then on it is left out with a warning.
    """
    for name, data in contents(folder).items():
        if name in command.old:
            if data != command.old[name] and _essence(folder / name, data) != expected[name]:
                return f"{name} is neither as it was nor as it shall be"
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore" if is_repeated else "error")  # a torn line at the end gets no warning
                _read(folder / name, data)
        except Exception as error:
            return f"{name} is not whole: {type(error).__name__}: {error}"
    return None


def _read(path: Path, data: bytes) -> None:
    if path.suffix == ".safetensors":
        kind = json.loads(_header(data)["__metadata__"]["graphjoule"])["kind"]
        read_tensors(path, kind)
    elif path.name == "records.jsonl":
        list(read_records(path))
    elif path.suffix == ".json":
        json.loads(data)
    elif path.suffix == ".toml":
        tomllib.loads(data.decode())
    elif path.suffix == ".log":  # a journal, whose last line the next worker cuts off if it is torn
        for line in data.splitlines(keepends=True):
            if line.endswith(b"\n"):
                json.loads(line)
    else:
        ends = {".png": b"IEND\xaeB`\x82", ".csv": b"\n", ".md": b"\n"}
        if not data.endswith(ends.get(path.suffix, b"")):
            raise ValueError("it ends too early")


def _header(data: bytes) -> Any:
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def essence(folder: Path) -> dict[str, Any]:
    """What must be the same to the bit after a fault and a repetition: all but times, memory and the order of runs."""
    return {name: _essence(folder / name, data) for name, data in contents(folder).items()}


def _essence(path: Path, data: bytes) -> Any:
    if path.name == "records.jsonl":
        passing = {"seconds", "created", "peak_bytes", "versions"}  # the last has the commit, which may move meanwhile
        facts = (record.model_dump(exclude=passing) for record in read_records(path))
        return sorted(facts, key=lambda record: int(record["seed"]))
    if path.name == "MODEL_CARD.md":
        return re.sub(r"\| [\d.]+ \|$|Versions: .*", "", data.decode(), flags=re.MULTILINE)
    if path.suffix == ".log":
        return "journal"  # times and attempts; what came of it is in the other files
    if path.name == "trials.csv":
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        return [{k: v for k, v in row.items() if "seconds" not in k and "attempt" not in k} for row in rows]
    if path.name == "demo.html":  # which trains: its seconds end a row
        return re.sub(r"[\d.]+( s<|</td></tr>)|recorded \S+:", "", data.decode())
    if path.suffix in (".json", ".csv", ".md", ".toml", ".html") and b"second" in data:
        return re.sub(r"(seconds\W+|attempts?\W+)?[\d.]+(?= s\b)|(?<=seconds)\W+[\d.]+", "", data.decode())
    return data
