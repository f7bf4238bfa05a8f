"""What a report needs of a run's predictions, kept when its test targets are read, so that they are not read again.

It is a sample that is large enough for curves, exact counts for tables, where every node lies on the graph, and the
embeddings of some layers in the plane. Everything is bounded, so that the file stays small on any graph.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.tasks import Split, Task
from graphjoule.tasks.metrics import label_counts
from graphjoule.tasks.objective import Classification, MultiLabel, Objective, Ordinal, Regression, read_objective
from graphjoule.trace.watch import layer_modules
from graphjoule.training.saving import read_tensors, write_tensors

MOST_NODES = 5000
"""Nodes of a part that are kept, for curves."""
MOST_POINTS, MOST_LAYERS = 2000, 16
"""Nodes and layers in the plane."""
GRID = 500
"""Coordinates in the plane are whole numbers below this."""
_MOST_NUMBERS = 400_000  # predictions of a part: with many classes fewer nodes are kept
_MOST_CLASSES = 200  # of a confusion matrix
_MOST_ENTRIES = 20_000_000  # of a graph on which distances are counted, which takes seconds from there on


@dataclass(frozen=True, eq=False)
class Predicted:
    """What a run says of the nodes of one part, and what is true.

    Attributes:
        prediction: see `Objective.prediction`, float64, shape ``[n, out_channels]``.
        target: of the same nodes.
        index: the nodes; None where they are of several processes, each with its own numbers.
    """

    prediction: Tensor
    target: Tensor
    index: Tensor | None


@dataclass(frozen=True, eq=False)
class PartEvaluation:
    """What is kept of the validation or the test nodes; of a classification each class has its share of the sample.

    Attributes:
        num_nodes: how many nodes have a known target.
        prediction: of the sample, float32, shape ``[n, out_channels]``.
        target: of the sample.
        weight: how many nodes each of the sample stands for.
        counts: of every class or label, over all nodes: how often it is found rightly, found at all, there, and known,
            shape ``[4, classes]``; None for numbers.
        confusion: how many nodes of the class of the row are said to be of that of the column; None for labels, for
            numbers, and for more than 200 classes.
        degree: number of neighbours, or of nodes where graphs are predicted.
        distance: steps to the nearest training node, infinite where no way leads there.
        agreement: share of neighbours with a known target that have the node's own; NaN without such a neighbour. Of
            several labels the mean over labels.
    """

    num_nodes: int
    prediction: Tensor
    target: Tensor
    weight: Tensor
    counts: Tensor | None = None
    confusion: Tensor | None = None
    degree: Tensor | None = None
    distance: Tensor | None = None
    agreement: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Planes:
    """Embeddings of some layers in the plane of their two main directions.

    Attributes:
        part: "test" or "val".
        rows: places of the nodes in the sample of that part.
        names: of the layers.
        points: int16, shape ``[layers, nodes, 2]``, from 0 to `GRID` less 1; each layer fills the plane.
        shares: of every layer the share of its variance that lies in the plane.
        sizes: of every layer the root mean square distance of a node from the mean: what "fills the plane" hides.
    """

    part: str
    rows: Tensor
    names: tuple[str, ...]
    points: Tensor
    shares: tuple[float, ...]
    sizes: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The predictions of the run of a folder that is best on its validation nodes.

    Attributes:
        seed: of the run.
        select_on: the metric or loss that chose its epoch, and the run.
        score: its value on the validation nodes.
        objective: what was asked.
        unit: what is predicted: "node" or "graph".
        parts: by name, "val" and "test".
        planes: the embeddings; None where the graph is trained on in parts or clusters.
    """

    seed: int
    select_on: str
    score: float
    objective: Objective
    unit: str = "node"
    parts: dict[str, PartEvaluation] = field(default_factory=dict)
    planes: Planes | None = None

    def warnings(self, part: str | None = None) -> list[str]:
        """A sentence on every kind of class that a score hides: never found, hardly found, or not there at all.

        Args:
            part: "val" or "test"; by default the test nodes where there are some.
        """
        part = part or ("test" if "test" in self.parts else "val")
        if part not in self.parts or (counts := self.parts[part].counts) is None:
            return []
        where = f"{'validation' if part == 'val' else 'test'} {self.unit}s"
        has_weights = not isinstance(self.objective, Ordinal)
        is_labels = isinstance(self.objective, MultiLabel)
        return class_warnings(self.objective.names, counts, where, is_labels=is_labels, has_weights=has_weights)


