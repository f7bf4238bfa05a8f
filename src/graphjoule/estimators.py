"""The networks in scikit-learn's manner: `EGNNClassifier`, `EGNNRegressor` and, for embeddings, `EGNNTransformer`."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
    clone,
)
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit, mean_prediction
from graphjoule.graph import Propagation
from graphjoule.graph.extension import ExtendedPropagation, links_to
from graphjoule.graph.features import Features, Scaling, SparseFeatures, checked_features
from graphjoule.tasks import Task, knn_edge_index
from graphjoule.tasks.digits import nearest_rows
from graphjoule.tasks.objective import Classification, Objective, Regression
from graphjoule.tasks.splits import PARTS, Split, fixed_split, is_rule
from graphjoule.tasks.task import ModelInput, edge_weight_of, pack_features
from graphjoule.training.build import inner_network
from graphjoule.training.defaults import recipe_for
from graphjoule.training.recipe import Recipe


@dataclass(kw_only=True, eq=False, repr=False)  # the fields are the constructor's arguments, as scikit-learn asks
class _NodeEstimator(BaseEstimator):  # type: ignore[misc]
    """What a classifier and a regressor of nodes share: the settings, the graph, training and prediction."""

    num_layers: int | None = None
    hidden_channels: int | None = None
    num_neighbors: int = 10
    lr: float | None = None
    dropout: float | None = None
    epochs: int | None = None
    patience: int | None = None
    validation_fraction: float = 0.2
    num_runs: int = 1
    standardize: bool = True
    settings: Mapping[str, Any] | None = None
    random_state: Any = 0
    device: str = "auto"

    def _train(
        self,
        given: GraphLike | None,
        features: Features,
        targets: Tensor,
        objective: Objective,
        split: Split | None,
        seed: int,
    ) -> None:
        """Train on rows or on a graph; leaves everything that `_predicted` needs.

        Targets of nodes that are in neither the train nor the validation part of a split must be unknown already.
        """
        self._check_parameters()
        self.scaling_ = Scaling.of(features) if self.standardize else Scaling()
        features = self.scaling_.apply(features)
        self.built_graph_ = given is None
        if given is not None:
            graph = given.graph
        else:
            assert isinstance(features, Tensor)
            near = knn_edge_index(features, min(self.num_neighbors, len(features) - 1))
            graph = Propagation.from_edge_index(near, num_nodes=len(features), symmetrize=True)
        rule = self._split_rule()
        fixed = () if split is None else _training_split(split, objective.is_known(targets))
        task = Task("data", features, graph, targets, objective, fixed, fixed[0].name if fixed else rule)
        seeds = [seed + run for run in range(self.num_runs)]
        self.recipe_ = self._recipe(task, seed)
        result = fit(self.recipe_, task, seeds, device=self.device)
        self.records_ = result.records
        pairs = zip(result.models, result.records, strict=True)
        self.models_ = [model for model, record in pairs if record.status == "done"]
        if not self.models_:
            raise GraphjouleError(f"No run finished: {result.records[0].failure}")
        self.n_iter_ = max(record.epochs_run for record in result.records)
        self.features_, self.graph_, self.objective_ = task.features, task.graph, objective

    def _applied_to(self, X: Any) -> tuple[Features, Propagation, int]:
        """Features and graph to predict on, and how many training nodes come before those that are asked about.

        A new row of a model that was fitted with a matrix alone looks at its nearest training nodes, and they do not
        look back: its prediction does not depend on which other rows are asked about. A graph is taken as it is.
        """
        check_is_fitted(self)
        name = type(self).__name__
        given = read_graph_like(X)
        if given is not None:
            if given.features.size(1) != self.n_features_in_:
                raise GraphjouleError(
                    f"X has {given.features.size(1)} features, but {name} is expecting {self.n_features_in_} "
                    "features as input."
                )
            return self.scaling_.apply(given.features), given.graph, 0
        if not self.built_graph_:
            raise GraphjouleError(f"{name} was fitted with a graph; give it a pair (features, graph), a Task or Data.")
        new = self.scaling_.apply(_copied(validate_data(self, X, reset=False, dtype=np.float64)))
        assert isinstance(new, Tensor)
        assert isinstance(self.features_, Tensor)
        neighbor = nearest_rows(new, self.features_, min(self.num_neighbors, len(self.features_)))
        graph = ExtendedPropagation.of(self.graph_, links_to(neighbor, self.graph_))
        return torch.cat([self.features_, new]), graph, len(self.features_)

    def _predicted(self, features: Features, graph: Propagation) -> np.ndarray:
        """The mean over the runs, in float64, where a sum over a row does not depend on how many rows there are."""
        models, inputs = self._double(features, graph)
        return mean_prediction(models, self.recipe_, self.objective_, inputs, self.device).numpy()

    @torch.no_grad()
    def _embedded(self, X: Any) -> np.ndarray:
        """What the last graph layer of every run gives its head, runs side by side."""
        features, graph, num_before = self._applied_to(X)
        models, inputs = self._double(features, graph)
        found: list[Tensor] = []
        for model in models:
            network: Any = inner_network(model)
            with network.head.register_forward_pre_hook(lambda module, args: found.append(args[0])):
                mean_prediction([model], self.recipe_, self.objective_, inputs, self.device)
        return torch.cat(found, dim=1)[num_before:].cpu().numpy()

    def _double(self, features: Features, graph: Propagation) -> tuple[list[Any], ModelInput]:
        models = [copy.deepcopy(model).double() for model in self.models_]
        targets = self.objective_.unknown(graph.num_nodes)
        return models, ModelInput(features.to(dtype=torch.float64), graph.to(dtype=torch.float64), targets, ())

    def _first_seed(self) -> int:
        """The seed of the first run; a generator moves on by it."""
        first = self.random_state
        return int(first if isinstance(first, int | np.integer) else check_random_state(first).randint(2**31))

    def _check_parameters(self) -> None:
        """Refuse what no recipe checks."""
        for name in ("num_neighbors", "num_runs"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                raise GraphjouleError(f"{name} is {value!r}; expected a whole number, 1 or more.")
        if self.settings is not None and not isinstance(self.settings, Mapping):
            raise GraphjouleError(
                f"settings is {self.settings!r}; expected a dict of settings by their names, such as {{'c_min': 0.15}}."
            )

    def _split_rule(self) -> str:
        share = self.validation_fraction
        is_number = isinstance(share, int | float | np.number) and math.isfinite(share)
        if not is_number or not 1 <= round(100 * share) <= 99:
            raise GraphjouleError(f"validation_fraction is {share!r}; expected 0.01 to 0.99, such as 0.2.")
        return f"stratified-{round(100 * share)}-0"

    def _recipe(self, task: Task, seed: int) -> Recipe:
        own = {name: getattr(self, name) for name in ("hidden_channels", "lr", "dropout", "epochs", "patience")}
        given = dict(self.settings or {})
        for name in own.keys() & given.keys():
            if own[name] is not None:
                raise GraphjouleError(f"{name} is set twice, to {own[name]!r} and to {given[name]!r}: give it once.")
        derived = {"output_dropout": self.dropout, "split": task.default_split}
        named = {str(name).rpartition(".")[2] for name in given}
        own |= {name: value for name, value in derived.items() if name not in named}
        chosen = {name: value for name, value in own.items() if value is not None}
        return recipe_for(task, "egnn", self.num_layers, chosen | given, seed=seed)


@dataclass(kw_only=True, eq=False, repr=False)
class EGNNClassifier(ClassifierMixin, _NodeEstimator):  # type: ignore[misc]
    """Classify the nodes of a graph, or rows of a matrix that become a graph of nearest neighbours.

    Nodes without a label take part in training through their features and edges. A part of the labelled nodes, drawn
    from every class, chooses the epoch. Where a graph brings its own split, see `fit`, it is kept: labels of its test
    part are not read.

    Args:
        num_layers: the depth; None, here and below, is what `graphjoule.training.recipe_for` chooses by the data.
        hidden_channels: the width.
        num_neighbors: neighbours per row, where `fit` is given a matrix alone; fewer if there are fewer rows.
        lr: Adam's learning rate.
        dropout: dropout before every layer and before the head.
        epochs: the most epochs a run may take.
        patience: epochs without a better validation loss after which it stops.
        validation_fraction: share of each class's labelled nodes that chooses the epoch, in whole percents; not used
            where a graph brings its own validation nodes.
        num_runs: networks to train at once, each from a seed of its own, and a split of its own where it is drawn;
            probabilities are their mean.
        standardize: scale every column of a dense matrix to mean 0 and variance 1, by the training nodes.
        unlabeled: the label that means "unknown": -1 as in `sklearn.semi_supervised`, or any other; None if every label
            is a class, -1 too. By default ("refuse") every label is a class, and -1 is refused, as it may be either.
        settings: any other setting of the recipe by name, such as ``{"c_min": 0.15, "class_weights": "balanced"}``.
        random_state: seed of the first run, or a generator to draw it from.
        device: "auto" (CUDA if there is one), "cpu" or "cuda".

    Attributes:
        classes_: the labels, sorted.
        n_features_in_: number of columns of the features.
        models_: the trained networks.
        records_: one `Record` per run: settings, curve, result.
        n_iter_: the most epochs that a run took.
        label_distributions_: probability of every class for every training node, labelled or not.
        transduction_: the class of every training node by these.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> x, y = load_iris(return_X_y=True)
        >>> model = EGNNClassifier(num_layers=2, hidden_channels=16, epochs=100, lr=0.02, device="cpu").fit(x, y)
        >>> model.score(x, y) > 0.9
        True
    """

    unlabeled: Any = "refuse"

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train.

        `Data` with a ``train_mask`` trains on these nodes alone; ``val_mask`` chooses the epoch, or a part of the
        training nodes if there is none. A `Task` with fixed splits trains on its default one; where that is one of
        several, ``public-0``, ``public-1`` and so on, all runs have the one of `random_state`. Labels outside of these
        two parts are not read, not in `y` either. A split that a rule draws, such as ``stratified-20-20``, holds
        nothing back here: all labels train or validate.

        Args:
            X: a matrix of features, whose rows are linked with their nearest neighbours; or a graph: a pair
                ``(features, graph)`` with an ``edge_index``, a SciPy sparse adjacency or a `Propagation`; a `Task`;
                or PyG's `Data`. An edge counts in both directions.
            y: label of every node, `unlabeled` where unknown; None for a `Task` or `Data` that brings its own.
        """
        if y is not None:
            refuse_none(y)
        given = read_graph_like(X)
        if given is None:
            rows, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
            features: Features = _copied(rows)
        else:
            features = given.features
            self.n_features_in_ = features.size(1)
        seed = self._first_seed()
        split = None if given is None else given.own_split(seed)
        y, is_known = self._labels_of(given, y)
        is_known = is_known & _may_be_read(split, len(is_known))
        self.classes_, codes = classes_of(y, is_known, self.unlabeled)
        labels = torch.full((len(is_known),), -1)
        labels[torch.from_numpy(is_known)] = torch.from_numpy(codes.astype(np.int64))
        self._train(given, features, labels, Classification(len(self.classes_)), split, seed)
        self.label_distributions_ = self._predicted(self.features_, self.graph_)
        self.transduction_ = self.classes_[self.label_distributions_.argmax(axis=1)]
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of every class, one row per node, columns in the order of `classes_`.

        A new row of a model that was fitted with a matrix alone looks at its nearest training nodes, and they do not
        look back: its prediction does not depend on which other rows are asked about. A graph is taken as it is.

        Args:
            X: what `fit` takes: a matrix if it was fitted with one, else a graph with as many features.
        """
        features, graph, num_before = self._applied_to(X)
        return self._predicted(features, graph)[num_before:]

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of every node; see `predict_proba`."""
        probabilities = self.predict_proba(X)
        labels: np.ndarray = self.classes_[probabilities.argmax(axis=1)]
        return labels

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Share of the nodes with a known label that are classified rightly, those that trained among them.

        Args:
            X: what `predict` takes.
            y: the labels; nodes whose label is `unlabeled` do not count. None for a graph that brings its own.
            sample_weight: weight of every node; ``data.test_mask`` scores the test nodes alone.
        """
        from sklearn.metrics import accuracy_score

        labels, is_known = self._labels_of(read_graph_like(X), y)
        weight = None if sample_weight is None else np.asarray(sample_weight)[is_known]
        right: float = accuracy_score(labels[is_known], self.predict(X)[is_known], sample_weight=weight)
        return right

    def _labels_of(self, given: GraphLike | None, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Labels and which are known: `y`, else those that the graph brought."""
        if given is None:
            return np.asarray(y), known_labels(np.asarray(y), self.unlabeled)
        if y is None:
            given.check_kind(Classification, "a classifier needs classes")
            if given.labels is None:
                raise GraphjouleError("This graph has no labels; give one for every node as y.")
            is_known = known_labels(given.labels, self.unlabeled) if given.is_known is None else given.is_known
            return given.labels, is_known
        labels = check_array(y, ensure_2d=False, dtype=None, input_name="y")
        if labels.shape != (given.graph.num_nodes,):
            raise GraphjouleError(
                f"y has shape {list(labels.shape)}; expected [{given.graph.num_nodes}], one label per node."
            )
        return labels, known_labels(labels, self.unlabeled)


