"""What is the graph worth? Simpler models on the same splits and seeds, and what the differences say.

A network on a graph can be beaten by a table of features, by neighbours that vote, or by two layers. Whether it is, no
score of its own can tell.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor

from graphjoule.errors import GraphjouleError, counted
from graphjoule.fitting import FitResult, fit, mean_prediction
from graphjoule.graph.features import SparseFeatures
from graphjoule.tasks import Split, Task
from graphjoule.tasks.objective import LOSS, Classification, MultiLabel
from graphjoule.tasks.task import ModelInput
from graphjoule.training.budget import Budget
from graphjoule.training.comparison import SHOWN, Comparison, Contender, compare
from graphjoule.training.evaluation import Predicted
from graphjoule.training.folder import RunFolder
from graphjoule.training.recipe import Recipe, load_recipe
from graphjoule.training.records import Record

__all__ = ["assess"]

logger = logging.getLogger("graphjoule")
Array = NDArray[Any]
Matrix = Any  # dense or sparse, one row per node

MOST_COLUMNS = 2000
"""Columns of features up to which trees are boosted; a bag of words has more, and is for linear models."""
MOST_ROWS = 20_000
"""Training nodes that a rival sees, of each seed."""
MOST_JUDGES = 20_000
"""Validation nodes, and nodes that judge, that are looked at, over all seeds; 5,000 for areas under curves."""
# Work of boosting: columns times (bins and rows) over all trees, of which 1e9 take about three seconds of a core. A
# quarter of the products that the training took is about its time; counts, not clocks, so that it is the same again.
_LEAST_WORK, _MOST_WORK, _SHARE_OF_TRAINING = 1e9, 1e10, 0.25
_MOST_LINEAR = 4e7  # numbers that the linear models of all seeds and classes read at each step
_QUICK_LINEAR = 3e5  # up to so many they take less than a second, and are never left out
_SPREAD = 0.2  # products of label propagation, as a share of the work of boosting
_ITERATIONS, _LEAST_ITERATIONS, _LEAST_ROWS = 100, 25, 1000
_LEAVES, _BINS = 15, 127
_STRENGTHS = (0.01, 0.1, 1.0, 10.0)  # of linear models, the inverse of the penalty
_TELEPORTS = (0.1, 0.5, 0.02)  # of label propagation, the weight of a node's own label
_STEPS, _FEW_STEPS = 30, 10
_CHUNK = 4000  # rows that are made dense to be predicted


def assess(
    task: Task, result: FitResult, *, device: str | torch.device = "auto", budget: str | float | Budget | None = None
) -> Comparison:
    """Compare a training with simpler models on its own splits and seeds: what the graph, features and depth are worth.

    Rivals are a constant, a linear model and gradient boosting on the features, labels that spread over the edges,
    gradient boosting with averages over neighbours, and a GCN of 2 layers. Choices are made by validation; test targets
    are read once, for all together. Huge tables are sampled, which the notes say. It is the same to the bit on the same
    machine, and written to the result's folder unless that has more runs than the result; a comparison of these runs
    that is there is returned as it is.

    Args:
        task: what was trained on, the whole graph with one target per node.
        result: what `fit` returned.
        device: where the GCN trains: "auto", "cpu" or "cuda".
        budget: wall time such as "20s"; when it is spent, no further rival is begun, the GCN ends with what it has, and
            the notes say so. None is as long as it takes.

    Example:
        >>> from graphjoule import fit, load_recipe, load_task
        >>> digits = load_task("digits")
        >>> result = fit(load_recipe("gcn", "digits", 2), digits, settings={"epochs": 5})
        >>> assess(digits, result, device="cpu").metrics
        ['accuracy', 'macro_f1']
    """
    done = [(record, model) for record, model in zip(result.records, result.models, strict=True) if _is_done(record)]
    folder = None if result.folder is None else RunFolder(result.folder)
    if not done:
        raise GraphjouleError("There is nothing to compare: no run has finished.")
    if task.pooling is not None or task.graph.row_ids is not None:
        what = "one target per graph" if task.pooling is not None else "a part of a graph alone"
        raise GraphjouleError(f"Task {task.name!r} has {what}; a comparison needs a whole graph with targets of nodes.")
    records = [record for record, _ in done]
    run_ids = [record.run_id for record in records]
    if folder is not None and (kept := folder.comparison()) is not None and sorted(kept.run_ids) == sorted(run_ids):
        return kept
    recipe = Recipe.from_fields(records[0].recipe)
    table = _Table.of(task.to("cpu"), recipe, records)
    given = ModelInput.of(task)

    def network(models: Sequence[Any], recipe: Recipe) -> Callable[[_Fold], Tensor]:
        outputs = iter(models)
        return lambda fold: mean_prediction([next(outputs)], recipe, task.objective, given, device)[fold.rows]

    limit = None if budget is None else Budget.of(budget)
    contenders: list[Contender] = []
    left_out: list[_Rival] = []
    with threadpool_limits(1):  # sums in the order of threads would differ in their last bits
        for rival in _rivals(table):
            if limit is not None and limit.is_up and not rival.is_quick:
                table.note(f"{rival.name[0].upper()}{rival.name[1:]} is left out: the time was spent.")
                left_out.append(rival)
            else:
                contenders.append(_contender(table, rival))
    started, shallow = time.perf_counter(), _shallow(recipe, records)
    if shallow is not None and limit is not None and limit.is_up:
        table.note("A GCN of 2 layers is left out: the time was spent.")
    elif shallow is not None:
        logger.info("comparing with a GCN of 2 layers")
        try:
            found = fit(shallow, task, [record.seed for record in records], device=device, budget=limit)
            if all(_is_done(record) for record in found.records):
                rival = _Rival("GCN with 2 layers", True, True, network(found.models, shallow), num_layers=2)
                contenders.append(_contender(table, rival, started))
                most = max(record.epochs_run for record in found.records)
                if most == shallow.train.epochs or (limit is not None and limit.is_up):
                    epochs = counted(most, "epoch")
                    table.note(f"The GCN with 2 layers was still training after {epochs}, where it was stopped.")
            else:
                table.note("A GCN of 2 layers is left out: its loss was not finite.")
        except GraphjouleError as error:
            table.note(f"A GCN of 2 layers is left out. {error}")
    layers = recipe.model.num_layers
    name = f"{recipe.model.name} with {counted(layers, 'layer')}"
    # Of APPNP and GCNII this is the share of a node's own in every step: with all of it nothing comes from neighbours.
    uses_graph = recipe.model.options.get("alpha") != 1.0
    name += "" if uses_graph else " without the graph"
    chosen = _Rival(name, uses_graph, True, network([model for _, model in done], recipe), num_layers=layers)
    contenders.append(_contender(table, chosen))
    contenders[-1] = replace(contenders[-1], seconds=sum(record.seconds for record in records))
    is_unanswered = any(_is_features_alone(rival) for rival in left_out) and not any(
        map(_is_features_alone, contenders)
    )
    if is_unanswered:  # better than a constant is what every model of the features may be
        table.note("Whether the graph helps is not known: there was no time for a model of the features alone.")
    comparison = compare(
        task.objective,
        contenders,
        select_on=recipe.train.select_on,
        run_ids=run_ids,
        part=table.part,
        notes=table.notes,
        unanswered=["graph"] if is_unanswered else [],
    )
    done_there = [] if folder is None else [each.run_id for each in folder.records().values() if _is_done(each)]
    if folder is not None and set(done_there) <= set(run_ids):
        folder.write_comparison(comparison)
        folder.write_card()
    return comparison


def _is_done(record: Record) -> bool:
    return record.status == "done"


def _shallow(recipe: Recipe, records: Sequence[Record]) -> Recipe | None:
    """The recipe of the 2-layer GCN, which may cost as much as the training did; None where that was it."""
    if (recipe.model.name, recipe.model.num_layers) == ("gcn", 2):
        return None
    gcn = load_recipe("gcn", recipe.data.name, 2)
    narrower = min(1.0, (recipe.model.hidden_channels or 64) / (gcn.model.hidden_channels or 64))
    passes = max(record.epochs_run for record in records) * max(recipe.model.num_layers, 2) * narrower
    same = ("select_on", "clusters", "class_weights", "focal_gamma", "label_smoothing")
    epochs = min(gcn.train.epochs, max(1, int(passes / 2)))
    train = {name: getattr(recipe.train, name) for name in same} | {"epochs": epochs}
    data = {"split": recipe.data.split, "split_seed": recipe.data.split_seed}
    return gcn.model_copy(
        update={"train": gcn.train.model_copy(update=train), "data": gcn.data.model_copy(update=data)}
    )


# The data as tables have them.


@dataclass(frozen=True, eq=False)
class _Table:
    """What the rivals have in common: features, edges and targets in host memory, and the folds.

    Attributes:
        task: on the CPU.
        decides: the metric that chooses among a rival's settings.
        part: the nodes that judge.
        folds: one per seed.
        notes: what is said about limits; grows.
        weights: scikit-learn's weight of classes, as the training has it.
        work: what boosting may cost.
    """

    task: Task
    decides: str
    part: Literal["val", "test"]
    folds: list[_Fold]
    notes: list[str]
    weights: Any
    work: float

    @classmethod
    def of(cls, task: Task, recipe: Recipe, records: Sequence[Record]) -> _Table:
        data, select_on, asked = recipe.data, recipe.train.select_on, task.objective
        splits = [task.split(data.split, r.seed if data.split_seed is None else data.split_seed) for r in records]
        decides = SHOWN[asked.name][0] if select_on == LOSS else select_on
        part: Literal["val", "test"] = "test" if all(split.test.numel() for split in splits) else "val"
        shown = [asked.metric(name) for name in (decides, *SHOWN[asked.name])]
        most = MOST_JUDGES // (1 if all(metric.finish is not None for metric in shown) else 4)
        if len({split.sha256 for split in splits}) > 1:
            most //= len(splits)
        notes = []
        if part == "val":
            notes.append(
                "There are no test nodes, so the validation nodes judge, which also chose the epochs: networks look a "
                "little better than they are."
            )
        folds = [_Fold.of(task, split, part, most) for split in splits]
        number = max(len(split.test if part == "test" else split.val) for split in splits)
        if number > most:
            notes.append(f"Scores are of a sample of {most:,} of {number:,} nodes.")
        weights = recipe.train.class_weights or getattr(asked, "class_weights", None)
        if isinstance(weights, Sequence) and not isinstance(weights, str):
            weights = dict(enumerate(weights)) if isinstance(asked, Classification) else None
        width, layers = recipe.model.hidden_channels or 64, recipe.model.num_layers
        products = width * (task.graph.col.numel() + width * task.num_nodes)
        trained = sum(record.epochs_run for record in records) * layers * products
        work = min(_MOST_WORK, max(_LEAST_WORK, _SHARE_OF_TRAINING * trained))
        return cls(task, decides, part, folds, notes, weights, work)

    def note(self, sentence: str) -> None:
        """Say something once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    @cached_property
    def features(self) -> Matrix:
        """The features, dense or sparse as the task has them."""
        x = self.task.features
        if not isinstance(x, SparseFeatures):
            return x.double().numpy()
        pieces = (x.value.double().numpy(), x.col.numpy(), x.rowptr.numpy())
        return sp.csr_array(pieces, shape=tuple(x.shape))

    @cached_property
    def with_neighbours(self) -> Matrix:
        """The features, their means over neighbours, weighted as the edges are, and the logarithm of the degree."""
        graph = self.task.graph
        source, target = graph.edge_index.numpy()  # a node reads from the sources of the edges that lead to it
        shares = graph.edge_weight.double().numpy() / np.maximum(graph.degree.numpy(), 1e-300)[target]
        means = sp.csr_array((shares, (target, source)), shape=graph.shape) @ self.features
        degree = np.log1p(graph.degree.numpy())[:, None]
        if sp.issparse(means):
            return sp.hstack([self.features, means, sp.csr_array(degree)], format="csr")
        return np.hstack([self.features, means, degree])

    @cached_property
    def columns(self) -> Tensor:
        """The targets as numbers, see `Objective.columns`."""
        return self.task.objective.columns(self.task.targets)


