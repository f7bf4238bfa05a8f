import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris, make_moons
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_classifiers_classes, parametrize_with_checks
from torch_geometric.data import Data

from graphjoule.classifier import EGNNClassifier
from graphjoule.errors import GraphjouleError
from graphjoule.predicting import mean_probabilities
from graphjoule.tasks.inputs import ModelInput
from tests.training import NUM_NODES, small_task

QUICK = {"num_layers": 2, "hidden_channels": 8, "epochs": 40, "lr": 0.05, "dropout": 0.0, "num_neighbors": 5}


def quick(**changes):
    return EGNNClassifier(**QUICK | {"device": "cpu"} | changes)


# scikit-learn's own checks.


@parametrize_with_checks([quick(unlabeled=None)])
def test_scikit_learns_estimator_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the checks themselves warn of, such as a package that is not there
        check(estimator)


def test_the_one_check_that_cannot_hold_takes_minus_1_for_a_class():
    # By default -1 is refused, as it means unknown in sklearn.semi_supervised; with unlabeled=None the check holds.
    with pytest.raises(GraphjouleError, match="unlabeled=None for a class"):
        check_classifiers_classes("EGNNClassifier", quick())


# What it computes.


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def fitted(iris):
    return quick().fit(*iris)


def test_it_learns(iris, fitted):
    x, y = iris
    assert fitted.score(x, y) > 0.9
    assert fitted.classes_.tolist() == [0, 1, 2]
    assert fitted.n_features_in_ == 4
    assert fitted.records_[0].status == "done"


def test_few_labels_and_many_unlabelled_rows_are_enough():
    x, truth = make_moons(200, noise=0.05, random_state=0)
    y = np.full(200, -1)
    for label in (0, 1):
        y[np.flatnonzero(truth == label)[:10]] = label
    model = quick(num_layers=8, hidden_channels=16, epochs=150, unlabeled=-1).fit(x, y)
    assert (model.transduction_ == truth).mean() > 0.85
    assert model.label_distributions_.shape == (200, 2)
    assert model.score(x, y) == (model.predict(x) == truth)[y >= 0].mean()  # unlabelled rows do not count


def test_labels_of_any_kind_and_any_marker(iris):
    x, y = iris
    names = np.array(["setosa", "versi", "virgi"])[y]
    named = quick(unlabeled="").fit(x, np.where(np.arange(150) % 2, names, ""))
    assert named.classes_.tolist() == ["setosa", "versi", "virgi"]
    assert set(named.predict(x)) <= set(names)
    assert quick(unlabeled=None).fit(x, y - 1).classes_.tolist() == [-1, 0, 1]
    assert quick(unlabeled=-1).fit(x, y - 1).classes_.tolist() == [0, 1]


def test_new_rows_are_predicted_one_by_one_or_together_alike(iris, fitted):
    x = iris[0][::7] + 0.01
    together = fitted.predict_proba(x)
    alone = np.concatenate([fitted.predict_proba(row[None]) for row in x])
    assert np.allclose(together, alone, atol=1e-12)
    assert np.allclose(together.sum(axis=1), 1)


@pytest.mark.parametrize("form", ["pair", "adjacency", "task", "data"])
def test_a_graph_in_any_form_trains_the_same(form):
    task = small_task()
    row, col = task.graph.row(), task.graph.col.long()
    edges = torch.stack([row, col])[:, row != col]
    adjacency = sp.csr_matrix((np.ones(edges.size(1)), edges.numpy()), shape=(NUM_NODES, NUM_NODES))
    x, y = task.features, task.targets
    given = {
        "pair": ((x, edges), y),
        "adjacency": ((x.numpy(), adjacency), y.numpy()),
        "task": (task, None),
        "data": (Data(x=x, edge_index=edges, y=y), None),
    }[form]
    model, expected = quick().fit(*given), quick().fit((x, task.graph), y)
    assert np.allclose(model.predict_proba(given[0]), expected.predict_proba(task), atol=1e-6)
    assert np.array_equal(model.predict(given[0]), model.transduction_)
    assert 0 <= model.score(*given) <= 1
    assert model.n_features_in_ == 7


