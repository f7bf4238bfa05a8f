"""Loops for the CPU that PyTorch makes in many passes over memory: `native.c`, built where it is used.

The first large tensor of a process has the C compiler of the machine build them, which takes half of a second, for
the very CPU at hand. The library is made in a folder of its own and deleted as soon as it is loaded: nothing is kept
that could be out of date or somebody else's. Where there is no compiler, or ``GRAPHJOULE_COMPILE=0`` says so, the
callers do without, by operations of PyTorch and NumPy that give the same masks and, up to rounding, the same numbers.

All tensors here are float32 on the CPU and in one piece.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphjoule.errors import GraphjouleError

logger = logging.getLogger(__name__)

_SOURCE: Final = Path(__file__).with_suffix(".c")
_SECONDS: Final = 30  # a compiler takes a fifth of one; one that hangs must not hang a training
_TILE, _WIDEST = 48, 256  # as in native.c: rows of a tile, and the most channels
_MOST_STRETCHES, _FEWEST_TILES = 64, 10  # whose gradients of weights are summed apart: work for so many threads at most
_KINDS: Final = {
    "p": ctypes.c_void_p,
    "n": ctypes.c_int64,
    "u": ctypes.c_uint32,
    "i": ctypes.c_int,
    "f": ctypes.c_float,
}
_FUNCTIONS: Final = {  # what they return and take: pointers, counts, words, ints and floats
    "drop": (None, "ppnuuui"),
    "inner_products": (None, "ppnnpi"),
    "gather": (None, "pppppnnpi"),
    "form": (None, "ppppppppnni"),
    "egnn_layer": (ctypes.c_int, "pppppfppppppnnpi"),
    "egnn_layer_backward": (None, "ppppppfpnnni"),
}
_OPENMP: Final = "-fopenmp"  # its functions are found in the library that torch has loaded: the threads are torch's own


def is_built() -> bool:
    """Whether there are loops to call; the first question has them built."""
    return _library() is not None


def has_memory(x: Tensor) -> bool:
    """Whether a tensor has numbers in memory that a loop can have: no tracer's stand-in and no subclass has."""
    return type(x) is Tensor and x.device.type == "cpu" and not torch.compiler.is_compiling()


def has_layers(x: Tensor, *indices: Tensor) -> bool:
    """Whether the layers below are for features of this shape and a matrix with these indices."""
    is_wide_enough = x.size(-1) % 16 == 0 and x.size(-1) <= _WIDEST
    return is_wide_enough and x.numel() < 2**31 and all(index.dtype == torch.int32 for index in indices)


