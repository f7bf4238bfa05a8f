"""What a user hears about tables before anything trains."""

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.nn import MODELS
from graphjoule.tasks.own_graph import TableOptions, read_nodes
from graphjoule.tasks.table_report import OTHER_OPERATORS, check_tables
from graphjoule.tasks.tables import load_tables

NODES = """id,age,city,note,code,zip_code,price
a,34,Rome,likes long walks at night,1,7,1.5
b,,Oslo,plays chess and the piano,1,8,2.5
c,29,Rome,never writes long letters,1,7,
"""
EDGES = "source,target\na,b\nb,c\nb,c\nc,zoe\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "edges.csv").write_text(EDGES)
    return tmp_path


def check(**options):
    return check_tables("nodes.csv", "edges.csv", TableOptions(**({"label": "price"} | options)))


def test_a_report_says_what_becomes_of_everything():
    report = check(objective="regression")
    assert [(found.name, found.kind, found.missing) for found in report.columns] == [
        ("age", "number", 1),
        ("city", "category", 0),
        ("note", "text", 0),
        ("code", "constant", 0),
        ("zip_code", "number", 0),
    ]
    assert report.nodes == "nodes.csv: 3 nodes, called by 'id'"
    assert report.target == "'price', regression; 2 known, 1 to predict"
    assert report.edges.startswith("edges.csv: 4 rows, 1 row naming no node left out, 1 repeated row (counted once)")
    assert report.warnings == (
        "'code' is left out: every value is 1",
        "'zip_code' is taken for a number, whatever its name says",
    )
    assert report.problems == ()


def test_all_that_a_training_would_refuse_is_in_a_report(here):
    (here / "nodes.csv").write_text(NODES.replace("c,29", "c,old").replace("Oslo", "1,5").replace("1,5", '"1,5"'))
    (here / "edges.csv").write_text("source,target\na,y\nb,z\n")
    report = check(features=["age", "city"])
    assert report.target is None
    assert report.edges is None
    said = ("'old' is not a number", "2 different numbers in 2 labels; say `objective=regression`", "no node 'y'")
    assert len(report.problems) == len(said)
    assert all(part in problem for part, problem in zip(said, report.problems, strict=True))
    with pytest.raises(GraphjouleError, match="'old' is not a number"):
        read_nodes("nodes.csv", TableOptions(label="price"), has_edges=True)


def test_a_table_whose_columns_are_all_left_out(here):
    rows = "".join(f"n{i},name{i},{'xy'[i % 2]}\n" for i in range(40))
    (here / "nodes.csv").write_text(f"id,name,label\n{rows}")
    with pytest.raises(GraphjouleError, match="no column can be a feature: name is left out: 40 different values"):
        read_nodes("nodes.csv", TableOptions(), has_edges=True)
    named = read_nodes("nodes.csv", TableOptions(one_hot=["name"]), has_edges=True)
    assert len(named.columns.feature_names) == 40


def test_a_report_refuses_targets_as_a_training_would(here):
    report = check(label="city", objective="regression")
    assert report.target is None
    assert "is not a number; leave it blank" in report.problems[0]


def test_a_report_says_what_directions_and_types_become(here):
    (here / "edges.csv").write_text("source,target,note\na,b,x\nb,a,y\n")
    report = check(objective="regression", direction="kept", edge_type="note", types="separate")
    kept = report.edges
    assert report.warnings[-1] == OTHER_OPERATORS
    assert kept.startswith("edges.csv: 2 rows, types from 'note' (x 1, y 1): an operator for each, normalised by")
    assert "edges keep their direction: a node reads from the sources of the edges that lead to it" in kept
    both = check(objective="regression").edges
    assert both == "edges.csv: 2 rows, columns not used: note"


def test_the_models_that_refuse_directions_are_those_that_are_named():
    refusing = [name for name in MODELS if MODELS[name].needs_undirected]
    *first, last = refusing
    assert f"directions are for all models but {', '.join(first)} and {last}" in OTHER_OPERATORS


def test_a_target_that_is_too_large_for_a_model_is_named_before_anything_trains(here):
    (here / "nodes.csv").write_text(NODES.replace("2.5", "1e39"))
    (problem,) = check(objective="regression").problems
    assert problem.startswith("nodes.csv, line 3, column 'price': 1e+39 is too large to train on")
    several = check(label=["price", "zip_code"], objective="regression").problems
    assert "line 3, column 'price'" in several[0]


def test_a_column_of_codes_is_said_to_be_no_number(here):
    (here / "nodes.csv").write_text(NODES.replace(",7,", ",00501,").replace(",8,", ",10001,"))
    report = check(objective="regression")
    assert report.columns[4].kind == "category"
    assert "'00501' is a code, not a number" in report.warnings[1]


@pytest.mark.parametrize(("num_rare", "is_said"), [(1, True), (2, False)])
def test_accuracy_is_doubted_where_one_class_is_nearly_all(here, num_rare, is_said):
    rows = "".join(f"n{i},{i},{'fraud' if i < num_rare else 'honest'}\n" for i in range(40))
    (here / "nodes.csv").write_text(f"id,x,label\n{rows}")
    said = check_tables("nodes.csv", None, TableOptions()).warnings
    expected = "always saying 'honest' is right for 97.5 % of the labels, so accuracy says little; `select_on=balanced"
    assert [line.startswith(expected) for line in said] == [True] * is_said


