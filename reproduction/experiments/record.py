"""How an experiment leaves its record: one file at the end, or a line for each cell as it goes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from graphjoule.training import describe_device, versions

__all__ = ["Cells", "read_cells", "write_record"]


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record as indented JSON; its folder is made if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_cells(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; none where there is no file."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows


class Cells:
    """The lines of a file, by key; a cell that is there is not computed again.

    Several processes with other keys each may write to one file; a line that a kill left in half is computed again.
    """

    def __init__(self, path: Path, seconds: float, device: torch.device) -> None:
        self.path, self.device, self.end = path, device, time.monotonic() + seconds
        self.found = {row["key"]: row for row in read_cells(path)}

    def get(self, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The cell of a key, computed and written if it is not there."""
        if key not in self.found:
            if time.monotonic() > self.end:
                raise SystemExit(f"Out of time before {key}; call again to go on.")
            begin = time.monotonic()
            row = {"key": key, **make(), "wall_seconds": round(time.monotonic() - begin, 2)}
            row |= {"device": describe_device(self.device), "versions": versions()}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            is_torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n" * is_torn + json.dumps(row) + "\n")
            self.found[key] = row
            brief = ("key", "val_accuracy", "test_accuracy", "test_mae", "drift", "wall_seconds")
            print({name: row[name] for name in brief if name in row}, flush=True)
        return self.found[key]

    def best(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """The settings of the row with the highest validation accuracy; of equals the lowest loss."""
        best = max(rows, key=lambda row: (round(row.get("val_accuracy", 0.0), 4), -row.get("val_loss", math.inf)))
        settings: dict[str, Any] = best["settings"]
        return settings
