import errno
import math
import os
import sys
import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch_geometric.nn import GraphSAGE

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.graph import Propagation
from graphjoule.trace import LayerCollapse, RecordedTrace, Trace
from graphjoule.training import Callback, LayerWatch, Progress, TensorBoard, TrainingInterrupted, read_records

from . import assert_same_training, make_batch, small_recipe, small_task

RECIPE = small_recipe("gcn", epochs=6)
TASK = small_task()


class Log(Callback):
    """Writes down all that it hears."""

    def __init__(self):
        self.heard = []

    def on_begin(self, job):
        self.job = job
        self.heard.append("begin")

    def on_epoch(self, progress):
        self.heard.append(progress.epoch)

    def on_run_end(self, record):
        self.heard.append(f"seed {record.seed}")

    def on_end(self, result):
        self.result = result
        self.heard.append("end")


class Broken(Callback):
    """Raises at one epoch, or at the end of a run."""

    def __init__(self, epoch=None, seed=None):
        self.epoch, self.seed = epoch, seed

    def on_epoch(self, progress):
        if progress.epoch == self.epoch:
            raise OSError("the disk is full")

    def on_run_end(self, record):
        if record.seed == self.seed:
            raise OSError("the disk is full")


def test_callbacks_hear_all_in_order(tmp_path):
    log, epochs = Log(), []
    result = fit(
        RECIPE,
        TASK,
        [0, 1, 2],
        out=tmp_path / "run",
        runs_at_once=2,
        callbacks=[log, Callback()],
        on_progress=lambda progress: epochs.append(progress.epoch),
    )
    group = [*range(1, 7)]
    assert log.heard == ["begin", *group, "seed 0", "seed 1", *group, "seed 2", "end"]
    assert epochs == 2 * group
    assert log.result is result
    job = log.job
    assert (job.seeds, job.folder, job.device.type) == ([0, 1, 2], tmp_path / "run", "cpu")
    assert (job.recipe.model.name, job.data.num_nodes) == ("gcn", 30)


def test_a_record_is_written_before_anybody_hears_of_its_run(tmp_path):
    class Reader(Callback):
        seen: tuple = ()

        def on_run_end(self, record):
            assert (tmp_path / f"model-seed-{record.seed}.safetensors").exists()
            self.seen = (*self.seen, record in read_records(tmp_path / "records.jsonl"))

    reader = Reader()
    fit(RECIPE, TASK, [0, 1], out=tmp_path, callbacks=[reader])
    assert reader.seen == (True, True)


@pytest.mark.parametrize("broken", [Broken(epoch=3), Broken(epoch=6), Broken(seed=1), Broken(seed=2)], ids=vars)
def test_what_a_callback_raises_comes_out_once_the_training_is_saved(tmp_path, broken):
    fit(RECIPE, TASK, [0, 1, 2], out=tmp_path / "whole", runs_at_once=2)
    path, epochs = tmp_path / "run", []
    with pytest.raises(OSError, match="the disk is full") as caught:
        fit(RECIPE, TASK, [0, 1, 2], out=path, runs_at_once=2, callbacks=[broken])
    trained = 3 if broken.epoch == 3 else 7 if broken.seed != 2 else 12  # the group after it stops after its first
    notes = getattr(caught.value, "__notes__", [])
    assert notes == (
        []
        if trained == 12
        else [f"graphjoule: a callback raised this; the training stopped after epoch {trained % 6}."]
    )
    fit(RECIPE, TASK, [0, 1, 2], out=path, runs_at_once=2, resume=True, on_progress=epochs.append)
    assert len(epochs) == 12 - trained
    assert_same_training(path, tmp_path / "whole")


def test_after_an_error_nobody_is_called_again(tmp_path):
    log = Log()
    with pytest.raises(OSError, match="full"):
        fit(RECIPE, TASK, out=tmp_path, callbacks=[Broken(epoch=2), log])
    assert log.heard == ["begin", 1]


