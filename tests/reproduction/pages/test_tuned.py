import json
import math
import shutil

import pytest

from reproduction.experiments.tuned import FOLDER
from reproduction.pages.tuned import (
    ablation_table,
    compare,
    cost_table,
    gate_table,
    ingredients_table,
    ranking_table,
    short_table,
    tuned_table,
)


def test_pairs_are_compared_seed_by_seed_and_corrected_for_their_number():
    better, worse = [0.8 + 0.01 * k for k in range(10)], [0.7 + 0.02 * (k % 3) for k in range(10)]
    by_seed = {name: dict(enumerate(scores)) for name, scores in {"a": better, "b": worse, "c": better}.items()}
    rows = {row["pair"]: row for row in compare({"cora": by_seed})}
    assert math.isclose(rows["a", "b"]["difference"], sum(better) / 10 - sum(worse) / 10)
    assert rows["a", "c"]["p"] == 1
    assert math.isclose(rows["a", "b"]["p"], 3 * 2 / 2**10)  # all ten differences have one sign
    assert rows["b", "c"]["p"] >= rows["a", "b"]["p"]
    assert compare({"cora": {"a": by_seed["a"]}}) == []
    more = compare({"cora": by_seed, "pubmed": by_seed})
    assert math.isclose(more[0]["p"], 6 * 2 / 2**10)  # twice as many tests
    by_seed["b"].pop(3)  # failed, and the others keep their partners
    without = compare({"cora": {"a": by_seed["a"], "b": by_seed["b"]}})[0]
    assert without["n"] == 9
    assert math.isclose(without["difference"], sum(better[k] - worse[k] for k in range(10) if k != 3) / 9)


def test_without_records_the_tables_say_so(tmp_path):
    for table in (tuned_table, ranking_table, ablation_table, gate_table, cost_table, ingredients_table, short_table):
        assert table(tmp_path) == "There is no record of it yet."


@pytest.fixture
def one_cell(tmp_path):
    """The records of one winner of the first round, without those of other studies."""
    folder = tmp_path / "tuned"
    folder.mkdir()
    for ending in ("runs.jsonl.gz", "energies.jsonl", "ablation.jsonl"):
        shutil.copy(FOLDER / f"cora-egnn.{ending}", folder)
    return folder


def test_each_round_has_a_table_and_the_short_one_has_both_once_there_are_two(one_cell):
    _, _, cora = tuned_table(one_cell).splitlines()
    assert cora.startswith("| cora | egnn | 32 | - |")
    assert "second look" not in short_table(one_cell)
    second = one_cell / "second"
    second.mkdir()
    for path in list(one_cell.glob("cora-egnn.*")):
        shutil.copy(path, second / path.name.replace("cora", "pubmed"))
    _, _, pubmed = tuned_table(second, one_cell.parent).splitlines()
    assert pubmed == cora.replace("cora", "pubmed")
    assert tuned_table(one_cell).splitlines()[2:] == [cora]
    assert "| Pubmed, published | tuned | second look | Cora" in short_table(one_cell)
    assert {line.count("|") for line in short_table(one_cell).splitlines()} == {12}
    assert "| pubmed | no consistency |" in ablation_table(second)


def test_ingredients_stand_beside_each_other_in_the_order_of_the_plan(tmp_path):
    facts = {"val_accuracy": [0.8, 0.82], "layers_within": 31, "layers": 32}
    lines = [{"variant": "MLP head", "dataset": "cora", **facts}]
    lines += [{"variant": "as published", "dataset": "pubmed", **facts}]
    lines += [{"variant": "as published", "dataset": "cora", "failure": "not finite"}]
    (tmp_path / "ingredients.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert ingredients_table(tmp_path).splitlines() == [
        "| EGNN | pubmed | within limits | cora | within limits | physics | within limits |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| as published | 81.00 ± 1.41 | 31 of 32 | failed | - | - | - |",
        "| MLP head | - | - | 81.00 ± 1.41 | 31 of 32 | - | - |",
    ]
