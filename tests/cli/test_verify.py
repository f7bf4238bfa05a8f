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
