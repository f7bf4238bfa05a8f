"""The graph as an operator: `Propagation`, its Laplacian, and features that stay sparse."""

from graphjoule.graph.features import Features, SparseFeatures, as_dense, check_features, normalize_rows
from graphjoule.graph.laplacian import Laplacian
from graphjoule.graph.propagation import Propagation, as_propagation, exact_propagation

__all__ = [
    "Features",
    "Laplacian",
    "Propagation",
    "SparseFeatures",
    "as_dense",
    "as_propagation",
    "check_features",
    "exact_propagation",
    "normalize_rows",
]
