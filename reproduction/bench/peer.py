"""The peers: a model as a competent user of PyTorch Geometric would write and train it, one run, no tricks either way.

`reproduction.bench` imports this file late: PyTorch Geometric takes seconds to import.
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCN2Conv, MessagePassing
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import spmm, to_torch_csr_tensor

from graphjoule.graph import Propagation, as_dense, normalize_rows
from graphjoule.tasks import Task
from graphjoule.training import Recipe


class PeerConv(MessagePassing):  # type: ignore[misc]
    """One EGNN layer; `adj` is an ``edge_index`` with weights, or a CSR matrix that holds them (the fused path)."""

    def __init__(self, channels: int, c_min: float, beta: float, srelu_init: float, batch_norm: bool) -> None:
        super().__init__(aggr="add")
        self.c_min, self.beta = c_min, beta
        self.weight = nn.Parameter(torch.empty(channels, channels))
        self.shift = nn.Parameter(torch.full((channels,), srelu_init))
        self.norm = nn.BatchNorm1d(channels) if batch_norm else None

    def forward(self, x: Tensor, x0: Tensor, adj: Tensor, edge_weight: Tensor | None) -> Tensor:
        """``srelu([(1 - c_min) P X + alpha X + beta X_0] W)``, mixed in place as PyG's own `GCN2Conv` does."""
        out = self.propagate(adj, x=x, edge_weight=edge_weight)
        out = out.mul_(1 - self.c_min).add_(x, alpha=self.c_min - self.beta).add_(x0, alpha=self.beta)
        out = out @ self.weight
        if self.norm is not None:
            out = self.norm(out)
        return torch.clamp(out, min=self.shift)  # an epoch is a tenth shorter than with torch.maximum (Cora, CPU)

    def message(self, x_j: Tensor, edge_weight: Tensor) -> Tensor:
        """A neighbour's features times the weight of the edge."""
        return edge_weight.view(-1, 1) * x_j

    def message_and_aggregate(self, adj_t: Tensor, x: Tensor) -> Tensor:
        """All messages and their sum in one sparse product, which PyG calls when the graph comes as a matrix."""
        out: Tensor = spmm(adj_t, x, reduce=self.aggr)
        return out


