"""Numbers of any record below reproduction/results/, for marks within sentences, and small tables of such records.

    <!--= of reach/speed-h200.json wall.pyg .1f -->6.5<!--/-->
    <!--= of certified/accuracy.jsonl dataset=cora side=plain test spread percent .2f -->85.58 ± 0.40<!--/-->

After the file come conditions on its lines, the place of the value in each line that is left, how several values
become one, a unit, and how it is written. A place is keys with dots between them; ``*`` is all entries of a list or of
a table, ``a/b`` the ratio of two places, and ``_`` stands for a space.
"""

from __future__ import annotations

import gzip
import json
import math
import statistics
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from graphjoule import GraphjouleError
from graphjoule.theory import StepLaw

__all__ = [
    "coverage_table",
    "curves_apart",
    "operators_table",
    "order_table",
    "parts_table",
    "reach_table",
    "share_of_clusters",
    "value_of",
]

RESULTS = Path(__file__).resolve().parents[1] / "results"
UNITS: Final = {"percent": 100.0, "ms": 1e3, "s": 1e-3, "kB": 1e-3, "GB": 1e-9, "MiB": 2.0**-20, "GiB": 2.0**-30}
TO_ONE: Final[dict[str, Callable[[Sequence[float]], float]]] = {
    "min": min,
    "max": max,
    "mean": statistics.fmean,
    "median": statistics.median,
    "sum": math.fsum,
    "count": len,
}


def value_of(file: str, *words: str) -> str:
    """The text of a number in a record.

    Raises:
        GraphjouleError: There is no such file, line or value, or there are several and nothing says how to join them.
    """
    named = " ".join((file, *words))
    conditions = [word.partition("=")[::2] for word in words if "=" in word]
    place, *rest = (word for word in words if "=" not in word)
    unit = next((UNITS[word] for word in rest if word in UNITS), 1.0)
    joins, form = [word for word in rest[:-1] if word not in UNITS], rest[-1]
    lines = [line for line in _lines(file) if all(_text(line, key) in _spellings(value) for key, value in conditions)]
    found = [unit * value for line in lines for value in _ratios(line, place)]
    if not found:
        raise GraphjouleError(f"{named}: no record of reproduction/results/ has that.")
    if joins == ["spread"]:
        return f"{statistics.fmean(found):{form}} ± {statistics.stdev(found):{form}}"
    if joins == ["range"]:
        return f"{min(found):{form}} to {max(found):{form}}"
    if joins == ["each"]:
        return ", ".join(f"{value:{form}}" for value in found)
    if joins and joins[0] in TO_ONE and len(joins) == 1:
        return f"{TO_ONE[joins[0]](found):{form}}"
    if joins or len(found) > 1:
        raise GraphjouleError(
            f"{named}: {len(found)} values; join them by one of: {', '.join(['spread', 'range', 'each', *TO_ONE])}."
        )
    return f"{found[0]:{form}}"


def _lines(file: str) -> list[Any]:
    """What a file holds: a JSON document is one line."""
    path = RESULTS / file
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except OSError as error:
        raise GraphjouleError(f"{file}: there is no such file in reproduction/results/.") from error
    if path.suffix == ".json":
        return [json.loads(content)]
    lines = [json.loads(line) for line in content.splitlines()]
    return list({line.get("key", number): line for number, line in enumerate(lines)}.values())  # of a key the last


def _spellings(word: str) -> tuple[str, str]:
    return word, word.replace("_", " ")


def _values(node: Any, keys: Sequence[str]) -> list[Any]:
    """Everything that a place leads to."""
    if not keys:
        return [value for each in node for value in _values(each, ())] if isinstance(node, list) else [node]
    first, rest = keys[0], keys[1:]
    if first == "*":
        entries = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        return [value for each in entries for value in _values(each, rest)]
    if isinstance(node, list):
        return _values(node[int(first)], rest) if first.isdecimal() and int(first) < len(node) else []
    for length in range(len(keys), 0, -1) if isinstance(node, dict) else ():  # a key may have dots of its own
        for key in _spellings(".".join(keys[:length])):
            if key in node:
                return _values(node[key], keys[length:])
    return []


def _text(line: Any, place: str) -> str:
    """A value as a condition writes it."""
    found = _values(line, place.split("."))
    return found[0] if len(found) == 1 and isinstance(found[0], str) else json.dumps(found[0] if found else None)


