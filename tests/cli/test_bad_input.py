"""Each thing a user can get wrong: exit code 2, one sentence, nothing left behind."""

import io
import os
import shutil
import sys
from dataclasses import replace
from unittest import mock

import pytest
import torch

from graphjoule.cli import main
from graphjoule.cli.source import GraphSource
from graphjoule.errors import GraphjouleError, choices
from graphjoule.fitting import fit
from graphjoule.graph import Propagation
from graphjoule.nn import MODELS
from graphjoule.tasks import DATASETS, Task, load_task
from graphjoule.tasks.objective import Classification
from graphjoule.tasks.splits import fixed_split
from graphjoule.training.folder import About, RunFolder
from graphjoule.training.recipe import load_recipe

from . import TINY, everything, refused, run

pytestmark = pytest.mark.usefixtures("here")

BAD = {
    "unknown dataset": (
        ["--dataset", "coar"],
        f"Unknown dataset 'coar'; expected one of: {choices(DATASETS)}; or, with a number for the last letter, ",
    ),
    "no dataset": (["--dataset", ""], f"Unknown dataset ''; expected one of: {choices(DATASETS)}; "),
    "no dataset after =": (["--dataset="], f"Unknown dataset ''; expected one of: {choices(DATASETS)}; "),
    "no model": (["--model", ""], f"The choices are: {choices(MODELS)}."),
    "unknown model": (["--model", "gnn"], '"gnn" is not a model'),
    "unknown model lists the choices": (["--model", "gat"], f"The choices are: {choices(MODELS)}."),
    "unknown key": (["--set", "cmin=0.3"], '"cmin" is not a setting of egnn, did you mean "c_min"?'),
    "unknown key lists the choices": (["--set", "zzz=1"], "activation, activations, average, batch_norm, beta, "),
    "a key of another model": (["--model", "gcn", "--set", "c_min=0.2"], '"c_min" is not a setting of gcn'),
    "no value": (["--set", "c_min"], "'c_min' is not a setting: expected key=value"),
    "no number": (["--set", "lr=fast"], "lr = 'fast' cannot be used"),
    "twice": (["--epochs", "3", "--set", "epochs=4"], "epochs is set twice"),
    "no layers": (["--layers", "0"], "Invalid value for '--layers'"),
    "negative layers": (["--layers", "-1"], "Invalid value for '--layers'"),
    "c_min below 0": (["--set", "c_min=-0.1"], "c_min = -0.1 cannot be used: it should be greater than or equal to 0"),
    "c_min above 1": (["--set", "c_min=1.5"], "c_min = 1.5 cannot be used: it should be less than or equal to 1"),
    "c_min not a number": (["--set", "c_min=nan"], "c_min"),
    "beta above c_min": (["--set", "beta=0.3"], "beta is 0.3; it must be between 0 and c_min, which is 0.2"),
    "negative beta": (["--set", "beta=-0.1"], "beta = -0.1 cannot be used: it should be greater than or equal to 0"),
    "negative gamma": (["--set", "gamma=-1"], "gamma = -1 cannot be used: it should be greater than or equal to 0"),
    "no c_max": (["--set", "c_max=0"], "c_max = 0 cannot be used: it should be greater than 0"),
    "no epochs": (["--epochs", "0"], "epochs = 0 cannot be used"),
    "no patience": (["--set", "patience=0"], "patience = 0 cannot be used"),
    "no learning rate": (["--set", "lr=0"], "lr = 0"),
    "dropout of everything": (["--set", "dropout=1.0"], "dropout = 1.0 cannot be used: it should be less than 1"),
    "output dropout of everything": (
        ["--set", "output_dropout=1.0"],
        "output_dropout = 1.0 cannot be used: it should be less than 1",
    ),
    "negative dropout in gcn": (
        ["--model", "gcn", "--set", "dropout=-0.5"],
        "dropout = -0.5 cannot be used: it should be greater than or equal to 0",
    ),
    "negative decay": (["--set", "weight_decay=-1.0"], "weight_decay"),
    "no width": (["--set", "hidden_channels=0"], "hidden_channels = 0 cannot be used"),
    "unknown activation": (["--set", "activation=tanh"], "activation"),
    "seeds: none": (["--seeds", "0"], "--seeds is '0'; expected how many seeds, such as 10, or a list, such as 3,7"),
    "seeds: negative": (["--seeds", "-3"], "--seeds is '-3'"),
    "seeds: a word": (["--seeds", "ten"], "--seeds is 'ten'"),
    "seeds: a word in a list": (["--seeds", "1,two"], "--seeds is '1,two'"),
    "seeds: nothing": (["--seeds", ""], "--seeds is ''"),
    "seeds: a comma": (["--seeds", ","], "--seeds is ','"),
    "seeds: one twice": (["--seeds", "3,3"], "--seeds is '3,3'; expected different numbers from 0 to 4294967295"),
    "seeds: negative in a list": (["--seeds", "1,-3"], "--seeds is '1,-3'; expected different numbers"),
    "seeds: too large": (["--seeds", f"{2**64},"], "expected different numbers from 0 to 4294967295"),
    "seeds: too many": (["--seeds", f"{2**64}"], "expected different numbers from 0 to 4294967295"),
    "seeds: more than memory": (["--seeds", f"{10**9}"], "expected at most 10,000 of them, or a list, such as 3,7"),
    "unknown device": (["--device", "tpu"], "device is 'tpu'; choose one of auto, cpu, cuda"),
    "unknown split": (["--set", "split=half"], "Unknown split 'half' for task 'digits'"),
    "no train nodes": (["--set", "split=per-class-0-10"], "The train part of split 'per-class-0-10' is empty"),
    "no validation nodes": (["--set", "split=per-class-5-0"], "has no validation nodes to select by"),
    "no nodes left": (["--set", "split=per-class-100-100"], "labelled nodes; split 'per-class-100-100' needs"),
}


