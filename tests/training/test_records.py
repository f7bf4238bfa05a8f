import gzip
import json
import os
import time
import tracemalloc
import warnings
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from graphjoule.errors import GraphjouleError
from graphjoule.files import json_text
from graphjoule.training.recipe import Recipe, load_recipe
from graphjoule.training.records import Record, append_record, read_records, run_id, summarise
from tests.forked import context

RECIPE = load_recipe("egnn", "cora", 2)


def make(seed=0, **changes):
    facts = {
        "device": "cpu (2 threads)",
        "runs_at_once": 1,
        "seconds": 1.5,
        "peak_bytes": 1000,
        "curve": {"train_loss": [1.9, 0.5], "val_loss": [1.8, 0.9], "val_accuracy": [0.5, 0.75]},
        "epochs_run": 2,
        "selected_epoch": 1,
        "val": {"loss": 0.9, "accuracy": 0.75},
        "test": {"loss": 0.7, "accuracy": 0.8},
    }
    return Record.of(RECIPE, seed=seed, split_sha256="ab" * 32, **facts | changes)


def failed(seed=0, **changes):
    return make(seed, failure="loss is NaN at epoch 3, layer 7", test={}, **changes)


def read(path):
    return list(read_records(path))


# What a record says.


def test_a_record_knows_its_recipe_its_run_and_its_time():
    record = make(seed=3)
    assert (record.model, record.dataset, record.num_layers, record.split) == ("egnn", "cora", 2, "public")
    assert record.recipe["model"]["options"]["c_min"] == 0.2
    assert (record.status, record.failure) == ("done", None)
    assert record.run_id == run_id(RECIPE, 3, "ab" * 32)
    assert abs(datetime.fromisoformat(record.created) - datetime.now(UTC)).total_seconds() < 60


def test_a_run_id_names_settings_seed_and_split_and_nothing_else():
    other = load_recipe("egnn", "cora", 2, {"epochs": 7})
    ids = {run_id(RECIPE, 0, "a"), run_id(RECIPE, 1, "a"), run_id(RECIPE, 0, "b"), run_id(other, 0, "a")}
    assert len(ids) == 4
    spelled_out = load_recipe("egnn", "cora", 2, {"c_min": 0.2})  # the same setting, given by hand
    assert run_id(spelled_out, 0, "a") == run_id(RECIPE, 0, "a")


@pytest.mark.parametrize(
    "wrong",
    [
        {"val": {"loss": 0.5}},
        {"val": {"accuracy": None}},
        {"val": {"accuracy": float("nan")}},
        {"test": {"accuracy": 83.2}},  # percent
        {"val": {"accuracy": 75.0}},
        {"objective": "ranking"},
        {"runs_at_once": 0},
        {"seconds": float("nan")},
        {"tset_accuracy": 0.5},
    ],
)
def test_a_record_that_cannot_be_true_is_not_made(wrong):
    with pytest.raises(ValidationError):
        make(**wrong)


def test_a_run_without_test_nodes_is_done_all_the_same_and_told_by_its_validation(tmp_path):
    records = [make(seed, test={}, val={"accuracy": value}) for seed, value in ((0, 0.5), (1, 0.7))]
    for record in records:
        assert (record.status, record.test_score) == ("done", None)
        append_record(tmp_path / "r.jsonl", record)
    summary = summarise(read(tmp_path / "r.jsonl"))
    assert (summary.test_mean, summary.test_std, summary.n) == (None, None, 2)
    assert (summary.val_mean, summary.val_std) == (pytest.approx(0.6), pytest.approx(0.1 * 2**0.5))


def test_records_from_before_the_data_was_hashed_are_read(tmp_path):
    fields = make().model_dump()
    assert fields.pop("task_sha256") is None
    (tmp_path / "r.jsonl").write_text(json.dumps(fields) + "\n")
    assert read(tmp_path / "r.jsonl") == [Record.model_validate(fields)]


