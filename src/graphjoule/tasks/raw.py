"""Raw files on disk: where they are looked for, and how missing ones arrive without ever being half there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from graphjoule.errors import GraphjouleError

DATA_ROOT_VARIABLE = "GRAPHJOULE_DATA"


def resolve_data_root(data_root: str | os.PathLike[str] | None = None) -> Path:
    """The folder of raw files: the argument, else ``GRAPHJOULE_DATA``, else a cache folder of the user's."""
    given = data_root or os.environ.get(DATA_ROOT_VARIABLE)
    if given:
        return Path(given).expanduser().absolute()
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification says to ignore a relative path.
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "graphjoule"


@dataclass(frozen=True)
class RawFiles:
    """The raw files of one of PyG's datasets, in the folder where PyG itself keeps them: ``NAME/raw``.

    Attributes:
        task: what the task made of them is called.
        dataset: name of the class in `torch_geometric.datasets`, which knows the URL and how to download.
        name: the folder's name, which for most classes is the dataset's name as well.
        files: names of the files in the folder. They stand here too so that looking for them imports no PyG.
        check: refuses a folder whose files are not what they should be; its second argument is how to call the folder
            in the sentence. It runs on a download before any of it reaches the data root. It may return what it has
            read, for a loader that must not use other bytes than those that were checked.
        options: keywords for a class that takes no name; by default it is given the name.
    """

    task: str
    dataset: str
    name: str
    files: tuple[str, ...]
    check: Callable[[Path, str], Any]
    options: Mapping[str, Any] | None = None

    def folder(self, root: Path) -> Path:
        """Where the files are expected."""
        return root / self.name / "raw"

    def missing(self, root: Path) -> list[Path]:
        """The files that are not there."""
        return [path for file in self.files if not is_file(path := self.folder(root) / file)]

    def ensure(self, root: Path) -> Path:
        """The folder with all files in it; missing ones are downloaded. Files that were there are not checked."""
        if missing := self.missing(root):
            with arriving(root, missing[0]) as stage:
                url = self._download(stage)
                self.check(self.folder(stage), url)
                self.folder(root).mkdir(parents=True, exist_ok=True)
                for path in missing:
                    (self.folder(stage) / path.name).replace(path)
        return self.folder(root)

    def _download(self, stage: Path) -> str:
        if self.options is None:
            return _download_raw(self.dataset, {"name": self.name}, stage)
        # A class that takes no name makes no folder of that name.
        return _download_raw(self.dataset, self.options, stage / self.name)


@contextmanager
def arriving(root: Path, missing: Path) -> Iterator[Path]:
    """A folder to download to, on the data root's own disk, so that a checked file only has to be renamed.

    Whatever goes wrong inside is one sentence, and nothing is left behind.

    Args:
        root: the data root.
        missing: the file that is missing, for the sentence.
    """
    try:
        with _staging(root) as stage:
            yield stage
    # What a download can raise is open-ended (urllib, aiohttp, fsspec, ssl, a full disk); to the user it is one.
    except Exception as error:
        kind = "" if isinstance(error, GraphjouleError) else f"{type(error).__name__}: "
        reason = " ".join(f"{kind}{error}".split())
        raise GraphjouleError(
            f"The file {missing} is missing and could not be downloaded ({reason}); let --data-root or "
            f"{DATA_ROOT_VARIABLE} name a folder that holds {missing.relative_to(root)}."
        ) from error


def _download_raw(dataset: str, options: Mapping[str, Any], root: Path) -> str:
    """Let a PyG dataset class download its raw files under `root`; returns where from.

    The class would go on to write and read back ``processed/data.pt``, which PyG loads as a full pickle if it must. A
    subclass with nothing to process and nothing to load stops after the raw files.
    """
    import torch_geometric.datasets  # here and not above: it takes seconds

    base = getattr(torch_geometric.datasets, dataset)
    raw_only = type(f"Raw{dataset}", (base,), {"has_process": False, "load": lambda self, path: None})
    raw_only(str(root), **options)
    return str(base.url).partition("/{")[0].rstrip("/")


def is_file(path: Path) -> bool:
    """Whether a file is there; in a folder that may not be entered there is none for us."""
    try:
        return path.is_file()
    except OSError:
        return False


@contextmanager
def _staging(root: Path) -> Iterator[Path]:
    """A temporary folder in the data root; folders made on the way go again if nothing was put in them."""
    made = [folder for folder in (root, *root.parents) if not folder.exists()]
    try:
        root.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".download-", dir=root) as stage:
            yield Path(stage)
    finally:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
