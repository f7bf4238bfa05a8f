"""A table of nodes and a table of edges as a task: what is meant, and what is refused."""

import re

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch_geometric.utils import to_dense_adj

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.features import as_dense
from graphjoule.tasks.digits import knn_edge_index
from graphjoule.tasks.objective import Classification, Regression
from graphjoule.tasks.tables import load_graph, load_tables, load_tables_like, unchanged
from tests.graphs import dense_propagation, few

NODES = "id,x,y,label\na,0,5,red\nb,2,7,red\nc,0,7,blue\nd,2,5,\ne,1,6,blue\n"
EDGES = "source,target\na,b\nb,c\nd,a\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(here, nodes=NODES, edges=EDGES):
    (here / "nodes.csv").write_text(nodes)
    if edges is not None:
        (here / "edges.csv").write_text(edges)


def load(here, nodes=NODES, edges=EDGES, **options):
    write(here, nodes, edges)
    path = None if edges is None else "edges.csv"
    return load_tables("nodes.csv", path, **options)


def dense(features):
    return as_dense(features)


def adjacency(task):
    p = task.graph.to_dense()
    return (p * ((task.graph.degree + 1).sqrt()[:, None] * (task.graph.degree + 1).sqrt()[None])).fill_diagonal_(0)


def test_a_task_from_two_tables(here):
    task = load(here)
    assert (task.name, task.node_ids, task.objective.class_names) == (
        "nodes.csv",
        ("a", "b", "c", "d", "e"),
        ("blue", "red"),
    )
    assert task.targets.tolist() == [1, 1, 0, -1, 0]
    x = torch.tensor([[0.0, 5], [2, 7], [0, 7], [2, 5], [1, 6]])
    expected = (x - x.mean(dim=0)) / x.std(dim=0, correction=0)
    assert torch.allclose(dense(task.features), expected, atol=1e-6)
    a = torch.zeros(5, 5)
    for i, j in ((0, 1), (1, 2), (3, 0)):
        a[i, j] = a[j, i] = 1
    assert torch.allclose(task.graph.to_dense().double(), dense_propagation(a.double()), atol=1e-6)
    assert task.default_split == "stratified-20-0"
    columns = task.source.columns
    assert (columns.id, columns.label, columns.source, columns.target, columns.weight, columns.knn) == (
        "id", "label", "source", "target", None, None,
    )  # fmt: skip
    assert [file.role for file in task.source.files] == ["nodes", "edges"]


def test_duplicates_self_loops_directions_and_weights_follow_the_stated_rule(here):
    edges = "source,target,weight\na,b,1\na,b,2\nb,a,2.5\nc,c,9\nc,d,0.5\nd,e,0\n"
    a = adjacency(load(here, edges=edges))
    expected = torch.zeros(5, 5, dtype=a.dtype)
    expected[0, 1] = expected[1, 0] = 3  # one direction adds up to 3, the other is 2.5, the larger counts
    expected[2, 3] = expected[3, 2] = 0.5
    assert torch.allclose(a, expected, atol=1e-6)
    plain = adjacency(load(here, edges=edges.replace("weight", "w")))  # not asked for: no weights
    assert plain[0, 1] == pytest.approx(1)
    assert plain[3, 4] == pytest.approx(1)
    named = adjacency(load(here, edges=edges.replace("weight", "w"), weight="w"))
    assert torch.allclose(named, expected, atol=1e-6)


def test_the_graph_is_what_pyg_would_build(here):
    rows = np.random.RandomState(0).randint(5, size=(12, 2))
    names = "abcde"
    task = load(here, edges="source,target\n" + "".join(f"{names[i]},{names[j]}\n" for i, j in rows))
    index = torch.tensor(rows.T)
    a = to_dense_adj(torch.cat([index, index.flip(0)], dim=1), max_num_nodes=5)[0].clamp(max=1).fill_diagonal_(0)
    assert torch.allclose(adjacency(task).float(), a, atol=1e-5)


@pytest.mark.parametrize("header", ["source,target", "src,dst", "from,to", "one,two"])
def test_the_usual_names_of_an_edges_ends_need_no_option(here, header):
    assert load(here, edges=EDGES.replace("source,target", header)).graph.num_edges == 3


def test_columns_in_any_order_under_any_name(here):
    nodes = "klasse;kilo;name;farbe;notiz\nA;1;n1;rot;egal\nB;2;n2;blau;\nA;3;n3;rot;x\nB;5;n4;;y\n"
    options = {"id": "name", "label": "klasse", "features": ("kilo",), "one_hot": ("farbe",)}
    ends = {"source": "start", "target": "ziel", "weight": "w"}
    task = load(here, nodes, "ziel,start,w\nn1,n2,2\n", **options, **ends)
    assert task.source.columns.feature_names == ("kilo", "farbe=blau", "farbe=rot")
    assert task.num_features == 3
    assert task.objective.class_names == ("A", "B")
    assert task.graph.degree.tolist() == [2, 2, 0, 0]


def test_without_a_column_called_id_the_first_names_the_nodes(here):
    task = load(here, NODES.replace("id,", "name,", 1))
    assert task.node_ids == ("a", "b", "c", "d", "e")


def test_ids_are_text_and_numbers_alike_and_compared_exactly(here):
    nodes = "id,x,label\n1,1,u\n2,2,v\n01,3,u\n"
    assert load(here, nodes, "source,target\n1,01\n").graph.num_edges == 1
    with pytest.raises(
        GraphjouleError, match=r"edges.csv, line 2, column 'target': there is no node '1.0' in nodes.csv"
    ):
        load(here, nodes, "source,target\n1,1.0\n")