def test_it_computes_what_fit_and_the_models_compute():
    task = small_task()
    model = quick(standardize=False, num_runs=2).fit(task)
    assert len(model.models_) == 2
    expected = mean_probabilities(model.models_, model.recipe_, ModelInput.of(task)).numpy()
    assert np.allclose(model.predict_proba(task), expected, atol=1e-5)
    assert [record.seed for record in model.records_] == [0, 1]


def test_scaling_of_columns_does_not_matter_when_they_are_standardised(iris):
    x, y = iris
    a = quick().fit(x, y).predict_proba(x)
    b = quick().fit(x * [1e3, 1, 1e-3, 5] + 7, y).predict_proba(x * [1e3, 1, 1e-3, 5] + 7)
    assert np.allclose(a, b, atol=1e-2)
    constant = quick().fit(np.c_[x, np.full(150, 0.1)], y)
    assert np.isfinite(constant.predict_proba(np.c_[x, np.full(150, 9.0)])).all()


def test_the_same_state_gives_the_same_bits_and_another_does_not(iris):
    x, y = iris
    first = quick(random_state=3).fit(x, y).predict_proba(x)
    assert np.array_equal(quick(random_state=3).fit(x, y).predict_proba(x), first)
    assert not np.array_equal(quick(random_state=4).fit(x, y).predict_proba(x), first)
    drawn = [quick(random_state=np.random.RandomState(0)).fit(x, y).predict_proba(x) for _ in range(2)]
    assert np.array_equal(*drawn)


def test_clone_parameters_pipelines_and_searches(iris):
    x, y = iris
    model = quick(settings={"c_min": 0.3})
    copied = clone(model)
    assert copied.get_params() == model.get_params()
    assert copied.set_params(num_layers=3).num_layers == 3
    assert model.fit(x, y).recipe_.options["c_min"] == 0.3
    assert cross_val_score(make_pipeline(StandardScaler(), quick()), x, y, cv=2).mean() > 0.8
    search = GridSearchCV(quick(epochs=5), {"num_layers": [1, 2]}, cv=2).fit(x, y)
    assert search.best_params_["num_layers"] in (1, 2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"validation_fraction": 0.0}, "validation_fraction is 0.0; expected 0.01 to 0.99"),
        ({"validation_fraction": 1.5}, "validation_fraction is 1.5"),
        ({"settings": {"c_mni": 0.1}}, '"c_mni" is not a setting of egnn, did you mean "c_min"'),
        ({"num_layers": 0}, "num_layers = 0 cannot be used"),
        ({"num_neighbors": 0}, "0 neighbours were asked for"),
        ({"num_runs": 0}, "seeds are"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"random_state": -1}, "seeds are"),
        ({"lr": 1e30}, "No run finished"),
    ],
)
def test_bad_parameters_are_sentences(iris, changes, said):
    with pytest.raises(GraphjouleError, match=said):
        quick(**changes).fit(*iris)


def test_scores_that_are_not_finite_are_no_prediction(iris):
    x, y = iris
    model = quick(standardize=False).fit(x, y)
    next(model.models_[0].parameters()).data.fill_(torch.nan)
    for call in (model.predict, model.predict_proba):
        with pytest.raises(GraphjouleError, match=r"The scores of \d+ nodes of \d+ are not finite.*weights"):
            call(x)


def test_what_does_not_fit_is_a_sentence(iris, fitted):
    x, y = iris
    task = small_task()
    cases = [
        (
            lambda: quick(unlabeled=-1).fit(x, np.where(y == 0, 0, -1)),
            "The labels have one class, 0; at least two classes",
        ),
        (lambda: quick(unlabeled=-1).fit(x, np.full(150, -1)), "No label is known"),
        (lambda: quick().fit((task.features, task.graph)), "This graph has no labels"),
        (lambda: quick().fit((task.features, task.graph), y), r"y has shape \[150\]; expected \[30\]"),
        (lambda: quick().fit(task).predict(x), "was fitted with a graph"),
        (lambda: fitted.predict(task), "X has 7 features, but EGNNClassifier is expecting 4"),
    ]
    for call, said in cases:
        with pytest.raises(GraphjouleError, match=said):
            call()
