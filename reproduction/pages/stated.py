"""Numbers that stand on a page by hand: each is in `stated.toml` with where it is from, or it is an error.

Looked for are numbers with a unit (``34 s``, ``95 %``, ``2 to 8 points``) or with decimals, outside of code, links and
what is written from the records. So no measured number gets onto a page, and none changes, without a record or a word.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["FILE", "find_stated", "listed", "pages", "with_stated"]

FILE: Final = Path(__file__).with_suffix(".toml")
NO_RECORD: Final = f"(neither from a record nor in reproduction/pages/{FILE.name})"

_NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"
_UNIT = r"(?:%|(?:ms|s|seconds?|min|minutes?|h|hours?|times|[kMGT]B|[KMG]iB|bytes|points?|percent)\b)"
_STATED = re.compile(
    rf"(?<![\w.]){_NUMBER}(?:\s*(?:to|±|and|or|/|of)\s*{_NUMBER})*\s?{_UNIT}"
    r"|(?<![\w.,])[-+]?\d[\d,]*\.\d+(?![\w.]*\d)"
)
_WRITTEN = re.compile(  # by a program, or not a statement: code, comments, the targets of links
    r"```.*?```|<!-- (?:table|results) \w+ -->.*?<!-- end -->|<!--= .*?<!--/-->|<!--.*?-->|`[^`\n]*`|\]\([^)]*\)|https?://\S+",
    flags=re.DOTALL,
)


def find_stated(text: str) -> list[re.Match[str]]:
    """The numbers that stand in a text by hand.

    >>> [found[0] for found in find_stated("It took 34 s (`0.5`), 2 to 8 points, 64 layers, <!--= a -->3.1<!--/--> %")]
    ['34 s', '2 to 8 points']
    """
    return list(_STATED.finditer(_WRITTEN.sub(lambda found: re.sub(r"[^\n]", "\0", found[0]), text)))


def pages(root: Path) -> list[str]:
    """The pages that are looked at."""
    docs = (path.relative_to(root).as_posix() for path in sorted((root / "docs").glob("*.md")))
    records = (f"reproduction/{name}.md" for name in ("RESULTS", "CONSTRAINT", "TUNED"))
    return ["README.md", *docs, *records]


@cache
def listed() -> dict[str, dict[str, list[str]]]:
    """By page, and by where they are from, the numbers of `stated.toml`."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def with_stated(page: str, text: str) -> str:
    """The text with words in the place of every number that is not listed, or that stands there too often."""
    left = Counter(number for several in listed().get(page, {}).values() for number in several)
    made, at = [], 0
    for found in find_stated(text):
        number = " ".join(found[0].split())
        left[number] -= 1
        made.append(text[at : found.start()] + (found[0] if left[number] >= 0 else NO_RECORD))
        at = found.end()
    lost = sorted(number for number, times in left.items() if times > 0)
    return "".join([*made, text[at:]]) + "".join(f"{number} is in {FILE.name} and not here\n" for number in lost)
