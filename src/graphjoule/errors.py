"""The one error a user of graphjoule meets, and how its sentences say lists and numbers."""

import difflib
from collections.abc import Iterable


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


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun in the singular or the plural.

    >>> counted(1, "node"), counted(2000, "node"), counted(0, "class", "classes")
    ('1 node', '2,000 nodes', '0 classes')
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def unknown(name: str, names: Iterable[str], what: str) -> str:
    """The sentences for a name that is not among the known ones.

    >>> unknown("cmin", ["c_min", "beta"], "setting")
    '"cmin" is not a setting, did you mean "c_min"? The choices are: beta, c_min.'
    """
    names = list(names)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f', did you mean "{near[0]}"?' if near else "."
    return f'"{name}" is not a {what}{hint} The choices are: {choices(names)}.'
