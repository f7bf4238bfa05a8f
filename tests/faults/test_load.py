"""Many at once: fifty threads that train and trace say what one says alone."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from graphjoule import Trace, fit
from tests.training import facts, small_recipe, small_task

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


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_trainings():
    from tests.faults.leak import slopes_of_fits

    limits = {"resident": 2000, "allocated": 200, "python_blocks": 1}
    for name, (slope, interval) in slopes_of_fits(300).items():
        assert slope - interval < limits[name], f"{name}: {slope:.1f} +- {interval:.1f} per training"
