"""The CPU bodies' sparse product against the dense one."""

import pytest
import torch

from graphjoule.graph.csr import csr_product, csr_tensor


def _pieces(dense):
    matrix = dense.to_sparse_csr()
    return matrix.crow_indices().int(), matrix.col_indices().int(), matrix.values()


@pytest.mark.parametrize("channels", [1, 7, 16, 33, 64, 257])
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_it_is_the_dense_product(channels):
    torch.manual_seed(channels)
    dense = torch.randn(30, 20) * (torch.rand(30, 20) < 0.2)
    dense[3:6] = 0  # rows without an entry
    x = torch.randn(20, channels)
    torch.testing.assert_close(csr_product(*_pieces(dense), x), dense @ x, rtol=1e-5, atol=1e-5)


def test_a_transposed_factor_is_read_as_it_stands():
    x = torch.randn(8, 5).t()
    matrix = (torch.tensor([0, 1, 3]), torch.tensor([4, 0, 2]), torch.tensor([2.0, 1.0, -1.0]))
    torch.testing.assert_close(csr_product(*matrix, x), torch.stack([2 * x[4], x[0] - x[2]]))


def test_no_entry_at_all_gives_zeros():
    rowptr, col = torch.zeros(5, dtype=torch.int32), torch.zeros(0, dtype=torch.int32)
    assert csr_product(rowptr, col, torch.zeros(0), torch.randn(3, 4)).equal(torch.zeros(4, 4))


def test_what_is_not_finite_stays_visible():
    """One bad node spoils its neighbours and nobody else."""
    x = torch.ones(3, 4)
    x[2] = torch.nan
    out = csr_product(torch.tensor([0, 1, 3]), torch.tensor([0, 1, 2]), torch.ones(3), x)
    assert out.isnan().all(dim=1).tolist() == [False, True]


def test_sums_are_the_same_at_every_call():
    torch.manual_seed(0)
    rowptr = torch.tensor([0, 5000], dtype=torch.int32)
    col, value, x = torch.randint(0, 50, (5000,), dtype=torch.int32), torch.randn(5000), torch.randn(50, 64)
    first = csr_product(rowptr, col, value, x)
    assert all(csr_product(rowptr, col, value, x).equal(first) for _ in range(5))
    torch.testing.assert_close(first, csr_tensor(rowptr, col, value, (1, 50)).to_dense() @ x, rtol=1e-3, atol=1e-3)