def _ratios(line: Any, place: str) -> list[float]:
    sides = [
        [float(value) for value in _values(line, side.split(".")) if value is not None] for side in place.split("/")
    ]
    return [over / under for over, under in zip(*sides, strict=True)] if len(sides) == 2 else sides[0]


def curves_apart(one: str, other: str, curve: str, *words: str) -> str:
    """How far the curves of the same runs in two files of records are apart at most, relatively, as a share or percent.

        <!--= apart distributed/rounding-one.jsonl.gz distributed/rounding-two.jsonl.gz val_loss model=gcn .0e -->

    Conditions choose the runs, ``epochs=40`` the epochs before that one. Runs are the same that have the settings and
    the seed in common.
    """
    wanted = dict(word.partition("=")[::2] for word in words if "=" in word)
    epochs = int(wanted.pop("epochs", "0")) or None
    found: dict[tuple[str, int], list[list[float]]] = {}
    for file in (one, other):
        for line in _lines(file):
            if all(_text(line, key) in _spellings(value) for key, value in wanted.items()):
                found.setdefault((json.dumps(line["recipe"]), line["seed"]), []).append(line["curve"][curve][:epochs])
    gaps = [
        abs(a - b) / abs(a)
        for curves in found.values()
        if len(curves) == 2
        for a, b in zip(curves[0], curves[1], strict=True)
    ]
    if not gaps:
        raise GraphjouleError(f"{one} and {other} have no run in common that is so: {' '.join(words)}.")
    return f"{(100 if 'percent' in words else 1) * max(gaps):{words[-1]}}"


# Tables of records that only one page has.


