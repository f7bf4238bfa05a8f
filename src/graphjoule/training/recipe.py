"""A recipe: every setting of one training, resolved, checked, and marked with where it comes from."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator

from graphjoule.errors import GraphjouleError
from graphjoule.files import json_text
from graphjoule.nn import MODELS
from graphjoule.tasks.task import NodeTask
from graphjoule.training.recipes import Source, check_applies, explain, read_recipe_file, unknown
from graphjoule.training.recipes.clustered import CLUSTER_NAMES, ClusterSettings, cluster_setting, take_clusters
from graphjoule.training.recipes.constrained import (
    CONSTRAINT_NAMES,
    ConstraintSettings,
    constraint_setting,
    spell_constraint,
    take_constraint,
)
from graphjoule.training.recipes.flat import CHOSEN, block_settings, flatten, refuse_chosen
from graphjoule.training.recipes.options import STRICT, model_options
from graphjoule.training.recipes.overrides import parse_override, parse_overrides

__all__ = ["Recipe", "load_recipe", "model_options", "parse_override", "parse_overrides"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})


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

    model_config = STRICT

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

    def changes(self, other: "Recipe") -> dict[str, Any]:
        """The other's settings that are not this recipe's; None for one that it does not have."""
        mine, theirs = self.settings(), other.settings()
        return {key: theirs.get(key) for key in mine | theirs if mine.get(key) != theirs.get(key)}

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


def load_recipe(
    model: str, dataset: str, num_layers: int, overrides: Mapping[str, Any] = _NOTHING, *, file: Path | None = None
) -> Recipe:
    """Resolve the settings of one training: the constructor's defaults, the recipe file's blocks, then the overrides.

    Args:
        model: A key of `MODELS`.
        dataset: Any name; one without a block of its own gets the blocks for every dataset.
        num_layers: The depth; a block can be for a range of depths.
        overrides: Settings that win over the file, as `parse_overrides` gives them.
        file: A recipe file to use instead of the one that comes with graphjoule; one without a block for this run is
            refused.

    Returns:
        The recipe; an override it cannot honour is an error, never dropped.
    """
    if model not in MODELS:
        raise GraphjouleError(unknown(model, MODELS, "model"))
    names = _setting_names(model)
    settled = _defaults(model)
    blocks = read_recipe_file(model, file)
    for block in blocks:
        settings = block_settings(block, model, names)
        if block.applies_to(dataset, num_layers):
            settled |= settings
    if file is not None and num_layers >= 1:  # a depth that is none is told of below
        check_applies(blocks, dataset, num_layers, file)
    overrides = spell_constraint(refuse_chosen(overrides), model_options(model).model_fields)
    settled |= {key: (value, "override") for key, value in flatten(overrides, model, names).items()}
    return _build(model, dataset, num_layers, settled, str(file or f"{model}.toml"))


def _setting_names(model: str) -> list[str]:
    """The keys of `Recipe.settings` that a file or an override may set."""
    apart = {*CHOSEN, "options", "sources", "weight_decay", "constraint", "clusters"}
    own = [name for name in Recipe.model_fields if name not in apart]
    decays = [f"weight_decay.{group}" for group in MODELS[model].parameter_group_names]
    return [*own, *model_options(model).model_fields, *decays, *CONSTRAINT_NAMES, *CLUSTER_NAMES]


def _defaults(model: str) -> dict[str, tuple[Any, Source]]:
    """What a setting is when nobody sets it: the defaults of `Recipe` and of the model's constructor."""
    fields = Recipe.model_fields | model_options(model).model_fields
    names = [name for name in _setting_names(model) if name in fields and not fields[name].is_required()]
    return {name: (fields[name].default, "default") for name in names}


def _build(model: str, dataset: str, num_layers: int, settled: dict[str, tuple[Any, Source]], file: str) -> Recipe:
    constraint, clusters = take_constraint(settled), take_clusters(settled)
    if settled.get("orthogonal_penalty", (None,))[0] is None:
        settled.pop("orthogonal_penalty", None)
    values: dict[str, Any] = {key: value for key, (value, _) in settled.items()}
    values["options"] = {key: values.pop(key) for key in model_options(model).model_fields if key in values}
    values["weight_decay"] = {key.partition(".")[2]: values.pop(key) for key in list(values) if "." in key}
    if constraint is not None:
        values["constraint"] = {name: value for name, (value, _) in constraint.items()}
        settled |= {constraint_setting(name): setting for name, setting in constraint.items()}
    if clusters is not None:
        values["clusters"] = {name: value for name, (value, _) in clusters.items()}
        settled |= {cluster_setting(name): setting for name, setting in clusters.items()}
    values["sources"] = {key: source for key, (_, source) in settled.items()}
    try:
        return Recipe(model=model, dataset=dataset, num_layers=num_layers, **values)
    except ValidationError as error:
        key, sentence = explain(error)
        _, source = settled.get(key) or settled.get(key.partition(".")[0], (None, "default"))
        in_file = key not in CHOSEN and source != "override"
        raise GraphjouleError(f"{file}: {sentence}" if in_file else sentence) from error
