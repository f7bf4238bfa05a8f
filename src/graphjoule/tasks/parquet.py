"""Parquet files, where ``pyarrow`` is installed: the same columns as from CSV, rows counted instead of lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.table import Choose, Header, Table, number_fault

if TYPE_CHECKING:
    import pyarrow as pa


def read_parquet(path: Path, choose: Choose) -> Table:
    """Read some columns of a Parquet file; see `read_table`. Null and, in text, NaN are blank."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise GraphjouleError(
            f"{path} is a Parquet file, and the package pyarrow that reads them is not installed; "
            "run: pip install 'graphjoule[parquet]', or save the table as CSV."
        ) from error
    try:
        with pq.ParquetFile(path) as file:
            header = Header(path, tuple(file.schema_arrow.names))
            wanted = choose(header)
            content = file.read(columns=[*wanted.text, *wanted.numbers])
            num_rows = file.metadata.num_rows
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, GraphjouleError):
            raise
        why = " ".join(str(error).split()).rstrip(".")
        raise GraphjouleError(f"{path} is not a whole Parquet file: {why}.") from error
    return Table(
        header,
        {name: _text(content.column(name), path, name) for name in wanted.text},
        {name: _numbers(content.column(name), path, name, wanted.hint) for name in wanted.numbers},
        np.arange(1, num_rows + 1),
        unit="row",
    )


def _text(column: pa.ChunkedArray, path: Path, name: str) -> list[str]:
    """The values as a person would type them: text as it is, 7 as "7"."""
    import pyarrow.types as types

    kind = _value_type(column)
    if not (types.is_string(kind) or types.is_large_string(kind) or _is_number(kind) or types.is_null(kind)):
        raise GraphjouleError(f"{path}, row 1, column {name!r}: {kind} values are neither text nor numbers.")
    return ["" if value is None or value != value else str(value).strip() for value in column.to_pylist()]


def _numbers(column: pa.ChunkedArray, path: Path, name: str, hint: str) -> np.ndarray:
    kind = _value_type(column)
    if not _is_number(kind):
        row, value = next(((r, v) for r, v in enumerate(column.to_pylist(), 1) if v is not None), (1, None))
        raise GraphjouleError(f"{path}, row {row}, column {name!r}: {_fault(value)}{hint}.")
    values = np.asarray(column.cast(kind).cast("float64", safe=False).to_numpy())  # a null becomes NaN
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        value = column[int(wrong[0])].as_py()
        raise GraphjouleError(f"{path}, row {wrong[0] + 1}, column {name!r}: {_fault(value)}{hint}.")
    return values


def _fault(value: Any) -> str:
    """What is wrong with a value; text of digits in a text column is text all the same."""
    fault = number_fault("" if value is None else str(value))
    return f"{value!r} is text" if isinstance(value, str) and "finite" in fault else fault


def _value_type(column: pa.ChunkedArray) -> pa.DataType:
    """The type of the values, also where the file keeps every different one once."""
    import pyarrow.types as types

    return column.type.value_type if types.is_dictionary(column.type) else column.type


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))
