import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.splits import (
    Split,
    check_labelled,
    draw_split,
    fixed_split,
    is_rule,
    parse_per_class,
    parse_stratified,
    per_class_split,
    stratified_split,
)

SEEDS = st.integers(0, 2**32 - 1)


def make(train, val, test, name="mine"):
    return Split(name, None, *(torch.tensor(part, dtype=torch.int64) for part in (train, val, test)))


@st.composite
def drawable(draw):
    """Labels, and counts that every class can serve."""
    num_train, num_val = draw(st.integers(1, 3)), draw(st.integers(0, 3))
    extra = draw(st.lists(st.integers(0, 4), min_size=2, max_size=4))
    sizes = [num_train + num_val + more for more in extra]
    labels = [label for label, size in enumerate(sizes) for _ in range(size)] + [-1] * draw(st.integers(0, 4))
    return torch.tensor(draw(st.permutations(labels))), len(sizes), num_train, num_val


@given(drawable(), SEEDS)
def test_every_labelled_node_is_in_exactly_one_part_and_every_class_gives_its_count(drawn, seed):
    labels, num_classes, num_train, num_val = drawn
    split = per_class_split(labels, num_classes, num_train, num_val, seed)
    together = torch.cat([split.train, split.val, split.test])
    assert together.sort().values.equal((labels >= 0).nonzero().view(-1))
    for label in range(num_classes):
        assert int((labels[split.train] == label).sum()) == num_train
        assert int((labels[split.val] == label).sum()) == num_val
    for part in (split.train, split.val, split.test):
        assert part.dtype == torch.int64
        assert part.equal(part.sort().values)


@given(drawable(), SEEDS, SEEDS)
def test_sizes_do_not_depend_on_the_seed(drawn, one, other):
    first, second = per_class_split(*drawn, one), per_class_split(*drawn, other)
    assert [len(p) for p in (first.train, first.val, first.test)] == [
        len(p) for p in (second.train, second.val, second.test)
    ]


@given(drawable(), SEEDS, SEEDS)
def test_the_global_generators_neither_matter_nor_move(drawn, seed, elsewhere):
    first = per_class_split(*drawn, seed)
    random.seed(elsewhere)
    np.random.seed(elsewhere)
    torch.manual_seed(elsewhere)
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    assert per_class_split(*drawn, seed).sha256 == first.sha256
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_another_seed_is_another_split():
    labels = torch.arange(200) % 4
    assert len({per_class_split(labels, 4, 5, 10, seed).sha256 for seed in range(50)}) == 50


def test_a_seed_names_the_same_nodes_for_ever():
    # Written down once from RandomState's frozen stream: records hold such hashes.
    split = per_class_split(torch.arange(30) % 3, 3, 2, 3, seed=7)
    assert split.train.tolist() == [4, 8, 10, 14, 15, 24]
    assert split.sha256 == "9f28b6aa68e6fd5e6b99c3d065cf0e080150ba138ae114deb9ea35b7cb446cb0"


def test_the_hash_tells_parts_apart_and_ignores_order_name_and_seed():
    base = make([3, 1], [2], [0])
    assert base.train.tolist() == [1, 3]
    assert base.sha256 == make([1, 3], [2], [0], name="other").sha256
    others = [make([1], [2, 3], [0]), make([1, 3], [0], [2]), make([1, 3], [0, 2], []), make([1, 3], [2], [4])]
    assert len({base.sha256, *(other.sha256 for other in others)}) == 5


def test_fixed_split_reads_masks():
    masks = torch.eye(3, dtype=torch.bool)
    split = fixed_split("public", *masks)
    assert (split.train.tolist(), split.val.tolist(), split.test.tolist(), split.seed) == ([0], [1], [2], None)


@pytest.mark.parametrize("mask", [torch.ones(3, 10, dtype=torch.bool), torch.ones(3)])
def test_fixed_split_refuses_what_is_no_mask(mask):
    good = torch.tensor([True, False, False])
    with pytest.raises(GraphjouleError, match=r"val_mask .* expected one boolean per node"):
        fixed_split("public", good, mask, good)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("per-class-5-10", (5, 10)),
        ("per-class-0-0", (0, 0)),
        ("per-class-5", None),
        ("per-class--5-10", None),
        ("per-class-5-10-2", None),
        ("public", None),
    ],
)
def test_parse_per_class(name, counts):
    assert parse_per_class(name) == counts


def test_a_class_with_too_few_nodes_is_named():
    labels = torch.tensor([0] * 9 + [1] * 4)
    with pytest.raises(GraphjouleError, match=r"Class 1 has 4 labelled nodes; split 'per-class-2-3' needs at least 5"):
        per_class_split(labels, 2, 2, 3, seed=0)
    with pytest.raises(GraphjouleError, match=r"Class 1 \(dogs\) has 4"):
        per_class_split(labels, 2, 2, 3, seed=0, class_names=("cats", "dogs"))


