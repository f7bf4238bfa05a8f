"""``graphjoule verify`` on a study of one's own, and where a digit is changed."""

import json
import shutil
import sys

import pytest

from . import run

MINE = """
title = "Mine"
datasets = ["digits"]
models = ["gcn"]
depths = [2]
[[block]]
settings = { hidden_channels = 4, epochs = 2 }
[protocol]
select_on = "loss"
[reference]
name = "blog"
[[reference.rows]]
digits_2 = 50.0
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A study of one's own, with the ledger and the protocol that it leaves."""
    folder = tmp_path_factory.mktemp("verify")
    (folder / "mine.toml").write_text(MINE)
    result = run("study", folder / "mine.toml", "--device", "cpu", "--seeds", "2", "--out", folder / "out")
    assert result.code == 0, result.err
    return folder


@pytest.fixture
def mine(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "mine")
    return tmp_path / "mine"


def verified(folder, *options):
    return run("verify", folder / "out", "--study", folder / "mine.toml", "--no-pages", *options)


def spoil(path, old, new):
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


def test_a_study_passes_as_it_was_left_and_the_page_says_what_was_checked(mine):
    result = verified(mine, "--out", mine / "page.md")
    # The working copy that runs the tests may have changes, which a record says.
    assert "made by files that differ" in result.out or result.code == 0, result.out
    for said in ("**ok** (2): records are whole", "**ok** (3): ledgers beside the runs", "**ok** (2): the protocols"):
        assert said in result.out
    assert (mine / "page.md").read_text() == result.out


@pytest.mark.parametrize(
    ("pattern", "old", "new", "said"),
    [
        ("mine.md", "± ", "± 9", "mine.md, line 5: has"),
        ("mine.csv", ",50.0,", ",51.0,", "mine.csv, line 2: has"),
        ("*/records.jsonl", '"seed": 0', '"seed": 3', "its run_id is not that of its settings"),
        ("mine-*.protocol.json", "loss", "accuracy", "its hash is not that of its words"),
    ],
)
def test_one_digit_makes_it_fail_and_is_named(mine, pattern, old, new, said):
    (path,) = (mine / "out").glob(pattern)
    spoil(path, old, new)
    result = verified(mine)
    assert result.code == 1
    assert said in result.out


def test_a_ledger_of_a_study_that_is_not_known_asks_for_its_file(mine):
    result = run("verify", mine / "out", "--no-pages")
    assert result.code == 1
    assert "mine is not a known study; give its file with --study." in result.out


def test_some_runs_are_trained_again(mine):
    result = verified(mine, "--retrain", "1", "--device", "cpu", "--json")
    check = json.loads(result.out)[-1]
    assert (check["count"], check["problems"]) == (1, [])


def test_pages_are_those_of_the_project_that_one_stands_in(mine, monkeypatch):
    monkeypatch.chdir(mine)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (mine / "pyproject.toml").write_text('[tool.graphjoule]\npages = "mine_pages:texts"\n')
    (mine / "mine_pages.py").write_text('def texts():\n    return {"PAGE.md": "85.58\\n"}\n')
    (mine / "PAGE.md").write_text("85.53\n")
    result = run("verify", "out", "--study", "mine.toml")
    assert result.code == 1
    assert 'PAGE.md, line 1: has "85.53", the records give "85.58".' in result.out


def test_what_is_not_there_or_holds_no_records_is_a_sentence(tmp_path):
    assert "There is no file or folder" in run("verify", tmp_path / "none").err
    (tmp_path / "empty").mkdir()
    result = run("verify", tmp_path / "empty")
    assert (result.code, "No record of a run is in what was given" in result.err) == (2, True)


def test_a_file_that_is_there_is_replaced_if_it_is_an_earlier_page_and_else_refused(mine):
    page, kept = mine / "page.md", mine / "mine.toml"
    for _ in range(2):
        assert verified(mine, "--out", page).out == page.read_text()
    for place, said in ((kept, "is no page of graphjoule verify"), (mine / "none" / "page.md", "there is no folder")):
        result = verified(mine, "--out", place)
        assert (result.code, said in result.err) == (2, True)
    assert kept.read_text() == MINE


@pytest.mark.parametrize(
    "content",
    [
        b"{bad",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"asked": {}}',
        b'{"asked": {}, "study": ["a"]}',
        b'{"asked": {"datasets": 3}, "study": "table1"}',
        b'{"asked": {"datasets": [], "models": [], "layers": ["x"], "overrides": {}}, "study": "table1"}',
    ],
)
def test_a_damaged_ledger_is_a_problem_and_not_a_traceback_nor_passed_over(mine, content):
    (mine / "out" / "damaged.json").write_bytes(content)
    result = verified(mine)
    assert (result.code, "PROBLEM: " in result.out, "damaged.json" in result.out) == (1, True, True)


def test_hashes_of_what_is_no_file_are_a_problem_and_a_project_that_cannot_be_read_a_sentence(mine, monkeypatch):
    (mine / "out" / "SHA256SUMS").write_bytes(b"00  ../../../../../../../../../../dev/zero\n\xff  x\n")
    assert "dev/zero: is not a file" in verified(mine).out
    monkeypatch.chdir(mine)
    (mine / "pyproject.toml").write_text("x = [")
    result = run("verify", "out", "--study", "mine.toml")
    assert (result.code, "leave the pages out by --no-pages" in result.err) == (2, True)


def test_a_page_of_ones_own_that_begins_alike_is_kept(mine):
    own = "# Verified by hand\n\nMy notes.\n"
    (mine / "notes.md").write_text(own)
    result = verified(mine, "--out", mine / "notes.md")
    assert (result.code, "is no page of graphjoule verify" in result.err) == (2, True)
    assert (mine / "notes.md").read_text() == own


def test_records_that_are_all_damaged_are_problems(tmp_path):
    (tmp_path / "records.jsonl").write_text('{"run_id": "a"}\n' * 2)
    result = run("verify", tmp_path, "--no-pages")
    assert (result.code, "line 2 is not a whole record" in result.out) == (1, True)


@pytest.mark.parametrize("writer", ["nowhere:texts", "json:nothing", ":", "json"])
def test_a_project_whose_writer_cannot_be_imported_is_a_sentence(mine, monkeypatch, writer):
    monkeypatch.chdir(mine)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (mine / "pyproject.toml").write_text(f'[tool.graphjoule]\npages = "{writer}"\n')
    result = run("verify", "out", "--study", "mine.toml")
    assert (result.code, "cannot be imported" in result.err, result.err.count("\n")) == (2, True, 1)


def test_pages_that_cannot_be_written_any_more_are_a_problem_and_no_traceback(mine, monkeypatch):
    monkeypatch.chdir(mine)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (mine / "pyproject.toml").write_text('[tool.graphjoule]\npages = "lost_pages:texts"\n')
    (mine / "lost_pages.py").write_text('def texts():\n    raise KeyError("seed 3")\n')
    result = run("verify", "out", "--study", "mine.toml")
    assert (result.code, "PROBLEM: The pages cannot be written: KeyError: 'seed 3'" in result.out) == (1, True)


def test_a_ledger_that_is_not_text_is_a_problem(mine):
    for page in (mine / "out").glob("*.md"):
        page.write_bytes(b"\xff\xfe\n" + page.read_bytes())
    result = verified(mine)
    assert (result.code, "the records give" in result.out) == (1, True)
