"""``graphjoule train``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import BaseModel

from graphjoule.cli import in_options
from graphjoule.cli.places import check_folder, default_folder
from graphjoule.cli.source import GraphSource, takes_a_graph
from graphjoule.cli.terminal import (
    DEFAULT_BUDGET,
    ClassWeights,
    Device,
    FocalGamma,
    Json,
    Layers,
    LayerTable,
    Overrides,
    SelectOn,
    Worth,
    aligned,
    overrides_of,
    parse_budget,
    parse_seeds,
    show_progress,
)
from graphjoule.errors import GraphjouleError, choices, counted, harmless
from graphjoule.files import json_text
from graphjoule.nn.table import MODELS
from graphjoule.terms.settings import MethodName
from graphjoule.training.budget import expected_seconds, in_words
from graphjoule.training.defaults import choose_settings, default_layers, with_choices_of
from graphjoule.training.recipe import Recipe, load_recipe

if TYPE_CHECKING:
    import torch

    from graphjoule.fitting import FitResult
    from graphjoule.parallel.group import Group
    from graphjoule.tasks import Task
    from graphjoule.training import Callback, Progress, TrainingJob
    from graphjoule.training.budget import Budget
    from graphjoule.training.comparison import Comparison


OnCollapse = Literal["warn", "stop"]
DEFAULT_MODEL = "egnn"
_DAY = 86400.0
_ONE_MODEL = "; --model, --layers, --recipe, --set or --epochs would train one model, and so would --budget none"


@takes_a_graph
def train(
    source: GraphSource,
    model: Annotated[str | None, typer.Option(help=f"Model: {choices(MODELS)}.", show_default=DEFAULT_MODEL)] = None,
    layers: Layers = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="How many seeds (10 means 0 to 9), or a list such as 3,7.", show_default="1; 5 where models are tried"
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Wall time such as 90s, 2min or 1h, or none. On your own files, models and depths are tried for so "
            "long where nothing says which; one training ends after it with what it has.",
            show_default=f"{DEFAULT_BUDGET} on your own files, else none",
        ),
    ] = None,
    set_: Overrides = None,
    constraint: Annotated[
        MethodName | None, typer.Option(help="Hold every layer's energy between c_min and c_max, by this method.")
    ] = None,
    clusters: Annotated[
        int | None,
        typer.Option(min=1, help="Train on clusters of nodes, so many in all, where the graph does not fit in memory."),
    ] = None,
    clusters_per_step: Annotated[
        int | None, typer.Option(min=1, help="Clusters that one step joins; 1 by default.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="The most epochs a run may take; the recipe says by default.")
    ] = None,
    select_on: SelectOn = None,
    class_weights: ClassWeights = None,
    focal_gamma: FocalGamma = None,
    recipe_file: Annotated[
        Path | None,
        typer.Option(
            "--recipe", metavar="FILE", help="Recipe file to use, such as the best.toml of `graphjoule tune`."
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print the facts of the data and which rules chose settings by them.")
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Train in so many processes here, each with a part of the graph."),
    ] = None,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Be one of the processes of torchrun; needs --parts or --clusters.")
    ] = False,
    parts: Annotated[
        Path | None, typer.Option(help="Folder of `graphjoule partition`, for --distributed or --processes.")
    ] = None,
    device: Device = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Folder for records and models; by default a new one under runs/.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a training that was interrupted or killed.")
    ] = False,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Epochs between two checkpoints.")] = 50,
    worth: Worth = None,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write curves for TensorBoard into this folder too.")
    ] = None,
    live: Annotated[
        bool,
        typer.Option("--live", help="Show the energy of every layer while it trains; takes at most 5 % of the time."),
    ] = False,
    on_collapse: Annotated[
        OnCollapse | None,
        typer.Option(help="What to do when all nodes of a layer become alike: go on with a warning, or stop."),
    ] = None,
    json: Json = False,
) -> None:
    """Train a model on a dataset: all seeds in one program, validation selects, the test split is read once.

    Examples:

    - `graphjoule train` trains 32 layers on the embedded digits

    - `graphjoule train --dataset cora --layers 64 --seeds 10`

    - `graphjoule train --dataset cora --set c_min=0.3 --set lr=0.01`

    - `graphjoule train --dataset pubmed --model gcn --layers 2 --json`

    - `graphjoule train --dataset cora --model gcn --layers 16 --constraint penalty --set terms.energy.c_min=0.2`

    - `graphjoule train --dataset physics --layers 8 --clusters 50 --clusters-per-step 5`

    - `graphjoule train --dataset pubmed --layers 64 --processes 2` trains the same, each process with half the graph

    - `graphjoule train --dataset cora --layers 8 --class-weights balanced --select-on macro_f1`

    - `graphjoule train --dataset cora --seeds 5 --tensorboard curves` to watch with `tensorboard --logdir curves`

    - `graphjoule train --dataset cora --model gcn --layers 32 --live --on-collapse stop` shows energies, and stops

    - `graphjoule train --nodes nodes.csv --edges edges.csv` tries models on your own graph for 2 minutes and predicts

    - `graphjoule train --nodes nodes.csv --edges edges.csv --model gcnii --layers 8 --seeds 5` trains this one

    - `graphjoule train --nodes people.csv --label segment --one-hot job,city --knn 15`

    - `graphjoule train --graphs molecules.csv --nodes atoms.csv --edges bonds.csv --label active` predicts whole graphs
    """
    chosen = {
        "train.epochs": epochs,
        "terms.energy.method": constraint,
        "train.clusters.parts": clusters,
        "train.clusters.per_step": clusters_per_step,
        "train.select_on": select_on,
        "train.class_weights": class_weights,
        "train.focal_gamma": focal_gamma,
    }
    overrides = overrides_of(set_, chosen)
    source.check_split(overrides)
    if clusters_per_step is not None and not any(key.endswith("parts") for key in overrides) and recipe_file is None:
        raise GraphjouleError(
            f"--clusters-per-step is {clusters_per_step}, but there are no clusters: say how many with --clusters."
        )
    seconds = None if budget is None else parse_budget(budget)
    is_alone = processes is None and parts is None and not distributed
    settings = (layers, recipe_file, set_, epochs, constraint, clusters, clusters_per_step)
    is_about_one = model is not None or any((*settings, tensorboard, live, on_collapse, explain))
    if source.is_own and is_alone and budget != "none" and not is_about_one:
        from graphjoule.cli.auto import try_models

        try_models(
            source,
            parse_budget(budget or DEFAULT_BUDGET) or 0.0,
            seeds,
            overrides=overrides,
            device=device,
            out=out,
            resume=resume,
            checkpoint_every=checkpoint_every,
            worth=worth,
            is_json=json,
            hint=_ONE_MODEL,
        )
        return
    model = DEFAULT_MODEL if model is None else model
    numbers = parse_seeds(seeds or "1")
    is_compared = compares(source, worth, parts)

    # What can be refused by names and numbers alone is refused before torch is imported.
    source.check()
    if (live or on_collapse) and not (is_alone and "train.clusters.parts" not in overrides):
        option = "--live" if live else "--on-collapse"
        raise GraphjouleError(
            f"{option} looks at the whole graph in one process: leave it out, or --processes, --distributed and "
            "--clusters."
        )
    if explain and distributed and parts is not None:
        raise GraphjouleError(
            "--explain needs the whole graph, and with --parts every process has a part: leave out one."
        )
    if is_alone:
        recipe = load_recipe_from(recipe_file, model, source.name, layers, overrides)
    else:
        from graphjoule.cli.processes import check_options, check_recipe, train_with_others

        source, name = check_options(source, processes, distributed, parts)
        recipe = load_recipe_from(recipe_file, model, name, layers, overrides)
        check_recipe(recipe, processes, distributed, parts)

    source.check_before_loading(device)
    if tensorboard is not None:
        from graphjoule.training import TensorBoard

        TensorBoard(tensorboard)
    if out is not None and not distributed:  # of many processes the first looks at the folder, for all
        check_folder(out, recipe, resume=resume)
    job = Job(
        recipe=recipe,
        seeds=numbers,
        device=device,
        out=out,
        resume=resume,
        checkpoint_every=checkpoint_every,
        tensorboard=tensorboard,
        live=live,
        on_collapse=on_collapse,
        source=source,
        is_json=json,
        budget=seconds,
        is_open=recipe_file is None,
        explain=explain,
        is_compared=is_compared,
    )
    if is_alone:
        task = source.load()
        job = job.for_task(task)
        warn_of_accuracy(task, job.recipe)
        print_result(job, task, job.train(task))
    else:
        if distributed and resume and out is not None and not out.exists() and os.environ.get("RANK", "0") == "0":
            # Not refused: a cluster starts a job again with the line it was first started with.
            typer.echo(f"graphjoule: there is no folder {out} to resume; the training begins.", err=True)
        train_with_others(job, processes, distributed, parts)


def warn_of_accuracy(task: Task, recipe: Recipe) -> None:
    """Say that accuracy chooses or is shown although nearly all labels are of one class."""
    from graphjoule.tasks.metrics import ACCURACY, MICRO_F1
    from graphjoule.tasks.objective import Classification
    from graphjoule.tasks.table_report import doubt_of_accuracy

    asked = task.objective
    if not isinstance(asked, Classification) or asked.watched(recipe.train.select_on)[-1] not in (ACCURACY, MICRO_F1):
        return
    counts = task.targets[task.is_known].bincount(minlength=asked.num_classes).tolist()
    options = {name: f"--{name.replace('_', '-')}" for name in ("select_on", "class_weights")}
    for said in doubt_of_accuracy(asked.classes, counts):
        typer.echo(in_options(f"{task.name}: {said}", options), err=True)


def load_recipe_from(
    file: Path | None, model: str, dataset: str, num_layers: int | None, overrides: dict[str, Any]
) -> Recipe:
    """The recipe of a file of the user's, such as the winner of ``graphjoule tune``; else ours.

    What a file changes against the recipe that comes with graphjoule counts as overridden, so that a report does not
    take it for the paper's experiment and its command repeats the training without the file.
    """
    num_layers = default_layers(model, dataset) if num_layers is None else num_layers
    found = load_recipe(model, dataset, num_layers, overrides, file=file)
    if file is None:
        return found
    usual = load_recipe(model, dataset, num_layers).settings()
    changed = [key for key, value in found.settings().items() if key not in usual or usual[key] != value]
    return found.model_copy(update={"sources": found.sources | dict.fromkeys(changed, "override")})


def compares(source: GraphSource, worth: bool | None, parts: Path | None = None) -> bool:
    """Whether to compare with simpler models: those of one's own nodes, unless somebody says otherwise."""
    if worth and parts is not None:
        raise GraphjouleError(f"--worth needs the whole graph, but --parts is {parts}; leave one of the two out.")
    if worth and source.graphs is not None:
        raise GraphjouleError(
            f"--worth compares with models of nodes, but --graphs is {source.graphs}; leave one of the two out."
        )
    return (source.is_own and source.graphs is None and parts is None) if worth is None else worth