def evaluate(
    seed: int,
    select_on: str,
    score: float,
    task: Task,
    split: Split,
    predicted: Mapping[str, Predicted],
    network: Callable[[], nn.Module] | None = None,
    call: Callable[[nn.Module], Any] = lambda model: None,
) -> Evaluation:
    """The evaluation of a run whose test targets have just been read; no target is read here that is not in its inputs.

    Without a `network`, whose layers are watched in one pass that `call` makes, there are no embeddings.
    """
    samples = {name: _sample(task.objective, part) for name, part in predicted.items()}
    parts = {name: _part(task.objective, predicted[name], *sample) for name, sample in samples.items()}
    places = _places(task, split, predicted, {name: rows for name, (rows, _) in samples.items()})
    parts = {name: replace(part, **places.get(name, {})) for name, part in parts.items()}
    planes = None
    last = "test" if "test" in parts else "val"
    if network is not None and (index := predicted[last].index) is not None:
        chosen = torch.tensor(spread(len(parts[last].target), MOST_POINTS), dtype=torch.int64)
        nodes = index[samples[last][0]][chosen]
        planes = planes_of(network(), call, task, nodes.cpu(), last, chosen)
    return Evaluation(seed, select_on, score, task.objective, task.unit, parts, planes)


# The sample, and counts over all.


