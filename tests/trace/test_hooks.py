"""Copies of a watched model, and threads."""

import copy
import io
import threading

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch.optim.swa_utils import AveragedModel

from graphjoule.errors import GraphjouleError
from graphjoule.nn import EGNN
from graphjoule.terms import EnergyConstraint
from graphjoule.trace import Trace
from graphjoule.trace.hooks import OneThread
from tests.graphs import random_edges

from . import single

C = 4
INPUTS = single(6, C), random_edges(6, 9).index


def saved_and_loaded(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "averaged": AveragedModel, "saved": saved_and_loaded}


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("network", [pyg.GAT, EGNN])
def test_a_copy_of_a_watched_model_works_and_is_not_watched(network, make):
    model = network(C, C, 3) if network is pyg.GAT else network(C, C, 2, num_layers=3)
    with EnergyConstraint(model, layers="convs.*") as constraint, Trace(model) as trace:
        (model(*INPUTS).sum() + constraint()).backward()
        gaps, rows = constraint.gaps().clone(), len(trace.layers)
        other = make(model).eval()
        other(2 * INPUTS[0], INPUTS[1])
        assert constraint.gaps().equal(gaps)
        assert len(trace.layers) == rows
    scores = model.eval()(*INPUTS)
    torch.testing.assert_close(other(*INPUTS), scores)


class WithConstraint(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = pyg.GCN(C, C, 3)
        self.constraint = EnergyConstraint(self.net, layers="convs.*", c_min=0.9)


@pytest.mark.parametrize("make", [copy.deepcopy, saved_and_loaded])
def test_a_constraint_that_is_copied_with_its_model_watches_the_copy(make):
    module = WithConstraint()
    (module.net(*INPUTS).sum() + module.constraint()).backward()
    module.constraint.update()
    other = make(module)
    with pytest.raises(GraphjouleError, match="call the model first"):
        other.constraint()
    other.net(*INPUTS)
    assert other.constraint.gaps().equal(module.constraint.gaps())
    assert other.constraint.multipliers.equal(module.constraint.multipliers)
    other.net(2 * INPUTS[0] ** 2, INPUTS[1])
    assert not other.constraint.gaps().equal(module.constraint.gaps())


def test_a_copy_of_a_constraint_that_is_a_part_of_its_model_says_so():
    model = pyg.GCN(C, C, 3)
    model.constraint = EnergyConstraint(model, layers="convs.*")
    model(*INPUTS)
    other = copy.deepcopy(model)
    other(*INPUTS)
    with pytest.raises(GraphjouleError, match="make a new one on the copy of the model"):
        other.constraint()
    other.constraint.detach()
    other.constraint.forget()
    assert model.constraint() >= 0


@pytest.mark.parametrize("kind", [Trace, EnergyConstraint])
def test_a_call_of_a_second_thread_at_the_same_time_is_not_mixed_in_and_warns(kind):
    model, others = pyg.GCN(C, C, 3).eval(), (single(6, C, seed=1), random_edges(6, 9, seed=1).index)
    expected = [row.energy for row in Trace.of(model, None, INPUTS).layers]

    def second(*_):
        handle.remove()
        thread = threading.Thread(target=model, args=others)
        thread.start()
        thread.join()

    with kind(model) as watcher:
        handle = model.convs[1].register_forward_hook(second)
        with pytest.warns(UserWarning, match="GCN is called from two threads at once"):
            model(*INPUTS)
        if kind is EnergyConstraint:
            found = watcher.gaps()
            model(*INPUTS)  # the next one is measured again
            assert watcher.gaps().equal(found)
    if kind is Trace:
        assert [row.energy for row in watcher.layers] == expected


def test_a_thread_lets_go_after_an_error():
    model = pyg.GCN(C, C, 2)
    with Trace(model) as trace:
        with pytest.raises(RuntimeError):
            model(single(6, C + 1), INPUTS[1])
        thread = threading.Thread(target=model, args=INPUTS)
        thread.start()
        thread.join()
    assert [row.name for row in trace.layers][:1] == ["convs.0"]
    turn = OneThread()
    assert turn.begin()
    turn.end()
    assert turn.is_here
