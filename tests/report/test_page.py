import base64
import hashlib
import html
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from importlib import resources

import pytest
import torch

from graphjoule.cli.report import repeat_command
from graphjoule.errors import GraphjouleError
from graphjoule.report import AFTER, MOST_BYTES, Cell, Reference, report_page, write_report
from graphjoule.report.page import chosen_first, headline_cells
from graphjoule.tasks.facts import TaskFacts
from graphjoule.tasks.objective import Classification
from graphjoule.training.evaluation import Evaluation, PartEvaluation
from graphjoule.training.recipe import load_recipe
from tests.training.test_comparison import contender, judged, said, shares

from .cells import cell, examination, record
from .markup import Page
from .test_evaluation import evaluation

PAPER = Reference("paper", "Table 1 of Zhou et al.", "accuracy", {("cora", "egnn", 64): 85.7})
EVIL = "<script>alert(1)</script>\"'&"


@pytest.fixture(scope="module")
def text():
    """A report on three cells."""
    return report_page([cell(), cell("gcn"), cell(layers=8)], title="a study", reference=PAPER, command=repeat_command)


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def data_of(page):
    return json.loads(next(e["text"] for e in page.all("script", id="data")))


def test_the_page_is_whole_and_every_link_leads_to_a_part_of_it(page):
    ids = [e["id"] for e in page.elements if "id" in e]
    assert len(ids) == len(set(ids))
    assert {e["href"].removeprefix("#") for e in page.all("a")} <= set(ids)
    assert {"result", "scores", "energies", "training", "networks", "environment"} <= set(ids)
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
    assert "[hidden] { display: none !important; }" in CSS  # a class that sets `display` must not show them
    assert len([e for e in page.all("path") if e["class"].startswith("line s") and "figure" in e["inside"]]) == 2 * 5
    egnn, gcn, deeper = page.rows("lower limit")
    assert egnn[1] == ["0", "4", "8", "", ""]
    assert egnn[-1] == ["4", "2.62", "5.25", "1.17", "8"]  # 4 * 0.9^4, twice that, 0.2 * 8 * 0.9^3, 8
    assert gcn[-1] == ["4", "0.0004", "0.0008", "", ""]
    assert [row[0] for row in deeper[1:]] == [str(k) for k in range(9)]


def test_accuracies_stand_beside_those_of_the_paper():
    shown = Page(report_page([cell(layers=64)], title="t", reference=PAPER))
    assert shown.rows("paper, %") == [
        [
            [
                "dataset",
                "model",
                "layers",
                "test accuracy, %",
                "paper, %",
                "difference",
                "validation accuracy, %",
                "runs",
                "failed",
                "time",
            ],
            ["cora", "egnn", "64", "75.00 ± 0.00", "85.7", "-10.70", "80.00 ± 0.00", "2", "0", "3.0 s"],
        ]
    ]
    assert "Table 1 of Zhou" in next(e["text"] for e in shown.all("section", id="scores"))


@pytest.mark.parametrize("one", [cell(layers=64, overrides={"c_min": 0.4}), cell(layers=7)])
def test_another_experiment_than_the_papers_is_not_held_against_it(one):
    assert "paper, %" not in report_page([one], title="t", reference=PAPER)


def test_the_headline_is_chosen_by_validation_not_by_test():
    low, high = cell(), cell("gcn")
    low = replace(low, records=[record(low.recipe, val={"accuracy": 0.9}, test={"accuracy": 0.5})])
    high = replace(high, records=[record(high.recipe, val={"accuracy": 0.6}, test={"accuracy": 0.95})])
    result = next(e["text"] for e in Page(report_page([high, low], title="t")).all("section", id="result"))
    assert "50.00" in result
    assert "95.00" not in result


def test_the_diagnosis_is_told_in_words(page):
    details = page.all("details", id="cell-2")[0]["text"]
    assert "over-smoothing" in details
    assert "Try:" in details
    assert "healthy energy" in page.all("details", id="cell-1")[0]["text"]
    assert "Limits c_min = 0.2, c_max = 1: of 4 layers all within both limits." in page.all("details")[0]["text"]
    assert (
        "Reach: with weights near the identity a node sees what random walks of 2.75 steps"
        in page.all("details")[0]["text"]
    )


def test_few_cells_have_all_tables(text, page):
    assert "For want of room" not in text
    assert len(page.rows("setting")) == len(page.rows("seed")) == 3


