"""`EnergyConstraint`: the paper's principle as a term of anybody's loss."""

from __future__ import annotations

import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from graphjoule.errors import GraphjouleError, check_count
from graphjoule.files import json_text
from graphjoule.graph import Propagation
from graphjoule.terms.log_energy import SmoothingGraph, log_energy
from graphjoule.terms.settings import check_settings
from graphjoule.terms.term import Term
from graphjoule.trace.compiled import as_written, compile_anew
from graphjoule.trace.graphs import GraphReader, Measured
from graphjoule.trace.hooks import uncompiled_hook
from graphjoule.trace.operators import Operator
from graphjoule.trace.outputs import as_matrix
from graphjoule.trace.watch import Watch, is_in_backward, watched_modules

_HELD = -1.0  # the gap of a limit that holds because there is no energy on its greater side


@dataclass(frozen=True)
class Method:
    """One row of `METHODS`; both functions take the gaps, the multipliers and ``rho``.

    Attributes:
        term: the term of the loss, summed over the last two axes.
        updated: the multipliers after a step, the shape of the gaps.
    """

    term: Callable[[Tensor, Tensor, float], Tensor]
    updated: Callable[[Tensor, Tensor, float], Tensor]


def _penalty(gaps: Tensor, multipliers: Tensor, rho: float) -> Tensor:
    """``rho sum relu(g)^2``."""
    return rho * torch.relu(gaps).square().sum(dim=(-2, -1))


def _augmented_lagrangian(gaps: Tensor, multipliers: Tensor, rho: float) -> Tensor:
    """``1 / (2 rho) sum(relu(lambda + rho g)^2 - lambda^2)`` (Rockafellar 1973)."""
    shifted = torch.relu(multipliers + rho * gaps)
    return (shifted.square() - multipliers.square()).sum(dim=(-2, -1)) / (2 * rho)


def _unmoved(gaps: Tensor, multipliers: Tensor, rho: float) -> Tensor:
    return multipliers


def _moved(gaps: Tensor, multipliers: Tensor, rho: float) -> Tensor:
    """``relu(lambda + rho g)``."""
    return torch.relu(multipliers + rho * gaps)


METHODS = {  # of functions with a name: a module that has a constraint can be saved as a whole
    "penalty": Method(_penalty, _unmoved),
    "augmented_lagrangian": Method(_augmented_lagrangian, _moved),
}


@dataclass(frozen=True)
class LayerState:
    """One layer's limits.

    Attributes:
        name: the layer's name.
        lower_gap: ``log(c_min E(X_{k-1}) / E(X_k))``; positive where the lower limit is broken.
        upper_gap: ``log(E(X_k) / (c_max E(X_0)))``; positive where the upper limit is broken.
        lower_multiplier: of the lower limit, not negative.
        upper_multiplier: of the upper limit, not negative.
    """

    name: str
    lower_gap: float
    upper_gap: float
    lower_multiplier: float = 0.0
    upper_multiplier: float = 0.0

    @property
    def violation(self) -> float:
        """By which factor the worse limit is missed, less 1: 0.01 is one per cent; 0 within both."""
        try:
            return math.expm1(max(self.lower_gap, self.upper_gap, 0.0))
        except OverflowError:
            return math.inf

    @property
    def slackness(self) -> float:
        """``max |lambda g|`` of the two limits: zero where each either binds or does not matter."""
        return max(abs(self.lower_gap * self.lower_multiplier), abs(self.upper_gap * self.upper_multiplier))


