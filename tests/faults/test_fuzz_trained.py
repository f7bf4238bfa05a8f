"""What a training leaves: models, checkpoints, records, partitions. Whatever is in them, a result or a sentence."""

import json
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.fitting import fit, load, read_runs
from graphjoule.parallel import load_part, read_partition, write_partition
from graphjoule.training import TrainingInterrupted
from graphjoule.training.comparison import Contender, compare, read_comparison, write_comparison
from graphjoule.training.evaluation import Predicted
from graphjoule.training.folder import RunFolder
from graphjoule.training.records import read_records
from graphjoule.training.saving import load_model, read_tensors, write_tensors
from tests.training import small_recipe, small_task

from .fuzz import fuzzed, json_like, json_mutations, mutations, takes

RECIPE = small_recipe("gcn", epochs=4)
PART = "part of a partition"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished training of one seed, and a checkpoint of the same in ``stopped``."""
    path = tmp_path_factory.mktemp("run")
    fit(RECIPE, small_task(), [0], out=path / "run")
    epochs = iter([False, False, True])
    with pytest.raises(TrainingInterrupted):
        fit(RECIPE, small_task(), [0], out=path / "stopped", should_stop=lambda: next(epochs))
    write_partition(small_task(), 1, path / "parts", "blocks")
    return path


def json_files(good):
    """Files of JSON in which a value is another."""
    return json_mutations(json.loads(good)).map(lambda fields: json.dumps(fields).encode())


def spoiled(run, name, data):
    """A copy of the folder `run` in which one file is another."""
    copy = run.parent / "spoiled"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    (copy / name).write_bytes(data)
    return copy


@fuzzed
@given(st.data())
def test_a_model_file(run, data):
    good = (run / "run/model-seed-0.safetensors").read_bytes()
    header = 8 + int.from_bytes(good[:8], "little")
    path = run / "model.safetensors"
    in_header = mutations(good[:header]).map(lambda changed: changed + good[header:])
    path.write_bytes(data.draw(in_header | mutations(good)))
    takes(lambda: load_model(path))


@fuzzed
@given(st.data())
def test_a_model_file_with_another_description_and_a_right_checksum(run, data):
    tensors, about = read_tensors(run / "run/model-seed-0.safetensors", "model")
    write_tensors(run / "forged.safetensors", "model", tensors, data.draw(json_mutations(about)))
    takes(lambda: load(run / "forged.safetensors"))


@fuzzed
@given(st.data())
def test_a_checkpoint_with_other_tensors_and_a_right_checksum(run, data):
    state, about = read_tensors(run / "stopped/checkpoint.safetensors", "checkpoint")
    name = data.draw(st.sampled_from(sorted(state)))
    shape = data.draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.uint8]))
    change = data.draw(st.sampled_from(["remove", "reshape", "rename", "fill", "about"]))
    if change == "about":
        about = data.draw(json_mutations(about))
    elif change == "fill":
        state[name] = torch.full_like(state[name], data.draw(st.sampled_from([0, 1, 77])))
    else:
        value = state.pop(name)
        if change != "remove":
            state[name if change == "reshape" else data.draw(st.text(max_size=8))] = torch.zeros(shape, dtype=dtype)
        del value
    copy = spoiled(run / "stopped", "checkpoint.safetensors", b"")
    write_tensors(copy / "checkpoint.safetensors", "checkpoint", state, about)
    takes(lambda: fit(RECIPE, small_task(), [0], out=copy, resume=True))


@fuzzed
@given(st.data())
def test_a_checkpoint_file(run, data):
    good = (run / "stopped/checkpoint.safetensors").read_bytes()
    copy = spoiled(run / "stopped", "checkpoint.safetensors", data.draw(mutations(good)))
    takes(lambda: RunFolder(copy).load_checkpoint(RECIPE, [0]))


@fuzzed
@given(st.data())
def test_records(run, data):
    good = (run / "run/records.jsonl").read_bytes()
    line = data.draw(mutations(good) | json_files(good))
    path = run / "records.jsonl"
    path.write_bytes(line + b"\n" + good)
    takes(lambda: list(read_records(path)))


@fuzzed
@given(st.binary(max_size=300))
def test_compressed_records(run, data):
    path = run / "records.jsonl.gz"
    path.write_bytes(data)
    takes(lambda: list(read_records(path)))


@fuzzed
@given(st.data())
def test_a_run_file(run, data):
    good = (run / "run/run.json").read_bytes()
    changed = data.draw(
        mutations(good) | json_mutations(json.loads(good)).map(lambda fields: json.dumps(fields).encode())
    )
    copy = spoiled(run / "run", "run.json", changed)
    takes(lambda: read_runs(copy))


@fuzzed
@given(st.data())
def test_a_partition_and_its_parts(run, data):
    name = data.draw(st.sampled_from(["partition.json", "part-0.safetensors", "labels.safetensors"]))
    good = (run / "parts" / name).read_bytes()
    changed = data.draw(mutations(good))
    if name == "partition.json" and data.draw(st.booleans()):
        changed = data.draw(json_files(good))
    copy = spoiled(run / "parts", name, changed)
    takes(lambda: read_partition(copy))
    takes(lambda: load_part(copy, 0))


@fuzzed
@given(st.data())
def test_a_part_with_another_description_and_a_right_checksum(run, data):
    tensors, about = read_tensors(run / "parts/part-0.safetensors", PART)
    copy = spoiled(run / "parts", "part-0.safetensors", b"")
    write_tensors(copy / "part-0.safetensors", PART, tensors, data.draw(json_mutations(about) | json_like()))
    takes(lambda: load_part(copy, 0))


@fuzzed
@given(st.data())
def test_a_comparison(run, data):
    path, asked = run / "comparison.json", small_task().objective
    parts = [
        Predicted(
            torch.eye(asked.num_classes).double(), torch.arange(asked.num_classes), torch.arange(asked.num_classes)
        )
    ]
    rivals = [Contender("a", False, True, None, parts, parts), Contender("b", True, True, 4, parts, parts)]
    if not (run / "good.json").exists():
        found = compare(asked, rivals, select_on="loss", run_ids=["x"], part="test")
        write_comparison(run / "good.json", found)
    good = (run / "good.json").read_bytes()
    path.write_bytes(data.draw(json_files(good) | mutations(good)))

    def read():
        found = read_comparison(path)
        found.sentences(), found.table()

    takes(read)
