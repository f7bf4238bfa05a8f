"""Workers that are killed at random: every trial has exactly one result, and none is lost."""

import json
import os
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path

import pytest

from graphjoule.tuning import read_outcome
from graphjoule.tuning.queue import attempts_of

from .killed_search import DATABASE, RANGES, SEARCH, cheap_value, open_board

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
TESTS = Path(__file__).resolve().parents[1]


def kill_workers(folder, num_trials, num_workers, num_kills, leases, kind):
    """Runs the script; gives the study that it left."""
    arguments = [folder, num_trials, num_workers, num_kills, leases, kind]
    path = os.pathsep.join([str(TESTS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": path}
    script = Path(__file__).with_name("killed_search.py")
    done = subprocess.run(
        [sys.executable, script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["killed"] == num_kills
    assert told["codes"] == [0] * num_workers, done.stderr
    return open_board(folder, leases)[0].study


def assert_each_exactly_once(study, num_trials):
    """Of all trials that the storage holds, whether or not they count for us, each slot has one with a result."""
    counted = {trial.number for tries in attempts_of(study).values() for trial in tries}
    assert {trial.state.name for trial in study.trials if trial.number in counted} <= {"COMPLETE", "FAIL"}
    # What two workers have made at the same moment: the second was never started.
    assert all(trial.state.name == "WAITING" for trial in study.trials if trial.number not in counted)
    results = Counter(trial.user_attrs["slot"] for trial in study.trials if trial.state.name == "COMPLETE")
    assert results == Counter(range(num_trials))
    for tries in attempts_of(study).values():
        drawn = [trial.params for trial in tries if trial.params.keys() == RANGES.keys()]
        assert all(params == drawn[0] for params in drawn)  # put back with the settings that it had
    outcome = read_outcome(study, SEARCH.recipe)
    assert [row.slot for row in outcome.rows] == list(range(num_trials))
    assert outcome.best.value == min(row.value for row in outcome.rows)
    return outcome


def evaluations(folder):
    return [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]


def test_trainings_whose_workers_are_killed_are_each_recorded_once(tmp_path):
    study = kill_workers(tmp_path, 10, 2, 4, "locks", "train")
    outcome = assert_each_exactly_once(study, 10)
    assert sum(row.num_attempts - 1 for row in outcome.rows) <= 4
    # The same settings train to the same value, so a result that was written down is that of its settings.
    for row in outcome.rows:
        assert any(one["params"] == row.params and one["value"] == row.value for one in evaluations(tmp_path))


def test_where_there_are_no_locks_a_pulse_tells_the_same(tmp_path):
    study = kill_workers(tmp_path, 20, 3, 5, "pulse", "cheap")
    outcome = assert_each_exactly_once(study, 20)
    assert all(row.value == cheap_value(row.params) for row in outcome.rows)


@pytest.mark.skipif(DATABASE not in os.environ, reason=f"no database: {DATABASE} is not set")
def test_4_workers_share_a_database(tmp_path):
    folder = tmp_path / f"killed-{uuid.uuid4().hex[:8]}"  # the search's name there
    folder.mkdir()
    open_board(folder, "database")
    study = kill_workers(folder, 60, 4, 15, "database", "cheap")
    outcome = assert_each_exactly_once(study, 60)
    assert all(row.value == cheap_value(row.params) for row in outcome.rows)


@pytest.mark.slow
@pytest.mark.parametrize("leases", ["locks", "pulse"])
def test_4_workers_150_trials_and_40_kills(tmp_path, leases):
    study = kill_workers(tmp_path, 150, 4, 40, leases, "cheap")
    outcome = assert_each_exactly_once(study, 150)
    assert all(row.value == cheap_value(row.params) for row in outcome.rows)
    lost = sum(trial.state.name == "FAIL" for trial in study.trials)
    assert lost >= 10, "hardly a worker was killed in the middle of a trial"
    if leases == "locks":  # nothing was trained twice but what a worker had in hand when it was killed
        assert len(evaluations(tmp_path)) <= 150 + 40
        assert lost <= 40
