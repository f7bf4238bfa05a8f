"""Raw files on disk: where they are looked for, and how missing ones arrive without ever being half there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

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
        dataset: name of the class in `torch_geometric.datasets`, which knows the URL and how to download.
        name: the dataset's name as that class spells it.
        files: names of the files in the folder. They stand here too so that looking for them imports no PyG.
        check: refuses a folder whose files are not what they should be; its second argument is how to call the folder
            in the sentence. It runs on a download before any of it reaches the data root.
    """

    dataset: str
    name: str
    files: tuple[str, ...]
    check: Callable[[Path, str], None]

    def folder(self, root: Path) -> Path:
        """Where the files are expected."""
        return root / self.name / "raw"

    def missing(self, root: Path) -> list[Path]:
        """The files that are not there."""
        return [path for file in self.files if not _is_file(path := self.folder(root) / file)]

    def ensure(self, root: Path) -> Path:
        """The folder with all files in it; missing ones are downloaded. Files that were there are not checked."""
        if missing := self.missing(root):
            self._download(root, missing)
        return self.folder(root)

    def _download(self, root: Path, missing: list[Path]) -> None:
        """Download to a folder beside the target, check, then rename: a file under its own name is always whole."""
        try:
            with _staging(root) as stage:
                url = _download_raw(self.dataset, self.name, stage)
                self.check(self.folder(stage), url)
                self.folder(root).mkdir(parents=True, exist_ok=True)
                for path in missing:
                    (self.folder(stage) / path.name).replace(path)
        # What a download can raise is open-ended (urllib, aiohttp, fsspec, ssl, a full disk); to the user it is one.
        except Exception as error:
            kind = "" if isinstance(error, GraphjouleError) else f"{type(error).__name__}: "
            reason = " ".join(f"{kind}{error}".split())
            raise GraphjouleError(
                f"The file {missing[0]} is missing and could not be downloaded ({reason}); let --data-root or "
                f"{DATA_ROOT_VARIABLE} name a folder that holds {missing[0].relative_to(root)}."
            ) from error


def _download_raw(dataset: str, name: str, root: Path) -> str:
    """Let a PyG dataset class download its raw files under `root`; returns where from.

    The class would go on to write and read back ``processed/data.pt``, which PyG loads as a full pickle if it must. A
    subclass with nothing to process and nothing to load stops after the raw files.
    """
    import torch_geometric.datasets  # here and not above: it takes seconds

    base = getattr(torch_geometric.datasets, dataset)
    raw_only = type(f"Raw{dataset}", (base,), {"has_process": False, "load": lambda self, path: None})
    raw_only(str(root), name)
    return str(base.url).rstrip("/")


def _is_file(path: Path) -> bool:
    """Whether a file is there; in a folder that may not be entered there is none for us."""
    try:
        return path.is_file()
    except OSError:
        return False


@contextmanager
def _staging(root: Path) -> Iterator[Path]:
    """A temporary folder on the data root's own disk; folders made on the way go again if nothing was put in them."""
    made = [folder for folder in (root, *root.parents) if not folder.exists()]
    try:
        root.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".download-", dir=root) as stage:
            yield Path(stage)
    finally:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
