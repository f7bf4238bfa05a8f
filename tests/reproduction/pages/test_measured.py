"""Numbers of records by file and place."""

import gzip
import json

import pytest

from graphjoule import GraphjouleError
from reproduction.pages import measured


@pytest.fixture
def records(tmp_path, monkeypatch):
    monkeypatch.setattr(measured, "RESULTS", tmp_path)
    lines = [
        {"side": "plain", "test": [0.8, 0.9], "cost.of": {"epoch": 12.0}, "layers": 4, "bytes": 2**31},
        {"side": "held down", "test": [0.5], "cost.of": {"epoch": 3.0}, "layers": 2, "bytes": None},
    ]
    (tmp_path / "many.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "one.json").write_text(json.dumps({"rows": [{"a": 1}, {"a": 3}]}))
    keyed = [{"key": "x", "value": 1}, {"key": "x", "value": 2}]
    (tmp_path / "keyed.jsonl").write_text("".join(json.dumps(line) + "\n" for line in keyed))
    curves = ([1.0, 2.0, 4.0], [1.0, 2.1, 8.0])
    for name, curve in zip(("first", "second"), curves, strict=True):
        line = {"recipe": {"gamma": 0.0}, "seed": 0, "curve": {"loss": curve}}
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(json.dumps(line).encode()))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("many.jsonl side=plain test spread percent .2f", "85.00 ± 7.07"),
        ("many.jsonl side=held_down test percent .0f", "50"),
        ("many.jsonl test range .1f", "0.5 to 0.9"),
        ("many.jsonl test each .1f", "0.8, 0.9, 0.5"),
        ("many.jsonl side=plain cost.of.epoch/layers .1f", "3.0"),
        ("many.jsonl bytes GiB .1f", "2.0"),
        ("one.json rows.*.a max .0f", "3"),
        ("one.json rows.1.a .0f", "3"),
        ("keyed.jsonl value .0f", "2"),  # of a key the last line counts
    ],
)
def test_a_value_by_its_place(records, words, text):
    assert measured.value_of(*words.split()) == text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("none.jsonl a .1f", "there is no such file"),
        ("many.jsonl side=other test .1f", "no record of reproduction/results/ has that"),
        ("many.jsonl test .1f", "3 values; join them by one of"),
        ("many.jsonl test sideways .1f", "3 values; join them by one of"),
    ],
)
def test_what_is_not_there_is_a_sentence(records, words, sentence):
    with pytest.raises(GraphjouleError, match=sentence):
        measured.value_of(*words.split())


def test_how_far_curves_are_apart(records):
    files = ("first.jsonl.gz", "second.jsonl.gz", "loss")
    assert measured.curves_apart(*files, "percent", ".0f") == "100"
    assert measured.curves_apart(*files, "recipe.gamma=0.0", "epochs=2", ".2f") == "0.05"
    with pytest.raises(GraphjouleError, match="no run in common"):
        measured.curves_apart(*files, "seed=1", ".2f")
