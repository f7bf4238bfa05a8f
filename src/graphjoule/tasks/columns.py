"""Columns of a table as features: what each looks like, what becomes of it, and the numbers to keep.

By hand and not by scikit-learn: its `StandardScaler` gives other last bits when the rows are in another order, its
`OneHotEncoder` and `CountVectorizer` take Python strings, ten times slower than pyarrow's, and what they have fitted is
not JSON. Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types
import scipy.sparse as sp

from graphjoule.errors import GraphjouleError, counted
from graphjoule.tasks.encoders import MOST_CATEGORIES, CategoryColumn, Encoder, NumberColumn, TableColumns, TextColumn
from graphjoule.tasks.reading import Table, first_code, is_number, shorten

MAX_CATEGORIES = 1_000
"""Different values a column may have that `one_hot` names."""
FEW_VALUES = 20
"""So many different values are categories, however few rows there are."""
MOST_WORDS = 200
"""Words of a column of free text that become features: those in most rows."""
FAR = 1_000
"""Deviations from the mean that no value of a training graph with fewer nodes than a million can have: for models that
do not know the range of their training graph."""
OUTWEIGHED, MOST_OUTLIERS = 20, 0.05
"""A column is doubted where so small a share of its values makes its deviation so many times that of the others."""
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_LIKE_A_NUMBER = r"^[^\w]{0,3}\d{1,3}([ ,.']?\d{3})*([.,]\d*)?\s*[^\w]{0,2}$"  # 1,5 or $1,200 or 12 %
MISSING = {"na", "n/a", "#n/a", "nan", "-nan", "null", "none", "<na>", "?", "-"}
LIKE_A_DATE = r"^\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T]|$)"
_YES_OR_NO = {"1": 1.0, "1.0": 1.0, "true": 1.0, "yes": 1.0, "0": 0.0, "0.0": 0.0, "false": 0.0, "no": 0.0}
_DATES = {
    "Y-M-D": (r"^(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})", r"\1-\2-\3"),
    "D.M.Y": (r"^(\d{1,2})\.(\d{1,2})\.(\d{4})", r"\3-\2-\1"),
    "D/M/Y": (r"^(\d{1,2})[-/](\d{1,2})[-/](\d{4})", r"\3-\2-\1"),
    "M/D/Y": (r"^(\d{1,2})[-/](\d{1,2})[-/](\d{4})", r"\3-\1-\2"),
}
_EXAMPLES = {"Y-M-D": "2026-01-31", "D.M.Y": "31.1.2026", "D/M/Y": "31/1/2026", "M/D/Y": "1/31/2026"}
Values = Mapping[str, pa.ChunkedArray]


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
        doubt: what a training goes on in spite of.
    """

    name: str
    kind: str
    missing: int
    becomes: str
    encoder: Encoder | None = None
    problem: str | None = None
    doubt: str | None = None


