"""One CUDA graph for a whole epoch: thousands of small launches become one."""

from __future__ import annotations

from collections.abc import Callable

import torch

_WARM_UP_CALLS = 2  # libraries choose their algorithms and workspaces in the first calls, outside the graph


class CapturedStep:
    """A step that is recorded as a CUDA graph at its third call and replayed from then on.

    The first two calls run as they are and count as real steps. The step must work in place on tensors that stay where
    they are, and must not wait for the device.

    Args:
        step: the function to capture; it takes nothing and returns nothing.
        device: where it runs; anything but a CUDA device means that every call runs as it is.
    """

    def __init__(self, step: Callable[[], None], device: torch.device) -> None:
        self._step, self._device = step, device
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Make one step."""
        if self._device.type != "cuda":
            self._step()
            return
        self._calls += 1
        if self._calls <= _WARM_UP_CALLS:
            self._run_aside()
            return
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._step()
        self._graph.replay()

    def _run_aside(self) -> None:
        """Run on a side stream, which capture asks of its warm-up."""
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            self._step()
        torch.cuda.current_stream(self._device).wait_stream(stream)
