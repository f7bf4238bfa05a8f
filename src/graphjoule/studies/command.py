"""The commands that train cells of a study: those cells, with their settings, and no others."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from graphjoule.studies.study import Cell, Study

__all__ = ["seeds_text", "study_commands", "value_text"]

_SEEDS: Final = tuple(range(10))  # what the command takes if it is not told


def study_commands(study: Study, cells: Iterable[Cell], seeds: Sequence[int] = _SEEDS) -> list[str]:
    """The commands that train some cells of a study, those of a dataset in one wherever that can be said.

    What is the study's own (its models, its depths, ten seeds) is left out. Variants cannot be chosen: the command
    trains all of a model's and depth's, and repeats none that is recorded.

    Args:
        study: which study.
        cells: some of its cells.
        seeds: one run each.

    Example:
        >>> from graphjoule.studies.catalogue import find_study
        >>> table1 = find_study("table1")
        >>> study_commands(table1, table1.cells(["cora"], ["gcn", "sgc"], [2, 16], {"epochs": 5}), range(3))
        ['graphjoule study table1 --datasets cora --models gcn,sgc --layers 2,16 --seeds 3 --set epochs=5']
        >>> study_commands(table1, table1.cells(["cora"]))
        ['graphjoule study table1 --datasets cora']
    """
    wanted: dict[tuple[str, str], dict[int, None]] = {}
    settings: dict[str, Mapping[str, Any]] = {}
    for cell in cells:
        wanted.setdefault((cell.dataset, cell.model), {})[cell.num_layers] = None
        settings[cell.dataset] = cell.overrides
    together: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for (dataset, model), depths in wanted.items():
        together.setdefault((dataset, tuple(depths)), []).append(model)
    return [
        _command(study, dataset, models, depths, seeds, settings[dataset])
        for (dataset, depths), models in together.items()
    ]


def _command(
    study: Study,
    dataset: str,
    models: Sequence[str],
    depths: Sequence[int],
    seeds: Sequence[int],
    settings: Mapping[str, Any],
) -> str:
    words = ["graphjoule", "study", study.name, "--datasets", dataset]
    if tuple(models) != study.models:
        words += ["--models", ",".join(models)]
    if tuple(depths) != study.depths.get(dataset, study.other_depths):
        words += ["--layers", ",".join(map(str, depths))]
    if tuple(seeds) != _SEEDS:
        words += ["--seeds", seeds_text(seeds)]
    for key, value in settings.items():
        words += ["--set", f"{key}={value_text(value)}"]
    return shlex.join(words)


def seeds_text(seeds: Sequence[int]) -> str:
    """Seeds as ``--seeds`` reads them: a number alone means how many.

    >>> seeds_text([0, 1, 2]), seeds_text([3, 7]), seeds_text([7])
    ('3', '3,7', '7,')
    """
    if tuple(seeds) == tuple(range(len(seeds))):
        return str(len(seeds))
    return ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")


def value_text(value: Any) -> str:
    """A setting as ``--set`` reads it.

    >>> value_text(None), value_text("relu"), value_text(True), value_text(0.5)
    ('none', 'relu', 'true', '0.5')
    """
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)
