"""``python -m tests.faults.million --out million.json``: how long a report on a million records takes."""

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from graphjoule.fitting import fit
from graphjoule.report import read_cells, report_page
from graphjoule.training.records import append_record
from tests.training import small_recipe, small_task


def write_records(path: Path, number: int) -> None:
    """Records of so many seeds of one recipe, all but the seed, the id and one score alike."""
    record = fit(small_recipe(epochs=3), small_task()).records[0]
    append_record(path, record)
    fields = json.loads(path.read_text())
    with path.open("w") as file:
        for seed in range(number):
            fields["seed"], fields["run_id"] = seed, f"{seed:016x}"
            fields["val"]["accuracy"] = (seed % 997) / 997
            file.write(json.dumps(fields) + "\n")


def main() -> None:
    """Measure, print, write the record."""
    parser = argparse.ArgumentParser(description="The time of a report on many records.")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write_records(Path(name) / "records.jsonl", options.records)
        wall, cpu = time.perf_counter(), time.process_time()
        cells = read_cells(Path(name), lambda runs: None, trace=False)  # type: ignore[arg-type, return-value]
        read = time.process_time() - cpu
        page = report_page(cells, title="many")
        record = {
            "records": sum(len(cell.records) for cell in cells),
            "cpu_seconds": round(time.process_time() - cpu, 1),
            "of_it_reading": round(read, 1),
            "wall_seconds": round(time.perf_counter() - wall, 1),
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "page_bytes": len(page.encode()),
        }
    print(json.dumps(record))
    if options.out:
        options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
