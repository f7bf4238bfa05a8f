"""Every metric against scikit-learn, ties and unknown targets included; the calibration error against a definition."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from graphjoule.tasks.metrics import ACCURACY, MAE, R2, Metric
from graphjoule.tasks.objective import OBJECTIVES, Binary, Classification, MultiLabel, Ordinal, Regression
from tests.graphs import few

SEEDS = st.integers(0, 2**32 - 1)
EXACT = {"rel": 1e-6, "abs": 1e-9}


def value(objective, name, prediction, target) -> float:
    tensors = torch.as_tensor(prediction), torch.as_tensor(target)
    return float(objective.metric(name).value(*objective.scored(*tensors)))


def drawn_classes(seed: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities on a coarse grid, so that many are equal, and labels in which every class is there."""
    random = np.random.RandomState(seed)
    labels = np.r_[np.arange(num_classes), random.randint(num_classes, size=random.randint(4, 25))]
    raw = random.randint(1, 5, size=(len(labels), num_classes)).astype(float)
    return raw / raw.sum(axis=1, keepdims=True), labels


def calibration_error(confidence, is_right) -> float:
    """The definition, bin by bin: equal widths, each closed on the right."""
    total = 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        if inside.any():
            total += inside.mean() * abs(is_right[inside].mean() - confidence[inside].mean())
    return total


@few
@given(SEEDS, st.integers(2, 4))
def test_metrics_of_classes_are_scikit_learns(seed, num_classes):
    p, y = drawn_classes(seed, num_classes)
    found, every = p.argmax(axis=1), range(num_classes)
    one_hot = np.eye(num_classes)[y]
    expected = {
        "accuracy": sk.accuracy_score(y, found),
        "balanced_accuracy": sk.balanced_accuracy_score(y, found),
        "macro_f1": sk.f1_score(y, found, average="macro"),
        "micro_f1": sk.f1_score(y, found, average="micro"),
        "roc_auc": np.mean([sk.roc_auc_score(y == c, p[:, c]) for c in every]),
        "average_precision": np.mean([sk.average_precision_score(y == c, p[:, c]) for c in every]),
        "log_loss": sk.log_loss(y, p, labels=list(every)),
        "brier": sk.brier_score_loss(one_hot.argmax(1), p, labels=list(every), scale_by_half=False),
        "ece": calibration_error(p.max(axis=1), found == y),
    }
    if num_classes > 2:
        assert expected["roc_auc"] == pytest.approx(sk.roc_auc_score(y, p, multi_class="ovr"))
    objective = Classification(num_classes)
    assert {name: value(objective, name, p, y) for name in expected} == pytest.approx(expected, **EXACT)
    assert expected.keys() == {metric.name for metric in objective.metrics}


@few
@given(SEEDS, st.sampled_from([0, 1]))
def test_metrics_of_two_classes_are_scikit_learns_of_the_positive_one(seed, positive):
    p, y = drawn_classes(seed, 2)
    p[p[:, 0] == 0.5] = [0.6, 0.4]  # which class a tie is differs by what counts as positive
    score, is_true, found = p[:, positive], y == positive, p.argmax(axis=1) == positive
    expected = {
        "accuracy": sk.accuracy_score(is_true, found),
        "balanced_accuracy": sk.balanced_accuracy_score(is_true, found),
        "precision": sk.precision_score(is_true, found, zero_division=0),
        "recall": sk.recall_score(is_true, found),
        "f1": sk.f1_score(is_true, found),
        "macro_f1": sk.f1_score(is_true, found, average="macro"),
        "micro_f1": sk.f1_score(is_true, found, average="micro"),
        "roc_auc": sk.roc_auc_score(is_true, score),
        "average_precision": sk.average_precision_score(is_true, score),
        "log_loss": sk.log_loss(is_true, score),
        "brier": sk.brier_score_loss(is_true, score),
        "ece": calibration_error(p.max(axis=1), found == is_true),
    }
    objective = Binary(positive=positive)
    assert {name: value(objective, name, p, y) for name in expected} == pytest.approx(expected, **EXACT)
    assert expected.keys() == {metric.name for metric in objective.metrics}


