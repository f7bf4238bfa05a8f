"""Trainings that are started over several processes, killed, resumed and refused."""

import csv
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from typer.testing import CliRunner

from graphjoule.cli import app
from graphjoule.cli.processes import Job
from graphjoule.errors import GraphjouleError
from graphjoule.files import write_json
from graphjoule.fitting import fit
from graphjoule.parallel import load_part, read_partition, write_partition
from graphjoule.parallel.launch import LOST, Ending, _patience, launch
from graphjoule.tasks import DATASETS
from graphjoule.training.folder import RunFolder
from graphjoule.training.records import read_records
from graphjoule.training.saving import load_model

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
            for i, (x, label) in enumerate(zip(task.features.tolist(), task.targets.tolist(), strict=True))
        )
    with (folder / "edges.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["source", "target"])
        row, col = task.graph.row(), task.graph.col
        table.writerows([int(i), int(j)] for i, j in zip(row, col, strict=True) if i < j)
    return ["--nodes", str(folder / "nodes.csv"), "--edges", str(folder / "edges.csv")]


def part_fit(group, parts, recipe, seeds, out):
    result = fit(recipe, load_part(parts, group.rank, group), seeds, device="cpu", out=out, checkpoint_every=2)
    return [record.test_score for record in result.records], [model.state_dict() for model in result.models]


def job_of(out: Path, recipe, *, resume: bool = False) -> Job:
    return Job(recipe=recipe, seeds=[0, 1], device="cpu", out=out, resume=resume, checkpoint_every=2)


def start(job: Job, parts: Path, *program: str, ending: tuple[str, ...] = ()) -> Ending:
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
    ending = start(job_of(out, recipe), parts, DYING_RANK, ending=(str(rank), str(epoch)))
    assert time.monotonic() - began < 60
    assert (ending.code, ending.rank) == (-signal.SIGKILL, rank)
    assert f"process {rank} of 2 was killed by SIGKILL" in ending.sentence(2)
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


def test_distributed_without_torchrun_says_what_is_missing(tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    write_partition(ring_task(), 2, tmp_path, "blocks")
    done = CliRunner().invoke(app, ["train", "--distributed", "--parts", str(tmp_path), "--layers", "2"])
    assert "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set; start it with torchrun" in str(done.exception)


def test_bad_timeout_is_one_sentence(monkeypatch):
    from graphjoule.parallel.start import _timeout_seconds

    monkeypatch.setenv("GRAPHJOULE_RANK_TIMEOUT", "soon")
    with pytest.raises(GraphjouleError, match="GRAPHJOULE_RANK_TIMEOUT is 'soon'; expected a positive number"):
        _timeout_seconds()


def test_the_ending_blames_the_process_that_failed_and_not_those_that_lost_it():
    script = f"import os, sys; sys.exit({LOST} if os.environ['RANK'] == '0' else print('why', file=sys.stderr) or 3)"
    ending = launch([sys.executable, "-c", script], 2)
    assert ending == Ending(3, 1, "why")
    assert ending.sentence(2).startswith("process 1 of 2 ended with exit code 3 (why), so the others were ended")


def test_a_process_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr("graphjoule.parallel.launch._GRACE_SECONDS", 0.5)
    script = "import os, sys, time; time.sleep(100) if os.environ['RANK'] == '0' else sys.exit(4)"
    began = time.monotonic()
    assert launch([sys.executable, "-c", script], 2) == Ending(4, 1, "")
    assert time.monotonic() - began < 30


def test_a_process_that_is_asked_to_stop_may_take_longer_to_save_than_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr("graphjoule.parallel.launch._GRACE_SECONDS", 0.2)
    script = (
        "import os, signal, sys, time\n"
        "from pathlib import Path\n"
        f"folder, rank = Path({str(tmp_path)!r}), os.environ['RANK']\n"
        "def stop(*_):\n"
        "    if rank == '0':\n"
        "        time.sleep(1.5)\n"
        "        (folder / 'saved').touch()\n"
        "    os._exit(130)\n"
        "signal.signal(signal.SIGINT, stop)\n"
        "from graphjoule.parallel.start import say_ready\n"
        "say_ready()\n"
        "(folder / f'ready-{rank}').touch()\n"
        "time.sleep(60)\n"
    )

    def interrupt():
        deadline = time.monotonic() + 30
        while len(list(tmp_path.glob("ready-*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert launch([sys.executable, "-c", script], 2) == Ending(130, 0, "")
    thread.join()
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_processes_that_are_not_ready_to_stop_are_ended_without_a_word(tmp_path, capfd, signum):
    script = f"import os, time; open({str(tmp_path)!r} + '/' + os.environ['RANK'], 'w').close(); time.sleep(60)"

    def interrupt():
        deadline = time.monotonic() + 30
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signum)

    thread = threading.Thread(target=interrupt)
    thread.start()
    began = time.monotonic()
    assert launch([sys.executable, "-c", script], 2) == Ending(130, is_early=True)
    assert time.monotonic() - began < 30
    thread.join()
    assert capfd.readouterr() == ("", "")


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
    monkeypatch.setitem(DATASETS, "cora", SimpleNamespace(load=lambda root: replace(ring_task(), name="cora")))
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


@pytest.mark.parametrize(
    ("codes", "is_stopping", "seconds"),
    [
        ([None, None], True, math.inf),
        ([None, 0], False, math.inf),
        ([None, 130], True, 600.0),
        ([None, 130], False, 10.0),
        ([None, 130, LOST], True, 10.0),
        ([None, -9], True, 10.0),
    ],
)
def test_how_long_the_others_are_waited_for(codes, is_stopping, seconds):
    assert _patience(codes, is_stopping=is_stopping) == seconds


def write_archive(path: Path, task) -> list[str]:
    """The task with its masks as a user's archive, and the options that name it."""
    nodes, size, split = np.arange(task.num_nodes), (task.num_nodes, task.num_nodes), task.split("public")
    row, col = task.graph.row().numpy(), task.graph.col.numpy()
    adj = sp.csr_array((np.ones(row.size), (row, col)), size)
    adj.setdiag(0)
    pieces = {f"adj_{name}": getattr(adj, name) for name in ("data", "indices", "indptr", "shape")}
    masks = {f"{part}_mask": np.isin(nodes, getattr(split, part)) for part in ("train", "val", "test")}
    np.savez(path, features=task.features.numpy(), labels=task.targets.numpy(), **pieces, **masks)
    return ["--npz", str(path), "--layers", "2", "--epochs", "2", "--device", "cpu", "--processes", "2"]


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

    monkeypatch.setattr("graphjoule.cli.processes.launch", start)
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
    assert "holds parts-2, and nothing there says that graphjoule wrote it" in str(done.exception)
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


@pytest.mark.slow
def test_ranks_end_with_their_launcher(tmp_path):
    script = (
        "import os, sys, time\n"
        "from graphjoule.parallel.start import _end_with_the_launcher\n"
        "_end_with_the_launcher()\n"
        f"open({str(tmp_path)!r} + '/' + os.environ['RANK'], 'w').write(str(os.getpid()))\n"
        "time.sleep(300)\n"
    )
    code = f"import sys; from graphjoule.parallel.launch import launch; launch([sys.executable, '-c', {script!r}], 2)"
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
