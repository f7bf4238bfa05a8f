import pyarrow as pa


def column(*values, kind=None):
    """A column as a table has it."""
    return pa.chunked_array([pa.array(values, kind)])
