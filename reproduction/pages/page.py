"""The page of results: text by hand, and between marks in it what the records say."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from graphjoule import GraphjouleError
from graphjoule.cli import missing_commands
from graphjoule.report import Evidence
from graphjoule.studies import (
    STUDIES,
    Cell,
    EnergyRecord,
    LedgerRow,
    ledger_table,
    missing_text,
    read_collection,
    read_energies,
    rule,
)
from graphjoule.studies import Collection as Recorded
from graphjoule.training import in_words
from reproduction.pages.curves import blow_up_table, budget_table
from reproduction.pages.drawings import Figure, figures_of
from reproduction.pages.explored import Trial, read_trials, trials_table
from reproduction.pages.figures import WORDS
from reproduction.pages.order import COLLAPSE, find_orders, order_table
from reproduction.pages.phrases import counted
from reproduction.pages.splits import split_words
from reproduction.pages.verdicts import Reading, differing_cells, find_readings, readings_table, verdict_counts

__all__ = ["BLOCKS", "Results", "fill_page", "read_results"]

TABLES: Final = ("table1", "table2")
_MARKS: Final = re.compile(r"(<!-- results (\w+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)


class StudyTime(BaseModel):
    """The time of one call that trained a study.

    Attributes:
        wall_seconds: by the clock.
        workers: processes that shared the work.
        device: in words.
        command: that was called.
    """

    model_config = ConfigDict(frozen=True)

    wall_seconds: float
    workers: int
    device: str
    command: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """The time in a file."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise GraphjouleError(
                f"{path} is not the time of a study: expected {', '.join(sorted(cls.model_fields))} in JSON."
            ) from error

    def __str__(self) -> str:
        return (
            f"`{self.command}`: {in_words(self.wall_seconds)} ({self.wall_seconds:,.0f} s by the clock) on one "
            f"{self.device}, {counted(self.workers, 'process', 'processes')} at once."
        )


@dataclass(frozen=True)
class Results:
    """All that is recorded.

    Attributes:
        recorded: the records of runs.
        energies: the records of energies.
        times: of calls that trained a whole study, by its name.
        unavailable: datasets whose data were not there.
        explored: what was tried before a study was fixed, by its name.
    """

    recorded: Recorded
    energies: Sequence[EnergyRecord] = ()
    times: Mapping[str, StudyTime] = field(default_factory=dict)
    unavailable: Collection[str] = ()
    explored: Mapping[str, Sequence[Trial]] = field(default_factory=dict)

    @cached_property
    def evidence(self) -> dict[str, Evidence]:
        """What every study is made from, by its name."""
        given = (self.recorded, self.energies, None, self.unavailable)
        return {name: Evidence(study, whole_study(name), *given) for name, study in STUDIES.items()}

    @cached_property
    def ledgers(self) -> dict[str, list[LedgerRow]]:
        """The ledgers of both tables."""
        return {name: self.evidence[name].rows for name in TABLES}

    @cached_property
    def figures(self) -> dict[str, list[Figure]]:
        """The figures of every study that has some."""
        return {name: figures_of(self.evidence[name]) for name in (*TABLES, *WORDS)}


@cache
def whole_study(name: str) -> tuple[Cell, ...]:
    """All cells of a study; they are kept, because each resolves its recipe once and that takes its time."""
    return tuple(STUDIES[name].cells())


def read_results(folder: Path, more: Sequence[str] = (), unavailable: Collection[str] = ()) -> Results:
    """Read the records of all studies.

    Args:
        folder: has a folder for every study, by its name: files of records, energies, a ``time.json`` with
            ``wall_seconds``, ``workers``, ``device`` and ``command`` of a call that trained it all, and an
            ``explored.jsonl`` with a `Trial` per line.
        more: names of further folders with records of runs.
        unavailable: datasets whose data were not there, to say so.
    """
    folders = {name: path for name in (*STUDIES, *more) if (path := folder / name).is_dir()}
    times = {name: StudyTime.read(file) for name, at in folders.items() if (file := at / "time.json").exists()}
    explored = {name: read_trials(file) for name, at in folders.items() if (file := at / "explored.jsonl").exists()}
    recorded, energies = read_collection(folders.values()), read_energies(folders.values())
    return Results(recorded, energies, times, unavailable, explored)


