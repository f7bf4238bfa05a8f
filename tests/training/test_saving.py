import json
import pickle
import struct
import time

import pytest
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.nn import MODELS, GraphModel
from graphjoule.training.recipe import Recipe, load_recipe
from graphjoule.training.saving import load_model, read_model, save_model
from graphjoule.training.tensorfile import read_tensors, write_tensors
from tests.graphs import normal, random_edges

EDGES = random_edges()
X = normal(9, 5, dtype=torch.float32)
NORMS = {"egnn": {"encoder": "mlp", "batch_norm": True, "c_max": 0.4}, "gcn": {"batch_norm": True}}
NORMS |= {name: {"batch_norm": True} for name in ("dropedge", "sgc", "jknet", "appnp", "gcnii")}


def trained(name: str, options: dict) -> tuple[GraphModel, Recipe]:
    """A model whose parameters and batch statistics are no longer the initial ones."""
    recipe = load_recipe(name, "digits", 3, {"hidden_channels": 4, **options})
    model = MODELS[name](5, 4, 3, 3, **recipe.model.options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (model(X, EDGES.index).square().sum() + model.penalty()).backward()
        optimizer.step()
    return model, recipe


def test_loading_leaves_the_global_generator_alone(tmp_path):
    model, recipe = trained("gcn", {})
    save_model(tmp_path / "model", model, recipe, seed=3)
    before = torch.get_rng_state()
    load_model(tmp_path / "model")
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("with_norms", [False, True])
def test_a_loaded_model_scores_the_same_to_the_bit(tmp_path, name, with_norms):
    model, recipe = trained(name, NORMS.get(name, {}) if with_norms else {})
    save_model(tmp_path / "model", model, recipe, seed=3)
    loaded = load_model(tmp_path / "model")
    assert type(loaded) is type(model)
    assert not loaded.training
    assert loaded(X, EDGES.index).equal(model.eval()(X, EDGES.index))
    state = loaded.state_dict()
    assert all(state[key].equal(value) for key, value in model.state_dict().items())
    assert loaded.penalty().equal(model.penalty())


def test_the_file_says_what_it_is(tmp_path):
    model, recipe = trained("gcn", {})
    save_model(tmp_path / "model", model, recipe, seed=3)
    tensors, about = read_tensors(tmp_path / "model", "model")
    assert about == {"recipe": recipe.model_dump(), "seed": 3, "status": "done", "in_channels": 5, "out_channels": 3}
    assert tensors.keys() == model.state_dict().keys()


def test_the_status_of_the_run_travels_with_the_model_and_older_files_are_done(tmp_path):
    model, recipe = trained("gcn", {})
    save_model(tmp_path / "model", model, recipe, seed=3, status="failed")
    assert read_model(tmp_path / "model").status == "failed"
    write_tensors(tmp_path / "model", "model", model.state_dict(), about())
    assert read_model(tmp_path / "model").status == "done"


def changed_model(recipe: dict, **changes) -> dict:
    return recipe | {"model": recipe["model"] | changes}


def about(**changes) -> dict:
    _, recipe = trained("gcn", {})
    return {"recipe": recipe.model_dump(), "seed": 0, "in_channels": 5, "out_channels": 3} | changes


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"recipe": {}}, "model"),
        ({"recipe": None}, "not a recipe .* should be a valid dictionary"),
        ({"in_channels": 0}, "in_channels is 0"),
        ({"in_channels": "5"}, "str"),
        ({"out_channels": 4}, "asks for 64 numbers in 6 tensors, and it has 59 numbers in 6 tensors"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(tmp_path, changes, sentence):
    model, _ = trained("gcn", {})
    write_tensors(tmp_path / "model", "model", model.state_dict(), about(**changes))
    with pytest.raises(
        GraphjouleError, match=f"(?s)does not hold a model this version of graphjoule knows.*{sentence}"
    ):
        load_model(tmp_path / "model")


def test_the_data_travels_with_the_model(tmp_path, tiny_task):
    model, recipe = trained("gcn", {})
    facts = tiny_task.facts()
    save_model(tmp_path / "model", model, recipe, seed=3, data=facts)
    saved = read_model(tmp_path / "model")
    assert (saved.recipe, saved.seed, saved.data) == (recipe, 3, facts)
    write_tensors(tmp_path / "model", "model", model.state_dict(), about(data={"name": "x"}))
    with pytest.raises(GraphjouleError, match="does not hold a model"):
        read_model(tmp_path / "model")


@pytest.mark.parametrize("description", [None, 1, [], {}, "text"])
def test_no_description_is_refused(tmp_path, description):
    write_tensors(tmp_path / "model", "model", {}, description)
    with pytest.raises(GraphjouleError, match="does not hold a model"):
        load_model(tmp_path / "model")


def test_an_unknown_model_or_option_is_refused(tmp_path):
    recipe = about()["recipe"]
    for changed in (changed_model(recipe, name="gat"), changed_model(recipe, options={"heads": 8})):
        write_tensors(tmp_path / "model", "model", {}, about(recipe=changed))
        with pytest.raises(GraphjouleError, match="does not hold a model"):
            load_model(tmp_path / "model")


def test_missing_and_foreign_tensors_are_refused(tmp_path):
    model, _ = trained("gcn", {})
    state = model.state_dict()
    for tensors in ({}, dict(list(state.items())[1:]), state | {"extra": torch.ones(1)}):
        write_tensors(tmp_path / "model", "model", tensors, about())
        with pytest.raises(GraphjouleError, match="does not hold a model"):
            load_model(tmp_path / "model")


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(GraphjouleError, match="There is no file"):
        load_model(tmp_path / "model")


def test_a_pickle_is_refused_and_never_run(tmp_path, trap):
    (tmp_path / "model").write_bytes(pickle.dumps(trap))
    with pytest.raises(GraphjouleError, match="not a whole graphjoule model"):
        load_model(tmp_path / "model")
    torch.save({"weight": trap}, tmp_path / "model.pt")  # a pickle in a zip, what PyTorch calls a model
    with pytest.raises(GraphjouleError, match="not a whole graphjoule model"):
        load_model(tmp_path / "model.pt")
    assert not trap.sprung.exists()


def crafted(header: object, backend: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with any header: its length in eight bytes, JSON, the numbers."""
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return struct.pack("<Q", len(text) if length is None else length) + text + backend


CRAFTED = {
    "a header longer than the file": crafted({}, length=2**40),
    "a header longer than any file": crafted({}, length=2**64 - 1),
    "no JSON": crafted(b"\x80\x04\x95"),
    "numbers outside the file": crafted({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}),
    "numbers before the file": crafted({"w": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, b"\0" * 4),
    "a shape that overflows": crafted(
        {"w": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]}}, b"\0" * 4
    ),
    "tensors that overlap": crafted(
        {f"w{i}": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for i in range(2)}, b"\0" * 4
    ),
    "a header that is not ours": crafted({"__metadata__": {"graphjoule": "[1, 2"}}),
    "a header of another shape": crafted({"__metadata__": {"graphjoule": "[1, 2]"}}),
    "JSON too deep": crafted({"__metadata__": {"graphjoule": "[" * 100_000}}),
}


@pytest.mark.parametrize("content", CRAFTED.values(), ids=CRAFTED)
def test_crafted_safetensors_are_refused(tmp_path, content):
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(GraphjouleError, match="is not a"):
        load_model(tmp_path / "model")


def test_a_description_that_asks_for_another_shape_than_the_tensors_have_is_refused(tmp_path):
    model, recipe = trained("gcn", {})
    other = changed_model(recipe.model_dump(), hidden_channels=3)
    write_tensors(tmp_path / "model", "model", model.state_dict(), about(recipe=other))
    with pytest.raises(GraphjouleError, match="size mismatch"):
        load_model(tmp_path / "model")


@pytest.mark.parametrize("change", [{"num_layers": 99_999}, {"num_layers": 10**6}, {"hidden_channels": 10**6}])
@pytest.mark.parametrize("name", ["egnn", "gcn"])
def test_a_file_that_asks_for_a_huge_network_is_refused_before_one_is_built(tmp_path, name, change):
    model, recipe = trained(name, {})
    forged = changed_model(recipe.model_dump(), **change)
    write_tensors(tmp_path / "model", "model", model.state_dict(), about(recipe=forged))
    begin = time.monotonic()
    with pytest.raises(GraphjouleError, match=r"numbers in|less than or equal to 100000"):
        load_model(tmp_path / "model")
    assert time.monotonic() - begin < 2


def test_a_file_that_asks_for_a_million_inputs_is_refused(tmp_path):
    model, _ = trained("gcn", {})
    write_tensors(tmp_path / "model", "model", model.state_dict(), about(in_channels=10**6))
    with pytest.raises(GraphjouleError, match="it has 59 numbers, but is to have 1000000 inputs and 3 outputs"):
        load_model(tmp_path / "model")
