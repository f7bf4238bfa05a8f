import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris, make_moons
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_classifiers_classes, parametrize_with_checks
from torch_geometric.data import Data

from graphjoule.errors import GraphjouleError
from graphjoule.estimators import (
    EGNNClassifier,
    EGNNRegressor,
    EGNNTransformer,
    Scaling,
    classes_of,
    known_labels,
    read_graph_like,
    refuse_none,
)
from graphjoule.fitting import mean_prediction
from graphjoule.graph.features import SparseFeatures
from graphjoule.tasks import Regression, Task
from graphjoule.tasks.splits import Split
from graphjoule.tasks.task import ModelInput
from graphjoule.training.build import inner_network
from tests.graphs import normal, path3
from tests.known_answers import known_task
from tests.training import NUM_NODES, PUBLIC, small_task

QUICK = {"num_layers": 2, "hidden_channels": 8, "epochs": 12, "lr": 0.1, "dropout": 0.0, "num_neighbors": 5}


def quick(**changes):
    return EGNNClassifier(**QUICK | {"device": "cpu"} | changes)


# scikit-learn's own checks.


@parametrize_with_checks(
    [
        quick(unlabeled=None),
        EGNNRegressor(**QUICK, device="cpu"),
        EGNNTransformer(quick(unlabeled=None, epochs=2)),  # of whose scores nothing is asked
    ]
)
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
    model = quick(num_layers=8, hidden_channels=16, epochs=60, lr=0.05, unlabeled=-1).fit(x, y)
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
    task = replace(small_task(), fixed_splits=(), default_split="stratified-20-0")
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
    expected = mean_prediction(model.models_, model.recipe_, task.objective, ModelInput.of(task)).numpy()
    assert np.allclose(model.predict_proba(task), expected, atol=1e-5)
    assert [record.seed for record in model.records_] == [0, 1]


# The split that came with a graph: PUBLIC trains on nodes 0 to 8, validates on 9 to 17 and tests on 18 to 29.


def own_split_data(y, parts=("train", "val", "test")):
    task = small_task()
    masks = {f"{part}_mask": torch.zeros(NUM_NODES, dtype=torch.bool) for part in parts}
    for part in parts:
        masks[f"{part}_mask"][getattr(PUBLIC, part)] = True
    return Data(x=task.features, edge_index=torch.stack([task.graph.row(), task.graph.col.long()]), y=y, **masks)


def own_split_forms(y, objective=None):
    """A graph with targets and the public split, in all the ways in which `fit` takes it."""
    task = small_task()
    task = replace(task, targets=y, objective=objective or task.objective)
    return {
        "data": (own_split_data(y), None),
        "data and y": (own_split_data(None), y.numpy()),
        "task": (task, None),
        "task and y": (task, y.numpy()),
        "task by no name": (replace(task, default_split="per-class-20-30"), None),
    }


FORMS = ["data", "data and y", "task", "task and y", "task by no name"]


@pytest.mark.parametrize("form", FORMS)
def test_labels_of_the_test_part_change_nothing_and_the_masks_are_the_split(form):
    y = small_task().targets
    other = y.clone()
    other[PUBLIC.test] = 0
    model, same = (quick(num_runs=2).fit(*own_split_forms(labels)[form]) for labels in (y, other))
    x = own_split_data(y)
    assert np.array_equal(model.predict_proba(x), same.predict_proba(x))
    without_test = Split("public", None, PUBLIC.train, PUBLIC.val, PUBLIC.test[:0])
    assert [record.split_sha256 for record in model.records_] == [without_test.sha256] * 2
    assert model.records_[0].test == {}
    for node, changed in ((PUBLIC.train[0], "train_loss"), (PUBLIC.val[0], "val_loss")):
        other = y.clone()
        other[node] = (y[node] + 1) % 3
        moved = quick(num_runs=2).fit(*own_split_forms(other)[form])
        assert moved.records_[0].curve[changed] != model.records_[0].curve[changed]


@pytest.mark.parametrize("form", FORMS)
def test_a_regressor_does_not_read_targets_of_the_test_part(form):
    y = small_task().targets.double().sqrt()
    other = y.clone()
    other[PUBLIC.test] = 1e6
    predicted = []
    for targets in (y, other):
        model = EGNNRegressor(**QUICK, device="cpu").fit(*own_split_forms(targets, Regression(1))[form])
        predicted.append(model.predict(own_split_data(y)))
        without_test = Split("public", None, PUBLIC.train, PUBLIC.val, PUBLIC.test[:0])
        assert model.records_[0].split_sha256 == without_test.sha256
    assert np.array_equal(*predicted)