def recognise(table: Table, name: str, column: pa.ChunkedArray, *, is_category: bool = False) -> Finding:
    """What a column looks like and what becomes of it; a column that cannot be used has a `problem`.

    With `is_category` it shall be categories, whatever it looks like.
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
    doubt = None if kind == "boolean" else _doubt_of_spread(fitted, values[~np.isnan(values)])
    return Finding(name, kind, missing, becomes, fitted, doubt=doubt)


def _doubt_of_spread(fitted: NumberColumn, values: np.ndarray) -> str | None:
    """A sentence where few values are so far out that the others hardly differ once the column is standardised."""
    if not fitted.std:
        return None
    distance = np.abs(values / fitted.std - fitted.mean / fitted.std)  # differences of 1e308 would overflow
    is_out = distance > 0.1 * distance.max()
    num_out = int(is_out.sum())
    if num_out > MOST_OUTLIERS * len(values):
        return None
    spread = measure_numbers(fitted.name, values[~is_out]).std
    if not 0 < spread < fitted.std / OUTWEIGHED:  # a column of 0 and few 1 has no spread to lose
        return None
    farthest = float(values[distance.argmax()])
    example = str(np.datetime64(int(farthest), "D")) if fitted.kind == "date" else f"{farthest:.6g}"
    them = "it" if num_out == 1 else "them"
    return (
        f"{fitted.name!r} has {counted(num_out, 'value')} so far out, such as {example}, that the others hardly "
        f"differ: their deviation is {spread:.4g}, and {fitted.std:.4g} with {them}; correct {them}, or leave {them} "
        "blank if unknown"
    )


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
    is_like_dates = not is_category and pc.all(pc.match_substring_regex(without_missing(column), LIKE_A_DATE)).as_py()
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
    low, high = float(values.min()), float(values.max())
    largest = max(-low, high)
    if low == high:  # summing and dividing might leave a last bit of spread
        return NumberColumn(name=name, mean=float(values[0]), std=0.0, low=low, high=high)
    scaled = values / largest  # squares of 1e200 would overflow
    mean = math.fsum(scaled) / len(scaled)
    variance = math.fsum((scaled - mean) ** 2) / len(scaled)
    return NumberColumn(name=name, mean=mean * largest, std=math.sqrt(variance) * largest, low=low, high=high)


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
    """The feature matrix of a table's rows by the numbers of the training graph, and what is to be said about it."""
    num_rows = len(next(iter(values.values())))
    said: list[str] = []
    numbers = np.empty((num_rows, len(columns.numbers)), dtype=dtype)
    marks = []
    for index, column in enumerate(columns.numbers):
        read = _numbers(table, column.name, values[column.name], column)
        assert read is not None
        numbers[:, index] = _standardise(table, column, read[0])
        if num_far := int(_is_far(column, read[0]).sum()):
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
        parts.append(indicators(np.arange(num_rows), found, num_rows, len(category.categories)))
    for text in columns.texts:
        words = _split(values[text.name])
        found = positions(pc.list_flatten(words), text.words)
        rows = pc.list_parent_indices(words).to_numpy()
        parts.append(indicators(rows, found, num_rows, len(text.words)))
    return sp.hstack([*parts, *map(sp.csr_matrix, marks)], format="csr", dtype=dtype), said


def positions(column: pa.ChunkedArray, names: Sequence[str] | pa.Array) -> np.ndarray:
    """The position of every value among `names`, int64; -1 for one that is missing or not there."""
    value_set = names if isinstance(names, pa.Array) else pa.array(names, column.type)
    found = pc.index_in(column, value_set=value_set, skip_nulls=True)
    return np.asarray(pc.fill_null(found, -1).to_numpy(), dtype=np.int64)


def indicators(rows: np.ndarray, codes: np.ndarray, num_rows: int, num_columns: int) -> sp.csr_matrix:
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


def _is_far(column: NumberColumn, values: np.ndarray) -> np.ndarray:
    """Which values are beyond the range of the training graph by more than its width."""
    if not column.std:
        return np.zeros(len(values), dtype=bool)
    with np.errstate(over="ignore"):
        if column.low is None or column.high is None:
            return np.asarray(np.abs(values - column.mean) > FAR * column.std)
        width = max(column.high - column.low, column.std)  # a constant that is kept has no width
        return np.asarray((values < column.low - width) | (values > column.high + width))


