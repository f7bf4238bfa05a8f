import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from torch_geometric.data import Data

from graphjoule.classifier import EGNNClassifier
from graphjoule.classifier.labels import classes_of, known_labels, refuse_none
from graphjoule.errors import GraphjouleError

X, Y = load_iris(return_X_y=True)
NAMES = load_iris().target_names[Y]


@pytest.mark.parametrize("form", [list, lambda y: np.array(y, dtype=object)])
def test_none_among_text_says_how_to_mark_a_row(form):
    y = form([None if row == 7 else name for row, name in enumerate(NAMES.tolist())])
    edges = np.array([[0, 1], [1, 0]])
    for x in (X, (X, edges)):
        with pytest.raises(GraphjouleError, match=r"label of row 7 is None; .* unlabeled .*: write unlabeled=''"):
            EGNNClassifier(device="cpu").fit(x, y)


@pytest.mark.parametrize("y", [np.where(Y == 0, -1, 1), Y - 1, (Y - 1).astype(float)])
def test_minus_1_is_a_class_or_no_label_only_if_it_is_said(y):
    quick = {"num_layers": 1, "hidden_channels": 4, "epochs": 2, "device": "cpu"}
    edges = torch.tensor([[0, 1], [1, 0]])
    data = Data(x=torch.from_numpy(X), edge_index=edges, y=torch.from_numpy(y))
    for given in ((X, y), ((X, edges), y), (data, None)):
        with pytest.raises(GraphjouleError, match=r"label of 50 of 150 rows is -1, .*unlabeled=None .*unlabeled=-1"):
            EGNNClassifier(**quick).fit(*given)
        model = EGNNClassifier(unlabeled=None, **quick).fit(*given)
        assert model.classes_.tolist() == sorted(set(y.tolist()))
        assert 0 <= model.score(*given) <= 1
    with pytest.raises(GraphjouleError, match="label of 50 of 150 rows is -1"):
        EGNNClassifier(**quick).fit(X, Y).score(X, y)


@pytest.mark.parametrize(("marker", "y"), [(-1, np.full(150, -1)), ("", np.full(150, ""))])
def test_no_label_at_all_is_a_sentence(marker, y):
    with pytest.raises(GraphjouleError, match=f"No label is known: all 150 .*unlabeled is {marker!r}.*two classes"):
        EGNNClassifier(device="cpu", unlabeled=marker).fit(X, y)


def test_one_class_is_named_and_how_the_marker_becomes_another():
    with pytest.raises(GraphjouleError, match=r"The labels have one class, 4; at least two classes are needed\.$"):
        EGNNClassifier(device="cpu").fit(X, np.full(150, 4))
    with pytest.raises(
        GraphjouleError, match=r"one class, 4; .* Rows with -1 count .*; with unlabeled=None it is a cl"
    ):
        EGNNClassifier(device="cpu", unlabeled=-1).fit(X, np.where(Y == 0, 4, -1))


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
