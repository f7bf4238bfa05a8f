import copy
import shutil
from dataclasses import replace

import pytest
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.graph.features import normalize_rows
from graphjoule.nn import MODELS
from graphjoule.predicting import load, mean_prediction, read_runs
from graphjoule.tasks.inputs import ModelInput
from graphjoule.tasks.objective import Classification
from graphjoule.training.folder import RunFolder
from graphjoule.training.saving import save_model
from tests.training import same_bits, small_recipe, small_regression, small_task

SEEDS, OBJECTIVE = [0, 1, 2], Classification(3)


@pytest.fixture(scope="module")
def task():
    return small_task()


@pytest.fixture(scope="module")
def trained(task, tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "run"
    return fit(small_recipe(), task, SEEDS, out=path)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("normalize", [False, True])
def test_train_save_load_predict_gives_the_same_probabilities_to_the_bit(tmp_path, task, model, normalize):
    recipe = small_recipe(model, normalize_features=normalize, epochs=3)
    result = fit(recipe, task, [0, 4], out=tmp_path / "run")
    given = ModelInput.of(task)
    before = mean_prediction(result.models, recipe, OBJECTIVE, given)
    runs = read_runs(tmp_path / "run")
    assert list(runs.models) == [0, 4]
    assert runs.predict(given).equal(before)
    assert runs.data == task.facts()
    assert torch.allclose(before.sum(dim=1), torch.ones(task.num_nodes, dtype=torch.float64))


def test_the_mean_is_over_the_softmax_of_every_run_and_features_are_normalised_as_in_training(task):
    recipe = small_recipe(normalize_features=True)
    result = fit(recipe, task, [0, 1])
    with torch.no_grad():
        scores = [model(normalize_rows(task.features), task.graph) for model in result.models]
    expected = sum(score.double().softmax(dim=1) for score in scores) / 2
    assert torch.allclose(mean_prediction(result.models, recipe, OBJECTIVE, ModelInput.of(task)), expected, atol=1e-15)
    right = expected.argmax(dim=1)[task.split().val] == task.targets[task.split().val]
    assert right.dtype == torch.bool


def test_scores_that_are_not_finite_are_no_prediction(task):
    model = fit(small_recipe(), task, [0]).models[0]
    given = ModelInput.of(task)
    large = copy.deepcopy(model)
    for weight in large.parameters():
        weight.data.mul_(1e30)
    with pytest.raises(GraphjouleError, match=r"30 nodes of 30 are not finite.*weights or the features are so large"):
        mean_prediction([large], small_recipe(), OBJECTIVE, given)
    features = given.features.clone()
    features[3] = torch.nan
    with pytest.raises(GraphjouleError, match="not finite, so there is no prediction: the features are not finite"):
        mean_prediction([model], small_recipe(), OBJECTIVE, replace(given, features=features))
    broken = copy.deepcopy(model)
    name, weight = next(iter(broken.named_parameters()))
    weight.data.fill_(torch.nan)
    with pytest.raises(GraphjouleError, match=f"The scores of 30 nodes of 30 .*weights .*first is {name}.*blew up"):
        mean_prediction([model, broken], small_recipe(), OBJECTIVE, given)


def test_load_gives_the_run_that_validated_best_or_the_one_asked_for(trained):
    best = min(trained.records, key=lambda record: record.val["loss"]).seed
    assert same_bits(load(trained.folder), trained.models[best])
    for seed in SEEDS:
        assert same_bits(load(trained.folder, seed=seed), trained.models[seed])
        assert same_bits(load(RunFolder(trained.folder).model_path(seed)), trained.models[seed])
    assert not load(trained.folder).training


def test_selection_by_accuracy_is_by_accuracy(tmp_path, task):
    result = fit(small_recipe(select_on="accuracy"), task, SEEDS, out=tmp_path / "run")
    best = max(result.records, key=lambda record: (record.val_score, -record.seed)).seed
    assert same_bits(load(tmp_path / "run"), result.models[best])


def test_a_moved_folder_and_a_lone_file_are_enough(tmp_path, trained, task):
    shutil.copytree(trained.folder, tmp_path / "elsewhere")
    shutil.copy(trained.folder / "model-seed-1.safetensors", tmp_path / "model")
    given = ModelInput.of(task)
    expected = mean_prediction([trained.models[1]], small_recipe(), OBJECTIVE, given)
    assert read_runs(tmp_path / "elsewhere", seed=1).predict(given).equal(expected)
    alone = read_runs(tmp_path / "model")
    assert alone.predict(given).equal(expected)
    assert (alone.recipe, alone.data) == (small_recipe(), task.facts())


@pytest.mark.gpu
def test_a_model_trained_on_one_device_predicts_on_the_other(tmp_path, task):
    on_gpu = fit(small_recipe(), task, [0], device="cuda", out=tmp_path / "run")
    given = ModelInput.of(task)
    cpu, gpu = (read_runs(tmp_path / "run").predict(given, device) for device in ("cpu", "cuda"))
    assert next(load(tmp_path / "run", "cuda").parameters()).is_cuda
    assert torch.allclose(cpu, gpu, atol=1e-4)
    assert on_gpu.summary.n == 1


def test_what_cannot_be_loaded_is_a_sentence(tmp_path, trained, trap):
    cases = [
        (lambda: load(tmp_path / "no"), "There is no file"),
        (lambda: read_runs(tmp_path / "no"), "There is no run"),
        (lambda: read_runs(tmp_path), "holds no training"),
        (lambda: load(tmp_path), "holds no training"),
        (lambda: load(trained.folder, seed=9), "There is no finished run with seed 9 in .*; the seeds are: 0, 1, 2"),
        (lambda: load(trained.folder / "model-seed-1.safetensors", seed=1), "is one model; name its folder"),
        (lambda: load(trained.folder, "tpu"), "device is 'tpu'"),
        (lambda: mean_prediction([], small_recipe(), OBJECTIVE, ModelInput.of(small_task())), "There is no model"),
    ]
    for call, said in cases:
        with pytest.raises(GraphjouleError, match=said):
            call()
    torch.save(trap, tmp_path / "model.pt")
    with pytest.raises(GraphjouleError, match="is not a whole graphjoule model"):
        load(tmp_path / "model.pt")
    assert not trap.sprung.exists()


def test_a_folder_in_which_every_run_failed(tmp_path, task):
    fit(small_recipe(lr=1e30), task, [0], out=tmp_path / "run")
    with pytest.raises(GraphjouleError, match=r"No run in .* has finished"):
        load(tmp_path / "run")
    for call in (load, read_runs):
        with pytest.raises(
            GraphjouleError, match=r"model-seed-0.safetensors is the model of a run that failed \(seed 0"
        ):
            call(tmp_path / "run" / "model-seed-0.safetensors")


def test_a_model_file_that_says_its_run_failed_is_refused_anywhere(tmp_path, trained, task):
    save_model(tmp_path / "copy", trained.models[0], small_recipe(), seed=0, data=task.facts(), status="failed")
    for call in (load, read_runs):
        with pytest.raises(GraphjouleError, match="copy is the model of a run that failed"):
            call(tmp_path / "copy")


@pytest.mark.parametrize("num_targets", [1, 2])
def test_a_regression_predicts_the_mean_of_its_runs_in_the_unit_of_its_targets(tmp_path, num_targets):
    task = small_regression(num_targets=num_targets)
    result = fit(small_recipe("gcn"), task, [0, 1], out=tmp_path / "run")
    predicted = read_runs(tmp_path / "run").predict(ModelInput.of(task))
    with torch.no_grad():
        expected = sum(model(task.features, task.graph) for model in result.models) / 2
    assert predicted.shape == (30, num_targets)
    torch.testing.assert_close(predicted, expected, rtol=1e-12, atol=1e-12)
    assert 30 < float(predicted.mean()) < 60
    best = max(result.records, key=lambda record: -record.val["loss"]).seed
    assert same_bits(load(tmp_path / "run"), result.models[best])


@pytest.mark.parametrize("select_on", ["r2", "mae"])
def test_the_best_run_of_a_regression_is_best_in_the_right_direction(tmp_path, select_on):
    result = fit(small_recipe("gcn", select_on=select_on), small_regression(), SEEDS, out=tmp_path / "run")
    choose = max if select_on == "r2" else min
    best = choose(result.records, key=lambda record: record.val[select_on]).seed
    assert same_bits(load(tmp_path / "run"), result.models[best])
