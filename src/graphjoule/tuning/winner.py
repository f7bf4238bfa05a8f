"""The best settings as a recipe file that ``graphjoule train --recipe`` and `load_recipe` take."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from graphjoule.training.recipe import Recipe
from graphjoule.tuning.spelling import spelled

__all__ = ["recipe_text"]

_CHOSEN = ("model", "dataset", "num_layers")
_TABLES = {"paper": "paper", "released code": "released_code"}  # what was overridden becomes ours


def recipe_text(recipe: Recipe, *, searched: Collection[str] = (), header: Sequence[str] = ()) -> str:
    """One block of TOML with the settings of a recipe, for its dataset and depth.

    Settings keep the source that the recipe gives them, those apart that were overridden or searched: they are our own.
    Defaults are left out, for a file that names them would call them ours.

    Args:
        recipe: what to write.
        searched: the settings that a search found, marked so.
        header: lines for the comment on top.

    Returns:
        The text; `load_recipe` reads the same settings from it.
    """
    found = {name for key in searched for name in spelled(recipe, key)}
    tables: dict[str, list[str]] = {}
    for key, value in recipe.settings().items():
        if key in _CHOSEN or value is None:  # TOML has no word for none, and none is the default wherever it is allowed
            continue
        if recipe.sources.get(key) == "default" and key not in found:
            continue
        table = "ours" if key in found else _TABLES.get(recipe.sources.get(key, "ours"), "ours")
        line = f"{_key(key)} = {toml_value(value)}{' # searched' if key in found else ''}"
        tables.setdefault(table, []).append(line)
    lines = [*(f"# {line}".rstrip() for line in header), *([""] if header else []), "[[block]]"]
    lines += [f"dataset = {toml_value(recipe.data.name)}"]
    lines += [f"{end} = {recipe.model.num_layers}" for end in ("min_layers", "max_layers")]
    for table, settings in tables.items():
        lines += [f"[block.{table}]", *settings]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """A setting's value as TOML spells it; numbers keep every digit.

    >>> toml_value(True), toml_value(1e-05), toml_value("srelu"), toml_value({"conv": 0.0})
    ('true', '1e-05', '"srelu"', '{ conv = 0.0 }')
    """
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {toml_value(one)}" for key, one in value.items()) + " }"
    return repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else json.dumps(value)


def _key(name: str) -> str:
    return json.dumps(name) if "." in name else name