class EGNNRegressor(RegressorMixin, _NodeEstimator):  # type: ignore[misc]
    """Predict one or several numbers for the nodes of a graph, or for rows that become a graph of nearest neighbours.

    A target that is NaN is unknown; its node takes part in training through its features and edges, and with those of
    its targets that are known. A part of the nodes with a target chooses the epoch. Where a graph brings its own split,
    see `EGNNClassifier.fit`, it is kept: targets of its test part are not read.

    Args:
        num_layers: the depth; None, here and below, is what `graphjoule.training.recipe_for` chooses by the data.
        hidden_channels: the width.
        num_neighbors: neighbours per row, where `fit` is given a matrix alone; fewer if there are fewer rows.
        lr: Adam's learning rate.
        dropout: dropout before every layer and before the head.
        epochs: the most epochs a run may take.
        patience: epochs without a better validation loss after which it stops.
        validation_fraction: share of the nodes with a target that chooses the epoch, in whole percents; not used where
            a graph brings its own validation nodes.
        num_runs: networks to train at once, each from a seed of its own, and a split of its own where it is drawn;
            predictions are their mean.
        standardize: scale every column of a dense matrix to mean 0 and variance 1, by the training nodes.
        settings: any other setting of the recipe by name, such as ``{"c_min": 0.15}``.
        random_state: seed of the first run, or a generator to draw it from.
        device: "auto" (CUDA if there is one), "cpu" or "cuda".

    Attributes:
        n_features_in_: number of columns of the features.
        models_: the trained networks.
        records_: one `Record` per run: settings, curve, result.
        n_iter_: the most epochs that a run took.

    Example:
        >>> from sklearn.datasets import make_friedman1
        >>> x, y = make_friedman1(300, random_state=0)
        >>> model = EGNNRegressor(num_layers=2, epochs=200, lr=0.02, dropout=0.0, device="cpu").fit(x, y)
        >>> model.score(x, y) > 0.5
        True
    """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train.

        Args:
            X: a matrix of features or a graph, as `EGNNClassifier.fit` takes them; their splits hold here too.
            y: one or several numbers for every node, NaN where unknown; None for a `Task` or `Data` with its own.
        """
        given = read_graph_like(X)
        if given is None:
            if y is None:
                validate_data(self, X, y)  # scikit-learn's own sentence
            rows = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
            features: Features = _copied(rows)
        else:
            features = given.features
            self.n_features_in_ = features.size(1)
        values = self._values_of(given, y, features.size(0))
        self._is_column = values.ndim == 1
        seed = self._first_seed()
        split = None if given is None else given.own_split(seed)
        targets = _copied(values).double()
        targets[torch.from_numpy(~_may_be_read(split, len(targets)))] = torch.nan
        self._train(given, features, targets, Regression(1 if self._is_column else values.shape[1]), split, seed)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The numbers of every node, shaped as the targets were; see `EGNNClassifier.predict_proba`."""
        features, graph, num_before = self._applied_to(X)
        numbers = self._predicted(features, graph)[num_before:]
        return numbers[:, 0] if self._is_column else numbers

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """R2 over the nodes all of whose targets are known, those that trained among them.

        Args:
            X: what `predict` takes.
            y: the targets; None for a graph that brings its own.
            sample_weight: weight of every node; ``data.test_mask`` scores the test nodes alone.
        """
        from sklearn.metrics import r2_score

        predicted, given = self.predict(X), read_graph_like(X)
        values = self._values_of(given, y, len(predicted))
        is_known = ~np.isnan(values.reshape(len(values), -1)).any(axis=1)
        weight = None if sample_weight is None else np.asarray(sample_weight)[is_known]
        explained: float = r2_score(values[is_known], predicted[is_known], sample_weight=weight)
        return explained

    def _values_of(self, given: GraphLike | None, y: Any, num_nodes: int) -> np.ndarray:
        """The targets: those given, else those that the graph brought."""
        if y is None and given is not None:
            given.check_kind(Regression, "a regressor needs numbers")
            if given.labels is None:
                raise GraphjouleError("This graph has no targets; give one or more for every node as y.")
            y = given.labels
        options = {"ensure_2d": False, "dtype": np.float64, "ensure_all_finite": "allow-nan", "input_name": "y"}
        values: np.ndarray = check_array(y, **options)
        if values.ndim == 2 and values.shape[1] == 1:
            values = column_or_1d(values, warn=True)
        if len(values) != num_nodes or values.ndim > 2:
            raise GraphjouleError(
                f"y has shape {list(values.shape)}; expected {num_nodes} rows, one per node: y and X have inconsistent "
                "numbers of samples."
            )
        return values


class EGNNTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Node embeddings: what the last graph layer of a trained classifier or regressor gives its head.

    Args:
        estimator: what is trained, an `EGNNClassifier` or `EGNNRegressor`; by default an `EGNNClassifier`. With
            several runs their embeddings stand side by side.

    Attributes:
        estimator_: the trained one.
        n_features_in_: number of columns of the features.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> x, y = load_iris(return_X_y=True)
        >>> classifier = EGNNClassifier(num_layers=2, hidden_channels=16, epochs=20, device="cpu")
        >>> EGNNTransformer(classifier).fit(x, y).transform(x).shape
        (150, 16)
    """

    def __init__(self, estimator: EGNNClassifier | EGNNRegressor | None = None) -> None:
        self.estimator = estimator

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train the estimator; see `EGNNClassifier.fit`."""
        estimator = EGNNClassifier() if self.estimator is None else self.estimator
        if not isinstance(estimator, _NodeEstimator):
            raise GraphjouleError(
                f"The estimator is a {type(estimator).__name__}; expected an EGNNClassifier or an EGNNRegressor."
            )
        self.estimator_: Any = clone(estimator).fit(X, y)
        self.n_features_in_ = self.estimator_.n_features_in_
        if hasattr(self.estimator_, "feature_names_in_"):
            self.feature_names_in_ = self.estimator_.feature_names_in_
        self._n_features_out = sum(model.hidden_channels for model in self.estimator_.models_)
        return self

    def transform(self, X: Any) -> np.ndarray:
        """The embedding of every node, shape ``[num_nodes, num_runs * hidden_channels]``.

        Args:
            X: what `fit` takes: a matrix if it was fitted with one, else a graph with as many features.
        """
        check_is_fitted(self)
        embedded: np.ndarray = self.estimator_._embedded(X)
        return embedded

    def __sklearn_tags__(self) -> Any:
        """It needs targets, as what it trains does."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


# The ways to give a graph in Python, read into one shape.


@dataclass(frozen=True, eq=False)
class GraphLike:
    """A graph with features, and labels where it brought some.

    Attributes:
        features: finite floating-point matrix, one row per node.
        graph: the normalised operator.
        labels: one per node, the source's own names where it has names; None if it brought none.
        is_known: which of them are known; None without labels, and where the source has no way to say it.
        task: the task that it was; None for anything else.
        masks: ``train_mask``, ``val_mask`` and ``test_mask`` of a `Data`, those that it has.
    """

    features: Features
    graph: Propagation
    labels: np.ndarray | None = None
    is_known: np.ndarray | None = None
    task: Task | None = None
    masks: Mapping[str, Tensor] = field(default_factory=dict)

    def own_split(self, seed: int) -> Split | None:
        """The split that came with the graph; None if none did, or if a rule is to draw it.

        Args:
            seed: which one it is, where a task has several of one name, see `Task.split`.
        """
        if self.task is not None:
            return _fixed_split(self.task, seed)
        if not self.masks:
            return None
        if "train_mask" not in self.masks:
            raise GraphjouleError(
                f"The graph given as Data has {' and '.join(self.masks)} but no train_mask, so nothing says who "
                "trains; expected train_mask, and val_mask and test_mask beside it, or none of the three."
            )
        for name, mask in self.masks.items():
            if len(mask) != self.graph.num_nodes:
                raise GraphjouleError(f"{name} has {len(mask)} rows; expected {self.graph.num_nodes}, one per node.")
        nobody = torch.zeros_like(self.masks["train_mask"])
        return fixed_split("public", *(self.masks.get(f"{part}_mask", nobody) for part in PARTS))

    def check_kind(self, kind: type[Objective], needed: str) -> None:
        """Refuse a task that asks for something else."""
        if self.task is not None and not isinstance(self.task.objective, kind):
            raise GraphjouleError(f"Task {self.task.name!r} is a {self.task.objective.name}; {needed}.")


def read_graph_like(given: Any) -> GraphLike | None:
    """The graph in what was given, or None if it is features alone.

    Args:
        given: ``(X, graph)`` with a `Propagation`, an ``edge_index`` or a SciPy sparse adjacency; a `Task`; or
            PyG's `Data` with ``x`` and ``edge_index``. An edge counts in both directions.
    """
    if isinstance(given, Task):
        if given.pooling is not None:
            raise GraphjouleError(f"Task {given.name!r} predicts graphs; scikit-learn's estimators here predict nodes.")
        return GraphLike(given.features, given.graph, *_task_labels(given), given)
    if hasattr(given, "edge_index") and hasattr(given, "x"):
        return _from_data(given)
    if isinstance(given, tuple) and len(given) == 2 and _is_graph(given[1]):
        features = _features(given[0])
        return GraphLike(features, _graph(given[1], features.size(0)))
    if isinstance(given, tuple | list) and given and getattr(given[0], "ndim", 0) == 2:  # rows of a matrix have less
        raise GraphjouleError(
            f"X is a {type(given).__name__} of {len(given)}, whose first has two dimensions; a graph is a pair "
            "(features, graph) with an edge_index of shape [2, num_edges], a SciPy sparse adjacency or a Propagation; "
            "of a dense adjacency it is (features, scipy.sparse.csr_array(adjacency))."
        )
    return None


def _is_graph(graph: Any) -> bool:
    if isinstance(graph, Propagation) or sp.issparse(graph):
        return True
    return isinstance(graph, Tensor | np.ndarray) and graph.ndim == 2 and graph.shape[0] == 2


def _from_data(data: Any) -> GraphLike:
    """PyG's `Data`; only the attributes are looked at, so that PyG itself is not imported."""
    if not isinstance(data.x, Tensor) or not isinstance(data.edge_index, Tensor):
        raise GraphjouleError("The graph given as Data lacks x or edge_index; expected both as tensors.")
    features = _features(data.x.cpu())
    graph = Propagation.from_edge_index(data.edge_index, edge_weight_of(data), features.size(0), symmetrize=True)
    given = {name: getattr(data, name, None) for name in (f"{part}_mask" for part in PARTS)}
    masks = {name: torch.as_tensor(mask).cpu() for name, mask in given.items() if mask is not None}
    if not isinstance(labels := getattr(data, "y", None), Tensor):
        return GraphLike(features, graph, masks=masks)
    labels = labels.cpu()
    labels = labels.view(-1) if labels.dim() == 2 and labels.size(1) == 1 else labels
    return GraphLike(features, graph, labels.numpy(), masks=masks)


