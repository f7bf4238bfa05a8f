"""Constrained learning: hold every layer's energy between the paper's two limits, in anybody's model."""

from graphjoule.constraint.constraint import EnergyConstraint
from graphjoule.constraint.methods import METHODS, Method
from graphjoule.constraint.orthogonal import OrthogonalPenalty
from graphjoule.constraint.report import ConstraintReport, LayerState

__all__ = ["METHODS", "ConstraintReport", "EnergyConstraint", "LayerState", "Method", "OrthogonalPenalty"]
