"""Input features: those that are mostly zero are kept as CSR, so that only the stored values cost anything."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph.csr import Rows, entries_of_rows, row_of_entries, row_starts
from graphjoule.graph.nodes import Excerpt, moved


@dataclass(frozen=True, eq=False)
class SparseFeatures:
    """A feature matrix ``X`` of shape ``[num_nodes, num_features]`` in CSR, and the pattern of its transpose.

    Bag-of-words features are almost all zero: Coauthor-Physics is 1.16 GB dense and about 10 MB here. The transpose is
    needed by the backward product ``X^T G``; `to_transposed` carries values from one order to the other.

    Attributes:
        rowptr: start of every row, shape ``[num_nodes + 1]``, int32.
        col: column of every stored value, int32.
        value: the stored values.
        t_rowptr: `rowptr` of the transpose, shape ``[num_features + 1]``.
        t_col: `col` of the transpose.
        to_transposed: position in `value` of every stored value of the transpose.
        among: which stored values of a larger matrix these are, where they are some of its rows; else None.
        row_factor: what every row is multiplied with besides, shape ``[num_nodes]``; None is 1. Unlike the values it
            may differ between runs that train together, and costs one product with ``X W``.
        column_factor: the same for every column, shape ``[num_features]``.
    """

    rowptr: Tensor
    col: Tensor
    value: Tensor
    t_rowptr: Tensor
    t_col: Tensor
    to_transposed: Tensor
    among: Excerpt | None = None
    row_factor: Tensor | None = None
    column_factor: Tensor | None = None

    @classmethod
    def from_scipy(cls, matrix: sp.spmatrix | sp.sparray) -> SparseFeatures:
        """Features from any scipy sparse matrix; duplicates are summed, stored zeros dropped."""
        csr = sp.csr_matrix(matrix, copy=True)
        csr.sum_duplicates()
        csr.eliminate_zeros()
        csr.sort_indices()
        rowptr, col = (torch.from_numpy(pattern.astype(np.int32)) for pattern in (csr.indptr, csr.indices))
        value = torch.from_numpy(np.asarray(csr.data)).to(torch.get_default_dtype())
        return cls.from_csr(rowptr, col, value, csr.shape[1])

    @classmethod
    def from_torch(cls, x: Tensor) -> SparseFeatures:
        """Features from one of torch's sparse layouts, of any dtype; duplicates are summed, stored zeros dropped."""
        x = x.detach().to_sparse(layout=torch.sparse_coo).coalesce()
        (row, col), value = x.indices(), x.values()
        kept = value != 0
        row, col, value = row[kept], col[kept], value[kept]
        return cls.from_csr(row_starts(row, x.size(0)), col.int(), value, x.size(1))

    @classmethod
    def from_dense(cls, x: Tensor) -> SparseFeatures:
        """Features from a dense matrix, keeping its dtype."""
        row, col = x.detach().nonzero(as_tuple=True)
        return cls.from_csr(row_starts(row, len(x)), col.int(), x.detach()[row, col], x.size(1))

    @classmethod
    def from_csr(
        cls, rowptr: Tensor, col: Tensor, value: Tensor, num_features: int, among: Excerpt | None = None
    ) -> SparseFeatures:
        """Features from the pieces of a CSR matrix whose columns are sorted within a row; see the attributes."""
        to_transposed = torch.argsort(col, stable=True)
        t_col = row_of_entries(rowptr)[to_transposed].int()
        return cls(rowptr, col, value, row_starts(col.long(), num_features), t_col, to_transposed, among)

    @property
    def num_nodes(self) -> int:
        """Number of rows."""
        return self.rowptr.numel() - 1

    @property
    def num_features(self) -> int:
        """Number of columns."""
        return self.t_rowptr.numel() - 1

    @property
    def shape(self) -> torch.Size:
        """``[num_nodes, num_features]``, as a dense tensor would say it."""
        return torch.Size((self.num_nodes, self.num_features))

    @property
    def device(self) -> torch.device:
        """Where the features live."""
        return self.value.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the stored values."""
        return self.value.dtype

    def size(self, dim: int) -> int:
        """One of `shape`'s entries."""
        return self.shape[dim]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> SparseFeatures:
        """The same features on another device, or with another dtype."""
        numbers = {name: getattr(self, name) for name in ("value", "row_factor", "column_factor")}
        numbers = {name: x.to(device=device, dtype=dtype) for name, x in numbers.items() if x is not None}
        return replace(self, **moved(self, device, **numbers))

    def scaled(self, rows: Tensor | None = None, columns: Tensor | None = None) -> SparseFeatures:
        """The same features with every row and every column multiplied with a factor of its own."""

        def both(old: Tensor | None, new: Tensor | None) -> Tensor | None:
            return new if old is None else old if new is None else old * new

        return self._twin(row_factor=both(self.row_factor, rows), column_factor=both(self.column_factor, columns))

    def with_value(self, value: Tensor) -> SparseFeatures:
        """The same pattern with other stored values."""
        return self._twin(value=value)

    def _twin(self, **changes: Tensor | None) -> SparseFeatures:
        """Another matrix with this pattern and what is known of it; to find that again would wait for the device."""
        twin = replace(self, **changes)  # type: ignore[arg-type]
        twin.__dict__.update(rows=self.rows, t_rows=self.t_rows)
        return twin

    def __getitem__(self, nodes: Tensor) -> SparseFeatures:
        """The features of some nodes, by their numbers, by a mask or by a slice as in a dense matrix."""
        nodes = torch.arange(self.num_nodes, device=self.device)[nodes].reshape(-1)
        row, entry = entries_of_rows(self.rowptr, nodes)
        starts = row_starts(row, len(nodes))
        chosen = SparseFeatures.from_csr(starts, self.col[entry], self.value[entry], self.num_features)
        return chosen.scaled(None if self.row_factor is None else self.row_factor[nodes], self.column_factor)

    def row(self) -> Tensor:
        """Row of every stored value, the counterpart of `col`."""
        return row_of_entries(self.rowptr)

    @cached_property
    def rows(self) -> Rows:
        """The pattern with long rows apart, made at first use."""
        return Rows.of(self.rowptr, self.col)

    @cached_property
    def t_rows(self) -> Rows:
        """The pattern of the transpose with long rows apart: words that many nodes share."""
        return Rows.of(self.t_rowptr, self.t_col)

    def to_dense(self) -> Tensor:
        """The features as a dense matrix."""
        dense = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        dense[self.row(), self.col.long()] = self.value
        dense = dense if self.row_factor is None else dense * self.row_factor[:, None]
        return dense if self.column_factor is None else dense * self.column_factor


