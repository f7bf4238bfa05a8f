"""Tables in README and docs are those of the records."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TABLED = ["README.md", "docs/performance.md", "docs/models.md", "docs/trace.md"]


@pytest.mark.parametrize("name", TABLED)
def test_tables_are_those_of_the_records(name):
    spec = importlib.util.spec_from_file_location("write_tables", ROOT / "benchmarks/write_tables.py")
    write_tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(write_tables)
    text = (ROOT / name).read_text()
    assert "<!-- table " in text
    assert write_tables.with_tables(text) == text
