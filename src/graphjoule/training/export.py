"""A trained model as a program of its own, ONNX or `torch.export`: the graph goes in, predictions come out."""

from __future__ import annotations

import io
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from graphjoule.errors import GraphjouleError, choices
from graphjoule.files import write_bytes
from graphjoule.graph import Propagation, normalize_rows
from graphjoule.graph.propagation import LEAST_BOUND
from graphjoule.nn import GraphModel
from graphjoule.ops.backend import use_backend
from graphjoule.tasks import Task
from graphjoule.tasks.facts import TaskFacts
from graphjoule.tasks.objective import Objective
from graphjoule.tasks.pooling import Pooling
from graphjoule.training.build import OwnModel, not_finite

ProgramFormat = Literal["onnx", "torch"]
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_INPUTS = ("x", "edge_index", "edge_weight")
_ROUNDING = 1e-10  # of a sum over the edges at a node, in any order


def export_model(
    model: nn.Module,
    data: Task | TaskFacts,
    path: str | os.PathLike[str],
    *,
    format: ProgramFormat = "onnx",
    normalize_features: bool = False,
    about: Mapping[str, Any] = _NOTHING,
) -> None:
    """Write a trained model as one file that predicts without graphjoule; see `exported_program` for what it takes.

    Args:
        model: one of `FitResult.models`, or what `graphjoule.load` returns.
        data: what it was trained on; says how many features there are and what outputs mean.
        path: the file; its folder must exist. `torch.export.load` expects a name that ends in ``.pt2``.
        format: "onnx", which needs the packages of the extra ``export``, or "torch", for `torch.export.load`.
        normalize_features: whether features were normalised row by row, as ``data.normalize_features`` of the recipe
            says; the program then does so too.
        about: what the file says about itself, whatever JSON can hold: ``metadata_props`` of ONNX, or the extra file
            ``graphjoule.json``.

    Raises:
        GraphjouleError: a package is missing, or the model has something that cannot be a program of its own.
    """
    if format not in get_args(ProgramFormat):
        raise GraphjouleError(f"format is {format!r}; the choices are: {choices(get_args(ProgramFormat))}.")
    if format == "onnx":
        check_onnx()
    program = exported_program(model, data, normalize_features=normalize_features)
    write = _onnx_bytes if format == "onnx" else _torch_bytes
    write_bytes(path, write(program, json.dumps(dict(about)), type(model).__name__))


def check_onnx() -> None:
    """Refuse to write ONNX where its packages are not installed."""
    if missing := [name for name in ("onnx", "onnxscript") if find_spec(name) is None]:
        raise GraphjouleError(
            f"Writing ONNX needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            "pip install 'graphjoule[export]'."
        )


def exported_program(
    model: nn.Module, data: Task | TaskFacts, *, normalize_features: bool = False
) -> torch.export.ExportedProgram:
    """A model as a program of `torch.export` for graphs of any size.

    It takes ``x`` ``[num_nodes, in_channels]``, ``edge_index`` ``[2, num_edges]`` and ``edge_weight`` ``[num_edges]``,
    and gives the prediction of every node in float64, ``[num_nodes, out_channels]``: probabilities of classes, or
    numbers in the unit of the targets. The graph is normalised within, by the rules of `Propagation.from_edge_index`
    with weights: self-loops are dropped, duplicates add up. A program cannot refuse with a sentence, so an edge list
    that `Propagation` would refuse makes all predictions NaN: one with a direction missing, unless the model was
    trained on edges that keep theirs, a negative node, or a weight that is negative or not finite. A module that takes
    ``edge_index`` itself gets it as it is; for it self-loops, duplicates and weights of zero are refused in the same
    way. Of a task about whole graphs the program takes one graph and gives one row.

    Args:
        model: see `export_model`; it is left on its device, in evaluation mode.
        data: what it was trained on.
        normalize_features: see `export_model`.

    Example:
        >>> from graphjoule import load_task
        >>> from graphjoule.nn import SGC
        >>> task = load_task("digits")
        >>> program = exported_program(SGC(task.num_features, 8, task.out_channels, num_layers=2), task)
        >>> one_edge = torch.tensor([[0, 1], [1, 0]])
        >>> program.module()(torch.zeros(3, task.num_features), one_edge, torch.ones(2)).shape
        torch.Size([3, 10])
    """
    network = as_graph_model(model, data).eval()
    like = next(network.parameters())
    pooling = data.pooling.how if isinstance(data.pooling, Pooling) else data.pooling
    if data.num_edge_types > 1:
        raise GraphjouleError(
            f"The model was trained on {data.num_edge_types} types of edges with an operator each, and a program takes "
            "edges without types; use `format=hub`, or train with merged types."
        )
    predictor = _Predictor(network, data.objective, normalize_features, pooling, data.is_directed)
    # A path of five nodes: sizes 0 and 1 would be taken for constants.
    edges = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 4], [1, 0, 2, 1, 3, 2, 4, 3]], device=like.device)
    features = torch.zeros(5, data.num_features, dtype=like.dtype, device=like.device)
    example = features, edges, torch.ones(8, dtype=like.dtype, device=like.device)
    nodes, links = torch.export.Dim("num_nodes"), torch.export.Dim("num_edges")
    sizes = {"x": {0: nodes}, "edge_index": {1: links}, "edge_weight": {0: links}}
    with torch.no_grad(), use_backend("reference"), _quiet():
        try:
            program = torch.export.export(predictor, example, dynamic_shapes=sizes)
        except GraphjouleError:
            raise
        except Exception as error:  # whatever a module of the user's does that a program cannot
            raise GraphjouleError(
                f"{type(model).__name__} cannot be exported: {_first_line(error)} A program has no branches that "
                "depend on the graph and knows x, edge_index, edge_weight and graphjoule.ops.propagate alone."
            ) from error
    for step in program.graph.nodes:  # lines of files and their paths, which are nobody's business
        step.meta.pop("stack_trace", None)
    program.example_inputs = None  # would be written as a pickle
    return program


