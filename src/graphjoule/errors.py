"""The one error a user of graphjoule meets, and how its sentences say lists and numbers."""

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