def test_what_only_a_split_would_refuse_is_in_a_report_too(here):
    (here / "nodes.csv").write_text("id,x,label\na,0,red\nb,1,blue\nc,2,\n")
    report = check(label=None)
    assert report.problems == (
        "nodes.csv: no class has two labels; expected two, so that one can train and one validate.",
    )
    with pytest.raises(GraphjouleError, match=r"`knn` is 2 and `edges` is edges\.csv; give one of them"):
        check(knn=2)
    (here / "nodes.csv").write_text("graph,id,x\ng1,a,0\ng2,b,1\n")
    (here / "edges.csv").write_text("source,target,kind\na,a,\nb,b,up\n")
    (here / "graphs.csv").write_text("id,label,split\ng1,red,train\ng2,blue,val\n")
    found = check_tables("nodes.csv", "edges.csv", TableOptions(edge_type="kind"), "graphs.csv", 0.2)
    assert found.problems == (
        "`test_fraction` is 0.2, but the column 'split' of graphs.csv says who tests; leave one out.",
    )
    assert "types from 'kind' (blank 1, up 1)" in found.edges


def test_dates_to_predict_and_dates_that_cannot_be_read_are_said(here):
    (here / "nodes.csv").write_text("id,day,label\na,2026-02-30,2026-01-01\nb,2026-02-01,2026-01-02\nc,,2026-01-01\n")
    report = check(label=None)
    assert report.problems == (
        "nodes.csv: the column 'label' has dates such as '2026-01-01'; write numbers, such as days, to predict a time "
        "with `objective=regression`, or say `objective=classification` to take each for a class.",
    )
    (said,) = report.warnings
    assert said.startswith("'day' is a category: one feature for each of 2 categories, like dates, but not all in one")
    assert check(label=None, objective="classification").problems == ()


def test_a_report_is_about_many_graphs_too(here):
    (here / "nodes.csv").write_text("graph,id,x\ng1,a,0\ng2,b,1\ng3,c,2\n")
    (here / "edges.csv").write_text("source,target\na,b\n")
    (here / "graphs.csv").write_text("graph,price,split,size\ng1,1.5,train,1\ng2,,val,1\ng3,2,train,1\n")
    asked = TableOptions(label="price", objective="regression")
    found = check_tables("nodes.csv", "edges.csv", asked, "graphs.csv")
    assert found.nodes == (
        "nodes.csv: 3 nodes, called by 'id', of 3 graphs called by 'graph' in graphs.csv, 1 node each"
    )
    assert [finding.name for finding in found.columns] == ["x"]
    assert found.target == "'price', regression; 2 known, 1 to predict"
    assert found.warnings == ("graphs.csv: columns not used: size; features are those of nodes",)
    assert found.problems == (
        "graphs.csv: no graph with a target is in the part 'val' of the column 'split'; some must validate, such as a "
        "fifth of those that train.",
        "edges.csv, line 2, column 'target': the edge leads from graph 'g1' to graph 'g2'; both ends must be nodes of "
        "one graph.",
    )


def test_a_report_says_which_column_is_the_split(here):
    (here / "nodes.csv").write_text("id,x,label,split\na,1,u,train\nb,2,v,val\nc,3,v,\n")
    report = check(label=None)
    assert [column.name for column in report.columns] == ["x"]
    said = "3 known, 0 to predict; its column 'split' is the split 'public': 1 train, 1 val, 0 test"
    assert report.target.endswith(said)
    (here / "nodes.csv").write_text("id,x,label,split\na,1,u,train\nb,2,v,val\nc,3,v,other\n")
    assert "'other' is not a part" in check(label=None).problems[0]


def test_columns_that_say_the_label_by_themselves_are_named(here, caplog):
    states = {"red": ("5", "hot", "1.5"), "blue": ("7", "cold", "2.5"), "": ("5", "cold", "3")}
    labels = ["red", "blue", "", "blue", "red"] * 4
    rows = "".join(f"n{i},{i % 2},{','.join(states[label])},{label}\n" for i, label in enumerate(labels))
    (here / "nodes.csv").write_text(f"id,x,code,state,price,label\n{rows}")
    (here / "edges.csv").write_text("source,target\nn0,n1\n")
    said = (
        "'code', 'state', 'price' each say the label by themselves in all 16 labelled nodes; leave them out unless "
        "they are known before the label is"
    )
    assert said in check(label=None).warnings
    with caplog.at_level("WARNING", "graphjoule"):
        load_tables("nodes.csv", "edges.csv")
    assert f"nodes.csv: {said}" in caplog.messages
    assert check(label=None, features=["x"]).warnings == ()
    (here / "nodes.csv").write_text(f"id,x,code,state,price,label\n{rows.replace('n1,1,7', 'n1,1,5')}")
    assert any("'state', 'price' each say" in line for line in check(label=None).warnings)
    copied = "".join(f"n{i},{i % 7},{i}.5,{i}.50\n" for i in range(30))
    (here / "nodes.csv").write_text(f"id,x,copy,price\n{copied}")
    assert check(objective="regression").warnings[0].startswith("'copy' says the label by itself in all 30 labelled")


def test_a_column_whose_spread_is_that_of_one_value_is_warned_of(here, caplog):
    rows = "".join(f"n{i},{20 + i % 30},{'uv'[i % 2]}\n" for i in range(100))
    (here / "nodes.csv").write_text(f"id,age,label\n{rows.replace('n7,27', 'n7,1e9')}")
    (here / "edges.csv").write_text("source,target\nn0,n1\n")
    (said,) = check(label=None).warnings
    assert said.startswith("'age' has 1 value so far out, such as 1e+09, that the others hardly differ")
    with caplog.at_level("WARNING", "graphjoule"):
        load_tables("nodes.csv", "edges.csv")
    assert f"nodes.csv: {said}" in caplog.messages
