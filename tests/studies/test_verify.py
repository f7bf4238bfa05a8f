import hashlib
import json
import os
import time

import pytest

from graphjoule.files import json_text
from graphjoule.studies import STUDIES, Protocol, find_study, verify
from graphjoule.studies.verify import (
    Check,
    check_code,
    check_conflicts,
    check_data,
    check_protocols,
    check_seeds,
    check_selection,
    check_sums,
    compare_texts,
    page_of,
    read_placed,
)
from graphjoule.training.records import Record

from . import made_up

(CELL,) = find_study("table1").cells(["cora"], ["egnn"], [64])
CURVE = {"train_loss": [1.0, 0.9, 0.8], "val_loss": [0.9, 0.5, 0.7], "val_accuracy": [0.1, 0.6, 0.7]}
FACTS = {"epochs_run": 3, "selected_epoch": 1, "curve": CURVE, "val": {"loss": 0.5, "accuracy": 0.6}}


def record(seed=0, **changes):
    fields = {**FACTS, "device": "NVIDIA H200", "backend": "triton", "task_sha256": "d", **changes}
    made = made_up(CELL, seed, 0.8, **fields)
    code = {name: text for name, text in made.versions.items() if name not in ("commit", "tree")}  # of this checkout
    return made.model_copy(update={"versions": code})


def placed(folder, *records):
    text = "".join(json_text(one.model_dump()) + "\n" for one in records)
    (folder / "runs.jsonl").write_text(text)
    found, check = read_placed([folder])
    assert check.problems == []
    return found


def problems(check: Check) -> str:
    return " ".join(check.problems)


def test_records_as_they_are_made_pass_every_check(tmp_path):
    cited = STUDIES["table1"].protocol.cited("table1", {})
    found = placed(tmp_path, *(record(seed, protocol=cited) for seed in range(3)))
    known = {"table1": STUDIES["table1"].protocol}
    checks = [check_conflicts(found), check_data(found), check_selection(found), check_code(found), check_seeds(found)]
    checks += [check_protocols([tmp_path], found, known), check_sums([tmp_path])]
    assert [check.problems for check in checks] == [[]] * 7
    assert page_of(checks).startswith("# Verified\n")


@pytest.mark.parametrize(("old", "new"), [('"seed": 0', '"seed": 7'), ('"c_min": 0.15', '"c_min": 0.16')])
def test_a_digit_of_the_settings_or_of_the_seed_is_noticed(tmp_path, old, new):
    placed(tmp_path, record())
    path = tmp_path / "runs.jsonl"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    _, check = read_placed([tmp_path])
    assert "runs.jsonl, record 1: its run_id is not that of its settings, seed and split." in problems(check)


def test_a_broken_line_is_noticed(tmp_path):
    placed(tmp_path, record())
    path = tmp_path / "runs.jsonl"
    path.write_text(path.read_text()[:100] + "\n" + path.read_text())
    assert "line 1 is not a whole record" in problems(read_placed([tmp_path])[1])


def test_a_file_without_a_record_is_one_problem(tmp_path):
    placed(tmp_path, record())
    (tmp_path / "nodes.csv").write_text("id,x\n" + "a,1\n" * 20)
    found, check = read_placed([tmp_path / "nodes.csv", tmp_path / "runs.jsonl"])
    assert len(found) == 1
    assert check.problems == [
        f"{tmp_path / 'nodes.csv'} holds no record of a run: none of its 21 lines is a whole one."
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"val": {"loss": 0.51, "accuracy": 0.6}}, "its validation loss is 0.51, its curve has 0.5."),
        ({"selected_epoch": 2, "val": {"loss": 0.7, "accuracy": 0.7}}, "epoch 2 is not the best of its curve by loss"),
        ({"epochs_run": 9}, "its curve has 3 epochs, it ran 9"),
    ],
)
def test_scores_and_the_chosen_epoch_are_held_against_the_curve(tmp_path, changes, said):
    check = check_selection(placed(tmp_path, record(**changes)))
    assert said in problems(check)


