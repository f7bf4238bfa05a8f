"""A number and its noun, as a sentence says them."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun in the singular or the plural.

    >>> counted(1, "node"), counted(2000, "node"), counted(0, "class", "classes")
    ('1 node', '2,000 nodes', '0 classes')
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
