"""The numbers of one output or of many: each product is made once, and on a GPU many outputs share every launch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.csr import full_precision
from graphjoule.graph.product import Product
from graphjoule.measures import MEASURES, Measure
from graphjoule.measures.energy import dirichlet_energy, frobenius_norm, ratio
from graphjoule.ops.propagate import plain_product
from graphjoule.trace.graphs import Measured
from graphjoule.trace.operators import Operator

Number = Tensor | list[float]  # one per run: on the device, or read back
_MOST_BYTES, _MOST_SHARE = 2**28, 1 / 64  # of outputs that wait on a GPU: their float64 copies are larger


def measure_features(
    x: Tensor, measured: Measured, measures: Sequence[Measure], product: Product | None = None
) -> dict[str, Tensor]:
    """The measures of node features by name, those left out that need edges where there are none.

    Args:
        x: shape ``[..., num_nodes, channels]``.
        measured: by what graph and operator.
        measures: what to compute.
        product: what a layer made of `x`, if one did.
    """
    operator, graph = measured.operator, measured.graph
    values: dict[str, Tensor] = {}
    energy: Tensor | None = None
    with full_precision(x):
        for measure in measures:
            name, is_ours = measure.name, measure is MEASURES.get(measure.name)
            if is_ours and operator is not None and name in ("energy", "rayleigh"):
                if name == "rayleigh" and not operator.is_scaled:
                    values[name] = operator.rayleigh(x)
                    continue
                energy = _energy(x, operator, product) if energy is None else energy
                values[name] = energy
                if name == "rayleigh":
                    values[name] = ratio(energy, frobenius_norm(x, operator.graph).square())
            elif isinstance(graph, Propagation):
                values[name] = measure.function(x, graph)
            elif name not in ("energy", "rayleigh"):
                with suppress(GraphjouleError):  # it needs edges among these nodes, and there are none
                    values[name] = measure.function(x, graph)  # type: ignore[arg-type]
    return values


def _energy(x: Tensor, operator: Operator, product: Product | None) -> Tensor:
    """The energy by an operator: from a product of its own graph where that is good enough, else the exact form."""
    if not operator.is_scaled or (product is not None and product.graph is not operator.graph):
        product = None
    if product is None and x.device.type == "cuda" and x.dim() > 2 and operator.is_scaled:
        return energies_of_many(x, operator.graph)
    energies = None if product is None else product.energies(x)
    if energies is None:
        return operator.energy(x)
    return operator.energy(x) if bool(energies.isnan()) else energies


def energies_of_many(x: Tensor, graph: Propagation) -> Tensor:
    """The Dirichlet energies of many outputs, as `dirichlet_energy` has them, in few operations for all.

    From one product of all in float32; those that are too smooth for it are tried again without the kernel of
    ``I - P``, which has no energy, and the rest are measured one by one in float64.

    Args:
        x: shape ``[..., num_nodes, channels]``, with an axis before the nodes.
        graph: the operator ``P``.
    """
    outputs = x.flatten(0, -3)
    if not graph.has_known_kernel or x.dtype != graph.dtype:
        return dirichlet_energy(x, graph)
    energies = _by_one_product(outputs, graph)
    if energies is None:
        return dirichlet_energy(x, graph)
    if bool((smooth := energies.isnan()).any()):
        kernel, rows = graph.laplacian.scaled().kernel(torch.float64), outputs[smooth].double()
        found = _by_one_product(kernel.take_off(rows, kernel.means(rows)).float(), graph)
        energies[smooth] = torch.full_like(rows[:, 0, 0], torch.nan) if found is None else found
    if bool((exact := energies.isnan()).any()):
        energies[exact] = dirichlet_energy(outputs[exact], graph)
    return energies.view(x.shape[:-2])


def _by_one_product(x: Tensor, graph: Propagation) -> Tensor | None:
    return Product(plain_product(x, graph), graph, 1.0, 0.0).energies(x)


@cache
def _room(device: torch.device) -> float:
    """How many bytes of outputs may wait on a device."""
    if device.type != "cuda":
        return _MOST_BYTES
    return min(_MOST_BYTES, _MOST_SHARE * torch.cuda.get_device_properties(device).total_memory)


class Waiting:
    """Outputs on a GPU that wait to be measured, all of one shape, graph and operator."""

    def __init__(self) -> None:
        self._kind: tuple[Any, ...] | None = None
        self._outputs: list[Tensor] = []
        self._entries: list[Any] = []
        self._measured: Measured | None = None

    def add(self, entry: Any, x: Tensor, measured: Measured, measures: Sequence[Measure]) -> None:
        """Let an output wait, after those of another kind were measured.

        Args:
            entry: its row, whose `values` get the numbers.
            x: the output, which nobody changes.
            measured: by what graph and operator.
            measures: what to compute.
        """
        kind = x.shape, x.dtype, x.device, measured.operator, measured.graph
        if self._kind != kind:
            self.measure(measures)
        self._kind, self._measured = kind, measured
        self._entries.append(entry)
        self._outputs.append(x)
        if len(self._outputs) * x.nbytes >= _room(x.device):
            self.measure(measures)

    def measure(self, measures: Sequence[Measure]) -> None:
        """Measure all that wait."""
        if self._measured is None:
            return
        outputs, entries, measured = self._outputs, self._entries, self._measured
        self._outputs, self._entries, self._measured, self._kind = [], [], None, None
        for name, numbers in measure_features(torch.stack(outputs), measured, measures).items():
            for entry, number in zip(entries, numbers.unbind(), strict=True):
                entry.values[name] = number
