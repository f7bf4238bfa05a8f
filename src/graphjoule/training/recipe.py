"""A recipe: every setting of one training, checked, and marked with where it comes from; and the files of recipes.

Settings are nested as the things are and have dotted names: ``model.c_min``, ``train.lr``, ``data.split``,
``terms.energy.c_max``. Recipe files and overrides may leave out the first part where that is clear: ``c_min`` is looked
for in model, train, data, then in the terms that are there.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from graphjoule.errors import GraphjouleError, choices, counted, unknown
from graphjoule.files import json_text, parse_json, reason
from graphjoule.nn.table import MODELS
from graphjoule.terms.settings import TERMS

if TYPE_CHECKING:
    from graphjoule.tasks.task import Task

# "0.3" in quotes is a mistake in a file, not a number. An integer where a float is meant is fine.
STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


MOST_LAYERS = 100_000
"""The most layers that settings may ask for; a file that asks for more is a mistake, or meant to keep us busy."""


class ModelSettings(BaseModel):
    """Which network.

    Attributes:
        name: A key of `MODELS`, or for a model of the user's own where it is defined, such as "mine.build".
        num_layers: The depth, K in the paper; of a model of the user's own the number of layers that a trace watches.
        hidden_channels: The width; None where a model of the user's own does not say.
        options: Keyword options of the constructor, all of them.
    """

    model_config = STRICT

    name: str
    num_layers: int = Field(ge=1, le=MOST_LAYERS)
    hidden_channels: Annotated[int, Field(ge=1)] | None = 64
    options: dict[str, Any] = Field(default={}, validate_default=True)

    @property
    def is_own(self) -> bool:
        """Whether it is a model of the user's and not one of `MODELS`."""
        return "." in self.name

    @field_validator("name")
    @classmethod
    def _known_model(cls, name: str) -> str:
        if name not in MODELS and "." not in name:
            raise GraphjouleError(unknown(name, MODELS, "model"))
        return name

    @field_validator("options")
    @classmethod
    def _complete_options(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if info.data.get("name") not in MODELS:  # the user's own, or refused already
            return options
        return model_options(info.data["name"]).model_validate(options).model_dump()


class DataSettings(BaseModel):
    """What is trained on.

    Attributes:
        name: The dataset's name.
        split: The rule that divides the nodes, see `Task.split`; "default" is the task's own.
        split_seed: What a random split is drawn from; None is the run's own seed, so a new split per seed.
        normalize_features: Whether each row of features is scaled to the sum 1.
    """

    model_config = STRICT

    name: str = Field(min_length=1)
    split: str = Field(min_length=1)
    split_seed: int | None = Field(default=None, ge=0)
    normalize_features: bool


class ClusterSettings(BaseModel):
    """How nodes are cut into clusters and how an epoch goes over them.

    Attributes:
        parts: Number of clusters.
        per_step: Clusters that are joined for one step; the last step of an epoch may have fewer.
        accumulate: Groups whose gradients one Adam step takes the mean of; several processes share them.
        method: How the nodes are cut, see `graphjoule.parallel.cut_nodes`.
        validate_every: Epochs between two validations, each a pass over the whole graph; the last epoch is always
            validated.
    """

    model_config = STRICT

    parts: int = Field(ge=1)
    per_step: int = Field(default=1, ge=1)
    accumulate: int = Field(default=1, ge=1)
    method: Literal["metis", "blocks"] = "metis"
    validate_every: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _has_so_many(self) -> Self:
        if self.per_step > self.parts:
            raise GraphjouleError(
                f"train.clusters.per_step is {self.per_step}, but there are {self.parts} clusters: it must be from 1 "
                f"to {self.parts}."
            )
        return self


class TrainSettings(BaseModel):
    """How it is trained.

    Attributes:
        lr: Adam's learning rate.
        weight_decay: L2 penalty for each parameter group of the model.
        epochs: The most epochs a run may take.
        patience: Epochs without a better `select_on` after which a run stops.
        select_on: What chooses the epoch on the validation nodes: "loss", or a metric of the task's objective.
        clusters: The clusters of nodes that training goes over, for large graphs; None is the whole graph.
        class_weights: "balanced", or what the loss of every class or label is multiplied with; None is what the task's
            objective says.
        focal_gamma: Gamma of the focal loss; None is what the task's objective says.
        label_smoothing: Share of every target that is spread over all classes; None is what the objective says.
        average: Decay of an exponential average of the weights, which is then what is validated and kept; None keeps
            the weights themselves.
    """

    model_config = STRICT

    lr: float = Field(gt=0)
    weight_decay: dict[str, Annotated[float, Field(ge=0)]]
    epochs: int = Field(ge=1, le=10**7)  # the curves of all of them are kept
    patience: int = Field(ge=1, le=10**9)
    select_on: str = Field(min_length=1)
    clusters: ClusterSettings | None = None
    class_weights: str | list[float] | None = None
    focal_gamma: Annotated[float, Field(ge=0)] | None = None
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] | None = None
    average: Annotated[float, Field(gt=0, lt=1)] | None = None

    @field_validator("class_weights", mode="before")
    @classmethod
    def _balanced_or_numbers(cls, given: Any) -> Any:
        is_list = isinstance(given, list | tuple) and all(type(each) in (int, float) for each in given)
        if given is None or given == "balanced" or (is_list and all(0 < each < float("inf") for each in given)):
            return [float(each) for each in given] if is_list else given
        raise GraphjouleError(
            f"`class_weights` is {given!r}; expected balanced, or a list of numbers above 0, one per class or label."
        )

    @field_validator("select_on")
    @classmethod
    def _as_spelled_now(cls, select_on: str) -> str:
        return select_on.removeprefix("val_")  # as files of before say


