"""Two and four processes against one: the same losses, gradients, selected epochs, records and failures."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from graphjoule.cli import app
from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.graph.features import SparseFeatures
from graphjoule.ops import Memory, make_key
from graphjoule.parallel import load_part, read_partition, write_partition
from graphjoule.parallel.trainer import JointFolder
from graphjoule.tasks import Split, Task, load_task
from graphjoule.training import TrainingInterrupted
from graphjoule.training.build import build_model
from graphjoule.training.folder import RunFolder
from graphjoule.training.recipe import load_recipe
from graphjoule.training.records import read_records
from graphjoule.training.saving import read_model
from graphjoule.training.seed_batch import SeedBatch
from reproduction.bench import CitationGraph
from reproduction.experiments.distributed_memory import Part
from tests.ops.live_bytes import LiveBytes

from .tasks import Sized, batch_of, house_prices, ring_task, small_recipe

EPOCHS = 6
MODELS = {
    "egnn": {"num_layers": 4},
    "gcn": {"num_layers": 3},
    "pairnorm": {"num_layers": 3},
    "dropedge": {"num_layers": 3, "edge_dropout": 0.4},
    "appnp": {"num_layers": 4, "edge_dropout": 0.5},
    "jknet": {"num_layers": 3},
    "gcnii": {"num_layers": 4},
    "sgc": {"num_layers": 3},
    "wave": {"num_layers": 4},
}


def runs_of(task: Task, recipe, seeds) -> SeedBatch:
    """Runs in the dtype of the task."""
    torch.set_default_dtype(task.graph.dtype)
    try:
        return batch_of(recipe, task, seeds)
    finally:
        torch.set_default_dtype(torch.float32)


def epochs_of(task: Task, recipe, seeds, num_epochs=EPOCHS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Curve, the last parameters and the first gradient of some runs."""
    runs = runs_of(task, recipe, seeds)
    before = runs.parameters.clone()
    runs.train_epoch()
    # After one step Adam's first moment is a tenth of the gradient and the decay of the parameters before it.
    gradient = 10 * runs.moment1 - runs.weight_decay * before
    for _ in range(num_epochs - 1):
        runs.train_epoch()
    return runs.curve[:, :num_epochs].clone(), runs.parameters.clone(), gradient


def part_epochs(group, folder, recipe, seeds, num_epochs=EPOCHS):
    return epochs_of(load_part(folder, group.rank, group), recipe, seeds, num_epochs)


def assert_equal_training(
    world, folder, task, recipe, size, seeds=(0,), method="blocks", num_epochs=EPOCHS, expected=None
):
    write_partition(task, size, folder, method)
    curve, parameters, gradient = expected or epochs_of(task, recipe, list(seeds), num_epochs)
    answers = world.run(part_epochs, size, str(folder), recipe, list(seeds), num_epochs)
    for other in answers[1:]:
        assert all(mine.equal(theirs) for mine, theirs in zip(answers[0], other, strict=True))
    torch.testing.assert_close(answers[0][0][..., :2], curve[..., :2], rtol=1e-5, atol=1e-7)
    # Of 29,799 nodes some have two classes that are equal up to rounding; of a few hundred none.
    torch.testing.assert_close(answers[0][0][..., 2], curve[..., 2], rtol=0, atol=3e-4)
    assert torch.linalg.vector_norm(answers[0][2] - gradient) <= 1e-6 * torch.linalg.vector_norm(gradient)
    return answers[0], (curve, parameters, gradient)


@pytest.mark.parametrize("model", MODELS)
def test_two_ranks_train_as_one_process_does(world, tmp_path, model):
    assert_equal_training(world, tmp_path, ring_task(), small_recipe(model, **MODELS[model]), 2)


@pytest.mark.parametrize("model", ["egnn", "pairnorm", "dropedge"])
def test_four_ranks_train_as_one_process_does(world, tmp_path, model):
    assert_equal_training(world, tmp_path, ring_task(), small_recipe(model, **MODELS[model]), 4)


