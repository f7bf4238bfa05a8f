import pytest
import torch

from graphjoule.classifier.scaling import Scaling
from graphjoule.graph.features import SparseFeatures
from tests.graphs import normal


def test_columns_get_mean_0_and_variance_1_and_the_next_matrix_the_same_numbers():
    x = normal(50, 3) * torch.tensor([1e6, 1.0, 1e-6]) + 5
    scaling = Scaling.of(x)
    scaled = scaling.apply(x).double()
    assert torch.allclose(scaled.mean(dim=0), torch.zeros(3).double(), atol=1e-5)
    assert torch.allclose(scaled.var(dim=0, correction=0), torch.ones(3).double(), atol=1e-4)
    assert scaling.apply(x[:1]).equal(scaling.apply(x)[:1])
    assert scaling.apply(x).dtype == torch.get_default_dtype()


@pytest.mark.parametrize("value", [0.1, 0.0, -1e30])
def test_a_constant_column_becomes_zero_on_any_matrix(value):
    scaling = Scaling.of(torch.full((7, 1), value))
    assert not scaling.apply(torch.full((7, 1), value)).any()
    assert not scaling.apply(torch.tensor([[value + 3]])).any()


def test_one_row_and_no_scaling_and_sparse_features():
    assert not Scaling.of(torch.ones(1, 2)).apply(torch.ones(1, 2)).any()
    assert Scaling().apply(torch.ones(2, 2)).equal(torch.ones(2, 2))
    sparse = SparseFeatures.from_dense(torch.eye(5))
    assert Scaling.of(sparse).apply(sparse) is sparse
