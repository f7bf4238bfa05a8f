"""What cannot be a graph is refused with a sentence that names the first fault; whole numbers stay what they are."""

import numpy as np
import pytest
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.edges import as_int64, int64_array

DTYPES = [np.int8, np.uint8, np.uint16, np.int32, np.uint32, np.int64, np.uint64]


def build(edge_index, **options) -> Propagation:
    return Propagation.from_edge_index(torch.tensor(edge_index), **options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_numbers_of_any_dtype_stay_what_they_are(dtype):
    array = np.array([0, 1, 127], dtype=dtype)
    assert as_int64(torch.from_numpy(array), "x has").equal(torch.tensor([0, 1, 127]))
    assert int64_array(array, "x").tolist() == [0, 1, 127]


def test_whole_floats_and_any_byte_order_are_read_from_files():
    for dtype in (">i4", ">f8", np.float16, bool):
        assert int64_array(np.array([0, 1], dtype=dtype), "x").dtype == np.int64


@pytest.mark.parametrize("value", [0.5, -0.1, np.nan, np.inf, 2.0**63, 1e300])
def test_a_number_that_is_not_whole_is_refused_by_its_place(value):
    with pytest.raises(GraphjouleError, match=r"^x\[1\] is .*; expected a whole number from -2\^63 to 2\^63 - 1\.$"):
        int64_array(np.array([1.0, value]), "x")
    with pytest.raises(GraphjouleError, match=r"^x\[0, 1\] is "):
        int64_array(np.array([[1.0, value]]), "x")


@pytest.mark.parametrize("value", [2**63, 2**64 - 1])
def test_a_number_that_would_turn_negative_is_refused(value):
    array = np.array([1, value], dtype=np.uint64)
    with pytest.raises(GraphjouleError, match=rf"^x\[1\] is {value}; expected"):
        int64_array(array, "x")
    with pytest.raises(GraphjouleError, match=rf"^x has the number {value}; expected numbers below 2\^63\.$"):
        as_int64(torch.from_numpy(array), "x has")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
def test_tensors_of_other_dtypes_are_refused(dtype):
    with pytest.raises(GraphjouleError, match=r"^x has dtype torch\.\w+; expected an integer dtype"):
        as_int64(torch.ones(2, dtype=dtype), "x has")


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
        ([[0, 1], [1, 0]], {"num_nodes": 2.7}, r"num_nodes is 2\.7; expected a whole number"),
        ([[0, 1], [1, 0]], {"edge_weight": torch.ones(2, dtype=torch.complex64)}, r"complex64; expected real numbers"),
        (
            [[0, 1, 1, 2], [1, 0, 2, 1]],
            {"edge_weight": torch.full((4,), 1e308, dtype=torch.float64)},
            r"weights of the edges at node 1 add up to more than the largest number, 1\.8e\+308; .*divide all weights",
        ),
        (
            [[0, 0, 1, 1], [1, 1, 0, 0]],
            {"edge_weight": torch.full((4,), 1e308, dtype=torch.float64)},
            r"weights of the edges at node 0 add up to more",
        ),
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


def test_a_node_number_that_would_turn_negative_is_refused():
    edges = torch.tensor([[0, -1], [-1, 0]]).to(torch.uint64)
    with pytest.raises(GraphjouleError, match=f"edge_index has the number {2**64 - 1}; expected numbers below"):
        Propagation.from_edge_index(edges, num_nodes=2)


def test_no_edges_and_no_node_count_asks_for_the_count():
    with pytest.raises(GraphjouleError, match="Pass num_nodes"):
        Propagation.from_edge_index(torch.empty(2, 0, dtype=torch.int64))
