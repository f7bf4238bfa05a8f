import json

import numpy as np
import onnxruntime
import pytest
import torch

from graphjoule.fitting import fit, read_run
from graphjoule.tasks import load_task
from graphjoule.training import export as exporting
from graphjoule.training.recipe import load_recipe

from . import everything, refused, run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run folder of two seeds on the embedded digits; not to be changed."""
    path = tmp_path_factory.mktemp("trained") / "run"
    settings = {"hidden_channels": 8, "epochs": 3, "normalize_features": True}
    fit(load_recipe("gcn", "digits", 2, settings), load_task("digits"), [0, 1], device="cpu", out=path)
    return path


def predicted(trained, seed, out):
    """What ``graphjoule predict`` writes for one seed."""
    assert run("predict", trained, "--seed", seed, "--out", out, "--device", "cpu").code == 0
    return np.loadtxt(out, delimiter=",", skiprows=1, usecols=range(3, 13))


def test_onnx_says_what_predict_says(trained, tmp_path, capfd):
    out, task = tmp_path / "model.onnx", load_task("digits")
    result = run("export", trained, "--format", "onnx", "--out", out, "--seed", 0)
    assert (result.code, result.out, result.err) == (0, f"seed 0 of {trained}: {out}\n", "")
    assert capfd.readouterr() == ("", "")  # torch has words for developers
    assert list(everything(tmp_path)) == [out]
    session = onnxruntime.InferenceSession(out)
    inputs = {"x": task.features, "edge_index": task.graph.edge_index, "edge_weight": task.graph.edge_weight}
    (found,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    np.testing.assert_allclose(found, predicted(trained, 0, tmp_path / "p.csv"), rtol=0, atol=1e-5)
    about = json.loads(session.get_modelmeta().custom_metadata_map["graphjoule"])
    assert (about["model_type"], about["seed"], about["data"]["name"]) == ("gcn", 0, "digits")


def test_torch_writes_the_run_that_validated_best(trained, tmp_path):
    out, task = tmp_path / "model.pt2", load_task("digits")
    result = run("export", trained, "--format", "torch", "--out", out, "--json")
    (best,) = read_run(trained).models
    assert json.loads(result.out) == {"format": "torch", "seed": best, "out": str(out)}
    program = torch.export.load(out).module()
    with torch.no_grad():
        found = program(task.features, task.graph.edge_index, task.graph.edge_weight)
    np.testing.assert_allclose(found, predicted(trained, best, tmp_path / "p.csv"), rtol=0, atol=1e-5)


def test_a_hub_folder_can_be_predicted_with_and_exported_again(trained, tmp_path):
    folder = tmp_path / "hub"
    assert run("export", trained, "--format", "hub", "--out", folder, "--seed", 1).code == 0
    assert run("predict", folder, "--out", tmp_path / "hub.csv", "--device", "cpu").code == 0
    predicted(trained, 1, tmp_path / "run.csv")
    assert (tmp_path / "hub.csv").read_text() == (tmp_path / "run.csv").read_text()
    assert run("predict", folder, "--out", tmp_path / "sure.csv", "--coverage", 0.8).code == 0
    assert "set" in (tmp_path / "sure.csv").read_text().splitlines()[0].split(",")
    assert run("export", folder, "--format", "torch", "--out", tmp_path / "m.pt2").code == 0
    assert "has no records; copy the folder" in refused(
        tmp_path, "export", folder, "--format", "hub", "--out", tmp_path / "again"
    )


def test_a_file_is_replaced_only_if_that_is_asked_for(trained, tmp_path):
    out = tmp_path / "m.pt2"
    out.write_text("mine")
    assert "m.pt2 is there already; add --force" in refused(
        tmp_path, "export", trained, "--format", "torch", "--out", out
    )
    assert run("export", trained, "--format", "torch", "--out", out, "--force").code == 0
    assert out.read_bytes()[:2] == b"PK"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["RUN", "--format", "tflite", "--out", "m.onnx"], "'tflite' is not one of 'onnx', 'torch', 'hub'"),
        (["RUN", "--format", "onnx"], "Missing option '--out'"),
        (["RUN", "--out", "m.onnx"], "Missing option '--format'"),
        (["nowhere", "--format", "onnx", "--out", "m.onnx"], "There is no run nowhere; expected a folder"),
        (["RUN", "--format", "onnx", "--out", "no/m.onnx"], "--out is no/m.onnx, but there is no folder"),
        (["RUN", "--format", "onnx", "--out", "full"], "--out is full, which is a folder; name a file"),
        (["RUN", "--format", "onnx", "--out", "RUN/run.json", "--force"], "run.json, which this command reads; name"),
        (["RUN", "--format", "torch", "--out", "m.onnx"], "reads files whose name ends in .pt2"),
        (["RUN", "--format", "hub", "--out", "full"], "full holds file"),
        (["RUN", "--format", "hub", "--out", "full/file"], "full/file, which is a file; --format hub writes a folder"),
        (["RUN/model-seed-0.safetensors", "--format", "hub", "--out", "hub"], "is a model file; for --format hub name"),
        (["RUN", "--format", "onnx", "--out", "m.onnx", "--seed", "7"], "no finished run with seed 7"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence(trained, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    given = [argument.replace("RUN", str(trained)) for argument in arguments]
    assert sentence in refused(tmp_path, "export", *given)


def test_a_missing_package_is_one_sentence(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "find_spec", lambda name: None if name == "onnx" else object())
    said = refused(tmp_path, "export", trained, "--format", "onnx", "--out", tmp_path / "m.onnx")
    assert said == "graphjoule: Writing ONNX needs onnx, which is not installed: pip install 'graphjoule[export]'.\n"
