"""What a search found: every trial as a row, the best one as a recipe, and the files it leaves in a folder."""

from __future__ import annotations

import csv
import io
import json
import statistics
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from graphjoule.errors import GraphjouleError
from graphjoule.files import check_free, ensure_folder, reason, without_nan, write_json, write_text
from graphjoule.trace.plots import MissingLibraryError, save_figure
from graphjoule.training.recipe import Recipe
from graphjoule.tuning.queue import attempts_of, is_over, num_begun
from graphjoule.tuning.ranges import spelled, with_settings
from graphjoule.tuning.storage import SearchStorage, differences, import_optuna, quiet
from graphjoule.tuning.validation import metric_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Outcome", "Row", "check_folder", "mark_folder", "read_outcome", "recipe_text", "write_outcome"]

RECIPE_NAME = "best.toml"
SEARCH_NAME = "search.json"
_TRIALS_NAME = "trials.csv"
_PICTURE_NAMES = {"importance": "importance.png", "parallel": "parallel.png"}
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
        importance: the share of each setting in how much the trials differ, largest first; empty if there are too few.
        study: Optuna's, for its own plots and tools.
    """

    rows: list[Row]
    direction: Literal["minimize", "maximize"]
    recipe: Recipe
    importance: Mapping[str, float]
    study: Any = None

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
        names = list(dict.fromkeys(name for row in self.rows for name in row.params))
        metrics = list(dict.fromkeys(name for row in self.rows for name in row.metrics))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["trial", *names, "value", *metrics, "seconds", "num_attempts", "failure"])
        for row in self.rows:
            params, means = [row.params.get(name) for name in names], [row.metrics.get(name) for name in metrics]
            writer.writerow([row.slot, *params, row.value, *means, row.seconds, row.num_attempts, row.failure])
        return text.getvalue()


def read_outcome(storage: SearchStorage, recipe: Recipe) -> Outcome:
    """Read all that a search has stored by now.

    Args:
        storage: the search.
        recipe: where the search began.
    """
    attempts = attempts_of(storage.trials())
    last = {slot: tries[-1] for slot, tries in attempts.items()}
    rows = [_row(slot, trial, num_begun(slot, attempts)) for slot, trial in last.items() if is_over(trial)]
    is_higher_better = storage.study.direction.name == "MAXIMIZE"
    importance = _measure_importance(storage.study, rows)
    return Outcome(rows, "maximize" if is_higher_better else "minimize", recipe, importance, storage.study)


def _row(slot: int, trial: Any, num_attempts: int) -> Row:
    known, has_failed = trial.user_attrs, trial.value is None
    failure = known.get("failure", f"its worker died, {num_attempts} times") if has_failed else None
    runs = {} if has_failed else known.get("metrics", {})
    metrics = {name: statistics.fmean(values) for name, values in runs.items()}
    seconds = float(known.get("seconds", 0.0))
    return Row(slot, dict(trial.params), trial.value, failure, metrics, seconds, num_attempts)


def _measure_importance(study: Any, rows: Sequence[Row]) -> dict[str, float]:
    """How much of the difference between trials each setting explains, by functional ANOVA on a random forest.

    The shares sum to 1. With fewer than four trials, or trials that are all worth the same, there are none.
    """
    done = [row for row in rows if row.value is not None]
    if len(done) < _FEWEST_TRIALS or len({row.value for row in done}) == 1:
        return {}
    importance, params = import_optuna().importance, list(done[0].params)  # trials of another program may have others
    evaluator = importance.FanovaImportanceEvaluator(seed=0)
    return dict(importance.get_param_importances(study, evaluator=evaluator, params=params))


# The best settings as a recipe file that `load_recipe` reads.

_CHOSEN = ("model.name", "data.name", "model.num_layers")
_TABLES = {"paper": "paper", "released code": "released_code"}  # what was overridden becomes ours


def recipe_text(recipe: Recipe, *, searched: Collection[str] = (), header: Sequence[str] = ()) -> str:
    """One block of TOML with the settings of a recipe, for its dataset and depth.

    Settings keep the source that the recipe gives them, except those that were overridden or searched: those are ours.
    Defaults are left out, for a file that names them would call them ours.

    Args:
        recipe: what to write.
        searched: the settings that a search found, marked so.
        header: lines for the comment on top.

    Returns:
        The text; `load_recipe` reads the same settings from it.
    """
    found = {name for key in searched for name in spelled(recipe, key)}
    tables: dict[str, list[str]] = {}
    for key, value in recipe.settings().items():
        if key in _CHOSEN or value is None:  # TOML cannot write None, and None is the default wherever it is allowed
            continue
        if recipe.sources.get(key) == "default" and key not in found:
            continue
        table = "ours" if key in found else _TABLES.get(recipe.sources.get(key, "ours"), "ours")
        line = f"{key} = {toml_value(value)}{' # searched' if key in found else ''}"
        tables.setdefault(table, []).append(line)
    lines = [*(f"# {line}".rstrip() for line in header), *([""] if header else []), "[[block]]"]
    lines += [f"dataset = {toml_value(recipe.data.name)}"]
    lines += [f"{end} = {recipe.model.num_layers}" for end in ("min_layers", "max_layers")]
    for table, settings in tables.items():
        lines += [f"[block.{table}]", *settings]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """A setting's value as TOML spells it; numbers keep every digit.

    >>> toml_value(True), toml_value(1e-05), toml_value("srelu")
    ('true', '1e-05', '"srelu"')
    """
    return repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else json.dumps(value)


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
        mark = json.loads(path.read_bytes())
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
    files = {"recipe": folder / RECIPE_NAME, "trials": folder / _TRIALS_NAME}
    write_text(files["trials"], outcome.table())
    write_text(files["recipe"], recipe_text(outcome.best_recipe, searched=outcome.best.params, header=header))
    missing: list[str] = []
    for name, draw in (("importance", _draw_importance), ("parallel", _draw_parallel)):
        try:
            _draw(draw, outcome, folder / _PICTURE_NAMES[name])
        except GraphjouleError as error:
            if isinstance(error.__cause__, OSError):
                raise
            missing.append(str(error))
        else:
            files[name] = folder / _PICTURE_NAMES[name]
    return files, list(dict.fromkeys(missing))


def _draw(plot: Callable[[Any, Outcome], Figure], outcome: Outcome, path: Path) -> None:
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
        figure = plot(import_optuna().visualization.matplotlib, outcome)
        try:
            save_figure(figure, path)
        finally:
            pyplot.close(figure)


def _draw_importance(plots: Any, outcome: Outcome) -> Figure:
    if not outcome.importance:
        raise GraphjouleError("There are too few trials, or all are worth the same: no importance can be computed.")
    evaluator = import_optuna().importance.FanovaImportanceEvaluator(seed=0)  # as above, for the same shares
    axes = plots.plot_param_importances(outcome.study, evaluator=evaluator, target_name=metric_of(outcome.recipe))
    figure: Figure = axes.figure
    return figure


def _draw_parallel(plots: Any, outcome: Outcome) -> Figure:
    """A line per trial through its settings to its value, the darker the better."""
    ranked = outcome.ranked
    worst = ranked[int(_WORST_SHOWN * (len(ranked) - 1))].value
    clip = (lambda trial: min(trial.value, worst)) if outcome.direction == "minimize" else None
    axes = plots.plot_parallel_coordinate(outcome.study, target=clip, target_name=metric_of(outcome.recipe))
    figure: Figure = axes.figure
    figure.set_size_inches(3.0 + 1.35 * len(outcome.best.params), 4.6)
    return figure
