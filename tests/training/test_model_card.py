import re
from dataclasses import replace
from functools import partial

import torch
import torch_geometric.nn as pyg

from graphjoule.fitting import fit
from graphjoule.tasks.objective import Classification
from graphjoule.tasks.tables import load_tables
from graphjoule.training.folder import RunFolder
from graphjoule.training.model_card import model_card
from graphjoule.training.records import Record, read_records
from tests.training import small_recipe, small_regression, small_task


def test_the_card_says_what_was_trained_on_what_with_which_result(tmp_path):
    task = small_task()
    result = fit(small_recipe(), task, [0, 3], out=tmp_path / "run")
    card = (tmp_path / "run" / "MODEL_CARD.md").read_text()
    summary = result.summary
    assert card.startswith("# egnn, 2 layers, trained on small\n")
    assert f"Test accuracy {100 * summary.test_mean:.2f} ± {100 * summary.test_std:.2f} %" in card
    assert f"validation accuracy {100 * summary.val_mean:.2f}" in card
    assert "30 nodes" in card
    assert task.facts().sha256 in card
    for record in result.records:
        assert f"| {record.seed} | done | {record.selected_epoch} | {record.epochs_run} |" in card
    assert "| `model.c_min` | `0.2` | default |" in card
    assert "| `train.epochs` | `5` | override |" in card
    assert "`graphjoule predict THIS_FOLDER` writes" in card
    assert "another graph" not in card
    assert "Split: `public`" in card
    assert "\n\n\n" not in card


