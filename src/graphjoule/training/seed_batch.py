"""Many runs of one recipe as one program: parameters get a leading run axis, `torch.vmap` does the rest."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.utils.rnn import pad_sequence

from graphjoule.graph.features import normalize_rows
from graphjoule.nn import GraphModel
from graphjoule.ops import fold_in, make_key
from graphjoule.tasks import NodeTask, Split
from graphjoule.terms import EnergyConstraint
from graphjoule.training.adam import adam_step
from graphjoule.training.layout import Layout
from graphjoule.training.objective import NO_NODE, Objective, SharedMean, build_constraint, build_model, build_penalty
from graphjoule.training.recipe import Recipe
from graphjoule.training.run_state import RunState
from graphjoule.training.selection import Selection


class Runs(RunState):
    """The training state of several runs: one row each in a few matrices, and the epoch that moves them all.

    Each run has its own initial parameters, split and dropout stream, all derived from its seed alone, so it computes
    the same thing whoever its neighbours are.

    Args:
        recipe: what to train.
        task: on which graph, already on the device of the runs.
        seeds: one run each.
        splits: the split of each run.
    """

    is_capturable = True  # an epoch is always the same operations on the same tensors

    def __init__(self, recipe: Recipe, task: NodeTask, seeds: Sequence[int], splits: Sequence[Split]) -> None:
        self.recipe, self.task, self.seeds = recipe, task, list(seeds)
        self.processes = task.graph.group
        self._split_of = dict(zip(self.seeds, splits, strict=True))
        device = task.labels.device
        models = [build_model(recipe, task, seed).to(device) for seed in seeds]
        self.model = models[0]
        self.layout = Layout.of(self.model)
        # Two copies, because changing the mode of some hundred modules twice an epoch takes a millisecond.
        of_train, of_val = (self._shared_mean(size) for size in splits[0].sizes[:2])
        self._eval_objective = Objective(copy.deepcopy(self.model), shared=of_val).eval()
        self._constraint = build_constraint(recipe, self.model, task.graph)
        orthogonal = build_penalty(recipe, self.model)
        self._train_objective = Objective(self.model, self._constraint, orthogonal, shared=of_train).train()
        self.features = normalize_rows(task.features) if recipe.normalize_features else task.features

        self.parameters = torch.stack([self.layout.flatten(dict(m.named_parameters())) for m in models])
        self.buffers = {
            name: torch.stack([m.get_buffer(name) for m in models]) for name, _ in self.model.named_buffers()
        }
        self.moment1, self.moment2 = torch.zeros_like(self.parameters), torch.zeros_like(self.parameters)
        self.best_parameters = self.parameters.clone()
        self.best_buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
        self.lr, self.weight_decay = (v.to(device) for v in self._settings_per_element())

        self.multipliers = self._no_multipliers().to(device)

        self.epoch = torch.zeros((), dtype=torch.int64, device=device)
        self.curve = torch.full((len(self.seeds), recipe.epochs, 3), torch.nan, device=device)
        self.selection = Selection(len(self.seeds), recipe.select_on, recipe.patience, device)
        self.keys = make_key(torch.tensor(self.seeds)).to(device)
        self.train_index, self.val_index = self._indices(self.seeds)

    def _shared_mean(self, num_nodes: int) -> SharedMean | None:
        """How a mean over so many nodes is made where other processes have some of them; else None."""
        return None if self.task.graph.part is None else SharedMean(num_nodes, self.processes.size)

    def _indices(self, seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Training and validation nodes of every run; -1 fills up where a process has fewer for one run than another.

        On a whole graph nothing is filled up: runs train together only if their splits have the same sizes.
        """
        splits = [self._split_of[seed] for seed in seeds]
        device = self.task.labels.device
        train, val = (
            pad_sequence([getattr(split, part) for split in splits], batch_first=True, padding_value=-1).to(device)
            for part in ("train", "val")
        )
        return train, val

    def _settings_per_element(self) -> tuple[Tensor, Tensor]:
        """Learning rate and weight decay of every element of the parameter vector."""
        group_of = {name: group for group, names in self.model.parameter_groups().items() for name in names}
        lr = {name: 0.0 if group == "frozen" else self.recipe.lr for name, group in group_of.items()}
        decay = {name: self.recipe.weight_decay.get(group, 0.0) for name, group in group_of.items()}
        return self.layout.spread(lr), self.layout.spread(decay)

    @torch.no_grad()
    def _no_multipliers(self) -> Tensor:
        """Zeros for every run and limit; how many limits there are only a call of the model can tell."""
        if self._constraint is None:
            return torch.zeros(len(self.seeds), 2, 0, dtype=torch.float64)
        self.model.eval()(self.features, self.task.graph)
        self.model.train()
        gaps = self._constraint.gaps()
        self._constraint.forget()
        return torch.zeros(len(self.seeds), *gaps.shape, dtype=gaps.dtype)

    def last_validation(self, epoch: int) -> int:
        """The last epoch that is validated when so many epochs are done, counted from 1; 0 if there is none yet."""
        return epoch

    def train_epoch(self) -> None:
        """One epoch of every run: a training step, a validation pass, selection. Never waits for the device."""
        self.parameters.requires_grad_(True)
        train_loss, gaps = self._train_losses()
        (gradient,) = torch.autograd.grad(train_loss.sum(), self.parameters)
        self.parameters.requires_grad_(False)
        if self.processes.size > 1:  # one call for both
            sums = self.processes.total(torch.cat([train_loss.detach()[:, None], gradient], dim=1))
            train_loss, gradient = sums[:, 0], sums[:, 1:]
        active = self.selection.active & torch.isfinite(train_loss)
        adam_step(
            self.parameters, gradient, self.moment1, self.moment2, self.epoch + 1, self.lr, self.weight_decay, active
        )
        if self._constraint is not None:
            self._update_multipliers(self._constraint, gaps.detach(), active)
        val_loss, val_accuracy = self._validate()
        improved = self.selection.update(self.epoch, train_loss.detach(), val_loss, val_accuracy)
        self._keep_best(improved)
        row = torch.stack([train_loss.detach(), val_loss, val_accuracy], dim=-1)
        self.curve.index_copy_(1, self.epoch[None], row[:, None])
        self.epoch.add_(1)

    def _update_multipliers(self, constraint: EnergyConstraint, gaps: Tensor, active: Tensor) -> None:
        """After the step, in the epochs that are due; the multipliers of a run that has stopped stay as they are."""
        assert self.recipe.constraint is not None
        is_due = active & ((self.epoch + 1) % self.recipe.constraint.every == 0)
        updated = constraint.updated(gaps, self.multipliers)
        self.multipliers.copy_(torch.where(is_due[:, None, None], updated, self.multipliers))

    def _train_losses(self) -> tuple[Tensor, Tensor]:
        """Loss and gaps of every run."""
        keys = fold_in(self.keys, self.epoch.int())

        def loss(
            flat: Tensor, buffers: dict[str, Tensor], index: Tensor, key: Tensor, multipliers: Tensor
        ) -> tuple[Tensor, Tensor]:
            total, _, _, gaps = self._call(self._train_objective, flat, buffers, index, key, multipliers)
            return total, gaps

        rows = self.parameters, self.buffers, self.train_index, keys, self.multipliers
        losses: tuple[Tensor, Tensor] = _each_run(loss, *rows)
        return losses

    @torch.no_grad()
    def _validate(self) -> tuple[Tensor, Tensor]:
        def score(flat: Tensor, buffers: dict[str, Tensor], index: Tensor) -> tuple[Tensor, Tensor]:
            _, task_loss, logits, _ = self._call(self._eval_objective, flat, buffers, index)
            is_right = logits.argmax(dim=-1) == self._targets(index)
            return task_loss, is_right.float().mean() if shared is None else is_right.double().sum()

        shared = self._eval_objective.shared
        loss, accuracy = _each_run(score, self.parameters, self.buffers, self.val_index)
        if shared is not None:
            # Counts are divided once they are whole: equal counts must be equal accuracies, or a tie would be none.
            total, count = self.processes.total(torch.stack([loss.double(), accuracy]))
            loss, accuracy = total.to(loss.dtype), (count / shared.num_nodes).float()
        return loss, accuracy

    def _targets(self, index: Tensor) -> Tensor:
        """Labels of nodes, some of which may be none."""
        labels = self.task.labels[index]
        return labels if self.task.graph.part is None else torch.where(index < 0, NO_NODE, labels)

    def _call(
        self,
        objective: Objective,
        flat: Tensor,
        buffers: dict[str, Tensor],
        index: Tensor,
        key: Tensor | None = None,
        multipliers: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        state = {f"model.{name}": value for name, value in (self.layout.unflatten(flat) | buffers).items()}
        inputs = (self.features, self.task.graph, index, self._targets(index), key, multipliers)
        out: tuple[Tensor, Tensor, Tensor, Tensor] = functional_call(objective, state, inputs, tie_weights=False)
        return out

    def _keep_best(self, improved: Tensor) -> None:
        self.best_parameters.copy_(torch.where(improved[:, None], self.parameters, self.best_parameters))
        for name, buffer in self.buffers.items():
            kept = self.best_buffers[name]
            kept.copy_(torch.where(improved.view(-1, *[1] * (buffer.dim() - 1)), buffer, kept))

    @torch.no_grad()
    def selected_logits(self, run: int) -> Tensor:
        """Scores of all nodes from one run's selected parameters, shape ``[num_nodes, num_classes]``."""
        model = self.selected_model(run).to(self.task.labels.device).eval()
        logits: Tensor = model(self.features, self.task.graph)
        return logits

    def selected_model(self, run: int) -> GraphModel:
        """A model of its own with one run's selected parameters."""
        return self._model_from(run, self.best_parameters, self.best_buffers)

    def current_model(self, run: int) -> GraphModel:
        """A model of its own with one run's parameters of this moment."""
        return self._model_from(run, self.parameters, self.buffers)

    def _model_from(self, run: int, parameters: Tensor, buffers: dict[str, Tensor]) -> GraphModel:
        model = build_model(self.recipe, self.task, self.seeds[run])
        state = self.layout.unflatten(parameters[run].detach()) | {n: b[run] for n, b in buffers.items()}
        model.load_state_dict({name: value.clone() for name, value in state.items()})
        return model

    def restore(self, state: dict[str, Tensor]) -> None:
        """See `RunState.restore`; a checkpoint of many processes does not say which nodes each of them has."""
        if "train_index" not in state:
            train, val = self._indices(state["seed"].tolist())
            state = state | {"train_index": train, "val_index": val}
        super().restore(state)


def _each_run(function: Callable[..., Any], *arguments: Tensor | dict[str, Tensor]) -> Any:
    """`function` of every run, by vmap over the leading axis; a single run is called as it is, which costs less."""
    if len(next(a for a in arguments if isinstance(a, Tensor))) > 1:
        return torch.vmap(function)(*arguments)
    out = function(*({n: t[0] for n, t in a.items()} if isinstance(a, dict) else a[0] for a in arguments))
    return tuple(t[None] for t in out) if isinstance(out, tuple) else out[None]