@dataclass(frozen=True, eq=False)
class _Fold:
    """The nodes of one seed: those that train, and in `rows` those that validate, then those that judge."""

    train: Tensor
    rows: Tensor
    num_val: int
    targets: Tensor

    @classmethod
    def of(cls, task: Task, split: Split, part: str, most: int) -> _Fold:
        val = _sampled(split.val, most)
        rows = torch.cat([val, _sampled(split.test, most) if part == "test" else val])
        return cls(split.train, rows, len(val), task.targets[rows])

    def parts(self, prediction: Tensor) -> tuple[Predicted, Predicted]:
        """Predictions of `rows` as those of the nodes that validate, and of those that judge."""
        cut = self.num_val
        halves = [(each[:cut], each[cut:]) for each in (prediction.double(), self.targets, self.rows)]
        return Predicted(*(each[0] for each in halves)), Predicted(*(each[1] for each in halves))


def _sampled(index: Tensor, most: int) -> Tensor:
    if len(index) <= most:
        return index
    return index[torch.randperm(len(index), generator=torch.Generator().manual_seed(0))[:most].sort().values]


# The rivals.


@dataclass(frozen=True, eq=False)
class _Rival:
    """A name, what it knows, and how it predicts the rows of a fold."""

    name: str
    uses_graph: bool
    uses_features: bool
    predict: Callable[[_Fold], Tensor]
    num_layers: int | None = None
    is_quick: bool = False  # so that it is never left out


