"""Print the size of the house: `python tools/house.py [--train]`.

Lines and files of ``src/``, loose modules, public names, and with ``--train`` the files in which a function runs during
``graphjoule train --dataset cora``, which needs the raw data (``GRAPHJOULE_DATA``) and some seconds.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "graphjoule"
NOT_LOOSE = {"__init__.py", "__main__.py", "version.py"}


def files() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def public_names() -> int:
    tree = ast.parse((SRC / "__init__.py").read_text())
    (names,) = (
        n.value for n in tree.body if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "__all__"
    )
    return len(ast.literal_eval(names))


def questions_about_parts() -> list[str]:
    return _matching(re.compile(r"part is (not )?None"), outside="parallel")


def options_outside_cli() -> list[str]:
    return _matching(re.compile(r"(?<![\w-])--[a-z][a-z-]+"), outside="cli")


def _matching(pattern: re.Pattern[str], outside: str) -> list[str]:
    return [
        f"{path.relative_to(SRC)}:{number}: {line.strip()}"
        for path in files()
        if path.relative_to(SRC).parts[0] != outside
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if pattern.search(line)
    ]


def files_of_a_training() -> set[str]:
    """Files of the package in which a function runs; the body of a module or a class is none."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(str(SRC)):
            seen.add(code.co_filename)

    from graphjoule.cli import main

    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["graphjoule", "train", "--dataset", "cora", "--epochs", "2", "--out", f"{folder}/run"]
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
        finally:
            sys.setprofile(None)
    return {str(Path(name).relative_to(SRC)) for name in seen}


def main() -> None:
    paths = files()
    lines = sum(len(path.read_text().splitlines()) for path in paths)
    loose = [path.name for path in SRC.glob("*.py") if path.name not in NOT_LOOSE]
    print(f"lines in src/              {lines:,}   (aim 20,000)")
    print(f"files in src/              {len(paths)}   (aim 170)")
    print(f"loose modules              {len(loose)}   (aim 4): {', '.join(sorted(loose))}")
    print(f"public names at the door   {public_names()}   (aim 25)")
    for name, rows in (("part is None", questions_about_parts()), ("options outside cli/", options_outside_cli())):
        print(f"{name:<26} {len(rows)}   (aim 0)")
        for row in rows[:20]:
            print(f"    {row}")
    if "--train" in sys.argv:
        found = sorted(files_of_a_training())
        print(f"files of one training      {len(found)}   (aim 30)")
        for name in found:
            print(f"    {name}")


if __name__ == "__main__":
    main()
