import logging
import os
import random
import re
import signal
import threading
import time
from contextlib import suppress

import pytest
import torch

from graphjoule.fitting import fit
from graphjoule.training.folder import RunFolder
from graphjoule.training.loop import TrainingInterrupted, deferred_interrupt, train
from graphjoule.training.recipe import load_recipe
from graphjoule.training.seed_batch import SeedBatch
from tests.forked import Command

from . import (
    PUBLIC,
    assert_same_training,
    contents,
    facts,
    largest_difference,
    make_batch,
    same_bits,
    small_recipe,
    small_task,
)

CURVES = ("train_loss", "val_loss", "val_accuracy")
SEEDS = [0, 1, 2, 3, 4, 5]


def stopping_recipe(**overrides):
    """Runs that stop at different epochs, one of them never."""
    return small_recipe("gcn", **{"lr": 0.1, "patience": 3, "epochs": 30} | overrides)


class Watched:
    """One call of `train` and everything it told."""

    def __init__(self, recipe, seeds, *, save_every=1000, stop_at=None):
        self.runs = make_batch(recipe, small_task(), seeds)
        self.is_stopping, self.stop_at = False, stop_at
        self.progress, self.saved, self.rows, self.interrupted = [], [], [], None
        self.results = {}
        results = train(
            self.runs,
            dict.fromkeys(seeds, PUBLIC),
            should_stop=lambda: self.is_stopping,
            save=lambda runs: self.saved.append((int(runs.epoch), list(runs.seeds))),
            save_every=save_every,
            on_progress=self.on_progress,
        )
        try:
            for result in results:
                assert result.seed not in self.results
                self.results[result.seed] = result
        except TrainingInterrupted as interrupted:
            self.interrupted = interrupted

    def on_progress(self, progress):
        self.progress.append(progress)
        self.rows.append(len(self.runs.seeds))
        self.is_stopping = progress.epoch == self.stop_at


@pytest.fixture(scope="module")
def together():
    return Watched(stopping_recipe(), SEEDS, save_every=4)


@pytest.fixture(scope="module")
def alone():
    return {seed: Watched(stopping_recipe(), [seed]).results[seed] for seed in SEEDS}


def test_every_run_gives_one_result_whose_curve_is_as_long_as_it_ran(together):
    assert sorted(together.results) == SEEDS
    lengths = {result.epochs_run for result in together.results.values()}
    assert len(lengths) > 2, "the runs should stop at different epochs for this test to mean something"
    for result in together.results.values():
        assert tuple(result.curve) == CURVES
        assert all(len(values) == result.epochs_run for values in result.curve.values())
        assert result.epochs_run in (result.selected_epoch + 1 + 3, 30)


def test_a_run_among_others_that_stop_and_are_dropped_ends_as_it_does_alone(together, alone):
    for seed in SEEDS:
        ours, other = together.results[seed], alone[seed]
        assert (ours.selected_epoch, ours.epochs_run) == (other.selected_epoch, other.epochs_run)
        assert (ours.test["accuracy"], ours.val["accuracy"]) == (other.test["accuracy"], other.val["accuracy"])
        assert largest_difference(ours.model, other.model) <= 1e-5
        torch.testing.assert_close(torch.tensor(list(ours.curve.values())), torch.tensor(list(other.curve.values())))


@pytest.mark.parametrize(
    ("ends", "rows"),
    [
        ([3, 5, 9, 9], [4, 4, 4, 3, 3, 2, 2, 2, 2]),
        ([2, 4, 8, 8, 8, 8, 8, 8], [8, 8, 8, 8, 6, 6, 6, 6]),  # one in eight stays until it has company
        ([2, 2, 2], [3, 3]),  # and no epoch more than the longest run needs
    ],
)
def test_stopped_runs_leave_the_program_once_they_are_a_quarter_of_it(monkeypatch, ends, rows):
    def train_epoch(self):
        """Nothing but the end of the runs whose time has come."""
        for row, seed in enumerate(self.seeds):
            self.selection.state["last_epoch"][row] = min(int(self.epoch), ends[seed] - 1)
            self.selection.state["stopped"][row] = int(self.epoch) + 1 >= ends[seed]
        self.epoch += 1

    monkeypatch.setattr(SeedBatch, "train_epoch", train_epoch)
    watched = Watched(small_recipe(epochs=20), list(range(len(ends))))
    assert watched.rows == rows
    assert [watched.results[seed].epochs_run for seed in range(len(ends))] == ends


