"""The labels given to a classifier: which classes they have, and what is refused about them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets

from graphjoule.errors import GraphjouleError


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
    return np.array([not _is_nan(value) and (unlabeled is None or value != unlabeled) for value in values], dtype=bool)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def classes_of(labels: np.ndarray, is_known: np.ndarray, unlabeled: Any) -> tuple[np.ndarray, np.ndarray]:
    """The classes, sorted, and the number of its class for every known label.

    Args:
        labels: one per row.
        is_known: which of them are known.
        unlabeled: the label that means "unknown", for the sentence if none is left.

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
