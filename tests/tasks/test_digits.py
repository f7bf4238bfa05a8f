import numpy as np
import pytest
import torch
from sklearn import datasets
from threadpoolctl import threadpool_limits

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.digits import knn_edge_index, load_digits, nearest_rows
from tests.forked import exit_code
from tests.graphs import normal


def nearest_by_hand(x, num_neighbors):
    """All distances, then a stable sort: equally near rows come in order of their index. Whole numbers, so exact."""
    square = (x**2).sum(1)
    distance = square[:, None] + square[None, :] - 2 * x @ x.T
    np.fill_diagonal(distance, np.inf)
    return np.argsort(distance, axis=1, kind="stable")[:, :num_neighbors]


def test_digits_are_the_images_and_their_labels():
    task = load_digits()
    stored = datasets.load_digits()
    assert (task.num_nodes, task.num_features, task.out_channels) == (1797, 64, 10)
    assert (task.features * 16).equal(torch.from_numpy(stored.data).float())
    assert task.targets.equal(torch.from_numpy(stored.target))
    assert task.objective.class_names == tuple(str(i) for i in range(10))


def test_the_graph_links_each_image_with_its_eight_nearest():
    graph = load_digits().graph
    nearest = nearest_by_hand(datasets.load_digits().data, 8)
    expected = np.eye(1797, dtype=bool)
    expected[np.arange(1797)[:, None], nearest] = True
    assert np.array_equal(graph.to_dense().numpy() > 0, expected | expected.T)
    assert graph.num_edges == 9929
    assert int(graph.degree.min()) >= 8


def test_the_default_split_has_five_and_ten_per_class():
    split = load_digits().split(seed=4)
    assert (split.name, len(split.train), len(split.val), len(split.test)) == ("per-class-5-10", 50, 100, 1647)


@pytest.mark.parametrize("threads", [1, 2])
def test_neighbours_do_not_depend_on_threads(threads):
    x = load_digits().features
    with threadpool_limits(threads):
        edge_index = knn_edge_index(x, 8)
    assert np.array_equal(edge_index[1].view(-1, 8).numpy(), nearest_by_hand(x.double().numpy() * 16, 8))


def test_equal_rows_are_neighbours_but_no_row_its_own():
    edge_index = knn_edge_index(torch.zeros(5, 2), 2)
    assert bool((edge_index[0] != edge_index[1]).all())
    assert edge_index.shape == (2, 10)


def test_all_other_nodes_may_be_neighbours():
    edge_index = knn_edge_index(torch.arange(4.0).view(4, 1), 3)
    assert edge_index[1].view(4, 3).sort().values.tolist() == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]


@pytest.mark.parametrize("num_neighbors", [0, 4])
def test_too_few_or_too_many_neighbours_are_refused(num_neighbors):
    with pytest.raises(GraphjouleError, match=f"{num_neighbors} neighbours were asked for; with 4 nodes"):
        knn_edge_index(torch.ones(4, 1), num_neighbors)


def test_neighbours_of_nan_are_refused():
    with pytest.raises(GraphjouleError, match="nan at node 1"):
        knn_edge_index(torch.tensor([[0.0], [torch.nan]]), 1)


def test_digits_need_no_pyg():
    code = "import sys, graphjoule.tasks as t; t.load_task('digits'); sys.exit('torch_geometric' in sys.modules)"
    assert exit_code(code) == 0


def test_the_nearest_rows_are_those_of_all_distances():
    x, reference = normal(20, 3), normal(30, 3, seed=1)
    order = torch.cdist(x, reference).argsort(dim=1)[:, :4]
    assert nearest_rows(x, reference, 4).equal(order.sort(dim=1).values)


def test_of_equally_near_rows_the_lower_index_is_taken():
    reference = torch.zeros(9, 2)
    assert nearest_rows(torch.zeros(2, 2), reference, 3).tolist() == [[0, 1, 2]] * 2
    assert nearest_rows(torch.zeros(1, 2), reference, 9).tolist() == [list(range(9))]
