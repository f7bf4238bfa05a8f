"""The pages of results: only what stands between marks is made, from the records of all studies."""

import gzip
import json

import pytest

from graphjoule import GraphjouleError
from graphjoule.studies import Cell, Collection
from reproduction.pages import BLOCKS, Results, fill_page, read_results
from reproduction.pages.page import StudyTime
from tests.studies import energy_record

from . import TABLE1, block, runs, table1_runs


def test_only_what_stands_between_marks_is_made_anew_and_the_second_time_nothing_changes():
    results = Results(Collection())
    page = "By hand: 12.3\n<!-- results time -->\nfrom before\n<!-- end -->\n<!-- results order -->\n<!-- end -->\nB\n"
    once = fill_page(page, results)
    assert "from before" not in once
    assert once.startswith("By hand: 12.3\n")
    assert once.endswith("<!-- end -->\nB\n")
    assert fill_page(once, results) == once


def test_a_mark_that_is_no_block_is_a_sentence():
    with pytest.raises(GraphjouleError, match=r'^"tabel1" is not a block of the results, did you mean "table1"\?'):
        fill_page("<!-- results tabel1 -->\n<!-- end -->", Results(Collection()))


@pytest.mark.parametrize("name", BLOCKS)
def test_without_records_every_block_is_there_and_says_so(name):
    text = block(name, Results(Collection(), unavailable=("arxiv",)))
    assert text
    assert "nan" not in text
    assert "None" not in text


def test_a_table_has_every_cell_of_the_paper_and_the_commands_for_the_others():
    text = block("table1", Results(Collection(table1_runs(datasets=["cora"])), unavailable=("arxiv",)))
    assert text.count("\n| ") == 96 + 4
    assert "### Table 1, arxiv" in text
    assert text.count("not run: data not available here") == 24
    assert "What is not run: `graphjoule study table1 --datasets arxiv`." in text
    assert "--datasets cora" not in text


def test_results_are_read_from_a_folder_of_studies(tmp_path):
    for name in ("table1", "depth", "more", "bodies"):
        (tmp_path / name).mkdir()
    own = dict(zip(("table1", "more", "bodies"), TABLE1.cells(["cora"], ["egnn"]), strict=True))
    for name, cell in own.items():
        text = "".join(record.model_dump_json() + "\n" for record in runs(cell, 80.0))
        (tmp_path / name / "x.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "depth" / "energies.json").write_text(energy_record(Cell("gcn", "cora", 2)).model_dump_json())
    time = {"wall_seconds": 700, "workers": 3, "device": "H", "command": "graphjoule study table1"}
    (tmp_path / "table1" / "time.json").write_text(json.dumps(time))
    results = read_results(tmp_path, ["more"])
    assert {record.num_layers for record in results.recorded} == {2, 16}  # what is in bodies counts for nothing
    assert [record.model for record in results.energies] == ["gcn"]
    assert block("time", results) == (
        "- `graphjoule study table1`: 12 min (700 s by the clock) on one H, 3 processes at once."
    )


def test_a_time_that_is_none_is_a_sentence(tmp_path):
    (tmp_path / "time.json").write_text('{"wall_seconds": 3}')
    with pytest.raises(
        GraphjouleError, match="is not the time of a study: expected command, device, wall_seconds, workers in"
    ):
        StudyTime.read(tmp_path / "time.json")
