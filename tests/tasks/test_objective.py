from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.objective import (
    LOSS,
    Binary,
    Classification,
    MultiLabel,
    Ordinal,
    Regression,
    read_objective,
)


@pytest.mark.parametrize(
    "objective", [Classification(3), Regression(1), Regression(2, "absolute"), MultiLabel(2), Ordinal(3)]
)
def test_unknown_targets_are_known_to_be_unknown(objective):
    assert objective.is_known(objective.unknown(4)).tolist() == [False] * 4


def test_what_selects_is_the_loss_or_a_metric():
    assert Regression.column(LOSS) == (0, False)
    assert Regression.column("r2") == (1, True)
    assert Regression.column("mae") == (2, False)
    assert Classification.column("accuracy") == (1, True)
    assert Binary.column("roc_auc") == (2, True)
    assert [metric.name for metric in Binary.watched("roc_auc")] == ["accuracy", "roc_auc"]
    assert [metric.name for metric in Regression.watched(LOSS)] == ["r2"]
    with pytest.raises(GraphjouleError, match="`select_on` is 'r2'; for classification the choices are: accuracy"):
        Classification.column("r2")


@pytest.mark.parametrize(
    ("objective", "targets", "said"),
    [
        (Regression(1), torch.ones(3), r"have shape \[3\]; expected \[4\]"),
        (Regression(2), torch.ones(4), r"have shape \[4\]; expected \[4, 2\]"),
        (Regression(1), torch.ones(4, dtype=torch.int64), "expected a floating-point dtype"),
        (Regression(1), torch.full((4,), torch.nan), "all 4 are NaN"),
        (Regression(1), torch.tensor([1.0, torch.inf, 0, 0]), "target of node 1 in task 't' is infinite"),
        (Regression(1, target_names=("a", "b")), torch.ones(4), "1 targets but 2 target names"),
        (MultiLabel(2), torch.ones(4, 3), r"labels of task 't' have shape \[4, 3\]; expected \[4, 2\]"),
        (MultiLabel(2), torch.ones(4, 2).long(), "expected a floating-point dtype"),
        (MultiLabel(2), torch.tensor([[0.0, 1], [1, 1], [1, 0.5], [0, 0]]), "Label 1 of node 2 in task 't' is 0.5"),
        (MultiLabel(2), torch.full((4, 2), torch.nan), "has no label: all 4 are NaN"),
        (Regression(2, "squared", ("a", "a")), torch.ones(4, 2), "targets 0 and 1 of task 't' are both called 'a'"),
        (MultiLabel(2, ("a", "a")), torch.ones(4, 2), "labels 0 and 1 of task 't' are both called 'a'"),
        (MultiLabel(2, class_weights=(1.0,)), torch.ones(4, 2), r"`class_weights` is \[1.0\]; .* one per label"),
        (Ordinal(3), torch.tensor([0, 1, 3, 0]), "label of node 2 in task 't' is 3; expected 0 to 2"),
        (Ordinal(3, ("a", "b")), torch.tensor([0, 1, 2, 0]), "3 classes but 2 class names"),
        (Binary(positive=2), torch.tensor([0, 1, 1, 0]), "the positive class 2; a binary objective has two classes"),
        (Binary(3), torch.tensor([0, 1, 1, 0]), "has 3 classes and the positive class 1"),
        (
            Classification(2, class_weights="even"),
            torch.tensor([0, 1, 1, 0]),
            "`class_weights` is 'even'; expected",
        ),
        (Classification(2, class_weights=(1.0, -1.0)), torch.tensor([0, 1, 1, 0]), "2 numbers above 0, one per class"),
        (
            Classification(2, focal_gamma=-1.0),
            torch.tensor([0, 1, 1, 0]),
            "`focal_gamma` is -1.0; it must be 0",
        ),
        (Classification(2), torch.tensor([0, 1, 2, 0]), "label of node 2 in task 't' is 2; expected 0 to 1"),
        (Classification(1), torch.zeros(4, dtype=torch.int64), "1 class; at least two are needed"),
    ],
)
def test_targets_that_do_not_fit(objective, targets, said):
    with pytest.raises(GraphjouleError, match=said):
        objective.check(targets, 4, "t")


def test_an_objective_is_read_from_its_fields():
    fields = {"name": "regression", "num_targets": 2, "error": "absolute", "target_names": ["a", "b"]}
    assert read_objective(fields) == Regression(2, "absolute", ("a", "b"))
    for wrong in ({"name": "ranking"}, None, {"name": "regression", "depth": 3}):
        with pytest.raises(GraphjouleError, match="is not an objective"):
            read_objective(wrong)


