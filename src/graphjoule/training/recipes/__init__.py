"""The recipe files, one per model, beside the code that reads them: blocks of settings, each marked with its source.

```toml
[[block]]            # applies to every dataset and depth, unless it names them
dataset = "cora"
min_layers = 32
paper = { c_min = 0.15 }
```
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from graphjoule.counting import counted
from graphjoule.errors import GraphjouleError, choices
from graphjoule.files import reason

__all__ = ["Block", "Source", "check_applies", "explain", "parse_blocks", "read_recipe_file", "unknown"]

Source = Literal["paper", "released code", "ours", "default", "override"]

_Depth = Field(default=None, ge=1)


class Block(BaseModel):
    """One block of a recipe file: which runs it is for, and its settings by where they come from.

    >>> Block(dataset="cora", min_layers=32).applies_to("cora", 64)
    True
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    where: str = ""
    dataset: str | None = None
    min_layers: int | None = _Depth
    max_layers: int | None = _Depth
    paper: dict[str, Any] = {}
    released_code: dict[str, Any] = {}
    ours: dict[str, Any] = {}

    def applies_to(self, dataset: str, num_layers: int) -> bool:
        """Whether a run of this depth on this dataset takes the block's settings."""
        return (
            self.dataset in (None, dataset)
            and (self.min_layers is None or num_layers >= self.min_layers)
            and (self.max_layers is None or num_layers <= self.max_layers)
        )

    @property
    def scope(self) -> str:
        """Which runs it is for, in words.

        >>> Block(dataset="cora", min_layers=4, max_layers=4).scope, Block(min_layers=32).scope
        ('cora, 4 layers', 'any dataset, 32 layers or more')
        """
        low, high = self.min_layers, self.max_layers
        if low is None and high is None:
            depth = "any depth"
        elif low == high:
            depth = counted(low or 0, "layer")
        elif low is None or high is None:
            depth = f"{low} layers or more" if high is None else f"{high} layers or fewer"
        else:
            depth = f"{low} to {high} layers"
        return f"{self.dataset or 'any dataset'}, {depth}"

    def settings(self) -> Iterator[tuple[Source, dict[str, Any]]]:
        """The settings of each source, as the file spells them."""
        yield "paper", self.paper
        yield "released code", self.released_code
        yield "ours", self.ours


def read_recipe_file(model: str, file: Path | None = None) -> list[Block]:
    """The blocks of a model's recipe file: the one that comes with graphjoule, or a file of the caller's."""
    if file is None and not (resources.files(__name__) / f"{model}.toml").is_file():
        raise GraphjouleError(f'There is no recipe file for the model "{model}".')
    try:
        text = (file or resources.files(__name__) / f"{model}.toml").read_text(encoding="utf-8")
    except OSError as error:
        raise GraphjouleError(f"Cannot read the recipe file {file}: {reason(error)}.") from error
    except UnicodeDecodeError as error:
        raise GraphjouleError(f"Cannot read the recipe file {file}: it is not text in UTF-8.") from error
    return parse_blocks(text, str(file or f"{model}.toml"))


def check_applies(blocks: Sequence[Block], dataset: str, num_layers: int, file: Path) -> None:
    """Refuse a file of the caller's that has nothing to say about a run, naming what it is for."""
    if any(block.applies_to(dataset, num_layers) for block in blocks):
        return
    depths = [block.min_layers or block.max_layers for block in blocks if block.dataset in (None, dataset)]
    remedy = f"choose --layers {depths[0]}" if depths else "choose its dataset"
    scopes = "; ".join(dict.fromkeys(block.scope for block in blocks)) or "none"
    raise GraphjouleError(
        f"{file} has no block for {dataset} with {counted(num_layers, 'layer')}; it has: {scopes}. "
        f"To use the file, {remedy} or add a block."
    )


def parse_blocks(text: str, name: str) -> list[Block]:
    """Read the text of a recipe file.

    Args:
        text: TOML whose only key is the array `block`.
        name: What to call the file in an error sentence.

    Returns:
        The blocks in the file's order, later ones override earlier ones.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise GraphjouleError(f"{name} is not valid TOML: {error}.") from error
    if list(content) != ["block"] or not isinstance(content["block"], list):
        raise GraphjouleError(f"{name} must hold [[block]] tables and nothing else, but it holds: {choices(content)}.")
    return [_parse_block(raw, f"{name}, block {i}") for i, raw in enumerate(content["block"], start=1)]


def _parse_block(raw: Any, where: str) -> Block:
    if not isinstance(raw, dict):
        raise GraphjouleError(f"{where} must be a table, but it is {raw!r}.")
    names = [name for name in Block.model_fields if name != "where"]
    for key in raw:
        if key not in names:
            raise GraphjouleError(f"{where}: {unknown(key, names, 'key of a block')}")
    try:
        block = Block(**raw, where=f"{where} ({raw['dataset']})" if "dataset" in raw else where)
    except ValidationError as error:
        raise GraphjouleError(f"{where}: {explain(error)[1]}") from error
    if block.min_layers and block.max_layers and block.min_layers > block.max_layers:
        raise GraphjouleError(
            f"{where} applies to no depth: min_layers = {block.min_layers} is above max_layers = {block.max_layers}."
        )
    return block


def unknown(name: str, names: Iterable[str], what: str) -> str:
    """The sentences for a name that is not among the known ones.

    >>> unknown("cmin", ["c_min", "beta"], "setting")
    '"cmin" is not a setting, did you mean "c_min"? The choices are: beta, c_min.'
    """
    names = list(names)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f', did you mean "{near[0]}"?' if near else "."
    return f'"{name}" is not a {what}{hint} The choices are: {choices(names)}.'


def explain(error: ValidationError) -> tuple[str, str]:
    """The first thing that is wrong, as the setting's key and a sentence with the value and what was expected."""
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"] if part != "options")
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, GraphjouleError):
        return key, str(cause)
    if first["type"] == "missing":
        return key, f"{key} is not given, and it has no default."
    if first["type"] == "extra_forbidden":
        return key, f"{key} = {first['input']!r} cannot be used: there is no such setting."
    expected = re.sub(r"^\w+ should", "it should", first["msg"]).replace("a valid boolean", "true or false")
    return key, f"{key} = {first['input']!r} cannot be used: {expected}." if key else f"{expected}."
