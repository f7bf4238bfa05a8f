import json
import re
import subprocess
import sys

import pytest

from graphjoule.tasks import DATASETS
from graphjoule.tasks.datasets import FAMILIES

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
    assert headings == list(dict.fromkeys(row.group for row in (*DATASETS.values(), *FAMILIES)))


def test_datasets_with_a_number_are_listed_by_their_families(empty):
    said = run("data", "--data-root", empty).out
    for family in FAMILIES:
        assert f"  {family.name} " in said
        assert family.description in said


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


# Tables of one's own.

PEOPLE = "id,age,city,joined,price\na,34,Rome,2020-01-31,1.5\nb,,Oslo,2020-02-01,2.5\nc,29,Rome,,\nd,31,Rome,,9.25\n"


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.csv").write_text(PEOPLE)
    (tmp_path / "friends.csv").write_text("source,target\na,b\nb,c\nc,zoe\n")
    return ("data", "check", "people.csv", "friends.csv", "--label", "price")


def test_tables_are_checked_before_anything_trains(tables):
    result = run(*tables, "--objective", "regression")
    assert (result.code, result.err) == (0, "")
    text = re.sub(r"[│┃━┏┓┡┩└┘─┴╇┳\s]+", " ", result.out)
    assert "people.csv: 4 nodes, called by 'id' column kind missing what becomes of it" in text
    assert "age number 1 standardised: mean 31.33, deviation 2.055; missing is the mean" in text
    assert "joined date 2 days, standardised" in text
    assert "target: 'price', regression; 3 known, 1 to predict" in result.out
    assert "edges: friends.csv: 3 rows, 1 row naming no node left out, every row counts in both" in result.out


def test_what_a_training_would_refuse_is_refused_after_all_that_can_be_said(tables):
    result = run(*tables)
    assert result.code == 2
    assert "joined" in result.out
    assert result.err == (
        "graphjoule: people.csv: the column 'price' has 3 different numbers in 3 labels; say --objective regression to "
        "predict numbers, or --objective classification to take each for a class.\n"
    )


def test_a_name_in_a_table_does_not_steer_the_terminal(tables, tmp_path):
    (tmp_path / "people.csv").write_text(PEOPLE.replace("city", "\x1b[31mcity").replace("Oslo", "\u202eOslo"))
    (tmp_path / "friends.csv").write_text("source,target,kind\na,b,\x1b]0;new title\x07\n")
    said = run(*tables, "--edge-type", "kind", "--objective", "regression").out
    assert r"\x1b[31mcity" in said
    assert r"types from 'kind' (\x1b]0;new title\x07 1)" in said
    assert not {"\x1b", "\x07", "\u202e"} & set(said)


def test_a_check_for_a_program(tables):
    told = json.loads(run(*tables, "--objective", "regression", "--json").out)
    assert told["columns"][1] == {
        "name": "city",
        "kind": "category",
        "missing": 0,
        "becomes": "one feature for each of 2 categories",
    }
    assert told["problems"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chekc", "a.csv"], "graphjoule data chekc a.csv is not a command; expected data check NODES [EDGES]."),
        (["check"], "There is no table to check; expected graphjoule data check NODES [EDGES]."),
        (
            ["--nodes", "people.csv"],
            "graphjoule data lists all datasets and takes no graph; graphjoule data check NODES [EDGES] reads tables.",
        ),
        (["check", "no.csv"], "There is no file no.csv."),
        (["check", "people.csv", "--weight", "w"], "--weight is w, but it is for --edges, which is not given."),
    ],
)
def test_a_check_of_nothing(tables, words, said):
    result = run("data", *words)
    assert (result.code, result.out, result.err) == (2, "", f"graphjoule: {said}\n")


def test_a_check_imports_no_torch(tables):
    code = "import sys; from graphjoule.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    arguments = [sys.executable, "-c", code, *tables, "--objective", "regression"]
    assert subprocess.run(arguments, check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["people.csv", "friends.csv", "--test-fraction", "7"], "The test fraction is 7.0; expected whole percents"),
        (["people.csv", "friends.csv", "--edges", "more.csv"], "--edges is more.csv and the second table friends.csv;"),
        (["people.csv", "--knn", "4"], "4 neighbours were asked for; with 4 nodes it must be 1 to 3."),
        (["people.csv", "friends.csv", "--features", ","], "--features names no column; expected one at least"),
    ],
)
def test_a_check_refuses_what_a_training_refuses(tables, words, said):
    result = run("data", "check", *words, "--label", "price", "--objective", "regression")
    assert result.code == 2
    assert f"graphjoule: {said}" in result.err


@pytest.mark.parametrize("rows", ["", "a,b,0\n", "a,a,1\n"])
def test_a_check_says_that_a_graph_has_no_edges(tables, tmp_path, rows):
    (tmp_path / "friends.csv").write_text(f"source,target,weight\n{rows}")
    assert "no row is left to be an edge: the graph has no edges" in run(*tables, "--objective", "regression").out


def test_a_check_counts_single_values_that_are_blank(tables):
    result = run(*tables[:-2], "--label", "price,age", "--objective", "regression")
    assert "4 known, 0 to predict, and 2 single values of the others that are blank" in result.out
