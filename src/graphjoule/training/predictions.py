"""Predictions as a table: every node's class, how sure the model is, and whether the class was known before."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from graphjoule.files import write_text


def write_predictions(
    path: str | Path, ids: Sequence[str], probabilities: Tensor, labels: Tensor, classes: Sequence[str]
) -> None:
    """Write a CSV file, whole or not at all.

    The columns are ``id``; ``label``, the most probable class; ``given``, true where the label was known, so that the
    model may have learnt it; and ``probability_CLASS`` for every class.

    Args:
        path: the file; its folder must exist.
        ids: name of every node.
        probabilities: shape ``[num_nodes, num_classes]``.
        labels: class of every node, -1 where unknown.
        classes: name of every class.
    """
    write_text(path, predictions_csv(ids, probabilities, labels, classes))


def predictions_csv(ids: Sequence[str], probabilities: Tensor, labels: Tensor, classes: Sequence[str]) -> str:
    """The text of the table; see `write_predictions`.

    >>> import torch
    >>> print(predictions_csv(["a"], torch.tensor([[0.25, 0.75]]), torch.tensor([-1]), ["cat", "dog"]), end="")
    id,label,given,probability_cat,probability_dog
    a,dog,false,0.25,0.75
    """
    text = io.StringIO()
    # Python quotes a line break only if it is the one between its rows, so a name with another needs quotes everywhere.
    needs_quotes = any("\r" in name for name in (*ids, *classes))
    writer = csv.writer(text, quoting=csv.QUOTE_ALL if needs_quotes else csv.QUOTE_MINIMAL, lineterminator="\n")
    writer.writerow(["id", "label", "given", *(f"probability_{name}" for name in classes)])
    best, known = probabilities.argmax(dim=1).tolist(), (labels >= 0).tolist()
    for name, winner, is_given, row in zip(ids, best, known, probabilities.tolist(), strict=True):
        # Nine digits: more than a float32 network means, and enough to tell two of its numbers apart.
        writer.writerow([name, classes[winner], str(is_given).lower(), *(f"{value:.9g}" for value in row)])
    return text.getvalue()