def test_labels_that_are_numbers_are_sorted_as_numbers(here):
    nodes = "id,x,label\na,1,10\nb,2,9\nc,3,2\nd,4,\n"
    task = load(here, nodes, "source,target\na,b\n")
    assert task.objective.class_names == ("2", "9", "10")
    assert task.targets.tolist() == [2, 1, 0, -1]


def test_without_edges_the_nearest_are_linked_and_it_is_said(here, caplog):
    with caplog.at_level("INFO", "graphjoule"):
        task = load(here, edges=None, knn=2)
    expected = Propagation.from_edge_index(knn_edge_index(dense(task.features), 2), num_nodes=5, symmetrize=True)
    assert torch.equal(task.graph.to_dense(), expected.to_dense())
    assert "no edges given: linking every node with its 2 nearest in the features" in caplog.text
    assert task.source.columns.knn == 2
    assert load(here, edges=None).source.columns.knn == 4  # 10 by default, but there are only four others


def test_without_edges_and_ids_the_nodes_are_numbered_and_no_column_is_lost(here):
    task = load(here, "x,y,label\n0,1,a\n1,1,b\n5,2,a\n", None)
    assert task.node_ids == ("1", "2", "3")
    assert task.num_features == 2
    assert task.source.columns.id is None


def test_a_graph_without_edges_is_one(here):
    assert load(here, edges="source,target\n").graph.num_edges == 0
    assert load(here, edges="source,target,weight\n").graph.num_edges == 0


def test_a_table_of_edges_without_a_row_and_weights_of_zero_are_told(here, caplog):
    with caplog.at_level("INFO", "graphjoule"):
        load(here, edges="source,target\n")
        load(here, edges="source,target,weight\na,b,0\nb,c,1\nc,d,0\n")
    assert "edges.csv has no row of two known nodes: the graph has no edges" in caplog.text
    assert "weights from 'weight' (0 to 1, where a node itself weighs 1), 2 rows of weight 0 left out" in caplog.text


def test_float_weights_from_parquet_raise_no_warning(here):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    write(here)
    pq.write_table(pa.table({"source": ["a"], "target": ["b"], "weight": [1.5]}), "edges.parquet")
    assert load_tables("nodes.csv", "edges.parquet").graph.degree.tolist() == [1.5, 1.5, 0, 0, 0]


@pytest.mark.parametrize(
    "nodes",
    [
        NODES,
        re.sub("red|blue", "", NODES),
        NODES.replace("red", "blue"),
        "id\na\nb\nc\nd\ne\n",
        "name,colour\n" + "".join(f"{name},red\n" for name in "abcde"),
    ],
    ids=["labels", "all blank", "one class", "ids alone", "text alone"],
)
def test_the_graph_alone_needs_ids_alone(here, nodes):
    expected = load(here).graph.to_dense()
    write(here, nodes)
    assert torch.equal(load_graph("nodes.csv", "edges.csv").to_dense(), expected)


def test_the_graph_alone_of_neighbours_needs_no_labels(here):
    expected = load(here, edges=None, knn=2).graph.to_dense()
    for nodes in (re.sub("red|blue", "", NODES), re.sub(r",\w*\n", "\n", NODES)):
        write(here, nodes)
        assert torch.equal(load_graph("nodes.csv", knn=2).to_dense(), expected)
    write(here, "x\n3\n")
    assert load_graph("nodes.csv").num_nodes == 1
    with pytest.raises(GraphjouleError, match="there is no column 'kind' for `label`"):
        load_graph("nodes.csv", label="kind")
    with pytest.raises(GraphjouleError, match=r"`knn` is 2 and `edges` is edges\.csv"):
        load_graph("nodes.csv", "edges.csv", knn=2)


def test_what_was_read_is_told_and_a_class_with_one_label_is_named(here, caplog):
    with caplog.at_level("INFO", "graphjoule"):
        load(here, NODES + "f,1,1,green\n", EDGES + "a,a\n")
    assert (
        "edges.csv: 3 edges between 6 nodes, 1 self-loop dropped, every row counts in both directions, 2 nodes"
        in caplog.text
    )
    assert "nodes.csv: 6 nodes, 2 features; 5 labelled with 3 classes (blue, green, red), 1 to predict" in caplog.text
    assert "one labelled node alone in the class green" in caplog.text


def test_a_test_part_is_held_back_when_asked_for(here):
    assert load(here, test_fraction=0.25).default_split == "stratified-20-25"
    for wrong in (-0.1, 0.8, 1.0, 0.123, float("nan")):
        with pytest.raises(
            GraphjouleError, match=f"The test fraction is {wrong}; expected whole percents from 0 to 0.79"
        ):
            load(here, test_fraction=wrong)


def test_the_same_files_give_the_same_hash_and_others_another(here):
    facts = load(here).facts()
    assert load(here).facts() == facts
    others = [NODES.replace("a,0,", "a,9,"), NODES.replace("d,2,5,", "d,2,5,red")]
    hashes = {load(here, nodes).facts().sha256 for nodes in others} | {load(here, edges=EDGES + "a,e\n").facts().sha256}
    assert len({facts.sha256, *hashes}) == 4


# What is refused.

