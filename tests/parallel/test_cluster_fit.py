import math

import pytest
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.predicting import mean_probabilities, read_runs
from graphjoule.tasks.inputs import ModelInput
from graphjoule.training import loop
from graphjoule.training.records import read_records
from tests.training import assert_same_training, contents, facts, same_bits, small_recipe, small_task

CLUSTERS = {"clusters": 6, "clusters.per_step": 2}


def test_a_record_says_that_it_was_clusters_and_by_which_settings(tmp_path):
    fit(small_recipe(**CLUSTERS), small_task(), [0], out=tmp_path / "run")
    (record,) = read_records(tmp_path / "run" / "records.jsonl")
    assert record.status == "done"
    assert record.recipe["clusters"] == {
        "parts": 6,
        "per_step": 2,
        "accumulate": 1,
        "method": "metis",
        "validate_every": 1,
    }
    assert record.run_id != fit(small_recipe(), small_task()).records[0].run_id
    assert 0 <= record.test_score <= 1
    assert record.selected_epoch is not None


def test_a_seed_is_the_same_run_to_the_bit_alone_and_among_others():
    recipe, task = small_recipe("gcn", **CLUSTERS), small_task()
    alone, among = fit(recipe, task, [4]), fit(recipe, task, [0, 4, 1])
    assert facts(alone.records[0]) == facts(among.records[1])
    assert same_bits(alone.models[0], among.models[1])
    assert not same_bits(among.models[0], among.models[1])


def test_one_cluster_is_exact_training_but_for_the_dropout_masks():
    for dropout, is_same in ((0.0, True), (0.5, False)):
        settings = {"dropout": dropout, "output_dropout": dropout}
        exact, one = (fit(small_recipe(**settings, **more), small_task()) for more in ({}, {"clusters": 1}))
        losses = [torch.tensor(result.records[0].curve["train_loss"]) for result in (exact, one)]
        assert torch.allclose(*losses, rtol=1e-5, atol=0) == is_same


def test_the_recorded_accuracies_are_those_of_the_models_forward():
    task = small_task()
    result = fit(small_recipe("gcn", **CLUSTERS, lr=0.1, patience=3, epochs=20), task, range(3))
    for record, model in zip(result.records, result.models, strict=True):
        right = model(task.features, task.graph).argmax(dim=1) == task.targets
        split = task.split("public")
        assert record.val_score == pytest.approx(right[split.val].double().mean().item(), abs=1e-6)
        assert record.test_score == pytest.approx(right[split.test].double().mean().item(), abs=1e-12)


@pytest.mark.parametrize("stop_at", [1, 4, 7])
def test_an_interrupted_training_goes_on_to_the_bit(tmp_path, stop_at):
    recipe, task = small_recipe(**CLUSTERS), small_task()
    fit(recipe, task, [0, 3], out=tmp_path / "whole")

    def stop(progress):
        if progress.epoch == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(recipe, task, [0, 3], out=tmp_path / "cut", checkpoint_every=2, on_progress=stop)
    fit(recipe, task, [0, 3], out=tmp_path / "cut", resume=True)
    assert_same_training(tmp_path / "cut", tmp_path / "whole")


SELDOM = {**CLUSTERS, "clusters.validate_every": 4, "lr": 0.1, "patience": 6, "epochs": 60}


def test_a_run_ends_in_the_epoch_that_stops_it_however_seldom_a_device_is_looked_at(monkeypatch):
    recipe = small_recipe("gcn", **SELDOM)
    (want,) = fit(recipe, small_task(), [0], device="cpu").records
    monkeypatch.setitem(loop._LOOK_EVERY, "cpu", 7)  # a GPU is looked at every 10 epochs
    epochs = []
    (seldom,) = fit(recipe, small_task(), [0], device="cpu", on_progress=lambda p: epochs.append(p.epoch)).records
    assert want.epochs_run < 60
    assert want.epochs_run % 7, "it should stop between two looks for this test to mean something"
    assert facts(seldom) == facts(want)
    assert len(seldom.curve["val_loss"]) == seldom.epochs_run
    assert epochs == list(range(1, want.epochs_run + 1))  # and it stops there: no epoch is made in vain


def test_progress_tells_the_last_validation_there_was():
    told = []
    (record,) = fit(small_recipe("gcn", **SELDOM), small_task(), [0], device="cpu", on_progress=told.append).records
    assert all(math.isnan(progress.val_loss) and math.isnan(progress.val_score) for progress in told[:3])
    for progress in told[3:]:
        at = progress.epoch - progress.epoch % 4 - 1
        assert progress.val_loss == pytest.approx(record.curve["val_loss"][at], rel=1e-4)  # curves are rounded
        assert progress.val_score == pytest.approx(record.curve["val_accuracy"][at], rel=1e-4)
    assert [progress.train_loss for progress in told] == pytest.approx(record.curve["train_loss"], rel=1e-4)


def test_prediction_is_made_in_blocks_and_agrees_with_the_forward(tmp_path):
    task = small_task()
    fit(small_recipe(**CLUSTERS), task, [0, 1], out=tmp_path / "run")
    runs, given = read_runs(tmp_path / "run"), ModelInput.of(task)
    assert runs.recipe.train.clusters is not None
    exact = mean_probabilities(list(runs.models.values()), small_recipe(), given)
    torch.testing.assert_close(runs.probabilities(given), exact, rtol=1e-5, atol=1e-6)


def refused(tmp_path, match, **settings):
    options = settings.pop("options", {})
    with pytest.raises(GraphjouleError, match=match):
        fit(small_recipe(**settings), small_task(), [0], out=tmp_path / "run", **options)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_is_a_sentence_and_nothing_is_written(tmp_path):
    refused(tmp_path, "clusters is 31; for a graph of 30 nodes it must be from 1 to 30", clusters=31)
    together = "runs_at_once is 2; runs on clusters train one after the other"
    refused(tmp_path, together, clusters=3, options={"runs_at_once": 2})
    refused(tmp_path, "a batch norm has no variance", clusters=30, batch_norm=True)


def test_another_number_of_clusters_does_not_resume(tmp_path):
    fit(small_recipe(clusters=3), small_task(), [0], out=tmp_path / "run")
    before = contents(tmp_path / "run")
    with pytest.raises(GraphjouleError, match="clusters: 3 -> 4"):
        fit(small_recipe(clusters=4), small_task(), [0], out=tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before
