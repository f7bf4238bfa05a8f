"""What may be added to anybody's loss: the energy limits, a penalty on the weights, and terms of one's own."""

from graphjoule.terms.energy import METHODS, ConstraintReport, EnergyConstraint, EnergySettings, LayerState, Method
from graphjoule.terms.orthogonal import OrthogonalPenalty, OrthogonalSettings
from graphjoule.terms.term import ModelPenalty, Term

TERMS: dict[str, type[EnergySettings] | type[OrthogonalSettings]] = {
    "energy": EnergySettings,
    "orthogonal": OrthogonalSettings,
}
"""The terms that a recipe can name, each by its settings, which make the term from a model and a graph."""

__all__ = [
    "METHODS",
    "TERMS",
    "ConstraintReport",
    "EnergyConstraint",
    "EnergySettings",
    "LayerState",
    "Method",
    "ModelPenalty",
    "OrthogonalPenalty",
    "OrthogonalSettings",
    "Term",
]
