"""Successive halving of models, depths and settings, within a stated time: the rungs of `auto`.

Every trial is a run folder of its own, in which test targets are unknown. It trains for a while, pauses with a
checkpoint, and goes on from there if it is among the best; those get more seeds. ``auto.json`` has what every trial
has come to: what is tried next follows from that list alone, so a search that was killed goes on where it was.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from graphjoule.errors import GraphjouleError
from graphjoule.files import parse_json, read_bytes, reason, write_json
from graphjoule.fitting import fit
from graphjoule.graph.features import has_negative
from graphjoule.tasks import Task
from graphjoule.tasks.metrics import ACCURACY, Metric
from graphjoule.tasks.objective import LOSS
from graphjoule.training import Progress, TrainingInterrupted
from graphjoule.training.budget import Budget
from graphjoule.training.folder import SEARCH_NAME, SUMMARY_NAME, RunFolder
from graphjoule.training.recipe import Recipe
from graphjoule.tuning.ranges import default_ranges, own_values, parse_ranges, with_settings
from graphjoule.tuning.storage import differences
from graphjoule.tuning.validation import ValidationTask

# The rungs in their order, and the share of the budget that is spent when each ends. What is left over is for the test
# nodes, the report's numbers and the card of the winner.
_RUNGS = {"first": 0.4, "best": 0.55, "variations": 0.7, "seeds": 0.85, "winner": 0.95}
_ORDER = tuple(_RUNGS)
_KEPT = 1 / 3  # of the first rung
_NUM_FINALISTS, _SEEDS_OF_FINALISTS = 4, 3
_MOST_VARIATIONS = 24
_CHANGED = 0.4  # how likely a variation draws a setting anew
_LEEWAY = 1.5  # times as long as its leader a variation may take
_FEWEST_EPOCHS, _MOST_SHARES = 10, 2  # a trial that needs more than two shares for ten epochs is not begun
_WIDTHS, _ROWS = "hidden_channels=32,64,128,256", "normalize_features=true,false"
_TIMED_EPOCHS, _OVERDRAFT = 3, 0.03


class Trial(BaseModel):
    """What one rung has made of one candidate.

    Attributes:
        rung: "first" of all candidates, "best" of those, "variations", "seeds" of the finalists, "winner".
        name: such as "gcnii-8", or "gcnii-8-v3" for its third variation.
        model: a key of `MODELS`.
        num_layers: the depth.
        changes: the settings in which it differs from the model's own for this task.
        seeds: the runs.
        epochs: the most that a run has made.
        epoch_seconds: how long an epoch of one run takes.
        seconds: wall time of this rung, with all that it took to begin and to end.
        score: the mean over the runs of the metric that ranks, on the validation nodes; None without a result.
        loss: the same of the validation loss, which decides between equal scores.
        is_over: whether all runs have ended; the others are paused.
        failure: why there is no result; None if there is one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    rung: Literal["first", "best", "variations", "seeds", "winner"]
    name: str
    model: str
    num_layers: int
    changes: dict[str, Any] = {}
    seeds: list[int] = []
    epochs: int = 0
    epoch_seconds: float = 0.0
    seconds: float = 0.0
    score: float | None = None
    loss: float | None = None
    is_over: bool = False
    failure: str | None = None


@dataclass(frozen=True)
class AutoProgress:
    """How far a search is.

    Attributes:
        rung: what it is at, see `Trial`.
        name: the candidate that trains.
        num_trials: how many candidates have been tried.
        seconds_left: of the budget.
        best: the best candidate so far; None before the first result.
        training: how far the candidate's runs are; None at its beginning.
    """

    rung: str
    name: str
    num_trials: int
    seconds_left: float
    best: Trial | None
    training: Progress | None = None


