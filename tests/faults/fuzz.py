"""Files that lie: mutations of good ones, and how a parser must take them."""

import argparse
import atexit
import copy
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.files import write_json

# In CI some examples of every parser, the same ones each time; see `main` for the long attack.
IS_LONG = "GRAPHJOULE_FUZZ" in os.environ
SECONDS, WAIT, BYTES = 5.0, 60.0, 2**30
fuzzed = settings(
    max_examples=int(os.environ["GRAPHJOULE_FUZZ"]) if IS_LONG else 15,
    derandomize=not IS_LONG,
    phases=[Phase.explicit, Phase.generate] if IS_LONG else tuple(Phase),  # a bug is counted, not made smaller
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
_INTERESTING = (0, 1, -1, 2**31 - 1, 2**31, 2**63 - 1, 2**64 - 1, 10**6, 10**400)
_TOKENS = tuple(
    token.encode()
    for token in (
        "null",
        "true",
        "-1",
        "1e999",
        "NaN",
        "[]",
        "{}",
        '""',
        "\x00",
        "\ufeff",
        "\\ud800",
        "=1+1",
        ",",
        "\n",
        '"',
    )
)


_WORDS = (*_TOKENS, *(str(number).encode() for number in _INTERESTING))
# Drawn without looking at the file, so that Hypothesis builds and checks the strategies once and not for every case,
# which took most of the time: what is done, where (modulo the length), and how much or what of it.
EDITS = st.lists(
    st.tuples(
        st.sampled_from(("flip", "put", "over", "bytes", "cut", "double", "end")),
        st.integers(0, 2**20),
        st.integers(0, 2**32),
    ),
    min_size=1,
    max_size=4,
)
Edits = list[tuple[str, int, int]]


def mutated(data: bytes, edits: Edits) -> bytes:
    """A good file with bytes flipped, cut out, doubled, or replaced by numbers and words that parsers stumble over."""
    for how, place, number in edits:
        at, word = place % max(len(data), 1), _WORDS[number % len(_WORDS)]
        if how == "flip" and data:
            data = data[:at] + bytes([data[at] ^ (1 << number % 8)]) + data[at + 1 :]
        elif how == "put":
            data = data[:at] + word + data[at:]
        elif how == "over":
            data = data[:at] + word + data[at + len(word) :]
        elif how == "bytes":
            word = number.to_bytes(5, "little")[: 1 + number % 5]
            data = data[:at] + word + data[at + len(word) :]
        elif how == "cut":
            data = data[:at] + data[at + 1 + number % 64 :]
        elif how == "double":
            end = at + 1 + number % 256
            data = data[:end] + data[at:end] + data[end:]
        elif how == "end":
            data = data[:at]
    return data


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)


_LEAF = st.none() | st.booleans() | st.sampled_from(_INTERESTING[:-1]) | st.floats() | st.text(max_size=8)
JSON_LIKE = st.recursive(_LEAF, _containers, max_leaves=8)
"""Anything that JSON can hold, with numbers at the edges."""
JSON_EDITS = st.lists(st.tuples(st.integers(0, 2**16), JSON_LIKE | st.just(...)), min_size=1, max_size=3)
JsonEdits = list[tuple[int, Any]]


def json_mutated(good: Any, edits: JsonEdits) -> Any:
    """A JSON object with values, anywhere in it, replaced, or removed for ``...``."""
    result = copy.deepcopy(good)
    paths = list(_paths(good))
    for number, new in edits:
        place, path = result, paths[number % len(paths)]
        try:
            for key in path[:-1]:
                place = place[key]
            if new is ...:
                del place[path[-1]]
            else:
                place[path[-1]] = new
        except (KeyError, IndexError, TypeError):  # an earlier edit took it away
            continue
    return result


def json_file(good: bytes, edits: JsonEdits) -> bytes:
    """A file of JSON in which values are others."""
    return json.dumps(json_mutated(json.loads(good), edits)).encode()


def _paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*before, key)
        yield from _paths(inner, (*before, key))


class TooLongError(BaseException):
    """A parser took longer than it may."""


class TooMuchError(BaseException):
    """A parser took more memory than it may."""


@contextmanager
def limited() -> Iterator[Counter[str]]:
    """At most `SECONDS` of this process's time, `WAIT` by the clock, and `BYTES` more of memory at any moment.

    Returns:
        As the context's value a dict that says afterwards how many ``seconds`` and ``bytes`` it took.
    """

    def too_long(signum: int, frame: FrameType | None) -> None:
        raise TooLongError

    timers = {signal.SIGVTALRM: (signal.ITIMER_VIRTUAL, SECONDS), signal.SIGALRM: (signal.ITIMER_REAL, WAIT)}
    is_main = threading.current_thread() is threading.main_thread()
    before, begin, took = _peak_from_now(), time.process_time(), Counter[str]()
    handlers = {signum: signal.signal(signum, too_long) for signum in timers if is_main}
    try:
        for signum in handlers:
            signal.setitimer(*timers[signum])
        yield took
    finally:
        for signum, handler in handlers.items():
            signal.setitimer(timers[signum][0], 0)
            signal.signal(signum, handler)
        took["bytes"] = _peak() - before
        took["seconds"] = round(time.process_time() - begin, 3)  # type: ignore[assignment]
    if took["seconds"] > SECONDS:
        raise TooLongError(f"{took['seconds']:.1f} s")
    if took["bytes"] > BYTES:
        raise TooMuchError(f"{took['bytes'] / 2**20:.0f} MiB")