Features = Tensor | SparseFeatures


def checked_features(x: Features) -> Features:
    """Features in one of the forms of this package, a dense tensor or `SparseFeatures`; see `check_features`.

    >>> checked_features(torch.eye(2).to_sparse()).col.tolist()
    [0, 1]
    """
    if not isinstance(x, Tensor | SparseFeatures):
        raise GraphjouleError(
            f"The features are of type {type(x).__name__}; expected a floating-point torch tensor, such as "
            "torch.tensor(x), or SparseFeatures."
        )
    if isinstance(x, Tensor) and x.layout != torch.strided and x.dim() == 2:
        x = x.to_dense() if x.dense_dim() else SparseFeatures.from_torch(x)
    check_features(x)
    return x


def as_dense(x: Features) -> Tensor:
    """Features as a dense matrix; what is dense is returned as it is."""
    return x.to_dense() if isinstance(x, SparseFeatures) else x


def check_features(x: Features) -> None:
    """Refuse features that are not a finite floating-point matrix, naming the first bad entry."""
    if len(x.shape) != 2:
        raise GraphjouleError(f"The features have shape {list(x.shape)}; expected [num_nodes, num_features].")
    value = x.value if isinstance(x, SparseFeatures) else x
    if not value.is_floating_point():
        raise GraphjouleError(
            f"The features have dtype {value.dtype}; expected a floating-point dtype such as float32."
        )
    wrong = ~torch.isfinite(value)
    if wrong.any():
        at = wrong.nonzero()[0]
        row, col = (x.row()[at], x.col[at]) if isinstance(x, SparseFeatures) else at
        raise GraphjouleError(
            f"The features hold {float(value[tuple(at)])} at node {int(row)}, column {int(col)}; all must be finite."
        )


def normalize_rows(x: Features) -> Features:
    """Scale every row to sum to 1, as bag-of-words benchmarks do; a row that sums to zero stays as it is."""
    if isinstance(x, SparseFeatures):
        row = x.row()
        total = torch.zeros(x.num_nodes, dtype=x.dtype, device=x.device).index_add_(0, row, x.value)
        return x.with_value(x.value / torch.where(total == 0, 1.0, total)[row])
    total = x.sum(dim=1, keepdim=True)
    return x / torch.where(total == 0, 1.0, total)


def has_negative(x: Features) -> bool:
    """Whether some feature is below 0: then the sum of a row may be next to 0, and `normalize_rows` means nothing."""
    values = x.value if isinstance(x, SparseFeatures) else x
    return bool((values < 0).any())


@dataclass(frozen=True, eq=False)
class Scaling:
    """``(x - mean) / std`` for every column of a dense matrix; sparse features keep their zeros and are left alone.

    Attributes:
        mean: per column, float64; None leaves every matrix as it is.
        std: per column; infinite where the column is constant, which therefore becomes 0.

    >>> Scaling.of(torch.tensor([[1.0, 7.0], [3.0, 7.0]])).apply(torch.tensor([[5.0, 9.0]]))
    tensor([[3., 0.]])
    """

    mean: Tensor | None = None
    std: Tensor | None = None

    @classmethod
    def of(cls, x: Features) -> Scaling:
        """The scaling that gives the columns of `x` mean 0 and variance 1."""
        if isinstance(x, SparseFeatures):
            return cls()
        x = x.double()
        is_constant = x.amax(dim=0) == x.amin(dim=0)  # rounding would leave such a column a little spread
        return cls(x.mean(dim=0), torch.where(is_constant, torch.inf, x.std(dim=0, correction=0)))

    def apply(self, x: Features) -> Features:
        """The scaled matrix, in torch's default dtype."""
        if isinstance(x, SparseFeatures):
            return x
        if self.mean is not None and self.std is not None:
            x = (x.double() - self.mean) / self.std
        return x.to(torch.get_default_dtype())
