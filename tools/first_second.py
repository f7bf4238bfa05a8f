"""Print how long the command line takes to answer, beside ``import torch``: `python tools/first_second.py [REPEATS]`.

Help and a wrong option need no torch. ``graphjoule --help`` should take less than a fifth of ``import torch``.
"""

from __future__ import annotations

import subprocess
import sys
import time

COMMANDS = {
    "import torch": ["-c", "import torch"],
    "graphjoule --help": ["-m", "graphjoule", "--help"],
    "graphjoule train --help": ["-m", "graphjoule", "train", "--help"],
    "graphjoule train --set dropout=2": ["-m", "graphjoule", "train", "--set", "dropout=2"],
    "graphjoule data": ["-m", "graphjoule", "data"],
}


def seconds(arguments: list[str]) -> float:
    """How long a new interpreter takes."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
    return time.perf_counter() - begin


def main() -> None:
    """Print a line per command."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    # In turn, so that a busy machine slows all of them; the fastest is the one least disturbed.
    rounds = [{name: seconds(arguments) for name, arguments in COMMANDS.items()} for _ in range(repeats + 1)]
    best = {name: min(one[name] for one in rounds[1:]) for name in COMMANDS}  # the first fills the disk's cache
    for name, taken in best.items():
        print(f"{name:<34}{taken:6.2f} s  {taken / best['import torch']:5.2f} of import torch")


if __name__ == "__main__":
    main()
