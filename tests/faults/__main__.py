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

from graphjoule.training.provenance import commit, source_sha256, tree
from tests.faults.attack import attack, attack_again
from tests.faults.commands import COMMANDS
from tests.faults.inject import KINDS


def main() -> None:
    """Attack command by command, print findings, write the record after each."""
    parser = argparse.ArgumentParser(description="Hit every call that changes a file with every fault.")
    parser.add_argument("--commands", nargs="+", choices=list(COMMANDS), default=list(COMMANDS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--step", type=int, default=1, help="do every so many-th injection only")
    parser.add_argument("--offset", type=int, default=0, help="which injection is the first")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the injections")
    parser.add_argument("--seconds", type=float, help="stop after so long with each command")
    parser.add_argument(
        "--out", type=Path, help="where to write the record, as JSON; what it has of this code and no finding is kept"
    )
    parser.add_argument("--again", action="store_true", help="hit the findings of the record once more, nothing else")
    options = parser.parse_args()
    record: dict[str, Any] = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    if options.again:
        before = record["findings"]
        record["findings"] = attack_again(before)
        print(f"{len(before)} findings hit again, {len(record['findings'])} left: {record['findings']}")
        options.out.write_text(json.dumps(record, indent=2) + "\n")
        return
    for name in options.commands:
        if _is_done(record, name):
            print(f"{name}: done before")
            continue
        begin = time.monotonic()
        found = _shared(options, name) if options.workers > 1 else _alone(options, name)
        for finding in found["findings"]:
            print(finding)
        seconds = round(time.monotonic() - begin, 1)
        counts = f"{found['num_injections']} injections, {len(found['findings'])} findings"
        print(f"{name}: {counts}, {seconds:.0f} s", flush=True)
        record = _joined(record, name, found, seconds)
        if options.out:
            options.out.write_text(json.dumps(record, indent=2) + "\n")


def _is_done(record: dict[str, Any], name: str) -> bool:
    """Whether all that is possible was done to a command of the very same code, and nothing was found."""
    done = sum(record.get("injections", {}).get(name, {}).values())
    is_same = record.get("code", {}).get(name, {}).get("source") == source_sha256()
    is_clean = not any(finding["command"] == name for finding in record.get("findings", []))
    return is_same and is_clean and done == record["possible"][name]


def _joined(record: dict[str, Any], name: str, found: dict[str, Any], seconds: float) -> dict[str, Any]:
    """A record with what was found out about one command in place of what it had of it."""
    code = {"commit": commit(), "tree": tree(), "source": source_sha256()}
    others = [finding for finding in record.get("findings", []) if finding["command"] != name]
    joined: dict[str, Any] = {"findings": others + found["findings"]}
    for key, value in {"calls": found["calls"][name], "possible": found["possible"][name]}.items():
        joined[key] = record.get(key, {}) | {name: value}
    joined["injections"] = record.get("injections", {}) | {name: found["injections"][name]}
    joined["code"] = record.get("code", {}) | {name: code}
    joined["seconds"] = record.get("seconds", {}) | {name: seconds}
    joined["created"] = datetime.now(UTC).isoformat(timespec="seconds")
    joined["num_injections"] = sum(sum(kinds.values()) for kinds in joined["injections"].values())
    return joined


def _alone(options: argparse.Namespace, name: str) -> dict[str, Any]:
    return attack(
        [name],
        kinds=options.kinds,
        step=options.step,
        offset=options.offset,
        seconds=options.seconds,
        on_hit=_show,
    )


def _shared(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """What several processes find together; each does every so many-th injection."""
    with tempfile.TemporaryDirectory() as folder:
        begun = []
        for worker in range(options.workers):
            words = [sys.executable, "-W", "ignore", "-m", "tests.faults", "--out", f"{folder}/{worker}.json"]
            words += ["--commands", name, "--kinds", *options.kinds]
            words += ["--step", str(options.step * options.workers)]
            words += ["--offset", str(options.offset + options.step * worker)]
            words += ["--seconds", str(options.seconds)] if options.seconds else []
            begun.append(subprocess.Popen(words, stdout=subprocess.DEVNULL))
        codes = [process.wait() for process in begun]
        assert not any(codes), f"the workers ended with {codes}"
        parts = [json.loads(Path(folder, f"{worker}.json").read_text()) for worker in range(options.workers)]
    return {
        "calls": parts[0]["calls"],
        "possible": parts[0]["possible"],
        "injections": {name: dict(sum((Counter(part["injections"][name]) for part in parts), Counter()))},
        "num_injections": sum(part["num_injections"] for part in parts),
        "findings": [finding for part in parts for finding in part["findings"]],
    }


def _show(name: str, done: int, total: int) -> None:
    print(f"\r{name}: {done} of {total}", end="" if done < total else "\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
