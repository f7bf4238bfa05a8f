"""``graphjoule train`` over several processes: what it starts, refuses, leaves behind and prints."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from typer.testing import CliRunner

from graphjoule.cli import app
from graphjoule.cli.train import Job
from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.parallel import read_partition, write_partition
from graphjoule.parallel.ranks import Ending
from graphjoule.tasks import DATASETS
from graphjoule.training.folder import RunFolder
from graphjoule.training.records import read_records
from graphjoule.training.threads import num_cores
from tests.parallel.tasks import ring_task

from . import TINY, run


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder to work in, in which all is that a test leaves."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
            for i, (x, label) in enumerate(zip(task.features.tolist(), task.targets.tolist(), strict=True))
        )
    with (folder / "edges.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["source", "target"])
        row, col = task.graph.row(), task.graph.col
        table.writerows([int(i), int(j)] for i, j in zip(row, col, strict=True) if i < j)
    return ["--nodes", str(folder / "nodes.csv"), "--edges", str(folder / "edges.csv")]


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
    names = [{path.name for path in (tmp_path / name).iterdir()} for name in ("one", "two")]
    assert names[0] == names[1]  # the parts are gone, and what the processes were told
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


def test_many_more_processes_than_cores_are_questioned(tmp_path):
    done = CliRunner().invoke(app, ["train", "--processes", "5000"])
    assert f"--processes is 5000, but this machine has {num_cores()} core" in str(done.exception)
    assert f"choose at most {4 * num_cores()}" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_distributed_without_torchrun_says_what_is_missing(tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    write_partition(ring_task(), 2, tmp_path, "blocks")
    done = CliRunner().invoke(app, ["train", "--distributed", "--parts", str(tmp_path), "--layers", "2"])
    assert "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set; start it with torchrun" in str(done.exception)


def test_a_training_stopped_before_its_first_epoch_says_so_and_leaves_nothing(tmp_path, endings):
    endings.ending = Ending(130, is_early=True)
    done = CliRunner().invoke(
        app, ["train", *write_archive(tmp_path / "a.npz", ring_task()), "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 130
    assert done.stderr == "graphjoule: stopped before the first epoch was over.\n"
    assert not (tmp_path / "out").exists()


def test_a_second_interrupt_is_one_line_too(tmp_path, endings):
    def interrupt(job):
        raise KeyboardInterrupt

    endings.meanwhile = interrupt
    options = write_archive(tmp_path / "a.npz", ring_task())
    done = CliRunner().invoke(app, ["train", *options, "--out", str(tmp_path / "out")])
    assert done.exit_code == 130
    assert done.stderr == "graphjoule: stopped at once, without saving the last epochs.\n"


@pytest.mark.parametrize("clusters", [[], ["--clusters", "4", "--set", "clusters.accumulate=2"]])
def test_a_folder_that_another_process_trains_in_is_refused_before_anything_starts(tmp_path, endings, clusters):
    out = tmp_path / "out"
    options = [*write_archive(tmp_path / "a.npz", ring_task()), *clusters, "--out", str(out)]
    with RunFolder(out).open():
        done = CliRunner().invoke(app, ["train", *options])
        assert f"Another process is training in {out}" in str(done.exception)
        assert not endings.commands
        assert [path.name for path in out.iterdir()] == [".lock"]
    CliRunner().invoke(app, ["train", *options])
    assert len(endings.commands) == 1


def test_parts_of_a_dataset_say_which(tmp_path, monkeypatch, endings):
    monkeypatch.setitem(
        DATASETS, "cora", SimpleNamespace(name="cora", load=lambda root: replace(ring_task(), name="cora"))
    )
    parts, out = tmp_path / "parts", tmp_path / "out"
    write_partition(replace(ring_task(), name="cora"), 2, parts, "blocks")
    options = ["--layers", "2", "--device", "cpu", "--processes", "2", "--parts", str(parts), "--out", str(out)]
    done = CliRunner().invoke(app, ["train", *options])
    assert done.exit_code == 2, done.exception
    assert [partition.data.name for partition in endings.partitions] == ["cora"]
    assert endings.jobs[0].recipe.data.name == "cora"


def test_parts_of_an_own_graph_want_its_files_too(tmp_path, endings):
    write_partition(ring_task(), 2, tmp_path, "blocks")
    done = CliRunner().invoke(app, ["train", "--processes", "2", "--parts", str(tmp_path)])
    assert "is a partition of ring, which is no dataset; name its files too, with --nodes or --npz" in str(
        done.exception
    )
    assert not endings.commands


def write_archive(path: Path, task) -> list[str]:
    """The task with its masks as a user's archive, and the options that name it."""
    nodes, size, split = np.arange(task.num_nodes), (task.num_nodes, task.num_nodes), task.split("public")
    row, col = task.graph.row().numpy(), task.graph.col.numpy()
    adj = sp.csr_array((np.ones(row.size), (row, col)), size)
    adj.setdiag(0)
    pieces = {f"adj_{name}": getattr(adj, name) for name in ("data", "indices", "indptr", "shape")}
    masks = {f"{part}_mask": np.isin(nodes, getattr(split, part)) for part in ("train", "val", "test")}
    np.savez(path, features=task.features.numpy(), labels=task.targets.numpy(), **pieces, **masks)
    return ["--npz", str(path), "--layers", "2", "--epochs", "2", "--device", "cpu", "--processes", "2", "--no-worth"]