def test_the_result_is_that_of_the_selected_epoch(together):
    task = small_task()
    for result in together.results.values():
        at = result.selected_epoch
        assert result.curve["val_loss"].index(min(result.curve["val_loss"])) == at
        names = ["loss", *(metric.name for metric in task.objective.metrics)]
        assert list(result.val) == list(result.test) == names
        assert [result.val[name] for name in names[:2]] == [result.curve[f"val_{name}"][at] for name in names[:2]]
        assert result.val["micro_f1"] == pytest.approx(result.val["accuracy"])  # scored again, at the same epoch
        right = result.model.eval()(task.features, task.graph).argmax(dim=1) == task.targets
        assert result.test["accuracy"] == pytest.approx(right[PUBLIC.test].double().mean().item(), abs=1e-12)
        assert result.val["accuracy"] == pytest.approx(right[PUBLIC.val].double().mean().item(), abs=1e-6)
    assert len({result.test["accuracy"] for result in together.results.values()}) > 1


def test_progress_comes_every_epoch_and_tells_the_means_of_the_runs_that_still_train(together):
    results = together.results.values()
    assert [progress.epoch for progress in together.progress] == list(range(1, len(together.progress) + 1))
    for progress in together.progress[:-1]:
        active = [r for r in results if r.epochs_run > progress.epoch]
        assert (progress.epochs, progress.num_runs, progress.num_active) == (30, len(SEEDS), len(active))
        told = {"train_loss": progress.train_loss} | {f"val_{name}": value for name, value in progress.val.items()}
        assert tuple(told) == CURVES
        for name in CURVES:
            mean = sum(r.curve[name][progress.epoch - 1] for r in active) / len(active)
            assert told[name] == pytest.approx(mean, rel=1e-5)


def test_the_state_is_saved_every_so_many_epochs_without_the_runs_that_have_left(together):
    assert [epoch for epoch, _ in together.saved] == list(range(4, len(together.rows), 4))
    for epoch, seeds in together.saved:
        assert len(seeds) == together.rows[epoch]  # rows of the next epoch


def test_a_stop_request_saves_the_state_of_that_epoch_and_raises():
    watched = Watched(stopping_recipe(), SEEDS, stop_at=5)
    assert watched.interrupted.epoch == 5
    assert str(watched.interrupted) == "stopped after epoch 5"
    assert watched.saved == [(5, SEEDS)]
    assert len(watched.progress) == 5


def test_a_stop_request_in_the_last_epoch_lets_the_runs_finish():
    watched = Watched(small_recipe(epochs=3), [0, 1], stop_at=3)
    assert watched.interrupted is None
    assert sorted(watched.results) == [0, 1]


def test_epochs_are_a_limit_and_the_last_epoch_counts():
    result = Watched(small_recipe(epochs=1), [0]).results[0]
    assert (result.epochs_run, result.selected_epoch) == (1, 0)


# A run that fails.

BROKEN_AT, LAST = 3, 8


def break_run(monkeypatch, seed, name, value):
    """Put a number into a parameter of one run just before one of its epochs."""
    real = SeedBatch.train_epoch

    def train_epoch(self):
        if int(self.epoch) == BROKEN_AT and seed in self.seeds:
            self.layout.unflatten(self.parameters[self.seeds.index(seed)])[name].fill_(value)
        real(self)

    monkeypatch.setattr(SeedBatch, "train_epoch", train_epoch)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("convs.1.weight", torch.nan, "the parameter convs.1.weight"),
        ("head.bias", torch.inf, "the parameter head.bias"),
        ("encoder.first.weight", 3.4e38, "the output of layer encoder.first"),
        ("convs.0.weight", 3.4e38, "the output of layer convs.0"),
        ("convs.2.weight", 3.4e38, "the output of layer convs.2"),
        ("head.weight", 3.4e38, "the output of layer head"),
        ("convs.2.weight", 1e22, "the loss"),  # only the penalty overflows
    ],
)
def test_the_message_names_seed_epoch_and_layer(monkeypatch, caplog, name, value, said):
    break_run(monkeypatch, 1, name, value)
    with caplog.at_level(logging.WARNING, "graphjoule"):
        record = fit(small_recipe(num_layers=3, epochs=LAST), small_task(), [1]).records[0]
    expected = f"seed 1: the loss is not finite at epoch {BROKEN_AT}; the first thing not finite is {said}"
    assert re.fullmatch(re.escape(expected) + r"(\.\w+)?", record.failure)  # or a part of that layer
    assert caplog.messages == [record.failure]


