"""Run commands in forks, hit each of their calls with each fault, and look at what is left."""

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.faults.commands import COMMANDS, Command, count_time_by_looks, essence, fault_in, spare_work, write_inputs
from tests.faults.inject import KILLED, KINDS, Injector, can_be

_TRACEBACK = 70
_SECONDS = 120  # no command may take longer: a lock that nobody lets go of is a fault too


@dataclass(frozen=True)
class Finding:
    """Something that went wrong: at which call of which command, with which fault."""

    command: str
    kind: str
    at: int
    call: tuple[str, str]
    what: str


def fork_command(
    folder: Path, words: Sequence[str], injector: Injector | None = None, *, is_timed: bool = False
) -> tuple[int, str, dict[str, Any]]:
    """Run ``graphjoule WORDS`` in a fork: its exit code, what it printed, and what it called and imported."""
    said, facts = folder / "said.txt", folder / "facts.json"
    facts.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        if is_timed:
            count_time_by_looks()
        _be_the_command(folder, words, injector, said, facts)
    deadline = time.monotonic() + _SECONDS
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return 124, said.read_text(errors="replace"), {}
        time.sleep(0.005)
    known = json.loads(facts.read_text()) if facts.exists() else {}
    return os.waitstatus_to_exitcode(status), said.read_text(errors="replace"), known


def _be_the_command(folder: Path, words: Sequence[str], injector: Injector | None, said: Path, facts: Path) -> None:
    code = _TRACEBACK
    try:
        os.chdir(folder)
        descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        sys.argv = ["graphjoule", *words]
        from graphjoule.cli import main

        injector = injector or Injector(folder / "out")
        injector.install()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException:
            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        injector.kind = None
        facts.write_text(json.dumps({"calls": injector.calls, "modules": list(sys.modules)}))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


@contextlib.contextmanager
def prepared() -> Iterator[Path]:
    """A folder with inputs and a finished run in ``in/run``; all modules that commands need are imported."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        write_inputs(folder)
        spare_work()
        code, said, facts = fork_command(folder, COMMANDS["train"].words)
        assert code == 0, said
        import_all(facts["modules"])
        (folder / "out/run").rename(folder / "in/run")
        yield folder


def import_all(names: Iterable[str]) -> None:
    """Import what a fork had to import, so that the next ones need not; nothing is computed, so no thread starts."""
    for name in names:
        if name.split(".")[0] in (
            "graphjoule",
            "torch",
            "optuna",
            "matplotlib",
            "jinja2",
            "pyarrow",
            "sklearn",
            "scipy",
        ):
            with contextlib.suppress(Exception):
                import_module(name)


def attack(
    names: Sequence[str],
    *,
    kinds: Sequence[str] = KINDS,
    step: int = 1,
    offset: int = 0,
    seconds: float | None = None,
    on_hit: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> dict[str, Any]:
    """Hit the commands' calls with every fault that can be there.

    Args:
        names: keys of `COMMANDS`.
        kinds: which faults.
        step: every how many-th of the injections is done.
        offset: which of them is the first.
        seconds: after which to stop; None is when all is done.
        on_hit: called with the command, how many injections are done, and of how many.

    Returns:
        A record: counts by command and kind, and the findings.
    """
    end = None if seconds is None else time.monotonic() + seconds
    counts: dict[str, dict[str, int]] = {}
    calls: dict[str, dict[str, int]] = {}
    possible: dict[str, int] = {}
    findings: list[Finding] = []
    with prepared() as folder:
        for name in names:
            command = COMMANDS[name]
            events, expected = _undisturbed(folder, command)
            calls[name] = dict(Counter(call for call, _ in events))
            every = [(kind, at) for at in range(len(events)) for kind in kinds if can_be(kind, events[at][0])]
            possible[name] = len(every)
            done: Counter[str] = Counter()
            for kind, at in every[offset::step]:
                if end is not None and time.monotonic() > end:
                    break
                what = _hit(folder, command, expected, kind, at)
                done[kind] += 1
                on_hit(name, done.total(), len(every[offset::step]))
                if what is not None:
                    findings.append(Finding(name, kind, at, events[at], what))
            counts[name] = dict(done)
    return {
        "calls": calls,
        "injections": counts,
        "possible": possible,
        "num_injections": sum(sum(done.values()) for done in counts.values()),
        "findings": [asdict(finding) for finding in findings],
    }


def attack_again(findings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Hit the calls of earlier findings once more; what is still found."""
    left: list[Finding] = []
    with prepared() as folder:
        for name in dict.fromkeys(finding["command"] for finding in findings):
            events, expected = _undisturbed(folder, COMMANDS[name])
            for kind, at in [(each["kind"], each["at"]) for each in findings if each["command"] == name]:
                what = _hit(folder, COMMANDS[name], expected, kind, at)
                if what is not None:
                    left.append(Finding(name, kind, at, events[at], what))
    return [asdict(finding) for finding in left]


def _fresh(folder: Path, command: Command) -> Path:
    out = folder / "out"
    shutil.rmtree(out)
    out.mkdir()
    for name, data in command.old.items():
        (out / name).write_bytes(data)
    return out


def _undisturbed(folder: Path, command: Command) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    _fresh(folder, command)
    code, said, facts = fork_command(folder, command.words, is_timed=command.is_timed)
    assert code == 0, said
    import_all(facts["modules"])
    return [(call, name) for call, name in facts["calls"]], essence(folder / "out")


def _hit(folder: Path, command: Command, expected: dict[str, Any], kind: str, at: int) -> str | None:
    """What went wrong; None if the files are whole, errors were sentences, and the repetition ends in the same bits."""
    out = _fresh(folder, command)
    code, said, _ = fork_command(folder, command.words, Injector(out, kind, at), is_timed=command.is_timed)
    if code == 124:
        return f"it took more than {_SECONDS} s"
    if kind.startswith("kill"):
        if code != KILLED and code != 0:  # 0: this time there were fewer calls
            return f"exit code {code}: {said[-400:]}"
    elif code not in (0, 1, 2) or "Traceback" in said or (code and "graphjoule: " not in said):
        return f"exit code {code}: {said[-600:]}"
    if (wrong := fault_in(out, command, expected)) is not None:
        return wrong
    code, said, _ = fork_command(folder, command.repeated(folder), is_timed=command.is_timed)
    if code != 0:
        return f"repeated, exit code {code}: {said[-600:]}"
    if command.is_timed:
        return fault_in(out, command, expected, is_repeated=True)
    found = essence(out)
    if found != expected:
        differing = [name for name in {**found, **expected} if found.get(name) != expected.get(name)]
        return f"repeated, other content: {', '.join(differing)}"
    return None
