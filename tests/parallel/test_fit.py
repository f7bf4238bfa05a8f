"""`fit` over several processes: early stopping, records, failures and the run folder are those of one process."""

import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from graphjoule.cli import app
from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.parallel import load_part, write_partition
from graphjoule.parallel.joint_folder import JointFolder
from graphjoule.training import TrainingInterrupted
from graphjoule.training.folder import RunFolder
from graphjoule.training.records import read_records

from .tasks import Sized, ring_task, small_recipe

STOPPING = {"lr": 0.1, "patience": 3, "epochs": 30}
NUMBERS = ("epochs_run", "selected_epoch", "val_accuracy", "test_accuracy", "run_id", "status", "failure")


def fit_part(group, folder, recipe, seeds, **options):
    task = load_part(folder, group.rank, group)
    result = fit(recipe, task, seeds, device="cpu", **options)
    return result.records, [model.state_dict() for model in result.models]


def fit_with(group, folder, recipe, seeds, options):
    return fit_part(group, folder, recipe, seeds, **options)


def numbers_of(record):
    return {name: getattr(record, name) for name in NUMBERS}


@pytest.mark.parametrize("select_on", ["val_loss", "val_accuracy"])
def test_runs_stop_and_select_as_in_one_process(world, tmp_path, select_on):
    recipe = small_recipe("gcn", 2, **STOPPING, select_on=select_on)
    write_partition(ring_task(), 2, tmp_path, "blocks")
    expected = fit(recipe, ring_task(), range(5), device="cpu")
    assert len({record.epochs_run for record in expected.records}) > 1
    for records, states in world.run(fit_with, 2, str(tmp_path), recipe, list(range(5)), {}):
        assert [numbers_of(r) for r in records] == [numbers_of(r) for r in expected.records]
        for state, model in zip(states, expected.models, strict=True):
            for name, value in model.state_dict().items():
                torch.testing.assert_close(state[name], value, rtol=1e-3, atol=1e-4)


def test_a_run_that_breaks_is_the_same_failure_on_all(world, tmp_path):
    recipe = small_recipe("gcn", 2, lr=1e30, epochs=5)
    write_partition(ring_task(), 2, tmp_path / "parts", "blocks")
    (expected,) = fit(recipe, ring_task(), [0], device="cpu").records
    assert expected.status == "failed"
    for (record,), _ in world.run(fit_with, 2, str(tmp_path / "parts"), recipe, [0], {}):
        assert record.failure == expected.failure


def first_writes_and_all_go_on(group, parts, recipe, out):
    refused = []
    first = fit_part(group, parts, recipe, [0], out=out)
    for options in ({}, {"resume": True, "other": True}):
        other = options.pop("other", False)
        try:
            fit_part(group, parts, small_recipe("gcn", 3) if other else recipe, [0], out=out, **options)
        except GraphjouleError as error:
            refused.append(str(error))
    again = fit_part(group, parts, recipe, [0, 1], out=out, resume=True)
    return first, again, refused


def test_a_finished_folder_is_refused_extended_and_read_by_all(world, tmp_path):
    recipe = small_recipe("egnn", 2, epochs=6)
    write_partition(ring_task(), 2, tmp_path / "parts", "blocks")
    out = tmp_path / "out"
    answers = world.run(first_writes_and_all_go_on, 2, str(tmp_path / "parts"), recipe, str(out))
    for (records, states), (more, more_states), (taken, other) in answers:
        assert "already holds a training" in taken
        assert "was trained with other settings" in other
        assert more[0].model_dump() == answers[0][1][0][0].model_dump()
        assert numbers_of(records[0]) == numbers_of(more[0])
        assert all(states[0][name].equal(value) for name, value in more_states[0].items())
    assert [record.seed for record in read_records(out / "records.jsonl")] == [0, 1]
    assert (out / "MODEL_CARD.md").exists()
    assert not list(out.glob("checkpoint*"))
    assert [path.name for path in out.glob(".*")] == [".lock"]


