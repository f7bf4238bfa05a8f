"""How an experiment leaves its record: one file at the end, or a line for each cell as it goes."""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from graphjoule.training import describe_device, versions

__all__ = ["Cells", "ranked", "read_cells", "write_record"]


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record as indented JSON; its folder is made if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_cells(path: Path) -> dict[str, dict[str, Any]]:
    """The whole lines of a file by their key, of two with a key the later one; none where there is no file."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with suppress(json.JSONDecodeError):
            row = json.loads(line)
            found[row["key"]] = row
    return found


def ranked(rows: list[dict[str, Any]], score: str = "accuracy") -> list[dict[str, Any]]:
    """Cells by falling validation score; of equals the lowest loss first."""
    name = f"val_{score}"
    return sorted(rows, key=lambda row: (-round(row.get(name, 0.0), 4), row.get("val_loss", math.inf)))


class Cells:
    """The lines of a file, by key; a cell that is there is not computed again.

    Several processes with other keys each may write to one file; a line that a kill left in half is computed again.
    """

    def __init__(self, path: Path, seconds: float, device: torch.device) -> None:
        self.path, self.device, self.end = path, device, time.monotonic() + seconds
        self.found = read_cells(path)

    def get(
        self, key: str, settings: Mapping[str, Any], make: Callable[[], dict[str, Any]], runs: int = 0
    ) -> dict[str, Any]:
        """The cell of a key, computed and written if it is not there with these settings and as many runs."""
        row = self.found.get(key, {})
        if row.get("settings") != settings or len(row.get("epochs", [])) < runs:
            if time.monotonic() > self.end:
                raise SystemExit(f"Out of time before {key}; call again to go on.")
            held = self._hold()
            begin = time.monotonic()
            row = {"key": key, "settings": settings, **make(), "wall_seconds": round(time.monotonic() - begin, 2)}
            if self.device.type == "cuda":  # of this cell alone, however many runs it trains at once
                row["peak_bytes"] = torch.cuda.max_memory_allocated(self.device) - held
            row |= {"device": describe_device(self.device), "versions": versions()}
            self._write(row)
            brief = ("key", "val_accuracy", "test_accuracy", "test_mae", "drift", "wall_seconds")
            print({name: row[name] for name in brief if name in row}, flush=True)
        return self.found[key]

    def copy(self, row: dict[str, Any], key: str) -> None:
        """Write a cell under another key, unless it is there."""
        if self.found.get(key, {}).get("settings") != row["settings"]:
            self._write(row | {"key": key})

    def _write(self, row: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" * is_torn + json.dumps(row) + "\n")
        self.found[row["key"]] = row

    def _hold(self) -> int:
        """Let go of what earlier cells left on the device; the bytes that are still there."""
        gc.collect()
        if self.device.type != "cuda":
            return 0
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        return torch.cuda.memory_allocated(self.device)

    def best(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """The settings of the row that validation ranks first."""
        settings: dict[str, Any] = ranked(rows)[0]["settings"]
        return settings
