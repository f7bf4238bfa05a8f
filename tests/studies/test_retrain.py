from contextlib import nullcontext

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.studies import retrain
from graphjoule.studies.retrain import retrain_some
from graphjoule.studies.verify import Placed
from tests.training import small_recipe, small_task


@pytest.fixture
def runs(monkeypatch):
    monkeypatch.setattr(retrain, "load_task", lambda name, root: small_task())
    recipe = small_recipe("gcn", epochs=4)
    records = [fit(recipe, small_task(), [seed], device="cpu").records[0] for seed in (0, 1)]
    return [Placed(record, f"runs.jsonl, record {record.seed}", recipe) for record in records]


def changed(one, **changes):
    return Placed(one.record.model_copy(update=changes), one.place, one.recipe)


def test_runs_that_are_trained_again_are_the_same_to_the_bit(runs):
    check = retrain_some(runs, 2, device="cpu")
    assert (check.count, check.problems) == (2, [])
    assert all("the same to the bit" in note for note in check.notes)


def test_a_backend_that_would_be_chosen_anyway_is_not_forced_on_small_tensors(runs, monkeypatch):
    """Clusters of a large graph are small: they have another backend than the graph, and so they must again."""
    forced = []
    monkeypatch.setattr(retrain, "use_backend", lambda name: forced.append(name) or nullcontext())
    retrain_some([changed(runs[0], backend="reference")], 1, device="cpu")
    assert forced == ["reference"]
    retrain_some(runs, 2, device="cpu")
    assert forced == ["reference"]


def test_a_score_that_was_not_reached_is_named(runs):
    lie = changed(runs[0], test={"loss": 0.1, "accuracy": 0.99})
    (problem,) = retrain_some([lie], 1, device="cpu").problems
    assert "gcn, 2 layers, small, seed 0 (runs.jsonl, record 0): test was {'loss': 0.1" in problem


def test_on_another_device_the_first_epochs_must_agree(runs):
    near = changed(runs[0], device="NVIDIA H200", test={"accuracy": 0.5}, selected_epoch=2)
    check = retrain_some([near], 1, device="cpu")
    assert check.problems == []
    assert "the first 4 epochs agree within 0e+00; test was 0.5000" in check.notes[0]
    far = changed(near, curve={"train_loss": [2 * loss for loss in near.record.curve["train_loss"]]})
    assert (
        "the training loss of the first 4 epochs is off by 5.0e-01" in retrain_some([far], 1, device="cpu").problems[0]
    )


def test_other_data_and_data_that_are_not_here_are_told(runs, monkeypatch):
    assert (
        "the data or the split here are others"
        in retrain_some([changed(runs[0], split_sha256="0")], 1, device="cpu").problems[0]
    )

    def missing(name, root):
        raise GraphjouleError("small is not here.")

    monkeypatch.setattr(retrain, "load_task", missing)
    check = retrain_some(runs, 1, device="cpu")
    assert check.problems == ["1 runs were to be trained again, and 0 could be."]
    assert "not trained again: small is not here." in check.notes[0]