class Job(BaseModel):
    """What to train; all processes of a training are given the same.

    Attributes:
        recipe: every setting; its split may still be "default".
        seeds: one run each.
        device: "auto", "cpu" or "cuda".
        out: the run folder; None makes a new one under ``runs/``.
        resume: whether to go on with what it holds.
        checkpoint_every: epochs between two checkpoints.
        tensorboard: folder for TensorBoard's curves; None writes none.
        live: whether to show the energies of every layer.
        on_collapse: what to do when a layer dies.
        source: which graph, where a process reads all of it.
        is_json: whether to print the result as JSON.
        budget: seconds after which the runs end with what they have; None is as long as it takes.
        is_open: whether rules may choose by the data what nobody has set.
        explain: whether to print why settings are what they are.
        is_compared: whether to compare it with simpler models.
    """

    recipe: Recipe
    seeds: list[int]
    device: str
    out: Path | None
    resume: bool
    checkpoint_every: int
    tensorboard: Path | None = None
    live: bool = False
    on_collapse: OnCollapse | None = None
    source: GraphSource = GraphSource()
    is_json: bool = False
    is_compared: bool = False
    is_open: bool = False
    explain: bool = False
    budget: float | None = None

    def for_task(self, task: Task, *, is_first: bool = True) -> Job:
        """The same job with settings from the data where nobody has set any; the first process may explain them.

        What goes on has the settings that it began with, though its data or our rules may have changed since.

        Args:
            task: the whole graph.
            is_first: whether this process prints.
        """
        from graphjoule.training.folder import RunFolder

        recipe, lines = self.recipe, ["All settings are those of the recipe file."]
        if self.is_open:
            path = default_folder(recipe.with_split_of(task), resume=True) if self.resume and not self.out else self.out
            if self.resume and path is not None and (folder := RunFolder(path)).is_taken:
                recipe = with_choices_of(recipe, folder.about().recipe)
                lines = [f"Settings are those that {path} began with."]
            else:
                choice = choose_settings(recipe, task, self.seeds[0])
                recipe, lines = choice.recipe, choice.lines()
        if self.explain and is_first:
            typer.echo("\n".join(lines), err=self.is_json)
        return self.model_copy(update={"recipe": recipe, "is_open": False, "explain": False})

    def train(
        self,
        task: Task,
        group: Group | None = None,
        device: torch.device | None = None,
        on_epoch: Callable[[], None] = lambda: None,
    ) -> FitResult:
        """Train on a task, alone or as one of a group of processes; the first of them shows progress.

        Args:
            task: the graph that the recipe is for, or this process's part of it.
            group: the processes; by default this one alone.
            device: this process's own; by default what the job says.
            on_epoch: called when there is progress.
        """
        from graphjoule.fitting import fit
        from graphjoule.training import LayerWatch, TensorBoard, deferred_interrupt

        recipe = self.recipe.with_split_of(task)

        def name_folder() -> Path:
            return self.out or default_folder(recipe, resume=self.resume)

        folder = group.from_first(name_folder) if group else name_folder()
        is_shown = group is None or group.is_first
        callbacks: list[Callback] = [] if self.tensorboard is None else [TensorBoard(self.tensorboard)]
        table = LayerTable(recipe.title) if self.live else None
        if table is not None or self.on_collapse is not None:
            callbacks.append(LayerWatch(None if table is None else table.show, on_collapse=self.on_collapse))
        if self.budget is None:
            callbacks.append(self._warning_of_days(task))
        bar = show_progress(recipe.title, len(self.seeds), self.budget, table)
        shown = bar if is_shown else nullcontext(lambda progress: None)
        with shown as show, deferred_interrupt() as stop:

            def on_progress(progress: Progress) -> None:
                on_epoch()
                show(progress)

            return fit(
                recipe,
                task,
                self.seeds,
                device=device or self.device,
                out=folder,
                resume=self.resume,
                checkpoint_every=self.checkpoint_every,
                on_progress=on_progress,
                callbacks=callbacks,
                should_stop=lambda: stop.requested,
                group=group,
                budget=self.budget,
            )

    def _warning_of_days(self, task: Task) -> Callback:
        """Says before the first epoch that a training may take days; `show_progress` knows better after some."""
        import torch

        from graphjoule.training import Callback

        model, train = self.recipe.model, self.recipe.train
        size = (task.num_nodes, task.graph.col.numel(), model.hidden_channels or 64)
        passes = model.num_layers * train.epochs * len(self.seeds)
        sentence = (
            f"{self.recipe.title}: by its size this may take {{}}, for {train.epochs} epochs of "
            f"{counted(len(self.seeds), 'run')}; --budget TIME ends it in time, --epochs, fewer layers or seeds "
            "make it shorter."
        )

        class WarningOfDays(Callback):
            def on_begin(self, job: TrainingJob) -> None:
                seconds = expected_seconds(*size, passes, job.device.type, torch.get_num_threads())
                if seconds > _DAY:
                    typer.echo(sentence.format(in_words(seconds)), err=True)

        return WarningOfDays()


