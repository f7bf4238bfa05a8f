"""Missing raw files from the web: downloaded by pooch, checked, and never half there."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.datasets import DATA_ROOT_VARIABLE, RawFiles

RETRIES = 2
"""How often a download that broke off, or whose bytes are wrong, is tried again; pooch waits a second longer each."""
logger = logging.getLogger("graphjoule")

_T = TypeVar("_T")
Check = Callable[[Path, str], object]
"""Refuses a folder whose files are not what they should be; the text is how to call the folder in the sentence."""


def ensure_files(raw: RawFiles, root: Path, check: Check | None = None) -> Path:
    """The folder with all raw files in it; missing ones are downloaded. Files that were there are not checked.

    Args:
        raw: the files.
        root: the data root.
        check: looks at downloads before any of them reaches the data root, beside the files' hashes.
    """
    folder = raw.folder(root)
    if missing := [path.name for path in raw.missing(root)]:
        download(raw.url, {file: raw.sha256[file] for file in missing}, folder, root, check)
    return folder


def read_raw_file(raw: RawFiles, root: Path, read: Callable[[Path, str], _T]) -> tuple[Path, _T]:
    """The path and the content of a dataset that is one file; a download is read before it is put in place too.

    Args:
        raw: the file.
        root: the data root.
        read: reads the file, or refuses it; the text is how to call it in the sentence.
    """
    (file,) = raw.files
    path = ensure_files(raw, root, lambda folder, shown: read(folder / file, f"{shown}/{file}")) / file
    return path, read(path, str(path))


def download(url: str, files: Mapping[str, str | None], folder: Path, root: Path, check: Check | None = None) -> None:
    """Download the files of a folder on the web; they are put in place only if all are right.

    Args:
        url: the folder on the web.
        files: the files' names, each with its SHA-256 or None.
        folder: where to put them.
        root: the data root, in which `folder` is.
        check: see `ensure_files`.

    Raises:
        GraphjouleError: anything went wrong; nothing is left behind.
    """
    try:
        with _staging(root) as stage:
            for file, sha256 in files.items():
                logger.info("Downloading %s/%s", url, file)
                _fetch(url, file, sha256, stage)
            if check is not None:
                check(stage, url)
            folder.mkdir(parents=True, exist_ok=True)
            for file in files:
                (stage / file).replace(folder / file)
    # What a download can raise is open-ended (requests, urllib3, ssl, a full disk); to the user it is one.
    except Exception as error:
        kind = "" if isinstance(error, GraphjouleError) else f"{type(error).__name__}: "
        reason = " ".join(f"{kind}{error}".split())
        missing = folder / next(iter(files))
        raise GraphjouleError(
            f"The file {missing} is missing and could not be downloaded ({reason}); let `data_root` or "
            f"{DATA_ROOT_VARIABLE} name a folder that holds {missing.relative_to(root)}."
        ) from error


def _fetch(url: str, file: str, sha256: str | None, folder: Path) -> None:
    import pooch  # here and not above: it is needed once in a dataset's life

    library = pooch.Pooch(folder, f"{url}/", {file: sha256}, retry_if_failed=RETRIES)
    pooch_logger = pooch.get_logger()
    level = pooch_logger.level
    pooch_logger.setLevel(logging.WARNING)  # what it says of its cache and of hashes is not for our users
    try:
        library.fetch(file, downloader=pooch.HTTPDownloader(progressbar=sys.stderr.isatty()))
    finally:
        pooch_logger.setLevel(level)


@contextmanager
def _staging(root: Path) -> Iterator[Path]:
    """A temporary folder on the data root's own disk, so that a checked file only has to be renamed.

    Folders made on the way go again if nothing was put in them.
    """
    made = [folder for folder in (root, *root.parents) if not folder.exists()]
    try:
        root.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".download-", dir=root) as stage:
            yield Path(stage)
    finally:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
