"""Constrained learning: hold every layer's energy between the paper's two limits, in anybody's model."""

from graphjoule.terms.constraint import EnergyConstraint
from graphjoule.terms.methods import METHODS, Method
from graphjoule.terms.orthogonal import OrthogonalPenalty
from graphjoule.terms.report import ConstraintReport, LayerState

__all__ = ["METHODS", "ConstraintReport", "EnergyConstraint", "LayerState", "Method", "OrthogonalPenalty"]
