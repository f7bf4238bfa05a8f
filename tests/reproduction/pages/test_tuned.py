import math

from reproduction.pages.tuned import ablation_table, compare, cost_table, gate_table, ranking_table, tuned_table


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
    for table in (tuned_table, ranking_table, ablation_table, gate_table, cost_table):
        assert table(tmp_path) == "There is no record of it yet."
