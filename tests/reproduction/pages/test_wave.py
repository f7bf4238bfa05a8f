"""Tables of the wave and its rivals say what the record says."""

import json

import pytest

from reproduction.pages import wave


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Lines of a made-up record."""
    path = tmp_path / "wave.jsonl"
    monkeypatch.setattr(wave, "FILE", path)
    return lambda *rows: path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_of_two_lines_with_a_key_the_later_one_counts(record):
    record(*({"key": "ring-50 gps", "test_accuracy": [value, value]} for value in (0.2, 1.0)))
    rows = wave.ring_table().splitlines()
    assert next(row for row in rows if "GPS" in row) == "| GPS | - | - | - | 100.0 ± 0.0 (2) | - | - |"


def test_memory_is_that_of_one_run_and_what_was_not_trained_is_left_out(record):
    cost = {"layers": 40, "failed": 0, "seconds_per_run": 1.5, "peak_bytes": 4e9, "test_mae": [0.5, 0.7]}
    record(*({"key": f"shortest-paths-40 {model}"} | cost for model in ("wave", "gps")))
    assert wave.distances_table().splitlines()[2:] == [
        "| **wave** | 40 | 0.60 ± 0.14 (2) | - | - | 1.5 s | 2.00 GB |",
        "| GPS | 40 | 0.60 ± 0.14 (2) | - | - | 1.5 s | 4.00 GB |",
    ]


def test_an_empty_table_is_a_sentence(record):
    record({"key": "cora wave 64"})
    assert wave.distances_table().startswith("Not trained yet: ")


def test_a_wave_fills_the_grid_and_a_diffusion_does_not():
    last = wave._LAYERS[-1]
    reached = {
        name: int((x[last].abs() > 1e-3).sum()) for name, x in (("wave", wave._wave()), ("egnn", wave._diffusion()))
    }
    assert reached["wave"] > 3 * reached["egnn"] > 100