def test_settings_have_sources_and_the_environment_is_told(page):
    assert ["model.c_min", "0.2", "paper"] in page.rows("setting")[0]
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
    assert first["curves"]["charts"][0]["lines"][0]["y"][0] == 1.995  # the mean of two seeds
    assert data["cells"][1]["limits"] is None


def test_text_from_data_is_text(tmp_path):
    facts = TaskFacts(
        name=EVIL, num_nodes=1, num_edges=0, num_features=1, num_labels=1, sha256="0" * 64,
        objective=Classification(2, (EVIL, "b")),
    )  # fmt: skip
    one = cell(dataset=EVIL)
    bad = record(one.recipe, 7, failure=EVIL, device=EVIL, versions={EVIL: EVIL}, val={})
    one = replace(one, records=[*one.records, bad], data=facts, place=EVIL, untraced=EVIL)
    text = report_page([one, replace(cell(dataset=EVIL, traced=False), untraced=EVIL)], title=EVIL)
    assert "<script>alert" not in text
    page = Page(text)
    assert len(page.all("script")) == 2
    assert page.all("h1")[0]["text"] == EVIL
    assert data_of(page)["cells"][0]["pick"]["dataset"] == EVIL
    assert f"classes: {EVIL}, b." in page.all("details", id="cell-1")[0]["text"]


def test_a_name_does_not_steer_a_terminal_that_shows_the_page():
    text = report_page([cell(dataset="\x1b[31mred")], title="\x1b[31mred \u202e")
    assert not {"\x1b", "\u202e"} & set(text)
    assert Page(text).all("h1")[0]["text"] == r"\x1b[31mred \u202e"


def test_a_comment_cannot_open_in_the_scripts_data():
    assert "<!--" not in report_page([cell(dataset="<!--<script>")], title="t").removeprefix("<!doctype html>")


def test_cells_of_one_kind_are_told_apart_by_what_differs():
    cells = [cell(overrides={"c_min": value}) for value in (0.3, 0.4)]
    page = Page(report_page(cells, title="t"))
    assert [one["pick"]["variant"] for one in data_of(page)["cells"]] == ["model.c_min=0.3", "model.c_min=0.4"]
    twins = [replace(cell(), place=name) for name in ("a", "b")]
    assert [one["pick"]["variant"] for one in data_of(Page(report_page(twins, title="t")))["cells"]] == ["a", "b"]


def odd_cells():
    one = cell(layers=1)
    failed = record(one.recipe, failure="the loss was no longer finite", val={}, test={}, epochs=0)
    failed = failed.model_copy(update={"selected_epoch": None})
    yield "all failed", replace(one, records=[failed], states={}, untraced="No run has finished.")
    yield "no test nodes", replace(one, records=[record(one.recipe, test={})])
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
    assert (
        report_page([cell(), cell("gcn"), cell(layers=8)], title="a study", reference=PAPER, command=repeat_command)
        == text
    )


def test_a_page_on_many_deep_and_long_runs_stays_small(monkeypatch):
    limit = MOST_BYTES // 7  # and 40 cells: a whole page has room for 280
    monkeypatch.setattr("graphjoule.report.page.MOST_BYTES", limit)
    deep = cell(layers=64, seeds=1)
    deep = replace(deep, records=[record(deep.recipe, epochs=600)])
    recipes = [load_recipe("egnn", "cora", 64 + k) for k in range(40)]
    text = report_page([replace(deep, recipe=recipe) for recipe in recipes], title="t")
    assert limit / 4 < len(text.encode()) <= limit
    page = Page(text)
    assert data_of(page)["cells"][39]["curves"]["x"][-1] == 599
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


def test_there_is_one_headline_per_dataset():
    cells = [cell(dataset="cora"), cell("gcn", dataset="cora"), cell(dataset="pubmed")]
    assert headline_cells(cells) == [cells[0], cells[2]]


def test_the_page_opens_with_a_cell_that_was_traced():
    cells = [cell(traced=False), cell("gcn")]
    assert chosen_first(cells, [cells[0]]) == 1
    assert chosen_first(cells[:1], cells[:1]) == 0


def test_a_cell_trained_before_its_recipe_changed_is_set_beside_no_reference():
    plain = cell(layers=64)
    old = replace(plain, recipe=plain.recipe.with_settings({"lr": 0.5}))
    assert PAPER.beside(old) == ("", "")
    assert PAPER.beside(plain) == ("85.7", "-10.70")
    assert replace(PAPER, metric="f1").beside(plain) == ("", "")


