"""Columns of a table as features and as targets.

Numbers are standardised and categories one-hot, both by numbers that can be kept. By hand and not by scikit-learn: its
`StandardScaler` gives other last bits when the rows are in another order, and its `OneHotEncoder` does not say in which
row a category is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp
import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError, choices
from graphjoule.graph.features import Features
from graphjoule.tasks.facts import CategoryColumn, NumberColumn, TableColumns
from graphjoule.tasks.objective import OBJECTIVES, Classification, Objective, Regression
from graphjoule.tasks.reading import Table, is_number, shorten
from graphjoule.tasks.task import pack_features

TaskName = Literal["classification", "regression"]
LossName = Literal["squared", "absolute"]
MOST_CLASSES = 50
"""From more different numbers than these it is not guessed whether they are classes or measurements."""
MAX_CATEGORIES = 1_000
"""Different values a one-hot column may have; one with more is a name or a text and not a category."""


def measure_numbers(name: str, values: np.ndarray) -> NumberColumn:
    """Mean and standard deviation of a column, the same on every machine.

    The sums are exact before they are rounded once: NumPy's own depend on the processor's vector width in the last bit,
    and a run folder must recognise its data anywhere.

    >>> measure_numbers("age", np.array([20.0, 40.0]))
    NumberColumn(name='age', mean=30.0, std=10.0)
    """
    largest = float(np.abs(values).max())
    if float(values.min()) == float(values.max()):  # summing and dividing might leave a last bit of spread
        return NumberColumn(name=name, mean=float(values[0]), std=0.0)
    scaled = values / largest  # squares of 1e200 would overflow
    mean = math.fsum(scaled) / len(scaled)
    variance = math.fsum((scaled - mean) ** 2) / len(scaled)
    return NumberColumn(name=name, mean=mean * largest, std=math.sqrt(variance) * largest)


def keep_constant(column: NumberColumn) -> NumberColumn:
    """A constant column that becomes 1, or -1 if its value is negative, instead of 0.

    >>> keep_constant(NumberColumn(name="dummy", mean=7.0, std=0.0))
    NumberColumn(name='dummy', mean=0.0, std=7.0)
    """
    if not column.mean:
        return column.model_copy(update={"mean": -1.0, "std": 1.0})
    return column.model_copy(update={"mean": 0.0, "std": abs(column.mean)})


def measure_categories(name: str, table: Table) -> CategoryColumn:
    """The categories of a text column, sorted."""
    categories = sorted(set(pc.unique(table.text[name]).to_pylist()) - {""})
    if not categories:
        table.refuse(0, name, "every value of this `one_hot` column is blank.")
    if len(categories) > MAX_CATEGORIES:
        raise GraphjouleError(
            f"{table.path}, column {name!r} has {len(categories):,} different values; "
            f"a `one_hot` column may have {MAX_CATEGORIES:,}."
        )
    return CategoryColumn(name=name, categories=tuple(categories))


def build_features(table: Table, columns: TableColumns) -> Features:
    """The feature matrix of a table's rows, standardised and one-hot encoded by the numbers of the training graph."""
    dtype = torch.empty(0).numpy().dtype  # torch's default
    numbers = np.empty((table.num_rows, len(columns.numbers)), dtype=dtype)
    for index, column in enumerate(columns.numbers):
        numbers[:, index] = _standardise(table, column)
    if not columns.categories:
        return pack_features(torch.from_numpy(numbers))
    encoded = [_one_hot(table, column) for column in columns.categories]
    return pack_features(sp.hstack([sp.csr_matrix(numbers), *encoded], format="csr"))


def find_positions(table: Table, column: str, names: Sequence[str]) -> tuple[np.ndarray, int | None]:
    """The position of every value of a text column among `names`, and the first row with text that is not among them.

    Positions are int64, -1 for a value that is not there or blank; the row is None where all are.
    """
    values = table.text[column]
    found = pc.fill_null(pc.index_in(values, value_set=pa.array(names, pa.string())), -1).to_numpy().astype(np.int64)
    unknown = np.flatnonzero((found < 0) & pc.not_equal(values, "").to_numpy())
    return found, int(unknown[0]) if unknown.size else None


