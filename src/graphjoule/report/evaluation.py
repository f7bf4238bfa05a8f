"""What a practitioner looks at: tables, curves and pictures of the best run's predictions, from its evaluation."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from graphjoule.errors import counted
from graphjoule.report.cells import PARTS
from graphjoule.report.svg import NARROW, NUM_COLOURS, Bars, Chart, Dots, Line, draw_plane
from graphjoule.tasks.metrics import NUM_BINS
from graphjoule.tasks.objective import LOSS, Binary, Classification, MultiLabel, Objective, Ordinal, Regression
from graphjoule.training.evaluation import GRID, Evaluation, PartEvaluation, Planes

Array = NDArray[Any]

_MOST_LINES = 8  # of a chart, one style each
_MOST_IN_MATRIX = 30  # classes; more are a list of the most frequent confusions
_MOST_TARGETS = 4  # of a regression, two charts each
_MOST_ROWS = 100  # classes of a table
_CURVE_POINTS = 100
_GREY = "p10"
_FEW = 5  # predictions of a bin; the accuracy of fewer says nothing
_SCATTER_POINTS = 1500


@dataclass(frozen=True, eq=False)
class _Sample:
    """A part's sample as arrays."""

    objective: Objective
    p: Array
    t: Array
    weight: Array

    @classmethod
    def of(cls, objective: Objective, part: PartEvaluation) -> _Sample:
        return cls(objective, part.prediction.double().numpy(), part.target.numpy(), part.weight.double().numpy())


def evaluation_view(evaluation: Evaluation, most_points: int) -> dict[str, Any]:
    """What the template shows of an evaluation: words, rows of tables, and charts, the test nodes first.

    The plane shows at most so many nodes; 0 is no plane.
    """
    objective, unit = evaluation.objective, evaluation.unit
    parts = [_part_view(evaluation, name, part) for name, part in reversed(evaluation.parts.items())]
    by = "loss" if evaluation.select_on == LOSS else objective.metric(evaluation.select_on).label
    run = f"seed {evaluation.seed}, the best run by its {PARTS['val']} {by}"
    planes = evaluation.planes if most_points else None
    return {
        "run": run,
        "unit": unit,
        "parts": parts,
        "plane": None if planes is None else _plane_view(evaluation, planes, most_points),
    }


def _part_view(evaluation: Evaluation, name: str, part: PartEvaluation) -> dict[str, Any]:
    objective, unit = evaluation.objective, evaluation.unit
    sample = _Sample.of(objective, part)
    num_sampled = len(sample.weight)
    where = f"{PARTS['val' if name == 'val' else 'test']} {unit}s"
    note = ""
    if num_sampled < part.num_nodes:
        note = (
            f"Tables of classes count all {part.num_nodes:,} {where}. Curves and bars are made from a sample of "
            f"{num_sampled:,}, which has its share of every class; each {unit} of it counts for those it stands for."
        )
    names = objective.names
    rows = class_rows(names, part.counts) if part.counts is not None else []
    charts = [*curve_charts(sample, where), *reliability_charts(sample, where), *residual_charts(sample, where)]
    return {
        "name": where,
        "size": counted(part.num_nodes, f"{PARTS[name]} {unit}"),  # type: ignore[index]
        "note": note,
        "warnings": evaluation.warnings(name),
        "rows": rows[:_MOST_ROWS],
        "num_left_out": max(0, len(rows) - _MOST_ROWS),
        "head": "label" if isinstance(objective, MultiLabel) else "class",
        "matrix": matrix_view(names, part.confusion),
        "confusions": worst_confusions(names, part.confusion),
        "charts": charts,
        "places": place_charts(sample, part, where, unit) if num_sampled else [],
    }


# Tables.


def class_rows(names: Sequence[str], counts: Tensor) -> list[list[str]]:
    """Name, precision, recall, F1, how many have the class, how many are said to; empty where nothing defines it.

    >>> import torch
    >>> class_rows(["a", "b"], torch.tensor([[3, 0], [4, 0], [3, 1], [4, 4]]))
    [['a', '75.0', '100.0', '85.7', '3', '4'], ['b', '', '0.0', '0.0', '1', '0']]
    """
    rows = []
    for name, (right, found, there, _) in zip(names, counts.T.tolist(), strict=True):
        scores = ((right, found), (right, there), (2 * right, found + there))
        rows.append([name, *(f"{100 * a / b:.1f}" if b else "" for a, b in scores), f"{there:,}", f"{found:,}"])
    return rows


