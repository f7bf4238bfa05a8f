"""Trainings that are started over several processes, killed, resumed and refused."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from graphjoule.cli import app
from graphjoule.cli.processes import Job
from graphjoule.distributed import load_part, write_partition
from graphjoule.distributed.launch import LOST, Outcome, launch
from graphjoule.errors import GraphjouleError
from graphjoule.files import write_json
from graphjoule.records import read_records
from graphjoule.saving import load_model
from graphjoule.training import fit
from graphjoule.training.folder import RunFolder

from .tasks import ring_task, small_recipe

DYING_RANK = str(Path(__file__).with_name("dying_rank.py"))
EPOCHS = 12


@pytest.fixture(autouse=True)
def one_thread_each(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("GRAPHJOULE_RANK_TIMEOUT", "60")


def write_tables(folder: Path) -> list[str]:
    """The task as a user's two tables, and the options that name them."""
    task = ring_task()
    with (folder / "nodes.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", *(f"x{k}" for k in range(task.num_features)), "label"])
        table.writerows(
            [i, *x, f"class {label}"]
            for i, (x, label) in enumerate(zip(task.features.tolist(), task.labels.tolist(), strict=True))
        )
    with (folder / "edges.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["source", "target"])
        row, col = task.graph.row(), task.graph.col
        table.writerows([int(i), int(j)] for i, j in zip(row, col, strict=True) if i < j)
    return ["--nodes", str(folder / "nodes.csv"), "--edges", str(folder / "edges.csv")]


def part_fit(group, parts, recipe, seeds, out):
    result = fit(recipe, load_part(parts, group.rank, group), seeds, device="cpu", out=out, checkpoint_every=2)
    return [record.test_accuracy for record in result.records], [model.state_dict() for model in result.models]


def job_of(out: Path, recipe, *, resume: bool = False) -> Job:
    return Job(recipe=recipe, seeds=[0, 1], device="cpu", out=out, resume=resume, checkpoint_every=2)


def start(job: Job, parts: Path, *program: str, ending: tuple[str, ...] = ()) -> Outcome:
    path = parts / "job.json"
    write_json(path, job.model_dump(mode="json"))
    return launch([sys.executable, *program, str(path), str(parts), *ending], 2)


def assert_same_results(folder: Path, expected: Path) -> None:
    """Records and models of two folders agree to the bit."""
    left, right = ({r.seed: r for r in read_records(f / "records.jsonl")} for f in (folder, expected))
    assert left.keys() == right.keys()
    for seed, record in left.items():
        hidden = {"seconds", "created", "peak_bytes"}
        assert record.model_dump(exclude=hidden) == right[seed].model_dump(exclude=hidden)
        one, two = (load_model(RunFolder(f).model_path(seed)).state_dict() for f in (folder, expected))
        assert all(one[name].equal(two[name]) for name in two)


def kill_and_resume(tmp_path: Path, recipe, parts: Path, expected: Path, rank: int, epoch: int) -> None:
    out = tmp_path / f"killed-{rank}-{epoch}"
    began = time.monotonic()
    outcome = start(job_of(out, recipe), parts, DYING_RANK, ending=(str(rank), str(epoch)))
    assert time.monotonic() - began < 60
    assert (outcome.code, outcome.rank) == (-signal.SIGKILL, rank)
    assert f"process {rank} of 2 was killed by SIGKILL" in outcome.sentence(2)
    assert start(job_of(out, recipe, resume=True), parts, "-m", "graphjoule", "rank").code == 0
    assert_same_results(out, expected)


def test_a_killed_rank_ends_the_job_and_resume_gives_the_same_bits(world, tmp_path):
    recipe = small_recipe("egnn", 2, epochs=EPOCHS)
    parts, expected = tmp_path / "parts", tmp_path / "whole"
    write_partition(ring_task(), 2, parts, "blocks")
    world.run(part_fit, 2, str(parts), recipe, [0, 1], str(expected))
    kill_and_resume(tmp_path, recipe, parts, expected, rank=1, epoch=7)


@pytest.mark.slow
def test_ten_kills_at_random_epochs(world, tmp_path):
    recipe = small_recipe("pairnorm", 2, epochs=EPOCHS)
    parts, expected = tmp_path / "parts", tmp_path / "whole"
    write_partition(ring_task(), 2, parts, "blocks")
    world.run(part_fit, 2, str(parts), recipe, [0, 1], str(expected))
    places = random.Random(0).sample([(rank, epoch) for rank in range(2) for epoch in range(EPOCHS)], 10)
    for rank, epoch in places:
        kill_and_resume(tmp_path, recipe, parts, expected, rank, epoch)


def test_processes_option_trains_writes_and_predicts_like_one_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = [*write_tables(tmp_path), "--layers", "2", "--epochs", "6", "--seeds", "2", "--device", "cpu", "--json"]
    options += ["--test-fraction", "0.2"]
    results = {}
    for name, more in (("one", []), ("two", ["--processes", "2"])):
        done = CliRunner().invoke(app, ["train", *options, "--out", name, *more])
        assert done.exit_code == 0, done.output
        results[name] = json.loads(done.stdout.splitlines()[-1])
    for key in ("test_mean", "val_mean", "n"):
        assert results["two"][key] == pytest.approx(results["one"][key])
    one, two = (list(read_records(tmp_path / name / "records.jsonl")) for name in ("one", "two"))
    for mine, theirs in zip(one, two, strict=True):
        assert mine.run_id == theirs.run_id
        assert mine.split_sha256 == theirs.split_sha256
        assert mine.task_sha256 == theirs.task_sha256
        assert theirs.device == "cpu (1 thread), 2 processes"
        torch.testing.assert_close(
            torch.tensor(theirs.curve["train_loss"]), torch.tensor(mine.curve["train_loss"]), rtol=1e-4, atol=0
        )
    assert (tmp_path / "two" / "predictions.csv").exists()
    again = CliRunner().invoke(app, ["train", *options, "--out", "two", "--processes", "2"])
    assert again.exit_code == 1  # raised as a GraphjouleError, which `main` makes a sentence and exit code 2
    assert "already holds a training" in str(again.exception)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--distributed"], "--distributed needs --parts"),
        (["--parts", "here"], "is for --distributed or --processes"),
        (["--distributed", "--processes", "2", "--parts", "here"], "contradict each other"),
        (["--distributed", "--parts", "here", "--dataset", "cora"], "the data are in the folder of --parts"),
        (["--distributed", "--parts", "here"], "There is no partition in here"),
        (["--processes", "2", "--parts", "here"], "There is no partition in here"),
    ],
)
def test_contradictory_options_are_one_sentence(tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    if "--processes" in options and "--distributed" not in options:
        options = [*options, *write_tables(tmp_path)]
    done = CliRunner().invoke(app, ["train", *options])
    assert isinstance(done.exception, GraphjouleError)
    assert words in str(done.exception)
    assert not (tmp_path / "runs").exists()


def test_distributed_without_torchrun_says_what_is_missing(tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    write_partition(ring_task(), 2, tmp_path, "blocks")
    done = CliRunner().invoke(app, ["train", "--distributed", "--parts", str(tmp_path), "--layers", "2"])
    assert "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set; start it with torchrun" in str(done.exception)


def test_bad_timeout_is_one_sentence(monkeypatch):
    from graphjoule.distributed.start import _timeout_seconds

    monkeypatch.setenv("GRAPHJOULE_RANK_TIMEOUT", "soon")
    with pytest.raises(GraphjouleError, match="GRAPHJOULE_RANK_TIMEOUT is 'soon'; expected a positive number"):
        _timeout_seconds()


def test_outcome_blames_the_process_that_failed_and_not_those_that_lost_it():
    script = f"import os, sys; sys.exit({LOST} if os.environ['RANK'] == '0' else print('why', file=sys.stderr) or 3)"
    outcome = launch([sys.executable, "-c", script], 2)
    assert outcome == Outcome(3, 1, "why")
    assert outcome.sentence(2).startswith("process 1 of 2 ended with exit code 3 (why), so the others were ended")


def test_a_process_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr("graphjoule.distributed.launch._GRACE_SECONDS", 0.5)
    script = "import os, sys, time; time.sleep(100) if os.environ['RANK'] == '0' else sys.exit(4)"
    began = time.monotonic()
    assert launch([sys.executable, "-c", script], 2) == Outcome(4, 1, "")
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_torchrun_trains_and_a_bad_part_is_one_sentence(tmp_path):
    parts = tmp_path / "parts"
    write_partition(ring_task(), 2, parts, "blocks")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    command = [
        *torchrun,
        "graphjoule",
        "train",
        "--distributed",
        "--parts",
        str(parts),
        "--layers",
        "2",
        "--epochs",
        "5",
    ]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(list(read_records(tmp_path / "out" / "records.jsonl"))) == 1
    path = parts / "part-1.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "no")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    assert "part-1.safetensors is not a whole graphjoule part of a partition" in done.stderr
    assert not (tmp_path / "no").exists()


@pytest.mark.slow
def test_ctrl_c_stops_all_ranks_after_the_same_epoch(tmp_path):
    options = [*write_tables(tmp_path), "--layers", "2", "--epochs", "100000", "--device", "cpu", "--processes", "2"]
    options += ["--set", "patience=100000", "--out", str(tmp_path / "out"), "--checkpoint-every", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "graphjoule", "train", *options], stderr=subprocess.PIPE, text=True
    )
    checkpoint = tmp_path / "out" / "checkpoint.safetensors"
    deadline = time.monotonic() + 90
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "--resume goes on from there" in said


@pytest.mark.slow
def test_ranks_end_with_their_launcher(tmp_path):
    script = (
        "import os, sys, time\n"
        "from graphjoule.distributed.start import _end_with_the_launcher\n"
        "_end_with_the_launcher()\n"
        f"open({str(tmp_path)!r} + '/' + os.environ['RANK'], 'w').write(str(os.getpid()))\n"
        "time.sleep(300)\n"
    )
    code = (
        f"import sys; from graphjoule.distributed.launch import launch; launch([sys.executable, '-c', {script!r}], 2)"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 90
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(0.5)
    ranks = [int(path.read_text()) for path in tmp_path.iterdir()]
    launcher.kill()
    launcher.wait()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{rank}").exists() for rank in ranks) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