def test_scores_are_called_as_the_metrics_of_their_objective_are():
    """Two objectives side by side; the headline of a regression is no share."""
    one, other = cell(), cell("gcn", dataset="prices")
    fields = {"objective": "regression", "val": {"loss": 0.1, "r2": 0.5, "mae": 3.0}, "test": {"r2": -0.25, "mae": 4.0}}
    curve = {"val_r2": [-1.0, 0.5]}
    other = replace(other, records=[record(other.recipe, curve=curve, epochs_run=2, selected_epoch=1, **fields)])
    page = Page(report_page([one, other], title="t", reference=PAPER))
    heads = [f"{part} {name}" for name in ("accuracy, %", "r2", "mae") for part in ("test", "validation")]
    assert page.rows(heads[0])[0][0][3:6] == [*heads[:2], "runs"]
    table = page.rows(heads[2])[0]
    assert table[0][3:8] == [*heads[2:], "runs"]  # nobody has a number for rmse
    assert table[1][3:7] == ["-0.25", "0.5", "4", "3"]
    assert page.all("h2", id="scores-title")[0]["text"] == "Scores"
    assert "Test r2, 1 run." in page.all("section", id="result")[0]["text"]
    chart = data_of(page)["cells"][1]["curves"]["charts"][1]
    assert (chart["yLabel"], chart["lines"][0]["label"], chart["lines"][0]["y"]) == (
        "r2",
        "validation r2",
        [-1.0, 0.5],
    )
    assert page.rows("seed")[1][0][4:6] == ["validation r2", "test r2"]


def test_only_runs_that_were_asked_the_same_are_compared():
    """Of one dataset a regression, two classifications, and one that another metric selects: three results."""
    plain, worse = cell(), cell("gcn")
    worse = replace(worse, records=[record(worse.recipe, val={"accuracy": 0.5}, test={"accuracy": 0.9})])
    recipe = load_recipe("sgc", "cora", 4)
    numbers = Cell(recipe, [record(recipe, objective="regression", val={"r2": 0.99}, test={"r2": 0.99}, curve={})])
    ranked = load_recipe("egnn", "cora", 4, {"select_on": "roc_auc"})
    ranked = Cell(ranked, [record(ranked, val={"roc_auc": 0.95, "accuracy": 0.99}, test={}, curve={})])
    cells = [plain, worse, numbers, ranked]
    assert [one is other for one, other in zip(headline_cells(cells), [plain, numbers, ranked], strict=True)] == [
        True
    ] * 3
    page = Page(report_page(cells, title="t"))
    titles = [found["text"] for found in page.all("h3") if found.get("id", "").startswith("scores-")]
    assert titles == ["Classification, by accuracy", "Regression, by r2", "Classification, by roc auc"]
    assert [row[1] for row in page.rows("test accuracy, %")[0][1:]] == ["egnn", "gcn"]
    scores = page.all("section", id="scores")[0]["text"]
    assert "because their scores cannot be compared" in scores
    assert "because their scores cannot be compared" not in report_page([plain, worse], title="t")


# In a real browser; skipped where there is none.

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: `apt-get install chromium` or the like")