_OPTIONAL = ("class_weights", "focal_gamma", "label_smoothing", "average")  # of these None is not listed
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


class Recipe(BaseModel):
    """The fully resolved settings of one training.

    Attributes:
        model: Which network.
        data: What is trained on.
        train: How it is trained.
        terms: What is added to the loss, by name: settings of a key of `TERMS`, or how a term of the user's own is
            called. A model's own penalty is part of the model and not listed.
        sources: Where each setting comes from, by the keys of `settings`.
    """

    model_config = STRICT

    model: ModelSettings
    data: DataSettings
    train: TrainSettings
    terms: dict[str, dict[str, Any]] = {}
    sources: dict[str, Source] = {}

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

# Options that records of before lack, with what they were trained with.
_LATER: dict[str, Any] = {"certified": False, "start_dropout": 0.0}


def _as_format_1(recipe: Recipe) -> dict[str, Any]:
    options = {name: value for name, value in recipe.model.options.items() if (name, value) not in _LATER.items()}
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


# Names of settings, and what people type for them.


def model_options(model: str) -> type[BaseModel]:
    """The checks for a model's options, read from the keyword-only parameters of its constructor."""
    options, _ = MODELS.signature(model)
    return _options_of(model, tuple(options.items()))


@cache  # a study asks thousands of times; not by the key of `MODELS` alone, which may get another model
def _options_of(model: str, options: tuple[tuple[str, tuple[Any, Any]], ...]) -> type[BaseModel]:
    fields: dict[str, Any] = dict(options)
    return create_model(f"{model}_options", __config__=STRICT, **fields)


def parameter_groups(model: str) -> tuple[str, ...]:
    """The names of a model's parameter groups; a model of the user's own has one."""
    return MODELS.signature(model)[1] if model in MODELS else ("all",)


def setting_names(model: str) -> list[str]:
    """The dotted names that a file or an override may set for a model, in the order in which a short name is found.

    The options of a model of the user's own are fixed where it is built.
    """
    options = ["hidden_channels", *model_options(model).model_fields] if model in MODELS else []
    train = [name for name in TrainSettings.model_fields if name not in ("weight_decay", "clusters")]
    return [
        *(f"model.{name}" for name in options),
        *(f"train.{name}" for name in train),
        *(f"train.weight_decay.{group}" for group in parameter_groups(model)),
        *(f"train.clusters.{name}" for name in ClusterSettings.model_fields),
        *(f"data.{name}" for name in DataSettings.model_fields if name != "name"),
        *(f"terms.{term}.{name}" for term, settings in TERMS.items() for name in settings.model_fields),
    ]