def test_an_error_at_the_beginning_leaves_nothing(tmp_path):
    class Unwilling(Callback):
        def on_begin(self, job):
            raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        fit(RECIPE, TASK, out=tmp_path / "run", callbacks=[Unwilling()])
    assert not list(tmp_path.iterdir())


def test_a_stop_on_request_stays_one(tmp_path):
    log = Log()
    with pytest.raises(TrainingInterrupted):
        fit(RECIPE, TASK, out=tmp_path, callbacks=[log], should_stop=lambda: 2 in log.heard)
    assert log.heard == ["begin", 1, 2]


def test_what_is_no_callback_is_refused():
    with pytest.raises(GraphjouleError, match=r"callbacks has a function; expected objects of a subclass of graphj"):
        fit(RECIPE, TASK, callbacks=[lambda progress: None])


# Looking at layers


def watched(most=1.0, every=2, **options):
    seen = {}
    return seen, LayerWatch(lambda epoch, rows: seen.update({epoch: rows}), most=most, every=every, **options)


@pytest.mark.parametrize("model", ["gcn", "egnn"])
def test_energies_are_those_of_the_network_of_that_epoch_and_the_training_stays_the_same(tmp_path, model):
    recipe = small_recipe(model, epochs=5, dropout=0.5)
    seen, watch = watched()
    fit(recipe, TASK, [3, 5], out=tmp_path / "watched", callbacks=[watch])
    fit(recipe, TASK, [3, 5], out=tmp_path / "plain")
    assert_same_training(tmp_path / "watched", tmp_path / "plain")
    assert list(seen) == [1, 3, 5]
    batch = make_batch(recipe, TASK, [3, 5], epochs=3)
    expected = Trace.of(batch.current_model(0), TASK.graph, (batch.features, TASK.graph), watch=["convs.*"]).layers
    assert [row["energy"] for row in seen[3]] == pytest.approx([row["energy"] for row in expected])


def test_looks_never_take_more_than_their_share_of_the_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("graphjoule.training.callbacks.time.perf_counter", lambda: now[0])

    def trace(measures):
        now[0] += 1.0  # an epoch takes as long as a look
        return RecordedTrace([], measures)

    seen, watch = watched(most=0.1, every=1)
    for epoch in range(1, 101):
        watch.on_epoch(Progress(epoch, 100, 1, 1, 0.0, {}, trace))
        now[0] += 1.0
    assert 8 <= len(seen) <= 0.1 * now[0] + 1


def test_layers_of_the_users_own_module_are_looked_at():
    seen, watch = watched()
    fit(partial(GraphSAGE, hidden_channels=4, num_layers=2), TASK, settings={"epochs": 2}, callbacks=[watch])
    assert [row.name for row in seen[1]] == ["convs.0", "act", "convs.1"]


ALL_JOINED = replace(
    TASK, graph=Propagation.from_edge_index(torch.ones(30, 30).nonzero().T)
)  # one step makes all alike
SGC = small_recipe("sgc", epochs=4)


def test_a_dead_layer_stops_a_training_that_can_go_on(tmp_path):
    with pytest.raises(LayerCollapse, match=r"convs\.\d+ has collapsed in epoch 1: norm .*, rayleigh "):
        fit(SGC, ALL_JOINED, out=tmp_path, callbacks=[LayerWatch(on_collapse="stop")])
    assert fit(SGC, ALL_JOINED, out=tmp_path, resume=True).records[0].epochs_run == 4


def test_a_dead_layer_warns_once_or_calls_a_function():
    dead = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(SGC, ALL_JOINED, callbacks=[LayerWatch(on_collapse="warn", every=1, most=1.0)])
    texts = [str(warning.message) for warning in caught]
    assert sum(text.startswith("convs.1 has collapsed in epoch 1: ") for text in texts) == 1
    assert not any("convs.1 has collapsed in epoch 2" in text for text in texts)
    fit(SGC, ALL_JOINED, callbacks=[LayerWatch(on_collapse=dead.append, every=1, most=1.0)])
    assert sum(row.name == "convs.1" for row in dead) == 4