@few
@given(SEEDS, st.integers(1, 3))
def test_metrics_of_labels_are_scikit_learns_over_the_known_ones(seed, num_labels):
    random = np.random.RandomState(seed)
    n = random.randint(6, 20)
    t = random.randint(2, size=(n, num_labels)).astype(float)
    t[0], t[1] = 1, 0
    is_known = random.rand(n, num_labels) < 0.8
    is_known[:2] = True
    p = random.randint(0, 11, size=(n, num_labels)) / 10
    found = (p > 0.5).astype(float)

    def mean(score) -> float:
        each = [score(t[k, c], p[k, c], found[k, c]) for c, k in enumerate(is_known.T)]
        return float(np.nanmean(each))

    known = t[is_known], found[is_known]
    expected = {
        "micro_f1": sk.f1_score(*known),
        "macro_f1": mean(lambda t, p, f: sk.f1_score(t, f, zero_division=np.nan)),
        "label_accuracy": sk.accuracy_score(*known),
        "balanced_accuracy": mean(lambda t, p, f: sk.balanced_accuracy_score(t, f)),
        "roc_auc": mean(lambda t, p, f: sk.roc_auc_score(t, p)),
        "average_precision": mean(lambda t, p, f: sk.average_precision_score(t, p)),
        "log_loss": mean(lambda t, p, f: sk.log_loss(t, p, labels=[0, 1])),
        "brier": mean(lambda t, p, f: sk.brier_score_loss(t, p)),
        "ece": mean(lambda t, p, f: calibration_error(np.maximum(p, 1 - p), f == t)),
    }
    objective, target = MultiLabel(num_labels), np.where(is_known, t, np.nan)
    assert {name: value(objective, name, p, target) for name in expected} == pytest.approx(expected, **EXACT)
    assert expected.keys() == {metric.name for metric in objective.metrics}


@few
@given(SEEDS, st.integers(1, 3))
def test_metrics_of_numbers_are_scikit_learns_over_the_known_ones(seed, num_targets):
    random = np.random.RandomState(seed)
    t, p = random.randn(12, num_targets) * 5 + 3, random.randn(12, num_targets)
    objective = Regression(num_targets)
    assert value(objective, "r2", p, t) == pytest.approx(sk.r2_score(t, p))
    assert value(objective, "mae", p, t) == pytest.approx(sk.mean_absolute_error(t, p))
    assert value(objective, "rmse", p, t) == pytest.approx(sk.mean_squared_error(t, p) ** 0.5)
    is_known = random.rand(12, num_targets) < 0.7
    is_known[:3] = True
    columns = [(t[k, c], p[k, c]) for c, k in enumerate(is_known.T)]
    t[~is_known] = np.nan
    assert value(objective, "r2", p, t) == pytest.approx(np.mean([sk.r2_score(*c) for c in columns]))
    assert value(objective, "mae", p, t) == pytest.approx(np.mean([sk.mean_absolute_error(*c) for c in columns]))
    squared = np.mean([sk.mean_squared_error(*c) for c in columns])
    assert value(objective, "rmse", p, t) == pytest.approx(squared**0.5)


@few
@given(SEEDS)
def test_metrics_of_ranks_count_in_ranks_and_after_rounding(seed):
    random = np.random.RandomState(seed)
    y, p = random.randint(5, size=20), random.rand(20, 1) * 4
    objective = Ordinal(5)
    assert value(objective, "mae", p, y) == pytest.approx(sk.mean_absolute_error(y, p))
    assert value(objective, "accuracy", p, y) == pytest.approx(sk.accuracy_score(y, p.round().ravel().astype(int)))
    assert value(objective, "rmse", p, y) == pytest.approx(sk.root_mean_squared_error(y, p))
    assert value(objective, "r2", p, y) == pytest.approx(sk.r2_score(y, p))


def test_a_target_that_does_not_vary_has_no_variance_to_explain():
    assert value(Regression(), "r2", torch.zeros(5, 1), torch.full((5,), 0.1)) == 0


