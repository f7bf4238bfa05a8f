"""`EGNNClassifier`: the energetic graph neural network in scikit-learn's manner."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from graphjoule.classifier.graph_like import GraphLike, read_graph_like
from graphjoule.classifier.inductive import extend_graph, nearest_rows
from graphjoule.classifier.labels import classes_of, known_labels, refuse_none
from graphjoule.classifier.scaling import Scaling
from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.graph import Propagation
from graphjoule.graph.features import Features
from graphjoule.predicting import mean_probabilities
from graphjoule.tasks import Task, knn_edge_index
from graphjoule.tasks.inputs import ModelInput
from graphjoule.training.recipe import Recipe, load_recipe


class EGNNClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classify the nodes of a graph, or rows of a matrix that become a graph of nearest neighbours.

    Nodes without a label take part in training through their features and edges. A part of the labelled nodes, drawn
    from every class, chooses the epoch.

    Args:
        num_layers: the depth.
        hidden_channels: the width.
        num_neighbors: neighbours per row, where `fit` is given a matrix alone; fewer if there are fewer rows.
        lr: Adam's learning rate.
        dropout: dropout before every layer and before the head.
        epochs: the most epochs a run may take.
        patience: epochs without a better validation loss after which it stops.
        validation_fraction: share of each class's labelled nodes that chooses the epoch, in whole percents.
        num_runs: networks to train at once, each from a seed and split of its own; probabilities are their mean.
        standardize: scale every column of a dense matrix to mean 0 and variance 1, by the training nodes.
        unlabeled: the label that means "unknown": -1 as in `sklearn.semi_supervised`, or any other; None if every label
            is a class, -1 too. By default ("refuse") every label is a class, and -1 is refused, as it may be either.
        settings: any other setting of the recipe by name, such as ``{"c_min": 0.15}``.
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

    def __init__(
        self,
        *,
        num_layers: int = 8,
        hidden_channels: int = 64,
        num_neighbors: int = 10,
        lr: float = 5e-3,
        dropout: float = 0.3,
        epochs: int = 500,
        patience: int = 100,
        validation_fraction: float = 0.2,
        num_runs: int = 1,
        standardize: bool = True,
        unlabeled: Any = "refuse",
        settings: Mapping[str, Any] | None = None,
        random_state: Any = 0,
        device: str = "auto",
    ) -> None:
        self.num_layers = num_layers
        self.hidden_channels = hidden_channels
        self.num_neighbors = num_neighbors
        self.lr = lr
        self.dropout = dropout
        self.epochs = epochs
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.num_runs = num_runs
        self.standardize = standardize
        self.unlabeled = unlabeled
        self.settings = settings
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train.

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
            features: Features = torch.tensor(rows)  # a copy: the caller may have locked its own
            is_known = known_labels(np.asarray(y), self.unlabeled)
        else:
            features = given.features
            self.n_features_in_ = features.size(1)
            y, is_known = self._labels_of(given, y)
        self.classes_, codes = classes_of(np.asarray(y), is_known, self.unlabeled)
        labels = torch.full((len(is_known),), -1)
        labels[torch.from_numpy(is_known)] = torch.from_numpy(codes.astype(np.int64))
        self.scaling_ = Scaling.of(features) if self.standardize else Scaling()
        features = self.scaling_.apply(features)
        self.built_graph_ = given is None
        graph = given.graph if given is not None else self._neighbour_graph(features)
        task = Task("data", features, graph, labels, len(self.classes_), default_split=self._split_rule())
        self._train(task)
        return self

    def _train(self, task: Task) -> None:
        self.recipe_ = self._recipe()
        first = self.random_state
        if not isinstance(first, int | np.integer):
            first = check_random_state(first).randint(2**31)
        seeds = [int(first) + run for run in range(self.num_runs)]
        result = fit(self.recipe_, task, seeds, device=self.device)
        self.records_ = result.records
        pairs = zip(result.models, result.records, strict=True)
        self.models_ = [model for model, record in pairs if record.status == "done"]
        if not self.models_:
            raise GraphjouleError(f"No run finished: {result.records[0].failure}")
        self.n_iter_ = max(record.epochs_run for record in result.records)
        self.features_, self.graph_ = task.features, task.graph
        self.label_distributions_ = self._probabilities(task.features, task.graph)
        self.transduction_ = self.classes_[self.label_distributions_.argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of every class, one row per node, columns in the order of `classes_`.

        A new row of a model that was fitted with a matrix alone looks at its nearest training nodes, and they do not
        look back: its prediction does not depend on which other rows are asked about. A graph is taken as it is.

        Args:
            X: what `fit` takes: a matrix if it was fitted with one, else a graph with as many features.
        """
        check_is_fitted(self)
        given = read_graph_like(X)
        if given is not None:
            if given.features.size(1) != self.n_features_in_:
                raise GraphjouleError(
                    f"X has {given.features.size(1)} features, but EGNNClassifier is expecting {self.n_features_in_} "
                    "features as input."
                )
            return self._probabilities(self.scaling_.apply(given.features), given.graph)
        if not self.built_graph_:
            raise GraphjouleError(
                "EGNNClassifier was fitted with a graph; give it a pair (features, graph), a Task or Data."
            )
        new = self.scaling_.apply(torch.tensor(validate_data(self, X, reset=False, dtype=np.float64)))
        assert isinstance(new, Tensor)
        assert isinstance(self.features_, Tensor)
        neighbor = nearest_rows(new, self.features_, min(self.num_neighbors, len(self.features_)))
        extended = extend_graph(self.graph_, neighbor)
        return self._probabilities(torch.cat([self.features_, new]), extended)[len(self.features_) :]

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of every node; see `predict_proba`."""
        probabilities = self.predict_proba(X)
        labels: np.ndarray = self.classes_[probabilities.argmax(axis=1)]
        return labels

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Share of the nodes with a known label that are classified rightly.

        Args:
            X: what `predict` takes.
            y: the labels; nodes whose label is `unlabeled` do not count. None for a graph that brings its own.
            sample_weight: weight of every node.
        """
        from sklearn.metrics import accuracy_score

        given = read_graph_like(X)
        if given is None:
            labels, is_known = np.asarray(y), known_labels(np.asarray(y), self.unlabeled)
        else:
            labels, is_known = self._labels_of(given, y)
        weight = None if sample_weight is None else np.asarray(sample_weight)[is_known]
        right: float = accuracy_score(labels[is_known], self.predict(X)[is_known], sample_weight=weight)
        return right

    def _labels_of(self, given: GraphLike, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Labels and which are known: those given, else those that the graph brought."""
        if y is None:
            if given.targets is None:
                raise GraphjouleError("This graph has no labels; give one for every node as y.")
            is_known = known_labels(given.targets, self.unlabeled) if given.is_known is None else given.is_known
            return given.targets, is_known
        labels = check_array(y, ensure_2d=False, dtype=None, input_name="y")
        if labels.shape != (given.graph.num_nodes,):
            raise GraphjouleError(
                f"y has shape {list(labels.shape)}; expected [{given.graph.num_nodes}], one label per node."
            )
        return labels, known_labels(labels, self.unlabeled)

    def _neighbour_graph(self, features: Features) -> Propagation:
        assert isinstance(features, Tensor)
        num_neighbors = min(self.num_neighbors, len(features) - 1)
        return Propagation.from_edge_index(
            knn_edge_index(features, num_neighbors), num_nodes=len(features), symmetrize=True
        )

    def _split_rule(self) -> str:
        percent = round(100 * self.validation_fraction)
        if not 1 <= percent <= 99:
            raise GraphjouleError(
                f"validation_fraction is {self.validation_fraction}; expected 0.01 to 0.99, such as 0.2."
            )
        return f"stratified-{percent}-0"

    def _recipe(self) -> Recipe:
        own = {
            "hidden_channels": self.hidden_channels,
            "lr": self.lr,
            "dropout": self.dropout,
            "output_dropout": self.dropout,
            "epochs": self.epochs,
            "patience": self.patience,
            "split": self._split_rule(),
        }
        return load_recipe("egnn", "data", self.num_layers, own | dict(self.settings or {}))

    def _probabilities(self, features: Features, graph: Propagation) -> np.ndarray:
        """In float64, where the sum over a row does not depend on how many rows there are."""
        models = [copy.deepcopy(model).double() for model in self.models_]
        nobody = torch.full((graph.num_nodes,), -1)
        given = ModelInput(features.to(dtype=torch.float64), graph.to(dtype=torch.float64), nobody, ())
        return mean_probabilities(models, self.recipe_, given, self.device).numpy()
