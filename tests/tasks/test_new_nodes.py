"""New rows beside the training graph: who reads from whom, and that nothing about the old nodes changes."""

import csv
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.graph.extension import ExtendedPropagation
from graphjoule.graph.features import as_dense
from graphjoule.nn import EGNN
from graphjoule.tasks import ModelInput, Task, load_new_nodes, load_tables

NUM_OLD = 30


def write(path, *rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def features(name, draw):
    return [name, round(draw.gauss(0, 1), 3), round(draw.gauss(0, 1), 3), draw.choice(["rome", "oslo", "bern"])]


HEAD = ["id", "x", "y", "city"]


@pytest.fixture
def old(tmp_path) -> Task:
    """A training graph from two tables."""
    return make_old(tmp_path)


def make_old(folder, *, edges=True, weighted=False, objective=None, label=lambda i: "rb"[i % 2]) -> Task:
    draw = random.Random(0)
    rows = [[*features(f"n{i}", draw), label(i)] for i in range(NUM_OLD)]
    nodes = write(folder / "nodes.csv", [*HEAD, "label"], *rows)
    links = [
        [f"n{i}", f"n{draw.randrange(NUM_OLD)}", *([round(draw.uniform(1, 3), 2)] if weighted else [])]
        for i in range(NUM_OLD)
        for _ in range(2)
    ]
    head = ["source", "target", *(["weight"] if weighted else [])]
    path = write(folder / "edges.csv", head, *links) if edges else None
    return load_tables(nodes, path, objective=objective)


def write_new(folder, links=(("m0", "n1"), ("n5", "m1"), ("m1", "m2")), num_new=4, name="new"):
    draw = random.Random(1)
    nodes = write(folder / f"{name}.csv", HEAD, *(features(f"m{i}", draw) for i in range(num_new)))
    return nodes, write(folder / f"{name}-edges.csv", ["source", "target"], *links)


def scores(given: ModelInput) -> dict[str, torch.Tensor]:
    """What a network says of every node, by its id."""
    torch.manual_seed(0)
    model = EGNN(given.features.size(1), 8, 2, num_layers=4).double().eval()
    x = as_dense(given.features)
    with torch.no_grad():
        out = model(x.double(), given.graph.to(dtype=torch.float64))
    return dict(zip(given.node_ids, out, strict=True))


def test_edges_to_old_nodes_join_the_graphs_and_old_nodes_stay_as_they_are(old, tmp_path, caplog):
    caplog.set_level("INFO", "graphjoule")
    joint = load_new_nodes(old.source, old.objective, *write_new(tmp_path))
    assert joint.num_old == NUM_OLD
    assert joint.node_ids == (*old.node_ids, "m0", "m1", "m2", "m3")
    assert isinstance(joint.graph, ExtendedPropagation)
    dense = joint.graph.to_dense()
    assert dense[:NUM_OLD, :NUM_OLD].equal(old.graph.to_dense())
    assert not dense[:NUM_OLD, NUM_OLD:].any()
    assert {joint.node_ids[j] for j in dense[NUM_OLD + 1].nonzero()[:, 0].tolist()} == {"n5", "m1", "m2"}
    assert (
        "3 edges of 4 new nodes with each other and with the 30 of the training graph; 1 new node without an edge"
        in (caplog.text)
    )
    before, after = scores(ModelInput.of(old)), scores(joint)
    for name in old.node_ids:
        torch.testing.assert_close(after[name], before[name])
    assert joint.targets[:NUM_OLD].equal(old.targets)
    assert (joint.targets[NUM_OLD:] == -1).all()


def test_updating_the_old_nodes_is_the_graph_of_all_edges(old, tmp_path):
    files = write_new(tmp_path)
    joint = load_new_nodes(old.source, old.objective, *files, update_old=True)
    nodes, edges = ((tmp_path / name).read_text().splitlines() for name in ("nodes.csv", "edges.csv"))
    new, more = ((tmp_path / name).read_text().splitlines()[1:] for name in ("new.csv", "new-edges.csv"))
    (tmp_path / "all.csv").write_text("\n".join([*nodes, *(f"{row},r" for row in new)]))
    (tmp_path / "all-edges.csv").write_text("\n".join([*edges, *more]))
    whole = load_tables(tmp_path / "all.csv", tmp_path / "all-edges.csv")
    torch.testing.assert_close(joint.graph.to_dense(), whole.graph.to_dense())
    moved, before = scores(joint), scores(ModelInput.of(old))
    assert not torch.allclose(moved["n1"], before["n1"])


def test_edges_between_old_nodes_are_left_out_unless_these_are_updated(old, tmp_path, caplog):
    caplog.set_level("INFO", "graphjoule")
    plain = load_new_nodes(old.source, old.objective, *write_new(tmp_path))
    apart = next(j for j in range(1, NUM_OLD) if not old.graph.to_dense()[0, j])
    links = (("m0", "n1"), ("n5", "m1"), ("m1", "m2"), ("n0", f"n{apart}"))
    more = load_new_nodes(old.source, old.objective, *write_new(tmp_path, links))
    torch.testing.assert_close(more.graph.to_dense(), plain.graph.to_dense())
    assert "1 edge between its own nodes left out" in caplog.text
    updated = load_new_nodes(old.source, old.objective, *write_new(tmp_path, links), update_old=True)
    assert "1 edge between its own nodes counts too" in caplog.text
    assert updated.graph.to_dense()[0, apart] > 0


def test_a_column_of_new_edges_that_the_training_did_not_read_is_said(old, tmp_path, caplog):
    caplog.set_level("INFO", "graphjoule")
    nodes, edges = write_new(tmp_path)
    load_new_nodes(old.source, old.objective, nodes, edges)
    assert "columns not used" not in caplog.text
    write(edges, ["source", "target", "weight"], ("m0", "n1", 5), ("m1", "n2", 1))
    load_new_nodes(old.source, old.objective, nodes, edges)
    assert "of the training graph; columns not used: weight" in caplog.text


@pytest.mark.parametrize("links", [(("m0", "0"),), (("m0", "n1"), ("m1", "0"), ("m2", "0"))])
def test_an_edge_to_no_node_is_refused_with_both_tables(old, tmp_path, links):
    with pytest.raises(GraphjouleError, match=r"no node '0' in \S+new\.csv, nor in \S+/nodes\.csv; "):
        load_new_nodes(old.source, old.objective, *write_new(tmp_path, links))


def test_new_rows_alone_read_from_their_nearest_and_do_not_depend_on_each_other(old, tmp_path, caplog):
    caplog.set_level("INFO", "graphjoule")
    nodes, _ = write_new(tmp_path)
    joint = load_new_nodes(old.source, old.objective, nodes, knn=3)
    assert (
        "no edges given, so 4 new nodes read from their 3 nearest in the features of the training graph" in caplog.text
    )
    x = as_dense(joint.features)
    nearest = torch.cdist(x[NUM_OLD:], x[:NUM_OLD]).argsort(dim=1)[:, :3]
    dense = joint.graph.to_dense()
    for new in range(4):
        found = dense[NUM_OLD + new].nonzero()[:, 0].tolist()
        assert found == sorted([*nearest[new].tolist(), NUM_OLD + new])
    one = write(tmp_path / "one.csv", HEAD, (tmp_path / "new.csv").read_text().splitlines()[2].split(","))
    alone = scores(load_new_nodes(old.source, old.objective, one, knn=3))
    torch.testing.assert_close(alone["m1"], scores(joint)["m1"])


def test_without_k_there_are_ten_or_as_many_as_the_training_graph_was_built_with(tmp_path):
    built = make_old(tmp_path, edges=False)
    nodes, _ = write_new(tmp_path)
    joint = load_new_nodes(built.source, built.objective, nodes)
    assert joint.graph.degree[NUM_OLD:].tolist() == [10] * 4
    assert joint.graph.to_dense()[:NUM_OLD, :NUM_OLD].equal(built.graph.to_dense())
    linked = make_old(tmp_path)
    assert load_new_nodes(linked.source, linked.objective, nodes).graph.degree[NUM_OLD:].tolist() == [10] * 4
    assert load_new_nodes(linked.source, linked.objective, nodes, knn=99).graph.degree[-1] == NUM_OLD


def test_beside_weighted_edges_a_link_to_the_nearest_weighs_what_an_edge_does(tmp_path):
    weighted = make_old(tmp_path, weighted=True)
    nodes, _ = write_new(tmp_path)
    joint = load_new_nodes(weighted.source, weighted.objective, nodes, knn=2)
    mean = float(weighted.graph.edge_weight.double().mean())
    assert joint.graph.degree[NUM_OLD:].tolist() == pytest.approx([2 * mean] * 4)


def test_edges_between_new_nodes_alone_are_another_graph(old, tmp_path):
    other = load_new_nodes(old.source, old.objective, *write_new(tmp_path, [("m0", "m1"), ("m2", "m3")]))
    assert other.num_old == 0
    assert other.node_ids == ("m0", "m1", "m2", "m3")


@pytest.mark.parametrize(
    ("objective", "label"),
    [("regression", lambda i: i / 7), ("multilabel", lambda i: "a;b" if i % 2 else "b"), ("ordinal", lambda i: i % 3)],
)
def test_every_objective_has_unknown_targets_for_new_nodes(tmp_path, objective, label):
    old = make_old(tmp_path, objective=objective, label=label)
    joint = load_new_nodes(old.source, old.objective, *write_new(tmp_path))
    known = old.objective.is_known(joint.targets)
    assert known.tolist() == [True] * NUM_OLD + [False] * 4


@settings(deadline=None, max_examples=10)
@given(st.randoms(use_true_random=False))
def test_predictions_follow_ids_when_rows_columns_and_files_are_shuffled(tmp_path_factory, draw):
    folder = tmp_path_factory.mktemp("shuffled")
    old = make_old(folder)
    files = write_new(folder)
    expected = [scores(load_new_nodes(old.source, old.objective, *given)) for given in (files, files[:1])]
    moved = []
    for path in files:
        head, *rows = (line.split(",") for line in path.read_text().splitlines())
        draw.shuffle(rows)
        order, sign = draw.sample(range(len(head)), len(head)), draw.choice(",;\t")
        moved.append(folder / f"{draw.choice('xyz')}-{path.name}")
        moved[-1].write_text("\n".join(sign.join(row[k] for k in order) for row in [head, *rows]))
    found = [scores(load_new_nodes(old.source, old.objective, *given)) for given in (moved, moved[:1])]
    for here, there in zip(found, expected, strict=True):
        assert here.keys() == there.keys()
        for name, score in there.items():
            torch.testing.assert_close(here[name], score)
    for name in old.node_ids:  # by edges or by nearest nodes, old ones are what they were
        torch.testing.assert_close(found[0][name], found[1][name])


def test_an_id_that_is_old_and_new_is_refused(old, tmp_path):
    draw = random.Random(1)
    nodes = write(tmp_path / "new.csv", HEAD, features("m0", draw), features("n3", draw))
    edges = write(tmp_path / "new-edges.csv", ["source", "target"], ["m0", "n7"])
    with pytest.raises(GraphjouleError, match=r"new\.csv: the id 'n3' is a node of the training graph too"):
        load_new_nodes(old.source, old.objective, nodes, edges)


def test_a_name_that_neither_table_has_is_refused_as_before(old, tmp_path):
    with pytest.raises(GraphjouleError, match="there is no node 'zz' in"):
        load_new_nodes(old.source, old.objective, *write_new(tmp_path, [("m0", "zz")]))


def test_a_training_table_that_has_changed_is_not_read_and_it_is_said(old, tmp_path, caplog):
    nodes, edges = write_new(tmp_path)
    (tmp_path / "nodes.csv").write_text((tmp_path / "nodes.csv").read_text() + "z,1,1,rome,r\n")
    assert load_new_nodes(old.source, old.objective, nodes).num_old == 0
    assert "new.csv is read as a graph of its own" in caplog.text
    assert "nodes.csv has changed since the model was trained" in caplog.text
    with pytest.raises(GraphjouleError, match="there is no node 'n1' in"):
        load_new_nodes(old.source, old.objective, nodes, edges)


def test_an_unknown_category_is_counted_and_has_no_feature(old, tmp_path, caplog):
    nodes, edges = write_new(tmp_path)
    text = nodes.read_text()
    nodes.write_text(text.replace("oslo", "paris").replace("rome", "paris").replace("bern", "paris"))
    joint = load_new_nodes(old.source, old.objective, nodes, edges)
    assert "new.csv: 4 values of 'city' without a category of the model" in caplog.text
    x = as_dense(joint.features)
    assert not x[NUM_OLD:, 2:].any()


@pytest.mark.parametrize(("knn", "said"), [(0, "`knn` is 0; it must be at least 1"), (3, "`knn` is 3 and `edges` is")])
def test_neighbours_that_cannot_be_are_refused(old, tmp_path, knn, said):
    with pytest.raises(GraphjouleError, match=said):
        load_new_nodes(old.source, old.objective, *write_new(tmp_path), knn=knn)