@pytest.fixture
def endings(monkeypatch):
    """Stands for the processes: what each start was told, what there was then, and how it ends."""
    started = SimpleNamespace(ending=Ending(2), commands=[], jobs=[], partitions=[], meanwhile=lambda job: None)

    def start(command, num_processes):
        started.commands.append([*command[3:], num_processes])
        started.jobs.append(Job.model_validate_json(Path(command[4]).read_bytes()))
        started.partitions += [read_partition(parts) for parts in command[5:]]
        started.meanwhile(started.jobs[-1])
        return started.ending

    monkeypatch.setattr(import_module("graphjoule.parallel.ranks"), "launch", start)
    return started


def test_a_partition_with_the_masks_of_before_is_refused(tmp_path, endings):
    options = write_archive(tmp_path / "a.npz", ring_task())
    parts = str(tmp_path / "parts")
    cut = CliRunner().invoke(app, ["partition", *options[:2], "--parts", "2", "--out", parts, "--method", "blocks"])
    assert cut.exit_code == 0, cut.output
    options += ["--parts", parts, "--out", str(tmp_path / "out")]
    CliRunner().invoke(app, ["train", *options])
    assert len(endings.commands) == 1  # of the same masks: it is taken
    write_archive(tmp_path / "a.npz", ring_task(train=torch.arange(9)))
    done = CliRunner().invoke(app, ["train", *options])
    assert "is not a partition of a.npz as it is now: its data or its splits are others" in str(done.exception)
    assert len(endings.commands) == 1
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "parts" / "partition.json").exists()


def test_parts_of_another_number_are_refused_before_anything_starts(tmp_path, endings):
    options = write_archive(tmp_path / "a.npz", ring_task())
    CliRunner().invoke(app, ["partition", *options[:2], "--parts", "3", "--out", str(tmp_path / "parts")])
    done = CliRunner().invoke(
        app, ["train", *options, "--parts", str(tmp_path / "parts"), "--out", str(tmp_path / "o")]
    )
    assert "is cut into 3 parts, but there are 2 processes" in str(done.exception)
    assert not endings.commands
    assert not (tmp_path / "o").exists()


def test_a_partition_that_a_kill_left_is_used_again_unless_the_masks_have_changed(tmp_path, endings):
    options = [*write_archive(tmp_path / "a.npz", ring_task()), "--out", str(tmp_path / "out")]
    parts = tmp_path / "out" / ".graphjoule-parts-2"
    done = CliRunner().invoke(app, ["partition", *options[:2], "--parts", "2", "--out", str(parts)])
    assert done.exit_code == 0, done.output
    left = read_partition(parts)
    os.utime(parts / "part-0.safetensors", (0, 0))
    assert CliRunner().invoke(app, ["train", *options]).exit_code == 2
    assert endings.partitions == [left]
    assert (parts / "part-0.safetensors").stat().st_mtime == 0
    write_archive(tmp_path / "a.npz", ring_task(train=torch.arange(9)))
    assert CliRunner().invoke(app, ["train", *options]).exit_code == 2
    assert endings.partitions[1].splits_sha256 != left.splits_sha256
    assert endings.partitions[1].data.sha256 == left.data.sha256
    assert not parts.exists()