BAD_NODES = {
    "no label column": (
        NODES.replace("label", "class"),
        "line 1: there is no column 'label' for `label`; the columns are: id, x, y, class.",
    ),
    "an id twice": (NODES + "b,1,1,\n", "line 7, column 'id': the id 'b' stands on line 3 already"),
    "a NUL byte in an id": (NODES + "f\0,1,1,\n", "line 7, column 'id': the id 'f\\x00' holds a NUL byte"),
    "a blank id": (NODES + ",1,1,\n", "line 7, column 'id': the id is blank"),
    "all labels blank": (re.sub("red|blue", "", NODES), "lines 2 to 6, column 'label': every label is blank"),
    "one class": (NODES.replace("red", "blue"), "line 2, column 'label': all labels that are given are 'blue'"),
    "infinite": (
        NODES.replace("b,2,7", "b,inf,7"),
        "line 3, column 'x': inf is not a finite number, or too large; leave it blank",
    ),
    "text": (
        NODES.replace("b,2,7", "b,two,7"),
        "line 3, column 'x': 'two' is not a number, and 4 of 5 values are; leave it blank if it is unknown. `one_hot`",
    ),
    "currencies": (
        re.sub(r",(\d),(\d)", r",$\1,\2", NODES),
        "line 2, column 'x': '$0' looks like a number; write it as",
    ),
    "no feature": ("id,label\na,u\nb,v\n", "line 1: there is no column of features besides id and label"),
}


@pytest.mark.parametrize(("nodes", "said"), BAD_NODES.values(), ids=BAD_NODES)
def test_a_bad_table_of_nodes(here, nodes, said):
    with pytest.raises(GraphjouleError) as caught:
        load(here, nodes)
    assert str(caught.value).startswith(f"nodes.csv, {said}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ("age,x,label\n1,1,u\n1,2,v\n", "the id '1' stands on line 2 already; ids must differ; ids were taken from"),
        (
            "age,x,label\n1,1,u\n2,2,v\n",
            "there is no node 'a' in nodes.csv; so it is with 3 of 3 rows; ids were taken from the column 'age', as ",
        ),
    ],
)
def test_ids_from_the_first_column_are_said_to_be_a_guess(here, nodes, said):
    write(here, nodes)
    for read in (load_tables, load_graph):
        with pytest.raises(GraphjouleError) as caught:
            read("nodes.csv", "edges.csv")
        assert said in str(caught.value)
        assert str(caught.value).endswith("there is no column 'id': name the right one with `id`.")
        with pytest.raises(GraphjouleError) as caught:
            read("nodes.csv", "edges.csv", id="age")  # asked for
        assert "`id`" not in str(caught.value)


BAD_EDGES = {
    "an unknown node": ("source,target\na,b\nb,zoe\n", "line 3, column 'target': there is no node 'zoe' in nodes.csv"),
    "a blank end": ("source,target\n,b\n", "line 2, column 'source': the value is blank; an edge needs"),
    "one column": ("source\na\n", "line 1: there is one column, 'source'; an edge needs two"),
    "negative weight": ("source,target,weight\na,b,-1\n", "line 2, column 'weight': the weight -1.0 is negative"),
    "weights too large": (
        "source,target,weight\na,b,1\nb,c,1e308\nb,d,1e308\n",
        "line 3, column 'weight': the weight 1e+308 is so large that the sum of all is no number any more",
    ),
    "a weight that is a word": (
        "source,target,weight\na,b,heavy\nb,c,1\n",
        "line 2, column 'weight': 'heavy' is not a number; leave it blank if it is unknown",
    ),
}


@pytest.mark.parametrize(("edges", "said"), BAD_EDGES.values(), ids=BAD_EDGES)
def test_a_bad_table_of_edges(here, edges, said):
    with pytest.raises(GraphjouleError) as caught:
        load(here, edges=edges)
    assert str(caught.value).startswith(f"edges.csv, {said}")


BAD_OPTIONS = {
    "no such id": ({"id": "key"}, "nodes.csv, line 1: there is no column 'key' for `id`"),
    "no such feature": ({"features": ("z",)}, "there is no column 'z' for `features`"),
    "no such category": ({"one_hot": ("z",)}, "there is no column 'z' for `one_hot`"),
    "the label as a feature": ({"features": ("label",)}, "'label' is named by `features`, but"),
    "the id as a category": ({"one_hot": ("id",)}, "'id' is named by `one_hot`, but it is the"),
    "no such source": ({"source": "z"}, "edges.csv, line 1: there is no column 'z' for `source`"),
    "no such weight": ({"weight": "z"}, "there is no column 'z' for `weight`"),
    "a feature twice": ({"features": ("x", "y", "x")}, "nodes.csv: `features` names the column 'x' twice; expected it"),
    "a category twice": ({"one_hot": ("x", "x")}, "`one_hot` names the column 'x' twice; expected it once."),
    "a label twice": ({"label": "x, x", "objective": "regression"}, "`label` names the column 'x' twice; expected it"),
    "an end as weight": ({"weight": "target"}, "'target' is named by `weight`, but it holds an end of every edge"),
    "an end as type": ({"edge_type": "source"}, "'source' is named by `edge_type`, but it holds an end of every edge"),
    "both ends one": ({"target": "source"}, "'source' is both source and target of every edge"),
    "neighbours and edges": ({"knn": 3}, "`knn` is 3 and `edges` is edges.csv; give one of them"),
    "too many neighbours": ({"knn": 5, "edges": None}, "5 neighbours were asked for; with 5 nodes"),
}


