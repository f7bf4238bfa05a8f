import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from graphjoule.fitting import fit
from graphjoule.training import TrainingInterrupted
from graphjoule.training.folder import RunFolder
from graphjoule.training.loop import deferred_interrupt
from graphjoule.training.recipe import load_recipe

from . import assert_same_training, contents, small_recipe, small_task

SIGNALS = [signal.SIGINT, signal.SIGTERM]


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


def test_a_training_in_another_thread_leaves_signals_alone():
    before, result = signal.getsignal(signal.SIGINT), []

    def train():
        result.append(fit(small_recipe(epochs=2), small_task()))
        result.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert result[0].records[0].epochs_run == 2
    assert result[1] == before


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
    for epoch in range(1, len(total), 2):
        path, left = tmp_path / str(epoch), []
        with pytest.raises(TrainingInterrupted) as stopped:
            fit(RECIPE, task, seeds, out=path, on_progress=interrupt_at(epoch), **OPTIONS)
        # In a group's last epoch it is heard one epoch later, in the first of the next group.
        heard = epoch if total[epoch - 1].epoch == stopped.value.epoch else epoch + 1
        assert total[heard - 1].epoch == stopped.value.epoch
        assert "checkpoint.safetensors" in contents(path)
        fit(RECIPE, task, seeds, out=path, resume=True, on_progress=left.append, **OPTIONS)
        assert len(left) == len(total) - heard  # not one epoch is lost
        assert_same_training(path, tmp_path / "whole")


def test_an_interrupt_without_a_folder_says_where_it_stopped():
    with pytest.raises(TrainingInterrupted, match=r"^stopped after epoch 3$"):
        fit(small_recipe(), small_task(), on_progress=interrupt_at(3, signal.SIGTERM))


# The installed command, really killed.

LAYERS, EPOCHS, GROUPS = 2, 60, [[0, 1], [2, 3]]


@pytest.fixture(scope="module")
def command():
    path = Path(sys.executable).with_name("graphjoule")
    if not path.exists():
        pytest.skip(f"graphjoule is not installed beside {sys.executable}")
    settings = ["--set", "hidden_channels=8", "--set", f"patience={EPOCHS}", "--device", "cpu"]
    numbers = ["--layers", str(LAYERS), "--epochs", str(EPOCHS), "--seeds", "4", "--checkpoint-every", "3"]
    return [path, "train", *settings, *numbers, "--resume"]


def start(command, folder):
    """The command, with two runs at a time: a training that begins with a plan keeps to it."""
    if not folder.exists():
        folder.mkdir()
        settings = {"hidden_channels": 8, "patience": EPOCHS, "epochs": EPOCHS}
        RunFolder(folder).begin(load_recipe("egnn", "digits", LAYERS, settings), GROUPS)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    arguments = [*command, "--out", folder]
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


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
def never_killed(command, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    process = start(command, folder)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "test accuracy" in out
    return folder


@pytest.mark.skipif(os.name == "nt", reason="Windows has no kill -9")
def test_kill_9_at_random_moments_then_resume_gives_the_same_bits(command, never_killed, tmp_path):
    folder, kills = tmp_path / "run", 0
    for _ in range(3):
        process = start(command, folder)
        wait_until_it_trains(process, folder)
        time.sleep(random.uniform(0, 0.3))
        process.kill()
        process.communicate(timeout=100)
        kills += process.returncode == -signal.SIGKILL
    assert kills > 0, "every process was done before it could be killed"
    process = start(command, folder)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert_same_training(folder, never_killed)


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no SIGINT")
def test_ctrl_c_saves_and_exits_with_130_and_resume_gives_the_same_bits(command, never_killed, tmp_path):
    folder = tmp_path / "run"
    process = start(command, folder)
    wait_until_it_trains(process, folder)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1].startswith("graphjoule: stopped after epoch ")
    assert err.splitlines()[-1].endswith("the same command with --resume goes on from there.")
    assert "Traceback" not in err
    process = start(command, folder)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "resuming at epoch" in err
    assert_same_training(folder, never_killed)
