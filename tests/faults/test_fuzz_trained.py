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
from graphjoule.training.loop import train
from graphjoule.training.records import read_records
from graphjoule.training.saving import load_model, read_tensors, write_tensors
from tests.training import PUBLIC, make_batch, small_recipe, small_task

from .fuzz import EDITS, JSON_EDITS, JSON_LIKE, fuzzed, json_mutated, mutated, takes

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


@pytest.fixture(scope="module")
def batch():
    """The runs that a checkpoint is for."""
    return make_batch(RECIPE, small_task(), [0])


@pytest.fixture(scope="module")
def checkpoint(run):
    return read_tensors(run / "stopped/checkpoint.safetensors", "checkpoint")


def json_file(good, edits):
    """A file of JSON in which values are others."""
    return json.dumps(json_mutated(json.loads(good), edits)).encode()


@pytest.fixture
def spoiled(run):
    """A function that puts another file into a copy of a folder of `run`; the others there are as they were."""

    def spoil(folder, name, data):
        copy = run / "spoiled" / folder
        if not copy.exists():
            shutil.copytree(run / folder, copy)
        for good in (run / folder).iterdir():
            if good.name != name and good.stat().st_mtime_ns != (copy / good.name).stat().st_mtime_ns:
                shutil.copy2(good, copy)
        (copy / name).write_bytes(data)
        return copy

    return spoil


@fuzzed
@given(EDITS, st.booleans())
def test_a_model_file(run, edits, is_in_header):
    good = (run / "run/model-seed-0.safetensors").read_bytes()
    header = 8 + int.from_bytes(good[:8], "little")
    path = run / "model.safetensors"
    path.write_bytes(mutated(good[:header], edits) + good[header:] if is_in_header else mutated(good, edits))
    takes(lambda: load_model(path))


@fuzzed
@given(JSON_EDITS)
def test_a_model_file_with_another_description_and_a_right_checksum(run, edits):
    tensors, about = read_tensors(run / "run/model-seed-0.safetensors", "model")
    write_tensors(run / "forged.safetensors", "model", tensors, json_mutated(about, edits))
    takes(lambda: load(run / "forged.safetensors"))


SHAPES = st.lists(st.integers(0, 3), max_size=3)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.uint8])
CHANGES = st.sampled_from(["remove", "reshape", "rename", "fill"]) | JSON_EDITS


@fuzzed
@given(CHANGES, st.integers(0, 1000), SHAPES, DTYPES, st.text(max_size=8), st.sampled_from([0, 1, 77]))
def test_a_checkpoint_with_other_tensors_and_a_right_checksum(
    run, batch, checkpoint, change, number, shape, dtype, other, value
):
    """As `fit` goes on with it, to the end, but with a network that is built once."""
    state, about = dict(checkpoint[0]), checkpoint[1]
    name = sorted(state)[number % len(state)]
    if not isinstance(change, str):
        about = json_mutated(about, change)
    elif change == "fill":
        state[name] = torch.full_like(state[name], value)
    else:
        del state[name]
        if change != "remove":
            state[name if change == "reshape" else other] = torch.zeros(shape, dtype=dtype)
    folder = RunFolder(run / "forged")
    folder.path.mkdir(exist_ok=True)
    write_tensors(folder.path / "checkpoint.safetensors", "checkpoint", state, about)

    def go_on():
        if (found := folder.load_checkpoint(RECIPE, [0])) is not None:
            folder.check_state(found[0], batch.snapshot())
            batch.restore(found[0])
            nothing = {"save": lambda batch: None, "save_every": 50, "on_progress": lambda progress: None}
            list(train(batch, {0: PUBLIC}, should_stop=lambda: False, **nothing))

    takes(go_on)


@fuzzed
@given(EDITS)
def test_a_checkpoint_file(run, spoiled, edits):
    good = (run / "stopped/checkpoint.safetensors").read_bytes()
    copy = spoiled("stopped", "checkpoint.safetensors", mutated(good, edits))
    takes(lambda: RunFolder(copy).load_checkpoint(RECIPE, [0]))


@fuzzed
@given(st.tuples(st.just(mutated), EDITS) | st.tuples(st.just(json_file), JSON_EDITS))
def test_records(run, change):
    good = (run / "run/records.jsonl").read_bytes()
    path = run / "records.jsonl"
    path.write_bytes(change[0](good, change[1]) + b"\n" + good)
    takes(lambda: list(read_records(path)))


@fuzzed
@given(st.binary(max_size=300))
def test_compressed_records(run, data):
    path = run / "records.jsonl.gz"
    path.write_bytes(data)
    takes(lambda: list(read_records(path)))


@fuzzed
@given(st.tuples(st.just(mutated), EDITS) | st.tuples(st.just(json_file), JSON_EDITS))
def test_a_run_file(run, spoiled, change):
    good = (run / "run/run.json").read_bytes()
    copy = spoiled("run", "run.json", change[0](good, change[1]))
    takes(lambda: read_runs(copy))


@fuzzed
@given(st.sampled_from(["partition.json", "part-0.safetensors", "labels.safetensors"]), EDITS, st.none() | JSON_EDITS)
def test_a_partition_and_its_parts(run, spoiled, name, edits, json_edits):
    good = (run / "parts" / name).read_bytes()
    is_json = name == "partition.json" and json_edits is not None
    copy = spoiled("parts", name, json_file(good, json_edits) if is_json else mutated(good, edits))
    takes(lambda: read_partition(copy))
    takes(lambda: load_part(copy, 0))


@fuzzed
@given(JSON_EDITS | st.tuples(JSON_LIKE))
def test_a_part_with_another_description_and_a_right_checksum(run, spoiled, edits):
    tensors, about = read_tensors(run / "parts/part-0.safetensors", PART)
    copy = spoiled("parts", "part-0.safetensors", b"")
    write_tensors(
        copy / "part-0.safetensors", PART, tensors, edits[0] if isinstance(edits, tuple) else json_mutated(about, edits)
    )
    takes(lambda: load_part(copy, 0))


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """A comparison as it is stored."""
    asked, path = small_task().objective, tmp_path_factory.mktemp("comparison") / "comparison.json"
    classes = torch.arange(asked.num_classes)
    parts = [Predicted(torch.eye(asked.num_classes).double(), classes, classes)]
    rivals = [Contender("a", False, True, None, parts, parts), Contender("b", True, True, 4, parts, parts)]
    write_comparison(path, compare(asked, rivals, select_on="loss", run_ids=["x"], part="test"))
    return path, path.read_bytes()


@fuzzed
@given(st.tuples(st.just(mutated), EDITS) | st.tuples(st.just(json_file), JSON_EDITS))
def test_a_comparison(comparison, change):
    path, good = comparison
    path.write_bytes(change[0](good, change[1]))

    def read():
        found = read_comparison(path)
        found.sentences(), found.table()

    takes(read)