def test_a_failed_run_says_why():
    record = failed()
    assert record.status == "failed"
    assert "epoch 3" in record.failure
    with pytest.raises(ValidationError, match="says why"):
        Record.model_validate(record.model_dump() | {"failure": None})


number = st.floats() | st.sampled_from([float("nan"), float("inf"), float("-inf")])


@given(
    curve=st.dictionaries(st.sampled_from(["train_loss", "val_loss", "val_accuracy"]), st.lists(number, max_size=4)),
    val_loss=number,
    seed=st.integers(0, 2**63),
    failure=st.text(min_size=1),
)
def test_any_record_is_one_line_of_strict_json_and_comes_back_equal(tmp_path_factory, curve, val_loss, seed, failure):
    path = tmp_path_factory.mktemp("records") / "runs.jsonl"
    record = failed(seed, curve=curve, val={"loss": val_loss}).model_copy(update={"failure": failure})
    append_record(path, record)
    append_record(path, record)
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 2

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    json.loads(lines[0], parse_constant=refuse)
    assert read(path) == [record, record]


def test_curves_keep_six_significant_digits_and_tell_nan_as_null(tmp_path):
    curve = {"train_loss": [1.23456789, 1.23456789e-7, 123456789.0, float("nan"), float("inf"), 2]}
    append_record(tmp_path / "r.jsonl", make(curve=curve))
    written = json.loads((tmp_path / "r.jsonl").read_text())["curve"]["train_loss"]
    assert written == [1.23457, 1.23457e-7, 123457000.0, None, None, 2]


# Reading what others write.


def test_records_come_back_in_order_from_plain_and_compressed_files(tmp_path):
    path, packed = tmp_path / "r.jsonl", tmp_path / "r.jsonl.gz"
    for seed in range(3):
        append_record(path, make(seed))
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert [record.seed for record in read(path)] == [0, 1, 2]
    assert read(packed) == read(path)


def test_a_torn_last_line_is_ignored_and_does_not_take_the_next_record_with_it(tmp_path):
    path = tmp_path / "r.jsonl"
    append_record(path, make(0))
    whole = path.stat().st_size
    append_record(path, make(1))
    content = path.read_bytes()
    for cut in [whole + 1, whole + 50, len(content) - 2]:  # killed at any moment of the second write
        path.write_bytes(content[:cut])
        assert [record.seed for record in read(path)] == [0]
        append_record(path, make(2))
        with pytest.warns(UserWarning, match=r"r\.jsonl, line 2 is not a whole record"):
            assert [record.seed for record in read(path)] == [0, 2]
    path.write_bytes(content[:-1])  # only the line's end is missing
    append_record(path, make(2))
    assert [record.seed for record in read(path)] == [0, 1, 2]


@pytest.mark.parametrize(
    "broken", [b"{", b"3", b"null", b'{"format": 1}', b"\x00\x00\xff", b'{"format": 1, "seed": "x"}']
)
def test_a_broken_line_in_the_middle_is_named_in_a_warning_and_skipped(tmp_path, broken):
    path = tmp_path / "r.jsonl"
    append_record(path, make(0))
    path.write_bytes(path.read_bytes() + broken + b"\n\n")
    append_record(path, make(1))
    with pytest.warns(UserWarning, match=r"r\.jsonl, line 2 is not a whole record") as caught:
        assert [record.seed for record in read(path)] == [0, 1]
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("curve", '{"val_loss": ["low"]}'),
        ("curve", '{"val_loss": [[1]]}'),
        ("curve", f'{{"val_loss": [1{"0" * 400}]}}'),
        ("val", '{"loss": 1' + "0" * 400 + "}"),
        ("seed", "1" + "0" * 5000),
        ("recipe", '{"lr": ' + "[" * 900 + "]" * 900 + "}"),
        ("recipe", '{"lr": ' + "[" * 100_000 + "]" * 100_000 + "}"),
        ("device", r'"\ud83d"'),
        ("recipe", r'{"\uDE00": 1}'),
    ],
    ids=lambda value: value[:20],
)
def test_whatever_is_wrong_with_a_line_it_is_left_out_with_a_warning(tmp_path, field, value):
    path = tmp_path / "r.jsonl"
    append_record(path, make(0, device="a whole \U0001f600"))
    text = json_text(make(1).model_dump() | {field: "HERE"}).replace('"HERE"', value)
    path.write_bytes(path.read_bytes() + text.encode() + b"\n")
    append_record(path, make(2))
    with pytest.warns(UserWarning, match=r"r\.jsonl, line 2 is not a whole record and is left out"):
        assert [record.seed for record in read(path)] == [0, 2]


