"""The run folder of many processes: the first one writes, and all go the same way."""

import time
from pathlib import Path

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.parallel import write_partition
from graphjoule.parallel.folder import JointFolder
from graphjoule.training.records import read_records

from .tasks import ring_task, small_recipe
from .test_trainer import fit_part, fit_with, numbers_of, refused_fit


def first_writes_and_all_go_on(group, parts, recipe, out):
    refused = []
    first = fit_part(group, parts, recipe, [0], out=out)
    for options in ({}, {"resume": True, "other": True}):
        other = options.pop("other", False)
        try:
            fit_part(group, parts, small_recipe("gcn", 3) if other else recipe, [0], out=out, **options)
        except GraphjouleError as error:
            refused.append(str(error))
    again = fit_part(group, parts, recipe, [0, 1], out=out, resume=True)
    return first, again, refused


def test_a_finished_folder_is_refused_extended_and_read_by_all(world, tmp_path):
    recipe = small_recipe("egnn", 2, epochs=6)
    write_partition(ring_task(), 2, tmp_path / "parts", "blocks")
    out = tmp_path / "out"
    answers = world.run(first_writes_and_all_go_on, 2, str(tmp_path / "parts"), recipe, str(out))
    for (records, states), (more, more_states), (taken, other) in answers:
        assert "already holds a training" in taken
        assert "was trained with other settings" in other
        assert more[0].model_dump() == answers[0][1][0][0].model_dump()
        assert numbers_of(records[0]) == numbers_of(more[0])
        assert all(states[0][name].equal(value) for name, value in more_states[0].items())
    assert [record.seed for record in read_records(out / "records.jsonl")] == [0, 1]
    assert (out / "MODEL_CARD.md").exists()
    assert not list(out.glob("checkpoint*"))
    assert [path.name for path in out.glob(".*")] == [".lock"]


def save_slowly(group, out, is_broken):
    """What a rank finds on the disk as soon as it may go on."""
    folder = JointFolder(out, group)
    save = folder._own.save_checkpoint

    def save_late(*given):
        time.sleep(0.5)
        if is_broken:
            raise GraphjouleError("The disk is full.")
        save(*given)

    folder._own.save_checkpoint = save_late
    with folder.open():
        try:
            folder.save_checkpoint({"epoch": torch.zeros(1)}, small_recipe(), [0], 1.0)
        except GraphjouleError as error:
            return str(error)
        return [path.name for path in Path(out).glob("checkpoint*")]


def test_no_rank_goes_on_before_the_checkpoint_is_whole(world, tmp_path):
    """Else one that was asked to stop would end while the first still writes, and be taken for a failure."""
    assert world.run(save_slowly, 2, str(tmp_path), False) == [["checkpoint.safetensors"]] * 2


def test_all_ranks_hear_that_a_checkpoint_cannot_be_written(world, tmp_path):
    assert world.run(save_slowly, 2, str(tmp_path), True) == ["The disk is full."] * 2


def test_changed_splits_are_refused_by_all(world, tmp_path):
    recipe, out = small_recipe("gcn", 2, epochs=3), tmp_path / "out"
    write_partition(ring_task(), 2, tmp_path / "old", "blocks")
    write_partition(ring_task(train=torch.arange(9)), 2, tmp_path / "new", "blocks")
    world.run(fit_with, 2, str(tmp_path / "old"), recipe, [0], {"out": str(out)})
    for said in world.run(refused_fit, 2, str(tmp_path / "new"), recipe, {"out": str(out), "resume": True}):
        assert "was trained with other nodes in the split 'public' of seed 0" in said
