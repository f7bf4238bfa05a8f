"""The one error a user of graphjoule meets."""

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
