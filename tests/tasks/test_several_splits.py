import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.datasets import HeterophilousGraphDataset, WikiCS

from graphjoule.errors import GraphjouleError
from graphjoule.tasks import DATASETS
from graphjoule.tasks.several_splits import load_heterophilous, load_wikics

ALL = ROMAN_EMPIRE, AMAZON_RATINGS, MINESWEEPER, TOLOKERS, QUESTIONS = [
    DATASETS[name].raw for name in ("roman-empire", "amazon-ratings", "minesweeper", "tolokers", "questions")
]
WIKICS = DATASETS["wikics"].raw
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


def test_a_download_is_checked(serve, tmp_path):
    raw = replace(TOLOKERS, url=serve(tmp_path))
    (tmp_path / "tolokers.npz").write_bytes(b"<html>")
    with pytest.raises(GraphjouleError, match=r"\(The file http://.*/tolokers\.npz is no readable \.npz archive"):
        load_heterophilous(raw, tmp_path / "root")
    np.savez(tmp_path / "tolokers.npz", **tiny_arrays())
    assert load_heterophilous(raw, tmp_path / "root").num_nodes == NUM_NODES
    assert [path.name for path in (tmp_path / "root").rglob("*")] == ["tolokers", "raw", "tolokers.npz"]


def test_our_addresses_are_pygs():
    assert {raw.url for raw in ALL} == {HeterophilousGraphDataset.url}
    assert WIKICS.url == WikiCS.url


# Wiki-CS.

NUM_WIKICS_SPLITS = 20


def tiny_wikics():
    """Six articles; links with a loop and one that is linked back; twenty splits, whose test part is the last two."""
    masks = [[(node + number) % 4 for node in range(4)] for number in range(NUM_WIKICS_SPLITS)]
    return {
        "features": [[0.5 * node, -1.0, 2.0] for node in range(6)],
        "labels": [0, 1, 2, 0, 1, 2],
        "links": [[1, 2], [0], [2, 3], [], [5], []],
        "train_masks": [[place < 2 for place in row] + [False, False] for row in masks],
        "stopping_masks": [[place == 2 for place in row] + [False, False] for row in masks],
        "val_masks": [[place == 3 for place in row] + [False, False] for row in masks],
        "test_mask": [False] * 4 + [True] * 2,
    }


@pytest.fixture
def save_wikics(tmp_path):
    def write(**changes):
        WIKICS.folder(tmp_path).mkdir(parents=True, exist_ok=True)
        content = {key: value for key, value in (tiny_wikics() | changes).items() if value is not None}
        (WIKICS.folder(tmp_path) / "data.json").write_text(json.dumps(content))

    return write


def test_the_meaning_of_wikics_is_that_of_pygs_class(save_wikics, tmp_path):
    save_wikics()
    task = load_wikics(WIKICS, tmp_path)
    data = WikiCS(str(tmp_path / "WikiCS"), is_undirected=True)[0]
    assert (task.name, task.out_channels, task.graph.num_edges) == ("wikics", 3, 4)
    assert task.features.equal(data.x)
    assert task.targets.equal(data.y)
    adjacency = torch.eye(6, dtype=torch.bool)
    adjacency[data.edge_index[0], data.edge_index[1]] = True
    assert (task.graph.to_dense() > 0).equal(adjacency)
    for number in range(NUM_WIKICS_SPLITS):
        split = task.split(f"public-{number}")
        assert split.train.equal(data.train_mask[:, number].nonzero().view(-1))
        assert split.val.equal(data.val_mask[:, number].nonzero().view(-1))
        assert split.test.equal(data.test_mask.nonzero().view(-1))
    assert [task.split(seed=seed).name for seed in (0, 1, 20)] == ["public-0", "public-1", "public-0"]


def test_masks_may_be_zeros_and_ones(save_wikics, tmp_path):
    save_wikics(test_mask=[0, 0, 0, 0, 1, 1])
    assert load_wikics(WIKICS, tmp_path).split().test.tolist() == [4, 5]


def test_no_link_at_all_is_a_graph(save_wikics, tmp_path):
    save_wikics(links=[[]] * 6)
    assert load_wikics(WIKICS, tmp_path).graph.num_edges == 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"links": None}, "data.json has no list 'links'; expected features, labels, links"),
        ({"labels": {"0": 1}}, "has no list 'labels'"),
        ({"labels": ["a"] * 6}, "list 'labels' in .* is no array of whole numbers"),
        ({"labels": [0.5] * 6}, "list 'labels' in .* holds something other than whole numbers"),
        ({"labels": [2**70] * 6}, "list 'labels' in"),
        ({"features": [[1.0], [1.0, 2.0]]}, "list 'features' in .* is no array of numbers"),
        ({"features": [[None]] * 6}, "list 'features' in"),
        ({"features": [[float("nan")]] * 6}, "nan at node 0, column 0"),
        ({"links": [[1], 2]}, "'links' in .* must hold one list of article numbers per article"),
        ({"links": [["x"]] + [[]] * 5}, "list 'links' in .* is no array of whole numbers"),
        ({"links": [[99]] + [[]] * 5}, "names node 99"),
        ({"test_mask": [2] * 6}, "'test_mask' in .* holds something other than true and false"),
        ({"test_mask": [True]}, r"test \[20, 1\]; expected three times \[number of splits, 6\]"),
        ({"train_masks": []}, r"train \[0\]"),
    ],
)
def test_damaged_wikics_files_are_one_sentence(save_wikics, tmp_path, changes, sentence):
    save_wikics(**changes)
    with pytest.raises(GraphjouleError, match=sentence) as caught:
        load_wikics(WIKICS, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"<html>", b"\xff\xfe\xfa", b"[" * 100_000, b"[1, 2]", b"null"])
def test_what_is_no_json_object_is_refused(save_wikics, tmp_path, content):
    save_wikics()
    (WIKICS.folder(tmp_path) / "data.json").write_bytes(content)
    with pytest.raises(GraphjouleError, match=r"data\.json (is no readable JSON|has no list 'features')"):
        load_wikics(WIKICS, tmp_path)