class Halving:
    """The trials of one search; the file ``auto.json`` in its working folder is the list of them.

    Args:
        recipes: the candidates of the first rung by name, the quickest first.
        seen: the task without its test targets.
        seeds: those that the winner may have; the first is that of the first rungs.
        budget: wall time.
        folder: where the result will be; the search works in a folder of its own in there.
        device: where to train.
        on_progress: called when a candidate begins and about once an epoch.
        should_stop: asked after every epoch.
    """

    def __init__(
        self,
        recipes: Mapping[str, Recipe],
        seen: ValidationTask,
        seeds: list[int],
        budget: Budget,
        folder: Path,
        device: torch.device,
        on_progress: Callable[[AutoProgress], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self.recipes, self.seen, self.seeds = dict(recipes), seen, seeds
        self.budget, self.folder, self.device = budget, folder, device
        self.on_progress, self.should_stop = on_progress, should_stop
        self.options: dict[str, Any] = {}
        self.own: dict[str, dict[str, Any]] = {}  # by candidate, settings that are not its model's own for this task
        self.work = folder / SEARCH_NAME
        self.trials: list[Trial] = []
        self._spent_before = 0.0
        self._more_ranges = (_WIDTHS,) if has_negative(seen.features) else (_WIDTHS, _ROWS)
        self.metric = _ranking_metric(seen, list(recipes.values()))

    @property
    def _num_val(self) -> int:
        return len(next(iter(self.seen.splits.values())).val)

    # What is known of a search, and of one that is to go on.

    @property
    def about(self) -> dict[str, Any]:
        """What makes it this search: if any of it changed, its trials could not be compared."""
        return {
            "budget": self.budget.seconds,
            "seeds": self.seeds,
            "settings": {name: recipe.fingerprint() for name, recipe in self.recipes.items() if "-v" not in name},
            "data": self.seen.facts().sha256,
            "splits": self.seen.splits_sha256,
        }

    def begin(self, *, resume: bool) -> None:
        """Refuse a folder that holds something else; read the trials of a search that is to go on."""
        run, paths = RunFolder(self.folder), [self.work / SUMMARY_NAME, self.folder / SUMMARY_NAME]
        path = next((each for each in paths if each.exists()), None)
        if path is None:
            if resume and run.is_taken:
                raise GraphjouleError(
                    f"{self.folder} holds a training and no search for a model; choose another folder with `out`."
                )
            run.check(next(iter(self.recipes.values())), resume=False)
            return
        if not resume:
            raise GraphjouleError(
                f"{self.folder} already holds a search for a model; pass `resume=True` to continue it, or choose "
                "another folder with `out`."
            )
        damaged = GraphjouleError(f"{path} is damaged; choose another folder with `out`.")
        try:
            content = parse_json(read_bytes(path))
            begun, self.trials = dict(content["about"]), [Trial(**fields) for fields in content["trials"]]
        except OSError as error:
            raise GraphjouleError(f"Cannot read {path}: {reason(error)}.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise damaged from error
        if changed := differences(begun, self.about):
            raise GraphjouleError(
                f"The search in {self.folder} was begun with something else ({'; '.join(changed)}); choose another "
                "folder with `out`."
            )
        for trial in self.trials:
            base = f"{trial.model}-{trial.num_layers}"
            if base not in self.recipes or not re.fullmatch(rf"{base}(-v\d+)?", trial.name):  # the name of a folder
                raise damaged
            if trial.name != base:
                self.recipes[trial.name] = with_settings(self.recipes[base], trial.changes)
        self._spent_before = sum(trial.seconds for trial in self.trials)

    @property
    def spent(self) -> float:
        """Seconds of the budget that are gone, those of earlier calls too."""
        return self._spent_before + self.budget.seconds - self.budget.left

    def latest(self, before: str | None = None) -> dict[str, Trial]:
        """The last state of every candidate, by name; by default of all rungs, else of those before one."""
        end = len(_ORDER) if before is None else _ORDER.index(before)
        return {trial.name: trial for trial in self.trials if _ORDER.index(trial.rung) < end}

    def ranked(self, before: str | None = None, of: str | None = None) -> list[Trial]:
        """Candidates with a result, the best first, see `_in_order`.

        Args:
            before: count the rungs before this one alone.
            of: candidates of this rung alone.
        """
        found = [trial for trial in self.latest(before).values() if trial.score is not None]
        return self._in_order([trial for trial in found if of is None or trial.rung == of])

    def _in_order(self, trials: Sequence[Trial]) -> list[Trial]:
        """Those within a standard error of the best score by their validation loss, then the others by their score.

        So close, few validation nodes cannot tell accuracies apart, and the loss still can. Of 16 random settings of
        EGNN on 35 tasks with one seed, the chosen one was 0.85 points below the best on test nodes instead of 0.92, and
        on the worst task 2.5 instead of 5.4. Of equal ones the first that was tried comes first.
        """
        sign = -1 if self.metric.is_higher_better else 1

        def key(trial: Trial) -> tuple[float, ...]:
            score, loss = sign * (trial.score or 0.0), math.inf if trial.loss is None else trial.loss
            return (0.0, loss, score) if score <= best + margin else (1.0, score, loss)

        best = min((sign * (trial.score or 0.0) for trial in trials), default=0.0)
        margin = standard_error(-best, self._num_val) if self.metric.name == ACCURACY.name else 0.0
        return sorted(trials, key=key)

    # The rungs.

    def run(self) -> None:
        """Go through all rungs; what the list of trials has already is not repeated."""
        first = [
            Trial(rung="first", name=n, model=r.model.name, num_layers=r.model.num_layers, changes=self.own.get(n, {}))
            for n, r in self._all()
        ]
        self._rung("first", first)
        kept = self.ranked(before="best")[: math.ceil(_KEPT * len(first))]
        self._rung("best", [trial for trial in kept if not trial.is_over])
        self._vary()
        self._rung("seeds", self._finalists(), self.seeds[:_SEEDS_OF_FINALISTS])
        self._rung("winner", (self.ranked(before="winner", of="seeds") or self.ranked("winner"))[:1], self.seeds)

    def _finalists(self) -> list[Trial]:
        """The best of each model, then the best others; of accuracies those within two standard errors of the best.

        Variations of one model are wrong about the same nodes, and with few validation nodes the best three by them are
        often of one model: different ones can make up for each other, see `graphjoule.tuning.automatic`.
        """
        ranked = self.ranked(before="seeds")
        if self.metric.name == ACCURACY.name:
            best = max((trial.score or 0.0 for trial in ranked), default=0.0)
            ranked = [t for t in ranked if (t.score or 0.0) >= best - 2 * standard_error(best, self._num_val)]
        firsts = {trial.model: trial for trial in reversed(ranked)}.values()
        return sorted(ranked, key=lambda trial: trial not in firsts)[:_NUM_FINALISTS]

    def _all(self) -> list[tuple[str, Recipe]]:
        return [(name, recipe) for name, recipe in self.recipes.items() if "-v" not in name]

    def _rung(self, rung: str, candidates: Sequence[Trial], seeds: Sequence[int] | None = None) -> None:
        """Give every candidate an equal part of the rung's time; what one does not need is for those after it.

        With `seeds`, their runs end with what they have; else those of the first seed pause.
        """
        done = {trial.name for trial in self.trials if trial.rung == rung}
        left = [trial for trial in candidates if trial.name not in done]
        at_first = (_RUNGS[rung] * self.budget.seconds - self.spent) / max(len(left), 1)
        for place, trial in enumerate(left):
            seconds = (_RUNGS[rung] * self.budget.seconds - self.spent) / (len(left) - place)
            if rung == "first":  # the rest is for the next rungs: the last candidate shall not have it all
                seconds = min(seconds, _MOST_SHARES * at_first)
            epoch = self._epoch_seconds(trial)
            if seeds is None:
                if epoch * _FEWEST_EPOCHS > _MOST_SHARES * max(seconds, 0.0) and self.trials:
                    if rung == "first":
                        why = f"not tried: an epoch may take {epoch:.2g} s, and it had {max(seconds, 0):.2g} s"
                        self._note(trial, rung, seconds=0.0, failure=why)
                    continue
                self._try(trial, rung, self.seeds[:1], max(seconds, epoch * _FEWEST_EPOCHS))
                continue
            # As many other seeds as have time for as many epochs: runs that were cut short would say nothing of it.
            run = epoch * max(trial.epochs, _FEWEST_EPOCHS)
            num_more = int(max(seconds, 0.0) * (1.0 if trial.is_over else 0.5) / run) if run else len(seeds)
            more = [seed for seed in seeds if seed not in trial.seeds][:num_more]
            if not more and not trial.is_over and place and seconds < epoch * _FEWEST_EPOCHS:
                continue
            self._try(trial, rung, [*trial.seeds, *more], seconds, is_last=True)

    def _vary(self) -> None:
        """Draw some settings of a leader anew, again and again, while there is time."""
        done = sum(trial.rung == "variations" for trial in self.trials)
        for number in range(done, _MOST_VARIATIONS):
            ranked = self.ranked(before="seeds")
            if not ranked:
                return
            others = [trial for trial in ranked if (trial.model, trial.num_layers) != _kind(ranked[0])]
            leader = others[0] if others and number % 3 == 2 else ranked[0]
            taken = sum(trial.seconds for trial in self.trials if trial.name == leader.name)
            seconds = min(_RUNGS["variations"] * self.budget.seconds - self.spent, _LEEWAY * taken)
            if seconds < taken / 2:
                return
            base = f"{leader.model}-{leader.num_layers}"
            name = f"{base}-v{number + 1}"
            drawn = self._draw(self.recipes[base], leader, number)
            if drawn is None:
                return
            changes, self.recipes[name] = drawn
            trial = leader.model_copy(update={"name": name, "changes": changes})
            self._try(trial, "variations", self.seeds[:1], seconds)

    def _draw(self, recipe: Recipe, leader: Trial, number: int) -> tuple[dict[str, Any], Recipe] | None:
        """Settings near a leader's that no trial has had, from the number of the variation alone."""
        known = {each.fingerprint() for each in self.recipes.values()}
        # RandomState, whose stream NumPy has frozen for ever: the same trials under every version.
        random = np.random.RandomState([self.seeds[0] % 2**31, number])
        ranges = {**parse_ranges(self._more_ranges), **default_ranges(recipe.model.name)}
        own = own_values(recipe, ranges)
        fixed = {name for name, source in recipe.sources.items() if source == "override"}
        for _ in range(100):
            changes = dict(leader.changes)
            for key, found in sorted(ranges.items()):
                is_changed, share = random.uniform() < _CHANGED, random.uniform()
                if is_changed:
                    changes[key] = found.at(share)
            changes = {key: value for key, value in changes.items() if own.get(key) != value}
            try:
                varied = with_settings(recipe, changes)
            except GraphjouleError:  # such as a beta above c_min
                continue
            overridden = {key for key in fixed if varied.settings().get(key) != recipe.settings().get(key)}
            if not overridden and varied.fingerprint() not in known:
                return changes, varied
        return None

    # One trial.

    def _try(self, trial: Trial, rung: str, seeds: Sequence[int], seconds: float, *, is_last: bool = False) -> None:
        """Train a candidate for some time, and note what has come of it."""
        part = self.budget.part(seconds)
        recipe, folder = self.recipes[trial.name], RunFolder(self.work / trial.name)
        ranked = self.ranked()
        best, num_trials = ranked[0] if ranked else None, len(self.latest())

        epochs: list[float] = []  # seconds of each, of one run
        last: tuple[int, float] | None = None

        def show(training: Progress | None) -> None:
            nonlocal last
            if training is not None:
                now = self.budget.clock()
                if last is not None and training.epoch > last[0]:
                    epochs.append((now - last[1]) / (training.epoch - last[0]) / max(training.num_active, 1))
                last = training.epoch, now
            left = self.budget.seconds - self.spent
            self.on_progress(AutoProgress(rung, trial.name, num_trials, left, best, training))

        def is_over() -> bool:
            # The first epoch takes longer and says little; some more are made unless they take far too long.
            left = part.left
            is_timed = len(epochs) >= _TIMED_EPOCHS or left < -_OVERDRAFT * self.budget.seconds
            return self.should_stop() or (not is_last and left <= 0 and is_timed)

        show(None)
        failure = None
        try:
            fit(
                recipe,
                self.seen,
                seeds,
                device=self.device,
                out=folder.path,
                resume=True,
                on_progress=show,
                should_stop=is_over,
                budget=part if is_last else None,
                **self.options,
            )
        except TrainingInterrupted:
            if self.should_stop():
                raise
        except GraphjouleError as error:
            if isinstance(error.__cause__, OSError):
                raise
            failure = str(error)
        found: dict[str, Any] = {"failure": failure} if failure else self._state(folder, recipe, seeds)
        taken = (seconds - part.left) / max(found.get("epochs", 0) - trial.epochs, 1)
        found["epoch_seconds"] = statistics.median(epochs) if epochs else taken  # the first epoch takes longer
        self._note(trial, rung, **found)

    def _state(self, folder: RunFolder, recipe: Recipe, seeds: Sequence[int]) -> dict[str, Any]:
        """What a trial's folder says: the scores of runs that are over, and of those that are paused so far."""
        records = {seed: record for seed, record in folder.records().items() if seed in seeds}
        failures = [record.failure for record in records.values() if record.failure]
        scores = {seed: record.val for seed, record in records.items() if not record.failure}
        epochs = [record.epochs_run for record in records.values()]
        names = [LOSS, *(metric.name for metric in self.seen.objective.watched(recipe.train.select_on))]
        for group in folder.about().groups:
            paused = None if set(group) <= records.keys() else folder.load_checkpoint(recipe, group)
            if paused is not None:
                rows = zip(paused[0]["seed"].tolist(), paused[0]["selection.best"].tolist(), strict=True)
                scores |= {seed: dict(zip(names, row, strict=True)) for seed, row in rows if seed not in records}
                epochs.append(int(paused[0]["epoch"].max()))
        # Settings with which one seed diverges are not good, however well the others do.
        said = failures[0] if failures else None if scores else "it was stopped before its first epoch"
        of_metric, of_loss = ([row.get(name) for row in scores.values()] for name in (self.metric.name, LOSS))
        return {
            "seeds": sorted({*records, *scores}),
            "epochs": max(epochs, default=0),
            "score": None if said else _mean(of_metric),
            "loss": None if said else _mean(of_loss),
            "is_over": len(records) == len(seeds),
            "failure": said,
        }

    def _note(self, trial: Trial, rung: str, **found: Any) -> None:
        """Add a line to the list of trials."""
        found = {"seconds": self.spent - sum(each.seconds for each in self.trials), "score": None, "loss": None} | found
        self.trials.append(trial.model_copy(update={"rung": rung} | found))
        write_json(self.work / SUMMARY_NAME, self.content())

    def content(self, **more: Any) -> dict[str, Any]:
        """What the file says: what makes it this search, and all trials."""
        return {"about": self.about, **more, "trials": [trial.model_dump() for trial in self.trials]}

    def _epoch_seconds(self, trial: Trial) -> float:
        """How long an epoch of one run may take, judged by the nearest depth of the same model, or of all models.

        What is no graph layer, such as the encoder, is worth about two of them; 0 before the first trial.
        """
        measured = [each for each in self.trials if each.epoch_seconds]
        measured = [each for each in measured if each.model == trial.model] or measured
        if not measured:
            return 0.0
        near = min(measured, key=lambda t: (abs(math.log(t.num_layers / trial.num_layers)), t.epoch_seconds))
        return near.epoch_seconds * (trial.num_layers + 2) / (near.num_layers + 2)

    def standings(self) -> list[Trial]:
        """The last state of every candidate: the later its last rung, the better, and within a rung see `_in_order`.

        Those without a result come last.
        """
        latest = self.latest().values()
        # Of the rungs before the finalists', more time alone is no merit.
        merit = {trial.name: max(_ORDER.index(trial.rung), _ORDER.index("variations")) for trial in latest}
        ranked = []
        for rung in sorted(set(merit.values()), reverse=True):
            ranked += self._in_order([t for t in latest if t.score is not None and merit[t.name] == rung])
        return ranked + [trial for trial in latest if trial.score is None]


def standard_error(accuracy: float, num_nodes: int) -> float:
    """Of an accuracy on so many nodes; one more right and one more wrong count, so that it is never 0.

    >>> round(standard_error(0.9, 98), 3)
    0.031
    """
    share = min(max((accuracy * num_nodes + 1) / (num_nodes + 2), 0.0), 1.0)  # a forged score may be anything
    return math.sqrt(share * (1 - share) / max(num_nodes, 1))


def _ranking_metric(task: Task, recipes: Sequence[Recipe]) -> Metric:
    """The metric that all candidates select by, if it is the same and not the loss; else the objective's first."""
    selecting = {recipe.train.select_on for recipe in recipes}
    if len(selecting) == 1 and LOSS not in selecting:
        return task.objective.metric(selecting.pop())
    return task.objective.metrics[0]


def _kind(trial: Trial) -> tuple[str, int]:
    return trial.model, trial.num_layers


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known and len(known) == len(values) else None
