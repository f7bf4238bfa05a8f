"""A pulse that travels: on a grid, the wave beside EGNN; and on a ring, what the last thousand of 10,000 layers do."""

from __future__ import annotations

from io import BytesIO

import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor

from graphjoule import Propagation
from graphjoule.nn import WaveConv
from graphjoule.ops import propagate, wave_stack
from graphjoule.report import Drawing, Line, Panel, draw

__all__ = ["farthest", "grid_picture", "on_a_ring", "ring_picture"]

_SIDE, _LAYERS, _FAINTEST = 51, (0, 6, 12, 18, 24), 1e-4
_C_MIN, _BETA = 0.15, 0.1  # EGNN's recipe on Cora
_DEEP, _LAST = 10_000, 1_000
_BLUE, _GREY = "#0072B2", "#888888"


def grid_picture() -> bytes:
    """A pulse on a grid after some layers: the wave, and EGNN with weights that are the identity."""
    rows = {"wave": _wave(), "EGNN": _diffusion()}
    empty = [Panel("", "", [Line("", [0.0])]) for _ in range(2 * len(_LAYERS))]
    figure = draw(Drawing("wave-pulse", empty, columns=len(_LAYERS), size=(2.0, 2.0)))
    for place, axes in enumerate(figure.axes):
        name, layer = list(rows)[place // len(_LAYERS)], _LAYERS[place % len(_LAYERS)]
        axes.clear()
        shown = rows[name][layer].abs().clamp(min=_FAINTEST).reshape(_SIDE, _SIDE)
        image = axes.imshow(shown.numpy(), cmap="cividis", norm=LogNorm(_FAINTEST, 1), interpolation="nearest")
        axes.set(xticks=[], yticks=[], title=f"{name}, layer {layer}")
    figure.colorbar(image, ax=figure.axes, label="size of a node's feature", shrink=0.8)
    return _png(figure)


def _grid() -> tuple[Propagation, Tensor]:
    """A square grid and a pulse in its middle, a few nodes wide: a single node would be waves of all lengths."""
    cell = torch.arange(_SIDE * _SIDE).view(_SIDE, _SIDE)
    edges = [torch.stack([a.flatten(), b.flatten()]) for a, b in ((cell[:, :-1], cell[:, 1:]), (cell[:-1], cell[1:]))]
    return _pulse(torch.cat(edges, dim=1), _SIDE * _SIDE // 2)


def _pulse(edges: Tensor, node: int) -> tuple[Propagation, Tensor]:
    graph = Propagation.from_edge_index(edges, symmetrize=True, dtype=torch.float64)
    pulse = torch.zeros(graph.num_nodes, 1, dtype=torch.float64)
    pulse[node] = 1
    for _ in range(4):
        pulse = propagate(pulse, graph)
    return graph, pulse / pulse.max()


def _wave() -> dict[int, Tensor]:
    graph, pulse = _grid()
    h = WaveConv(step=0.95, delta=0.0, mu=0.0).h(graph)
    return {layer: wave_stack(pulse, graph, layer, h=h, delta=0.0, mu=0.0) for layer in _LAYERS}


def _diffusion() -> dict[int, Tensor]:
    """Layers of EGNN's recipe on Cora."""
    graph, pulse = _grid()
    x, found = pulse, {0: pulse}
    for layer in range(1, max(_LAYERS) + 1):
        found[layer] = x = _egnn_layer(x, graph, pulse)
    return found


def _egnn_layer(x: Tensor, graph: Propagation, x0: Tensor) -> Tensor:
    """A layer of EGNN whose weight is the identity."""
    return propagate(x, graph, a=1 - _C_MIN, alpha=_C_MIN - _BETA) + _BETA * x0


def ring_picture(num_layers: int = _DEEP, last: int = _LAST) -> bytes:
    """How far a pulse on a ring has come after every layer, and where it is in the last ones, in colour.

    Args:
        num_layers: of the wave, and the hops to the node opposite to the pulse.
        last: how many of the layers the second panel shows.
    """
    fronts, seen = on_a_ring(num_layers, last)
    lines = [Line("wave", fronts["wave"], None, _BLUE), Line("EGNN", fronts["EGNN"], None, _GREY, ":")]
    far = Panel("how far it has come", "hops", lines, x_label="layers", x_scale="log")
    begin = num_layers - last
    empty = Panel(f"the last {last:,} layers of the wave", "hops", [Line("", [0.0])], x_label="layer", is_log=False)
    figure = draw(
        Drawing("wave-ten-thousand", [far, empty], f"A pulse on a ring, {num_layers:,} layers", size=(5.2, 3.6))
    )
    axes = figure.axes[1]
    axes.clear()
    corners = (begin, num_layers, begin, num_layers)
    image = axes.imshow(seen.T.numpy(), "cividis", extent=corners, origin="lower", aspect="auto", vmin=0, vmax=1)
    axes.set(title=empty.title, xlabel="layer", ylabel="hops")
    figure.colorbar(image, ax=axes, label="size of a node's feature")
    return _png(figure)


def on_a_ring(num_layers: int, last: int, pixels: int = 200) -> tuple[dict[str, list[float]], Tensor]:
    """A pulse on a ring of ``2 num_layers`` nodes, by the wave and by EGNN, which has the same at any depth.

    Returns:
        For both, the farthest hop that a feature above 1e-4 has after every layer; and the wave's largest feature in
        each of `pixels` x `pixels` squares of the last layers (first axis) and hops (second axis).
    """
    node = torch.arange(2 * num_layers)
    graph, pulse = _pulse(torch.stack([node, node.roll(-1)]), 0)
    side = last // pixels
    fronts: dict[str, list[float]] = {"wave": [], "EGNN": []}
    seen = torch.zeros(pixels, pixels, dtype=torch.float64)

    def show(layer: int, x: Tensor, _: object) -> None:
        half = x[: num_layers + 1, 0].abs()
        fronts["wave"].append(farthest(half))
        if (row := (layer - (num_layers - last)) // side) >= 0:
            there = half[-pixels * side :].view(pixels, side).amax(dim=1)
            seen[row] = torch.maximum(seen[row], there)

    h = WaveConv(step=1 - 0.1 / num_layers, delta=0.0, mu=0.0).h(graph)
    wave_stack(pulse, graph, num_layers, h=h, delta=0.0, mu=0.0, show=show)
    near = torch.arange(1_000)  # EGNN gets nowhere near the end of a smaller ring
    graph, x0 = _pulse(torch.stack([near, near.roll(-1)]), 0)
    x = x0
    for _ in range(num_layers):
        x = _egnn_layer(x, graph, x0)
        fronts["EGNN"].append(farthest(x[:501, 0].abs()))
    return fronts, seen


def farthest(sizes: Tensor) -> float:
    """The last place with more than 1e-4."""
    return float((sizes > _FAINTEST).nonzero()[-1])


def _png(figure: Figure) -> bytes:
    file = BytesIO()
    figure.savefig(file, format="png", dpi=130, metadata={"Software": None})
    return file.getvalue()
