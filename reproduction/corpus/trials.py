"""Many settings of EGNN on one task in one program: a random search whose trials train side by side.

`fit` trains many seeds of one recipe together; here every run has settings of its own, which is what a search on a GPU
wants. The network is EGNN's equation with a run axis, ``X [nodes, runs, channels]``. What a search finds is trained
again by `fit` before anybody relies on it, see `search`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from graphjoule import Task
from graphjoule.graph import SparseFeatures, as_dense

EPOCHS, PATIENCE, VALIDATE_EVERY = 300, 60, 2
"""The most epochs of a run, those without a better score after which it stops, and those between two validations."""
_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8
_BITS = 256  # dropout probabilities are multiples of 1 / 256


@dataclass(frozen=True)
class Trial:
    """Settings of one trial, by the names of a recipe."""

    lr: float = 5e-3
    weight_decay: float = 5e-4
    dropout: float = 0.6
    output_dropout: float = 0.6
    c_min: float = 0.2
    beta: float = 0.1
    gamma: float = 20.0
    srelu_init: float = -10.0
    encoder: str = "linear"
    hidden_channels: int = 64
    normalize_features: bool = False

    def overrides(self) -> dict[str, Any]:
        """The same for a recipe."""
        found = asdict(self)
        return {"weight_decay.dense": found.pop("weight_decay"), **found}

    def suited_to(self, task: Task) -> Trial:
        """The trial for a task: rows are not divided by their sums where some features are negative.

        Such a sum may be next to 0, and the row is then anything.
        """
        x = task.features.value if isinstance(task.features, SparseFeatures) else task.features
        return self if bool((x >= 0).all()) else replace(self, normalize_features=False)


def draw_trials(count: int, seed: int) -> list[Trial]:
    """Random settings, the same for every task, so that one setting can be compared across tasks."""
    draw = np.random.RandomState(seed)

    def log(low: float, high: float) -> float:
        return float(np.exp(draw.uniform(np.log(low), np.log(high))))

    found = []
    for _ in range(count):
        c_min = draw.uniform(0.05, 0.95)
        found.append(
            Trial(
                lr=log(1e-3, 3e-2),
                weight_decay=log(1e-6, 1e-2),
                dropout=draw.uniform(0, 0.8),
                output_dropout=draw.uniform(0, 0.8),
                c_min=c_min,
                beta=c_min * draw.uniform(0.1, 1.0),
                gamma=log(1e-4, 20),
                srelu_init=float(draw.choice([-10.0, -1.0, 0.0])),
                encoder=str(draw.choice(["linear", "linear", "linear", "mlp"])),
                hidden_channels=int(draw.choice([64, 64, 64, 256])),
                normalize_features=bool(draw.rand() < 0.5),
            )
        )
    return found


class _Propagate(torch.autograd.Function):
    """``P X`` for a symmetric ``P``: the backward product is the same product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor) -> Tensor:
        ctx.matrix = matrix
        return (matrix @ x.reshape(x.size(0), -1)).view(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return (ctx.matrix @ grad.reshape(grad.size(0), -1)).view(grad.shape), None


class Trials:
    """The runs of some trials with the same width and encoder: every trial with every seed.

    Args:
        task: on the device of the runs.
        trials: their settings.
        seeds: of every trial; a seed has a split, initial parameters and dropout of its own.
        depth: number of layers.
    """

    def __init__(self, task: Task, trials: Sequence[Trial], seeds: Sequence[int], depth: int) -> None:
        self.task, self.depth, self.device = task, depth, task.targets.device
        x = task.features
        self.x = as_dense(x)
        sums = self.x.sum(dim=1, keepdim=True)
        self.per_sum = 1 / torch.where(sums == 0, 1.0, sums)
        self.matrix = task.graph.matrix
        splits = [task.split(seed=seed) for seed in seeds]
        self.train_index, self.val_index, self.test_index = (
            torch.stack([getattr(split, part) for split in splits]) for part in ("train", "val", "test")
        )
        self.num_seeds, self.is_mlp = len(seeds), trials[0].encoder == "mlp"
        self.seed_of = torch.arange(len(seeds), device=self.device).repeat_interleave(len(trials))
        runs = [trial for _ in seeds for trial in trials]
        self.settings = {
            name: torch.tensor([float(getattr(run, name)) for run in runs], device=self.device)
            for name in ("lr", "weight_decay", "dropout", "output_dropout", "c_min", "beta", "gamma")
        }
        self.is_normalized = torch.tensor([run.normalize_features for run in runs], device=self.device)
        self.draws = torch.Generator(self.device).manual_seed(int(seeds[0]))
        of_seed = [self._initial(seed, trials[0].hidden_channels) for seed in seeds]
        self.parameters = {
            name: torch.stack([of_seed[s][name] for s in range(len(seeds)) for _ in trials]).to(self.device)
            for name in of_seed[0]
        }
        shift = torch.tensor([run.srelu_init for run in runs], device=self.device)
        self.parameters["shift"] = shift[:, None, None].expand(-1, depth, trials[0].hidden_channels).clone()
        self.norm: dict[str, Tensor] = {}
        if self.is_mlp:
            flat = torch.zeros(len(runs), trials[0].hidden_channels, device=self.device)
            self.norm = {"mean": flat, "var": flat + 1}

    def _initial(self, seed: int, width: int) -> dict[str, Tensor]:
        draw = torch.Generator().manual_seed(seed)

        def linear(rows: int, columns: int) -> tuple[Tensor, Tensor]:
            bound = rows**-0.5
            return (torch.rand(rows, columns, generator=draw) * 2 - 1) * bound, (
                torch.rand(columns, generator=draw) * 2 - 1
            ) * bound

        found: dict[str, Tensor] = {}
        found["first"], found["first_bias"] = linear(self.x.size(1), width)
        if self.is_mlp:
            found["norm_weight"], found["norm_bias"] = torch.ones(width), torch.zeros(width)
            found["second"], found["second_bias"] = linear(width, width)
        found["head"], found["head_bias"] = linear(width, self.task.out_channels)
        found["conv"] = torch.eye(width).expand(self.depth, -1, -1).clone()
        return found

    def _drop(self, x: Tensor, p: Tensor) -> Tensor:
        """Dropout of ``[nodes, runs, channels]`` (or of what all runs share), a probability per run."""
        bits = torch.randint(
            0,
            _BITS,
            (x.size(0), self.num_seeds, x.size(2)),
            dtype=torch.uint8,
            device=self.device,
            generator=self.draws,
        )
        level = (p * _BITS).round()
        kept = bits[:, self.seed_of] >= level.to(torch.uint8)[:, None]
        return torch.where(kept, x * (1 / (1 - level / _BITS))[:, None], 0.0)

    def output(self, *, training: bool) -> Tensor:
        """Scores of every node and run, ``[nodes, runs, classes]``."""
        w, s = self.parameters, self.settings
        num_runs = len(self.seed_of)
        if training and not self.is_mlp:
            h = torch.einsum("nrf,rfc->nrc", self._drop(self.x[:, None], s["dropout"]), w["first"])
        else:
            h = (self.x @ w["first"].transpose(0, 1).reshape(self.x.size(1), -1)).view(len(self.x), num_runs, -1)
        # A row that is divided by its sum, after the product instead of before.
        h = torch.where(self.is_normalized[:, None], h * self.per_sum[:, :, None], h)
        h = h + w["first_bias"]
        if self.is_mlp:
            mean, var = self.norm["mean"], self.norm["var"]
            if training:
                mean, var = h.mean(dim=0), h.var(dim=0, correction=0)
                with torch.no_grad():
                    self.norm = {"mean": self.norm["mean"].lerp(mean, 0.1), "var": self.norm["var"].lerp(var, 0.1)}
            h = ((h - mean) * (var + 1e-5).rsqrt() * w["norm_weight"] + w["norm_bias"]).relu()
            h = self._drop(h, s["dropout"]) if training else h
            h = torch.einsum("nrf,rfc->nrc", h, w["second"]) + w["second_bias"]
        else:
            h = h.relu()
        x0, beta = h, s["beta"][:, None]
        a, alpha = 1 - s["c_min"][:, None], (s["c_min"] - s["beta"])[:, None]
        for k in range(self.depth):
            h = self._drop(h, s["dropout"]) if training else h
            mixed = torch.addcmul(torch.addcmul(a * _Propagate.apply(h, self.matrix), h, alpha), x0, beta)
            h = torch.maximum(torch.einsum("nrc,rcd->nrd", mixed, w["conv"][:, k]), w["shift"][:, k])
        h = self._drop(h, s["output_dropout"]) if training else h
        return torch.einsum("nrc,rck->nrk", h, w["head"]) + w["head_bias"]

    def _nodes(self, scores: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Scores ``[n, runs, classes]`` and targets ``[n, runs]`` of the nodes that each run's split names."""
        nodes = index[self.seed_of].T
        return scores.gather(0, nodes[:, :, None].expand(-1, -1, scores.size(2))), self.task.targets[nodes]

    def step(self, epoch: int, moments: dict[str, list[Tensor]]) -> None:
        """One step of Adam for every run."""
        for value in self.parameters.values():
            value.requires_grad_(True)
        scores, targets = self._nodes(self.output(training=True), self.train_index)
        losses = F.cross_entropy(scores.transpose(1, 2), targets, reduction="none").mean(dim=0)
        eye = torch.eye(self.parameters["conv"].size(-1), device=self.device)
        offset = torch.linalg.vector_norm(self.parameters["conv"] - eye, dim=(2, 3)).sum(dim=1)
        total = losses + self.settings["gamma"] * offset
        grads = torch.autograd.grad(total.sum(), list(self.parameters.values()))
        with torch.no_grad():
            for (name, value), grad in zip(self.parameters.items(), grads, strict=True):
                value.requires_grad_(False)
                wide = [-1] + [1] * (value.dim() - 1)
                fixed = {"conv": 0.0, "shift": 1e-4}.get(name)
                decay = self.settings["weight_decay"].view(wide) if fixed is None else fixed
                grad = grad + decay * value
                first, second = moments.setdefault(name, [torch.zeros_like(value), torch.zeros_like(value)])
                first.lerp_(grad, 1 - _BETA1)
                second.mul_(_BETA2).addcmul_(grad, grad, value=1 - _BETA2)
                root = (second.sqrt() / (1 - _BETA2**epoch) ** 0.5).add_(_EPS)
                value.sub_(first / root * (self.settings["lr"].view(wide) / (1 - _BETA1**epoch)))

    def keep(self, rows: Tensor, moments: dict[str, list[Tensor]]) -> None:
        """Go on with some of the runs."""
        self.parameters = {name: value[rows] for name, value in self.parameters.items()}
        self.settings = {name: value[rows] for name, value in self.settings.items()}
        self.norm = {name: value[rows] for name, value in self.norm.items()}
        self.is_normalized, self.seed_of = self.is_normalized[rows], self.seed_of[rows]
        for name, both in moments.items():
            moments[name] = [value[rows] for value in both]

    def train(self, epochs: int | None = None, patience: int | None = None) -> dict[str, dict[str, list[float]]]:
        """Train all runs; by what selects ("loss" or "accuracy"), the scores of each run at its selected epoch."""
        epochs, patience = epochs or EPOCHS, patience or PATIENCE
        total, where = len(self.seed_of), torch.arange(len(self.seed_of), device=self.device)
        nothing = torch.zeros(len(self.x), total, self.task.out_channels, device=self.device)
        best = {name: nothing.clone() for name in ("loss", "accuracy")}
        score = {name: torch.full((total,), torch.inf, device=self.device) for name in best}
        at = {name: torch.zeros(total, dtype=torch.long, device=self.device) for name in best}
        all_seeds, moments = self.seed_of, {}
        for epoch in range(1, epochs + 1):
            self.step(epoch, moments)
            if epoch % VALIDATE_EVERY:
                continue
            with torch.no_grad():
                out = self.output(training=False)
                scores, targets = self._nodes(out, self.val_index)
                loss = F.cross_entropy(scores.transpose(1, 2), targets, reduction="none").mean(dim=0)
                wrong = (scores.argmax(dim=2) != targets).float().mean(dim=0)
                for name, value in (("loss", loss), ("accuracy", wrong)):  # of equal ones the first, as in `fit`
                    better = (value < score[name][where]) & (epoch - at[name][where] <= patience)
                    rows = where[better]
                    score[name][rows], at[name][rows] = value[better], epoch
                    best[name][:, rows] = out[:, better]
                if epoch % 20 == 0:
                    active = torch.stack([epoch - at[name][where] < patience for name in at]).any(dim=0)
                    if not bool(active.any()):
                        break
                    if float(active.float().mean()) < 0.7:
                        rows = active.nonzero().flatten()
                        where = where[rows]
                        self.keep(rows, moments)
        self.seed_of = all_seeds
        return {name: self._scores(best[name]) | {"epoch": at[name].tolist()} for name in best}

    @torch.no_grad()
    def _scores(self, out: Tensor) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for part, index in (("val", self.val_index), ("test", self.test_index)):
            scores, targets = self._nodes(out, index)
            guess = scores.argmax(dim=2)
            found[f"{part}_accuracy"] = (guess == targets).float().mean(dim=0).tolist()
            found[f"{part}_loss"] = (
                F.cross_entropy(scores.transpose(1, 2), targets, reduction="none").mean(dim=0).tolist()
            )
            found[f"{part}_macro_f1"] = macro_f1(guess, targets, scores.size(2)).tolist()
            if scores.size(2) == 2:
                found[f"{part}_roc_auc"] = roc_auc(scores[:, :, 1] - scores[:, :, 0], targets).tolist()
        return found


def macro_f1(guess: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """The mean over classes of F1, for every run of ``[n, runs]``."""
    found = []
    for label in range(num_classes):
        hit = ((guess == label) & (targets == label)).sum(dim=0)
        found.append(2 * hit / ((guess == label).sum(dim=0) + (targets == label).sum(dim=0)).clamp_min(1))
    return torch.stack(found).mean(dim=0)


def roc_auc(scores: Tensor, targets: Tensor) -> Tensor:
    """The share of pairs in the right order, for every run of ``[n, runs]``; equal scores count by their order."""
    rank = scores.argsort(dim=0).argsort(dim=0) + 1
    positive = targets.sum(dim=0)
    below = (rank * targets).sum(dim=0) - positive * (positive + 1) / 2
    return below / (positive * (len(targets) - positive)).clamp_min(1)


def train_trials(
    task: Task,
    trials: Sequence[Trial],
    seeds: Sequence[int],
    depth: int,
    epochs: int | None = None,
    patience: int | None = None,
) -> list[dict[str, Any]]:
    """The scores of every trial, a list per metric with an entry per seed, in the order of the trials."""
    groups: dict[tuple[str, int], list[int]] = {}
    for place, trial in enumerate(trials):
        groups.setdefault((trial.encoder, trial.hidden_channels), []).append(place)
    found: list[dict[str, Any]] = [{} for _ in trials]
    for places in groups.values():
        scores = Trials(task, [trials[place] for place in places], seeds, depth).train(epochs, patience)
        for at, place in enumerate(places):
            found[place] = {
                name: {key: values[at :: len(places)] for key, values in table.items()}
                for name, table in scores.items()
            }
    return found
