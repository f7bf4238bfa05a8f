import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import connected_components, shortest_path
from sklearn.linear_model import LogisticRegression

from graphjoule.errors import GraphjouleError
from graphjoule.graph.features import SparseFeatures
from graphjoule.tasks import DATASETS, load_task
from graphjoule.tasks.generated import FAMILIES, mines, ring_transfer, without_features


def hops(task):
    adjacency = task.graph.to_dense().numpy() > 0
    return shortest_path(adjacency, unweighted=True)


def test_a_ring_asks_for_the_class_of_the_flagged_node_at_the_opposite_one():
    task = ring_transfer(5, 40)
    distance, x = hops(task), task.features
    source, target = (x[:, 5] == 1).nonzero().view(-1), (task.targets >= 0).nonzero().view(-1)
    assert len(source) == len(target) == 40
    assert distance[source, target].tolist() == [5.0] * 40
    assert task.targets[target].equal(x[source, :5].argmax(dim=1))
    assert x[:, :5].sum(dim=1).eq(1).all()
    assert task.graph.degree.eq(2).all()


def test_the_features_of_a_labelled_node_say_nothing_about_its_label():
    """What the transfer benchmark of docs/transfer-leak.md lacks: without the graph nothing can be learnt."""
    task = ring_transfer(3, 2000)
    known = task.targets >= 0
    x, y = task.features[known].numpy(), task.targets[known].numpy()
    score = LogisticRegression().fit(x[:1000], y[:1000]).score(x[1000:], y[1000:])
    assert score < 0.25  # chance is 0.2


def leaking_transfer(length, num_graphs, draw):
    """The benchmark as several papers have it: source x = 1, y = 0; target x = 0, y = 1; all others y = x at random."""
    x = draw.uniform(0, 1, (num_graphs, length))
    y = x.copy()
    x[:, 0], y[:, 0] = 1.0, 0.0
    x[:, length // 2], y[:, length // 2] = 0.0, 1.0
    return x, y


def test_the_leaking_benchmark_is_solved_without_a_graph():
    """docs/transfer-leak.md: three ReLUs of a node's own feature, and so a mean squared error of nearly nothing."""
    x, y = leaking_transfer(50, 400, np.random.default_rng(0))
    width = 1e-6

    def relu(z):
        return np.maximum(z, 0)

    # 1 at x = 0, x in between, and 0 at x = 1.
    alone = x + relu(width - x) / width - relu(x - (1 - width)) / width
    assert np.square(alone - y).mean() < 1e-6
    assert np.square(x - y).mean() > 0.01  # what copying the feature gives


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("diameter", [4, 9, 24])
def test_a_family_has_the_diameter_it_was_asked_for(family, diameter):
    for seed in range(3):
        edges = np.array(FAMILIES[family](diameter, np.random.default_rng(seed)))
        size = edges.max() + 1
        adjacency = np.zeros((size, size))
        adjacency[edges[:, 0], edges[:, 1]] = 1
        distance = shortest_path(adjacency, directed=False, unweighted=True)
        assert distance.max() == diameter
        assert len({tuple(sorted(edge)) for edge in edges.tolist()}) == len(edges)
        if family in ("line", "tree", "caterpillar", "lobster"):
            assert len(edges) == size - 1
        if family in ("caterpillar", "lobster"):
            spine = distance[:, : diameter + 1].min(axis=1)
            assert 1 <= spine.max() <= {"caterpillar": 1, "lobster": 2}[family]


@pytest.mark.parametrize("what", ["shortest-paths", "eccentricity", "diameter"])
def test_distances_are_those_of_the_graph_and_no_graph_is_in_two_parts(what):
    task = load_task(f"{what}-8")
    count, component = connected_components(task.graph.to_dense().numpy()[:400, :400] > 0)
    split = task.split()
    assert sum(split.sizes) == task.num_units
    if what == "diameter":
        assert 4 <= float(task.targets.min()) <= float(task.targets.max()) == 8
        assert task.features[:, 1].eq(0).all()
        return
    part = torch.zeros(task.num_units, dtype=torch.int64)
    part[split.val], part[split.test] = 1, 2
    distance = shortest_path(task.graph.to_dense().numpy()[:400, :400] > 0, unweighted=True)
    for number in range(count - 1):  # the last one may be cut
        nodes = np.flatnonzero(component == number)
        own = distance[np.ix_(nodes, nodes)]
        assert part[nodes].unique().numel() == 1
        if what == "eccentricity":
            expected = own.max(axis=1)
        else:
            (source,) = task.features[nodes, 1].nonzero().view(-1).tolist()
            expected = own[source]
        assert task.targets[nodes].tolist() == expected.tolist()


def test_mines_are_counted_around_every_cell_that_shows_its_number():
    task = mines(12)
    is_mine = task.targets.double()
    around = (task.graph.to_dense() > 0).double() @ is_mine - is_mine
    shown = task.features[:, 9] == 0
    assert task.features[shown].argmax(dim=1).double().equal(around[shown])
    assert 0.3 < float(shown.double().mean()) < 0.7
    assert int(task.graph.degree.max()) == 8
    assert 0.1 < float(is_mine.mean()) < 0.3


@pytest.mark.parametrize("percent", [0, 40, 100])
def test_features_are_missing_but_for_training_nodes_of_a_public_split(percent):
    task = load_task("digits")
    kept = without_features(task, percent).features.abs().sum(dim=1) > 0
    assert int((~kept).sum()) == round(percent / 100 * task.num_nodes)
    sparse = without_features(
        type(task)(**{**vars(task), "features": SparseFeatures.from_dense(task.features)}), percent
    )
    assert (sparse.features.to_dense().abs().sum(dim=1) > 0).equal(kept)


def test_names_with_a_number_are_datasets_and_others_are_not(data_root):
    assert load_task("digits-missing-25").name == "digits-missing-25"
    assert load_task("ring-6").facts().sha256 == load_task("ring-6").facts().sha256
    assert not DATASETS["cora-missing-90"].is_present(data_root / "nowhere")
    assert DATASETS["cora-missing-90"].is_present(data_root)
    train = (task := load_task("cora-missing-100", data_root)).split().train
    assert (task.features.to_dense().sum(dim=1) > 0).nonzero().view(-1).equal(train)
    for name in ("ring-0", "ring-x", "ring", "core-missing-10", "mines-99999"):
        assert name not in DATASETS
        with pytest.raises(GraphjouleError, match=r"Unknown dataset .*ring-D.*DATASET-missing-P"):
            load_task(name)


@pytest.mark.parametrize("name", ["ring-1", "mines-3", "eccentricity-7", "digits-missing-101"])
def test_a_number_that_is_too_small_or_too_large_is_refused_with_a_sentence(name):
    with pytest.raises(GraphjouleError, match=r"it must be (at least|from 0)"):
        load_task(name)
