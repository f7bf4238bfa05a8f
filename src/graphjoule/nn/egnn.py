"""EGNN, the energetic graph neural network (Zhou et al., NeurIPS 2021)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.csr import full_precision
from graphjoule.graph.features import Features
from graphjoule.nn.base import (
    BatchNorm,
    Encoder,
    FeatureLinear,
    GraphModel,
    check_choice,
    check_unit_interval,
    is_stock,
    onlookers,
    stock,
    whole_weight,
)
from graphjoule.nn.table import NonNegative, PartOfCMin, Positive, Probability, UnitInterval
from graphjoule.ops import (
    dropout,
    egnn_norm_stack,
    egnn_stack,
    fuses_norms,
    limit_spectral_norm,
    may_overwrite,
    residual_mix,
    srelu,
)


@stock
class SReLU(nn.Module):
    """Shifted ReLU: ``srelu(z) = max(b, z)`` with a trainable shift ``b`` per channel.

    The lower ``b``, the closer to the identity; ``b = 0`` is ReLU.

    Args:
        channels: number of channels.
        init: initial value of every shift.
    """

    def __init__(self, channels: int, init: float = -10.0) -> None:
        super().__init__()
        self.init = init
        self.shift = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set every shift to its initial value."""
        nn.init.constant_(self.shift, self.init)

    def forward(self, z: Tensor) -> Tensor:
        """``max(b, z)``, the shape of `z`."""
        return srelu(z, self.shift)


class ResidualConv(nn.Module):
    """A layer ``act([(1 - c_min) P X' + alpha X' + beta X_0] W)``, as `egnn_stack` makes many of them.

    Attributes:
        c_min: strength of all residual connections together.
        beta: the part of it that goes to ``X_0``.
        dropout: dropout probability of the input.
        norm: the batch norm before the activation, if there is one.
    """

    c_min: float
    beta: float
    dropout: float
    norm: nn.BatchNorm1d | None

    @abstractmethod
    def effective_weight(self) -> Tensor:
        """``W``, shape ``[channels, channels]``."""

    @abstractmethod
    def shift(self) -> Tensor | None:
        """The shifts ``b`` of the activation ``max(b, z)``, shape ``[channels]``; None for the identity."""

    def stack_coefficients(self, *, or_seen: bool = False) -> tuple[float, float, float] | None:
        """`c_min`, `beta` and `dropout` if an `egnn_stack` with them computes this layer as it is now, else None.

        A hook wants to see the layer or its gradient, and a coefficient that is a tensor may have a gradient of its
        own. Of the norms of all layers `norms_for_stack` decides.

        Args:
            or_seen: see `is_stock`.
        """
        if not is_stock(self, or_seen=or_seen):
            return None
        c_min, beta, p = self.c_min, self.beta, self.dropout
        return (c_min, beta, p) if all(isinstance(number, float | int) for number in (c_min, beta, p)) else None


def norms_for_stack(layers: Sequence[ResidualConv]) -> list[nn.BatchNorm1d] | None:
    """The batch norms of all layers if `egnn_norm_stack` computes what they do now, else None.

    They must be as they were written and all alike.
    """
    norms = [layer.norm for layer in layers if layer.norm is not None and is_stock(layer.norm)]
    alike = {(norm.eps, norm.momentum, norm.training, norm.affine, norm.track_running_stats) for norm in norms}
    if len(norms) != len(layers) or len(alike) != 1:
        return None
    _, momentum, _, *both = alike.pop()
    return norms if all(both) and momentum is not None else None


