import math

from reproduction.pages.tuned import ablation_table, compare, cost_table, ranking_table, tuned_table


def test_pairs_are_compared_seed_by_seed_and_corrected_for_their_number():
    better, worse = [0.8 + 0.01 * k for k in range(10)], [0.7 + 0.02 * (k % 3) for k in range(10)]
    rows = {row["pair"]: row for row in compare({"a": better, "b": worse, "c": better})}
    assert math.isclose(rows["a", "b"]["difference"], sum(better) / 10 - sum(worse) / 10)
    assert rows["a", "c"]["p"] == 1
    assert math.isclose(rows["a", "b"]["p"], 3 * 2 / 2**10)  # all ten differences have one sign
    assert rows["b", "c"]["p"] >= rows["a", "b"]["p"]
    assert compare({"a": better}) == []


def test_without_records_the_tables_say_so(tmp_path):
    for table in (tuned_table, ranking_table, ablation_table, cost_table):
        assert table(tmp_path) == "There is no record of it yet."
