"""What tables say before anything is built from them; tasks built from them are in `test_tables.py`."""

import numpy as np

from graphjoule.tasks.own_graph import TableOptions, read_graphs, read_ids, read_nodes, split_parts


def test_nodes_have_ids_columns_and_targets(here):
    read = read_nodes("nodes.csv", TableOptions(), has_edges=True)
    assert read.ids.to_pylist() == read_ids("nodes.csv", TableOptions()).ids.to_pylist() == ["a", "b", "c"]
    assert (read.columns.id, read.columns.labels) == ("id", ("label",))
    objective, names = read.find_objective(TableOptions())
    assert (objective, names) == ("classification", ("u", "v"))
    assert read.targets(objective, names).tolist() == [0, 1, -1]


def test_graphs_may_say_which_part_they_are_of(here):
    (here / "nodes.csv").write_text("graph,id,x\ng1,a,0\ng2,b,1\n")
    (here / "edges.csv").write_text("source,target\n")
    (here / "graphs.csv").write_text("graph,label,split\ng1,u,train\ng2,v,val\n")
    graphs, _ = read_graphs("graphs.csv", "nodes.csv", "edges.csv", TableOptions())
    parts = split_parts(graphs, np.array([True, True]))
    assert [part.tolist() for part in parts] == [[0], [1], []]