@pytest.mark.parametrize("shift", [0.0, -3.0, 1e9])
def test_a_model_learns_mean_and_standard_deviation_of_its_training_targets_wherever_they_are(shift):
    targets = torch.tensor([[1.0, 5.0], [2.0, 5.0], [6.0, 5.0]], dtype=torch.float64) + shift
    known = {}

    class Model(torch.nn.Module):
        def set_scale(self, center, scale):
            known.update(center=center, scale=scale)

    elsewhere = torch.stack([torch.ones(2), targets[2:].sum(dim=0)])  # how many are known, and their sum
    parts = iter([elsewhere, (targets[2:] - targets.mean(dim=0)).square().sum(dim=0)])
    Regression(2).prepare(Model(), targets[:2], 3, lambda sums: sums + next(parts))
    torch.testing.assert_close(known["center"], torch.tensor([3.0, 5.0], dtype=torch.float64) + shift)
    torch.testing.assert_close(known["scale"], torch.tensor([14 / 3, 1.0], dtype=torch.float64) ** 0.5)  # 1 if flat


def test_the_loss_of_a_node_is_the_mean_over_its_targets():
    output, target = torch.tensor([[1.0, 4.0], [0.0, 0.0]]), torch.tensor([[0.0, 2.0], [0.0, 0.0]])
    assert Regression(2).loss(output, target).tolist() == [2.5, 0.0]
    assert Regression(2, "absolute").loss(output, target).tolist() == [1.5, 0.0]
    assert Regression(1).loss(output[:, :1], target[:, 0]).tolist() == [1.0, 0.0]


def test_a_node_with_some_of_its_targets_counts_with_those():
    output, target = torch.tensor([[1.0, 4.0], [3.0, 0.0]]), torch.tensor([[0.0, torch.nan], [torch.nan, torch.nan]])
    output.requires_grad_(True)
    loss = Regression(2).loss(output, target)
    assert loss.tolist() == [1.0, 0.0]
    loss.sum().backward()
    assert output.grad.tolist() == [[2.0, 0.0], [0.0, 0.0]]
    assert Regression(2).is_known(target).tolist() == [True, False]


def test_a_label_that_is_unknown_is_not_a_label_that_is_not_there():
    output = torch.tensor([[2.0, -3.0, 0.5]], requires_grad=True)
    loss = MultiLabel(3).loss(output, torch.tensor([[1.0, torch.nan, 0.0]]))
    known = F.binary_cross_entropy_with_logits(output[:, [0, 2]], torch.tensor([[1.0, 0.0]]))
    torch.testing.assert_close(loss[0], known)
    loss.sum().backward()
    assert output.grad[0, 1] == 0
    assert output.grad[0, [0, 2]].abs().min() > 0


@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_mean_and_standard_deviation_are_those_of_the_known_entries(shift):
    targets = torch.tensor([[1.0, torch.nan], [3.0, 4.0], [torch.nan, 4.0]], dtype=torch.float64) + shift
    known = {}

    class Model(torch.nn.Module):
        def set_scale(self, center, scale):
            known.update(center=center, scale=scale)

    Regression(2).prepare(Model(), targets, 3, lambda sums: sums)
    assert known["center"].tolist() == [2 + shift, 4 + shift]
    assert known["scale"].tolist() == [1.0, 1.0]


OUTPUT = torch.tensor([[2.0, -1.0, 0.0], [0.5, 1.0, 0.0], [-1.0, 0.0, 3.0], [0.0, 0.0, 0.0]])
LABELS = torch.tensor([0, 0, 0, 2])


def test_balanced_classes_weigh_the_same_and_an_absent_one_counts_as_it_is():
    objective = Classification(3, class_weights="balanced")
    factors = objective.class_factors(LABELS, lambda sums: sums)
    torch.testing.assert_close(factors, torch.tensor([4 / (2 * 3), 1.0, 4 / (2 * 1)]))
    of_parts = objective.class_factors(LABELS[:2], lambda sums: sums + torch.tensor([1.0, 0.0, 1.0]))
    torch.testing.assert_close(of_parts, factors)
    expected = F.cross_entropy(OUTPUT, LABELS, factors, reduction="none")
    torch.testing.assert_close(objective.loss(OUTPUT, LABELS, factors), expected)
    assert Classification(3).class_factors(LABELS, lambda sums: sums).numel() == 0
    assert Classification(3, class_weights=(1.0, 2.0, 5.0)).class_factors(LABELS, lambda s: s).tolist() == [1, 2, 5]


