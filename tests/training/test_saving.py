import json
import pickle
import struct
import time
from contextlib import suppress

import pytest
import safetensors.torch
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.nn import MODELS, GraphModel
from graphjoule.training import saving
from graphjoule.training.recipe import Recipe, load_recipe
from graphjoule.training.saving import load_model, read_model, read_tensors, save_model, write_tensors
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


# Named tensors in a file.


TENSORS = {
    "mask": torch.tensor([True, False, True]),
    "index": torch.tensor([[1, -(2**62)], [3, 4]]),
    "weight": torch.tensor([[1.0, torch.nan], [-0.0, torch.inf]]),
    "epoch": torch.tensor(17),
    "scale": torch.tensor(0.1, dtype=torch.float64),
    "nothing": torch.empty(0, 3),
    "half": torch.tensor([1.5], dtype=torch.bfloat16),
    "key": torch.tensor([-1, 2**31 - 1], dtype=torch.int32),
}
ABOUT = {"recipe": {"c_min": 0.2, "name": "γ"}, "seeds": [0, 1], "none": None}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("tensors") / "whole"
    write_tensors(path, "checkpoint", TENSORS, ABOUT)
    return path.read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("scratch") / "file"


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.dtype, a.shape) == (b.dtype, b.shape) and a.flatten().view(torch.uint8).equal(
        b.flatten().view(torch.uint8)
    )


def assert_is_what_was_written(path) -> None:
    tensors, about = read_tensors(path, "checkpoint")
    assert tensors.keys() == TENSORS.keys()
    assert all(same_bits(tensors[name], TENSORS[name]) for name in TENSORS)
    assert about == ABOUT


def test_every_bit_comes_back(whole, scratch):
    scratch.write_bytes(whole)
    assert_is_what_was_written(scratch)


def test_views_and_parameters_come_back_as_plain_tensors(tmp_path):
    matrix = torch.arange(6.0).view(2, 3)
    tensors = {"a": matrix.t(), "b": matrix[:, 1:], "c": torch.nn.Parameter(matrix), "d": matrix}
    write_tensors(tmp_path / "x", "model", tensors, None)
    read, about = read_tensors(tmp_path / "x", "model")
    assert about is None
    assert all(read[name].equal(tensors[name]) for name in tensors)
    assert not any(tensor.requires_grad for tensor in read.values())


def test_the_file_may_be_replaced_while_its_tensors_live(tmp_path):
    write_tensors(tmp_path / "x", "model", {"a": torch.zeros(1000)}, None)
    read, _ = read_tensors(tmp_path / "x", "model")
    (tmp_path / "x").write_bytes(b"\xff" * 5000)
    assert read["a"].equal(torch.zeros(1000))
    assert read["a"].add_(1).equal(torch.ones(1000))


def test_no_tensors_at_all_is_a_file_too(tmp_path):
    write_tensors(tmp_path / "x", "model", {}, {"a": 1})
    assert read_tensors(tmp_path / "x", "model") == ({}, {"a": 1})


def test_a_folder_that_is_not_there_is_told_and_nothing_is_left(tmp_path):
    with pytest.raises(GraphjouleError, match="Cannot write"):
        write_tensors(tmp_path / "no" / "x", "model", {"a": torch.ones(1)}, None)
    assert list(tmp_path.iterdir()) == []


@settings(deadline=None, max_examples=150)
@given(fraction=st.floats(0, 1, exclude_max=True))
@example(fraction=0.0)
@example(fraction=0.9999999)
def test_a_file_cut_anywhere_is_refused(whole, scratch, fraction):
    scratch.write_bytes(whole[: int(fraction * len(whole))])
    with pytest.raises(GraphjouleError, match="truncated or of another kind"):
        read_tensors(scratch, "checkpoint")


@settings(deadline=None, max_examples=100)
@given(at=st.integers(1, 80), flip=st.integers(1, 255))
def test_a_changed_byte_in_a_tensor_is_damage(scratch, at, flip):
    write_tensors(scratch, "checkpoint", {"a": torch.arange(20.0)}, None)
    content = bytearray(scratch.read_bytes())
    content[-at] ^= flip
    scratch.write_bytes(content)
    with pytest.raises(GraphjouleError, match="damaged: its content does not match its checksum"):
        read_tensors(scratch, "checkpoint")


