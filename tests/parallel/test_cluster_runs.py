import threading

import pytest
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.group import ALONE, Group
from graphjoule.nn import MODELS
from graphjoule.parallel.clusters import ClusterBatch, Clusters
from graphjoule.parallel.partition import cut_nodes
from graphjoule.tasks import Split, Task
from graphjoule.tasks.objective import Classification
from graphjoule.training.seed_batch import Runs
from reproduction.bench import CitationGraph
from tests.ops.live_bytes import LiveBytes
from tests.training import double_precision, largest_difference, same_bits, small_recipe, small_task

CPU = torch.device("cpu")
STILL = {"dropout": 0.0, "output_dropout": 0.0}


def cluster_runs(recipe, task, part, seed=0, group: Group = ALONE) -> ClusterBatch:
    split = task.split(recipe.data.split, seed)
    return ClusterBatch(recipe, task, [seed], [split], Clusters(part), device=CPU, group=group)


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
        exact = Runs(small_recipe(model, **settings), task, [2], [task.split("public")])
        clustered = cluster_runs(small_recipe(model, clusters=1, **settings), task, torch.zeros(30).long(), seed=2)
        for _ in range(6):
            exact.train_epoch()
            clustered.train_epoch()
        torch.testing.assert_close(clustered.curve[:, :6], exact.curve[:, :6], rtol=1e-9, atol=1e-9)
        assert largest_difference(clustered.current_model(0), exact.current_model(0)) < 1e-9


def test_where_no_edge_is_cut_the_groups_gradients_average_to_the_exact_one():
    with double_precision():
        task = three_components()
        recipe = small_recipe(split="uneven", clusters=3, **STILL)
        runs = cluster_runs(recipe, task, torch.arange(30) % 3)
        runs.parameters += 0.1 * torch.randn(runs.parameters.shape, generator=torch.Generator().manual_seed(0))
        groups = runs.clusters.groups(runs.keys[0], 1)
        sums = torch.stack([runs._sums(nodes, runs.keys[0], 3) for nodes in groups]).mean(dim=0)
        exact = Runs(small_recipe(split="uneven", **STILL), task, [0], [task.split("uneven")])
        exact.parameters.copy_(runs.parameters).requires_grad_(True)
        loss, _ = exact._train_losses()
        (gradient,) = torch.autograd.grad(loss.sum(), exact.parameters)
    torch.testing.assert_close(sums[0], loss[0].detach())
    torch.testing.assert_close(sums[1:], gradient[0])