def _task_labels(task: Task) -> tuple[np.ndarray, np.ndarray]:
    labels = task.targets.cpu().numpy()
    if not isinstance(task.objective, Classification):
        return labels, task.is_known.cpu().numpy()
    names = np.array(task.objective.class_names) if task.objective.class_names else np.arange(task.out_channels)
    return names[labels.clip(min=0)], labels >= 0


# Splits that come with a graph: whose labels may be read, and who trains.


def _fixed_split(task: Task, seed: int) -> Split | None:
    """The split that a task trains by if it is a fixed one, or has only one; None if it has none."""
    if not task.fixed_splits:
        return None
    names = [split.name for split in task.fixed_splits]
    if task.default_split in names or not is_rule(task.default_split):
        return task.split(seed=seed).to("cpu")
    if len(names) > 1:
        raise GraphjouleError(
            f"Task {task.name!r} has the splits {', '.join(names)}, but its default_split is {task.default_split!r}; "
            "make one of them the default_split."
        )
    return task.fixed_splits[0].to("cpu")


def _may_be_read(split: Split | None, num_nodes: int) -> np.ndarray:
    """The nodes whose labels a training may read, one bool per node: all of them without a split."""
    found = np.full(num_nodes, split is None)
    if split is not None:
        found[torch.cat([split.train, split.val])] = True
    return found


