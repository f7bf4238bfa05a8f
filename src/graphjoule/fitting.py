"""Train and predict: `fit` any model on a task, `load` it again, and what trained models say together."""

from __future__ import annotations

import inspect
import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graphjoule.errors import GraphjouleError, counted
from graphjoule.graph.features import Features, SparseFeatures, has_negative, normalize_rows
from graphjoule.nn import MODELS, GraphModel
from graphjoule.ops import describe_backend
from graphjoule.tasks import Task
from graphjoule.tasks.facts import TaskFacts
from graphjoule.tasks.objective import OBJECTIVES, Classification, Objective
from graphjoule.tasks.task import ModelInput
from graphjoule.terms import TERMS, Term
from graphjoule.training import resolve_device
from graphjoule.training.budget import Budget
from graphjoule.training.build import (
    Architecture,
    Builder,
    OwnModel,
    architecture_of,
    not_finite,
    own_architecture,
    qualified_name,
    user_module,
)
from graphjoule.training.calibration import Calibration, check_coverage
from graphjoule.training.callbacks import Callback, Listeners, TrainingJob
from graphjoule.training.defaults import recipe_for
from graphjoule.training.folder import RunFolder
from graphjoule.training.hub import model_file
from graphjoule.training.loop import Progress
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import Record, Summary, summarise
from graphjoule.training.saving import SavedModel, read_model
from graphjoule.training.seed_batch import TermBuilder
from graphjoule.training.settings import checked, parameter_groups
from graphjoule.training.threads import one_thread
from graphjoule.training.trainer import Trainer

if TYPE_CHECKING:
    from graphjoule.parallel.group import Group

logger = logging.getLogger("graphjoule")
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class FitResult:
    """The records of all runs in the order of their seeds, and their models.

    Attributes:
        records: one per seed.
        models: one per seed, in evaluation mode; a model of the user's own is what its function built, of a regression
            within `graphjoule.nn.OutputScale`, which gives numbers in the unit of the targets: there the module is
            ``models[0].model.module``.
        folder: where they were written; None if nowhere.
        members: runs of other models that predict together with these; only `graphjoule.tuning.auto` has any.
    """

    records: list[Record]
    models: list[torch.nn.Module]
    folder: Path | None = None
    members: list[FitResult] = field(default_factory=list)

    @property
    def summary(self) -> Summary:
        """Mean and spread over the runs."""
        return summarise(self.records)

    def predict(self, task: Task, device: str | torch.device = "cpu") -> Tensor:
        """What the runs that are done say together about every node, or graph, of a task: see `mean_prediction`."""
        recipe = Recipe.from_fields(self.records[0].recipe)
        done = [model for model, record in zip(self.models, self.records, strict=True) if record.status == "done"]
        own = mean_prediction(done, recipe, task.objective, ModelInput.of(task), device)
        return torch.stack([own, *(member.predict(task, device) for member in self.members)]).mean(dim=0)


