import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.objective import ACCURACY, LOSS, MAE, R2, RMSE, Classification, Regression, read_objective
from tests.graphs import few


def value_of(metric, output, target):
    """A metric of all nodes, its sums added up over two parts of them."""
    parts = [metric.sums(output[part], target[part]) for part in (slice(0, 3), slice(3, None))]
    total = sum(part.double().sum(dim=0) for part in parts)
    assert total.shape == (metric.num_sums(output.size(1)),)
    return float(metric.finish(total, len(target)))


@few
@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_metrics_of_a_regression_are_scikit_learns(seed, num_targets):
    random = np.random.RandomState(seed)
    target, output = random.randn(12, num_targets) * 5 + 3, random.randn(12, num_targets)
    tensors = torch.from_numpy(output), torch.from_numpy(target)
    assert value_of(R2, *tensors) == pytest.approx(metrics.r2_score(target, output))
    assert value_of(MAE, *tensors) == pytest.approx(metrics.mean_absolute_error(target, output))
    assert value_of(RMSE, *tensors) == pytest.approx(metrics.mean_squared_error(target, output) ** 0.5)


def test_accuracy_is_the_share_of_classes_that_are_found():
    output = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0], [0.0, 1.0]])
    assert value_of(ACCURACY, output, torch.tensor([0, 1, 1, 1])) == 0.75


def test_a_target_that_does_not_vary_has_no_variance_to_explain():
    assert value_of(R2, torch.zeros(5, 1), torch.full((5, 1), 0.1)) == 0


@pytest.mark.parametrize("objective", [Classification(3), Regression(1), Regression(2, "absolute")])
def test_unknown_targets_are_known_to_be_unknown(objective):
    assert objective.is_known(objective.unknown(4)).tolist() == [False] * 4


def test_what_selects_is_the_loss_or_a_metric():
    assert Regression.column(LOSS) == (0, False)
    assert Regression.column("r2") == (1, True)
    assert Regression.column("mae") == (2, False)
    assert Classification.column("accuracy") == (1, True)
    with pytest.raises(GraphjouleError, match="select_on is 'r2'; for classification the choices are: accuracy, loss"):
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

    parts = iter([targets[2:].sum(dim=0), (targets[2:] - targets.mean(dim=0)).square().sum(dim=0)])
    Regression(2).prepare(Model(), targets[:2], 3, lambda sums: sums + next(parts))
    torch.testing.assert_close(known["center"], torch.tensor([3.0, 5.0], dtype=torch.float64) + shift)
    torch.testing.assert_close(known["scale"], torch.tensor([14 / 3, 1.0], dtype=torch.float64) ** 0.5)  # 1 if flat


def test_the_loss_of_a_node_is_the_mean_over_its_targets():
    output, target = torch.tensor([[1.0, 4.0], [0.0, 0.0]]), torch.tensor([[0.0, 2.0], [0.0, 0.0]])
    assert Regression(2).loss(output, target).tolist() == [2.5, 0.0]
    assert Regression(2, "absolute").loss(output, target).tolist() == [1.5, 0.0]
    assert Regression(1).loss(output[:, :1], target[:, 0]).tolist() == [1.0, 0.0]
