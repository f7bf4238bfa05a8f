"""The corpus is closed lists, the same on every machine, and the judging half stays shut."""

import pytest
import torch

from graphjoule import GraphjouleError
from reproduction.corpus.tasks import (
    JUDGING,
    JUDGING_AGAIN,
    JUDGING_FOURTH,
    JUDGING_THIRD,
    LEARNING,
    LEARNING_MORE,
    LEARNING_ROWS,
    OPENED,
    SCORED_BY_AUC,
    VERDICT,
    load,
)


def test_there_are_as_many_as_the_page_says_and_none_is_in_two_lists():
    lists = [LEARNING, JUDGING, LEARNING_MORE, JUDGING_AGAIN, JUDGING_THIRD, JUDGING_FOURTH, LEARNING_ROWS, VERDICT]
    assert list(map(len, lists)) == [24, 24, 14, 12, 12, 12, 4, 12]
    assert len(set().union(*lists)) == sum(map(len, lists)) == len(OPENED) + len(VERDICT)
    assert {*SCORED_BY_AUC} <= OPENED.keys() | VERDICT.keys()


def test_what_judges_stays_shut_and_what_has_judged_is_open():
    for name in VERDICT:
        with pytest.raises(GraphjouleError, match="stays shut while rules are made"):
            load(name)
    assert load("tree-2").name == "tree-2"
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
