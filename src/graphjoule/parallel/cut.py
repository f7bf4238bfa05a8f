"""A task cut in parts: what each process gets, as named tensors and a few numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from graphjoule.graph.csr import entries_of_rows, row_starts
from graphjoule.graph.features import SparseFeatures
from graphjoule.parallel.task import SplitPart
from graphjoule.tasks import Task
from graphjoule.tasks.splits import PARTS


@dataclass(frozen=True, eq=False)
class Cut:
    """A task and the part of every node.

    Attributes:
        task: the whole task, on the CPU.
        owner: part of every node, int64, shape ``[num_nodes]``.
        num_parts: number of parts.
    """

    task: Task
    owner: Tensor
    num_parts: int

    def nodes(self, part: int) -> Tensor:
        """The nodes of a part, sorted."""
        return (self.owner == part).nonzero().flatten()

    def halo_sizes(self) -> list[int]:
        """How many nodes of other parts each part needs."""
        return [int(count) for count in torch.bincount(self._needs[0], minlength=self.num_parts)]

    @cached_property
    def _needs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Which part needs which node of which other part, each once: needer, owner, node, sorted in this order."""
        graph = self.task.graph
        needer, node = self.owner[graph.row()], graph.col.long()
        other = needer != self.owner[node]
        needer, node = needer[other], node[other]
        pair = needer * self.num_parts + self.owner[node]
        key = torch.unique(pair * graph.num_nodes + node)
        pair, node = key // graph.num_nodes, key % graph.num_nodes
        return pair // self.num_parts, pair % self.num_parts, node

    @cached_property
    def _mirror(self) -> Tensor:
        return self.task.graph.numbering()[1]

    def pieces(self, part: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors of one part, and the numbers that go with them."""
        nodes = self.nodes(part)
        tensors = {"nodes": nodes, "labels": self.task.targets[nodes]}
        about: dict[str, Any] = {"splits": []}
        for pieces, facts in (self._rows(part, nodes), self._features(nodes)):
            tensors |= pieces
            about |= facts
        for number, whole in enumerate(self.task.fixed_splits):
            split = SplitPart.of(whole, nodes)
            tensors |= {f"split.{number}.{name}": getattr(split, name) for name in PARTS}
            about["splits"].append({"name": split.name, "counts": split.counts, "sha256": split.sha256})
        return tensors, about

    def _rows(self, part: int, nodes: Tensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The rows of ``P`` with columns renumbered: own nodes first, then the halo by owner and number."""
        graph, laplacian = self.task.graph, self.task.graph.laplacian
        row, position = entries_of_rows(graph.rowptr, nodes)
        needer, owner, node = self._needs
        halo, sent = node[needer == part], (owner == part)
        columns = torch.cat([nodes, halo])
        number = torch.full((graph.num_nodes,), -1)
        number[columns] = torch.arange(columns.numel())
        tensors = {
            "rowptr": row_starts(row, nodes.numel()),
            "col": number[graph.col[position].long()].int(),
            "value": graph.value[position],
            "degree": graph.degree[nodes],
            "column_degrees": graph.degree[columns],
            "component": laplacian.component[nodes],
            "entries": position,
            "mirror": self._mirror[position],
            "send": number[node[sent]],
        }
        return tensors, {
            "num_nodes": graph.num_nodes,
            "num_entries": graph.col.numel(),
            "num_components": laplacian.num_components,
            "send_counts": torch.bincount(needer[sent], minlength=self.num_parts).tolist(),
            "receive_counts": torch.bincount(owner[needer == part], minlength=self.num_parts).tolist(),
            "is_halo_empty": node.numel() == 0,
        }

    def _features(self, nodes: Tensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
        x = self.task.features
        if not isinstance(x, SparseFeatures):
            return {"features": x[nodes]}, {"is_sparse": False}
        row, position = entries_of_rows(x.rowptr, nodes)
        tensors = {
            "features.rowptr": row_starts(row, nodes.numel()),
            "features.col": x.col[position],
            "features.value": x.value[position],
            "features.entries": position,
        }
        return tensors, {"is_sparse": True, "num_features": x.num_features, "num_values": x.value.numel()}

    def all_pieces(self) -> Iterator[tuple[dict[str, Tensor], dict[str, Any]]]:
        """The pieces of every part, made one after the other."""
        return (self.pieces(part) for part in range(self.num_parts))
