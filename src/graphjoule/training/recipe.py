"""A recipe: every setting of one training, checked, and marked with where it comes from; and the files of recipes."""

import hashlib
import json
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from graphjoule.errors import GraphjouleError, choices, counted, unknown
from graphjoule.files import json_text, parse_json, reason
from graphjoule.nn.table import MODELS
from graphjoule.terms.settings import TERMS, Strict
from graphjoule.training.settings import (
    ClusterSettings,
    DataSettings,
    ModelSettings,
    TrainSettings,
    checked,
    explain,
    flatten,
    model_options,
    parameter_groups,
    resolve,
    setting_names,
)

if TYPE_CHECKING:
    from graphjoule.tasks.task import Task

# Of these None is not listed.
_OPTIONAL = ("class_weights", "focal_gamma", "label_smoothing", "average", "norm_momentum")
Source = Literal["paper", "released code", "ours", "data", "default", "override"]
Settled = dict[str, tuple[Any, Source]]
_NOTHING: Mapping[str, Any] = MappingProxyType({})
# What a run is chosen by. These are arguments and not settings, so that a recipe is never about another run.
_CHOSEN = {
    "model.name": "model",
    "model": "model",
    "data.name": "dataset",
    "dataset": "dataset",
    "model.num_layers": "num_layers",
    "num_layers": "num_layers",
    "layers": "num_layers",
    "seeds": "seeds",
}


