"""A model for a graph that nobody tuned for: models and depths by successive halving, within a stated time.

Every trial is a run folder of its own, in which test targets are unknown. It trains for a while, pauses with a
checkpoint, and goes on from there if it is among the best; those get more seeds. ``auto.json`` has what every trial
has come to: what is tried next follows from that list alone, so a search that was killed goes on where it was.
"""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.files import FLEETING, ensure_folder, reason, write_json, write_text
from graphjoule.fitting import FitResult, checked_seeds, fit, mean_prediction, reweighted
from graphjoule.nn import GraphModel
from graphjoule.tasks import Task
from graphjoule.tasks.inputs import ModelInput
from graphjoule.tasks.metrics import Metric
from graphjoule.tasks.objective import LOSS
from graphjoule.training import Progress, TrainingInterrupted, resolve_device
from graphjoule.training.budget import Budget
from graphjoule.training.build import architecture_of
from graphjoule.training.folder import RunFolder
from graphjoule.training.recipe import Recipe, load_recipe
from graphjoule.training.records import Record
from graphjoule.training.saving import read_model
from graphjoule.training.trainer import Trainer
from graphjoule.tuning.ranges import default_ranges, parse_ranges, with_settings
from graphjoule.tuning.storage import differences
from graphjoule.tuning.validation import ValidationTask, hide_test

AUTO_BUDGET = "2min"
AUTO_SEEDS = (0, 1, 2, 3, 4)
AUTO_MODELS = ("gcn", "appnp", "gcnii", "resgcn", "egnn")
AUTO_DEPTHS = (2, 8, 32)
SUMMARY_NAME, RANKING_NAME = "auto.json", "ranking.csv"
WORK_NAME = f"{FLEETING}auto"  # while it searches; a run folder may begin beside it

# The rungs in their order, and the share of the budget that is spent when each ends. What is left over is for the test
# nodes, the report's numbers and the card of the winner.
_RUNGS = {"first": 0.35, "best": 0.45, "variations": 0.65, "seeds": 0.85, "winner": 0.95}
_ORDER = tuple(_RUNGS)
_KEPT = 1 / 3  # of the first rung
_NUM_FINALISTS, _SEEDS_OF_FINALISTS = 3, 3
_MOST_VARIATIONS = 24
_CHANGED = 0.4  # how likely a variation draws a setting anew
_LEEWAY = 1.5  # times as long as its leader a variation may take
_FEWEST_EPOCHS, _MOST_SHARES = 10, 2  # a trial that needs more than two shares for ten epochs is not begun
_MORE_RANGES = ("hidden_channels=32,64,128,256", "normalize_features=true,false")
_TIMED_EPOCHS, _OVERDRAFT = 3, 0.03
_NOTHING: Mapping[str, Any] = MappingProxyType({})


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

    rung: str
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


@dataclass(frozen=True)
class AutoResult(FitResult):
    """The records and models of the best candidate, one run or several that are better together.

    Attributes:
        trials: the last state of every candidate, the best first.
        metric: by which they are ranked.
        val_score: that metric on the validation nodes, of the mean prediction of all models here.
        test_score: the same on the test nodes, read once; None where there are none.
    """

    trials: list[Trial] = field(default_factory=list)
    metric: str = ""
    val_score: float = math.nan
    test_score: float | None = None


