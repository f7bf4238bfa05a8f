import json
from dataclasses import replace

import pytest
import torch

from graphjoule.graph.features import normalize_rows
from graphjoule.measures import MEASURES
from graphjoule.measures.energy import dirichlet_energy
from graphjoule.nn import MODELS
from graphjoule.tasks import load_task
from graphjoule.tasks.task import ModelInput
from graphjoule.training.build import build_model, initialised
from graphjoule.training.examine import examine, graph_layers
from graphjoule.training.recipe import load_recipe
from graphjoule.training.saving import load_model

from . import TINY, run

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def trained(here):
    """Two finished runs in ``run``."""
    assert run("train", *TINY, "--seeds", "3,7", "--out", "run").code == 0
    return here / "run"


def energies(model, task):
    """Energies of the encoder's output and of all layers, computed by hand."""
    with torch.no_grad():
        h = h0 = model.eval().encoder(task.features)
        found = [float(dirichlet_energy(h0, task.graph))]
        for conv in model.convs:
            h = conv(h, h0, task.graph)
            found.append(float(dirichlet_energy(h, task.graph)))
    return found


def told_energies(state):
    rows = [row for row in state["layers"] if row["name"] == "encoder" or row["name"].startswith("convs.")]
    return [row["energy"] for row in rows]


def test_a_recipe_is_traced_at_initialisation_as_training_would_begin(here):
    result = run("trace", "egnn:digits:3", "--seed", "5", "--json", "--device", "cpu")
    assert (result.code, result.err) == (0, "")
    told = json.loads(result.out)
    assert (told["seed"], told["recipe"]["model.num_layers"], told["num_nodes"]) == (5, 3, 1797)
    assert list(told["states"]) == ["at initialisation"]
    task, recipe = load_task("digits"), load_recipe("egnn", "digits", 3)
    state = told["states"]["at initialisation"]
    assert told_energies(state) == pytest.approx(energies(build_model(recipe, task, 5), task), rel=1e-4)
    assert state["diagnosis"]["verdict"] == "healthy energy"
    assert [layer["name"] for layer in state["limits"]["layers"]] == ["convs.0", "convs.1", "convs.2"]
    assert (state["limits"]["initial"], state["limits"]["c_min"]) == ("encoder", 0.2)
    assert list(here.iterdir()) == []


def test_a_run_is_traced_before_and_after_training(here, trained):
    told = json.loads(run("trace", "run", "--seed", "7", "--json", "--device", "cpu").out)
    assert list(told["states"]) == ["at initialisation", "after training"]
    task = load_task("digits")
    recipe = load_recipe("egnn", "digits", 2, {"epochs": 2, "hidden_channels": 8})
    models = [build_model(recipe, task, 7), load_model(trained / "model-seed-7.safetensors")]
    for state, model in zip(told["states"].values(), models, strict=True):
        assert told_energies(state) == pytest.approx(energies(model, task), rel=1e-4)
    first, last = map(told_energies, told["states"].values())
    assert first != last


def test_by_default_the_lowest_seed_of_a_run_is_traced_and_a_model_file_is_enough(here, trained):
    assert json.loads(run("trace", "run", "--json").out)["seed"] == 3
    alone = json.loads(run("trace", "run/model-seed-7.safetensors", "--json").out)
    assert alone["states"] == json.loads(run("trace", "run", "--seed", "7", "--json").out)["states"]


def test_in_words_there_is_a_table_the_limits_and_a_diagnosis_for_each_state(here, trained):
    result = run("trace", "run", "--gradients")
    assert (result.code, result.err) == (0, "")
    for state in ("at initialisation", "after training"):
        assert f"egnn, 2 layers, digits, seed 3, {state}" in result.out
    head = next(line for line in result.out.splitlines() if line.startswith("layer "))
    columns = ["energy", "norm", "rayleigh", "effective_rank", "gradient", "weight_gradient"]
    assert head.split() == ["layer", *columns]
    assert result.out.count("Limits c_min = 0.2, c_max = 1: of 2 layers") == 2
    assert result.out.count("healthy energy: encoder to convs.1: energy ") == 2
    assert "not judged" not in result.out


