"""Made-up cells: what trainings and traces would give, without either."""

from graphjoule.report import AFTER, BEFORE, Cell
from graphjoule.theory import StepLaw
from graphjoule.trace import LayerTrace, RecordedTrace
from graphjoule.trace.diagnosis import diagnose
from graphjoule.trace.limits import limits
from graphjoule.training.examine import Examination
from graphjoule.training.recipe import load_recipe
from graphjoule.training.records import Record


def record(recipe, seed=0, *, epochs=5, **fields):
    """A run that is done, with curves that tell seeds and epochs apart."""
    curve = {
        "train_loss": [2.0 - 0.1 * epoch - 0.01 * seed for epoch in range(epochs)],
        "val_loss": [2.1 - 0.1 * epoch for epoch in range(epochs)],
        "val_accuracy": [min(1.0, 0.1 * epoch) for epoch in range(epochs)],
    }
    measured = {
        "val": {"loss": 1.0, "accuracy": 0.8},
        "test": {"accuracy": 0.75},
        "curve": curve,
        "epochs_run": epochs,
        "selected_epoch": epochs - 1,
        "device": "cpu (1 thread)",
        "runs_at_once": 1,
        "seconds": 1.5,
        "created": "2026-01-02T03:04:05+00:00",
        "versions": {"graphjoule": "0.1", "torch": "2.13"},
    }
    return Record.of(recipe, seed=seed, split_sha256="0" * 64, **measured | fields)


def examination(energies, c_min=None, first="encoder"):
    """The trace of these energies, judged as `examine` does."""
    names = [first, *(f"convs.{k}" for k in range(len(energies) - 1))]
    rows = [
        LayerTrace(name, {"energy": energy, "norm": 1.0, "effective_rank": 4.0}, channels=8)
        for name, energy in zip(names, energies, strict=True)
    ]
    trace = RecordedTrace(rows, ["energy", "norm", "effective_rank"])
    diagnosis = diagnose(trace) if len(rows) > 1 else None
    if c_min is None:
        return Examination(trace, diagnosis, None)
    law = StepLaw(c_min, min(0.1, c_min), max(1, len(energies) - 1))
    return Examination(trace, diagnosis, limits(trace, c_min, 1.0), law=law)


def cell(model="egnn", dataset="cora", layers=4, overrides=None, *, seeds=2, traced=True, **fields):
    """A cell; an EGNN keeps its energy, any other loses nine tenths with every layer."""
    recipe = load_recipe(model, dataset, layers, overrides or {})
    factor = 0.9 if model == "egnn" else 0.1
    energies = [4.0 * factor**k for k in range(layers + 1)]
    c_min = 0.2 if model == "egnn" else None
    states = {BEFORE: examination(energies[:], c_min), AFTER: examination([2 * e for e in energies], c_min)}
    given = {"records": [record(recipe, seed) for seed in range(seeds)], "seed": 0 if traced else None}
    return Cell(recipe, **{"states": states if traced else {}, **given, **fields})