class Recipe(Strict):
    """The fully resolved settings of one training.

    Attributes:
        model: Which network.
        data: What is trained on.
        train: How it is trained.
        terms: What is added to the loss, by name: settings of a key of `TERMS`, or how a term of the user's own is
            called. A model's own penalty is part of the model and not listed.
        sources: Where each setting comes from, by the keys of `settings`.
    """

    model: ModelSettings
    data: DataSettings
    train: TrainSettings
    terms: dict[str, dict[str, Any]] = Field(default_factory=dict)
    sources: dict[str, Source] = Field(default_factory=dict)

    @field_validator("terms")
    @classmethod
    def _complete_terms(cls, terms: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        complete = dict(terms)  # of a term of the user's own, whose name has a dot, as it is
        for name, given in terms.items():
            if name in TERMS:
                complete[name] = checked(TERMS[name], given, f"terms.{name}.").model_dump()
            elif "." not in name:
                raise GraphjouleError(unknown(name, TERMS, "term"))
        return complete

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        decay = self.train.weight_decay
        groups = parameter_groups(self.model.name)
        if set(decay) != set(groups):
            raise GraphjouleError(f"weight_decay must have one value for each of {', '.join(groups)}, not {decay}.")
        for term, what in (("energy", "the energy of a layer needs"), ("consistency", "its warm-up and its mean need")):
            if self.train.clusters is not None and term in self.terms:
                raise GraphjouleError(
                    f"terms.{term} and train.clusters exclude each other: {what} the whole graph, and a step on "
                    "clusters sees a part of it. Leave out one of them."
                )
        if self.train.clusters is not None and self.train.average is not None:
            raise GraphjouleError("train.average and train.clusters exclude each other. Leave out one of them.")
        return self

    def with_split_of(self, task: "Task") -> Self:
        """The same recipe, in which a split called "default" has the name of the task's default split.

        A record must say by which rule its nodes were divided, whatever a later version takes by default.
        """
        if self.data.split != "default":
            return self
        return self.model_copy(update={"data": self.data.model_copy(update={"split": task.default_split})})

    def with_settings(self, changes: Mapping[str, Any]) -> Self:
        """The same recipe with some settings replaced, checked as those of a file are.

        Args:
            changes: new values by name, as `load_recipe` takes overrides; a name that stands for several settings is
                for those that are not also named by themselves.
        """
        _check_overrides(changes)
        flat = resolve(changes, setting_names(self.model.name), self.model.name, self.terms)
        return checked(
            type(self), _assembled(self.model_dump(), {name: (value, "override") for name, value in flat.items()})
        )

    @property
    def title(self) -> str:
        """A training in words: "egnn, 64 layers, cora"."""
        return f"{self.model.name}, {counted(self.model.num_layers, 'layer')}, {self.data.name}"

    def settings(self) -> dict[str, Any]:
        """All settings in one flat dict by their dotted names."""
        fields = self.model_dump(exclude={"sources"})
        fields["model"] |= fields["model"].pop("options")
        for name in ("clusters", *_OPTIONAL):
            if fields["train"][name] is None:
                del fields["train"][name]
        fields["terms"] = {name: given or True for name, given in fields["terms"].items()}
        return dict(flatten(fields))

    def differences(self, other: "Recipe") -> list[str]:
        """What changes from this recipe to the other, such as "model.c_min: 0.2 -> 0.3"; empty if nothing does."""
        mine, theirs, absent = self.settings(), other.settings(), "not a setting"
        return [
            f"{key}: {mine.get(key, absent)} -> {theirs.get(key, absent)}"
            for key in mine | theirs
            if mine.get(key, absent) != theirs.get(key, absent)
        ]

    def changes(self, other: "Recipe") -> dict[str, Any]:
        """The other's settings that differ from this recipe's; None for one that it does not have."""
        mine, theirs = self.settings(), other.settings()
        return {key: theirs.get(key) for key in mine | theirs if mine.get(key) != theirs.get(key)}

    def fingerprint(self) -> str:
        """SHA-256 of everything that changes the training: all settings, not where they came from.

        Settings are spelled as in format 1, where they were flat, so that runs of before are found again.
        """
        canonical = json.dumps(_as_format_1(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def to_json(self) -> str:
        """The recipe as JSON that `from_json` reads."""
        return json_text(self.model_dump(), indent=2)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read a recipe that `to_json` wrote, in this or an older version."""
        try:
            return cls.from_fields(parse_json(text))
        except ValueError as error:
            if isinstance(error, GraphjouleError):
                raise
            raise GraphjouleError(f"This is not a recipe graphjoule can use: Invalid JSON: {error}.") from error

    @classmethod
    def from_fields(cls, fields: Any) -> Self:
        """The recipe of a dict, nested as it is now or flat as in format 1."""
        try:
            if isinstance(fields, dict) and "num_layers" in fields:
                fields = _from_format_1(fields)
            return cls.model_validate(fields)
        except ValidationError as error:
            raise GraphjouleError(f"This is not a recipe graphjoule can use: {explain(error)[1]}") from error
        except (AttributeError, TypeError) as error:
            raise GraphjouleError("This is not a recipe graphjoule can use: its settings are no tables.") from error


@lru_cache(maxsize=1024)  # ten seeds or a million share one
def recipe_and_fingerprint(text: str) -> tuple[Recipe, str]:
    """A recipe from its JSON, and its fingerprint."""
    recipe = Recipe.from_json(text)
    return recipe, recipe.fingerprint()


# Old recipes: one flat dict. A recipe's fingerprint is still made from it.

# Options that records and searches of before lack, with what they were trained with.
LATER: dict[str, Any] = {"certified": False, "activations": "float32"}


def _as_format_1(recipe: Recipe) -> dict[str, Any]:
    options = {name: value for name, value in recipe.model.options.items() if (name, value) not in LATER.items()}
    flat = recipe.model.model_dump(exclude={"name", "options"}) | options
    flat |= {"model": recipe.model.name, "dataset": recipe.data.name} | recipe.data.model_dump(exclude={"name"})
    flat |= recipe.train.model_dump(exclude={"weight_decay", "clusters", *_OPTIONAL})
    optional = recipe.train.model_dump(include={*_OPTIONAL})
    flat |= {name: value for name, value in optional.items() if value is not None}
    flat["select_on"] = f"val_{recipe.train.select_on}"
    flat |= {f"weight_decay.{group}": decay for group, decay in recipe.train.weight_decay.items()}
    if recipe.train.clusters is not None:
        cut = recipe.train.clusters.model_dump()
        flat["clusters"] = cut.pop("parts")
        flat |= {f"clusters.{name}": value for name, value in cut.items()}
    for name, given in recipe.terms.items():
        if name == "orthogonal" and given["c_max"] == recipe.model.options.get("c_max", 1.0):
            flat["orthogonal_penalty"] = given["gamma"]
        elif name == "energy":
            flat |= {"constraint" if key == "method" else f"constraint.{key}": value for key, value in given.items()}
        else:
            flat |= {f"terms.{name}.{key}": value for key, value in given.items()} or {f"terms.{name}": True}
    return flat


def _from_format_1(fields: dict[str, Any]) -> dict[str, Any]:
    given = dict(fields)
    options = given.pop("options", {})
    terms: dict[str, Any] = {}
    if (constraint := given.pop("constraint", None)) is not None:
        terms["energy"] = constraint
    if (gamma := given.pop("orthogonal_penalty", None)) is not None:
        terms["orthogonal"] = {"gamma": gamma, "c_max": options.get("c_max", 1.0)}
    model = {"name": given.pop("model", None), "options": options}
    data = {"name": given.pop("dataset", None)}
    for table, settings in ((model, ModelSettings), (data, DataSettings)):
        table |= {name: given.pop(name) for name in settings.model_fields if name in given}
    train = {name: given.pop(name) for name in TrainSettings.model_fields if name in given}
    old_names = {"constraint": "terms.energy.method", "orthogonal_penalty": "terms.orthogonal.gamma"}
    old_names |= {"clusters": "train.clusters.parts"}
    new_names = setting_names(model["name"]) if model["name"] in MODELS else []

    def renamed(name: str) -> str:
        if name in old_names:
            return old_names[name]
        name = re.sub(r"^constraint\.", "terms.energy.", name)
        return next((new for new in new_names if new.partition(".")[2] == name), name)

    sources = {renamed(name): source for name, source in given.pop("sources", {}).items()}
    return {"model": model, "data": data, "train": train, "terms": terms, "sources": sources, **given}


# Recipe files: blocks of settings, each under the source it comes from.


class Block(BaseModel):
    """One block of a recipe file: which runs it is for, and its settings by where they come from.

    >>> Block(dataset="cora", min_layers=32).applies_to("cora", 64)
    True
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    where: str = ""
    dataset: str | None = None
    min_layers: int | None = Field(default=None, ge=1)
    max_layers: int | None = Field(default=None, ge=1)
    paper: dict[str, Any] = {}
    released_code: dict[str, Any] = {}
    ours: dict[str, Any] = {}

    def applies_to(self, dataset: str, num_layers: int) -> bool:
        """Whether a run of this depth on this dataset takes the block's settings."""
        low, high = self.min_layers or num_layers, self.max_layers or num_layers
        return self.dataset in (None, dataset) and low <= num_layers <= high

    @property
    def scope(self) -> str:
        """Which runs it is for, in words.

        >>> Block(dataset="cora", min_layers=4, max_layers=4).scope, Block(min_layers=32).scope
        ('cora, 4 layers', 'any dataset, 32 layers or more')
        """
        low, high = self.min_layers, self.max_layers
        if low == high:
            depth = "any depth" if low is None else counted(low, "layer")
        elif low is None or high is None:
            depth = f"{low} layers or more" if high is None else f"{high} layers or fewer"
        else:
            depth = f"{low} to {high} layers"
        return f"{self.dataset or 'any dataset'}, {depth}"

    def settings(self, model: str, names: Sequence[str]) -> Settled:
        """The settings with their sources, by dotted names; checked whether or not the block applies to a run."""
        settled: Settled = {}
        given_by: dict[Source, dict[str, Any]]
        given_by = {"paper": self.paper, "released code": self.released_code, "ours": self.ours}
        for source, given in given_by.items():
            try:
                flat = resolve(given, names, model)
            except GraphjouleError as error:
                raise GraphjouleError(f"{self.where}: {error}") from error
            for key, value in flat.items():
                if key in settled:
                    raise GraphjouleError(
                        f"{self.where}: {key} has two sources, {settled[key][1]} and {source}: keep one."
                    )
                settled[key] = (value, source)
        return settled


def load_recipe(
    model: str, dataset: str, num_layers: int, overrides: Mapping[str, Any] = _NOTHING, *, file: Path | None = None
) -> Recipe:
    """Resolve the settings of one training: the constructor's defaults, the recipe file's blocks, then the overrides.

    Args:
        model: A key of `MODELS`.
        dataset: Any name; one without a block of its own gets the blocks for every dataset.
        num_layers: The depth; a block can be for a range of depths.
        overrides: Settings that win over the file, by dotted or short name.
        file: A recipe file to use instead of the one that comes with graphjoule; one without a block for this run is
            refused.

    Returns:
        The recipe; an override it cannot honour is an error, never dropped.
    """
    if model not in MODELS:
        raise GraphjouleError(unknown(model, MODELS, "model"))
    _check_overrides(overrides)
    names = setting_names(model)
    # What a setting is when nobody sets it.
    options = model_options(model).model_fields
    settled: Settled = {f"model.{name}": (f.default, "default") for name, f in options.items() if not f.is_required()}
    settled |= {"model.hidden_channels": (64, "default"), "data.split_seed": (None, "default")}
    blocks = _read_recipe_file(model, file)
    applies = False
    for block in blocks:
        settings = block.settings(model, names)
        if block.applies_to(dataset, num_layers):
            settled |= settings
            applies = True
    if file is not None and not applies and num_layers >= 1:  # a depth below 1 is refused below
        depths = [block.min_layers or block.max_layers for block in blocks if block.dataset in (None, dataset)]
        remedy = f"choose `num_layers={depths[0]}`" if depths else "choose its dataset"
        scopes = "; ".join(dict.fromkeys(block.scope for block in blocks)) or "nothing"
        raise GraphjouleError(
            f"{file} has no block for {dataset} with {counted(num_layers, 'layer')}; it has: {scopes}. "
            f"To use the file, {remedy} or add a block."
        )
    terms = {name.split(".")[1] for name in settled if name.startswith("terms.")}
    settled |= {key: (value, "override") for key, value in resolve(overrides, names, model, terms).items()}
    empty = {"model": {"name": model, "num_layers": num_layers, "options": {}}, "data": {"name": dataset}}
    fields = _assembled(empty | {"train": {}, "terms": {}, "sources": {}}, settled)
    try:
        return Recipe(**fields)
    except ValidationError as error:
        key, sentence = explain(error)
        table = key.rpartition(".")[0] or key  # where a setting is missing, another of its table asked for it
        at = [name for name in settled if not key or f".{table}." in f".{name}."]
        in_file = key not in _CHOSEN and not any(settled[name][1] == "override" for name in at)
        raise GraphjouleError(f"{file or f'{model}.toml'}: {sentence}" if in_file else sentence) from error


def has_recipe(model: str, dataset: str) -> bool:
    """Whether the recipe file that comes with graphjoule has a block of the dataset's own."""
    if model not in MODELS:
        raise GraphjouleError(unknown(model, MODELS, "model"))
    return any(block.dataset == dataset for block in _read_recipe_file(model, None))


def _check_overrides(overrides: Mapping[str, Any]) -> None:
    for key in overrides:
        if key in _CHOSEN:
            raise GraphjouleError(f"{key} is not a setting to override: choose it with `{_CHOSEN[key]}`.")


def _assembled(fields: dict[str, Any], settled: Settled) -> dict[str, Any]:
    """The fields of a `Recipe` with settings put in by their dotted names, and with what these leave open."""
    sources = fields["sources"]
    for name, (value, source) in settled.items():
        table, *path, last = name.split(".")
        if table == "model" and last not in ModelSettings.model_fields:
            path = ["options"]
        place = fields[table]
        for part in path:
            place[part] = place.get(part) or {}
            place = place[part]
        if value is None and (name == "train.clusters" or (name.count(".") == 1 and table == "terms")):
            place.pop(last, None)
            for gone in [other for other in sources if other.startswith(f"{name}.")]:
                del sources[gone]
        else:
            place[last], sources[name] = value, source

    def complete(place: dict[str, Any], settings: type[BaseModel], before: str) -> None:
        for name, field in settings.model_fields.items():
            if name not in place and not field.is_required():
                # The limits of a term are those of the model where it has settings of that name.
                own = fields["model"]["options"] if name.startswith("c_") else {}
                place[name] = own.get(name, field.default)
                sources[f"{before}.{name}"] = sources.get(f"model.{name}", "default") if name in own else "default"

    for term, given in fields["terms"].items():
        if term in TERMS:
            complete(given, TERMS[term], f"terms.{term}")
    if fields["train"].get("clusters") is not None:
        complete(fields["train"]["clusters"], ClusterSettings, "train.clusters")
    return fields


def _read_recipe_file(model: str, file: Path | None) -> tuple[Block, ...]:
    """The blocks of a model's recipe file: the one that comes with graphjoule, or a file of the caller's."""
    shipped = resources.files("graphjoule.training") / "recipes" / f"{model}.toml"
    if file is None and not shipped.is_file():
        raise GraphjouleError(f'There is no recipe file for the model "{model}".')
    try:
        text = (file or shipped).read_text(encoding="utf-8")
    except OSError as error:
        raise GraphjouleError(f"Cannot read the recipe file {file}: {reason(error)}.") from error
    except UnicodeDecodeError as error:
        raise GraphjouleError(f"Cannot read the recipe file {file}: it is not text in UTF-8.") from error
    return parse_blocks(text, str(file or f"{model}.toml"))


@lru_cache  # a study asks for hundreds of recipes of one file
def parse_blocks(text: str, name: str) -> tuple[Block, ...]:
    """Read the text of a recipe file.

    Args:
        text: TOML whose only key is the array `block`.
        name: What to call the file in an error sentence.

    Returns:
        The blocks in the file's order; later ones override earlier ones.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise GraphjouleError(f"{name} is not valid TOML: {error}.") from error
    if list(content) != ["block"] or not isinstance(content["block"], list):
        raise GraphjouleError(f"{name} must hold [[block]] tables and nothing else, but it holds: {choices(content)}.")
    return tuple(_parse_block(raw, f"{name}, block {i}") for i, raw in enumerate(content["block"], start=1))


def _parse_block(raw: Any, where: str) -> Block:
    if not isinstance(raw, dict):
        raise GraphjouleError(f"{where} must be a table, but it is {raw!r}.")
    names = [name for name in Block.model_fields if name != "where"]
    for key in raw:
        if key not in names:
            raise GraphjouleError(f"{where}: {unknown(key, names, 'key of a block')}")
    named = f"{where} ({raw['dataset']})" if "dataset" in raw else where
    block = checked(Block, {**raw, "where": named}, f"{where}: ")
    if block.min_layers and block.max_layers and block.min_layers > block.max_layers:
        raise GraphjouleError(
            f"{where} applies to no depth: min_layers = {block.min_layers} is above max_layers = {block.max_layers}."
        )
    return block


def recipe_text(recipe: Recipe, *, searched: Collection[str] = (), header: Sequence[str] = ()) -> str:
    """One block of TOML with the settings of a recipe, for its dataset and depth.

    Settings keep the source that the recipe gives them, except those that were overridden or searched: those are ours.
    Defaults are left out, for a file that names them would call them ours.

    Args:
        recipe: what to write.
        searched: the settings that a search found, by dotted or short name; they are marked so.
        header: lines for the comment on top.

    Returns:
        The text; `load_recipe` reads the same settings from it.
    """
    model = recipe.model.name
    found = resolve(dict.fromkeys(searched, 0), setting_names(model), model, recipe.terms)
    tables: dict[str, list[str]] = {}
    for key, value in recipe.settings().items():
        source = "ours" if key in found else recipe.sources.get(key, "ours")
        # TOML cannot write None, and None is the default wherever it is allowed.
        if key not in _CHOSEN and value is not None and source != "default":
            table = source.replace(" ", "_") if source in ("paper", "released code") else "ours"
            line = f"{key} = {json.dumps(value, ensure_ascii=False)}{' # searched' if key in found else ''}"
            tables.setdefault(table, []).append(line)
    lines = [*(f"# {line}".rstrip() for line in header), *([""] if header else []), "[[block]]"]
    lines += [f"dataset = {json.dumps(recipe.data.name, ensure_ascii=False)}"]
    lines += [f"{end} = {recipe.model.num_layers}" for end in ("min_layers", "max_layers")]
    for table, settings in tables.items():
        lines += [f"[block.{table}]", *settings]
    return "\n".join(lines) + "\n"