def _is_features_alone(model: _Rival | Contender) -> bool:
    return model.uses_features and not model.uses_graph


def _contender(table: _Table, rival: _Rival, started: float | None = None) -> Contender:
    started = time.perf_counter() if started is None else started
    parts = [fold.parts(rival.predict(fold)) for fold in table.folds]
    return Contender(
        rival.name,
        rival.uses_graph,
        rival.uses_features,
        rival.num_layers,
        [val for val, _ in parts],
        [judged for _, judged in parts],
        time.perf_counter() - started,
    )


def _rivals(table: _Table) -> list[_Rival]:
    """The rivals without a network, the simplest first; what is left out is noted."""
    asked, width = table.task.objective, table.task.num_features
    has_classes = isinstance(asked, Classification | MultiLabel)
    linear = "logistic regression" if has_classes else "ridge regression"
    rivals = [
        _Rival("majority" if has_classes else "mean", False, False, partial(_constant, table), is_quick=True),
        _Rival(linear, False, True, partial(_linear, table), is_quick=_linear_work(table) <= _QUICK_LINEAR),
        _Rival("label propagation", True, False, partial(_propagated, table), is_quick=True),
    ]
    if not width:
        table.note("There are no features, so models of features alone are left out.")
        return [rivals[0], rivals[2]]
    if width > MOST_COLUMNS:
        table.note(f"Gradient boosting is left out: the features have {width:,} columns, more than {MOST_COLUMNS:,}.")
        return rivals
    sizes = _boosting_size(table, 2 * width + 1)
    if sizes is None:
        table.note(f"Gradient boosting is left out: {width:,} columns and so many classes would take too long.")
        return rivals
    names = ("gradient boosting", "gradient boosting with neighbours")
    for name, is_joined in zip(names, (False, True), strict=True):
        rivals.append(_Rival(name, is_joined, True, partial(_boosted, table, *sizes, is_joined)))
    return rivals