def fill_page(text: str, results: Results) -> str:
    """The text, with everything between ``<!-- results NAME -->`` and ``<!-- end -->`` made anew.

    Args:
        text: of the page, in Markdown.
        results: what is recorded.

    Raises:
        GraphjouleError: A name is not one of `BLOCKS`.
    """

    def block(found: re.Match[str]) -> str:
        if found[2] not in BLOCKS:
            near = get_close_matches(found[2], BLOCKS, n=1)
            hint = f', did you mean "{near[0]}"?' if near else "."
            choices = ", ".join(sorted(BLOCKS))
            raise GraphjouleError(f'"{found[2]}" is not a block of the results{hint} The choices are: {choices}.')
        return f"{found[1]}{BLOCKS[found[2]](results)}\n{found[3]}"

    return _MARKS.sub(block, text)


def _summary(results: Results) -> str:
    table1, table2 = (results.ledgers[name] for name in TABLES)
    twice = {row.cell.recipe.fingerprint() for row in table1}
    changed = [row for row in table2 if row.cell.recipe.fingerprint() not in twice]
    return "\n\n".join(
        [
            "Table 1 by dataset:",
            verdict_counts(table1, lambda row: row.cell.dataset, "dataset"),
            "Table 1 by model:",
            verdict_counts(table1, lambda row: row.cell.model, "model"),
            "Table 2 by dataset, without the rows that are runs of table 1:",
            verdict_counts(changed, lambda row: row.cell.dataset, "dataset"),
            differing_cells(results.ledgers, "worse"),
            differing_cells(results.ledgers, "better"),
        ]
    )


def _table(name: str, results: Results) -> str:
    rows, parts = results.ledgers[name], _pictures(name, results)
    for dataset in dict.fromkeys(row.cell.dataset for row in rows):
        here = [row for row in rows if row.cell.dataset == dataset]
        parts += [
            f"### {STUDIES[name].title.split(':')[0]}, {dataset}",
            ledger_table(STUDIES[name], here, has_dataset=False),
        ]
        if missing := missing_commands(STUDIES[name], here):
            parts.append(missing_text(missing))
    return "\n\n".join(parts)


def _order(results: Results) -> str:
    about = (
        f"Collapsed: below {100 * COLLAPSE:.0f} % of what the same model has at the fewest layers. "
        "p: Welch's test between a model and the next one."
    )
    return f"{order_table(find_orders(results.ledgers['table1']))}\n\n{about}"


def _readings(results: Results) -> str:
    found: dict[tuple[str, str], Reading] = {}  # some rows of table 2 are runs of table 1
    for name in TABLES:
        for reading in find_readings(results.evidence[name]):
            found.setdefault((reading.row.cell.recipe.fingerprint(), reading.other.settings), reading)
    return readings_table(list(found.values()))


def _time(results: Results) -> str:
    if not results.times:
        return "The time of a whole study in one call is not recorded."
    return "\n".join(f"- {time}" for time in results.times.values())


def _explored(results: Results) -> str:
    if not results.explored:
        return "What was tried before a study was fixed is not recorded."
    return "\n\n".join(trials_table(trials) for trials in results.explored.values())


def _pictures(name: str, results: Results) -> list[str]:
    # One sentence for each picture: its numbers are in the tables, and in reproduction/data/.
    return [
        f"![{figure.alt.partition('. ')[0].rstrip('.')}.](../docs/images/{figure.name}.png)"
        for figure in results.figures[name]
    ]


def _figure(name: str, results: Results) -> str:
    return "\n\n".join([*_pictures(name, results), *WORDS[name](results.evidence[name])])


BLOCKS: Final[dict[str, Callable[[Results], str]]] = {
    "summary": _summary,
    **{name: partial(_table, name) for name in TABLES},
    "order": _order,
    "readings": _readings,
    "time": _time,
    "rule": lambda results: rule(STUDIES["table1"].reference, STUDIES["table1"].protocol),
    "explored": _explored,
    "splits": lambda results: split_words(results.evidence["table1"]),
    "blowups": lambda results: blow_up_table(results.evidence["depth"]),
    "budgets": lambda results: budget_table(results.evidence["depth"]),
    **{name: partial(_figure, name) for name in WORDS},
}
"""What a page can have between its marks, by name."""
