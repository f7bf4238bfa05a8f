"""A callback for Lightning's ``Trainer``, and for any loop that calls the same hooks; Lightning is not imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from graphjoule.errors import GraphjouleError
from graphjoule.trace.trace import Trace


class LightningTrace:
    """Logs measures of every layer during training: ``Trainer(callbacks=[LightningTrace(every=50)])``.

    Each `every`-th training batch is traced, and ``module.log_dict`` gets ``energy/convs.0`` and so on, from where they
    go to TensorBoard or any other logger; the other batches cost nothing. Where a batch takes several calls of the
    model, the mean is logged, and a node type, relation or graph stands behind the layer: ``energy/convs.0/paper``.
    Hooks that it does not need do nothing.

    Args:
        model: name of the attribute of the ``LightningModule`` to trace; by default the whole module.
        every: batches from one trace to the next.
        log: names of the measures to log, which the trace must have.
        options: what else `Trace` takes, such as ``measures`` or ``on_collapse``.

    Example:
        >>> callback = LightningTrace("net", every=100, on_collapse="warn")
        >>> callback.on_fit_start(None, None)  # one of the hooks that do nothing
    """

    def __init__(self, model: str = "", *, every: int = 1, log: tuple[str, ...] = ("energy",), **options: Any) -> None:
        if every < 1:
            raise GraphjouleError(f"every is {every}; it must be at least 1.")
        self._name, self._every, self._log, self._options = model, every, log, options
        self._trace: Trace | None = None
        # It has no state of its own, but Lightning asks for both names, which must differ from those of a second one.
        self.state_key = self._legacy_state_key = f"graphjoule.LightningTrace({model!r})"

    def on_train_batch_start(self, trainer: Any, module: nn.Module, batch: Any, batch_idx: int) -> None:
        """Begin a trace where one is due."""
        self._close()
        if batch_idx % self._every == 0:
            self._trace = Trace(module.get_submodule(self._name), **self._options)
            self._trace.__enter__()

    def on_train_batch_end(self, trainer: Any, module: nn.Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End the trace and log its numbers."""
        trace = self._close()
        if trace is not None:
            numbers = {
                "/".join(filter(None, (name, row.name, row.part))): row.values[name]
                for row in trace.averaged().layers
                for name in self._log
                if name in row.values
            }
            module.log_dict(numbers)  # type: ignore[operator]

    def on_exception(self, trainer: Any, module: nn.Module, exception: BaseException) -> None:
        """Let go of the model."""
        trace, self._trace = self._trace, None
        if trace is not None:
            trace.__exit__(type(exception), exception, exception.__traceback__)

    def state_dict(self) -> dict[str, Any]:
        """Nothing to save."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        """All other hooks of a callback, which do nothing."""
        if name.startswith("on_") or name in ("setup", "teardown"):
            return lambda *args, **kwargs: None
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _close(self) -> Trace | None:
        trace, self._trace = self._trace, None
        if trace is not None:
            trace.__exit__(None, None, None)
        return trace
