"""The campaign on embedded data: what it plans, that it stops and goes on, and what it packs."""

import json

import pytest

from graphjoule.studies import STUDIES, find_study, read_collection
from graphjoule.tasks import load_task
from reproduction import campaign

SEARCH = """
title = "Small"
datasets = ["digits"]
models = ["gcn"]
depths = [2]
[[block]]
settings = { hidden_channels = 4, epochs = 2, patience = 2, dropout = 0.0 }
[[sweep]]
component = "orthogonal penalty"
setting = "terms.orthogonal.gamma"
values = [0.1, 1]
[[variant]]
component = "constraint"
value = "one"
settings = { terms.energy.method = "penalty", terms.energy.c_min = 0.5 }
[protocol]
select_on = "accuracy"
"""
QUICK = {"hidden_channels": 4, "epochs": 2}


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Steps on embedded digits, and a search of three settings."""
    (tmp_path / "constraint-search.toml").write_text(SEARCH)
    study = find_study(str(tmp_path / "constraint-search.toml"))
    monkeypatch.setattr(campaign, "search_study", lambda: study)
    monkeypatch.setattr(campaign, "SEARCH_SEEDS", (10,))
    monkeypatch.setattr(campaign, "SEEDS", (0,))
    monkeypatch.setattr(
        campaign,
        "STEPS",
        (
            campaign.Step("table1", "table1", ["digits"], ["gcn"], [2], QUICK),
            campaign.Step("table1-again", "table1", ["digits"], ["gcn"], [2], QUICK),  # the same runs
        ),
    )
    campaign.load.cache_clear()
    campaign.load_without_test.cache_clear()
    return tmp_path / "out"


def test_it_stops_goes_on_and_packs_all_records_with_their_protocols(small, tmp_path):
    assert campaign.train(small, "cpu", lambda: True) == 3  # no time at all
    assert campaign.train(small, "cpu", lambda: False) == 0
    assert campaign.train(small, "cpu", lambda: False) == 0
    campaign.save(small, tmp_path / "done.tar.gz")
    with campaign.tarfile.open(tmp_path / "done.tar.gz") as archive:
        archive.extractall(tmp_path / "elsewhere", filter="data")
    assert not list((tmp_path / "elsewhere").rglob("*.safetensors"))
    assert campaign.train(tmp_path / "elsewhere", "cpu", lambda: True) == 0  # nothing is left there either
    searched = list(read_collection([small / "search"]))
    assert len(searched) == 3
    assert not any(record.test for record in searched)  # no test label is read by a search
    assert set(campaign.winners(small)) == {"constraint", "orthogonal penalty"}
    campaign.collect(small, tmp_path / "packed")
    packed = read_collection([tmp_path / "packed"])
    assert {record.protocol.partition(":")[0] for record in packed} == {"table1", "constraint-search"}
    assert len(list(packed)) == len(list(read_collection([small])))
    protocol = json.loads(next((tmp_path / "packed/protocols").glob("table1-*.protocol.json")).read_text())
    assert protocol["sha256"] == STUDIES["table1"].protocol.sha256


def test_the_best_setting_of_each_rival_stands_in_every_cell_of_the_study():
    best = {"constraint": campaign.Variant(settings={"terms.energy.c_min": 0.5})}
    free, held, penalty = STUDIES["constraint"].cells(["cora"], ["gcn"], [8])
    assert campaign._with_winner(free, best) == free
    assert campaign._with_winner(penalty, best) == penalty
    changed = campaign._with_winner(held, best)
    assert changed.variant.value == "constraint"
    assert changed.recipe.terms["energy"]["c_min"] == 0.5


def test_both_rivals_have_as_many_tries_and_the_plan_says_how_long(small, monkeypatch):
    search = find_study(str(campaign.SEARCH))
    tries = [cell.variant.component for cell in search.cells()]
    assert tries.count("constraint") == tries.count("orthogonal penalty") == 18
    monkeypatch.setattr(campaign, "earlier_records", lambda out: [])
    text = campaign.plan_text(small, "NVIDIA H200")
    assert text.startswith("4 runs are left; ")
    assert "- search: 3 runs, " in text
    assert "- table1: 1 runs, " in text
    assert "how long it takes is not known" in text
    assert load_task("digits").name == "digits"
