"""The models: one paper per file, one table that names them."""

from graphjoule.nn.base import GraphModel
from graphjoule.nn.egnn import EGNN, EGNNConv, SReLU
from graphjoule.nn.gcn import GCN, GCNConv

MODELS: dict[str, type[GraphModel]] = {"egnn": EGNN, "gcn": GCN}

__all__ = ["EGNN", "GCN", "MODELS", "EGNNConv", "GCNConv", "GraphModel", "SReLU"]