@pytest.mark.parametrize("parts", [("train",), ("train", "test")])
def test_without_a_validation_mask_a_part_of_the_training_nodes_validates(parts):
    y = small_task().targets
    hidden = torch.full_like(y, -1)
    hidden[PUBLIC.train] = y[PUBLIC.train]
    model = quick().fit(own_split_data(y, parts))
    expected = quick(unlabeled=-1).fit(own_split_data(hidden, ()))
    assert model.records_[0].split_sha256 == expected.records_[0].split_sha256
    assert np.array_equal(model.predict_proba(own_split_data(y)), expected.predict_proba(own_split_data(y)))


def test_masks_leave_out_nodes_without_a_label():
    y = small_task().targets.clone()
    y[[0, 9]] = -1
    model = quick(unlabeled=-1).fit(own_split_data(y))
    kept = Split("public", None, PUBLIC.train[1:], PUBLIC.val[1:], PUBLIC.test[:0])
    assert model.records_[0].split_sha256 == kept.sha256


def test_of_several_splits_all_runs_have_that_of_the_first_seed():
    several = tuple(Split(f"public-{k}", None, PUBLIC.train + k, PUBLIC.val + k, PUBLIC.test[2:]) for k in range(2))
    model = quick(num_runs=2, random_state=1).fit(replace(small_task(), fixed_splits=several))
    kept = Split("public", None, PUBLIC.train + 1, PUBLIC.val + 1, PUBLIC.test[:0])
    assert [record.split_sha256 for record in model.records_] == [kept.sha256] * 2


def test_scoring_the_test_part_alone():
    data = own_split_data(small_task().targets)
    model = quick().fit(data)
    right = (model.predict(data) == data.y.numpy())[data.test_mask]
    assert model.score(data, sample_weight=data.test_mask) == pytest.approx(right.mean())


def test_masks_that_are_no_split_are_a_sentence():
    y = small_task().targets
    unnamed = replace(small_task(), fixed_splits=(PUBLIC, replace(PUBLIC, name="b")), default_split="stratified-20-0")
    columns, short = own_split_data(y), own_split_data(y)
    columns.train_mask = columns.train_mask[:, None].repeat(1, 10)
    short.val_mask = short.val_mask[:5]
    for given, said in (
        (
            own_split_data(y, ("val", "test")),
            "has val_mask and test_mask but no train_mask, so nothing says who trains",
        ),
        (columns, r"train_mask has dtype torch.bool and shape \[30, 10\]; expected one boolean per node"),
        (short, "val_mask has 5 rows; expected 30, one per node"),
        (unnamed, "has the splits public, b, but its default_split is 'stratified-20-0'; make one of them"),
    ):
        with pytest.raises(GraphjouleError, match=said):
            quick().fit(given)


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
    assert model.fit(x, y).recipe_.model.options["c_min"] == 0.3
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
        ({"validation_fraction": "a"}, "validation_fraction is 'a'; expected 0.01 to 0.99"),
        ({"validation_fraction": float("nan")}, "validation_fraction is nan; expected 0.01 to 0.99"),
        ({"num_neighbors": 0}, "num_neighbors is 0; expected a whole number, 1 or more"),
        ({"num_neighbors": 2.5}, r"num_neighbors is 2\.5; expected a whole number"),
        ({"num_runs": 0}, "num_runs is 0; expected a whole number, 1 or more"),
        ({"num_runs": 1.5}, r"num_runs is 1\.5; expected a whole number"),
        ({"settings": "c_min"}, "settings is 'c_min'; expected a dict of settings by their names"),
        ({"settings": {"lr": 0.2}}, r"lr is set twice, to 0\.1 and to 0\.2: give it once"),
        ({"settings": {"train.lr": 0.2}}, r"lr is set twice, to 0\.1 and to 0\.2: give it once"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"random_state": -1}, "is -1; expected 0 to"),
        ({"lr": 1e30}, "No run finished"),
    ],
)
def test_bad_parameters_are_sentences(iris, changes, said):
    with pytest.raises(GraphjouleError, match=said):
        quick(**changes).fit(*iris)


@pytest.mark.parametrize("name", ["output_dropout", "model.output_dropout"])
def test_the_dropout_of_the_head_may_be_set_by_itself(iris, name):
    options = quick(dropout=0.1, settings={name: 0.3}).fit(*iris).recipe_.model.options
    assert (options["dropout"], options["output_dropout"]) == (0.1, 0.3)


