"""Predictions as a table: what a model says about every node, and whether that was known before."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError, counted
from graphjoule.files import write_text
from graphjoule.tasks.objective import Classification, MultiLabel, Objective, Ordinal
from graphjoule.training.calibration import has_sets, prediction_intervals, prediction_sets

logger = logging.getLogger("graphjoule")
Columns = Mapping[str, Sequence[str]]


def write_predictions(
    path: str | Path,
    ids: Sequence[str],
    predictions: Tensor,
    targets: Tensor,
    objective: Objective,
    more: Columns = MappingProxyType({}),
) -> None:
    """Write a CSV file, whole or not at all.

    Names are written as they are in the data; where a spreadsheet would run one as a formula, a warning is logged.

    The first column is ``id``. Of a classification follow ``label``, the most probable class, ``given``, and
    ``probability_CLASS`` for every class; of several labels ``labels``, those above 0.5 with ``;`` between them,
    ``given``, and ``probability_LABEL`` for every label; where there is none above 0.5 the sign stands alone, because
    a blank is an unknown label in a table. Of a regression follow ``prediction``, or ``prediction_TARGET`` for every
    target where they have names, and ``given``, with several targets also ``given_TARGET``. Of ordered classes follow
    ``label``, the class whose rank is nearest, where all classes are numbers ``prediction``, a number between them,
    ``expected_rank``, 1 for the lowest class, and ``given``. ``given`` is true where a target, or one of several, was
    known, so that the model may have learnt it.

    Args:
        path: the file; its folder must exist.
        ids: name of every node.
        predictions: as `Objective.prediction` makes them, shape ``[num_nodes, out_channels]``.
        targets: what is known of every node.
        objective: what was asked.
        more: columns to write behind these, such as `coverage_columns`.
    """
    write_text(path, predictions_csv(ids, predictions, targets, objective, more))
    names = objective.names if has_sets(objective) else ()
    if formulas := [text for text in (*ids, *names) if _is_formula(text)]:
        logger.warning(
            "%s: %s such as %r would be run as a formula by a spreadsheet; import its columns as text there.",
            path,
            counted(len(formulas), "name"),
            formulas[0][:40],
        )


def _is_formula(text: str) -> bool:
    """Whether a spreadsheet takes a cell for a formula.

    Such a name is written as it is, and said: an apostrophe before it, the usual advice, would make it another name,
    and a table that is joined by it, such as one of people called @alice, would lose its rows without a word.

    >>> [_is_formula(text) for text in ("=1+1", "@alice", "-1.5", "+49", "alice")]
    [True, True, False, False, False]
    """
    if not text.startswith(("=", "+", "-", "@", "\t", "\r")):
        return False
    try:
        float(text)
    except ValueError:
        return True
    return False


def coverage_columns(predictions: Tensor, objective: Objective, threshold: Tensor) -> Columns:
    """What a coverage adds: ``set``, classes or labels with ``;`` between them, or ``lower`` and ``upper``.

    Args:
        predictions: as `Objective.prediction` makes them, without a temperature.
        objective: what was asked.
        threshold: see `graphjoule.training.calibration.Calibration.threshold`.

    >>> import torch
    >>> from graphjoule.tasks import Regression
    >>> pets = Classification(2, ("cat", "dog"))
    >>> coverage_columns(torch.tensor([[0.25, 0.75], [0.5, 0.5]]), pets, torch.tensor([0.5]))
    {'set': ['dog', 'cat;dog']}
    >>> coverage_columns(torch.tensor([[1.5]]), Regression(), torch.tensor([0.25]))
    {'lower': ['1.25'], 'upper': ['1.75']}
    """
    if not has_sets(objective):
        ends = zip(("lower", "upper"), prediction_intervals(predictions, threshold), strict=True)
        return {
            f"{end}{name}": [f"{value:.9g}" for value in values[:, place].tolist()]
            for end, values in ends
            for place, name in enumerate(_target_names(objective))
        }
    classes = objective.names
    if divided := next((name for name in classes if ";" in name), None):
        raise GraphjouleError(
            f"The class {divided!r} has a semicolon, which stands between the classes of a set; rename it in the table."
        )
    rows = prediction_sets(objective, predictions, threshold).tolist()
    return {"set": [";".join(name for name, is_in in zip(classes, row, strict=True) if is_in) for row in rows]}


def predictions_csv(
    ids: Sequence[str],
    predictions: Tensor,
    targets: Tensor,
    objective: Objective,
    more: Columns = MappingProxyType({}),
) -> str:
    """The text of the table; see `write_predictions`.

    >>> import torch
    >>> from graphjoule.tasks import Regression
    >>> pets, sizes = Classification(2, ("cat", "dog")), Regression()
    >>> print(predictions_csv(["a"], torch.tensor([[0.25, 0.75]]), torch.tensor([-1]), pets), end="")
    id,label,given,probability_cat,probability_dog
    a,dog,false,0.25,0.75
    >>> print(predictions_csv(["a"], torch.tensor([[1.5]]), torch.tensor([1.4]), sizes), end="")
    id,prediction,given
    a,1.5,true
    >>> likes, stars = MultiLabel(2, ("tea", "jam")), Ordinal(3, ("low", "middle", "high"))
    >>> print(predictions_csv(["a"], torch.tensor([[0.5, 1]]), torch.tensor([[0, torch.nan]]), likes), end="")
    id,labels,given,probability_tea,probability_jam
    a,jam,true,0.5,1
    >>> print(predictions_csv(["a"], torch.tensor([[1.75]]), torch.tensor([-1]), stars), end="")
    id,label,expected_rank,given
    a,high,2.75,false
    >>> print(predictions_csv(["a"], torch.tensor([[0.25]]), torch.tensor([-1]), Ordinal(3, ("2", "5", "10"))), end="")
    id,label,prediction,expected_rank,given
    a,2,2.75,1.25,false
    """
    numbers = [_nine_digits(row) for row in predictions.tolist()]
    known = [str(is_given).lower() for is_given in objective.is_known(targets).tolist()]
    names = objective.names
    if isinstance(objective, Classification):
        head = ["id", "label", "given", *(f"probability_{name}" for name in names)]
        labels = [names[winner] for winner in objective.found_classes(predictions).tolist()]
        rows = [[*row[:3], *row[3]] for row in zip(ids, labels, known, numbers, strict=True)]
    elif isinstance(objective, MultiLabel):
        head = ["id", "labels", "given", *(f"probability_{name}" for name in names)]
        sign = next((sign for sign in ";|," if not any(sign in name for name in names)), ";")
        found = (predictions > 0.5).tolist()  # as the metrics count them
        labels = [
            sign.join(name for name, is_there in zip(names, row, strict=True) if is_there) or sign for row in found
        ]
        rows = [[*row[:3], *row[3]] for row in zip(ids, labels, known, numbers, strict=True)]
    elif isinstance(objective, Ordinal):
        labels = [names[rank] for rank in objective.found_classes(predictions).tolist()]
        grades, ranks = _grades(names), predictions.view(-1)
        between = [] if grades is None else [_nine_digits(_interpolated(grades, ranks).tolist())]
        head = ["id", "label", *("prediction" for _ in between), "expected_rank", "given"]
        rows = [list(row) for row in zip(ids, labels, *between, _nine_digits((ranks + 1).tolist()), known, strict=True)]
    else:
        targets_of = _target_names(objective)
        of_each = [] if len(targets_of) == 1 else (~targets.isnan()).tolist()
        head = ["id", *(f"prediction{name}" for name in targets_of), "given"]
        head += [f"given{name}" for name in targets_of if of_each]
        is_given = [[str(each).lower() for each in row] for row in of_each or [[]] * len(known)]
        rows = [[row[0], *row[1], row[2], *row[3]] for row in zip(ids, numbers, known, is_given, strict=True)]
    # Python quotes a line break only if it is the one between its rows, so a name with another needs quotes everywhere.
    needs_quotes = any("\r" in name for name in (*ids, *names))
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL if needs_quotes else csv.QUOTE_MINIMAL, lineterminator="\n")
    writer.writerows([[*head, *more], *([*row, *last] for row, *last in zip(rows, *more.values(), strict=True))])
    return text.getvalue()


def _grades(names: Sequence[str]) -> Tensor | None:
    """The ordered classes as numbers; None where one of them is a word.

    >>> _grades(["2", "5", "10"]), _grades(["low", "1"]), _grades(["1", "inf"])
    (tensor([ 2.,  5., 10.], dtype=torch.float64), None, None)
    """
    try:
        grades = torch.tensor([float(name) for name in names], dtype=torch.float64)
    except ValueError:
        return None
    return grades if bool(grades.isfinite().all()) else None


def _interpolated(grades: Tensor, ranks: Tensor) -> Tensor:
    """The numbers that lie between neighbouring grades as the ranks, from 0, lie between whole ones."""
    low = ranks.double().floor().long().clamp(0, len(grades) - 2)
    return grades[low] + (ranks.double() - low) * (grades[low + 1] - grades[low])


def _nine_digits(values: Sequence[float]) -> list[str]:
    """Numbers as text: more digits than a float32 network means, and enough to tell two of its numbers apart."""
    return [f"{value:.9g}" for value in values]


def _target_names(objective: Objective) -> list[str]:
    """What follows "prediction" in the head: nothing for a single target without a name."""
    return [f"_{name}" if name else "" for name in objective.names]