def test_two_records_that_differ_are_a_problem_unless_they_cannot_be_told_apart(tmp_path):
    other = {"test": {"accuracy": 0.7}}
    assert "are of one run and differ in test." in problems(
        check_conflicts(placed(tmp_path, record(), record(**other)))
    )
    apart = placed(tmp_path, record(), record(**other, backend="reference"))
    assert check_conflicts(apart).problems == []
    first = placed(tmp_path, record(backend=None))
    (tmp_path / "older").mkdir()
    old = check_conflicts([*first, *placed(tmp_path / "older", record(**other, backend=None))])
    assert old.problems == []
    assert "1 runs have several records that differ" in old.notes[0]


def test_a_run_that_is_twice_in_a_file_is_noticed_and_one_in_two_files_is_not(tmp_path):
    one = placed(tmp_path, record(), record(1), record())
    assert "runs.jsonl, record 3 is of the same run as record 1 of that file." in problems(check_conflicts(one))
    first = placed(tmp_path, record())
    (tmp_path / "more").mkdir()
    assert check_conflicts([*first, *placed(tmp_path / "more", record())]).problems == []


def test_the_data_of_a_search_are_those_without_test_labels(tmp_path):
    searched = [record(seed, task_sha256="hidden").model_copy(update={"test": {}}) for seed in (10, 11)]
    assert check_data(placed(tmp_path, record(), *searched)).problems == []
    other = record(12, task_sha256="another").model_copy(update={"test": {}})
    assert "cora, without its test labels has another hash" in problems(check_data(placed(tmp_path, *searched, other)))


def own_record(seed=0, **changes):
    """Of a user's table, split anew by each seed, as `graphjoule train --nodes people.csv` leaves it."""
    data = CELL.recipe.data.model_copy(update={"name": "people.csv", "split": "stratified-20-30"})
    recipe, curve = CELL.recipe.model_copy(update={"data": data}), {"curve": CURVE, **FACTS, "backend": "triton"}
    scores = {"test": {"accuracy": 0.8}, "device": "cpu", "runs_at_once": 1, "seconds": 1.0}
    return Record.of(recipe, seed=seed, **{"split_sha256": str(seed), "task_sha256": "d", **curve, **scores, **changes})


def test_seeds_with_their_own_splits_of_a_users_table_are_in_order(tmp_path):
    found = placed(tmp_path, own_record(0), own_record(1))
    assert check_data(found).problems == []
    twice = placed(tmp_path, own_record(0), own_record(0, split_sha256="other"))
    assert "people.csv, stratified-20-30, 0 has another hash" in problems(check_data(twice))


def test_two_tables_of_one_name_are_two_datasets(tmp_path):
    (tmp_path / "other").mkdir()
    first = placed(tmp_path, own_record())
    found = [*first, *placed(tmp_path / "other", own_record(task_sha256="e", test={"accuracy": 0.7}))]
    assert check_data(found).problems == []
    assert check_conflicts(found).problems == []
    forged = [*first, *placed(tmp_path / "other", own_record(test={"accuracy": 0.7}))]
    assert "are of one run and differ in test." in problems(check_conflicts(forged))


def test_data_code_and_seeds_are_checked(tmp_path, monkeypatch):
    found = placed(tmp_path, record(), record(1, task_sha256="other"))
    assert "cora has another hash than in" in problems(check_data(found))
    changed = record().model_copy(update={"versions": {"graphjoule": "1", "tree": "changed"}})
    said = problems(check_code(placed(tmp_path, changed)))
    assert "does not say the hash of the code" in said
    assert "made by files that differ from the commit" in said
    elsewhere = {"commit": "c0ffee", "tree": "changed", "source": "2" * 64}  # a copy that was told an older commit
    monkeypatch.setattr(verify, "commit_of_source", {"2" * 64: "decade"}.get)
    found = check_code(placed(tmp_path, record().model_copy(update={"versions": elsewhere})))
    assert found.problems == []
    assert "which are those of commit decade" in found.notes[0]
    told = record().model_copy(update={"versions": {"commit": "c0ffee", "source": "0" * 64}})
    monkeypatch.setattr(verify, "source_of_commit", lambda commit: "1" * 64)
    assert "1 records name commit c0ffee, whose files have another hash." in problems(
        check_code(placed(tmp_path, told))
    )
    assert "has no record of seed 1" in problems(check_seeds(placed(tmp_path, record(), record(2))))


