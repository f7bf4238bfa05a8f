"""Hold the energy of a PyG model: the same deep GCN trained with and without the paper's limits on every layer."""

import torch
import torch.nn.functional as F
from torch_geometric.nn import GCN
from torch_geometric.utils import barabasi_albert_graph, to_undirected

from graphjoule import EnergyConstraint

torch.manual_seed(0)
edge_index, x = to_undirected(barabasi_albert_graph(num_nodes=100, num_edges=2)), torch.randn(100, 8)
y = (x[:, 0] > 0).long()

for is_held in (False, True):
    torch.manual_seed(1)
    model = GCN(in_channels=8, hidden_channels=16, num_layers=8, out_channels=2)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    rate = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, total_iters=150)  # the last steps no longer overshoot
    with EnergyConstraint(model, c_min=0.5, c_max=2.0, layers="convs.*") as constraint:
        for epoch in range(150):
            optimiser.zero_grad()
            loss = F.cross_entropy(model(x, edge_index), y)
            (loss + constraint() if is_held else loss).backward()
            optimiser.step()
            rate.step()
            if is_held and epoch % 10 == 9:  # ten steps towards a minimum, then the multipliers answer
                constraint.update()
        print("with limits:" if is_held else "without:", constraint.report())

print(constraint.report().table())