def _standardise(table: Table, column: NumberColumn) -> np.ndarray:
    values = table.numbers[column.name]
    if not column.std:
        return np.zeros(len(values))
    with np.errstate(over="ignore"):
        scaled = np.asarray((values - column.mean) / column.std)
        wrong = np.flatnonzero(~np.isfinite(scaled.astype(np.float32)))
    if wrong.size:
        row = int(wrong[0])
        table.refuse(row, column.name, f"{values[row]} is too far from the training nodes' mean {column.mean}.")
    return scaled


def _one_hot(table: Table, column: CategoryColumn) -> sp.csr_matrix:
    """One column of 0 and 1 per category; a blank has a row of zeros."""
    codes, unknown = find_positions(table, column.name, column.categories)
    if unknown is not None:
        table.refuse(
            unknown,
            column.name,
            f"{table.text[column.name][unknown].as_py()!r} is not a category the model was trained with; those are: "
            f"{shorten(column.categories)}. A blank value is allowed.",
        )
    known = np.flatnonzero(codes >= 0)
    ones = np.ones(known.size, dtype=np.float32)
    return sp.csr_matrix((ones, (known, codes[known])), shape=(len(codes), len(column.categories)))


def check_objective(task: str | None, loss: str | None) -> None:
    """Refuse a `task` or a `loss` that is no choice, and a loss without a regression."""
    if task not in (None, *OBJECTIVES):
        raise GraphjouleError(f"`task` is {task!r}; the choices are: {choices(OBJECTIVES)}.")
    losses = ("squared", "absolute")
    if loss not in (None, *losses):
        raise GraphjouleError(f"`loss` is {loss!r}; the choices are: {choices(losses)}.")
    if loss is not None and task != Regression.name:
        raise GraphjouleError(f'`loss` is {loss!r}, but it is for `task="regression"`, which is not given.')


def find_objective(table: Table, column: str, task: TaskName | None, loss: LossName | None) -> Objective:
    """What the labels ask for; see `load_tables`."""
    values = table.text[column]
    names = sorted(set(pc.unique(values).to_pylist()) - {""})
    if not names:
        raise GraphjouleError(
            f"{table.path}, {table.unit}s {table.place(0)} to {table.place(table.num_rows - 1)}, column {column!r}: "
            "every label is blank; some nodes must be labelled, with at least two classes, to learn from."
        )
    if task == Regression.name:
        return Regression(1, loss or "squared", (column,))
    if task is None and len(names) > MOST_CLASSES and all(map(is_number, names)):
        num_labelled = int(pc.sum(pc.not_equal(values, "")).as_py())
        if 2 * len(names) > num_labelled or not all(float(name).is_integer() for name in names):
            raise GraphjouleError(
                f'{table.path}: the column {column!r} has {len(names):,} different numbers; say `task="regression"` to '
                'predict numbers or `task="classification"` to take each for a class.'
            )
    if len(names) == 1:
        row = int(pc.index(values, names[0]).as_py())
        table.refuse(row, column, f"all labels that are given are {names[0]!r}; expected two classes or more.")
    if all(map(is_number, names)):
        names.sort(key=lambda name: (float(name), name))
    return Classification(len(names), tuple(names))


def read_targets(table: Table, column: str, objective: Objective) -> Tensor:
    """Every row's class or number; one that does not fit the objective is refused."""
    if isinstance(objective, Classification):
        numbers, unknown = find_positions(table, column, objective.classes)
        if unknown is not None:
            value = table.text[column][unknown].as_py()
            shown = shorten(objective.classes)
            table.refuse(unknown, column, f"{value!r} is not a class of the model; those are: {shown}, or blank.")
        return torch.from_numpy(numbers)
    hint = '; with `task="regression"` every label must be a finite number or blank'
    values = table.numbers_of_text(column, hint, may_be_blank=True)
    targets = torch.from_numpy(values).to(torch.get_default_dtype())
    if targets.isinf().any():
        row = int(targets.isinf().nonzero()[0])
        table.refuse(row, column, f"{values[row]} is too large to train on; divide all numbers by the same one.")
    return targets