def test_layers_outside_a_limit_are_named(here):
    out = run("trace", "egnn:digits:2", "--set", "c_max=0.01").out
    assert "Limits c_min = 0.2, c_max = 0.01: of 2 layers 1 at or above the lower, 1 at or below the upper.\n" in out
    assert "\n  convs.0: energy " in out
    assert "\n  convs.1: energy " in out


def test_a_dead_gcn_is_called_dead(here):
    result = run("trace", "gcn:digits:64", "--measures", "energy,norm,effective_rank", "--gradients")
    for kind in ("over-smoothing by norm collapse", "over-smoothing by direction collapse", "vanishing gradients"):
        assert f"\n{kind}, from " in result.out
    assert "Limits" not in result.out  # GCN has none
    assert "healthy" not in result.out


def test_measures_and_modules_can_be_chosen(here):
    told = json.loads(run("trace", "gcn:3", "--measures", "mad,norm", "--watch", "convs.*.activation", "--json").out)
    state = told["states"]["at initialisation"]
    assert [row["name"] for row in state["layers"]] == [f"convs.{k}.activation" for k in range(3)]
    assert all(set(row) == {"name", "channels", "mad", "norm"} for row in state["layers"])
    assert state["limits"] is None
    every = json.loads(run("trace", "gcn:2", "--measures", "all", "--json").out)
    assert len(every["states"]["at initialisation"]["layers"][0]) == 2 + len(MEASURES)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_of_the_zoo_is_traced_layer_by_layer(here, name):
    told = json.loads(run("trace", f"{name}:digits:3", "--json", "--set", "hidden_channels=8").out)
    state = told["states"]["at initialisation"]
    names = [row["name"] for row in state["layers"]]
    assert [f"convs.{k}" for k in range(3)] == [layer for layer in names if layer.startswith("convs.")]
    assert state["diagnosis"]["evidence"]