@dataclass(frozen=True)
class ConstraintReport:
    """The limits of all layers of one run.

    Attributes:
        initial: name of ``X_0``.
        layers: one row per layer after it.

    Example:
        >>> report = ConstraintReport("encoder", (LayerState("convs.0", 0.5, -2.0), LayerState("convs.1", -0.2, -1.9)))
        >>> round(report.max_violation, 3), report.num_broken
        (0.649, 1)
    """

    initial: str
    layers: tuple[LayerState, ...]

    @property
    def max_violation(self) -> float:
        """The largest violation of all layers."""
        return max(layer.violation for layer in self.layers)

    @property
    def max_slackness(self) -> float:
        """The largest ``|lambda g|``: how well complementary slackness holds."""
        return max(layer.slackness for layer in self.layers)

    @property
    def num_broken(self) -> int:
        """How many layers miss a limit by more than one per cent."""
        return sum(not layer.violation <= 0.01 for layer in self.layers)

    def __str__(self) -> str:
        return (
            f"{self.num_broken} of {len(self.layers)} layers after {self.initial} miss a limit by more than 1 %; "
            f"the largest violation is {100 * self.max_violation:.3g} %, the largest |lambda g| "
            f"{self.max_slackness:.2g}."
        )

    def table(self) -> str:
        """The layers as text, one line each."""
        width = max(len(name) for name in ("layer", *(layer.name for layer in self.layers)))
        lines = [f"{'layer':<{width}}  {'lower gap':>9}  {'upper gap':>9}  {'violation':>9}  {'lambda':>17}"]
        for row in self.layers:
            gaps = f"{row.lower_gap:>9.3g}  {row.upper_gap:>9.3g}  {100 * row.violation:>7.3g} %"
            lines.append(f"{row.name:<{width}}  {gaps}  {row.lower_multiplier:>8.3g} {row.upper_multiplier:>8.3g}")
        return "\n".join(lines)

    def fields(self) -> dict[str, Any]:
        """Everything as a dict that JSON can hold."""
        rows = [{**asdict(layer), "violation": layer.violation} for layer in self.layers]
        return {"initial": self.initial, "max_violation": self.max_violation, "layers": rows}

    def to_json(self) -> str:
        """The same as JSON text."""
        return json_text(self.fields())


@dataclass(frozen=True, eq=False)
class Embedding:
    """What is known of one layer's output: ``log E(X)`` with its gradient, but not the output itself.

    Attributes:
        name: the layer's name.
        log_energy: shape ``[]`` or ``[runs]``.
        is_nil: whether the energy is zero up to rounding.
        channels: width of the output.
        dtype: dtype of the output.
    """

    name: str
    log_energy: Tensor
    is_nil: Tensor
    channels: int
    dtype: torch.dtype