def test_a_layer_that_breaks_only_without_dropout_is_found_too(monkeypatch):
    """Batch statistics keep training finite; the running ones that evaluation uses are broken."""
    real = SeedBatch.train_epoch

    def train_epoch(self):
        if int(self.epoch) == BROKEN_AT:
            self.buffers["convs.1.norm.running_var"].fill_(torch.nan)
        real(self)

    monkeypatch.setattr(SeedBatch, "train_epoch", train_epoch)
    record = fit(small_recipe(batch_norm=True, epochs=LAST), small_task(), [0]).records[0]
    assert record.failure.endswith(
        f"at epoch {BROKEN_AT}; the first thing not finite is the output of layer convs.1.norm"
    )


def test_a_failed_run_is_recorded_with_its_curve_and_without_a_test_accuracy(monkeypatch):
    break_run(monkeypatch, 1, "convs.1.weight", torch.nan)
    result = fit(small_recipe(epochs=LAST), small_task(), [0, 1, 2])
    record = result.records[1]
    assert [r.status for r in result.records] == ["done", "failed", "done"]
    assert (record.seed, record.test_score, record.epochs_run) == (1, None, BROKEN_AT + 1)
    assert [len(values) for values in record.curve.values()] == [BROKEN_AT + 1] * 3
    assert record.curve["train_loss"][-1] is None
    assert None not in record.curve["train_loss"][:-1]
    assert record.selected_epoch < BROKEN_AT  # the best epoch so far is kept
    assert all(torch.isfinite(p).all() for p in result.models[1].parameters())
    assert (result.summary.n, result.summary.num_failed) == (2, 1)
    done = [r.test_score for r in (result.records[0], result.records[2])]
    assert result.summary.test_mean == pytest.approx(sum(done) / 2)


@pytest.mark.parametrize("num_seeds", [5, 3], ids=["stays in the program", "is dropped from it"])
def test_the_other_runs_do_not_notice(monkeypatch, num_seeds):
    recipe, task, seeds = small_recipe(epochs=LAST), small_task(), range(num_seeds)
    well = fit(recipe, task, seeds)
    break_run(monkeypatch, 1, "convs.1.weight", torch.nan)
    ill = fit(recipe, task, seeds)
    for seed in seeds:
        if seed == 1:
            assert ill.records[seed].status == "failed"
        elif num_seeds == 5:  # one in five is not dropped: the same matrices, the same bits
            assert facts(ill.records[seed]) == facts(well.records[seed])
            assert same_bits(ill.models[seed], well.models[seed])
        else:
            assert largest_difference(ill.models[seed], well.models[seed]) <= 1e-5
            assert ill.records[seed].test_score == well.records[seed].test_score


def test_a_learning_rate_beyond_reason_fails_every_run_before_an_epoch_can_be_selected():
    result = fit(small_recipe(lr=1e30, epochs=LAST), small_task(), [0, 1])
    for record in result.records:
        assert record.status == "failed"
        assert "at epoch 0" in record.failure
        assert (record.selected_epoch, record.val, record.test, record.val_score) == (None, {}, {}, None)
    assert (result.summary.n, result.summary.num_failed, result.summary.test_mean) == (0, 2, None)


# Signals.

SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


@pytest.mark.parametrize("signum", SIGNALS)
def test_the_first_signal_only_asks_its_echo_is_nothing_and_a_later_one_interrupts(signum, monkeypatch):
    now = time.monotonic()
    with deferred_interrupt() as stop:
        assert not stop.requested
        for seconds in (0.0, 0.0, 0.01, 0.9):
            monkeypatch.setattr(time, "monotonic", lambda seconds=seconds: now + seconds)
            signal.raise_signal(signum)
            assert stop.requested
        monkeypatch.setattr(time, "monotonic", lambda: now + 1.1)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signum)


def test_the_handlers_from_before_come_back_even_after_an_error():
    before = [signal.getsignal(signum) for signum in SIGNALS]
    with suppress(RuntimeError), deferred_interrupt():
        assert not any(signal.getsignal(signum) in before for signum in SIGNALS)
        raise RuntimeError
    assert [signal.getsignal(signum) for signum in SIGNALS] == before


def test_a_training_leaves_signals_alone_and_in_another_thread_there_is_nothing_to_defer():
    before, result, seen = signal.getsignal(signal.SIGINT), [], set()

    def train_there():
        recipe, task = small_recipe(epochs=2), small_task()
        result.append(interruptible(recipe, task, on_progress=lambda _: seen.add(signal.getsignal(signal.SIGINT))))
        result.append(signal.getsignal(signal.SIGINT))

    fit(small_recipe(epochs=2), small_task(), on_progress=lambda _: seen.add(signal.getsignal(signal.SIGINT)))
    thread = threading.Thread(target=train_there)
    thread.start()
    thread.join()
    assert result[0].records[0].epochs_run == 2
    assert result[1] == before
    assert seen == {before}