@pytest.mark.parametrize(("options", "said"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_options_that_do_not_fit_the_files(here, options, said):
    with pytest.raises(GraphjouleError) as caught:
        load(here, **options)
    assert said in str(caught.value)


# Another graph with the same columns.


def like(here, nodes, edges=EDGES, **options):
    task = load(here, **options)
    write(here, nodes, edges)
    path = None if edges is None else "edges.csv"
    return load_tables_like(task.source.columns, task.objective, "nodes.csv", path)


def test_the_same_files_read_again_are_the_same_to_the_bit(here):
    task = load(here)
    again = like(here, NODES)
    assert torch.equal(dense(again.features), dense(task.features))
    assert torch.equal(again.graph.to_dense(), task.graph.to_dense())
    assert (again.targets.tolist(), again.node_ids) == (task.targets.tolist(), task.node_ids)


def test_new_nodes_need_no_label_and_are_scaled_with_the_old_numbers(here):
    given = like(here, "y,extra,id,x\n6,?,q,1\n", "source,target\n")
    assert dense(given.features).tolist() == [[0.0, 0.0]]  # the training nodes' means
    assert (given.targets.tolist(), given.node_ids) == ([-1], ("q",))


def test_new_nodes_of_a_neighbour_graph_are_linked_among_themselves(here):
    task = load(here, edges=None, knn=1)
    write(here, "id,x,y\nq,1,6\nr,2,6\ns,9,6\n")
    given = load_tables_like(task.source.columns, task.objective, "nodes.csv")
    assert given.graph.num_edges == 2
    write(here, "id,x,y\nq,1,6\n")
    assert load_tables_like(task.source.columns, task.objective, "nodes.csv").graph.num_nodes == 1


def test_a_graph_trained_without_weights_ignores_them(here):
    for weight in ("7", "heavy"):
        given = like(here, NODES, f"source,target,weight\na,b,{weight}\n")
        assert given.graph.degree.tolist() == [1, 1, 0, 0, 0]


def test_a_weight_that_the_model_was_trained_with_is_no_option(here):
    task = load(here, edges="source,target,w\na,b,2\n", weight="w")
    write(here)
    with pytest.raises(GraphjouleError) as caught:
        load_tables_like(task.source.columns, task.objective, "nodes.csv", "edges.csv")
    assert "there is no column 'w', which the model was trained with; the columns are: source, target." in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("nodes", "edges", "said"),
    [
        ("id,x\nq,1\n", EDGES, "nodes.csv, line 1: there is no column 'y', which the model was trained with"),
        ("id,x,y,label\nq,1,2,pink\n", EDGES, "nodes.csv, line 2, column 'label': 'pink' is not a class of the model"),
        (NODES, "a,b\na,b\n", "edges.csv, line 1: there is no column 'source', which the model was trained with"),
    ],
)
def test_a_graph_that_does_not_fit_the_model(here, nodes, edges, said):
    with pytest.raises(GraphjouleError) as caught:
        like(here, nodes, edges)
    assert said in str(caught.value)


def test_a_changed_or_missing_file_of_the_training_graph_is_told(here):
    file = load(here).source.file("nodes")
    assert unchanged(file) == here / "nodes.csv"
    (here / "nodes.csv").write_text(NODES + "f,1,1,\n")
    with pytest.raises(GraphjouleError, match=r"nodes.csv has changed since the model was trained; .* with `nodes`\."):
        unchanged(file)
    (here / "nodes.csv").unlink()
    with pytest.raises(GraphjouleError, match=r"nodes.csv, are not there any more; put .* another with `nodes`\."):
        unchanged(file)


# Numbers instead of classes.

PRICES = "id,x,price\n" + "".join(f"n{i},{i % 7},{'' if i % 5 == 4 else i * 1.25}\n" for i in range(80))
RING = "source,target\n" + "".join(f"n{i},n{(i + 1) % 80}\n" for i in range(80))
NUMBERS = {"label": "price", "objective": "regression"}


def test_a_column_of_numbers_is_a_regression_when_it_is_said(here, caplog):
    with caplog.at_level("INFO", "graphjoule"):
        task = load(here, PRICES, RING, **NUMBERS)
    assert task.objective == Regression(1, "squared", ("price",))
    assert task.targets.dtype == torch.get_default_dtype()
    assert task.targets[:4].tolist() == [0.0, 1.25, 2.5, 3.75]
    assert task.targets[4::5].isnan().all()
    assert task.is_known.sum() == 64
    assert task.source.columns.feature_names == ("x",)
    assert "nodes.csv: 80 nodes, 1 feature; 64 with a number from 0 to 97.5, 16 to predict" in caplog.text
    split = task.split()
    assert (split.name, split.sizes) == ("stratified-20-0", (51, 13, 0))
    assert load(here, PRICES, RING, loss="absolute", **NUMBERS).objective.error == "absolute"


def test_many_different_numbers_are_not_guessed_at(here):
    said = "nodes.csv: the column 'price' has 64 different numbers in 64 labels; say `objective=regression` to predict"
    for nodes in (PRICES, re.sub(r"\.\d+", "", PRICES.replace(",0.0\n", ",1000\n"))):
        with pytest.raises(GraphjouleError) as caught:
            load(here, nodes, RING, label="price")
        assert re.sub(r"has \d+ different", "has 64 different", str(caught.value)).startswith(said)
    assert load(here, PRICES, RING, label="price", objective="classification").out_channels == 64


@pytest.mark.parametrize(
    "values",
    [
        [str(i % 40) for i in range(80)],  # few whole numbers
        [f"c{i % 40}" for i in range(80)],  # text
        [f"{i % 3}.0" for i in range(80)],  # whole numbers, as a program writes them that has met a blank
        [str(i % 50) for i in range(200)],  # whole numbers that come again and again
    ],
)
def test_what_is_taken_for_classes_unasked(here, values):
    nodes = "id,x,label\n" + "".join(f"n{i},{i},{value}\n" for i, value in enumerate(values))
    task = load(here, nodes, "source,target\nn0,n1\n")
    assert isinstance(task.objective, Classification)
    assert task.out_channels == len(set(values))


def test_another_table_of_a_regression_is_read_the_same_way(here):
    task = load(here, PRICES, RING, **NUMBERS)
    again = load_tables_like(task.source.columns, task.objective, "nodes.csv", "edges.csv")
    assert torch.equal(again.targets.nan_to_num(-1), task.targets.nan_to_num(-1))
    write(here, "id,x\na,1\nb,2\n", "source,target\na,b\n")
    assert load_tables_like(task.source.columns, task.objective, "nodes.csv", "edges.csv").targets.isnan().all()
    write(here, "id,x,price\na,1,cheap\n", "source,target\n")
    with pytest.raises(GraphjouleError, match=r"line 2, column 'price': 'cheap' is not a number; leave it blank"):
        load_tables_like(task.source.columns, task.objective, "nodes.csv", "edges.csv")


def test_facts_remember_a_regression(here):
    facts = load(here, PRICES, RING, loss="absolute", **NUMBERS).facts()
    assert type(facts).model_validate_json(facts.model_dump_json()) == facts
    assert (facts.objective.error, facts.num_labels) == ("absolute", 64)


BAD_REGRESSIONS = {
    "text": (
        PRICES.replace(",1.25\n", ",low\n"),
        {},
        "nodes.csv, line 3, column 'price': 'low' is not a number; leave",
    ),
    "infinite": (PRICES.replace(",1.25\n", ",inf\n"), {}, "line 3, column 'price': inf is too large to train on"),
    "too large": (PRICES.replace(",1.25\n", ",1e300\n"), {}, "line 3, column 'price': 1e+300 is too large to train on"),
    "all blank": (re.sub(r",[\d.]+\n", ",\n", PRICES), {}, "lines 2 to 81, column 'price': every label is blank"),
    "no such task": (PRICES, {"objective": "ranking"}, "`objective` is 'ranking'; the choices are: binary, class"),
    "no such loss": (PRICES, {"loss": "huber"}, "`loss` is 'huber'; the choices are: absolute, squared."),
    "a loss of classes": (
        PRICES,
        {"objective": None, "loss": "squared"},
        "`loss` is 'squared', but it is for `objective=",
    ),
}


@pytest.mark.parametrize(("nodes", "options", "said"), BAD_REGRESSIONS.values(), ids=BAD_REGRESSIONS)
def test_a_regression_that_cannot_be(here, nodes, options, said):
    with pytest.raises(GraphjouleError) as caught:
        load(here, nodes, RING, **(NUMBERS | options))
    assert said in str(caught.value)


# Directions, types, and edges to nowhere.

ARROWS = "source,target,kind\na,b,likes\nb,a,likes\na,b,knows\nb,c,knows\nc,c,knows\na,b,knows\nd,zoe,knows\n,e,knows\n"


def test_the_direction_of_edges_is_chosen_and_said(here, caplog):
    with caplog.at_level("INFO", "graphjoule"):
        both = adjacency(load(here, edges=ARROWS)).round()
    assert (both[0, 1], both[1, 2]) == (1, 1)
    assert "2 rows naming no node left out, 1 self-loop dropped, 2 repeated rows (counted once), 1 edge in one" in (
        caplog.text
    )
    mutual = adjacency(load(here, edges=ARROWS, direction="mutual")).round()
    assert (mutual[0, 1], mutual.sum()) == (1, 2)
    with caplog.at_level("INFO", "graphjoule"):
        kept = load(here, edges="source,target,weight\na,b,2\nb,c,1\n", direction="kept")
    assert kept.graph.to_dense()[:3, :3].tolist() == [
        [1, 0, 0],
        [pytest.approx(2 / 3), pytest.approx(1 / 3), 0],
        [0, 0.5, 0.5],
    ]
    assert (kept.is_directed, kept.facts().is_directed, kept.facts().num_edges) == (True, True, 2)
    assert kept.source.columns.direction == "kept"
    assert "where a node itself weighs 1), edges keep their direction: a node reads" in caplog.text
    assert "3 nodes without an edge that leads to it, energies are those of the merged undirected graph" in caplog.text
    again = load_tables_like(kept.source.columns, kept.objective, "nodes.csv", "edges.csv")
    assert torch.equal(again.graph.to_dense(), kept.graph.to_dense())
    with pytest.raises(GraphjouleError, match="`direction` is 'up'; the choices are: both, kept, mutual"):
        load(here, direction="up")


def test_a_blank_weight_is_1_and_said(here, caplog):
    with caplog.at_level("INFO", "graphjoule"):
        task = load(here, edges="source,target,weight\na,b,\nb,c,nan\nc,d,3\n")
    assert task.graph.degree.tolist() == [1, 2, 4, 3, 0]
    assert "weights from 'weight' (1 to 3, where a node itself weighs 1), 2 blank weights taken as 1" in caplog.text
    assert load(here, edges="source,target,weight\na,b,\n").graph.degree.tolist() == [1, 1, 0, 0, 0]


def test_codes_with_leading_zeros_are_no_weights(here):
    with pytest.raises(GraphjouleError, match="line 3, column 'weight': '00407' is a code, not a number; a weight has"):
        load(here, edges="source,target,weight\na,b,1\nb,c,00407\n")


def test_codes_with_leading_zeros_are_categories_not_numbers(here, caplog):
    nodes = NODES.replace("y", "zip").replace("5,", "00501,").replace("6,", "10001,").replace("7,", "60601,")
    task = load(here, nodes)
    assert "'zip' is a category: one feature for each of 3 categories; '00501' is a code, not a number" in caplog.text
    assert task.source.columns.feature_names == ("x", "zip=00501", "zip=10001", "zip=60601")
    given = load_tables_like(task.source.columns, task.objective, "nodes.csv", "edges.csv")
    assert dense(given.features).equal(dense(task.features))


def test_types_of_edges_are_merged_and_their_weights_added(here, caplog):
    with caplog.at_level("INFO", "graphjoule"):
        a = adjacency(load(here, edges=ARROWS, edge_type="kind")).round()
    assert (a[0, 1], a[1, 2]) == (2, 1)  # likes and knows; a repeated row of one type counts once
    assert "types from 'kind' (knows 4, likes 2): merged into one graph, weights added" in caplog.text
    weighted = ARROWS.replace("kind", "kind,weight").replace("likes", "likes,0.5").replace("knows", "knows,3")
    assert adjacency(load(here, edges=weighted, edge_type="kind"))[0, 1] == pytest.approx(6.5)
    task = load(here, edges=ARROWS, edge_type="kind")
    again = load_tables_like(task.source.columns, task.objective, "nodes.csv", "edges.csv")
    assert torch.equal(again.graph.to_dense(), task.graph.to_dense())


@pytest.mark.parametrize("direction", ["both", "mutual"])
def test_types_add_up_whichever_way_their_rows_point(here, direction):
    one = [("a", "b", "s"), ("a", "b", "t"), ("b", "a", "s"), ("c", "d", "s"), ("d", "c", "t"), ("c", "c", "t")]
    a = adjacency(load(here, edges=written(one, "kind"), edge_type="kind", direction=direction))
    # Of direction "both" every edge has two types; "mutual" asks for both directions, whatever their types are.
    assert (a[0, 1], a[2, 3], a.sum()) == (pytest.approx(2), pytest.approx(2), pytest.approx(8))
    weighted = [("a", "b", "s,2"), ("b", "a", "s,3"), ("b", "a", "t,5"), ("a", "b", "s,2")]
    a = adjacency(load(here, edges=written(weighted, "kind,weight"), edge_type="kind", direction=direction))
    assert (a[0, 1], a.sum()) == (pytest.approx(4 + 5), pytest.approx(18))


def written(rows, *heads):
    return "\n".join(",".join(row) for row in [("source", "target", *heads), *rows]) + "\n"


@pytest.mark.parametrize("direction", ["both", "kept", "mutual"])
def test_types_of_edges_of_which_none_is_left_are_a_graph_without_edges(here, direction):
    edges = "source,target,kind\n" + ("a,b,likes\n" if direction == "mutual" else "")
    task = load(here, edges=edges, edge_type="kind", types="separate", direction=direction)
    assert task.graph.num_edges == 0


@pytest.mark.parametrize("direction", ["both", "kept"])
def test_types_of_edges_can_have_operators_of_their_own(here, caplog, direction):
    caplog.set_level("INFO", "graphjoule")
    edges = "source,target,kind\na,b,likes\na,b,likes\na,c,knows\nb,c,knows\nc,d,knows\n"
    task = load(here, edges=edges, edge_type="kind", types="separate", direction=direction)
    ones = [load(here, edges=re.sub(f".*,{other}\n", "", edges), direction=direction) for other in ("likes", "knows")]
    expected = (ones[0].graph.to_dense() + ones[1].graph.to_dense()) / 2
    torch.testing.assert_close(task.graph.to_dense(), expected)
    assert (task.facts().num_edge_types, task.source.columns.types) == (2, ("knows", "likes"))
    assert "types from 'kind' (knows 3, likes 2): an operator for each, normalised by itself, and P is" in caplog.text
    merged = load(here, edges=edges, edge_type="kind", direction=direction)
    assert merged.facts().sha256 != task.facts().sha256
    write(here, edges=edges.replace("b,c,knows", "b,c,hates"))
    given = load_tables_like(task.source.columns, task.objective, "nodes.csv", "edges.csv")
    assert "1 row of a type the model does not know left out" in caplog.text
    assert len(given.graph.parts) == 2


def test_types_that_cannot_have_operators_of_their_own_are_refused(here):
    with pytest.raises(GraphjouleError, match="`types` is 'each'; the choices are: merged, separate"):
        load(here, edge_type="target", types="each")
    with pytest.raises(GraphjouleError, match="`types` is 'separate', but it is for `edge_type`, which is not given"):
        load(here, types="separate")
    many = "source,target,kind\n" + "".join(f"a,b,{kind}\n" for kind in range(60))
    with pytest.raises(GraphjouleError, match="'kind' has 60 types; with `types=separate` there may be 50"):
        load(here, edges=many, edge_type="kind", types="separate")


def test_new_rows_alone_stand_alone_and_it_is_said(here, caplog):
    given = like(here, NODES, None)
    assert given.graph.num_edges == 0
    assert "nodes.csv: no edges given, so every node stands alone; the model was trained with edges" in caplog.text


# Whatever the order of rows, columns and files.


@few
@hypothesis.given(st.data())
def test_features_targets_and_edges_follow_the_ids_under_any_shuffling(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("shuffled")
    count = 12
    cell = {
        "x": st.floats(-1e6, 1e6).map(repr) | st.just(""),
        "flag": st.sampled_from(["yes", "no", ""]),
        "day": st.dates().map(str) | st.just(""),
        "city": st.sampled_from(["Rome", "Oslo", "Bern", ""]),
        "note": st.sampled_from(["a cat sat here", "the dog ran off", "a man and a dog", ""]),
        "label": st.sampled_from(["red", "blue", ""]),
    }
    columns = {name: data.draw(st.lists(values, min_size=count, max_size=count)) for name, values in cell.items()}
    columns |= {"id": [f"n{i}" for i in range(count)], "spread": [str(i) for i in range(count)]}
    columns["label"][:3] = ["red", "blue", "red"]
    ends = st.sampled_from(columns["id"])
    edges = data.draw(st.lists(st.tuples(ends, ends), min_size=1, max_size=20))

    def write_down(name, order, heads, pairs):
        rows = [heads, *([columns[head][i] for head in heads] for i in order)]
        (folder / f"{name}-nodes.csv").write_text("".join(",".join(row) + "\n" for row in rows))
        (folder / f"{name}-edges.csv").write_text("source,target\n" + "".join(f"{a},{b}\n" for a, b in pairs))
        return folder / f"{name}-nodes.csv", folder / f"{name}-edges.csv"

    first = load_tables(*write_down("one", range(count), list(columns), edges), objective="classification")
    order = data.draw(st.permutations(range(count)))
    heads = data.draw(st.permutations(list(columns)))
    files = write_down("two", order, heads, data.draw(st.permutations(edges)))
    second = load_tables(*files, objective="classification")
    like_first = load_tables_like(first.source.columns, first.objective, *files)

    place = [second.node_ids.index(name) for name in first.node_ids]
    names = [second.source.columns.feature_names.index(name) for name in first.source.columns.feature_names]
    assert dense(second.features)[place][:, names].equal(dense(first.features))
    assert dense(like_first.features)[place].equal(dense(first.features))
    for other in (second, like_first):
        assert other.targets[place].equal(first.targets)
        assert torch.equal(other.graph.to_dense()[place][:, place], first.graph.to_dense())


# Many graphs.

GRAPHS = "id,label\ng2,red\ng1,blue\ng3,\n"
OF_GRAPHS = "graph,id,x\ng1,a,0\ng2,a,1\ng1,b,2\ng2,b,3\ng3,c,4\n"
WITHIN = "graph,source,target\ng1,a,b\ng2,b,a\n"


def load_graphs(here, graphs=GRAPHS, nodes=OF_GRAPHS, edges=WITHIN, **options):
    write(here, nodes, edges)
    (here / "graphs.csv").write_text(graphs)
    return load_tables("nodes.csv", "edges.csv", graphs="graphs.csv", **options)


def test_three_tables_are_a_task_about_graphs(here, caplog):
    caplog.set_level("INFO", "graphjoule")
    task = load_graphs(here, pooling="sum")
    assert (task.name, task.unit, task.node_ids) == ("graphs.csv", "graph", ("g2", "g1", "g3"))
    assert (task.pooling.batch.tolist(), task.pooling.how) == ([1, 0, 1, 0, 2], "sum")
    assert task.targets.tolist() == [1, 0, -1]
    assert task.graph.edge_index.tolist() == [[0, 1, 2, 3], [2, 3, 0, 1]]
    torch.testing.assert_close(task.features, (torch.arange(5.0)[:, None] - 2) / 2**0.5)
    assert "nodes.csv: 5 nodes of 3 graphs called by 'id' in graphs.csv, 1 to 2 nodes each" in caplog.text
    assert "graphs.csv: 3 graphs, 1 feature; 2 labelled with 2 classes (blue, red), 1 to predict" in caplog.text
    assert load_graph("nodes.csv", "edges.csv", "graphs.csv").edge_index.equal(task.graph.edge_index)
    given = load_tables_like(task.source.columns, task.objective, "nodes.csv", "edges.csv", "graphs.csv")
    assert (given.node_ids, given.pooling.how) == (task.node_ids, "sum")
    assert given.targets.equal(task.targets)


def test_ids_that_all_differ_need_no_graph_at_the_edges_and_the_columns_may_have_other_names(here, caplog):
    local = load_graphs(here)
    renamed = {"graph": "molecule", "g1,a": "g1,p", "g1,b": "g1,q", "g2,a": "g2,r", "g2,b": "g2,s"}
    nodes, edges = OF_GRAPHS, "source,target\np,q\ns,r\n"
    for old, new in renamed.items():
        nodes = nodes.replace(old, new)
    graphs = "molecule,id,label\ng2,7,red\ng1,8,blue\ng3,9,\n"
    apart = load_graphs(here, graphs, nodes, edges, graph_column="molecule")
    assert apart.facts().sha256 == local.facts().sha256
    assert apart.node_ids == local.node_ids
    assert "graphs.csv: columns not used: id; features are those of nodes" in caplog.text


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"edges": "source,target\na,b\n"},
            "nodes.csv, line 3, column 'id': the id 'a' stands on line 2 already; ids must "
            "differ, or differ within a graph if the edges have the column 'graph' too.",
        ),
        (
            {"nodes": OF_GRAPHS + "g3,c,1\n"},
            "nodes.csv, line 7, column 'id': the id 'c' stands on line 6 already; ids must differ within a graph.",
        ),
        (
            {"nodes": "graph,id,x\ng1,a,0\ng2,b,1\ng3,c,2\n", "edges": "source,target\na,a\na,b\n"},
            "edges.csv, line 3, "
            "column 'target': the edge leads from graph 'g1' to graph 'g2'; both ends must be nodes of one graph.",
        ),
        (
            {"edges": "graph,source,target\ng1,a,c\n"},
            "edges.csv, line 2, column 'target': there is no node 'c' of graph "
            "'g1' in nodes.csv; ids are compared as text.",
        ),
        (
            {"graphs": GRAPHS + "g4,red\n"},
            "graphs.csv, line 5, column 'id': the graph 'g4' has no node in nodes.csv; it needs one.",
        ),
        (
            {"graphs": GRAPHS + "g1,red\n"},
            "graphs.csv, line 5, column 'id': the id 'g1' stands on line 3 already; ids must differ.",
        ),
        ({"graphs": GRAPHS + ",red\n"}, "graphs.csv, line 5, column 'id': the id is blank; every graph needs one."),
        (
            {"nodes": OF_GRAPHS + "g9,a,1\n"},
            "nodes.csv, line 7, column 'graph': there is no graph 'g9' in graphs.csv, whose graphs are called by 'id'.",
        ),
        (
            {"nodes": OF_GRAPHS + ",z,1\n"},
            "nodes.csv, line 7, column 'graph': the graph is blank; every node needs one.",
        ),
        (
            {"nodes": OF_GRAPHS.replace("x", "label")},
            "nodes.csv, line 1: the column 'label' is what is to be predicted for "
            "every graph, and stands among its nodes too; take it out, or name the columns to learn from with "
            "`features`.",
        ),
        (
            {"graph_column": "mol"},
            "nodes.csv, line 1: there is no column 'mol' for `graph_column`; the columns are: graph, id, x.",
        ),
        ({"id": "graph"}, "nodes.csv: 'graph' is named by `id`, but it is the column of the graphs."),
        (
            {"features": ["graph"]},
            "nodes.csv, line 1: the column 'graph' is named by `features`, but it is the id or the "
            "label, or names the graph.",
        ),
        ({"label": "id"}, "graphs.csv, line 1: the column 'id' is named by `label`, but it is the id."),
        (
            {"label": "active"},
            "graphs.csv, line 1: there is no column 'active' for `label`; the columns are: id, label.",
        ),
        ({"pooling": "median"}, "`pooling` is 'median'; the choices are: max, mean, sum."),
    ],
)
def test_what_is_wrong_with_many_graphs_is_said_with_its_place(here, changed, said):
    with pytest.raises(GraphjouleError) as error:
        load_graphs(here, **changed)
    assert str(error.value) == said