def print_result(
    job: Job, task: Task, result: FitResult, more: Mapping[str, Any] | None = None, budget: Budget | None = None
) -> None:
    """Print what came out, predict a graph of the user's own, compare; exit code 1 if no run finished.

    The JSON has `more` besides. The comparison may take its `budget`; None is as long as it takes.
    """
    from graphjoule.training.folder import RunFolder

    result = with_earlier_runs(result)
    summary, folder = result.summary, result.folder or Path()
    name, text = summary.metric.name, summary.metric.text
    failed = f", {summary.num_failed} failed" if summary.num_failed else ""
    if summary.val_mean is None:
        said = f"no run finished{failed}"
    elif summary.test_mean is None:  # a split without test nodes
        validation = text(summary.val_mean, summary.val_std)
        said = (
            f"validation {name} {validation} (n = {summary.n}{failed}), no test {task.unit}s, {summary.seconds:.0f} s"
        )
    else:
        said = (
            f"test {name} {text(summary.test_mean, summary.test_std)} (n = {summary.n}{failed}), "
            f"validation {text(summary.val_mean)}, {summary.seconds:.0f} s"
        )
    lines = [f"{job.recipe.title}: {said}", f"records and models: {folder}"]
    fields: dict[str, Any] = {
        "metric": name,
        "test_mean": summary.test_mean,
        "test_std": summary.test_std,
        "n": summary.n,
        "num_failed": summary.num_failed,
        "val_mean": summary.val_mean,
        "seconds": round(summary.seconds, 3),
        "records": str(folder / "records.jsonl"),
        "warnings": [],
    }
    if job.source.is_own and summary.n:
        path = predict_all(task, result, job.device)
        fields["predictions"] = str(path)
        lines.append(f"predictions: {path}")
    if summary.n and (evaluation := RunFolder(folder).evaluation()) is not None:
        fields["warnings"] = evaluation.warnings()
        lines += [f"warning: {harmless(warning)}" for warning in fields["warnings"]]
    if job.is_compared and summary.n:
        from graphjoule.tuning.worth import assess

        typer.echo("\n".join(lines), err=job.is_json)  # the comparison takes its time
        try:
            comparison = assess(task, result, device=job.device, budget=budget)
        except KeyboardInterrupt:
            typer.echo(f"graphjoule: stopped; the models are in {folder}, and --resume makes the comparison.", err=True)
            raise typer.Exit(130) from None
        fields["worth"] = comparison.model_dump(mode="json") | {"sentences": comparison.sentences()}
        lines = worth_lines(comparison)
    typer.echo("\n".join(lines), err=job.is_json)
    if job.is_json:
        typer.echo(json_text(fields | dict(more or {})))
    if summary.n == 0:
        sys.exit(1)


