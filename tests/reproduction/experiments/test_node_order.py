"""The same graph with its nodes in other orders."""

import json
import sys

import pytest
import torch

from graphjoule import load_task
from graphjoule.ops import propagate
from reproduction.experiments import node_order


@pytest.mark.parametrize("order", node_order.ORDERS)
def test_another_order_is_the_same_operator(order):
    graph = load_task("digits").graph
    nodes = node_order.orders(graph)[order]
    ordered = node_order.renumbered(graph, nodes)
    assert sorted(nodes.tolist()) == list(range(graph.num_nodes))
    x = torch.randn(graph.num_nodes, 3)
    torch.testing.assert_close(propagate(x[nodes.tolist()], ordered), propagate(x, graph)[nodes.tolist()])


def test_all_orders_are_measured_and_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(node_order, "GRAPHS", ("digits",))
    monkeypatch.setattr(sys, "argv", ["node_order", "--budget", "0", "--out", str(tmp_path / "order.json")])
    node_order.main()
    found = json.loads((tmp_path / "order.json").read_text())
    assert found["graphs"]["digits"]["as it is"]["faster"] == 1
    assert all(found["graphs"]["digits"][order]["ms"] > 0 for order in node_order.ORDERS)
