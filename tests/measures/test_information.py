"""Distances of classes and information about inputs, against sums over all pairs."""

import math

import pytest
import torch

from graphjoule import Trace
from graphjoule.errors import GraphjouleError
from graphjoule.measures import DATA_MEASURES, Measure, group_distance_ratio, instance_information_gain
from tests.graphs import normal, random_edges

LABELS = torch.tensor([0, 2, 0, 2, 5, 5, 0, -1, 2])
X, INPUTS = normal(9, 3), normal(9, 4, seed=1)


def test_the_ratio_is_that_of_sums_over_pairs():
    groups = [[i for i in range(9) if LABELS[i] == c] for c in (0, 2, 5)]

    def mean(a, b):
        return sum(float((X[i] - X[j]).norm()) for i in a for j in b) / (len(a) * len(b))

    across = sum(mean(a, b) for a in groups for b in groups if a is not b) / 4
    within = sum(mean(a, a) for a in groups) / 3
    assert float(group_distance_ratio(X, LABELS)) == pytest.approx(across / within, rel=1e-12)
    assert float(group_distance_ratio(torch.zeros(9, 3), LABELS)) == 1
    assert float(group_distance_ratio(1e-9 * X, LABELS)) == pytest.approx(across / within, rel=1e-6)


@pytest.mark.parametrize("num_nodes", [9, 80])
def test_the_information_is_that_of_sums_over_pairs(num_nodes):
    x, inputs = normal(num_nodes, 3), normal(num_nodes, 4, seed=1)

    def kernel(x, i, j):
        return math.exp(-float((x[i] - x[j]).square().sum() / (1.0 * x.square().sum(dim=1).mean())))

    total, nodes = 0.0, range(num_nodes)
    for i in nodes:
        a, b = ([kernel(z, i, j) for j in nodes] for z in (inputs, x))
        joint = sum(p * q for p, q in zip(a, b, strict=True))
        total += math.log(num_nodes * joint / (sum(a) * sum(b)))
    assert float(instance_information_gain(x, inputs)) == pytest.approx(total / num_nodes, rel=1e-9)
    assert float(instance_information_gain(7 * x, inputs)) == pytest.approx(total / num_nodes, rel=1e-9)
    assert float(instance_information_gain(torch.ones(num_nodes, 2), inputs)) == pytest.approx(0, abs=1e-12)
    assert float(instance_information_gain(torch.zeros(num_nodes, 2), inputs)) == pytest.approx(0, abs=1e-12)


def test_it_is_the_papers_sum_with_kernel_densities_and_their_entropies():
    x, inputs, m = normal(30, 2), normal(30, 3, seed=1), 30

    def log_density(z, variance):  # of a mixture of Gaussians at each of its centres
        squares = torch.cdist(z, z).square()
        constant = 0.5 * z.size(1) * math.log(2 * math.pi * variance)
        return torch.logsumexp(-squares / (2 * variance), dim=1) - math.log(m) - constant

    v, w = (0.5 * float(z.square().sum(dim=1).mean()) for z in (inputs, x))
    joint = torch.cat([inputs * math.sqrt(w / v), x], dim=1)  # one variance for both, and its volume beside it
    log_joint = log_density(joint, w) + 0.5 * inputs.size(1) * math.log(w / v)
    expected = (log_joint - log_density(inputs, v) - log_density(x, w)).mean()
    assert float(instance_information_gain(x, inputs)) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("rho", [0.0, 0.6, 0.9])
def test_of_correlated_gaussians_it_is_the_closed_form(rho):
    """E log p(z, x) / (p(z) p(x)), where the kernels' variance 1/2 is added to the variance 1 of both."""
    noise = normal(2000, 2, seed=3)
    noise = torch.linalg.qr(noise - noise.mean(dim=0)).Q * math.sqrt(2000)  # of no correlation and variance 1
    z = noise[:, :1]
    x = rho * z + math.sqrt(1 - rho**2) * noise[:, 1:]
    wide = 1.5
    determinant = wide**2 - rho**2
    expected = -0.5 * math.log(determinant / wide**2) - (wide - rho**2) / determinant + 1 / wide
    assert float(instance_information_gain(x, z)) == pytest.approx(expected, abs=0.01)


def test_features_that_know_the_inputs_have_more_information_than_those_that_do_not():
    inputs = normal(60, 4)
    known, unknown = (
        float(instance_information_gain(x, inputs)) for x in (inputs @ normal(4, 4), normal(60, 4, seed=9))
    )
    assert known > 2 * unknown


@pytest.mark.parametrize("name", DATA_MEASURES)
def test_they_are_differentiable_take_runs_and_a_trace_records_them(name):
    measure = DATA_MEASURES[name](LABELS if name == "group_distance_ratio" else INPUTS)
    assert isinstance(measure, Measure)
    assert measure.name == name
    graph, x = random_edges(9, 14).graph64(), normal(2, 9, 3).requires_grad_()
    values = measure.function(x, graph)
    assert (values.shape, values.dtype) == ((2,), torch.float64)
    torch.testing.assert_close(values, torch.stack([measure.function(run, graph) for run in x]))
    assert torch.autograd.gradcheck(lambda x: measure.function(x, graph), x)
    model = torch.nn.Linear(3, 3).double()
    with torch.no_grad(), Trace(model, graph, measures=[measure]) as trace:
        out = model(X)
    assert trace.layers[0].values[name] == pytest.approx(float(measure.function(out, graph)))


def test_a_sample_is_drawn_where_there_are_many_nodes():
    x, labels = normal(400, 3), torch.arange(400) % 3
    some, every = (float(group_distance_ratio(x, labels, num_nodes=n)) for n in (200, 400))
    assert some != every
    assert some == pytest.approx(every, rel=0.05)


def test_what_does_not_fit_is_refused():
    with pytest.raises(GraphjouleError, match=r"shape \[8\], torch.int64; expected one whole number for each of the 9"):
        group_distance_ratio(X, LABELS[:8])
    with pytest.raises(GraphjouleError, match="The labels have one class"):
        group_distance_ratio(X, torch.zeros(9, dtype=torch.long))
    with pytest.raises(GraphjouleError, match=r"The inputs have shape \[3, 4\]; expected \[9, in_channels\]"):
        instance_information_gain(X, INPUTS[:3])
