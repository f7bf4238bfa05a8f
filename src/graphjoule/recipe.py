"""A recipe: every setting of one training, resolved, checked, and marked with where it comes from."""

import hashlib
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, create_model, field_validator

from graphjoule.errors import GraphjouleError
from graphjoule.files import json_text
from graphjoule.nn import MODELS
from graphjoule.recipes import Block, Source, explain, read_recipe_file, unknown
from graphjoule.recipes.clustered import CLUSTER_NAMES, ClusterSettings, take_clusters
from graphjoule.recipes.constrained import CONSTRAINT_NAMES, ConstraintSettings, spell_constraint, take_constraint
from graphjoule.recipes.overrides import parse_override, parse_overrides
from graphjoule.tasks.task import NodeTask

__all__ = ["Recipe", "load_recipe", "model_options", "parse_override", "parse_overrides"]

# "0.3" in quotes is a mistake in a file, not a number; an integer where a float is meant is none.
_STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())
_NOTHING: Mapping[str, Any] = MappingProxyType({})
# What a run is chosen by, and the command's option for it: not settings, so that a recipe is never about another run.
_CHOSEN = {
    "model": "--model",
    "dataset": "--dataset",
    "num_layers": "--layers",
    "layers": "--layers",
    "seeds": "--seeds",
}


