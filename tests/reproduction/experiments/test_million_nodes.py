"""The generated tables are what the record says they are, and the commands that are measured take them."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from reproduction.experiments.million_nodes import CLASSES, run, write_files


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("million"), 500, 3000)


def test_the_edges_differ_and_have_hubs(files):
    nodes, edges = map(pq.read_table, files)
    ids = nodes["id"].to_pylist()
    assert len(set(ids)) == 500
    pairs = list(zip(edges["source"].to_pylist(), edges["target"].to_pylist(), strict=True))
    assert len({frozenset(pair) for pair in pairs}) == len(pairs) == 3000
    assert all(source != target for source, target in pairs)
    degree = np.unique(np.array(pairs), return_counts=True)[1]
    assert degree.max() > 4 * degree.mean()


def test_half_of_the_nodes_have_a_label_and_values_are_missing(files):
    nodes = pq.read_table(files[0])
    assert nodes.num_columns == 12
    assert 200 < 500 - nodes["label"].null_count < 300
    assert set(nodes["label"].to_pylist()) == {None, *CLASSES}
    assert all(0 < nodes[name].null_count < 60 for name in ("age", "income", "rating", "city", "joined"))


def test_a_command_is_measured(files, capfd):
    measured = run(files[0].parent, "data", "check", *(path.name for path in files))
    assert "3,000 rows" in capfd.readouterr().out
    assert measured["command"] == "graphjoule data check nodes.parquet edges.parquet"
    assert 0 < measured["peak_gib"] < 4
    assert measured["seconds"] > 0


def test_a_command_that_fails_ends_the_experiment(tmp_path):
    with pytest.raises(SystemExit, match="graphjoule data ended with exit code 2"):
        run(tmp_path, "data", "check", "nothing.parquet")
