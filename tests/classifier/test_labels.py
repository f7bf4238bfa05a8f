import numpy as np
import pytest
from sklearn.datasets import load_iris

from graphjoule.classifier import EGNNClassifier
from graphjoule.classifier.labels import classes_of, refuse_none
from graphjoule.errors import GraphjouleError

X, Y = load_iris(return_X_y=True)
NAMES = load_iris().target_names[Y]


@pytest.mark.parametrize("form", [list, lambda y: np.array(y, dtype=object)])
def test_none_among_text_says_which_marker_there_is(form):
    y = form([None if row == 7 else name for row, name in enumerate(NAMES.tolist())])
    with pytest.raises(GraphjouleError, match=r"label of row 7 is None; .* unlabeled, which is -1: write unlabeled=''"):
        EGNNClassifier(device="cpu").fit(X, y)
    edges = np.array([[0, 1], [1, 0]])
    with pytest.raises(GraphjouleError, match=r"label of row 7 is None; .* None says that every label is known"):
        EGNNClassifier(device="cpu", unlabeled=None).fit((X, edges), y)


@pytest.mark.parametrize(("marker", "y"), [(-1, np.full(150, -1)), ("", np.full(150, ""))])
def test_no_label_at_all_is_a_sentence(marker, y):
    with pytest.raises(GraphjouleError, match=f"No label is known: all 150 .*unlabeled is {marker!r}.*two classes"):
        EGNNClassifier(device="cpu", unlabeled=marker).fit(X, y)


def test_one_class_is_named():
    with pytest.raises(GraphjouleError, match="The labels have one class, 4; at least two classes are needed"):
        EGNNClassifier(device="cpu").fit(X, np.where(Y == 0, 4, -1))


@pytest.mark.parametrize("y", [[0, 1], np.array(["a", ""]), np.array([[1], [2]]), np.array([0.5, np.nan])])
def test_other_labels_pass(y):
    refuse_none(y, -1)


def test_classes_are_sorted_and_numbered():
    labels, is_known = np.array([5, -1, 2, 5]), np.array([True, False, True, True])
    classes, codes = classes_of(labels, is_known, -1)
    assert (classes.tolist(), codes.tolist()) == ([2, 5], [1, 0, 1])
