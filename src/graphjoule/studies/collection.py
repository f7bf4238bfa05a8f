"""Records from any number of files and folders, found again by what was trained."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Collection as AbstractCollection
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from graphjoule.errors import GraphjouleError
from graphjoule.files import each_once, json_text
from graphjoule.training.recipe import Recipe, recipe_and_fingerprint
from graphjoule.training.records import MOST_BYTES_OF_LINE, Record, read_records


class Collection:
    """Records by recipe and seed; of a run that was recorded twice, the newest.

    Args:
        records: any records. One whose settings this version does not know is left out.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._runs: dict[str, dict[int, Record]] = {}
        self._recipes: dict[str, Recipe] = {}
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Add one more record."""
        try:
            recipe, key = recipe_and_fingerprint(json_text(record.recipe))
        except GraphjouleError:
            return
        self._recipes[key] = recipe
        before = self._runs.setdefault(key, {}).get(record.seed)
        if before is None or before.created <= record.created:
            self._runs[key][record.seed] = record

    def of(self, recipe: Recipe) -> dict[int, Record]:
        """The runs of a recipe by seed; a recipe whose split is "default" takes whichever split was recorded."""
        found: dict[int, Record] = {}
        for split in {theirs.data.split: None for theirs in self._recipes.values()}:
            if recipe.data.split in ("default", split):
                found |= self._runs.get(_with_split(recipe, split).fingerprint(), {})
        return found

    def runs(self, recipe: Recipe, seeds: AbstractCollection[int] | None = None) -> list[Record]:
        """The runs of a recipe in the order of their seeds, only those of `seeds` if there are some."""
        found = self.of(recipe)
        return [found[seed] for seed in sorted(found) if seeds is None or seed in seeds]

    def recipes(self) -> list[Recipe]:
        """Every recipe that has a run."""
        return list(self._recipes.values())

    def __iter__(self) -> Iterator[Record]:
        return (record for runs in self._runs.values() for record in runs.values())


def is_same(recipe: Recipe, recorded: Recipe) -> bool:
    """Whether two recipes train the same; a split called "default" is whichever was recorded."""
    if recipe.data.split == "default":
        recipe = _with_split(recipe, recorded.data.split)
    return recipe.model == recorded.model and recipe.fingerprint() == recorded.fingerprint()


def _with_split(recipe: Recipe, split: str) -> Recipe:
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"split": split})})


def read_collection(paths: Iterable[str | os.PathLike[str]]) -> Collection:
    """The records of files and folders, see `record_files`."""
    return Collection(record for path in record_files(paths) for record in read_records(path))


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
    with suppress(OSError, EOFError, zlib.error), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        for line in iter(partial(lines.readline, MOST_BYTES_OF_LINE), b""):
            with suppress(ValueError, RecursionError):
                first = json.loads(line)
                return isinstance(first, dict) and "run_id" in first
    return False
