"""Temperatures and conformal sets hold what they promise, on outputs that are drawn and so need no training."""

import math

import pytest
import torch
from scipy.optimize import minimize

from graphjoule.errors import GraphjouleError
from graphjoule.nn import GCN
from graphjoule.tasks.metrics import ECE
from graphjoule.tasks.objective import Binary, Classification, MultiLabel, Objective, Ordinal, Regression
from graphjoule.training.calibration import (
    Calibration,
    conformal_scores,
    fit_temperature,
    has_sets,
    prediction_intervals,
    prediction_sets,
)
from graphjoule.training.recipe import load_recipe
from graphjoule.training.saving import load_model, load_parameters, read_model, save_model

NUM_SPLITS, NUM_VAL, NUM_NEW = 200, 100, 200


def drawn(objective: Objective, n: int, seed: int, sharpness: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and targets that follow them: probabilities are right, if `sharpness` is 1."""
    generator = torch.Generator().manual_seed(seed)
    output = 2 * torch.randn(n, objective.out_channels, generator=generator, dtype=torch.float64)
    if isinstance(objective, Classification):
        target = torch.multinomial(output.softmax(dim=1), 1, generator=generator)[:, 0]
    elif isinstance(objective, MultiLabel):
        target = torch.bernoulli(output.sigmoid(), generator=generator)
    else:
        noise = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        target = output + (1 + output.abs()) * noise
        if isinstance(objective, Ordinal):
            output = output + (objective.num_classes - 1) / 2
            target = (output + noise)[:, 0].round().clamp(0, objective.num_classes - 1).long()
    return sharpness * output, target


OBJECTIVES = [Classification(5), Binary(), MultiLabel(3), Ordinal(6), Regression(), Regression(2)]


def covered(objective: Objective, found: Calibration, coverage: float, output, target) -> torch.Tensor:
    """Whether the truth of each node is where it was promised to be, shape ``[n, columns]``."""
    prediction, threshold = objective.prediction(output), found.threshold(coverage)
    if not has_sets(objective):
        lower, upper = prediction_intervals(prediction, threshold)
        return (lower <= target) & (target <= upper)
    sets = prediction_sets(objective, prediction, threshold)
    if isinstance(objective, MultiLabel):
        return (sets | (target == 0)).all(dim=1, keepdim=True)
    return sets.gather(1, target[:, None])


@pytest.mark.parametrize("coverage", [0.8, 0.9])
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: f"{o.name}-{o.out_channels}")
def test_sets_and_intervals_hold_the_truth_as_often_as_promised(objective, coverage):
    shares = []
    for split in range(NUM_SPLITS):
        output, target = drawn(objective, NUM_VAL + NUM_NEW, split, sharpness=3.0 if has_sets(objective) else 1.0)
        if isinstance(objective, Ordinal):
            output = output / 3
        found = Calibration.of(objective, output[:NUM_VAL], target[:NUM_VAL])
        shares.append(covered(objective, found, coverage, output[NUM_VAL:], target[NUM_VAL:]).double().mean(dim=0))
    shares = torch.stack(shares)
    error = shares.std(dim=0) / math.sqrt(NUM_SPLITS)
    promised = math.ceil((NUM_VAL + 1) * coverage - 1e-9) / (NUM_VAL + 1)  # what n nodes can promise exactly
    assert bool((shares.mean(dim=0) > promised - 2 * error).all())
    # The predicted class is always in, and a node without labels has its truth anyway: these can only add.
    if not isinstance(objective, Binary | MultiLabel | Ordinal):
        assert bool((shares.mean(dim=0) < promised + 2 * error).all())


@pytest.mark.parametrize("objective", [Classification(5), Binary(), MultiLabel(3)], ids=lambda o: o.name)
@pytest.mark.parametrize("sharpness", [0.4, 1.0, 4.0])
def test_the_temperature_undoes_what_made_outputs_too_sharp(objective, sharpness):
    output, target = drawn(objective, 20_000, 1, sharpness)
    assert fit_temperature(objective, output, target) == pytest.approx(sharpness, rel=0.05)


@pytest.mark.parametrize("objective", [Classification(4), MultiLabel(2)], ids=lambda o: o.name)
def test_no_other_temperature_has_a_lower_log_loss(objective):
    output, target = drawn(objective, 3_000, 2, 3.0)

    def loss(at: list[float]) -> float:
        return float(objective.loss(output / at[0], target).mean())

    best = minimize(loss, [1.0], method="Nelder-Mead").x[0]
    assert fit_temperature(objective, output, target) == pytest.approx(best, rel=2e-3)


def test_a_temperature_makes_probabilities_right_and_no_other_class_the_most_probable():
    objective = Classification(5)
    output, target = drawn(objective, 20_000, 3, 4.0)
    found = Calibration.of(objective, output[:10_000], target[:10_000])
    output, target = output[10_000:], target[10_000:]
    before, after = objective.prediction(output), objective.prediction(found.tempered(output))
    assert float(ECE.value(before, target)) > 0.1
    assert float(ECE.value(after, target)) < 0.02
    assert after.argmax(dim=1).equal(before.argmax(dim=1))


@pytest.mark.parametrize("num_nodes", [2, 20, 200])
def test_where_all_nodes_are_right_few_of_them_do_not_make_every_probability_1(num_nodes):
    objective, output = Classification(2), 2 * torch.eye(2).repeat(num_nodes // 2, 1)
    found = Calibration.of(objective, output, output.argmax(dim=1))
    surest = float(objective.prediction(found.tempered(output)).max())
    assert 0.88 < surest < 1 - 0.1 / num_nodes  # it was 0.88


def test_weights_of_classes_do_not_change_the_temperature():
    output, target = drawn(Classification(3), 500, 4, 2.0)
    weighted = Classification(3, class_weights=(1.0, 5.0, 2.0), focal_gamma=2.0)
    assert fit_temperature(weighted, output, target) == fit_temperature(Classification(3), output, target)


def test_numbers_have_no_temperature():
    output, target = drawn(Regression(), 20, 0)
    found = Calibration.of(Regression(), output, target)
    assert found.temperature is None
    assert found.tempered(output) is output


def test_unknown_targets_count_nowhere():
    for objective in OBJECTIVES:
        output, target = drawn(objective, 60, 5)
        unknown = objective.unknown(40).to(target.dtype).view(40, *target.shape[1:])
        if isinstance(objective, Regression) and target.dim() == 2 and unknown.dim() == 1:
            unknown = unknown[:, None]
        more = torch.cat([target, unknown])
        alone = Calibration.of(objective, output, target)
        among = Calibration.of(objective, torch.cat([output, output[:40]]), more)
        assert among.num_known == alone.num_known == [60] * alone.scores.size(1)
        assert among.threshold(0.9).equal(alone.threshold(0.9))
        assert among.temperature == pytest.approx(alone.temperature)


def test_a_label_that_is_there_and_improbable_is_what_counts():
    prediction = torch.tensor([[0.9, 0.2, 0.5], [0.9, 0.2, 0.5], [0.9, 0.2, 0.5]], dtype=torch.float64)
    target = torch.tensor([[1, 1, 0], [0, 0, 0], [1, torch.nan, 0]])
    scores = conformal_scores(MultiLabel(3), prediction, target)
    torch.testing.assert_close(scores[:, 0], torch.tensor([0.8, 0.0, 0.1], dtype=torch.float64))


def test_too_few_nodes_leave_nothing_out_and_say_so():
    objective = Classification(3)
    output, target = drawn(objective, 8, 0)
    found = Calibration.of(objective, output, target)
    assert found.threshold(0.9).tolist() == [math.inf]
    assert prediction_sets(objective, objective.prediction(output), found.threshold(0.9)).all()
    assert "needs 9 validation nodes or more, and there are 8" in (found.doubt(0.9) or "")
    assert "needs 9 validation graphs or more" in (found.doubt(0.9, "graph") or "")
    nine = Calibration.of(objective, *drawn(objective, 9, 0))
    assert math.isfinite(float(nine.threshold(0.9)))
    assert "with 9 validation nodes a coverage of 0.9 has a standard error of 0.09" in (nine.doubt(0.9) or "")
    assert "with 9 validation graphs a coverage" in (nine.doubt(0.9, "graph") or "")
    assert Calibration.of(objective, *drawn(objective, 30, 0)).doubt(0.9) is None


def test_the_standard_error_it_says_is_the_one_there_is():
    objective, shares = Regression(), []
    for split in range(400):
        output, target = drawn(objective, 20 + 2_000, split)
        found = Calibration.of(objective, output[:20], target[:20])
        shares.append(covered(objective, found, 0.8, output[20:], target[20:]).double().mean())
    said = math.sqrt(0.8 * 0.2 / 22)
    assert float(torch.stack(shares).std()) == pytest.approx(said, rel=0.15)
    assert f"standard error of {said:.2f}" in (found.doubt(0.8) or "")


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.1, 90, math.nan])
def test_a_coverage_that_is_no_share_is_refused(coverage):
    found = Calibration.of(Regression(), *drawn(Regression(), 20, 0))
    with pytest.raises(GraphjouleError, match=r"must be between 0 and 1, such as 0\.9"):
        found.threshold(coverage)


def test_an_ordinal_set_is_made_of_neighbouring_ranks():
    sets = prediction_sets(Ordinal(5), torch.tensor([[1.75], [0.5]]), torch.tensor([1.0]))
    assert sets.int().tolist() == [[0, 1, 1, 0, 0], [1, 1, 0, 0, 0]]
    lone = prediction_sets(Ordinal(5), torch.tensor([[1.75]]), torch.tensor([0.1]))
    assert lone.int().tolist() == [[0, 0, 1, 0, 0]]  # the predicted class is always in


def test_it_survives_the_way_through_a_model_file(tmp_path):
    model, objective = GCN(4, 8, 3, num_layers=2), Classification(3)
    found = Calibration.of(objective, *drawn(objective, 40, 0, 2.0))
    recipe = load_recipe("gcn", "digits", 2, {"hidden_channels": 8})
    save_model(tmp_path / "model", model, recipe, seed=0, calibration=found)
    read = read_model(tmp_path / "model").calibration
    assert (read.temperature, read.threshold(0.9)) == (found.temperature, found.threshold(0.9))
    assert load_model(tmp_path / "model").state_dict().keys() == model.state_dict().keys()
    load_parameters(tmp_path / "model", GCN(4, 8, 3, num_layers=2))
    save_model(tmp_path / "older", model, recipe, seed=0)
    assert read_model(tmp_path / "older").calibration is None


@pytest.mark.parametrize(
    ("temperature", "scores", "said"),
    [
        (-1.0, torch.zeros(4, 1, dtype=torch.float64), r"its temperature is -1\.0, which is not a positive number"),
        (1.0, torch.zeros(4, dtype=torch.float64), r"scores of torch\.float64 and shape \[4\]"),
        (1.0, torch.zeros(4, 2, dtype=torch.float64), r"scores of torch\.float64 and shape \[4, 2\]"),
        (1.0, torch.zeros(4, 1, dtype=torch.int64), r"scores of torch\.int64"),
    ],
)
def test_a_file_with_a_calibration_that_cannot_be_is_refused(tmp_path, temperature, scores, said):
    recipe = load_recipe("gcn", "digits", 2, {"hidden_channels": 8})
    broken = Calibration(temperature, scores)
    save_model(tmp_path / "model", GCN(4, 8, 3, num_layers=2), recipe, seed=0, calibration=broken)
    with pytest.raises(GraphjouleError, match=said):
        read_model(tmp_path / "model")