def test_balanced_labels_weigh_the_same_there_and_not_there():
    targets = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, torch.nan], [0.0, 0.0]])
    objective = MultiLabel(2, class_weights="balanced")
    factors = objective.class_factors(targets, lambda sums: sums)
    torch.testing.assert_close(factors, torch.tensor([[4 / (2 * 3), 1.0], [4 / (2 * 1), 1.0]]))
    loss = objective.loss(torch.zeros(4, 2), targets, factors)
    torch.testing.assert_close(loss, torch.tensor([1.5, 5 / 6, 2 / 3, 5 / 6]) * torch.tensor(2.0).log())
    assert MultiLabel(2, class_weights=(3.0, 4.0)).class_factors(targets, lambda s: s).tolist() == [[1, 1], [3, 4]]


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_the_focal_loss_is_its_formula_and_has_a_gradient_where_the_model_is_sure(gamma):
    p = OUTPUT.softmax(dim=1).gather(1, LABELS[:, None])[:, 0]
    expected = -((1 - p) ** gamma) * p.log()
    torch.testing.assert_close(Classification(3, focal_gamma=gamma).loss(OUTPUT, LABELS), expected)
    q = torch.where(torch.tensor([[True, False]]), OUTPUT[:, :2].sigmoid(), 1 - OUTPUT[:, :2].sigmoid())
    expected = (-((1 - q) ** gamma) * q.log()).mean(dim=1)
    torch.testing.assert_close(
        MultiLabel(2, focal_gamma=gamma).loss(OUTPUT[:, :2], torch.tensor([[1.0, 0]] * 4)), expected
    )
    sure = torch.tensor([[200.0, -200.0]], requires_grad=True)
    Classification(2, focal_gamma=gamma).loss(sure, torch.tensor([0])).sum().backward()
    assert sure.grad.isfinite().all()


def test_smoothed_labels_spread_a_share_over_all_classes():
    smooth = Classification(3, label_smoothing=0.3)
    log_p = OUTPUT.log_softmax(dim=1)
    expected = -0.7 * log_p.gather(1, LABELS[:, None])[:, 0] - 0.1 * log_p.sum(dim=1)
    torch.testing.assert_close(smooth.loss(OUTPUT, LABELS), expected)
    assert Classification(3).reweighted(None, None, 0.3) == smooth
    with pytest.raises(GraphjouleError, match=r"`label_smoothing` is 0.3, but it is for classes, and .* is multilabel"):
        MultiLabel(2).reweighted(None, None, 0.3)
    for wrong, said in (({"label_smoothing": 1.0}, "is 1.0; it must"), ({"focal_gamma": 1.0}, "leave out one of them")):
        with pytest.raises(GraphjouleError, match=said):
            replace(smooth, **wrong).check(LABELS, len(LABELS), "t")


def test_weights_are_for_classes_and_labels():
    assert Classification(3).reweighted("balanced", 2.0) == Classification(3, None, "balanced", 2.0)
    assert MultiLabel(2).reweighted(None, 1.0) == MultiLabel(2, focal_gamma=1.0)
    assert Classification(3, class_weights="balanced").reweighted(None, None).class_weights == "balanced"
    with pytest.raises(GraphjouleError, match="`class_weights` is 'balanced', but it is for classes and labels"):
        Regression().reweighted("balanced", None)


@pytest.mark.parametrize("positive", [0, 1])
def test_two_classes_with_a_positive_one_train_as_two_classes_do(positive):
    output, labels = OUTPUT[:, :2], torch.tensor([0, 1, 1, 0])
    assert Binary(positive=positive).loss(output, labels).equal(Classification(2).loss(output, labels))
    assert read_objective({"name": "binary", "class_names": ["a", "b"], "positive": 0}) == Binary(
        2, ("a", "b"), positive=0
    )


def test_a_rank_is_predicted_between_the_first_and_the_last_class():
    assert Ordinal(3).prediction(torch.tensor([[-2.0], [1.4], [9.0]])).tolist() == [[0.0], [pytest.approx(1.4)], [2.0]]
    assert Ordinal(3).loss(torch.tensor([[1.5]]), torch.tensor([0])).tolist() == [2.25]
    assert Ordinal(3, error="absolute").loss(torch.tensor([[1.5]]), torch.tensor([0])).tolist() == [1.5]
    assert Ordinal(2, ("low", "high")).strata(torch.tensor([1, -1]))[1] == ("low", "high")
