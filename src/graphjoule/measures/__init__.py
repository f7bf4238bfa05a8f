"""What embeddings look like: pure, differentiable functions of features and graph, and the table that names them."""

from graphjoule.measures.distances import SampledMean, mad, mad_gap, neighbour_mad
from graphjoule.measures.diversity import effective_rank, feature_correlation, mean_pair_cosine, stable_rank
from graphjoule.measures.eigenvalues import Estimate
from graphjoule.measures.energy import (
    ClassEnergies,
    class_energies,
    combinatorial_energy,
    component_energies,
    dirichlet_energy,
    frobenius_norm,
    kernel_distance,
    random_walk_energy,
    rayleigh_quotient,
)
from graphjoule.measures.reach import Reach, hops_from, jacobian_reach
from graphjoule.measures.spectrum import BandEnergy, Spectrum, energy_by_band, spectrum
from graphjoule.measures.table import DEFAULT_MEASURES, MEASURES, Measure, measure_names

__all__ = [
    "DEFAULT_MEASURES",
    "MEASURES",
    "BandEnergy",
    "ClassEnergies",
    "Estimate",
    "Measure",
    "Reach",
    "SampledMean",
    "Spectrum",
    "class_energies",
    "combinatorial_energy",
    "component_energies",
    "dirichlet_energy",
    "effective_rank",
    "energy_by_band",
    "feature_correlation",
    "frobenius_norm",
    "hops_from",
    "jacobian_reach",
    "kernel_distance",
    "mad",
    "mad_gap",
    "mean_pair_cosine",
    "measure_names",
    "neighbour_mad",
    "random_walk_energy",
    "rayleigh_quotient",
    "spectrum",
    "stable_rank",
]
