import math

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.objective import Binary, Classification, Regression
from graphjoule.training import comparison as module
from graphjoule.training.comparison import Contender, compare, read_comparison, write_comparison
from graphjoule.training.evaluation import Predicted


def said(objective, right, target, index=None):
    """Predictions of classes that are right where they shall be, and of the next class elsewhere."""
    found = torch.where(right, target, (target + 1) % objective.num_classes)
    prediction = torch.nn.functional.one_hot(found, objective.num_classes).double()
    return Predicted(prediction, target, torch.arange(len(target)) if index is None else index)


def contender(name, parts, *, val=None, graph=False, features=True, layers=None):
    return Contender(name, graph, features, layers, val or parts, parts)


def judged(contenders, objective, **options):
    given = {"select_on": "loss", "run_ids": ["a"] * len(contenders[0].judged), "part": "test"} | options
    return compare(objective, contenders, **given)


def shares(n, *correct):
    """Of every share so many of n nodes are right, drawn independently."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randperm(n, generator=generator) < round(share * n) for share in correct]


def test_a_gain_has_the_interval_that_theory_gives():
    pets, n = Classification(2), 500
    target = torch.arange(n) % 2
    all_right, some_right = shares(n, 1.0, 0.8)
    found = judged(
        [
            contender("plain", [said(pets, some_right, target)]),
            contender("deep", [said(pets, all_right, target)], graph=True),
        ],
        pets,
    )
    gain = found.answers["graph"]
    assert (gain.of, gain.over, gain.answer) == ("deep", "plain", "helps")
    assert gain.value == pytest.approx(0.2)
    half = 1.96 * math.sqrt(0.2 * 0.8 / n)
    assert (gain.low, gain.high) == pytest.approx((0.2 - half, 0.2 + half), abs=0.006)
    assert found.sentences()[0].startswith("The graph helps: deep has +20.0 points of accuracy against plain, the best")
    assert (found.best, found.advice) == ("deep", "deep")


def test_nothing_gained_is_not_called_undecided_where_there_are_nodes_enough():
    pets, target = Classification(2), torch.arange(2000) % 2
    one, other = shares(2000, 0.97, 0.97)
    found = judged(
        [contender("plain", [said(pets, one, target)]), contender("deep", [said(pets, other, target)], graph=True)],
        pets,
    )
    assert found.answers["graph"].answer == "does not help"
    assert found.advice == "plain"


def depths(*correct, n=3000):
    """A model of the features alone, a shallow and a deep network on the graph, each right on a share of the nodes."""
    pets, target = Classification(2), torch.arange(n) % 2
    plain, shallow, deep = ([said(pets, right, target)] for right in shares(n, *correct))
    return judged(
        [
            contender("plain", plain),
            contender("shallow", shallow, graph=True, layers=2),
            contender("deep", deep, graph=True, layers=8),
        ],
        pets,
    )


@pytest.mark.parametrize("deep", [0.88, 0.71])
def test_depth_is_not_praised_on_a_graph_that_does_not_help(deep):
    """Sure or undecided, what it gains over a shallow network says nothing against a model without the graph."""
    found = depths(0.9, 0.7, deep)
    assert found.answers["graph"].answer == "does not help"
    assert found.answers["depth"].answer == ("helps" if deep > 0.8 else "undecided")
    _, sentence, advice = [each for each in found.sentences() if not each.startswith("The features")]
    change = f"deep has +{100 * deep - 70:.1f} points of accuracy against shallow"
    assert sentence.startswith(f"More layers do not make the graph useful: {change} (95 % interval ")
    assert sentence.endswith(f"), and {100 * deep - 90:+.1f} against plain, the best without the graph.")
    assert advice.startswith("Use plain")


def test_depth_that_costs_is_said_so_whatever_the_graph_is_worth():
    found = depths(0.9, 0.8, 0.7)
    assert any(each.startswith("Depth does not help: deep has -10.0 points") for each in found.sentences())


def test_layers_of_a_network_without_the_graph_are_no_depth():
    pets, target = Classification(2), torch.arange(100) % 2
    low, high = ([said(pets, right, target)] for right in shares(100, 0.5, 1.0))
    found = judged(
        [contender("shallow", low, graph=True, layers=2), contender("deep without the graph", high, layers=8)], pets
    )
    assert "graph" in found.answers
    assert "depth" not in found.answers


def test_few_nodes_are_undecided_and_the_advice_says_how_much_it_may_cost():
    pets, target = Classification(2), torch.arange(20) % 2
    one, other = shares(20, 0.6, 0.8)
    found = judged(
        [contender("plain", [said(pets, one, target)]), contender("deep", [said(pets, other, target)], graph=True)],
        pets,
    )
    assert found.answers["graph"].answer == "undecided"
    assert found.sentences()[0].startswith("Whether the graph helps is undecided: deep has +20.0 points")
    assert (found.best, found.advice) == ("deep", "plain")
    assert "it may be worse by up to" in found.sentences()[-1]


@pytest.mark.parametrize(("n", "advised"), [(4, None), (20_000, "constant")])
def test_a_constant_is_not_advised_because_nodes_are_few(n, advised):
    pets, target = Classification(2), torch.arange(n) % 2
    half, more = (said(pets, right, target) for right in shares(n, 0.5, 0.75 if n == 4 else 0.501))
    found = judged([contender("constant", [half], features=False), contender("plain", [more])], pets)
    assert (found.best, found.advice, found.advised) == ("plain", "constant", advised)
    if advised is None:
        said_last = (
            "Nothing can be advised: plain is the best by validation, but 4 test nodes cannot tell it from constant"
        )
        assert found.sentences()[-1].startswith(f"{said_last}, which may be worse by up to 100.0 points of ")
    else:
        assert found.sentences()[-1].startswith("Use constant: ")


def test_a_simple_model_is_not_advised_where_it_may_be_worse_by_half_of_everything():
    """As where a model finds 1 of 20 of the class that is asked for, and the few nodes cannot show that it is worse."""
    pets, target = Classification(2), torch.arange(4) % 2
    one, other = shares(4, 0.5, 0.75)
    found = judged(
        [contender("plain", [said(pets, one, target)]), contender("deep", [said(pets, other, target)], graph=True)],
        pets,
    )
    assert (found.best, found.advice, found.advised) == ("deep", "plain", None)
    start = "Nothing can be advised: deep is the best by validation, but 4 test nodes cannot tell it from plain, which"
    assert found.sentences()[-1].startswith(start)


def test_how_much_worse_the_advice_may_be_is_said_by_the_metric_with_the_widest_doubt():
    pets, n = Classification(2), 600
    target = (torch.arange(n) % 30 == 0).long()  # 20 of the second class
    never, finds = target == 0, torch.arange(n) % 200 == 0
    slips = torch.arange(n) % 200 == 1  # so that both are right equally often
    found = judged(
        [
            contender("plain", [said(pets, never, target)]),
            contender("finds three", [said(pets, never & ~slips | finds, target)], graph=True),
        ],
        pets,
        select_on="macro_f1",
    )
    by_accuracy = judged(
        [
            contender("plain", [said(pets, never, target)]),
            contender("deep", [said(pets, never & ~slips | finds, target)], val=[said(pets, never | finds, target)]),
        ],
        pets,
        select_on="accuracy",
    )
    for each in (found, by_accuracy):
        assert each.advised == "plain"
        assert each.doubt.metric == "macro_f1"
        assert each.doubt.high > 0.1
        assert f"may be worse by up to {100 * each.doubt.high:.1f} points of macro f1, " in each.sentences()[-1]


@pytest.mark.parametrize("share", [1.0, 0.0])
def test_two_nodes_prove_nothing_though_every_draw_of_them_is_alike(share):
    pets, target = Classification(2), torch.arange(2)
    one, other = shares(2, 1.0, share)
    found = judged(
        [contender("plain", [said(pets, other, target)]), contender("deep", [said(pets, one, target)], graph=True)],
        pets,
    )
    gain = found.answers["graph"]
    assert (gain.answer, gain.high, found.advice) == ("undecided", 1.0, "plain")
    assert gain.low == pytest.approx(max(1 - share - 1.5, -1.0))


def test_the_verdict_is_seldom_wrong_where_there_is_nothing(monkeypatch):
    """Two models that are equally good: 95 % intervals call one better in 5 % of the draws, within chance."""
    monkeypatch.setattr(module, "REPLICATES", 200)
    pets, generator = Classification(2), torch.Generator().manual_seed(1)
    wrong = 0
    for _ in range(60):
        target = torch.arange(150) % 2
        rights = [torch.rand(150, generator=generator) < 0.8 for _ in range(2)]
        parts = [[said(pets, right, target)] for right in rights]
        found = judged([contender("plain", parts[0]), contender("deep", parts[1], graph=True)], pets)
        gain = found.answers["graph"]
        wrong += gain.low > 0 or gain.high < 0
    assert wrong <= 8  # 3 expected; 9 or more happen once in 300 times


def test_validation_chooses_who_is_compared_whatever_the_test_nodes_say():
    pets, target = Classification(2), torch.arange(400) % 2
    low, high = (said(pets, right, target) for right in shares(400, 0.6, 0.9))
    found = judged(
        [
            contender("constant", [low], features=False),
            contender("good on test", [high], val=[low]),
            contender("good on validation", [low], val=[high]),
            contender("deep", [low], graph=True),
        ],
        pets,
    )
    assert found.best == "good on validation"
    assert found.answers["graph"].over == "good on validation"


def test_a_simple_model_that_never_finds_a_rare_class_is_not_advised():
    pets, n = Classification(2), 1000
    target = (torch.arange(n) % 20 == 0).long()
    never, most = target == 0, torch.arange(n) % 40 != 20
    slips = torch.arange(n) % 43 == 1  # so that both are right equally often
    found = judged(
        [
            contender("majority", [said(pets, never, target)], features=False),
            contender("finds half", [said(pets, most & ~slips, target)], graph=True),
        ],
        pets,
        select_on="loss",
    )
    accuracy = {row.name: row.test["accuracy"] for row in found.rows}
    assert accuracy["finds half"] - accuracy["majority"] < 0.005
    assert found.best == "finds half"
    assert found.advice == "finds half"
    assert found.worse_by == ["macro_f1"]
    assert found.answers["graph"].answer != "helps"  # so it must say by what the rest is worse
    assert found.sentences()[-1].endswith(" and everything simpler here is significantly worse by macro f1.")


def test_a_model_that_finds_a_rare_class_at_some_cost_of_accuracy_is_named():
    pets, n = Classification(2), 2000
    target = (torch.arange(n) % 20 == 0).long()  # one in twenty
    finds = (target == 0) & (torch.arange(n) % 17 != 0) | (target == 1) & (torch.arange(n) % 3 != 0)
    parts = [[said(pets, right, target)] for right in (target == 0, finds)]
    found = judged([contender("majority", parts[0], features=False), contender("finds", parts[1])], pets)
    assert (found.best, found.advice) == ("majority", "majority")
    assert found.sentences()[-1] == "Use majority: nothing beats it by accuracy."
    assert found.notes[0].startswith("By macro f1 another model is better: finds has +")
    equal = judged([contender("majority", parts[0], features=False), contender("same", parts[0])], pets)
    assert equal.notes == []


def test_numbers_gain_by_a_lower_error_and_constants_set_the_margin():
    asked, generator = Regression(), torch.Generator().manual_seed(0)
    truth = 1000 + torch.randn(300, generator=generator).double()
    near = truth + 0.1 * torch.randn(300, generator=generator)
    parts = [[Predicted(each[:, None], truth, torch.arange(300))] for each in (truth.mean().expand(300), near)]
    found = judged([contender("mean", parts[0]), contender("deep", parts[1], graph=True)], asked, select_on="mae")
    gain, error = found.answers["graph"], float((truth - truth.mean()).abs().mean())
    assert found.metrics == ["mae", "r2"]
    assert gain.answer == "helps"
    assert gain.value == pytest.approx(error - float((near - truth).abs().mean()))
    assert gain.margin == pytest.approx(0.02 * error)
    assert f"deep has {-gain.value:+.3g} mae against mean" in found.sentences()[0]
    r2 = {row.name: row.test["r2"] for row in found.rows}
    assert r2["mean"] == pytest.approx(0, abs=1e-9)
    assert r2["deep"] == pytest.approx(0.99, abs=0.005)


def test_areas_under_curves_are_resampled_over_seeds_with_nodes_of_their_own():
    asked, generator = Binary(), torch.Generator().manual_seed(0)
    parts = {"noise": [], "deep": []}
    for seed in range(3):
        index = torch.arange(seed * 50, seed * 50 + 150)
        target = torch.randint(2, (150,), generator=generator)
        noise = torch.rand(150, generator=generator).double()
        for name, score in (("noise", noise), ("deep", noise + 0.5 * target)):
            parts[name].append(Predicted(torch.stack([-score, score], dim=1), target, index))
    found = judged([contender("noise", parts["noise"]), contender("deep", parts["deep"], graph=True)], asked)
    assert found.metrics == ["roc_auc", "average_precision"]
    for row in found.rows:
        for name, score in (("roc_auc", roc_auc_score), ("average_precision", average_precision_score)):
            expected = np.mean([score(each.target, each.prediction[:, 1]) for each in parts[row.name]])
            assert row.test[name] == pytest.approx(expected)
    gain = found.answers["graph"]
    assert gain.answer == "helps"
    assert gain.low < gain.value < gain.high
    assert found.num_nodes == 150


def test_a_metric_that_the_nodes_do_not_define_gives_no_answer():
    asked, target = Binary(), torch.zeros(10, dtype=torch.long)
    parts = [Predicted(torch.rand(10, 2).double(), target, torch.arange(10))]
    found = judged([contender("plain", parts), contender("deep", parts, graph=True)], asked)
    assert found.answers == {}
    assert found.rows[0].test["roc_auc"] is None
    assert found.table()[1][0][1] == "–"


def test_a_file_gives_it_back_and_a_damaged_one_is_a_sentence(tmp_path):
    pets, target = Classification(2), torch.arange(20) % 2
    parts = [[said(pets, right, target)] for right in shares(20, 0.6, 0.8)]
    found = judged([contender("plain", parts[0]), contender("deep", parts[1], graph=True)], pets)
    write_comparison(tmp_path / "c.json", found)
    assert read_comparison(tmp_path / "c.json") == found
    for text in ("{", "[]", (tmp_path / "c.json").read_text().replace('"format": 1', '"format": 9')):
        (tmp_path / "c.json").write_text(text)
        with pytest.raises(GraphjouleError, match="is damaged or not a comparison; delete it"):
            read_comparison(tmp_path / "c.json")
