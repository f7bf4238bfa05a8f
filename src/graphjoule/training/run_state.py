"""What changes while runs train: to be kept in a checkpoint, gone on from, and thinned out when runs have stopped."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graphjoule.training.selection import Selection


class RunState:
    """Tensors with one row per run, and the epoch that all of them are in.

    Attributes:
        seeds: the seed of every run.
        epoch: number of epochs done, a scalar.
        parameters: of every run in one row, shape ``[runs, size]``.
        moment1: Adam's mean of the gradient, shape ``[runs, size]``.
        moment2: Adam's mean of its square, shape ``[runs, size]``.
        best_parameters: those of the selected epoch, shape ``[runs, size]``.
        buffers: of the model, by name, each with the run axis first.
        best_buffers: those of the selected epoch.
        multipliers: of the energy constraint, shape ``[runs, 2, limits]``; there are no limits without one.
        curve: losses and accuracy of every epoch, NaN where there are none, shape ``[runs, epochs, 3]``.
        keys: what dropout is derived from, shape ``[runs, 2]``.
        train_index: training nodes, shape ``[runs, num_train]``; it lies where the graph does.
        val_index: validation nodes, shape ``[runs, num_val]``.
        selection: which epoch counts and which runs have stopped.
    """

    seeds: list[int]
    epoch: Tensor
    parameters: Tensor
    moment1: Tensor
    moment2: Tensor
    best_parameters: Tensor
    buffers: dict[str, Tensor]
    best_buffers: dict[str, Tensor]
    multipliers: Tensor
    curve: Tensor
    keys: Tensor
    train_index: Tensor
    val_index: Tensor
    selection: Selection

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
        if self.multipliers.numel():
            state["multipliers"] = self.multipliers
        state |= {f"buffers.{name}": value for name, value in self.buffers.items()}
        state |= {f"best_buffers.{name}": value for name, value in self.best_buffers.items()}
        return state | {f"selection.{name}": value for name, value in self.selection.state.items()}

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with only some of the runs."""
        index = torch.tensor(rows)
        self.restore({name: value[index.to(value.device)] for name, value in self.snapshot().items()})

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from a `snapshot`, whole or with only some of its runs."""
        new = {name: value.to(self.train_index.device, copy=True) for name, value in state.items()}
        self.seeds = new.pop("seed").tolist()
        self.multipliers = self.multipliers[: len(self.seeds)]  # without a constraint they are not in the state
        self.epoch = new.pop("epoch")[0].clone()
        for name, value in new.items():
            owner, _, key = name.partition(".")
            if owner == "selection":
                self.selection.state[key] = value
            elif key:
                getattr(self, owner)[key] = value
            else:
                setattr(self, owner, value)
