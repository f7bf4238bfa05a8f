"""Settings in one flat dict, spelled as `Recipe.settings` spells them, from a block of a file or from overrides."""

from collections.abc import Mapping
from typing import Any

from graphjoule.errors import GraphjouleError
from graphjoule.training.recipes import Block, Source, unknown

__all__ = ["CHOSEN", "block_settings", "flatten", "refuse_chosen"]

# What a run is chosen by, and the command's option for it: not settings, so that a recipe is never about another run.
CHOSEN = {
    "model": "--model",
    "dataset": "--dataset",
    "num_layers": "--layers",
    "layers": "--layers",
    "seeds": "--seeds",
}


def flatten(given: Mapping[str, Any], model: str, names: list[str]) -> dict[str, Any]:
    """Check the names of some settings and spell them as `Recipe.settings` does, one weight decay per parameter group.

    `weight_decay = x` stands for every group that is not also named by itself.
    """
    shared = given.get("weight_decay")
    spelled = [(key, value) for key, value in given.items() if key != "weight_decay"]
    if isinstance(shared, Mapping):
        spelled += [(f"weight_decay.{group}", value) for group, value in shared.items()]
    flat: dict[str, Any] = {}
    for key, value in spelled:
        if key not in names:
            raise GraphjouleError(unknown(key, [*names, "weight_decay"], f"setting of {model}"))
        if key in flat:
            raise GraphjouleError(f"{key} is set twice, to {flat[key]!r} and to {value!r}: give it once.")
        flat[key] = value
    if "weight_decay" in given and not isinstance(shared, Mapping):
        flat = dict.fromkeys((name for name in names if name.startswith("weight_decay.")), shared) | flat
    return flat


def block_settings(block: Block, model: str, names: list[str]) -> dict[str, tuple[Any, Source]]:
    """A block's settings, each with its one source; checked whether or not the block applies to this run."""
    settings: dict[str, tuple[Any, Source]] = {}
    for source, given in block.settings():
        try:
            flat = flatten(given, model, names)
        except GraphjouleError as error:
            raise GraphjouleError(f"{block.where}: {error}") from error
        for key, value in flat.items():
            if key in settings:
                raise GraphjouleError(
                    f"{block.where}: {key} has two sources, {settings[key][1]} and {source}: keep one."
                )
            settings[key] = (value, source)
    return settings


def refuse_chosen(overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    """The overrides, if none of them says which run it is."""
    for key in overrides:
        if key in CHOSEN:
            raise GraphjouleError(f"{key} is not a setting to override: choose it with {CHOSEN[key]}.")
    return overrides