@pytest.mark.parametrize(("arguments", "said"), BAD.values(), ids=BAD)
def test_one_sentence_and_nothing_left_behind(here, arguments, said):
    assert said in refused(here, "train", *arguments)


FILES = ("--nodes", "--edges", "--npz", "--recipe", "--out", "--parts", "--data-root")
COLUMNS = ("--id", "--label", "--features", "--one-hot", "--source", "--target", "--weight")


@pytest.mark.parametrize("option", [*FILES, *COLUMNS, "--constraint", "--device", "--set"])
def test_an_empty_value_is_not_taken_for_the_default_or_this_folder(here, option):
    expected = f"{option} is ''; expected a value, as graphjoule train --help says, or no {option}."
    assert expected in refused(here, "train", option, "")
    assert expected in refused(here, "train", "--layers", "2", f"{option}=", *TINY)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none(here):
    assert "torch finds no CUDA device here; choose cpu or auto" in refused(here, "train", "--device", "cuda")


@pytest.mark.parametrize("place", ["file", "file/below", "file/far/below"])
def test_an_output_folder_that_cannot_be(here, place):
    (here / "file").write_text("in the way")
    assert "as an output folder" in refused(here, "train", *TINY, "--out", place)


EARLY = [
    ["--seeds", "3,3"],
    ["--device", "tpu"],
    ["--set", "c_min=1.5"],
    ["--set", "beta=0.3"],
    ["--set", "c_min=0.05"],
    ["--set", "dropout=1.0"],
    ["--model", "gcn", "--set", "dropout=1.0"],
    ["--out", "file"],
    ["--out", "taken"],
    ["--out", "taken", "--resume", "--set", "lr=0.1"],
    ["--nodes", "nodes.csv", "--test-fraction", "2"],
    ["--nodes", "nodes.csv", "--out", "taken"],
]


@pytest.mark.parametrize("arguments", EARLY, ids=" ".join)
def test_wrong_options_are_refused_before_the_graph_is_loaded(here, monkeypatch, arguments):
    def load(source):
        raise AssertionError("the graph was loaded")

    (here / "file").write_text("in the way")
    with RunFolder(here / "taken").open():
        about = About(recipe=load_recipe("egnn", "digits", 32), groups=[[0]])
        (here / "taken" / "run.json").write_text(about.model_dump_json())
    monkeypatch.setattr(GraphSource, "load", load)
    refused(here, "train", *arguments)


def test_a_training_goes_on_where_the_graph_says_the_split(here):
    """The folder's split has a name, the recipe's is "default" until the graph is there."""
    (here / "nodes.csv").write_text("id,a,label\n" + "".join(f"{n},{n},{'xy'[n % 2]}\n" for n in range(20)))
    command = ("train", *TINY, "--no-worth", "--nodes", "nodes.csv", "--out", "run")
    assert run(*command).code == 0
    assert run(*command, "--resume").code == 0
    assert "run already holds a training" in refused(here, *command)


def test_data_that_is_neither_here_nor_to_be_downloaded(here, monkeypatch):
    def no_network(url, file, sha256, folder):
        raise OSError("Name or service not known")

    monkeypatch.setattr("graphjoule.tasks.download._fetch", no_network)
    for dataset in ("cora", "pubmed", "physics"):
        said = refused(here, "train", "--dataset", dataset, "--data-root", here / "data")
        assert "is missing and could not be downloaded (OSError: Name or service not known)" in said
        assert "GRAPHJOULE_DATA" in said


