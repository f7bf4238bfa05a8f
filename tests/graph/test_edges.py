"""What cannot be a graph is refused with a sentence that names the first fault."""

import pytest
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation


def build(edge_index, **options) -> Propagation:
    return Propagation.from_edge_index(torch.tensor(edge_index), **options)


@pytest.mark.parametrize(
    ("edge_index", "options", "sentence"),
    [
        ([[0, 1], [1, 5]], {"num_nodes": 3}, r"names node 5; with 3 nodes it must be 0 to 2"),
        ([[0, -2], [-2, 0]], {}, r"names node -2; with 1 nodes it must be 0 to 0"),
        ([[0.0, 1.0], [1.0, 0.0]], {}, r"dtype torch.float32; expected an integer dtype"),
        ([[True, False], [False, True]], {}, r"dtype torch.bool; expected an integer dtype"),
        ([[0, 1], [1, 0], [0, 0]], {}, r"shape \[3, 2\]; expected \[2, num_edges\]"),
        ([0, 1], {}, r"shape \[2\]; expected \[2, num_edges\]"),
        ([[], []], {}, r"dtype torch.float32"),
        ([[0, 1], [1, 0]], {"num_nodes": 0}, r"0 nodes; at least one"),
        ([[0, 1], [1, 0]], {"edge_weight": torch.tensor([1.0])}, r"edge_weight has shape \[1\]; expected \[2\]"),
        ([[0, 1], [1, 0]], {"edge_weight": torch.ones(2, 1)}, r"edge_weight has shape \[2, 1\]; expected \[2\]"),
        ([[0, 1], [1, 0]], {"edge_weight": torch.tensor([1, torch.nan])}, r"edge_weight\[1\] is nan; .*finite"),
        ([[0, 1], [1, 0]], {"edge_weight": torch.tensor([torch.inf, 1])}, r"edge_weight\[0\] is inf; .*finite"),
        ([[0, 1], [1, 0]], {"edge_weight": torch.tensor([1, -0.5])}, r"edge_weight\[1\] is -0.5; .*not negative"),
        ([[0, 1, 2], [1, 0, 0]], {}, r"directed: the edge 2 -> 0 has no edge back.*symmetrize=True"),
        (
            [[0, 1], [1, 0]],
            {"edge_weight": torch.tensor([1.0, 2.0])},
            r"edge 0 -> 1 has another weight.*symmetrize=True",
        ),
        ([[0, 1], [1, 0]], {"edge_weight": torch.tensor([1.0, 0.0])}, r"edge 0 -> 1 has no edge back.*symmetrize=True"),
    ],
)
def test_what_cannot_be_a_graph_is_refused_with_a_sentence(edge_index, options, sentence):
    with pytest.raises(GraphjouleError, match=sentence):
        build(edge_index, **options)


def test_no_edges_and_no_node_count_asks_for_the_count():
    with pytest.raises(GraphjouleError, match="Pass num_nodes"):
        Propagation.from_edge_index(torch.empty(2, 0, dtype=torch.int64))
