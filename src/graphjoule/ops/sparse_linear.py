"""The first product of a network on sparse input features: ``X W``, with dropout on the stored values only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph.csr import csr_matmul, csr_product, csr_tensor, linear_map, of_all_runs
from graphjoule.graph.features import SparseFeatures
from graphjoule.ops.backend import backend_for
from graphjoule.ops.dropout import dropout


def sparse_linear(x: SparseFeatures, weight: Tensor, p: float = 0.0, key: Tensor | None = None) -> Tensor:
    """``dropout(X) W`` without a dense ``X``. Zeros stay zero under dropout, so only stored values draw a mask.

    Args:
        x: the features, shape ``[num_nodes, in_channels]``; they are data and get no gradient.
        weight: shape ``[in_channels, out_channels]``.
        p: dropout probability.
        key: dropout key, None for evaluation.
    """
    if weight.dtype != x.dtype or weight.size(0) != x.num_features:
        raise GraphjouleError(
            f"Cannot multiply sparse features of shape {list(x.shape)}, {x.dtype} by a weight of shape "
            f"{list(weight.shape)}, {weight.dtype}; use x.to(dtype=...) to match them."
        )
    if x.column_factor is not None:
        weight = weight * x.column_factor[:, None]
    if backend_for(weight) == "triton" and x.among is None:
        out = _product(weight, x, partial(_by_keys, p), *(() if key is None else (key,)))
    else:
        value = dropout(x.value, p, key, x.among)
        out = _product(weight, x, _by_values, *(() if value is x.value else (value,)))
    return out if x.row_factor is None else out * x.row_factor[:, None]


def _product(
    dense: Tensor, x: SparseFeatures, product: Callable[..., Tensor], *given: Tensor, transposed: bool = False
) -> Tensor:
    """``X D``, or ``X^T D``, each of which is the gradient of the other."""

    def adjoint(grad: Tensor, *given: Tensor) -> Tensor:
        return _product(grad, x, product, *given, transposed=not transposed)

    return linear_map(dense, of_all_runs(partial(product, x, transposed), 2), *given, adjoint=adjoint)


def _by_values(x: SparseFeatures, transposed: bool, dense: Tensor, values: Tensor | None = None) -> Tensor:
    """The products of all runs: one where they share the values (evaluation), else one each (they have own masks)."""
    pattern = (x.t_rowptr, x.t_col) if transposed else (x.rowptr, x.col)
    if values is None:
        side_by_side = dense.transpose(0, 1).flatten(1)
        out = _csr_product(*pattern, x.value[x.to_transposed] if transposed else x.value, side_by_side)
        return out.view(len(out), len(dense), dense.size(2)).transpose(0, 1)
    values = values[:, x.to_transposed] if transposed else values
    return torch.stack([_csr_product(*pattern, v, d) for v, d in zip(values, dense, strict=True)])


def _csr_product(rowptr: Tensor, col: Tensor, value: Tensor, dense: Tensor) -> Tensor:
    if backend_for(dense) in ("cpu", "native"):
        return csr_product(rowptr, col, value, dense)
    return csr_matmul(csr_tensor(rowptr, col, value, (len(rowptr) - 1, len(dense))), dense)


def _by_keys(p: float, x: SparseFeatures, transposed: bool, dense: Tensor, keys: Tensor | None = None) -> Tensor:
    """The same on a GPU: every run draws its own mask inside the kernel."""
    from graphjoule.ops.triton_gather import DROP_VALUE, gather

    dense, keys = dense.contiguous(), None if keys is None else keys.contiguous()
    if not transposed:
        return gather(dense, x.rows, x.value, drop=DROP_VALUE, p=p, keys=keys)
    value = x.value[x.to_transposed]
    return gather(dense, x.t_rows, value, drop=DROP_VALUE, p=p, keys=keys, value_id=x.to_transposed)