@settings(deadline=None, max_examples=100)
@given(data=st.data(), flip=st.integers(1, 255))
def test_a_changed_byte_anywhere_is_refused_or_changes_nothing(whole, scratch, data, flip):
    at = data.draw(st.integers(0, len(whole) - 1))
    scratch.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
    with suppress(GraphjouleError):
        assert_is_what_was_written(scratch)


def test_a_missing_file_or_a_folder_is_told(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(GraphjouleError, match=r"There is no file .*; expected a graphjoule model"):
            read_tensors(path, "model")


def test_a_file_of_another_kind_or_format_is_refused(tmp_path, whole, scratch):
    scratch.write_bytes(whole)
    with pytest.raises(GraphjouleError, match="is not a graphjoule model of format 1"):
        read_tensors(scratch, "model")
    safetensors.torch.save_file({"a": torch.ones(2)}, tmp_path / "foreign")
    with pytest.raises(GraphjouleError, match="is not a graphjoule checkpoint of format 1"):
        read_tensors(tmp_path / "foreign", "checkpoint")
    safetensors.torch.save_file({"a": torch.ones(2)}, tmp_path / "future", {"graphjoule": "2", "kind": "checkpoint"})
    with pytest.raises(GraphjouleError, match="is not a graphjoule checkpoint of format 1"):
        read_tensors(tmp_path / "future", "checkpoint")


def test_a_pickle_is_refused_and_never_run(tmp_path, trap):
    (tmp_path / "pickle").write_bytes(pickle.dumps(trap))
    torch.save({"a": trap}, tmp_path / "torch")  # a pickle in a zip, what PyTorch calls a model
    for name in ("pickle", "torch"):
        with pytest.raises(GraphjouleError, match="truncated or of another kind"):
            read_tensors(tmp_path / name, "checkpoint")
        with pytest.raises(GraphjouleError, match="not a whole graphjoule model"):
            load_model(tmp_path / name)
    assert not trap.sprung.exists()


@pytest.mark.parametrize("length", [0, 1, 100, 10**8, 2**40, 2**63, 2**64 - 1])
def test_a_header_that_lies_about_its_length_is_refused(tmp_path, length):
    (tmp_path / "x").write_bytes(struct.pack("<Q", length) + b"{}" + b" " * 30)
    with pytest.raises(GraphjouleError, match="truncated or of another kind"):
        read_tensors(tmp_path / "x", "checkpoint")


def test_a_header_that_promises_more_data_than_there_is_is_refused(tmp_path):
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (tmp_path / "x").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 64)
    with pytest.raises(GraphjouleError, match="truncated or of another kind"):
        read_tensors(tmp_path / "x", "checkpoint")


def test_equal_content_gives_equal_bytes(tmp_path):
    tensors = {"b": torch.arange(3), "a": torch.ones(2, 2)}
    for name in ("one", "two"):
        write_tensors(tmp_path / name, "model", tensors, {"seed": 1, "recipe": {"c_min": 0.2}})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_half_a_character_in_a_description_is_refused(tmp_path):
    header = '{"format": 1, "kind": "model", "about": "\\ud800", "sha256": ""}'
    safetensors.torch.save_file({}, tmp_path / "m.safetensors", {"graphjoule": header})
    with pytest.raises(GraphjouleError, match="is not a whole graphjoule model"):
        read_tensors(tmp_path / "m.safetensors", "model")


@pytest.mark.parametrize("description", ["[" * 100_000, "no JSON"])
def test_a_description_that_is_not_json_is_refused_though_its_checksum_is_right(tmp_path, description):
    header = {"format": 1, "kind": "model", "about": description, "sha256": saving._digest({}, description)}
    safetensors.torch.save_file({}, tmp_path / "m.safetensors", {"graphjoule": json.dumps(header)})
    with pytest.raises(GraphjouleError, match="does not hold a model that graphjoule knows"):
        read_tensors(tmp_path / "m.safetensors", "model")
