"""Rank correlations of measures with accuracies, against SciPy and known answers."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from reproduction.pages.predictors import predictors, predictors_table


def runs_of(seed=0, count=40):
    random = np.random.default_rng(seed)
    found = []
    for k in range(count):
        accuracy = round(random.random(), 1)  # with ties
        values = {"right": accuracy**3, "wrong": -accuracy, "noise": random.random(), "same": 1.0}
        values["blown up"] = None if accuracy > 0.5 else accuracy
        found.append({"dataset": "ab"[k % 2], "test_accuracy": accuracy, "initial": values, "middle": values})
    return found


def test_correlations_are_scipys_within_each_graph():
    runs = runs_of()
    rows = {row.measure: row for row in predictors(runs, draws=50) if row.state == "initial"}
    assert rows["right"].value == pytest.approx(1)
    assert rows["wrong"].value == pytest.approx(-1)
    assert rows["same"].value == 0
    for name, blown in (("noise", 0.0), ("blown up", 9.0)):
        expected = []
        for dataset in "ab":
            here = [run for run in runs if run["dataset"] == dataset]
            values = [blown if run["initial"][name] is None else run["initial"][name] for run in here]
            expected.append(spearmanr(values, [run["test_accuracy"] for run in here]).statistic)
        assert rows[name].value == pytest.approx(np.mean(expected))
    assert rows["noise"].low < 0 < rows["noise"].high
    assert rows["blown up"].low > 0.5


def test_the_strongest_comes_first_and_the_same_records_give_the_same_table():
    lines = predictors_table(runs_of()).splitlines()
    assert lines[2:4] == [f"| `{name}` | {x} | {x} |" for name, x in (("right", ONE), ("wrong", MINUS_ONE))]
    assert lines[-1].startswith("| `same` | +0.00 (+0.00 to +0.00)")
    assert lines == predictors_table(runs_of()).splitlines()


ONE, MINUS_ONE = "+1.00 (+1.00 to +1.00)", "-1.00 (-1.00 to -1.00)"
