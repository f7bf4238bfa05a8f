"""What layers ask of the nodes that they compute on."""

from dataclasses import dataclass

import pytest
import torch

from graphjoule.graph import Propagation
from graphjoule.graph.nodes import ALL_NODES, Excerpt, Nodes, computing_on, current_nodes, moved
from graphjoule.nn.base import BatchNorm
from graphjoule.nn.pairnorm import PairNorm
from graphjoule.ops import dropout, make_key


class Some(Nodes):
    """Some nodes of a graph whose other nodes are zero."""

    def __init__(self, rows: torch.Tensor, total: int) -> None:
        self.rows = Excerpt(rows, total)

    @property
    def row_ids(self) -> Excerpt:
        return self.rows

    def global_mean(self, x: torch.Tensor, dim: int = 0) -> torch.Tensor:
        return x.sum(dim=dim) / self.rows.total


def test_dropout_draws_the_masks_of_the_nodes_that_are_computed_on():
    x, key, rows = torch.ones(10, 4), make_key(7), torch.tensor([1, 4, 9])
    whole, some = dropout(x, 0.5, key), Some(rows, 10)
    with computing_on(some):
        assert current_nodes() is some
        assert dropout(x[rows], 0.5, key).equal(whole[rows])
        with computing_on(ALL_NODES):
            assert dropout(x, 0.5, key).equal(whole)
    assert current_nodes() is ALL_NODES


def test_a_normalisation_takes_its_mean_from_them():
    x = torch.tensor([[2.0], [4.0]])
    with computing_on(Some(torch.arange(2), 4)):
        centred = PairNorm()(x)
    assert (centred[1] / centred[0]).item() == pytest.approx((4 - 1.5) / (2 - 1.5))


def test_they_are_forgotten_after_an_error():
    def fail():
        with computing_on(Some(torch.arange(1), 2)):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert current_nodes() is ALL_NODES


def test_a_graph_answers_for_its_own_nodes():
    graph, x = Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]])), torch.randn(2, 5)
    assert graph.row_ids is None
    assert graph.has_gpu_kernels
    assert graph.gather_halo(x) is graph.global_sum(x) is graph.global_norm(x) is x
    assert graph.global_mean(x).equal(x.mean(dim=0))
    assert graph.global_gram(x).equal(x @ x.mT)
    assert graph.global_gram(x[:, :1]).equal(x[:, :1].mT @ x[:, :1])
    graph.require_whole("Anything")


def test_batch_norm_of_all_nodes_is_torchs_own():
    norm, own, x = BatchNorm(3), torch.nn.BatchNorm1d(3), torch.randn(6, 3)
    assert norm(x).equal(own(x))
    assert norm.running_var.equal(own.running_var)
    assert norm.eval()(x).equal(own.eval()(x))


def test_a_field_that_is_there_already_is_not_moved_again():
    moves = []

    class Thing:
        def to(self, device: str) -> str:
            moves.append(device)
            return device

    @dataclass
    class Owner:
        large: Thing
        small: Thing
        name: str = "it"

    assert moved(Owner(Thing(), Thing()), "cpu", large="there") == {"small": "cpu", "large": "there"}
    assert moves == ["cpu"]