def test_sparse_features_draw_the_masks_of_the_whole(world, tmp_path):
    task = ring_task(sparse=True)
    assert isinstance(task.features, SparseFeatures)
    assert_equal_training(world, tmp_path, task, small_recipe("gcn", 2), 2)


@pytest.mark.parametrize("model", ["egnn", "gcn"])
def test_batch_norm_takes_its_statistics_over_all_ranks(world, tmp_path, model):
    encoder = {"encoder": "mlp"} if model == "egnn" else {}
    recipe = small_recipe(model, 3, batch_norm=True, **encoder)
    # The gradient of a bias before a batch norm is rounding alone, and Adam with decay blows it up to steps of its
    # learning rate, within one epoch in float32 and within five in float64. The training loss does not see that bias.
    assert_equal_training(world, tmp_path, ring_task().to(dtype=torch.float64), recipe, 2, num_epochs=3)


def test_running_statistics_are_those_of_one_process(world, tmp_path):
    task, recipe = ring_task().to(dtype=torch.float64), small_recipe("gcn", 3, batch_norm=True)
    write_partition(task, 2, tmp_path, "blocks")
    expected = buffers_of(task, recipe)
    assert expected["convs.0.norm.num_batches_tracked"].tolist() == [3]
    for buffers in world.run(part_buffers, 2, str(tmp_path), recipe):
        assert buffers.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(buffers[name], value)


def buffers_of(task, recipe):
    runs = runs_of(task, recipe, [0])
    for _ in range(3):
        runs.train_epoch()
    return {name: value.clone() for name, value in runs.buffers.items()}


def part_buffers(group, folder, recipe):
    return buffers_of(load_part(folder, group.rank, group), recipe)


@pytest.mark.parametrize("model", ["egnn", "gcn"])
def test_a_regression_trains_as_in_one_process(world, tmp_path, model):
    task, recipe = house_prices(), small_recipe(model, 3)
    write_partition(task, 2, tmp_path, "blocks")
    curve, _, gradient = epochs_of(task, recipe, [0, 1])
    for ours, _, ours_gradient in world.run(part_epochs, 2, str(tmp_path), recipe, [0, 1]):
        torch.testing.assert_close(ours, curve, rtol=1e-5, atol=1e-6)
        assert torch.linalg.vector_norm(ours_gradient - gradient) <= 1e-5 * torch.linalg.vector_norm(gradient)


def test_a_regression_is_recorded_as_in_one_process(world, tmp_path):
    recipe = small_recipe("gcn", 2, **STOPPING)
    write_partition(house_prices(), 2, tmp_path, "blocks")
    (expected,) = fit(recipe, house_prices(), [0], device="cpu").records
    assert expected.objective == "regression"
    for (record,), _ in world.run(fit_with, 2, str(tmp_path), recipe, [0], {}):
        assert (record.selected_epoch, record.run_id) == (expected.selected_epoch, expected.run_id)
        assert record.val == pytest.approx(expected.val, rel=1e-5)
        assert record.test == pytest.approx(expected.test, rel=1e-5)


def test_many_seeds_train_at_once_each_with_its_own_split(world, tmp_path):
    recipe = small_recipe("egnn", 3, split="per-class-3-4")
    parts, whole = assert_equal_training(world, tmp_path, ring_task(), recipe, 2, seeds=(0, 1, 2))
    assert parts[0].shape == (3, EPOCHS, 3)
    assert not whole[0][0].equal(whole[0][1])


def test_many_seeds_of_a_model_with_norms_and_edge_masks(world, tmp_path):
    for model in ("pairnorm", "dropedge"):
        recipe = small_recipe(model, 3, split="per-class-3-4")
        assert_equal_training(world, tmp_path / model, ring_task(), recipe, 2, seeds=(4, 5), num_epochs=8)