def fit(
    model: Recipe | Builder | str,
    task: Task,
    seeds: Sequence[int] | None = None,
    *,
    terms: Sequence[TermBuilder] = (),
    settings: Mapping[str, Any] = _NOTHING,
    device: str | torch.device = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    runs_at_once: int | None = None,
    checkpoint_every: int = 50,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    callbacks: Sequence[Callback] = (),
    should_stop: Callable[[], bool] = lambda: False,
    group: Group | None = None,
    budget: str | float | Budget | None = None,
    protocol: str | None = None,
) -> FitResult:
    """Train a model on a task by the paper's protocol; networks that can be stacked train all seeds in one program.

    Validation chooses each run's epoch and when it stops; test targets are read once per run, after that. A split may
    have no test nodes; then a record has no test scores. The same seed gives the same run alone or among others, in one
    process or in many, up to rounding, which a long training can make visible; and to the bit on a CPU if the same
    seeds train together in as many processes, each with as many threads as the record names. Calls may run in several
    threads at once: torch's global generator is neither read nor moved, and signal handlers are left alone. A module of
    your own that draws from Python's ``random``, from NumPy or in a scripted function draws what no seed of a run
    reaches; a warning says so.

    Args:
        model: the name of a model, such as "egnn", whose settings `recipe_for` chooses; "auto", which tries models and
            depths within the `budget`, see `graphjoule.tuning.auto`; a recipe, see `load_recipe`; a class with its
            options, such as ``functools.partial(GAT, hidden_channels=64, num_layers=4)``, which gets ``in_channels``
            and ``out_channels``; or any function of the task, or of nothing, that builds a module. A module is called
            as ``model(x, graph)``, or as ``model(x, edge_index[, edge_weight])`` if its ``forward`` has arguments of
            these names.
        task: the graph, features, targets, splits and objective.
        seeds: one run each; 0 by default. With "auto" those that the best model may have, by default 0 to 4.
        terms: what is added to the loss besides the model's own ``penalty()``: settings such as
            ``EnergySettings(c_min=0.5)``, or functions of the model and the graph that return a `Term`.
        settings: settings that win over the recipe, by their names, such as ``{"lr": 0.01, "train.epochs": 200}``. A
            model that is not a recipe trains with ``lr`` 0.005, ``weight_decay`` 0.0005, at most 500 ``epochs``, a
            ``patience`` of 100, selected by ``loss``, on the task's own split.
        device: "auto" (CUDA if there is one), "cpu" or "cuda".
        out: folder for records, models and checkpoints; None writes nothing.
        resume: go on with what `out` holds, where another call was killed or interrupted.
        runs_at_once: how many runs to train together; by default as many as fit in memory, and one where the recipe has
            clusters. What `resume` goes on with stays together as it was.
        checkpoint_every: epochs between two checkpoints.
        on_progress: called about once an epoch with the mean losses.
        callbacks: what else listens, see `graphjoule.training.Callback`; what one raises is raised here once the runs
            that are done and the epoch of the others are saved in `out`.
        should_stop: asked after every epoch; once it says yes, the state is saved and `TrainingInterrupted` raised.
        group: the processes that share the steps on clusters, which the recipe must have; all of them make this call,
            with the whole task. By default those that hold the graph together.
        budget: wall time such as "2min" or seconds, counted from this call: runs that have not stopped by then end
            between two epochs with what they have. By default there is none; with "auto" it is "2min".
        protocol: what the records name as the rules that were written before the runs, see `Record.protocol`.

    Returns:
        Records and models of all seeds; with "auto" those of the best model, and what was tried in ``trials``.

    Raises:
        GraphjouleError: something given cannot be used; nothing has been written then.
        TrainingInterrupted: `should_stop` said so; the state is saved if there is an `out`.

    Example:
        >>> from functools import partial
        >>> from graphjoule import load_task
        >>> from torch_geometric.nn import GraphSAGE
        >>> network = partial(GraphSAGE, hidden_channels=16, num_layers=2)
        >>> result = fit(network, load_task("digits"), seeds=[0, 1], settings={"epochs": 2})
        >>> [record.model for record in result.records]
        ['torch_geometric.nn.models.basic_gnn.GraphSAGE', 'torch_geometric.nn.models.basic_gnn.GraphSAGE']
    """
    if not isinstance(task, Task):
        raise GraphjouleError(
            f"The task is a {type(task).__name__}; expected a Task, such as Task.from_data(data) of PyG's Data or "
            'load_task("digits").'
        )
    if isinstance(model, str) and model == "auto":
        for option, value in (("terms", terms), ("callbacks", callbacks), ("group", group), ("protocol", protocol)):
            if value:
                raise GraphjouleError(f'`{option}` cannot be given with "auto", which tries many models; leave it out.')
        # Imported here: it is a room below, which trains through this very function.
        from graphjoule.tuning.automatic import AUTO_BUDGET, AUTO_SEEDS, auto

        return auto(
            task,
            AUTO_BUDGET if budget is None else budget,
            seeds=AUTO_SEEDS if seeds is None else seeds,
            settings=settings,
            device=device,
            out=out,
            resume=resume,
            runs_at_once=runs_at_once,
            checkpoint_every=checkpoint_every,
            on_progress=lambda progress: None if progress.training is None else on_progress(progress.training),
            should_stop=should_stop,
        )
    deadline = None if budget is None else Budget.of(budget)
    for name, count in (("runs_at_once", runs_at_once), ("checkpoint_every", checkpoint_every)):
        if count is not None and count < 1:
            raise GraphjouleError(f"{name} is {count}; it must be at least 1.")
    seeds = checked_seeds((0,) if seeds is None else seeds)
    recipe, architecture = _resolve(model, task, settings, seeds[0])
    if recipe.model.name in MODELS:
        MODELS[recipe.model.name].check_graph(task.graph)
    recipe, builders = _with_terms(recipe.with_split_of(task), terms)
    task = reweighted(task, recipe)
    if recipe.train.clusters is not None and runs_at_once not in (None, 1):
        raise GraphjouleError(f"runs_at_once is {runs_at_once}; runs on clusters train one after the other.")
    where = resolve_device(device)
    # A graph that is trained on in clusters may be too large for the device; it stays in host memory.
    with one_thread(where):
        task = task.to(where if recipe.train.clusters is None else "cpu")
    kind: Callable[..., Trainer] = Trainer
    folder_at: Callable[[str | Path], RunFolder] = RunFolder
    if group is not None or recipe.train.clusters is not None or task.graph.row_ids is not None:
        # Imported here: a training in one process on one whole graph has nothing to do with it.
        from graphjoule.parallel.trainer import shared_training

        kind, folder_at = shared_training(recipe, task, group)
    listeners = Listeners(callbacks, on_progress, should_stop)
    training = kind(
        architecture,
        recipe,
        task,
        where,
        seeds,
        builders,
        checkpoint_every,
        listeners.on_epoch,
        listeners.should_stop,
        listeners.on_run_end,
    )
    training.budget, training.protocol = deadline, protocol
    if not training.is_first:
        listeners.callbacks.clear()
    if recipe.data.normalize_features and training.is_first and has_negative(task.features):
        logger.warning(
            "%s has negative features, and rows are divided by their sums, which may be next to 0: such a row says "
            "nothing; data.normalize_features = false leaves rows as they are",
            task.name,
        )
    logger.info("%s", describe_backend(where, task.num_nodes * (recipe.model.hidden_channels or 1)))
    path = None if out is None else Path(out)
    if path is not None:
        training.folder = folder_at(path)
        training.folder.check(recipe, training.facts, training.draw_split, resume=resume)
    with one_thread(where):
        training.prepare(runs_at_once)
    for callback in listeners.callbacks:
        callback.on_begin(TrainingJob(recipe, training.facts, training.seeds, where, path))
    with listeners.heard(), nullcontext() if training.folder is None else training.folder.open():
        training.run()
    models = [user_module(model) for model in training.all_models()]
    result = FitResult([training.records[seed] for seed in training.seeds], models, path)
    for callback in listeners.callbacks:
        callback.on_end(result)
    return result