@pytest.fixture
def trained(here):
    """A finished training in ``run``."""
    assert run("train", *TINY, "--out", "run").code == 0
    return here / "run"


def test_a_taken_folder(here, trained):
    assert "run already holds a training; pass --resume" in refused(here, "train", *TINY, "--out", "run")


def test_a_taken_folder_with_other_settings(here, trained):
    said = refused(here, "train", *TINY, "--set", "lr=0.1", "--set", "c_min=0.3", "--out", "run", "--resume")
    assert "c_min: 0.2 -> 0.3" in said
    assert "lr: 0.005 -> 0.1" in said
    assert "epochs: 2 -> 3" in refused(here, "train", *TINY[:2], "--epochs", 3, *TINY[4:], "--out", "run", "--resume")


def test_a_corrupt_checkpoint(here, trained):
    (trained / "records.jsonl").unlink()  # as if it had been killed before the end
    for content in (b"", b"not a checkpoint", (trained / "model-seed-0.safetensors").read_bytes()):
        (trained / "checkpoint.safetensors").write_bytes(content)
        said = refused(here, "train", *TINY, "--out", "run", "--resume")
        assert "run/checkpoint.safetensors is not a" in said
        assert "Delete run/checkpoint.safetensors, and the same call goes on: runs that are recorded are kept" in said
    (trained / "checkpoint.safetensors").unlink()
    assert run("train", *TINY, "--out", "run", "--resume").code == 0


def test_a_corrupt_model_of_a_finished_run(here, trained):
    model = trained / "model-seed-0.safetensors"
    model.write_bytes(model.read_bytes()[:-10])
    assert "is not a whole graphjoule model" in refused(here, "train", *TINY, "--out", "run", "--resume")
    model.unlink()
    assert "There is no file run/model-seed-0" in refused(here, "train", *TINY, "--out", "run", "--resume")


def test_a_damaged_run_file(here, trained):
    (trained / "run.json").write_text("{")
    assert "run/run.json is missing or damaged" in refused(here, "train", *TINY, "--out", "run", "--resume")


# The same from Python: what only data of one's own can get wrong.

EDGES = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 0], [1, 0, 2, 1, 3, 2, 0, 3]])
X, LABELS = torch.eye(4), torch.tensor([0, 1, 0, 1])
MASKS = [torch.tensor(mask).bool() for mask in ([1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1])]


def make_task(x=X, edges=EDGES, labels=LABELS, masks=MASKS, num_classes=2):
    graph = Propagation.from_edge_index(edges, num_nodes=4)
    return Task("own", x, graph, labels, Classification(num_classes), fixed_splits=(fixed_split("public", *masks),))


def changed(tensor, at, value):
    tensor = tensor.clone()
    tensor[at] = value
    return tensor


BAD_DATA = {
    "NaN features": ({"x": changed(X, (2, 1), torch.nan)}, "The features hold nan at node 2, column 1"),
    "infinite features": ({"x": changed(X, (3, 0), torch.inf)}, "The features hold inf at node 3, column 0"),
    "features missing": ({"x": X[:3]}, "have 3 rows; expected 4"),
    "label too large": ({"labels": changed(LABELS, 3, 2)}, "The label of node 3 in task 'own' is 2; expected 0 to 1"),
    "label too small": ({"labels": changed(LABELS, 3, -2)}, "The label of node 3 in task 'own' is -2"),
    "no labels": ({"labels": torch.full((4,), -1)}, "Task 'own' has no label"),
    "labels missing": ({"labels": LABELS[:3]}, "The labels of task 'own' have shape [3]; expected [4]"),
    "label of a train node missing": ({"labels": changed(LABELS, 0, -1)}, "names node 0, whose target is unknown"),
    "edge index too large": ({"edges": changed(EDGES, (0, 0), 4)}, "edge_index names node 4; with 4 nodes"),
    "edge index negative": ({"edges": changed(EDGES, (0, 0), -1)}, "edge_index names node -1"),
    "directed graph": ({"edges": EDGES[:, :-1]}, "The graph is directed: the edge 3 -> 0 has no edge back"),
    "no train nodes": ({"masks": [MASKS[0] & False, *MASKS[1:]]}, "The train part of split 'public' is empty"),
}