# What a reader does, one step after another; each step tells what the page shows then.
READER = """
<script>
const steps = {}, one = (name) => document.querySelector(name);
const lines = (id) => document.querySelectorAll(`#${id} .canvas path.line`).length;
const bands = () => document.querySelectorAll("#energy .canvas .band").length;
const told = (id) => one(`#${id} output`).textContent;
const ticks = () => [...document.querySelectorAll("#energy .canvas text.end")].map((text) => text.textContent);
const change = (control) => control.dispatchEvent(new Event("change", { bubbles: true }));
const choose = (field, value) => { const s = one(`[data-pick=${field}] select`); s.value = value; change(s); };
const press = (value) => one(`input[value=${value}]`).click();
const pickers = () => [...document.querySelectorAll("#controls label[data-pick]")];
const shown = () => pickers().filter((label) => !label.hidden).map((label) => label.dataset.pick);
try {
  steps.start = { form: one("#controls").hidden, shown: shown(), lines: lines("energy"), told: told("energy") };
  press("linear");
  steps.linear = ticks();
  press("log");
  steps.log = ticks();
  press("states");
  steps.states = { lines: lines("energy"), title: one("#energy figcaption").textContent, told: told("energy") };
  const slider = one("#energy input[type=range]");
  slider.value = 1;
  slider.dispatchEvent(new Event("input"));
  steps.slider = { told: told("energy"), says: slider.getAttribute("aria-valuetext") };
  const box = one("#energy .canvas svg").getBoundingClientRect();
  const place = { clientX: box.right - 12, clientY: box.top + 50 };
  one("#energy .canvas svg").dispatchEvent(new PointerEvent("pointermove", place));
  steps.hover = { told: told("energy"), dots: document.querySelectorAll("#energy circle").length };
  choose("layers", "8");
  steps.deeper = { told: told("energy"), model: one("[data-pick=model] select").value, loss: told("loss") };
  choose("model", "sgc");
  steps.untraced = { energy: one("#energy").hidden, why: one("#untraced").textContent, loss: told("loss") };
  choose("model", "gcn");
  steps.gcn = { layers: one("[data-pick=layers] select").value, told: told("energy"), bands: bands() };
  const plane = one(".plane"), bar = plane.querySelector("input");
  const read = () => plane.querySelector("output").textContent;
  const dots = () => [...plane.querySelectorAll(".canvas path")].map((path) => path.getAttribute("d")).join();
  const move = (layer) => { bar.value = layer; bar.dispatchEvent(new Event("input")); return dots(); };
  const last = dots(), first = move(0);
  const says = bar.getAttribute("aria-valuetext");
  steps.plane = { shown: !bar.parentElement.hidden, max: bar.max, said: read(), says };
  steps.dots = { moved: first !== last, many: first.split("M").length - 1, back: move(2) === last, said: read() };
  location.hash = "#cell-3";
  window.dispatchEvent(new Event("hashchange"));
  steps.opened = one("#cell-3").open;
  steps.wide = document.documentElement.scrollWidth <= window.innerWidth;
} catch (error) { steps.error = String(error); }
parent.postMessage(JSON.stringify(steps), "*");
</script>
"""
# No window is as narrow as a phone, a frame is.
FRAME = """<!doctype html><pre id="steps"></pre>
<script>addEventListener("message", (event) => { document.getElementById("steps").textContent = event.data; });</script>
<iframe src="page.html" width="WIDTH" height="900"></iframe>
"""


def browse(path, folder, *options):
    """What a browser makes of a page, and what it complained about."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *options]
    logging = ["--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=2000"]
    done = subprocess.run([CHROMIUM, *options, *logging, "--dump-dom", path.as_uri()], capture_output=True, timeout=120)
    complaints = [line for line in done.stderr.decode().splitlines() if "CONSOLE" in line]
    return done.stdout.decode(), complaints


@pytest.fixture(scope="module")
def read_text():
    reason = "The data <are> gone."
    seen = cell(evaluation=evaluation())
    cells = [seen, cell("gcn"), cell(layers=8), cell("sgc", layers=8, traced=False, untraced=reason)]
    return report_page(cells, title="<script>alert(1)</script>")


@in_browser
def test_the_page_as_it_is_opens_without_a_complaint(read_text, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(read_text)
    dom, complaints = browse(path, tmp_path)
    assert complaints == []
    assert '<form id="controls" aria-label' in dom  # no longer hidden: the policy let the script run
    assert 'class="static"' not in dom  # every picture is the script's own
    assert "layer 4: egnn 5.25; gcn 8.00e-4; limits of egnn 1.17 to 8" in dom


@in_browser
@pytest.mark.parametrize("width", [1200, 390])
def test_controls_do_what_they_say(read_text, tmp_path, width):
    without_policy = re.sub(r"<meta http-equiv=[^>]*>", "", read_text)  # it would not let the reader in
    (tmp_path / "page.html").write_text(without_policy.replace("</body>", READER + "</body>"))
    (tmp_path / "frame.html").write_text(FRAME.replace("WIDTH", str(width)))
    dom, complaints = browse(tmp_path / "frame.html", tmp_path, "--window-size=1300,1000")
    assert complaints == []
    steps = json.loads(html.unescape(re.search(r'<pre id="steps">(.*?)</pre>', dom)[1]))
    assert "error" not in steps, steps["error"]
    assert steps["start"] == {
        "form": False,
        "shown": ["model", "layers"],  # one dataset, one setting: nothing to choose
        "lines": 2,
        "told": "layer 4: egnn 5.25; gcn 8.00e-4; limits of egnn 1.17 to 8",
    }
    assert steps["linear"] == ["0", "2", "4", "6", "8"]
    assert steps["log"] == ["0.001", "0.01", "0.1", "1", "10"]
    assert steps["states"] == {
        "lines": 2,
        "title": "Energy of every layer: egnn, 4 layers, cora",
        "told": "layer 4: at initialisation 2.62; after training 5.25; limits of egnn 1.17 to 8",
    }
    first = "layer 1: at initialisation 3.6; after training 7.2; limits of egnn 1.6 to 8"
    assert steps["slider"] == {"told": first, "says": "layer 1"}
    assert steps["hover"] == {"told": steps["states"]["told"], "dots": 2}
    assert steps["deeper"]["told"].startswith("layer 8: at initialisation 1.72; after training 3.44;")
    assert (steps["deeper"]["model"], steps["deeper"]["loss"]) == (
        "egnn",
        "epoch 4: training loss 1.59; validation loss 1.7",
    )
    assert steps["untraced"]["energy"] is True
    assert steps["untraced"]["why"] == "The data <are> gone."
    assert steps["gcn"] == {
        "layers": "4",
        "told": "layer 4: at initialisation 4.00e-4; after training 8.00e-4",
        "bands": 0,
    }
    words = "layer 0, the encoder: 50 % of its variance lies in this plane; the typical distance from the mean is 3"
    assert steps["plane"] == {"shown": True, "max": "2", "said": words, "says": words}
    assert (steps["dots"]["moved"], steps["dots"]["many"], steps["dots"]["back"]) == (True, 200, True)
    assert steps["dots"]["said"].startswith("layer 2: 70 %")
    assert steps["opened"] is True
    assert steps["wide"] is True  # nothing sticks out sideways


# Colours that can be told from their ground, in light, dark and print.

CSS = (resources.files("graphjoule.report") / "templates" / "report.css").read_text()
LIGHT, DARK, PRINT = (
    dict(re.findall(r"--(\w+): (#[0-9a-f]{6})(?![0-9a-f])", block))
    for block in re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
)


def luminance(colour):
    """Relative luminance as WCAG defines it."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK, PRINT], ids=["light", "dark", "print"])
