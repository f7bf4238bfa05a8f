import multiprocessing
import os
import signal
from functools import partial

import pytest

from graphjoule.tasks import load_task
from graphjoule.training.recipe import load_recipe
from graphjoule.tuning import Address, Search, hide_test, parse_ranges, read_outcome, work
from graphjoule.tuning.search import evaluate
from graphjoule.tuning.team import Member, run_team

NUM_TRIALS = 6


@pytest.fixture
def team(tmp_path):
    """A small search, open here and ready to be sent to workers."""
    recipe = load_recipe("sgc", "digits", 2, {"epochs": 40})
    search = Search(recipe, parse_ranges(["lr=1e-3..1:log"]), seeds=(0,))
    address = Address(str(tmp_path / "journal.log"), "team")
    board = address.open(search.about(hide_test(load_task("digits"), recipe, [0])), search.direction)
    return Member(partial(load_task, "digits"), search, address, NUM_TRIALS, "cpu"), board


def children():
    """Processes of this one by their numbers; other tests may have some of their own."""
    return {child.pid for child in multiprocessing.active_children()}


def test_the_others_take_over_what_a_killed_worker_had(team):
    member, board = team
    killed, others = [], children()

    def kill_one_that_works():
        if not killed and any(trial.state.name == "RUNNING" for trial in board.study.get_trials(deepcopy=False)):
            killed.append(min(children() - others))
            os.kill(killed[0], signal.SIGKILL)

    codes = run_team(member, 2, on_poll=kill_one_that_works)
    assert sorted(codes) == [-signal.SIGKILL, 0]
    outcome = read_outcome(board.study, member.search.recipe)
    assert [row.slot for row in outcome.rows] == list(range(NUM_TRIALS))
    assert sum(trial.state.name == "COMPLETE" for trial in board.study.trials) == NUM_TRIALS


def test_ctrl_c_ends_every_worker_and_nothing_is_left_running(team):
    member, board = team

    def stop():
        if any(trial.state.name == "RUNNING" for trial in board.study.get_trials(deepcopy=False)):
            raise KeyboardInterrupt

    handler, others = signal.getsignal(signal.SIGTERM), children()
    with pytest.raises(KeyboardInterrupt):
        run_team(member, 1, on_poll=stop)
    assert children() == others
    assert signal.getsignal(signal.SIGTERM) is handler
    queue, task = member.search.queue(board, NUM_TRIALS), hide_test(member.load(), member.search.recipe, [0])
    assert not queue.is_finished()
    work(queue, partial(evaluate, member.search, task, "cpu"))  # the same command goes on
    assert sum(trial.state.name == "COMPLETE" for trial in board.study.trials) == NUM_TRIALS
