"""Energies, measures and traces of a graph in parts: every rank has the numbers of the whole graph."""

import pytest
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.graph import exact_propagation
from graphjoule.measures import MEASURES
from graphjoule.measures.energy import (
    combinatorial_energy,
    component_energies,
    dirichlet_energy,
    kernel_distance,
    rayleigh_quotient,
)
from graphjoule.parallel import load_part, write_partition
from graphjoule.parallel.group import ALONE
from graphjoule.trace import Trace
from graphjoule.training.build import build_model

from .tasks import ring_task, small_recipe

IN_PARTS = sorted(MEASURES.keys() - {"mad"})


def features(num_nodes: int) -> torch.Tensor:
    return torch.randn(2, num_nodes, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 3


def measured(x, graph):
    return {name: MEASURES[name].function(x, graph) for name in IN_PARTS}


def part_measured(group, folder):
    task = load_part(folder, group.rank, group)
    return measured(features(task.whole.num_nodes)[:, task.nodes], task.graph)


@pytest.mark.parametrize("size", [2, 3])
def test_measures_are_those_of_the_whole_graph(world, tmp_path, size):
    task = ring_task()
    write_partition(task, size, tmp_path, "blocks")
    expected = measured(features(task.num_nodes), task.graph)
    for values in world.run(part_measured, size, str(tmp_path)):
        for name in IN_PARTS:
            torch.testing.assert_close(values[name], expected[name], rtol=1e-10, atol=1e-12, msg=name)


def gradients(x, graph, part=slice(None)):
    """Of a sum of energies to which every process adds its own share, as processes share a loss."""
    x = x[:, part].requires_grad_(True)
    share = 1 / getattr(graph, "group", ALONE).size
    total = (
        dirichlet_energy(x, graph)
        + combinatorial_energy(x, graph)
        + rayleigh_quotient(x, graph)
        + kernel_distance(x, graph, relative=True)
    )
    (gradient,) = torch.autograd.grad(share * total.sum(), x)
    return gradient


def part_gradients(group, folder):
    task = load_part(folder, group.rank, group)
    return gradients(features(task.whole.num_nodes), task.graph, task.nodes)


def test_gradients_of_energies_are_those_of_the_whole_graph(world, tmp_path):
    task = ring_task()
    write_partition(task, 3, tmp_path, "blocks")
    expected = gradients(features(task.num_nodes), task.graph)
    parts = world.run(part_gradients, 3, str(tmp_path))
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=1e-10, atol=1e-10)


def traced(task, recipe):
    model = build_model(recipe, task, 0)
    trace = Trace.of(model, task.graph, (task.features, task.graph))
    return [(layer.name, layer.values) for layer in trace.layers]


def part_traced(group, folder, recipe):
    return traced(load_part(folder, group.rank, group), recipe)


@pytest.mark.parametrize("model", ["egnn", "pairnorm"])
def test_a_trace_has_the_rows_of_one_process(world, tmp_path, model):
    task, recipe = ring_task(), small_recipe(model, 4)
    write_partition(task, 2, tmp_path, "blocks")
    expected = traced(task, recipe)
    for rows in world.run(part_traced, 2, str(tmp_path), recipe):
        assert [name for name, _ in rows] == [name for name, _ in expected]
        for (_, values), (_, others) in zip(rows, expected, strict=True):
            assert values == pytest.approx(others, rel=1e-5)


def refusals(group, folder):
    task = load_part(folder, group.rank, group)
    x = torch.ones(task.graph.num_nodes, 2)
    said = []
    for refused in (
        lambda: MEASURES["mad"].function(x, task.graph),
        lambda: component_energies(x, task.graph),
        lambda: exact_propagation(task.graph),
        lambda: Trace(torch.nn.Identity(), task.graph, gradients=True),
    ):
        with pytest.raises(GraphjouleError) as error:
            refused()
        said.append(str(error.value))
    return said


def test_what_cannot_be_had_in_parts_says_so(world, tmp_path):
    write_partition(ring_task(), 2, tmp_path, "blocks")
    for mad, components, theory, gradient in world.run(refusals, 2, str(tmp_path)):
        assert "may lie between two processes" in mad
        assert "or measure in one process" in components
        assert theory.startswith("This needs the whole graph in one process, but the graph is in 2 parts")
        assert gradient.startswith("A trace with `gradients=True` needs the whole graph in one process")
