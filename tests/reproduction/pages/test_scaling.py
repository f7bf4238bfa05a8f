"""The tables over the number of nodes say what their records say, and why a size is missing."""

import json

import pytest

from reproduction.pages import scaling

GIB = 2**30
SETTINGS = {"layers": 4, "width": 32}


def side(inference, epoch):
    def phase(value):
        if isinstance(value, str):
            return {"failed": value}
        return {"seconds": value, "is_warm": value < 10, "peak_bytes": int(value * GIB)}

    return {"inference": phase(inference), "epoch": phase(epoch)}


TURNS = {
    phase: {"repeats": 3, "ms": {"ours": [10.0, 9.0, 11.0], "pyg-csr": [25.0, 24.0, 26.0]}, "ratio": [2.4, 2.2, 2.6]}
    for phase in ("inference", "epoch")
}


def size(nodes, ours, peer, turns, **more):
    about = {
        "key": f"cpu {nodes}",
        "settings": SETTINGS,
        "nodes": nodes,
        "edges": 5 * nodes,
        "device": "cpu (2 threads)",
    }
    return (
        about
        | {"alone": {"ours": ours, "pyg-csr": peer}, "turns": turns, "product_ms": 2.0, "free_bytes": 16 * GIB}
        | more
    )


def way(seconds, *peaks):
    return {"seconds_per_epoch": seconds, "seconds_before": 0.5, "peak_bytes": [int(peak * GIB) for peak in peaks]}


def ways(nodes, exact, clusters, processes):
    about = {"key": f"cpu ways {nodes}", "settings": SETTINGS, "nodes": nodes, "edges": 5 * nodes, "device": "cpu"}
    return about | {"ways": {"exact": exact, "clusters": clusters, "processes": processes}}


ROWS = [
    size(1000, side(0.5, 1.0), side(0.5, 2.0), TURNS),
    size(2000, side(4.0, 12.0), side(5.0, "out of memory"), {"failed": "a side does not fit"}),
    {"key": "cpu 3000", "settings": SETTINGS, "nodes": 3000, "failed": "killed by SIGKILL"},
    ways(1000, way(1.0, 1.0), way(2.0, 2.0), way(1.5, 0.75, 0.5)),
    ways(2000, way(4.0, 2.0), way(5.0, 1.0), way(3.0, 1.25, 1.0)),
    ways(3000, {"failed": "out of memory"}, way(9.0, 2.0), {"failed": "killed by SIGKILL"}),
]


def cells(table, start):
    (line,) = (line for line in table.splitlines() if line.startswith(start))
    return [part.strip() for part in line.strip("|").split("|")]


def test_turns_give_both_ratios_and_the_floor():
    row = cells(scaling.scaling_table(ROWS), "| 1,000 ")
    assert row[:3] == ["1,000", "5,000", "cpu (2 threads)"]
    assert row[3:7] == ["10.0 ms, 0.50 GiB", "25.0 ms, 0.50 GiB", "2.40 (2.20 to 2.60; of medians 2.50)", "1.25"]
    assert row[7:] == ["10.0 ms, 1.00 GiB", "25.0 ms, 2.00 GiB", "2.40 (2.20 to 2.60; of medians 2.50)", "0.42"]


def test_a_side_that_does_not_fit_says_so_and_a_single_pass_is_marked():
    row = cells(scaling.scaling_table(ROWS), "| 2,000 ")
    assert row[3:6] == ["4,000 ms, 4.00 GiB", "5,000 ms, 5.00 GiB", "1.25 (not in turns)"]
    assert row[7:10] == ["12,000 ms, 12.00 GiB, first pass", "does not fit into 16 GiB", "-"]
    assert cells(scaling.scaling_table(ROWS), "| 3,000 ")[1:4] == ["-", "-", "killed by SIGKILL"]


def test_where_clusters_and_processes_pay_is_said():
    table = scaling.ways_table(ROWS)
    assert cells(table, "| 2,000 | cpu | two")[3:] == ["3 s", "0.75", "1.25 + 1.00 GiB", "1.12", "0.5 s"]
    assert cells(table, "| 3,000 | cpu | whole")[3] == "out of memory"
    assert "- Clusters (cpu): faster from 3,000 nodes on, smaller in memory from 2,000 nodes on." in table
    assert "- Two processes (cpu): not faster at the largest size, not smaller in memory at the largest size." in table


def test_a_graph_that_cannot_be_made_is_a_reason_in_its_own_table():
    row = {"key": "cuda ways 4000", "settings": SETTINGS, "nodes": 4000, "failed": "out of memory"}
    assert scaling.scaling_table([row]) == ""
    table = scaling.ways_table([*ROWS, row])
    assert cells(table, "| 4,000 | - | clusters")[3] == "out of memory"
    assert "- Clusters (cuda): not faster at the largest size" in table
    assert "- Clusters (cpu): faster from 3,000 nodes on" in table


def test_without_records_there_is_nothing(tmp_path):
    assert scaling.read_scaling(tmp_path / "nowhere") == []
    assert scaling.scaling_table([]) == scaling.ways_table([]) == ""


def test_the_latest_line_of_a_size_counts_and_sizes_are_sorted(tmp_path):
    old = size(1000, side(9.0, 9.0), side(9.0, 9.0), {})
    lines = [ROWS[1], old, ROWS[0]]
    (tmp_path / "cpu.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = scaling.read_scaling(tmp_path)
    assert [row["nodes"] for row in rows] == [1000, 2000]
    assert rows[0]["turns"] == TURNS


def test_a_device_has_a_picture(tmp_path):
    scaling.pictures(ROWS, tmp_path)
    (picture,) = tmp_path.iterdir()
    assert picture.name == "scaling-cpu-2-threads.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"](images/{picture.name})" in scaling.scaling_table(ROWS)


@pytest.mark.parametrize("phase", ["inference", "epoch"])
def test_a_gpu_has_no_floor_by_scipy(phase):
    row = {key: value for key, value in ROWS[0].items() if key != "product_ms"}
    assert scaling.phase_cells(row, phase)[3] == "-"
