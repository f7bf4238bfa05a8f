import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.ops import use_backend
from graphjoule.tasks import Split
from graphjoule.training import folder
from graphjoule.training.folder import SEARCH_NAME, SUMMARY_NAME, RunFolder
from graphjoule.training.records import read_records
from graphjoule.training.saving import read_model, read_tensors, write_tensors

from . import assert_same_training, contents, facts, same_bits, small_recipe, small_task

# Runs that stop at different epochs, in three groups; a checkpoint falls before, between and after the stops.
RECIPE = small_recipe("gcn", lr=0.1, patience=3, epochs=12)
SEEDS = [0, 1, 2, 3, 4]
OPTIONS = {"runs_at_once": 2, "checkpoint_every": 4}


class Killed(BaseException):
    """What `kill -9` is to the files: from one moment on, nothing happens any more."""


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """A process that is killed loses nothing it has written, synced or not; only a power cut would."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def task():
    return small_task()


@pytest.fixture(scope="module")
def finished(task, tmp_path_factory):
    """The folder of a training that was never killed; not to be changed."""
    path = tmp_path_factory.mktemp("finished") / "run"
    fit(RECIPE, task, SEEDS, out=path, **OPTIONS)
    return path


def die_after(num_epochs):
    """A progress callback that kills the training in the given epoch, counted over all groups."""
    seen = []

    def on_progress(progress):
        seen.append(progress)
        if len(seen) == num_epochs:
            raise Killed

    return on_progress


def kill(task, path, epoch, seeds=SEEDS, recipe=RECIPE, **options):
    with pytest.raises(Killed):
        fit(recipe, task, seeds, out=path, on_progress=die_after(epoch), **OPTIONS | options)
    return path


def resume(task, path, seeds=SEEDS, recipe=RECIPE, **options):
    """Go on; returns the result and the number of epochs that were trained."""
    epochs = []
    result = fit(recipe, task, seeds, out=path, resume=True, on_progress=epochs.append, **OPTIONS | options)
    return result, len(epochs)


def refuses(path, task, match, **options):
    """The folder is refused with a sentence and stays as it was."""
    before = contents(path)
    with pytest.raises(GraphjouleError, match=match) as caught:
        fit(RECIPE, task, SEEDS, out=path, **OPTIONS | {"resume": True} | options)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
    assert contents(path) == before


# What a finished training leaves.


def test_a_finished_training_leaves_its_records_models_and_settings_and_nothing_else(finished):
    models = [f"model-seed-{seed}.safetensors" for seed in SEEDS]
    expected = [".lock", "MODEL_CARD.md", "evaluation.safetensors", *models, "records.jsonl", "run.json"]
    assert list(contents(finished)) == expected
    assert contents(finished)[".lock"] == b""
    assert sorted(r.seed for r in read_records(finished / "records.jsonl")) == SEEDS
    assert len({r.epochs_run for r in read_records(finished / "records.jsonl")}) > 1
    assert json.loads((finished / "run.json").read_text())["groups"] == [[0, 1], [2, 3], [4]]


# Killed at any moment, then resumed.


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_any_write_a_training_resumes_to_the_same_bits(monkeypatch, tmp_path, task, finished, every):
    """Every file operation in turn is the one before which the process dies."""
    operations = ("write_json", "write_text", "write_tensors", "write_evaluation", "save_model", "append_record")
    died_before = []

    def number(monkeypatch, fatal):
        count = iter(range(1000))

        def watch(name, real):
            def operation(*args, **kwargs):
                if next(count) == fatal:
                    died_before.append(name)
                    raise Killed
                return real(*args, **kwargs)

            return operation

        for name in operations:
            monkeypatch.setattr(folder, name, watch(name, getattr(folder, name)))
        monkeypatch.setattr(RunFolder, "drop_checkpoint", watch("drop_checkpoint", RunFolder.drop_checkpoint))

    for moment in range(0, 100, every):
        path = tmp_path / str(moment)
        with monkeypatch.context() as patch:
            number(patch, moment)
            try:
                fit(RECIPE, task, SEEDS, out=path, **OPTIONS)
                break
            except Killed:
                pass
        resume(task, path)
        assert_same_training(path, finished)
    assert set(died_before) <= {*operations, "drop_checkpoint"}
    assert len(died_before) > 15 / every
    assert every > 1 or {*operations, "drop_checkpoint"} == set(died_before)


def test_killed_again_and_again_a_training_still_ends_with_the_same_bits(tmp_path, task, finished):
    path = tmp_path / "run"
    deaths = 0
    while deaths < 100:
        try:
            fit(RECIPE, task, SEEDS, out=path, resume=True, on_progress=die_after(5), **OPTIONS)
            break
        except Killed:
            deaths += 1
    assert 3 < deaths < 100
    assert_same_training(path, finished)


def test_a_resumed_training_does_not_repeat_what_a_checkpoint_has(tmp_path, task, finished):
    total = len(progress_of(task))
    path = kill(task, tmp_path / "run", epoch=11)
    _, epochs = resume(task, path)
    assert epochs == total - 8  # the checkpoint of epoch 8
    assert_same_training(path, finished)


def progress_of(task):
    epochs = []
    fit(RECIPE, task, SEEDS, on_progress=epochs.append, **OPTIONS)
    return epochs


def test_a_kill_between_the_last_record_and_the_checkpoints_removal_changes_nothing(tmp_path, task, finished):
    path = kill(task, tmp_path / "run", epoch=9)
    checkpoint = (path / "checkpoint.safetensors").read_bytes()
    resume(task, path)
    (path / "checkpoint.safetensors").write_bytes(checkpoint)  # of a group whose records are all there
    _, epochs = resume(task, path)
    assert epochs == 0
    assert_same_training(path, finished)
    assert contents(path)["records.jsonl"].count(b"\n") == len(SEEDS)


def test_files_that_a_kill_left_half_written_are_swept_away(tmp_path, task, finished):
    path = kill(task, tmp_path / "run", epoch=9)
    (path / ".graphjoule-0123abcd.tmp").write_bytes(b"half")
    resume(task, path)
    assert_same_training(path, finished)


def test_a_file_of_the_users_beside_a_training_stays(tmp_path, task):
    path = kill(task, tmp_path / "run", epoch=9)
    for name in (".notes.tmp", "notes.txt"):
        (path / name).write_text("mine")
    resume(task, path)
    assert [(path / name).read_text() for name in (".notes.tmp", "notes.txt")] == ["mine", "mine"]


def test_batch_norm_statistics_survive_a_kill(tmp_path, task):
    recipe = small_recipe(batch_norm=True, encoder="mlp", epochs=7)
    whole = fit(recipe, task, [0, 1], out=tmp_path / "whole")
    path = kill(task, tmp_path / "killed", epoch=5, seeds=[0, 1], recipe=recipe, checkpoint_every=2)
    result, epochs = resume(task, path, seeds=[0, 1], recipe=recipe)
    assert epochs == 3
    assert all(same_bits(a, b) for a, b in zip(result.models, whole.models, strict=True))


# Resuming something else than what was killed.


def test_resuming_a_finished_training_trains_nothing_and_tells_the_same(tmp_path, task, finished):
    path = shutil.copytree(finished, tmp_path / "run")
    result, epochs = resume(task, path)
    assert epochs == 0
    assert contents(path) == contents(finished)
    assert {r.seed: r for r in result.records} == {r.seed: r for r in read_records(finished / "records.jsonl")}
    for record, model in zip(result.records, result.models, strict=True):
        right = model(task.features, task.graph).argmax(dim=1) == task.targets
        assert record.test_score == pytest.approx(right[task.split().test].double().mean().item())


def test_resuming_with_more_seeds_trains_only_the_new_ones(tmp_path, task):
    path = tmp_path / "run"
    fit(RECIPE, task, [0, 1], out=path, **OPTIONS)
    before = contents(path)
    result, _ = resume(task, path, seeds=[0, 1, 2])
    assert [r.seed for r in result.records] == [0, 1, 2]
    after = contents(path)
    assert after["records.jsonl"].startswith(before["records.jsonl"])
    assert after["records.jsonl"].count(b"\n") == 3
    assert all(after[name] == before[name] for name in before if name.startswith("model"))
    alone = fit(RECIPE, task, [2])
    assert facts(alone.records[0]) == facts(result.records[2])


def test_killed_while_training_more_seeds_it_resumes_to_the_same_bits(tmp_path, task):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for path in (whole, killed):
        fit(RECIPE, task, [0, 1, 2], out=path, runs_at_once=3)
    resume(task, whole, runs_at_once=3)
    kill(task, killed, epoch=6, resume=True, runs_at_once=3)
    _, epochs = resume(task, killed, runs_at_once=3)
    assert epochs <= 12 - 4
    assert_same_training(killed, whole)


def test_what_trained_together_goes_on_together_whatever_is_asked_now(tmp_path, task, finished):
    path = kill(task, tmp_path / "run", epoch=3)
    resume(task, path, runs_at_once=5)
    assert_same_training(path, finished)


def test_after_memory_ran_out_a_kill_still_changes_nothing(tmp_path, task, monkeypatch, finished):
    """Five at once do not fit; the groups of two that then train are the ones that resume."""
    real, path = folder.RunFolder.save_checkpoint, tmp_path / "run"

    def run_out(self, state, recipe, group, seconds):
        if len(group) > 2:
            raise torch.OutOfMemoryError
        real(self, state, recipe, group, seconds)

    monkeypatch.setattr(RunFolder, "save_checkpoint", run_out)
    kill(task, path, epoch=15, runs_at_once=5)
    resume(task, path, runs_at_once=5)
    assert_same_training(path, finished)


def test_fewer_seeds_are_told_from_the_records(tmp_path, task, finished):
    path = shutil.copytree(finished, tmp_path / "run")
    result, epochs = resume(task, path, seeds=[3, 1])
    assert [r.seed for r in result.records] == [3, 1]
    assert epochs == 0


def test_other_settings_are_refused_with_the_differences(tmp_path, task, finished):
    path = shutil.copytree(finished, tmp_path / "run")
    before = contents(path)
    other = small_recipe("gcn", lr=0.2, patience=3, epochs=12, dropout=0.1)
    with pytest.raises(
        GraphjouleError, match=r"other settings \(model\.dropout: 0\.5 -> 0\.1; train\.lr: 0\.1 -> 0\.2\)"
    ):
        fit(other, task, SEEDS, out=path, resume=True)
    assert contents(path) == before


def test_other_data_are_refused(tmp_path, task, finished):
    shutil.copytree(finished, tmp_path / "run")
    other = replace(task, targets=task.targets.roll(1))
    refuses(tmp_path / "run", other, "was trained on other data: small has changed since")


def test_a_folder_from_before_the_data_was_hashed_goes_on(tmp_path, task, finished):
    shutil.copytree(finished, tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about.pop("data")["sha256"] == task.facts().sha256
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    resume(task, tmp_path / "run")
    assert_same_training(tmp_path / "run", finished)


def swapped(task):
    """The same data, where a node that tested trains, and the other way round."""
    old = task.split("public")
    train, test = old.train.clone(), old.test.clone()
    train[0], test[0] = old.test[0], old.train[0]
    return replace(task, fixed_splits=(Split("public", None, train, old.val, test),))


def test_other_splits_are_refused_before_and_after_the_first_record(tmp_path, task, finished):
    assert swapped(task).facts() == task.facts()
    said = r"was trained with other nodes in the split 'public' of seed \d: it has changed since"
    shutil.copytree(finished, tmp_path / "run")
    refuses(tmp_path / "run", swapped(task), said)
    refuses(kill(task, tmp_path / "killed", epoch=2), swapped(task), said)
    with pytest.raises(GraphjouleError, match=said):  # a new seed would train on what the others were scored on
        resume(swapped(task), tmp_path / "run", seeds=[5])


def test_splits_that_are_not_used_may_change(tmp_path, task):
    recipe = small_recipe("gcn", split="per-class-2-2", epochs=2)
    path = tmp_path / "run"
    fit(recipe, task, [0], out=path)
    assert resume(swapped(task), path, seeds=[0], recipe=recipe)[1] == 0


def test_a_folder_from_before_splits_were_hashed_goes_on_and_its_records_are_compared(tmp_path, task, finished):
    path = shutil.copytree(finished, tmp_path / "run")
    about = json.loads((path / "run.json").read_text())
    assert about.pop("splits") == {str(seed): task.split("public").sha256 for seed in SEEDS}
    (path / "run.json").write_text(json.dumps(about))
    refuses(path, swapped(task), "of seed 0")
    resume(task, path)
    assert_same_training(path, finished)
    killed = kill(task, tmp_path / "killed", epoch=2)
    (killed / "run.json").write_text(json.dumps(about))
    resume(swapped(task), killed)  # nothing to compare


def test_settings_are_compared_and_not_where_they_came_from(tmp_path, task, finished):
    path = shutil.copytree(finished, tmp_path / "run")
    spelled_out = small_recipe("gcn", lr=0.1, patience=3, epochs=12, dropout=0.5)
    assert spelled_out.sources != RECIPE.sources
    assert resume(task, path, recipe=spelled_out)[1] == 0


# What is refused.


def test_a_taken_folder_is_refused_without_resume(tmp_path, task, finished):
    path = shutil.copytree(finished, tmp_path / "run")
    refuses(path, task, "already holds a training; pass `resume=True` to continue it, or choose another", resume=False)


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["model-seed-0.safetensors", "MODEL_CARD.md", "predictions.csv", ".notes.tmp", "a"])
def test_a_folder_with_a_file_that_is_not_ours_is_refused(tmp_path, task, name, resume):
    (tmp_path / name).write_text("mine")
    refuses(tmp_path, task, f"holds {name}, which this command did not begin", resume=resume)


def test_what_a_kill_before_the_first_file_left_is_no_hindrance(tmp_path, task, finished):
    for name in (".lock", ".graphjoule-0123abcd.tmp"):
        (tmp_path / name).touch()
    fit(RECIPE, task, SEEDS, out=tmp_path, **OPTIONS)
    assert_same_training(tmp_path, finished)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"recipe": {}, "groups": []}', "\x00"])
def test_a_damaged_run_file_is_refused(tmp_path, task, finished, text):
    path = shutil.copytree(finished, tmp_path / "run")
    (path / "run.json").write_text(text)
    refuses(path, task, r"run\.json is missing or damaged, so this folder cannot be read; train in another one")


def test_records_without_a_run_file_are_refused(tmp_path, task, finished):
    path = shutil.copytree(finished, tmp_path / "run")
    (path / "run.json").unlink()
    refuses(path, task, r"run\.json is missing or damaged")
    refuses(path, task, "already holds a training", resume=False)


@pytest.fixture
def killed(tmp_path, task):
    return kill(task, tmp_path / "killed", epoch=6)


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.999])
def test_a_truncated_checkpoint_is_refused(killed, task, keep):
    checkpoint = killed / "checkpoint.safetensors"
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[: int(keep * len(whole))])
    refuses(
        killed, task, r"checkpoint\.safetensors is not a whole graphjoule checkpoint: it is truncated or of another"
    )


def test_a_checkpoint_with_a_flipped_bit_is_refused(killed, task):
    checkpoint = killed / "checkpoint.safetensors"
    content = bytearray(checkpoint.read_bytes())
    content[-5] ^= 1
    checkpoint.write_bytes(content)
    refuses(killed, task, r"checkpoint\.safetensors is damaged: its content does not match its checksum")


def test_a_foreign_file_as_checkpoint_is_refused(killed, task, finished, trap):
    checkpoint = killed / "checkpoint.safetensors"
    checkpoint.write_text("not a checkpoint")
    refuses(killed, task, "is not a whole graphjoule checkpoint")
    torch.save({"trap": trap}, checkpoint)
    refuses(killed, task, "is not a whole graphjoule checkpoint")
    assert not trap.sprung.exists()
    safetensors.torch.save_file({"parameters": torch.zeros(2, 3)}, checkpoint)
    refuses(killed, task, "is not a graphjoule checkpoint of format 1")
    shutil.copyfile(finished / "model-seed-0.safetensors", checkpoint)
    refuses(killed, task, "is not a graphjoule checkpoint of format 1")


def test_a_checkpoint_of_another_training_is_refused(tmp_path, killed, task):
    """It has the same seeds and shapes and would train on without complaint."""
    other = kill(task, tmp_path / "other", epoch=6, recipe=small_recipe("gcn", lr=0.2, patience=3, epochs=12))
    shutil.copyfile(other / "checkpoint.safetensors", killed / "checkpoint.safetensors")
    refuses(killed, task, r"checkpoint\.safetensors is of another training")


def test_a_folder_in_use_is_refused_and_left_to_the_one_who_uses_it(tmp_path, task):
    path = tmp_path / "run"
    with RunFolder(path).open():
        refuses(path, task, "^Another process is training in .*run; choose another folder")
        refuses(path, task, "^Another process", resume=False)  # the first refusal has not let go of the other's lock
    fit(RECIPE, task, [0], out=path, **OPTIONS)


def test_the_folder_is_free_again_after_an_error(tmp_path, task):
    path = kill(task, tmp_path / "run", epoch=2)
    assert list(contents(path)) == [".lock", "run.json"]
    with RunFolder(path).open():
        pass


def test_a_lock_that_is_waited_for_when_it_is_let_go_keeps_others_out(tmp_path, task):
    """Were the file removed at the end, one process could lock the old file and another a new one."""
    fcntl = pytest.importorskip("fcntl")
    path = tmp_path / "run"
    with RunFolder(path).open():
        waiting = (path / ".lock").open()
    with waiting:
        fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)
        refuses(path, task, "^Another process is training in")


@pytest.mark.parametrize("place", ["file", "file/below", "file/far/below"])
def test_a_place_where_no_folder_can_be_is_a_sentence(tmp_path, task, place):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(GraphjouleError, match=r"^Cannot use .*file.* as an output folder: .*\.$"):
        fit(RECIPE, task, SEEDS, out=tmp_path / place, **OPTIONS)
    assert contents(tmp_path) == {"file": b"in the way"}


# A folder that was written in format 1, before there were objectives and terms; killed in its second group.

OLD = Path(__file__).with_name("format_1")


@pytest.fixture
def old(tmp_path):
    """A copy to work in; ``whole.jsonl`` and ``whole-seed-2`` are what the old code made of it without a kill."""
    kept = shutil.ignore_patterns("whole*")
    return shutil.copytree(OLD, tmp_path / "run", ignore=kept)


def old_recipe():
    options = {"hidden_channels": 4, "epochs": 12, "lr": 0.05, "dropout": 0.3}
    limits = {"terms.energy.method": "augmented_lagrangian", "terms.energy.c_min": 0.9, "terms.energy.rho": 1.0}
    return small_recipe("gcn", 4, **options, **limits)


def test_an_old_run_file_holds_the_recipe_and_the_data_of_today(old, task):
    about = RunFolder(old).about()
    assert about.recipe == old_recipe()
    assert about.recipe.settings().keys() - about.recipe.sources.keys() == {
        "model.name",
        "model.num_layers",
        "data.name",
    }
    assert about.groups == [[0, 1], [2]]
    assert about.data == task.facts()


def test_an_old_checkpoint_goes_on_to_where_the_old_code_came(old, task):
    result, epochs = resume(task, old, seeds=[0, 1, 2], recipe=old_recipe())
    assert epochs == 12 - 6  # the checkpoint of epoch 6 of the second group
    expected = {record.seed: record for record in read_records(OLD / "whole.jsonl")}
    for record in result.records:
        other = expected[record.seed]
        assert (record.run_id, record.selected_epoch) == (other.run_id, other.selected_epoch)
        assert {name: record.val[name] for name in other.val} == pytest.approx(other.val, rel=1e-4)
        assert record.test_score == other.test_score
        for name, values in other.curve.items():
            assert record.curve[name] == pytest.approx(values, rel=1e-4)
    tensors, _ = read_tensors(OLD / "whole-seed-2.safetensors", "model")
    for name, value in result.models[2].state_dict().items():
        torch.testing.assert_close(value, tensors[name], rtol=1e-4, atol=1e-5)


def test_an_old_model_is_the_same_model(old, task):
    recorded = {record.seed: record for record in read_records(old / "records.jsonl")}
    for seed in (0, 1):
        saved = read_model(old / f"model-seed-{seed}.safetensors")
        assert (saved.recipe, saved.data, saved.seed) == (old_recipe(), task.facts(), seed)
        right = saved.model(task.features, task.graph).argmax(dim=1) == task.targets
        assert float(right[task.split().test].double().mean()) == recorded[seed].test_score


def test_deleting_the_lock_file_lets_nobody_in(tmp_path, task):
    pytest.importorskip("fcntl")
    path = tmp_path / "run"
    with RunFolder(path).open():
        (path / ".lock").unlink()
        with pytest.raises(GraphjouleError, match=r"^Another process is training in .*run; choose another folder"):
            fit(RECIPE, task, [0], out=path, **OPTIONS)
        with pytest.raises(GraphjouleError, match=r"^Another process is training in .*run; choose another folder"):
            RunFolder(path).check_unheld()
    fit(RECIPE, task, [0], out=path, **OPTIONS)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("parameters"),
        lambda state: state.update(parameters=state["parameters"][:, :3]),
        lambda state: state.update(parameters=state["parameters"].double()),
        lambda state: state.update(seed=torch.tensor([7, 8])),
        lambda state: state.update(epoch=torch.tensor([99, 99])),
        lambda state: state.update(surprise=torch.zeros(2)),
        lambda state: state.update({"draws.cpu": torch.zeros(1, 3, dtype=torch.uint8)}),
        lambda state: state.update({"draws.anything": torch.zeros(0)}),
        lambda state: state.clear(),
    ],
)
def test_a_forged_checkpoint_is_refused_with_what_helps(killed, task, change):
    state, about = read_tensors(killed / "checkpoint.safetensors", "checkpoint")
    change(state)
    write_tensors(killed / "checkpoint.safetensors", "checkpoint", state, about)
    refuses(killed, task, r"Delete .*checkpoint\.safetensors, and the same call goes on: runs that are recorded")


def test_without_its_checkpoint_a_training_goes_on_to_the_same_bits(killed, task, finished):
    (killed / "checkpoint.safetensors").unlink()
    fit(RECIPE, task, SEEDS, out=killed, resume=True, **OPTIONS)
    assert_same_training(killed, finished)


@pytest.mark.parametrize("about", [None, [], {}, {"recipe": 1, "group": 2, "seconds": "long"}])
def test_a_checkpoint_that_says_nothing_is_refused_with_what_helps(killed, task, about):
    state, _ = read_tensors(killed / "checkpoint.safetensors", "checkpoint")
    write_tensors(killed / "checkpoint.safetensors", "checkpoint", state, about)
    refuses(killed, task, r"checkpoint\.safetensors is damaged\. Delete .*checkpoint\.safetensors")


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_checkpoint_with_an_impossible_time_is_refused(killed, task, seconds):
    state, about = read_tensors(killed / "checkpoint.safetensors", "checkpoint")
    write_tensors(killed / "checkpoint.safetensors", "checkpoint", state, about | {"seconds": seconds})
    refuses(killed, task, r"checkpoint\.safetensors is damaged\. Delete .*checkpoint\.safetensors")


def away(path):
    path.rename(path.with_name("moved"))


def replaced(path):
    shutil.rmtree(path)
    path.mkdir()
    (path / "mine.txt").write_text("mine")


@pytest.mark.parametrize("happens", [shutil.rmtree, away, replaced])
@pytest.mark.parametrize("at", [0, 2])
def test_a_folder_that_is_deleted_or_replaced_meanwhile_is_a_sentence(tmp_path, task, happens, at):
    path, epochs = tmp_path / "run", iter(range(9))

    def should_stop():
        if next(epochs) == at:
            happens(path)
        return False

    with pytest.raises(GraphjouleError, match=r"run was deleted, moved or replaced while it was trained in.*`resume"):
        fit(RECIPE, task, [0], out=path, checkpoint_every=2, should_stop=should_stop)
    assert not path.exists() or [found.name for found in path.iterdir()] == ["mine.txt"]
    if happens is away:  # put back, it goes on
        (tmp_path / "moved").rename(path)
        assert fit(RECIPE, task, [0], out=path, resume=True).records[0].status == "done"


# By which backend.


def backends(path):
    return {record.backend for record in read_records(path / "records.jsonl")}


def test_a_training_goes_on_by_the_backend_it_began_with(tmp_path, task, caplog):
    with use_backend("reference"):
        path = kill(task, tmp_path / "run", epoch=11)
        fit(RECIPE, task, SEEDS, out=tmp_path / "never killed", **OPTIONS)
    resume(task, path)
    begun = [record.seed for record in read_records(path / "records.jsonl") if record.backend == "reference"]
    assert (sorted(begun), backends(path)) == ([0, 1], {"cpu", "reference"})  # the last groups began by another
    for seed in begun:
        name = f"model-seed-{seed}.safetensors"
        assert same_bits(*(read_model(folder / name).model for folder in (path, tmp_path / "never killed")))
    assert "rounded in another way" not in caplog.text


@pytest.mark.parametrize("is_asked_for", [False, True])
def test_a_training_that_goes_on_by_another_backend_says_so_and_its_record_has_both(
    tmp_path, task, monkeypatch, caplog, is_asked_for
):
    path = kill(task, tmp_path / "run", epoch=11)
    if is_asked_for:
        monkeypatch.setenv("GRAPHJOULE_BACKEND", "reference")
    else:
        monkeypatch.setattr("graphjoule.ops.backend._choose", lambda *args: "reference")
    resume(task, path)
    assert "began with the backend 'cpu' and goes on with 'reference'" in caplog.text
    assert backends(path) == {"cpu", "cpu, then reference", "reference"}


def test_a_folder_of_a_search_that_has_not_ended_is_refused(tmp_path, task):
    (tmp_path / "run" / SEARCH_NAME).mkdir(parents=True)
    assert RunFolder(tmp_path / "run").is_free  # a kill before the first word of it
    (tmp_path / "run" / SEARCH_NAME / SUMMARY_NAME).touch()
    for again in (False, True):
        with pytest.raises(GraphjouleError, match="holds a search for a model that has not ended; go on with it by"):
            fit(RECIPE, task, SEEDS, out=tmp_path / "run", resume=again, **OPTIONS)
    assert not RunFolder(tmp_path / "run").is_free
