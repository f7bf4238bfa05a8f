"""Tables in README and docs are those of the records."""

import json
from types import SimpleNamespace

import pytest

from reproduction.pages import tables
from reproduction.pages.tables import DOCUMENTS, ROOT, busy_table, middle_tries, with_tables


@pytest.mark.parametrize("name", DOCUMENTS)
def test_tables_are_those_of_the_records(name):
    text = (ROOT / name).read_text()
    assert "<!-- table " in text or "<!--= " in text  # a table, or numbers in sentences
    assert with_tables(text) == text


def test_the_page_has_the_middle_try_of_the_last_commit():
    def record(peer, ratio, commit, day):
        return SimpleNamespace(peer=peer, ratio=ratio, versions={"commit": commit}, created=f"2026-11-{day:02}")

    old = [record("pyg", 9.0, "a", 1), record("pyg-csr", 9.0, "a", 1)]
    new = [record("pyg", ratio, "b", 2) for ratio in (5.0, 3.0, 4.0)]
    assert [found.ratio for found in middle_tries([*old, *new]).values()] == [4.0]
    assert middle_tries(old) == {"pyg": old[0], "pyg-csr": old[1]}


def test_the_page_says_whether_threads_meet_their_aim(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    assert busy_table() == tables.NOT_RUN
    (tmp_path / "busy").mkdir()
    for ratio, verdict in ((1.31, "missed"), (1.3, "met")):
        loads = {"0": {"seconds": {"default": [1.0], "1": [2.0]}, "ratio": 0.5}}
        loads["2"] = {"seconds": {"default": [ratio], "1": [1.0], "2": []}, "ratio": ratio}
        (tmp_path / "busy/two-cores.json").write_text(json.dumps({"loads": loads}))
        said = f"{ratio:.2f} times as long as the best fixed number: the aim of 1.3 is {verdict}."
        assert f"| 2 | {ratio:.1f} s | 1.0 s | {ratio:.2f} |" in busy_table()
        assert busy_table().endswith(said)
        loads["2 late"] = {"seconds": {"default": [1.6], "1": [1.0]}, "ratio": 1.6}
        (tmp_path / "busy/two-cores.json").write_text(json.dumps({"loads": loads}))
        assert busy_table().endswith(
            f"{said} Where a load begins in a training of a few seconds, which notices it late, it took 1.60."
        )
