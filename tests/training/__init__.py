"""A task and a recipe that train in milliseconds, and what two trainings must have in common."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from graphjoule.graph import Propagation
from graphjoule.tasks import Split, Task
from graphjoule.tasks.objective import Classification, Regression
from graphjoule.tasks.task import pack_features
from graphjoule.terms import TERMS
from graphjoule.training.build import architecture_of
from graphjoule.training.recipe import Recipe, load_recipe
from graphjoule.training.records import Record, read_records
from graphjoule.training.saving import read_tensors
from graphjoule.training.seed_batch import SeedBatch

NUM_NODES, NUM_CLASSES = 30, 3
PUBLIC = Split("public", None, torch.arange(9), torch.arange(9, 18), torch.arange(18, 30))


def small_task(*, sparse: bool = False, labels: torch.Tensor | None = None) -> Task:
    """Three rings, one per class, with bridges; features tell the class through noise; all in the default dtype."""
    generator = torch.Generator().manual_seed(0)
    ring = torch.arange(NUM_NODES)
    classes = ring % NUM_CLASSES
    x = torch.rand(NUM_NODES, 7, generator=generator, dtype=torch.float64)
    x = x * (x > 0.8) if sparse else x + 0.5 * torch.nn.functional.one_hot(classes, 7)
    edges = torch.cat(
        [torch.stack([nodes, (nodes + step) % NUM_NODES]) for nodes, step in ((ring, 3), (ring[::4], 1))], 1
    )
    return Task(
        name="small",
        features=pack_features(x.to(torch.get_default_dtype())),
        graph=Propagation.from_edge_index(edges, symmetrize=True),
        targets=classes if labels is None else labels,
        objective=Classification(NUM_CLASSES),
        fixed_splits=(PUBLIC,),
        default_split="public",
    )


def small_recipe(model: str = "egnn", num_layers: int = 2, **overrides: object) -> Recipe:
    settings = {"hidden_channels": 8, "epochs": 5, "split": "public"}
    return load_recipe(model, "small", num_layers, settings | overrides)


def make_batch(recipe: Recipe, task: Task, seeds: Sequence[int], epochs: int = 0) -> SeedBatch:
    """The runs of these seeds after some epochs."""
    of_split = {seed: seed if recipe.data.split_seed is None else recipe.data.split_seed for seed in seeds}
    splits = [task.split(recipe.data.split, of_split[seed]) for seed in seeds]
    terms = {name: TERMS[name](**given) for name, given in recipe.terms.items()}
    batch = SeedBatch(architecture_of(recipe), recipe, task, seeds, splits, terms)
    for _ in range(epochs):
        batch.train_epoch()
    return batch


def facts(record: Record) -> dict[str, object]:
    """What a record says apart from how long it took, how much memory, and when."""
    return record.model_dump(exclude={"seconds", "created", "peak_bytes"})


def same_bits(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    """Whether two models hold the same numbers to the bit."""
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(left[name].equal(right[name]) for name in left)


def largest_difference(a: torch.nn.Module, b: torch.nn.Module) -> float:
    """Over all parameters and buffers of two models."""
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return max(float((left.double() - right.double()).abs().max()) for left, right in pairs)


@contextmanager
def double_precision() -> Iterator[None]:
    """Build and train in float64, where rounding is too small to hide behind."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def contents(folder: Path) -> dict[str, bytes]:
    """All files in a folder, hidden ones too, and what is in them."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def assert_same_training(folder: Path, expected: Path) -> None:
    """Two run folders hold the same files, and the same numbers in them to the bit."""
    assert [path.name for path in sorted(folder.iterdir())] == [path.name for path in sorted(expected.iterdir())]
    assert contents(folder)["run.json"] == contents(expected)["run.json"]
    assert _sorted_facts(folder) == _sorted_facts(expected)
    for path in expected.glob("*.safetensors"):
        kind = path.name.partition("-")[0].removesuffix(".safetensors")  # "model" or "evaluation"
        (tensors, about), (ours, ours_about) = read_tensors(path, kind), read_tensors(folder / path.name, kind)
        assert ours_about == about
        assert ours.keys() == tensors.keys()
        assert all(ours[name].equal(tensors[name]) for name in tensors)


def _sorted_facts(folder: Path) -> list[dict[str, object]]:
    """By seed: a training that was killed may finish its runs in another order, but none of them twice."""
    return [facts(record) for record in sorted(read_records(folder / "records.jsonl"), key=lambda record: record.seed)]


def small_regression(*, num_targets: int = 1, error: str = "squared") -> Task:
    """The graph of `small_task` with smoothed features to predict; the last node, in no part of the split, has none."""
    base = small_task()
    smooth = base.graph.to_dense() @ base.features
    targets = smooth[:, :num_targets] * 5 + 40
    splits = tuple(part[:-1] if part is PUBLIC.test else part for part in (PUBLIC.train, PUBLIC.val, PUBLIC.test))
    targets[29] = torch.nan
    return replace(
        base,
        targets=targets[:, 0] if num_targets == 1 else targets,
        objective=Regression(num_targets, error),
        fixed_splits=(Split("public", None, *splits),),
    )
