"""See, control and push the depth of a graph neural network by its Dirichlet energy."""

from graphjoule.energy import dirichlet_energy
from graphjoule.errors import GraphjouleError
from graphjoule.features import SparseFeatures
from graphjoule.graph import Propagation
from graphjoule.nn import EGNN, GCN, MODELS, EGNNConv, GCNConv, SReLU
from graphjoule.recipe import Recipe, load_recipe
from graphjoule.records import Record, read_records, summarise
from graphjoule.saving import load_model
from graphjoule.tasks import DATASETS, NodeTask, load_task
from graphjoule.trace import Trace
from graphjoule.training import fit
from graphjoule.version import __version__

__all__ = [
    "DATASETS",
    "EGNN",
    "GCN",
    "MODELS",
    "EGNNConv",
    "GCNConv",
    "GraphjouleError",
    "NodeTask",
    "Propagation",
    "Recipe",
    "Record",
    "SReLU",
    "SparseFeatures",
    "Trace",
    "__version__",
    "dirichlet_energy",
    "fit",
    "load_model",
    "load_recipe",
    "load_task",
    "read_records",
    "summarise",
]
