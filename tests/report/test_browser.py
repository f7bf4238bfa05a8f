"""The page in a real browser; skipped where there is none."""

import html
import json
import re
import shutil
import subprocess

import pytest

from graphjoule.report import report_page

from .cells import cell

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: `apt-get install chromium` or the like")

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
def text():
    reason = "The data <are> gone."
    cells = [cell(), cell("gcn"), cell(layers=8), cell("sgc", layers=8, traced=False, untraced=reason)]
    return report_page(cells, title="<script>alert(1)</script>")


def test_the_page_as_it_is_opens_without_a_complaint(text, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(text)
    dom, complaints = browse(path, tmp_path)
    assert complaints == []
    assert '<form id="controls" aria-label' in dom  # no longer hidden: the policy let the script run
    assert 'class="static"' not in dom  # every picture is the script's own
    assert "layer 4: egnn 5.25; gcn 8.00e-4; limits of egnn 1.17 to 8" in dom


@pytest.mark.parametrize("width", [1200, 390])
def test_controls_do_what_they_say(text, tmp_path, width):
    without_policy = re.sub(r"<meta http-equiv=[^>]*>", "", text)  # it would not let the reader in
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
    assert steps["opened"] is True
    assert steps["wide"] is True  # nothing sticks out sideways
