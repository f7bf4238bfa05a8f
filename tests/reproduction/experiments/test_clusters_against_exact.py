"""The other operator that training on clusters is compared with."""

import torch

from graphjoule.fitting import fit
from graphjoule.graph import Propagation
from reproduction.experiments import clusters_against_exact as benchmark
from tests.graphs import random_edges
from tests.training import small_recipe, small_task


def test_its_operator_has_the_degrees_inside_the_group():
    edges = random_edges(40, 200, weighted=True)
    nodes = torch.arange(0, 40, 3)
    part = benchmark.renormalised_graph(edges.graph64(), nodes)
    looped = edges.adjacency()[nodes][:, nodes].double() + torch.eye(len(nodes))
    scale = looped.sum(dim=1).rsqrt()
    torch.testing.assert_close(part.to_dense(), scale[:, None] * looped * scale, rtol=1e-12, atol=1e-12)
    assert (part.degree < edges.graph64().degree[nodes] - 1e-3).any()


def test_it_is_there_for_the_other_side_alone_and_test_labels_are_not_recorded(monkeypatch):
    seen = []

    def train(task, given, settings):
        seen.append(Propagation.induced)
        records = fit(small_recipe("gcn", epochs=2, **settings), task, [0], device="cpu").records
        return {"test_accuracy": [0.5], "val_loss": [record.val["loss"] for record in records]}

    monkeypatch.setattr(benchmark, "train", train)
    given = type("Given", (), {"against": "renormalised"})()
    record = benchmark.compare(small_task(), given, {"train.clusters.parts": 6, "train.clusters.method": "blocks"})
    assert seen == [benchmark.renormalised_graph, Propagation.induced]
    assert record["renormalised"]["val_loss"] != record["clusters"]["val_loss"]
    assert set(record["clusters"]) == set(record["renormalised"]) == {"val_loss"}
