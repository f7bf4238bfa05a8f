"""``python -m tests.faults --commands train study --out counts.json``: the whole attack, as a script."""

import argparse
import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

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
    parser.add_argument("--seconds", type=float, help="stop after so long")
    parser.add_argument(
        "--out", type=Path, help="where to write the record, as JSON; results of other commands are kept"
    )
    options = parser.parse_args()
    begin = time.monotonic()
    found = attack(options.commands, kinds=options.kinds, step=options.step, seconds=options.seconds, on_hit=_show)
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


def _show(name: str, done: int, total: int) -> None:
    print(f"\r{name}: {done} of {total}", end="" if done < total else "\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