@pytest.mark.parametrize(
    ("options", "says"),
    [({"every": 0}, "every is 0"), ({"most": 0}, "most is 0"), ({"on_collapse": "end"}, "on_collapse is 'end'")],
)
def test_a_wrong_option_of_a_watch_is_refused(options, says):
    with pytest.raises(GraphjouleError, match=says):
        LayerWatch(**options)


# TensorBoard


def scalars(folder, name):
    events = EventAccumulator(str(folder))
    events.Reload()
    return {event.step: event.value for event in events.Scalars(name)}


def test_tensorboard_shows_every_seed_and_the_mean(tmp_path):
    result = fit(RECIPE, TASK, [3, 5], callbacks=[TensorBoard(tmp_path / "curves")])
    assert {path.name for path in (tmp_path / "curves").iterdir()} == {"mean", "seed-3", "seed-5"}
    curves = []
    for record in result.records:
        for name in ("train_loss", "val_loss", "val_accuracy"):
            found = scalars(tmp_path / "curves" / f"seed-{record.seed}", name)
            assert found == pytest.approx(dict(enumerate(record.curve[name], start=1)), rel=1e-5)
        curves.append(record.curve["train_loss"])
    mean = {epoch: (a + b) / 2 for epoch, (a, b) in enumerate(zip(*curves, strict=True), start=1)}
    assert scalars(tmp_path / "curves" / "mean", "train_loss") == pytest.approx(mean, rel=1e-5)
    for layer in ("convs.0", "convs.1"):
        assert scalars(tmp_path / "curves" / "mean", f"energy/{layer}")[1] > 0


def test_tensorboard_can_leave_out_energies(tmp_path):
    fit(RECIPE, TASK, callbacks=[TensorBoard(tmp_path, most=0)])
    with pytest.raises(KeyError):
        scalars(tmp_path / "mean", "energy/convs.0")


def test_groups_of_seeds_have_means_of_their_own(tmp_path):
    fit(RECIPE, TASK, [0, 1], runs_at_once=1, callbacks=[TensorBoard(tmp_path)])
    assert {path.name for path in tmp_path.iterdir()} == {"mean", "mean-2", "seed-0", "seed-1"}
    assert list(scalars(tmp_path / "mean-2", "val_loss")) == [1, 2, 3, 4, 5, 6]


def test_what_is_not_finite_is_no_point(tmp_path):
    recipe = small_recipe("gcn", epochs=6, lr=1e38)
    (record,) = fit(recipe, TASK, callbacks=[TensorBoard(tmp_path)]).records
    assert record.status == "failed"
    assert all(math.isfinite(value) for value in scalars(tmp_path / "seed-0", "train_loss").values())


def test_a_disk_that_is_full_for_tensorboard_is_a_sentence_and_the_training_goes_on_without(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    expected = fit(RECIPE, TASK).records[0]
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", full)
    with pytest.raises(GraphjouleError, match=r"TensorBoard into .*: no space left"):
        fit(RECIPE, TASK, out=tmp_path / "run", callbacks=[TensorBoard(tmp_path / "curves")])
    assert fit(RECIPE, TASK, out=tmp_path / "run", resume=True).records[0].curve == expected.curve


def test_tensorboard_says_what_it_needs(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(GraphjouleError, match="file: it is a file; name a folder"):
        TensorBoard(tmp_path / "file")
    with pytest.raises(GraphjouleError, match="it takes paths in UTF-8 alone"):
        TensorBoard(tmp_path / "caf\udce9")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(GraphjouleError, match=r"needs tensorboard, .* pip install 'graphjoule\[tensorboard\]'"):
        TensorBoard(tmp_path / "curves")
