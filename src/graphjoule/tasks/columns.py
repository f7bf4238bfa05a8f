"""Columns of a table as features and as targets: what each looks like, what becomes of it, and the numbers to keep.

By hand and not by scikit-learn: its `StandardScaler` gives other last bits when the rows are in another order, its
`OneHotEncoder` and `CountVectorizer` take Python strings, ten times slower than pyarrow's, and what they have fitted is
not JSON. Nothing here imports torch.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NoReturn, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types
import scipy.sparse as sp

from graphjoule.errors import GraphjouleError, choices, counted
from graphjoule.tasks.encoders import MOST_CATEGORIES, CategoryColumn, Encoder, NumberColumn, TableColumns, TextColumn
from graphjoule.tasks.reading import Table, first_code, is_number, shorten

ObjectiveName = Literal["classification", "binary", "ordinal", "multilabel", "regression"]
LossName = Literal["squared", "absolute"]
OBJECTIVE_NAMES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)
MAX_CATEGORIES = 1_000
"""Different values a column may have that `one_hot` names."""
FEW_VALUES = 20
"""So many different values are categories, however few rows there are."""
MOST_WORDS = 200
"""Words of a column of free text that become features: those in most rows."""
MOST_CLASSES = 50
"""From more different numbers than these it is not guessed whether they are classes or measurements."""
FAR = 1_000
"""Deviations from the mean that no value of a training graph with fewer nodes than a million can have."""
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_LIKE_A_NUMBER = r"^[^\w]{0,3}\d{1,3}([ ,.']?\d{3})*([.,]\d*)?\s*[^\w]{0,2}$"  # 1,5 or $1,200 or 12 %
_MISSING = {"na", "n/a", "#n/a", "nan", "-nan", "null", "none", "<na>", "?", "-"}
_LIKE_A_DATE = r"^\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T]|$)"
_YES_OR_NO = {"1": 1.0, "1.0": 1.0, "true": 1.0, "yes": 1.0, "0": 0.0, "0.0": 0.0, "false": 0.0, "no": 0.0}
_BETWEEN_LABELS = ";|,"
_OBJECTIVES_OF = {"loss": ("regression", "ordinal"), "positive": ("binary",), "order": ("ordinal",)}
_DATES = {
    "Y-M-D": (r"^(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})", r"\1-\2-\3"),
    "D.M.Y": (r"^(\d{1,2})\.(\d{1,2})\.(\d{4})", r"\3-\2-\1"),
    "D/M/Y": (r"^(\d{1,2})[-/](\d{1,2})[-/](\d{4})", r"\3-\2-\1"),
    "M/D/Y": (r"^(\d{1,2})[-/](\d{1,2})[-/](\d{4})", r"\3-\1-\2"),
}
Values = Mapping[str, pa.ChunkedArray]


# Features.


@dataclass(frozen=True)
class Finding:
    """What a column of features was recognised as, and what becomes of it.

    Attributes:
        name: the column.
        kind: "number", "boolean", "date", "category", "text", "constant", "names" or "blank".
        missing: how many values are missing.
        becomes: what the features are, in words.
        encoder: what makes them; None if the column is left out.
        problem: why the table is refused with this column.
    """

    name: str
    kind: str
    missing: int
    becomes: str
    encoder: Encoder | None = None
    problem: str | None = None


def recognise(table: Table, name: str, column: pa.ChunkedArray, *, is_category: bool = False) -> Finding:
    """What a column looks like and what becomes of it; a column that cannot be used has a `problem`.

    Args:
        table: where it stands.
        name: the column.
        column: its values.
        is_category: it shall be categories, whatever it looks like.
    """
    missing, known = column.null_count, len(column) - column.null_count
    try:
        read = None if is_category else _numbers(table, name, column)
        if read is not None:
            values, kind, dates = read
            missing = int(np.isnan(values).sum())
            if missing < len(values):
                return _number_finding(name, values, kind, dates, missing)
        if not known or read is not None:
            if is_category:
                table.refuse(0, name, "every value of this `one_hot` column is blank.")
            return Finding(name, "blank", missing, "left out: no value")
        found = _text_finding(table, name, column, missing, is_category=is_category)
        code = first_code(column)
        return found if code is None else replace(found, becomes=f"{found.becomes}; {code!r} is a code, not a number")
    except GraphjouleError as error:
        return Finding(name, "unclear", missing, "refused", problem=str(error))


def _number_finding(
    name: str, values: np.ndarray, kind: Literal["number", "boolean", "date"], dates: str | None, missing: int
) -> Finding:
    fitted = measure_numbers(name, values).model_copy(update={"kind": kind, "dates": dates, "has_missing": missing > 0})
    if not fitted.std and not missing:
        return Finding(name, "constant", 0, f"left out: every value is {fitted.mean:.6g}", fitted)
    becomes = f"standardised: mean {fitted.mean:.4g}, deviation {fitted.std:.4g}"
    becomes = f"days, {becomes}" if kind == "date" else becomes
    becomes += "; missing is the mean, and marked by a feature" if missing else ""
    return Finding(name, kind, missing, becomes, fitted)


def _text_finding(table: Table, name: str, column: pa.ChunkedArray, missing: int, *, is_category: bool) -> Finding:
    counts = pc.value_counts(column.drop_null())
    by_count = dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))
    known, different = len(column) - missing, len(by_count)
    if is_category and different > MAX_CATEGORIES:
        raise GraphjouleError(
            f"{table.path}, column {name!r} has {different:,} different values; a `one_hot` column may have "
            f"{MAX_CATEGORIES:,}."
        )
    if different == 1 and not missing:
        only = CategoryColumn(name=name, categories=tuple(by_count))
        return Finding(name, "constant", 0, f"left out: every value is {shorten(list(by_count))!r}", only)
    if 2 * different > known and not is_category:
        words = _split(column)
        if len(pc.list_flatten(words)) > 3 * known:
            return _free_text(name, words, missing)
    is_like_dates = not is_category and pc.all(pc.match_substring_regex(_known(column), _LIKE_A_DATE)).as_py()
    odd = ", like dates, but not all in one of the forms 2026-01-31, 31.1.2026 and 1/31/2026" if is_like_dates else ""
    if 2 * different > known and different > FEW_VALUES and not is_category:
        return Finding(name, "names", missing, f"left out: {different:,} different values in {known:,} rows{odd}")
    if different <= MOST_CATEGORIES or is_category:
        kept, becomes = by_count.keys(), f"one feature for each of {counted(different, 'category', 'categories')}"
    else:
        kept = dict(sorted(by_count.items(), key=lambda item: (-item[1], item[0]))[:MOST_CATEGORIES]).keys()
        becomes = f"one feature for each of the {MOST_CATEGORIES} most frequent of {different:,} categories"
    encoder = CategoryColumn(name=name, categories=tuple(sorted(kept)))
    return Finding(name, "category", missing, becomes + odd + ("; missing has none" if missing else ""), encoder)


def _free_text(name: str, words: pa.ListArray, missing: int) -> Finding:
    pairs = pa.table({"row": pc.list_parent_indices(words), "word": pc.list_flatten(words)})
    pairs = pairs.group_by(["row", "word"]).aggregate([])  # a word counts once a row
    counts = pc.value_counts(pairs.column("word"))
    by_count = zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)
    found = sorted((item for item in by_count if item[0]), key=lambda item: (-item[1], item[0]))
    kept = [word for word, count in found if count > 1][:MOST_WORDS] or [word for word, _ in found[:MOST_WORDS]]
    becomes = f"one feature for each of {counted(len(kept), 'word')} of {len(found):,}"
    return Finding(name, "text", missing, becomes, TextColumn(name=name, words=tuple(sorted(kept))))


def measure_numbers(name: str, values: np.ndarray) -> NumberColumn:
    """Mean and standard deviation of the numbers that are not NaN, the same on every machine and for rows in any order.

    The sums are exact before they are rounded once: NumPy's own depend on the processor's vector width in the last bit,
    and a run folder must recognise its data anywhere.

    >>> column = measure_numbers("age", np.array([20.0, 40.0, np.nan]))
    >>> column.mean, column.std
    (30.0, 10.0)
    """
    values = values[~np.isnan(values)]
    largest = float(np.abs(values).max())
    if float(values.min()) == float(values.max()):  # summing and dividing might leave a last bit of spread
        return NumberColumn(name=name, mean=float(values[0]), std=0.0)
    scaled = values / largest  # squares of 1e200 would overflow
    mean = math.fsum(scaled) / len(scaled)
    variance = math.fsum((scaled - mean) ** 2) / len(scaled)
    return NumberColumn(name=name, mean=mean * largest, std=math.sqrt(variance) * largest)


def keep_constant(column: Encoder) -> Encoder:
    """A constant column that becomes 1, or -1 if its value is negative, instead of being left out.

    >>> kept = keep_constant(NumberColumn(name="dummy", mean=7.0, std=0.0))
    >>> kept.mean, kept.std
    (0.0, 7.0)
    """
    if not isinstance(column, NumberColumn) or column.std:
        return column
    update = {"mean": 0.0, "std": abs(column.mean)} if column.mean else {"mean": -1.0, "std": 1.0}
    return column.model_copy(update=update)


def encode(
    table: Table, columns: TableColumns, values: Values, dtype: np.dtype[Any]
) -> tuple[np.ndarray | sp.csr_matrix, list[str]]:
    """The feature matrix of a table's rows by the numbers of the training graph, and what is to be said about it.

    Args:
        table: the table.
        columns: how the training graph was read.
        values: the columns' values.
        dtype: of the matrix.
    """
    num_rows = len(next(iter(values.values())))
    said: list[str] = []
    numbers = np.empty((num_rows, len(columns.numbers)), dtype=dtype)
    marks = []
    for index, column in enumerate(columns.numbers):
        read = _numbers(table, column.name, values[column.name], column)
        assert read is not None
        numbers[:, index] = _standardise(table, column, read[0])
        if num_far := int((np.abs(numbers[:, index]) > FAR).sum()):
            said.append(f"{counted(num_far, 'value')} of {column.name!r} far from all that the model was trained on")
        is_missing = np.isnan(read[0])
        if column.has_missing:
            marks.append(is_missing[:, None].astype(dtype))
        elif is_missing.any():
            said.append(f"{counted(int(is_missing.sum()), 'missing value')} of {column.name!r} taken as its mean")
    if not columns.categories and not columns.texts:
        return np.hstack([numbers, *marks]), said
    parts = [sp.csr_matrix(numbers)]
    for category in columns.categories:
        found = positions(values[category.name], category.categories)
        if unknown := int(np.count_nonzero(found < 0)) - values[category.name].null_count:
            said.append(f"{counted(unknown, 'value')} of {category.name!r} without a category of the model")
        parts.append(_indicators(np.arange(num_rows), found, num_rows, len(category.categories)))
    for text in columns.texts:
        words = _split(values[text.name])
        found = positions(pc.list_flatten(words), text.words)
        rows = pc.list_parent_indices(words).to_numpy()
        parts.append(_indicators(rows, found, num_rows, len(text.words)))
    return sp.hstack([*parts, *map(sp.csr_matrix, marks)], format="csr", dtype=dtype), said


def positions(column: pa.ChunkedArray, names: Sequence[str] | pa.Array) -> np.ndarray:
    """The position of every value among `names`, int64; -1 for one that is missing or not there."""
    value_set = names if isinstance(names, pa.Array) else pa.array(names, column.type)
    found = pc.index_in(column, value_set=value_set, skip_nulls=True)
    return np.asarray(pc.fill_null(found, -1).to_numpy(), dtype=np.int64)


def _indicators(rows: np.ndarray, codes: np.ndarray, num_rows: int, num_columns: int) -> sp.csr_matrix:
    """A matrix of 0 and 1: a 1 for every pair of row and code that is not negative."""
    kept = codes >= 0
    ones = np.ones(int(kept.sum()), dtype=np.float32)
    matrix = sp.csr_matrix((ones, (rows[kept], codes[kept])), shape=(num_rows, num_columns))
    matrix.data[:] = 1  # pairs that stand there twice were added up
    return matrix


def _split(column: pa.ChunkedArray) -> pa.ListArray:
    """The words of every text, in small letters."""
    return pc.split_pattern_regex(pc.utf8_lower(column), r"[^\p{L}\p{N}]+").combine_chunks()


def _standardise(table: Table, column: NumberColumn, values: np.ndarray) -> np.ndarray:
    if not column.std:
        return np.zeros(len(values))
    with np.errstate(over="ignore"):
        scaled = np.where(np.isnan(values), 0.0, (values - column.mean) / column.std)
        wrong = np.flatnonzero(~np.isfinite(scaled.astype(np.float32)))
    if wrong.size:
        row = int(wrong[0])
        table.refuse(row, column.name, f"{values[row]} is too far from the training nodes' mean {column.mean}.")
    return scaled


def _numbers(
    table: Table, name: str, column: pa.ChunkedArray, fitted: NumberColumn | None = None
) -> tuple[np.ndarray, Literal["number", "boolean", "date"], str | None] | None:
    """A column as float64 with NaN where a value is missing, its kind and how its dates are written; None for text.

    Args:
        table: where it stands.
        name: the column.
        column: its values.
        fitted: what it was in the training graph, which it must be now.
    """
    types, form = pa.types, column.type
    kind: Literal["number", "boolean", "date"] = "boolean" if types.is_boolean(form) else "number"
    dates = None
    if column.null_count == len(column):
        return np.full(len(column), np.nan), "number" if fitted is None else fitted.kind, None
    if is_number(form):
        column = column.cast(pa.int8()) if kind == "boolean" else column
        values = column.cast(pa.float64(), safe=False)
    elif types.is_date(form) or types.is_timestamp(form):
        kind, values = "date", _days(column)
    elif types.is_time(form):
        values = pc.divide(column.cast(pa.time64("us")).cast(pa.int64()).cast(pa.float64()), 1e6)
    elif types.is_string(form):
        parsed, flags = _dates(table, name, _known(column), fitted), _yes_or_no(column)
        if parsed is not None:
            kind, (values, dates) = "date", parsed
        elif flags is not None:
            kind, values = "boolean", flags
        elif fitted is not None and fitted.kind == "boolean":
            _refuse_neither(table, name, column)
        elif fitted is None and first_code(column) is not None:
            return None
        elif (numbers := _text_as_numbers(table, name, column, must=fitted is not None)) is not None:
            values = numbers
        else:
            return None
    else:
        table.refuse(0, name, f"{form} values are neither text nor numbers.")
    if fitted is not None and (kind == "date") != (fitted.kind == "date"):
        raise GraphjouleError(f"{table.path}, column {name!r} holds {kind}s; expected {fitted.kind}s.")
    found: np.ndarray = np.asarray(values.to_numpy(), dtype=np.float64)
    if np.isinf(found).any():
        row = int(np.flatnonzero(np.isinf(found))[0])
        table.refuse(row, name, f"{column[row].as_py()!r} is not a finite number; leave it blank if it is unknown.")
    return found, kind, dates


def read_numbers(table: Table, name: str, column: pa.ChunkedArray) -> np.ndarray:
    """A column that must be numbers, float64, NaN where a value is missing."""
    read = _numbers(table, name, column, NumberColumn(name=name, mean=0.0, std=1.0))
    assert read is not None
    return read[0]


def _days(column: pa.ChunkedArray) -> pa.ChunkedArray:
    zone = column.type.tz if pa.types.is_timestamp(column.type) else None
    moments = column.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64())
    return pc.divide(moments.cast(pa.float64(), safe=False), 86_400e6)


def _dates(
    table: Table, name: str, column: pa.ChunkedArray, fitted: NumberColumn | None
) -> tuple[pa.ChunkedArray, str] | None:
    """Text as days, and how the dates are written; None if they are none. A date that may be two is refused."""
    if column.null_count == len(column) or not pc.all(pc.match_substring_regex(column, _LIKE_A_DATE)).as_py():
        return None
    found = {}
    for order in _DATES if fitted is None or fitted.dates is None else [fitted.dates]:
        pattern, iso = _DATES[order]
        if not pc.all(pc.match_substring_regex(column, pattern)).as_py():
            continue
        moments = pc.replace_substring_regex(column, pattern, iso)
        for short, long in ((r"^(\d{4})-(\d)-", r"\1-0\2-"), (r"^(\d{4}-\d\d)-(\d)(\D|$)", r"\1-0\2\3"), ("Z$", "")):
            moments = pc.replace_substring_regex(moments, short, long)
        try:
            found[order] = _days(moments.cast(pa.timestamp("us")))
        except pa.ArrowInvalid:  # such as a month 13
            continue
    if len(found) > 1:
        example = column.drop_null()[0].as_py()
        raise GraphjouleError(
            f"{table.path}, column {name!r}: {example!r} may have the day or the month first; write it as 2026-01-31."
        )
    return next(((days, order) for order, days in found.items()), None)


def _text_as_numbers(table: Table, name: str, column: pa.ChunkedArray, *, must: bool) -> pa.ChunkedArray | None:
    """Text as numbers, where most of it is or all of it `must` be; None for other text."""
    known = len(column) - column.null_count
    is_plain = pc.match_substring_regex(column, _NUMBER)
    num_plain = pc.sum(is_plain).as_py() or 0
    if not must and 2 * num_plain < known:
        like = pc.sum(pc.match_substring_regex(column, _LIKE_A_NUMBER)).as_py() or 0
        if 2 * like >= known:
            row = int(np.flatnonzero(pc.fill_null(pc.invert(is_plain), False).to_numpy())[0])
            table.refuse(row, name, f"{column[row].as_py()!r} looks like a number; write it as 1234.5.")
        return None
    odd = pc.unique(pc.filter(column, pc.invert(is_plain)).drop_null())
    parsed = [_number(value) for value in odd.to_pylist()]
    if None in parsed:
        value = odd[parsed.index(None)]
        row = int(pc.index(column, value).as_py())
        what = "; leave it blank if it is unknown"
        if not must:
            choice = "`one_hot` makes the column categories, `features` leaves it out"
            what = f", and {num_plain:,} of {known:,} values are{what}. {choice}"
        table.refuse(row, name, f"{_shown(value.as_py())} is not a number{what}.")
    plain = pc.if_else(is_plain, column, pa.scalar(None, column.type)).cast(pa.float64())
    if not len(odd):
        return plain
    others = pa.array([None if number is None or math.isnan(number) else number for number in parsed], pa.float64())
    return pc.coalesce(plain, others.take(pc.index_in(column, value_set=odd, skip_nulls=True).combine_chunks()))


def _number(text: str) -> float | None:
    """The number that a text is to Python, NaN for a word that says missing, None for another one.

    >>> _number("2\u00a0"), _number("n/a"), _number("red"), _number("1_000")
    (2.0, nan, None, None)
    """
    if text.lower() in _MISSING:
        return math.nan
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _shown(value: str) -> str:
    return repr(value if len(value) <= 40 else f"{value[:40]}...")


# Targets.


def check_objective(
    objective: str | None, loss: str | None, positive: str | None = None, order: Sequence[str] | None = None
) -> None:
    """Refuse an `objective` or a `loss` that is no choice, and an argument that is for another objective."""
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

    Args:
        table: where they stand.
        name: their column.
        column: their text.
        asked: what was asked for; None leaves it to the labels.
        positive: of a binary objective the positive class, which becomes the second one.
        order: of an ordinal objective the classes, lowest first; by default numbers in their order.
    """
    different: list[str] = sorted(pc.unique(column.drop_null()).to_pylist())
    classes = _without_missing(different)
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
        return "multilabel", _label_names([value for value in different if value.lower() not in _MISSING - {"none"}])
    if order is not None:
        if foreign := [value for value in classes if value not in order]:
            row = int(pc.index(column, pa.scalar(foreign[0], column.type)).as_py())
            table.refuse(row, name, f"{_shown(foreign[0])} is not in the `order` {', '.join(order)}; blank is unknown.")
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
            f"{table.path}: the column {name!r} has the label {_shown(word)}; with `objective=ordinal` labels are "
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
        if not _without_missing(pc.unique(column.drop_null()).to_pylist()):
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