class StopAt:
    """Asks one rank to stop after an epoch, as a signal would."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def __call__(self, progress) -> None:
        if progress.epoch == self.epoch:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGINT)


def stopped(group, parts, recipe, out):
    quiet = {"on_progress": StopAt(4)} if group.rank == 1 else {}
    with pytest.raises(TrainingInterrupted) as stop:
        fit_part(group, parts, recipe, [0], out=out, **quiet)
    resumed = fit_part(group, parts, recipe, [0], out=out, resume=True)
    return stop.value.epoch, resumed


def test_a_signal_to_one_rank_stops_all_after_the_same_epoch(world, tmp_path):
    recipe = small_recipe("pairnorm", 2, epochs=9)
    parts = str(tmp_path / "parts")
    write_partition(ring_task(), 2, parts, "blocks")
    expected = world.run(fit_with, 2, parts, recipe, [0], {})
    for (epoch, (records, states)), (whole, whole_states) in zip(
        world.run(stopped, 2, parts, recipe, str(tmp_path / "out")), expected, strict=True
    ):
        assert epoch == 4
        assert records[0].curve == whole[0].curve
        assert all(states[0][name].equal(value) for name, value in whole_states[0].items())


def save_slowly(group, out, is_broken):
    """What a rank finds on the disk as soon as it may go on."""
    folder = JointFolder(out, group)
    save = folder._own.save_checkpoint

    def save_late(*given):
        time.sleep(0.5)
        if is_broken:
            raise GraphjouleError("The disk is full.")
        save(*given)

    folder._own.save_checkpoint = save_late
    with folder.open():
        try:
            folder.save_checkpoint({"epoch": torch.zeros(1)}, small_recipe(), [0], 1.0)
        except GraphjouleError as error:
            return str(error)
        return [path.name for path in Path(out).glob("checkpoint*")]


def test_no_rank_goes_on_before_the_checkpoint_is_whole(world, tmp_path):
    """Else one that was asked to stop would end while the first still writes, and be taken for a failure."""
    assert world.run(save_slowly, 2, str(tmp_path), False) == [["checkpoint.safetensors"]] * 2


def test_all_ranks_hear_that_a_checkpoint_cannot_be_written(world, tmp_path):
    assert world.run(save_slowly, 2, str(tmp_path), True) == ["The disk is full."] * 2


def test_changed_splits_are_refused_by_all(world, tmp_path):
    recipe, out = small_recipe("gcn", 2, epochs=3), tmp_path / "out"
    write_partition(ring_task(), 2, tmp_path / "old", "blocks")
    write_partition(ring_task(train=torch.arange(9)), 2, tmp_path / "new", "blocks")
    world.run(fit_with, 2, str(tmp_path / "old"), recipe, [0], {"out": str(out)})
    for said in world.run(refused_fit, 2, str(tmp_path / "new"), recipe, {"out": str(out), "resume": True}):
        assert "was trained with other nodes in the split 'public' of seed 0" in said


def test_processes_with_nothing_to_share_are_refused(tmp_path):
    with pytest.raises(GraphjouleError, match=r"There are 2 processes, each with the whole graph of ring.*nothing"):
        fit(small_recipe("gcn", 2), ring_task(), device="cpu", out=tmp_path / "out", group=Sized(2))
    assert not (tmp_path / "out").exists()


def test_constraints_are_refused(world, tmp_path, monkeypatch):
    recipe = small_recipe("gcn", 3, constraint="augmented_lagrangian")
    write_partition(ring_task(), 2, tmp_path, "blocks")
    for said in world.run(refused_fit, 2, str(tmp_path), recipe):
        assert "The recipe has constraint, which needs the whole graph in one process" in said
    monkeypatch.chdir(tmp_path)
    options = ["--processes", "2", "--constraint", "penalty", "--model", "gcn", "--layers", "2"]
    done = CliRunner().invoke(app, ["train", *options, "--out", "none"])
    assert "the recipe has a constraint" in str(done.exception)
    assert not RunFolder("none").path.exists()


def refused_fit(group, folder, recipe, options=None):
    with pytest.raises(GraphjouleError) as error:
        fit_part(group, folder, recipe, [0], **options or {})
    return str(error.value)