def _training_split(split: Split, is_known: Tensor) -> tuple[Split, ...]:
    """The split without its test part and without nodes of no known target; nothing if then nobody validates."""
    train, val = (part[is_known[part]] for part in (split.train, split.val))
    return (Split(split.name, None, train, val, val[:0]),) if val.numel() else ()


def _copied(x: np.ndarray) -> Tensor:
    """An array as a tensor of its own: the caller may have locked it, or turned it round."""
    return torch.from_numpy(np.array(x, order="C"))


def _features(x: Any) -> Features:
    if isinstance(x, SparseFeatures):
        return x
    if sp.issparse(x):
        features = pack_features(x)
    else:
        features = x if isinstance(x, Tensor) else _copied(np.asarray(x))
        features = features.to(torch.get_default_dtype())
    return checked_features(features)


def _graph(graph: Any, num_nodes: int) -> Propagation:
    if isinstance(graph, Propagation):
        return graph
    if sp.issparse(graph):
        if graph.shape != (num_nodes, num_nodes):
            raise GraphjouleError(
                f"The adjacency has shape {list(graph.shape)}; expected [{num_nodes}, {num_nodes}], as X has rows."
            )
        links = graph.tocoo()
        edge_index = torch.from_numpy(np.stack([links.row, links.col]).astype(np.int64))
        weight = torch.from_numpy(links.data.astype(np.float64))
        return Propagation.from_edge_index(edge_index, weight, num_nodes, symmetrize=True)
    return Propagation.from_edge_index(torch.as_tensor(graph), None, num_nodes, symmetrize=True)


