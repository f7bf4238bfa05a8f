"""The paper is written with public names alone: what a package lists in `__all__`, and nothing behind it."""

import ast
import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "reproduction"
FILES = sorted(FOLDER.rglob("*.py"))


def hidden_names(source):
    """Imports from graphjoule that are not names in the `__all__` of a package."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] == "graphjoule"]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "graphjoule":
            door = importlib.import_module(node.module)
            public = getattr(door, "__all__", ()) if hasattr(door, "__path__") else ()  # a file is no door
            found += [f"{node.module}.{alias.name}" for alias in node.names if alias.name not in public]
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(FOLDER)))
def test_only_public_names_are_imported(file):
    assert hidden_names(file.read_text()) == []


@pytest.mark.parametrize(
    ("source", "hidden"),
    [
        ("from graphjoule import fit, GraphjouleError", []),
        ("from graphjoule.studies import find_study", []),
        ("from graphjoule.report import picture", []),
        ("from graphjoule.report.drawings import picture", ["graphjoule.report.drawings.picture"]),
        ("import graphjoule", ["graphjoule"]),
        ("import graphjoule.files", ["graphjoule.files"]),
        ("from graphjoule.files import write_json", ["graphjoule.files.write_json"]),
        ("from graphjoule.studies.study import Cell", ["graphjoule.studies.study.Cell"]),
        ("def late():\n    from graphjoule.studies import worker", ["graphjoule.studies.worker"]),
    ],
)
def test_a_name_behind_a_door_is_found(source, hidden):
    assert hidden_names(source) == hidden