def interruptible(*arguments, **options):
    """`fit` as the command line calls it."""
    with deferred_interrupt() as stop:
        return fit(*arguments, should_stop=lambda: stop.requested, **options)


def interrupt_at(num_epochs, signum=signal.SIGINT):
    """A progress callback that sends this process a signal, twice as `timeout` does, in one epoch of all groups."""
    seen = []

    def on_progress(progress):
        seen.append(progress)
        if len(seen) == num_epochs:
            signal.raise_signal(signum)
            signal.raise_signal(signum)

    return on_progress


RECIPE = small_recipe("gcn", lr=0.1, patience=3, epochs=12)  # runs that stop at different epochs
OPTIONS = {"runs_at_once": 2, "checkpoint_every": 1000}  # what is saved is saved by the interrupt


def test_interrupted_at_any_epoch_a_training_resumes_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    task, seeds, total = small_task(), [0, 1, 2, 3, 4], []
    fit(RECIPE, task, seeds, out=tmp_path / "whole", on_progress=total.append, **OPTIONS)
    for epoch in range(1, len(total), 7):
        path, left = tmp_path / str(epoch), []
        with pytest.raises(TrainingInterrupted) as stopped:
            interruptible(RECIPE, task, seeds, out=path, on_progress=interrupt_at(epoch), **OPTIONS)
        # In a group's last epoch it is heard one epoch later, in the first of the next group.
        heard = epoch if total[epoch - 1].epoch == stopped.value.epoch else epoch + 1
        assert total[heard - 1].epoch == stopped.value.epoch
        assert "checkpoint.safetensors" in contents(path)
        fit(RECIPE, task, seeds, out=path, resume=True, on_progress=left.append, **OPTIONS)
        assert len(left) == len(total) - heard  # not one epoch is lost
        assert_same_training(path, tmp_path / "whole")


def test_an_interrupt_without_a_folder_says_where_it_stopped():
    with pytest.raises(TrainingInterrupted, match=r"^stopped after epoch 3$"):
        interruptible(small_recipe(), small_task(), on_progress=interrupt_at(3, signal.SIGTERM))


# The installed command, really killed.

LAYERS, EPOCHS, GROUPS = 2, 40, [[0, 1], [2, 3]]


def start(folder):
    """The command, with two runs at a time: a training that begins with a plan keeps to it."""
    if not folder.exists():
        folder.mkdir()
        settings = {"hidden_channels": 8, "patience": EPOCHS, "epochs": EPOCHS}
        RunFolder(folder).begin(load_recipe("egnn", "digits", LAYERS, settings), GROUPS)
    settings = ["--set", "hidden_channels=8", "--set", f"patience={EPOCHS}", "--device", "cpu"]
    numbers = ["--layers", LAYERS, "--epochs", EPOCHS, "--seeds", 4, "--checkpoint-every", 3]
    return Command(folder.parent, "train", *settings, *numbers, "--resume", "--out", folder)


def wait_until_it_trains(process, folder):
    """Until the process has saved something of its own."""

    def written():
        files = [folder / "checkpoint.safetensors", folder / "records.jsonl"]
        return [file.stat().st_mtime_ns for file in files if file.exists()]

    before, end = written(), time.monotonic() + 100
    while written() == before and process.poll() is None:
        assert time.monotonic() < end, "it does not begin to train"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    process = start(folder)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "test accuracy" in out
    return folder


@pytest.mark.skipif(os.name == "nt", reason="Windows has no kill -9")
def test_kill_9_at_random_moments_then_resume_gives_the_same_bits(never_killed, tmp_path):
    folder, kills = tmp_path / "run", 0
    for _ in range(2):
        process = start(folder)
        wait_until_it_trains(process, folder)
        time.sleep(random.uniform(0, 0.3))
        process.kill()
        process.communicate(timeout=100)
        kills += process.returncode == -signal.SIGKILL
    assert kills > 0, "every process was done before it could be killed"
    process = start(folder)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert_same_training(folder, never_killed)


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no SIGINT")
def test_ctrl_c_saves_and_exits_with_130_and_resume_gives_the_same_bits(never_killed, tmp_path):
    folder = tmp_path / "run"
    process = start(folder)
    wait_until_it_trains(process, folder)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1].startswith("graphjoule: stopped after epoch ")
    assert err.splitlines()[-1].endswith("the same command with --resume goes on from there.")
    assert "Traceback" not in err
    process = start(folder)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "resuming at epoch" in err
    assert_same_training(folder, never_killed)
