"""What a search found: every trial as a row, the best one as a recipe, and the files it leaves in a folder."""

from __future__ import annotations

import csv
import io
import statistics
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from graphjoule.errors import GraphjouleError
from graphjoule.files import (
    check_free,
    ensure_folder,
    parse_json,
    read_bytes,
    reason,
    without_nan,
    write_json,
    write_text,
)
from graphjoule.trace.plots import MissingLibraryError, save_figure
from graphjoule.training.recipe import Recipe, recipe_text
from graphjoule.tuning.queue import attempts_of, is_over
from graphjoule.tuning.ranges import spelled, with_settings
from graphjoule.tuning.storage import SearchStorage, differences, import_optuna, quiet

__all__ = ["Outcome", "Row", "read_outcome", "recipe_text"]

RECIPE_NAME = "best.toml"
SEARCH_NAME = "search.json"
_REMEDY = "choose another folder with `out`"
_FEWEST_TRIALS = 4  # below, a share of the variance is noise
_WORST_SHOWN = 0.9  # of the trials; the axis of the values ends there, for a loss that diverged would stretch it


@dataclass(frozen=True)
class Row:
    """One trial that is over.

    Attributes:
        slot: its place in the search.
        params: the settings that were drawn.
        value: what trials are compared by, the mean over its seeds; None if it failed.
        failure: why it failed; None if it did not.
        metrics: mean validation metrics at the selected epochs by name; empty if it failed.
        seconds: wall-clock time of its last attempt.
        num_attempts: how many times it was begun: more than once where a worker died or was stopped.
    """

    slot: int
    params: Mapping[str, Any]
    value: float | None
    failure: str | None
    metrics: Mapping[str, float]
    seconds: float
    num_attempts: int


@dataclass(frozen=True)
class Outcome:
    """A search as far as it is.

    Attributes:
        rows: the trials that are over, in the order of their slots.
        direction: "minimize" or "maximize".
        recipe: where the search began.
        importance: the share of each setting in how much the trials differ, largest first; they sum to 1. Empty with
            fewer than four trials, or where all are worth the same.
        study: Optuna's, for its own plots and tools.
    """

    rows: list[Row]
    direction: Literal["minimize", "maximize"]
    recipe: Recipe
    importance: Mapping[str, float]
    study: Any = None

    @property
    def metric(self) -> str:
        """The validation metric by which trials are compared, as `Row.metrics` calls it."""
        return f"val_{self.recipe.train.select_on}"

    @property
    def ranked(self) -> list[Row]:
        """The trials that have a value, the best first, the earlier of two equal ones first."""
        sign = 1 if self.direction == "minimize" else -1
        done = [row for row in self.rows if row.value is not None]
        return sorted(done, key=lambda row: (sign * (row.value or 0.0), row.slot))

    @property
    def best(self) -> Row:
        """The trial that validates best."""
        if not (ranked := self.ranked):
            why = next((row.failure for row in self.rows if row.failure), None)
            raise GraphjouleError(f"No trial has a result{f'; the first failure: {why}' if why else ' yet.'}")
        return ranked[0]

    @property
    def best_recipe(self) -> Recipe:
        """The recipe of the best trial."""
        return with_settings(self.recipe, self.best.params)

    def table(self) -> str:
        """All trials as CSV, a setting per column."""
        names = dict.fromkeys(name for row in self.rows for name in row.params)
        metrics = dict.fromkeys(name for row in self.rows for name in row.metrics)
        text = io.StringIO()
        heads = ["trial", *names, "value", *metrics, "seconds", "num_attempts", "failure"]
        writer = csv.DictWriter(text, heads, lineterminator="\n")
        writer.writeheader()
        for row in self.rows:
            own = {name: getattr(row, name) for name in ("value", "seconds", "num_attempts", "failure")}
            writer.writerow({"trial": row.slot, **row.params, **row.metrics, **own})
        return text.getvalue()


def read_outcome(storage: SearchStorage, recipe: Recipe) -> Outcome:
    """Read all that a search has stored by now.

    Args:
        storage: the search.
        recipe: where the search began.
    """
    rows = []
    for slot, tries in attempts_of(storage.trials()).items():
        trial, known = tries[-1], tries[-1].user_attrs
        if is_over(trial):
            has_failed = trial.value is None
            failure = known.get("failure", f"its worker died, {len(tries)} times") if has_failed else None
            runs = {} if has_failed else known.get("metrics", {})
            metrics = {name: statistics.fmean(values) for name, values in runs.items()}
            seconds = float(known.get("seconds", 0.0))
            rows.append(Row(slot, dict(trial.params), trial.value, failure, metrics, seconds, len(tries)))
    importance, done = {}, [row for row in rows if row.value is not None]
    if len(done) >= _FEWEST_TRIALS and len({row.value for row in done}) > 1:
        params = list(done[0].params)  # trials of another program may have others
        found = import_optuna().importance.get_param_importances(storage.study, evaluator=_evaluator(), params=params)
        importance = dict(found)
    direction: Any = storage.study.direction.name.lower()
    return Outcome(rows, direction, recipe, importance, storage.study)


