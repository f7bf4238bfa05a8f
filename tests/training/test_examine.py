import pytest
import torch

from graphjoule.fitting import fit
from graphjoule.tasks.task import ModelInput
from graphjoule.training.build import build_model
from graphjoule.training.examine import examine, graph_layers

from . import small_recipe, small_regression, small_task


def test_a_trained_network_is_traced_judged_and_held_to_its_limits():
    task, recipe = small_task(), small_recipe(num_layers=4)
    model = fit(recipe, task).models[0]
    found = examine(model, recipe, ModelInput.of(task), device="cpu")
    assert [row.name for row in graph_layers(found.trace).layers][1:] == [f"convs.{k}" for k in range(4)]
    assert len(found.limits.layers) == 4
    assert found.diagnosis is not None
    fields = found.fields()
    assert [row["name"] for row in fields["layers"]][-1] == "head"
    assert fields["layers"][0]["energy"] is not None
    assert not model.training


def test_features_are_normalised_as_in_training():
    task = small_task()
    rows = [
        examine(build_model(recipe, task, 0), recipe, ModelInput.of(task), device="cpu").trace.layers[0].energy
        for recipe in (small_recipe(), small_recipe(normalize_features=True))
    ]
    assert rows[0] > 5 * rows[1]


@pytest.mark.parametrize("make", [small_task, small_regression])
@pytest.mark.parametrize("model", ["egnn", "gcn"])
def test_gradients_reach_every_layer_and_no_target_is_read(make, model):
    task, recipe = make(), small_recipe(model, num_layers=3)
    network = build_model(recipe, task, 0).train()
    given = ModelInput.of(task)
    unknown = ModelInput(given.features, given.graph, task.objective.unknown(30), given.node_ids)
    before = torch.get_rng_state()
    found = [examine(network, recipe, each, gradients=True, device="cpu") for each in (given, unknown)]
    assert torch.get_rng_state().equal(before)
    rows = graph_layers(found[0].trace).layers
    assert [row.name for row in rows if row.name.startswith("convs")] == ["convs.0", "convs.1", "convs.2"]
    assert all(row.gradient > 0 for row in rows)
    assert [row.gradient for row in rows] == [row.gradient for row in graph_layers(found[1].trace).layers]
    assert all(parameter.grad is None for parameter in network.parameters())
    assert all(module.training for module in network.modules())


def test_a_network_without_limits_has_none():
    task, recipe = small_task(), small_recipe("gcn", num_layers=3)
    assert examine(build_model(recipe, task, 0), recipe, ModelInput.of(task), device="cpu").limits is None


@pytest.mark.parametrize(("model", "has_law"), [("egnn", True), ("sgc", True), ("gcn", False)])
def test_reach_is_measured_beside_its_law_where_it_is_asked_for(model, has_law):
    task, recipe = small_task(sparse=True), small_recipe(model, num_layers=4)
    found = examine(build_model(recipe, task, 0), recipe, ModelInput.of(task), reaches=True, device="cpu")
    last = found.reaches["convs.3"]
    fields = found.fields()
    assert fields["reach"]["convs.3"]["mean"] == pytest.approx(last.mean)
    assert [row["name"] for row in fields["layers"] if "reach" in row] == list(found.reaches)
    assert (found.expected_reach is not None) == has_law
    if has_law:  # an untrained EGNN is linear after its encoder, as SGC is
        assert (
            abs(found.expected_reach.mean - last.mean) <= 5 * (last.mean_error + found.expected_reach.mean_error) + 1e-6
        )
