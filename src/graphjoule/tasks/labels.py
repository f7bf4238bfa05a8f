"""Columns of a table as targets: what labels ask for, and every row's target; imports no torch."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphjoule.errors import GraphjouleError, choices
from graphjoule.tasks.columns import (
    LIKE_A_DATE,
    MISSING,
    Values,
    as_number,
    indicators,
    positions,
    refuse_neither,
    shown,
    text_as_numbers,
    without_missing,
    yes_or_no,
)
from graphjoule.tasks.encoders import ObjectiveName
from graphjoule.tasks.reading import Table, shorten

OBJECTIVE_NAMES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)
MOST_CLASSES = 50
"""From more different numbers than these it is not guessed whether they are classes or measurements."""
_BETWEEN_LABELS = ";|,"
_SAY_UNKNOWN = {"unknown", "unlabeled", "unlabelled"}
"""Words that are a class to some people and a blank to others; in features they are a category."""
_OBJECTIVES_OF = {"loss": ("regression", "ordinal"), "positive": ("binary",), "order": ("ordinal",)}


def check_objective(
    objective: str | None, loss: str | None, positive: str | None = None, order: Sequence[str] | None = None
) -> None:
    """Refuse an unknown `objective` or `loss`, and an argument that is for another objective."""
    if objective not in (None, *OBJECTIVE_NAMES):
        raise GraphjouleError(f"`objective` is {str(objective)!r}; the choices are: {choices(OBJECTIVE_NAMES)}.")
    losses = ("squared", "absolute")
    if loss not in (None, *losses):
        raise GraphjouleError(f"`loss` is {str(loss)!r}; the choices are: {choices(losses)}.")
    asked = {"loss": loss, "positive": positive, "order": None if order is None else ",".join(order)}
    for name, value in asked.items():
        if value is not None and objective not in _OBJECTIVES_OF[name]:
            owners = " or ".join(f"`objective={owner}`" for owner in _OBJECTIVES_OF[name])
            given = "not given" if objective is None else f"{objective} here"
            raise GraphjouleError(f"`{name}` is {str(value)!r}, but it is for {owners}, and the objective is {given}.")
    if order is not None and len(set(order)) < max(2, len(order)):
        raise GraphjouleError(f"`order` is {','.join(order)!r}; expected two different classes or more, lowest first.")


def find_objective(
    table: Table,
    name: str,
    column: pa.ChunkedArray,
    asked: ObjectiveName | None,
    positive: str | None = None,
    order: Sequence[str] | None = None,
) -> tuple[ObjectiveName, tuple[str, ...]]:
    """What the labels ask for, and the names of the classes or labels; what is not clear is refused with the choices.

    Of a binary objective the `positive` class becomes the second one. Of an ordinal objective `order` has the classes,
    lowest first; by default they are numbers in their order.
    """
    different: list[str] = sorted(pc.unique(column.drop_null()).to_pylist())
    classes = _known_labels(different)
    if not classes:
        raise GraphjouleError(
            f"{table.path}, {table.unit}s {table.place(0)} to {table.place(len(column) - 1)}, column {name!r}: "
            "every label is blank; some nodes must be labelled, with at least two classes, to learn from."
        )
    if asked == "regression":
        _refuse_one_number(table, name, column)
        return "regression", (name,)
    known = int(pc.sum(pc.is_in(column, pa.array(classes, pa.string()))).as_py())
    if asked is None:
        _ask(table, name, classes, known)
    if asked == "multilabel":
        return "multilabel", _label_names([value for value in different if value.lower() not in MISSING - {"none"}])
    if order is not None:
        if foreign := [value for value in classes if value not in order]:
            row = int(pc.index(column, pa.scalar(foreign[0], column.type)).as_py())
            table.refuse(row, name, f"{shown(foreign[0])} is not in the `order` {', '.join(order)}; blank is unknown.")
        return "ordinal", tuple(order)
    if len(classes) == 1:
        row = int(pc.index(column, pa.scalar(classes[0], column.type)).as_py())
        table.refuse(row, name, f"all labels that are given are {classes[0]!r}; expected two classes or more.")
    if _are_numbers(classes):
        classes.sort(key=lambda value: (float(value), value))
        twice = next(((a, b) for a, b in pairwise(classes) if float(a) == float(b)), None)
        if twice is not None and asked != "classification":
            raise GraphjouleError(
                f"{table.path}: the column {name!r} has the labels {twice[0]!r} and {twice[1]!r}, which are one "
                "number; write them alike, or say `objective=classification` to take them for two classes."
            )
    elif asked == "ordinal":
        word = next(value for value in classes if not _are_numbers([value]))
        raise GraphjouleError(
            f"{table.path}: the column {name!r} has the label {shown(word)}; with `objective=ordinal` labels are "
            "numbers, or `order` lists them, lowest first, such as low,middle,high."
        )
    if asked == "binary":
        if len(classes) > 2:
            raise GraphjouleError(
                f"{table.path}: the column {name!r} has {len(classes):,} classes: {shorten(classes)}; with "
                "`objective=binary` there are two. Say `objective=classification` for more."
            )
        if positive is not None and positive not in classes:
            raise GraphjouleError(
                f"{table.path}: the column {name!r} has no label {positive!r} for `positive`; the classes are: "
                f"{' and '.join(classes)}."
            )
        classes.sort(key=lambda value: value == positive)
    return asked or "classification", tuple(classes)


def find_objective_of_columns(
    table: Table, columns: Values, asked: ObjectiveName | None
) -> tuple[ObjectiveName, tuple[str, ...]]:
    """What several columns of labels ask for: numbers of each node, or labels that each are there or not."""
    names = tuple(columns)
    if asked not in ("regression", "multilabel"):
        given = "" if asked is None else f", not `objective={asked}`"
        raise GraphjouleError(
            f"{table.path}: `label` names {len(names)} columns, {shorten(names)}; say `objective=regression` if each "
            f"holds a number to predict, or `objective=multilabel` if each says yes or no{given}."
        )
    for name, column in columns.items():
        if not _known_labels(pc.unique(column.drop_null()).to_pylist()):
            raise GraphjouleError(f"{table.path}: every value of the label {name!r} is blank; leave it out.")
        if asked == "regression":
            _refuse_one_number(table, name, column)
    return asked, names


def _refuse_one_number(table: Table, name: str, column: pa.ChunkedArray) -> None:
    """Refuse targets that are all one number: there is nothing to learn, and R² is not defined."""
    values = read_targets(table, name, column, "regression", (name,))
    known = np.flatnonzero(~np.isnan(values))
    if known.size and (values[known] == values[known[0]]).all():
        row = int(known[0])
        table.refuse(row, name, f"all numbers that are given are {column[row].as_py()}; expected two that differ.")


def alike(names: Sequence[str]) -> tuple[str, str] | None:
    """Two classes that a person may have meant to be one: they differ in nothing else than case or invisible signs.

    >>> alike(["red", "blue", "Red"]), alike(["red", "re\u200bd"]) is None
    (('red', 'Red'), False)
    """
    first: dict[str, str] = {}
    for name in names:
        seen = "".join(sign for sign in name if unicodedata.category(sign) != "Cf")  # such as a space of no width
        meant = unicodedata.normalize("NFKC", seen).casefold()
        if first.setdefault(meant, name) != name:
            return first[meant], name
    return None


def _known_labels(different: Sequence[str]) -> list[str]:
    """The labels without ``NA`` and the like, if all others are numbers, or if there is no other."""
    known = [value for value in different if value.lower() not in MISSING]
    return known if _are_numbers(known) else list(different)


def _are_numbers(values: Sequence[str]) -> bool:
    numbers = [as_number(value) for value in values]
    return all(number is not None and not math.isnan(number) for number in numbers)


def _label_names(different: Sequence[str]) -> tuple[str, ...]:
    """The labels in cells such as ``a;b``, ``a|b`` or ``a,b``: divided by the first of these signs that there is."""
    sign = next((sign for sign in _BETWEEN_LABELS if any(sign in value for value in different)), ";")
    return tuple(sorted({part.strip() for value in different for part in value.split(sign)} - {""}))


def _ask(table: Table, name: str, different: list[str], known: int) -> None:
    """Refuse labels that may mean two things, with what there is to choose."""
    if (several := _several_labels(different)) is not None:
        raise GraphjouleError(
            f"{table.path}: the column {name!r} has labels such as {shown(several)}; say `objective=multilabel` if "
            "that is several labels of one node, or `objective=classification` if it is one class."
        )
    if all(re.match(LIKE_A_DATE, value) for value in different):
        raise GraphjouleError(
            f"{table.path}: the column {name!r} has dates such as {shown(different[0])}; write numbers, such as days, "
            "to predict a time with `objective=regression`, or say `objective=classification` to take each for a class."
        )
    missing = next((value for value in different if value.lower() in (MISSING - {"none"}) | _SAY_UNKNOWN), None)
    if missing is not None:
        raise GraphjouleError(
            f"{table.path}: the column {name!r} has the label {missing!r}; leave it blank if it is unknown, or say "
            "`objective=classification` if it is a class."
        )
    numbers = [number for value in different if (number := as_number(value)) is not None and not math.isnan(number)]
    is_rare = len(different) > 10 and 2 * len(different) > known
    if numbers and 2 * len(numbers) >= len(different):
        has_fractions = any(not number.is_integer() for number in numbers)
        if has_fractions or is_rare or len(numbers) > MOST_CLASSES:
            raise GraphjouleError(
                f"{table.path}: the column {name!r} has {len(numbers):,} different numbers in {known:,} labels; say "
                "`objective=regression` to predict numbers, or `objective=classification` to take each for a class."
            )
    elif is_rare:
        raise GraphjouleError(
            f"{table.path}: the column {name!r} has {len(different):,} different values in {known:,} labels; is it the "
            "right `label`? Say `objective=classification` to take each for a class."
        )


def _several_labels(different: Sequence[str]) -> str | None:
    """A label that looks like several: one with a semicolon or a bar, or with a comma between other labels."""
    marked = next((value for value in different if ";" in value or "|" in value), None)
    if marked is not None:
        return marked
    parts = {value: {part.strip() for part in value.split(",")} for value in different}
    count = Counter(part for found in parts.values() for part in found)
    return next((value for value, found in parts.items() if len(found) > 1 and all(count[p] > 1 for p in found)), None)


def read_targets(table: Table, name: str, column: pa.ChunkedArray, objective: str, names: Sequence[str]) -> np.ndarray:
    """Every row's target; one that does not fit the objective is refused.

    Returns:
        Of a classification int64, -1 where unknown; of a regression float64 ``[n]``, NaN where unknown; of several
        labels per node float64 ``[n, num_labels]`` of 0 and 1, rows of NaN where unknown.
    """
    if objective == "regression":
        values = text_as_numbers(table, name, column, must=True)
        assert values is not None
        return np.array(values.to_numpy(), dtype=np.float64)
    is_class = pc.is_in(column, pa.array(names, pa.string()))
    column = pc.if_else(pc.or_(is_class, pc.is_valid(without_missing(column))), column, pa.scalar(None, column.type))
    if objective == "multilabel":
        signs = "".join(sign for sign in _BETWEEN_LABELS if not any(sign in each for each in names))
        parts = pc.split_pattern_regex(column, f"[{signs}]") if signs else pc.split_pattern(column, "\0")
        parts = parts.combine_chunks()
        rows, labels = pc.list_parent_indices(parts).to_numpy(), pc.utf8_trim_whitespace(pc.list_flatten(parts))
        found = positions(labels, names)
        unknown = np.flatnonzero((found < 0) & (pc.not_equal(labels, "").to_numpy(zero_copy_only=False)))
        matrix: np.ndarray = indicators(rows, found, len(column), len(names)).toarray().astype(np.float64)
        matrix[column.is_null().to_numpy()] = np.nan
        wrong = (int(rows[unknown[0]]), labels[int(unknown[0])].as_py()) if unknown.size else None
    else:
        matrix = positions(column, names)
        unknown = np.flatnonzero((matrix < 0) & column.is_valid().to_numpy())
        once = {name: name.removesuffix(".0") for name in names} | {"True": "true", "False": "false"}
        if unknown.size and all(once[name] != name for name in names):  # as older run folders have them from Parquet
            matrix = positions(column, [once[name] for name in names])
            unknown = np.flatnonzero((matrix < 0) & column.is_valid().to_numpy())
        wrong = (int(unknown[0]), column[int(unknown[0])].as_py()) if unknown.size else None
    if wrong is not None:
        row, value = wrong
        table.refuse(row, name, f"{value!r} is not a class of the model; those are: {shorten(names)}, or blank.")
    return matrix


def read_target_columns(table: Table, columns: Values, objective: str) -> np.ndarray:
    """Every row's targets from one column each, float64 ``[n, num_columns]``, NaN where unknown."""
    found = []
    for name, column in columns.items():
        if objective == "regression":
            found.append(read_targets(table, name, column, objective, (name,)))
            continue
        values = yes_or_no(column)
        if values is None:
            refuse_neither(table, name, column)
        found.append(np.asarray(values.to_numpy(), dtype=np.float64))
    return np.stack(found, axis=1)
