"""What a search leaves: the winner as a recipe, every trial in a table, two pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from graphjoule.errors import GraphjouleError
from graphjoule.files import ensure_folder, write_text
from graphjoule.plots import save_figure
from graphjoule.tuning.outcome import Outcome
from graphjoule.tuning.pictures import draw_importance, draw_parallel
from graphjoule.tuning.ranges import Range
from graphjoule.tuning.winner import recipe_text

__all__ = ["RECIPE_NAME", "write_outcome"]

RECIPE_NAME = "best.toml"


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
    files = {"recipe": folder / RECIPE_NAME, "trials": folder / "trials.csv"}
    write_text(files["trials"], outcome.table())
    write_text(files["recipe"], recipe_text(outcome.best_recipe, searched=outcome.best.params, header=header))
    pictures = {"importance": partial(draw_importance, outcome), "parallel": partial(draw_parallel, outcome, ranges)}
    missing: list[str] = []
    for name, draw in pictures.items():
        path = folder / f"{name}.png"
        try:
            save_figure(draw(), path)
        except GraphjouleError as error:
            if isinstance(error.__cause__, OSError):
                raise
            missing.append(str(error))
        else:
            files[name] = path
    return files, list(dict.fromkeys(missing))