def test_what_cannot_be_read_is_a_sentence(tmp_path):
    future, packed = tmp_path / "future.jsonl", tmp_path / "cut.jsonl.gz"
    future.write_text(json.dumps(make().model_dump() | {"format": 4}) + "\n")
    packed.write_bytes(gzip.compress(json.dumps(make().model_dump()).encode())[:-20])
    (tmp_path / "plain.jsonl.gz").write_text("not gzip")
    with pytest.raises(
        GraphjouleError, match=r"future\.jsonl, line 1 has format 4; this graphjoule reads formats 1 to 3\.$"
    ):
        read(future)
    for path in [packed, tmp_path / "plain.jsonl.gz", tmp_path / "absent.jsonl", tmp_path]:
        with pytest.raises(GraphjouleError, match=r"^Cannot read records from [^\n]*\.$"):
            read(path)


# Writing beside others.


def test_a_place_where_no_record_can_be_written_is_a_sentence_and_nothing_is_left(tmp_path):
    for path in [tmp_path, tmp_path / "absent" / "r.jsonl", tmp_path / "r.jsonl.gz"]:
        with pytest.raises(GraphjouleError, match=r"^[^\n]*append[^\n]*\.$"):
            append_record(path, make())
    assert list(tmp_path.iterdir()) == []


def test_a_line_is_whole_even_when_the_system_writes_it_in_pieces(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:100]))
    append_record(tmp_path / "r.jsonl", make(0))
    append_record(tmp_path / "r.jsonl", make(1))
    assert [record.seed for record in read(tmp_path / "r.jsonl")] == [0, 1]


@pytest.mark.skipif(os.name == "nt", reason="needs a lock")
def test_a_full_disk_takes_back_the_torn_line(tmp_path, monkeypatch):
    path = tmp_path / "r.jsonl"
    append_record(path, make(0))
    before, real = path.read_bytes(), os.write

    def fill(descriptor, data):
        if len(data) < 500:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[:300])

    monkeypatch.setattr(os, "write", fill)
    with pytest.raises(GraphjouleError, match="no space left on device"):
        append_record(path, make(1))
    assert path.read_bytes() == before


WRITER = """
import time
from graphjoule.training.records import Record, append_record
record = Record.model_validate_json(text)
for seed in range(80):
    if seed in (0, 40):  # start both halves together with the other writer
        (folder / f"{name}-at-{seed}").touch()
        while not (folder / f"go-{seed}").exists():
            time.sleep(0.001)
    append_record(folder / "r.jsonl", record.model_copy(update={"seed": seed}))
"""


def start_writer(folder, name):
    curve = {"val_loss": [0.123456] * 1000}  # a line longer than a page
    text = make(device=name, curve=curve).model_dump_json()
    writer = context().Process(target=exec, args=(WRITER, {"folder": folder, "name": name, "text": text}))
    writer.start()
    return writer


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the writers did not come this far"
        time.sleep(0.001)


