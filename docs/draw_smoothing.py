"""Draw the picture of the ideas page: a small graph after some layers, with and without a way back to its beginning.

Usage: python docs/draw_smoothing.py
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from graphjoule import Propagation, dirichlet_energy
from graphjoule.theory import Setting

FIGURE = Path(__file__).parent / "images" / "smoothing.png"
DEPTHS = (0, 2, 8, 32)
GROUPS, SIZE = 3, 6
BRIDGES = ((4, 7), (5, 14), (6, 15))  # the one edge between each two groups, where they stand closest
NETWORKS = {"plain: P X": Setting(c_min=0.0, beta=0.0), "EGNN: c_min = 0.2": Setting(c_min=0.2, beta=0.1)}


def groups_of_friends() -> tuple[Propagation, Tensor, Tensor]:
    """A graph of three groups, where its nodes stand, and one feature of every node that the group half decides."""
    turn = 2 * torch.pi * torch.arange(GROUPS * SIZE) / SIZE
    group = torch.arange(GROUPS).repeat_interleave(SIZE)
    centre = 2 * torch.pi * group / GROUPS + torch.pi / 2
    places = torch.stack([turn.cos() + 2.1 * centre.cos(), turn.sin() + 2.1 * centre.sin()], dim=1)
    within = [(g * SIZE + i, g * SIZE + (i + s) % SIZE) for g in range(GROUPS) for i in range(SIZE) for s in (1, 2)]
    edges = torch.tensor([*within, *BRIDGES]).t()
    noise = 0.8 * torch.randn(GROUPS * SIZE, generator=torch.Generator().manual_seed(3))
    graph = Propagation.from_edge_index(edges, symmetrize=True, dtype=torch.float64)
    return graph, places, (group - 1 + noise).double()[:, None]


def layers(x: Tensor, graph: Propagation, setting: Setting) -> list[Tensor]:
    """The features after every layer of a network whose weights are the identity, without activation."""
    kept = [x]
    for _ in range(max(DEPTHS)):
        kept.append((1 - setting.c_min) * (graph.matrix @ kept[-1]) + setting.alpha * kept[-1] + setting.beta * x)
    return kept


def draw_graph(axes: Axes, graph: Propagation, places: Tensor, colours: Tensor, scale: float) -> None:
    """Nodes and edges; purple to orange through white, which colour-blind eyes tell apart."""
    for i, j in zip(graph.row().tolist(), graph.col.tolist(), strict=True):
        if i < j:
            axes.plot(*places[[i, j]].t(), color="#999999", linewidth=0.9, zorder=1)
    style = {"cmap": "PuOr_r", "vmin": -scale, "vmax": scale, "s": 95, "edgecolors": "#333333", "linewidths": 0.8}
    axes.scatter(*places.t(), c=colours, zorder=2, **style)
    axes.set(aspect="equal")
    axes.margins(0.12)
    axes.axis("off")


def main() -> None:
    """Draw both networks at all depths; nodes have the same colour where they no longer differ for the energy."""
    graph, places, x = groups_of_friends()
    root = (1 + graph.degree).sqrt()
    scale = 0.75 * float((x[:, 0] / root).abs().max())
    figure = Figure(figsize=(8.4, 4.4), layout="constrained")
    for row, (name, setting) in zip(figure.subplots(len(NETWORKS), len(DEPTHS)), NETWORKS.items(), strict=True):
        kept = layers(x, graph, setting)
        for axes, depth in zip(row, DEPTHS, strict=True):
            draw_graph(axes, graph, places, kept[depth][:, 0] / root, scale)
            share = 100 * float(dirichlet_energy(kept[depth], graph) / dirichlet_energy(x, graph))
            axes.set_title(f"{depth} layers, {share:.3g} %" if depth else "the beginning", fontsize=9.5)
        row[0].text(-0.1, 0.5, name, rotation=90, va="center", ha="center", weight="bold", transform=row[0].transAxes)
    FigureCanvasAgg(figure)
    figure.savefig(FIGURE, dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    main()
