"""Many at once: fifty threads that train and trace say what one says alone; many records, many trainings."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from graphjoule import Trace, fit
from graphjoule.report import read_cells, report_page
from tests.training import facts, small_recipe, small_task

ROOT = Path(__file__).parents[2]
KINDS = ("egnn", "gcn", "appnp")


def trained_and_traced(number: int) -> tuple[dict, dict, list[float]]:
    """What a record, the weights and a trace of one training say, to the bit."""
    task = small_task()
    result = fit(small_recipe(KINDS[number % len(KINDS)], epochs=3), task, [number % 2])
    model = result.models[0]
    with Trace(model, task.graph) as trace, torch.no_grad():
        model(task.features, task.graph)
    state = {name: value.tolist() for name, value in model.state_dict().items()}
    return facts(result.records[0]), state, [row.energy for row in trace.layers]


def test_fifty_threads_train_and_trace_as_one():
    alone = [trained_and_traced(number) for number in range(6)]  # all kinds with all seeds
    with ThreadPoolExecutor(50) as pool:
        together = list(pool.map(trained_and_traced, range(50)))
    for number, found in enumerate(together):
        assert found == alone[number % 6], number


def test_a_report_on_thousands_of_records_takes_seconds(tmp_path):
    from tests.faults.million import write_records

    write_records(tmp_path / "records.jsonl", 4000)  # 100,000 took 214 s when it was found
    begin = time.process_time()
    cells = read_cells(tmp_path, lambda runs: None, trace=False)
    assert "4,000" in report_page(cells, title="many")
    assert time.process_time() - begin < 4


def test_every_finding_has_tests_that_are_there():
    page = (ROOT / "docs" / "reliability.md").read_text()
    places = re.findall(r"`([\w/]+\.py)::(test_\w+)`", page)
    assert len(places) > 40
    for path, name in places:
        assert f"def {name}(" in (ROOT / "tests" / path).read_text(), f"{path}::{name}"


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_trainings():
    from tests.faults.leak import slopes_of_fits

    limits = {"resident": 2000, "allocated": 200, "python_blocks": 1}
    for name, (slope, interval) in slopes_of_fits(300).items():
        assert slope - interval < limits[name], f"{name}: {slope:.1f} +- {interval:.1f} per training"
