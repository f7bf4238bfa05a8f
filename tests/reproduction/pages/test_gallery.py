"""The gallery's pictures and table come from its records, and leave gaps where a record has no number."""

import json

from reproduction.pages.gallery import gallery_figures, gallery_rows, gallery_table


def row(model, layers, *, last=0.5, reach=2.0, accuracy=0.8, seed=0):
    state = {"rayleigh": [1.0] * (layers - 1) + [last], "effective_rank": [3.0] * layers}
    state["reach"] = None if reach is None else {"mean": reach}
    return {
        **{"model": model, "layers": layers, "seed": seed, "test_accuracy": accuracy},
        **{"initial": state, "trained": state},
    }


def test_a_panel_for_each_architecture_and_words_for_what_it_shows():
    energy, rank, reach = gallery_figures([row("GCN", 2), row("GCN", 4, last=None), row("GAT", 2, reach=None)])
    assert [figure.name for figure in (energy, rank, reach)] == ["gallery-energy", "gallery-rank", "gallery-reach"]
    assert [panel.title for panel in energy.drawing.panels] == ["GCN", "GAT"]
    assert "GCN none and none, GAT 0.5 and 0.5" in energy.alt
    assert "GCN 2 and 2, GAT none and none" in reach.alt
    assert [list(line.x) for line in energy.drawing.panels[0].lines] == [[1, 2], [1, 2, 3], [1, 2, 3]]
    assert [list(line.y) for line in reach.drawing.panels[1].lines] == [[], []]
    assert gallery_figures([]) == []


def test_the_table_has_the_mean_over_seeds():
    rows = [row("GCN", 2, accuracy=0.8), row("GCN", 2, accuracy=0.7, seed=1), row("GAT", 4, accuracy=0.123)]
    assert gallery_table(rows).splitlines()[2:] == ["| GCN | 75.0 | - |", "| GAT | - | 12.3 |"]


def test_rows_are_sorted_and_a_torn_line_is_left_out(tmp_path):
    file = tmp_path / "gallery.jsonl"
    cells = (("EGNN", 2), ("GCN", 4), ("GCN", 2))
    lines = [json.dumps({"key": f"{name} {n}", "model": name, "layers": n, "seed": 0}) for name, n in cells]
    file.write_text("\n".join([*lines, '{"model": "GC']))
    assert [(r["model"], r["layers"]) for r in gallery_rows(file)] == [("GCN", 2), ("GCN", 4), ("EGNN", 2)]
    assert gallery_rows(tmp_path / "none.jsonl") == []