def test_two_processes_write_and_a_third_reads_and_every_line_is_whole(tmp_path):
    path, names, seen = tmp_path / "r.jsonl", ["a", "b"], [0]
    writers = [start_writer(tmp_path, name) for name in names]
    try:
        for half in [0, 40]:
            wait_for(lambda half=half: all((tmp_path / f"{name}-at-{half}").exists() for name in names))
            (tmp_path / f"go-{half}").touch()
            wait_for(path.exists)
            seen.append(len(read(path)))  # a warning is an error here: no broken line at any moment
        while any(writer.exitcode is None for writer in writers):
            seen.append(len(read(path)))
        assert [writer.exitcode for writer in writers] == [0, 0]
    finally:
        for writer in writers:
            writer.kill()
            writer.join()
    assert seen == sorted(seen)
    records = read(path)
    assert len(records) == path.read_bytes().count(b"\n") == 160
    for name in names:
        assert [record.seed for record in records if record.device == name] == list(range(80))


# What several runs come to.


def test_a_summary_is_of_the_runs_that_are_done_and_counts_the_others():
    records = [
        make(i, test={"accuracy": a}, val={"accuracy": b})
        for i, (a, b) in enumerate([(0.7, 0.5), (0.8, 0.6), (0.9, 1.0)])
    ]
    summary = summarise(iter([*records, failed(3)]))
    assert summary.test_mean == pytest.approx(0.8)
    assert summary.test_std == pytest.approx(0.1)  # sample: the population's is 0.0816
    assert summary.val_mean == pytest.approx(0.7)
    assert (summary.n, summary.num_failed, summary.seconds) == (3, 1, 6.0)


def test_seconds_are_each_runs_share_so_they_add_up_whatever_was_trained_at_once():
    shares = [(10, 2.0)] * 10 + [(1, 5.0)]  # ten runs together in 20 s, then one alone
    records = [make(i, runs_at_once=at_once, seconds=share) for i, (at_once, share) in enumerate(shares)]
    assert summarise(records).seconds == pytest.approx(25.0)


def test_too_few_runs_have_no_spread_and_no_mean():
    one = summarise([make()])
    assert (one.test_mean, one.test_std, one.n) == (0.8, None, 1)
    none = summarise([failed()])
    assert (none.test_mean, none.test_std, none.val_mean, none.n, none.num_failed) == (None, None, None, 0, 1)


# Records of format 1, which knew classification alone.

ROOT = Path(__file__).parents[2]
OLD = [path for folder in ("results", "reproduction/results") for path in sorted((ROOT / folder).rglob("*.jsonl*"))]


def lines_of(path):
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize("path", OLD, ids=lambda path: str(path.relative_to(ROOT)))
def test_not_one_number_of_an_old_record_changes_and_its_run_is_found_again(path):
    raw = lines_of(path)
    if "run_id" not in raw[0]:
        pytest.skip("no records of runs")
    for fields, record in zip(raw, read(path), strict=True):
        if fields["format"] == 1:
            scores = fields.pop("val_loss"), fields.pop("val_accuracy"), fields.pop("test_accuracy")
            assert (record.val.get("loss"), record.val_score, record.test_score) == scores
            assert (record.objective, record.metric.name) == ("classification", "accuracy")
        del fields["format"]
        assert record.model_dump(include=set(fields)) == fields
        recipe = Recipe.from_fields(record.recipe)
        assert (recipe.model.name, recipe.data.name, recipe.model.num_layers) == (
            record.model,
            record.dataset,
            record.num_layers,
        )
        assert run_id(recipe, record.seed, record.split_sha256) == record.run_id


def test_runs_of_two_objectives_have_no_mean():
    other = make(objective="regression", val={"loss": 1.0, "r2": -0.5, "mae": 3.0, "rmse": 4.0}, test={})
    assert (other.metric.name, other.val_score) == ("r2", -0.5)
    with pytest.raises(GraphjouleError, match="different objectives"):
        summarise([make(), other])


