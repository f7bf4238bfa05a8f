import json

import pytest

from graphjoule.tasks import DATASETS

from . import run


@pytest.fixture
def empty(tmp_path):
    return tmp_path / "data"


def test_every_dataset_is_listed_with_what_it_is_where_it_comes_from_and_whether_it_is_here(empty):
    result = run("data", "--data-root", empty)
    assert (result.code, result.err) == (0, "")
    for source in DATASETS.values():
        assert source.description in result.out
        assert source.origin in result.out
    states = [line.split(maxsplit=1) for line in result.out.splitlines() if line and not line.startswith((" ", "Data"))]
    assert dict(states) == {
        "cora": "downloaded at first use",
        "digits": "here",
        "physics": "downloaded at first use",
        "pubmed": "downloaded at first use",
    }
    assert f"Data root: {empty}" in result.out
    assert not empty.exists()  # looking is not making


def test_json_says_the_same_to_a_program(empty):
    result = run("data", "--json", "--data-root", empty)
    rows = json.loads(result.out)
    assert [(row["name"], row["present"]) for row in rows] == [(name, name == "digits") for name in DATASETS]
    assert all(row.keys() == {"name", "description", "origin", "present"} for row in rows)


def test_raw_files_that_are_there_are_seen(empty):
    folder = empty / "Cora" / "raw"
    folder.mkdir(parents=True)
    for file in DATASETS["cora"].raw.files:
        (folder / file).touch()
    present = {row["name"]: row["present"] for row in json.loads(run("data", "--json", "--data-root", empty).out)}
    assert present == {"cora": True, "digits": True, "physics": False, "pubmed": False}


def test_the_environment_names_the_data_root(empty, monkeypatch):
    monkeypatch.setenv("GRAPHJOULE_DATA", str(empty))
    assert f"Data root: {empty}  (change it with --data-root or GRAPHJOULE_DATA)" in run("data").out