def matrix_view(names: Sequence[str], confusion: Tensor | None) -> dict[str, Any] | None:
    """The confusion matrix, each cell with a shade from 0 to 9 by its share of the row; None if it would be too large.

    >>> import torch
    >>> matrix_view(["a", "b"], torch.tensor([[3, 1], [0, 2]]))["rows"][0]["cells"]
    [{'text': '3', 'kind': 'g7'}, {'text': '1', 'kind': 'w3'}]
    """
    if confusion is None or len(names) > _MOST_IN_MATRIX:
        return None
    rows = []
    for k, (name, counts) in enumerate(zip(names, confusion.tolist(), strict=True)):
        total = max(sum(counts), 1)
        shades = [0 if not n else 1 + min(8, math.floor(9 * n / total)) for n in counts]
        cells = [
            {"text": f"{n:,}", "kind": f"{'g' if j == k else 'w'}{shade}"}
            for j, (n, shade) in enumerate(zip(counts, shades, strict=True))
        ]
        rows.append({"name": name, "cells": cells})
    return {"names": list(names), "rows": rows}


def worst_confusions(names: Sequence[str], confusion: Tensor | None, most: int = 15) -> list[list[str]]:
    """The most frequent confusions where the matrix is too large: true class, predicted class, how often."""
    if confusion is None or len(names) <= _MOST_IN_MATRIX:
        return []
    wrong = confusion.clone().fill_diagonal_(0)
    order = wrong.flatten().argsort(descending=True, stable=True)[:most].tolist()
    pairs = [divmod(place, len(names)) for place in order]
    return [[names[i], names[j], f"{int(wrong[i, j]):,}"] for i, j in pairs if wrong[i, j]]


# Curves and calibration.


def columns_of(sample: _Sample) -> list[tuple[str, Array, Array, Array]]:
    """Name, score, truth (1 or 0) and weight of every class against the rest: of a binary task of the positive one."""
    objective = sample.objective
    if isinstance(objective, Binary):
        k = objective.positive
        return [(objective.classes[k], sample.p[:, k], (sample.t == k).astype(int), sample.weight)]
    if isinstance(objective, Classification):
        numbers = enumerate(objective.classes)
        return [(name, sample.p[:, k], (sample.t == k).astype(int), sample.weight) for k, name in numbers]
    if not isinstance(objective, MultiLabel):
        return []
    found = []
    for k, name in enumerate(objective.labels):
        known = ~np.isnan(sample.t[:, k])
        found.append((name, sample.p[known, k], (sample.t[known, k] == 1).astype(int), sample.weight[known]))
    return found


def curve_charts(sample: _Sample, where: str) -> list[Chart]:
    """ROC and precision-recall curves, each class against the rest, with the areas in the legend."""
    # Imported here: it takes a second, and a page without evaluations does not need it.
    from sklearn.metrics import auc, average_precision_score, precision_recall_curve, roc_curve

    roc, pr = [], []
    for name, score, truth, weight in columns_of(sample):
        if not 0 < truth.sum() < len(truth):
            continue
        false, true, _ = roc_curve(truth, score, sample_weight=weight)
        roc.append((float(auc(false, true)), name, false, true))
        precision, recall, _ = precision_recall_curve(truth, score, sample_weight=weight)
        area = float(average_precision_score(truth, score, sample_weight=weight))
        pr.append((area, name, recall[::-1], precision[::-1]))
    charts = []
    for title, short, curves, axes in (
        ("ROC curves", "AUC", roc, ("false positive rate", "true positive rate")),
        ("Precision and recall", "AP", pr, ("recall", "precision")),
    ):
        shown = sorted(curves, key=lambda curve: curve[0])[:_MOST_LINES] if len(curves) > _MOST_LINES else curves
        if not shown:
            continue
        lines = []
        for style, (area, name, x, y) in enumerate(shown):
            x, y = _thinned(x, y)
            lines.append(Line(f"{name}: {short} {100 * area:.1f} %", x, y, style))
        which = f", the {len(shown)} lowest of {len(curves)}" if len(shown) < len(curves) else ""
        mean = f", mean {short} {100 * sum(c[0] for c in curves) / len(curves):.1f} %" if len(curves) > 1 else ""
        chart_title = f"{title} of the {where}{which}{mean}"
        charts.append(Chart(chart_title, *axes, lines, x_range=(0, 1), y_range=(0, 1), size=NARROW))
    return charts