@stock
class EGNNConv(ResidualConv):
    """One layer: ``X_k = act([(1 - c_min) P X' + alpha X' + beta X_0] W)`` with ``X' = dropout(X_{k-1})``.

    ``alpha = c_min - beta``; ``act`` is SReLU, ReLU or the identity, after a batch norm if asked for.

    Args:
        channels: width of the layer.
        c_min: strength of all residual connections together, the lower energy limit.
        beta: the part of `c_min` that goes to the encoder's output ``X_0``.
        scale: ``W`` starts as ``scale * I`` and is kept near it: ``sqrt(c_max)`` in the first layer, 1 in the others.
        weight_init: "orthogonal" as above, or "glorot" with a penalty on ``||W||_F`` (the paper's ablation).
        activation: "srelu", "relu" or "linear".
        srelu_init: initial shift of SReLU.
        dropout: dropout probability of the input ``X_{k-1}``.
        batch_norm: put a batch norm between the product and the activation.
    """

    def __init__(
        self,
        channels: int,
        *,
        c_min: float = 0.2,
        beta: float = 0.1,
        scale: float = 1.0,
        weight_init: Literal["orthogonal", "glorot"] = "orthogonal",
        activation: Literal["srelu", "relu", "linear"] = "srelu",
        srelu_init: float = -10.0,
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        check_unit_interval("c_min", c_min, closed=True)
        check_unit_interval("dropout", dropout, closed=False)
        check_choice("weight_init", weight_init, ("orthogonal", "glorot"))
        if not 0 <= beta <= c_min:
            raise GraphjouleError(f"beta is {beta}; it must be between 0 and c_min, which is {c_min}.")
        self.c_min, self.beta, self.scale = c_min, beta, scale
        self.weight_init, self.dropout = weight_init, dropout
        self.weight = nn.Parameter(torch.empty(channels, channels))
        self.norm = BatchNorm(channels) if batch_norm else None
        activations: dict[str, Callable[[], nn.Module]] = {
            "srelu": partial(SReLU, channels, srelu_init),
            "relu": nn.ReLU,
            "linear": nn.Identity,
        }
        check_choice("activation", activation, activations)
        self.activation: nn.Module = activations[activation]()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial weight; set the shifts and the batch norm to their initial values."""
        if self.weight_init == "orthogonal":
            with torch.no_grad():
                self.weight.copy_(self.scale * torch.eye(len(self.weight)))
        else:
            nn.init.xavier_uniform_(self.weight)
        for module in (self.norm, self.activation):
            if isinstance(module, SReLU | nn.BatchNorm1d):
                module.reset_parameters()

    def forward(self, x: Tensor, x0: Tensor, graph: Propagation, key: Tensor | None = None) -> Tensor:
        """The layer's output, shape ``[num_nodes, channels]``; `key` turns dropout on."""
        z = residual_mix(dropout(x, self.dropout, key), x0, graph, self.c_min, self.beta) @ self.effective_weight()
        norm, act = self.norm, self.activation
        if norm is not None:
            z = norm(z)
        is_own = norm is None or is_stock(norm)  # nobody else holds it
        if is_own and type(act) is SReLU and is_stock(act) and may_overwrite(z, act.shift):
            return z.clamp_min_(act.shift)
        out: Tensor = act(z)
        return out

    def effective_weight(self) -> Tensor:
        """``W``."""
        return self.weight

    def shift(self) -> Tensor | None:
        """The shifts ``b`` of ``max(b, z)``: trainable, zero for ReLU, None for the identity."""
        if isinstance(self.activation, SReLU):
            return self.activation.shift
        return torch.zeros_like(self.weight[0]) if isinstance(self.activation, nn.ReLU) else None

    def stack_coefficients(self, *, or_seen: bool = False) -> tuple[float, float, float] | None:
        """See `ResidualConv`; None too for an activation that a stack does not know."""
        return super().stack_coefficients(or_seen=or_seen) if is_stock(self.activation) else None


class ResidualModel(GraphModel):
    """What EGNN and GCNII share: an encoder, layers that mix in its output, a head; all layers in one op if possible.

    A subclass sets `encoder`, `convs`, `head` and `output_dropout`.
    """

    encoder: Encoder
    convs: nn.ModuleList
    head: FeatureLinear
    output_dropout: float
    activations: Literal["float32", "bfloat16"] = "float32"
    """In which form fused layers with batch norms keep activations on a GPU; sums are float32 in any case."""

    def _forward(self, x: Features, graph: Propagation, keys: Sequence[Tensor | None]) -> Tensor:
        """Encoder, layers, head."""
        h = h0 = self.encoder(x, keys[0])
        drops = [key for key in keys[1:-1] if key is not None]
        show = None if drops else onlookers(self.convs, graph)  # a stack may drop an output where it makes it
        stack = self._stack(or_seen=show is not None, or_norms=fuses_norms(h0, graph))
        with full_precision(h0):  # the fused stack has no kernels in half precision, and traced or not it is the same
            if stack is None:
                for conv, key in zip(self.convs, keys[1:-1], strict=True):
                    h = conv(h, h0, graph, key)
            else:  # the same in one op, which fuses the arithmetic and keeps one activation per layer
                stacked = torch.stack(drops) if drops else None
                h = stack(h0, graph, keys=stacked, segment=self._segment(), show=show)
        scores: Tensor = self.head(h, self.output_dropout, keys[-1])
        return scores

    def _stack(self, *, or_seen: bool = False, or_norms: bool = False) -> Callable[..., Tensor] | None:
        """The layers as they are now in one op; None if they must be called one by one.

        Args:
            or_seen: see `is_stock`.
            or_norms: whether there is such an op for layers with batch norms.
        """
        found = {
            conv.stack_coefficients(or_seen=or_seen) if isinstance(conv, ResidualConv) else None for conv in self.convs
        }
        coefficients = found.pop() if len(found) == 1 else None
        if coefficients is None:
            return None
        convs, width = self.layers(), self.hidden_channels
        norms = norms_for_stack(convs) if or_norms else None
        if norms is None and any(conv.norm is not None for conv in convs):
            return None
        weights = [conv.effective_weight() for conv in convs]
        shifts = [shift for conv in convs if (shift := conv.shift()) is not None]
        dtype = weights[0].dtype
        if (
            len(shifts) not in (0, len(convs))
            or any(weight.shape != (width, width) or weight.dtype != dtype for weight in weights)
            or any(shift.shape != (width,) or shift.dtype != dtype for shift in shifts)
            or any(norm.weight.shape != (width,) or norm.weight.dtype != dtype for norm in norms or ())
        ):
            return None
        c_min, beta, p = coefficients
        of_all = torch.stack(shifts) if shifts else None
        settings: dict[str, Any] = {
            "weights": torch.stack(weights),
            "shifts": of_all,
            "c_min": c_min,
            "beta": beta,
            "p": p,
        }
        activations = torch.float32 if or_seen else getattr(torch, self.activations)  # who looks on sees them all
        if norms is None:
            return partial(egnn_stack, activations=activations, **settings)
        return partial(_norm_stack, norms=norms, activations=activations, **settings)

    def layers(self) -> list[ResidualConv]:
        """The graph layers, with their type."""
        return list(self.convs)  # type: ignore[arg-type]

    def kept_activations(self, *, is_fused: bool) -> int:
        """The fused stack keeps one per layer, or one per segment and one per layer of a segment, and some buffers.

        Of wide layers a GPU keeps two.
        """
        if not is_fused or self._stack() is None:
            return super().kept_activations(is_fused=is_fused)
        segment, each = self._segment() or self.num_layers, 2 if self.hidden_channels > 64 else 1
        return -(-self.num_layers // segment) + each * segment + 16


def _norm_stack(
    x0: Tensor,
    graph: Propagation,
    *,
    norms: Sequence[nn.BatchNorm1d],
    weights: Tensor,
    **settings: Any,
) -> Tensor:
    """All layers with their batch norms, whose running statistics move as torch moves them."""
    gammas, betas = torch.stack([norm.weight for norm in norms]), torch.stack([norm.bias for norm in norms])
    moments = [torch.stack([norm.running_mean, norm.running_var]) for norm in norms]  # type: ignore[list-item]
    running, eps = torch.stack(moments), norms[0].eps
    if not norms[0].training:  # an affine map that is known beforehand is part of the weights
        gammas = gammas * (running[:, 1] + eps).rsqrt()
        weights, betas = weights * gammas[:, None], betas - running[:, 0] * gammas
        return egnn_norm_stack(x0, graph, weights, gammas=None, betas=betas, **settings)[0]
    out, statistics = egnn_norm_stack(x0, graph, weights, gammas=gammas, betas=betas, eps=eps, **settings)
    momentum: float = norms[0].momentum  # type: ignore[assignment]
    for norm, (mean, variance) in zip(norms, (1 - momentum) * running + momentum * statistics, strict=True):
        norm.running_mean.copy_(mean)  # type: ignore[union-attr]
        norm.running_var.copy_(variance)  # type: ignore[union-attr]
        norm.num_batches_tracked.add_(1)  # type: ignore[union-attr]
    return out


class EGNN(ResidualModel):
    """The energetic graph neural network: deep because each layer keeps its Dirichlet energy within limits.

    ``X_0 = f(X)``; `num_layers` times `EGNNConv`; a linear head. The loss has the term
    ``gamma * sum_k ||W_k - W_k_init||_F`` (`penalty`), which keeps the weights near orthogonal and with them the energy
    under ``c_max E(X_0)``; the residual connections keep it above.

    Args:
        in_channels: number of input features.
        hidden_channels: width of all layers.
        out_channels: number of classes.
        num_layers: number of graph layers.
        c_min: lower energy limit, in [0, 1]: strength of the residual connections.
        c_max: upper energy limit: the first weight starts as ``sqrt(c_max) I``.
        beta: the part of `c_min` that goes to ``X_0``; the rest, alpha, goes to the previous layer.
        gamma: factor of the weight penalty.
        activation: "srelu", or the paper's alternatives "relu" and "linear".
        srelu_init: initial shift ``b``.
        weight_init: "orthogonal", or "glorot" with a Frobenius penalty (the paper's ablation).
        dropout: dropout before the encoder and every layer.
        output_dropout: dropout before the head.
        encoder: "linear" is dropout, linear, ReLU; "mlp" is linear, batch norm, ReLU, dropout, linear.
        batch_norm: batch norm between each layer's product and its activation.
        freeze_last_shift: never train the last layer's shift and batch norm, as the released code does by accident.
        certified: hold every weight to the spectral norm it starts with, ``sqrt(c_max)`` in the first layer and 1 in
            the others, after every step of `graphjoule.fit`; in a loop of your own call `hold_weights` there. What
            that proves of every layer `graphjoule.theory.certify` says.
        activations: in which form fused layers with batch norms keep activations, "float32" or "bfloat16"; they are
            fused on a Hopper GPU. With the latter half the memory moves and results agree to two digits; sums are
            float32 in any case. All other layers keep float32.

    Example:
        >>> model = EGNN(16, 64, 7, num_layers=64, c_min=0.15)
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> model(torch.randn(3, 16), edge_index).shape
        torch.Size([3, 7])
    """

    parameter_group_names: ClassVar[tuple[str, ...]] = ("conv", "dense", "shift")
    needs_undirected: ClassVar[bool] = True

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        c_min: UnitInterval = 0.2,
        c_max: Positive = 1.0,
        beta: PartOfCMin = 0.1,
        gamma: NonNegative = 20.0,
        activation: Literal["srelu", "relu", "linear"] = "srelu",
        srelu_init: float = -10.0,
        weight_init: Literal["orthogonal", "glorot"] = "orthogonal",
        dropout: Probability = 0.6,
        output_dropout: Probability = 0.6,
        encoder: Literal["linear", "mlp"] = "linear",
        batch_norm: bool = False,
        freeze_last_shift: bool = False,
        certified: bool = False,
        activations: Literal["float32", "bfloat16"] = "float32",
    ) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, num_layers)
        check_choice("activations", activations, ("float32", "bfloat16"))
        check_unit_interval("output_dropout", output_dropout, closed=False)
        if not c_max > 0:
            raise GraphjouleError(f"c_max is {c_max}; it must be positive.")
        if not gamma >= 0:
            raise GraphjouleError(f"gamma is {gamma}; it must not be negative.")
        if certified and batch_norm:
            raise GraphjouleError(
                "certified is True and batch_norm is True: a batch norm rescales every channel, so weights of any norm "
                "limit nothing; choose one of the two."
            )
        self.c_max, self.gamma, self.weight_init = c_max, gamma, weight_init
        self.output_dropout, self.freeze_last_shift = output_dropout, freeze_last_shift
        self.certified, self.activations = certified, activations
        self.encoder = Encoder(in_channels, hidden_channels, kind=encoder, dropout=dropout)
        self.convs = nn.ModuleList(
            EGNNConv(
                hidden_channels,
                c_min=c_min,
                beta=beta,
                scale=c_max**0.5 if k == 0 else 1.0,
                weight_init=weight_init,
                activation=activation,
                srelu_init=srelu_init,
                dropout=dropout,
                batch_norm=batch_norm,
            )
            for k in range(num_layers)
        )
        self.head = FeatureLinear(hidden_channels, out_channels)

    def penalty(self) -> Tensor:
        """``gamma * sum_k ||W_k - W_k_init||_F``; its gradient at the initial point is zero, not 0/0.

        ``W_1_init = sqrt(c_max) I`` and ``W_k_init = I``; with Glorot initialisation it is ``gamma * sum_k ||W_k||_F``.
        """
        offset = torch.stack([whole_weight(conv.effective_weight()) for conv in self.layers()])
        if self.weight_init == "orthogonal":
            identity = torch.eye(self.hidden_channels, dtype=offset.dtype, device=offset.device)
            first = offset[:1] - self.c_max**0.5 * identity
            offset = torch.cat([first, offset[1:] - identity])
        distance: Tensor = torch.linalg.vector_norm(offset, dim=(1, 2))
        return self.gamma * distance.sum()

    def spectral_limits(self) -> dict[str, float]:
        """If `certified`, ``sqrt(c_max)`` for the first weight and 1 for every other."""
        return {
            f"convs.{k}.weight": self.c_max**0.5 if k == 0 else 1.0 for k in range(self.num_layers) if self.certified
        }

    @torch.no_grad()
    def hold_weights(self) -> None:
        """Put the weights back within their limits, in place: for after each step of an optimiser of your own.

        Example:
            >>> model = EGNN(4, 8, 2, num_layers=2, certified=True)
            >>> _ = model.convs[1].weight.data.add_(0.05)
            >>> model.hold_weights()
            >>> bool(torch.linalg.matrix_norm(model.convs[1].weight, ord=2) <= 1)
            True
        """
        for name, limit in self.spectral_limits().items():
            weight = self.get_parameter(name)
            weight.copy_(limit_spectral_norm(weight, limit))

    def parameter_group(self, name: str) -> str:
        """Convolution weights, shifts, and everything dense (encoder, head, batch norms)."""
        last = f"convs.{self.num_layers - 1}."
        if self.freeze_last_shift and name.startswith((last + "activation", last + "norm")):
            return "frozen"
        if name.startswith("convs") and name.endswith("activation.shift"):
            return "shift"
        return "conv" if name.startswith("convs") and name.count(".") == 2 else "dense"
