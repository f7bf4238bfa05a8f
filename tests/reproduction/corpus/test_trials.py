"""Settings side by side compute what EGNN computes, and learn."""

import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score

from graphjoule import EGNN, fit
from graphjoule.graph import normalize_rows
from graphjoule.training import recipe_for
from reproduction.corpus import trials as engine
from reproduction.corpus.tasks import load
from reproduction.corpus.trials import Trial, Trials, draw_trials, macro_f1, roc_auc, train_trials


@pytest.mark.parametrize("name", ["karate", "iris"])  # iris has negative features: `fit` divides by any sum
@pytest.mark.parametrize("encoder", ["linear", "mlp"])
def test_a_run_is_egnn_with_its_settings(encoder, name):
    task = load(name)
    given = [
        Trial(encoder=encoder, hidden_channels=8, c_min=0.3, beta=0.2, srelu_init=-0.1),
        Trial(encoder=encoder, hidden_channels=8, c_min=0.7, beta=0.1, srelu_init=0.0, normalize_features=True),
    ]
    runs = Trials(task, given, [0, 1], depth=3)
    moments = {}
    for epoch in (1, 2):
        runs.step(epoch, moments)
    out = runs.output(training=False)
    for run, (seed, trial) in enumerate((seed, trial) for seed in (0, 1) for trial in given):
        w = {name: value[run] for name, value in runs.parameters.items()}
        model = EGNN(
            task.num_features,
            8,
            task.out_channels,
            3,
            c_min=trial.c_min,
            beta=trial.beta,
            encoder=encoder,
            srelu_init=trial.srelu_init,
        ).eval()
        state = {
            "encoder.first.weight": w["first"].T,
            "encoder.first.bias": w["first_bias"],
            "head.weight": w["head"].T,
            "head.bias": w["head_bias"],
        }
        state |= {f"convs.{k}.weight": w["conv"][k] for k in range(3)}
        state |= {f"convs.{k}.activation.shift": w["shift"][k] for k in range(3)}
        if encoder == "mlp":
            state |= {"encoder.second.weight": w["second"].T, "encoder.second.bias": w["second_bias"]}
            state |= {"encoder.norm.weight": w["norm_weight"], "encoder.norm.bias": w["norm_bias"]}
            state |= {"encoder.norm.running_mean": runs.norm["mean"][run]}
            state |= {"encoder.norm.running_var": runs.norm["var"][run]}
            state |= {"encoder.norm.num_batches_tracked": torch.tensor(2)}
        model.load_state_dict(state)
        x = normalize_rows(task.features) if trial.normalize_features else task.features
        with torch.no_grad():
            torch.testing.assert_close(out[:, run], model(x, task.graph), rtol=1e-4, atol=1e-5)
        assert seed == int(runs.seed_of[run])


def test_trials_train_and_come_back_in_their_order(monkeypatch):
    monkeypatch.setattr(engine, "EPOCHS", 40)
    good = Trial(lr=0.05, dropout=0.0, output_dropout=0.0, hidden_channels=8)
    given = [Trial(lr=1e-6, hidden_channels=8), good, Trial(lr=0.05, dropout=0.1, encoder="mlp", hidden_channels=8)]
    bad, found, mlp = train_trials(load("karate"), given, [0, 1], depth=2)
    for scores in (found, mlp):
        assert min(scores["loss"]["val_accuracy"]) > 0.8
        assert len(scores["accuracy"]["test_accuracy"]) == 2
    assert min(bad["loss"]["val_loss"]) > max(found["loss"]["val_loss"])


def test_fit_makes_of_a_trial_what_the_trial_was():
    task = load("iris")
    drawn = Trial(lr=0.02, dropout=0.0, output_dropout=0.0, hidden_channels=16, normalize_features=True)
    suited = drawn.suited_to(task)  # divided by sums next to 0, rows say nothing: 0.4 instead of 0.9
    assert not suited.normalize_features
    assert drawn.suited_to(load("karate")) == drawn
    (found,) = train_trials(task, [suited], [0, 1], 2, epochs=60)
    recipe = recipe_for(task, "egnn", 2, suited.overrides() | {"select_on": "loss", "epochs": 60})
    fitted = [record.test["accuracy"] for record in fit(recipe, task, range(2), device="cpu").records]
    assert fitted == pytest.approx(found["loss"]["test_accuracy"], abs=0.07)
    assert min(fitted) > 0.85


def test_metrics_are_scikit_learns():
    draw = torch.Generator().manual_seed(0)
    guess, targets = (torch.randint(4, (50, 2), generator=draw) for _ in range(2))
    expected = [f1_score(targets[:, run], guess[:, run], average="macro") for run in range(2)]
    assert macro_f1(guess, targets, 4).tolist() == pytest.approx(expected)
    scores, is_positive = torch.rand(50, 2, generator=draw), targets > 2
    expected = [roc_auc_score(is_positive[:, run], scores[:, run]) for run in range(2)]
    assert roc_auc(scores, is_positive.long()).tolist() == pytest.approx(expected)


def test_random_settings_are_the_same_for_a_seed_and_possible():
    assert draw_trials(40, 0) == draw_trials(40, 0) != draw_trials(40, 1)
    assert all(0 < trial.beta <= trial.c_min < 1 for trial in draw_trials(200, 2))