def test_a_partition_with_an_empty_halo(world, tmp_path):
    ends = torch.arange(19)
    edges = torch.cat([torch.stack([ends, ends + 1]), torch.stack([ends, ends + 1]) + 21], dim=1)
    task = ring_task(edges=edges)
    assert_equal_training(world, tmp_path, task, small_recipe("gcn", 3), 2)
    assert read_partition(tmp_path).num_halo == (0, 0)


def test_a_rank_whose_neighbours_need_nothing(world, tmp_path):
    """Of four ranks the last has isolated nodes alone, so it sends and receives nothing while the others do."""
    ends = torch.arange(28)
    task = ring_task(edges=torch.stack([ends, ends + 1]))
    assert_equal_training(world, tmp_path, task, small_recipe("egnn", 3), 4)
    assert read_partition(tmp_path).num_halo[3] == 0


def test_a_rank_without_a_training_or_validation_node(world, tmp_path):
    task = ring_task(train=torch.arange(6))
    split = task.fixed_splits[0]
    split = Split("public", None, split.train, torch.arange(6, 14), torch.arange(14, 41))
    task = replace(task, fixed_splits=(split,))
    assert_equal_training(world, tmp_path, task, small_recipe("egnn", 3), 2)
    assert load_part(tmp_path, 1, Sized(2)).split().train.numel() == 0


def test_metis_gives_the_same_training(world, tmp_path):
    pytest.importorskip("pymetis")
    assert_equal_training(world, tmp_path, ring_task(), small_recipe("egnn", 3), 2, method="metis")


def test_deep_stacks_with_checkpoint_segments(world, tmp_path):
    assert_equal_training(world, tmp_path, ring_task(), small_recipe("egnn", 70), 2, num_epochs=4)


@pytest.mark.parametrize("model", ["egnn", "gcn", "appnp"])
def test_float64(world, tmp_path, model):
    task, recipe = ring_task().to(dtype=torch.float64), small_recipe(model, 3)
    write_partition(task, 2, tmp_path, "blocks")
    expected = scores_of(task, recipe)
    parts = world.run(part_scores, 2, str(tmp_path), recipe)
    torch.testing.assert_close(torch.cat(parts), expected, rtol=1e-13, atol=1e-13)


def scores_of(task, recipe):
    model = build_model(recipe, task, 0).double().train()
    return model(task.features, task.graph, key=make_key(3)).detach()


def part_scores(group, folder, recipe):
    return scores_of(load_part(folder, group.rank, group), recipe)


@pytest.mark.parametrize("model", ["egnn", "gcn", "pairnorm"])
@pytest.mark.slow
def test_cora(world, tmp_path, data_root, model):
    task, recipe = load_task("cora", data_root), load_recipe(model, "cora", 4, {})
    assert_equal_training(world, tmp_path, task, recipe, 4)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["egnn", "gcn", "pairnorm"])
def test_a_synthetic_graph_of_the_size_of_arxiv(world, tmp_path, model):
    task = CitationGraph(169_343, 1_157_799).task("synthetic")
    recipe = load_recipe(model, "synthetic", 3, {"split": "public", "hidden_channels": 16})
    expected = epochs_of(task, recipe, [0])
    for size in (2, 4):
        assert_equal_training(world, tmp_path / str(size), task, recipe, size, expected=expected)


STOPPING = {"lr": 0.1, "patience": 3, "epochs": 30}
NUMBERS = ("epochs_run", "selected_epoch", "val_score", "test_score", "run_id", "status", "failure")


def fit_part(group, folder, recipe, seeds, **options):
    task = load_part(folder, group.rank, group)
    result = fit(recipe, task, seeds, device="cpu", **options)
    return result.records, [model.state_dict() for model in result.models]


def fit_with(group, folder, recipe, seeds, options):
    return fit_part(group, folder, recipe, seeds, **options)


def numbers_of(record):
    return {name: getattr(record, name) for name in NUMBERS}


