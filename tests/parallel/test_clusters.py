"""Training on clusters of nodes: the groups, the steps, `fit`, and a GPU."""

import math
import threading
from functools import partial

import pytest
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit, mean_prediction, read_runs
from graphjoule.graph import Propagation
from graphjoule.nn import MODELS
from graphjoule.ops import fold_in, make_key
from graphjoule.parallel.clusters import ClusterBatch, Clusters
from graphjoule.parallel.group import ALONE, Group
from graphjoule.parallel.partition import cut_nodes
from graphjoule.tasks import Split, Task
from graphjoule.tasks.objective import Classification
from graphjoule.tasks.task import ModelInput
from graphjoule.terms import EnergySettings, Term
from graphjoule.training import loop
from graphjoule.training.build import architecture_of
from graphjoule.training.recipe import load_recipe
from graphjoule.training.records import read_records
from reproduction.bench import CitationGraph
from tests.ops.live_bytes import LiveBytes
from tests.training import (
    assert_same_training,
    contents,
    double_precision,
    facts,
    largest_difference,
    same_bits,
    small_recipe,
    small_task,
)

from .tasks import batch_of, house_prices, ring_task

PART = torch.tensor([2, 0, 1, 1, 0, 2, 2, 3, 4, 4])


@pytest.mark.parametrize("per_step", [1, 2, 3, 5])
def test_an_epoch_has_every_cluster_once_and_keeps_it_whole(per_step):
    groups = Clusters(PART).groups(make_key(0), per_step)
    assert len(groups) == -(-5 // per_step)
    assert sorted(torch.cat(groups).tolist()) == list(range(10))
    for nodes in groups:
        assert nodes.equal(nodes.sort().values)
        assert all(set((part == PART).nonzero().flatten().tolist()) <= set(nodes.tolist()) for part in PART[nodes])


def test_the_order_is_the_keys_and_differs_between_epochs_and_seeds():
    clusters = Clusters(torch.arange(40))

    def order(seed, epoch):
        return tuple(int(nodes) for nodes in clusters.groups(fold_in(make_key(seed), epoch), 1))

    assert order(3, 7) == order(3, 7)
    assert len({order(seed, epoch) for seed in range(5) for epoch in range(5)}) == 25


def test_every_cluster_comes_everywhere():
    clusters = Clusters(torch.arange(8))
    first = torch.stack([torch.cat(clusters.groups(fold_in(make_key(1), e), 1)) for e in range(1000)])
    for place in first.unbind(1):
        assert torch.bincount(place, minlength=8).min() > 75  # 125 are expected; this is 4.8 deviations below
        assert torch.bincount(place, minlength=8).max() < 175


def test_the_smallest_group_is_known_beforehand():
    assert [Clusters(PART).smallest_group(n) for n in (1, 2, 3, 5)] == [1, 1, 3, 10]


CPU = torch.device("cpu")
STILL = {"dropout": 0.0, "output_dropout": 0.0}


def cluster_runs(recipe, task, part, seed=0, group: Group = ALONE) -> ClusterBatch:
    split = task.split(recipe.data.split, seed)
    architecture = architecture_of(recipe)
    return ClusterBatch(architecture, recipe, task, [seed], [split], Clusters(part), device=CPU, group=group)


def without_dropout(model: str) -> dict[str, float]:
    return {name: 0.0 for name in STILL if name in MODELS[model].__init__.__kwdefaults__}


def three_components() -> Task:
    """Small task without its bridges, nodes of each ring numbered in turn; training nodes 5, 3 and 1 to a ring."""
    ring = torch.arange(30)
    base = small_task()
    train = torch.tensor([0, 3, 6, 9, 12, 1, 4, 7, 2])
    split = Split("uneven", None, train, torch.arange(15, 24), torch.arange(24, 30))
    graph = Propagation.from_edge_index(torch.stack([ring, (ring + 3) % 30]), symmetrize=True)
    return Task(
        "rings", base.features, graph, base.targets, Classification(3), fixed_splits=(split,), default_split="uneven"
    )


@pytest.mark.parametrize("model", ["egnn", "gcn", "sgc", "gcnii"])
def test_one_cluster_without_dropout_is_exact_training(model):
    with double_precision():
        task, settings = small_task(sparse=True), {"normalize_features": True} | without_dropout(model)
        exact = batch_of(small_recipe(model, **settings), task, [2])
        clustered = cluster_runs(small_recipe(model, parts=1, **settings), task, torch.zeros(30).long(), seed=2)
        for _ in range(4):
            exact.train_epoch()
            clustered.train_epoch()
        torch.testing.assert_close(clustered.curve[:, :4], exact.curve[:, :4], rtol=1e-9, atol=1e-9)
        assert largest_difference(clustered.current_model(0), exact.current_model(0)) < 1e-9


def test_where_no_edge_is_cut_the_groups_gradients_average_to_the_exact_one():
    with double_precision():
        task = three_components()
        recipe = small_recipe(split="uneven", parts=3, **STILL)
        runs = cluster_runs(recipe, task, torch.arange(30) % 3)
        runs.parameters += 0.1 * torch.randn(runs.parameters.shape, generator=torch.Generator().manual_seed(0))
        groups = runs.clusters.groups(runs.keys[0], 1)
        sums = torch.stack([runs._sums(nodes, runs.keys[0], 3) for nodes in groups]).mean(dim=0)
        exact = batch_of(small_recipe(split="uneven", **STILL), task, [0])
        exact.parameters.copy_(runs.parameters).requires_grad_(True)
        loss, _ = exact._train_losses()
        (gradient,) = torch.autograd.grad(loss.sum(), exact.parameters)
    torch.testing.assert_close(sums[0], loss[0].detach())
    torch.testing.assert_close(sums[1:], gradient[0])


def test_a_group_without_a_training_node_makes_no_step():
    task = small_task()  # its training nodes are 0 to 8
    runs = cluster_runs(small_recipe(parts=5), task, torch.arange(30) // 6)
    runs.train_epoch()
    assert int(runs.steps) == 2
    assert torch.isfinite(runs.curve[0, 0]).all()


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("model", MODELS)
def test_every_model_learns_on_clusters(model, sparse):
    settings = {"clusters.per_step": 2, "epochs": 9, "lr": 0.03} | without_dropout(model)
    runs = cluster_runs(small_recipe(model, parts=6, **settings), small_task(sparse=sparse), torch.arange(30) % 6)
    start = runs.current_model(0)
    for _ in range(9):
        runs.train_epoch()
    losses = runs.curve[0, :, 0]
    assert torch.isfinite(losses).all()
    assert losses[-3:].mean() < losses[:3].mean()
    assert largest_difference(start, runs.current_model(0)) > 1e-3


def test_batch_norm_gathers_its_statistics_in_every_step():
    recipe = small_recipe(parts=3, batch_norm=True, encoder="mlp", epochs=4)
    runs = cluster_runs(recipe, small_task(), torch.arange(30) % 3)
    for _ in range(4):
        runs.train_epoch()
    assert runs.buffers["convs.0.norm.num_batches_tracked"].tolist() == [12]
    assert runs.buffers["convs.0.norm.running_mean"].abs().max() > 1e-3


def test_a_restored_run_goes_on_to_the_bit():
    recipe, part = small_recipe(parts=6, **{"clusters.per_step": 4}), torch.arange(30) % 6
    whole = cluster_runs(recipe, small_task(), part, seed=5)
    for _ in range(3):
        whole.train_epoch()
    state = {name: value.clone() for name, value in whole.snapshot().items()}
    resumed = cluster_runs(recipe, small_task(), part, seed=5)
    resumed.restore(state)
    for runs in (whole, resumed):
        for _ in range(2):
            runs.train_epoch()
    assert same_bits(whole.current_model(0), resumed.current_model(0))
    assert whole.curve.nan_to_num().equal(resumed.curve.nan_to_num())
    assert whole.steps.equal(resumed.steps)


def test_a_state_of_another_cut_is_refused():
    recipe = small_recipe(parts=3)
    state = cluster_runs(recipe, small_task(), torch.arange(30) % 3).snapshot()
    other = cluster_runs(recipe, small_task(), torch.arange(30) // 10)
    with pytest.raises(GraphjouleError, match="cut into other clusters"):
        other.restore(state)


def test_validation_is_made_when_it_is_due_and_at_the_end():
    recipe = small_recipe(parts=3, **{"clusters.validate_every": 3}, epochs=8)
    runs = cluster_runs(recipe, small_task(), torch.arange(30) % 3)
    for _ in range(8):
        runs.train_epoch()
    assert torch.isfinite(runs.curve[0, :, 1]).nonzero().flatten().tolist() == [2, 5, 7]
    assert int(runs.selection.state["best_epoch"]) in (2, 5, 7)
    assert runs.selection.state["last_epoch"].tolist() == [7]


def test_a_run_that_has_stopped_keeps_its_last_epoch_though_epochs_go_on():
    recipe = small_recipe(parts=3, **{"clusters.validate_every": 2}, patience=2, epochs=20)
    runs = cluster_runs(recipe, small_task(), torch.arange(30) % 3)
    runs.lr.zero_()  # nothing gets better after the first validation, which is of epoch 1
    for _ in range(9):  # of epochs 0 to 8; the last one is not validated
        runs.train_epoch()
    state = runs.selection.state
    assert (state["stopped"].item(), state["best_epoch"].item(), state["last_epoch"].item()) == (True, 1, 3)


def test_the_loss_of_an_epoch_is_the_mean_of_its_groups_however_many_a_step_has():
    with double_precision():
        losses = []
        for accumulate in (1, 2, 3):  # three groups: steps of 1, 1, 1; of 2, 1; of 3
            settings = {"clusters.parts": 3, "clusters.accumulate": accumulate, "split": "uneven"} | STILL
            runs = cluster_runs(small_recipe(**settings), three_components(), torch.arange(30) % 3)
            runs.lr.zero_()
            runs.train_epoch()
            losses.append(float(runs.curve[0, 0, 0]))
        exact = batch_of(small_recipe(split="uneven", **STILL), three_components(), [0])
        exact.train_epoch()
    assert losses == pytest.approx([float(exact.curve[0, 0, 0])] * 3, rel=1e-12)


def test_a_loss_that_is_not_finite_ends_the_run_before_the_step():
    runs = cluster_runs(small_recipe(parts=3, **{"clusters.validate_every": 5}), small_task(), torch.arange(30) % 3)
    runs.train_epoch()
    runs.parameters.fill_(torch.inf)
    runs.train_epoch()
    assert runs.selection.state["failed"].tolist() == runs.selection.state["stopped"].tolist() == [True]
    assert int(runs.steps) == 3


class _Thread(Group):
    """One of several threads that stand in for processes."""

    def __init__(self, rank: int, barrier: threading.Barrier, board: list[torch.Tensor]) -> None:
        self.rank, self.size = rank, len(board)
        self._barrier, self._board = barrier, board

    def total(self, x: torch.Tensor) -> torch.Tensor:
        self._board[self.rank] = x.clone()
        self._barrier.wait(20)
        total = torch.stack(self._board).sum(dim=0)
        self._barrier.wait(20)
        return total


def trained_by(num_threads: int, recipe, task, part, epochs: int = 3) -> list[ClusterBatch]:
    barrier, board = threading.Barrier(num_threads), [torch.empty(0)] * num_threads
    runs = [cluster_runs(recipe, task, part, group=_Thread(rank, barrier, board)) for rank in range(num_threads)]
    threads = [threading.Thread(target=lambda r=r: [r.train_epoch() for _ in range(epochs)]) for r in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return runs


SHARED = {"clusters.parts": 5, "clusters.accumulate": 3, "batch_norm": True, "encoder": "mlp"}


@pytest.mark.parametrize("num_threads", [2, 3])
def test_processes_that_share_a_run_train_what_one_trains_alone(num_threads):
    with double_precision():
        recipe, part = small_recipe(**SHARED), torch.arange(30) % 5
        runs = trained_by(num_threads, recipe, small_task(), part)
        (alone,) = trained_by(1, recipe, small_task(), part)
    assert int(alone.steps) == 3 * 2  # five groups an epoch: three, then two
    for shared in runs:
        assert shared.parameters.equal(runs[0].parameters)
        assert shared.curve.nan_to_num().equal(runs[0].curve.nan_to_num())
        assert largest_difference(shared.current_model(0), alone.current_model(0)) < 1e-9
        torch.testing.assert_close(shared.curve[0, :3], alone.curve[0, :3], rtol=1e-9, atol=1e-9)


def test_all_groups_in_one_step_make_the_exact_step_where_no_edge_is_cut():
    with double_precision():
        task, settings = three_components(), {"clusters.parts": 3, "clusters.accumulate": 3, "split": "uneven"} | STILL
        (clustered,) = trained_by(1, small_recipe(**settings), task, torch.arange(30) % 3, epochs=5)
        exact = batch_of(small_recipe(split="uneven", **STILL), task, [0])
        for _ in range(5):
            exact.train_epoch()
    torch.testing.assert_close(clustered.curve[:, :5], exact.curve[:, :5], rtol=1e-8, atol=1e-8)


def test_more_processes_than_groups_in_a_step_are_refused():
    with pytest.raises(GraphjouleError, match=r"accumulate is 1, but there are 2 processes.*accumulate=2"):
        trained_by(2, small_recipe(parts=5), small_task(), torch.arange(30) % 5)


def test_one_node_alone_has_no_batch_norm():
    recipe = small_recipe(parts=30, batch_norm=True)
    with pytest.raises(GraphjouleError, match="one node alone, of which a batch norm has no variance"):
        cluster_runs(recipe, small_task(), torch.arange(30))
    two = small_recipe(parts=30, batch_norm=True, **{"clusters.per_step": 2})
    cluster_runs(two, small_task(), torch.arange(30)).train_epoch()


def test_memory_of_a_step_is_that_of_its_group():
    task = CitationGraph(4_000, 8_000, num_features=16, num_classes=4).task("citations")
    peaks = []
    for per_step in (1, 10):
        recipe = small_recipe(num_layers=16, parts=10, **{"clusters.per_step": per_step, "hidden_channels": 32})
        runs = cluster_runs(recipe, task, cut_nodes(task.graph, 10, "blocks"))
        (nodes, *_) = runs.clusters.groups(runs.keys[0], per_step)
        with LiveBytes() as memory:
            runs._sums(nodes, runs.keys[0], 1)
        peaks.append(memory.peak)
    parameters = runs.parameters.nbytes
    assert peaks[0] - 3 * parameters < 0.15 * peaks[1]


CLUSTERS = {"clusters.parts": 6, "clusters.per_step": 2}


def test_a_record_says_that_it_was_clusters_and_by_which_settings(tmp_path):
    fit(small_recipe(**CLUSTERS), small_task(), [0], out=tmp_path / "run")
    (record,) = read_records(tmp_path / "run" / "records.jsonl")
    assert record.status == "done"
    assert record.recipe["train"]["clusters"] == {
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
        exact, one = (fit(small_recipe(**settings, **more), small_task()) for more in ({}, {"clusters.parts": 1}))
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


@pytest.mark.parametrize("stop_at", [1, 3, 4])
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
    assert all(math.isnan(progress.val["loss"]) and math.isnan(progress.val["accuracy"]) for progress in told[:3])
    for progress in told[3:]:
        at = progress.epoch - progress.epoch % 4 - 1
        assert progress.val["loss"] == pytest.approx(record.curve["val_loss"][at], rel=1e-4)  # curves are rounded
        assert progress.val["accuracy"] == pytest.approx(record.curve["val_accuracy"][at], rel=1e-4)
    assert [progress.train_loss for progress in told] == pytest.approx(record.curve["train_loss"], rel=1e-4)


def test_prediction_is_made_in_blocks_and_agrees_with_the_forward(tmp_path):
    task = small_task()
    fit(small_recipe(**CLUSTERS), task, [0, 1], out=tmp_path / "run")
    runs, given = read_runs(tmp_path / "run"), ModelInput.of(task)
    assert runs.recipe.train.clusters is not None
    exact = mean_prediction(list(runs.models.values()), small_recipe(), task.objective, given)
    torch.testing.assert_close(runs.predict(given), exact, rtol=1e-5, atol=1e-6)


def test_a_model_of_the_users_own_trains_on_clusters(tmp_path):
    from torch_geometric.nn import GraphSAGE  # the ranks import this file, and take warnings for errors

    network = partial(GraphSAGE, hidden_channels=8, num_layers=2, dropout=0.5)
    settings = {"clusters.parts": 6, "clusters.per_step": 2, "epochs": 6, "normalize_features": False}
    global_state = torch.get_rng_state()
    given = {"seeds": [0, 1], "settings": settings}
    whole = fit(network, small_task(), **given, out=tmp_path / "whole")
    assert torch.get_rng_state().equal(global_state)
    assert all(record.status == "done" for record in whole.records)

    def stop(progress):
        if progress.epoch == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(
            network, small_task(), [0, 1], settings=settings, out=tmp_path / "cut", checkpoint_every=2, on_progress=stop
        )
    resumed = fit(network, small_task(), [0, 1], settings=settings, out=tmp_path / "cut", resume=True)
    assert all(same_bits(a, b) for a, b in zip(resumed.models, whole.models, strict=True))


def cluster_fit(group, recipe, make_task):
    (record,) = fit(recipe, make_task(), [0], device="cpu", group=group).records
    return record


@pytest.mark.parametrize("make_task", [ring_task, house_prices])
def test_two_processes_share_a_training_and_record_that_of_one(world, make_task):
    shared = {"clusters.parts": 6, "clusters.accumulate": 2, "batch_norm": True}
    recipe = small_recipe("gcn", **shared, method="blocks", split="public")
    expected = cluster_fit(ALONE, recipe, make_task)
    for record in world.run(cluster_fit, 2, recipe, make_task):
        assert (record.selected_epoch, record.run_id) == (expected.selected_epoch, expected.run_id)
        assert record.curve["train_loss"] == pytest.approx(expected.curve["train_loss"], rel=1e-5)
        assert record.curve["val_loss"] == pytest.approx(expected.curve["val_loss"], rel=1e-5)
        assert record.test == pytest.approx(expected.test, rel=1e-5)
        assert record.device.endswith("2 processes")


def test_the_unit_of_a_regressions_targets_stays_as_it_is():
    recipe = small_recipe("gcn", **{"clusters.parts": 7, "clusters.accumulate": 7})
    runs = cluster_runs(recipe, house_prices(), torch.arange(41) % 7)
    before = runs.buffers["scale"].clone()
    for _ in range(3):
        runs.train_epoch()
    assert runs.buffers["scale"].equal(before)


class Counting(Term):
    """A term with a state."""

    def __init__(self, model, graph):
        pass

    def initial(self):
        return torch.zeros(1)

    def value(self, state):
        return state.sum(), state


def test_terms_that_need_the_whole_graph_or_a_state_are_refused():
    for term, words in ((EnergySettings(), "The term energy needs the whole graph"), (Counting, "has a state")):
        with pytest.raises(GraphjouleError, match=words):
            fit(small_recipe(parts=3), small_task(), [0], terms=[term])


def refused(tmp_path, match, **settings):
    options = settings.pop("options", {})
    with pytest.raises(GraphjouleError, match=match):
        fit(small_recipe(**settings), small_task(), [0], out=tmp_path / "run", **options)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_is_a_sentence_and_nothing_is_written(tmp_path):
    refused(tmp_path, "clusters.parts is 31; for a graph of 30 nodes it must be from 1 to 30", parts=31)
    together = "runs_at_once is 2; runs on clusters train one after the other"
    refused(tmp_path, together, parts=3, options={"runs_at_once": 2})
    refused(tmp_path, "a batch norm has no variance", parts=30, batch_norm=True)


def test_another_number_of_clusters_does_not_resume(tmp_path):
    fit(small_recipe(parts=3), small_task(), [0], out=tmp_path / "run")
    before = contents(tmp_path / "run")
    with pytest.raises(GraphjouleError, match=r"clusters\.parts: 3 -> 4"):
        fit(small_recipe(parts=4), small_task(), [0], out=tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before


def citations(num_nodes: int = 3000):
    return CitationGraph(num_nodes, 5 * num_nodes, num_features=20, num_classes=4).task("citations")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_run_on_clusters_is_about_the_same_on_both_devices():
    pytest.importorskip("pymetis")
    recipe = load_recipe("egnn", "citations", 4, {"clusters.parts": 10, "clusters.per_step": 2, "epochs": 5})
    on_cpu, on_gpu = (fit(recipe, citations(), [0], device=device).records[0] for device in ("cpu", "cuda"))
    assert on_gpu.val["loss"] == pytest.approx(on_cpu.val["loss"], rel=0.02)