@pytest.mark.parametrize(("wrong", "said"), BAD_DATA.values(), ids=BAD_DATA)
def test_data_of_ones_own_is_refused_with_a_sentence(wrong, said):
    with pytest.raises(GraphjouleError) as caught:
        make_task(**wrong)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_same_data_without_the_mistake_trains():
    recipe = load_recipe("egnn", "own", 2, {"hidden_channels": 8, "epochs": 2, "split": "public"})
    assert fit(recipe, make_task(), device="cpu").summary.n == 1


@pytest.mark.parametrize(
    ("seeds", "masks", "said"),
    [
        ([], MASKS, "seeds are []"),
        ([0, 0], MASKS, "seeds are [0, 0]; expected one or more different numbers"),
        ([0], [MASKS[0], MASKS[1] & False, MASKS[2]], "'public' of own has no validation nodes to select by"),
    ],
)
def test_what_fit_refuses_leaves_nothing_behind(here, seeds, masks, said):
    recipe = load_recipe("egnn", "own", 2, {"hidden_channels": 8, "epochs": 2, "split": "public"})
    with pytest.raises(GraphjouleError) as caught:
        fit(recipe, make_task(masks=masks), seeds, out=here / "run", device="cpu")
    assert said in str(caught.value)
    assert everything(here) == {}


def test_a_recipe_for_other_data_is_refused(here):
    task = replace(load_task("digits"), name="mine")
    with pytest.raises(GraphjouleError, match="Unknown split 'public' for task 'mine'"):
        fit(load_recipe("egnn", "cora", 2), task, out=here / "run")
    assert everything(here) == {}


def test_a_folder_that_another_training_uses(here, trained):
    shutil.rmtree(trained)
    with RunFolder(trained).open():
        assert "Another process is training in run" in refused(here, "train", *TINY, "--out", "run")


# What a name can be.


def test_a_folder_that_is_not_there_cannot_be_resumed(here):
    said = refused(here, "train", *TINY, "--out", "runs/new", "--resume")
    assert "There is no folder runs/new, so there is nothing to resume; name the folder of the training with --" in said
    (here / "begun").mkdir()
    (here / "begun" / ".lock").touch()  # a training that was killed at once
    assert run("train", *TINY, "--out", "begun", "--resume").code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", *TINY, "--out", "NAME"],
        ["predict", "NAME"],
        ["report", "NAME"],
        ["trace", "NAME"],
        ["partition", "--parts", "2", "--out", "NAME"],
        ["study", "table1", "--datasets", "digits", "--models", "gcn", "--layers", "2", "--out", "NAME"],
        ["tune", "--layers", "2", "--out", "NAME"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_name_that_is_too_long_is_a_sentence(here, arguments):
    name = 300 * "x"
    said = refused(here, *(name if word == "NAME" else word for word in arguments))
    assert f"{name}" in said
    assert "file name too long" in said


def test_a_network_that_no_memory_holds_is_a_sentence(here):
    for command in (["train", *TINY[:4], "--out", "new"], ["trace", "egnn:digits:2"]):
        said = refused(here, *command, "--set", "hidden_channels=1000000")
        assert "One egnn with 2 layers and hidden_channels = 1000000 takes" in said
    assert "num_layers = 1000000 cannot be used: it should be less" in refused(here, "train", "--layers", 10**6)


def test_a_path_that_is_not_utf8_wastes_no_work(here):
    """Standard output is strict in most languages; what cannot be shown is shown as an escape."""
    name = os.fsdecode(b"caf\xe9")
    study = ["study", "table1", "--datasets", "digits", "--models", "gcn", "--layers", "2", "--epochs", "2"]
    commands = [
        ["train", *TINY, "--out", name],
        ["predict", name, "--out", f"{name}.csv"],
        ["report", name, "--out", f"{name}.html"],
        ["report", name],
        ["trace", name, "--plot", f"{name}.png"],
        ["partition", "--parts", "2", "--method", "blocks", "--out", f"{name}-parts"],
        [*study, "--seeds", "1", "--device", "cpu", "--out", f"{name}-study"],
        ["tune", "--model", "gcn", *TINY, "--trials", "1", "--seeds", "1", "--out", f"{name}-tune"],
    ]
    for command in commands:
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
        with mock.patch.object(sys, "stdout", out), mock.patch.object(sys, "argv", ["graphjoule", *command]):
            with pytest.raises(SystemExit) as end:
                main()
            assert end.value.code in (0, None), command
            out.flush()
        said = out.buffer.getvalue().decode()
        assert "caf\\udce9" in said or command[0] == "study", command
    assert (here / name / "report.html").read_bytes().decode()
    assert (here / f"{name}-tune" / "best.toml").read_bytes().decode()
