import base64
import hashlib
import json
import math
import re
from dataclasses import replace

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.report import AFTER, MOST_BYTES, Cell, paper_table, report_page, write_report
from graphjoule.report.cell import variants
from graphjoule.tasks.facts import TaskFacts
from graphjoule.training.recipe import Recipe

from .cells import cell, examination, record
from .markup import Page

EVIL = "<script>alert(1)</script>\"'&"


@pytest.fixture(scope="module")
def text():
    """A report on three cells."""
    return report_page([cell(), cell("gcn"), cell(layers=8)], title="a study", paper=paper_table())


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def data_of(page):
    return json.loads(next(e["text"] for e in page.all("script", id="data")))


def test_the_page_is_whole_and_every_link_leads_to_a_part_of_it(page):
    ids = [e["id"] for e in page.elements if "id" in e]
    assert len(ids) == len(set(ids))
    assert {e["href"].removeprefix("#") for e in page.all("a")} <= set(ids)
    assert {"result", "accuracy", "energies", "training", "networks", "environment"} <= set(ids)
    assert [e["lang"] for e in page.all("html")] == ["en"]


def test_nothing_is_loaded_from_anywhere(text, page):
    assert not any(key in e for e in page.elements for key in ("src", "srcset", "action", "data"))
    assert not page.all("link")
    assert "@import" not in text
    assert "url(" not in text
    assert re.findall(r"https?://[^\"' ]+", text) == ["http://www.w3.org/2000/svg"]  # a name, never fetched


