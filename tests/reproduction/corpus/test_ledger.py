"""The ledgers have the differences in points, and under them the mean and the worst task."""

from reproduction.corpus.ledger import DATA, FOUND, auto_ledger, score_name, settings_ledger


def fitted(task, depth, what, score):
    scores = {f"test_{score_name(task)}": [score, score]}
    return {"kind": "fit", "task": task, "depth": depth, "what": what, "scores": scores}


def test_settings_against_the_search_and_32_layers_against_2():
    records = [
        fitted("iris", 2, DATA, 0.90),
        fitted("iris", 2, FOUND, 0.92),
        fitted("iris", 32, DATA, 0.91),
        fitted("rare", 2, DATA, 0.80),
        fitted("rare", 2, FOUND, 0.79),
        fitted("rare", 32, DATA, 0.78),
        {"kind": "time", "task": "iris", "depth": 2},
    ]
    text = settings_ledger(records)
    assert "| task | data, 2 | search, 2 | difference, 2 | data, 32 | 32 - 2 |" in text
    assert "| iris | 90.00 | 92.00 | -2.00 | 91.00 | +1.00 |" in text
    assert "2 layers, data - search: mean -0.50 points over 2 tasks, median -0.50, worst -2.00 (iris)" in text
    assert "data, 32 - 2 layers: mean -0.50 points over 2 tasks, median -0.50, worst -2.00 (rare)" in text
    assert settings_ledger([]) == ""


def test_auto_against_every_rival_and_against_the_best_of_each_task():
    def rival(task, name, score):
        return {"kind": "rival", "task": task, "name": name, "scores": [score]}

    records = [{"kind": "auto", "task": task, "scores": [score]} for task in ("a", "b") for score in (0.90, 0.92)]
    records += [rival("a", "gcn", 0.95), rival("b", "gcn", 0.80), rival("a", "majority", 0.5)]
    records += [rival("b", "majority", 0.5), rival("not yet", "gcn", 0.9)]
    text = auto_ledger(records)
    assert "| a | 2 | 91.00 | 95.00 | 50.00 | gcn | -4.00 |" in text
    assert "not yet" not in text
    assert "auto - gcn: mean +3.50 points over 2 tasks, median +3.50, worst -4.00 (a)" in text
    assert "auto - the best rival of each task: mean +3.50 points over 2 tasks, median +3.50, worst -4.00 (a)" in text
    assert "| task | splits | auto | gcn | majority | best rival | difference |" in text
    trained = [fitted("a", 8, DATA, 0.97), fitted("a", 8, FOUND, 1.0), rival("b", "egnn with 8 layers", 0.5)]
    trained[0]["scores"]["test_accuracy"] = [0.97, 0.97, 0.0]  # auto had two splits
    assert "| a | 2 | 91.00 | 95.00 | 50.00 | 97.00 | egnn with 8 layers | -6.00 |" in auto_ledger(records + trained)
    but = "auto - the best rival of each task but EGNN: mean +3.50 points over 2 tasks, median +3.50, worst -4.00 (a)"
    assert but in auto_ledger(records + trained)
    assert "worst -4.00 (a); more than 1 below on 1: a" in text
    assert "alone" not in text
    alone = [record | {"alone": 0.905} for record in records[:2]]  # of the first task; others are of an older auto
    line = "auto - its first model alone: mean +0.50 points over 1 tasks, median +0.50, worst +0.50 (a)"
    assert line in auto_ledger(alone + records[1:])
    assert "| a | 2 | 91.00 | 90.50 | 95.00 | 50.00 | gcn | -4.00 |" in auto_ledger(records[:1] + alone + records[2:])
    assert "| b |" not in auto_ledger(alone + records[2:])
    assert auto_ledger([]) == ""
