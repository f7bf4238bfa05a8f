"""See, control and push the depth of a graph neural network by its Dirichlet energy."""

from typing import TYPE_CHECKING

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.graph import Propagation, SparseFeatures
from graphjoule.measures import (
    DEFAULT_MEASURES,
    MEASURES,
    class_energies,
    combinatorial_energy,
    component_energies,
    dirichlet_energy,
    effective_rank,
    energy_by_band,
    feature_correlation,
    kernel_distance,
    mad,
    mad_gap,
    mean_pair_cosine,
    random_walk_energy,
    rayleigh_quotient,
    stable_rank,
)
from graphjoule.nn import (
    APPNP,
    EGNN,
    GCN,
    GCNII,
    MODELS,
    SGC,
    DropEdgeGCN,
    EGNNConv,
    GCNConv,
    JKNet,
    PairNormGCN,
    SReLU,
)
from graphjoule.parallel.partition import cut_nodes
from graphjoule.parallel.streaming import evaluate_in_blocks
from graphjoule.predicting import load
from graphjoule.tasks import DATASETS, Task, load_task
from graphjoule.tasks.archive import load_npz
from graphjoule.tasks.files import load_tables
from graphjoule.terms import EnergyConstraint, OrthogonalPenalty
from graphjoule.theory import Setting, audit, weight_report
from graphjoule.trace import Trace
from graphjoule.trace.diagnosis import Diagnosis, diagnose
from graphjoule.trace.limits import Limits, limits
from graphjoule.training.recipe import Recipe, load_recipe
from graphjoule.training.records import Record, read_records, summarise
from graphjoule.training.saving import load_model
from graphjoule.version import __version__

if TYPE_CHECKING:
    from graphjoule.classifier import EGNNClassifier

__all__ = [
    "APPNP",
    "DATASETS",
    "DEFAULT_MEASURES",
    "EGNN",
    "GCN",
    "GCNII",
    "MEASURES",
    "MODELS",
    "SGC",
    "Diagnosis",
    "DropEdgeGCN",
    "EGNNClassifier",
    "EGNNConv",
    "EnergyConstraint",
    "GCNConv",
    "GraphjouleError",
    "JKNet",
    "Limits",
    "OrthogonalPenalty",
    "PairNormGCN",
    "Propagation",
    "Recipe",
    "Record",
    "SReLU",
    "Setting",
    "SparseFeatures",
    "Task",
    "Trace",
    "__version__",
    "audit",
    "class_energies",
    "combinatorial_energy",
    "component_energies",
    "cut_nodes",
    "diagnose",
    "dirichlet_energy",
    "effective_rank",
    "energy_by_band",
    "evaluate_in_blocks",
    "feature_correlation",
    "fit",
    "kernel_distance",
    "limits",
    "load",
    "load_model",
    "load_npz",
    "load_recipe",
    "load_tables",
    "load_task",
    "mad",
    "mad_gap",
    "mean_pair_cosine",
    "random_walk_energy",
    "rayleigh_quotient",
    "read_records",
    "stable_rank",
    "summarise",
    "weight_report",
]


def __getattr__(name: str) -> object:
    """`EGNNClassifier` at first use: scikit-learn's base classes take seconds to import."""
    if name == "EGNNClassifier":
        from graphjoule.classifier import EGNNClassifier

        return EGNNClassifier
    raise AttributeError(f"module 'graphjoule' has no attribute {name!r}")
