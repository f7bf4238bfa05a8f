"""Processes that are started together, killed, resumed and stopped."""

import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from graphjoule.cli.train import Job
from graphjoule.errors import GraphjouleError
from graphjoule.files import write_json
from graphjoule.fitting import fit
from graphjoule.parallel import joined_processes, load_part, write_partition
from graphjoule.parallel.ranks import LOST, Ending, _patience, launch
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


@pytest.mark.slow  # four processes import torch
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


def test_bad_timeout_is_one_sentence(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("GRAPHJOULE_RANK_TIMEOUT", "soon")
    sentence = "GRAPHJOULE_RANK_TIMEOUT is 'soon'; expected a positive number"
    with pytest.raises(GraphjouleError, match=sentence), joined_processes("cpu"):
        pass


def test_the_ending_blames_the_process_that_failed_and_not_those_that_lost_it():
    script = f"import os, sys; sys.exit({LOST} if os.environ['RANK'] == '0' else print('why', file=sys.stderr) or 3)"
    ending = launch([sys.executable, "-c", script], 2)
    assert ending == Ending(3, 1, "why")
    assert ending.sentence(2).startswith("process 1 of 2 ended with exit code 3 (why), so the others were ended")


def test_a_process_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(sys.modules["graphjoule.parallel.ranks"], "_GRACE_SECONDS", 0.5)
    script = "import os, sys, time; time.sleep(100) if os.environ['RANK'] == '0' else sys.exit(4)"
    began = time.monotonic()
    assert launch([sys.executable, "-c", script], 2) == Ending(4, 1, "")
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_a_process_that_is_asked_to_stop_may_take_longer_to_save_than_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["graphjoule.parallel.ranks"], "_GRACE_SECONDS", 0.2)
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
        "from graphjoule.parallel.ranks import say_ready\n"
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


@pytest.mark.slow
def test_ranks_end_with_their_launcher(tmp_path):
    script = (
        "import os, sys, time\n"
        "from graphjoule.parallel.ranks import _end_with_the_launcher\n"
        "_end_with_the_launcher()\n"
        f"open({str(tmp_path)!r} + '/' + os.environ['RANK'], 'w').write(str(os.getpid()))\n"
        "time.sleep(300)\n"
    )
    code = f"import sys; from graphjoule.parallel.ranks import launch; launch([sys.executable, '-c', {script!r}], 2)"
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