def _thinned(x: Array, y: Array) -> tuple[list[float], list[float]]:
    """A curve with at most so many points that lie evenly along it; the first and the last stay."""
    if len(x) <= _CURVE_POINTS:
        return x.tolist(), y.tolist()
    way = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y)))])
    places = np.searchsorted(way, np.linspace(0, way[-1], _CURVE_POINTS)).clip(0, len(x) - 1)
    kept = np.unique(np.concatenate([[0], places, [len(x) - 1]]))
    return x[kept].tolist(), y[kept].tolist()


def reliability(sample: _Sample) -> tuple[Array, Array, Array, float] | None:
    """Of every bin its number of predictions, mean confidence and accuracy, and the expected calibration error.

    Of several labels the bins hold all labels, and the error is the mean over labels; None for numbers.
    """
    objective = sample.objective
    if isinstance(objective, Classification):
        right = [(sample.p.argmax(axis=1) == sample.t).astype(float)]
        columns = [(sample.p.max(axis=1), right[0], sample.weight)]
    elif isinstance(objective, MultiLabel):
        columns = [
            (np.maximum(p, 1 - p), ((p > 0.5) == (t == 1)).astype(float), weight)
            for _, p, t, weight in columns_of(sample)
        ]
    else:
        return None
    columns = [column for column in columns if len(column[0])]
    if not columns:
        return None
    errors = []
    totals = np.zeros((3, NUM_BINS))
    for confidence, right_of, weight in columns:
        place = np.clip(np.ceil(confidence * NUM_BINS) - 1, 0, NUM_BINS - 1).astype(int)
        own = np.stack([np.bincount(place, w, NUM_BINS) for w in (weight, weight * confidence, weight * right_of)])
        errors.append(float(np.abs(own[2] - own[1]).sum() / own[0].sum()))
        totals += own
    with np.errstate(invalid="ignore"):
        return totals[0], totals[1] / totals[0], totals[2] / totals[0], float(np.mean(errors))


def reliability_charts(sample: _Sample, where: str) -> list[Chart]:
    """How often predictions are right, by how sure they are."""
    found = reliability(sample)
    if found is None:
        return []
    counts, confidence, accuracy, error = found
    share = counts / counts.sum()
    there = counts >= _FEW
    lines = [
        Line("what they claim", [0, 1], [0, 1], 6),
        Line(
            f"how often they are right, where there are {_FEW} or more",
            confidence[there].tolist(),
            accuracy[there].tolist(),
            0,
        ),
    ]
    bars = Bars("share of the predictions", np.linspace(0, 1, NUM_BINS + 1).tolist(), share.tolist(), is_faint=True)
    title = f"Reliability on the {where}: expected calibration error {100 * error:.1f} %"
    axes = "confidence", "share that is right"
    return [Chart(title, *axes, lines, bars=bars, x_range=(0, 1), y_range=(0, 1), size=NARROW)]


# Numbers.


def residual_charts(sample: _Sample, where: str) -> list[Chart]:
    """Of every target predictions against truth, and a histogram of how far they are off."""
    objective = sample.objective
    if not isinstance(objective, Regression):
        return []
    charts = []
    targets = sample.t.reshape(len(sample.t), -1)
    for k, name in list(enumerate(objective.names))[:_MOST_TARGETS]:
        known = ~np.isnan(targets[:, k])
        true, said = targets[known, k].astype(float), sample.p[known, k]
        if not len(true):
            continue
        of = f" of {name if objective.target_names else f'target {name}'}" if name else ""
        low, high = min(true.min(), said.min()), max(true.max(), said.max())
        ends = (float(low), float(high if high > low else low + 1))
        step = max(1, math.ceil(len(true) / _SCATTER_POINTS))
        dots = [Dots(f"{where}", true[::step].tolist(), said[::step].tolist())]
        line = [Line("predicted = true", ends, ends, 6)]
        title = f"Predicted against true{of}, {where}"
        charts.append(Chart(title, "true", "predicted", line, dots=dots, x_range=ends, y_range=ends, size=NARROW))
        off = said - true
        counts, edges = np.histogram(off, bins=30)
        title = f"Residuals{of}, {where}: mean {off.mean():.3g}, standard deviation {off.std():.3g}"
        bars = Bars(f"{where}", edges.tolist(), counts.tolist())
        reach = (float(edges[0]), float(edges[-1]))
        mark = 0.0 if reach[0] <= 0 <= reach[1] else None
        axes = "predicted less true", f"number of {where}"
        charts.append(Chart(title, *axes, [], bars=bars, mark=mark, x_range=reach, size=NARROW))
    return charts