def test_classes_without_a_node_count_in_no_mean():
    p = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.2, 0.6, 0.2, 0.0], [0.1, 0.6, 0.3, 0.0]], dtype=torch.float64)
    y, objective = torch.tensor([0, 1, 0]), Classification(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert value(objective, "balanced_accuracy", p, y) == sk.balanced_accuracy_score(y, p.argmax(1))
    assert value(objective, "macro_f1", p, y) == pytest.approx(sk.f1_score(y, p.argmax(1), average="macro"))
    assert value(objective, "roc_auc", p, y) == pytest.approx(
        np.mean([sk.roc_auc_score(y == c, p[:, c]) for c in (0, 1)])
    )


@pytest.mark.parametrize("name", ["roc_auc", "average_precision"])
def test_an_area_that_nothing_defines_is_not_a_number(name):
    nothing = torch.tensor([[0.0], [0.0], [torch.nan]])
    assert np.isnan(value(MultiLabel(1), name, torch.rand(3, 1), nothing))


OBJECTIVE_OF = {
    "classification": Classification(3),
    "binary": Binary(positive=0),
    "multilabel": MultiLabel(2),
    "regression": Regression(2),
    "ordinal": Ordinal(3),
}
EVERY = [(name, metric) for name, kind in OBJECTIVES.items() for metric in kind.metrics]


def drawn(objective, num_nodes: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and targets for any objective, a fifth of the targets unknown."""
    generator = torch.Generator().manual_seed(3)
    output = torch.randn(num_nodes, objective.out_channels, generator=generator, dtype=torch.float64)
    unknown, is_known = objective.unknown(num_nodes), torch.rand(num_nodes, generator=generator) < 0.8
    if unknown.is_floating_point():
        values = torch.rand(unknown.shape, generator=generator).round()
        return output, torch.where(is_known.view(-1, *[1] * (unknown.dim() - 1)), values, unknown)
    return output, torch.where(
        is_known, torch.randint(objective.num_classes, (num_nodes,), generator=generator), unknown
    )


@pytest.mark.parametrize(("name", "metric"), EVERY, ids=[f"{name}-{metric.name}" for name, metric in EVERY])
def test_every_metric_masks_adds_up_and_runs_many_at_once(name, metric):
    objective = OBJECTIVE_OF[name]
    output, target = drawn(objective)
    prediction, target = objective.scored(objective.prediction(output), target)
    whole = metric.value(prediction, target)
    assert whole.dtype == torch.float64
    is_known = ~target.isnan().all(dim=1) if target.is_floating_point() else target >= 0
    assert not bool(is_known.all())
    torch.testing.assert_close(metric.value(prediction[is_known], target[is_known]), whole)
    if metric.finish is not None:  # else it needs all nodes
        parts = metric.of(prediction[:7], target[:7]) + metric.of(prediction[7:], target[7:])
        torch.testing.assert_close(metric.finish(parts), whole)
        torch.testing.assert_close(metric.finish(torch.stack([parts, parts])), torch.stack([whole, whole]))
    many = torch.vmap(metric.value)(torch.stack([prediction, prediction.flip(0)]), torch.stack([target] * 2))
    torch.testing.assert_close(many, torch.stack([whole, metric.value(prediction.flip(0), target)]))
    best = objective.scored(*perfect(objective, drawn(objective)[1]))
    assert not metric.is_share or 0 <= float(whole) <= 1
    better = float(metric.value(*best))
    assert better > float(whole) if metric.is_higher_better else better < float(whole)


def perfect(objective, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The prediction that is right everywhere."""
    if isinstance(objective, Classification):
        return torch.nn.functional.one_hot(target.clamp(min=0), objective.num_classes).double(), target
    return target.nan_to_num().double().view(len(target), -1), target


def test_a_metric_of_ones_own_is_one_entry():
    worst = Metric("worst", False, lambda p, t: (p - t).abs().amax())
    assert float(worst.value(torch.tensor([[1.0], [5.0]]), torch.tensor([[0.0], [1.0]]))) == 4
    assert worst.text(4.0) == "4"


def test_a_share_is_written_in_percent_and_an_error_as_it_is():
    assert [ACCURACY.number(*pair) for pair in ((0.857, 0.0041), (0.5,), (None,))] == ["85.70 ± 0.41", "50.00", ""]
    assert MAE.number(12.34567, 0.5) == "12.35 ± 0.5"
    assert (ACCURACY.heading("accuracy"), MAE.heading("mae")) == ("accuracy, %", "mae")
    assert (ACCURACY.scaled(0.5), MAE.scaled(0.5)) == (50, 0.5)


@pytest.mark.parametrize(("metric", "good", "bad"), [(ACCURACY, 0.9, 0.1), (R2, 0.1, -1.0), (MAE, 0.1, 0.9)])
def test_a_score_is_compared_in_the_direction_of_its_metric(metric, good, bad):
    assert metric.is_better(good, bad)
    assert not metric.is_better(bad, good)
    assert not metric.is_better(good, good)
    assert metric.is_better(bad, None)
    assert not metric.is_better(None, bad)
