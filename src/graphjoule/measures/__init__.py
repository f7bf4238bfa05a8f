"""What embeddings look like: pure, differentiable functions of features and graph, and the table that names them."""

from graphjoule.measures.distances import mad, mad_gap
from graphjoule.measures.diversity import effective_rank, feature_correlation, mean_pair_cosine, stable_rank
from graphjoule.measures.energy import (
    combinatorial_energy,
    dirichlet_energy,
    kernel_distance,
    random_walk_energy,
    rayleigh_quotient,
)
from graphjoule.measures.energy_parts import class_energies, component_energies
from graphjoule.measures.spectrum import energy_by_band
from graphjoule.measures.table import DEFAULT_MEASURES, MEASURES, Measure, measure_names

__all__ = [
    "DEFAULT_MEASURES",
    "MEASURES",
    "Measure",
    "class_energies",
    "combinatorial_energy",
    "component_energies",
    "dirichlet_energy",
    "effective_rank",
    "energy_by_band",
    "feature_correlation",
    "kernel_distance",
    "mad",
    "mad_gap",
    "mean_pair_cosine",
    "measure_names",
    "random_walk_energy",
    "rayleigh_quotient",
    "stable_rank",
]
