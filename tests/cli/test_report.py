import gzip
import json
import re
import shlex
import shutil
import webbrowser
from dataclasses import replace

import pytest

from graphjoule.cli.report import paper_table, repeat_command
from graphjoule.studies import Cell
from graphjoule.tasks.encoders import CategoryColumn, NumberColumn, TableColumns
from graphjoule.tasks.facts import Source, SourceFile, TaskFacts
from graphjoule.tasks.objective import Classification, Regression
from graphjoule.training.records import read_records
from tests.report.cells import cell, record
from tests.studies import energy_record

from . import TINY, run


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two small trainings, side by side in one folder."""
    folder = tmp_path_factory.mktemp("study")
    assert run("train", *TINY, "--seeds", "3,7", "--out", folder / "a/egnn").code == 0
    assert run("train", *TINY, "--model", "gcn", "--out", folder / "gcn").code == 0
    return folder


def data_of(path):
    text = path.read_text()
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text)[1])


def test_a_run_folder_becomes_a_page_in_it(study):
    result = run("report", study / "a/egnn", "--device", "cpu")
    path = study / "a/egnn/report.html"
    assert (result.code, result.out, result.err) == (0, f"report: {path}\n", "")
    (told,) = data_of(path)["cells"]
    traced = json.loads(run("trace", study / "a/egnn", "--device", "cpu", "--json").out)["states"]
    for state in told["states"]:
        rows = [row for row in traced[state["label"]]["layers"] if re.match(r"encoder$|convs", row["name"])]
        assert state["y"] == pytest.approx([row["energy"] for row in rows], rel=1e-3)
    records = list(read_records(study / "a/egnn/records.jsonl"))
    mean = sum(record.curve["val_loss"][1] for record in records) / 2
    losses = told["curves"]["charts"][0]["lines"]
    assert losses[1]["y"][1] == pytest.approx(mean, rel=1e-3)
    path.unlink()


def test_a_folder_of_runs_becomes_one_page(study, tmp_path):
    out = tmp_path / "page.html"
    result = run("report", study, "--out", out, "--device", "cpu")
    assert (result.code, result.out) == (0, f"report: {out}\n")
    assert result.err == "traced 1 of 2 networks\ntraced 2 of 2 networks\n"
    cells = data_of(out)["cells"]
    assert [(one["pick"]["model"], len(one["states"])) for one in cells] == [("egnn", 2), ("gcn", 2)]
    assert [state["first"] for state in cells[1]["states"]] == [1, 1]  # a GCN has no encoder


def test_the_command_on_the_page_repeats_the_training(study, tmp_path):
    out = tmp_path / "page.html"
    assert run("report", study / "a/egnn", "--no-energy", "--out", out).code == 0
    assert "Tracing was switched off." in out.read_text()
    (command,) = re.findall(r"<pre[^>]*>(graphjoule train .*?)</pre>", out.read_text())
    again = tmp_path / "again"
    assert run(*shlex.split(command)[1:], "--device", "cpu", "--out", again).code == 0
    first, second = (list(read_records(folder / "records.jsonl")) for folder in (study / "a/egnn", again))
    assert [record.run_id for record in second] == [record.run_id for record in first]
    assert [record.test_score for record in second] == [record.test_score for record in first]


def test_records_alone_are_enough(study, tmp_path):
    shutil.copy(study / "a/egnn/records.jsonl", tmp_path / "some.jsonl")
    energies = energy_record(Cell("egnn", "digits", 2)).model_dump_json() + "\n"
    (tmp_path / "energies.jsonl.gz").write_bytes(gzip.compress(energies.encode()))  # no records of runs: passed over
    result = run("report", tmp_path)
    assert (result.code, result.err) == (0, "")
    text = (tmp_path / "report.html").read_text()
    assert "There are records of these runs but no models" in text
    (told,) = data_of(tmp_path / "report.html")["cells"]
    assert told["states"] == []
    assert len(told["curves"]["x"]) == 2


def test_links_count_no_run_twice_and_loops_end(study, tmp_path):
    root, out = tmp_path / "above/runs", tmp_path / "page.html"
    root.mkdir(parents=True)
    shutil.copytree(study / "gcn", root / "b/gcn")
    shutil.copytree(study / "gcn", tmp_path / "above/other")  # reached by a link to the folder above alone
    (root / "a").mkdir()
    (root / "a/latest").symlink_to(root / "b/gcn")
    (root / "elsewhere").symlink_to(study / "a")
    for name in ("loop", "again"):
        (root / "b" / name).symlink_to(root)
    (root / "up").symlink_to(root.parent)
    assert run("report", root, "--no-energy", "--out", out).code == 0
    assert [one["pick"]["model"] for one in data_of(out)["cells"]] == ["egnn", "gcn"]
    assert "b/gcn" in out.read_text()
    assert "a/latest" not in out.read_text()


def test_a_file_of_records_counts_once_through_links(study, tmp_path):
    shutil.copy(study / "a/egnn/records.jsonl", tmp_path / "some.jsonl")
    (tmp_path / "first.jsonl").symlink_to(tmp_path / "some.jsonl")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert run("report", tmp_path).code == 0
    assert len(data_of(tmp_path / "report.html")["cells"]) == 1
    assert "some.jsonl" in (tmp_path / "report.html").read_text()


def test_a_line_that_is_no_record_is_left_out_and_named(study, tmp_path):
    lines = (study / "a/egnn/records.jsonl").read_text().splitlines()
    nested, other = "[" * 100_000 + "]" * 100_000, json.loads(lines[1]) | {"recipe": {}, "run_id": "other"}
    (tmp_path / "some.jsonl").write_text("\n".join([nested, lines[0], json.dumps(other)]) + "\n")
    with pytest.warns(UserWarning, match="left out") as caught:
        assert run("report", tmp_path).code == 0
    first, second = (str(warning.message) for warning in caught)
    assert first == f"{tmp_path / 'some.jsonl'}, line 1 is not a whole record and is left out."
    assert second.startswith(f"{tmp_path / 'some.jsonl'}: the run other is left out. This is not a recipe")
    (told,) = data_of(tmp_path / "report.html")["cells"]
    assert len(told["curves"]["x"]) == 2


def test_own_files_that_changed_are_no_obstacle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"{k},{k % 7},{k % 2},{'ab'[k % 2]}" for k in range(20)]
    (tmp_path / "nodes.csv").write_text("\n".join(["id,x,y,label", *lines]) + "\n")
    (tmp_path / "edges.csv").write_text("source,target\n" + "".join(f"{k},{k + 2}\n" for k in range(18)))
    assert run("train", "--nodes", "nodes.csv", "--edges", "edges.csv", *TINY, "--no-worth", "--out", "run").code == 0
    assert run("report", "run").code == 0
    assert len(data_of(tmp_path / "run/report.html")["cells"][0]["states"]) == 2
    (command,) = re.findall(r"<pre[^>]*>graphjoule (train .*?)</pre>", (tmp_path / "run/report.html").read_text())
    assert run(*shlex.split(command), "--device", "cpu", "--out", "again").code == 0
    ids = [[record.run_id for record in read_records(f"{folder}/records.jsonl")] for folder in ("run", "again")]
    assert ids[0] == ids[1]
    (tmp_path / "nodes.csv").write_text((tmp_path / "nodes.csv").read_text() + "20,1,1,a\n")
    assert run("report", "run").code == 0
    (told,) = data_of(tmp_path / "run/report.html")["cells"]
    assert told["states"] == []
    assert "nodes.csv" in told["untraced"]


def test_a_browser_is_shown_the_page_where_there_is_one(study, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(webbrowser, "open", lambda address: shown.append(address) or True)
    out = tmp_path / "page.html"
    assert run("report", study / "gcn", "--no-energy", "--out", out, "--open").code == 0
    assert shown == [out.as_uri()]
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    result = run("report", study / "gcn", "--no-energy", "--out", out, "--open")
    assert (result.code, result.err) == (2, f"graphjoule: No browser could be started; open {out} yourself.\n")


def test_a_page_says_how_far_a_network_sees_where_that_is_asked_for(study, tmp_path):
    path = tmp_path / "reach.html"
    assert run("report", study / "a/egnn", "--reach", "--device", "cpu", "--out", path).code == 0
    told = run("trace", study / "a/egnn", "--reach", "--device", "cpu").out
    words = [line for line in told.splitlines() if line.startswith("Reach of ")][-1]  # after training
    assert f"{words} By the closed law, " in path.read_text()
    result = run("report", study / "a/egnn", "--reach", "--no-energy")
    assert (result.code, result.err) == (
        2,
        "graphjoule: --reach measures networks, and --no-energy says not to; leave out one of them.\n",
    )


def test_what_cannot_be_reported_on_is_refused_in_a_sentence(tmp_path, study):
    missing = run("report", tmp_path / "nowhere")
    assert (missing.code, missing.out) == (2, "")
    assert missing.err.startswith(f"graphjoule: There is no folder {tmp_path / 'nowhere'}; expected one that")
    empty = run("report", tmp_path)
    assert empty.code == 2
    assert f"{tmp_path} holds no record of a run" in empty.err
    out = run("report", study / "gcn", "--out", tmp_path / "no/page.html")
    assert (out.code, "there is no folder" in out.err) == (2, True)
    (tmp_path / "mine.html").write_text("mine")
    taken = run("report", study / "gcn", "--no-energy", "--out", tmp_path / "mine.html")
    assert (taken.code, (tmp_path / "mine.html").read_text()) == (2, "mine")
    assert "is no report of graphjoule's" in taken.err


def test_a_run_without_a_finished_seed_says_so(study, tmp_path):
    shutil.copytree(study / "gcn", tmp_path / "run")
    record = next(read_records(tmp_path / "run/records.jsonl"))
    failed = record.model_copy(update={"status": "failed", "failure": "epoch 1: <b>", "val": {}})
    (tmp_path / "run/records.jsonl").write_text(failed.model_dump_json() + "\n")
    assert run("report", tmp_path / "run").code == 0
    text = (tmp_path / "run/report.html").read_text()
    assert "No run has finished, so there is no trained network to look at." in text
    assert "epoch 1: &lt;b&gt;" in text


# The command on the page.


def own_data(numbers):
    columns = TableColumns(
        id="id",
        label="the class",
        numbers=tuple(NumberColumn(name=name, mean=0, std=1) for name in numbers),
        categories=(CategoryColumn(name="job", categories=("a", "b")),),
        source="src",
        target="dst",
    )
    files = (
        SourceFile(role="nodes", path="my nodes.csv", sha256="0"),
        SourceFile(role="edges", path="edges.csv", sha256="0"),
    )
    return TaskFacts(
        name="my nodes.csv",
        num_nodes=3,
        num_edges=2,
        num_features=3,
        num_labels=3,
        objective=Classification(2),
        sha256="0",
        source=Source(files=files, columns=columns),
    )


def test_the_papers_table_has_every_cell():
    table = paper_table().values
    assert len(table) == 8 * 12
    assert table["pubmed", "gcnii", 16] == 79.8


@pytest.mark.parametrize(
    ("seeds", "told"), [([0], "1"), ([0, 1, 2], "3"), ([3, 7], "3,7"), ([5], "5,"), ([1, 0], "2"), ([], "1")]
)
def test_seeds_are_told_as_the_command_takes_them(seeds, told):
    one = cell()
    command = repeat_command(replace(one, records=[record(one.recipe, seed) for seed in seeds]))
    assert command == f"graphjoule train --dataset cora --model egnn --layers 4 --seeds {told}"


def test_overrides_are_repeated_as_the_command_reads_them():
    overrides = {"freeze_last_shift": True, "split_seed": None, "activation": "relu", "weight_decay": 0.125}
    command = repeat_command(cell(overrides=overrides))
    words = ("model.freeze_last_shift=true", "model.activation=relu", "train.weight_decay.conv=0.125")
    assert all(f"--set {word}" in command for word in words)
    assert "split_seed" not in command  # is what the recipe says anyway


def test_own_files_are_named_with_their_columns_and_their_split():
    command = repeat_command(replace(cell(dataset="my nodes.csv"), data=own_data(["x", "y"])))
    assert command == (
        "graphjoule train --nodes 'my nodes.csv' --edges edges.csv --id id --label 'the class' --features x,y,job "
        "--one-hot job --source src --target dst --objective classification --model egnn --layers 4 --seeds 2 "
        "--set data.split=default"
    )


def test_a_regression_is_repeated_as_one():
    data = own_data(["x"]).model_copy(update={"objective": Regression(error="absolute")})
    command = repeat_command(replace(cell(dataset="my nodes.csv"), data=data))
    assert "--target dst --objective regression --loss absolute --model egnn" in command


@pytest.mark.parametrize("numbers", [["a,b"], [f"x{k}" for k in range(40)]])
def test_columns_that_no_option_can_name_are_left_to_the_default(numbers):
    assert "--features" not in repeat_command(replace(cell(), data=own_data(numbers)))


def test_a_split_that_the_data_chose_is_no_change():
    recipe = cell(dataset="somewhere").recipe
    named = recipe.model_copy(update={"data": recipe.data.model_copy(update={"split": "public"})})
    assert "--set" not in repeat_command(replace(cell(dataset="somewhere"), recipe=named))


def test_a_cell_trained_before_its_recipe_changed_is_repeated_as_it_was():
    old = cell().recipe.with_settings({"lr": 0.5})
    assert repeat_command(replace(cell(), recipe=old, records=[record(old, 0)])).endswith("--set train.lr=0.5")
