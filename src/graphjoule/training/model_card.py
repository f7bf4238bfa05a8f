"""The model card: what was trained on what, with which result, and how to load it, as one page of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphjoule.errors import counted
from graphjoule.tasks.facts import Source, TableColumns, TaskFacts
from graphjoule.training.recipe import Recipe
from graphjoule.training.records import Record, summarise

_MOST_CLASSES = 50


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
    parts = [
        f"# {recipe.model.name}, {recipe.model.num_layers} layers, trained on {recipe.data.name}",
        _result(records),
        "## Data\n\n" + (_data(data) if data else f"The dataset `{recipe.data.name}`."),
        "## Runs\n\n" + _runs(records),
        "## Settings\n\n" + _settings(recipe),
        "## Use\n\n" + _use(records, data),
        "## Limits\n\n" + _limits(records),
    ]
    return "\n\n".join(parts) + "\n"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


def _with_spread(mean: float, std: float | None) -> str:
    return f"{_percent(mean)}{f' ± {_percent(std)}' if std is not None else ''} %"


def _result(records: Sequence[Record]) -> str:
    """The result in one sentence."""
    summary = summarise(records)
    failed = f"; {summary.num_failed} failed and count in no mean" if summary.num_failed else ""
    if summary.val_mean is None:
        return f"No run finished: {summary.num_failed} failed."
    validation = f"validation accuracy {_with_spread(summary.val_mean, summary.val_std)}"
    runs = f"{summary.n} run{'s' if summary.n > 1 else ''}{failed}"
    if summary.test_mean is None:
        return f"{validation.capitalize()} ({runs}). No node was held back to test."
    return f"Test accuracy {_with_spread(summary.test_mean, summary.test_std)}, {validation} ({runs})."


def _data(data: TaskFacts) -> str:
    names = data.classes[:_MOST_CLASSES]
    more = f" and {data.num_classes - len(names):,} more" if data.num_classes > len(names) else ""
    lines = [
        f"`{data.name}`: {counted(data.num_nodes, 'node')}, {counted(data.num_edges, 'edge')}, "
        f"{counted(data.num_features, 'feature')}; {counted(data.num_labels, 'labelled node')} of "
        f"{counted(data.num_classes, 'class', 'classes')}: {', '.join(names)}{more}.",
        "",
        f"SHA-256 of features, graph and labels: `{data.sha256}`.",
    ]
    return "\n".join([*lines, *(_source(data.source) if data.source else [])])


def _source(source: Source) -> list[str]:
    rows = [(file.role, f"`{file.path}`", f"`{file.sha256}`") for file in source.files]
    columns = _columns(source.columns) if source.columns else []
    return ["", *_table(("file", "path", "SHA-256"), rows), *columns]


def _columns(columns: TableColumns) -> list[str]:
    ends = f"`{columns.source}` and `{columns.target}`"
    weight = f", weighted by `{columns.weight}`" if columns.weight else ""
    graph = (
        f"every node is linked with its {columns.knn} nearest in the features"
        if columns.knn is not None
        else f"an edge joins {ends}{weight}, in both directions"
    )
    numbers = [(f"`{c.name}`", f"{c.mean:.6g}", f"{c.std:.6g}") for c in columns.numbers]
    texts = [
        f"- `{c.name}`, one-hot: {counted(len(c.categories), 'category', 'categories')}" for c in columns.categories
    ]
    rows = _table(("numeric column", "mean", "standard deviation"), numbers) if numbers else []
    id_column = f"`{columns.id}`" if columns.id else "the row's number"
    head = f"Nodes are called by {id_column}, their class is `{columns.label}`; {graph}."
    return ["", head, *([""] if rows else []), *rows, *([""] if texts else []), *texts]


def _runs(records: Sequence[Record]) -> str:
    rows = [
        (
            str(record.seed),
            record.status,
            "" if record.selected_epoch is None else str(record.selected_epoch),
            str(record.epochs_run),
            _percent(record.val_score),
            _percent(record.test_score),
            f"{record.seconds:.1f}",
        )
        for record in records
    ]
    head = ("seed", "status", "selected epoch", "epochs", "validation %", "test %", "seconds")
    split = f"Split: `{records[0].split}`. " if records else ""
    devices = ", ".join(dict.fromkeys(record.device for record in records))
    versions = ", ".join(f"{name} {number}" for name, number in (records[-1].versions if records else {}).items())
    return "\n".join([*_table(head, rows), "", f"{split}Device: {devices}. Versions: {versions}."])


def _settings(recipe: Recipe) -> str:
    rows = [
        (f"`{name}`", f"`{value}`", recipe.sources.get(name, "chosen")) for name, value in recipe.settings().items()
    ]
    return "\n".join(_table(("setting", "value", "from"), rows))


def _use(records: Sequence[Record], data: TaskFacts | None) -> str:
    columns = data.source.columns if data is not None and data.source is not None else None
    new = f" --nodes NODES{' --edges EDGES' if columns.source else ''}" if columns is not None else ""
    seed = records[0].seed if records else 0
    other = [f"graphjoule predict THIS_FOLDER{new} --out new.csv    # on another graph with the same columns"]
    lines = [
        "```console",
        "graphjoule predict THIS_FOLDER --out predictions.csv    # on the training graph",
        *(other if new else []),
        "```",
        "",
        "```python",
        "from graphjoule import load",
        "",
        'model = load("THIS_FOLDER")    # the run that validated best, on the CPU',
        f'model = load("THIS_FOLDER/model-seed-{seed}.safetensors", device="cuda")',
        "```",
        "",
        "The models are safetensors files: loading one executes nothing. `records.jsonl` holds every run's curve.",
    ]
    return "\n".join(lines)


def _limits(records: Sequence[Record]) -> str:
    chosen = records[0].recipe.get("select_on") if records else None
    by = f" by `{chosen}`" if chosen else ""
    return (
        f"Validation chose the epoch{by}, so the validation accuracy is a little too good; an accuracy holds for nodes "
        "drawn as the labelled ones were. Probabilities are the mean of the runs' softmax and have not been calibrated."
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table; a bar within a cell would end it."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]