def test_a_training_that_breaks_off_keeps_its_parts_for_resume(tmp_path, endings):
    endings.ending = Ending(-9, 1)
    out = tmp_path / "out"
    options = [*write_archive(tmp_path / "a.npz", ring_task()), "--out", str(out)]
    endings.meanwhile = lambda job: RunFolder(out).begin(job.recipe, [[0]])
    done = CliRunner().invoke(app, ["train", *options])
    assert done.exit_code == 1
    assert "process 1 of 2 was killed by SIGKILL" in done.stderr
    assert sorted(path.name for path in out.iterdir()) == [".graphjoule-parts-2", "run.json"]
    CliRunner().invoke(app, ["train", *options, "--resume"])
    assert endings.partitions[0] == endings.partitions[1]


def test_a_training_that_is_done_leaves_no_parts_of_any_number(tmp_path, endings):
    """One that broke off in three processes may have been ended by two."""
    endings.ending = Ending(0)
    out, options = tmp_path / "out", write_archive(tmp_path / "a.npz", ring_task())
    endings.meanwhile = lambda job: fit(job.recipe, job.source.load(), job.seeds, device="cpu", out=out, resume=True)
    write_partition(ring_task(), 3, out / ".graphjoule-parts-3", "blocks")
    done = CliRunner().invoke(app, ["train", *options, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert len(endings.commands) == 1
    assert (out / "records.jsonl").exists()
    assert not list(out.glob("*parts-*"))


def test_a_partition_of_the_users_in_the_run_folder_stays(tmp_path, endings):
    endings.ending = Ending(0)
    out, options = tmp_path / "out", write_archive(tmp_path / "a.npz", ring_task())
    endings.meanwhile = lambda job: fit(job.recipe, job.source.load(), job.seeds, device="cpu", out=out, resume=True)
    assert CliRunner().invoke(app, ["train", *options, "--out", str(out)]).exit_code == 0
    mine = write_partition(ring_task(), 2, out / "parts-2", "blocks")
    done = CliRunner().invoke(app, ["train", *options, "--out", str(out), "--resume"])
    assert done.exit_code == 0, done.output
    assert read_partition(out / "parts-2") == mine


def test_a_folder_with_parts_and_no_training_is_refused_as_any_that_holds_something(tmp_path, endings):
    options = write_archive(tmp_path / "a.npz", ring_task())
    (tmp_path / "out/parts-2").mkdir(parents=True)
    (tmp_path / "out/parts-2/part-7.safetensors").write_text("mine")
    done = CliRunner().invoke(app, ["train", *options, "--out", str(tmp_path / "out")])
    assert "holds parts-2, which this command did not begin" in str(done.exception)
    assert (tmp_path / "out/parts-2/part-7.safetensors").read_text() == "mine"
    assert not endings.commands


@pytest.mark.parametrize("split", ["nosuch", "per-class-5-0", "per-class-100-1"])
def test_a_bad_split_is_refused_before_anything_is_written(tmp_path, monkeypatch, endings, split):
    monkeypatch.chdir(tmp_path)
    options = write_archive(tmp_path / "a.npz", ring_task())
    done = CliRunner().invoke(app, ["train", *options, "--set", f"split={split}"])
    assert isinstance(done.exception, GraphjouleError)
    assert split in str(done.exception)
    assert not endings.commands
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("out", [[], ["--out", "deep/er/out"]])
def test_what_the_processes_refuse_leaves_nothing(tmp_path, monkeypatch, endings, out):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["train", *write_archive(tmp_path / "a.npz", ring_task()), *out])
    assert done.exit_code == 2
    assert len(endings.commands) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
    assert not Path(endings.commands[0][1]).exists()  # what they were told


def test_processes_on_clusters_are_told_what_was_asked_for_and_not_what_the_program_was_called_with(
    tmp_path, monkeypatch, endings
):
    monkeypatch.setattr(sys, "argv", ["notebook", "--flag", "--processes", "7"])
    options = write_archive(tmp_path / "a.npz", ring_task())
    options += ["--processes", "2", "--clusters", "4", "--set", "clusters.accumulate=2", "--seeds", "3,5", "--json"]
    done = CliRunner().invoke(app, ["train", *options])
    assert done.exit_code == 2
    (command, path, size), (job,) = endings.commands[0], endings.jobs
    assert (command, size) == ("rank", 2)
    assert not Path(path).exists()
    assert (job.seeds, job.is_json, job.source.npz) == ([3, 5], True, tmp_path / "a.npz")
    assert job.recipe.train.clusters.parts == 4


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
        "--device",
        "cpu",
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


def children_of(pid: int) -> list[int]:
    return [int(number) for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seconds", [0.1, 2.0, 4.0])
def test_ctrl_c_while_the_ranks_start_is_one_line(tmp_path, signum, seconds):
    options = [*write_tables(tmp_path), "--layers", "2", "--epochs", "100000", "--device", "cpu", "--processes", "2"]
    options += ["--set", "patience=100000", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        [sys.executable, "-m", "graphjoule", "train", *options], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while len(children_of(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    ranks = children_of(process.pid)
    time.sleep(seconds)
    os.kill(process.pid, signum)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert "graphjoule: stopped " in said
    assert len(ranks) == 2
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)


SHARED = ("--clusters", "8", "--set", "clusters.accumulate=2", "--set", "dropout=0", "--json")


@pytest.mark.slow  # tests/parallel/test_clusters.py has the same without the command
def test_two_processes_share_the_steps_and_train_what_one_trains(capfd, here):
    alone = run("train", *TINY, *SHARED, "--out", "alone")
    assert alone.code == 0, alone.err
    shared = run("train", *TINY, *SHARED, "--out", "shared", "--processes", "2")
    out, err = capfd.readouterr()
    assert (shared.code, shared.out) == (0, ""), err
    (line,) = out.splitlines()  # one of the processes prints
    assert json.loads(line)["n"] == 1
    (one,), (two,) = (list(read_records(here / name / "records.jsonl")) for name in ("alone", "shared"))
    assert one.run_id == two.run_id
    assert two.device.endswith("2 processes")
    assert two.curve["train_loss"] == pytest.approx(one.curve["train_loss"], rel=1e-4)
    assert two.curve["val_loss"] == pytest.approx(one.curve["val_loss"], rel=1e-4)
    assert two.test_score == pytest.approx(one.test_score, abs=2e-3)


def test_processes_without_a_group_of_clusters_each_are_told_so(here):
    refused = run("train", *TINY, "--clusters", 8, "--processes=2")
    assert refused.code == 2
    assert "clusters.accumulate is 1, but there are 2 processes" in refused.err
    assert list(here.iterdir()) == []


def test_parts_and_clusters_contradict_each_other(here):
    refused = run("train", *TINY, "--dataset", "digits", "--clusters", 4, "--processes", 2, "--parts", "parts")
    assert refused.code == 2
    assert "the recipe has clusters, for which every process reads the whole graph" in refused.err


def write_ring(folder: Path) -> list[str]:
    """A ring of 24 nodes in two classes, the last without a label."""
    nodes = ["id,a,b,label", *(f"n{i},{i % 2},{i / 24},{'xy'[i % 2] if i < 23 else ''}" for i in range(24))]
    edges = ["source,target", *(f"n{i},n{(i + 1) % 24}" for i in range(24))]
    (folder / "nodes.csv").write_text("\n".join(nodes))
    (folder / "edges.csv").write_text("\n".join(edges))
    return ["--nodes", "nodes.csv", "--edges", "edges.csv"]


@pytest.mark.slow
def test_processes_on_an_own_graph_predict_it_too(command, here):
    arguments = ["train", *TINY, *write_ring(here), *SHARED, "--out", "run", "--processes", "2"]
    done = subprocess.run([command, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["predictions"] == "run/predictions.csv"
    assert len((here / "run" / "predictions.csv").read_text().splitlines()) == 25
