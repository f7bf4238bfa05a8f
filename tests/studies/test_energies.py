import gzip
import json
import tracemalloc

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.measures.energy import dirichlet_energy
from graphjoule.studies import STUDIES, Cell, energies
from graphjoule.studies.energies import energies_of, measure_energies, read_energies
from graphjoule.tasks import load_task
from graphjoule.training.build import build_model
from graphjoule.training.recipe import load_recipe

from . import energy_record


@pytest.mark.parametrize(("model", "first_layer", "num_energies"), [("gcn", 1, 2), ("egnn", 0, 4)])
def test_a_record_holds_the_energies_of_both_states(model, first_layer, num_energies):
    recipe, task = load_recipe(model, "digits", 3, {"epochs": 2}), load_task("digits")
    result = fit(recipe, task, [4, 7], device="cpu")
    record = measure_energies(recipe, task, result.records, result.models, "cpu")
    assert (record.dataset, record.model, record.resolved) == ("digits", model, recipe)
    assert (record.seeds, record.first_layer, record.epochs_run) == ([4, 7], first_layer, [2, 2])
    for rows in (record.initial, record.trained, record.effective_rank, record.gradient):
        assert [len(row) for row in rows] == [num_energies] * 2  # the last layer of GCN gives class scores
    assert record.trained != record.initial
    assert record.initial[0] != record.initial[1]
    assert record.test_score == [run.test_score for run in result.records]
    assert record.versions


def test_the_first_energy_of_a_network_with_an_encoder_is_that_of_its_embedding():
    recipe, task = load_recipe("egnn", "digits", 3, {"epochs": 1}), load_task("digits")
    result = fit(recipe, task, [4], device="cpu")
    record = measure_energies(recipe, task, result.records, result.models, "cpu")
    model = build_model(recipe, task, 4).eval()
    first = float(dirichlet_energy(model.encoder(task.features).detach(), task.graph))
    assert record.initial[0][0] == pytest.approx(first, rel=1e-4)


# Files.

CORA = Cell("egnn", "cora", 64)


def flat(recipe, without=""):
    """A recipe as the records of before had it."""
    own = {"model.name": "model", "data.name": "dataset"}
    renamed = {own.get(key, key.partition(".")[2]): value for key, value in recipe.settings().items()}
    return {key: value for key, value in renamed.items() if key != without}


def test_records_are_found_in_any_form_and_other_files_left_aside(tmp_path):
    texts = [energy_record(CORA, seeds=range(n)).model_dump_json() for n in range(1, 6)]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "energies.json").write_text(texts[0])
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(texts[1].encode()))
    (tmp_path / "b.jsonl").write_text(f"{texts[2]}\n{texts[3]}\n")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(texts[4].encode()))
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "number.json").write_text("3")
    (tmp_path / "torn.json").write_text('{"first_layer": ')
    (tmp_path / "records.jsonl").write_text('{"run_id": "x"}\nnot read any more\n')
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "other.txt").write_text(texts[0])
    assert sorted(len(record.seeds) for record in read_energies([tmp_path])) == [1, 2, 3, 4, 5]
    assert len(read_energies([tmp_path / "b.jsonl", tmp_path / "b.jsonl"])) == 2


def test_a_damaged_record_is_a_sentence(tmp_path):
    fields = json.loads(energy_record(CORA).model_dump_json())
    del fields["trained"]
    (tmp_path / "energies.json").write_text(json.dumps(fields))
    with pytest.raises(GraphjouleError, match=r"energies\.json is not a record of energies: ValidationError\.$"):
        read_energies([tmp_path])
    with pytest.raises(GraphjouleError, match=r"^Cannot read energies from .*none\.json"):
        read_energies([tmp_path / "none.json"])


def test_energies_are_those_of_the_cells_settings():
    other = Cell("egnn", "cora", 64, overrides={"c_max": 0.4})
    few, many, wrong = energy_record(CORA, [0]), energy_record(CORA, [0, 1, 2]), energy_record(other, range(9))
    assert energies_of(CORA, [few, many, wrong]) is many
    assert energies_of(other, [few, many, wrong]) is wrong
    assert energies_of(Cell("gcn", "cora", 64), [few, many, wrong]) is None
    old = energy_record(CORA, recipe=flat(CORA.recipe, without="freeze_last_shift"))
    assert energies_of(CORA, [old]) is old
    assert energies_of(Cell("egnn", "cora", 64, overrides={"freeze_last_shift": True}), [old]) is None


@pytest.mark.parametrize(
    "more",
    [
        {"terms.energy.method": "penalty"},
        {"terms.energy.method": "penalty", "terms.energy.c_min": 0.98},
        {"terms.orthogonal.gamma": 20.0},
        {"terms.orthogonal.gamma": 0.0},
        {"train.clusters.parts": 4},
    ],
    ids=str,
)
def test_what_only_a_cell_or_only_a_record_has_tells_them_apart(more):
    cell = Cell("egnn", "cora", 64, overrides=more)
    free, held = energy_record(CORA), energy_record(cell)
    assert set(held.resolved.settings()) > set(free.resolved.settings())
    assert energies_of(CORA, [held]) is None
    assert energies_of(cell, [free]) is None
    assert energies_of(CORA, [held, free]) is free
    assert energies_of(cell, [free, held]) is held


def test_every_side_of_the_study_of_the_constraint_has_its_own_energies():
    cells = STUDIES["constraint"].cells(["cora"], ["gcn", "egnn"], [16])
    records = [energy_record(cell) for cell in cells]
    assert [energies_of(cell, records) for cell in cells] == records
    for cell, record in zip(cells, records, strict=True):
        assert energies_of(cell, [other for other in records if other is not record]) is None


def test_a_split_that_the_data_choose_is_whichever_was_recorded():
    cell = Cell("egnn", "citeseer", 2)
    assert cell.recipe.data.split == "default"
    record = energy_record(cell, recipe=cell.recipe.with_settings({"split": "public"}).model_dump())
    assert energies_of(cell, [record]) is record


def test_a_packed_record_that_is_damaged_or_a_bomb_is_not_read_into_memory(tmp_path, monkeypatch):
    packed = bytearray(gzip.compress(b'{"first_layer": 0}' * 1000))
    packed[20:24] = b"\xff\xff\xff\xff"
    (tmp_path / "a.json.gz").write_bytes(packed)
    with pytest.raises(GraphjouleError, match=r"Cannot read energies from .*a\.json\.gz"):
        read_energies([tmp_path])
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(bytes(2**28)))
    monkeypatch.setattr(energies, "MOST_BYTES_OF_LINE", 2**16)
    tracemalloc.start()
    assert read_energies([tmp_path]) == []
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()
