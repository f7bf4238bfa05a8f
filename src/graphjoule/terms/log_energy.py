"""The logarithm of the Dirichlet energy, made for training: one product gives the number and its gradient."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from graphjoule.graph import Propagation
from graphjoule.graph.csr import full_precision, is_plain, linear_map, outside_transforms, with_signature
from graphjoule.graph.laplacian import Kernel
from graphjoule.ops.propagate import plain_product

_SMALLEST, _LARGEST = 1e-30, 1e30  # of max |x| and of the gradient's factor: what float32 can hold with room to spare
_MOST_SCRATCH = 4  # shapes: the hidden layers' and that of the class scores, of two threads
_PLAIN_SQUARES = 1e-12, 1e24  # of ||X||^2: between them float32 neither under- nor overflows where it would matter

_Key = tuple[int, torch.Size, torch.dtype]


@dataclass(frozen=True, eq=False)
class SmoothingGraph:
    """A graph in the dtype of the features: ``I - P``, or ``D - A``, and its kernel, as those of `Laplacian.form`.

    `Laplacian.form` returns a number and multiplies again for the gradient, in float64. Training wants both from one
    product, in the dtype of the features and at any size of them, so the product is made here.

    Attributes:
        difference: ``I - P``, in the form of a `Propagation`.
        kernel: takes the kernel of ``I - P`` off features.
    """

    difference: Propagation
    kernel: Kernel
    _scratch: dict[_Key, Tensor] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    @outside_transforms()
    def of(cls, graph: Propagation, dtype: torch.dtype, *, normalised: bool = True) -> SmoothingGraph:
        """Build it once per graph and dtype; this waits for the device.

        Args:
            graph: the graph.
            dtype: dtype of the features.
            normalised: take ``I - P``; else ``D - A``.
        """
        graph.require_whole("An energy constraint")
        scaled = graph.laplacian.scaled(normalised=normalised)
        difference = Propagation(graph.rowptr, graph.col, scaled.entries.to(dtype), graph.degree)
        return cls(difference, scaled.kernel(dtype))

    def smoothness(self, run: Tensor) -> tuple[float, float, float, Tensor]:
        """A size ``s`` of one run's features on a CPU; ``||X / s||^2``, ``E(X / s)`` and ``(I - P) X / s``.

        The size is the largest entry, or 1 where nothing needs dividing, which saves two passes over the features.
        """
        size, unit = 1.0, run
        norm = float(torch.dot(unit.flatten(), unit.flatten()))
        if not _PLAIN_SQUARES[0] < norm < _PLAIN_SQUARES[1]:
            size = float(torch.stack(torch.aminmax(run)).abs_().amax().clamp_(min=_SMALLEST))
            unit = run / size
            norm = max(1.0, float(torch.dot(unit.flatten(), unit.flatten())))  # less is zero
        rest = self.kernel.take_off(unit, self.kernel.means(unit), out=self._scratch_like(run))
        product = plain_product(rest, self.difference)
        return size, norm, float(torch.dot(rest.flatten(), product.flatten())), product

    def smoothness_of_all(self, runs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """`smoothness` of all runs at once, shape ``[runs, num_nodes, channels]``: few launches, which a GPU wants."""
        size = torch.linalg.vector_norm(runs, ord=torch.inf, dim=(1, 2)).clamp_(min=_SMALLEST)
        unit = runs / size[:, None, None]
        norm = unit.square().sum(dim=(1, 2)).clamp_(min=1)
        rest = self.kernel.take_off(unit, self.kernel.means(unit), out=unit)
        product = plain_product(rest, self.difference)
        return size, norm, (rest * product).sum(dim=(1, 2)), product

    def _scratch_like(self, run: Tensor) -> Tensor:
        """Memory like `run` that every call writes over: mapping fresh pages would cost as much as the product."""
        key = threading.get_ident(), run.shape, run.dtype
        scratch = self._scratch.get(key)
        if scratch is None:
            if len(self._scratch) >= _MOST_SCRATCH:
                self._scratch.clear()
            with torch.inference_mode(False):  # or training could not write to it later
                scratch = self._scratch[key] = torch.empty(run.shape, dtype=run.dtype)
        return scratch


def log_energy(x: Tensor, graph: SmoothingGraph) -> tuple[Tensor, Tensor]:
    r"""``log E(X)`` of node features, safe at any size and at zero.

    .. math::
        \log\big(E(X) + \varepsilon^2 \|X\|^2\big), \qquad
        E(X) = \langle X_\perp, (I - P) X_\perp \rangle, \quad X_\perp = X - \Pi \Pi^\top X

    The features are divided by their largest entry first, so that nothing under- or overflows, and the kernel of
    ``I - P`` is taken off them, so that nothing cancels. ``eps`` is that of their dtype: an energy below
    ``eps^2 ||X||^2`` is rounding. The floor has no gradient; at ``X = 0`` the value is finite and the gradient zero.
    The product ``(I - P) X`` is kept, for it is half of ``E``'s gradient.

    Args:
        x: node features in float32 or float64, shape ``[num_nodes, channels]`` or ``[runs, num_nodes, channels]``.
        graph: the graph in that dtype.

    Returns:
        The logarithms in float64, shape ``[]`` or ``[runs]``, and whether there is no energy but rounding.

    Example:
        >>> graph = Propagation.from_edge_index(torch.tensor([[0, 1], [1, 0]]))
        >>> value, is_nil = log_energy(torch.tensor([[1.0], [-1.0]]), SmoothingGraph.of(graph, torch.float32))
        >>> round(float(value.exp()), 6), bool(is_nil)
        (2.0, False)
    """
    with full_precision(x):
        value, is_nil, *_ = _LogEnergy.apply(x, graph)  # type: ignore[no-untyped-call]
    return value, is_nil


@with_signature
class _LogEnergy(torch.autograd.Function):
    """Of one run or of many; keeps ``(I - P) X`` and its factor, which are the gradient, instead of the features.

    Both are results as well, with gradients of their own: so the gradient is a formula with derivatives of any order.
    """

    @staticmethod
    def forward(x: Tensor, graph: SmoothingGraph) -> tuple[Tensor, ...]:
        runs, least = x.reshape(-1, *x.shape[-2:]), torch.finfo(x.dtype).eps ** 2
        if x.device.type == "cpu":  # run by run: one matrix stays in the cache from the first pass to the last
            *numbers, products = zip(*(_logarithm_of_one(graph, run, least) for run in runs.unbind()), strict=True)
            value, is_nil, factor, size = torch.tensor(numbers, dtype=torch.float64)
            product = torch.stack(products) if len(products) > 1 else products[0]
        else:
            size, norm, energy, product = graph.smoothness_of_all(runs)
            size, norm, energy = torch.stack([size, norm, energy]).double().unbind()
            safe = energy.clamp_(min=0) + least * norm
            value, is_nil, factor = 2 * size.log() + safe.log(), energy <= least * norm, 2 / (safe * size)
        shape = x.shape[:-2]
        return value.view(shape), is_nil.bool().view(shape), product.view(x.shape), factor.view(shape), size.view(shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        _, ctx.graph = inputs
        _, is_nil, *kept, size = output
        ctx.mark_non_differentiable(is_nil, size)
        ctx.save_for_backward(*kept, size)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None]:
        product, factor, size = ctx.saved_tensors
        of_value, _, of_product, of_factor, _ = grads
        weight = None if of_value is None else of_value * factor
        if of_factor is not None:  # factor = 2 / (size energy), whose gradient has its square
            weight = (0 if weight is None else weight) - of_factor * factor.square()
        total = None if of_product is None else _smoothed(of_product, ctx.graph) / _of_each(size, product)
        if weight is None:
            return total, None
        # The limits hold: a pass less.
        if total is None and product.device.type == "cpu" and is_plain() and not weight.any():
            return product.new_zeros(()).expand_as(product), None
        # The product is small where its factor is large, and zero times infinity would not be zero.
        own = _of_each(weight.clamp(-_LARGEST, _LARGEST), product) * product
        return own if total is None else total + own, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, None], x: Tensor, graph: SmoothingGraph
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return _LogEnergy.apply(x.movedim(in_dims[0], 0), graph), (0,) * 5  # type: ignore[no-untyped-call]


def _of_each(number: Tensor, x: Tensor) -> Tensor:
    """A number of every run, shaped and rounded as its features are."""
    return number.to(x.dtype)[..., None, None]


def _smoothed(x: Tensor, graph: SmoothingGraph) -> Tensor:
    """``(I - P) X`` of every run, with a gradient."""
    return linear_map(
        x, lambda runs: plain_product(runs.reshape(-1, *runs.shape[-2:]), graph.difference).view(runs.shape)
    )


def _logarithm_of_one(graph: SmoothingGraph, run: Tensor, least: float) -> tuple[float, bool, float, float, Tensor]:
    """The results of one run; plain numbers, for a tensor of one costs as much as a pass over a small graph."""
    size, norm, energy, product = graph.smoothness(run)
    energy = max(energy, 0.0)  # in this order NaN stays NaN
    safe = energy + least * norm
    return 2 * math.log(size) + math.log(safe), energy <= least * norm, 2 / (safe * size), size, product
