"""Tables of the wave and its rivals say what the record says."""

import json

import pytest

from reproduction.pages import wave


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Lines of a made-up record."""
    path = tmp_path / "wave.jsonl"
    for name in ("FILE", "SUITE"):
        monkeypatch.setattr(wave, name, path)
    return lambda *rows: path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_of_two_lines_with_a_key_the_later_one_counts(record):
    record(*({"key": "ring-50 gps", "test_accuracy": [value, value]} for value in (0.2, 1.0)))
    rows = wave.ring_table().splitlines()
    assert next(row for row in rows if "GPS" in row) == "| GPS | - | - | - | 100.0 ± 0.0 (2) | - | - |"


def test_an_epoch_and_its_memory_are_those_of_a_run_alone_and_what_was_not_trained_is_left_out(record):
    trained = {"layers": 40, "seconds_per_run": 9.0, "peak_bytes": 9e9, "test_mae": [0.5, 0.7]}
    alone = {"key": "cost shortest-paths-40 wave", "seconds_per_run": 1.5, "epochs": [30], "peak_bytes": 2e9}
    record(*({"key": f"shortest-paths-40 {model}"} | trained for model in ("wave", "gps")), alone)
    assert wave.distances_table().splitlines()[2:] == [
        "| **wave** | 40 | 0.60 ± 0.14 (2) | - | - | 50.0 ms | 2.00 GB |",
        "| GPS | 40 | 0.60 ± 0.14 (2) | - | - | - | - |",
    ]
    record({"key": "eccentricity-40 gcnii", "layers": 40, "test_mae": [0.5]})
    assert wave.distances_table().splitlines()[2] == "| GCNII | 40 | - | 0.50 (1) | - | - | - |"


def test_an_empty_table_is_a_sentence(record):
    record({"key": "cora wave 64"})
    for table in (wave.distances_table, wave.large_table, wave.suite_table):
        assert table().startswith("Not trained yet: ")


def test_a_minefield_is_scored_by_its_area_and_other_tasks_by_accuracy(record):
    scores = {"layers": 4, "test_accuracy": [0.8, 0.8], "test_roc_auc": [0.9, 0.9]}
    record(*({"key": f"{task} gps", **scores} for task in ("mines-100", "cora-labels-5")))
    rest = " | -" * 6 + " |"
    assert wave.suite_table().splitlines()[2:] == [
        "| minefield, ROC AUC | - | 90.0 ± 0.0 [4]" + rest,
        "| Cora, 5 per class | - | 80.0 ± 0.0 [4]" + rest,
    ]
