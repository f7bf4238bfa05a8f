"""What a search leaves in a folder of its own: the winner as a recipe, every trial in a table, two pictures."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from graphjoule.errors import GraphjouleError
from graphjoule.files import check_free, ensure_folder, reason, without_nan, write_json, write_text
from graphjoule.trace.plots import save_figure
from graphjoule.tuning.board import changes
from graphjoule.tuning.outcome import Outcome
from graphjoule.tuning.pictures import draw_importance, draw_parallel
from graphjoule.tuning.ranges import Range
from graphjoule.tuning.winner import recipe_text

__all__ = ["RECIPE_NAME", "SEARCH_NAME", "check_folder", "mark_folder", "write_outcome"]

RECIPE_NAME = "best.toml"
SEARCH_NAME = "search.json"
_TRIALS_NAME = "trials.csv"
_PICTURE_NAMES = {"importance": "importance.png", "parallel": "parallel.png"}
_REMEDY = "choose another folder with --out"


def check_folder(folder: Path, name: str, about: Mapping[str, Any], journal: Collection[str] = ()) -> None:
    """Refuse a folder that holds another search or anything else, before anything is written.

    Args:
        folder: where a result shall go; it need not exist.
        name: the search's name.
        about: what makes it this search, see `Search.about`.
        journal: the names of the search's own journal and locks, which are there before `mark_folder` is called.
    """
    before = _read_owner(folder / SEARCH_NAME)
    if before is None:
        check_free(folder, journal)
        return
    owner, owned = before["name"], before["about"]
    if owner != name:
        whose = f"{owned.get('model')}, {owned.get('num_layers')} layers, {owned.get('dataset')}"
        raise GraphjouleError(f"{folder} belongs to another search, {owner!r} ({whose}); {_REMEDY}.")
    if changed := changes(owned, without_nan(about)):
        raise GraphjouleError(
            f"{folder} belongs to the search {owner!r}, which was begun with something else ({'; '.join(changed)}); "
            f"{_REMEDY}."
        )


def mark_folder(folder: Path, name: str, about: Mapping[str, Any]) -> None:
    """Write ``search.json``, which says to whom the folder belongs; made if there is none."""
    ensure_folder(folder)
    if not (folder / SEARCH_NAME).exists():
        write_json(folder / SEARCH_NAME, {"name": name, "about": about})


def _read_owner(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
        if isinstance(found["name"], str) and isinstance(found["about"], dict):
            return dict(found)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise GraphjouleError(f"Cannot read {path}: {reason(error)}.") from error
    except (ValueError, KeyError, TypeError):
        pass
    raise GraphjouleError(f"{path} is damaged or no search's; {_REMEDY}.")


def write_outcome(
    outcome: Outcome, ranges: Mapping[str, Range], folder: Path, *, header: Sequence[str] = ()
) -> tuple[dict[str, Path], list[str]]:
    """Write ``best.toml``, ``trials.csv``, ``importance.png`` and ``parallel.png``, each whole or not at all.

    Args:
        outcome: a search with at least one result.
        ranges: what was searched.
        folder: where to; made if there is none.
        header: lines for the recipe's comment.

    Returns:
        The files by what they are, and a sentence for each picture that could not be drawn.
    """
    ensure_folder(folder)
    files = {"recipe": folder / RECIPE_NAME, "trials": folder / _TRIALS_NAME}
    write_text(files["trials"], outcome.table())
    write_text(files["recipe"], recipe_text(outcome.best_recipe, searched=outcome.best.params, header=header))
    pictures = {"importance": partial(draw_importance, outcome), "parallel": partial(draw_parallel, outcome, ranges)}
    missing: list[str] = []
    for name, draw in pictures.items():
        path = folder / _PICTURE_NAMES[name]
        try:
            save_figure(draw(), path)
        except GraphjouleError as error:
            if isinstance(error.__cause__, OSError):
                raise
            missing.append(str(error))
        else:
            files[name] = path
    return files, list(dict.fromkeys(missing))
