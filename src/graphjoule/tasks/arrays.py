"""Plain arrays out of a ``.npz`` archive, where a pickle may hide: none is ever loaded."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from graphjoule.errors import GraphjouleError
from graphjoule.graph.edges import int64_array

NUMBERS = "iuf"
"""Kinds of NumPy dtypes that are numbers."""
CSR_PIECES = ("data", "indices", "indptr", "shape")
"""The arrays of a sparse matrix, each behind the matrix's name."""
_KIND_WORDS = {"iu": "whole numbers", "b": "booleans", "iuf": "numbers", "iufb": "numbers", "Uiu": "text or numbers"}


def read_arrays(path: Path, shown: str, kinds: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Named arrays of an archive, refusing one that is damaged, incomplete or holds a pickle; others stay unread.

    Args:
        path: the ``.npz`` file.
        shown: how to call it in the sentence.
        kinds: the arrays to read, each with the kinds of dtype it may have, such as `NUMBERS` or ``"b"`` for booleans.
    """
    try:
        with path.open("rb") as stream, np.lib.npyio.NpzFile(stream, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in kinds if key in archive}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
        raise GraphjouleError(f"The file {shown} is no readable .npz archive ({error}).") from error
    except ValueError as error:
        # NumPy's own sentence advises allow_pickle=True, which is the one thing not to do.
        raise GraphjouleError(_not_plain(shown)) from error
    for key, kind in kinds.items():
        if key not in arrays:
            raise GraphjouleError(f"The file {shown} has no array {key!r}; expected {', '.join(kinds)}.")
        if not isinstance(arrays[key], np.ndarray):  # a member that is no .npy file comes back as bytes
            raise GraphjouleError(_not_plain(shown))
        if (dtype := arrays[key].dtype).kind not in kind:
            what = "text" if dtype.kind in "US" else str(dtype)
            expected = _KIND_WORDS.get(kind, "plain numbers")
            raise GraphjouleError(f"The array {key!r} of {shown} holds {what}; expected {expected}.")
    return arrays


def csr_of(arrays: Mapping[str, np.ndarray], matrix: str, shown: str) -> sp.csr_matrix:
    """The sparse matrix of the arrays ``NAME_data``, ``NAME_indices``, ``NAME_indptr`` and ``NAME_shape``.

    Args:
        arrays: arrays of numbers, by name.
        matrix: the name.
        shown: how to call the file in the sentence.
    """
    data, *numbers = (arrays[f"{matrix}_{piece}"] for piece in CSR_PIECES)
    # SciPy would cut the fractions off.
    named = zip(numbers, CSR_PIECES[1:], strict=True)
    indices, indptr, shape = (int64_array(array, f"{shown}: {matrix}_{piece}") for array, piece in named)
    try:
        rows, columns = (int(size) for size in shape)
        csr = sp.csr_matrix((data, indices, indptr), shape=(rows, columns))
        csr.check_format(full_check=True)  # SciPy checks no index by itself, and its C loops trust them all
    except (ValueError, TypeError) as error:
        raise GraphjouleError(f"{shown}: the arrays {matrix}_* are no sparse matrix: {error}.") from error
    return csr


def _not_plain(shown: str) -> str:
    return (
        f"The file {shown} holds something other than plain arrays of numbers; pickled objects are never loaded, "
        "because they could run code."
    )