def resolve(given: Mapping[str, Any], names: Sequence[str], model: str, terms: Collection[str] = ()) -> dict[str, Any]:
    """Values by their full dotted names, from names as people type them.

    A short name means the first setting that ends in it; those of a term count if the term is there or another name
    begins with it, so that no setting adds a term by accident. `weight_decay = x` stands for every group that is not
    also named by itself, and a table such as ``train = { lr = 0.1 }`` for what is in it.

    Args:
        given: values by the names that were typed.
        names: all full names, see `setting_names`.
        model: what to call the model in an error sentence.
        terms: the terms that are there already.

    >>> names = ["train.lr", "terms.energy.c_min", "terms.energy.rho"]
    >>> resolve({"c_min": 0.3, "terms.energy.rho": 2.0}, names, "gcn")
    {'terms.energy.c_min': 0.3, 'terms.energy.rho': 2.0}
    """
    flat = list(flatten(given))
    there = {*terms, *(key.split(".")[1] for key, _ in flat if key.startswith("terms."))}
    short = [name for name in names if not name.startswith("terms.") or name.split(".")[1] in there]
    exact: dict[str, Any] = {}
    spread: dict[str, Any] = {}
    for key, value in flat:
        full = key if key in names else _full_name(key, short)
        if full == "train.weight_decay" and (groups := [name for name in names if name.startswith(f"{full}.")]):
            spread |= dict.fromkeys(groups, value)
        elif value is None and full in ("train.clusters", *(f"terms.{term}" for term in TERMS)):
            exact[full] = None
        elif full not in names:
            tails = {name: name.partition(".")[2] for name in names}  # every name as short as it may be typed
            typed = [
                tail if name in short and _full_name(tail, short) == name else name for name, tail in tails.items()
            ]
            raise GraphjouleError(unknown(key, typed, f"setting of {model}"))
        elif full in exact:
            raise GraphjouleError(f"{key} is set twice, to {exact[full]!r} and to {value!r}: give it once.")
        else:
            exact[full] = value
    return spread | exact


def _full_name(key: str, names: Sequence[str]) -> str:
    # A table in a room has a name too, such as train.clusters; the rooms themselves have none.
    starts = dict.fromkeys(part for name in names for part in (name, name.rpartition(".")[0]) if "." in part)
    return key if key in starts else next((name for name in starts if name.endswith(f".{key}")), key)


def flatten(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of nested tables by their dotted names."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def parse_overrides(texts: Iterable[str]) -> dict[str, Any]:
    """Overrides from texts such as "c_min=0.3"; a key given twice is refused rather than decided by order.

    Values are read as TOML, so that a number is a number; a bare word is a string, and none is None.

    >>> parse_overrides(["c_min=0.3", "activation=relu", "train.weight_decay.conv=0"])
    {'c_min': 0.3, 'activation': 'relu', 'train.weight_decay.conv': 0}
    """
    overrides: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not key or not equals:
            raise GraphjouleError(f"{text!r} is not a setting: expected key=value, such as c_min=0.3.")
        parsed = _parse_value(value)
        if key in overrides:
            raise GraphjouleError(f"{key} is set twice, to {overrides[key]!r} and to {parsed!r}: give it once.")
        overrides[key] = parsed
    return overrides


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


def explain(error: ValidationError) -> tuple[str, str]:
    """The first thing that is wrong, as the setting's name and a sentence with the value and what was expected."""
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"] if part != "options"]
    key = ".".join(path[1:] if path and path[0] in ("model", "data", "train") and len(path) > 1 else path)
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, GraphjouleError):  # of an option it says how it fits with others of the model
        return "model" if "options" in first["loc"] else key, str(cause)
    if first["type"] == "missing":
        return key, f"{key} is not given, and it has no default."
    if first["type"] == "extra_forbidden":
        return key, f"{key} = {first['input']!r} cannot be used: there is no such setting."
    expected = re.sub(r"^\w+ should", "it should", first["msg"]).replace("a valid boolean", "true or false")
    return key, f"{key} = {first['input']!r} cannot be used: {expected}." if key else f"{expected}."


Settings = TypeVar("Settings", bound=BaseModel)


def checked(kind: type[Settings], fields: Mapping[str, Any], before: str = "") -> Settings:
    """Settings from their fields; the sentence on what is wrong with them begins with `before`."""
    try:
        return kind(**fields)
    except ValidationError as error:
        raise GraphjouleError(f"{before}{explain(error)[1]}") from error
