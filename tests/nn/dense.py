"""Every model once more, from its paper's formula: dense matrices, no ops of the package but the dropout stream."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphjoule.nn import APPNP, EGNN, GCN, GCNII, SGC, DropEdgeGCN, GraphModel, JKNet, PairNormGCN, ResGCN, Wave
from graphjoule.ops import dropout

EPS = 1e-5  # torch's batch norm


def dense_scores(model: GraphModel, x: Tensor, p: Tensor, keys: Sequence[Tensor | None] | None = None) -> Tensor:
    """Scores of a model on a dense ``P``; with `keys`, dropout as in training."""
    keys = keys or [None] * (model.num_layers + 2)
    state = {name: value.detach() for name, value in model.state_dict().items()}
    return DENSE[type(model)](model, state, x, p, keys)


def egnn(model: EGNN, state: Mapping[str, Tensor], x: Tensor, p: Tensor, keys: Sequence[Tensor | None]) -> Tensor:
    first = model.convs[0]
    rate, c_min, beta = first.dropout, first.c_min, first.beta
    alpha = c_min - beta
    h = x0 = encoded(x, state, rate, keys[0], model.training)
    for k in range(model.num_layers):
        h = dropout(h, rate, keys[k + 1])
        z = ((1 - c_min) * p @ h + alpha * h + beta * x0) @ state[f"convs.{k}.weight"]
        if f"convs.{k}.norm.weight" in state:
            z = norm(z, state, f"convs.{k}.norm", model.training)
        h = ACTIVATIONS[type(model.convs[k].activation).__name__](z, state.get(f"convs.{k}.activation.shift"))
    return linear(dropout(h, model.output_dropout, keys[-1]), state, "head")


def gcn(model: GCN, state: Mapping[str, Tensor], x: Tensor, p: Tensor, keys: Sequence[Tensor | None]) -> Tensor:
    h = x
    for k in range(model.num_layers):
        h = convolved(dropout(h, model.convs[k].dropout, keys[k + 1]), state, p, f"convs.{k}", model.training)
        h = h.clamp(min=0) if k < model.num_layers - 1 else h
    return h


def pairnorm(model: PairNormGCN, state: Mapping[str, Tensor], x: Tensor, p: Tensor, keys: Sequence[Any]) -> Tensor:
    h = x
    for k in range(model.num_layers):
        h = convolved(dropout(h, model.convs[k].dropout, keys[k + 1]), state, p, f"convs.{k}", model.training)
        if k < model.num_layers - 1:
            h = h - h.mean(dim=0)
            mean_squared_norm = sum(row.dot(row) for row in h) / len(h)
            h = (model.convs[k].norm.scale * h / (mean_squared_norm + EPS).sqrt()).clamp(min=0)
    return h


def dropedge(model: DropEdgeGCN, state: Mapping[str, Tensor], x: Tensor, p: Tensor, keys: Sequence[Any]) -> Tensor:
    if keys[0] is not None:
        degree = 1 / p.diagonal()  # with the self-loop
        kept = dropped(torch.where(p != 0, 1.0, 0.0).to(p.dtype), model.edge_dropout, keys[0], undirected=True) != 0
        adjacency = p * (degree[:, None] * degree).sqrt() * kept
        adjacency.fill_diagonal_(1.0)
        scale = adjacency.sum(dim=1).rsqrt()
        p = scale[:, None] * adjacency * scale
    return gcn(model, state, x, p, keys)


def sgc(model: SGC, state: Mapping[str, Tensor], x: Tensor, p: Tensor, keys: Sequence[Tensor | None]) -> Tensor:
    scores = torch.linalg.matrix_power(p, model.num_layers) @ x @ state["linear.weight"].t()
    return norm(scores, state, "norm", model.training) if "norm.weight" in state else scores


def jknet(model: JKNet, state: Mapping[str, Tensor], x: Tensor, p: Tensor, keys: Sequence[Tensor | None]) -> Tensor:
    layers = [x]
    for k in range(model.num_layers):
        h = convolved(layers[-1], state, p, f"convs.{k}", model.training).clamp(min=0)
        layers.append(dropout(h, model.dropout, keys[k + 1]))
    return linear(torch.stack(layers[1:]).amax(dim=0), state, "head")


def appnp(model: APPNP, state: Mapping[str, Tensor], x: Tensor, p: Tensor, keys: Sequence[Tensor | None]) -> Tensor:
    h = linear(dropout(x, model.dropout, keys[0]), state, "first")
    if "norm.weight" in state:
        h = norm(h, state, "norm", model.training)
    z = z0 = linear(dropout(h.clamp(min=0), model.dropout, keys[-1]), state, "second")
    for k, conv in enumerate(model.convs):
        z = (1 - conv.alpha) * dropped(p, conv.edge_dropout, keys[k + 1]) @ z + conv.alpha * z0
    return z


def gcnii(model: GCNII, state: Mapping[str, Tensor], x: Tensor, p: Tensor, keys: Sequence[Tensor | None]) -> Tensor:
    h = x0 = linear(dropout(x, model.dropout, keys[0]), state, "encoder.first").clamp(min=0)
    identity = torch.eye(model.hidden_channels, dtype=x.dtype)
    for k in range(1, model.num_layers + 1):
        beta = torch.tensor(model.theta / k + 1, dtype=x.dtype).log()
        mixed = (1 - model.alpha) * p @ dropout(h, model.dropout, keys[k]) + model.alpha * x0
        z = mixed @ ((1 - beta) * identity + beta * state[f"convs.{k - 1}.weight"])
        if f"convs.{k - 1}.norm.weight" in state:
            z = norm(z, state, f"convs.{k - 1}.norm", model.training)
        h = z.clamp(min=0)
    return linear(dropout(h, model.dropout, keys[-1]), state, "head")


def resgcn(model: ResGCN, state: Mapping[str, Tensor], x: Tensor, p: Tensor, keys: Sequence[Tensor | None]) -> Tensor:
    h = linear(dropout(x, model.dropout, keys[0]), state, "encoder.first").clamp(min=0)
    for k in range(model.num_layers):
        dropped_h = dropout(h, model.dropout, keys[k + 1])
        h = h + convolved(dropped_h, state, p, f"convs.{k}", model.training).clamp(min=0)
    return linear(dropout(h, model.dropout, keys[-1]), state, "head")


def wave(model: Wave, state: Mapping[str, Tensor], x: Tensor, p: Tensor, keys: Sequence[Tensor | None]) -> Tensor:
    first, rate = model.convs[0], model.encoder.dropout
    x0 = encoded(x, state, rate, keys[0], model.training)
    bound = max(1 - 1 / p.diagonal().reciprocal().max(), 0)  # d / (1 + d) of the largest degree
    h = first.step * (2 * (2 - first.delta) / (max(2 * bound, 1e-3) + first.mu)) ** 0.5
    width = x0.size(1)
    speed = torch.arange(1, width + 1) / width if model.speeds == "spread" else torch.ones(width)
    h_k, v = x0, h / (2 - first.delta) * (x0 - p @ x0) * speed.to(x0)
    for _ in range(model.num_layers):
        v = (1 - first.delta) * v - h * ((h_k - p @ h_k) * speed.to(x0) + first.mu * (h_k - x0))
        h_k = h_k + h * v
    h_k = norm(h_k, state, "norm", model.training) if "norm.weight" in state else h_k
    h_k = dropout(h_k, model.output_dropout, keys[-1])
    for name in [name for name in ("hidden.0", "hidden.2") if f"{name}.weight" in state]:
        h_k = linear(h_k, state, name).clamp(min=0)
    return linear(h_k, state, "head")


def encoded(x: Tensor, state: Mapping[str, Tensor], rate: float, key: Tensor | None, training: bool) -> Tensor:
    """EGNN's encoder, of either kind."""
    if "encoder.second.weight" not in state:
        return linear(dropout(x, rate, key), state, "encoder.first").clamp(min=0)
    h = norm(linear(x, state, "encoder.first"), state, "encoder.norm", training).clamp(min=0)
    return linear(dropout(h, rate, key), state, "encoder.second")


