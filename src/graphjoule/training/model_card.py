"""The model card: what was trained on what, with which result, and how to load it, as one page of Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jinja2 import Environment, StrictUndefined

from graphjoule.errors import counted
from graphjoule.files import printable
from graphjoule.tasks.facts import TaskFacts
from graphjoule.tasks.objective import Classification, Regression
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import Record, summarise

_MOST_CLASSES = 50

_CARD = """\
# {{ recipe.model.name | plain }}, {{ counted(recipe.model.num_layers, "layer") }}, trained on \
{{ recipe.data.name | plain }}

{% if summary.val_mean is none -%}
No run finished: {{ summary.num_failed }} failed.
{%- else -%}
{% if summary.test_mean is not none -%}
Test {{ metric.name }} {{ metric.text(summary.test_mean, summary.test_std) }}, validation
{%- else -%}
Validation
{%- endif %} {{ metric.name }} {{ metric.text(summary.val_mean, summary.val_std) }} ({{ counted(summary.n, "run") }}
{%- if summary.num_failed %}; {{ summary.num_failed }} failed and count in no mean{% endif %}).
{%- if summary.test_mean is none %} No node was held back to test.{% endif %}
{%- endif %}

## Data

{% if data is none -%}
The dataset {{ recipe.data.name | code }}.
{%- else -%}
{{ data.name | code }}: {{ counted(data.num_nodes, "node") }}, {{ counted(data.num_edges, "edge") }}, \
{{ counted(data.num_features, "feature") }}; {{ asked }}.

SHA-256 of features, graph and targets: {{ data.sha256 | code }}.
{%- if data.source %}

| file | path | SHA-256 |
| --- | --- | --- |
{% for file in data.source.files -%}
| {{ file.role }} | {{ file.path | code }} | {{ file.sha256 | code }} |
{% endfor %}
{%- set columns = data.source.columns %}
{%- if columns %}
Nodes are called by {% if columns.id %}{{ columns.id | code }}{% else %}the row's number{% endif %}, their \
{{ "target" if is_regression else "class" }} is {{ columns.label | code }};
{%- if columns.knn is not none %} every node is linked with its {{ columns.knn }} nearest in the features.
{%- else %} an edge joins {{ columns.source | code }} and {{ columns.target | code }}
{%- if columns.weight %}, weighted by {{ columns.weight | code }}{% endif %}, in both directions.
{%- endif %}
{%- if columns.numbers %}

| numeric column | mean | standard deviation |
| --- | --- | --- |
{%- for column in columns.numbers %}
| {{ column.name | code }} | {{ "%.6g" | format(column.mean) }} | {{ "%.6g" | format(column.std) }} |
{%- endfor %}
{%- endif %}
{%- if columns.categories %}
{% for column in columns.categories %}
- {{ column.name | code }}, one-hot: {{ counted(column.categories | length, "category", "categories") }}
{%- endfor %}
{%- endif %}
{%- endif %}
{%- endif %}
{%- endif %}

## Runs

| seed | status | selected epoch | epochs | validation {{ metric.name }} | test {{ metric.name }} | seconds |
| --- | --- | --- | --- | --- | --- | --- |
{% for r in records -%}
| {{ r.seed }} | {{ r.status }} | {{ "" if r.selected_epoch is none else r.selected_epoch }} | {{ r.epochs_run }} | \
{{ metric.text(r.val_score) }} | {{ metric.text(r.test_score) }} | {{ "%.1f" | format(r.seconds) }} |
{% endfor %}
{%- if records %}
Split: {{ records[0].split | code }}. Device: {{ devices | join(", ") | plain }}. Versions:
{%- for version in records[-1].versions.items() %} {{ version | join(" ") | plain }}{{ "." if loop.last else "," }}
{%- endfor %}
{% endif %}
## Settings

| setting | value | from |
| --- | --- | --- |
{% for name, value in recipe.settings().items() -%}
| {{ name | code }} | {{ value | code }} | {{ recipe.sources.get(name, "chosen") }} |
{% endfor %}
## Use

{% set file = "THIS_FOLDER/model-seed-%d.safetensors" | format(records[0].seed if records else 0) -%}
{% if recipe.model.is_own -%}
```python
from graphjoule.training import load_model

model = load_model("{{ file }}", model=new)    # new: one more from {{ recipe.model.name | plain }}
```
{%- else -%}
```console
graphjoule predict THIS_FOLDER --out predictions.csv    # on the training graph
{%- if data and data.source and data.source.columns %}
graphjoule predict THIS_FOLDER --nodes NODES{% if data.source.columns.source %} --edges EDGES{% endif %} \
--out new.csv    # on another graph with the same columns
{%- endif %}
```

```python
from graphjoule import load

model = load("THIS_FOLDER")    # the run that validated best, on the CPU
model = load("{{ file }}", device="cuda")
```
{%- endif %}

The models are safetensors files: loading one executes nothing. `records.jsonl` holds every run's curve.

## Limits

Validation chose the epoch by {{ recipe.train.select_on | code }}, so the validation {{ metric.name }} is a little too \
good; a score holds for nodes drawn as those with a known target were.
{%- if is_regression %} Predictions are the mean over the runs.
{%- else %} Probabilities are the mean of the runs' softmax and have not been calibrated.
{%- endif %}
"""


def model_card(recipe: Recipe, records: Sequence[Record], data: TaskFacts | None) -> str:
    """The card of a run folder.

    Args:
        recipe: the settings of all runs.
        records: one per seed, in any order.
        data: what was trained on; None in a folder that does not say.

    Returns:
        Markdown; the same files give the same text.
    """
    records = sorted(records, key=lambda record: record.seed)
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters |= {"plain": _plain, "code": _code}
    summary = summarise(records)
    return environment.from_string(_CARD).render(
        recipe=recipe,
        records=records,
        data=data,
        asked=_asked(data),
        summary=summary,
        metric=summary.metric,
        is_regression=data is not None and isinstance(data.objective, Regression),
        devices=list(dict.fromkeys(record.device for record in records)),
        counted=counted,
    )


def _asked(data: TaskFacts | None) -> str:
    """What is predicted, of how many nodes it is known, and the names of the classes or targets."""
    if data is None:
        return ""
    if isinstance(data.objective, Classification):
        names: Sequence[str] = data.objective.classes
        known = f"{counted(data.num_labels, 'labelled node')} of {counted(len(names), 'class', 'classes')}"
    else:
        names = getattr(data.objective, "target_names", None) or ()
        known = f"{counted(data.num_labels, 'node')} with {counted(data.objective.out_channels, 'known target')}"
    more = f" and {len(names) - _MOST_CLASSES:,} more" if len(names) > _MOST_CLASSES else ""
    listed = ", ".join(_code(name) for name in names[:_MOST_CLASSES])
    return known + (f": {listed}{more}" if names else "")


# Names come from the user's files, where anything may stand: none of it may become a table, a heading or a tag.


_SPECIAL = r"[\\`*_\[\]<>|#~&:@]|(?<=www)\."  # also what makes a link of an address


def _line(text: object) -> str:
    """Text as one line; a character that steers a terminal or turns the direction of reading is an escape."""
    line = " ".join(str(text).split())
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", lambda c: ascii(c[0])[1:-1], printable(line))


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
