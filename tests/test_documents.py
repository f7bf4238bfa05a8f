"""What README and docs show: examples run, tables are those of the records."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["constraint", "datasets", "measures", "own-graph", "report", "reproduce", "theory"]
TABLED = ["README.md", "docs/performance.md", "docs/models.md", "docs/trace.md"]


def python_blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("number", range(2))
def test_readme_examples_run(number, capsys):
    blocks = python_blocks("README.md")
    assert len(blocks) == 2
    exec(compile(blocks[number], f"README.md, example {number}", "exec"), {})
    assert capsys.readouterr().out


def test_examples_of_the_theory_run(capsys):
    (block,) = python_blocks("docs/theory.md")
    exec(compile(block, "docs/theory.md", "exec"), {})
    assert "connected component" in capsys.readouterr().out


@pytest.mark.parametrize("name", TABLED)
def test_tables_are_those_of_the_records(name):
    spec = importlib.util.spec_from_file_location("write_tables", ROOT / "benchmarks/write_tables.py")
    write_tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(write_tables)
    text = (ROOT / name).read_text()
    assert "<!-- table " in text
    assert write_tables.with_tables(text) == text


@pytest.mark.parametrize(
    "name",
    [
        *TABLED,
        *(f"docs/{page}.md" for page in PAGES),
        "results/README.md",
    ],
)
def test_files_that_documents_name_are_there(name):
    text = re.sub(r"```.*?```", "", (ROOT / name).read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("http"):
            assert ((ROOT / name).parent / target).exists(), target