EYE = np.eye(3)


@pytest.mark.parametrize("given", [(EYE, EYE), [EYE, EYE], [EYE, sp.csr_matrix(EYE)], (EYE, "knn"), (EYE, EYE, 1)])
def test_a_pair_that_is_no_graph_is_a_sentence(given):
    for model in (quick(), EGNNRegressor(device="cpu")):
        with pytest.raises(GraphjouleError, match=r"whose first has two dimensions; .*csr_array\(adjacency\)"):
            model.fit(given, [0, 1, 1])


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


X = np.arange(6.0).reshape(3, 2)
DIRECTED = torch.tensor([[0, 1], [1, 2]])
ADJACENCY = sp.csr_matrix(np.array([[0, 1, 0], [0, 0, 1], [0, 0, 0]]))


@pytest.mark.parametrize("graph", [DIRECTED, DIRECTED.numpy(), ADJACENCY, sp.coo_array(ADJACENCY), path3().graph()])
@pytest.mark.parametrize("x", [X, X.tolist(), torch.from_numpy(X), torch.from_numpy(X).int()])
def test_a_pair_in_any_of_its_forms_is_the_same_graph(x, graph):
    given = read_graph_like((x, graph))
    assert given.features.equal(torch.from_numpy(X).float())
    assert given.graph.to_dense().equal(path3().graph().to_dense())
    assert given.labels is None


def test_weights_of_an_adjacency_count():
    assert read_graph_like((X, ADJACENCY * 3)).graph.degree.tolist() == [3, 6, 3]


def test_sparse_features_stay_sparse():
    words = sp.csr_matrix(([1.0], ([0], [3])), shape=(3, 9))
    for x in (words, SparseFeatures.from_scipy(words)):
        given = read_graph_like((x, ADJACENCY))
        assert isinstance(given.features, SparseFeatures)
        assert given.features.to_dense()[0, 3] == 1


def test_features_in_a_sparse_layout_of_torch_stay_sparse():
    x = torch.eye(9)[:3]
    for given in ((x.to_sparse(), DIRECTED), Data(x=x.to_sparse(), edge_index=DIRECTED)):
        features = read_graph_like(given).features
        assert isinstance(features, SparseFeatures)
        assert features.to_dense().equal(x)


def test_a_task_brings_its_labels_under_their_names(tiny_task):
    given = read_graph_like(tiny_task)
    assert given.labels[given.is_known].tolist() == [0, 0, 0, 1, 1]
    assert given.is_known.tolist() == [True] * 5 + [False]


def test_pygs_data_with_and_without_labels_and_weights():
    plain = read_graph_like(Data(x=torch.ones(3, 2), edge_index=DIRECTED))
    assert plain.labels is None
    assert plain.graph.num_edges == 2
    full = read_graph_like(
        Data(torch.ones(3, 2), DIRECTED, y=torch.tensor([[1], [-1], [0]]), edge_weight=torch.tensor([2.0, 3.0]))
    )
    assert (full.labels.tolist(), full.is_known) == ([1, -1, 0], None)  # what -1 means, the classifier is told
    assert full.graph.degree.tolist() == [2, 5, 3]


@pytest.mark.parametrize("features", [X, X.tolist(), sp.csr_matrix(X), torch.from_numpy(X), ([1, 2], [3, 4])])
def test_features_alone_are_no_graph(features):
    assert read_graph_like(features) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((X, torch.tensor([[0], [7]])), "edge_index names node 7"),
        ((X, ADJACENCY[:2]), r"The adjacency has shape \[2, 3\]; expected \[3, 3\]"),
        ((X * np.nan, DIRECTED), "The features hold nan"),
        ((X[:, 0], DIRECTED), "expected .num_nodes, num_features."),
        (Data(edge_index=DIRECTED), "lacks x or edge_index"),
    ],
)
def test_what_is_no_graph_is_a_sentence(given, said):
    with pytest.raises(GraphjouleError, match=said):
        read_graph_like(given)


X_OF_LABELS, Y = load_iris(return_X_y=True)
NAMES = load_iris().target_names[Y]


@pytest.mark.parametrize("form", [list, lambda y: np.array(y, dtype=object)])
def test_none_among_text_says_how_to_mark_a_row(form):
    y = form([None if row == 7 else name for row, name in enumerate(NAMES.tolist())])
    edges = np.array([[0, 1], [1, 0]])
    for x in (X_OF_LABELS, (X_OF_LABELS, edges)):
        with pytest.raises(GraphjouleError, match=r"label of row 7 is None; .* unlabeled .*: write unlabeled=''"):
            EGNNClassifier(device="cpu").fit(x, y)


