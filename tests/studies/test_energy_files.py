import gzip
import json

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.studies import STUDIES, Cell
from graphjoule.studies.energies import EnergyRecord
from graphjoule.studies.energy_files import energies_of, read_energies


def energy_record(cell, seeds=(0, 1), energies=(9.0, 2.0, 1.0), **changes):
    """A record of energies that were never measured."""
    runs = [[factor * energy for energy in energies] for factor in range(1, len(seeds) + 1)]
    fields = {
        "dataset": cell.dataset,
        "model": cell.model,
        "recipe": cell.recipe.settings(),
        "seeds": list(seeds),
        "first_layer": 0,
        "initial": runs,
        "trained": runs,
        "test_accuracy": [0.5] * len(seeds),
        "epochs_run": [1] * len(seeds),
        "seconds": 1.0,
        "device": "none",
        "versions": {},
    }
    return EnergyRecord(**(fields | changes))


CORA = Cell("egnn", "cora", 64)


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
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "b.jsonl")
    assert len(read_energies([tmp_path])) == 5


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
    old = energy_record(CORA, recipe={k: v for k, v in CORA.recipe.settings().items() if k != "freeze_last_shift"})
    assert energies_of(CORA, [old]) is old
    assert energies_of(Cell("egnn", "cora", 64, overrides={"freeze_last_shift": True}), [old]) is None


@pytest.mark.parametrize(
    "more",
    [
        {"constraint": "penalty"},
        {"constraint": "penalty", "constraint.c_min": 0.98},
        {"orthogonal_penalty": 20.0},
        {"orthogonal_penalty": 0.0},
        {"clusters": 4},
    ],
    ids=str,
)
def test_what_only_a_cell_or_only_a_record_has_tells_them_apart(more):
    cell = Cell("egnn", "cora", 64, overrides=more)
    free, held = energy_record(CORA), energy_record(cell)
    assert set(held.recipe) > set(free.recipe)
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
    record = energy_record(cell, recipe=cell.recipe.settings() | {"split": "public"})
    assert energies_of(cell, [record]) is record
