"""What a table of edges says; graphs built from one are in `test_tables.py`."""

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.own_edges import read_edges
from graphjoule.tasks.own_graph import TableOptions, read_nodes


def test_edges_name_nodes(here):
    read = read_nodes("nodes.csv", TableOptions(), has_edges=True)
    assert read_edges("edges.csv", TableOptions(), read).num_rows == 2
    (here / "edges.csv").write_text("source,target\ny,z\n")
    with pytest.raises(GraphjouleError, match="no node 'y'"):
        read_edges("edges.csv", TableOptions(), read)