class PeerEncoder(nn.Module):
    """Dropout, linear, ReLU; or with a batch norm: linear, batch norm, ReLU, dropout, linear."""

    def __init__(self, in_channels: int, channels: int, kind: str, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.first = nn.Linear(in_channels, channels)
        self.norm = nn.BatchNorm1d(channels) if kind == "mlp" else None
        self.second = nn.Linear(channels, channels) if kind == "mlp" else None

    def forward(self, x: Tensor) -> Tensor:
        """``X_0``."""
        if self.norm is None or self.second is None:
            return F.relu(self.first(F.dropout(x, self.dropout, self.training)))
        h = F.relu(self.norm(self.first(x)))
        out: Tensor = self.second(F.dropout(h, self.dropout, self.training))
        return out


Groups = dict[str, list[nn.Parameter]]


class PeerEGNN(nn.Module):
    """The whole network for the settings of an EGNN recipe."""

    start: Tensor

    def __init__(self, in_channels: int, out_channels: int, recipe: Recipe) -> None:
        super().__init__()
        options, channels = recipe.model.options, recipe.model.hidden_channels
        self.gamma: float = options["gamma"]
        self.dropout, self.output_dropout = options["dropout"], options["output_dropout"]
        self.encoder = PeerEncoder(in_channels, channels, options["encoder"], self.dropout)
        layer = {name: options[name] for name in ("c_min", "beta", "srelu_init", "batch_norm")}
        self.convs = nn.ModuleList(PeerConv(channels, **layer) for _ in range(recipe.model.num_layers))
        self.head = nn.Linear(channels, out_channels)
        start = torch.eye(channels).repeat(recipe.model.num_layers, 1, 1)
        start[0] *= options["c_max"] ** 0.5
        self.register_buffer("start", start, persistent=False)
        for conv, weight in zip(self.convs, start, strict=True):
            conv.weight = nn.Parameter(weight.clone())

    def forward(self, x: Tensor, adj: Tensor, edge_weight: Tensor | None) -> Tensor:
        """Class scores of every node."""
        h = h0 = self.encoder(x)
        for conv in self.convs:
            h = conv(F.dropout(h, self.dropout, self.training), h0, adj, edge_weight)
        out: Tensor = self.head(F.dropout(h, self.output_dropout, self.training))
        return out

    def penalty(self) -> Tensor:
        """``gamma * sum_k ||W_k - W_k_init||_F``, all layers in one norm."""
        offset = torch.stack([conv.weight for conv in self.convs if isinstance(conv, PeerConv)]) - self.start
        distance: Tensor = torch.linalg.vector_norm(offset, dim=(1, 2))
        return self.gamma * distance.sum()

    def groups(self) -> Groups:
        """Parameters by optimiser group."""
        return _with_the_rest(
            self,
            {
                "conv": [conv.get_parameter("weight") for conv in self.convs],
                "shift": [conv.get_parameter("shift") for conv in self.convs],
            },
        )


class PeerGCNII(nn.Module):
    """The whole network for the settings of a GCNII recipe, of PyG's own layers."""

    def __init__(self, in_channels: int, out_channels: int, recipe: Recipe) -> None:
        super().__init__()
        options, channels, depth = recipe.model.options, recipe.model.hidden_channels, recipe.model.num_layers
        self.dropout: float = options["dropout"]
        self.encoder = PeerEncoder(in_channels, channels, "linear", self.dropout)
        # The graph is normalised once, outside the layers, as in PyG's example of this network.
        settings = {"alpha": options["alpha"], "theta": options["theta"], "normalize": False}
        self.convs = nn.ModuleList(GCN2Conv(channels, layer=k, **settings) for k in range(1, depth + 1))
        norm = nn.BatchNorm1d if options["batch_norm"] else nn.Identity
        self.norms = nn.ModuleList(norm(channels) for _ in range(depth))
        self.head = nn.Linear(channels, out_channels)

    def forward(self, x: Tensor, adj: Tensor, edge_weight: Tensor | None) -> Tensor:
        """Class scores of every node."""
        h = h0 = self.encoder(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = F.relu(norm(conv(F.dropout(h, self.dropout, self.training), h0, adj, edge_weight)))
        out: Tensor = self.head(F.dropout(h, self.dropout, self.training))
        return out

    def penalty(self) -> Tensor:
        """None."""
        return self.head.weight.new_zeros(())

    def groups(self) -> Groups:
        """Parameters by optimiser group."""
        return _with_the_rest(self, {"conv": [conv.get_parameter("weight1") for conv in self.convs]})


PEER_MODELS: dict[str, type[PeerEGNN] | type[PeerGCNII]] = {"egnn": PeerEGNN, "gcnii": PeerGCNII}
"""The peers' networks by our model's name."""


class PeerTraining:
    """One run trained as PyG's examples do it: a step, then the validation loss and accuracy as Python numbers.

    It keeps no best parameters and stops nowhere, which ours does within the time that is measured.

    Args:
        recipe: the settings.
        task: the data, already on the device.
        fused: give the layers the graph as a CSR matrix, PyG's memory-efficient way, instead of as an ``edge_index``.
        seed: seeds the initial parameters, the split and torch's generator.
    """

    def __init__(self, recipe: Recipe, task: Task, *, fused: bool, seed: int = 0) -> None:
        torch.manual_seed(seed)
        device = task.targets.device
        x = as_dense(task.features)
        self.x = normalize_rows(x) if recipe.data.normalize_features else x
        self.adj, self.edge_weight = peer_graph(task.graph, fused=fused)
        self.labels, self.split = task.targets, task.split(recipe.data.split, seed)
        self.model = PEER_MODELS[recipe.model.name](task.num_features, task.out_channels, recipe).to(device)
        groups = [
            {"params": p, "weight_decay": recipe.train.weight_decay[name]} for name, p in self.model.groups().items()
        ]
        self.optimizer = torch.optim.Adam(groups, lr=recipe.train.lr, fused=True)

    def epoch(self) -> None:
        """A training step and an evaluation."""
        self.train_step()
        self.evaluate()

    def train_step(self) -> float:
        """One step of Adam on the training nodes; returns the loss."""
        self.model.train()
        self.optimizer.zero_grad()
        out = self.model(self.x, self.adj, self.edge_weight)[self.split.train]
        loss = F.cross_entropy(out, self.labels[self.split.train]) + self.model.penalty()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Validation loss and accuracy."""
        self.model.eval()
        out, target = self.model(self.x, self.adj, self.edge_weight)[self.split.val], self.labels[self.split.val]
        return float(F.cross_entropy(out, target)), float((out.argmax(dim=-1) == target).float().mean())


def peer_graph(graph: Propagation, *, fused: bool) -> tuple[Tensor, Tensor | None]:
    """The unweighted graph normalised by PyG, once: ``edge_index`` and weights, or one CSR matrix."""
    edge_index = torch.stack([graph.row(), graph.col.long()])
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    edge_index, weight = gcn_norm(edge_index, num_nodes=graph.num_nodes, dtype=graph.dtype)
    if not fused:
        return edge_index, weight
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse (CSR|invariant)", category=UserWarning)
        return to_torch_csr_tensor(edge_index, weight, size=(graph.num_nodes, graph.num_nodes)), None


def _with_the_rest(model: nn.Module, groups: Groups) -> Groups:
    """The groups, and one called "dense" for every parameter in none of them."""
    known = {id(parameter) for group in groups.values() for parameter in group}
    return groups | {"dense": [parameter for parameter in model.parameters() if id(parameter) not in known]}
