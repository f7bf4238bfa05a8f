"""Training on clusters of nodes: the graph stays in host memory, and each step sees some clusters of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from graphjoule.errors import GraphjouleError
from graphjoule.nn import GraphModel
from graphjoule.ops import fold_in
from graphjoule.parallel.group import ALONE, Group
from graphjoule.parallel.streaming import evaluate_in_blocks
from graphjoule.tasks import Split, Task
from graphjoule.training.build import Architecture
from graphjoule.training.recipe import Recipe
from graphjoule.training.run_axis import adam_step
from graphjoule.training.seed_batch import SeedBatch, TermBuilder
from graphjoule.training.settings import ClusterSettings

_OF_DROPOUT, _OF_ORDER = 0, 1  # what a key of an epoch is split for


class Clusters:
    """The nodes of a graph in clusters, and the groups of clusters that an epoch goes over.

    Args:
        part: the cluster of every node, see `graphjoule.parallel.partition.cut_nodes`.
    """

    def __init__(self, part: Tensor) -> None:
        self.num_parts = int(part.max()) + 1
        self.sizes = torch.bincount(part, minlength=self.num_parts)
        ends = self.sizes.cumsum(0)[:-1]
        self._nodes = torch.tensor_split(torch.argsort(part, stable=True), ends)
        self.sha256 = hashlib.sha256(part.numpy().tobytes()).hexdigest()

    def groups(self, key: Tensor, per_step: int) -> list[Tensor]:
        """Nodes of each group of an epoch, ascending: every cluster once, in an order that the key alone decides.

        Args:
            key: of a run and an epoch, see `graphjoule.ops.make_key`.
            per_step: clusters in a group; the last one may have fewer.
        """
        words = fold_in(key.cpu(), torch.arange(self.num_parts, dtype=torch.int32))
        order: list[int] = torch.argsort(words[:, 0], stable=True).tolist()
        starts = range(0, self.num_parts, per_step)
        return [torch.cat([self._nodes[c] for c in order[s : s + per_step]]).sort().values for s in starts]

    def smallest_group(self, per_step: int) -> int:
        """The fewest nodes that a group can have."""
        rest = self.num_parts % per_step or per_step
        return int(self.sizes.sort().values[:rest].sum())


class ClusterBatch(SeedBatch):
    """The training state of one run, whose epoch is a pass over all clusters in groups, one Adam step each.

    The order of the clusters is the run's own, derived from its seed and the epoch, so two runs cannot share a step.
    Groups without a training node are left out. Of G others, one with n of N training nodes has the loss
    ``G n / N`` times their mean loss, plus the model's penalty: over an epoch the mean is the loss of exact
    training, but for the edges between groups.

    Args:
        architecture: which network.
        recipe: how to train it; it has clusters.
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
        architecture: Architecture,
        recipe: Recipe,
        task: Task,
        seeds: Sequence[int],
        splits: Sequence[Split],
        clusters: Clusters,
        *,
        device: torch.device,
        group: Group = ALONE,
        terms: Mapping[str, TermBuilder] | None = None,
    ) -> None:
        assert recipe.train.clusters is not None
        super().__init__(architecture, recipe, task, seeds, splits, terms)
        self.clusters, self.settings, self.processes = clusters, recipe.train.clusters, group
        self.device = device
        self.steps = torch.zeros(1, dtype=torch.int64)
        self.cut_sha256 = torch.frombuffer(bytearray.fromhex(clusters.sha256), dtype=torch.uint8)[None].clone()
        self._train_loss.to(device)
        self._eval_model: GraphModel = self._eval_loss.model.to(device)
        if kept := [name for name, state in self.states.items() if state.numel()]:
            raise GraphjouleError(
                f"The term {kept[0]} has a state that moves once an epoch, and a step on clusters sees a part of the "
                "graph only; leave out the term or the clusters."
            )
        self._is_train = torch.zeros(task.num_nodes, dtype=torch.bool)
        self._is_train[self.train_index[0]] = True
        has_norm = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.model.modules())
        if has_norm and clusters.smallest_group(self.settings.per_step) < 2:
            raise GraphjouleError(
                "A group of clusters can be one node alone, of which a batch norm has no variance; choose fewer "
                "clusters with `train.clusters.parts`, or more of them per step with `train.clusters.per_step`."
            )
        check_shares(self.settings, group.size)
        self._move()

    def is_stop_agreed(self, is_asked: bool) -> bool:
        """A signal may reach processes in different epochs; one that is asked stops all."""
        return self.processes.any(is_asked)

    def last_validation(self, epoch: int) -> int:
        """See `SeedBatch.last_validation`; one every so many epochs, and one in the last epoch."""
        return epoch if epoch == self.recipe.train.epochs else epoch - epoch % self.settings.validate_every

    def train_epoch(self) -> None:
        """One epoch: all steps, then validation if it is due, and selection."""
        epoch = int(self.epoch)
        key = fold_in(self.keys[0], epoch)
        train_loss = self._all_steps(fold_in(key, _OF_DROPOUT), fold_in(key, _OF_ORDER))
        if self.last_validation(epoch + 1) == epoch + 1 or not bool(torch.isfinite(train_loss)):
            scores = self._validate()
            self._keep_best(self.selection.update(self.epoch, train_loss[None], scores))
        else:
            scores = torch.full_like(self.curve[:, 0, 1:], torch.nan)
            last_epoch = self.selection.state["last_epoch"]
            last_epoch.copy_(torch.where(self.selection.active, self.epoch, last_epoch))
        self.curve[0, epoch] = torch.cat([train_loss[None], scores[0]])
        self.epoch.add_(1)

    def _all_steps(self, dropout_key: Tensor, order_key: Tensor) -> Tensor:
        """The steps of an epoch; returns the mean loss of its groups, of one step alone if that is not finite."""
        groups = self.clusters.groups(order_key, self.settings.per_step)
        groups = [nodes for nodes in groups if bool(self._is_train[nodes].any())]
        numbers, losses = range(len(groups)), []
        for start in numbers[:: self.settings.accumulate]:
            together = numbers[start : start + self.settings.accumulate]
            total = self.parameters.new_zeros(1 + self.layout.size + sum(b[0].numel() for b in self.buffers.values()))
            for number in together[self.processes.rank :: self.processes.size]:
                total += self._sums(groups[number], fold_in(dropout_key, number), len(groups))
            total = self.processes.total(total) / len(together)
            loss, gradient, changes = total[0], total[1 : 1 + self.layout.size], total[1 + self.layout.size :]
            losses.append(len(together) * loss)  # the last step may have fewer groups
            if not bool(torch.isfinite(loss)):
                return loss
            self._step(gradient, changes)
        return torch.stack(losses).sum() / len(groups)

    def _sums(self, nodes: Tensor, key: Tensor, num_groups: int) -> Tensor:
        """Loss of one group, its gradient, and how its batch norms change the buffers, in one vector.

        Every group of a step starts from the same buffers, so it does not matter which process has which.
        """
        flat = self.parameters[0].detach().clone().requires_grad_(True)
        before = [buffer[0] for buffer in self.buffers.values()]
        buffers = {name: buffer.clone() for name, buffer in zip(self.buffers, before, strict=True)}
        index = self._is_train[nodes].nonzero().flatten()
        inputs = (
            self.features[nodes].to(self.device),
            self.task.graph.induced(nodes).to(self.device),
            index.to(self.device),
            self.task.targets[nodes[index]].to(self.device),
            key,
            {name: value[0] for name, value in self.states.items()},
        )
        state = {f"model.{name}": value for name, value in (self.layout.unflatten(flat) | buffers).items()}
        if self.model.is_stackable:
            losses, _, added, _ = functional_call(self._train_loss, state, inputs)
        else:  # it is called with its own parameters, see SeedBatch._backward
            self._fill(self.model, 0, self.parameters, self.buffers)
            with self._own_numbers():
                losses, _, added, _ = self._train_loss(*inputs)
        loss = num_groups * losses.sum() / self.train_index.size(1) + added
        gradient = torch.autograd.grad(loss, flat)[0] if self.model.is_stackable else self._backward(loss, buffers)
        changes = [(new - old).flatten().to(flat.dtype) for new, old in zip(buffers.values(), before, strict=True)]
        return torch.cat([loss.detach()[None], gradient, *changes])

    def _step(self, gradient: Tensor, changes: Tensor) -> None:
        self.steps += 1
        moments = self.moment1, self.moment2
        settings = self.steps[0].to(self.device), self.lr, self.weight_decay, self.selection.active
        adam_step(self.parameters, gradient[None], *moments, *settings)
        self._hold_weights(self.selection.active)
        pieces = torch.split(changes, [buffer[0].numel() for buffer in self.buffers.values()])
        for buffer, change in zip(self.buffers.values(), pieces, strict=True):
            buffer[0] += change.view(buffer[0].shape).to(buffer.dtype)

    @torch.no_grad()
    def _validate(self) -> Tensor:
        """Scores of the validation nodes in the whole graph, shape ``[1, 1 + metrics]``; the first process's."""
        scores = torch.zeros_like(self.curve[:, 0, 1:])
        if self.processes.is_first:
            self._fill(self._eval_model, 0, self.parameters, self.buffers)
            index = self.val_index[0]
            output, target = self._scores(self._eval_model)[index], self._targets(index)
            scores = self._scores_of(self._eval_model.cpu(), output, target, len(index))[None].to(scores)
            self._eval_model.to(self.device)
        return self.processes.total(scores)

    @torch.no_grad()
    def selected_output(self, run: int) -> Tensor:
        """See `SeedBatch.selected_output`; layer by layer, in host memory."""
        return self._scores(self.selected_model(run).to(self.device))

    def _scores(self, model: GraphModel) -> Tensor:
        if model.is_stackable:
            return evaluate_in_blocks(model, self.features, self.task.graph)
        # Nobody promises that a model of the user's own can be followed block by block.
        with self._random_numbers():
            output: Tensor = model.cpu().eval()(self.features, self.task.graph)
        model.to(self.device)
        return output

    def snapshot(self) -> dict[str, Tensor]:
        """See `SeedBatch.snapshot`; with the number of steps, and the hash of the cut, which must not change."""
        return super().snapshot() | {"steps": self.steps, "cut_sha256": self.cut_sha256}

    def restore(self, state: dict[str, Tensor]) -> None:
        """See `SeedBatch.restore`."""
        if not state["cut_sha256"].cpu().equal(self.cut_sha256):
            raise GraphjouleError(
                "The nodes are cut into other clusters than when this training was interrupted, as another version of "
                "METIS may do; train again in another folder."
            )
        super().restore(state)
        self._move()

    def _move(self) -> None:
        """The state to the device; what names nodes stays with the graph."""
        names = ("parameters", "moment1", "moment2", "best_parameters", "lr", "weight_decay", "epoch", "curve", "keys")
        for name in names:
            setattr(self, name, getattr(self, name).to(self.device))
        for table in (self.buffers, self.best_buffers, self.selection.state):
            table |= {name: value.to(self.device) for name, value in table.items()}


def check_shares(settings: ClusterSettings, num_processes: int) -> None:
    """Refuse more processes than a step has groups of clusters to share."""
    if settings.accumulate < num_processes:
        raise GraphjouleError(
            f"train.clusters.accumulate is {settings.accumulate}, but there are {num_processes} processes, and each "
            f"needs a group of clusters in every step; set `train.clusters.accumulate={num_processes}`."
        )
