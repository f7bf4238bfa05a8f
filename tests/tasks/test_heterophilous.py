import numpy as np
import pytest
import torch
from torch_geometric.datasets import HeterophilousGraphDataset

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.heterophilous import (
    AMAZON_RATINGS,
    MINESWEEPER,
    QUESTIONS,
    ROMAN_EMPIRE,
    TOLOKERS,
    load_heterophilous,
)

ALL = [ROMAN_EMPIRE, AMAZON_RATINGS, MINESWEEPER, TOLOKERS, QUESTIONS]
NUM_NODES, NUM_SPLITS = 12, 10


def tiny_arrays():
    """Twelve nodes in a chain with a self-loop and an edge given both ways; ten splits in halves and quarters."""
    random = np.random.RandomState(0)
    order = np.stack([random.permutation(NUM_NODES) for _ in range(NUM_SPLITS)])
    masks = {"train_masks": order < 6, "val_masks": (order >= 6) & (order < 9), "test_masks": order >= 9}
    chain = np.stack([np.arange(NUM_NODES - 1), np.arange(1, NUM_NODES)], axis=1)
    return masks | {
        "node_features": random.standard_normal((NUM_NODES, 3)).astype(np.float32),
        "node_labels": np.arange(NUM_NODES) % 2,
        "edges": np.concatenate([chain, [[1, 0], [4, 4]]]),
    }


@pytest.fixture
def save(tmp_path):
    """Writes the arrays under a data root, with some of them changed."""

    def write(raw=ROMAN_EMPIRE, **changes):
        raw.folder(tmp_path).mkdir(parents=True, exist_ok=True)
        arrays = {key: value for key, value in (tiny_arrays() | changes).items() if value is not None}
        np.savez(raw.folder(tmp_path) / raw.files[0], **arrays)
        return raw.folder(tmp_path) / raw.files[0]

    return write


@pytest.mark.parametrize("raw", ALL, ids=lambda raw: raw.task)
def test_the_meaning_is_that_of_pygs_class(save, tmp_path, raw):
    save(raw)
    task = load_heterophilous(raw, tmp_path)
    data = HeterophilousGraphDataset(str(tmp_path), raw.task)[0]
    assert (task.name, task.out_channels, task.graph.num_edges) == (raw.task, 2, NUM_NODES - 1)
    assert task.features.equal(data.x)
    assert task.targets.equal(data.y)
    adjacency = torch.eye(NUM_NODES, dtype=torch.bool)
    adjacency[data.edge_index[0], data.edge_index[1]] = True
    assert (task.graph.to_dense() > 0).equal(adjacency)
    for number in range(NUM_SPLITS):
        split = task.split(f"public-{number}")
        for part in ("train", "val", "test"):
            assert getattr(split, part).equal(data[f"{part}_mask"][:, number].nonzero().view(-1))


def test_a_seed_has_the_public_split_of_its_number(save, tmp_path):
    save()
    task = load_heterophilous(ROMAN_EMPIRE, tmp_path)
    assert task.split_names == (*(f"public-{number}" for number in range(NUM_SPLITS)), "public")
    assert task.split().sha256 == task.split("public-0").sha256 != task.split("public-1").sha256
    assert task.split("public", seed=NUM_SPLITS + 1).sha256 == task.split("public-1").sha256
    with pytest.raises(GraphjouleError, match="Unknown split 'public-10'"):
        task.split("public-10")


def test_whole_numbers_as_features_are_read(save, tmp_path):
    save(MINESWEEPER, node_features=np.arange(1, 85).reshape(NUM_NODES, 7))
    features = load_heterophilous(MINESWEEPER, tmp_path).features
    assert features.dtype == torch.get_default_dtype()
    assert features[1].tolist() == list(range(8, 15))


def test_a_pickle_inside_is_refused_and_not_run(save, tmp_path, trap):
    save(node_labels=np.array([trap] * NUM_NODES, dtype=object))
    with pytest.raises(GraphjouleError, match=r"roman_empire\.npz holds something other .* pickled objects are never"):
        load_heterophilous(ROMAN_EMPIRE, tmp_path)
    assert not trap.sprung.exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"edges": None}, "has no array 'edges'"),
        ({"edges": np.arange(6).reshape(2, 3)}, r"'edges' in .*npz has shape \[2, 3\]; expected \[num_edges, 2\]"),
        ({"edges": np.array([[0, 12]])}, "names node 12; with 12 nodes it must be 0 to 11"),
        ({"edges": np.array([[0, 2**64 - 1]], dtype=np.uint64)}, r"edges\[0, 1\] is 18446744073709551615; expected"),
        (
            {"node_labels": np.array([0, 1] * 5 + [0, 2**64 - 1], dtype=np.uint64)},
            r"node_labels\[11\] is 18446744073709551615; expected a whole number",
        ),
        ({"edges": np.array([[0.0, 1.0]])}, "holds float64; expected"),
        ({"node_labels": np.zeros(11, dtype=int)}, r"expected three times \[number of splits, 11\]"),
        ({"train_masks": np.ones((10, 12))}, "holds float64; expected"),
        ({"train_masks": np.ones((9, 12), dtype=bool)}, r"train \[9, 12\], val \[10, 12\], test \[10, 12\]"),
        ({"train_masks": np.ones(12, dtype=bool)}, r"train \[12\]"),
        ({"train_masks": np.ones((10, 12), dtype=bool)}, r"Split 'public-0' names node \d+ twice, in train and in"),
        ({"train_masks": np.zeros((10, 12), dtype=bool)}, "train part of split 'public-0' is empty"),
        ({"node_features": np.full((12, 3), np.nan)}, "nan at node 0, column 0"),
        ({"node_features": np.ones(12)}, r"features have shape \[12\]"),
    ],
)
def test_damaged_arrays_are_one_sentence(save, tmp_path, changes, sentence):
    save(**changes)
    with pytest.raises(GraphjouleError, match=sentence) as caught:
        load_heterophilous(ROMAN_EMPIRE, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_download_is_checked(tmp_path, monkeypatch):
    (tmp_path / "tolokers.npz").write_bytes(b"<html>")
    monkeypatch.setattr(HeterophilousGraphDataset, "url", f"file://{tmp_path}")
    with pytest.raises(GraphjouleError, match=r"\(The file file://.*/tolokers\.npz is no readable \.npz archive"):
        load_heterophilous(TOLOKERS, tmp_path / "root")
    np.savez(tmp_path / "tolokers.npz", **tiny_arrays())
    assert load_heterophilous(TOLOKERS, tmp_path / "root").num_nodes == NUM_NODES
    assert [path.name for path in (tmp_path / "root").rglob("*")] == ["tolokers", "raw", "tolokers.npz"]
