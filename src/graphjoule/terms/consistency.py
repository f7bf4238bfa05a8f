"""`Consistency`: random views of the same nodes must agree on their classes, in any model."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from graphjoule.errors import GraphjouleError
from graphjoule.graph.features import Features, SparseFeatures
from graphjoule.ops import dropout, fold_in
from graphjoule.terms.settings import check_views
from graphjoule.terms.term import Term

_OF_VIEW = -1  # what a view's own key is derived with; a model derives those of its layers with 0, 1, 2, ...


class Consistency(Term):
    """``weight * mean_{v,i} |p_vi - sharp(mean_v p_vi)|^2`` over views ``v`` and nodes ``i`` (GRAND, Feng et al. 2020).

    A view is a pass with some nodes' features, or some features of all nodes, set to zero; the loss of a training is
    the mean over its views. ``p`` are class probabilities, and ``sharp(q) = q^(1/T) / sum q^(1/T)`` is a target without
    a gradient. Unlabelled nodes count as labelled ones do, so it helps where labels are few. It touches the loss alone:
    what the model computes, and its energies, are as before.

    `fit` computes all views of all runs in one program where the network can be stacked, and one after the other where
    it cannot. In a loop of your own call the term: it calls the model.

    Args:
        model: any module that returns class scores, shape ``[num_nodes, num_classes]``.
        views: number of views, at least 2.
        drop: "nodes", or "features" for columns.
        p: probability that a node or a feature is dropped; 0 leaves the model's own dropout to tell views apart.
        temperature: T; below 1 the target is sharper than the mean of the views.
        weight: factor of the term.
        warmup: epochs over which the weight grows from 0, linearly.

    Example:
        >>> from graphjoule.nn import GCN
        >>> model = GCN(3, 4, 2, num_layers=2)
        >>> consistency = Consistency(model, views=2, warmup=10)
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> scores, term = consistency(torch.randn(3, 3), edge_index, epoch=5)
        >>> scores.shape, term.shape
        (torch.Size([2, 3, 2]), torch.Size([]))
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        views: int = 4,
        drop: Literal["nodes", "features"] = "nodes",
        p: float = 0.5,
        temperature: float = 0.5,
        weight: float = 1.0,
        warmup: int = 100,
    ) -> None:
        check_views(views, drop, p, temperature, weight, warmup)
        self.views, self.drop, self.p = views, drop, p
        self.temperature, self.weight, self.warmup = temperature, weight, warmup
        self._model = model
        self._scores: Tensor | None = None

    def __call__(self, x: Features, graph: object, *, epoch: int) -> tuple[Tensor, Tensor]:
        """The model's scores in every view, ``[views, num_nodes, num_classes]``, and the term to add to the loss.

        Args:
            x: node features.
            graph: what the model takes beside them, such as an ``edge_index``.
            epoch: number of epochs done, for the warm-up.
        """
        keys = torch.randint(-(2**31), 2**31, (self.views, 2), dtype=torch.int32, device=x.device)
        scores = torch.stack([self._model(self.view(x, key), graph) for key in keys])
        if scores.dim() != 3:
            raise GraphjouleError(
                f"{type(self._model).__name__} returned {list(scores.shape[1:])}; consistency needs class scores, a "
                "row per node."
            )
        state = torch.full((), float(epoch), device=scores.device)
        return scores, self.joined(state, scores.softmax(dim=-1))[0]

    def view(self, x: Features, key: Tensor) -> Features:
        """See `Term.view`: what is kept is scaled up, as dropout does."""
        along = {"nodes": 0, "features": 1}[self.drop]
        own = fold_in(key, torch.full((), _OF_VIEW, dtype=torch.int32, device=key.device))  # a number would be copied
        factor = dropout(torch.ones(x.size(along), dtype=x.dtype, device=x.device), self.p, own)
        if isinstance(x, SparseFeatures):
            return x.scaled(rows=factor) if along == 0 else x.scaled(columns=factor)
        return x * (factor[:, None] if along == 0 else factor)

    def initial(self) -> Tensor:
        """The number of epochs done."""
        return torch.zeros(())

    def see(self, output: Tensor) -> None:
        """See `Term.see`."""
        self._scores = output

    def value(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Nothing yet: one view agrees with itself. What it has seen are the class probabilities."""
        if self._scores is None:
            raise GraphjouleError(
                "There are no scores yet: let the term `see` what the model returned, then ask for its value."
            )
        probabilities = self._scores.softmax(dim=-1)
        return probabilities.new_zeros(()), probabilities

    def joined(self, state: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """See `Term.joined`: the distance of all views to their sharpened mean."""
        mean = seen.detach().mean(dim=0)
        target = (mean.clamp(min=torch.finfo(mean.dtype).tiny).log() / self.temperature).softmax(dim=-1)
        distance = (seen - target).square().sum(dim=-1).mean()
        share = (state / self.warmup).clamp(max=1.0) if self.warmup else torch.ones_like(state)
        return self.weight * share * distance, distance

    def updated(self, state: Tensor, seen: Tensor, epoch: Tensor) -> Tensor:
        """The number of epochs done."""
        return epoch.to(state.dtype).expand_as(state)

    def forget(self) -> None:
        """Let go of the scores."""
        self._scores = None
