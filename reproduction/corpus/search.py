"""Settings that a search finds on every task of a half, and what the settings from the data are worth beside them.

``python -m reproduction.corpus.search --half learn --device cuda --workers 4 --out learn.jsonl`` trains 40 random
settings of EGNN and the `DESIGNED` ones at depths 2, 8 and 32: what rules are made from. ``--half judge`` trains 40
other random settings, picks the best by validation, and trains it and the settings from the data again with `fit` on
ten seeds; the ledger is printed, and by ``--ledger`` from the file alone. A second call with the same file goes on
where the first one was stopped.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from graphjoule import GraphjouleError, Task, fit
from graphjoule.graph import SparseFeatures
from graphjoule.training import Record, recipe_for
from reproduction.corpus.jobs import read_records, run_jobs
from reproduction.corpus.ledger import DATA, FOUND, score_name, settings_ledger
from reproduction.corpus.tasks import LEARNING, LEARNING_MORE, VERDICT, load
from reproduction.corpus.trials import EPOCHS, PATIENCE, Trial, draw_trials, train_trials

NUM_TRIALS, SEEDS, FIT_SEEDS = 40, (0, 1), 10
DEPTHS = (8, 2, 32)  # what is worth most comes first, where time may run out
DESIGNED = [
    Trial(),  # what every dataset without a recipe had before there were rules
    *(
        Trial(
            lr=0.01,
            dropout=dropout,
            output_dropout=dropout,
            c_min=c_min,
            beta=beta,
            gamma=gamma,
            srelu_init=shift,
            encoder=encoder,
            normalize_features=True,
        )
        # A reach of (1 - c_min) / beta = 1, 2, 4 and 8 steps; linear or free layers.
        for (c_min, beta), (gamma, shift), dropout, encoder in product(
            [(0.8, 0.2), (0.5, 0.25), (0.3, 0.175), (0.2, 0.1)],
            [(20.0, -10.0), (1e-3, 0.0)],
            (0.2, 0.5),
            ("linear", "mlp"),
        )
    ),
]
_BAG = Trial(lr=0.01, dropout=0.5, output_dropout=0.5, normalize_features=True)
_NUMBERS = Trial(lr=0.01, dropout=0.5, output_dropout=0.5, gamma=1e-3, srelu_init=0.0)
SECOND = [  # variations of what the first round found, longer
    _BAG,
    replace(_BAG, normalize_features=False, lr=0.005),
    replace(_BAG, hidden_channels=256, lr=0.005),
    replace(_BAG, hidden_channels=256, lr=0.002, dropout=0.4, output_dropout=0.4, normalize_features=False),
    replace(_BAG, c_min=0.8, beta=0.2),
    replace(_BAG, c_min=0.5, beta=0.25, normalize_features=False, lr=0.005),
    replace(_BAG, c_min=0.1, beta=0.08),
    replace(_BAG, lr=0.02),
    replace(_BAG, weight_decay=5e-5),
    _NUMBERS,
    replace(_NUMBERS, dropout=0.35, output_dropout=0.35),
    replace(_NUMBERS, dropout=0.2, output_dropout=0.5),
    replace(_NUMBERS, hidden_channels=256, lr=0.005),
    replace(_NUMBERS, lr=0.005),
    replace(_NUMBERS, weight_decay=5e-5),
    replace(_NUMBERS, weight_decay=3e-3),
    replace(_NUMBERS, gamma=0.02),
    replace(_NUMBERS, c_min=0.8, beta=0.2),
    replace(_NUMBERS, c_min=0.8, beta=0.2, hidden_channels=256, lr=0.005),
    replace(_NUMBERS, c_min=0.8, beta=0.4, gamma=20.0, weight_decay=3e-3),
    replace(_NUMBERS, c_min=0.1, beta=0.05),
]
_NARROW = [(0.8, 0.2), (0.5, 0.25), (0.3, 0.175)]  # c_min and beta of a reach of 1, 2 and 4 steps; 8 is the default
THIRD = {  # by whether a row counts few of many things, such as words: one change of what rules give, and some of two
    True: [
        Trial(),
        *(Trial(c_min=c_min, beta=beta) for c_min, beta in _NARROW),
        *(Trial(lr=0.002, hidden_channels=256, c_min=c_min, beta=beta) for c_min, beta in [(0.2, 0.1), *_NARROW]),
        *(Trial(lr=0.002, weight_decay=5e-3, c_min=c_min, beta=beta) for c_min, beta in [(0.9, 0.45), *_NARROW]),
        *(Trial(lr=lr) for lr in (0.002, 0.01)),
        *(Trial(weight_decay=decay) for decay in (5e-5, 5e-3)),
        *(Trial(gamma=gamma, srelu_init=0.0) for gamma in (0.02, 1.0)),
        *(Trial(dropout=first, output_dropout=0.4) for first in (0.4, 0.75)),
        _BAG,
    ],
    False: [
        _NUMBERS,
        *(replace(_NUMBERS, c_min=c_min, beta=beta) for c_min, beta in [*_NARROW, (0.1, 0.05), (0.05, 0.025)]),
        *(replace(_NUMBERS, weight_decay=decay) for decay in (5e-5, 5e-3)),
        *(
            replace(_NUMBERS, gamma=gamma, srelu_init=shift)
            for gamma, shift in [(0.02, 0.0), (0.02, -1.0), (0.1, -10.0)]
        ),
        *(replace(_NUMBERS, dropout=first, output_dropout=last) for first, last in [(0.7, 0.5), (0.5, 0.2)]),
        replace(_NUMBERS, lr=0.003),
        replace(_NUMBERS, lr=0.003, encoder="mlp"),
        replace(_NUMBERS, lr=0.005, hidden_channels=256),
        replace(_NUMBERS, gamma=20.0, srelu_init=-10.0, c_min=0.9, beta=0.45),
        replace(_NUMBERS, gamma=20.0, srelu_init=-10.0, c_min=0.5, beta=0.25),
    ],
}
TRIAL_SEED = {"learn": 0, "more": 0, "judge": 1}
HALVES = {"learn": tuple(LEARNING), "more": tuple(LEARNING_MORE), "judge": tuple(VERDICT)}


def search(
    name: str, depth: int, half: str, device: str, num_trials: int, seeds: Sequence[int], again: bool
) -> list[dict[str, Any]]:
    """The records of one task and depth: every trial, and what `fit` makes of the settings from the data.

    The judging half has a search at depths 2 and 8; deeper, where it costs most, the settings from the data alone.
    """
    begin = time.monotonic()
    whole = load(name, judging=half == "judge")
    task = whole.to(device)
    epochs, patience, trials = EPOCHS, PATIENCE, draw_trials(NUM_TRIALS, TRIAL_SEED[half])[:num_trials]
    if again:
        epochs, patience, trials = 600, 100, SECOND[:num_trials] if depth == 8 and half == "learn" else []
    elif half == "learn":
        trials += DESIGNED[: num_trials + 1]
    elif half == "more":
        epochs, patience = 600, 100
        trials += THIRD[isinstance(whole.features, SparseFeatures)][:num_trials]
    elif depth > 8:
        trials = []
    if half == "judge" and not task.targets.is_cuda:
        epochs, patience = 200, 40
    trials = [trial.suited_to(whole) for trial in trials]
    train = train_trials if task.targets.is_cuda else _one_by_one
    found = train(task, trials, seeds, depth, epochs, patience)
    about = {"kind": "trial", "task": name, "depth": depth}
    records: list[dict[str, Any]] = [
        {**about, "trial": number, **_rounded({"settings": trial.overrides(), **scores})}
        for number, (trial, scores) in enumerate(zip(trials, found, strict=True))
    ]
    seconds = time.monotonic() - begin
    if half == "judge" and trials:
        best, select_on = winner(records, score_name(name))
        wide = best["settings"] | {"select_on": select_on, "epochs": 500, "patience": 100}
        records.append(_fitted(whole, depth, FOUND, wide, device))
    if half == "judge" or again:
        records.append(_fitted(whole, depth, DATA, {}, device))
    records.append({"kind": "time", "task": name, "depth": depth, "search": seconds, "all": time.monotonic() - begin})
    return records


def _one_by_one(
    task: Task, trials: Sequence[Trial], seeds: Sequence[int], depth: int, epochs: int, patience: int
) -> list[dict[str, Any]]:
    """As `train_trials`, by `fit`: on a CPU the quicker way. The loss selects in every other trial, else accuracy."""
    found = []
    for number, trial in enumerate(trials):
        by = ("loss", "accuracy")[number % 2]
        settings = {**trial.overrides(), "select_on": by, "epochs": epochs, "patience": patience}
        records = fit(recipe_for(task, "egnn", depth, settings), task, seeds, device="cpu").records
        if all(record.status == "done" for record in records):
            found.append({by: _by_seed(records)})
        else:
            found.append({})
    return found


def _by_seed(records: Iterable[Record]) -> dict[str, list[float]]:
    """The scores of runs, a list per metric."""
    rows = [
        {f"{part}_{name}": value for part in ("val", "test") for name, value in (getattr(record, part) or {}).items()}
        for record in records
    ]
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def _fitted(task: Task, depth: int, what: str, overrides: Mapping[str, Any], device: str) -> dict[str, Any]:
    recipe = recipe_for(task, "egnn", depth, overrides)
    done = [record for record in fit(recipe, task, range(FIT_SEEDS), device=device).records if record.status == "done"]
    kept = ("accuracy", "macro_f1", "roc_auc")
    scores = {name: values for name, values in _by_seed(done).items() if name.partition("_")[2] in kept}
    failed = FIT_SEEDS - len(done)
    settings = {key: value for key, value in recipe.settings().items() if recipe.sources.get(key) != "default"}
    fields = {"settings": settings, "failed": failed, "scores": scores}
    return {"kind": "fit", "task": task.name, "depth": depth, "what": what, **_rounded(fields)}


def winner(records: Iterable[Mapping[str, Any]], metric: str) -> tuple[Mapping[str, Any], str]:
    """The trial that validates best by the mean over its seeds, and what selected its epochs."""

    def worth(pair: tuple[Mapping[str, Any], str]) -> tuple[float, float]:
        found = pair[0][pair[1]]
        return statistics.fmean(found[f"val_{metric}"]), -statistics.fmean(found["val_loss"])

    return max(((record, by) for record in records for by in ("loss", "accuracy") if by in record), key=worth)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def table(records: Iterable[Mapping[str, Any]]) -> str:
    """The trials as CSV, means over seeds in points.

    Their settings are those of `draw_trials`, then of `DESIGNED`, or of `THIRD` for the tasks that were added.
    """
    lines = ["task,depth,trial,selected_by,val_score,test_score,test_macro_f1"]
    for record in records:
        if record["kind"] == "trial":
            keys = [f"val_{score_name(record['task'])}", f"test_{score_name(record['task'])}", "test_macro_f1"]
            for by in (by for by in ("loss", "accuracy") if by in record):
                means = [f"{100 * statistics.fmean(record[by][key]):.2f}" for key in keys]
                lines.append(",".join([record["task"], str(record["depth"]), str(record["trial"]), by, *means]))
    return "\n".join(lines) + "\n"


def _unit(job: tuple[str, int, str, str, int, tuple[int, ...], bool]) -> list[dict[str, Any]]:
    try:
        return search(*job)
    except (GraphjouleError, RuntimeError) as error:  # no data here, or no memory: said, and left for the next call
        return [{"kind": "failure", "task": job[0], "depth": job[1], "why": str(error)[:300]}]


def main() -> None:
    """Run what the file does not have yet, and print the ledger."""
    parser = argparse.ArgumentParser(prog="python -m reproduction.corpus.search", description=__doc__)
    parser.add_argument("--half", choices=tuple(HALVES), required=True)
    parser.add_argument("--out", type=Path, required=True, help="records, JSON lines")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which nothing more is begun")
    parser.add_argument("--tasks", default="", help="some tasks, such as users,iris; all by default")
    parser.add_argument("--depths", default=",".join(map(str, DEPTHS)))
    parser.add_argument("--trials", type=int, default=NUM_TRIALS)
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument(
        "--again", action="store_true", help="of the learning half the second round, and what rules give"
    )
    parser.add_argument("--ledger", action="store_true", help="train nothing, print the ledger")
    parser.add_argument("--csv", type=Path, help="write the trials of the file into a table")
    given = parser.parse_args()
    names = given.tasks.split(",") if given.tasks else HALVES[given.half]
    done = {(record["task"], record["depth"]) for record in read_records(given.out) if record["kind"] == "time"}
    jobs = [
        (name, depth, given.half, given.device, given.trials, tuple(range(given.seeds)), given.again)
        for depth in map(int, given.depths.split(","))
        for name in names
        if (name, depth) not in done
    ]
    if not given.ledger and given.csv is None:
        run_jobs(_unit, jobs, given.out, given.workers, given.limit)
    if given.csv is not None:
        given.csv.write_text(table(read_records(given.out)), encoding="utf-8")
    if text := settings_ledger(read_records(given.out)):
        print(text)


if __name__ == "__main__":
    main()
