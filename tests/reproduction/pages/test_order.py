"""The order of the paper, and where it does not hold."""

from graphjoule.studies import STUDIES, Collection, make_ledger
from reproduction.pages import Results
from reproduction.pages.order import find_orders, says, says_collapse

from . import block, cells, runs, table1_runs


def orders(records, datasets=("cora",)):
    return find_orders(make_ledger(STUDIES["table1"], cells("table1", datasets), Collection(records)))


def test_the_order_of_the_paper_is_found_in_its_own_numbers():
    (order,) = orders(table1_runs(datasets=["cora"]))
    assert (order.paper[:2], order.ours[:2], order.num_layers) == (("egnn", "gcnii"), ("egnn", "gcnii"), 64)
    assert order.paper_collapsed == order.collapsed == ("gcn", "pairnorm", "dropedge", "sgc")
    assert says(order) == "yes: egnn is first by 0.30 (p 0.005); yes: gcnii is second by 5.90 (p < 0.001)"
    (arxiv,) = orders([], ["arxiv"])
    assert (arxiv.paper[:2], arxiv.paper_collapsed) == (("egnn", "jknet"), ())
    assert (says(arxiv), says_collapse(arxiv)) == ("not run", "not run")


def test_where_the_order_does_not_hold_it_says_so():
    def shift(cell):
        return {("gcnii", 64): 1.0, ("gcn", 64): 40.0}.get((cell.model, cell.num_layers), 0.0)

    (order,) = orders(table1_runs(shift, ["cora"]))
    assert says(order).startswith(
        "**no**: gcnii is first, not egnn by 0.70 (p < 0.001); **no**: egnn is second, not gcnii"
    )
    assert says_collapse(order) == "pairnorm, dropedge, sgc; **not** gcn"
    text = block("order", Results(Collection(table1_runs(shift, ["cora"]))))
    assert "| cora | 64 | egnn, gcnii | gcnii 86.40, egnn 85.70, appnp 79.50 | **no**" in text


def test_a_lead_within_the_spread_is_called_so_and_models_that_are_not_run_are_named():
    def of(model, mean):
        return [r for cell in cells("table1", ["cora"]) if cell.model == model for r in runs(cell, mean, 2.0)]

    (order,) = orders([*of("egnn", 85.2), *of("gcnii", 85.0), *of("jknet", 70.0)])
    assert "egnn is first by 0.20 (p 0.83" in says(order)
    assert ", not significantly)" in says(order)
    assert says(order).endswith("; without appnp, dropedge, gcn, pairnorm, sgc")
    assert says_collapse(order) == "not run: gcn, pairnorm, dropedge, sgc"
    (alone,) = orders(of("egnn", 85.0))
    assert says(alone) == "only egnn is run"
