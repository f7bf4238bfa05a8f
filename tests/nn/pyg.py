"""The same graphs and weights for our networks and for PyTorch Geometric's layers."""

import torch
import torch_geometric.nn as pyg
from torch_geometric.utils import coalesce, remove_self_loops

from tests.graphs import normal, random_edges

X = normal(9, 5)


DEPTHS = [1, 2, 5]


close = {"rtol": 1e-10, "atol": 1e-12}


def pyg_edges(*, weighted=True):
    """The graph twice: ours, and as PyG wants it (it counts duplicates twice and takes a self-loop for its own)."""
    edges = random_edges(weighted=weighted)
    return edges.graph64(), *coalesce(*remove_self_loops(edges.index, edges.weight), reduce="sum")


def randomised(model):
    with torch.no_grad():
        for k, parameter in enumerate(model.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=k))
    return model.double().eval()


def pyg_conv(conv):
    theirs = pyg.GCNConv(conv.linear.in_features, conv.linear.out_features).double()
    theirs.load_state_dict({"lin.weight": conv.linear.weight.double(), "bias": conv.bias.double()})
    return theirs
