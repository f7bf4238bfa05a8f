"""Facts with known answers, and that no label but a training node's is read."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.model_selection import LeaveOneOut, cross_val_predict

from graphjoule.graph import Propagation, SparseFeatures
from graphjoule.tasks import MultiLabel, Ordinal, Pooling, Regression, Split, Task
from graphjoule.tasks.objective import Classification
from graphjoule.tasks.profile import _RIDGES, _WIDTHS, STEPS, profile


def two_groups(homophily, signal, *, nodes=200, columns=5, seed=0):
    """Two classes; so many edges stay inside; features show the class through noise."""
    draw = np.random.RandomState(seed)
    labels = np.arange(nodes) % 2
    source = draw.randint(nodes, size=4 * nodes)
    is_inner = draw.rand(len(source)) < homophily
    target = 2 * draw.randint(nodes // 2, size=len(source)) + np.where(is_inner, labels[source], 1 - labels[source])
    x = draw.randn(nodes, columns) + signal * (2 * labels[:, None] - 1)
    graph = Propagation.from_edge_index(torch.tensor(np.stack([source, target])), num_nodes=nodes, symmetrize=True)
    features = torch.tensor(x).to(torch.get_default_dtype())
    return Task("groups", features, graph, torch.tensor(labels), Classification(2), default_split="stratified-20-20")


def measured(task):
    return profile(task, task.split(seed=0))


def test_averages_help_where_neighbours_are_alike_and_harm_where_edges_are_random():
    alike, random = measured(two_groups(0.95, 0.3)), measured(two_groups(0.5, 0.5))
    assert alike.best_steps >= 2
    assert alike.gain > 0.2
    assert random.best_steps == 0
    assert random.gain == 0
    assert alike.homophily > 0.9
    assert random.homophily == pytest.approx(0.5, abs=0.1)


def test_features_of_noise_explain_nothing_by_themselves_and_much_with_neighbours():
    found = measured(two_groups(0.97, 0.0, columns=40))
    assert found.explained[0] < 0.1
    assert found.explained[found.best_steps] > 0.3


def test_the_share_is_that_of_leaving_one_out():
    task = two_groups(0.8, 0.4, nodes=30)
    split = task.split(seed=0)
    dense = task.graph.to_dense().double()
    train = split.train
    y = torch.nn.functional.one_hot(task.targets[train], 2).double().numpy()
    for steps in (0, 2):
        x = (torch.linalg.matrix_power(dense, steps) @ task.features.double())[train].numpy()
        x = x - x.mean(axis=0)
        x = x / math.sqrt((x**2).sum() / len(x))
        # A column of ones that is shrunk like the others, as in the kernel.
        x = np.hstack([x, np.full((len(x), 1), len(x) ** -0.5)])
        centred = y - y.mean(axis=0)
        errors = [
            ((cross_val_predict(Ridge(ridge, fit_intercept=False), x, centred, cv=LeaveOneOut()) - centred) ** 2).sum()
            for ridge in _RIDGES
        ]
        expected = max(0.0, 1 - min(errors) / (centred**2).sum())
        assert profile(task, split).explained[steps] == pytest.approx(expected, abs=1e-4)


def test_nodes_with_similar_features_explain_what_no_straight_line_parts():
    task = two_groups(0.5, 0.0, nodes=300, columns=3)
    outer = (task.features.norm(dim=1) > 1.54).long()  # a ball and its surroundings, about as many in each
    curved = measured(replace(task, targets=outer))
    assert max(curved.explained.values()) < 0.1
    assert curved.explained_by_similar > 0.4
    assert "nodes with similar features, without the graph: " in "\n".join(curved.lines())
    assert measured(task).explained_by_similar < 0.1


def test_the_share_of_similar_nodes_is_that_of_leaving_one_out():
    task = two_groups(0.8, 0.4, nodes=30)
    split = task.split(seed=0)
    x = task.features[split.train].double()
    y = torch.nn.functional.one_hot(task.targets[split.train], 2).double()
    y = y - y.mean(dim=0)
    distances = torch.cdist(x, x) ** 2
    middle = np.eye(len(x)) - 1 / len(x)
    shares = []
    for width in _WIDTHS:
        kernel = middle @ np.exp(-distances.numpy() / (width * np.median(distances[distances > 0]))) @ middle
        kernel = kernel / (np.trace(kernel) / len(x)) + 1 / len(x)
        for ridge in _RIDGES:
            model = KernelRidge(alpha=ridge, kernel="precomputed")
            guess = cross_val_predict(model, kernel, y.numpy(), cv=LeaveOneOut())
            shares.append(1 - ((guess - y.numpy()) ** 2).sum() / float((y**2).sum()))
    assert profile(task, split).explained_by_similar == pytest.approx(max(0.0, *shares), abs=1e-4)


def test_only_labels_of_training_nodes_are_read():
    task = two_groups(0.9, 0.3)
    split = task.split(seed=0)
    hidden = torch.full_like(task.targets, -1)
    hidden[split.train] = task.targets[split.train]
    assert profile(replace(task, targets=hidden), split) == profile(task, split)


def test_sparse_features_have_the_facts_of_dense_ones():
    task = two_groups(0.9, 0.3)
    words = (task.features > 1).to(task.features.dtype)
    dense, sparse = (measured(replace(task, features=x)) for x in (words, SparseFeatures.from_dense(words)))
    assert dense.is_binary
    assert dense.density == pytest.approx(float(words.mean()))
    assert dense.explained == pytest.approx(sparse.explained, abs=1e-4)
    assert dense.explained_by_similar == pytest.approx(sparse.explained_by_similar, abs=1e-4)
    rest = {"explained": {}, "explained_by_similar": 0.0, "homophily": 0.0}
    assert replace(dense, **rest) == replace(sparse, **rest)


@pytest.mark.parametrize(
    ("objective", "targets"),
    [
        (Regression(), lambda labels, draw: labels + 0.1 * draw),
        (Regression(2), lambda labels, draw: torch.stack([labels + 0.1 * draw, draw], dim=1)),
        (Ordinal(2), lambda labels, draw: labels),
        (MultiLabel(2), lambda labels, draw: torch.stack([labels, 1 - labels], dim=1).float()),
    ],
)
def test_other_objectives_have_no_classes_and_are_measured(objective, targets):
    task = two_groups(0.9, 0.5)
    draw = torch.randn(task.num_nodes, generator=torch.Generator().manual_seed(0))
    found = measured(replace(task, objective=objective, targets=targets(task.targets, draw)))
    assert (found.num_classes, math.isnan(found.largest_share), math.isnan(found.homophily)) == (0, True, True)
    assert list(found.explained) == list(STEPS)
    assert found.best_steps > 0
    assert not any("classes" in line for line in found.lines())


def test_what_cannot_be_measured_is_not_invented():
    task = two_groups(0.9, 0.3, nodes=20)
    few = profile(task, Split("few", None, torch.tensor([0, 1]), torch.tensor([2]), torch.tensor([3])))
    assert (few.explained, few.best_steps, math.isnan(few.gain), math.isnan(few.homophily)) == ({}, None, True, True)
    same = measured(replace(task, features=torch.ones(20, 3)))
    assert (same.explained[0], same.explained_by_similar) == (0, 0)
    assert math.isnan(few.explained_by_similar)
    graphs = replace(
        task,
        pooling=Pooling(torch.arange(20) // 5),
        targets=torch.tensor([0, 1, 0, 1]),
        default_split="stratified-25-0",
    )
    assert measured(graphs).explained == {}
    assert measured(replace(graphs, targets=torch.rand(4), objective=Regression())).explained == {}


def test_the_graph_is_counted():
    path = Propagation.from_edge_index(torch.tensor([[0, 1, 3], [1, 2, 4]]), num_nodes=6, symmetrize=True)
    task = Task(
        "path", torch.eye(6), path, torch.tensor([0, 1] * 3), Classification(2), default_split="stratified-20-0"
    )
    found = measured(task)
    assert (found.num_components, found.degree, found.num_columns) == (3, 1.0, 6)
    assert "components: 3" in "\n".join(found.lines())


@pytest.mark.parametrize("is_sparse", [False, True])
def test_features_next_to_the_largest_float32_are_measured(is_sparse):
    task = two_groups(0.9, 0.5)
    features = task.features.abs().float() / task.features.abs().max() * 3.4e38
    small = replace(task, features=(features / 1e30))
    large = replace(task, features=SparseFeatures.from_dense(features) if is_sparse else features)
    found, expected = measured(large), measured(small)  # NumPy's warnings are errors here
    assert found.row_spread == pytest.approx(expected.row_spread, rel=1e-4)
    assert found.explained == pytest.approx(expected.explained, rel=1e-2)
    assert found.explained_by_similar == pytest.approx(expected.explained_by_similar, rel=1e-2)
