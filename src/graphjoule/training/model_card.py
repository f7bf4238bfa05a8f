"""The model card: what was trained on what, with which result, and how to load it, as one page of Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources

from jinja2 import Environment, StrictUndefined

from graphjoule.errors import counted
from graphjoule.tasks.encoders import DIRECTIONS
from graphjoule.tasks.facts import TaskFacts
from graphjoule.tasks.objective import Classification, MultiLabel, Ordinal
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import Record, summarise

_MOST_CLASSES = 50


def model_card(recipe: Recipe, records: Sequence[Record], data: TaskFacts | None, only_model: str | None = None) -> str:
    """The card of a run folder, or of a folder with one model alone.

    Args:
        recipe: the settings of all runs.
        records: one per seed, in any order.
        data: what was trained on; None in a folder that does not say.
        only_model: name of the model's file where the folder holds nothing else of the training.

    Returns:
        Markdown; the same files give the same text.
    """
    records = sorted(records, key=lambda record: record.seed)
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters |= {"plain": _plain, "code": _code}
    summary = summarise(records)
    template = resources.files("graphjoule.training") / "templates" / "model_card.md"
    return environment.from_string(template.read_text(encoding="utf-8")).render(
        recipe=recipe,
        records=records,
        data=data,
        asked=_asked(data),
        summary=summary,
        metric=summary.metric,
        is_regression=data is not None and data.objective.is_scaled,
        devices=list(dict.fromkeys(record.device for record in records)),
        counted=counted,
        only_model=only_model,
        directions=DIRECTIONS,
    )


def _asked(data: TaskFacts | None) -> str:
    """What is predicted, of how many nodes or graphs it is known, and the names of the classes or targets."""
    if data is None:
        return ""
    unit = "node" if data.num_graphs is None else "graph"
    if isinstance(data.objective, Classification | Ordinal):
        names: Sequence[str] = data.objective.classes
        known = f"{counted(data.num_labels, f'labelled {unit}')} of {counted(len(names), 'class', 'classes')}"
        known += " in this order" if isinstance(data.objective, Ordinal) else ""
    elif isinstance(data.objective, MultiLabel):
        names = data.objective.labels
        known = f"{counted(data.num_labels, unit)} with known ones of {counted(len(names), 'label')}"
    else:
        names = getattr(data.objective, "target_names", None) or ()
        known = f"{counted(data.num_labels, unit)} with {counted(data.objective.out_channels, 'known target')}"
    more = f" and {len(names) - _MOST_CLASSES:,} more" if len(names) > _MOST_CLASSES else ""
    listed = ", ".join(_plain(name) for name in names[:_MOST_CLASSES])
    return known + (f": {listed}{more}" if names else "")


# Names come from the user's files, where anything may stand: none of it may become a table, a heading or a tag.


def _plain(text: object) -> str:
    r"""Text that Markdown shows as it is.

    >>> print(_plain("a|b <i>"), _plain("x_1"))
    a\|b \<i\> x\_1
    """
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", " ".join(str(text).split()))


def _code(text: object) -> str:
    r"""Text as code, also within a table; the fence is longer than any run of backticks within.

    >>> print(_code("a|b"), _code("x`y"))
    `a\|b` ``x`y``
    """
    line = " ".join(str(text).split()).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    space = " " if line[:1] == "`" or line[-1:] == "`" else ""
    return f"{fence}{space}{line}{space}{fence}"
