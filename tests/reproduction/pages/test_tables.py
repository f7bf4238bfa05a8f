"""Tables in README and docs are those of the records."""

import pytest

from reproduction.pages.tables import DOCUMENTS, ROOT, with_tables


@pytest.mark.parametrize("name", DOCUMENTS)
def test_tables_are_those_of_the_records(name):
    text = (ROOT / name).read_text()
    assert "<!-- table " in text or "<!--= " in text  # a table, or numbers in sentences
    assert with_tables(text) == text
