"""What a training leaves: models, checkpoints, records, partitions. Whatever is in them, a result or a sentence."""

import contextlib
import gzip
import io
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.cli.study import ledger_files
from graphjoule.cli.verify import verify
from graphjoule.fitting import fit, load, read_runs
from graphjoule.parallel import load_part, read_partition, write_partition
from graphjoule.report.evaluation import evaluation_view
from graphjoule.studies import find_study, read_collection
from graphjoule.studies.energies import energies_of, read_energies
from graphjoule.training import TrainingInterrupted
from graphjoule.training.budget import Budget
from graphjoule.training.comparison import Contender, compare, read_comparison, write_comparison
from graphjoule.training.evaluation import Predicted, read_evaluation
from graphjoule.training.folder import SUMMARY_NAME, RunFolder
from graphjoule.training.loop import train
from graphjoule.training.records import read_records
from graphjoule.training.saving import load_model, read_tensors, write_tensors
from graphjoule.tuning.halving import Halving, Trial
from graphjoule.tuning.validation import hide_test
from tests.studies import energy_record
from tests.training import PUBLIC, make_batch, small_recipe, small_task

from .fuzz import EDITS, JSON_EDITS, JSON_LIKE, fuzzed, json_file, json_mutated, mutated, takes

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


CHANGED_FILE = st.tuples(st.just(mutated), EDITS) | st.tuples(st.just(json_file), JSON_EDITS)


@fuzzed
@given(EDITS)
def test_an_evaluation(run, edits):
    path = run / "evaluation.safetensors"
    path.write_bytes(mutated((run / "run/evaluation.safetensors").read_bytes(), edits))
    takes(lambda: read_evaluation(path))


@fuzzed
@given(CHANGES, st.integers(0, 1000), SHAPES, DTYPES, st.sampled_from([0, 1, -1, 77, float("nan"), 1e30]))
def test_an_evaluation_with_other_tensors_and_a_right_checksum(run, change, number, shape, dtype, value):
    """As a report shows it."""
    tensors, about = read_tensors(run / "run/evaluation.safetensors", "evaluation")
    name = sorted(tensors)[number % len(tensors)]
    if not isinstance(change, str):
        about = json_mutated(about, change)
    elif change == "fill":
        tensors[name] = torch.full_like(tensors[name].double(), value).to(tensors[name].dtype)
    else:
        del tensors[name]
        if change != "remove":
            tensors[name if change == "reshape" else "other"] = torch.zeros(shape, dtype=dtype)
    write_tensors(run / "forged-evaluation.safetensors", "evaluation", tensors, about)
    takes(lambda: evaluation_view(read_evaluation(run / "forged-evaluation.safetensors"), 100))


@pytest.fixture(scope="module")
def search(run):
    """A search of `auto` as it is stored: trials of a candidate and of a variation of it."""
    seen, cpu = hide_test(small_task(), RECIPE, [0]), torch.device("cpu")
    name = f"gcn-{RECIPE.model.num_layers}"
    made = Halving({name: RECIPE}, seen, [0], Budget(60), run / "auto", cpu, lambda _: None, lambda: False)
    made.work.mkdir(parents=True)
    trial = Trial(rung="first", name=name, model="gcn", num_layers=RECIPE.model.num_layers, seeds=[0], epochs=3)
    made._note(trial, "first", score=0.5, loss=1.0)
    made._note(trial.model_copy(update={"name": f"{name}-v1", "changes": {"lr": 0.1}}), "variations", score=0.25)
    return made, (made.work / SUMMARY_NAME).read_bytes()


@fuzzed
@given(CHANGED_FILE | st.just((lambda good, edits: good, [])))
def test_a_search_of_auto(search, change):
    made, good = search
    (made.work / SUMMARY_NAME).write_bytes(change[0](good, change[1]))

    def go_on():
        made.recipes, made.trials = {f"gcn-{RECIPE.model.num_layers}": RECIPE}, []
        made.begin(resume=True)
        made.standings(), made.ranked(), made.spent

    takes(go_on)


@pytest.fixture(scope="module")
def energies():
    (cell,) = find_study("table1").cells(["cora"], ["egnn"], [64])
    return cell, energy_record(cell).model_dump_json().encode()


@fuzzed
@given(CHANGED_FILE, st.booleans())
def test_records_of_energies(run, energies, change, is_packed):
    cell, good = energies
    folder = run / ("packed" if is_packed else "plain")
    folder.mkdir(exist_ok=True)
    data = change[0](good, change[1])
    (folder / f"energies.json{'.gz' if is_packed else ''}").write_bytes(gzip.compress(data) if is_packed else data)
    takes(lambda: energies_of(cell, read_energies([folder])))


@pytest.fixture(scope="module")
def verified(run):
    """A folder with records, hashes, a protocol and a ledger."""
    folder, study = run / "verified", find_study("table1")
    folder.mkdir()
    shutil.copy(run / "run/records.jsonl", folder)
    (folder / "a.protocol.json").write_text(study.protocol.text("table1"))
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  records.jsonl\n")
    asked = {"datasets": ["cora"], "models": ["gcn"], "layers": [2], "overrides": {}}
    cells, asked = study.cells(*asked.values()), asked | {"seeds": [0], "not_available": []}
    for ending, text in ledger_files(study, cells, read_collection([folder]), asked).items():
        (folder / f"table1.{ending}").write_text(text)
    return folder, {path.name: path.read_bytes() for path in folder.iterdir()}


@fuzzed
@given(st.integers(0, 100), EDITS, st.none() | JSON_EDITS)
def test_a_folder_that_is_verified(verified, number, edits, json_edits):
    folder, good = verified
    name = sorted(good)[number % len(good)]
    is_json = name.endswith((".json", ".jsonl")) and json_edits is not None
    (folder / name).write_bytes(json_file(good[name], json_edits) if is_json else mutated(good[name], edits))

    def look():
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):  # with 1: problems
            verify([folder], pages=False)

    takes(look)
    (folder / name).write_bytes(good[name])
