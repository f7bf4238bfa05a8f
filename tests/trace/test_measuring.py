from types import SimpleNamespace

import torch

from graphjoule.graph.laplacian import Laplacian
from graphjoule.measures import MEASURES
from graphjoule.measures.energy import dirichlet_energy
from graphjoule.trace.graphs import Measured
from graphjoule.trace.measuring import Waiting, energies_of_many, measure_features
from graphjoule.trace.operators import Operator
from tests.graph.test_laplacian import GRAPHS as LARGE
from tests.graph.test_laplacian import near_kernel, noise
from tests.graphs import normal, random_edges

GRAPH = random_edges().graph64()
SYMMETRIC = Operator("symmetric", GRAPH)
ALL = tuple(MEASURES.values())


def measured(x: torch.Tensor) -> Measured:
    return Measured(x, x, 9, SYMMETRIC, GRAPH)


def test_outputs_that_wait_have_the_numbers_of_each_by_itself():
    outputs = [normal(9, 3, seed=k) for k in range(3)] + [normal(9, 2), normal(4, 9, 2)]
    waiting, rows = Waiting(), [SimpleNamespace(values={}) for _ in outputs]
    for row, x in zip(rows, outputs, strict=True):
        waiting.add(row, x, measured(x), ALL)
    assert [len(row.values) for row in rows] == [len(ALL)] * 4 + [0]  # one of another shape ends the waiting
    waiting.measure(ALL)
    waiting.measure(ALL)  # again: nothing waits
    for row, x in zip(rows, outputs, strict=True):
        torch.testing.assert_close(row.values, measure_features(x, measured(x), ALL))


def test_outputs_wait_no_longer_than_there_is_room(monkeypatch):
    monkeypatch.setattr("graphjoule.trace.measuring._room", lambda device: 400)
    waiting, rows = Waiting(), [SimpleNamespace(values={}) for _ in range(3)]
    for row in rows:
        x = normal(9, 3)  # 216 bytes
        waiting.add(row, x, measured(x), ALL[:2])
    assert [bool(row.values) for row in rows] == [True, True, False]


def test_energies_of_many_are_those_of_each_however_smooth_they_are():
    graph = LARGE["four components"]
    outputs = torch.stack(
        [near_kernel(graph, share) for share in (10.0, 0.3, 0.1, 0.01, 1e-4, 0.0)] + [noise() * 1e-25]
    )
    expected = dirichlet_energy(outputs.double(), graph)
    torch.testing.assert_close(energies_of_many(outputs, graph), expected, rtol=2e-6, atol=0)
    runs = outputs.view(7, 1, *outputs.shape[1:])
    torch.testing.assert_close(energies_of_many(runs, graph), expected[:, None], rtol=2e-6, atol=0)
    small = outputs[:1, :, :2].contiguous()
    torch.testing.assert_close(energies_of_many(small, graph), dirichlet_energy(small, graph))


def test_energy_and_rayleigh_share_one_form(monkeypatch):
    forms, form = [], Laplacian.form
    monkeypatch.setattr(Laplacian, "form", lambda self, x, **more: (forms.append(1), form(self, x, **more))[1])
    x = normal(9, 3)
    values = measure_features(x, measured(x), [MEASURES[name] for name in ("energy", "norm", "rayleigh")])
    assert len(forms) == 1
    torch.testing.assert_close(values["rayleigh"], values["energy"] / values["norm"].square())