def _without_missing(different: Sequence[str]) -> list[str]:
    """The labels without ``NA`` and the like, if all others are numbers, or if there is no other."""
    known = [value for value in different if value.lower() not in _MISSING]
    return known if _are_numbers(known) else list(different)


def _are_numbers(values: Sequence[str]) -> bool:
    numbers = [_number(value) for value in values]
    return all(number is not None and not math.isnan(number) for number in numbers)


def _label_names(different: Sequence[str]) -> tuple[str, ...]:
    """The labels in cells such as ``a;b``, ``a|b`` or ``a,b``: divided by the first of these signs that there is."""
    sign = next((sign for sign in _BETWEEN_LABELS if any(sign in value for value in different)), ";")
    return tuple(sorted({part.strip() for value in different for part in value.split(sign)} - {""}))


def _ask(table: Table, name: str, different: list[str], known: int) -> None:
    """Refuse labels that may mean two things, with what there is to choose."""
    if (several := _several_labels(different)) is not None:
        raise GraphjouleError(
            f"{table.path}: the column {name!r} has labels such as {_shown(several)}; say `objective=multilabel` if "
            "that is several labels of one node, or `objective=classification` if it is one class."
        )
    if all(re.match(_LIKE_A_DATE, value) for value in different):
        raise GraphjouleError(
            f"{table.path}: the column {name!r} has dates such as {_shown(different[0])}; write numbers, such as days, "
            "to predict a time with `objective=regression`, or say `objective=classification` to take each for a class."
        )
    missing = next((value for value in different if value.lower() in _MISSING - {"none"}), None)
    if missing is not None:
        raise GraphjouleError(
            f"{table.path}: the column {name!r} has the label {missing!r}; leave it blank if it is unknown, or say "
            "`objective=classification` if it is a class."
        )
    numbers = [number for value in different if (number := _number(value)) is not None and not math.isnan(number)]
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
        values = _text_as_numbers(table, name, column, must=True)
        assert values is not None
        return np.array(values.to_numpy(), dtype=np.float64)
    is_class = pc.is_in(column, pa.array(names, pa.string()))
    column = pc.if_else(pc.or_(is_class, pc.is_valid(_known(column))), column, pa.scalar(None, column.type))
    if objective == "multilabel":
        signs = "".join(sign for sign in _BETWEEN_LABELS if not any(sign in each for each in names))
        parts = pc.split_pattern_regex(column, f"[{signs}]") if signs else pc.split_pattern(column, "\0")
        parts = parts.combine_chunks()
        rows, labels = pc.list_parent_indices(parts).to_numpy(), pc.utf8_trim_whitespace(pc.list_flatten(parts))
        found = positions(labels, names)
        unknown = np.flatnonzero((found < 0) & (pc.not_equal(labels, "").to_numpy(zero_copy_only=False)))
        matrix: np.ndarray = _indicators(rows, found, len(column), len(names)).toarray().astype(np.float64)
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
        values = _yes_or_no(column)
        if values is None:
            _refuse_neither(table, name, column)
        found.append(np.asarray(values.to_numpy(), dtype=np.float64))
    return np.stack(found, axis=1)


def _yes_or_no(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Text as 1 and 0 where every value is yes or no in some way, or missing; None for other text."""
    words = pc.unique(column.drop_null()).to_pylist()
    known = [word.lower() for word in words if word.lower() not in _MISSING]
    if not known or not all(word in _YES_OR_NO for word in known):
        return None
    meant = pa.array([_YES_OR_NO.get(word.lower()) for word in words], pa.float64())
    places = pc.index_in(column, value_set=pa.array(words, column.type), skip_nulls=True)
    return pa.chunked_array([meant.take(places.combine_chunks())])


def _refuse_neither(table: Table, name: str, column: pa.ChunkedArray) -> NoReturn:
    words = pc.unique(_known(column).drop_null()).to_pylist()
    value = next(word for word in words if word.lower() not in _YES_OR_NO)
    row = int(pc.index(column, pa.scalar(value, column.type)).as_py())
    table.refuse(row, name, f"{_shown(value)} is neither yes nor no; expected 1, true, yes, 0, false, no or blank.")


def _known(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text with null for every word that says missing."""
    is_missing = pc.is_in(pc.utf8_lower(column), pa.array(sorted(_MISSING)))
    return pc.if_else(is_missing, pa.scalar(None, column.type), column)
