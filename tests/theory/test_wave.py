import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.measures import dirichlet_energy
from graphjoule.nn import SGC, Wave, WaveConv
from graphjoule.ops import wave_start
from graphjoule.theory import wave_energies
from tests.graphs import edge_lists, few, normal, random_edges

EDGES = random_edges(12, 24, weighted=True)


def wave(num_layers, **options):
    torch.manual_seed(0)
    return Wave(5, 4, 3, num_layers, **options).double()


def test_without_damping_the_energy_is_conserved_to_1e_12_over_10000_layers():
    """Layer by layer, the energy every 500 layers by dense matrices."""
    graph, x0, conv = EDGES.graph64(), normal(12, 4), WaveConv(0.99, 0.0, 0.02)
    h, laplacian = conv.h(graph), torch.eye(12).double() - EDGES.dense()

    def total(x, v):
        pull, away = laplacian @ x, x - x0
        return float((v * v + x * pull + conv.mu * away**2 - h * v * (pull + conv.mu * away)).sum())

    x, v = x0, wave_start(x0, graph, h=h, delta=0.0)
    start = total(x, v)
    with torch.no_grad():
        for k in range(10_000):
            x, v = conv(x, v, x0, graph)
            assert k % 500 or abs(total(x, v) / start - 1) < 1e-12
    assert abs(total(x, v) / start - 1) < 1e-12
    assert not torch.allclose(x, x0)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"mu": 0.02}, {"mu": 0.0, "step": 0.999}, {"speeds": "spread"}], ids=str)
def test_the_energy_of_every_layer_of_10000_is_the_first(options):
    found = wave_energies(wave(10_000, delta=0.0, **options), normal(12, 5), EDGES.graph64())
    assert len(found.total) == 10_001
    assert found.drift < 1e-12
    assert set(found.lost) == {0.0}
    assert max(found.total) == pytest.approx(min(found.total), rel=1e-11)


@few
@given(
    edge_lists(),
    st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    st.sampled_from([0.0, 0.1, 2.0]),
    st.sampled_from([0.3, 0.95, 0.999]),
    st.sampled_from(["equal", "spread"]),
)
def test_no_layer_exceeds_its_limits_and_the_balance_is_exact(edges, delta, mu, step, speeds):
    model = wave(60, delta=delta, mu=mu, step=step, speeds=speeds)
    found = wave_energies(model, normal(edges.num_nodes, 5), edges.graph64())
    start = found.energy[0]
    assert found.drift < 1e-12
    assert max(found.norm) <= found.norm[0] * (1 + 1e-12) + 1e-14
    assert max(found.potential) <= start * (1 + 1e-12) + 1e-14
    assert all(low >= high - 1e-12 * start for high, low in zip(found.lost, found.lost[1:], strict=False))


def test_a_damped_wave_ends_at_its_limit_above_the_lower_bound():
    mu, graph, x = 0.3, EDGES.graph64(), normal(12, 5)
    model = wave(300, delta=0.2, mu=mu)
    found = wave_energies(model, x, graph)
    x0 = model.encoder(x).detach()
    limit = torch.linalg.solve((1 + mu) * torch.eye(12).double() - EDGES.dense(), mu * x0)
    torch.testing.assert_close(model.propagated(x0, graph), limit, rtol=1e-9, atol=1e-10)
    assert found.energy[-1] == pytest.approx(float(dirichlet_energy(limit, graph)), rel=1e-9)
    assert 0 < found.lower <= found.energy[-1] <= found.energy[0]


def test_energies_are_those_of_the_measure_and_the_model_keeps_its_mode():
    model, x = wave(3).train(), normal(12, 5)
    model.encoder.eval()
    found = wave_energies(model, x, EDGES.graph64())
    assert (model.training, model.encoder.training) == (True, False)
    x0 = model.eval().encoder(x).detach()
    assert found.energy[0] == pytest.approx(float(dirichlet_energy(x0, EDGES.graph64())))
    flat = wave_energies(model, torch.zeros(12, 5).double(), torch.empty(2, 0, dtype=torch.int64))
    assert flat.drift == 0.0


def test_energies_of_another_network_are_refused():
    with pytest.raises(GraphjouleError, match="SGC is not a Wave, and the balance of energies is about no other"):
        wave_energies(SGC(5, 4, 2, num_layers=2), normal(12, 5, dtype=torch.float32), EDGES.graph())