def test_a_column_of_the_graphs_is_their_split(here):
    graphs, refuse = "id,label,split\ng2,red,Train\ng1,blue,val\ng3,,test\n", pytest.raises
    task = load_graphs(here, graphs)
    assert task.default_split == "public"
    assert [getattr(task.split(), part).tolist() for part in ("train", "val", "test")] == [[0], [1], []]
    with refuse(GraphjouleError, match="line 4, column 'split': 'held' is not a part; expected test, train, val, or a"):
        load_graphs(here, graphs.replace("test", "held"))
    with refuse(GraphjouleError, match="no graph with a target is in the part 'val' of the column 'split'"):
        load_graphs(here, graphs.replace("val", "train"))
    with refuse(GraphjouleError, match=r"`test_fraction` is 0.2, but the column 'split' of graphs\.csv says"):
        load_graphs(here, graphs, test_fraction=0.2)
    assert load_graphs(here, graphs, label="split").default_split == "stratified-20-0"


def test_a_column_of_the_nodes_is_their_split_and_no_feature(here, caplog):
    caplog.set_level("INFO", "graphjoule")
    nodes = "id,x,label,split\na,0,red,Train\nb,2,red,validation\nc,0,blue,TEST\nd,3,,test\ne,1,blue,\n"
    task = load(here, nodes)
    assert "nodes.csv: its column 'split' is the split 'public': 1 train, 1 val, 1 test" in caplog.text
    assert (task.default_split, task.source.columns.feature_names) == ("public", ("x",))
    assert [getattr(task.split(), part).tolist() for part in ("train", "val", "test")] == [[0], [1], [2]]
    assert load(here, nodes, features=["x"]).default_split == "public"
    assert load(here, nodes.replace("validation", "valid")).default_split == "public"
    named = load(here, nodes, features=["x", "split"])
    assert (named.default_split, "split=Train" in named.source.columns.feature_names) == ("stratified-20-0", True)
    other = load(here, nodes.replace("Train", "plank").replace("test", "log").replace("TEST", "log"))
    assert (other.default_split, "split=log" in other.source.columns.feature_names) == ("stratified-20-0", True)