def checked_seeds(seeds: Sequence[int]) -> list[int]:
    """The seeds as a list, or a sentence on what is wrong with them."""
    try:
        seeds = [operator.index(seed) for seed in seeds]
    except TypeError as error:
        raise GraphjouleError(f"seeds are {seeds!r}; expected a list of whole numbers, such as range(3).") from error
    if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0 or max(seeds) >= 2**32:
        raise GraphjouleError(f"seeds are {seeds}; expected one or more different numbers from 0 to {2**32 - 1}.")
    return seeds


def _resolve(
    model: Recipe | Builder | str, task: Task, settings: Mapping[str, Any], seed: int
) -> tuple[Recipe, Architecture]:
    """The recipe of a training and its network, whichever way the model was given."""
    if not isinstance(settings, Mapping):
        raise GraphjouleError(
            f"settings is {settings!r}; expected values by the names of settings, such as {{'train.epochs': 200}}."
        )
    if isinstance(model, str):
        recipe = recipe_for(task, model, overrides=settings, seed=seed)
        return recipe, architecture_of(recipe)
    if isinstance(model, Recipe):
        recipe = model.with_settings(settings) if settings else model
        return recipe, architecture_of(recipe)
    if isinstance(model, torch.nn.Module) or not callable(model):
        raise GraphjouleError(
            f"The model is a {type(model).__name__}; expected a recipe, or a class or function that builds a module, "
            "because every seed trains a new one: lambda task: MyModel(task.num_features, task.out_channels)."
        )
    architecture = own_architecture(model, task)
    decay = dict.fromkeys(parameter_groups(architecture.settings.name), 5e-4)
    fields = {
        "model": architecture.settings,
        "data": {"name": task.name, "split": "default", "normalize_features": False},
        "train": {"lr": 5e-3, "weight_decay": decay, "epochs": 500, "patience": 100, "select_on": "loss"},
    }
    recipe = checked(Recipe, fields)
    return (recipe.with_settings(settings) if settings else recipe), architecture