def test_a_protocol_must_be_here_word_for_word_and_be_kept(tmp_path):
    mine = Protocol(select_on="accuracy", failed="in no mean")
    found = placed(tmp_path, record(protocol=mine.cited("mine", {})))
    assert f"1 records cite mine:{mine.sha256[:16]}, which is not here" in problems(
        check_protocols([tmp_path], found, {})
    )
    (tmp_path / "mine.protocol.json").write_text(mine.text("mine"))
    assert "selected by loss, mine:" in problems(check_protocols([tmp_path], found, {}))
    free = placed(tmp_path, record(protocol=mine.cited("mine", {"select_on": "loss"})))
    assert check_protocols([tmp_path], free, {}).problems == []
    content = json.loads(mine.text("mine"))
    content["protocol"]["failed"] = "in every mean"
    (tmp_path / "mine.protocol.json").write_text(json.dumps(content))
    said = problems(check_protocols([tmp_path], free, {}))
    assert "which is not here" in said
    assert "its hash is not that of its words" in said


def test_files_are_held_against_their_sums(tmp_path):
    placed(tmp_path, record())
    digest = hashlib.sha256((tmp_path / "runs.jsonl").read_bytes()).hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  runs.jsonl\n")
    assert (check_sums([tmp_path]).count, check_sums([tmp_path]).problems) == (1, [])
    (tmp_path / "more.jsonl").write_text((tmp_path / "runs.jsonl").read_text())
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write("\n")
    said = problems(check_sums([tmp_path]))
    assert "runs.jsonl: its hash is" in said
    assert "more.jsonl: is in no SHA256SUMS." in said


@pytest.mark.parametrize("name", ["runs\0.jsonl", "long" * 200, "a\0" * 500])
def test_a_name_in_the_sums_that_no_file_can_have_is_a_problem(tmp_path, name):
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  {name}\n")
    (said,) = check_sums([tmp_path]).problems
    assert said.endswith(f"{tmp_path / 'SHA256SUMS'} lists it.")


def test_curves_of_other_lengths_are_no_traceback(tmp_path):
    curve = {"train_loss": [0.9, 0.8, 0.7], "val_loss": [0.6, 0.5, 0.7], "val_accuracy": [0.5]}
    assert problems(check_selection(placed(tmp_path, record(curve=curve)))) == ""


def test_every_line_that_differs_is_named_with_its_digits():
    files = {"a.md": "one\n| egnn | 85.58 ± 0.40 |\n", "b.md": "x\n"}
    check = compare_texts(files, {"a.md": "one\n| egnn | 85.53 ± 0.40 |\nmore\n"}.get, "pages")
    assert check.problems == [
        'a.md, line 2: has "85.53", the records give "85.58".',
        "a.md, line 3: is too much.",
        "b.md: is not there.",
    ]
    assert page_of([check]).startswith("# Not verified: 3 problems\n")
    (blank,) = compare_texts({"a.md": "one\n"}, {"a.md": "  one\n"}.get, "pages").problems
    assert blank == "a.md, line 1: differs in the blanks before its first word."


def test_a_seed_far_away_leaves_a_gap_and_takes_no_memory(tmp_path):
    said = problems(check_seeds(placed(tmp_path, record(), record(2), record(2**32 - 1))))
    assert "has no record of seed 1, 3 to 4294967294, and of later ones" in said


def test_protocols_that_are_brackets_or_a_pipe_are_problems(tmp_path):
    (tmp_path / "deep.protocol.json").write_text("[" * 100_000)
    (tmp_path / "list.protocol.json").write_text("[]")
    wanted = 2
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.protocol.json")
        os.mkfifo(tmp_path / "pipe.jsonl")
        wanted = 3
    check = check_protocols([tmp_path], placed(tmp_path, record()), {})
    assert len(check.problems) == wanted
    assert all("is not a protocol" in problem for problem in check.problems)


def test_a_line_of_a_megabyte_is_compared_in_seconds():
    long = "a b " * 250_000
    begin = time.process_time()
    check = compare_texts({"x": f"{long}1", "y": "c d"}, {"x": f"{long}2", "y": long}.get, "pages")
    assert check.problems[0] == "x, line 1: differs after thousands of letters."
    assert 'the records give "c d"' in check.problems[1]
    assert time.process_time() - begin < 5
