import json
import re

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
        for text in (source.description, f"Split: {source.split}", f"From: {source.origin}"):
            assert text in result.out
    states = dict(re.findall(r"^  (\S+) +(here|downloaded at first use)$", result.out, flags=re.MULTILINE))
    assert states == {name: "here" if name == "digits" else "downloaded at first use" for name in DATASETS}
    assert f"Data root: {empty}" in result.out
    assert not empty.exists()  # looking is not making


def test_each_group_is_a_heading_once(empty):
    lines = run("data", "--data-root", empty).out.splitlines()
    headings = [line for line in lines if line and not line.startswith((" ", "Data root"))]
    assert headings == list(dict.fromkeys(source.group for source in DATASETS.values()))


def test_json_says_the_same_to_a_program(empty):
    result = run("data", "--json", "--data-root", empty)
    rows = json.loads(result.out)
    assert [(row["name"], row["present"]) for row in rows] == [(name, name == "digits") for name in DATASETS]
    assert all(row.keys() == {"name", "group", "description", "split", "origin", "present"} for row in rows)


def test_raw_files_that_are_there_are_seen(empty):
    folder = empty / "Cora" / "raw"
    folder.mkdir(parents=True)
    for file in DATASETS["cora"].raw.files:
        (folder / file).touch()
    present = {row["name"]: row["present"] for row in json.loads(run("data", "--json", "--data-root", empty).out)}
    assert present == {name: name in ("cora", "digits") for name in DATASETS}


def test_arxiv_is_seen_as_a_zip_and_as_a_folder(empty):
    def is_there():
        return {row["name"]: row["present"] for row in json.loads(run("data", "--json", "--data-root", empty).out)}[
            "arxiv"
        ]

    empty.mkdir()
    (empty / "arxiv.zip").touch()
    assert is_there()
    (empty / "arxiv.zip").unlink()
    assert not is_there()
    for file in DATASETS["arxiv"].raw.files:
        path = empty / "ogbn_arxiv" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert is_there()
    path.unlink()
    assert not is_there()


def test_the_environment_names_the_data_root(empty, monkeypatch):
    monkeypatch.setenv("GRAPHJOULE_DATA", str(empty))
    assert f"Data root: {empty}  (change it with --data-root or GRAPHJOULE_DATA)" in run("data").out