def _peak() -> int:
    with suppress(OSError):  # rusage also counts who started this process
        return int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1]) * 1024  # type: ignore[index]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _peak_from_now() -> int:
    """Forget the largest size that this process ever had, where Linux lets us, and return that of now."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_bytes(b"5")
    return _peak()


COUNTS: dict[str, Counter[str]] = {}
"""What came of each test's files: see `FATES`; and the most that one took of ``seconds`` and ``bytes``."""
FATES = ("read", "refused", "traceback", "hang", "memory")


def _write_counts(path: Path) -> None:
    path.write_text(json.dumps(COUNTS))


if "GRAPHJOULE_FUZZ_RECORD" in os.environ:
    atexit.register(_write_counts, Path(os.environ["GRAPHJOULE_FUZZ_RECORD"]))


def takes(parse: Callable[[], Any]) -> None:
    """Parse: the result may be good, or refused with one sentence; anything else is a bug and raised."""
    name = os.environ.get("PYTEST_CURRENT_TEST", "::").split("::")[1].split(" ")[0].removeprefix("test_")
    counts, fate = COUNTS.setdefault(name.replace("_", " "), Counter()), "traceback"
    took = Counter[str]()
    try:
        with limited() as took, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                parse()
                fate = "read"
            except GraphjouleError as error:
                assert str(error)  # noqa: PT017 - any sentence
                fate = "refused"
    except (TooLongError, TooMuchError) as error:
        fate = "hang" if isinstance(error, TooLongError) else "memory"
        raise AssertionError(f"{fate}: {error}") from error
    finally:
        counts[fate] += 1
        for most in ("seconds", "bytes"):
            counts[most] = max(counts[most], took[most])


# The long attack: ``python -m tests.faults.fuzz --out fuzz.json``


def parsers() -> dict[str, str]:
    """The tests of this folder that draw files, as pytest calls them, by what the record calls them."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("test_fuzz_*.py")):
        for name, test in vars(importlib.import_module(f"tests.faults.{path.stem}")).items():
            if getattr(test, "is_hypothesis_test", False):
                found[name.removeprefix("test_").replace("_", " ")] = f"{path}::{name}"
    return found


def one_share(name: str, test: str, cases: int, folder: str) -> tuple[dict[str, Any], str]:
    """Give a parser so many files in a process of its own; what came of them, and what was said if one was a bug."""
    seed = random.randrange(2**32)
    record = Path(folder, f"{seed}.json")
    words = [sys.executable, "-m", "pytest", test, "-sqx", "-p", "no:cacheprovider", f"--hypothesis-seed={seed}"]
    words.append(f"--basetemp={folder}/{seed}")
    env = os.environ | {"GRAPHJOULE_FUZZ": str(cases), "GRAPHJOULE_FUZZ_RECORD": str(record), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(words, env=env, capture_output=True, text=True, errors="replace", timeout=60 + cases / 5)
        is_right, said = done.returncode == 0, done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:  # a loop in a library that no signal ends
        is_right, said = False, str(error)
    counts = json.loads(record.read_text())[name] if record.exists() else {"hang": 1}
    shutil.rmtree(f"{folder}/{seed}", ignore_errors=True)
    return counts, "" if is_right else f"--hypothesis-seed={seed}: {said[-2000:]}"


def main() -> None:
    """Give every parser its files, in as many processes as there are cores; exit code 1 if one was a bug."""
    parser = argparse.ArgumentParser(description="Spoiled files for every parser; a record that is cut is continued.")
    parser.add_argument("--cases", type=int, default=100_000, help="for every parser")
    parser.add_argument("--share", type=int, default=10_000, help="cases that one process does")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="parsers whose name has this in it")
    parser.add_argument("--out", type=Path, default=Path("fuzz.json"))
    options = parser.parse_args()
    begin, tests = time.monotonic(), {name: test for name, test in parsers().items() if options.only in name}
    record: dict[str, Any] = {"seconds": 0, "files": {}, "findings": []}
    if options.out.exists():
        record |= json.loads(options.out.read_text())
    spent = record["seconds"]
    todo: list[tuple[str, int]] = []
    for name in tests:
        done = record["files"].setdefault(name, dict.fromkeys(("cases", *FATES, "seconds", "bytes"), 0))["cases"]
        todo += [(name, min(options.share, options.cases - at)) for at in range(done, options.cases, options.share)]
    random.shuffle(todo)  # so that slow parsers do not come last
    print(f"{len(todo)} processes to go, {options.processes} at once", flush=True)
    disk = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # syncs cost nothing there
    with tempfile.TemporaryDirectory(dir=disk) as folder, ThreadPoolExecutor(options.processes) as pool:
        shares = {pool.submit(one_share, name, tests[name], cases, folder): (name, cases) for name, cases in todo}
        for number, share in enumerate(as_completed(shares), 1):
            (name, cases), (counts, said) = shares[share], share.result()
            found = record["files"][name]
            for fate in FATES:
                found[fate] += counts.get(fate, 0)
            for most in ("seconds", "bytes"):
                found[most] = max(found[most], counts.get(most, 0))
            found["cases"] += 0 if said else cases  # a share with a bug in it is done again
            record["findings"] += [said] if said else []
            record["seconds"] = round(spent + time.monotonic() - begin)
            write_json(options.out, record)
            print(f"{number}/{len(todo)} {time.monotonic() - begin:.0f} s {name} {counts} {said}", flush=True)
    print(f"{len(record['findings'])} findings in {record['seconds']} s; see {options.out}")
    sys.exit(bool(record["findings"]))


if __name__ == "__main__":
    main()
