"""The corpus is two closed lists, the same on every machine, and the judging half stays shut."""

import pytest
import torch

from graphjoule import GraphjouleError
from reproduction.corpus.tasks import JUDGING, LEARNING, SCORED_BY_AUC, load


def test_there_are_twenty_four_of_each_and_none_is_in_both():
    assert len(LEARNING) == len(JUDGING) == 24
    assert not LEARNING.keys() & JUDGING.keys()
    assert {*SCORED_BY_AUC} <= {*LEARNING, *JUDGING}


def test_the_judging_half_stays_shut():
    for name in JUDGING:
        with pytest.raises(GraphjouleError, match="stays shut while rules are made"):
            load(name)
    with pytest.raises(GraphjouleError, match="no task 'cora' in the corpus"):
        load("cora")


@pytest.mark.parametrize("name", ["users", "tree", "grid-rough", "iris", "caveman", "karate"])
def test_a_task_is_the_same_every_time_and_its_split_can_be_drawn(name):
    one, other = load(name), load(name)
    assert one.facts().sha256 == other.facts().sha256
    assert all(one.split(seed=3).sizes)
    assert one.name == name
    assert int(torch.bincount(one.targets).min()) > 0


def test_users_have_252_labels_or_so_and_the_shares_of_the_report():
    task = load("users")
    train, val, _ = task.split(seed=0).sizes
    assert 230 <= train + val <= 260
    assert (torch.bincount(task.targets) / task.num_nodes).tolist() == pytest.approx([0.68, 0.20, 0.07, 0.05], abs=0.01)