def _constant(table: _Table, fold: _Fold) -> Tensor:
    """The training nodes' mean of every column: of classes how frequent each is."""
    return torch.nan_to_num(table.columns[fold.train].nanmean(dim=0)).expand(len(fold.rows), -1)


def _linear_work(table: _Table) -> float:
    """How many numbers the linear models of all seeds and classes would read at each step."""
    stored = table.features.nnz if sp.issparse(table.features) else table.features.size
    return float(stored / table.task.num_nodes * table.task.out_channels * sum(len(fold.train) for fold in table.folds))


def _linear(table: _Table, fold: _Fold) -> Tensor:
    """A linear model on standardised features; validation chooses its penalty."""
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.preprocessing import StandardScaler

    stored = table.features.nnz if sp.issparse(table.features) else table.features.size
    per_row = max(1.0, stored / table.task.num_nodes) * len(table.folds) * table.task.out_channels
    train = _capped(table, fold.train, max(_LEAST_ROWS, min(MOST_ROWS, int(_MOST_LINEAR / per_row))))
    scaler = StandardScaler(with_mean=not sp.issparse(table.features)).fit(table.features[train.numpy()])
    x, x_rows = (scaler.transform(table.features[rows.numpy()]) for rows in (train, fold.rows))
    tried = []
    for strength in _STRENGTHS:
        classes = partial(LogisticRegression, C=strength, max_iter=300, class_weight=table.weights)
        tried.append(_by_column(table, train, x, x_rows, classes, partial(Ridge, alpha=1 / strength)))
    return _best(table, fold, tried)


