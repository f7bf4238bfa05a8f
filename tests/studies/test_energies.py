import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.measures.energy import dirichlet_energy
from graphjoule.studies.energies import EnergyRecord, measure_energies
from graphjoule.tasks import load_task
from graphjoule.training.build import build_model
from graphjoule.training.recipe import load_recipe


@pytest.mark.parametrize(("model", "first_layer", "num_energies"), [("gcn", 1, 2), ("egnn", 0, 4)])
def test_a_record_holds_the_energies_of_both_states(model, first_layer, num_energies):
    recipe, task = load_recipe(model, "digits", 3, {"epochs": 2}), load_task("digits")
    result = fit(recipe, task, [4, 7], device="cpu")
    record = measure_energies(recipe, task, result.records, result.models, "cpu")
    assert (record.dataset, record.model, record.recipe) == ("digits", model, recipe.settings())
    assert (record.seeds, record.first_layer, record.epochs_run) == ([4, 7], first_layer, [2, 2])
    for rows in (record.initial, record.trained, record.effective_rank, record.gradient):
        assert [len(row) for row in rows] == [num_energies] * 2  # the last layer of GCN gives class scores
    assert record.trained != record.initial
    assert record.initial[0] != record.initial[1]
    assert record.test_score == [run.test_score for run in result.records]
    assert record.versions


def test_the_first_energy_of_a_network_with_an_encoder_is_that_of_its_embedding():
    recipe, task = load_recipe("egnn", "digits", 3, {"epochs": 1}), load_task("digits")
    result = fit(recipe, task, [4], device="cpu")
    record = measure_energies(recipe, task, result.records, result.models, "cpu")
    model = build_model(recipe, task, 4).eval()
    first = float(dirichlet_energy(model.encoder(task.features).detach(), task.graph))
    assert record.initial[0][0] == pytest.approx(first, rel=1e-4)


def test_what_is_no_record_is_a_sentence(tmp_path):
    (tmp_path / "damaged.json").write_text("{}")
    for name in ("damaged.json", "none.json"):
        with pytest.raises(GraphjouleError, match=rf"{name} is not a record of energies"):
            EnergyRecord.read(tmp_path / name)