@pytest.mark.parametrize("select_on", ["val_loss", "val_accuracy", "roc_auc"])
def test_runs_stop_and_select_as_in_one_process(world, tmp_path, select_on):
    recipe = small_recipe("gcn", 2, **STOPPING, select_on=select_on)
    write_partition(ring_task(), 2, tmp_path, "blocks")
    expected = fit(recipe, ring_task(), range(5), device="cpu")
    assert len({record.epochs_run for record in expected.records}) > 1
    for records, states in world.run(fit_with, 2, str(tmp_path), recipe, list(range(5)), {}):
        assert [numbers_of(r) for r in records] == [numbers_of(r) for r in expected.records]
        for record, alone in zip(records, expected.records, strict=True):
            assert {"roc_auc", "ece", "macro_f1"} < record.test.keys()
            assert record.test == pytest.approx(alone.test, rel=1e-3, abs=1e-4)
            assert record.val == pytest.approx(alone.val, rel=1e-3, abs=1e-4)
        for state, model in zip(states, expected.models, strict=True):
            for name, value in model.state_dict().items():
                torch.testing.assert_close(state[name], value, rtol=1e-3, atol=1e-4)


def test_a_run_that_breaks_is_the_same_failure_on_all(world, tmp_path):
    recipe = small_recipe("gcn", 2, lr=1e30, epochs=5)
    write_partition(ring_task(), 2, tmp_path / "parts", "blocks")
    (expected,) = fit(recipe, ring_task(), [0], device="cpu").records
    assert expected.status == "failed"
    for (record,), _ in world.run(fit_with, 2, str(tmp_path / "parts"), recipe, [0], {}):
        assert record.failure == expected.failure


class StopAt:
    """Asks one rank to stop after an epoch, as a signal would."""

    def __init__(self, epoch: int) -> None:
        self.epoch, self.is_asked = epoch, False

    def __call__(self, progress) -> None:
        if progress.epoch == self.epoch:
            self.is_asked = True


def stopped(group, parts, recipe, out):
    stop = StopAt(4)
    quiet = {"on_progress": stop, "should_stop": lambda: stop.is_asked} if group.rank == 1 else {}
    with pytest.raises(TrainingInterrupted) as stopped:
        fit_part(group, parts, recipe, [0], out=out, **quiet)
    resumed = fit_part(group, parts, recipe, [0], out=out, resume=True)
    return stopped.value.epoch, resumed


def test_a_signal_to_one_rank_stops_all_after_the_same_epoch(world, tmp_path):
    recipe = small_recipe("pairnorm", 2, epochs=9)
    parts = str(tmp_path / "parts")
    write_partition(ring_task(), 2, parts, "blocks")
    expected = world.run(fit_with, 2, parts, recipe, [0], {})
    for (epoch, (records, states)), (whole, whole_states) in zip(
        world.run(stopped, 2, parts, recipe, str(tmp_path / "out")), expected, strict=True
    ):
        assert epoch == 4
        assert records[0].curve == whole[0].curve
        assert all(states[0][name].equal(value) for name, value in whole_states[0].items())


class OwnNetwork(torch.nn.Linear):
    def forward(self, x, edge_index):
        return super().forward(x)


def own_model(in_channels, out_channels):
    return OwnNetwork(in_channels, out_channels)


def refused_own_model(group, folder):
    with pytest.raises(GraphjouleError) as error:
        fit(own_model, load_part(folder, group.rank, group), [0], device="cpu")
    return str(error.value)


def test_a_model_of_the_users_own_is_refused(world, tmp_path):
    write_partition(ring_task(), 2, tmp_path, "blocks")
    for said in world.run(refused_own_model, 2, str(tmp_path)):
        assert "own_model is not one of graphjoule's" in said


def test_processes_with_nothing_to_share_are_refused(tmp_path):
    with pytest.raises(GraphjouleError, match=r"There are 2 processes, each with the whole graph of ring.*nothing"):
        fit(small_recipe("gcn", 2), ring_task(), device="cpu", out=tmp_path / "out", group=Sized(2))
    assert not (tmp_path / "out").exists()


