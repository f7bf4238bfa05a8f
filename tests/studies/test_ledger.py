import csv
import gzip
import io
import json

import pytest

from graphjoule.cli import missing_commands
from graphjoule.errors import GraphjouleError
from graphjoule.files import json_text
from graphjoule.studies import (
    Cell,
    Collection,
    Variant,
    find_study,
    ledger_text,
    make_ledger,
    read_collection,
)
from graphjoule.training.recipe import load_recipe

from . import made_up

STUDY = find_study("table1")
(CELL,) = STUDY.cells(["cora"], ["egnn"], [64])  # 85.7 in the paper
SPREAD = [-1.0, 1.0] * 5  # sample standard deviation sqrt(10/9)


def runs(mean, scale, cell=CELL, n=10, **fields):
    return [made_up(cell, seed, (mean + scale * SPREAD[seed]) / 100, **fields) for seed in range(n)]


def row(records, **options):
    (only,) = make_ledger(STUDY, [CELL], Collection(records), **options)
    return only


# Which records count.


def test_only_runs_of_the_cells_own_settings_count():
    other = Cell("egnn", "cora", 64, Variant(component="c_max", value="0.4", settings={"model.c_max": 0.4}))
    shallow = Cell("egnn", "cora", 16)
    assert row([*runs(50.0, 1.0, other), *runs(50.0, 1.0, shallow)]).outcome.verdict == "not run"


def test_only_the_seeds_that_are_asked_for_count():
    found = row(runs(85.7, 0.4), seeds=[3, 5, 40])
    assert (found.seeds, found.outcome.n) == ((3, 5), 2)


def test_a_run_that_is_recorded_twice_counts_once_and_the_record_with_its_curve_is_kept():
    bare, drawn = runs(85.7, 0.4), runs(85.7, 0.4, curve={"val_loss": [1.0]}, seconds=9.0)
    for records in (bare + drawn, drawn + bare):
        found = Collection(records)
        assert row(records).outcome.n == len(list(found)) == 10
        assert all(record.curve for record in found)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"test": {"accuracy": 0.1}}, r"has the test \{'accuracy': 0.853\} and \{'accuracy': 0.1\}"),
        ({"epochs_run": 11}, "has the epochs_run 10 and 11"),
        ({"created": "2027-01-01T00:00:00+00:00", "selected_epoch": 7}, "has the selected_epoch None and 7"),
    ],
)
def test_two_records_of_one_run_that_differ_are_an_error_whichever_is_newer(tmp_path, changes, words):
    one = runs(85.7, 0.4)[0]
    other = one.model_copy(update=changes)
    with pytest.raises(GraphjouleError, match=f"^Two records of one run differ: egnn with 64 layers.*seed 0.*{words}"):
        Collection([one, other])
    write(tmp_path / "a.jsonl", [one])
    write(tmp_path / "b.jsonl.gz", [other])
    with pytest.raises(GraphjouleError, match=r"a\.jsonl and .*b\.jsonl\.gz\)\. Find out which is true"):
        read_collection([tmp_path])


def test_runs_of_two_backends_or_devices_are_kept_apart_and_not_chosen_between():
    gpu = runs(85.7, 0.4, device="NVIDIA H200", backend="triton")
    plain = runs(84.0, 0.4, device="NVIDIA H200", backend="reference")
    threads = runs(85.7, 0.4, device="NVIDIA H200 (2 threads)", backend="triton")
    assert len(list(Collection(gpu + plain))) == 20
    with pytest.raises(GraphjouleError, match="H200 by the backend triton and on NVIDIA H200 by the backend ref"):
        row(gpu + plain)
    assert row(gpu + threads).outcome.n == 10  # the number of threads makes no other device
    mixed = row(gpu[:5] + plain[5:])
    assert mixed.note == "runs of 2 kinds: NVIDIA H200 (reference), NVIDIA H200 (triton)"
    assert row(gpu).note == ""


def test_a_record_of_settings_that_are_no_longer_known_is_left_out():
    fields = made_up(CELL, 0, 0.8).model_dump()
    fields["recipe"]["model"]["options"]["forgotten"] = 1
    assert list(Collection([made_up(CELL, 0, 0.8).model_validate(fields)])) == []


def test_a_recipe_without_a_split_of_its_own_finds_the_runs_of_the_one_that_was_taken():
    recipe = load_recipe("egnn", "citeseer", 2)
    assert recipe.data.split == "default"
    taken = Cell("egnn", "citeseer", 2, overrides={"split": "public"})
    assert list(Collection([made_up(taken, 4, 0.7)]).of(recipe)) == [4]


def test_another_reading_of_the_paper_is_told_where_it_changes_the_verdict():
    wide = Cell("egnn", "cora", 64, overrides={"hidden_channels": 256})
    frozen = Cell("egnn", "cora", 64, overrides={"freeze_last_shift": True})
    slow = Cell("egnn", "cora", 64, overrides={"lr": 0.001})
    records = runs(85.7, 0.4) + runs(84.0, 0.4, wide) + runs(85.7, 0.4, frozen) + runs(70.0, 0.4, slow)
    (other,) = row(records).others
    assert (other.settings, other.outcome.verdict) == ("hidden_channels = 256", "worse")
    assert "hidden_channels = 256: 84.00 (worse)" in ledger_text(STUDY, [row(records)])