class Recipe(BaseModel):
    """The fully resolved settings of one training.

    Attributes:
        model: A key of `MODELS`.
        dataset: The dataset's name.
        num_layers: The depth, K in the paper.
        hidden_channels: The width.
        options: Keyword options of the model's constructor, all of them.
        lr: Adam's learning rate.
        weight_decay: L2 penalty for each parameter group of the model.
        epochs: The most epochs a run may take.
        patience: Epochs without a better `select_on` after which a run stops.
        select_on: The validation measure that chooses the epoch.
        normalize_features: Whether each row of features is scaled to the sum 1.
        split: The rule that divides the nodes: "public", "per-class-TRAIN-VAL" with the rest as test,
            "stratified-VAL-TEST" in percent with the rest to train, or "default", the task's own.
        split_seed: What a random split is drawn from; None is the run's own seed, so a new split per seed.
        constraint: The limits that training holds every layer's energy to, see `EnergyConstraint`; None is none.
        clusters: The clusters of nodes that training goes over, for graphs that are too large; None is the whole graph.
        orthogonal_penalty: Factor of a penalty that pulls the model's weights to the identity, see `OrthogonalPenalty`;
            None is none. EGNN has one of its own, `gamma`.
        sources: Where each setting comes from, by the keys of `settings`.
    """

    model_config = _STRICT

    model: str
    dataset: str = Field(min_length=1)
    num_layers: int = Field(ge=1)
    hidden_channels: int = Field(default=64, ge=1)
    options: dict[str, Any] = Field(default={}, validate_default=True)
    lr: float = Field(gt=0)
    weight_decay: dict[str, Annotated[float, Field(ge=0)]]
    epochs: int = Field(ge=1)
    patience: int = Field(ge=1)
    select_on: Literal["val_loss", "val_accuracy"]
    normalize_features: bool
    split: str = Field(min_length=1)
    split_seed: int | None = Field(default=None, ge=0)
    constraint: ConstraintSettings | None = None
    clusters: ClusterSettings | None = None
    orthogonal_penalty: float | None = Field(default=None, ge=0)
    sources: dict[str, Source] = {}

    @field_validator("model")
    @classmethod
    def _known_model(cls, name: str) -> str:
        if name not in MODELS:
            raise GraphjouleError(unknown(name, MODELS, "model"))
        return name

    @field_validator("options")
    @classmethod
    def _complete_options(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "model" not in info.data:  # refused already
            return options
        return model_options(info.data["model"]).model_validate(options).model_dump()

    @field_validator("weight_decay")
    @classmethod
    def _every_group_once(cls, decay: dict[str, float], info: ValidationInfo) -> dict[str, float]:
        groups = MODELS[info.data["model"]].parameter_group_names if "model" in info.data else tuple(decay)
        if set(decay) != set(groups):
            raise GraphjouleError(f"weight_decay must have one value for each of {', '.join(groups)}, not {decay}.")
        return {group: decay[group] for group in groups}

    @field_validator("clusters")
    @classmethod
    def _whole_graph_for_energies(
        cls, clusters: ClusterSettings | None, info: ValidationInfo
    ) -> ClusterSettings | None:
        if clusters is not None and info.data.get("constraint") is not None:
            raise GraphjouleError(
                "constraint and clusters cannot be had together: the energy of a layer is a fact of the whole graph, "
                "and a step on clusters does not see it. Leave out one of them."
            )
        return clusters

    def with_split_of(self, task: NodeTask) -> Self:
        """The same recipe, in which a split called "default" has the name of the one that the task takes by default.

        A record must say by which rule its nodes were divided, whatever a later version takes by default.
        """
        return self.model_copy(update={"split": task.default_split}) if self.split == "default" else self

    def settings(self) -> dict[str, Any]:
        """All settings in one flat dict; a parameter group's decay is `weight_decay.GROUP`.

        Where there is no constraint, no penalty and there are no clusters, no setting is about them: recipes keep the
        fingerprint that they had before.
        """
        apart = {"constraint": self.constraint, "clusters": self.clusters}
        flat: dict[str, Any] = {}
        for name, value in self.model_dump(exclude={"sources", *apart}).items():
            if name == "options":
                flat |= value
            elif name == "weight_decay":
                flat |= {f"{name}.{group}": decay for group, decay in value.items()}
            elif name != "orthogonal_penalty" or value is not None:
                flat[name] = value
        for settings in apart.values():
            flat |= settings.settings() if settings else {}
        return flat

    def differences(self, other: "Recipe") -> list[str]:
        """What changes from this recipe to the other, such as "c_min: 0.2 -> 0.3"; empty when they train the same."""
        mine, theirs, absent = self.settings(), other.settings(), "not a setting"
        return [
            f"{key}: {mine.get(key, absent)} -> {theirs.get(key, absent)}"
            for key in mine | theirs
            if mine.get(key, absent) != theirs.get(key, absent)
        ]

    def fingerprint(self) -> str:
        """SHA-256 of everything that changes the training: all settings, not where they came from."""
        canonical = json.dumps(self.settings(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def to_json(self) -> str:
        """The recipe as JSON that `from_json` reads."""
        return json_text(self.model_dump(), indent=2)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read a recipe that `to_json` wrote, refusing anything else with a sentence."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise GraphjouleError(f"This is not a recipe graphjoule can use: {explain(error)[1]}") from error


def model_options(model: str) -> type[BaseModel]:
    """The checks for a model's options, read from the keyword-only parameters of its constructor."""
    return _options_of(MODELS[model].__init__, MODELS[model].__name__)


@cache  # a study asks thousands of times; not by the key of `MODELS`, which may get another model
def _options_of(constructor: Callable[..., None], name: str) -> type[BaseModel]:
    hints = typing.get_type_hints(constructor, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints[name], ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(constructor).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    return create_model(f"{name}Options", __config__=_STRICT, **fields)


def load_recipe(
    model: str, dataset: str, num_layers: int, overrides: Mapping[str, Any] = _NOTHING, *, file: Path | None = None
) -> Recipe:
    """Resolve the settings of one training: the constructor's defaults, the recipe file's blocks, then the overrides.

    Args:
        model: A key of `MODELS`.
        dataset: Any name; one without a block of its own gets the blocks for every dataset.
        num_layers: The depth; a block can be for a range of depths.
        overrides: Settings that win over the file, as `parse_overrides` gives them.
        file: A recipe file to use instead of the one that comes with graphjoule.

    Returns:
        The recipe; an override it cannot honour is an error, never dropped.
    """
    if model not in MODELS:
        raise GraphjouleError(unknown(model, MODELS, "model"))
    names = _setting_names(model)
    settled = _defaults(model)
    for block in read_recipe_file(model, file):
        settings = _block_settings(block, model, names)
        if block.applies_to(dataset, num_layers):
            settled |= settings
    overrides = spell_constraint(_refuse_chosen(overrides), model_options(model).model_fields)
    settled |= {key: (value, "override") for key, value in _flatten(overrides, model, names).items()}
    return _build(model, dataset, num_layers, settled, str(file or f"{model}.toml"))


def _setting_names(model: str) -> list[str]:
    """The keys of `Recipe.settings` that a file or an override may set."""
    apart = {*_CHOSEN, "options", "sources", "weight_decay", "constraint", "clusters"}
    own = [name for name in Recipe.model_fields if name not in apart]
    decays = [f"weight_decay.{group}" for group in MODELS[model].parameter_group_names]
    return [*own, *model_options(model).model_fields, *decays, *CONSTRAINT_NAMES, *CLUSTER_NAMES]


def _flatten(given: Mapping[str, Any], model: str, names: list[str]) -> dict[str, Any]:
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


def _defaults(model: str) -> dict[str, tuple[Any, Source]]:
    """What a setting is when nobody sets it: the defaults of `Recipe` and of the model's constructor."""
    fields = Recipe.model_fields | model_options(model).model_fields
    names = [name for name in _setting_names(model) if name in fields and not fields[name].is_required()]
    return {name: (fields[name].default, "default") for name in names}


def _block_settings(block: Block, model: str, names: list[str]) -> dict[str, tuple[Any, Source]]:
    """A block's settings, each with its one source; checked whether or not the block applies to this run."""
    settings: dict[str, tuple[Any, Source]] = {}
    for source, given in block.settings():
        try:
            flat = _flatten(given, model, names)
        except GraphjouleError as error:
            raise GraphjouleError(f"{block.where}: {error}") from error
        for key, value in flat.items():
            if key in settings:
                raise GraphjouleError(
                    f"{block.where}: {key} has two sources, {settings[key][1]} and {source}: keep one."
                )
            settings[key] = (value, source)
    return settings


def _refuse_chosen(overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in overrides:
        if key in _CHOSEN:
            raise GraphjouleError(f"{key} is not a setting to override: choose it with {_CHOSEN[key]}.")
    return overrides


def _build(model: str, dataset: str, num_layers: int, settled: dict[str, tuple[Any, Source]], file: str) -> Recipe:
    constraint, clusters = take_constraint(settled), take_clusters(settled)
    if settled.get("orthogonal_penalty", (None,))[0] is None:
        settled.pop("orthogonal_penalty", None)
    values: dict[str, Any] = {key: value for key, (value, _) in settled.items()}
    values["options"] = {key: values.pop(key) for key in model_options(model).model_fields if key in values}
    values["weight_decay"] = {key.partition(".")[2]: values.pop(key) for key in list(values) if "." in key}
    if constraint is not None:
        values["constraint"] = {name: value for name, (value, _) in constraint.items()}
        settled |= {"constraint" if name == "method" else f"constraint.{name}": c for name, c in constraint.items()}
    if clusters is not None:
        values["clusters"] = {name: value for name, (value, _) in clusters.items()}
        settled |= {"clusters" if name == "parts" else f"clusters.{name}": c for name, c in clusters.items()}
    values["sources"] = {key: source for key, (_, source) in settled.items()}
    try:
        return Recipe(model=model, dataset=dataset, num_layers=num_layers, **values)
    except ValidationError as error:
        key, sentence = explain(error)
        _, source = settled.get(key) or settled.get(key.partition(".")[0], (None, "default"))
        in_file = key not in _CHOSEN and source != "override"
        raise GraphjouleError(f"{file}: {sentence}" if in_file else sentence) from error