def convolved(h: Tensor, state: Mapping[str, Tensor], p: Tensor, name: str, training: bool) -> Tensor:
    """GCN's layer without its activation."""
    h = p @ h @ state[f"{name}.linear.weight"].t() + state[f"{name}.bias"]
    return norm(h, state, f"{name}.norm", training) if f"{name}.norm.weight" in state else h


def dropped(p: Tensor, rate: float, key: Tensor | None, *, undirected: bool = False) -> Tensor:
    """Dropout of the stored entries of a symmetric matrix, numbered row by row, or both directions by the smaller."""
    entries = [tuple(entry) for entry in p.nonzero().tolist()]
    kept = dropout(torch.ones(len(entries), dtype=p.dtype), rate, key)
    out = torch.zeros_like(p)
    for number, (i, j) in enumerate(entries):
        out[i, j] = p[i, j] * kept[min(number, entries.index((j, i))) if undirected else number]
    return out


ACTIVATIONS = {
    "SReLU": lambda z, shift: torch.where(z > shift, z, shift.expand_as(z)),
    "ReLU": lambda z, shift: z.clamp(min=0),
    "Identity": lambda z, shift: z,
}


def linear(x: Tensor, state: Mapping[str, Tensor], name: str) -> Tensor:
    return x @ state[f"{name}.weight"].t() + state[f"{name}.bias"]


def norm(z: Tensor, state: Mapping[str, Tensor], name: str, training: bool) -> Tensor:
    """Batch norm: over these very nodes in training, else by the running statistics."""
    mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
    if training:
        mean, var = z.mean(dim=0), (z - z.mean(dim=0)).square().mean(dim=0)
    return (z - mean) / (var + EPS).sqrt() * state[f"{name}.weight"] + state[f"{name}.bias"]


DENSE: dict[type[GraphModel], Any] = {
    EGNN: egnn,
    GCN: gcn,
    PairNormGCN: pairnorm,
    DropEdgeGCN: dropedge,
    SGC: sgc,
    JKNet: jknet,
    APPNP: appnp,
    GCNII: gcnii,
    ResGCN: resgcn,
    Wave: wave,
}