class Mask(ctypes.Structure):
    """Dropout of a tensor, see `graphjoule.ops.dropout.keep_mask`."""

    _fields_ = [(name, ctypes.c_uint32) for name in ("key0", "key1", "dropped", "half")]

    @classmethod
    def of(cls, key: Sequence[int], dropped: int, count: int) -> Self:
        """The mask of so many elements under a key, which is two numbers; so many of 65,536 values mean "dropped"."""
        return cls(*key, dropped, (count + 1) // 2)


class Matrix(NamedTuple):
    """A square matrix in compressed rows, with int32 indices."""

    rowptr: Tensor
    col: Tensor
    value: Tensor

    def pointers(self) -> tuple[int, int, int]:
        """Where its pieces are."""
        return self.rowptr.data_ptr(), self.col.data_ptr(), self.value.data_ptr()


def drop(x: Tensor, out: Tensor, mask: Mask) -> Tensor:
    """Write `x` to `out`, which may be `x`, and zeros for what is dropped."""
    key0, key1, dropped = mask.key0, mask.key1, mask.dropped
    _loops().drop(x.data_ptr(), out.data_ptr(), x.numel(), key0, key1, dropped, torch.get_num_threads())
    return out


def inner_products(x: Tensor, y: Tensor, at_once: int) -> tuple[float, float]:
    """``<X, X>`` and ``<X, Y>``, some products at a time in float32 and their sums in float64."""
    sums = np.empty((-(-x.numel() // at_once), 2), dtype=np.float32)
    _loops().inner_products(x.data_ptr(), y.data_ptr(), x.numel(), at_once, sums.ctypes.data, torch.get_num_threads())
    return _totals(sums)


def form(matrix: Matrix, x: Tensor, scale: Tensor, means: Tensor, component: Tensor) -> tuple[float, float]:
    """``<Y, Y>`` and ``<Y, S Y>``, in float32 within a row and in float64 over all.

    Args:
        matrix: ``S``, which has no entry between two components.
        x: ``X``, of some multiple of 16 channels.
        scale: ``s``, one number per node.
        means: ``m``, one row per component; ``y_i = x_i - s_i m``.
        component: number of every node's component, int64.
    """
    n, d = x.shape
    sums = np.empty((-(-n // _TILE), 2))
    _loops().form(
        *matrix.pointers(), x.data_ptr(), scale.data_ptr(), means.data_ptr(), component.data_ptr(), sums.ctypes.data,
        n, d, torch.get_num_threads(),
    )  # fmt: skip
    return _totals(sums)


def gather(matrix: Matrix, x: Tensor, out: Tensor, mask: Mask | None) -> Tensor:
    """``out = drop(S X)``, all of it kept without a mask."""
    n, d = x.shape
    _loops().gather(*matrix.pointers(), x.data_ptr(), out.data_ptr(), n, d, _reference(mask), torch.get_num_threads())
    return out


def egnn_layer(
    matrix: Matrix,
    x: Tensor,
    x0: Tensor,
    beta: float,
    weight: Tensor,
    shift: Tensor | None,
    out: Tensor,
    *,
    mixed: Tensor | None = None,
    active: Tensor | None = None,
    mask: Mask | None = None,
    want_sums: bool = False,
) -> tuple[bool, tuple[float, float] | None]:
    """``out = drop(max(b, (S X + beta X0) W))``.

    Args:
        matrix: ``S``.
        x: ``X``, of some multiple of 16 channels.
        x0: ``X0``.
        beta: its factor.
        weight: ``W``.
        shift: ``b``, one number per channel; None leaves the maximum out.
        out: not `x`.
        mixed: gets ``S X + beta X0``.
        active: gets a bit per element, set where the maximum is not ``b``; int16, shape ``[num_nodes, channels / 16]``.
        mask: of the output; None keeps all of it.
        want_sums: whether to return the sums.

    Returns:
        Whether the maximum is ``b`` anywhere; and ``<X, X>`` and ``<X, S X>``.
    """
    n, d = x.shape
    sums = np.empty((-(-n // _TILE), 2)) if want_sums else None
    is_cut = _loops().egnn_layer(
        *matrix.pointers(), x.data_ptr(), x0.data_ptr(), beta, weight.data_ptr(), _pointer(shift), _pointer(mixed),
        out.data_ptr(), _pointer(active), None if sums is None else sums.ctypes.data, n, d, _reference(mask),
        torch.get_num_threads(),
    )  # fmt: skip
    return bool(is_cut), None if sums is None else _totals(sums)


def egnn_layer_backward(
    grad: Tensor,
    mixed: Tensor,
    transposed: Tensor,
    active: Tensor | None,
    beta: float,
    grad_mixed: Tensor,
    grad_x0: Tensor,
    grad_parameters: Tensor,
) -> None:
    """Gradients of what `egnn_layer` makes of its `mixed`, without dropout.

    Args:
        grad: gradient of the output.
        mixed: as it was.
        transposed: ``W^T``.
        active: as it was; None where the maximum changed nothing.
        beta: as it was.
        grad_mixed: gets the gradient of `mixed`, which it may be.
        grad_x0: ``beta`` times it is added to this.
        grad_parameters: gets the gradient of ``W``, and in one row more that of ``b``.
    """
    n, d = grad.shape
    stretch = _TILE * max(_FEWEST_TILES, -(-n // (_MOST_STRETCHES * _TILE)))
    partial = grad.new_empty(-(-n // stretch), d + 1, d)  # whatever torch's default dtype and device are
    _loops().egnn_layer_backward(
        grad.data_ptr(), mixed.data_ptr(), transposed.data_ptr(), _pointer(active), grad_mixed.data_ptr(),
        grad_x0.data_ptr(), beta, partial.data_ptr(), stretch, n, d, torch.get_num_threads(),
    )  # fmt: skip
    torch.sum(partial, dim=0, out=grad_parameters)


def _totals(sums: NDArray[Any]) -> tuple[float, float]:
    with np.errstate(all="ignore"):  # the caller looks at NaN and infinity
        first, second = sums.sum(axis=0, dtype=np.float64).tolist()
    return first, second


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _reference(mask: Mask | None) -> Any:
    return None if mask is None else ctypes.byref(mask)


def _loops() -> ctypes.CDLL:
    """The library, of whose existence `is_built` has made sure."""
    library = _library()
    assert library is not None
    return library


@cache
def _library() -> ctypes.CDLL | None:
    """The library, built and loaded at the first call; None where that is not possible or not wanted."""
    wanted = os.environ.get("GRAPHJOULE_COMPILE", "1")
    if wanted not in ("0", "1"):
        raise GraphjouleError(f"GRAPHJOULE_COMPILE is {wanted!r}; it is 1, or 0 to do without a C compiler.")
    if wanted == "0" or sys.platform != "linux":
        return None
    name = os.environ.get("CC") or "cc"
    compiler, *options = shlex.split(name)
    if shutil.which(compiler) is None:
        logger.info("there is no C compiler %s here, so that training on a CPU takes longer", name)
        return None
    try:
        return _built([compiler, *options])
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or b""
        logger.debug("%s: %s %s", name, error, output.decode(errors="replace"))
    logger.info("%s cannot build a library here, so that training on a CPU takes longer", name)
    return None


def _built(compiler: list[str]) -> ctypes.CDLL:
    """Build the library and load it; raises what can go wrong on the way."""
    options = ["-mprefer-vector-width=512"] if platform.machine() == "x86_64" else []
    with tempfile.TemporaryDirectory(prefix="graphjoule-") as folder:
        target = Path(folder) / "native.so"
        # Without the system's start files and libraries: what is missing is in the process already, OpenMP by torch.
        command = [*compiler, "-O3", "-march=native", "-fPIC", "-shared", "-nostdlib", _OPENMP, *options]
        command += ["-o", str(target), str(_SOURCE), "-lgcc"]  # which has atomic operations that some CPUs lack
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS, cwd=folder)
        library = ctypes.CDLL(str(target))
    for name, (result, kinds) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, [_KINDS[kind] for kind in kinds]
    return library