def test_a_picture_is_drawn(here, trained):
    result = run("trace", "run", "--plot", "energy.png", "--gradients")
    assert result.code == 0
    assert result.out.endswith("picture: energy.png\n")
    assert (here / "energy.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_is_there_is_replaced_only_if_asked(here):
    (here / "mine.png").write_bytes(b"a photograph")
    words = ("trace", "gcn:digits:2", "--set", "hidden_channels=4", "--plot")
    for place, said in (("mine.png", "mine.png is there already; add --force to replace it"), (".", "is a folder")):
        result = run(*words, place)
        assert (result.code, said in result.err) == (2, True)
    assert (here / "mine.png").read_bytes() == b"a photograph"
    assert run(*words, "mine.png", "--force").code == 0
    assert (here / "mine.png").read_bytes().startswith(b"\x89PNG")


def test_ones_own_graph_is_traced_and_so_is_a_run_on_it(here):
    (here / "nodes.csv").write_text(
        "id,a,b,label\n" + "".join(f"{k},{k % 3},{k % 5},{'xy'[k % 2]}\n" for k in range(20))
    )
    (here / "edges.csv").write_text("source,target\n" + "".join(f"{k},{(k + 1) % 20}\n" for k in range(20)))
    own = ("--nodes", "nodes.csv", "--edges", "edges.csv")
    told = json.loads(run("trace", "egnn:4", *own, "--json").out)
    assert (told["num_nodes"], told["recipe"]["data.name"]) == (20, "nodes.csv")
    assert run("train", *own, *TINY, "--no-worth", "--out", "run").code == 0
    told = json.loads(run("trace", "run", "--json").out)
    assert told["num_nodes"] == 20
    assert len(told["states"]) == 2


BAD = {
    "nothing there": (["runs/none"], "There is no run runs/none; expected a folder that graphjoule train made"),
    "no depth": (["egnn:cora"], "MODEL:DATASET:LAYERS, such as egnn:cora:64"),
    "unknown model": (["gnn:cora:2"], '"gnn" is not a model'),
    "unknown dataset": (["egnn:coar:2"], "Unknown dataset 'coar'"),
    "no layers": (["egnn:digits:0"], "num_layers = 0 cannot be used"),
    "two graphs": (["egnn:digits:2", "--dataset", "cora"], "names the dataset digits, and an option another graph"),
    "unknown measure": (["egnn:digits:2", "--measures", "enrgy"], "There is no measure 'enrgy'; choose from"),
    "unknown module": (["egnn:digits:2", "--watch", "conv.*"], "No module is called 'conv.*'; the model has encoder"),
    "unknown setting": (["egnn:digits:2", "--set", "cmin=1"], '"cmin" is not a setting of egnn'),
    "no picture": (["egnn:digits:2", "--plot", "energy.txt"], "Cannot draw energy.txt: its ending must be one of"),
    "no folder": (["egnn:digits:2", "--plot", "none/energy.png"], "there is no folder"),
    "no device": (["egnn:digits:2", "--device", "tpu"], "device is 'tpu'; choose one of auto, cpu, cuda"),
    "a folder without a run": (["."], "holds no training"),
}


@pytest.mark.parametrize(("arguments", "said"), BAD.values(), ids=BAD)
def test_bad_input_is_a_sentence_and_exit_code_2(here, arguments, said):
    result = run("trace", *arguments)
    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert result.err.count("\n") == 1
    assert list(here.iterdir()) == []


def test_a_run_has_its_settings_and_its_graph_already(here, trained):
    for arguments, said in [
        (["--set", "c_min=0.3"], "--set changes a recipe, but run is trained already"),
        (["--dataset", "cora"], "run says itself which graph it was trained on"),
        (["--seed", "5"], "There is no finished run with seed 5 in run; the seeds are: 3, 7"),
    ]:
        result = run("trace", "run", *arguments)
        assert (result.code, result.out) == (2, "")
        assert said in result.err


def test_help_has_examples_and_every_option():
    result = run("trace", "--help")
    assert (result.code, result.err) == (0, "")
    assert "graphjoule trace egnn:cora:64" in result.out
    for option in ("measures", "watch", "gradients", "seed", "set", "device", "plot", "json", "dataset", "nodes"):
        assert f"--{option}" in result.out


# The examination behind the command.


def test_an_initialised_network_is_what_training_builds():
    task, recipe = load_task("digits"), load_recipe("gcn", "digits", 3)
    before = torch.get_rng_state()
    model = initialised(recipe, task.num_features, task.out_channels, 4)
    assert torch.get_rng_state().equal(before)
    expected = build_model(recipe, task, 4)
    assert all(a.equal(b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))


@pytest.mark.parametrize("gradients", [False, True])
def test_an_examination_leaves_modes_and_gradients_as_they_were(gradients):
    task, recipe = load_task("digits"), load_recipe("egnn", "digits", 2)
    model = build_model(recipe, task, 0).train()
    found = examine(model, recipe, ModelInput.of(task), gradients=gradients, device="cpu")
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [row.gradient is not None for row in found.trace.layers] == [gradients] * 5
    assert [row.name for row in graph_layers(found.trace).layers] == ["encoder", "convs.0", "convs.1"]


def test_features_are_normalised_where_the_recipe_says_so():
    task = load_task("digits")
    plain, normalised = (load_recipe("egnn", "digits", 2, {"normalize_features": on}) for on in (False, True))
    model = build_model(plain, task, 0)
    scaled = replace(task, features=normalize_rows(task.features))
    first = [examine(model, recipe, ModelInput.of(task), device="cpu").trace for recipe in (plain, normalised)]
    expected = examine(model, plain, ModelInput.of(scaled), device="cpu").trace
    assert first[0].layers != first[1].layers == expected.layers


def test_reach_can_be_named_among_the_measures(here):
    told = json.loads(run("trace", "sgc:digits:2", "--measures", "norm,reach", "--json", "--device", "cpu").out)
    state = told["states"]["at initialisation"]
    assert state["reach"].keys() == {"convs.0", "convs.1"}
    assert {"norm", "reach"} <= state["layers"][-2].keys() | state["layers"][-1].keys()


def test_reach_is_shown_with_its_error_and_the_closed_law(here):
    result = run("trace", "egnn:digits:1", "--reach", "--device", "cpu")
    assert (result.code, result.err) == (0, "")
    assert "Reach of convs.0: " in result.out
    assert "By the closed law, with weights near the identity a node sees what random walks of " in result.out