def test_a_group_without_a_training_node_makes_no_step():
    task = small_task()  # its training nodes are 0 to 8
    runs = cluster_runs(small_recipe(clusters=5), task, torch.arange(30) // 6)
    runs.train_epoch()
    assert int(runs.steps) == 2
    assert torch.isfinite(runs.curve[0, 0]).all()


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("model", MODELS)
def test_every_model_learns_on_clusters(model, sparse):
    settings = {"clusters.per_step": 2, "epochs": 20, "lr": 0.02} | without_dropout(model)
    runs = cluster_runs(small_recipe(model, clusters=6, **settings), small_task(sparse=sparse), torch.arange(30) % 6)
    start = runs.current_model(0)
    for _ in range(20):
        runs.train_epoch()
    losses = runs.curve[0, :, 0]
    assert torch.isfinite(losses).all()
    assert losses[-3:].mean() < losses[:3].mean()
    assert largest_difference(start, runs.current_model(0)) > 1e-3


def test_batch_norm_gathers_its_statistics_in_every_step():
    recipe = small_recipe(clusters=3, batch_norm=True, encoder="mlp", epochs=4)
    runs = cluster_runs(recipe, small_task(), torch.arange(30) % 3)
    for _ in range(4):
        runs.train_epoch()
    assert runs.buffers["convs.0.norm.num_batches_tracked"].tolist() == [12]
    assert runs.buffers["convs.0.norm.running_mean"].abs().max() > 1e-3


def test_a_restored_run_goes_on_to_the_bit():
    recipe, part = small_recipe(clusters=6, **{"clusters.per_step": 4}), torch.arange(30) % 6
    whole = cluster_runs(recipe, small_task(), part, seed=5)
    for _ in range(3):
        whole.train_epoch()
    state = {name: value.clone() for name, value in whole.snapshot().items()}
    resumed = cluster_runs(recipe, small_task(), part, seed=5)
    resumed.restore(state)
    for runs in (whole, resumed):
        for _ in range(4):
            runs.train_epoch()
    assert same_bits(whole.current_model(0), resumed.current_model(0))
    assert whole.curve.nan_to_num().equal(resumed.curve.nan_to_num())
    assert whole.steps.equal(resumed.steps)


def test_a_state_of_another_cut_is_refused():
    recipe = small_recipe(clusters=3)
    state = cluster_runs(recipe, small_task(), torch.arange(30) % 3).snapshot()
    other = cluster_runs(recipe, small_task(), torch.arange(30) // 10)
    with pytest.raises(GraphjouleError, match="cut into other clusters"):
        other.restore(state)


def test_validation_is_made_when_it_is_due_and_at_the_end():
    recipe = small_recipe(clusters=3, **{"clusters.validate_every": 3}, epochs=8)
    runs = cluster_runs(recipe, small_task(), torch.arange(30) % 3)
    for _ in range(8):
        runs.train_epoch()
    assert torch.isfinite(runs.curve[0, :, 1]).nonzero().flatten().tolist() == [2, 5, 7]
    assert int(runs.selection.state["best_epoch"]) in (2, 5, 7)
    assert runs.selection.state["last_epoch"].tolist() == [7]


def test_a_run_that_has_stopped_keeps_its_last_epoch_though_epochs_go_on():
    recipe = small_recipe(clusters=3, **{"clusters.validate_every": 2}, patience=2, epochs=20)
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
            settings = {"clusters": 3, "clusters.accumulate": accumulate, "split": "uneven"} | STILL
            runs = cluster_runs(small_recipe(**settings), three_components(), torch.arange(30) % 3)
            runs.lr.zero_()
            runs.train_epoch()
            losses.append(float(runs.curve[0, 0, 0]))
        exact = Runs(
            small_recipe(split="uneven", **STILL), three_components(), [0], [three_components().split("uneven")]
        )
        exact.train_epoch()
    assert losses == pytest.approx([float(exact.curve[0, 0, 0])] * 3, rel=1e-12)


def test_a_loss_that_is_not_finite_ends_the_run_before_the_step():
    runs = cluster_runs(small_recipe(clusters=3, **{"clusters.validate_every": 5}), small_task(), torch.arange(30) % 3)
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


SHARED = {"clusters": 5, "clusters.accumulate": 3, "batch_norm": True, "encoder": "mlp"}


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
        task, settings = three_components(), {"clusters": 3, "clusters.accumulate": 3, "split": "uneven"} | STILL
        (clustered,) = trained_by(1, small_recipe(**settings), task, torch.arange(30) % 3, epochs=5)
        exact = Runs(small_recipe(split="uneven", **STILL), task, [0], [task.split("uneven")])
        for _ in range(5):
            exact.train_epoch()
    torch.testing.assert_close(clustered.curve[:, :5], exact.curve[:, :5], rtol=1e-8, atol=1e-8)


def test_more_processes_than_groups_in_a_step_are_refused():
    with pytest.raises(GraphjouleError, match=r"accumulate is 1, but there are 2 processes.*accumulate=2"):
        trained_by(2, small_recipe(clusters=5), small_task(), torch.arange(30) % 5)


def test_one_node_alone_has_no_batch_norm():
    recipe = small_recipe(clusters=30, batch_norm=True)
    with pytest.raises(GraphjouleError, match="one node alone, of which a batch norm has no variance"):
        cluster_runs(recipe, small_task(), torch.arange(30))
    two = small_recipe(clusters=30, batch_norm=True, **{"clusters.per_step": 2})
    cluster_runs(two, small_task(), torch.arange(30)).train_epoch()


def test_memory_of_a_step_is_that_of_its_group():
    task = CitationGraph(4_000, 8_000, num_features=16, num_classes=4).task("citations")
    peaks = []
    for per_step in (1, 10):
        recipe = small_recipe(num_layers=16, clusters=10, **{"clusters.per_step": per_step, "hidden_channels": 32})
        runs = cluster_runs(recipe, task, cut_nodes(task.graph, 10, "blocks"))
        (nodes, *_) = runs.clusters.groups(runs.keys[0], per_step)
        with LiveBytes() as memory:
            runs._sums(nodes, runs.keys[0], 1)
        peaks.append(memory.peak)
    parameters = runs.parameters.nbytes
    assert peaks[0] - 3 * parameters < 0.15 * peaks[1]
