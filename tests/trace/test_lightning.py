"""The callback in a loop that calls Lightning's hooks in Lightning's order; Lightning itself is not installed here."""

import pytest
import torch
import torch.nn.functional as F

from graphjoule import EnergyConstraint
from graphjoule.errors import GraphjouleError
from graphjoule.nn import GCN
from graphjoule.trace import LayerCollapse
from graphjoule.trace.lightning import LightningTrace
from tests.graphs import normal, path3


class Module(torch.nn.Module):
    """What a user writes as a LightningModule."""

    def __init__(self) -> None:
        super().__init__()
        self.net = GCN(4, 4, 2, num_layers=3)
        self.constraint = EnergyConstraint(self.net, layers=["convs.*"])
        self.logged: list[dict[str, float]] = []

    def log_dict(self, numbers):
        self.logged.append(numbers)

    def training_step(self, batch, batch_idx):
        x, edge_index, y = batch
        return F.cross_entropy(self.net(x, edge_index), y) + self.constraint()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.constraint.update()


def fit(module: Module, batches, *callbacks) -> None:
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for hook in ("setup", "on_fit_start", "on_train_start", "on_train_epoch_start"):
        for callback in callbacks:
            getattr(callback, hook)(None, module)
    for index, batch in enumerate(batches):
        for callback in callbacks:
            callback.on_train_batch_start(None, module, batch, index)
        try:
            loss = module.training_step(batch, index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        except Exception as error:
            for callback in callbacks:
                callback.on_exception(None, module, error)
            raise
        for callback in callbacks:
            callback.on_train_batch_end(None, module, None, batch, index)
        module.on_train_batch_end(None, batch, index)


def batches(count: int):
    return [(normal(3, 4, seed=k, dtype=torch.float32), path3().index, torch.tensor([0, 1, 0])) for k in range(count)]


@pytest.mark.parametrize("name", ["", "net"])
def test_energies_are_logged_and_multipliers_are_in_the_checkpoint(name):
    module = Module()
    fit(module, batches(5), LightningTrace(name, every=2))
    assert len(module.logged) == 3
    prefix = "energy/" if name else "energy/net."
    assert {f"{prefix}convs.{k}" for k in range(2)} <= set(module.logged[0])
    assert module.logged[0] != module.logged[1]
    state = module.state_dict()
    assert state["constraint.multipliers"].shape == (2, 2)  # of the two layers before the class scores
    other = Module()
    other.load_state_dict(state)
    assert other.constraint.multipliers.equal(module.constraint.multipliers)


def test_the_hooks_are_gone_after_an_error():
    module = Module()
    hooks = sum(len(m._forward_hooks) for m in module.modules())
    with torch.no_grad():
        for parameter in module.net.parameters():
            parameter.zero_()
    with pytest.raises(LayerCollapse):
        fit(module, batches(1), LightningTrace("net", on_collapse="stop"))
    assert sum(len(m._forward_hooks) for m in module.modules()) == hooks


def test_what_is_not_a_hook_is_not_there():
    callback = LightningTrace()
    assert callback.state_dict() == {}
    callback.load_state_dict({})
    with pytest.raises(AttributeError, match="no attribute 'forward'"):
        callback.forward  # noqa: B018
    with pytest.raises(GraphjouleError, match="every is 0"):
        LightningTrace(every=0)