@pytest.mark.parametrize("ground", ["paper", "raised"])
def test_text_and_lines_stand_out(theme, ground):
    for name in ("ink", "quiet", "link", "good", "bad"):
        assert contrast(theme[name], theme[ground]) >= 4.5, name  # WCAG AA for text
    for name in (f"s{k}" for k in range(8)):
        assert contrast(theme[name], theme[ground]) >= 3, name  # and for graphics


def test_no_two_lines_look_alike():
    looks = re.findall(r"\.s\d \{ stroke: (.*?); (?:stroke-dasharray: (.*?); )?\}", CSS)
    assert len(looks) == len({dash for _, dash in looks}) == 8


def test_motion_is_only_for_those_who_want_it():
    without = re.sub(r"@media \(prefers-reduced-motion: no-preference\) \{.*?\} \}", "", CSS)
    assert not re.search(r"transition|animation|scroll-behavior", without)


def test_numbers_at_the_edge_of_what_a_float_holds_make_a_page():
    recipe = load_recipe("egnn", "cora", 4)
    edges = {
        "objective": "regression",
        "val": {"r2": -1e308, "mae": 1e308, "rmse": 1e308},
        "test": {"r2": -1e308, "mae": 1e-320},
        "curve": {"train_loss": [1e308, -1e308], "val_loss": [1e308, 1e-320], "val_r2": [-1e308, 1.0]},
        "epochs_run": 2**62,
        "selected_epoch": 2**62,
    }
    page = report_page([cell(traced=False, records=[record(recipe, seed, **edges) for seed in (0, 1)])], title="edges")
    assert "2 runs" in page


def test_what_the_graph_is_worth_and_classes_that_are_missed_stand_at_the_top():
    pets, target = Classification(2), torch.arange(400) % 2
    parts = [[said(pets, right, target)] for right in shares(400, 0.6, 0.9)]
    rivals = [contender("plain", parts[0]), contender("<b>deep</b>", parts[1], graph=True, layers=8)]
    found = judged(rivals, pets, notes=["Something was left out."])
    counts = torch.tensor([[7, 0], [9, 0], [8, 2], [10] * 2])
    part = PartEvaluation(10, torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), torch.zeros(0), counts)
    evaluation = Evaluation(0, "loss", 0.5, pets, parts={"val": part})
    page = Page(report_page([cell(evaluation=evaluation, comparison=found)], title="t"))
    (section,) = page.all("section", id="worth")
    assert all(sentence in section["text"] for sentence in (*found.sentences(), *found.notes))
    assert "<b>deep</b> ← use this" in section["text"]
    (result,) = page.all("section", id="result")
    assert "Never predicted: class 1. 2 of the validation nodes have it" in result["text"]
    assert not Page(report_page([cell()], title="t")).all("section", id="worth")