def as_graph_model(model: nn.Module, data: Task | TaskFacts) -> GraphModel:
    """A model of ours as it is, a module of the user's behind the same calls; one that cannot predict is refused."""
    if (name := not_finite(model)) is not None:
        raise GraphjouleError(
            f"The model's weights are not finite (the first is {name}), so its training blew up and it cannot predict; "
            "export another run."
        )
    return model if isinstance(model, GraphModel) else OwnModel(model, data.num_features, data.objective.out_channels)


class _Predictor(nn.Module):
    """From features and an edge list to what ``graphjoule predict`` says; of a task about graphs, about one graph."""

    def __init__(
        self,
        model: GraphModel,
        objective: Objective,
        normalize_features: bool,
        pooling: str | None = None,
        is_directed: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.objective = model, objective
        self.normalize_features, self.pooling, self.is_directed = normalize_features, pooling, is_directed

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        graph = EdgeList(edge_index, edge_weight, x, is_directed=self.is_directed)
        output = self.model(normalize_rows(x) if self.normalize_features else x, graph).double()
        if self.pooling is not None:
            output = output - self.model.output_center
            pooled = {"mean": output.mean, "sum": output.sum, "max": output.amax}[self.pooling](dim=0, keepdim=True)
            output = pooled + self.model.output_center
        return torch.where(graph.is_valid(), self.objective.prediction(output), torch.nan)


class EdgeList(Propagation):
    """The graph as an exported program has it: ``P`` by sums over the edges that go in, nothing sorted or merged.

    Args:
        edge_index: both directions of every edge, shape ``[2, num_edges]``.
        edge_weight: their weights, shape ``[num_edges]``.
        x: the features, which say how many nodes there are.
        is_directed: whether an edge counts from its first end to its second alone, see `DirectedPropagation`.
    """

    has_known_kernel = False
    is_directed: bool  # type: ignore[misc]
    _ends: tuple[Tensor, Tensor]  # the node that reads and the one that is read
    _diagonal: Tensor
    _edges: tuple[Tensor, Tensor, Tensor]  # as they are, their weights, and those without self-loops
    _places: dict[int, Tensor]  # row of every entry of a message, by the width of messages
    _is_read: list[bool]  # not empty where a module has looked at the edges

    def __init__(self, edge_index: Tensor, edge_weight: Tensor, x: Tensor, *, is_directed: bool = False) -> None:
        row, col = (edge_index[1], edge_index[0]) if is_directed else (edge_index[0], edge_index[1])
        given = edge_weight.double()
        weight = torch.where(row == col, 0.0, given)
        degree = x.new_zeros(x.size(0), dtype=torch.float64).scatter_add(0, row, weight)
        scale = (degree + 1).rsqrt()
        own = scale * scale
        for name, value in {
            "is_directed": is_directed,
            "value": (weight * (own[row] if is_directed else scale[row] * scale[col])).to(x.dtype)[:, None],
            "degree": degree,
            "_ends": (row, col),
            "_diagonal": own.to(x.dtype)[:, None],
            "_edges": (edge_index, given, weight),
            "_places": {},
            "_is_read": [],
        }.items():
            object.__setattr__(self, name, value)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.degree.size(0)

    @property
    def is_weighted(self) -> bool:
        """Yes: weights are an input."""
        return True

    @property
    def edge_index(self) -> Tensor:
        """The edges that went in, which from now on must be clean, see `is_valid`."""
        self._is_read.append(True)
        return self._edges[0]

    @property
    def edge_weight(self) -> Tensor:
        """Their weights."""
        return self._edges[1].to(self.dtype)

    @property
    def laplacian_bound(self) -> Tensor:  # type: ignore[override]
        """See `Propagation.laplacian_bound`; here it is a number of the graph that goes in."""
        degree = self.degree.amax(dim=0)  # ONNX asks for the axis
        return (2 * degree / (1 + degree)).clamp(min=LEAST_BOUND)

    def product(self, x: Tensor) -> Tensor:
        """``P X`` edge by edge.

        By `scatter_add` and not `index_add`: that becomes ONNX's ``ScatterND``, which onnxruntime adds up in several
        threads without a lock (wrong in about 1 of 10 calls on a graph like Cora, version 1.31); this becomes
        ``ScatterElements``, which it computes in order.
        """
        row, col = self._ends
        width = x.size(1)
        if width not in self._places:  # once for all layers: the time to export grows with the number of steps
            self._places[width] = row[:, None].expand(-1, width)
        return (self._diagonal * x).scatter_add(0, self._places[width], self.value * x.index_select(0, col))

    def is_valid(self) -> Tensor:
        """Whether `Propagation.from_edge_index` would take these edges, and as they are if a module has read them.

        A graph is undirected if ``A u = A^T u`` for a vector ``u`` that knows nothing of it (Freivalds, 1977).
        """
        edge_index, given, weight = self._edges
        row, col = edge_index[0], edge_index[1]
        zeros = torch.zeros_like(self.degree)
        u = 1.5 + torch.sin(43758.5 * torch.sin(torch.arange(1, self.num_nodes + 1, device=row.device).double()))
        there, back = zeros.scatter_add(0, row, weight * u[col]), zeros.scatter_add(0, col, weight * u[row])
        num_wrong = (
            (edge_index < 0).sum()
            + (~torch.isfinite(given) | (given < 0)).sum()
            + (0 if self.is_directed else ((there - back).abs() > _ROUNDING * (there + back)).sum())
        )
        if self._is_read:
            key = torch.sort(row * self.num_nodes + col).values
            num_twice = (torch.cat([key, row.new_full((1,), -1)]) == torch.cat([row.new_full((1,), -2), key])).sum()
            num_wrong = num_wrong + num_twice + (row == col).sum() + (given == 0).sum()
        return num_wrong == 0


def _torch_bytes(program: torch.export.ExportedProgram, about: str, name: str) -> bytes:
    buffer = io.BytesIO()
    with _quiet():
        torch.export.save(program, buffer, extra_files={"graphjoule.json": about})
    return buffer.getvalue()


def _onnx_bytes(program: torch.export.ExportedProgram, about: str, name: str) -> bytes:
    with _quiet():
        try:
            written = torch.onnx.export(
                program, dynamo=True, verbose=False, input_names=_INPUTS, output_names=["prediction"]
            )
        except torch.onnx.errors.OnnxExporterError as error:
            raise GraphjouleError(
                f"{name} cannot be written as ONNX: {_first_line(error)} Try `format=torch`."
            ) from error
    assert written is not None
    model = written.model_proto
    if any(node.op_type == "ScatterND" and _reduces(node) for node in model.graph.node):
        raise GraphjouleError(
            f"{name} adds up by index_add or index_put, which onnxruntime computes wrongly in several threads; use "
            "scatter_add in the module, or `format=torch`."
        )
    _keep_for_users(model.graph)
    model.metadata_props.add(key="graphjoule", value=about)
    content: bytes = model.SerializeToString()
    return content


def _keep_for_users(graph: Any) -> None:
    """Name the sizes of inputs and outputs, and drop the exporter's notes on every step."""
    x, edge_index, _ = graph.input
    sizes = [x.type.tensor_type.shape.dim[0].dim_param, edge_index.type.tensor_type.shape.dim[1].dim_param]
    names = dict(zip(sizes, ("num_nodes", "num_edges"), strict=True))
    for value in (*graph.input, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]
    for field in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        field.ClearField("metadata_props")
    graph.ClearField("value_info")


def _reduces(node: Any) -> bool:
    return any(attribute.name == "reduction" and attribute.s != b"none" for attribute in node.attribute)


def _first_line(error: Exception) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line if line.endswith(".") else f"{line}."


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the exporter says to its developers away from users: deprecations, packages that it does not need."""
    loggers = [logging.getLogger(name) for name in ("torch", "onnxscript", "onnx_ir")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