@pytest.mark.parametrize("y", [np.where(Y == 0, -1, 1), Y - 1, (Y - 1).astype(float)])
def test_minus_1_is_a_class_or_no_label_only_if_it_is_said(y):
    quick = {"num_layers": 1, "hidden_channels": 4, "epochs": 2, "device": "cpu"}
    edges = torch.tensor([[0, 1], [1, 0]])
    data = Data(x=torch.from_numpy(X_OF_LABELS), edge_index=edges, y=torch.from_numpy(y))
    for arguments in ((X_OF_LABELS, y), ((X_OF_LABELS, edges), y), (data, None)):
        with pytest.raises(GraphjouleError, match=r"label of 50 of 150 rows is -1, .*unlabeled=None .*unlabeled=-1"):
            EGNNClassifier(**quick).fit(*arguments)
        model = EGNNClassifier(unlabeled=None, **quick).fit(*arguments)
        assert model.classes_.tolist() == sorted(set(y.tolist()))
        assert 0 <= model.score(*arguments) <= 1
    with pytest.raises(GraphjouleError, match="label of 50 of 150 rows is -1"):
        EGNNClassifier(**quick).fit(X_OF_LABELS, Y).score(X_OF_LABELS, y)


@pytest.mark.parametrize(("marker", "y"), [(-1, np.full(150, -1)), ("", np.full(150, ""))])
def test_no_label_at_all_is_a_sentence(marker, y):
    with pytest.raises(GraphjouleError, match=f"No label is known: all 150 .*unlabeled is {marker!r}.*two classes"):
        EGNNClassifier(device="cpu", unlabeled=marker).fit(X_OF_LABELS, y)


def test_one_class_is_named_and_how_the_marker_becomes_another():
    with pytest.raises(GraphjouleError, match=r"The labels have one class, 4; at least two classes are needed\.$"):
        EGNNClassifier(device="cpu").fit(X_OF_LABELS, np.full(150, 4))
    with pytest.raises(
        GraphjouleError, match=r"one class, 4; .* Rows with -1 count .*; with unlabeled=None it is a cl"
    ):
        EGNNClassifier(device="cpu", unlabeled=-1).fit(X_OF_LABELS, np.where(Y == 0, 4, -1))


def test_nan_is_never_known():
    assert known_labels(np.array([1.0, np.nan, -1.0]), None).tolist() == [True, False, True]
    assert known_labels(np.array([1.0, np.nan, -1.0]), -1).tolist() == [True, False, False]


@pytest.mark.parametrize("y", [[0, 1], np.array(["a", ""]), np.array([[1], [2]]), np.array([0.5, np.nan])])
def test_other_labels_pass(y):
    refuse_none(y)


def test_classes_are_sorted_and_numbered():
    labels, is_known = np.array([5, -1, 2, 5]), np.array([True, False, True, True])
    classes, codes = classes_of(labels, is_known, -1)
    assert (classes.tolist(), codes.tolist()) == ([2, 5], [1, 0, 1])


def test_columns_get_mean_0_and_variance_1_and_the_next_matrix_the_same_numbers():
    x = normal(50, 3) * torch.tensor([1e6, 1.0, 1e-6]) + 5
    scaling = Scaling.of(x)
    scaled = scaling.apply(x).double()
    assert torch.allclose(scaled.mean(dim=0), torch.zeros(3).double(), atol=1e-5)
    assert torch.allclose(scaled.var(dim=0, correction=0), torch.ones(3).double(), atol=1e-4)
    assert scaling.apply(x[:1]).equal(scaling.apply(x)[:1])
    assert scaling.apply(x).dtype == torch.get_default_dtype()


@pytest.mark.parametrize("value", [0.1, 0.0, -1e30])
def test_a_constant_column_becomes_zero_on_any_matrix(value):
    scaling = Scaling.of(torch.full((7, 1), value))
    assert not scaling.apply(torch.full((7, 1), value)).any()
    assert not scaling.apply(torch.tensor([[value + 3]])).any()


def test_one_row_and_no_scaling_and_sparse_features():
    assert not Scaling.of(torch.ones(1, 2)).apply(torch.ones(1, 2)).any()
    assert Scaling().apply(torch.ones(2, 2)).equal(torch.ones(2, 2))
    sparse = SparseFeatures.from_dense(torch.eye(5))
    assert Scaling.of(sparse).apply(sparse) is sparse


