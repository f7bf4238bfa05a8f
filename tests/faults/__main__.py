"""``python -m tests.faults --commands train study --out counts.json``: the whole attack, as a script."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.faults.attack import attack
from tests.faults.commands import COMMANDS
from tests.faults.inject import KINDS


def main() -> None:
    """Attack, print findings, write the record."""
    parser = argparse.ArgumentParser(description="Hit every call that changes a file with every fault.")
    parser.add_argument("--commands", nargs="+", choices=list(COMMANDS), default=list(COMMANDS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--step", type=int, default=1, help="do every so many-th injection only")
    parser.add_argument("--offset", type=int, default=0, help="which injection is the first")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the injections")
    parser.add_argument("--seconds", type=float, help="stop after so long")
    parser.add_argument(
        "--out", type=Path, help="where to write the record, as JSON; results of other commands are kept"
    )
    options = parser.parse_args()
    begin = time.monotonic()
    if options.workers > 1:
        found = _shared(options)
    else:
        found = attack(
            options.commands,
            kinds=options.kinds,
            step=options.step,
            offset=options.offset,
            seconds=options.seconds,
            on_hit=_show,
        )
    for finding in found["findings"]:
        print(finding)
    print(f"{found['num_injections']} injections, {len(found['findings'])} findings")
    if options.out:
        before = json.loads(options.out.read_text()) if options.out.exists() else {"calls": {}, "injections": {}}
        before["findings"] = [f for f in before.get("findings", []) if f["command"] not in options.commands]
        record = {
            "calls": before["calls"] | found["calls"],
            "possible": before.get("possible", {}) | found["possible"],
            "injections": before["injections"] | found["injections"],
            "findings": before["findings"] + found["findings"],
            "seconds": round(before.get("seconds", 0) + time.monotonic() - begin, 1),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        record["num_injections"] = sum(sum(kinds.values()) for kinds in record["injections"].values())
        options.out.write_text(json.dumps(record, indent=2) + "\n")


def _shared(options: argparse.Namespace) -> dict[str, Any]:
    """What several processes find together; each does every so many-th injection."""
    with tempfile.TemporaryDirectory() as folder:
        begun = []
        for worker in range(options.workers):
            words = [sys.executable, "-W", "ignore", "-m", "tests.faults", "--out", f"{folder}/{worker}.json"]
            words += ["--commands", *options.commands, "--kinds", *options.kinds]
            words += ["--step", str(options.step * options.workers)]
            words += ["--offset", str(options.offset + options.step * worker)]
            words += ["--seconds", str(options.seconds)] if options.seconds else []
            begun.append(subprocess.Popen(words, stdout=subprocess.DEVNULL))
        codes = [process.wait() for process in begun]
        assert not any(codes), f"the workers ended with {codes}"
        parts = [json.loads(Path(folder, f"{worker}.json").read_text()) for worker in range(options.workers)]
    injections: dict[str, dict[str, int]] = {}
    for name in options.commands:
        injections[name] = dict(sum((Counter(part["injections"][name]) for part in parts), Counter()))
    return {
        "calls": parts[0]["calls"],
        "possible": parts[0]["possible"],
        "injections": injections,
        "num_injections": sum(part["num_injections"] for part in parts),
        "findings": [finding for part in parts for finding in part["findings"]],
    }


def _show(name: str, done: int, total: int) -> None:
    print(f"\r{name}: {done} of {total}", end="" if done < total else "\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
