"""Faults at the calls that change files: some of them here, all with ``pytest -m slow``."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.commands import COMMANDS, fault_in
from tests.faults.inject import KINDS, can_be

ROOT = Path(__file__).parents[2]
# A write that is not atomic, as a plugin of the attack's process: the attack must find it.
BROKEN = """
import graphjoule.files, graphjoule.training.predictions
def write_text(path, text):
    with open(path, "w") as file:
        file.write(text)
graphjoule.training.predictions.write_text = write_text
import runpy, sys
sys.argv = ["tests.faults", *sys.argv[1:]]
runpy.run_module("tests.faults", run_name="__main__")
"""


def attacked(folder: Path, *options: object, program: str | None = None) -> dict:
    """The record of an attack in a process of its own: this one has trained, and so must not fork."""
    words = ["-c", program] if program else ["-m", "tests.faults"]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "-W", "ignore", *words, *map(str, options), "--out", str(folder / "counts.json")]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads((folder / "counts.json").read_text())


def test_a_training_and_a_prediction_survive_some_faults(tmp_path):
    record = attacked(tmp_path, "--commands", "train", "--step", "113")
    assert record["findings"] == []
    assert record["num_injections"] >= 3
    assert {"open", "write", "sync", "rename", "unlink", "lock", "mkdir"} <= record["calls"]["train"].keys()


@pytest.mark.parametrize("kind", KINDS)
def test_the_faults_are_real(tmp_path, kind):
    """A file that is written in place is found half written, or not at all, and the error is the disk's."""
    (tmp_path / "p.csv").write_text("old")
    code = (
        "import sys; from pathlib import Path; from tests.faults.inject import Injector\n"
        f"Injector(Path({str(tmp_path)!r}), {kind!r}, 1).install()\n"
        f"Path({str(tmp_path / 'p.csv')!r}).write_text('all that is new')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True)
    left = {"kill before": "", "kill after": "all that is new", "EIO": "all that is new"}  # the rest is tried again
    assert (tmp_path / "p.csv").read_text() == left.get(kind, "all tha")
    if kind.startswith("kill"):
        assert done.returncode == 137
    else:
        assert os.strerror(getattr(errno, kind)) in done.stderr.decode()
    expected = {"p.csv": b"all that is new"}
    assert (fault_in(tmp_path, COMMANDS["predict"], expected) is None) == (kind in ("kill after", "EIO"))


@pytest.mark.slow
def test_the_attack_finds_a_write_that_is_not_atomic(tmp_path):
    kinds = ["--kinds", "kill in the middle", "ENOSPC"]
    record = attacked(tmp_path, "--commands", "predict", *kinds, program=BROKEN)
    assert "p.csv is neither as it was nor as it shall be" in {finding["what"] for finding in record["findings"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_fault_at_every_call(tmp_path, name):
    record = attacked(tmp_path, "--commands", name)
    assert record["findings"] == []
    assert record["num_injections"] == record["possible"][name]


def test_a_fault_is_put_only_where_it_can_be():
    assert [kind for kind in KINDS if can_be(kind, "lock")] == ["kill before", "kill after", "EIO"]
    assert [kind for kind in KINDS if can_be(kind, "write")] == list(KINDS)
