"""The corpus is closed lists, the same on every machine, and the judging half stays shut."""

import pytest
import torch

from graphjoule import GraphjouleError
from reproduction.corpus.tasks import (
    JUDGING,
    JUDGING_AGAIN,
    LEARNING,
    LEARNING_MORE,
    OPENED,
    SCORED_BY_AUC,
    VERDICT,
    load,
)


def test_there_are_twenty_four_of_each_and_none_is_in_both():
    assert len(LEARNING) == len(JUDGING) == len(VERDICT) == 24
    lists = [LEARNING, JUDGING, LEARNING_MORE, JUDGING_AGAIN]
    assert len(set().union(*lists)) == sum(map(len, lists))
    assert {*SCORED_BY_AUC} <= {*LEARNING, *JUDGING}


def test_what_was_opened_does_not_judge_again():
    assert {*OPENED} <= JUDGING.keys()
    assert {*VERDICT} == JUDGING_AGAIN.keys() | (JUDGING.keys() - {*OPENED})


def test_the_judging_half_stays_shut():
    for name in JUDGING | JUDGING_AGAIN:
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