# Where on the graph.


def node_scores(sample: _Sample) -> tuple[Array, str, bool]:
    """How good every prediction of a sample is, what the mean of it is called, and whether it is a share."""
    objective = sample.objective
    if isinstance(objective, Classification | Ordinal):
        from torch import from_numpy

        found = objective.found_classes(from_numpy(sample.p)).numpy()
        return (found == sample.t).astype(float), "accuracy", True
    targets = sample.t.reshape(len(sample.t), -1)
    known = ~np.isnan(targets)
    each = (sample.p > 0.5) == (targets == 1) if isinstance(objective, MultiLabel) else np.abs(sample.p - targets)
    mean = np.where(known, each, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return (mean, "label accuracy", True) if isinstance(objective, MultiLabel) else (mean, "mean absolute error", False)


def degree_groups(values: Array) -> list[tuple[str, Array]]:
    """Groups whose ends double: 0, 1, 2, 3–4, 5–8 and so on.

    >>> [(name, int(mask.sum())) for name, mask in degree_groups(np.array([0, 1, 3, 4, 9]))]
    [('0', 1), ('1', 1), ('3–4', 2), ('9–16', 1)]
    """
    groups = [("0", values == 0), ("1", values == 1), ("2", values == 2)]
    low, most = 3, values.max(where=np.isfinite(values), initial=0)
    while low <= most:
        high = 1 << (low - 1).bit_length()  # whole numbers: a logarithm is rounded, and a forged degree may be anything
        groups.append((f"{low}–{high}", (values >= low) & (values <= high)))
        low = high + 1
    return [(name, mask) for name, mask in groups if mask.any()]


def distance_groups(values: Array) -> list[tuple[str, Array]]:
    """One group per step up to 5, one for more, one for nodes that no training node reaches."""
    groups = [(str(k), values == k) for k in range(6)]
    groups += [("6 or more", (values >= 6) & np.isfinite(values)), ("no way", np.isinf(values))]
    return [(name, mask) for name, mask in groups if mask.any()]


def agreement_groups(values: Array) -> list[tuple[str, Array]]:
    """Fifths of the neighbours that agree, and those without a neighbour that is known."""
    ends = (0, 20, 40, 60, 80, 100)
    groups = [
        (f"{a}–{b}", (values * 100 >= a) & ((values * 100 < b) | ((b == 100) & (values <= 1))))
        for a, b in pairwise(ends)
    ]
    groups.append(("unknown", np.isnan(values)))
    return [(name, mask) for name, mask in groups if mask.any()]


def place_charts(sample: _Sample, part: PartEvaluation, where: str, unit: str) -> list[Chart]:
    """The score by degree, by distance to the nearest training node, and by homophily of the neighbourhood."""
    scores, name, is_share = node_scores(sample)
    kinds = (
        (part.degree, degree_groups, "number of neighbours" if unit == "node" else "number of nodes"),
        (part.distance, distance_groups, "steps to the nearest training node"),
        (part.agreement, agreement_groups, "neighbours with the same known target, %"),
    )
    scale = 100.0 if is_share else 1.0
    overall = scale * float(np.average(scores, weights=sample.weight))
    charts = []
    for values, group, x_label in kinds:
        if values is None:
            continue
        groups = group(values.double().numpy())
        heights = [scale * float(np.average(scores[mask], weights=sample.weight[mask])) for _, mask in groups]
        sizes = [f"n = {sample.weight[mask].sum():,.0f}" for _, mask in groups]
        bars = Bars(name, list(range(len(groups) + 1)), heights, sizes)
        top = 100.0 if is_share else 1.12 * max([*heights, overall]) or 1.0
        mean = Line(f"all {where}: {overall:.4g}{' %' if is_share else ''}", [0, len(groups)], [overall, overall], 1)
        charts.append(
            Chart(
                f"{name.capitalize()} by {x_label.removesuffix(', %')}, {where}",
                x_label,
                f"{name}, %" if is_share else name,
                [mean],
                bars=bars,
                x_range=(0, len(groups)),
                y_range=(0, top),
                x_ticks=[(k + 0.5, text) for k, (text, _) in enumerate(groups)],
                size=NARROW,
            )
        )
    return charts


# The plane.


def colour_groups(objective: Objective, target: Tensor) -> tuple[list[tuple[str, str]], Array]:
    """Names of the groups with their colours, and the group of every node: its class, or the fifth of its first target.

    Of more than ten classes the ten most frequent have a colour, all others are grey. Of several labels the colour is
    the first label that is there.
    """
    values = target.numpy()
    if isinstance(objective, Regression):
        first = values.reshape(len(values), -1)[:, 0].astype(float)
        known = first[~np.isnan(first)]
        ends = np.quantile(known, [0.2, 0.4, 0.6, 0.8]) if len(known) else np.zeros(4)
        number = np.where(np.isnan(first), 5, np.searchsorted(ends, first))
        texts = [*(f"up to {end:.3g}" for end in ends), f"above {ends[-1]:.3g}"]
        return [*((text, f"q{k}") for k, text in enumerate(texts)), ("unknown", _GREY)], number
    names = objective.names
    if isinstance(objective, MultiLabel):
        there = values == 1
        number = np.where(there.any(axis=1), there.argmax(axis=1), len(names))
        names = (*names, "no label")
    else:
        number = values
    if len(names) <= NUM_COLOURS:
        return [(name, f"p{k}") for k, name in enumerate(names)], number
    frequent = np.argsort(-np.bincount(number, minlength=len(names)), kind="stable")[:NUM_COLOURS]
    place = np.full(len(names), NUM_COLOURS)
    place[frequent] = np.arange(NUM_COLOURS)
    return [*((names[k], f"p{n}") for n, k in enumerate(frequent)), ("others", _GREY)], place[number]


def layer_names(modules: Sequence[str]) -> list[str]:
    """Modules as the chart of energies numbers them: the graph layers from 1, what comes before them is layer 0.

    >>> layer_names(["encoder", "convs.0", "convs.7"]), layer_names(["first", "second"])
    (['layer 0, the encoder', 'layer 1', 'layer 8'], ['first', 'second'])
    """
    numbers = [int(found[1]) + 1 if (found := re.fullmatch(r"convs\.(\d+)", name)) else 0 for name in modules]
    if not any(numbers):
        return list(modules)
    return [f"layer {k}" if k else f"layer 0, the {name}" for k, name in zip(numbers, modules, strict=True)]


def _plane_view(evaluation: Evaluation, planes: Planes, most: int) -> dict[str, Any]:
    part = evaluation.parts[planes.part]
    kinds, colours = colour_groups(evaluation.objective, part.target[planes.rows])
    step = max(1, math.ceil(len(colours) / most))
    kept = np.arange(0, len(colours), step)
    kept = kept[np.argsort(colours[kept], kind="stable")]  # a group after the other, so that each is a slice
    counts = np.bincount(colours[kept], minlength=len(kinds)).tolist()
    last = planes.points[-1].numpy()[kept]
    starts = np.cumsum([0, *counts]).tolist()
    groups = [
        (name, colour, [(int(x), int(y)) for x, y in last[a:b]])
        for (name, colour), a, b in zip(kinds, starts, starts[1:], strict=False)
    ]
    names = layer_names(planes.names)
    words = [
        f"{name}: {100 * share:.0f} % of its variance lies in this plane; "
        f"the typical distance from the mean is {size:.3g}"
        for name, share, size in zip(names, planes.shares, planes.sizes, strict=True)
    ]
    title = f"{len(kept):,} {PARTS[planes.part]} {evaluation.unit}s in the plane of their two main directions"  # type: ignore[index]
    return {
        "title": title,
        "svg": draw_plane(f"{title}, after {names[-1]}", GRID, groups),
        "legend": [kind for kind, count in zip(kinds, counts, strict=True) if count],
        "words": words[-1],
        "num_layers": len(words),
        "data": {
            "counts": counts,
            "words": words,
            "points": [_packed(points.numpy()[kept]) for points in planes.points],
        },
    }


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def _packed(points: Array) -> str:
    """Coordinates as text, two digits of base 36 each: half the size of JSON's numbers.

    >>> _packed(np.array([[0, 499], [36, 35]]))
    '00dv100z'
    """
    return "".join(_DIGITS[n // 36] + _DIGITS[n % 36] for n in points.flatten().tolist())