# Labels: which classes they have, and what is refused about them.


def refuse_none(y: Any) -> None:
    """Refuse None among the labels, in any form that NumPy reads: it is not what marks a node without one."""
    for row, label in enumerate(np.asarray(y, dtype=object).ravel()):
        if label is None:
            raise GraphjouleError(
                f"The label of row {row} is None; mark a row without a label by a label that the parameter unlabeled "
                "names: write unlabeled='' and '' for text, or unlabeled=-1 and -1 for numbers."
            )


def known_labels(labels: np.ndarray, unlabeled: Any) -> np.ndarray:
    """Which labels are known, one bool per row.

    Args:
        labels: one per row; NaN is never known.
        unlabeled: the label that means "unknown"; None if every label is a class; "refuse" if -1, which may be a class
            or mean "unknown", is to be refused.

    Example:
        >>> known_labels(np.array([2, -1]), -1).tolist(), known_labels(np.array([2, -1]), None).tolist()
        ([True, False], [True, True])
    """
    values = labels.tolist()
    if isinstance(unlabeled, str) and unlabeled == "refuse":
        if num_unsaid := sum(value == -1 for value in values):
            raise GraphjouleError(
                f"The label of {num_unsaid:,} of {len(values):,} rows is -1, which is a class or marks a row "
                "without a label; say which: unlabeled=None for a class, unlabeled=-1 for no label."
            )
        unlabeled = None
    is_nan = (isinstance(value, float) and math.isnan(value) for value in values)
    pairs = zip(values, is_nan, strict=True)
    return np.array([not nan and (unlabeled is None or value != unlabeled) for value, nan in pairs], dtype=bool)


def classes_of(labels: np.ndarray, is_known: np.ndarray, unlabeled: Any) -> tuple[np.ndarray, np.ndarray]:
    """The classes, sorted, and the number of its class for every known label.

    Example:
        >>> classes, codes = classes_of(np.array(["b", "", "a"]), np.array([True, False, True]), "")
        >>> classes.tolist(), codes.tolist()
        (['a', 'b'], [1, 0])
    """
    known = labels[is_known]
    if not len(known):
        raise GraphjouleError(
            f"No label is known: all {len(labels)} mark a row without one (unlabeled is {unlabeled!r}); at least two "
            "classes are needed."
        )
    check_classification_targets(known)
    classes, codes = np.unique(known, return_inverse=True)
    if len(classes) < 2:
        sentence = f"The labels have one class, {classes.tolist()[0]!r}; at least two classes are needed."
        if len(known) < len(labels):
            sentence += f" Rows with {unlabeled!r} count as rows without a label; with unlabeled=None it is a class."
        raise GraphjouleError(sentence)
    return classes, codes
