import errno
import json
import os
import signal

import pytest
import torch

from graphjoule import files
from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.studies import (
    Cell,
    Collection,
    Pace,
    find_study,
    plan_study,
    read_collection,
    read_energies,
    work,
    worker,
)
from graphjoule.studies.worker import Job
from graphjoule.training import describe_device
from tests.forked import context
from tests.training import assert_same_training

from . import CELLS, QUICK, SEEDS, killed_study, load_small, made_up, recorded_facts, small_plan


@pytest.fixture
def trained(monkeypatch):
    """The recipes and seeds that `fit` is asked for, one entry per call."""
    calls = []

    def remember(recipe, task, seeds, **options):
        calls.append((recipe.model.name, list(seeds)))
        return fit(recipe, task, seeds, **options)

    monkeypatch.setattr(worker, "fit", remember)
    return calls


def do(out, plan=None, **options):
    return work(plan or small_plan(out), load_small, device="cpu", **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The facts of a study that nothing happened to."""
    out = tmp_path_factory.mktemp("whole")
    assert do(out) == {}
    return recorded_facts(out)


# What is trained.


def test_every_cell_is_trained_with_all_seeds_in_one_program_and_then_nothing_is(tmp_path, trained, whole):
    plan = small_plan(tmp_path)
    assert (plan.num_runs, plan.num_recorded) == (6, 0)
    assert do(tmp_path, plan) == {}
    assert trained == [("gcn", SEEDS), ("egnn", SEEDS)]
    assert recorded_facts(tmp_path) == whole
    assert len(whole) == len({fact["run_id"] for fact in whole}) == 6

    again = small_plan(tmp_path)
    assert (again.num_runs, again.num_recorded) == (6, 6)
    do(tmp_path, again)
    assert len(trained) == 2


def test_more_seeds_train_only_the_new_ones(tmp_path, trained, whole):
    do(tmp_path, small_plan(tmp_path, seeds=[0, 1]))
    before = recorded_facts(tmp_path)
    plan = small_plan(tmp_path)
    assert plan.num_recorded == 4
    do(tmp_path, plan)
    after = recorded_facts(tmp_path)
    assert all(fact in after for fact in before)
    assert [fact["run_id"] for fact in after] == [fact["run_id"] for fact in whole]


def test_cells_that_come_to_the_same_recipe_share_their_runs(tmp_path, trained):
    twice = [CELLS[0], Cell("gcn", "small", 2, overrides=QUICK | {"lr": 0.1})]
    plan = small_plan(tmp_path, twice)
    assert (len(plan.jobs), plan.num_runs) == (1, 3)


def test_runs_that_are_recorded_elsewhere_are_not_repeated(tmp_path, trained):
    do(tmp_path / "first", small_plan(tmp_path / "first", seeds=[1]))
    elsewhere = read_collection([tmp_path / "first"])
    plan = small_plan(tmp_path / "second", elsewhere=elsewhere)
    assert (plan.num_runs, plan.num_recorded) == (6, 2)
    del trained[:]
    do(tmp_path / "second", plan)
    assert trained == [("gcn", [0, 2]), ("egnn", [0, 2])]


def test_a_run_of_other_settings_is_another_run(tmp_path):
    other = Cell("gcn", "small", 2, overrides=QUICK | {"lr": 0.2, "split": "public"})
    plan = small_plan(tmp_path, elsewhere=Collection([made_up(other, 0, 0.5)]))
    assert plan.num_recorded == 0


def test_a_job_that_cannot_be_trained_does_not_stop_the_others(tmp_path, trained):
    refused = Cell("egnn", "small", 2, overrides=QUICK | {"clusters.parts": 5000})  # more than there are nodes
    told = do(tmp_path, small_plan(tmp_path, [refused, CELLS[0]]))
    assert list(told) == ["egnn, 2 layers, small"]
    assert told["egnn, 2 layers, small"].endswith(".")
    assert {fact["model"] for fact in recorded_facts(tmp_path)} == {"gcn"}


def test_failed_runs_are_recorded_once_and_not_tried_again(tmp_path, trained):
    cells = [Cell("gcn", "small", 2, overrides=QUICK | {"lr": 1e30})]
    do(tmp_path, small_plan(tmp_path, cells))
    assert {fact["status"] for fact in recorded_facts(tmp_path)} == {"failed"}
    plan = small_plan(tmp_path, cells, has_energies=True)  # a failed run has no energies to measure
    do(tmp_path, plan)
    assert len(trained) == 1


def test_energies_are_measured_where_they_are_asked_for(tmp_path, trained):
    do(tmp_path)
    plan = small_plan(tmp_path, has_energies=True)
    assert plan.num_recorded == 6
    before = recorded_facts(tmp_path)
    do(tmp_path, plan)
    assert recorded_facts(tmp_path) == before
    for job in plan.jobs:
        (energies,) = read_energies([job.energies_path])
        assert (energies.model, energies.seeds) == (job.recipe.model.name, SEEDS)
        assert len(energies.trained) == 3
    del trained[:]
    do(tmp_path, small_plan(tmp_path, has_energies=True))
    assert trained == []


def test_energies_that_do_not_fit_in_memory_cost_no_run_and_are_measured_the_next_time(tmp_path, monkeypatch, whole):
    def full(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(worker, "measure_energies", full)
        refused = do(tmp_path, small_plan(tmp_path, has_energies=True))
    here = describe_device(torch.device("cpu"))
    assert all(f"do not fit in the memory of {here}; its runs" in why for why in refused.values())
    assert len(refused) == 2
    assert recorded_facts(tmp_path) == whole
    plan = small_plan(tmp_path, has_energies=True)
    assert all(job.lacks_energies() for job in plan.jobs)
    assert do(tmp_path, plan) == {}
    assert not any(job.lacks_energies() for job in plan.jobs)


def test_a_job_leaves_no_peak_of_memory_to_the_next(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: calls.append("reset"))
    do(tmp_path, small_plan(tmp_path, seeds=[0]))
    assert calls == ["empty", "empty"]  # no device was used, so there is no peak to forget
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    do(tmp_path, small_plan(tmp_path, seeds=[1]))
    assert calls[2:] == ["empty", "reset"] * 2


# Data.


def test_missing_data_are_told_unless_nothing_else_was_asked_for(tmp_path):
    def load(name):
        if name == "gone":
            raise GraphjouleError("There is no file.")
        return load_small(name)

    gone = Cell("gcn", "gone", 2, overrides=QUICK)
    plan = plan_study([gone, *CELLS], SEEDS, tmp_path, load)
    assert plan.unavailable == {"gone": "There is no file."}
    assert plan.num_runs == 6
    with pytest.raises(GraphjouleError, match=r"^There is no file\.$"):
        plan_study([gone], SEEDS, tmp_path, load)


def test_a_setting_that_cannot_be_used_is_said_before_any_data_are_read(tmp_path):
    with pytest.raises(GraphjouleError, match='"c_mni" is not a setting'):
        plan_study([Cell("egnn", "small", 2, overrides={"c_mni": 0.1})], SEEDS, tmp_path, None)


def test_a_finished_study_reads_no_data(tmp_path):
    cells = [Cell("gcn", "small", 2, overrides=QUICK | {"split": "public"})]
    do(tmp_path, small_plan(tmp_path, cells))
    plan = plan_study(cells, SEEDS, tmp_path, None)
    assert work(plan, None, device="cpu") == {}


# Locks.


def test_what_another_process_holds_is_left_to_it_and_taken_over_when_it_is_gone(tmp_path, trained, monkeypatch):
    plan = small_plan(tmp_path)
    held = plan.jobs[0].lock()
    assert held.__enter__()
    waits, told = [], []

    def let_go(seconds):
        waits.append([model for model, _ in trained])
        if len(waits) == 2:
            held.__exit__(None, None, None)

    monkeypatch.setattr(worker.time, "sleep", let_go)
    do(tmp_path, plan, on_progress=told.append)
    assert waits == [["egnn"], ["egnn"]]
    assert [model for model, _ in trained] == ["egnn", "gcn"]
    assert sum(progress.job is None for progress in told) == 2


def test_a_job_that_another_process_did_meanwhile_is_not_done_again(tmp_path, trained, monkeypatch):
    mine, real = small_plan(tmp_path), Job.lock

    def lock_late(job):
        monkeypatch.setattr(Job, "lock", real)
        do(tmp_path)  # the other process is quicker
        return real(job)

    monkeypatch.setattr(Job, "lock", lock_late)
    do(tmp_path, mine)
    assert len(trained) == 2


# Progress.


def test_progress_counts_to_the_end_and_guesses_the_time(tmp_path):
    told = []
    do(tmp_path, on_progress=told.append)
    assert [p.num_done for p in told] == sorted(p.num_done for p in told)
    assert (told[0].num_done, told[0].seconds_left) == (0, None)
    assert (told[-1].num_done, told[-1].num_runs, told[-1].seconds_left) == (6, 6, 0.0)
    assert any(p.training is not None and p.training.epoch > 1 for p in told)
    second = [p for p in told if p.job == "egnn, 2 layers, small"]
    assert second[0].seconds_left > 0  # judged by the first cell, which is of the same dataset


# How long it takes.


def test_the_time_is_judged_by_the_nearest_runs_on_the_same_device(tmp_path):
    study = find_study("table1")
    (egnn,), (gcn,) = (study.cells(["cora"], [model], [2]) for model in ("egnn", "gcn"))
    (deep,), (elsewhere,) = study.cells(["cora"], ["gcn"], [64]), study.cells(["pubmed"], ["gcn"], [2])
    pace = Pace("here", [made_up(gcn, 0, 0.8, device="there", seconds=500.0, epochs_run=100)])
    assert pace.seconds(gcn.recipe) is None
    for seconds in (4.0, 6.0):
        pace.add(made_up(gcn, 0, 0.8, device="here", seconds=seconds, epochs_run=100))
    assert pace.seconds(gcn.recipe) == pytest.approx(5.0)
    assert pace.seconds(deep.recipe) == pytest.approx(5.0 * 32)  # layers
    assert pace.seconds(egnn.recipe) == pytest.approx(5.0)  # another model on the same data, for want of better
    assert pace.seconds(elsewhere.recipe) is None
    short = gcn.recipe.with_settings({"epochs": 50})
    assert pace.seconds(short) == pytest.approx(2.5)
    pace.add(made_up(egnn, 0, 0.8, device="here", seconds=9.0, epochs_run=100))
    assert pace.seconds(egnn.recipe) == pytest.approx(9.0)


def test_a_depth_without_a_record_is_judged_by_the_nearest():
    shallow, middle, deep, deeper = find_study("depth").cells(["cora"], ["gcn"], [2, 32, 64, 1024])
    # Two layers take longer per layer: what comes before and after them counts as much.
    pace = Pace("here", [made_up(shallow, 0, 0.8, device="here", seconds=10.0, epochs_run=100)])
    pace.add(made_up(deep, 0, 0.8, device="here", seconds=40.0, epochs_run=100))
    assert pace.seconds(deeper.recipe) == pytest.approx(40.0 * 16)
    assert pace.seconds(middle.recipe) == pytest.approx(40.0 / 2)


def test_an_estimate_says_what_it_does_not_know(tmp_path):
    plan = small_plan(tmp_path)
    assert str(Pace("here").estimate(plan.jobs)).startswith("how long it takes is not known")


# Full disks and kills.


@pytest.mark.parametrize("num_writes", [0, 1, 4, 8, 13, 19])
def test_a_full_disk_stops_the_study_with_a_sentence_and_room_lets_it_go_on(tmp_path, monkeypatch, whole, num_writes):
    real_write, real_file, left = os.write, files._write_through, [num_writes]

    def spend():
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    def write(descriptor, data):
        if data.startswith(b"{"):  # a record: half of it still fits
            try:
                spend()
            except OSError:
                real_write(descriptor, data[: len(data) // 2])
                raise
        return real_write(descriptor, data)

    def write_file(path, data):
        spend()
        real_file(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        patch.setattr(files, "_write_through", write_file)
        with pytest.raises(GraphjouleError, match=r"no space left on device\.$"):
            do(tmp_path, checkpoint_every=2)
    do(tmp_path, checkpoint_every=2)
    assert recorded_facts(tmp_path) == whole


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    folder = tmp_path_factory.mktemp("study")
    process = context().Process(target=killed_study.main, args=(folder,))
    process.start()
    process.join(200)
    assert process.exitcode == 0
    return folder, json.loads((folder / "told.json").read_text())


def test_a_study_killed_again_and_again_ends_with_the_records_of_one_never_killed(killed):
    folder, told = killed
    assert told["killed"][:-1] == [-signal.SIGKILL] * 3
    assert told["codes"][:2] == [0, 0]
    assert recorded_facts(folder / "killed") == recorded_facts(folder / "whole")
    for cell in (folder / "whole").glob("digits-*"):
        assert_same_training(folder / "killed" / cell.name, cell)


def test_two_workers_share_a_study_and_never_repeat_a_run(killed):
    folder, told = killed
    assert told["codes"][2:4] == [0, 0]
    assert recorded_facts(folder / "shared") == recorded_facts(folder / "whole")


def test_a_worker_takes_over_what_a_killed_one_began(killed):
    folder, told = killed
    assert (told["killed"][-1], told["codes"][4]) == (-signal.SIGKILL, 0)
    assert recorded_facts(folder / "inherited") == recorded_facts(folder / "whole")