def _propagated(table: _Table, fold: _Fold) -> Tensor:
    """Training targets spread over the edges, ``Y <- (1 - a) P Y + a Y_0``; validation chooses a.

    Columns are spread less their mean and divided by how much of any target has come, so that a node that none reaches
    gets the mean, and classes stay probabilities.
    """
    graph, columns = table.task.graph, table.columns
    mean = torch.nan_to_num(columns[fold.train].nanmean(dim=0))
    is_known = ~columns[fold.train].isnan()
    if isinstance(table.task.objective, Classification):
        is_known = is_known[:, :1]  # all classes at once
    start = torch.zeros(len(columns), columns.size(1) + is_known.size(1), dtype=torch.float64)
    start[fold.train] = torch.cat([torch.nan_to_num(columns[fold.train] - mean), is_known.double()], dim=1)
    matrix = sp.csr_array((graph.value.double().numpy(), graph.col.numpy(), graph.rowptr.numpy()), shape=graph.shape)
    teleports: Sequence[float] = _TELEPORTS
    steps = _STEPS
    if matrix.nnz * start.size(1) * len(table.folds) * len(teleports) * steps > _SPREAD * table.work:
        teleports, steps = teleports[:1], _FEW_STEPS
        table.note(f"Label propagation takes {steps} steps, so that it ends in time.")
    own, tried = start.numpy(), []
    for teleport in teleports:
        spread = own
        for _ in range(steps):
            spread = (1 - teleport) * (matrix @ spread) + teleport * own
        here = torch.from_numpy(spread[fold.rows.numpy()])
        tried.append(mean + here[:, : len(mean)] / (here[:, len(mean) :] + 1e-9))
    return _best(table, fold, tried)


def _boosted(table: _Table, iterations: int, most_rows: int, is_joined: bool, fold: _Fold) -> Tensor:
    """Gradient boosting: LightGBM where it is installed, else scikit-learn's."""
    features = table.with_neighbours if is_joined else table.features
    train = _capped(table, fold.train, most_rows)
    x, x_rows = (features[rows.numpy()] for rows in (train, fold.rows))
    return _by_column(table, train, _dense(x), x_rows, *_boosters(iterations, len(train), table.weights))


