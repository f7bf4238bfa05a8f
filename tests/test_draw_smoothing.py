"""The picture of docs/ideas.md shows what the page says."""

import importlib.util
from pathlib import Path

from graphjoule import dirichlet_energy

spec = importlib.util.spec_from_file_location(
    "draw_smoothing", Path(__file__).resolve().parent.parent / "docs/draw_smoothing.py"
)
picture = importlib.util.module_from_spec(spec)
spec.loader.exec_module(picture)


def test_plain_propagation_loses_the_groups_and_egnn_keeps_them():
    graph, places, x = picture.groups_of_friends()
    assert places.shape == (graph.num_nodes, 2)
    groups = x.view(picture.GROUPS, picture.SIZE)
    assert groups.std(dim=1).min() > 0.3 * groups.mean(dim=1).std()
    left, apart = [], []
    for setting in picture.NETWORKS.values():
        kept = picture.layers(x, graph, setting)
        left.append([float(dirichlet_energy(kept[k], graph) / dirichlet_energy(x, graph)) for k in picture.DEPTHS])
        apart.append(float(kept[32].view(picture.GROUPS, picture.SIZE).mean(dim=1).std() / groups.mean(dim=1).std()))
    assert [f"{100 * share:.3g}" for share in left[0][1:]] == ["10.6", "4.33", "0.132"]
    assert [f"{100 * share:.3g}" for share in left[1][1:]] == ["13.4", "8.67", "6.94"]
    assert apart[0] < 0.2 < 0.6 < apart[1]


def test_it_is_drawn_into_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr(picture, "FIGURE", tmp_path / "smoothing.png")
    picture.main()
    assert (tmp_path / "smoothing.png").read_bytes()[:4] == b"\x89PNG"
