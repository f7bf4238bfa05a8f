"""Tasks whose answers are known: a hidden number per node, seen through noise in the features, decides every target."""

import torch

from graphjoule.graph import Propagation
from graphjoule.tasks import Binary, Classification, MultiLabel, Objective, Ordinal, Pooling, Regression, Task

NUM_GRAPHS, SIZE = 60, 3
OBJECTIVES_OF = {
    "classification": Classification(3),
    "binary": Binary(class_names=("low", "high")),
    "multilabel": MultiLabel(3),
    "regression": Regression(2),
    "ordinal": Ordinal(4),
}


def targets_of(hidden: torch.Tensor, objective: Objective) -> torch.Tensor:
    """The answer for hidden numbers in [0, 1), one in nine unknown, of several targets entry by entry."""
    n, generator = len(hidden), torch.Generator().manual_seed(1)
    if isinstance(objective, Regression):
        values = torch.stack([100 + 7 * hidden, hidden.square()], dim=1)
    elif isinstance(objective, MultiLabel):
        values = torch.stack([hidden > 0.3, hidden > 0.6, hidden < 0.5], dim=1).to(hidden.dtype)
    else:
        labels = (hidden * objective.num_classes).long()
        return torch.where(torch.rand(n, generator=generator) < 1 / 9, -1, labels)
    return values.masked_fill(torch.rand(values.shape, generator=generator) < 1 / 9, torch.nan)


def known_task(name: str, *, about_graphs: bool = False, **options: object) -> Task:
    """Many small rings; with `about_graphs` one target for each of them, else one for each node.

    Args:
        name: a key of `OBJECTIVES_OF`.
        about_graphs: whether graphs are predicted, by the mean of their nodes.
        options: other fields of the task.
    """
    generator, dtype = torch.Generator().manual_seed(0), torch.get_default_dtype()
    batch = torch.arange(NUM_GRAPHS).repeat_interleave(SIZE)
    of_graph = torch.rand(NUM_GRAPHS, generator=generator).to(dtype)
    hidden = of_graph[batch]
    x = torch.stack([hidden, 1 - hidden, hidden * 2 - 1, torch.ones_like(hidden)], dim=1)
    x = x + 0.05 * torch.randn(x.shape, generator=generator).to(dtype)
    ring = torch.arange(NUM_GRAPHS * SIZE)
    after = torch.where(ring % SIZE == SIZE - 1, ring - SIZE + 1, ring + 1)
    objective = options.pop("objective", OBJECTIVES_OF[name])
    return Task(
        name="known",
        features=x,
        graph=Propagation.from_edge_index(torch.stack([ring, after]), symmetrize=True),
        targets=targets_of(of_graph if about_graphs else hidden, objective),
        objective=objective,
        default_split="stratified-30-20",
        pooling=Pooling(batch) if about_graphs else None,
        **options,
    )