def _numbers(
    table: Table, name: str, column: pa.ChunkedArray, fitted: NumberColumn | None = None
) -> tuple[np.ndarray, Literal["number", "boolean", "date"], str | None] | None:
    """A column as float64 with NaN where a value is missing, its kind and how its dates are written; None for text.

    It must be what `fitted` says that it was in the training graph.
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
        parsed, flags = _dates(table, name, without_missing(column), fitted), yes_or_no(column)
        if parsed is not None:
            kind, (values, dates) = "date", parsed
        elif fitted is not None and fitted.kind == "date":
            return _refuse_other_dates(table, name, without_missing(column), fitted), "date", None
        elif flags is not None:
            kind, values = "boolean", flags
        elif fitted is not None and fitted.kind == "boolean":
            refuse_neither(table, name, column)
        elif fitted is None and first_code(column) is not None:
            return None
        elif (numbers := text_as_numbers(table, name, column, must=fitted is not None)) is not None:
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
        table.refuse(
            row,
            name,
            f"{column[row].as_py()!r} is not a finite number, or too large; leave it blank if it is unknown.",
        )
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
    """Text as days, and how the dates are written; None for other text. A date with two readings is refused."""
    if column.null_count == len(column) or not pc.all(pc.match_substring_regex(column, LIKE_A_DATE)).as_py():
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


def _refuse_other_dates(table: Table, name: str, column: pa.ChunkedArray, fitted: NumberColumn) -> np.ndarray:
    """Refuse the first text that is no date as the training graph has them; where all is missing there is none."""
    if column.null_count == len(column):
        return np.full(len(column), np.nan)
    for value in pc.unique(column.drop_null()):
        if _dates(table, name, pa.chunked_array([pa.array([value.as_py()], column.type)]), fitted) is None:
            row, expected = int(pc.index(column, value).as_py()), _EXAMPLES[fitted.dates or "Y-M-D"]
            table.refuse(row, name, f"{shown(value.as_py())} is no date of the form in the training, {expected}.")
    raise GraphjouleError(f"{table.path}, column {name!r} has dates in several forms; write all as 2026-01-31.")


def text_as_numbers(table: Table, name: str, column: pa.ChunkedArray, *, must: bool) -> pa.ChunkedArray | None:
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
    parsed = [as_number(value) for value in odd.to_pylist()]
    if None in parsed:
        value = odd[parsed.index(None)]
        row = int(pc.index(column, value).as_py())
        what = "; leave it blank if it is unknown"
        if not must:
            choice = "`one_hot` makes the column categories, `features` leaves it out"
            what = f", and {num_plain:,} of {known:,} values are{what}. {choice}"
        table.refuse(row, name, f"{shown(value.as_py())} is not a number{what}.")
    plain = pc.if_else(is_plain, column, pa.scalar(None, column.type)).cast(pa.float64())
    if not len(odd):
        return plain
    others = pa.array([None if number is None or math.isnan(number) else number for number in parsed], pa.float64())
    return pc.coalesce(plain, others.take(pc.index_in(column, value_set=odd, skip_nulls=True).combine_chunks()))


def as_number(text: str) -> float | None:
    """The number that a text is to Python, NaN for a word that says missing, None for another one.

    >>> as_number("2\u00a0"), as_number("n/a"), as_number("red"), as_number("1_000")
    (2.0, nan, None, None)
    """
    if text.lower() in MISSING:
        return math.nan
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def shown(value: str) -> str:
    """A value for a sentence, which stays short."""
    return repr(value if len(value) <= 40 else f"{value[:40]}...")


def yes_or_no(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Text as 1 and 0 where every value is yes or no in some way, or missing; None for other text."""
    words = pc.unique(column.drop_null()).to_pylist()
    known = [word.lower() for word in words if word.lower() not in MISSING]
    if not known or not all(word in _YES_OR_NO for word in known):
        return None
    meant = pa.array([_YES_OR_NO.get(word.lower()) for word in words], pa.float64())
    places = pc.index_in(column, value_set=pa.array(words, column.type), skip_nulls=True)
    return pa.chunked_array([meant.take(places.combine_chunks())])


def refuse_neither(table: Table, name: str, column: pa.ChunkedArray) -> NoReturn:
    """Refuse the first value that is neither yes nor no."""
    words = pc.unique(without_missing(column).drop_null()).to_pylist()
    value = next(word for word in words if word.lower() not in _YES_OR_NO)
    row = int(pc.index(column, pa.scalar(value, column.type)).as_py())
    table.refuse(row, name, f"{shown(value)} is neither yes nor no; expected 1, true, yes, 0, false, no or blank.")


def without_missing(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text with null for every word that says missing."""
    is_missing = pc.is_in(pc.utf8_lower(column), pa.array(sorted(MISSING)))
    return pc.if_else(is_missing, pa.scalar(None, column.type), column)
