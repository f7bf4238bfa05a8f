"""The settings of a recipe's energy constraint: ``constraint`` is the method, ``constraint.c_min`` and so on the rest.

Where the model has a setting of that name the constraint takes its value, for it is the same limit; where it has none,
``c_min`` stands for ``constraint.c_min``.
"""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from graphjoule.errors import GraphjouleError
from graphjoule.terms.methods import check_settings

__all__ = ["CONSTRAINT_NAMES", "ConstraintSettings", "constraint_setting", "spell_constraint", "take_constraint"]


class ConstraintSettings(BaseModel):
    """What `EnergyConstraint` is built with.

    Attributes:
        method: a key of `graphjoule.terms.METHODS`.
        c_min: factor of the lower limit.
        c_max: factor of the upper limit.
        rho: how hard a broken limit pushes back.
        every: epochs between two updates of the multipliers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    method: Literal["penalty", "augmented_lagrangian"]
    c_min: float = Field(default=0.2)
    c_max: float = Field(default=1.0)
    rho: float = Field(default=0.1)
    every: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _can_be_satisfied(self) -> "ConstraintSettings":
        check_settings(self.c_min, self.c_max, self.method, self.rho)
        return self

    def settings(self) -> dict[str, Any]:
        """As `Recipe.settings` spells them.

        >>> list(ConstraintSettings(method="penalty", c_min=0.5).settings().items())[:2]
        [('constraint', 'penalty'), ('constraint.c_min', 0.5)]
        """
        return {constraint_setting(name): value for name, value in self.model_dump().items()}


def constraint_setting(name: str) -> str:
    """How `Recipe.settings` spells a field of `ConstraintSettings`.

    >>> constraint_setting("method"), constraint_setting("rho")
    ('constraint', 'constraint.rho')
    """
    return "constraint" if name == "method" else f"constraint.{name}"


CONSTRAINT_NAMES = tuple(constraint_setting(name) for name in ConstraintSettings.model_fields)
"""The keys of `ConstraintSettings.settings`."""


def spell_constraint(given: Mapping[str, Any], options: Collection[str]) -> dict[str, Any]:
    """Settings in which a short name that only the constraint has is spelled out, if there is a constraint at all.

    >>> spell_constraint({"constraint": "penalty", "c_min": 0.3, "lr": 0.1}, options=["dropout"])
    {'constraint': 'penalty', 'constraint.c_min': 0.3, 'lr': 0.1}

    Args:
        given: settings as people type them.
        options: names of the model's own options.
    """
    if given.get("constraint") is None:
        return dict(given)
    short = {
        name: constraint_setting(name) for name in ConstraintSettings.model_fields if name not in {"method", *options}
    }
    for name, full in short.items():
        if name in given and full in given:
            raise GraphjouleError(f"{name} and {full} are the same setting: give one of them.")
    return {short.get(key, key): value for key, value in given.items()}


def take_constraint(settled: dict[str, tuple[Any, Any]]) -> dict[str, Any] | None:
    """Take the constraint's settings out of those of a recipe; completed by the model's own limits, or None.

    Args:
        settled: value and source by name; without a constraint its other settings must not be there.
    """
    found = {name: settled[name] for name in CONSTRAINT_NAMES if name in settled}
    if found.get("constraint", (None,))[0] is None:
        for name in found:
            del settled[name]
            if name != "constraint":
                raise GraphjouleError(f"{name} is set, but there is no constraint: choose one with --constraint.")
        return None
    for name, field in ConstraintSettings.model_fields.items():
        if name != "method":
            settled.setdefault(constraint_setting(name), settled.get(name, (field.default, "default")))
    return {name: settled.pop(constraint_setting(name)) for name in ConstraintSettings.model_fields}