def test_constraints_are_refused(world, tmp_path, monkeypatch):
    recipe = small_recipe("gcn", 3, **{"terms.energy.method": "augmented_lagrangian"})
    write_partition(ring_task(), 2, tmp_path, "blocks")
    for said in world.run(refused_fit, 2, str(tmp_path), recipe):
        assert "`terms.energy` needs the whole graph in one process" in said
    monkeypatch.chdir(tmp_path)
    options = ["--processes", "2", "--constraint", "penalty", "--model", "gcn", "--layers", "2"]
    done = CliRunner().invoke(app, ["train", *options, "--out", "none"])
    assert "the recipe has a constraint" in str(done.exception)
    assert not RunFolder("none").path.exists()


def refused_fit(group, folder, recipe, options=None):
    with pytest.raises(GraphjouleError) as error:
        fit_part(group, folder, recipe, [0], **options or {})
    return str(error.value)


def cuda_epochs(group, folder, recipe, seeds):
    task = load_part(folder, group.rank, group).to("cuda")
    return [tensor.cpu() for tensor in epochs_of(task, recipe, seeds)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("seeds", [[0], [0, 1]])
@pytest.mark.parametrize("model", MODELS)
def test_two_ranks_on_a_gpu_train_as_one_process_does(world, tmp_path, model, seeds):
    task, recipe = ring_task(sparse=model == "gcn"), small_recipe(model, **MODELS[model])
    write_partition(task, 2, tmp_path, "blocks")
    curve, _, gradient = epochs_of(task, recipe, seeds)
    for ours, _, ours_gradient in world.run(cuda_epochs, 2, str(tmp_path), recipe, seeds):
        torch.testing.assert_close(ours[..., :2], curve[..., :2], rtol=1e-4, atol=1e-6)
        assert torch.linalg.vector_norm(ours_gradient - gradient) <= 1e-5 * torch.linalg.vector_norm(gradient)


LAYERS, WIDTH = 8, 32


def step_bytes(group, folder, recipe):
    """What the second epoch adds to what was there, the sizes of the part, and the bytes received in it."""
    task = load_part(folder, group.rank, group)
    runs = batch_of(recipe, task)
    runs.train_epoch()
    runs._memory = Memory()  # what the first epoch had for its activations
    received, swap = [], group.swap_rows

    def counted(rows, send, receive):
        received.append(sum(receive) * rows.size(1) * rows.itemsize)
        return swap(rows, send, receive)

    group.swap_rows = counted
    with LiveBytes() as live:
        runs.train_epoch()
    halo = task.graph.halo
    sizes = task.num_nodes, halo.num_nodes, len(halo.send), task.graph.col.numel(), task.num_features
    return live.peak, (*sizes, WIDTH, LAYERS, runs.layout.size), sum(received)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_step_needs_what_the_formula_says(world, tmp_path, size):
    task = CitationGraph(6000, 24_000, num_features=32).task("synthetic")
    recipe = small_recipe("egnn", LAYERS, hidden_channels=WIDTH)
    write_partition(task, size, tmp_path, "blocks")
    for peak, sizes, received in world.run(step_bytes, size, str(tmp_path), recipe):
        part = Part(*sizes)
        # What stays from epoch to epoch was there before: of eight copies of the parameters, four.
        expected = part.step_bytes() - 4 * 4 * part.parameters
        assert peak == pytest.approx(expected, rel=0.15)
        assert received == part.received_bytes()
        assert part.nodes == pytest.approx(6000 / size, abs=1)


# The run folder of many processes: the first one writes, and all go the same way.


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
    fit(recipe, ring_task(), [0], device="cpu", out=tmp_path / "one")
    shared, alone = (read_model(folder / "model-seed-0.safetensors").calibration for folder in (out, tmp_path / "one"))
    torch.testing.assert_close(shared.scores, alone.scores, atol=1e-4, rtol=0)  # of the nodes of both processes
    assert shared.temperature == pytest.approx(alone.temperature, rel=1e-3)
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
