"""The one error a user of graphjoule meets, and how its sentences say lists and numbers."""

import difflib
import re
from collections.abc import Iterable
from numbers import Integral, Real

_STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class GraphjouleError(ValueError):
    """Something given to graphjoule cannot be used.

    The message is a sentence: what was given, what was expected, and the choices. The command line prints it without a
    traceback and exits with code 2.
    """


def choices(names: Iterable[object]) -> str:
    """Names in one readable list for an error sentence, sorted.

    >>> choices({"pubmed", "cora"})
    'cora, pubmed'
    """
    return ", ".join(sorted(str(name) for name in names))


def harmless(text: str) -> str:
    r"""Text in which a character that steers a terminal or turns the direction of reading is an escape.

    >>> print(harmless("\x1b[31mred"))
    \x1b[31mred
    """
    return _STEERS.sub(lambda found: ascii(found[0])[1:-1], text)


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun in the singular or the plural.

    >>> counted(1, "node"), counted(2000, "node"), counted(0, "class", "classes")
    ('1 node', '2,000 nodes', '0 classes')
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def check_number(name: str, value: object) -> None:
    """Refuse what is not a number."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise GraphjouleError(f"{name} is {value!r}; expected a number.")


def check_count(name: str, value: object) -> None:
    """Refuse what is not a whole number from 1 on."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise GraphjouleError(f"{name} is {value!r}; expected a whole number.")
    if value < 1:
        raise GraphjouleError(f"{name} is {value}; it must be at least 1.")


def unknown(name: str, names: Iterable[str], what: str) -> str:
    """The sentences for a name that is not among the known ones.

    >>> unknown("cmin", ["c_min", "beta"], "setting")
    '"cmin" is not a setting, did you mean "c_min"? The choices are: beta, c_min.'
    """
    names = list(names)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f', did you mean "{near[0]}"?' if near else "."
    return f'"{name}" is not a {what}{hint} The choices are: {choices(names)}.'
