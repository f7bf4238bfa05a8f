import sys

import pytest

from reproduction.bench import BenchRecord, append_bench_records
from reproduction.bench.history import commit_of, main, page, read_history


def record(commit, ms, *, tree="clean", case="cora-64", floor=2 * 10**9, **more):
    sizes = {"nodes": 3, "edges": 2, "layers": 4, "width": 5, "runs": 1, "repeats": 5}
    return BenchRecord(
        case=case, peer="pyg", body="cpu", device="cpu (2 threads)", versions={"commit": commit * 40, "tree": tree},
        ours_ms=ms, ours_spread_ms=(ms - 1, ms + 1), peer_ms=2 * ms, ratio=2.1, ratio_spread=(2.0, 2.2),
        median_ratio=2.0, floor_bytes=floor, bytes_per_second=1e12, **sizes, **more,
    )  # fmt: skip


def test_a_folder_has_one_file_for_each_device_and_commit(tmp_path):
    append_bench_records(
        tmp_path, [record("a", 8.0), record("a", 9.0), record("b", 4.0), record("b", 4.0, tree="changed")]
    )
    names = [
        f"cpu-2-threads-{'a' * 12}.jsonl",
        f"cpu-2-threads-{'b' * 12}-changed.jsonl",
        f"cpu-2-threads-{'b' * 12}.jsonl",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_the_page_shows_every_commit_with_its_latest_record_and_its_share_of_the_floor(tmp_path):
    times = ["2026-01-01T00:00:00", "2026-01-02T00:00:00", "2026-01-03T00:00:00"]
    append_bench_records(tmp_path, [record("b", 4.0, created=times[2]), record("c", 1.0, curve="depth")])
    append_bench_records(tmp_path, [record("a", 9.0, created=times[0]), record("a", 8.0, created=times[1])])
    history = read_history(tmp_path)
    (place, records), *others = history.items()
    assert (place, others) == (("cpu (2 threads)", "cora-64", 1), [])
    assert [(commit_of(r), r.ours_ms, r.floor_ms, r.floor_share) for r in records] == [
        ("aaaaaaaa", 8.0, 2.0, 0.25),
        ("bbbbbbbb", 4.0, 2.0, 0.5),
    ]
    text = page(history)
    assert text.count("<img ") == 1
    assert text.index("<td>bbbbbbbb</td>") < text.index("<td>aaaaaaaa</td>")
    assert "<td>4.00</td><td>2.00</td><td>50 %</td><td>pyg</td><td>2.10</td><td>2.00</td>" in text


def test_records_without_a_floor_are_shown_without(tmp_path):
    append_bench_records(tmp_path, [record("a", 8.0, floor=None)])
    assert "<td>8.00</td><td>-</td><td>-</td>" in page(read_history(tmp_path))


def test_an_empty_folder_is_one_sentence_and_exit_code_2(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["history", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err.startswith(f"history: There is no .jsonl file in {tmp_path}")
