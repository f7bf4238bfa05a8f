"""The labels given to a classifier: which classes they have, and what is refused about them."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets

from graphjoule.errors import GraphjouleError


def refuse_none(y: Any, unlabeled: Any) -> None:
    """Refuse None among the labels: it is not what marks a node without one.

    Args:
        y: the labels in any form that NumPy reads.
        unlabeled: the label that means "unknown"; None if there is none.
    """
    for row, label in enumerate(np.asarray(y, dtype=object).ravel()):
        if label is None:
            marker = "None says that every label is known" if unlabeled is None else f"which is {unlabeled!r}"
            raise GraphjouleError(
                f"The label of row {row} is None; a row without a label has the label of the parameter unlabeled, "
                f"{marker}: write unlabeled='' and '' for text, or unlabeled=-1 and -1 for numbers."
            )


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
        raise GraphjouleError(f"The labels have one class, {classes.tolist()[0]!r}; at least two classes are needed.")
    return classes, codes
