"""``python -m tests.faults.soak --minutes 60 --log soak.jsonl``: train, kill, resume, predict and report, at random.

Every round draws a model, settings and a moment to kill with SIGKILL from a seed that the log names. The training is
resumed until it is done, then predicted with and reported on; it must end with the same records as one that nobody
killed, once in `_COMPARED` rounds. A line of the log is a round; the last one sums up.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.faults.commands import essence, write_inputs

_MODELS = ("egnn", "gcn", "gcnii", "jknet", "appnp", "sgc", "pairnorm", "dropedge", "resgcn", "wave")
_COMPARED = 3
_SECONDS = 300


def command(folder: Path, *words: str, kill_after: float | None = None) -> tuple[int, str]:
    """Run ``graphjoule WORDS`` in a process, which is killed after a while; its exit code and what it said."""
    arguments = [sys.executable, "-W", "ignore", "-m", "graphjoule", *words]
    with (folder / "said.txt").open("wb") as said:
        process = subprocess.Popen(arguments, cwd=folder, stdout=said, stderr=said)
        try:
            process.wait(_SECONDS if kill_after is None else kill_after)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return process.returncode, (folder / "said.txt").read_text(errors="replace")


def one_round(folder: Path, seed: int) -> dict[str, Any]:
    """Train, kill, resume, predict and report once; what happened, with ``wrong`` if something did."""
    draw = random.Random(seed)
    shutil.rmtree(folder / "out")
    (folder / "out").mkdir()
    words = ["train", "--nodes", "in/nodes.csv", "--edges", "in/edges.csv", "--device", "cpu", "--out", "out/run"]
    words += ["--model", draw.choice(_MODELS), "--layers", str(draw.randint(1, 12)), "--seeds", str(draw.randint(1, 4))]
    words += ["--epochs", str(draw.randint(1, 400)), "--checkpoint-every", str(draw.randint(1, 60))]
    words += ["--set", f"hidden_channels={draw.choice([2, 8, 32])}", "--set", f"lr={10 ** draw.uniform(-4, -1):.5f}"]
    kills, code, said = 0, -9, ""
    while code == -9:
        resume = ["--resume"] if (folder / "out/run").exists() else []
        moment = draw.uniform(0.5, 12) if kills < 5 else None
        code, said = command(folder, *words, *resume, kill_after=moment)
        kills += code == -9
    fields: dict[str, Any] = {"seed": seed, "words": words, "kills": kills, "code": code}
    if code not in (0, 1):  # 1: every run failed, which a large learning rate may
        return fields | {"wrong": said[-800:]}
    if code == 0:
        for after in (["predict", "out/run", "--out", "out/p.csv"], ["report", "out/run"]):
            code, said = command(folder, *after)
            if code != 0:
                return fields | {"wrong": f"{after[0]}: {said[-800:]}"}
    if seed % _COMPARED == 0:
        found = essence(folder / "out/run")
        shutil.rmtree(folder / "out")
        (folder / "out").mkdir()
        command(folder, *words)
        expected = essence(folder / "out/run")
        found.pop("report.html", None)
        if found != expected:
            differing = [name for name in {**found, **expected} if found.get(name) != expected.get(name)]
            return fields | {"wrong": f"other content: {', '.join(differing)}"}
    return fields


def main() -> None:
    """Go on for the time that is asked for; exit code 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description="Train, kill, resume, predict and report with random settings.")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, default=Path("soak.jsonl"))
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    begin, rounds, kills, wrong = time.monotonic(), 0, 0, 0
    with tempfile.TemporaryDirectory() as name, options.log.open("a") as log:
        folder = Path(name).resolve()
        write_inputs(folder)
        while time.monotonic() - begin < 60 * options.minutes:
            fields = one_round(folder, options.seed + rounds)
            rounds, kills, wrong = rounds + 1, kills + fields["kills"], wrong + ("wrong" in fields)
            print(json.dumps(fields), file=log, flush=True)
        minutes = round((time.monotonic() - begin) / 60, 1)
        print(json.dumps({"rounds": rounds, "kills": kills, "wrong": wrong, "minutes": minutes}), file=log)
    print(f"{rounds} rounds, {kills} kills, {wrong} wrong in {minutes} minutes; see {options.log}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
