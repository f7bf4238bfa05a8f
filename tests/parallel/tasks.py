"""Tasks small enough to train in milliseconds, of the odd kinds that a partition can meet."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from graphjoule.graph import Propagation
from graphjoule.parallel import PartedPropagation
from graphjoule.parallel.group import Group
from graphjoule.parallel.trainer import PartBatch
from graphjoule.tasks import Split, Task
from graphjoule.tasks.objective import Classification, Regression
from graphjoule.tasks.task import pack_features
from graphjoule.training.build import architecture_of
from graphjoule.training.recipe import Recipe, load_recipe
from graphjoule.training.seed_batch import SeedBatch

NUM_NODES, NUM_CLASSES = 41, 3


def ring_task(*, sparse: bool = False, train: torch.Tensor | None = None, edges: torch.Tensor | None = None) -> Task:
    """Rings with chords over 40 nodes and one isolated node; labels come from the features through noise."""
    generator = torch.Generator().manual_seed(0)
    ring = torch.arange(NUM_NODES - 1)
    classes = torch.arange(NUM_NODES) % NUM_CLASSES
    x = torch.rand(NUM_NODES, 7, generator=generator)
    x = x * (x > 0.8) if sparse else x + 0.5 * torch.nn.functional.one_hot(classes, 7)
    if edges is None:
        steps = ((ring, 3), (ring[::4], 1), (ring[::7], 17))
        edges = torch.cat([torch.stack([nodes, (nodes + step) % len(ring)]) for nodes, step in steps], 1)
    order = torch.randperm(NUM_NODES, generator=generator)
    train = order[:11] if train is None else train
    rest = order[~torch.isin(order, train)]
    return Task(
        name="ring",
        features=pack_features(x),
        graph=Propagation.from_edge_index(edges, num_nodes=NUM_NODES, symmetrize=True),
        targets=classes,
        objective=Classification(NUM_CLASSES),
        fixed_splits=(Split("public", None, train, rest[:12], rest[12:]),),
        default_split="public",
    )


def house_prices() -> Task:
    """The same graph with a number to predict for each node, some of them unknown."""
    task, generator = ring_task(), torch.Generator().manual_seed(1)
    targets = 200.0 + 50 * task.features.sum(dim=1) + torch.randn(NUM_NODES, generator=generator)
    targets[task.split().test[:2]] = torch.nan
    split = task.split()
    known = Split("public", None, split.train, split.val, split.test[2:])
    return replace(task, name="houses", targets=targets, objective=Regression(), fixed_splits=(known,))


def batch_of(recipe: Recipe, task: Task, seeds: Sequence[int] = (0,)) -> SeedBatch:
    """The runs of a recipe on a task, whole or a part, before their first epoch."""
    splits = [task.split(recipe.data.split, seed) for seed in seeds]
    kind = PartBatch if isinstance(task.graph, PartedPropagation) else SeedBatch
    return kind(architecture_of(recipe), recipe, task, list(seeds), splits)


def small_recipe(model: str = "egnn", num_layers: int = 2, **overrides: object) -> Recipe:
    settings = {"hidden_channels": 8, "epochs": 8, "patience": 100, "split": "public"}
    return load_recipe(model, "small", num_layers, settings | overrides)


class Sized(Group):
    """A group that is said to have some size, for parts that are looked at but never computed on."""

    def __init__(self, size: int) -> None:
        self.size = size
