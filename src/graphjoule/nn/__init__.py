"""The models: one paper per file, one table that names them."""

from graphjoule.nn.appnp import APPNP, TeleportHop
from graphjoule.nn.base import GraphModel
from graphjoule.nn.dropedge import DropEdgeGCN
from graphjoule.nn.egnn import EGNN, EGNNConv, SReLU
from graphjoule.nn.gcn import GCN, GCNConv
from graphjoule.nn.gcnii import GCNII, GCNIIConv
from graphjoule.nn.jknet import JKNet
from graphjoule.nn.output_scale import OutputScale
from graphjoule.nn.pairnorm import PairNorm, PairNormGCN
from graphjoule.nn.sgc import SGC, Hop

MODELS: dict[str, type[GraphModel]] = {
    "egnn": EGNN,
    "gcn": GCN,
    "pairnorm": PairNormGCN,
    "dropedge": DropEdgeGCN,
    "sgc": SGC,
    "jknet": JKNet,
    "appnp": APPNP,
    "gcnii": GCNII,
}

__all__ = [
    "APPNP",
    "EGNN",
    "GCN",
    "GCNII",
    "MODELS",
    "SGC",
    "DropEdgeGCN",
    "EGNNConv",
    "GCNConv",
    "GCNIIConv",
    "GraphModel",
    "Hop",
    "JKNet",
    "OutputScale",
    "PairNorm",
    "PairNormGCN",
    "SReLU",
    "TeleportHop",
]