class EmbeddingHooks:
    """Hooks that measure the outputs of the watched layers at each call of a model.

    Args:
        model: any module.
        graph: a graph for all calls; None to measure each on its own.
        layers: modules to watch, see `watched_modules`.
        num_nodes: number of nodes, where an ``edge_index`` leaves it open.
        operator: a key of `graphjoule.trace.operators.OPERATORS`; None to read it from each layer.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: Propagation | Tensor | None,
        layers: Watch | Sequence[Watch] | None,
        num_nodes: int | None,
        operator: str | None = None,
    ) -> None:
        model = as_written(model)
        self._given = model, graph, layers, num_nodes, operator
        self._is_default = layers is None
        watched = watched_modules(model, layers)
        asked = None if layers is None else watched.values()
        self._graphs = GraphReader(model, graph, num_nodes, operator, watched=asked)
        self._smoothing: WeakKeyDictionary[Operator, dict[torch.dtype, SmoothingGraph]] = WeakKeyDictionary()
        self._num_calls, self._is_called, self._first = 0, False, ""
        self._has_grad, self._has_input, self._has_warned, self._is_shared = False, False, False, False
        self._error: BaseException | None = None  # what was being handled when the call began
        self._has_failed = False
        self._seen: list[Embedding] = []
        self._last: Tensor | None = None  # of this call: a module that hands on what it was given is no layer
        self._handles: list[RemovableHandle] = []
        self._handles += [
            model.register_forward_pre_hook(uncompiled_hook(self._begin), prepend=True, with_kwargs=True),
            *self._graphs.attach(),
            *(
                module.register_forward_hook(uncompiled_hook(partial(self._measure, name)), with_kwargs=True)
                for name, module in watched.items()
            ),
            *self._graphs.attach_last(),
            model.register_forward_hook(uncompiled_hook(self._end), always_call=True),
        ]
        compile_anew()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy watches the copy of the model."""
        return _hooks_on, self._given

    def remove(self) -> None:
        """Take all hooks off; what was measured last stays."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        compile_anew()

    def clear(self) -> None:
        """Forget what was measured."""
        self._seen.clear()
        self._num_calls = 0

    def check_term(self) -> None:
        """Refuse a term of a loss that would be a constant without anybody noticing."""
        kind = type(self._given[0]).__name__
        if not self._handles:
            raise GraphjouleError(
                f"This constraint was taken off {kind} by detach() or the end of its block, and sees no call of it any "
                "more; report(), violations() and gaps() still read the last one. Make a new constraint to train with."
            )
        if self._num_calls and not self._has_grad and torch.is_grad_enabled():
            raise GraphjouleError(
                f"The last call of {kind} was without gradients, as for a validation, so the term would have none. "
                "Call constraint() between the call that it should count and the validation; report() and violations() "
                "read any call."
            )

    def chain(self) -> list[Embedding]:
        """``X_0, X_1, ...`` of the last call; a last output of another width is class scores and left free."""
        seen = self._seen
        if self._has_failed:
            raise GraphjouleError(
                "The last call of the model ended in an error, so there are no energies; call it again."
            )
        if not seen:
            if self._num_calls:
                raise GraphjouleError(
                    "The last call of the model has no energies: no output of the layers is node features of its graph."
                )
            raise GraphjouleError("There are no energies yet: call the model first, then the constraint.")
        if len(seen) > 2 and seen[-1].channels != seen[-2].channels:
            seen = seen[:-1]
        if len(seen) < 2:
            raise GraphjouleError(
                f"There is no layer after {seen[0].name!r}: a constraint needs X_0 and at least one layer; "
                "name more with layers=[...]."
            )
        return seen

    def _begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_in_backward() or not self._graphs.claim():
            return
        self._seen.clear()
        self._num_calls += 1
        self._is_called, self._has_grad = True, torch.is_grad_enabled()
        self._error, self._has_failed = sys.exception(), False
        self._graphs.end(has_rows=True)
        self._graphs.begin(args, kwargs)

    def _end(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if self._graphs.is_ours:
            self._has_failed = sys.exception() is not self._error
            self._is_called, self._error = False, None
            self._last = None  # activations belong to autograd, not to a hook
            self._graphs.release()

    def _measure(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not self._graphs.is_ours or (self._is_default and self._graphs.is_inside_layer):
            return
        if self._num_calls and not self._is_called and not is_in_backward():
            if not self._is_shared:
                kind = type(self._given[0]).__name__
                warnings.warn(
                    f"{name!r} is called outside of {kind}, which was called before, as by another model that has it "
                    "too; the constraint holds the calls of the whole model. Make one for the part that is called.",
                    stacklevel=2,
                )
            self._is_shared = True
            return
        found = [
            each for each in self._graphs.measured(name, module, args, kwargs, output) if each.operator is not None
        ]
        if not found or found[0].origin is self._last:
            return
        given = self._input_like(found[0].origin, args)
        if is_in_backward():  # a checkpoint calls the layer again: the tensors that autograd keeps, and nothing else
            if name == self._first and self._has_input and given is not None:
                _ = [self._log_energy(replace(each, features=given)) for each in found]
            _ = [self._log_energy(each) for each in found]
            return
        if self._is_called and self._has_grad and not torch.is_grad_enabled() and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{name!r} runs without gradients, as inside `torch.utils.checkpoint(..., use_reentrant=True)`, so a "
                "constraint cannot move it; take `use_reentrant=False`.",
                stacklevel=2,
            )
        self._last = found[0].origin
        if self._seen and not self._is_called and name == self._first:
            self._seen.clear()  # the model itself is not called, as where a loop calls its `encode`
        self._first = name if not self._seen else self._first
        if not self._seen:
            self._has_input = given is not None
            if given is not None:
                self._add(f"input of {name}", [replace(each, features=given) for each in found])
        self._add(name, found)

    @staticmethod
    def _input_like(output: Tensor, args: Any) -> Tensor | None:
        """The first dense input of a layer that has the shape of its output."""
        plain = (x for x in args if isinstance(x, Tensor) and x.layout == torch.strided and x.is_floating_point())
        return next((x for x in plain if x.shape == output.shape and x is not output), None)

    def _add(self, name: str, found: Sequence[Measured]) -> None:
        """One embedding: of relations, the energies add up, also where a layer of its own is called for each."""
        logarithms, nil = zip(*(self._log_energy(each) for each in found), strict=True)
        layer = name.rpartition(".")[0]
        if len(found) == 1 and found[0].part and layer and self._seen and self._seen[-1].name == layer:
            last = self._seen.pop()
            logarithms, nil = (last.log_energy, *logarithms), (last.is_nil, *nil)
        name = layer if found[0].part and len(found) == 1 and layer else name
        x = found[0].features
        dtype = x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32
        channels = as_matrix(x, found[0].num_nodes).size(-1)
        if len(logarithms) == 1:
            self._seen.append(Embedding(name, logarithms[0], nil[0], channels, dtype))
        else:
            total = torch.logsumexp(torch.stack(logarithms), dim=0)
            self._seen.append(Embedding(name, total, torch.stack(nil).all(dim=0), channels, dtype))

    def _log_energy(self, measured: Measured) -> tuple[Tensor, Tensor]:
        operator = measured.operator
        assert operator is not None
        x = as_matrix(measured.features, measured.num_nodes)
        x = operator.nodes_of(x if x.dtype in (torch.float32, torch.float64) else x.float())
        graphs = self._smoothing.setdefault(operator, {})
        if x.dtype not in graphs:
            graphs[x.dtype] = SmoothingGraph.of(operator.graph, x.dtype, normalised=operator.is_scaled)
        return log_energy(x, graphs[x.dtype])


def _hooks_on(model: nn.Module, *given: Any) -> EmbeddingHooks | None:
    """Hooks on a copy of a model; None where that is not ready, because the constraint is a part of it."""
    return EmbeddingHooks(model, *given) if "_forward_hooks" in vars(model) else None


class EnergyConstraint(Term, nn.Module):
    r"""Dirichlet energy constrained learning, Proposition 1 of the paper, for any torch model.

    .. math::
        g_k^{low} = \log \frac{c_{\min} E(X_{k-1})}{E(X_k)} \le 0, \qquad
        g_k^{up} = \log \frac{E(X_k)}{c_{\max} E(X_0)} \le 0

    Gaps are logarithms, so a layer counts the same whatever the size of its features, at depth 2 and at 64. They are
    measured by hooks at every call of the model. "penalty" adds ``rho sum relu(g)^2``; "augmented_lagrangian" adds
    ``1 / (2 rho) sum(relu(lambda + rho g)^2 - lambda^2)`` and `update` moves ``lambda`` to ``relu(lambda + rho g)``.

    ``X_0`` is what goes into the first of the layers if that has the shape of what comes out, else what comes out. A
    last output of another width is class scores and left free, if there are two others.

    It is a module without parameters whose one buffer, ``multipliers``, is None before the first `update`. So where it
    is an attribute of a module, as in a ``LightningModule``, checkpoints have the multipliers; the model that it
    watches is not a part of it.

    Args:
        model: any module.
        graph: a graph for all calls, as a `Propagation` or an ``edge_index`` with both directions of each edge; by
            default each call is measured on the graph that it was called with.
        c_min: factor of the lower limit, in (0, 1).
        c_max: factor of the upper limit, at least `c_min`.
        layers: modules to hold, in the order of their calls: names, where ``*`` stands for anything between two dots,
            or types; by default those that `Trace` watches.
        method: a key of `METHODS`.
        rho: how hard a broken limit pushes back, and the step of the multipliers.
        num_nodes: number of nodes; by default an ``edge_index`` is completed by the rows of the model's input.
        operator: what the energy is that of, as for `Trace`; by default what each layer does. Attention counts as it is
            in the call, without a gradient of its own.
        every: epochs between two updates of the multipliers, where a trainer calls `updated`.

    Example:
        >>> from graphjoule.nn import GCN
        >>> edge_index, x = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.eye(3)
        >>> model = GCN(3, 4, 2, num_layers=5)
        >>> with EnergyConstraint(model, c_min=0.5, c_max=1.0, layers=["convs.*"]) as constraint:
        ...     task_loss = model(x, edge_index).square().mean()
        ...     (task_loss + constraint()).backward()
        ...     constraint.update()
        >>> list(constraint.violations())
        ['convs.1', 'convs.2', 'convs.3']
    """

    def __init__(
        self,
        model: nn.Module,
        graph: Propagation | Tensor | None = None,
        c_min: float = 0.2,
        c_max: float = 1.0,
        *,
        layers: Watch | Sequence[Watch] | None = None,
        method: str = "augmented_lagrangian",
        rho: float = 1.0,
        num_nodes: int | None = None,
        operator: str | None = None,
        every: int = 1,
    ) -> None:
        super().__init__()
        check_settings(c_min, c_max, method, rho)
        check_count("every", every)
        if not isinstance(model, nn.Module):
            raise GraphjouleError(f"The model is of type {type(model).__name__}; expected a torch.nn.Module.")
        self.c_min, self.c_max, self.rho, self.method = c_min, c_max, rho, METHODS[method]
        self.every = every
        self.multipliers: Tensor | None
        self.register_buffer("multipliers", None)
        self._latest: list[Tensor] = []  # the gaps of every `constraint()` for the next update
        self._hooks: EmbeddingHooks | None = EmbeddingHooks(model, graph, layers, num_nodes, operator)

    def forward(self) -> Tensor:
        """The term to add to the loss of the last forward pass: a scalar, or ``[runs]`` where outputs have a run axis.

        Raises:
            GraphjouleError: the model has not been called yet, a call without gradients came after the one that should
                count, or the hooks are off.
        """
        if self._hooks is not None:
            self._hooks.check_term()
        gaps = self.gaps()
        if self.method.updated is _unmoved:  # a penalty need never be updated
            self._latest.clear()
        self._latest.append(gaps.detach())
        return self.term(gaps, self._multipliers_like(gaps))

    def update(self) -> None:
        """Move the multipliers; call it after the optimiser's step.

        They move by the mean gaps of every `constraint()` since the last update: where gradients of several batches are
        accumulated for one step, all of them count.
        """
        if not self._latest:
            raise GraphjouleError(
                "There is nothing to update by: call constraint() for the loss first, and again before the next update."
            )
        gaps = torch.stack(self._latest).mean(dim=0)
        self.multipliers = self.method.updated(gaps, self._multipliers_like(gaps), self.rho)
        self._latest.clear()

    def gaps(self) -> Tensor:
        """All ``g`` of the last forward pass, differentiable, shape ``[..., 2, layers]``: lower limits, then upper."""
        layers = self._chain()
        energy = torch.stack([x.log_energy for x in layers], dim=-1)
        is_nil = torch.stack([x.is_nil for x in layers], dim=-1)
        lower = math.log(self.c_min) + energy[..., :-1] - energy[..., 1:]
        upper = energy[..., 1:] - energy[..., :1] - math.log(self.c_max)
        # Zero is at or below any limit: c_min * 0 <= E and 0 <= c_max * E.
        lower = torch.where(is_nil[..., :-1], _HELD, lower)
        upper = torch.where(is_nil[..., 1:], _HELD, upper)
        return torch.stack([lower, upper], dim=-2)

    def term(self, gaps: Tensor, multipliers: Tensor) -> Tensor:
        """The term of the loss for given gaps and multipliers, in the dtype of the features: a pure function."""
        return self.method.term(gaps, multipliers, self.rho).to(self._chain()[0].dtype)

    def initial(self) -> Tensor:
        """Multipliers of zero for every limit of the last forward pass."""
        return torch.zeros_like(self.gaps(), requires_grad=False)

    def value(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `Term.value`; the state are the multipliers, and what is seen are the gaps."""
        gaps = self.gaps()
        return self.term(gaps, state), gaps.detach()

    def updated(self, state: Tensor, seen: Tensor, epoch: Tensor) -> Tensor:
        """The multipliers after a step: moved in every `every`-th epoch."""
        return torch.where(epoch % self.every == 0, self.method.updated(seen, state, self.rho), state)

    def names(self) -> list[str]:
        """Names of ``X_0`` and of the layers that are held, as of the last call; "act", "act#2" as in a trace."""
        times: Counter[str] = Counter()
        names = []
        for x in self._chain():
            times[x.name] += 1
            names.append(x.name if times[x.name] == 1 else f"{x.name}#{times[x.name]}")
        return names

    @torch.no_grad()
    def violations(self) -> dict[str, Tensor]:
        """By which factor each layer misses its worse limit, less 1, as of the last forward pass; 0 within both."""
        worst = self.gaps().amax(dim=-2)
        return dict(zip(self.names()[1:], torch.relu(worst).expm1().unbind(dim=-1), strict=True))

    @torch.no_grad()
    def report(self, run: int | None = None) -> ConstraintReport:
        """Gaps and multipliers as of the last forward pass, of one run; waits for the device.

        Args:
            run: which run, where outputs have a run axis.
        """
        gaps = self.gaps()
        multipliers = self._multipliers_like(gaps)
        if (gaps.dim() == 3) != (run is not None):
            found = f"{len(gaps)} runs: say which with run=..." if gaps.dim() == 3 else "no run axis: leave run out"
            raise GraphjouleError(f"The model's outputs have {found}.")
        if run is not None:
            gaps, multipliers = gaps[run], multipliers[run]
        initial, *names = self.names()
        numbers = torch.cat([gaps, multipliers]).t().tolist()
        return ConstraintReport(initial, tuple(LayerState(n, *row) for n, row in zip(names, numbers, strict=True)))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Go on with the multipliers of a checkpoint, of whatever shape; with none where it was saved before them."""
        saved = state_dict.get(f"{prefix}multipliers")
        self.multipliers = None if saved is None else torch.empty_like(saved)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Multipliers stay in float64 where a module around them goes to ``bfloat16``: they add up over a training."""
        kept = self.multipliers
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if kept is not None and self.multipliers is not None:
            self.multipliers = kept.to(self.multipliers.device)
        return self

    def detach(self) -> None:
        """Take all hooks off the model; `report` and the like still read what was measured last, `forward` raises."""
        if self._hooks is not None:
            self._hooks.remove()

    def forget(self) -> None:
        """Drop what was measured last, with its part of autograd's graph."""
        if self._hooks is not None:
            self._hooks.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.detach()

    def _chain(self) -> list[Embedding]:
        if self._hooks is None:
            raise GraphjouleError(
                "This constraint is a copy of one that is a part of its own model, and watches nothing: make a new one "
                "on the copy of the model, and load the state of this one."
            )
        return self._hooks.chain()

    def _multipliers_like(self, gaps: Tensor) -> Tensor:
        if self.multipliers is None:
            return torch.zeros_like(gaps, requires_grad=False)
        if self.multipliers.shape != gaps.shape:
            raise GraphjouleError(
                f"The multipliers have shape {list(self.multipliers.shape)}, but the last forward pass has gaps of "
                f"shape {list(gaps.shape)}: the model must call the same layers every time."
            )
        return self.multipliers.to(gaps.device)
