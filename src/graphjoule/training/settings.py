"""The settings of a training, each checked by itself, and the names that people type for them.

Settings are nested as the things are and have dotted names: ``model.c_min``, ``train.lr``, ``data.split``,
``terms.energy.c_max``. Recipe files and overrides may leave out the first part where that is clear: ``c_min`` is looked
for in model, train, data, then in the terms that are there.
"""

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, create_model, field_validator, model_validator

from graphjoule.errors import GraphjouleError, unknown
from graphjoule.nn.table import MODELS
from graphjoule.terms.settings import TERMS, Strict

MOST_LAYERS = 100_000
"""The most layers that settings may ask for; a file that asks for more is a mistake, or meant to keep us busy."""


class ModelSettings(Strict):
    """Which network.

    Attributes:
        name: A key of `MODELS`, or for a model of the user's own where it is defined, such as "mine.build".
        num_layers: The depth, K in the paper; of a model of the user's own the number of layers that a trace watches.
        hidden_channels: The width; None where a model of the user's own does not say.
        options: Keyword options of the constructor, all of them.
    """

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


class DataSettings(Strict):
    """What is trained on.

    Attributes:
        name: The dataset's name.
        split: The rule that divides the nodes, see `Task.split`; "default" is the task's own.
        split_seed: What a random split is drawn from; None is the run's own seed, so a new split per seed.
        normalize_features: Whether each row of features is scaled to the sum 1.
    """

    name: str = Field(min_length=1)
    split: str = Field(min_length=1)
    split_seed: int | None = Field(default=None, ge=0)
    normalize_features: bool


class ClusterSettings(Strict):
    """How nodes are cut into clusters and how an epoch goes over them.

    Attributes:
        parts: Number of clusters.
        per_step: Clusters that are joined for one step; the last step of an epoch may have fewer.
        accumulate: Groups whose gradients one Adam step takes the mean of; several processes share them.
        method: How the nodes are cut, see `graphjoule.parallel.cut_nodes`.
        validate_every: Epochs between two validations, each a pass over the whole graph; the last epoch is always
            validated.
    """

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


class TrainSettings(Strict):
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
        norm_momentum: Share of the last pass in the running statistics of batch norms, which validation uses; 1 keeps
            them in step with the weights where a pass sees all nodes. None is what the model says.
    """

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
    norm_momentum: Annotated[float, Field(gt=0, le=1)] | None = None

    @field_validator("class_weights", mode="before")
    @classmethod
    def _balanced_or_numbers(cls, given: Any) -> Any:
        if isinstance(given, str) and re.fullmatch(r"[^a-z]+", given):  # as the option of the command line has them
            with suppress(ValueError):
                given = [float(each) for each in given.split(",")]
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


# Names of settings, and what people type for them.


def model_options(model: str) -> type[BaseModel]:
    """The checks for a model's options, read from the keyword-only parameters of its constructor."""
    options, _ = MODELS.signature(model)
    return _options_of(model, tuple(options.items()))


@cache  # a study asks thousands of times; not by the key of `MODELS` alone, which may get another model
def _options_of(model: str, options: tuple[tuple[str, tuple[Any, Any]], ...]) -> type[BaseModel]:
    fields: dict[str, Any] = dict(options)
    return create_model(f"{model}_options", __base__=Strict, **fields)


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