@pytest.mark.parametrize(
    ("old", "new", "options", "said"),
    [
        ("TEST", "held", {}, "line 4, column 'split': 'held' is not a part; expected test, train, val, or a blank; if"),
        ("validation", "test", {}, "no node with a target is in the part 'val' of the column 'split'; some must valid"),
        ("", "", {"test_fraction": 0.2}, "`test_fraction` is 0.2, but the column 'split' of nodes.csv says who tests"),
    ],
)
def test_a_split_of_the_nodes_that_is_none_is_refused(here, old, new, options, said):
    nodes = "id,x,label,split\na,0,red,Train\nb,2,red,validation\nc,0,blue,TEST\nd,3,,test\ne,1,blue,\n"
    with pytest.raises(GraphjouleError, match=re.escape(said)):
        load(here, nodes.replace(old, new) if old else nodes, **options)


def test_tables_for_a_trained_model_must_be_of_its_kind(here):
    task = load_graphs(here)
    columns, asked = task.source.columns, task.objective
    for files, missing in ((["nodes.csv"], "graphs"), (["nodes.csv", None, "graphs.csv"], "edges")):
        with pytest.raises(GraphjouleError, match=f"model predicts graphs, and `{missing}` is missing"):
            load_tables_like(columns, asked, *files)
    of_nodes = load(here)
    with pytest.raises(GraphjouleError, match=r"`graphs` is graphs\.csv, but the model predicts nodes"):
        load_tables_like(of_nodes.source.columns, asked, "nodes.csv", "edges.csv", "graphs.csv")
    with pytest.raises(GraphjouleError, match=r"`graphs` is graphs\.csv, but `edges` is missing"):
        load_tables("nodes.csv", graphs="graphs.csv")
    with pytest.raises(GraphjouleError, match="`graph_column` is 'g', but it is for `graphs`"):
        load(here, graph_column="g")
