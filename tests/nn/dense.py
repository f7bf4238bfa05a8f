"""Every model once more, from its paper's formula: dense matrices, no ops of the package but the dropout stream."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphjoule.nn import EGNN, GCN, GraphModel
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
    if "encoder.second.weight" in state:
        h = norm(linear(x, state, "encoder.first"), state, "encoder.norm", model.training).clamp(min=0)
        x0 = linear(dropout(h, rate, keys[0]), state, "encoder.second")
    else:
        x0 = linear(dropout(x, rate, keys[0]), state, "encoder.first").clamp(min=0)
    h = x0
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
        h = dropout(h, model.convs[k].dropout, keys[k + 1])
        h = p @ h @ state[f"convs.{k}.linear.weight"].t() + state[f"convs.{k}.bias"]
        if f"convs.{k}.norm.weight" in state:
            h = norm(h, state, f"convs.{k}.norm", model.training)
        if k < model.num_layers - 1:
            h = h.clamp(min=0)
    return h


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


DENSE: dict[type[GraphModel], Any] = {EGNN: egnn, GCN: gcn}
