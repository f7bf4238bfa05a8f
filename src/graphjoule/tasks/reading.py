"""Any table of the user's: the one place that knows which kinds of file there are."""

from __future__ import annotations

from pathlib import Path

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.csvtable import read_csv
from graphjoule.tasks.parquet import read_parquet
from graphjoule.tasks.table import Choose, Table, check_file

PARQUET_SUFFIXES = (".parquet", ".pq")


def read_table(path: str | Path, choose: Choose, *, may_be_empty: bool = False) -> Table:
    """Read some columns of a table: Parquet if the file is called ``.parquet`` or ``.pq``, else CSV.

    Args:
        path: the file; UTF-8 text if it is CSV, with a header line.
        choose: says from the header which columns to keep; columns it leaves out are not looked at.
        may_be_empty: allow a header without a row below it.

    Returns:
        The columns; the file is read once, block by block, and only they are kept.

    Raises:
        GraphjouleError: one sentence with file, line and column about the first thing that is wrong.
    """
    path = check_file(path)
    table = (read_parquet if path.suffix.lower() in PARQUET_SUFFIXES else read_csv)(path, choose)
    if not table.num_rows and not may_be_empty:
        raise GraphjouleError(f"{path} has a header but no row below it; at least one is needed.")
    return table