@pytest.mark.parametrize(
    ("dataset", "depth", "key", "value"),
    [("physics", 32, "split_seed", 0), ("cora", 64, "freeze_last_shift", True), ("pubmed", 16, "hidden_channels", 256)],
)
def test_every_choice_that_the_paper_leaves_open_has_its_column_where_it_changes_a_verdict(dataset, depth, key, value):
    (cell,) = STUDY.cells([dataset], ["egnn"], [depth])
    (other,) = STUDY.cells([dataset], ["egnn"], [depth], {key: value})
    assert list(cell.recipe.changes(other.recipe).values()) == [value]
    records = [*runs(cell.reference, 0.4, cell), *runs(cell.reference - 4, 0.4, other)]
    text = ledger_text(STUDY, make_ledger(STUDY, [cell], Collection(records)))
    assert "| under another protocol |" in text
    assert f"| {key} = {value}: {cell.reference - 4:.2f} (worse) |" in text
    same = [*runs(cell.reference, 0.1, cell), *runs(cell.reference + 0.1, 0.1, other)]
    assert "under another protocol" not in ledger_text(STUDY, make_ledger(STUDY, [cell], Collection(same)))
    (found,) = make_ledger(STUDY, [cell], Collection(same))[0].readings
    assert (found.settings, found.outcome.verdict) == (f"{key} = {value}", "equal")
    (only,) = make_ledger(STUDY, [cell], Collection(runs(cell.reference, 0.4, other)))
    alone = "undecided" if key == "split_seed" else "equal"  # nothing says how far two splits are apart
    assert (only.outcome.verdict, only.others[0].outcome.verdict) == ("not run", alone)


# Files.


def write(path, records):
    text = "".join(json_text(record.model_dump()) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def test_records_are_read_from_any_files_and_folders(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    write(tmp_path / "deep" / "er" / "a.jsonl", runs(85.7, 0.4)[:4])
    write(tmp_path / "deep" / "b.jsonl.gz", runs(85.7, 0.4)[4:8])
    write(tmp_path / "c.jsonl", runs(85.7, 0.4)[8:])
    (tmp_path / "deep" / "timings.jsonl").write_text('{"case": "cora-64"}\n')
    (tmp_path / "deep" / "empty.jsonl").touch()
    found = read_collection([tmp_path / "deep", tmp_path / "c.jsonl"])
    assert make_ledger(STUDY, [CELL], found)[0].outcome.n == 10
    with pytest.raises(GraphjouleError, match=r"^There is no file or folder .*nowhere to read records from\.$"):
        read_collection([tmp_path / "nowhere"])


# Texts.

ROWS = make_ledger(STUDY, STUDY.cells(["cora", "arxiv"], ["egnn"]), Collection(runs(85.0, 0.4)), unavailable={"arxiv"})


def test_markdown_has_a_line_per_cell_the_rule_and_the_commands_for_what_is_missing():
    text = ledger_text(STUDY, ROWS, commands=missing_commands(STUDY, ROWS))
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(lines) == 1 + 6
    assert "| cora | egnn | 64 | 85.7 | 85.00 ± 0.42 | 10 | -0.70 ± 0.48 | 0.007 | **worse** | public | loss |" in lines
    assert "| arxiv | egnn | 2 | 68.4 |  | 0 |  |  | not run: data not available here | public | accuracy |" in lines
    assert "What is not run: `graphjoule study table1 --datasets cora --models egnn --layers 2,16`.  \n" in text
    assert "What is not run: `graphjoule study table1 --datasets arxiv --models egnn`.\n" in text
    assert "5 not run, 1 worse" in text
    assert "Numbers: test accuracy in percent, ± sample standard deviation. Paper: " in text
    assert "two one-sided t-tests (TOST)" in text
    assert "changed" not in lines[0]


def test_csv_and_json_hold_the_same_numbers():
    table = list(csv.DictReader(io.StringIO(ledger_text(STUDY, ROWS, "csv"))))
    content = json.loads(ledger_text(STUDY, ROWS, "json"))
    assert len(table) == len(content["rows"]) == 6
    for line, fields in zip(table, content["rows"], strict=True):
        assert line.pop("study") == "table1"
        assert line == {key: "" if value is None else str(value) for key, value in fields.items()}
    assert content["rows"][2]["mean"] == 85.0
    assert content["rows"][2]["verdict"] == "worse"
    assert content["verdicts"] == {"not run": 5, "worse": 1}
    assert "t-test" in content["rule"]
    assert content["protocol"].startswith("table1:")


def test_what_is_changed_has_a_column_where_something_is():
    study = find_study("table2")
    rows = make_ledger(study, study.cells(["cora"], layers=[2]), Collection())
    assert "| cora | egnn | 2 | c_min 0.95 | 65.4 |" in ledger_text(study, rows)


def test_an_unknown_form_is_a_sentence():
    with pytest.raises(GraphjouleError, match=r'"html" is not a form of a ledger\. The choices are: csv, json'):
        ledger_text(STUDY, ROWS, "html")