def test_a_class_with_just_enough_nodes_leaves_none_to_test():
    split = per_class_split(torch.tensor([0] * 5 + [1] * 6), 2, 2, 3, seed=0)
    assert len(split.test) == 1
    assert int(split.test[0]) >= 5


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(GraphjouleError, match=f"seed of split 'per-class-1-1' is {seed}; expected 0 to 4294967295"):
        per_class_split(torch.arange(8) % 2, 2, 1, 1, seed)


def test_no_training_node_is_refused():
    with pytest.raises(GraphjouleError, match="train part of split 'per-class-0-1' is empty"):
        per_class_split(torch.arange(8) % 2, 2, 0, 1, seed=0)


@pytest.mark.parametrize(
    ("parts", "where"),
    [
        (([1, 2], [2], [3]), "node 2 twice, in train and in val"),
        (([1], [2], [3, 1]), "node 1 twice, in train and in test"),
        (([1], [2], [3, 2]), "node 2 twice, in val and in test"),
        (([1, 1], [2], [3]), "node 1 twice, in train and in train"),
    ],
)
def test_overlap_is_refused(parts, where):
    with pytest.raises(GraphjouleError, match=where):
        make(*parts)


def test_indices_must_be_node_numbers():
    with pytest.raises(GraphjouleError, match="val part of split 'mine' names node -3"):
        make([0], [-3], [1])
    with pytest.raises(GraphjouleError, match=r"dtype torch.float32 .* expected a list of int64"):
        Split("mine", None, torch.ones(1), torch.ones(1), torch.ones(1))


def test_check_labelled_names_part_and_node():
    labels = torch.tensor([True, True, False])
    check_labelled(make([0], [1], []), labels)
    with pytest.raises(GraphjouleError, match="test part of split 'mine' names node 2, whose target is unknown"):
        check_labelled(make([0], [1], [2]), labels)
    with pytest.raises(GraphjouleError, match="val part of split 'mine' names node 3; with 3 nodes"):
        check_labelled(make([0], [3], []), labels)


@pytest.mark.gpu
def test_the_hash_does_not_depend_on_the_device():
    split = per_class_split(torch.arange(30) % 3, 3, 2, 3, seed=7)
    moved = split.to("cuda")
    assert moved.train.is_cuda
    assert moved.sha256 == split.sha256


# The same share of every class.

class_sizes = st.lists(st.integers(0, 12), min_size=2, max_size=4).filter(lambda sizes: max(sizes) > 1)


@given(class_sizes, st.integers(1, 60), st.integers(0, 39), SEEDS)
def test_every_class_gives_its_share_and_keeps_one_to_train(sizes, val, test, seed):
    labels = torch.tensor([label for label, size in enumerate(sizes) for _ in range(size)] + [-1])
    split = stratified_split(labels, len(sizes), val, test, seed)
    together = torch.cat([split.train, split.val, split.test])
    assert together.sort().values.equal((labels >= 0).nonzero().view(-1))
    for label, size in enumerate(sizes):
        train_size, val_size, test_size = (
            int((labels[part] == label).sum()) for part in (split.train, split.val, split.test)
        )
        assert train_size >= min(size, 1)
        assert val_size >= int(size > 1)
        assert test_size == 0 if not test or size < 2 else True
        if size > 20:
            assert abs(val_size - size * val / 100) <= 1
    other = stratified_split(labels, len(sizes), val, test, seed ^ 1)
    assert [len(other.train), len(other.val), len(other.test)] == [len(split.train), len(split.val), len(split.test)]


def test_large_classes_are_cut_at_the_percentages():
    split = stratified_split(torch.arange(1000) % 2, 2, 20, 30, seed=0)
    assert (len(split.train), len(split.val), len(split.test)) == (500, 200, 300)


def test_a_seed_names_the_same_stratified_nodes_for_ever():
    split = draw_split("stratified-20-20", torch.arange(20) % 2, ["a", "b"], seed=7)
    assert (split.name, split.seed) == ("stratified-20-20", 7)
    assert split.val.tolist() == [3, 7, 10, 16]  # written down once: records hold such hashes
    assert split.sha256 != draw_split("stratified-20-20", torch.arange(20) % 2, ["a", "b"], seed=8).sha256


def test_where_no_class_has_two_labels_it_is_said():
    with pytest.raises(
        GraphjouleError, match="No class has two labelled nodes, so that one could train and one validate"
    ):
        stratified_split(torch.tensor([0, 1, 2, -1]), 3, 20, 0, seed=0)


@pytest.mark.parametrize(
    ("name", "percents"), [("stratified-20-0", (20, 0)), ("stratified-1-98", (1, 98)), ("stratified-20", None)]
)
def test_parse_stratified(name, percents):
    assert parse_stratified(name) == percents
    assert is_rule(name) == (percents is not None)


@pytest.mark.parametrize(("name", "lacks"), [("stratified-0-10", "validate"), ("stratified-50-50", "train")])
def test_percentages_that_leave_a_part_empty_are_refused(name, lacks):
    with pytest.raises(GraphjouleError, match=f"The split '{name}' leaves nothing to {lacks}"):
        is_rule(name)
