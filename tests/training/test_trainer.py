import logging

import pytest
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.ops import use_backend
from graphjoule.terms import TERMS
from graphjoule.training import describe_device, trainer
from graphjoule.training.build import architecture_of
from graphjoule.training.seed_batch import SeedBatch
from graphjoule.training.trainer import Trainer
from tests.ops.live_bytes import LiveBytes

from . import facts, make_batch, same_bits, small_recipe, small_task

CPU = torch.device("cpu")


def runs_that_fit(recipe, task, num_seeds):
    terms = {name: TERMS[name](**given) for name, given in recipe.terms.items()}
    asked = Trainer(architecture_of(recipe), recipe, task, CPU, list(range(num_seeds)), terms)
    return asked.most_at_once(None, 0)


def no_cuda_memory():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def no_cpu_memory():
    torch.empty(2**55)  # what a CPU says when it has none


KINDS = pytest.mark.parametrize("run_out", [no_cuda_memory, no_cpu_memory])


def limit_memory(monkeypatch, most_runs, run_out, at_epoch=0):
    """From an epoch on, an epoch of more runs than this does not fit in memory."""
    real, tried = SeedBatch.train_epoch, []

    def train_epoch(self):
        tried.append(len(self.seeds))
        if len(self.seeds) > most_runs and int(self.epoch) >= at_epoch:
            run_out()
        real(self)

    monkeypatch.setattr(SeedBatch, "train_epoch", train_epoch)
    return tried


@KINDS
def test_fit_goes_on_with_fewer_runs_at_once_says_so_and_gives_the_same_results(monkeypatch, caplog, tmp_path, run_out):
    recipe, task, seeds = small_recipe(epochs=4), small_task(), [0, 1, 2, 3, 4]
    expected = fit(recipe, task, seeds, runs_at_once=2)
    tried = limit_memory(monkeypatch, 2, run_out)
    with caplog.at_level(logging.WARNING, "graphjoule"):
        result = fit(recipe, task, seeds, out=tmp_path / "run")
    assert caplog.messages == ["5 runs at once do not fit in memory: going on with 2 at once"]
    assert tried == [5, *[2] * 4, *[2] * 4, *[1] * 4]  # once too many, never again
    assert [facts(r) for r in result.records] == [facts(r) for r in expected.records]
    assert all(same_bits(a, b) for a, b in zip(result.models, expected.models, strict=True))


def test_memory_that_ends_in_the_middle_loses_no_run(monkeypatch, tmp_path):
    recipe, task, seeds = small_recipe(epochs=5), small_task(), [0, 1, 2, 3]
    expected = fit(recipe, task, seeds, runs_at_once=1)
    limit_memory(monkeypatch, 1, no_cuda_memory, at_epoch=3)
    result = fit(recipe, task, seeds, out=tmp_path / "run", checkpoint_every=1)
    assert [facts(r) for r in result.records] == [facts(r) for r in expected.records]
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()


@KINDS
def test_one_run_that_does_not_fit_is_a_sentence(monkeypatch, run_out):
    limit_memory(monkeypatch, 0, run_out)
    with pytest.raises(
        GraphjouleError, match=r"^One run of egnn with 2 layers and width 8 does not fit[^\n]*cpu;.*\.$"
    ):
        fit(small_recipe(), small_task(), [0, 1])


def test_another_error_is_not_taken_for_a_lack_of_memory(monkeypatch):
    def fail():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    limit_memory(monkeypatch, 0, fail)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        fit(small_recipe(), small_task(), [0, 1])


def test_as_many_runs_train_together_as_memory_has_room_for(monkeypatch):
    recipe, task = small_recipe(), small_task()
    rooms = []
    for free in [0, 2**18, 2**40]:
        monkeypatch.setattr(trainer, "free_bytes", lambda device, free=free: free)
        rooms.append(runs_that_fit(recipe, task, 10))
    assert rooms[0] == 1  # one must be tried
    assert rooms[-1] == 10  # no more than there are
    assert rooms == sorted(rooms)
    assert 1 < rooms[1] < 10
    deep = small_recipe(num_layers=20)
    monkeypatch.setattr(trainer, "free_bytes", lambda device: 2**18)
    assert runs_that_fit(deep, task, 10) < runs_that_fit(recipe, task, 10)
    held = small_recipe(**{"terms.energy.method": "penalty"})
    assert runs_that_fit(held, task, 10) < runs_that_fit(recipe, task, 10)
    views = small_recipe(**{"terms.consistency.views": 4})
    assert runs_that_fit(views, task, 10) < runs_that_fit(recipe, task, 10)


@pytest.mark.parametrize("num_layers", [4, 100])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_an_epoch_needs_no_more_memory_than_planned(num_layers, backend):
    recipe, task = small_recipe(num_layers=num_layers), small_task()
    with use_backend(backend):
        runs = make_batch(recipe, task, [0])
        with LiveBytes() as live:
            runs.train_epoch()
    activation = task.num_nodes * recipe.model.hidden_channels * 4
    planned = runs.model.kept_activations(is_fused=backend != "reference") * activation + 8 * runs.parameters.nbytes
    assert 0.2 * planned < live.peak <= planned


def test_fit_asks_how_many_runs_fit(monkeypatch):
    recipe, task = small_recipe(epochs=2), small_task()
    monkeypatch.setattr(trainer, "free_bytes", lambda device: 2**17)
    result = fit(recipe, task, range(4))
    at_once = runs_that_fit(recipe, task, 4)
    assert 1 < at_once < 4
    assert result.records[0].runs_at_once == at_once


def test_free_and_used_memory_are_plausible():
    assert 2**20 < trainer.free_bytes(CPU) < 2**50
    assert 2**24 < trainer.peak_bytes(CPU) < 2**50  # this process has imported torch


def test_a_container_that_has_used_its_limit_up_has_nothing_left(monkeypatch, tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("1500\n")
    monkeypatch.setattr(trainer, "Path", lambda path: tmp_path if path == "/sys/fs/cgroup" else tmp_path / "absent")
    assert trainer.free_bytes(CPU) == 0
    (tmp_path / "memory.current").write_text("400\n")
    assert trainer.free_bytes(CPU) == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert trainer.free_bytes(CPU) == 4 * 2**30  # nobody knows: a guess


# Devices.


def test_devices_are_told_in_words(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert describe_device(torch.device("cpu")) == "cpu (2 threads)"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert describe_device(torch.device("cpu")) == "cpu (1 thread)"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert describe_device(torch.device("cuda")) == "NVIDIA H200"
    assert describe_device(torch.device("meta")) == "meta"
