"""Whole numbers, such as the numbers of nodes and classes, in the one dtype they are computed with."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError


def as_int64(numbers: Tensor, subject: str) -> Tensor:
    """The same numbers in int64; another kind of dtype, or a number that int64 does not hold, is refused.

    Args:
        numbers: of any integer dtype.
        subject: how the sentence begins, such as "edge_index has".
    """
    if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise GraphjouleError(f"{subject} dtype {numbers.dtype}; expected an integer dtype such as torch.int64.")
    whole = numbers.long()
    if numbers.dtype == torch.uint64 and bool((whole < 0).any()):  # they have become negative
        raise GraphjouleError(f"{subject} the number {int(whole[whole < 0][0]) + 2**64}; expected numbers below 2^63.")
    return whole


def int64_array(array: np.ndarray, name: str) -> np.ndarray:
    """The same numbers in int64, in the machine's byte order; one that is not whole, or too large, is refused.

    Args:
        array: numbers of any dtype.
        name: how to call the array in the sentence.

    >>> int64_array(np.array([1.0, 2.0]), "labels").tolist()
    [1, 2]
    """
    with np.errstate(invalid="ignore"):  # infinity
        whole: np.ndarray = array.astype(np.int64)
    wrong = np.argwhere(whole != array)
    if wrong.size:
        at = tuple(wrong[0])
        raise GraphjouleError(
            f"{name}[{', '.join(map(str, at))}] is {array[at]}; expected a whole number from -2^63 to 2^63 - 1."
        )
    return whole
