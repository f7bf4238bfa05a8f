"""Processes that start at once, because they are forked from one that has imported what a training needs."""

import multiprocessing
import os
import signal
import sys
from multiprocessing.context import BaseContext
from pathlib import Path

PRELOADED = [
    "torch.distributed",
    "torch.fx.experimental.symbolic_shapes",  # which the first loss imports
    "sklearn.datasets",
    "graphjoule",
    "graphjoule.fitting",
    "graphjoule.parallel",
    "graphjoule.cli.train",
]


def context() -> BaseContext:
    """Where such processes come from, one server for all tests of this process; Windows starts them anew."""
    if os.name == "nt":
        return multiprocessing.get_context("spawn")
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(PRELOADED)
    return found


class Command:
    """``graphjoule ARGUMENTS`` in a process of its own, with the methods of a `subprocess.Popen`.

    Args:
        folder: where its output is kept.
        arguments: of the command.
    """

    def __init__(self, folder: Path, *arguments: object) -> None:
        self._outputs = [folder / "stdout.txt", folder / "stderr.txt"]
        self._process = context().Process(target=_run, args=(self._outputs, list(map(str, arguments))))
        self._process.start()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, signum: signal.Signals) -> None:
        os.kill(self._process.pid, signum)

    def communicate(self, timeout: float) -> tuple[str, str]:
        self._process.join(timeout)
        assert self._process.exitcode is not None, "it does not end"
        out, err = (path.read_text() if path.exists() else "" for path in self._outputs)
        return out, err


def exit_code(code: str) -> int | None:
    """The exit code of some Python in a process of its own, which has imported `PRELOADED` and nothing else."""
    process = context().Process(target=exec, args=(code, {}))
    process.start()
    process.join(100)
    return process.exitcode


def _run(outputs: list[Path], arguments: list[str]) -> None:
    for descriptor, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    from graphjoule.cli import main

    sys.argv = ["graphjoule", *arguments]
    main()