def _with_terms(recipe: Recipe, terms: Sequence[TermBuilder]) -> tuple[Recipe, dict[str, TermBuilder]]:
    """The recipe that names all terms, and what builds each of them."""
    builders: dict[str, TermBuilder] = {}
    for name, given in recipe.terms.items():
        if name not in TERMS:
            raise GraphjouleError(f"The recipe has the term {name}, which is the user's own; pass it in `terms`.")
        builders[name] = TERMS[name](**given)
    described = dict(recipe.terms)
    for term in terms:
        if isinstance(term, Term) or not callable(term):
            raise GraphjouleError(
                f"terms has a {type(term).__name__}; expected settings such as EnergySettings(), or a class or "
                "function of the model and the graph, because every run has a model of its own."
            )
        if isinstance(term, type) and term in TERMS.values():
            raise GraphjouleError(f"terms has the class {term.__name__}; expected settings: {term.__name__}().")
        name = next((known for known, settings in TERMS.items() if isinstance(term, settings)), "")
        if not name:
            try:
                inspect.signature(term).bind(None, None)
            except TypeError as error:
                raise GraphjouleError(
                    f"The term {qualified_name(getattr(term, 'func', term))} cannot be called with the model and the "
                    f"graph: {error}. Expected a class or function of these two."
                ) from error
        if name:
            if name in builders:
                raise GraphjouleError(f"The term {name} is given twice; give it once.")
            described[name] = term.model_dump()  # type: ignore[attr-defined]
        else:
            name = qualified_name(getattr(term, "func", term))
            if name in builders:  # two functions without names
                name = f"{name}-{len(builders) + 1}"
            options = getattr(term, "keywords", {}).items()
            described[name] = {key: value for key, value in options if isinstance(value, bool | int | float | str)}
        builders[name] = term
    return (recipe.model_copy(update={"terms": described}) if terms else recipe), builders


def reweighted(task: Task, recipe: Recipe) -> Task:
    """The task with the weights of classes, the focal loss and the smoother labels that the recipe asks for."""
    weights, gamma = recipe.train.class_weights, recipe.train.focal_gamma
    given: Any = tuple(weights) if isinstance(weights, list) else weights
    objective = task.objective.reweighted(given, gamma, recipe.train.label_smoothing)
    return task if objective == task.objective else replace(task, objective=objective)


# Trained models back from a run folder or a file.


