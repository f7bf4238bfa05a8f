import pytest
import torch
from torch.func import grad, vmap

from graphjoule.ops.recompute import recompute
from tests.graphs import normal
from tests.ops.live_bytes import LiveBytes


def part(x, weight, offset):
    h = torch.tanh(x @ weight) + offset
    return h, (h * x).square()


def tensors(seed=0):
    return [normal(5, 3, seed=seed), normal(3, 3, seed=seed + 1), normal(5, 3, seed=seed + 2)]


def gradients(call, given, wanted=(True, True, False)):
    given = [t.clone().requires_grad_(w) for t, w in zip(given, wanted, strict=True)]
    first, second = call(*given)
    leaves = [t for t in given if t.requires_grad]
    return [first, second, *torch.autograd.grad((first * second.cos()).sum(), leaves)]


@pytest.mark.parametrize("wanted", [(True, True, False), (False, True, True), (True, False, False)])
def test_values_and_gradients_are_the_same_to_the_bit(wanted):
    found, expected = gradients(lambda *t: recompute(part, *t), tensors(), wanted), gradients(part, tensors(), wanted)
    assert all(a.equal(b) for a, b in zip(found, expected, strict=True))


def test_second_derivatives_are_those_of_the_part():
    def second(call):
        given = [t.requires_grad_() for t in tensors()]
        first = torch.autograd.grad(call(*given)[1].sum(), given, create_graph=True)
        return torch.autograd.grad(sum(grad.square().sum() for grad in first), given)

    for found, expected in zip(second(lambda *t: recompute(part, *t)), second(part), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("shared", [None, 0])
def test_under_vmap_they_are_those_of_every_run(shared):
    runs = [torch.stack(of_runs) for of_runs in zip(tensors(), tensors(9), strict=True)]
    runs[2] = runs[2] if shared == 0 else runs[2][0]
    dims = (0, 0, shared)
    found = gradients(vmap(lambda *t: recompute(part, *t), in_dims=dims), runs)
    assert all(a.equal(b) for a, b in zip(found, gradients(vmap(part, in_dims=dims), runs), strict=True))


def test_transforms_of_torch_func_go_through():
    x, weight, offset = tensors()
    loss = lambda call: lambda w: sum(t.sum() for t in call(x, w, offset))  # noqa: E731
    found = grad(loss(lambda *t: recompute(part, *t)))(weight)
    torch.testing.assert_close(found, grad(loss(part))(weight), rtol=1e-14, atol=0)
    both = torch.stack([weight, 2 * weight])
    found = vmap(grad(loss(lambda *t: recompute(part, *t))))(both)
    torch.testing.assert_close(found, vmap(grad(loss(part)))(both), rtol=1e-14, atol=0)


def test_an_output_without_a_gradient_and_an_unused_tensor_are_no_trouble():
    x, unused = normal(4).requires_grad_(), normal(4).requires_grad_()
    out, count = recompute(lambda x, unused: (x.square(), torch.ones(2, dtype=torch.int64)), x, unused)
    assert count.dtype == torch.int64
    assert torch.autograd.grad(out.sum(), [x, unused], allow_unused=True)[0].equal(2 * x)


def test_only_the_inputs_are_kept():
    x = torch.zeros(1000, 100, requires_grad=True)

    def ten(x):
        for _ in range(10):
            x = torch.tanh(x)
        return (x,)

    with LiveBytes() as live:
        (out,) = recompute(ten, x)
        assert live.now <= 2 * x.nbytes
        out.sum().backward()


def test_a_counter_among_the_outputs_is_no_trouble_for_torch_func():
    """A batch norm counts its calls in an integer, of which `torch.func.vjp` wants to hear nothing."""
    counted = lambda x: recompute(lambda x: (x.square(), torch.ones((), dtype=torch.int64)), x)[0].sum()  # noqa: E731
    assert grad(counted)(normal(4)).equal(2 * normal(4))
    assert vmap(grad(counted))(normal(3, 4)).equal(2 * normal(3, 4))
