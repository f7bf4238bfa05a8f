import numpy as np
import pytest
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.graph.edges import as_int64, int64_array

DTYPES = [np.int8, np.uint8, np.uint16, np.int32, np.uint32, np.int64, np.uint64]


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