def auto(
    task: Task,
    budget: str | float | Budget = AUTO_BUDGET,
    *,
    models: Sequence[str] = AUTO_MODELS,
    depths: Sequence[int] = AUTO_DEPTHS,
    seeds: Sequence[int] = AUTO_SEEDS,
    settings: Mapping[str, Any] = _NOTHING,
    device: str | torch.device = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    runs_at_once: int | None = None,
    checkpoint_every: int = 50,
    on_progress: Callable[[AutoProgress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> AutoResult:
    """Spend a stated time on models, depths and settings by validation, and return what is best.

    All candidates train one seed for an equal share of the time; the best third goes on, the settings of the leaders
    are varied, the best three get more seeds, and the best of all gets every seed. Its best run is returned, or several
    runs whose mean prediction is better on the validation nodes. Test targets are unknown until that is decided. All
    seeds have the split of the first one.

    Args:
        task: the graph, features, targets, splits and objective.
        budget: wall time such as "2min" or seconds; training ends between two epochs when it is spent.
        models: names of models to try.
        depths: numbers of layers to try, with every model.
        seeds: the runs that the best candidate may have.
        settings: settings that win over those of all candidates; their models must have them.
        device: "auto" (CUDA if there is one), "cpu" or "cuda".
        out: a run folder for the result, with ``auto.json`` and ``ranking.csv``; None writes nothing that stays.
        resume: go on with what `out` holds, where another call was killed or interrupted. Time that was spent counts.
        runs_at_once: see `fit`.
        checkpoint_every: see `fit`.
        on_progress: called when a candidate begins and about once an epoch.
        should_stop: asked after every epoch; once it says yes, the state is saved and `TrainingInterrupted` raised.

    Returns:
        Records and models of the best, and the ranking of all that was tried.

    Example:
        >>> from graphjoule import load_task
        >>> digits = load_task("digits")
        >>> found = auto(digits, "1s", models=["gcn", "sgc"], depths=[2], seeds=[0], settings={"epochs": 20})
        >>> found.trials[0].model == found.records[0].model, found.metric
        (True, 'accuracy')
    """
    given = Budget.of(budget)
    numbers = checked_seeds(seeds)
    if not models or not depths:
        raise GraphjouleError("There is nothing to try: give at least one of `models` and one of `depths`.")
    recipes = _first_recipes(task, models, depths, numbers, settings)
    where = resolve_device(device)
    task = task.to(where)
    seen = hide_test(task, next(iter(recipes.values())), numbers)
    with ExitStack() as held:
        path = None if out is None else Path(out)
        place = path or Path(held.enter_context(tempfile.TemporaryDirectory()))
        search = _Search(recipes, task, seen, numbers, given, place, where, on_progress, should_stop)
        search.options = {"runs_at_once": runs_at_once, "checkpoint_every": checkpoint_every}
        search.begin(resume=resume)
        held.enter_context(RunFolder(place).open())
        ensure_folder(search.work)
        search.run()
        return search.finish(path)


def _first_recipes(
    task: Task, models: Sequence[str], depths: Sequence[int], seeds: Sequence[int], settings: Mapping[str, Any]
) -> dict[str, Recipe]:
    """The candidates of the first rung by name: every model's own settings for the task, the quickest first."""
    found = {}
    for depth in sorted(dict.fromkeys(depths)):
        for model in dict.fromkeys(models):
            recipe = load_recipe(model, task.name, depth, settings).with_split_of(task)
            rule = recipe.data.split
            if recipe.data.split_seed is None and len({task.split(rule, seed).sha256 for seed in seeds}) > 1:
                # Models that are compared, and predict together, must validate on the same nodes.
                recipe = recipe.with_settings({"data.split_seed": seeds[0]})
            found[f"{model}-{depth}"] = recipe
    return found


class _Search:
    """The trials of one call of `auto`; the file `auto.json` in its working folder is the list of them."""

    def __init__(
        self,
        recipes: Mapping[str, Recipe],
        task: Task,
        seen: ValidationTask,
        seeds: list[int],
        budget: Budget,
        folder: Path,
        device: torch.device,
        on_progress: Callable[[AutoProgress], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self.recipes, self.task, self.seen, self.seeds = dict(recipes), task, seen, seeds
        self.budget, self.folder, self.device = budget, folder, device
        self.on_progress, self.should_stop = on_progress, should_stop
        self.options: dict[str, Any] = {}
        self.work = folder / WORK_NAME
        self.trials: list[Trial] = []
        self._spent_before = 0.0
        self.metric = _ranking_metric(task, list(recipes.values()))

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
            run.check(next(iter(self.recipes.values())), resume=False)
            return
        if not resume:
            raise GraphjouleError(
                f"{self.folder} already holds a search for a model; pass `resume=True` to continue it, or choose "
                "another folder with `out`."
            )
        try:
            content = json.loads(path.read_bytes())
            begun, self.trials = dict(content["about"]), [Trial(**fields) for fields in content["trials"]]
        except OSError as error:
            raise GraphjouleError(f"Cannot read {path}: {reason(error)}.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise GraphjouleError(f"{path} is damaged; choose another folder with `out`.") from error
        if changed := differences(begun, self.about):
            raise GraphjouleError(
                f"The search in {self.folder} was begun with something else ({'; '.join(changed)}); choose another "
                "folder with `out`."
            )
        for trial in self.trials:
            if trial.name not in self.recipes:
                base = self.recipes[f"{trial.model}-{trial.num_layers}"]
                self.recipes[trial.name] = with_settings(base, trial.changes)
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
        """Candidates with a result, the best first; of equal ones the one that was tried first.

        Args:
            before: count the rungs before this one alone.
            of: candidates of this rung alone.
        """
        sign = -1 if self.metric.is_higher_better else 1
        found = [trial for trial in self.latest(before).values() if trial.score is not None]
        found = [trial for trial in found if of is None or trial.rung == of]
        return sorted(found, key=lambda trial: (sign * (trial.score or 0.0), trial.loss or 0.0))

    # The rungs.

    def run(self) -> None:
        """Go through all rungs; what the list of trials has already is not repeated."""
        first = [Trial(rung="first", name=n, model=r.model.name, num_layers=r.model.num_layers) for n, r in self._all()]
        self._rung("first", first)
        kept = self.ranked(before="best")[: math.ceil(_KEPT * len(first))]
        self._rung("best", [trial for trial in kept if not trial.is_over])
        self._vary()
        self._rung("seeds", self.ranked(before="seeds")[:_NUM_FINALISTS], self.seeds[:_SEEDS_OF_FINALISTS])
        self._rung("winner", (self.ranked(before="winner", of="seeds") or self.ranked("winner"))[:1], self.seeds)

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
        ranges = {**parse_ranges(_MORE_RANGES), **default_ranges(recipe.model.name)}
        fixed = {name for name, source in recipe.sources.items() if source == "override"}
        for _ in range(100):
            changes = dict(leader.changes)
            for key, found in sorted(ranges.items()):
                is_changed, share = random.uniform() < _CHANGED, random.uniform()
                if is_changed:
                    changes[key] = found.at(share)
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
            given = {"out": folder.path, "resume": True, "device": self.device, "on_progress": show}
            given |= {"should_stop": is_over, "budget": part if is_last else None}
            fit(recipe, self.seen, seeds, **given, **self.options)
        except TrainingInterrupted:
            if self.should_stop():
                raise
        except GraphjouleError as error:
            if isinstance(error.__cause__, OSError):
                raise
            failure = str(error)
        found = {"failure": failure} if failure else self._state(folder, recipe, seeds)
        taken = (seconds - part.left) / max(found.get("epochs", 0) - trial.epochs, 1)
        found["epoch_seconds"] = statistics.median(epochs) if epochs else taken  # the first epoch takes longer
        self._note(trial, rung, **found)

    def _state(self, folder: RunFolder, recipe: Recipe, seeds: Sequence[int]) -> dict[str, Any]:
        """What a trial's folder says: the scores of runs that are over, and of those that are paused so far."""
        records = {seed: record for seed, record in folder.records().items() if seed in seeds}
        failures = [record.failure for record in records.values() if record.failure]
        scores = {seed: record.val for seed, record in records.items() if not record.failure}
        epochs = [record.epochs_run for record in records.values()]
        names = [LOSS, *(metric.name for metric in self.task.objective.watched(recipe.train.select_on))]
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
        write_json(self.work / SUMMARY_NAME, self._content())

    def _content(self, **more: Any) -> dict[str, Any]:
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

    # What comes out.

    def finish(self, out: Path | None) -> AutoResult:
        """Choose the runs of the winner, score them on the test nodes, and write them as a run folder."""
        for trial in [*self.ranked(of="winner"), *self.ranked(of="seeds")]:
            if runs := self._runs(trial):
                break
        else:
            why = next((trial.failure for trial in self.trials if trial.failure), "there was no time for an epoch")
            raise GraphjouleError(f"No model could be trained on {self.task.name}; the first failure: {why}")
        recipe = self.recipes[trial.name]
        task = reweighted(self.task, recipe)
        given = ModelInput.of(task)
        predicted = {
            record.seed: mean_prediction([model], recipe, task.objective, given, self.device) for record, model in runs
        }
        split = next(iter(self.seen.splits.values()))
        seeds = self._together(predicted, split.val)
        chosen = [run for run in runs if run[0].seed in seeds]
        trainer = Trainer(architecture_of(recipe), recipe, task, self.device, seeds)
        trainer.folder = None if out is None else RunFolder(out)
        trainer.adopt(chosen)
        test = trainer.split_of[seeds[0]].test
        mean = _mean_of(predicted, seeds)
        val_score = self._score(mean, split.val, self.metric)
        result = AutoResult(
            [trainer.records[seed] for seed in seeds],
            list(trainer.all_models()),
            out,
            sorted(self.latest().values(), key=self._standing),
            self.metric.name,
            val_score,
            self._score(mean, test, self.metric) if test.numel() else None,
        )
        if out is not None:
            scores = {"metric": result.metric, "val_score": val_score, "test_score": result.test_score}
            write_json(out / SUMMARY_NAME, self._content(winner=trial.name, seeds=seeds, **scores))
            write_text(out / RANKING_NAME, ranking_table(result))
            shutil.rmtree(self.work, ignore_errors=True)
        return result

    def _runs(self, trial: Trial) -> list[tuple[Record, GraphModel]]:
        """The runs of a candidate that are done, with their models; of a search that is over they are in its folder."""
        folder = RunFolder(self.work / trial.name)
        folder = folder if folder.is_taken else RunFolder(self.folder)
        done = [record for record in folder.records().values() if record.status == "done"] if folder.is_taken else []
        return [(record, read_model(folder.model_path(record.seed), self.device).model) for record in done]

    def _together(self, predicted: Mapping[int, Tensor], val: Tensor) -> list[int]:
        """The best run on the validation nodes, or several whose mean prediction is better than they are on average.

        Runs are added while the mean prediction gets better by the log loss, where there is one: the share of right
        predictions jumps from node to node, and the largest of some such shares is largest by luck.
        """
        finer = next((metric for metric in self.task.objective.metrics if metric.name == "log_loss"), self.metric)

        def gain(metric: Metric, seeds: Sequence[int]) -> float:
            score = self._score(_mean_of(predicted, seeds), val, metric)
            return score if metric.is_higher_better else -score

        best = max(predicted, key=lambda seed: (gain(self.metric, [seed]), gain(finer, [seed])))
        chosen = [best]
        while left := [seed for seed in predicted if seed not in chosen]:
            more = max(left, key=lambda seed: gain(finer, [*chosen, seed]))  # noqa: B023
            if not gain(finer, [*chosen, more]) > gain(finer, chosen):
                break
            chosen.append(more)
        alone = sum(gain(self.metric, [seed]) for seed in chosen) / len(chosen)
        return sorted(chosen) if gain(self.metric, chosen) >= alone else [best]

    def _score(self, predicted: Tensor, nodes: Tensor, metric: Metric) -> float:
        targets = self.task.targets.cpu()[nodes.cpu()]
        return float(metric.value(*self.task.objective.scored(predicted[nodes.cpu()], targets)))

    def _standing(self, trial: Trial) -> tuple[float, ...]:
        """The later its last rung, the better; within a rung by score. Those without a result come last."""
        sign = -1 if self.metric.is_higher_better else 1
        if trial.score is None:
            return (1.0, 0.0, 0.0, 0.0)
        rung = max(_ORDER.index(trial.rung), _ORDER.index("variations"))  # more time alone is no merit
        return (0.0, -rung, sign * trial.score, trial.loss or 0.0)


def ranking_table(result: AutoResult) -> str:
    """All candidates as CSV, the best first."""
    text = io.StringIO()
    heads = ["rank", "name", "model", "num_layers", "rung", "seeds", "epochs", f"val_{result.metric}", "val_loss"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*heads, "is_over", "changes", "failure"])
    for rank, trial in enumerate(result.trials, 1):
        changes = " ".join(f"{key}={value}" for key, value in trial.changes.items())
        own = [trial.name, trial.model, trial.num_layers, trial.rung, len(trial.seeds), trial.epochs]
        writer.writerow([rank, *own, trial.score, trial.loss, trial.is_over, changes, trial.failure])
    return text.getvalue()


def _ranking_metric(task: Task, recipes: Sequence[Recipe]) -> Metric:
    """The metric that all candidates select by, if it is the same and not the loss; else the objective's first."""
    selecting = {recipe.train.select_on for recipe in recipes}
    if len(selecting) == 1 and LOSS not in selecting:
        return task.objective.metric(selecting.pop())
    return task.objective.metrics[0]


def _mean_of(predicted: Mapping[int, Tensor], seeds: Sequence[int]) -> Tensor:
    return torch.stack([predicted[seed] for seed in seeds]).mean(dim=0)


def _kind(trial: Trial) -> tuple[str, int]:
    return trial.model, trial.num_layers


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known and len(known) == len(values) else None
