"""The pages of results and their pictures are what the one command makes of the committed records."""

import json
import re
from pathlib import Path

import pytest

from reproduction import write
from reproduction.pages.drawings import drawn_with

ROOT = write.ROOT


@pytest.fixture(scope="module")
def results():
    return write.all_results()


@pytest.fixture(scope="module")
def made(results):
    return write.results_files(results)


def without_versions(content):
    fields = json.loads(content)
    return fields.pop("drawn_with", None), fields


def test_texts_and_numbers_are_those_of_the_records(made):
    for name, content in made.items():
        there = (ROOT / name).read_bytes()
        if name.startswith("reproduction/data/") and name.endswith(".json"):
            assert without_versions(there)[1] == without_versions(content)[1], name
        else:
            assert there == content, name


def means_in_the_record_pages():
    pages = [(ROOT / page).read_text() for page in write.PAGES]
    return [float(found) for page in pages for found in re.findall(r"\b(\d+\.\d\d) ± ", page)]


def test_accuracies_of_the_constraint_that_are_written_by_hand_are_those_of_a_table():
    known = means_in_the_record_pages()
    short = (ROOT / "docs/constraint.md").read_text()
    parts = [(ROOT / "reproduction/CONSTRAINT.md").read_text().split("### What it means")[1].split("\n#")[0]]
    parts += [short.split("## Three ways to satisfy it")[1].split("\n#")[0]]
    parts += [short.split("## What the study found")[1].split("- **Leave out dropout**")[0]]
    written = [float(found) for part in parts for found in re.findall(r"\b[2-9]\d\.\d\b", part)]
    assert len(written) > 30
    assert [number for number in written if not any(abs(number - mean) < 0.0501 for mean in known)] == []


def test_accuracies_on_the_short_page_of_results_are_those_of_the_record_page():
    short, full = (ROOT / "docs/results.md").read_text(), (ROOT / "reproduction/RESULTS.md").read_text()
    written = re.findall(r"(?<!-->)\d+\.\d\d ± \d+\.\d\d", short)  # those in sentences have marks of their own
    assert len(written) > 72
    assert [cell for cell in written if cell not in full] == []


def test_every_number_that_stands_on_a_page_by_hand_is_listed_with_where_it_is_from():
    assert write.unbacked() == {}


def test_every_digit_of_a_page_counts(monkeypatch, tmp_path):
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(write, "pages", lambda root: ["README.md", "docs/ideas.md"])
    for page in ("README.md", "docs/ideas.md"):
        (tmp_path / page).write_text((ROOT / page).read_text())
    before, page = write.digits(tmp_path), tmp_path / "docs/ideas.md"
    text = page.read_text()
    page.write_text(text + "A sentence more.\n")
    assert write.digits(tmp_path) == before
    for place in [found.start() for found in re.finditer(r"\d", text)]:
        page.write_text(f"{text[:place]}{(int(text[place]) + 1) % 10}{text[place + 1 :]}")
        assert write.digits(tmp_path) != before


def test_a_changed_digit_on_a_page_is_named(monkeypatch, tmp_path):
    (tmp_path / "docs").mkdir()
    for page in ("README.md", "docs/export.md", "docs/reach.md"):
        (tmp_path / page).write_text((ROOT / page).read_text())
    monkeypatch.setattr(write, "pages", lambda root: ["README.md", "docs/export.md", "docs/reach.md"])
    assert write.unbacked(tmp_path) == {}
    export = tmp_path / "docs/export.md"
    export.write_text(export.read_text().replace("took 34 s", "took 35 s"))
    reach = tmp_path / "docs/reach.md"
    reach.write_text(reach.read_text() + "\nIt is 3.7 times as fast.\n")
    assert set(write.unbacked(tmp_path)) == {"docs/export.md", "docs/reach.md"}
    assert "took (neither from a record nor" in write.unbacked(tmp_path)["docs/export.md"]
    assert "34 s is in stated.toml and not here" in write.unbacked(tmp_path)["docs/export.md"]


@pytest.mark.slow  # twenty seconds of matplotlib
def test_pictures_are_the_same_bytes_where_the_same_versions_draw_them(results):
    pictures = write.pictures(results)
    assert pictures
    for name, content in pictures.items():
        data = ROOT / "reproduction/data" / f"{Path(name).stem}.json"
        if without_versions(data.read_bytes())[0] == drawn_with():
            assert (ROOT / name).read_bytes() == content, name


def test_no_data_are_left_from_a_drawing_that_is_no_longer_made(made):
    assert {path.name for path in (ROOT / "reproduction/data").iterdir()} == {
        Path(name).name for name in made if name.startswith("reproduction/data/")
    }


@pytest.mark.slow  # `make verify` does the same
def test_tables_and_numbers_in_sentences_of_readme_and_docs_are_those_of_the_records(results):
    for name, text in write.documents(results).items():
        assert (ROOT / name).read_text() == text, name
    for name, text in write.sums().items():
        assert (ROOT / name).read_text() == text, name


@pytest.mark.slow  # texts are compared with the files above, and one drawing is drawn twice in tests/report/drawings
def test_the_command_gives_the_same_bytes_twice(made):
    assert write.results_files(write.all_results()) == made


@pytest.mark.slow
def test_nothing_else_in_the_docs_differs_from_its_records(results):
    for name, content in write.other_files(results).items():
        if not name.endswith(".png"):
            assert (ROOT / name).read_bytes() == content, name