def _boosters(iterations: int, rows: int, weights: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """What makes a classifier, and what makes a regressor."""
    least = max(2, min(20, rows // 20))  # the usual 20 nodes in a leaf are more than few labels can fill
    if find_spec("lightgbm") is not None:
        from lightgbm import LGBMClassifier, LGBMRegressor

        same: dict[str, Any] = {"n_estimators": iterations, "num_leaves": _LEAVES, "min_child_samples": least}
        same |= {"random_state": 0, "n_jobs": 1, "deterministic": True, "force_col_wise": True, "verbose": -1}
        return partial(LGBMClassifier, class_weight=weights, **same), partial(LGBMRegressor, **same)
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    same = {"max_iter": iterations, "max_leaf_nodes": _LEAVES, "max_bins": _BINS, "min_samples_leaf": least}
    same |= {"early_stopping": False, "random_state": 0}
    return (
        partial(HistGradientBoostingClassifier, class_weight=weights, **same),
        partial(HistGradientBoostingRegressor, **same),
    )


def _boosting_size(table: _Table, width: int) -> tuple[int, int] | None:
    """How many iterations and rows keep the work within its limit; None if not even the fewest do."""
    trees = table.task.out_channels if table.task.objective.name != "binary" else 1
    rows = min(MOST_ROWS, max(len(fold.train) for fold in table.folds))
    for iterations in (_ITERATIONS, _ITERATIONS // 2, _LEAST_ITERATIONS):
        allowed = table.work / (2 * len(table.folds) * iterations * trees * width)
        most = math.floor((allowed - 2 * _LEAVES * _BINS) / _LEAVES.bit_length())
        if most >= min(rows, _LEAST_ROWS):
            if most < rows or iterations < _ITERATIONS:
                table.note(
                    f"Gradient boosting has {iterations} iterations and at most {min(rows, most):,} training nodes, so "
                    "that it ends in time."
                )
            return iterations, min(rows, most)
    return None


def _capped(table: _Table, train: Tensor, most: int) -> Tensor:
    if len(train) > most:
        table.note(f"A rival trains on a sample of {most:,} of {len(train):,} nodes.")
    return _sampled(train, most)


def _dense(x: Matrix) -> Array:
    return x.toarray() if sp.issparse(x) else np.asarray(x)


def _best(table: _Table, fold: _Fold, tried: Sequence[Tensor]) -> Tensor:
    """Of several predictions the one that validation prefers; of equal ones the first."""
    asked, metric = table.task.objective, table.task.objective.metric(table.decides)

    def score(prediction: Tensor) -> float:
        val, _ = fold.parts(prediction)
        value = float(metric.value(*asked.scored(val.prediction, val.target)))
        return -math.inf if math.isnan(value) else value if metric.is_higher_better else -value

    return max(tried, key=score)


def _by_column(
    table: _Table,
    train: Tensor,
    x: Matrix,
    x_rows: Matrix,
    classifier: Callable[[], Any],
    regressor: Callable[[], Any],
) -> Tensor:
    """Predictions of a model of scikit-learn's kind: one for all classes, one for each label or number."""
    asked = table.task.objective
    if isinstance(asked, Classification):
        return _probabilities(classifier, x, table.task.targets[train].numpy(), x_rows, asked.num_classes)
    found = []
    for column in table.columns[train].T:
        known = (~column.isnan()).numpy()
        y = column.numpy()[known]
        if not known.any():
            found.append(torch.zeros(x_rows.shape[0], dtype=torch.float64))
        elif isinstance(asked, MultiLabel):
            found.append(_probabilities(classifier, x[known], y.astype(np.int64), x_rows, 2)[:, 1])
        else:
            found.append(_predicted(regressor().fit(x[known], y).predict, x_rows))
    prediction = torch.stack(found, dim=1)
    return prediction if isinstance(asked, MultiLabel) else asked.prediction(prediction)


def _probabilities(make: Callable[[], Any], x: Matrix, y: Array, x_rows: Matrix, num_classes: int) -> Tensor:
    """Probabilities of all classes; a class that no training node has gets none."""
    found = torch.zeros(x_rows.shape[0], num_classes, dtype=torch.float64)
    there = np.unique(y)
    if len(there) == 1:
        found[:, there] = 1.0
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a linear model that has not converged yet is good enough to compare with
        found[:, there] = _predicted(make().fit(x, y).predict_proba, x_rows)
    return found


def _predicted(predict: Callable[[Array], Array], x: Matrix) -> Tensor:
    """What a model says of all rows, some of them at a time."""
    starts = range(0, x.shape[0], _CHUNK)
    return torch.cat([torch.from_numpy(predict(_dense(x[start : start + _CHUNK]))).double() for start in starts])
