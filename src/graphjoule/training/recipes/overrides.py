"""Overrides as people type them: `--set c_min=0.3`."""

import tomllib
from collections.abc import Iterable
from typing import Any

from graphjoule.errors import GraphjouleError

__all__ = ["parse_override", "parse_overrides"]


def parse_overrides(texts: Iterable[str]) -> dict[str, Any]:
    """Overrides from texts such as "c_min=0.3"; a key given twice is refused rather than decided by order."""
    overrides: dict[str, Any] = {}
    for key, value in map(parse_override, texts):
        if key in overrides:
            raise GraphjouleError(f"{key} is set twice, to {overrides[key]!r} and to {value!r}: give it once.")
        overrides[key] = value
    return overrides


def parse_override(text: str) -> tuple[str, Any]:
    """Split "key=value" and read the value as TOML would, so that a number is a number; a bare word is a string.

    >>> parse_override("c_min=0.3"), parse_override("activation=relu"), parse_override("weight_decay.conv=0")
    (('c_min', 0.3), ('activation', 'relu'), ('weight_decay.conv', 0))
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not key or not equals:
        raise GraphjouleError(f"{text!r} is not a setting: expected key=value, such as c_min=0.3.")
    return key, _parse_value(value)


def _parse_value(text: str) -> Any:
    if text == "none":  # TOML has no word for it, and split_seed needs one
        return None
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    if list(parsed) == ["value"]:
        return parsed["value"]
    try:
        return float(text)  # ".5" and "1." are numbers to people, not to TOML
    except ValueError:
        return text
