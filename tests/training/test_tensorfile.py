import json
import pickle
import struct
from contextlib import suppress

import pytest
import safetensors.torch
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.training.tensorfile import read_tensors, write_tensors

TENSORS = {
    "mask": torch.tensor([True, False, True]),
    "index": torch.tensor([[1, -(2**62)], [3, 4]]),
    "weight": torch.tensor([[1.0, torch.nan], [-0.0, torch.inf]]),
    "epoch": torch.tensor(17),
    "scale": torch.tensor(0.1, dtype=torch.float64),
    "nothing": torch.empty(0, 3),
    "half": torch.tensor([1.5], dtype=torch.bfloat16),
    "key": torch.tensor([-1, 2**31 - 1], dtype=torch.int32),
}
ABOUT = {"recipe": {"c_min": 0.2, "name": "γ"}, "seeds": [0, 1], "none": None}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("tensors") / "whole"
    write_tensors(path, "checkpoint", TENSORS, ABOUT)
    return path.read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("scratch") / "file"


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.dtype, a.shape) == (b.dtype, b.shape) and a.flatten().view(torch.uint8).equal(
        b.flatten().view(torch.uint8)
    )


def assert_is_what_was_written(path) -> None:
    tensors, about = read_tensors(path, "checkpoint")
    assert tensors.keys() == TENSORS.keys()
    assert all(same_bits(tensors[name], TENSORS[name]) for name in TENSORS)
    assert about == ABOUT


def test_every_bit_comes_back(whole, scratch):
    scratch.write_bytes(whole)
    assert_is_what_was_written(scratch)


def test_views_and_parameters_come_back_as_plain_tensors(tmp_path):
    matrix = torch.arange(6.0).view(2, 3)
    tensors = {"a": matrix.t(), "b": matrix[:, 1:], "c": torch.nn.Parameter(matrix), "d": matrix}
    write_tensors(tmp_path / "x", "model", tensors, None)
    read, about = read_tensors(tmp_path / "x", "model")
    assert about is None
    assert all(read[name].equal(tensors[name]) for name in tensors)
    assert not any(tensor.requires_grad for tensor in read.values())


def test_the_file_may_be_replaced_while_its_tensors_live(tmp_path):
    write_tensors(tmp_path / "x", "model", {"a": torch.zeros(1000)}, None)
    read, _ = read_tensors(tmp_path / "x", "model")
    (tmp_path / "x").write_bytes(b"\xff" * 5000)
    assert read["a"].equal(torch.zeros(1000))
    assert read["a"].add_(1).equal(torch.ones(1000))


def test_no_tensors_at_all_is_a_file_too(tmp_path):
    write_tensors(tmp_path / "x", "model", {}, {"a": 1})
    assert read_tensors(tmp_path / "x", "model") == ({}, {"a": 1})


def test_a_folder_that_is_not_there_is_told_and_nothing_is_left(tmp_path):
    with pytest.raises(GraphjouleError, match="Cannot write"):
        write_tensors(tmp_path / "no" / "x", "model", {"a": torch.ones(1)}, None)
    assert list(tmp_path.iterdir()) == []


@settings(deadline=None, max_examples=150)
@given(fraction=st.floats(0, 1, exclude_max=True))
@example(fraction=0.0)
@example(fraction=0.9999999)
def test_a_file_cut_anywhere_is_refused(whole, scratch, fraction):
    scratch.write_bytes(whole[: int(fraction * len(whole))])
    with pytest.raises(GraphjouleError, match="truncated or of another kind"):
        read_tensors(scratch, "checkpoint")


@settings(deadline=None, max_examples=100)
@given(at=st.integers(1, 80), flip=st.integers(1, 255))
def test_a_changed_byte_in_a_tensor_is_damage(scratch, at, flip):
    write_tensors(scratch, "checkpoint", {"a": torch.arange(20.0)}, None)
    content = bytearray(scratch.read_bytes())
    content[-at] ^= flip
    scratch.write_bytes(content)
    with pytest.raises(GraphjouleError, match="damaged: its content does not match its checksum"):
        read_tensors(scratch, "checkpoint")


@settings(deadline=None, max_examples=300)
@given(data=st.data(), flip=st.integers(1, 255))
def test_a_changed_byte_anywhere_is_refused_or_changes_nothing(whole, scratch, data, flip):
    at = data.draw(st.integers(0, len(whole) - 1))
    scratch.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
    with suppress(GraphjouleError):
        assert_is_what_was_written(scratch)


def test_a_missing_file_or_a_folder_is_told(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(GraphjouleError, match=r"There is no file .*; expected a graphjoule model"):
            read_tensors(path, "model")


def test_a_file_of_another_kind_or_format_is_refused(tmp_path, whole, scratch):
    scratch.write_bytes(whole)
    with pytest.raises(GraphjouleError, match="is not a graphjoule model of format 1"):
        read_tensors(scratch, "model")
    safetensors.torch.save_file({"a": torch.ones(2)}, tmp_path / "foreign")
    with pytest.raises(GraphjouleError, match="is not a graphjoule checkpoint of format 1"):
        read_tensors(tmp_path / "foreign", "checkpoint")
    safetensors.torch.save_file({"a": torch.ones(2)}, tmp_path / "future", {"graphjoule": "2", "kind": "checkpoint"})
    with pytest.raises(GraphjouleError, match="is not a graphjoule checkpoint of format 1"):
        read_tensors(tmp_path / "future", "checkpoint")


def test_a_pickle_is_refused_and_never_run(tmp_path, trap):
    (tmp_path / "pickle").write_bytes(pickle.dumps(trap))
    torch.save({"a": trap}, tmp_path / "torch")
    for name in ("pickle", "torch"):
        with pytest.raises(GraphjouleError, match="truncated or of another kind"):
            read_tensors(tmp_path / name, "checkpoint")
    assert not trap.sprung.exists()


@pytest.mark.parametrize("length", [0, 1, 100, 10**8, 2**40, 2**63, 2**64 - 1])
def test_a_header_that_lies_about_its_length_is_refused(tmp_path, length):
    (tmp_path / "x").write_bytes(struct.pack("<Q", length) + b"{}" + b" " * 30)
    with pytest.raises(GraphjouleError, match="truncated or of another kind"):
        read_tensors(tmp_path / "x", "checkpoint")


def test_a_header_that_promises_more_data_than_there_is_is_refused(tmp_path):
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (tmp_path / "x").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 64)
    with pytest.raises(GraphjouleError, match="truncated or of another kind"):
        read_tensors(tmp_path / "x", "checkpoint")


def test_equal_content_gives_equal_bytes(tmp_path):
    tensors = {"b": torch.arange(3), "a": torch.ones(2, 2)}
    for name in ("one", "two"):
        write_tensors(tmp_path / name, "model", tensors, {"seed": 1, "recipe": {"c_min": 0.2}})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