@dataclass(frozen=True, eq=False)
class TrainedRuns:
    """The models of a training, one per seed, ready to predict together.

    Attributes:
        recipe: how they were trained.
        data: what they were trained on; None where the files do not say.
        models: by seed, in evaluation mode.
        calibrations: what the validation nodes of each run say about its predictions, by seed; older files have none.
        members: runs of other models that predict together with these, by the name of their folder; every model counts
            the same, whatever its number of runs.

    Example:
        >>> import tempfile
        >>> from graphjoule import load_recipe, load_task
        >>> from graphjoule.tasks.task import ModelInput
        >>> from graphjoule.training.calibration import prediction_sets
        >>> digits = load_task("digits")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = fit(load_recipe("gcn", "digits", 2), digits, settings={"epochs": 5}, out=folder)
        ...     runs = read_runs(folder)
        >>> predicted = runs.predict(ModelInput.of(digits))
        >>> sets = prediction_sets(runs.objective, predicted, runs.threshold(0.9))
        >>> sets.shape == predicted.shape
        True
    """

    recipe: Recipe
    data: TaskFacts | None
    models: dict[int, GraphModel]
    calibrations: dict[int, Calibration] = field(default_factory=dict)
    members: dict[str, TrainedRuns] = field(default_factory=dict)

    @property
    def num_runs(self) -> int:
        """How many runs predict together."""
        return len(self.models) + sum(member.num_runs for member in self.members.values())

    def predict(self, inputs: ModelInput, device: str | torch.device = "cpu", *, is_calibrated: bool = False) -> Tensor:
        """See `mean_prediction`.

        Args:
            inputs: the graph to predict on.
            device: "auto", "cpu" or "cuda".
            is_calibrated: divide the outputs of each run by its temperature. A run's most probable class stays the
                same; that of the mean of several runs may change where they disagree.
        """
        calibrations = list(self._all_calibrations().values()) if is_calibrated else None
        own = mean_prediction(list(self.models.values()), self.recipe, self.objective, inputs, device, calibrations)
        others = (member.predict(inputs, device, is_calibrated=is_calibrated) for member in self.members.values())
        return torch.stack([own, *others]).mean(dim=0)

    def threshold(self, coverage: float) -> Tensor:
        """What `prediction_sets` and `prediction_intervals` need for a coverage: the mean over runs.

        A promise that rests on few validation nodes is logged as a warning. Of one run the coverage is what split
        conformal prediction promises; for the mean of several runs nobody has proven it, and docs/trust.md has measured
        it.

        Args:
            coverage: the share of nodes whose truth the sets shall hold, between 0 and 1.
        """
        check_coverage(coverage)
        calibrations = self._all_calibrations().values()
        unit = "node" if self.data is None else self.data.unit
        if doubt := min(calibrations, key=lambda each: min(each.num_known)).doubt(coverage, unit):
            logger.warning("%s", doubt)
        if (split := self.recipe.data.split).startswith("per-class-"):
            logger.warning(
                "the split %s has as many validation %ss of every class, so a coverage holds for %ss whose classes "
                "are equally frequent",
                *(split, unit, unit),
            )
        return self._threshold(coverage)

    def _threshold(self, coverage: float) -> Tensor:
        own = torch.stack([each.threshold(coverage) for each in self._all_calibrations().values()]).mean(dim=0)
        return torch.stack([own, *(member._threshold(coverage) for member in self.members.values())]).mean(dim=0)

    def _all_calibrations(self) -> dict[int, Calibration]:
        if missing := self.models.keys() - self.calibrations.keys():
            raise GraphjouleError(
                f"The model of seed {min(missing)} was saved without its calibration, by an older version or by hand; "
                "train again to have calibrated probabilities and coverage."
            )
        return self.calibrations

    @property
    def objective(self) -> Objective:
        """What was asked; files that do not say are of a classification."""
        if self.data is not None:
            return self.data.objective
        return Classification(next(iter(self.models.values())).out_channels)


