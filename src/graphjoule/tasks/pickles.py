"""Arrays out of old pickles, of which some datasets are made: only the names that arrays need are looked up."""

from __future__ import annotations

import io
import pickle
from collections import defaultdict
from typing import Any

import numpy as np
import scipy.sparse as sp

from graphjoule.errors import GraphjouleError

_RECONSTRUCT = np.empty(0).__reduce__()[0]  # a private function of NumPy, which has moved with version 2
_NAMES = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("scipy.sparse.csr", "csr_matrix"): sp.csr_matrix,
    ("scipy.sparse._csr", "csr_matrix"): sp.csr_matrix,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
}


class _ArrayUnpickler(pickle.Unpickler):
    """Looks names up in the table above; nothing is imported, so nothing else can be called."""

    def __init__(self, content: bytes, shown: str) -> None:
        super().__init__(io.BytesIO(content), encoding="latin1")  # how Python 2's text holds the bytes of an array
        self._shown = shown

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _NAMES[module, name]
        except KeyError:
            raise GraphjouleError(
                f"The pickle {self._shown} asks for {module}.{name}, which could run code; expected arrays, sparse "
                "matrices and lists of numbers alone."
            ) from None


def unpickle_arrays(content: bytes, shown: str) -> Any:
    """What a pickle of arrays, CSR matrices, lists and dictionaries holds; one that asks for more is refused.

    Args:
        content: the pickle itself and no path, so that what was checked is what is read.
        shown: how to call it in the sentence.
    """
    try:
        return _ArrayUnpickler(content, shown).load()
    except GraphjouleError:
        raise
    # What a crafted stream makes the unpickler, NumPy and SciPy raise is open-ended; to the user it is one.
    except Exception as error:
        raise GraphjouleError(f"The pickle {shown} cannot be read ({type(error).__name__}: {error}).") from error