def test_the_policy_lets_run_what_the_page_came_with_and_nothing_else(page):
    policy = next(e["content"] for e in page.elements if e.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    script = next(e["text"] for e in page.all("script") if "id" not in e)
    for inline in (script, page.all("style")[0]["text"]):
        assert base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode() in policy
    assert not any("style" in e or any(key.startswith("on") for key in e) for e in page.elements)  # it would block them


def test_pictures_have_words_and_controls_have_labels(page):
    pictures = [e for e in page.all("svg") if e.get("aria-hidden") != "true"]
    assert len(pictures) == 3
    assert all(e["role"] == "img" and e["aria-label"] for e in pictures)
    controls = page.all("select") + page.all("input")
    assert len(controls) == 4 + 4 + 3
    assert all("label" in e["inside"] for e in controls)
    assert all(e["scope"] in ("col", "row") for e in page.all("th"))


def test_without_a_script_there_are_pictures_and_tables_and_no_dead_controls(page):
    assert "hidden" in page.all("form")[0]
    assert all("hidden" in e for e in page.all("div", **{"class": "reading"}))
    assert len([e for e in page.all("path") if e["class"].startswith("line s") and "figure" in e["inside"]]) == 2 * 5
    egnn, gcn, deeper = page.rows("lower limit")
    assert egnn[1] == ["0", "4", "8", "", ""]
    assert egnn[-1] == ["4", "2.62", "5.25", "1.17", "8"]  # 4 * 0.9^4, twice that, 0.2 * 8 * 0.9^3, 8
    assert gcn[-1] == ["4", "0.0004", "0.0008", "", ""]
    assert [row[0] for row in deeper[1:]] == [str(k) for k in range(9)]


def test_accuracies_stand_beside_those_of_the_paper():
    shown = Page(report_page([cell(layers=64)], title="t", paper={("cora", "egnn", 64): 85.7}))
    assert shown.rows("paper, %") == [
        [
            [
                "dataset",
                "model",
                "layers",
                "test, %",
                "paper, %",
                "difference",
                "validation, %",
                "runs",
                "failed",
                "time",
            ],
            ["cora", "egnn", "64", "75.00 ± 0.00", "85.7", "-10.70", "80.00 ± 0.00", "2", "0", "3.0 s"],
        ]
    ]
    assert "Table 1 of Zhou" in next(e["text"] for e in shown.all("section", id="accuracy"))


@pytest.mark.parametrize("one", [cell(layers=64, overrides={"c_min": 0.4}), cell(layers=7)])
def test_another_experiment_than_the_papers_is_not_held_against_it(one):
    assert "paper, %" not in report_page([one], title="t", paper=paper_table())


def test_the_headline_is_chosen_by_validation_not_by_test():
    low, high = cell(), cell("gcn")
    low = replace(low, records=[record(low.recipe, val_accuracy=0.9, test_accuracy=0.5)])
    high = replace(high, records=[record(high.recipe, val_accuracy=0.6, test_accuracy=0.95)])
    result = next(e["text"] for e in Page(report_page([high, low], title="t")).all("section", id="result"))
    assert "50.00" in result
    assert "95.00" not in result


def test_the_diagnosis_is_told_in_words(page):
    details = page.all("details", id="cell-2")[0]["text"]
    assert "over-smoothing" in details
    assert "Try:" in details
    assert "healthy" in page.all("details", id="cell-1")[0]["text"]
    assert "Limits c_min = 0.2, c_max = 1: of 4 layers all within both limits." in page.all("details")[0]["text"]


def test_few_cells_have_all_tables(text, page):
    assert "For want of room" not in text
    assert len(page.rows("setting")) == len(page.rows("seed")) == 3


def test_settings_have_sources_and_the_environment_is_told(page):
    assert ["c_min", "0.2", "paper"] in page.rows("setting")[0]
    environment = page.all("section", id="environment")[0]["text"]
    assert "6 runs on cpu (1 thread), the last recorded 2026-01-02T03:04:05+00:00: graphjoule 0.1" in environment
    assert "graphjoule train --dataset cora --model egnn --layers 4 --seeds 2" in [e["text"] for e in page.all("pre")]


def test_the_scripts_data_are_the_cells(page):
    data = data_of(page)
    assert [one["pick"] for one in data["cells"]] == [
        {"dataset": "cora", "model": model, "layers": layers, "variant": ""}
        for model, layers in (("egnn", 4), ("gcn", 4), ("egnn", 8))
    ]
    first = data["cells"][0]
    assert first["states"][1] == {"label": AFTER, "first": 0, "y": [8.0, 7.2, 6.48, 5.832, 5.249]}
    assert first["limits"]["upper"] == 8.0
    assert first["limits"]["lower"] == [1.6, 1.44, 1.296, 1.166]
    assert first["curves"]["x"] == [0, 1, 2, 3, 4]
    assert first["curves"]["train_loss"][0] == 1.995  # the mean of two seeds
    assert data["cells"][1]["limits"] is None


def test_text_from_data_is_text(tmp_path):
    facts = TaskFacts(
        name=EVIL, num_nodes=1, num_edges=0, num_features=1, num_classes=2, num_labels=1, class_names=(EVIL, "b"),
        sha256="0" * 64,
    )  # fmt: skip
    one = cell(dataset=EVIL)
    bad = record(one.recipe, 7, failure=EVIL, device=EVIL, versions={EVIL: EVIL}, val_accuracy=None)
    one = replace(one, records=[*one.records, bad], data=facts, place=EVIL, untraced=EVIL)
    text = report_page([one, replace(cell(dataset=EVIL, traced=False), untraced=EVIL)], title=EVIL)
    assert "<script>alert" not in text
    page = Page(text)
    assert len(page.all("script")) == 2
    assert page.all("h1")[0]["text"] == EVIL
    assert data_of(page)["cells"][0]["pick"]["dataset"] == EVIL
    assert f"classes: {EVIL}, b." in page.all("details", id="cell-1")[0]["text"]


def test_a_comment_cannot_open_in_the_scripts_data():
    assert "<!--" not in report_page([cell(dataset="<!--<script>")], title="t").removeprefix("<!doctype html>")


def test_cells_of_one_kind_are_told_apart_by_what_differs():
    cells = [cell(overrides={"c_min": value}) for value in (0.3, 0.4)]
    page = Page(report_page(cells, title="t"))
    assert [one["pick"]["variant"] for one in data_of(page)["cells"]] == ["c_min=0.3", "c_min=0.4"]
    twins = [replace(cell(), place=name) for name in ("a", "b")]
    assert [one["pick"]["variant"] for one in data_of(Page(report_page(twins, title="t")))["cells"]] == ["a", "b"]


def test_telling_many_cells_apart_looks_at_each_a_few_times(monkeypatch):
    cells = [cell(overrides={"lr": 0.001 * number}, traced=False) for number in range(1, 41)]
    looks, settings = [], Recipe.settings
    monkeypatch.setattr(Recipe, "settings", lambda recipe: looks.append(recipe) or settings(recipe))
    assert variants(cells)[:2] == ["lr=0.001", "lr=0.002"]
    assert len(looks) <= 3 * len(cells)


def odd_cells():
    one = cell(layers=1)
    failed = record(
        one.recipe, failure="the loss was no longer finite", val_accuracy=None, test_accuracy=None, epochs=0
    )
    failed = failed.model_copy(update={"selected_epoch": None})
    yield "all failed", replace(one, records=[failed], states={}, untraced="No run has finished.")
    yield "no test nodes", replace(one, records=[record(one.recipe, test_accuracy=None)])
    yield "no energy left", replace(one, states={AFTER: examination([0.0, 0.0])})
    yield "not finite", replace(one, states={AFTER: examination([1.0, math.nan, math.inf])})
    yield "one row", replace(one, states={AFTER: examination([1.0], first="convs.0")})
    yield "a curve of nulls", replace(one, records=[record(one.recipe, curve={"train_loss": [None] * 5})])
    yield "an old record", replace(one, records=[record(one.recipe, curve={})])


@pytest.mark.parametrize(("_", "one"), [pytest.param(*pair, id=pair[0]) for pair in odd_cells()])
def test_odd_runs_have_a_page(_, one):
    text = report_page([one], title="t")
    page = Page(text)
    assert "NaN" not in text.replace("isNaN", "")
    assert data_of(page)["cells"][0]["pick"]["layers"] == 1
    result = page.all("section", id="result")[0]["text"]
    assert ("No run finished, 1 failed" in result) == (_ == "all failed")
    assert ("no test nodes" in result) == (_ == "no test nodes")


def test_the_same_cells_give_the_same_bytes(text):
    assert report_page([cell(), cell("gcn"), cell(layers=8)], title="a study", paper=paper_table()) == text


def test_a_page_on_many_deep_and_long_runs_stays_small():
    deep = cell(layers=64, seeds=1)
    deep = replace(deep, records=[record(deep.recipe, epochs=600)])
    recipes = [deep.recipe.model_copy(update={"num_layers": 64 + k}) for k in range(280)]
    text = report_page([replace(deep, recipe=recipe) for recipe in recipes], title="t")
    assert MOST_BYTES / 4 < len(text.encode()) <= MOST_BYTES
    page = Page(text)
    assert data_of(page)["cells"][279]["curves"]["x"][-1] == 599
    assert "For want of room" in page.all("section", id="networks")[0]["text"]


def test_a_page_that_cannot_be_small_is_refused(monkeypatch):
    monkeypatch.setattr("graphjoule.report.page.MOST_BYTES", 10_000)
    with pytest.raises(GraphjouleError, match=r"A report on 1 cells? would weigh [\d,]+ bytes, more than the 10,000"):
        report_page([cell()], title="t")


def test_a_report_on_nothing_is_refused():
    with pytest.raises(GraphjouleError, match="nothing to report on"):
        report_page([], title="t")


def test_a_report_replaces_a_report_and_no_other_file(tmp_path, text):
    path = tmp_path / "report.html"
    write_report(path, text)
    write_report(path, text)
    assert path.read_text() == text
    path.write_text("mine")
    with pytest.raises(GraphjouleError, match=r"is no report of graphjoule's; name another file"):
        write_report(path, text)
    assert path.read_text() == "mine"
    with pytest.raises(GraphjouleError, match="is a folder"):
        write_report(tmp_path, text)


def test_a_cell_is_named_by_its_recipe():
    assert Cell(cell().recipe, []).name == "egnn, 4 layers, cora"
