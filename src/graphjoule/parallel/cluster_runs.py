"""A run on clusters: the graph stays in host memory, and each step sees some clusters of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from graphjoule.errors import GraphjouleError
from graphjoule.graph.group import ALONE, Group
from graphjoule.nn import GraphModel
from graphjoule.ops import fold_in
from graphjoule.parallel.cluster_batch import Clusters, feature_rows, induced_graph
from graphjoule.parallel.streaming import evaluate_in_blocks
from graphjoule.tasks import Split, Task
from graphjoule.training.adam import adam_step
from graphjoule.training.recipe import Recipe
from graphjoule.training.recipes.clustered import ClusterSettings
from graphjoule.training.seed_batch import Runs

_OF_DROPOUT, _OF_ORDER = 0, 1  # what a key of an epoch is split for


class ClusterRuns(Runs):
    """The training state of one run, whose epoch is a pass over all clusters in groups, one Adam step each.

    The order of the clusters is the run's own, derived from its seed and the epoch, so two runs cannot share a step.
    Groups without a training node are left out. Of G others, one with n of N training nodes has the loss
    ``G n / N`` times their mean cross entropy, plus the model's penalty: over an epoch the mean is the loss of exact
    training, but for the edges between groups.

    Args:
        recipe: what to train; it has `clusters`.
        task: on which graph, in host memory.
        seeds: one seed.
        splits: its split.
        clusters: the nodes in clusters.
        device: where steps are made.
        group: the processes that share the run; each computes some of the groups that a step accumulates.
    """

    is_capturable = False  # every step has another graph

    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        seeds: Sequence[int],
        splits: Sequence[Split],
        clusters: Clusters,
        *,
        device: torch.device,
        group: Group = ALONE,
    ) -> None:
        assert recipe.clusters is not None
        super().__init__(recipe, task, seeds, splits)
        self.clusters, self.settings, self.processes = clusters, recipe.clusters, group
        self.device = device
        self.steps = torch.zeros(1, dtype=torch.int64)
        self.cut_sha256 = torch.frombuffer(bytearray.fromhex(clusters.sha256), dtype=torch.uint8)[None].clone()
        self._train_objective.to(device)
        self._eval_model: GraphModel = self._eval_objective.model.to(device)
        self._is_train = torch.zeros(task.num_nodes, dtype=torch.bool)
        self._is_train[self.train_index[0]] = True
        _check_batch_norm(self.model, clusters, self.settings)
        check_shares(self.settings, group.size)
        self._move()

    def last_validation(self, epoch: int) -> int:
        """See `Runs.last_validation`; one every so many epochs, and one in the last epoch."""
        return epoch if epoch == self.recipe.epochs else epoch - epoch % self.settings.validate_every

    def train_epoch(self) -> None:
        """One epoch: all steps, then validation if it is due, and selection."""
        epoch = int(self.epoch)
        key = fold_in(self.keys[0], epoch)
        train_loss = self._all_steps(fold_in(key, _OF_DROPOUT), fold_in(key, _OF_ORDER))
        if self.last_validation(epoch + 1) == epoch + 1 or not bool(torch.isfinite(train_loss)):
            val_loss, val_accuracy = self._validate()
            self._keep_best(self.selection.update(self.epoch, train_loss[None], val_loss, val_accuracy))
        else:
            val_loss = val_accuracy = torch.full_like(train_loss, torch.nan)[None]
            last_epoch = self.selection.state["last_epoch"]
            last_epoch.copy_(torch.where(self.selection.active, self.epoch, last_epoch))
        self.curve[0, epoch] = torch.stack([train_loss, val_loss[0], val_accuracy[0]])
        self.epoch.add_(1)

    def _all_steps(self, dropout_key: Tensor, order_key: Tensor) -> Tensor:
        """The steps of an epoch; returns the mean loss of its groups, of one step alone if that is not finite."""
        groups = self.clusters.groups(order_key, self.settings.per_step)
        groups = [nodes for nodes in groups if bool(self._is_train[nodes].any())]
        numbers, losses = range(len(groups)), []
        for start in numbers[:: self.settings.accumulate]:
            together = numbers[start : start + self.settings.accumulate]
            total = self._no_sums()
            for number in together[self.processes.rank :: self.processes.size]:
                total += self._sums(groups[number], fold_in(dropout_key, number), len(groups))
            total = self.processes.total(total) / len(together)
            loss, gradient, buffers = total[0], total[1 : 1 + self.layout.size], total[1 + self.layout.size :]
            losses.append(len(together) * loss)  # the last step may have fewer groups
            if not bool(torch.isfinite(loss)):
                return loss
            self._step(gradient, buffers)
        return torch.stack(losses).sum() / len(groups)

    def _no_sums(self) -> Tensor:
        size = 1 + self.layout.size + sum(buffer[0].numel() for buffer in self.buffers.values())
        return self.parameters.new_zeros(size)

    def _sums(self, nodes: Tensor, key: Tensor, num_groups: int) -> Tensor:
        """Loss of one group, its gradient, and what its batch norms make of the buffers, in one vector.

        Every group of a step starts from the same buffers, so it does not matter which process has which.
        """
        flat = self.parameters[0].detach().clone().requires_grad_(True)
        buffers = {name: buffer[0].clone() for name, buffer in self.buffers.items()}
        index = self._is_train[nodes].nonzero().flatten()
        inputs = (
            feature_rows(self.features, nodes).to(self.device),
            induced_graph(self.task.graph, nodes).to(self.device),
            index.to(self.device),
            self.task.labels[nodes[index]].to(self.device),
            key,
        )
        state = {f"model.{name}": value for name, value in (self.layout.unflatten(flat) | buffers).items()}
        loss, task_loss, *_ = functional_call(self._train_objective, state, inputs, tie_weights=False)
        loss = loss + (num_groups * len(index) / self.train_index.size(1) - 1) * task_loss
        (gradient,) = torch.autograd.grad(loss, flat)
        return torch.cat([loss.detach()[None], gradient, *(b.flatten().to(flat.dtype) for b in buffers.values())])

    def _step(self, gradient: Tensor, buffers: Tensor) -> None:
        self.steps += 1
        moments = self.moment1, self.moment2
        settings = self.steps[0].to(self.device), self.lr, self.weight_decay, self.selection.active
        adam_step(self.parameters, gradient[None], *moments, *settings)
        pieces = torch.split(buffers, [buffer[0].numel() for buffer in self.buffers.values()])
        for buffer, mean in zip(self.buffers.values(), pieces, strict=True):
            # A count of batches is whole, and so is the mean of equal counts up to rounding.
            buffer[0] = (mean if buffer.is_floating_point() else mean.round()).view(buffer[0].shape)

    @torch.no_grad()
    def _validate(self) -> tuple[Tensor, Tensor]:
        """Loss and accuracy of the validation nodes in the whole graph, each of shape ``[1]``; the first process's."""
        scores = self.parameters.new_zeros(2, 1)
        if self.processes.is_first:
            state = self.layout.unflatten(self.parameters[0]) | {name: b[0] for name, b in self.buffers.items()}
            self._eval_model.load_state_dict(state)
            logits = self._scores(self._eval_model)[self.val_index[0]]
            target = self.task.labels[self.val_index[0]]
            scores[0] = F.cross_entropy(logits, target)
            scores[1] = (logits.argmax(dim=-1) == target).float().mean()
        loss, accuracy = self.processes.total(scores)
        return loss, accuracy

    @torch.no_grad()
    def selected_logits(self, run: int) -> Tensor:
        """See `Runs.selected_logits`; layer by layer, in host memory."""
        return self._scores(self.selected_model(run).to(self.device))

    def _scores(self, model: GraphModel) -> Tensor:
        return evaluate_in_blocks(model, self.features, self.task.graph)

    def snapshot(self) -> dict[str, Tensor]:
        """See `Runs.snapshot`; with the number of steps, and the hash of the cut, which must not change."""
        return super().snapshot() | {"steps": self.steps, "cut_sha256": self.cut_sha256}

    def restore(self, state: dict[str, Tensor]) -> None:
        """See `Runs.restore`."""
        if not state["cut_sha256"].cpu().equal(self.cut_sha256):
            raise GraphjouleError(
                "The nodes are cut into other clusters than when this training was interrupted, as another version of "
                "METIS may do; train again in another folder."
            )
        super().restore(state)
        self._move()

    def _move(self) -> None:
        """The state to the device; what names nodes stays with the graph."""
        for name, value in self._state_on_device():
            setattr(self, name, value.to(self.device))
        for table in (self.buffers, self.best_buffers, self.selection.state):
            table |= {name: value.to(self.device) for name, value in table.items()}

    def _state_on_device(self) -> Iterator[tuple[str, Tensor]]:
        names = ("parameters", "moment1", "moment2", "best_parameters", "lr", "weight_decay", "epoch", "curve", "keys")
        return ((name, getattr(self, name)) for name in names)


def _check_batch_norm(model: nn.Module, clusters: Clusters, settings: ClusterSettings) -> None:
    has_norm = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    if has_norm and clusters.smallest_group(settings.per_step) < 2:
        raise GraphjouleError(
            "A group of clusters can be one node alone, of which a batch norm has no variance; choose fewer clusters "
            "with --clusters, or more of them per step with --clusters-per-step."
        )


def check_shares(settings: ClusterSettings, num_processes: int) -> None:
    """Refuse more processes than a step has groups of clusters to share."""
    if settings.accumulate < num_processes:
        raise GraphjouleError(
            f"clusters.accumulate is {settings.accumulate}, but there are {num_processes} processes, and each needs a "
            f"group of clusters in every step; add --set clusters.accumulate={num_processes}."
        )