def test_the_code_on_the_card_runs(tmp_path):
    fit(small_recipe(), small_task(), [5], out=tmp_path / "run")
    card = (tmp_path / "run" / "MODEL_CARD.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    code = code.replace("THIS_FOLDER", str(tmp_path / "run")).replace('device="cuda"', 'device="cpu"')
    code = code.replace("from graphjoule import load", "from graphjoule.fitting import load")
    names = {}
    exec(code, names)
    assert names["model"].num_layers == 2


def test_own_files_are_named_with_their_hashes_columns_and_numbers(tmp_path):
    (tmp_path / "n.csv").write_text("id,x,city,label\n" + "".join(f"{i},{i},{'ab'[i % 2]},{i % 2}\n" for i in range(8)))
    (tmp_path / "e.csv").write_text("source,target,weight\n0,1,2\n")
    task = load_tables(tmp_path / "n.csv", tmp_path / "e.csv", one_hot=["city"])
    result = fit(small_recipe(split="default"), task, out=tmp_path / "run")
    card = (tmp_path / "run" / "MODEL_CARD.md").read_text()
    assert task.source.file("edges").sha256 in card
    assert "| `x` | 3.5 | 2.29129 |" in card
    assert "- `city`, one-hot: 2 categories" in card
    assert "an edge joins `source` and `target`, weighted by `weight`" in card
    assert "No node was held back to test." in card
    assert "`graphjoule predict THIS_FOLDER` writes" in card
    assert "or of another graph with the same columns." in card
    neighbours = load_tables(tmp_path / "n.csv", features=["x"], knn=2)
    text = model_card(small_recipe(), result.records, neighbours.facts())
    assert "every node is linked with its 2 nearest in the features" in text


def test_the_input_columns_are_listed_in_the_order_of_the_model_and_not_of_the_table(tmp_path):
    rows = [f"{i},{'ab'[i % 2]},{'' if i == 3 else i},{2.5 * i},{i % 2}\n" for i in range(8)]
    (tmp_path / "n.csv").write_text("id,city,x,y,label\n" + "".join(rows))
    task = load_tables(tmp_path / "n.csv", knn=2, one_hot=["city"])
    card = model_card(small_recipe(), [], task.facts())
    assert (
        "\n\nThe model's 5 input columns, in this order: `x`, `y`, `city=a`, `city=b`, `x missing`.\n\n## Runs" in card
    )
    assert task.features[:, 1].argsort().tolist() == list(range(8))
    assert task.features[:, 3].tolist() == [0, 1] * 4
    assert task.features[:, 4].bool().tolist() == [i == 3 for i in range(8)]


def test_failed_runs_and_folders_that_say_little_have_a_card_too(tmp_path):
    fit(small_recipe(lr=1e30), small_task(), [0], out=tmp_path / "run")
    assert "No run finished: 1 failed." in (tmp_path / "run" / "MODEL_CARD.md").read_text()
    records = list(read_records(tmp_path / "run" / "records.jsonl"))
    assert "The dataset `small`." in model_card(small_recipe(), records, None)


def test_a_bar_in_a_name_does_not_break_the_table(tmp_path):
    (tmp_path / "a|b.csv").write_text("x|y,label\n" + "".join(f"{i},{i % 2}\n" for i in range(8)))
    task = load_tables(tmp_path / "a|b.csv")
    text = model_card(small_recipe(), [], task.facts())
    assert "<code>a&#124;b.csv</code>" in text
    assert "| <code>x&#124;y</code> | 3.5 |" in text


def test_a_card_of_a_regression_speaks_of_its_metric(tmp_path):
    task = small_regression(num_targets=2)
    result = fit(small_recipe("gcn"), task, [0, 1], out=tmp_path / "run")
    card = (tmp_path / "run" / "MODEL_CARD.md").read_text()
    summary, r2 = result.summary, result.summary.metric
    assert f"Test r2 {r2.text(summary.test_mean, summary.test_std)}, validation r2" in card
    assert "29 nodes with 2 known targets." in card
    assert f"| {r2.text(result.records[0].val_score)} | {r2.text(result.records[0].test_score)} |" in card
    assert "Predictions are the mean over the runs." in card
    assert "accuracy" not in card
    assert "softmax" not in card


NASTY = "a`b|c <b>*d*</b>\n# e"


def test_names_from_anywhere_stay_names():
    task = replace(small_task(), name=NASTY, objective=Classification(3, (NASTY, "_x_", "[y](z)")))
    recipe = small_recipe().model_copy(update={"data": small_recipe().data.model_copy(update={"name": NASTY})})
    card = model_card(recipe, [], task.facts())
    assert card.startswith(r"# egnn, 2 layers, trained on a\`b\|c \<b\>\*d\*\</b\> \# e" + "\n")
    quoted = "<code>a&#96;b&#124;c &#60;b&#62;&#42;d&#42;&#60;/b&#62; &#35; e</code>"
    assert f": {quoted}, `_x_`, `[y](z)`." in card
    assert f"| `data.name` | {quoted} | chosen |" in card
    assert "\n# e" not in card


def test_a_name_makes_no_link_no_entity_no_cell_and_steers_no_terminal():
    name = "&lt;b&gt; https://evil.example www.evil.example me@evil.example \x1b[31m \u202egnp.exe caf\udce9"
    recipe = small_recipe().model_copy(update={"data": small_recipe().data.model_copy(update={"name": name})})
    task = replace(small_task(), objective=Classification(3, ("a\\|b", "https://evil.example", "")))
    record = Record.of(
        recipe, seed=0, split_sha256="", device="cpu", runs_at_once=1, seconds=1.0, curve={}, epochs_run=1,
        val={"accuracy": 0.5}, versions={"<script>": "|1|"},
    )  # fmt: skip
    card = model_card(recipe, [record], task.facts())
    heading = r"\&lt;b\&gt; https\://evil.example www\.evil.example me\@evil.example \x1b\[31m \u202egnp.exe caf\udce9"
    assert card.splitlines()[0] == f"# egnn, 2 layers, trained on {heading}".replace("\\x", "\\\\x").replace(
        "\\u", "\\\\u"
    )
    assert "<code>a&#92;&#124;b</code>, `https://evil.example`, <code></code>." in card
    assert r" \<script\> \|1\|." in card
    assert "\x1b" not in card
    card.encode()


def test_a_card_of_a_model_of_ones_own_says_how_to_load_it(tmp_path):
    network = partial(pyg.GraphSAGE, hidden_channels=4, num_layers=2)
    fit(network, small_task(), [3], settings={"epochs": 2}, out=tmp_path / "run")
    card = (tmp_path / "run" / "MODEL_CARD.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    names = {"new": network(in_channels=7, out_channels=3)}
    exec(code.replace("THIS_FOLDER", str(tmp_path / "run")), names)
    assert names["model"] is names["new"]
    assert "graphjoule predict" not in card


def test_classes_that_are_missed_are_a_warning_on_the_card(tmp_path):
    result = fit(small_recipe(), small_task(), out=tmp_path / "run")
    found = RunFolder(tmp_path / "run").evaluation()
    number = found.parts["test"].counts.size(1)
    counts = torch.zeros(4, number, dtype=torch.long)
    counts[2:] = 5
    missed = replace(found, parts={"test": replace(found.parts["test"], counts=counts)})
    card = model_card(small_recipe(), result.records, None, evaluation=missed)
    assert f"**Warning:** Never predicted\\: {number} classes, " in card
    assert "\n\n\n" not in card
