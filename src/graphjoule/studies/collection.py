"""Records from any number of files and folders, found again by what was trained."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Collection as AbstractCollection
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from graphjoule.errors import GraphjouleError, choices
from graphjoule.files import each_once, json_text, open_file
from graphjoule.training.recipe import Recipe, recipe_and_fingerprint
from graphjoule.training.records import MOST_BYTES_OF_LINE, Record, read_records

_Kind = tuple[str | None, str]
"""Backend and kind of device."""


class Collection:
    """Records by recipe, seed, backend and kind of device.

    A run may be recorded twice if the two say the same. Two that differ are an error, for whoever reads them has to
    find out which is true; and so is a run that was recorded on two kinds of device or backend, once it is asked for.

    Args:
        records: any records. One whose settings this version does not know is left out.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._runs: dict[str, dict[int, dict[_Kind, tuple[Record, str]]]] = {}
        self._recipes: dict[str, Recipe] = {}
        for record in records:
            self.add(record)

    def add(self, record: Record, source: str = "") -> None:
        """Add one more record.

        Args:
            record: any.
            source: where it is from, for sentences.

        Raises:
            GraphjouleError: there is a record of the same run that says something else.
        """
        try:
            recipe, key = recipe_and_fingerprint(json_text(record.recipe))
        except GraphjouleError:
            return
        self._recipes[key] = recipe
        kinds = self._runs.setdefault(key, {}).setdefault(record.seed, {})
        before, at = kinds.get(kind := _kind(record), (None, ""))
        if before is None:
            kinds[kind] = (record, source)
            return
        for what, one, other in differences(before, record):
            places = f" ({at} and {source})" if at or source else ""
            raise GraphjouleError(
                f"Two records of one run differ: {_named(record)}, {_words(kind)}, has the {what} {one} and {other}"
                f"{places}. Find out which is true and read that one alone."
            )
        if record.curve and not before.curve:  # the same facts, and more of them
            kinds[kind] = (record, source)

    def of(self, recipe: Recipe) -> dict[int, Record]:
        """The runs of a recipe by seed; a recipe whose split is "default" takes whichever split was recorded.

        Raises:
            GraphjouleError: a run is recorded on more than one kind of device or backend.
        """
        found: dict[int, Record] = {}
        for split in {theirs.data.split: None for theirs in self._recipes.values()}:
            if recipe.data.split in ("default", split):
                for seed, kinds in self._runs.get(_with_split(recipe, split).fingerprint(), {}).items():
                    (record, _), *others = kinds.values()
                    if others:
                        sources = {at for _, at in kinds.values()} - {""}
                        raise GraphjouleError(
                            f"{_named(record)} is recorded on {' and on '.join(map(_words, kinds))}"
                            f"{f' ({choices(sources)})' if sources else ''}; read the records of one of them alone."
                        )
                    found[seed] = record
        return found

    def runs(self, recipe: Recipe, seeds: AbstractCollection[int] | None = None) -> list[Record]:
        """The runs of a recipe in the order of their seeds, only those of `seeds` if there are some."""
        found = self.of(recipe)
        return [found[seed] for seed in sorted(found) if seeds is None or seed in seeds]

    def recipes(self) -> list[Recipe]:
        """Every recipe that has a run."""
        return list(self._recipes.values())

    def __iter__(self) -> Iterator[Record]:
        return (record for runs in self._runs.values() for kinds in runs.values() for record, _ in kinds.values())


def differences(one: Record, other: Record) -> list[tuple[str, Any, Any]]:
    """What two records of one run say differently, by name; times, memory, curves and code are not compared."""
    names = ("split_sha256", "status", "epochs_run", "selected_epoch", "val", "test")
    found = [(name, getattr(one, name), getattr(other, name)) for name in names]
    if one.task_sha256 and other.task_sha256:  # older records have none
        found.append(("task_sha256", one.task_sha256, other.task_sha256))
    return [(name, mine, theirs) for name, mine, theirs in found if mine != theirs]


def _kind(record: Record) -> _Kind:
    return record.backend, record.device_kind


def _words(kind: _Kind) -> str:
    backend, device = kind
    return f"{device} by the backend {backend}" if backend else f"{device} by a backend that is not recorded"


def _named(record: Record) -> str:
    return f"{record.model} with {record.num_layers} layers on {record.dataset}, seed {record.seed}"


def is_same(recipe: Recipe, recorded: Recipe) -> bool:
    """Whether two recipes train the same; a split called "default" is whichever was recorded."""
    if recipe.data.split == "default":
        recipe = _with_split(recipe, recorded.data.split)
    return recipe.model == recorded.model and recipe.fingerprint() == recorded.fingerprint()


def _with_split(recipe: Recipe, split: str) -> Recipe:
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"split": split})})


def read_collection(paths: Iterable[str | os.PathLike[str]]) -> Collection:
    """The records of files and folders, see `record_files`."""
    found = Collection()
    for path in record_files(paths):
        for record in read_records(path):
            found.add(record, str(path))
    return found


def record_files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The files of records among `paths`: a file as it is, of a folder every ``.jsonl(.gz)`` below that holds records.

    A file that several links or paths lead to is there once; links to folders are not followed.

    Raises:
        GraphjouleError: There is no such file or folder.
    """
    asked = [Path(path) for path in paths]
    for path in asked:
        if not path.exists():
            raise GraphjouleError(f"There is no file or folder {path} to read records from.")
    return [path for path in files_below(asked, (".jsonl", ".jsonl.gz")) if path in asked or _holds_records(path)]


def files_below(paths: Iterable[str | os.PathLike[str]], endings: tuple[str, ...]) -> list[Path]:
    """The files among `paths`, and those below its folders that have one of the endings; each file once."""
    files: list[Path] = []
    for path in map(Path, paths):
        below = (file for file in sorted(path.rglob("*.json*")) if file.name.endswith(endings))
        files += below if path.is_dir() else [path]
    return each_once(files)


def _holds_records(path: Path) -> bool:
    """Whether the first whole line is of a run; a folder may hold timings and other lines of JSON too."""
    with suppress(OSError, EOFError, zlib.error), open_file(path) as lines:
        for line in iter(partial(lines.readline, MOST_BYTES_OF_LINE), b""):
            with suppress(ValueError, RecursionError):
                first = json.loads(line)
                return isinstance(first, dict) and "run_id" in first
    return False