@cache
def _report(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _head(*names: str) -> list[str]:
    return [_row(*names), "|---" * len(names) + "|"]


def order_table() -> str:
    """How many times faster a step is with the nodes in another order."""
    lines = ["| device | graph | as it is | Cuthill-McKee | hubs first | random |", "|---|---|---|---|---|---|"]
    for path in sorted((RESULTS / "order").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        for graph, of in record["graphs"].items():
            others = (of[order] for order in ("Cuthill-McKee", "hubs first", "random"))
            cells = (f"{row['faster']:.2f} ({row['quartiles'][0]:.2f} to {row['quartiles'][1]:.2f})" for row in others)
            lines.append(f"| {record['device']} | {graph} | {of['as it is']['ms']:.1f} ms | {' | '.join(cells)} |")
    return "\n".join(lines)


def operators_table() -> str:
    """Clusters whose entries are those of the whole operator against clusters that are normalised anew."""
    lines = _head(
        "layers", "clusters per step", "epochs", "loss, entries as they are", "loss, normalised anew", "more by"
    )
    for name in ("operator-2", "operator-2-single", "operator-8"):
        report = _report(f"clusters/{name}.json")
        recipe = report["clusters"]["recipe"]
        ours, theirs = (report[side]["val_loss"] for side in ("clusters", "renormalised"))
        more = ", ".join(f"{100 * (b / a - 1):.0f}" for a, b in zip(ours, theirs, strict=True))
        losses = (", ".join(f"{loss:.3f}" for loss in side) for side in (ours, theirs))
        lines.append(_row(recipe["num_layers"], recipe["clusters.per_step"], recipe["epochs"], *losses, f"{more} %"))
    return "\n".join(lines)


def share_of_clusters() -> str:
    """What training on clusters loses in accuracy."""
    lines = _head(
        "layers", "seeds", "exact, test accuracy", "clusters, test accuracy", "lost", "epochs at most, exact / clusters"
    )
    for name in ("physics-2", "physics-4", "physics-8"):
        report = _report(f"clusters/{name}.json")
        sides = [report["exact"], report["clusters"]]
        scores = [[100 * score for score in side["test_accuracy"]] for side in sides]
        cells = [f"{statistics.fmean(each):.2f} % ({', '.join(f'{score:.2f}' for score in each)})" for each in scores]
        lost = statistics.fmean(scores[0]) - statistics.fmean(scores[1])
        epochs = " / ".join(str(side["recipe"]["epochs"]) for side in sides)
        layers = sides[0]["recipe"]["num_layers"]
        lines.append(_row(layers, len(scores[0]), *cells, "none" if lost < 0.05 else f"{lost:.2f} points", epochs))
    return "\n".join(lines)


def parts_table() -> str:
    """Memory and traffic of the process with the highest peak, against the formulas."""
    lines = _head(
        "graph",
        "processes",
        "own nodes",
        "halo",
        "peak, MiB",
        "formula, MiB",
        "ratio",
        "received per epoch, MiB",
        "formula, MiB",
    )
    highest: dict[tuple[str, int], dict[str, Any]] = {}
    for row in _report("distributed/memory.json")["rows"]:
        place = (row["graph"], row["processes"])
        if place not in highest or row["peak_bytes"] > highest[place]["peak_bytes"]:
            highest[place] = row
    for (graph, processes), row in highest.items():
        peak, formula, got, told = (
            row[name] / 2**20 for name in ("peak_bytes", "formula_bytes", "received_bytes", "formula_received_bytes")
        )
        own = (f"{row['nodes']:,}", f"{row['halo']:,}")
        memory = (f"{peak:,.0f}", f"{formula:,.0f}", f"{row['ratio']:.2f}")
        lines.append(_row(graph, processes, *own, *memory, f"{got:,.1f}", f"{told:,.1f}"))
    return "\n".join(lines)


def reach_table() -> str:
    """How far networks see with the recipes of this package."""
    lines = _head("network", "mean steps", "with endless depth", "95 % by layer", "mean reach in hops", "99 % within")
    for dataset in ("cora", "pubmed", "physics"):
        found = _report(f"audit/{dataset}.json")["reach"]
        if any(found["gcnii"][key] != found["appnp"][key] for key in ("mean_steps", "mean", "range")):
            raise GraphjouleError(f"GCNII and APPNP see differently far on {dataset}; give them a row each.")
        for network, name in {"egnn": "EGNN", "appnp": "APPNP, GCNII", "sgc": "SGC"}.items():
            row = found[network]
            law = StepLaw(row["c_min"], row["beta"], row["num_layers"])
            most = "no limit" if row["most_steps"] is None else f"{row['most_steps']:.3g}"
            hops = f"{row['mean']:.3g} ± {row['mean_error']:.1g}"
            steps = f"{row['mean_steps']:.3g}"
            lines.append(_row(f"{name}, {dataset.capitalize()}", steps, most, law.layers_in_use(), hops, row["range"]))
    return "\n".join(lines)


def constraint_cost_table() -> str:
    """What an epoch with the constraint costs in processor time."""
    lines = _head("network", "plain", "layer by layer", "constrained", "three tries")
    names = {
        "pyg-gcn": "GCN of PyTorch Geometric, Cora",
        "gcn": "GCN, Cora",
        "gcn-pubmed": "GCN, Pubmed",
        "egnn": "EGNN, Cora",
    }
    for file, name in names.items():
        times = _report(f"constraint/overhead-{file}.json")["processor"]
        layers, held = (f"{100 * times[side]['cost']:+.0f} %" for side in ("hooks alone", "constrained"))
        tries = [
            100 * json.loads(path.read_text())["processor"]["constrained"]["cost"]
            for path in sorted((RESULTS / "constraint/overhead-tries").glob(f"{file}-?.json"))
        ]
        spread = f"{min(tries):.0f} to {max(tries):.0f} %" if tries else ""
        plain = f"{times['plain']['ms']:,.0f} ms{', fused' if file == 'egnn' else ''}"
        lines.append(_row(name, plain, layers, held, spread))
    return "\n".join(lines)


def coverage_table() -> str:
    """How often the promised share of test nodes was within the threshold, after real trainings."""
    shares = ("0.8", "0.9", "0.95")
    lines = _head("dataset, split", "validation nodes", *shares, "calibration error, before and after the temperature")
    for name in ("digits-stratified", "cora-stratified", "cora-per-class"):
        report = _report(f"coverage/{name}.json")
        mean, error = report["mean"], report["standard_error"]
        named = f"{report['dataset'].replace('cora', 'Cora')}, `{report['recipe']['data.split']}`"
        cells = [f"{mean[f'alone_{share}']:.3f} ± {error[f'alone_{share}']:.3f}" for share in shares]
        lines.append(_row(named, report["num_val"], *cells, f"{mean['ece']:.3f}, {mean['ece_calibrated']:.3f}"))
    return "\n".join(lines)
