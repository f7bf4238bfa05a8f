"""A network of the zoo under the instruments: traced as its recipe would feed it, judged, and held to its limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from graphjoule.graph.features import normalize_rows
from graphjoule.measures import DEFAULT_MEASURES, Reach
from graphjoule.nn.base import evaluating
from graphjoule.tasks.task import ModelInput
from graphjoule.theory import LAWS, StepLaw
from graphjoule.trace import LayerTrace, RecordedTrace, Trace, TraceView, reach, with_reach
from graphjoule.trace.diagnosis import Diagnosis, diagnose
from graphjoule.trace.limits import Limits, limits
from graphjoule.training.build import inner_network
from graphjoule.training.recipe import Recipe
from graphjoule.training.trainer import resolve_device

_FIRST_LAYER = "convs.0"  # every model of the zoo keeps its graph layers in the list `convs`


@dataclass(frozen=True)
class Examination:
    """What the instruments say about one network.

    Attributes:
        trace: the rows of one pass in evaluation mode.
        diagnosis: the trace in words; None if it has fewer than two rows to compare.
        limits: the limits of every graph layer; None where the recipe has none or no energy was recorded.
        reaches: the reach of some graph layers by name, where it was asked for.
        law: the closed law of reach; None where the network has none.
        expected_reach: what it says of the last layer on this graph, where reaches were asked for.
    """

    trace: TraceView
    diagnosis: Diagnosis | None
    limits: Limits | None
    reaches: Mapping[str, Reach] = field(default_factory=dict)
    law: StepLaw | None = None
    expected_reach: Reach | None = None

    def reach_words(self) -> list[str]:
        """How far the last graph layer sees, and how far the closed law says; empty where it was not measured."""
        if not self.reaches:
            return []
        name, last = list(self.reaches.items())[-1]
        law = f"By the closed law, {self.law}. On this graph: {self.expected_reach}."
        return [f"Reach of {name}: {last}.", *([] if self.law is None else [law])]

    def fields(self) -> dict[str, Any]:
        """Everything as a dict that JSON can hold."""
        rows = [{"name": row.name, "channels": row.channels, **row.numbers()} for row in self.trace.layers]
        found = {
            "layers": rows,
            "diagnosis": None if self.diagnosis is None else self.diagnosis.fields(),
            "limits": None if self.limits is None else self.limits.fields(),
        }
        if self.reaches:
            found["reach"] = {name: one.fields() for name, one in self.reaches.items()}
            found["expected_reach"] = None if self.expected_reach is None else self.expected_reach.fields()
        return found


def examine(
    model: nn.Module,
    recipe: Recipe,
    inputs: ModelInput,
    *,
    measures: Sequence[str] = DEFAULT_MEASURES,
    watch: Sequence[str] | None = None,
    gradients: bool = False,
    reaches: bool = False,
    device: str | torch.device = "auto",
) -> Examination:
    """Trace one pass of a network in evaluation mode and judge it.

    Args:
        model: the network; it is moved to the device, its mode is as before afterwards. Of a regression the network
            within, before its numbers get the unit of the targets.
        recipe: says whether rows of features are normalised, and holds ``c_min`` and ``c_max`` where there are any.
        inputs: the graph and the features.
        measures: what to record.
        watch: names of modules to record, with ``*`` as a wildcard; by default see `Trace`.
        gradients: record gradients too, of a random sum of the outputs: how far a gradient reaches does not depend on
            the targets, so none is read.
        reaches: measure how far some graph layers reach, and what the closed law says of it.
        device: "auto", "cpu" or "cuda".
    """
    where = resolve_device(device)
    inputs, model = inputs.to(where), inner_network(model.to(where))
    x = normalize_rows(inputs.features) if recipe.data.normalize_features else inputs.features
    if gradients:
        trace: TraceView = _with_gradients(model, x, inputs, measures, watch)
    else:
        trace = Trace.of(model, inputs.graph, (x, inputs.graph), measures, watch)
    layers = graph_layers(trace)
    settings = recipe.model
    law = StepLaw.of(settings.name, settings.options, settings.num_layers) if settings.name in LAWS else None
    measured: dict[str, Reach] = {}
    expected = None
    if reaches:
        first = layers.layers[:1]
        source = first[0].name if first and first[0].name != _FIRST_LAYER else None  # X_0, where it has a row
        measured = reach(model, inputs.graph, (x, inputs.graph), source=source)
        expected = None if law is None else law.reach(inputs.graph)
        trace = with_reach(trace, measured)
        layers = graph_layers(trace)
    rows: list[LayerTrace] = layers.layers or trace.layers
    diagnosis = diagnose(RecordedTrace(rows, trace.measures)) if len(rows) > 1 else None
    options = recipe.model.options
    is_known = {"c_min", "c_max"} <= options.keys() and 0 < options["c_min"] < 1
    has_initial = bool(layers.layers) and layers.layers[0].name != _FIRST_LAYER
    has_limits = is_known and has_initial and "energy" in trace.measures
    held = limits(layers, options["c_min"], options["c_max"]) if has_limits else None
    return Examination(trace, diagnosis, held, measured, law, expected)


def graph_layers(trace: TraceView) -> RecordedTrace:
    """The rows from ``X_0`` to the last graph layer; ``X_0`` is the row before the first, where it has its width."""
    rows = trace.layers
    at = next((k for k, row in enumerate(rows) if row.name == _FIRST_LAYER), None)
    if at is None:
        return RecordedTrace([], trace.measures)
    kept = trace.select("convs.*").layers
    before = rows[at - 1 : at] if at > 0 and rows[at - 1].channels == rows[at].channels else []
    return RecordedTrace([*before, *kept], trace.measures)


def _with_gradients(
    model: nn.Module, x: Any, inputs: ModelInput, measures: Sequence[str], watch: Sequence[str] | None
) -> Trace:
    try:
        with evaluating(model), Trace(model, inputs.graph, measures, watch, gradients=True) as trace:
            scores: Tensor = model(x, inputs.graph)
            drawn = torch.randn(scores.shape, generator=torch.Generator().manual_seed(0)) / len(scores)
            scores.backward(drawn.to(scores))  # type: ignore[no-untyped-call]
    finally:
        model.zero_grad()
    return trace
