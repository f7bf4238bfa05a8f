"""The plan of the house: which room may import which, where tests are, and that documents quote the same plan."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC, TESTS = ROOT / "src" / "graphjoule", ROOT / "tests"
ROOMS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["graphjoule"]["rooms"]
FILES = sorted(
    path for path in SRC.rglob("*.py") if path.parent != SRC or path.name not in ("__init__.py", "__main__.py")
)
# What has no test file of its own, and why.
UNTESTED = {
    "version.py": "a number",
    "ops/triton_gather.py": "kernels; tested through the ops that launch them",
    "ops/triton_layer.py": "kernels; tested through the ops that launch them",
    "ops/triton_norm.py": "kernels; tested through the ops that launch them",
    "ops/stack_cpu.py": "a backend of egnn.py, tested there",
    "ops/stack_native.py": "a backend of egnn.py, tested there",
    "ops/stack_norm.py": "a backend of egnn.py, tested there",
    "ops/stack_triton.py": "a backend of egnn.py, tested there",
    "ops/backend.py": "every test of ops/ chooses backends",
    "nn/resgcn.py": "nn/test_contract.py holds every network against its dense formula",
    "tasks/encoders.py": "tasks/test_facts.py, which reads them back, and tasks/test_columns.py, which makes them",
    "studies/collection.py": "studies/test_ledger.py and test_worker.py, which read through it",
    "cli/source.py": "cli/test_own_graph.py",
    "cli/predict.py": "cli/test_own_graph.py",
}
# Tests that are about no single file.
ABOUT_ALL = {
    "test_layers.py",
    "test_docs.py",
    "test_examples.py",
    "test_draw_smoothing.py",
    "test_loops.py",  # the table of docs/loops.md
    "tools/test_persistent.py",  # of no file of the package
    "test_objectives.py",  # what all models promise for all objectives
    "faults/test_attack.py",  # every command, while the disk fails and the process is killed
    "faults/test_fuzz_settings.py",  # every parser, on files that lie
    "faults/test_fuzz_tables.py",
    "faults/test_fuzz_trained.py",
    "faults/test_load.py",  # many at once
    "nn/test_contract.py",  # what all networks promise
    "nn/test_changed_layers.py",  # EGNN's and GCNII's, which a fused stack may compute
    "nn/test_relatives.py",  # which network is a special case of which
    "cli/test_bad_input.py",  # every refusal of every command
    "cli/test_own_graph.py",  # a user's files, from training to prediction
}


def room_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """The rooms that a file imports when it is imported itself; what functions and type checkers import is theirs."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("graphjoule"):
            parts = (node.module or "").split(".")
            found.update([parts[1]] if len(parts) > 1 else [alias.name for alias in node.names])
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found & set(ROOMS)


def test_every_file_is_in_a_room():
    assert {room_of(path) for path in FILES} == set(ROOMS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_a_file_imports_only_from_its_room_and_from_rooms_above(path):
    own = ROOMS.index(room_of(path))
    assert [room for room in sorted(imported_rooms(path)) if ROOMS.index(room) > own] == []


def test_tests_mirror_the_package_to_the_file():
    sources = {str(path.relative_to(SRC)) for path in FILES if path.name != "__init__.py"}
    tests = {str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py")}
    tests = {name for name in tests if not name.startswith("reproduction/")} - ABOUT_ALL
    expected = {str(Path(name).with_name(f"test_{Path(name).name}")) for name in sources - UNTESTED.keys()}
    assert sorted(tests - expected) == [], "tests without their source file"
    assert sorted(expected - tests) == [], "source files without their tests"


def test_the_list_of_what_has_no_test_is_true():
    assert all((SRC / name).is_file() for name in UNTESTED)


@pytest.mark.parametrize("document", ["README.md", "docs/contributing.md"])
def test_documents_quote_the_rooms_in_their_order(document):
    quoted = ", ".join(f"`{room}`" for room in ROOMS if room != "version")
    assert quoted in " ".join((ROOT / document).read_text().split())
