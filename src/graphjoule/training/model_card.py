"""The model card: what was trained on what, with which result, and how to load it, as one page of Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from types import MappingProxyType

from jinja2 import Environment, StrictUndefined, Template

from graphjoule.errors import counted, harmless
from graphjoule.files import printable
from graphjoule.tasks.encoders import DIRECTIONS
from graphjoule.tasks.facts import TaskFacts
from graphjoule.tasks.objective import Classification, MultiLabel, Ordinal
from graphjoule.training.comparison import Comparison
from graphjoule.training.evaluation import Evaluation
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import Record, summarise

_MOST_CLASSES = 50


def model_card(
    recipe: Recipe,
    records: Sequence[Record],
    data: TaskFacts | None,
    only_model: str | None = None,
    *,
    evaluation: Evaluation | None = None,
    comparison: Comparison | None = None,
    members: Mapping[str, Recipe] = MappingProxyType({}),
) -> str:
    """The card of a run folder, or of a folder with one model alone.

    Args:
        recipe: the settings of all runs.
        records: one per seed, in any order.
        data: what was trained on; None in a folder that does not say.
        only_model: name of the model's file where the folder holds nothing else of the training.
        evaluation: predictions of the best run, for warnings about classes.
        comparison: what the runs are worth beside simpler models.
        members: by folder, other models that predict together with these runs.

    Returns:
        Markdown; the same files give the same text.
    """
    records = sorted(records, key=lambda record: record.seed)
    summary = summarise(records)
    return _template().render(
        recipe=recipe,
        records=records,
        data=data,
        asked=_asked(data),
        unit="node" if data is None else data.unit,
        summary=summary,
        metric=summary.metric,
        is_regression=data is not None and data.objective.is_scaled,
        devices=list(dict.fromkeys(record.device for record in records)),
        counted=counted,
        only_model=only_model,
        directions=DIRECTIONS,
        warnings=[] if evaluation is None else evaluation.warnings(),
        comparison=comparison,
        members=members,
    )


@cache  # to compile it takes longer than a small training
def _template() -> Template:
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters |= {"plain": _plain, "code": _code}
    text = (resources.files("graphjoule.training") / "templates" / "model_card.md").read_text(encoding="utf-8")
    return environment.from_string(text)


def _asked(data: TaskFacts | None) -> str:
    """What is predicted, of how many nodes or graphs it is known, and the names of the classes or targets."""
    if data is None:
        return ""
    unit = data.unit
    names: Sequence[str] = data.objective.names
    if isinstance(data.objective, Classification | Ordinal):
        known = f"{counted(data.num_labels, f'labelled {unit}')} of {counted(len(names), 'class', 'classes')}"
        known += " in this order" if isinstance(data.objective, Ordinal) else ""
    elif isinstance(data.objective, MultiLabel):
        known = f"{counted(data.num_labels, unit)} with known ones of {counted(len(names), 'label')}"
    else:
        names = getattr(data.objective, "target_names", None) or ()
        known = f"{counted(data.num_labels, unit)} with {counted(data.objective.out_channels, 'known target')}"
    more = f" and {len(names) - _MOST_CLASSES:,} more" if len(names) > _MOST_CLASSES else ""
    listed = ", ".join(_code(name) for name in names[:_MOST_CLASSES])
    return known + (f": {listed}{more}" if names else "")


# Names come from the user's files, where anything may stand: none of it may become a table, a heading or a tag.


_SPECIAL = r"[\\`*_\[\]<>|#~&:@]|(?<=www)\."  # also what makes a link of an address


def _line(text: object) -> str:
    """Text as one line; a character that steers a terminal or turns the direction of reading is an escape."""
    return harmless(printable(" ".join(str(text).split())))


def _plain(text: object) -> str:
    r"""Text that Markdown shows as it is.

    >>> print(_plain("a|b <i>"), _plain("x_1"), _plain("&lt; https://a.b"))
    a\|b \<i\> x\_1 \&lt; https\://a.b
    """
    return re.sub(_SPECIAL, r"\\\g<0>", _line(text))


def _code(text: object) -> str:
    r"""Text as code, also within a table.

    >>> print(_code("a<b"), _code("a|b"))
    `a<b` <code>a&#124;b</code>
    """
    line = _line(text)
    if line and not re.search(r"[|`\\]", line):
        return f"`{line}`"
    # Backticks cannot quote these within a table; numbers of characters are never Markdown.
    return f"<code>{re.sub(_SPECIAL, lambda c: f'&#{ord(c[0])};', line)}</code>"
