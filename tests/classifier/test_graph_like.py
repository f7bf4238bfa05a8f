import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from graphjoule.classifier.graph_like import read_graph_like
from graphjoule.errors import GraphjouleError
from graphjoule.graph.features import SparseFeatures
from tests.graphs import path3

X = np.arange(6.0).reshape(3, 2)
DIRECTED = torch.tensor([[0, 1], [1, 2]])
ADJACENCY = sp.csr_matrix(np.array([[0, 1, 0], [0, 0, 1], [0, 0, 0]]))


@pytest.mark.parametrize("graph", [DIRECTED, DIRECTED.numpy(), ADJACENCY, sp.coo_array(ADJACENCY), path3().graph()])
@pytest.mark.parametrize("x", [X, X.tolist(), torch.from_numpy(X), torch.from_numpy(X).int()])
def test_a_pair_in_any_of_its_forms_is_the_same_graph(x, graph):
    given = read_graph_like((x, graph))
    assert given.features.equal(torch.from_numpy(X).float())
    assert given.graph.to_dense().equal(path3().graph().to_dense())
    assert given.targets is None


def test_weights_of_an_adjacency_count():
    assert read_graph_like((X, ADJACENCY * 3)).graph.degree.tolist() == [3, 6, 3]


def test_sparse_features_stay_sparse():
    words = sp.csr_matrix(([1.0], ([0], [3])), shape=(3, 9))
    for x in (words, SparseFeatures.from_scipy(words)):
        given = read_graph_like((x, ADJACENCY))
        assert isinstance(given.features, SparseFeatures)
        assert given.features.to_dense()[0, 3] == 1


def test_a_task_brings_its_labels_under_their_names(tiny_task):
    given = read_graph_like(tiny_task)
    assert given.targets[given.is_known].tolist() == [0, 0, 0, 1, 1]
    assert given.is_known.tolist() == [True] * 5 + [False]


def test_pygs_data_with_and_without_labels_and_weights():
    plain = read_graph_like(Data(x=torch.ones(3, 2), edge_index=DIRECTED))
    assert plain.labels is None
    assert plain.graph.num_edges == 2
    full = read_graph_like(
        Data(torch.ones(3, 2), DIRECTED, y=torch.tensor([[1], [-1], [0]]), edge_weight=torch.tensor([2.0, 3.0]))
    )
    assert (full.labels.tolist(), full.is_known) == ([1, -1, 0], None)  # what -1 means, the classifier is told
    assert full.graph.degree.tolist() == [2, 5, 3]


@pytest.mark.parametrize("features", [X, X.tolist(), sp.csr_matrix(X), torch.from_numpy(X), ([1, 2], [3, 4])])
def test_features_alone_are_no_graph(features):
    assert read_graph_like(features) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((X, torch.tensor([[0], [7]])), "edge_index names node 7"),
        ((X, ADJACENCY[:2]), r"The adjacency has shape \[2, 3\]; expected \[3, 3\]"),
        ((X * np.nan, DIRECTED), "The features hold nan"),
        ((X[:, 0], DIRECTED), "expected .num_nodes, num_features."),
        (Data(edge_index=DIRECTED), "lacks x or edge_index"),
    ],
)
def test_what_is_no_graph_is_a_sentence(given, said):
    with pytest.raises(GraphjouleError, match=said):
        read_graph_like(given)