@torch.no_grad()
def mean_prediction(
    models: Sequence[nn.Module],
    recipe: Recipe,
    objective: Objective,
    inputs: ModelInput,
    device: str | torch.device = "cpu",
    calibrations: Sequence[Calibration] | None = None,
) -> Tensor:
    """What the runs say together about every node, or graph: the mean of their probabilities, or of their numbers.

    Args:
        models: the runs' models, ours or the user's; they are left in evaluation mode and on the device.
        recipe: says whether the rows of features are normalised first.
        objective: says what outputs mean.
        inputs: the graph to predict on.
        device: "auto", "cpu" or "cuda".
        calibrations: of the runs; their temperatures divide the outputs.

    Returns:
        Shape ``[num_nodes, out_channels]``, float64 on the CPU; of a classification rows sum to 1.

    Raises:
        GraphjouleError: There is no model, or the outputs of a node are not finite.
    """
    where = resolve_device(device)
    inputs = inputs.to(where if recipe.train.clusters is None else "cpu")
    x = normalize_rows(inputs.features) if recipe.data.normalize_features else inputs.features
    total: Tensor | None = None
    for number, model in enumerate(models):
        network = model if isinstance(model, GraphModel) else OwnModel(model, x.size(-1), objective.out_channels)
        if recipe.train.clusters is not None:  # the graph was too large to train on at once
            from graphjoule.parallel.streaming import evaluate_in_blocks

            output = evaluate_in_blocks(network.to(where), x, inputs.graph).double()
        else:
            output = network.to(where).eval()(x, inputs.graph).double()
        if inputs.pooling is not None:
            output = inputs.pooling(output, network.output_center)
        _check_finite(output, model, x, inputs.unit)
        output = output if calibrations is None else calibrations[number].tempered(output)
        one = objective.prediction(output)
        total = one if total is None else total + one
    if total is None:
        raise GraphjouleError("There is no model to predict with; at least one run must have finished.")
    return (total / len(models)).cpu()


def _check_finite(scores: Tensor, model: nn.Module, x: Features, unit: str) -> None:
    """Refuse outputs that are not finite: the most probable class of them would be class 0, whatever the node is."""
    num_bad = int((~torch.isfinite(scores)).any(dim=-1).sum())
    if not num_bad:
        return
    if (name := not_finite(model)) is not None:
        cause = f"the model's weights are not finite (the first is {name}), so its training blew up"
    elif not bool(torch.isfinite(x.value if isinstance(x, SparseFeatures) else x).all()):
        cause = "the features are not finite"
    else:
        cause = "the model's weights or the features are so large that its numbers overflow"
    raise GraphjouleError(
        f"The scores of {counted(num_bad, unit)} of {len(scores):,} are not finite, so there is no prediction: {cause}."
    )


def load(path: str | Path, device: str | torch.device = "cpu", *, seed: int | None = None) -> GraphModel:
    """The trained model of a run folder or of one model file, in evaluation mode; nothing in a file is executed.

    Args:
        path: what ``graphjoule train`` or `fit` wrote: the folder, or a ``model-seed-N.safetensors`` in it; or a folder
            of `export_to_hub`.
        device: "auto", "cpu" or "cuda", whatever it was trained on.
        seed: which run of a folder; by default the one that validated best. Of models that predict together this is one
            alone, of the first.

    Returns:
        The model; it expects features scaled as in training, which ``graphjoule predict`` and `read_runs` take care of.
    """
    (model,) = read_run(path, seed=seed, device=device).models.values()
    return model


