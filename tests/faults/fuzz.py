"""Files that lie: mutations of good ones, and how a parser must take them."""

import atexit
import copy
import json
import os
import resource
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError

# In CI some examples of every parser; GRAPHJOULE_FUZZ=100000 is the long attack, which draws others each time.
EXAMPLES = int(os.environ.get("GRAPHJOULE_FUZZ", "15"))
SECONDS, BYTES = 5.0, 2**30
fuzzed = settings(
    max_examples=EXAMPLES,
    derandomize=EXAMPLES <= 1000,
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


def mutations(good: bytes) -> st.SearchStrategy[bytes]:
    """A good file with bytes flipped, cut out, doubled, or replaced by numbers and words that parsers stumble over."""
    place = st.integers(0, max(len(good) - 1, 0))
    word = st.sampled_from([*_TOKENS, *(str(number).encode() for number in _INTERESTING)])
    edit = st.one_of(
        st.tuples(st.just("flip"), place, st.integers(0, 7)),
        st.tuples(st.just("put"), place, word),
        st.tuples(st.just("over"), place, st.binary(min_size=1, max_size=8) | word),
        st.tuples(st.just("cut"), place, st.integers(1, 64)),
        st.tuples(st.just("double"), place, st.integers(1, 256)),
        st.tuples(st.just("end"), place, st.none()),
    )
    return st.lists(edit, min_size=1, max_size=4).map(lambda edits: _edited(good, edits))


def _edited(data: bytes, edits: list[tuple[str, int, Any]]) -> bytes:
    for how, at, what in edits:
        if how == "flip":
            data = data[:at] + bytes([data[at] ^ (1 << what)]) + data[at + 1 :] if at < len(data) else data
        elif how == "put":
            data = data[:at] + what + data[at:]
        elif how == "over":
            data = data[:at] + what + data[at + len(what) :]
        elif how == "cut":
            data = data[:at] + data[at + what :]
        elif how == "double":
            data = data[: at + what] + data[at : at + what] + data[at + what :]
        else:
            data = data[:at]
    return data


def json_like() -> st.SearchStrategy[Any]:
    """Anything that JSON can hold, with numbers at the edges."""
    leaf = st.none() | st.booleans() | st.sampled_from(_INTERESTING[:-1]) | st.floats() | st.text(max_size=8)

    def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)

    return st.recursive(leaf, containers, max_leaves=8)


def json_mutations(good: Any) -> st.SearchStrategy[Any]:
    """A JSON object with one value, anywhere in it, replaced, removed or doubled under another key."""
    paths = list(_paths(good))
    return st.lists(st.tuples(st.sampled_from(paths), json_like() | st.just(...)), min_size=1, max_size=3).map(
        lambda edits: _replaced(good, edits)
    )


def _paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*before, key)
        yield from _paths(inner, (*before, key))


def _replaced(good: Any, edits: list[tuple[tuple[Any, ...], Any]]) -> Any:
    result = copy.deepcopy(good)
    for path, new in edits:
        place = result
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


class TooLongError(BaseException):
    """A parser took longer than it may."""


@contextmanager
def limited() -> Iterator[None]:
    """At most `SECONDS` of this process's time, and `BYTES` more of memory than before."""

    def too_long(signum: int, frame: FrameType | None) -> None:
        raise TooLongError

    before = _resident()
    is_main = threading.current_thread() is threading.main_thread()
    if is_main:
        previous = signal.signal(signal.SIGVTALRM, too_long)
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        if is_main:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, previous)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert peak - before < BYTES or _resident() - before < BYTES, f"{(peak - before) / 2**20:.0f} MiB"


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


COUNTS: dict[str, Counter[str]] = {}
"""How often each test's files were read and refused."""


def _write_counts(path: Path) -> None:
    """Add what this process did to a record."""
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | {name: dict(found) for name, found in COUNTS.items()}, indent=2) + "\n")


if "GRAPHJOULE_FUZZ_RECORD" in os.environ:
    atexit.register(_write_counts, Path(os.environ["GRAPHJOULE_FUZZ_RECORD"]))


def takes(parse: Callable[[], Any]) -> None:
    """Parse: the result may be good, or refused with one sentence; anything else is a bug and raised."""
    name = os.environ.get("PYTEST_CURRENT_TEST", "::").split("::")[1].split(" ")[0].removeprefix("test_")
    counts = COUNTS.setdefault(name.replace("_", " "), Counter())
    begin = time.process_time()
    with limited(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            parse()
            counts["read"] += 1
        except GraphjouleError as error:
            assert str(error)  # noqa: PT017 - any sentence
            counts["refused"] += 1
    assert time.process_time() - begin < SECONDS
