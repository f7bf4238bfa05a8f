import inspect

import torch

from graphjoule.graph.autograd_calls import is_plain, with_signature


@with_signature
class _Times(torch.autograd.Function):
    @staticmethod
    def forward(x, factor=3.0):
        return factor * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        return ctx.factor * grad, None


def test_a_call_is_bound_without_working_the_signature_out_again(monkeypatch):
    def never(*_args, **_options):
        raise AssertionError("worked out again")

    monkeypatch.setattr(inspect, "_signature_from_function", never)
    x = torch.tensor(2.0, requires_grad=True)
    y = _Times.apply(x)
    y.backward()
    assert (y.item(), x.grad.item()) == (6.0, 3.0)
    assert _Times.apply(x, 5.0).item() == 10.0


def test_a_plain_call_has_neither_a_gradient_nor_a_transform_around_it():
    assert not is_plain()
    with torch.no_grad():
        assert is_plain()
        inside = []
        torch.vmap(lambda x: (inside.append(is_plain()), x)[1])(torch.ones(2))
        assert inside == [False]
    with torch.inference_mode():
        assert is_plain()


def test_where_torch_does_not_tell_no_call_is_plain(monkeypatch):
    monkeypatch.delattr(torch._C, "_are_functorch_transforms_active")
    with torch.no_grad():
        assert not is_plain()
