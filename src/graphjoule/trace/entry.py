"""A row while its numbers are still on the device, and the one wait that brings many of them home."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from graphjoule.measures import Measure
from graphjoule.trace.layer import LayerTrace
from graphjoule.trace.outputs import as_matrix

Number = Tensor | list[float]  # one per run: on the device, or brought home
_GRADIENT = "gradient"


@dataclass(eq=False)
class Entry:
    """The numbers of one output, a tensor ``[]`` or ``[runs]`` each until `settle` makes them a list.

    `times` is how often the call of the model has used the module, this time counted.
    """

    name: str
    module: str
    call: int
    mark: int | str | None
    training: bool
    times: int = 1
    channels: int = 0
    num_runs: int | None = None
    values: dict[str, Number] = field(default_factory=dict)
    gradient: dict[str, Number] = field(default_factory=dict)
    weight_squares: dict[str, Number] = field(default_factory=dict)

    def tables(self) -> tuple[dict[str, Number], ...]:
        """All numbers."""
        return self.values, self.gradient, self.weight_squares

    def rows(self) -> Iterator[LayerTrace]:
        """One row per run, or one; everything must be settled."""
        for run in range(1 if self.num_runs is None else self.num_runs):
            squares = [_number(number, run) for number in self.weight_squares.values()]
            yield LayerTrace(
                name=self.name if self.times == 1 else f"{self.name}#{self.times}",
                values={name: _number(number, run) for name, number in self.values.items()},
                module=self.module,
                channels=self.channels,
                call=self.call,
                mark=self.mark,
                run=None if self.num_runs is None else run,
                training=self.training,
                gradient=_number(self.gradient[_GRADIENT], run) if self.gradient else None,
                weight_gradient=sum(squares) ** 0.5 if squares else None,
            )


@dataclass(frozen=True, eq=False)
class EntryWatcher:
    """Fills an entry from a tensor and its gradient, and keeps neither.

    Args:
        entry: what to fill.
        measures: what to compute.
        measure: computes one of them.
        num_nodes: number of nodes.
        is_open: whether a gradient that arrives still counts; None where gradients are not asked for.
    """

    entry: Entry
    measures: tuple[Measure, ...]
    measure: Callable[[Measure, Tensor], Tensor]
    num_nodes: int
    is_open: Callable[[], bool] | None

    @torch.no_grad()
    def see(self, x: Tensor) -> None:
        """Compute the measures."""
        x = as_matrix(x, self.num_nodes)
        self.entry.channels = x.size(-1)
        self.entry.num_runs = x.size(0) if x.dim() == 3 else None
        for measure in self.measures:
            self.entry.values[measure.name] = self.measure(measure, x)

    def await_gradient(self, x: Tensor, to_front: Callable[[Tensor], Tensor]) -> None:
        """Hang a hook on the tensor that computes ``||dL/dX||``; it refers to the entry alone, so it keeps nothing."""
        is_open, entry, num_nodes = self.is_open, self.entry, self.num_nodes
        if is_open is None:
            return

        def record(gradient: Tensor) -> None:
            if is_open():
                matrix = as_matrix(to_front(gradient.detach()), num_nodes)
                entry.gradient[_GRADIENT] = torch.linalg.vector_norm(matrix.double(), dim=(-2, -1))

        x.register_hook(record)  # type: ignore[no-untyped-call]


def settle(entries: Iterable[Entry]) -> None:
    """Bring all numbers of some entries home with one wait per device."""
    waiting: dict[torch.device, list[tuple[dict[str, Number], str, Tensor]]] = defaultdict(list)
    for entry in entries:
        for table in entry.tables():
            for name, number in table.items():
                if isinstance(number, Tensor):
                    waiting[number.device].append((table, name, number))
    for numbers in waiting.values():
        flat = torch.cat([number.double().reshape(-1) for _, _, number in numbers]).tolist()
        start = 0
        for table, name, number in numbers:
            table[name] = flat[start : start + number.numel()]
            start += number.numel()


def _number(number: Number, run: int) -> float:
    """A run's number; one that all runs share stands there once."""
    assert isinstance(number, list)
    return number[run] if len(number) > 1 else number[0]
