import json

import pytest
import torch
from torch_geometric.datasets import WikiCS

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.wikics import WIKICS, load_wikics

NUM_SPLITS = 20


def tiny_content():
    """Six articles; links with a loop and one that is linked back; twenty splits, whose test part is the last two."""
    masks = [[(node + number) % 4 for node in range(4)] for number in range(NUM_SPLITS)]
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
def save(tmp_path):
    def write(**changes):
        WIKICS.folder(tmp_path).mkdir(parents=True, exist_ok=True)
        content = {key: value for key, value in (tiny_content() | changes).items() if value is not None}
        (WIKICS.folder(tmp_path) / "data.json").write_text(json.dumps(content))

    return write


def test_the_meaning_is_that_of_pygs_class(save, tmp_path):
    save()
    task = load_wikics(WIKICS, tmp_path)
    data = WikiCS(str(tmp_path / "WikiCS"), is_undirected=True)[0]
    assert (task.name, task.out_channels, task.graph.num_edges) == ("wikics", 3, 4)
    assert task.features.equal(data.x)
    assert task.targets.equal(data.y)
    adjacency = torch.eye(6, dtype=torch.bool)
    adjacency[data.edge_index[0], data.edge_index[1]] = True
    assert (task.graph.to_dense() > 0).equal(adjacency)
    for number in range(NUM_SPLITS):
        split = task.split(f"public-{number}")
        assert split.train.equal(data.train_mask[:, number].nonzero().view(-1))
        assert split.val.equal(data.val_mask[:, number].nonzero().view(-1))
        assert split.test.equal(data.test_mask.nonzero().view(-1))
    assert [task.split(seed=seed).name for seed in (0, 1, 20)] == ["public-0", "public-1", "public-0"]


def test_masks_may_be_zeros_and_ones(save, tmp_path):
    save(test_mask=[0, 0, 0, 0, 1, 1])
    assert load_wikics(WIKICS, tmp_path).split().test.tolist() == [4, 5]


def test_no_link_at_all_is_a_graph(save, tmp_path):
    save(links=[[]] * 6)
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
def test_damaged_files_are_one_sentence(save, tmp_path, changes, sentence):
    save(**changes)
    with pytest.raises(GraphjouleError, match=sentence) as caught:
        load_wikics(WIKICS, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"<html>", b"\xff\xfe\xfa", b"[" * 100_000, b"[1, 2]", b"null"])
def test_what_is_no_json_object_is_refused(save, tmp_path, content):
    save()
    (WIKICS.folder(tmp_path) / "data.json").write_bytes(content)
    with pytest.raises(GraphjouleError, match=r"data\.json (is no readable JSON|has no list 'features')"):
        load_wikics(WIKICS, tmp_path)
