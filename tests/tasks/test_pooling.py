import pytest
import torch
from torch_geometric.nn import global_add_pool, global_max_pool, global_mean_pool

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.pooling import Pooling

BATCH = torch.tensor([1, 0, 1, 2, 2, 2, 0])
PYG = {"mean": global_mean_pool, "sum": global_add_pool, "max": global_max_pool}


@pytest.mark.parametrize("how", PYG)
def test_outputs_are_pooled_as_pyg_pools_them(how):
    output = torch.randn(7, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    pooled, expected = Pooling(BATCH, how)(output), PYG[how](output, BATCH)
    torch.testing.assert_close(pooled, expected)
    ours, theirs = (torch.autograd.grad(each.square().sum(), output)[0] for each in (pooled, expected))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("how", PYG)
def test_many_runs_at_once_are_pooled_alike(how):
    outputs = torch.randn(4, 7, 3, generator=torch.Generator().manual_seed(1))
    pooling = Pooling(BATCH, how)
    assert torch.vmap(pooling)(outputs).equal(torch.stack([pooling(output) for output in outputs]))


@pytest.mark.parametrize("how", ["mean", "sum"])
def test_mean_and_sum_may_come_before_or_after_a_linear_map(how):
    generator = torch.Generator().manual_seed(2)
    embedding, weight = torch.randn(7, 5, generator=generator), torch.randn(5, 3, generator=generator)
    pooling = Pooling(BATCH, how)
    torch.testing.assert_close(pooling(embedding @ weight), pooling(embedding) @ weight)


@pytest.mark.parametrize("how", PYG)
def test_what_all_outputs_have_in_common_stays_as_it_is(how):
    output, center = torch.randn(7, 1, dtype=torch.float64), torch.tensor([1e6], dtype=torch.float64)
    pooling = Pooling(BATCH, how)
    torch.testing.assert_close(pooling(output + center, center) - center, pooling(output), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("batch", "how", "said"),
    [
        (BATCH, "median", "The pooling is 'median'; the choices are: max, mean, sum"),
        (BATCH.float(), "mean", "graph numbers of nodes have dtype torch.float32"),
        (BATCH[None], "mean", r"have shape \[1, 7\]"),
        (BATCH - 1, "mean", r"begin at -1; expected one number from 0"),
        (BATCH[:0], "mean", r"have shape \[0\]; expected"),
        (torch.tensor([0, 2]), "mean", "Graph 1 of 3 has no node"),
    ],
)
def test_what_is_not_a_pooling_is_a_sentence(batch, how, said):
    with pytest.raises(GraphjouleError, match=said):
        Pooling(batch, how)