def _evaluator() -> Any:
    """Functional ANOVA on a random forest: how much of the difference between trials each setting explains."""
    return import_optuna().importance.FanovaImportanceEvaluator(seed=0)


# The folder that a search leaves.


def check_folder(folder: Path, name: str, about: Mapping[str, Any], journal: Collection[str] = ()) -> None:
    """Refuse a folder that holds another search or anything else, before anything is written.

    Args:
        folder: where a result shall go; it need not exist.
        name: the search's name.
        about: what makes it this search, see `Search.about`.
        journal: the names of the search's own journal and locks, which are there before `mark_folder` is called.
    """
    path = folder / SEARCH_NAME
    try:
        mark = parse_json(read_bytes(path))
        owner, owned = str(mark["name"]), dict(mark["about"])
    except FileNotFoundError:
        check_free(folder, journal)
        return
    except OSError as error:
        raise GraphjouleError(f"Cannot read {path}: {reason(error)}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise GraphjouleError(f"{path} is damaged, or not of a search; {_REMEDY}.") from error
    if owner != name:
        whose = f"{owned.get('model.name')}, {owned.get('model.num_layers')} layers, {owned.get('data.name')}"
        raise GraphjouleError(f"{folder} belongs to another search, {owner!r} ({whose}); {_REMEDY}.")
    if changed := differences(owned, without_nan(about)):
        raise GraphjouleError(
            f"{folder} belongs to the search {owner!r}, which was begun with something else ({'; '.join(changed)}); "
            f"{_REMEDY}."
        )


def mark_folder(folder: Path, name: str, about: Mapping[str, Any]) -> None:
    """Make the folder and write ``search.json``, which says to which search it belongs, unless it has one."""
    ensure_folder(folder)
    if not (folder / SEARCH_NAME).exists():
        write_json(folder / SEARCH_NAME, {"name": name, "about": about})


def write_outcome(outcome: Outcome, folder: Path, *, header: Sequence[str] = ()) -> tuple[dict[str, Path], list[str]]:
    """Write ``best.toml``, ``trials.csv``, ``importance.png`` and ``parallel.png``, each whole or not at all.

    Args:
        outcome: a search with at least one result.
        folder: where to; made if there is none.
        header: lines for the recipe's comment.

    Returns:
        The files by what they are, and a sentence for each picture that could not be drawn.
    """
    ensure_folder(folder)
    files = {"recipe": folder / RECIPE_NAME, "trials": folder / "trials.csv"}
    write_text(files["trials"], outcome.table())
    best = outcome.best_recipe
    searched = [name for key in outcome.best.params for name in spelled(best, key)]
    write_text(files["recipe"], recipe_text(best, searched=searched, header=header))
    missing: list[str] = []
    for name, plot in (("importance", _plot_importance), ("parallel", _plot_parallel)):
        try:
            _draw(plot, outcome, folder / f"{name}.png")
            files[name] = folder / f"{name}.png"
        except GraphjouleError as error:
            if isinstance(error.__cause__, OSError):
                raise
            missing.append(str(error))
    return files, list(dict.fromkeys(missing))


def _draw(plot: Callable[[Any, Outcome], Any], outcome: Outcome, path: Path) -> None:
    """Save one of Optuna's plots; they change matplotlib's settings, which are put back."""
    try:
        import matplotlib
        from matplotlib import pyplot
    except ImportError as error:
        raise MissingLibraryError(
            "Drawing needs matplotlib, which is not installed: pip install 'graphjoule[plot]'."
        ) from error
    with quiet(), matplotlib.rc_context({"savefig.bbox": "tight"}):
        warnings.simplefilter("ignore", UserWarning)  # of an axis with a single value; `quiet` ends it
        figure = plot(import_optuna().visualization.matplotlib, outcome).figure
        try:
            save_figure(figure, path)
        finally:
            pyplot.close(figure)


def _plot_importance(plots: Any, outcome: Outcome) -> Any:
    if not outcome.importance:
        raise GraphjouleError("There are too few trials, or all are worth the same: no importance can be computed.")
    return plots.plot_param_importances(outcome.study, evaluator=_evaluator(), target_name=outcome.metric)


def _plot_parallel(plots: Any, outcome: Outcome) -> Any:
    """A line per trial through its settings to its value, the darker the better."""
    ranked = outcome.ranked
    worst = ranked[int(_WORST_SHOWN * (len(ranked) - 1))].value
    clip = (lambda trial: min(trial.value, worst)) if outcome.direction == "minimize" else None
    axes = plots.plot_parallel_coordinate(outcome.study, target=clip, target_name=outcome.metric)
    axes.figure.set_size_inches(3.0 + 1.35 * len(outcome.best.params), 4.6)
    return axes