# Numbers, and embeddings.


@pytest.fixture(scope="module")
def numbers(iris):
    return iris[0][:, :3], iris[0][:, 3]


def regressor(**changes):
    return EGNNRegressor(**QUICK | {"device": "cpu"} | changes)


def test_numbers_are_learnt_in_their_own_unit_and_some_may_be_unknown(numbers):
    x, y = numbers
    y = 1000 + 50 * y
    few_known = np.where(np.arange(150) % 3 == 0, np.nan, y)
    model = regressor(epochs=20).fit(x, few_known)
    assert model.predict(x).shape == (150,)
    assert model.score(x, y) > 0.8
    assert model.score(x, few_known) == pytest.approx(
        model.score(x[~np.isnan(few_known)], y[~np.isnan(few_known)]), rel=1e-9
    )


def test_several_numbers_have_a_column_each_and_count_with_those_that_are_known(numbers):
    x, y = numbers
    several = np.stack([y, np.where(np.arange(150) % 2, 3 - y, np.nan)], axis=1)
    predicted = regressor(epochs=20).fit(x, several).predict(x)
    assert predicted.shape == (150, 2)
    assert np.corrcoef(predicted[:, 1], 3 - y)[0, 1] > 0.9


def test_a_regressor_takes_graphs_and_refuses_what_has_no_numbers():
    task = small_task()
    targets = task.features.sum(dim=1)
    from_task = regressor().fit(Task("n", task.features, task.graph, targets, Regression()))
    from_pair = regressor().fit((task.features, task.graph), targets.numpy())
    assert np.allclose(from_task.predict((task.features, task.graph)), from_pair.predict(task), atol=1e-4)
    for call, said in [
        (lambda: regressor().fit(task), "Task 'small' is a classification; a regressor needs numbers"),
        (
            lambda: quick().fit(Task("n", task.features, task.graph, targets, Regression())),
            "a classifier needs classes",
        ),
        (lambda: regressor().fit((task.features, task.graph)), "This graph has no targets"),
        (lambda: regressor().fit((task.features, task.graph), targets[:5].numpy()), r"y has shape \[5\]; expected 30"),
        (lambda: regressor().fit(known_task("regression", about_graphs=True)), "Task 'known' predicts graphs"),
    ]:
        with pytest.raises(GraphjouleError, match=said):
            call()


@pytest.mark.parametrize("make", [quick, regressor])
def test_an_embedding_is_what_the_head_maps_to_the_prediction(iris, make):
    x, y = iris
    transformer = EGNNTransformer(make(num_runs=2)).fit(x, y)
    embedded = transformer.transform(x)
    assert embedded.shape == (150, 16)
    assert transformer.get_feature_names_out().tolist()[:2] == ["egnntransformer0", "egnntransformer1"]
    first = EGNNTransformer(make()).fit(x, y)
    assert np.allclose(first.transform(x), embedded[:, :8], atol=1e-3)
    head = inner_network(first.estimator_.models_[0]).head
    output = first.transform(x) @ head.weight.detach().double().numpy().T + head.bias.detach().double().numpy()
    if make is quick:
        probabilities = np.exp(output) / np.exp(output).sum(axis=1, keepdims=True)
        assert np.allclose(first.estimator_.predict_proba(x), probabilities, atol=1e-9)
    else:
        one = first.estimator_.models_[0]
        assert np.allclose(
            first.estimator_.predict(x), one.center.numpy() + one.scale.numpy() * output[:, 0], atol=1e-9
        )


def test_a_transformer_trains_what_it_is_given_and_nothing_else(iris):
    with pytest.raises(GraphjouleError, match="The estimator is a StandardScaler; expected an EGNNClassifier or"):
        EGNNTransformer(StandardScaler()).fit(*iris)
    pipeline = make_pipeline(EGNNTransformer(quick()), LogisticRegression(max_iter=1000)).fit(*iris)
    assert pipeline.score(*iris) > 0.9


@pytest.mark.parametrize("turned", [lambda x: x[::-1], lambda x: x[:, ::-1], np.asfortranarray])
def test_arrays_may_be_turned_round(turned):
    x, y = turned(X_OF_LABELS), Y[::-1]
    model = quick().fit(x, y)
    assert (model.predict(x) == quick().fit(x.copy(), y.copy()).predict(x.copy())).all()
    EGNNRegressor(**QUICK, device="cpu").fit(x, x[::-1, 0]).predict(x)
