"""See, control and push the depth of a graph neural network by its Dirichlet energy."""

from graphjoule.version import __version__

__all__ = ["__version__"]
