"""What embeddings look like: pure, differentiable functions of features and graph, and the table that names them."""

from graphjoule.measures.distances import SampledMean, mad, mad_gap, neighbour_mad
from graphjoule.measures.diversity import (
    effective_rank,
    feature_correlation,
    mean_pair_cosine,
    rank_one_distance,
    stable_rank,
)
from graphjoule.measures.eigenvalues import Estimate
from graphjoule.measures.energy import (
    ClassEnergies,
    class_energies,
    combinatorial_energy,
    component_energies,
    dirichlet_energy,
    frobenius_norm,
    higher_energy,
    kernel_distance,
    random_walk_energy,
    rayleigh_quotient,
)
from graphjoule.measures.information import group_distance_ratio, instance_information_gain
from graphjoule.measures.reach import Reach, hops_from, jacobian_reach
from graphjoule.measures.spectrum import BandEnergy, Spectrum, energy_by_band, spectrum
from graphjoule.measures.table import DATA_MEASURES, DEFAULT_MEASURES, MEASURES, Measure, measure_names

__all__ = [
    "DATA_MEASURES",
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
    "group_distance_ratio",
    "higher_energy",
    "hops_from",
    "instance_information_gain",
    "jacobian_reach",
    "kernel_distance",
    "mad",
    "mad_gap",
    "mean_pair_cosine",
    "measure_names",
    "neighbour_mad",
    "random_walk_energy",
    "rank_one_distance",
    "rayleigh_quotient",
    "spectrum",
    "stable_rank",
]