def with_earlier_runs(result: FitResult) -> FitResult:
    """The result with the runs that its folder has besides, where `--resume` asked for fewer seeds than are there.

    Predictions, comparison and model card are of the whole folder; those of a part must not replace them.
    """
    from graphjoule.training.folder import RunFolder
    from graphjoule.training.saving import read_model

    if result.folder is None:
        return result
    folder = RunFolder(result.folder)
    records = folder.records()
    runs = {record.seed: (record, model) for record, model in zip(result.records, result.models, strict=True)}
    earlier = sorted(records.keys() - runs.keys())
    if not earlier:
        return result
    runs |= {seed: (records[seed], read_model(folder.model_path(seed)).model) for seed in earlier}
    typer.echo(
        f"{folder.path} has {counted(len(earlier), 'run')} besides (seeds: {', '.join(map(str, earlier))}); "
        f"what follows is of all {len(runs)}.",
        err=True,
    )
    of_all = [runs[seed] for seed in sorted(runs)]
    return replace(result, records=[record for record, _ in of_all], models=[model for _, model in of_all])


def worth_lines(comparison: Comparison) -> list[str]:
    """A comparison for a terminal: a table, what follows from it, and what was left out."""
    head, rows = comparison.table()
    width = max(len(row[0]) for row in (head, *rows))
    table = ["  ".join(cells) for cells in aligned([[row[0].ljust(width), *row[1:]] for row in (head, *rows)])]
    return ["", "What is the graph worth?", *table, *comparison.sentences(), *comparison.notes]


def predict_all(task: Task, result: FitResult, device: str) -> Path:
    """Write what the runs that are done say together about each node, or graph, as the folder's ``predictions.csv``."""
    from graphjoule.tasks.task import ModelInput
    from graphjoule.training.predictions import write_predictions

    inputs, path = ModelInput.of(task), (result.folder or Path()) / "predictions.csv"
    write_predictions(path, inputs.node_ids, result.predict(task, device), inputs.targets, task.objective)
    return path
