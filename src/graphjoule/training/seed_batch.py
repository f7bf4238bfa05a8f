"""Many runs of one recipe as one program: parameters get a leading run axis, `torch.vmap` does the rest."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pad_sequence

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.features import Features, SparseFeatures, normalize_rows
from graphjoule.nn import GraphModel
from graphjoule.ops import Memory, fold_in, limit_spectral_norm, make_key, using_memory
from graphjoule.tasks import Split, Task
from graphjoule.tasks.metrics import Metric
from graphjoule.terms import ModelPenalty, Term
from graphjoule.trace import Trace
from graphjoule.training.build import Architecture, Draws, inner_network, set_norm_momentum, shared_generators
from graphjoule.training.calibration import Calibration
from graphjoule.training.evaluation import Evaluation, Predicted, evaluate
from graphjoule.training.recipe import Recipe
from graphjoule.training.run_axis import Layout, adam_step, each_run, nested
from graphjoule.training.selection import Selection

TermBuilder = Callable[[nn.Module, Propagation], Term]


class TrainingLoss(nn.Module):
    """A model with its readout, its loss and its terms in one forward, which is what `functional_call` can call.

    Args:
        model: the model.
        task: what its outputs are read out to, and their loss.
        factors: of the classes, see `Objective.class_factors`; each run has its own.
        terms: what is added, by name; they belong to this very model.
    """

    factors: Tensor

    def __init__(self, model: GraphModel, task: Task, factors: Tensor, terms: Mapping[str, Term] | None = None) -> None:
        super().__init__()
        self.model, self.task, self.terms = model, task, terms or {}
        self.register_buffer("factors", factors)

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of every node or graph, from its output and its target."""
        factors = (self.factors,) if self.factors.numel() else ()
        units = self.model.in_loss_units
        return self.task.objective.loss(units(output), units(target), *factors)

    def forward(
        self,
        x: Features,
        graph: Propagation,
        index: Tensor,
        target: Tensor,
        key: Tensor | None = None,
        states: Mapping[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """Losses and outputs of the nodes in `index`, the sum of all terms, and what each term has seen.

        States are an argument because each run has its own; what becomes of them is for the caller to decide.
        """
        for name in states or {}:
            x = x if key is None else self.terms[name].view(x, key)
        rows = self.task.readout(self.model(x, graph, key=key), self.model.output_center)
        output = rows[index]
        losses = self.losses(output, target)
        added, seen = losses.new_zeros(()), {}
        for name, state in (states or {}).items():
            self.terms[name].see(rows)
            value, seen[name] = _checked_value(name, self.terms[name].value(state))
            self.terms[name].forget()  # inside a vmap nothing may be kept
            added = added + value
        return losses, output, added, seen


def _checked_value(name: str, found: Any) -> tuple[Tensor, Tensor]:
    """What `Term.value` returned, or a sentence: of a user's own term it may be anything."""
    if isinstance(found, tuple) and len(found) == 2 and getattr(found[0], "shape", ()) == ():
        return found
    shape = list(found[0].shape) if isinstance(found, tuple) and found and isinstance(found[0], Tensor) else None
    kind = type(found).__name__ if shape is None else f"a value of shape {shape}"
    raise GraphjouleError(
        f"The value of the term {name} returned {kind}; expected one number and the state: (value, state)."
    )


class SeedBatch:
    """The training state of several runs: one row each in a few matrices, and the epoch that moves them all.

    Each run has its own initial parameters, split and dropout stream, all derived from its seed alone, so it computes
    the same thing whoever its neighbours are.

    Args:
        architecture: which network.
        recipe: how to train it.
        task: on which graph, already on the device of the runs.
        seeds: one run each; a network that is not stackable takes one.
        splits: the split of each run.
        terms: what is added to the loss, besides the model's own penalty.
        built: initial models that are there already, by seed; those that are used are taken out.

    Attributes:
        seeds: the seed of every run.
        epoch: number of epochs done, a scalar.
        parameters: of every run in one row, shape ``[runs, size]``.
        moment1: Adam's mean of the gradient, shape ``[runs, size]``.
        moment2: Adam's mean of its square, shape ``[runs, size]``.
        averages: exponential averages of the parameters, where `train.average` asks for them; else empty.
        best_parameters: those of the selected epoch, shape ``[runs, size]``.
        buffers: of the model, by name, each with the run axis first.
        best_buffers: those of the selected epoch.
        states: of the terms, by name, each with the run axis first.
        watched: the metrics of every epoch, see `Objective.watched`.
        curve: training loss, validation loss and watched metrics of every epoch, NaN where there are none, shape
            ``[runs, epochs, 2 + metrics]``.
        factors: what the loss of each class is multiplied with, shape ``[runs, ...]``; empty if by nothing.
        keys: what dropout is derived from, shape ``[runs, 2]``.
        train_index: training nodes, shape ``[runs, num_train]``; it lies where the graph does.
        val_index: validation nodes, shape ``[runs, num_val]``.
        selection: which epoch counts and which runs have stopped.
        unseeded: what a module of the user's own drew from though no seed reaches it, see `shared_generators`.
    """

    is_capturable = True  # an epoch is always the same operations on the same tensors

    def __init__(
        self,
        architecture: Architecture,
        recipe: Recipe,
        task: Task,
        seeds: Sequence[int],
        splits: Sequence[Split],
        terms: Mapping[str, TermBuilder] | None = None,
        built: dict[int, GraphModel] | None = None,
    ) -> None:
        self.architecture, self.recipe, self.task, self.seeds = architecture, recipe, task, list(seeds)
        self.objective = task.objective
        self._split_of = dict(zip(self.seeds, splits, strict=True))
        device = task.targets.device
        models = [self._initial_model(seed, built or {}).to(device) for seed in seeds]
        self.model = models[0]
        self.layout = Layout.of(self.model)
        self.features = normalize_rows(task.features) if recipe.data.normalize_features else task.features
        if not self.model.is_stackable:
            self.is_capturable = False
            # Another number than the seed, from which the parameters were drawn.
            self.draws = Draws(int(fold_in(make_key(self.seeds[0]), 1)[0]) % 2**32)
            if isinstance(self.features, SparseFeatures):
                self.features = self.features.to_dense()
        self.factors = torch.stack(
            [self.objective.class_factors(task.targets[self._split_of[seed].train], self._total) for seed in self.seeds]
        )
        # Two copies, because changing the mode of some hundred modules twice an epoch takes a millisecond.
        self._eval_loss = TrainingLoss(copy.deepcopy(self.model), task, self.factors[0]).eval()
        self.terms: dict[str, Term] = {"penalty": ModelPenalty(self.model)}
        for name, build in (terms or {}).items():
            self.terms[name] = build(inner_network(self.model), task.graph)
            if not isinstance(self.terms[name], Term):
                raise GraphjouleError(f"{name} returned {type(self.terms[name]).__name__}; expected a Term.")
        self._train_loss = TrainingLoss(self.model, task, self.factors[0], self.terms).train()
        self._views = max(term.views for term in self.terms.values())

        self.parameters = torch.stack([self.layout.flatten(dict(m.named_parameters())) for m in models])
        self.buffers = {
            name: torch.stack([m.get_buffer(name) for m in models]) for name, _ in self.model.named_buffers()
        }
        self.moment1, self.moment2 = torch.zeros_like(self.parameters), torch.zeros_like(self.parameters)
        self.averages = self.parameters[:, : 0 if recipe.train.average is None else None].clone()
        self.best_parameters = self.parameters.clone()
        self.best_buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
        self.lr, self.weight_decay = (v.to(device) for v in self._settings_per_element())
        self.states = self._initial_states(device)
        self._held = self._held_weights()
        self.unseeded: list[str] = []
        self._memory = Memory()  # of activations, from one epoch to the next

        self.epoch = torch.zeros((), dtype=torch.int64, device=device)
        self.watched = self.objective.watched(recipe.train.select_on)
        width = 2 + len(self.watched)
        self.curve = torch.full((len(self.seeds), recipe.train.epochs, width), torch.nan, device=device)
        column, is_higher_better = self.objective.column(recipe.train.select_on)
        self.selection = Selection(
            len(self.seeds), width - 1, column, recipe.train.patience, device, is_higher_better=is_higher_better
        )
        self.keys = make_key(torch.tensor(self.seeds)).to(device)
        self.train_index, self.val_index = self._indices(self.seeds)

    def _initial_model(self, seed: int, built: dict[int, GraphModel]) -> GraphModel:
        model = built.pop(seed, None) or self.architecture.for_task(self.objective, self.task.num_features, seed)
        if (momentum := self.recipe.train.norm_momentum) is not None:
            set_norm_momentum(model, momentum, self.recipe.model.name)
        split = self._split_of[seed]
        self.objective.prepare(model, self.task.targets[split.train], split.sizes[0], self._total)
        return model

    def _indices(self, seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Training and validation nodes of every run; runs train together only if their splits have the same sizes."""
        splits = [self._split_of[seed] for seed in seeds]
        device = self.task.targets.device
        train, val = (
            pad_sequence([getattr(split, part) for split in splits], batch_first=True, padding_value=-1).to(device)
            for part in ("train", "val")
        )
        return train, val

    @property
    def _counts(self) -> tuple[int, int]:
        """Number of training and of validation nodes of a run."""
        return next(iter(self._split_of.values())).sizes[:2]

    def _settings_per_element(self) -> tuple[Tensor, Tensor]:
        """Learning rate and weight decay of every element of the parameter vector."""
        group_of = {name: group for group, names in self.model.parameter_groups().items() for name in names}
        train = self.recipe.train
        lr = {name: 0.0 if group == "frozen" else train.lr for name, group in group_of.items()}
        decay = {name: train.weight_decay.get(group, 0.0) for name, group in group_of.items()}
        return self.layout.spread(lr), self.layout.spread(decay)

    @torch.no_grad()
    def _initial_states(self, device: torch.device) -> dict[str, Tensor]:
        """The state of every term and run; its size is known after one call of the model."""
        if len(self.terms) > 1:
            with self._random_numbers():
                self.model.eval()(self.features, self.task.graph)
            self.model.train()
        states = {}
        for name, term in self.terms.items():
            one = term.initial()
            term.forget()
            states[name] = one.to(device).repeat(len(self.seeds), *[1] * one.dim())
        return states

    def _random_numbers(self) -> AbstractContextManager[Any]:
        """Where torch's own random functions draw from: a network that is not stackable has a generator of its run."""
        return nullcontext() if self.model.is_stackable else self.draws

    @contextmanager
    def _own_numbers(self) -> Iterator[None]:
        """`_random_numbers` of a training step of a user's own module, which may draw from elsewhere too."""
        before = {} if self.unseeded else shared_generators(self.parameters.device)
        with self.draws:
            yield
        after = shared_generators(self.parameters.device) if before else {}
        self.unseeded += [name for name, state in before.items() if after[name] != state]

    def changed_attributes(self) -> list[str]:
        """Plain numbers that a user's own module has changed in training, and its copy that is validated has not."""
        kept = dict(inner_network(self._eval_loss.model).named_modules())
        return [
            f"{type(module).__name__}.{name}"
            for path, module in inner_network(self.model).named_modules()
            for name, value in vars(module).items()
            if type(value) in (int, float) and path in kept and vars(kept[path]).get(name) != value
        ]

    # An epoch.

    def last_validation(self, epoch: int) -> int:
        """The last epoch that is validated when so many epochs are done, counted from 1; 0 if there is none yet."""
        return epoch

    def train_epoch(self) -> None:
        """One epoch of every run: a training step, a validation pass, selection. Never waits for the device."""
        train_loss, gradient, seen = self._gradient()
        train_loss, gradient = self._total_gradient(train_loss.detach(), gradient)
        active = self.selection.active & torch.isfinite(train_loss)
        step = self.epoch + 1
        adam_step(self.parameters, gradient, self.moment1, self.moment2, step, self.lr, self.weight_decay, active)
        self._hold_weights(active)
        if (decay := self.recipe.train.average) is not None:  # of the first steps a shorter one, or they would linger
            rate = 1 - ((1 + step) / (10 + step)).clamp(max=decay)
            self.averages.add_((self.parameters - self.averages).mul_(rate.to(self.parameters)))
        for name, state in self.states.items():
            if state.numel():  # of a run that has stopped it stays as it is
                updated = self.terms[name].updated(state, seen[name].detach(), step)
                state.copy_(torch.where(active.view(-1, *[1] * (state.dim() - 1)), updated, state))
        with using_memory(self._memory):
            scores = self._validate()
        improved = self.selection.update(self.epoch, train_loss, scores)
        self._keep_best(improved)
        row = torch.cat([train_loss[:, None], scores], dim=1)[:, None]
        self.curve.index_copy_(1, self.epoch[None], row.to(self.curve.dtype))
        self.epoch.add_(1)

    @torch.enable_grad()
    def _gradient(self) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Loss of every run, its gradient, and what its terms have seen."""
        if not self.model.is_stackable:
            self._fill(self.model, 0, self.parameters, self.buffers)
            with self._own_numbers():
                loss, seen = self._train_losses()
            return loss, self._backward(loss.sum(), {name: b[0] for name, b in self.buffers.items()})[None], seen
        self.parameters.requires_grad_(True)
        with using_memory(self._memory):
            loss, seen = self._train_losses()
        (gradient,) = torch.autograd.grad(loss.sum(), self.parameters)
        self.parameters.requires_grad_(False)
        return loss, gradient, seen

    def _backward(self, loss: Tensor, buffers: Mapping[str, Tensor]) -> Tensor:
        """The gradient of a user's own module, as a plain loop finds it, in one row; its buffers go into `buffers`.

        `functional_call` takes the numbers of a run out again when the forward pass ends, so that what a module
        recomputes in the backward pass, as `torch.utils.checkpoint` does, would be of other parameters.
        """
        if not loss.requires_grad:
            raise GraphjouleError(
                f"The loss of {type(inner_network(self.model)).__name__} depends on no parameter that requires a "
                "gradient; expected one that trains, and no torch.no_grad() or detach() on the way to the output."
            )
        parameters = dict(self.model.named_parameters())
        for name, buffer in buffers.items():  # now: a batch norm that is recomputed moves its statistics once more
            buffer.copy_(self.model.get_buffer(name).detach())
        self.model.zero_grad()
        torch.autograd.backward(loss)  # the reentrant kind of checkpoint refuses `torch.autograd.grad`
        return self.layout.flatten(
            {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in parameters.items()}
        )

    def _held_weights(self) -> list[tuple[torch.Size, Tensor, Tensor]]:
        """The weights whose spectral norm is limited, by shape: where they stand in the parameters, and the limits."""
        limit_of: dict[str, float] = {}
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        for key, term in self.terms.items():
            owner = self.model if key == "penalty" else inner_network(self.model)
            for name, limit in term.spectral_limits().items():
                full = names[id(owner.get_parameter(name))]
                limit_of[full] = min(limit, limit_of.get(full, limit))
        by_shape: dict[torch.Size, list[str]] = {}
        for name in limit_of:
            by_shape.setdefault(self.layout.shapes[name], []).append(name)
        device = self.parameters.device
        return [
            (
                shape,
                torch.cat([self.layout.offsets[name] + torch.arange(shape.numel()) for name in same]).to(device),
                torch.tensor([limit_of[name] for name in same], dtype=self.parameters.dtype, device=device),
            )
            for shape, same in by_shape.items()
        ]

    @torch.no_grad()
    def _hold_weights(self, active: Tensor) -> None:
        """Put the limited weights of every active run back within their spectral norms; all of a shape at once."""
        for shape, place, limits in self._held:
            place, limits = place.to(self.parameters.device), limits.to(self.parameters.device)
            found = self.parameters.index_select(1, place)
            held = limit_spectral_norm(found.view(-1, len(limits), *shape), limits).flatten(1)
            self.parameters.index_copy_(1, place, torch.where(active[:, None], held, found))

    def _total_gradient(self, loss: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and gradient over all nodes."""
        return loss, gradient

    def _train_losses(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of every run, and what its terms have seen."""
        keys = fold_in(self.keys, self.epoch.int())

        def loss(
            flat: Tensor,
            buffers: dict[str, Tensor],
            factors: Tensor,
            index: Tensor,
            key: Tensor,
            states: dict[str, Tensor],
        ) -> tuple[Tensor, dict[str, Tensor]]:
            losses, _, added, seen = self._call(self._train_loss, flat, buffers, factors, index, key, states)
            return self._mean_loss(losses, index) + self._share(added), seen

        rows = self.parameters, self.buffers, self.factors, self.train_index, keys, self.states
        result: tuple[Tensor, dict[str, Tensor]]
        result = each_run(loss, *rows) if self._views == 1 else self._of_views(loss, *rows)
        return result

    def _of_views(self, loss: Callable[..., Any], *rows: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss over several views of every run, with what they add together."""
        *before, keys, states = rows
        keys = fold_in(keys[:, None], torch.arange(self._views, dtype=torch.int32, device=keys.device))
        if self.model.is_stackable:  # the views of a run are runs with the same parameters, one after the other
            repeated, states_of = nested(lambda x: x.repeat_interleave(self._views, dim=0), (tuple(before), states))
            found = each_run(loss, *repeated, keys.flatten(0, 1), states_of)
            losses, seen, moved = nested(lambda x: torch.unflatten(x, 0, (-1, self._views)), (*found, repeated[1]))
            for name, buffer in self.buffers.items():  # each view has moved its copy of a batch norm's statistics
                buffer.copy_(moved[name].mean(dim=1) if buffer.is_floating_point() else moved[name][:, 0])
        else:
            found = [each_run(loss, *before, keys[:, view], states) for view in range(self._views)]
            losses = torch.stack([each for each, _ in found], dim=1)
            seen = {name: torch.stack([each[name] for _, each in found], dim=1) for name in states}
        added = losses.mean(dim=1)
        for name, term in self.terms.items():
            value, seen[name] = each_run(term.joined, states[name], seen[name])
            added = added + value.to(added.dtype)
        return added, seen

    def _mean_loss(self, losses: Tensor, index: Tensor) -> Tensor:
        return self._node_sums(losses[:, None], index)[0] / self._counts[0]

    def _share(self, added: Tensor) -> Tensor:
        """What is counted here of the terms."""
        return added

    def _node_sums(self, values: Tensor, index: Tensor) -> Tensor:
        """The sum over nodes of ``[n, k]``."""
        return values.sum(dim=0)

    @property
    def _judged(self) -> Tensor:
        """What is validated and may be selected: the averages of the parameters where there are any."""
        return self.averages if self.averages.numel() else self.parameters

    @torch.no_grad()
    def _validate(self) -> Tensor:
        """Loss and watched metrics of every run on its validation nodes, shape ``[runs, 1 + metrics]``."""

        def pieces(flat: Tensor, buffers: dict[str, Tensor], factors: Tensor, index: Tensor) -> tuple[Any, ...]:
            losses, output, _, _ = self._call(self._eval_loss, flat, buffers, factors, index)
            loss = self._node_sums(losses[:, None].double(), index)
            return loss, *self._pieces(self.watched, output, self._targets(index))

        with self._random_numbers():
            found = each_run(pieces, self._judged, self.buffers, self.factors, self.val_index)
        return self._finish(self.watched, self._counts[1], *found).to(self.curve.dtype)

    def _pieces(
        self, metrics: Sequence[Metric], output: Tensor, target: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """What metrics are made from: the sums of those that add up, and the nodes themselves if one needs them."""
        prediction = self.objective.prediction(output.double())
        scored = self.objective.scored(prediction, target, self.model.centered)
        sums = tuple(metric.of(*scored) for metric in metrics if metric.finish is not None)
        return sums, scored if len(sums) < len(metrics) else ()

    def _finish(
        self,
        metrics: Sequence[Metric],
        count: int,
        loss: Tensor,
        sums: tuple[Tensor, ...],
        nodes: tuple[Tensor, ...],
    ) -> Tensor:
        """Loss and metrics, ``[runs, 1 + metrics]``, from the sum of losses and `_pieces` with the run axis first."""
        # Equal counts must be equal shares, or a tie would not be one: sums are whole before they are divided.
        widths = [each.size(1) for each in (loss, *sums)]
        loss, *totals = torch.split(self._total(torch.cat([loss, *sums], dim=1)), widths, dim=1)
        nodes = tuple(self._all_nodes(each) for each in nodes)
        scores = [loss[:, 0] / count]
        for metric in metrics:
            ready = metric.finish(totals.pop(0)) if metric.finish is not None else each_run(metric.of, *nodes)
            scores.append(ready)
        return torch.stack(scores, dim=1)

    def _targets(self, index: Tensor) -> Tensor:
        return self.task.targets[index]

    def _call(
        self,
        module: TrainingLoss,
        flat: Tensor,
        buffers: dict[str, Tensor],
        factors: Tensor,
        index: Tensor,
        key: Tensor | None = None,
        states: dict[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        inputs = (self.features, self.task.graph, index, self._targets(index), key, states)
        out: tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]
        if module is self._train_loss and not self.model.is_stackable:  # it holds the numbers of its run, see _gradient
            out = module(*inputs)
            return out
        state = {f"model.{name}": value for name, value in (self.layout.unflatten(flat) | buffers).items()}
        state["factors"] = factors
        out = functional_call(module, state, inputs, tie_weights=not self.model.is_stackable)
        return out

    def _keep_best(self, improved: Tensor) -> None:
        self.best_parameters.copy_(torch.where(improved[:, None], self._judged, self.best_parameters))
        for name, buffer in self.buffers.items():
            kept = self.best_buffers[name]
            kept.copy_(torch.where(improved.view(-1, *[1] * (buffer.dim() - 1)), buffer, kept))

    # What comes out.

    @torch.no_grad()
    def selected_output(self, run: int) -> Tensor:
        """Outputs for all nodes, or graphs, from one run's selected parameters, shape ``[n, out_channels]``."""
        model = self.selected_model(run).to(self.task.targets.device).eval()
        with self._random_numbers():
            output: Tensor = model(self.features, self.task.graph)
        return self.task.readout(output, model.output_center)

    @torch.no_grad()
    def final_scores(
        self, run: int, split: Split
    ) -> tuple[dict[str, float], dict[str, float] | None, Calibration, dict[str, Predicted]]:
        """Loss and all metrics of the selected parameters on validation and test nodes; None without test nodes.

        Nothing else reads the targets of test nodes; they are returned with the predictions, for who needs both. The
        calibration is that of the validation nodes.
        """
        metrics, device = self.objective.metrics, self.task.targets.device
        output, model = self.selected_output(run), self.selected_model(run).to(device)
        scores, predicted = [], {}
        for name, part, count in (("val", split.val, split.sizes[1]), ("test", split.test, split.sizes[2])):
            index = part.to(device)
            target = self._targets(index)
            found = self._scores_of(model, output[index], target, count, metrics, run) if count else None
            names = ("loss", *(metric.name for metric in metrics))
            scores.append(None if found is None else dict(zip(names, found.tolist(), strict=True)))
            if count:
                prediction = self.objective.prediction(output[index].double())
                prediction, truth = (self._all_nodes(each[None])[0] for each in (prediction, target))
                is_whole = self.task.graph.row_ids is None
                predicted[name] = Predicted(prediction, truth, index if is_whole else None)
        assert scores[0] is not None  # without validation nodes nothing trains
        index = split.val.to(device)
        val = (self._all_nodes(each[None])[0] for each in (output[index], self._targets(index)))
        return scores[0], scores[1], Calibration.of(self.objective, *val), predicted

    def _scores_of(
        self,
        model: GraphModel,
        output: Tensor,
        target: Tensor,
        count: int,
        metrics: Sequence[Metric] | None = None,
        run: int = 0,
    ) -> Tensor:
        """Loss and metrics of some nodes' outputs, `count` of them in all; by default the watched metrics."""
        metrics = self.watched if metrics is None else metrics
        loss = TrainingLoss(model, self.task, self.factors[run].to(output.device)).losses(output, target)
        sums, nodes = self._pieces(metrics, output, target)
        found = loss.double().sum()[None], sums, nodes
        return self._finish(metrics, count, *nested(lambda each: each[None], found))[0]

    def _all_nodes(self, rows: Tensor) -> Tensor:
        """Rows of all nodes, shape ``[runs, n, ...]``."""
        return rows

    def _total(self, sums: Tensor) -> Tensor:
        """Sums over all nodes."""
        return sums

    def evaluation(
        self, seed: int, split: Split, score: float, predicted: dict[str, Predicted], model: GraphModel
    ) -> Evaluation:
        """What a report needs of a run that is over; with embeddings where one pass goes over the whole graph."""
        watched = copy.deepcopy(model).to(self.task.targets.device).eval()

        def call(network: nn.Module) -> None:
            with self._random_numbers():
                watched(self.features, self.task.graph)

        inner = (lambda: inner_network(watched)) if self.is_whole else None
        return evaluate(seed, self.recipe.train.select_on, score, self.task, split, predicted, inner, call)

    @property
    def is_whole(self) -> bool:
        """Whether one pass in one process goes over the whole graph."""
        return self.task.graph.row_ids is None and self.recipe.train.clusters is None

    def traced(self, measures: Sequence[str]) -> Trace:
        """A pass of the first run that still trains, with its parameters of this moment, in evaluation mode.

        Args:
            measures: what to record of every graph layer; of a user's own module, of all that a trace watches.
        """
        active = self.selection.active.nonzero()
        model = self.current_model(int(active[0]) if len(active) else 0).to(self.task.targets.device).eval()
        inner = inner_network(model)
        watch = ["convs.*"] if isinstance(inner, GraphModel) else None
        with torch.no_grad(), self._random_numbers(), Trace(inner, self.task.graph, measures, watch) as trace:
            model(self.features, self.task.graph)
        return trace

    def is_stop_agreed(self, is_asked: bool) -> bool:
        """Whether training stops after this epoch."""
        return is_asked

    def selected_model(self, run: int) -> GraphModel:
        """A model of its own with one run's selected parameters."""
        return self._model_from(run, self.best_parameters, self.best_buffers)

    @torch.no_grad()
    def select(self, run: int, model: GraphModel) -> None:
        """Put the numbers of a model in the place of one run's selected parameters."""
        state = model.state_dict()
        own = {name: state[name].to(self.best_parameters) for name, _ in model.named_parameters()}
        self.best_parameters[run].copy_(self.layout.flatten(own))
        for name, buffer in self.best_buffers.items():  # one that is not stored is the same in every model
            if name in state:
                buffer[run].copy_(state[name])

    def current_model(self, run: int) -> GraphModel:
        """A model of its own with one run's parameters of this moment."""
        return self._model_from(run, self.parameters, self.buffers)

    def _model_from(self, run: int, parameters: Tensor, buffers: dict[str, Tensor]) -> GraphModel:
        model = copy.deepcopy(self._eval_loss.model)
        self._fill(model, run, parameters, buffers)
        return model.cpu().train()

    @torch.no_grad()
    def _fill(self, model: GraphModel, run: int, parameters: Tensor, buffers: dict[str, Tensor]) -> None:
        """Put one run's numbers into a model; `load_state_dict` would miss buffers that are not persistent."""
        state = self.layout.unflatten(parameters[run].detach()) | {n: b[run] for n, b in buffers.items()}
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if name not in state:  # a buffer that a user's module made in its first call
                continue
            if value.grad_fn is not None:  # one that it computed from its parameters
                value.detach_()
            value.copy_(state[name])

    # Checkpoints, and runs that leave.

    def snapshot(self) -> dict[str, Tensor]:
        """The whole state by name, each with the run axis first: what a checkpoint holds."""
        state = {
            "parameters": self.parameters,
            "moment1": self.moment1,
            "moment2": self.moment2,
            "best_parameters": self.best_parameters,
            "curve": self.curve,
            "keys": self.keys,
            "train_index": self.train_index,
            "val_index": self.val_index,
            "epoch": self.epoch.repeat(len(self.seeds)),
            "seed": torch.tensor(self.seeds),
        }
        if not self.model.is_stackable:
            state |= {f"draws.{kind}": g.get_state()[None] for kind, g in self.draws.generators.items()}
        if self.factors.numel():
            state["factors"] = self.factors
        if self.averages.numel():
            state["averages"] = self.averages
        for table in ("buffers", "best_buffers", "states"):
            state |= {f"{table}.{name}": value for name, value in getattr(self, table).items() if value.numel()}
        return state | {f"selection.{name}": value for name, value in self.selection.state.items()}

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with only some of the runs."""
        self._memory = Memory()
        index = torch.tensor(rows)
        self.restore({name: value[index.to(value.device)] for name, value in self.snapshot().items()})

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from a `snapshot`, whole or with only some of its runs."""
        new = {name: value.to(self.train_index.device, copy=True) for name, value in state.items()}
        self.seeds = new.pop("seed").tolist()
        self.states = {name: value[: len(self.seeds)] for name, value in self.states.items()}  # the empty ones
        self.factors, self.averages = self.factors[: len(self.seeds)], self.averages[: len(self.seeds)]
        self.epoch = new.pop("epoch")[0].clone()
        for name, value in new.items():
            owner, _, key = name.partition(".")
            if owner == "selection":
                self.selection.state[key] = value
            elif owner == "draws":  # of a model that cannot be stacked; others draw from keys
                if not self.model.is_stackable:
                    self.draws.on(torch.device(key)).set_state(value[0].cpu())
            elif key:
                getattr(self, owner)[key] = value
            else:
                setattr(self, owner, value)
