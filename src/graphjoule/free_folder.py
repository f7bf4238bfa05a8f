"""Which folder a command may write to: one that it began, or one that holds nothing of anybody else's."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from graphjoule.errors import GraphjouleError, counted
from graphjoule.files import FLEETING, reason

__all__ = ["check_free", "foreign_names"]


def check_free(folder: Path, own: Collection[str] = ()) -> None:
    """Refuse to begin in a folder that holds what we did not write, so that nothing of it can be overwritten.

    Every command that fills a folder calls this before its first file, unless the folder's own description says that
    the command, or an earlier call of it, has begun there. From then on the names that it uses there are its own.

    Args:
        folder: where to begin; it need not exist.
        own: names that a kill can leave before that description is there.

    Raises:
        GraphjouleError: something else is there, or the folder cannot be looked into.
    """
    if found := foreign_names(folder, own):
        others = f" and {counted(len(found) - 1, 'other thing')}" if len(found) > 1 else ""
        raise GraphjouleError(
            f"{folder} holds {found[0]}{others}, and nothing there says that graphjoule wrote it; choose a new or an "
            "empty folder with --out."
        )


def foreign_names(folder: Path, own: Collection[str] = ()) -> list[str]:
    """The names in a folder that are neither among `own` nor of files that are ours while they are written."""
    try:
        return sorted(
            path.name
            for path in (folder.iterdir() if folder.is_dir() else ())
            if path.name not in own and not path.name.startswith(FLEETING)
        )
    except OSError as error:
        raise GraphjouleError(f"Cannot use {folder} as an output folder: {reason(error)}.") from error
