"""Energy of a PyG model in ten lines: is a 32-layer GCN of PyTorch Geometric alive, and if not, where does it die?"""

import torch
from torch_geometric.nn import GCN
from torch_geometric.utils import barabasi_albert_graph

from graphjoule import Trace, diagnose

torch.manual_seed(0)
edge_index, x = barabasi_albert_graph(num_nodes=300, num_edges=3), torch.randn(300, 16)
model = GCN(in_channels=16, hidden_channels=64, num_layers=32, out_channels=7)

with Trace(model, watch=["convs.*"], gradients=True) as trace:
    model(x, edge_index).logsumexp(dim=1).mean().backward()

print(trace.table())
print(diagnose(trace))
