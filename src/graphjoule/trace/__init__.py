"""Watch any model layer by layer."""

from graphjoule.trace.depth import reach, with_reach
from graphjoule.trace.trace import LayerCollapse, Trace
from graphjoule.trace.view import LayerTrace, RecordedTrace, TraceView, read_trace

__all__ = ["LayerCollapse", "LayerTrace", "RecordedTrace", "Trace", "TraceView", "reach", "read_trace", "with_reach"]