def test_the_metric_that_selected_is_the_headline():
    scores = {"loss": 1.0, "accuracy": 0.5, "roc_auc": 0.75}
    plain = make(val=scores, test=scores)
    recipe = plain.recipe | {"train": plain.recipe["train"] | {"select_on": "roc_auc"}}
    record = make(val=scores, test=scores).model_copy(update={"recipe": recipe})
    assert (plain.metric.name, plain.test_score) == ("accuracy", 0.5)
    assert (record.metric.name, record.val_score, record.test_score) == ("roc_auc", 0.75, 0.75)
    assert summarise([record]).test_mean == 0.75
    with pytest.raises(GraphjouleError, match="different objectives or metrics"):
        summarise([plain, record])


def test_records_are_not_written_through_a_link(tmp_path):
    elsewhere = tmp_path / "elsewhere.txt"
    elsewhere.write_text("mine\n")
    (tmp_path / "records.jsonl").symlink_to(elsewhere)
    with pytest.raises(GraphjouleError, match=r"records.jsonl: it is a symbolic link; put a file in its place"):
        append_record(tmp_path / "records.jsonl", make())
    assert elsewhere.read_text() == "mine\n"


def test_the_quick_way_and_the_careful_way_read_the_same(tmp_path, monkeypatch):
    path = tmp_path / "records.jsonl"
    records = [make(0), make(1), failed(3), make(4, curve={"val_loss": [None, 1.0]}), make(5, test={})]
    for record in records:
        append_record(path, record)
    assert read(path) == records
    assert len({id(record.recipe) for record in read(path)}) == len({id(record.versions) for record in read(path)}) == 1
    monkeypatch.setattr("graphjoule.training.records._parse_quickly", lambda line: None)
    assert read(path) == records


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"seconds": 1.5', b'"seconds": NaN'),
        (b'"seconds": 1.5', b'"seconds": 1.5, "recipe": {"model": 1}'),
        (b'"seconds": 1.5', b'"seconds": 1.5, "recipe": {}'),
        (b'"seconds": 1.5', b'"seconds": "1.5"'),
        (b'"seconds": 1.5', b'"seconds": true'),
        (b'"seed": 0', b'"seed": 0.5'),
        (b'"seed": 0', b'"seed": ' + b"9" * 400),
        (b'"seconds": 1.5', b'"seconds": 1e308'),
        (b'"seed": 0', b'"seed": 2.0, "more": 1'),
        (b'"versions": {', b'"versions": {"numpy": 2, '),
        (b'"train_loss": [1.9, 0.5]', b'"train_loss": [NaN, 1e999]'),
        (b'"train_loss": [1.9, 0.5]', b'"train_loss": [1.23456789, 0.5]'),
        (b'"device": "cpu (2 threads)"', b'"device": "\\ud800"'),
        (b'"format": 3', b'"format": 2'),
        (b'"format": 3', b'"format": 4'),
        (b'"protocol": null, ', b""),
        (b'"status": "done"', b'"status": "lost"'),
        (b'}, "model": "egnn"', b'}, "model": "egnn", "model": "gcn"'),
        (b'"accuracy": 0.8', b'"accuracy": 8.0'),
    ],
)
def test_the_quick_way_takes_nothing_that_the_careful_way_refuses(tmp_path, monkeypatch, old, new):
    path = tmp_path / "records.jsonl"
    append_record(path, make())
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new))

    def outcome():
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                return read(path), len(said)
        except GraphjouleError as error:
            return str(error)

    quick = outcome()
    monkeypatch.setattr("graphjoule.training.records._parse_quickly", lambda line: None)
    careful = outcome()
    if b"1.23456789" in new:  # read as it is; six digits are for what is written
        assert quick[0][0].curve["train_loss"][0] == 1.23456789
    else:
        assert quick == careful


def test_a_small_file_that_unpacks_to_a_huge_line_is_refused_before_it_is_in_memory(tmp_path):
    path = tmp_path / "records.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(80):
            file.write(bytes(2**20))
    tracemalloc.start()
    try:
        with pytest.raises(GraphjouleError, match="line 1 is longer than any record; expected a file of records"):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 2**28
    finally:
        tracemalloc.stop()