def _sample(objective: Objective, part: Predicted) -> tuple[Tensor, Tensor]:
    """Rows with a known target, at most `MOST_NODES`, and how many rows each stands for."""
    known = objective.is_known(part.target).cpu().nonzero().view(-1)
    most = max(500, min(MOST_NODES, _MOST_NUMBERS // objective.out_channels))
    strata = objective.strata(part.target)[0].cpu()[known]
    counts = torch.bincount(strata)
    room, cap, left = most, 0, int((counts > 0).sum())
    for count in sorted(counts[counts > 0].tolist()):  # what small classes do not need is for the large ones
        cap = room // left
        room, left = room - min(count, cap), left - 1
    generator = torch.Generator().manual_seed(0)
    kept, weights = [], []
    for number in counts.nonzero().view(-1).tolist():
        own = known[strata == number]
        taken = own[torch.randperm(len(own), generator=generator)[:cap]] if len(own) > cap else own
        kept.append(taken)
        weights.append(torch.full((len(taken),), len(own) / max(len(taken), 1)))
    if not kept:
        return known, torch.ones(0)
    rows, order = torch.cat(kept).sort()
    return rows, torch.cat(weights)[order]


def _part(objective: Objective, part: Predicted, rows: Tensor, weight: Tensor) -> PartEvaluation:
    prediction, target = part.prediction.cpu(), part.target.cpu()
    counts = confusion = None
    if isinstance(objective, Classification | Ordinal):
        known, number = target >= 0, objective.num_classes
        true, found = target[known], objective.found_classes(prediction[known])
        right = torch.bincount(true[true == found], minlength=number)
        there = torch.bincount(true, minlength=number)
        known_to_all = torch.full_like(there, len(true))
        counts = torch.stack([right, torch.bincount(found, minlength=number), there, known_to_all])
        if number <= _MOST_CLASSES:
            confusion = torch.bincount(true * number + found, minlength=number**2).view(number, number)
    elif isinstance(objective, MultiLabel):
        counts = label_counts(prediction, target).long().view(4, -1)
    return PartEvaluation(
        num_nodes=int(objective.is_known(target).sum()),
        prediction=prediction[rows].float(),
        target=target[rows],
        weight=weight.float(),
        counts=counts,
        confusion=confusion,
    )


# Classes that a score hides.


def class_warnings(
    names: Sequence[str], counts: Tensor, where: str, *, is_labels: bool, has_weights: bool = True
) -> list[str]:
    """Sentences on classes of which nothing is found, that are hardly found, or that are never there.

    A class is rare with less than half its even share, and then hardly found where less than half of it is. The smaller
    of two classes is hardly found, rare or not, where less than a fifth of it is. `counts` are those of a
    `PartEvaluation`, and `where` says in words which nodes are counted.
    """
    word, rows = "label" if is_labels else "class", list(zip(names, *counts.tolist(), strict=True))
    total, words = sum(there for _, _, _, there, _ in rows), []
    missed = [(name, found, there) for name, right, found, there, _ in rows if there and not right]
    may_help = f"{'class weights or ' if has_weights else ''}another metric to select by may help"
    for start, wrong, kept in (
        ("Never predicted", "", [(name, there) for name, found, there in missed if not found]),
        ("Never found", ", and every prediction of {} is wrong", [(name, n) for name, found, n in missed if found]),
    ):
        many, what = sum(there for _, there in kept), _listed([name for name, _ in kept])
        if len(kept) == 1:
            have = f"{many:,} of the {where} {'has' if many == 1 else 'have'} it{wrong.format('it')}"
            words.append(f"{start}: {word} {what}. {have}; {may_help}.")
        elif kept:
            have = f"{many:,} times they are there among the {where}{wrong.format('them')}"
            words.append(f"{start}: {len(kept)} {word}{'s' if is_labels else 'es'}, {what}. {have}; {may_help}.")
    hardly: dict[bool, list[str]] = {True: [], False: []}  # by whether it is rare
    for name, right, _, there, _ in rows:
        is_rare = 2 * there * len(rows) < total
        # Of two classes the larger one alone makes a good accuracy, up to half of the nodes.
        is_smaller_of_two = len(rows) == 2 and not is_labels and 2 * there < total
        if right and ((is_rare and 2 * right < there) or (is_smaller_of_two and 5 * right < there)):
            hardly[is_rare].append(f"{right:,} of {there:,} {name}")
    if hardly[True]:
        words.append(f"Hardly found among the {where}, and rare: {_listed(hardly[True])}.")
    if hardly[False]:
        words.append(f"Hardly found among the {where}: {_listed(hardly[False])}; {may_help}.")
    if absent := [name for name, _, _, there, _ in rows if not there]:
        words.append(f"Not among the {where}, so nothing is known about how they are predicted: {_listed(absent)}.")
    return words


def _listed(names: Sequence[str], most: int = 10) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# Where the nodes of the sample lie on the graph.


def _places(
    task: Task, split: Split, predicted: Mapping[str, Predicted], samples: Mapping[str, Tensor]
) -> dict[str, dict[str, Any]]:
    """Degree, distance and agreement of every sample; nothing where the graph is in parts."""
    if any(part.index is None for part in predicted.values()):
        return {}
    nodes = {name: part.index.cpu()[samples[name]] for name, part in predicted.items() if part.index is not None}
    if task.pooling is not None:
        sizes = task.pooling.sizes.cpu()
        return {name: {"degree": sizes[rows].float()} for name, rows in nodes.items()}
    graph = task.graph.undirected
    rowptr, col = graph.rowptr.cpu().numpy(), graph.col.cpu().numpy()
    found: dict[str, dict[str, Any]] = {
        name: {"degree": torch.from_numpy(np.diff(rowptr)[rows.numpy()] - 1).float()} for name, rows in nodes.items()
    }
    if len(col) <= _MOST_ENTRIES:
        steps = _distances(graph, split.train.cpu().numpy())
        for name, rows in nodes.items():
            found[name]["distance"] = torch.from_numpy(steps[rows.numpy()]).float()
    if not isinstance(task.objective, Regression):
        known = task.objective.unknown(task.num_nodes)
        train = split.train.to(task.targets.device)
        known[split.train.cpu()] = task.targets[train].cpu().to(known.dtype)
        for part in predicted.values():
            assert part.index is not None
            known[part.index.cpu()] = part.target.cpu().to(known.dtype)
        for name, rows in nodes.items():
            found[name]["agreement"] = _agreement(rowptr, col, known, rows.numpy())
    return found


def _distances(graph: Propagation, start: np.ndarray) -> np.ndarray:
    """Steps from every node to the nearest of `start`; infinite where there is no way."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    rowptr, col = graph.rowptr.cpu().numpy(), graph.col.cpu().numpy()
    entries = csr_array((np.ones(len(col), dtype=np.float32), col, rowptr), shape=graph.shape)
    steps: np.ndarray = dijkstra(entries, indices=start, unweighted=True, min_only=True)
    return steps


def _agreement(rowptr: np.ndarray, col: np.ndarray, known: Tensor, nodes: np.ndarray) -> Tensor:
    """Share of the neighbours with a known target that agree with the node; the mean over labels of several."""
    lengths = rowptr[nodes + 1] - rowptr[nodes]
    row = np.repeat(np.arange(len(nodes)), lengths)
    place = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + np.repeat(rowptr[nodes], lengths)
    other, own = torch.from_numpy(col[place].astype(np.int64)), torch.from_numpy(nodes[row])
    table = known if known.dim() == 2 else known[:, None]
    is_known = ~table.isnan() if table.is_floating_point() else table >= 0
    both = is_known[own] & is_known[other] & (own != other)[:, None]
    same = (table[own] == table[other]) & both
    totals = torch.zeros(2, len(nodes), table.size(1), dtype=torch.float64)
    totals.index_add_(1, torch.from_numpy(row), torch.stack([same, both]).double())
    return (totals[0] / totals[1]).nanmean(dim=1).float()


# Embeddings in the plane.


@torch.no_grad()
def planes_of(
    network: nn.Module, call: Callable[[nn.Module], Any], task: Task, nodes: Tensor, part: str, rows: Tensor
) -> Planes | None:
    """The embeddings of some nodes, layer by layer, in the plane of their two main directions.

    A layer's plane is turned to the one before, so that nodes move as little as they can. None if no layer gives a
    row of finite numbers per node. `rows` are the places of the nodes in the sample of their part.
    """
    seen: list[tuple[str, Tensor]] = []

    def note(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.dim() == 2 and output.size(0) == task.num_nodes:
            seen.append((name, task.readout(output)[nodes.to(output.device)].cpu().double()))

    with ExitStack() as hooks:
        for name, module in layer_modules(network):
            hooks.enter_context(module.register_forward_hook(partial(note, name)))
        call(network)
    layers = [(name, x) for name, x in _graph_layers(seen) if bool(x.isfinite().all())]
    layers = [layers[k] for k in spread(len(layers), MOST_LAYERS)]
    if not layers or not len(nodes):
        return None
    points, shares, sizes = [], [], []
    before: Tensor | None = None
    for _, x in layers:
        x = x - x.mean(dim=0)
        variances, directions = torch.linalg.eigh(x.T @ x / len(x))
        plane = nn.functional.pad(x @ directions[:, -2:].flip(1), (0, max(0, 2 - x.size(1))))
        if before is not None:
            u, _, vt = torch.linalg.svd(plane.T @ before)
            plane = plane @ (u @ vt)
        total = float(variances.clamp(min=0).sum())
        reach = float(plane.norm(dim=1).quantile(0.995))  # a few nodes far away may lie on the border
        half = GRID / 2
        grid = (half + 0.96 * half * plane / reach) if reach > 0 else torch.full_like(plane, half)
        points.append(grid.round().clamp(0, GRID - 1).to(torch.int16))
        shares.append(float(variances[-2:].clamp(min=0).sum()) / total if total > 0 else 1.0)
        sizes.append(total**0.5)
        before = plane / reach if reach > 0 else before
    return Planes(part, rows, tuple(name for name, _ in layers), torch.stack(points), tuple(shares), tuple(sizes))


def _graph_layers(seen: Sequence[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Of our networks ``X_0`` and the graph layers, of others everything; a module's later uses have a number."""
    places = [k for k, (name, _) in enumerate(seen) if name.startswith("convs.")]
    if places:
        first = places[0]
        has_initial = first > 0 and seen[first - 1][1].size(1) == seen[first][1].size(1)
        seen = [seen[k] for k in ([first - 1] if has_initial else []) + places]
    uses: Counter[str] = Counter()
    named = []
    for name, x in seen:
        uses[name] += 1
        named.append((name if uses[name] == 1 else f"{name}#{uses[name]}", x))
    return named


def spread(count: int, most: int) -> list[int]:
    """At most so many of the numbers from 0 below `count`, evenly, with the first and the last.

    >>> spread(10, 4), spread(3, 4), spread(0, 4)
    ([0, 3, 6, 9], [0, 1, 2], [])
    """
    if count <= most:
        return list(range(count))
    return sorted({round(k * (count - 1) / (most - 1)) for k in range(most)})


# The file.


def write_evaluation(path: str | os.PathLike[str], evaluation: Evaluation) -> None:
    """Write an evaluation so that `read_evaluation` gives it back."""
    tensors: dict[str, Tensor] = {}
    for name, part in evaluation.parts.items():
        values = {each.name: getattr(part, each.name) for each in fields(part)}
        tensors |= {f"{name}.{key}": value for key, value in values.items() if isinstance(value, Tensor)}
    objective = evaluation.objective
    about: dict[str, Any] = {
        "seed": evaluation.seed,
        "select_on": evaluation.select_on,
        "score": evaluation.score,
        "objective": {"name": objective.name, **asdict(objective)},  # type: ignore[call-overload]
        "unit": evaluation.unit,
        "num_nodes": {name: part.num_nodes for name, part in evaluation.parts.items()},
        "planes": None,
    }
    if (planes := evaluation.planes) is not None:
        tensors |= {"planes.rows": planes.rows, "planes.points": planes.points}
        about["planes"] = {"part": planes.part, "names": planes.names, "shares": planes.shares, "sizes": planes.sizes}
    write_tensors(path, "evaluation", tensors, about)


class _AboutPlanes(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)

    part: str
    names: tuple[str, ...]
    shares: tuple[float, ...]
    sizes: tuple[float, ...]


class _About(BaseModel):
    """What an evaluation's file says beside its tensors."""

    seed: int
    select_on: str
    score: float
    objective: Any
    unit: Literal["node", "graph"]
    num_nodes: dict[Literal["val", "test"], int]
    planes: _AboutPlanes | None


def read_evaluation(path: str | os.PathLike[str]) -> Evaluation:
    """The evaluation of a file that `write_evaluation` wrote; anything else is refused with a sentence."""
    tensors, given = read_tensors(path, "evaluation")
    try:
        about = _About.model_validate(given)
        parts: dict[str, PartEvaluation] = {
            name: PartEvaluation(
                num_nodes=number,
                **{key.removeprefix(f"{name}."): x for key, x in tensors.items() if key.startswith(f"{name}.")},
            )
            for name, number in about.num_nodes.items()
        }
        objective, planes = read_objective(about.objective), None
        objective.column(about.select_on)
        if about.planes is not None:
            planes = Planes(rows=tensors["planes.rows"], points=tensors["planes.points"], **dict(about.planes))
            _check_planes(planes, parts)
        for part in parts.values():
            _check_part(part, objective)
        return Evaluation(about.seed, about.select_on, about.score, objective, about.unit, parts, planes)
    except (KeyError, TypeError, ValueError) as error:
        raise GraphjouleError(
            f"{path} does not hold an evaluation this version of graphjoule knows: {' '.join(str(error).split())}. "
            "Delete it, and a report does without."
        ) from error


def _check_part(part: PartEvaluation, objective: Objective) -> None:
    """Refuse tensors that do not belong together, before anything is drawn by them."""
    n, classes = len(part.weight), len(objective.names)
    has_classes = isinstance(objective, Classification | Ordinal)
    shapes: dict[str, Sequence[tuple[int, ...]]] = {
        "prediction": [(n, objective.out_channels)],
        "target": [(n,)] if has_classes else [(n,), (n, objective.out_channels)],
        "counts": [(4, classes)],
        "confusion": [(classes, classes)],
    }
    whole = {"counts", "confusion", *(["target"] if has_classes else [])}
    for each in fields(part):
        values = getattr(part, each.name)
        if not isinstance(values, Tensor):
            continue
        if tuple(values.shape) not in shapes.get(each.name, [(n,)]):
            raise ValueError(f"{each.name} has shape {list(values.shape)}")
        if values.is_floating_point() == (each.name in whole):
            raise ValueError(f"{each.name} is {values.dtype}")
        is_signed = each.name in {"prediction", "target"} - whole
        may_be = {"distance": ~values.isnan(), "agreement": ~values.isinf(), "target": ~values.isinf()}
        if not bool((may_be.get(each.name, values.isfinite()) & (is_signed | ~(values < 0))).all()):
            raise ValueError(f"{each.name} has a value that cannot be")
    if n and not bool(part.weight.any()):
        raise ValueError("weight is 0 for all rows")
    if has_classes and n and int(part.target.max()) >= classes:
        raise ValueError(f"target has class {int(part.target.max())} of {classes}")


def _check_planes(planes: Planes, parts: Mapping[Any, PartEvaluation]) -> None:
    layers, rows = len(planes.names), planes.rows
    if planes.points.shape != (layers, len(rows), 2) or not layers == len(planes.shares) == len(planes.sizes):
        raise ValueError(f"planes have points of shape {list(planes.points.shape)}")
    for values, most in ((rows, len(parts[planes.part].weight)), (planes.points, GRID)):
        if values.is_floating_point() or (values.numel() and not 0 <= int(values.min()) <= int(values.max()) < most):
            raise ValueError("planes have a place that is not there")