def read_run(path: str | Path, *, seed: int | None = None, device: str | torch.device = "cpu") -> TrainedRuns:
    """One run of a folder, by default the one that validated best, or the one in a model file; see `read_runs`."""
    where, path = resolve_device(device), model_file(Path(path))
    if seed is None and path.is_dir():
        folder, records = _finished(path)
        select_on = folder.about().recipe.train.select_on
        _, is_higher_better = OBJECTIVES[records[min(records)].objective].column(select_on)

        def rank(seed: int) -> tuple[float, int]:
            score = records[seed].val.get(select_on)
            return (float("inf") if score is None else -score if is_higher_better else score, seed)

        seed = min(records, key=rank)
    return read_runs(path, seed=seed, device=where)


def read_runs(path: str | Path, *, seed: int | None = None, device: str | torch.device = "cpu") -> TrainedRuns:
    """All finished runs of a folder, one of them, or the one in a model file.

    Args:
        path: a run folder, a model file, or a folder of `export_to_hub`, which holds one.
        seed: one run of a folder; by default all, and those of its members.
        device: where to put the models.
    """
    path = model_file(Path(path))
    where = resolve_device(device)
    if not path.exists():
        raise GraphjouleError(f"There is no run {path}; expected a folder that graphjoule train made, or a model file.")
    if path.is_dir():
        folder, runs = _of_folder(path, seed, where)
        names = folder.about().members if seed is None else []
        members = {name: _of_folder(folder.member(name).path, None, where)[1] for name in names}
        for name, member in members.items():
            if (member.objective.name, member.objective.names) != (runs.objective.name, runs.objective.names):
                raise GraphjouleError(f"{folder.member(name).path} predicts something else than {path}; train again.")
        return replace(runs, members=members)
    if seed is not None:
        raise GraphjouleError(f"The seed is {seed}, but {path} is one model; name its folder to choose by seed.")
    saved = read_model(path, where)
    folder = RunFolder(path.parent)
    record = folder.records().get(saved.seed) if path.name == folder.model_path(saved.seed).name else None
    if "failed" in (saved.status, record and record.status):  # by what the file says, or the records beside it
        raise GraphjouleError(
            f"{path} is the model of a run that failed (seed {saved.seed}), so it cannot predict; train again, "
            "with a smaller learning rate or another seed."
        )
    return _runs(saved.recipe, saved.data, [saved])


def _of_folder(path: Path, seed: int | None, where: torch.device) -> tuple[RunFolder, TrainedRuns]:
    """A run folder, and all its finished runs or one of them."""
    folder, finished = _finished(path)
    if seed is not None and seed not in finished:
        have = ", ".join(map(str, sorted(finished)))
        raise GraphjouleError(f"There is no finished run with seed {seed} in {path}; the seeds are: {have}.")
    about, seeds = folder.about(), sorted(finished) if seed is None else [seed]
    saved = [read_model(folder.model_path(each), where) for each in seeds]
    for each, model in zip(seeds, saved, strict=True):
        if model.seed != each or model.recipe.model != about.recipe.model:
            whose = f"seed {model.seed}" if model.seed != each else f"{model.recipe.model.name} with other settings"
            raise GraphjouleError(
                f"{folder.model_path(each)} is the model of {whose}, and not the one that was trained here as seed "
                f"{each}: put the file back that belongs there, or train again."
            )
    return folder, _runs(about.recipe, about.data, saved)


def _runs(recipe: Recipe, data: TaskFacts | None, saved: Sequence[SavedModel]) -> TrainedRuns:
    calibrations = {each.seed: each.calibration for each in saved if each.calibration is not None}
    return TrainedRuns(recipe, data, {each.seed: each.model for each in saved}, calibrations)


def _finished(path: Path) -> tuple[RunFolder, dict[int, Record]]:
    """A run folder, and the records of its runs that are done."""
    folder = RunFolder(path)
    if not folder.is_taken:
        raise GraphjouleError(f"{path} holds no training; expected a folder that graphjoule train made.")
    finished = {seed: record for seed, record in folder.records().items() if record.status == "done"}
    if not finished:
        raise GraphjouleError(f"No run in {path} has finished; train it to the end first.")
    return folder, finished
