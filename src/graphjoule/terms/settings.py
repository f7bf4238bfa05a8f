"""The terms that a recipe can name, by their settings; torch is imported when one of them is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from graphjoule.errors import GraphjouleError, check_number, choices

if TYPE_CHECKING:
    from torch import nn

    from graphjoule.graph import Propagation
    from graphjoule.terms.consistency import Consistency
    from graphjoule.terms.energy import EnergyConstraint
    from graphjoule.terms.weights import OrthogonalPenalty, SpectralLimit

MethodName = Literal["penalty", "augmented_lagrangian"]
METHOD_NAMES: tuple[str, ...] = get_args(MethodName)


class Strict(BaseModel):
    """Settings without unknown names, numbers in quotes or numbers that are not finite; an int is a float too."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


class EnergySettings(Strict):
    """An `EnergyConstraint` on every graph layer, as a recipe or `fit` takes it.

    Attributes:
        method: a key of `METHODS`.
        c_min: factor of the lower limit.
        c_max: factor of the upper limit.
        rho: how hard a broken limit pushes back.
        every: epochs between two updates of the multipliers.
    """

    method: MethodName = "augmented_lagrangian"
    c_min: float = 0.2
    c_max: float = 1.0
    rho: float = 0.1
    every: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _can_be_satisfied(self) -> Self:
        check_settings(self.c_min, self.c_max, self.method, self.rho)
        return self

    def __call__(self, model: nn.Module, graph: Propagation) -> EnergyConstraint:
        """The term for one model: on its ``convs.*`` where it has such layers, else on those that `Trace` watches."""
        from graphjoule.terms.energy import EnergyConstraint

        return EnergyConstraint(model, graph, layers=graph_layers(model), **self.model_dump())


class OrthogonalSettings(Strict):
    """An `OrthogonalPenalty` on every graph layer, as a recipe or `fit` takes it.

    Attributes:
        gamma: factor of the penalty.
        c_max: factor of the upper limit.
    """

    gamma: float = Field(default=20.0, ge=0)
    c_max: float = Field(default=1.0, gt=0)

    def __call__(self, model: nn.Module, graph: Propagation) -> OrthogonalPenalty:
        """The penalty for one model.

        Raises:
            GraphjouleError: no graph layer has a square weight. One or two layers with weights may have none because
                they lead in and out; of them the penalty is zero.
        """
        from graphjoule.terms.weights import OrthogonalPenalty
        from graphjoule.trace.watch import watched_modules

        penalty = OrthogonalPenalty(model, layers=graph_layers(model), gamma=self.gamma, c_max=self.c_max)
        layers = watched_modules(model, graph_layers(model)).values()
        has_weights = any(weight.dim() == 2 for layer in layers for weight in layer.parameters())
        if not penalty.names and (len(layers) > 2 or not has_weights):
            raise GraphjouleError(
                f"terms.orthogonal.gamma is {self.gamma}, but no graph layer of {type(model).__name__} has a square "
                "weight that could be pulled to the identity; leave it out or choose another model or depth."
            )
        return penalty


class SpectralSettings(Strict):
    """A `SpectralLimit` on every graph layer, as a recipe or `fit` takes it.

    Attributes:
        limit: the largest spectral norm of a square weight.
    """

    limit: float = Field(default=1.0, gt=0)

    def __call__(self, model: nn.Module, graph: Propagation) -> SpectralLimit:
        """The term for one model.

        Raises:
            GraphjouleError: no graph layer has a square weight to hold.
        """
        from graphjoule.terms.weights import SpectralLimit

        term = SpectralLimit(model, layers=graph_layers(model), limit=self.limit)
        if not term.names:
            raise GraphjouleError(
                f"terms.spectral.limit is {self.limit}, but no graph layer of {type(model).__name__} has a square "
                "weight to hold; leave it out or choose another model or depth."
            )
        return term


class ConsistencySettings(Strict):
    """A `Consistency` of the whole model, as a recipe or `fit` takes it.

    Attributes:
        views: number of views.
        drop: what a view drops, "nodes" or "features".
        p: probability that one is dropped.
        temperature: below 1 the views' mean is sharpened.
        weight: factor of the term.
        warmup: epochs over which the weight grows from 0.
    """

    views: int = 4
    drop: Literal["nodes", "features"] = "nodes"
    p: float = 0.5
    temperature: float = 0.5
    weight: float = 1.0
    warmup: int = 100

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        check_views(**self.model_dump())
        return self

    def __call__(self, model: nn.Module, graph: Propagation) -> Consistency:
        """The term for one model."""
        from graphjoule.terms.consistency import Consistency

        return Consistency(model, **self.model_dump())


def graph_layers(model: nn.Module) -> str | None:
    """The pattern of a model's graph layers: ``convs.*`` where it has such a list, as ours have, else None."""
    from torch import nn

    return "convs.*" if isinstance(getattr(model, "convs", None), nn.ModuleList) else None


def check_settings(c_min: float, c_max: float, method: str, rho: float) -> None:
    """Refuse settings that no network could satisfy, and unknown methods."""
    for name, value in {"c_min": c_min, "c_max": c_max, "rho": rho}.items():
        check_number(name, value)
    if not 0 < c_min < 1:
        raise GraphjouleError(f"c_min is {c_min}; it must be between 0 and 1.")
    if not c_min <= c_max < float("inf"):
        raise GraphjouleError(
            f"c_max is {c_max}; it must be a number from c_min = {c_min} on, or no energy is within both limits."
        )
    if method not in METHOD_NAMES:
        raise GraphjouleError(f"method is {method!r}; the choices are: {choices(METHOD_NAMES)}.")
    if not 0 < rho < float("inf"):
        raise GraphjouleError(f"rho is {rho}; it must be positive.")


def check_views(views: int, drop: str, p: float, temperature: float, weight: float, warmup: int) -> None:
    """Refuse settings of `Consistency` that mean nothing."""
    if not 2 <= views <= 64:
        raise GraphjouleError(f"views is {views}; it must be from 2 to 64, for one view has nothing to agree with.")
    if drop not in ("nodes", "features"):
        raise GraphjouleError(f"drop is {drop!r}; the choices are: nodes, features.")
    if not 0 <= p < 1:
        raise GraphjouleError(f"p is {p}; it must be in [0, 1).")
    if not 0 < temperature < float("inf"):
        raise GraphjouleError(f"temperature is {temperature}; it must be positive.")
    if not 0 <= weight < float("inf"):
        raise GraphjouleError(f"weight is {weight}; it must be 0 or more.")
    if warmup < 0:
        raise GraphjouleError(f"warmup is {warmup}; it must be 0 epochs or more.")


TermSettings = EnergySettings | OrthogonalSettings | SpectralSettings | ConsistencySettings

TERMS: dict[str, type[TermSettings]] = {
    "energy": EnergySettings,
    "orthogonal": OrthogonalSettings,
    "spectral": SpectralSettings,
    "consistency": ConsistencySettings,
}
"""The terms by name; settings make the term from a model and a graph."""
