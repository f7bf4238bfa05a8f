"""Trained models back from a run folder or a file, and what they predict together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from graphjoule.errors import GraphjouleError, counted
from graphjoule.graph import Propagation
from graphjoule.graph.features import Features, SparseFeatures, normalize_rows
from graphjoule.nn import GraphModel
from graphjoule.parallel.streaming import evaluate_in_blocks
from graphjoule.tasks.facts import TaskFacts
from graphjoule.tasks.inputs import ModelInput
from graphjoule.tasks.objective import OBJECTIVES, Classification, Objective
from graphjoule.training.build import OwnModel
from graphjoule.training.environment import resolve_device
from graphjoule.training.folder import RunFolder
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import Record
from graphjoule.training.saving import SavedModel, read_model


@dataclass(frozen=True, eq=False)
class TrainedRuns:
    """The models of a training, one per seed, ready to predict together.

    Attributes:
        recipe: how they were trained.
        data: what they were trained on; None where the files do not say.
        models: by seed, in evaluation mode.
    """

    recipe: Recipe
    data: TaskFacts | None
    models: dict[int, GraphModel]

    def predict(self, given: ModelInput, device: str | torch.device = "cpu") -> Tensor:
        """See `mean_prediction`."""
        return mean_prediction(list(self.models.values()), self.recipe, self.objective, given, device)

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
    given: ModelInput,
    device: str | torch.device = "cpu",
) -> Tensor:
    """What the runs say together about every node: the mean of their probabilities, or of their numbers.

    Args:
        models: the runs' models, ours or the user's; they are left in evaluation mode and on the device.
        recipe: says whether the rows of features are normalised first.
        objective: says what outputs mean.
        given: the graph to predict on.
        device: "auto", "cpu" or "cuda".

    Returns:
        Shape ``[num_nodes, out_channels]``, float64 on the CPU; of a classification rows sum to 1.

    Raises:
        GraphjouleError: There is no model, or the outputs of a node are not finite.
    """
    where = resolve_device(device)
    given = given.to(where if recipe.train.clusters is None else "cpu")
    x = normalize_rows(given.features) if recipe.data.normalize_features else given.features
    total: Tensor | None = None
    for model in models:
        network = model if isinstance(model, GraphModel) else OwnModel(model, x.size(-1), objective.out_channels)
        output = _scores(network.to(where), x, given.graph, recipe).double()
        _check_finite(output, model, x)
        one = objective.prediction(output)
        total = one if total is None else total + one
    if total is None:
        raise GraphjouleError("There is no model to predict with; at least one run must have finished.")
    return (total / len(models)).cpu()


def _scores(model: GraphModel, x: Features, graph: Propagation, recipe: Recipe) -> Tensor:
    """Scores of all nodes; in blocks if the graph was too large to train on at once."""
    if recipe.train.clusters is not None:
        return evaluate_in_blocks(model, x, graph)
    scores: Tensor = model.eval()(x, graph)
    return scores


def _check_finite(scores: Tensor, model: nn.Module, x: Features) -> None:
    """Refuse outputs that are not finite: the most probable class of them would be class 0, whatever the node is."""
    num_bad = int((~torch.isfinite(scores)).any(dim=-1).sum())
    if not num_bad:
        return
    weights = (name for name, weight in model.state_dict().items() if not bool(torch.isfinite(weight).all()))
    if (name := next(weights, None)) is not None:
        cause = f"the model's weights are not finite (the first is {name}), so its training blew up"
    elif not bool(torch.isfinite(x.value if isinstance(x, SparseFeatures) else x).all()):
        cause = "the features are not finite"
    else:
        cause = "the model's weights or the features are so large that its numbers overflow"
    raise GraphjouleError(
        f"The scores of {counted(num_bad, 'node')} of {len(scores):,} are not finite, so there is no prediction: "
        f"{cause}."
    )


def load(path: str | Path, device: str | torch.device = "cpu", *, seed: int | None = None) -> GraphModel:
    """The trained model of a run folder or of one model file, in evaluation mode; nothing in a file is executed.

    Args:
        path: what ``graphjoule train`` or `fit` wrote: the folder, or a ``model-seed-N.safetensors`` in it.
        device: "auto", "cpu" or "cuda", whatever it was trained on.
        seed: which run of a folder; by default the one that validated best.

    Returns:
        The model; it expects features scaled as in training, which ``graphjoule predict`` and `read_runs` take care of.
    """
    where = resolve_device(device)
    path = Path(path)
    if not path.is_dir():
        _refuse_seed_of_file(path, seed)
        return _read_finished(path, where).model
    folder = _opened(path)
    seed = _best(_finished(folder), folder.about().recipe) if seed is None else seed
    return read_runs(path, seed=seed, device=where).models[seed]


def read_runs(path: str | Path, *, seed: int | None = None, device: str | torch.device = "cpu") -> TrainedRuns:
    """All finished runs of a folder, one of them, or the one in a model file.

    Args:
        path: a run folder or a model file.
        seed: one run of a folder; by default all.
        device: where to put the models.
    """
    path = Path(path)
    where = resolve_device(device)
    if not path.exists():
        raise GraphjouleError(f"There is no run {path}; expected a folder that graphjoule train made, or a model file.")
    if not path.is_dir():
        _refuse_seed_of_file(path, seed)
        saved = _read_finished(path, where)
        return TrainedRuns(saved.recipe, saved.data, {saved.seed: saved.model})
    folder = _opened(path)
    finished = _finished(folder)
    if seed is not None and seed not in finished:
        have = ", ".join(map(str, sorted(finished)))
        raise GraphjouleError(f"There is no finished run with seed {seed} in {path}; the seeds are: {have}.")
    about = folder.about()
    saved_models: dict[int, SavedModel] = {
        each: read_model(folder.model_path(each), where) for each in sorted(finished) if seed in (None, each)
    }
    return TrainedRuns(about.recipe, about.data, {each: saved.model for each, saved in saved_models.items()})


def _opened(path: Path) -> RunFolder:
    folder = RunFolder(path)
    if not folder.is_taken:
        raise GraphjouleError(f"{path} holds no training; expected a folder that graphjoule train made.")
    return folder


def _read_finished(path: Path, device: torch.device) -> SavedModel:
    """The model of one file; refused if its run failed, by what the file says or the records beside it."""
    saved = read_model(path, device)
    folder = RunFolder(path.parent)
    record = folder.records().get(saved.seed) if path.name == folder.model_path(saved.seed).name else None
    if "failed" in (saved.status, record and record.status):
        raise GraphjouleError(
            f"{path} is the model of a run that failed (seed {saved.seed}), so it cannot predict; train again, "
            "with a smaller learning rate or another seed."
        )
    return saved


def _finished(folder: RunFolder) -> dict[int, Record]:
    finished = {seed: record for seed, record in folder.records().items() if record.status == "done"}
    if not finished:
        raise GraphjouleError(f"No run in {folder.path} has finished; train it first, or go on with `resume=True`.")
    return finished


def _best(records: dict[int, Record], recipe: Recipe) -> int:
    """The seed whose selected epoch validated best; of equal ones the lowest."""
    _, is_higher_better = OBJECTIVES[records[min(records)].objective].column(recipe.train.select_on)

    def rank(seed: int) -> tuple[float, int]:
        score = records[seed].val.get(recipe.train.select_on)
        return (float("inf") if score is None else -score if is_higher_better else score, seed)

    return min(records, key=rank)


def _refuse_seed_of_file(path: Path, seed: int | None) -> None:
    if seed is not None and path.exists():
        raise GraphjouleError(f"The seed is {seed}, but {path} is one model; name its folder to choose by seed.")
