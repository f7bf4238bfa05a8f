import json
from dataclasses import replace

import pytest
import torch
from huggingface_hub import ModelCard

from graphjoule.errors import GraphjouleError
from graphjoule.files import UNFINISHED
from graphjoule.fitting import fit, load, read_run, read_runs
from graphjoule.tasks.facts import Source, SourceFile
from graphjoule.tasks.task import ModelInput
from graphjoule.training import RunFolder, export_to_hub, load_model
from graphjoule.training.hub import describe_model

from . import contents, same_bits, small_recipe, small_regression, small_task
from .test_export import Steps

TASKS = {"classes": small_task(), "numbers": small_regression()}


@pytest.fixture(scope="module", params=TASKS)
def run(request, tmp_path_factory):
    """A run folder with two seeds, its task, and the folder that was made of seed 1."""
    path, task = tmp_path_factory.mktemp(request.param), TASKS[request.param]
    fit(small_recipe("gcn"), task, [0, 1], out=path / "run", device="cpu")
    found = read_run(path / "run", seed=1)
    export_to_hub(path / "hub", found.models[1], found.recipe, RunFolder(path / "run").records()[1], found.data)
    return path / "run", task, path / "hub"


def test_a_hub_folder_predicts_what_its_run_predicts(run):
    before, task, folder = run
    assert set(contents(folder)) == {"README.md", "config.json", "model.safetensors"}
    assert same_bits(load(folder), load(before, seed=1))
    given = ModelInput.of(task)
    assert read_runs(folder).predict(given).equal(read_runs(before, seed=1).predict(given))
    assert list(read_runs(folder).models) == [1]


def test_config_says_how_and_on_what_it_was_trained(run):
    before, task, folder = run
    config = json.loads((folder / "config.json").read_text())
    record = RunFolder(before).records()[1]
    assert (config["library_name"], config["model_type"], config["seed"]) == ("graphjoule", "gcn", 1)
    assert config["recipe"] == json.loads((before / "run.json").read_text())["recipe"]
    assert config["data"]["sha256"] == task.facts().sha256
    assert (config["val"], config["test"]) == (record.val, record.test)


def test_the_card_is_one_that_hubs_read(run):
    before, _, folder = run
    record = RunFolder(before).records()[1]
    card = ModelCard.load(folder / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag) == ("graphjoule", "graph-ml")
    (result,) = card.data.eval_results
    assert (result.dataset_name, result.metric_type) == ("small", record.metric.name)
    assert result.metric_value == record.test_score
    assert card.text.lstrip().startswith("# gcn, 2 layers, trained on small")
    assert "records.jsonl" not in card.text


def test_names_with_signs_of_yaml_stay_names(tmp_path):
    task = replace(TASKS["classes"], name='a: "b" #c\n- d')
    recipe = small_recipe("gcn")
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"name": task.name})})
    result = fit(recipe, task, device="cpu")
    export_to_hub(tmp_path / "hub", result.models[0], recipe, result.records[0], task.facts())
    assert ModelCard.load(tmp_path / "hub" / "README.md").data.eval_results[0].dataset_name == task.name


def test_folders_of_the_user_stay_at_home(tmp_path):
    result = fit(small_recipe("gcn"), TASKS["classes"], device="cpu")
    files = (SourceFile(role="npz", path="/home/secret/graph.npz", sha256="0" * 64),)
    data = TASKS["classes"].facts().model_copy(update={"source": Source(files=files)})
    export_to_hub(tmp_path / "hub", result.models[0], small_recipe("gcn"), result.records[0], data)
    everything = contents(tmp_path / "hub")
    assert not [name for name, content in everything.items() if b"secret" in content]
    assert all(b"graph.npz" in content for content in everything.values())
    assert "secret" not in json.dumps(describe_model(small_recipe("gcn"), 0, data))


def test_a_folder_that_holds_something_is_left_alone(run, tmp_path):
    before, task, folder = run
    kept = contents(folder)
    with pytest.raises(GraphjouleError, match=r"holds README.md and 2 other things.*choose a new or an empty folder"):
        export_to_hub(folder, load(before), small_recipe("gcn"), RunFolder(before).records()[1], task.facts())
    assert contents(folder) == kept


def test_a_killed_export_is_written_again(run, tmp_path):
    before, task, _ = run
    given = load(before), small_recipe("gcn"), RunFolder(before).records()[1], task.facts()
    (tmp_path / "README.md").write_text("half a car")
    (tmp_path / UNFINISHED).touch()
    export_to_hub(tmp_path, *given)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert (tmp_path / "README.md").read_text() != "half a car"


def test_a_seed_of_a_hub_folder_is_refused(run):
    with pytest.raises(GraphjouleError, match=r"model.safetensors is one model"):
        load(run[2], seed=1)


@pytest.mark.parametrize("name", TASKS)
def test_a_module_of_ones_own_goes_and_comes_back(tmp_path, name):
    task = TASKS[name]
    result = fit(
        lambda task: Steps(task.num_features, task.out_channels), task, settings={"epochs": 3}, out=tmp_path / "run"
    )
    recipe = RunFolder(tmp_path / "run").about().recipe
    export_to_hub(tmp_path / "hub", result.models[0], recipe, result.records[0], task.facts())
    found = load_model(tmp_path / "hub" / "model.safetensors", model=Steps(task.num_features, task.out_channels))
    with torch.no_grad():
        assert found(task.features, task.graph).equal(result.models[0](task.features, task.graph))
    with pytest.raises(GraphjouleError, match="is the user's own"):
        load(tmp_path / "hub")
