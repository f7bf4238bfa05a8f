"""See, control and push the depth of a graph neural network by its Dirichlet energy.

This is the one door. More is behind `graphjoule.nn`, `.measures`, `.terms`, `.tasks`, `.training`, `.theory`, `.trace`
and `.parallel`. Everything is imported when it is first asked for, so that the command line answers at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from graphjoule.errors import GraphjouleError
from graphjoule.version import __version__

if TYPE_CHECKING:
    from graphjoule.estimators import EGNNClassifier as EGNNClassifier
    from graphjoule.fitting import fit as fit
    from graphjoule.fitting import load as load
    from graphjoule.graph import Propagation as Propagation
    from graphjoule.measures import MEASURES as MEASURES
    from graphjoule.measures import dirichlet_energy as dirichlet_energy
    from graphjoule.nn import EGNN as EGNN
    from graphjoule.nn import MODELS as MODELS
    from graphjoule.tasks import DATASETS as DATASETS
    from graphjoule.tasks import Task as Task
    from graphjoule.tasks import load_tables as load_tables
    from graphjoule.tasks import load_task as load_task
    from graphjoule.terms import EnergyConstraint as EnergyConstraint
    from graphjoule.terms import OrthogonalPenalty as OrthogonalPenalty
    from graphjoule.terms import Term as Term
    from graphjoule.theory import audit as audit
    from graphjoule.trace import Trace as Trace
    from graphjoule.trace.diagnosis import diagnose as diagnose
    from graphjoule.trace.limits import limits as limits
    from graphjoule.training import Recipe as Recipe
    from graphjoule.training import Record as Record
    from graphjoule.training import load_recipe as load_recipe
    from graphjoule.training import read_records as read_records

__all__ = [
    "DATASETS",
    "EGNN",
    "MEASURES",
    "MODELS",
    "EGNNClassifier",
    "EnergyConstraint",
    "GraphjouleError",
    "OrthogonalPenalty",
    "Propagation",
    "Recipe",
    "Record",
    "Task",
    "Term",
    "Trace",
    "__version__",
    "audit",
    "diagnose",
    "dirichlet_energy",
    "fit",
    "limits",
    "load",
    "load_recipe",
    "load_tables",
    "load_task",
    "read_records",
]

_HOMES = {
    "DATASETS": "tasks",
    "EGNN": "nn",
    "MEASURES": "measures",
    "MODELS": "nn",
    "EGNNClassifier": "estimators",
    "EnergyConstraint": "terms",
    "OrthogonalPenalty": "terms",
    "Propagation": "graph",
    "Recipe": "training",
    "Record": "training",
    "Task": "tasks",
    "Term": "terms",
    "Trace": "trace",
    "audit": "theory",
    "diagnose": "trace.diagnosis",
    "dirichlet_energy": "measures",
    "fit": "fitting",
    "limits": "trace.limits",
    "load": "fitting",
    "load_recipe": "training",
    "load_tables": "tasks",
    "load_task": "tasks",
    "read_records": "training",
}
_ROOMS = ("nn", "measures", "terms", "tasks", "training", "trace", "theory", "graph", "parallel")


def __getattr__(name: str) -> Any:
    """A public name at its first use; of a name that is elsewhere the error says where."""
    if name in _HOMES:
        value = globals()[name] = getattr(import_module(f"graphjoule.{_HOMES[name]}"), name)
        return value
    if not name.startswith("_"):
        for room in _ROOMS:
            if name in getattr(import_module(f"graphjoule.{room}"), "__all__", ()):
                raise AttributeError(f"module 'graphjoule' has no attribute {name!r}; it is in graphjoule.{room}")
    raise AttributeError(f"module 'graphjoule' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
