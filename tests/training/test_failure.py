import logging
import re

import pytest
import torch

from graphjoule.fitting import fit
from graphjoule.training.seed_batch import Runs

from . import facts, largest_difference, same_bits, small_recipe, small_task

EPOCHS, BROKEN_AT = 8, 3


def break_run(monkeypatch, seed, name, value):
    """Put a number into a parameter of one run just before one of its epochs."""
    real = Runs.train_epoch

    def train_epoch(self):
        if int(self.epoch) == BROKEN_AT and seed in self.seeds:
            self.layout.unflatten(self.parameters[self.seeds.index(seed)])[name].fill_(value)
        real(self)

    monkeypatch.setattr(Runs, "train_epoch", train_epoch)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("convs.1.weight", torch.nan, "the parameter convs.1.weight"),
        ("head.bias", torch.inf, "the parameter head.bias"),
        ("encoder.first.weight", 3.4e38, "the output of layer encoder.first"),
        ("convs.0.weight", 3.4e38, "the output of layer convs.0"),
        ("convs.2.weight", 3.4e38, "the output of layer convs.2"),
        ("head.weight", 3.4e38, "the output of layer head"),
        ("convs.2.weight", 1e22, "the loss"),  # only the penalty overflows
    ],
)
def test_the_message_names_seed_epoch_and_layer(monkeypatch, caplog, name, value, said):
    break_run(monkeypatch, 1, name, value)
    with caplog.at_level(logging.WARNING, "graphjoule"):
        record = fit(small_recipe(num_layers=3, epochs=EPOCHS), small_task(), [1]).records[0]
    expected = f"seed 1: the loss is not finite at epoch {BROKEN_AT}; the first thing not finite is {said}"
    assert re.fullmatch(re.escape(expected) + r"(\.\w+)?", record.failure)  # or a part of that layer
    assert caplog.messages == [record.failure]


def test_a_layer_that_breaks_only_without_dropout_is_found_too(monkeypatch):
    """Batch statistics keep training finite; the running ones that evaluation uses are broken."""
    real = Runs.train_epoch

    def train_epoch(self):
        if int(self.epoch) == BROKEN_AT:
            self.buffers["convs.1.norm.running_var"].fill_(torch.nan)
        real(self)

    monkeypatch.setattr(Runs, "train_epoch", train_epoch)
    record = fit(small_recipe(batch_norm=True, epochs=EPOCHS), small_task(), [0]).records[0]
    assert record.failure.endswith(
        f"at epoch {BROKEN_AT}; the first thing not finite is the output of layer convs.1.norm"
    )


def test_a_failed_run_is_recorded_with_its_curve_and_without_a_test_accuracy(monkeypatch):
    break_run(monkeypatch, 1, "convs.1.weight", torch.nan)
    result = fit(small_recipe(epochs=EPOCHS), small_task(), [0, 1, 2])
    record = result.records[1]
    assert [r.status for r in result.records] == ["done", "failed", "done"]
    assert (record.seed, record.test_score, record.epochs_run) == (1, None, BROKEN_AT + 1)
    assert [len(values) for values in record.curve.values()] == [BROKEN_AT + 1] * 3
    assert record.curve["train_loss"][-1] is None
    assert None not in record.curve["train_loss"][:-1]
    assert record.selected_epoch < BROKEN_AT  # the best epoch so far is kept
    assert all(torch.isfinite(p).all() for p in result.models[1].parameters())
    assert (result.summary.n, result.summary.num_failed) == (2, 1)
    done = [r.test_score for r in (result.records[0], result.records[2])]
    assert result.summary.test_mean == pytest.approx(sum(done) / 2)


@pytest.mark.parametrize("num_seeds", [5, 3], ids=["stays in the program", "is dropped from it"])
def test_the_other_runs_do_not_notice(monkeypatch, num_seeds):
    recipe, task, seeds = small_recipe(epochs=EPOCHS), small_task(), range(num_seeds)
    well = fit(recipe, task, seeds)
    break_run(monkeypatch, 1, "convs.1.weight", torch.nan)
    ill = fit(recipe, task, seeds)
    for seed in seeds:
        if seed == 1:
            assert ill.records[seed].status == "failed"
        elif num_seeds == 5:  # one in five is not dropped: the same matrices, the same bits
            assert facts(ill.records[seed]) == facts(well.records[seed])
            assert same_bits(ill.models[seed], well.models[seed])
        else:
            assert largest_difference(ill.models[seed], well.models[seed]) <= 1e-5
            assert ill.records[seed].test_score == well.records[seed].test_score


def test_a_learning_rate_beyond_reason_fails_every_run_before_an_epoch_can_be_selected():
    result = fit(small_recipe(lr=1e30, epochs=EPOCHS), small_task(), [0, 1])
    for record in result.records:
        assert record.status == "failed"
        assert "at epoch 0" in record.failure
        assert (record.selected_epoch, record.val_loss, record.val_score) == (None, None, None)
    assert (result.summary.n, result.summary.num_failed, result.summary.test_mean) == (0, 2, None)
