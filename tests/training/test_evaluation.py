from dataclasses import replace
from functools import partial

import pytest
import torch
from sklearn.metrics import confusion_matrix, multilabel_confusion_matrix
from torch import nn
from torch_geometric.nn import GraphSAGE

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.graph import Propagation
from graphjoule.tasks import Classification, Split, Task
from graphjoule.training import evaluation as module
from graphjoule.training.evaluation import (
    GRID,
    MOST_LAYERS,
    Evaluation,
    Predicted,
    class_warnings,
    evaluate,
    planes_of,
    read_evaluation,
    write_evaluation,
)
from graphjoule.training.folder import RunFolder
from graphjoule.training.recipe import load_recipe
from tests.known_answers import OBJECTIVES_OF, known_task

from . import small_recipe, small_task

SETTINGS = {"epochs": 12, "lr": 0.02, "weight_decay": 0.0, "hidden_channels": 8}


def trained(folder, name, *, about_graphs=False, seeds=(0,)):
    task = known_task(name, about_graphs=about_graphs)
    result = fit(load_recipe("gcn", "known", 2), task, seeds, settings=SETTINGS, out=folder, device="cpu")
    return task, result, RunFolder(folder).evaluation()


@pytest.mark.parametrize("about_graphs", [False, True], ids=["nodes", "graphs"])
@pytest.mark.parametrize("name", OBJECTIVES_OF)
def test_what_is_kept_gives_the_scores_of_the_record(tmp_path, name, about_graphs):
    task, result, found = trained(tmp_path / "run", name, about_graphs=about_graphs)
    (record,) = result.records
    assert list(found.parts) == ["val", "test"]
    assert (found.objective, found.unit) == (task.objective, "graph" if about_graphs else "node")
    for part, kept in found.parts.items():
        assert kept.num_nodes == len(kept.target) == task.split("stratified-30-20", 0).sizes[1 if part == "val" else 2]
        assert kept.weight.eq(1).all()
        for metric in task.objective.metrics:
            value = metric.value(*task.objective.scored(kept.prediction.double(), kept.target))
            assert float(value) == pytest.approx(getattr(record, part)[metric.name], abs=1e-5), metric.name
        assert len(kept.degree) == kept.num_nodes
        assert (kept.distance is None) == about_graphs
        assert (kept.agreement is None) == (about_graphs or name == "regression")
    assert found.planes.part == "test"
    assert found.planes.points.shape[1:] == (found.parts["test"].num_nodes, 2)


@pytest.mark.parametrize("name", ["classification", "binary", "ordinal", "multilabel"])
def test_counts_are_those_of_scikit_learn(tmp_path, name):
    task, _, found = trained(tmp_path / "run", name)
    kept = found.parts["test"]
    if name == "multilabel":
        known = ~kept.target.isnan()
        said = kept.prediction > 0.5
        for k in range(3):
            own = known[:, k]
            (_, matrix) = multilabel_confusion_matrix(kept.target[own, k].int(), said[own, k].int(), labels=[0, 1])
            right, there = matrix[1, 1], matrix[1].sum()
            assert kept.counts[:, k].tolist() == [right, matrix[:, 1].sum(), there, own.sum()]
        assert kept.confusion is None
        return
    said = kept.prediction.round().long().view(-1) if name == "ordinal" else kept.prediction.argmax(dim=1)
    matrix = torch.from_numpy(confusion_matrix(kept.target, said, labels=range(task.objective.num_classes)))
    assert kept.confusion.equal(matrix)
    assert kept.counts[:3].equal(torch.stack([matrix.diag(), matrix.sum(dim=0), matrix.sum(dim=1)]))


@pytest.mark.parametrize("select_on", ["loss", "accuracy"])
def test_the_run_that_is_kept_is_the_best_by_validation(tmp_path, select_on):
    recipe = small_recipe("gcn", select_on=select_on, lr=0.1)
    records = fit(recipe, small_task(), range(6), out=tmp_path / "run", device="cpu", runs_at_once=2).records
    sign = -1 if select_on == "loss" else 1
    best = max(records, key=lambda record: (sign * record.val[select_on], -record.seed))
    found = RunFolder(tmp_path / "run").evaluation()
    assert (found.seed, found.select_on) == (best.seed, select_on)
    assert found.score == pytest.approx(best.val[select_on])
    assert len({record.val["loss"] for record in records}) > 1


def test_more_seeds_replace_it_only_by_a_better_one(tmp_path):
    recipe, path = small_recipe("gcn", lr=0.1), tmp_path / "run"
    fit(recipe, small_task(), [3], out=path, device="cpu")
    records = fit(recipe, small_task(), [3, 0, 1, 2], out=path, device="cpu", resume=True).records
    assert RunFolder(path).evaluation().seed == min(records, key=lambda record: record.val["loss"]).seed


def test_a_failed_run_and_a_training_without_a_folder_keep_nothing(tmp_path):
    fit(small_recipe("gcn", lr=1e30), small_task(), [0], out=tmp_path / "run", device="cpu")
    assert RunFolder(tmp_path / "run").evaluation() is None
    assert RunFolder(tmp_path / "run").evaluated() is None


def test_no_target_is_read_that_the_scores_did_not_read():
    task = small_task()
    split = Split("some", None, torch.arange(9), torch.arange(9, 18), torch.arange(18, 24))
    probabilities = torch.eye(3, dtype=torch.float64)[torch.arange(30) % 3]
    parts = {n: Predicted(probabilities[i], task.targets[i], i) for n, i in (("val", split.val), ("test", split.test))}
    elsewhere = task.targets.clone()
    elsewhere[9:] = (elsewhere[9:] + 1) % 3  # of validation and test nodes too: these are in `parts`
    both = [evaluate(0, "loss", 1.0, t, split, parts) for t in (task, replace(task, targets=elsewhere))]
    for name in parts:
        first, second = (one.parts[name].agreement for one in both)
        torch.testing.assert_close(first, second, equal_nan=True)


def test_places_on_a_graph_that_is_known():
    # 0 - 1 - 2 - 3 - 4, 5 alone; 0 trains, 1 validates, the others test.
    graph = Propagation.from_edge_index(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]), num_nodes=6, symmetrize=True)
    targets = torch.tensor([0, 0, 1, 1, 0, 1])
    split = Split("path", None, torch.tensor([0]), torch.tensor([1]), torch.tensor([2, 3, 4, 5]))
    task = Task("path", torch.eye(6), graph, targets, Classification(2), (split,), "path")
    p = torch.full((6, 2), 0.5, dtype=torch.float64)
    parts = {n: Predicted(p[i], targets[i], i) for n, i in (("val", split.val), ("test", split.test))}
    kept = evaluate(0, "loss", 1.0, task, split, parts).parts["test"]
    assert kept.degree.tolist() == [2, 2, 1, 0]
    assert kept.distance.tolist() == [2, 3, 4, float("inf")]
    torch.testing.assert_close(kept.agreement, torch.tensor([0.5, 0.5, 0.0, torch.nan]), equal_nan=True)


def test_a_large_part_is_sampled_and_rare_classes_stay(monkeypatch):
    monkeypatch.setattr(module, "MOST_NODES", 600)
    target = torch.cat([torch.zeros(5000), torch.ones(40), torch.full((960,), 2)]).long()
    p = torch.rand(6000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    graph = Propagation.from_edge_index(torch.empty(2, 0, dtype=torch.long), num_nodes=6001)
    index = torch.arange(6000)
    split = Split("s", None, torch.tensor([6000]), torch.empty(0, dtype=torch.long), index)
    task = Task("t", torch.zeros(6001, 1), graph, torch.cat([target, target[:1]]), Classification(3), (split,), "s")
    kept = evaluate(0, "loss", 1.0, task, split, {"test": Predicted(p, target, index)}).parts["test"]
    assert (kept.num_nodes, len(kept.target)) == (6000, 600)
    assert torch.bincount(kept.target).tolist() == [280, 40, 280]
    assert torch.zeros(3).double().index_add(0, kept.target, kept.weight.double()).tolist() == pytest.approx(
        [5000, 40, 960]
    )
    assert int(kept.confusion.sum()) == 6000  # counts are exact


class Layers(nn.Module):
    """Layers that turn, stretch, and at last forget everything."""

    def __init__(self, num_layers=20):
        super().__init__()
        self.convs = nn.ModuleList(nn.Linear(3, 3, bias=False) for _ in range(num_layers))
        for conv in self.convs:
            nn.init.orthogonal_(conv.weight)
        nn.init.zeros_(self.convs[-1].weight)

    def forward(self, x):
        for conv in self.convs:
            x = conv(x)
        return x


def test_planes_keep_distances_and_show_a_collapse():
    task = small_task()
    torch.manual_seed(0)
    x = torch.randn(30, 3) * torch.tensor([9.0, 5.0, 0.0])  # it lies in a plane
    nodes = torch.arange(30)
    planes = planes_of(Layers(), lambda model: model(x), task, nodes, "test", nodes)
    assert len(planes.names) == MOST_LAYERS
    assert (planes.names[0], planes.names[-1]) == ("convs.0", "convs.19")
    first = planes.points[0].double()
    expected = torch.cdist(x.double(), x.double())
    ratio = torch.cdist(first, first)[expected > 1] / expected[expected > 1]
    assert float(ratio.std() / ratio.mean()) < 0.05  # but for rounding and nodes on the border
    assert float((planes.points[0] - planes.points[1]).abs().max()) < 25  # turned to the layer before
    assert planes.points[-1].unique().tolist() == [GRID // 2]
    assert planes.sizes[-1] == 0 < planes.sizes[0]
    assert planes.shares[0] == pytest.approx(1.0)


def test_a_model_of_the_users_own_has_planes_too(tmp_path):
    network = partial(GraphSAGE, hidden_channels=8, num_layers=2)
    fit(network, small_task(), settings={"epochs": 2}, out=tmp_path / "run", device="cpu")
    assert RunFolder(tmp_path / "run").evaluation().planes.names[0] == "convs.0"


def test_clusters_have_predictions_without_planes(tmp_path):
    recipe = small_recipe("gcn", **{"train.clusters.parts": 2})
    fit(recipe, small_task(), out=tmp_path / "run", device="cpu")
    found = RunFolder(tmp_path / "run").evaluation()
    assert found.planes is None
    assert found.parts["test"].num_nodes == 12


def test_a_file_gives_back_what_was_written_and_a_damaged_one_is_refused(tmp_path):
    _, _, found = trained(tmp_path / "run", "binary")
    path = tmp_path / "evaluation.safetensors"
    write_evaluation(path, found)
    again = read_evaluation(path)
    assert path.read_bytes() == (tmp_path / "run" / path.name).read_bytes()
    assert again.planes.points.equal(found.planes.points)
    tensors, about = module.read_tensors(path, "evaluation")
    for name, forged in {
        "val.target": tensors["val.target"] + 2,
        "test.prediction": tensors["test.prediction"][1:],
        "test.weight": tensors["test.weight"] * torch.nan,
        "val.weight": tensors["val.weight"] * 0,
        "val.counts": tensors["val.counts"].float(),
        "planes.rows": tensors["planes.rows"] + 10**12,
    }.items():
        module.write_tensors(path, "evaluation", {**tensors, name: forged}, about)
        with pytest.raises(GraphjouleError, match=r"knows: .*\. Delete it, and a report does without\."):
            read_evaluation(path)
    for name, value in {"score": "x", "select_on": [], "num_nodes": {"val": []}, "unit": 7, "planes": {}}.items():
        module.write_tensors(path, "evaluation", tensors, {**about, name: value})
        with pytest.raises(GraphjouleError, match="evaluation this version of graphjoule knows"):
            read_evaluation(path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(GraphjouleError, match="not a whole graphjoule evaluation"):
        read_evaluation(path)
    module.write_tensors(path, "evaluation", {}, {"seed": 0})
    with pytest.raises(GraphjouleError, match="evaluation this version of graphjoule knows"):
        read_evaluation(path)


def test_an_evaluation_without_parts_is_a_file_too(tmp_path):
    write_evaluation(tmp_path / "e", Evaluation(3, "loss", 0.5, Classification(2)))
    assert read_evaluation(tmp_path / "e").seed == 3


# Classes that a score hides.


def test_two_missed_classes_are_one_sentence_and_good_ones_none():
    counts = torch.tensor([[7, 0, 0], [9, 0, 0], [8, 2, 3], [10] * 3])
    (words,) = class_warnings("abc", counts, "test nodes", is_labels=True)
    assert words.startswith("Never predicted: 2 labels, b, c. 5 times")
    assert words.endswith("; class weights or another metric to select by may help.")
    (words,) = class_warnings("abc", counts, "test nodes", is_labels=False, has_weights=False)  # ordered classes
    assert words.endswith("; another metric to select by may help.")
    assert class_warnings("a", counts[:, :1], "test nodes", is_labels=False) == []


def test_a_rare_class_that_is_hardly_found_is_counted():
    counts = torch.tensor([[600, 190, 3, 30], [650, 260, 10, 60], [680, 200, 193, 47], [1120] * 4])
    names = ["loyal", "casual", "fraud", "gone"]
    assert class_warnings(names, counts, "test nodes", is_labels=False) == []  # 193 of 1,120 are not rare among four
    counts[:, 0] *= 10
    (words,) = class_warnings(names, counts, "test nodes", is_labels=False)
    assert words == "Hardly found among the test nodes, and rare: 3 of 193 fraud."


def test_a_class_of_which_nothing_is_found_warns_however_often_it_is_predicted():
    churn = torch.tensor([[183, 0], [270, 1], [184, 87], [271] * 2])
    (words,) = class_warnings(["no", "yes"], churn, "test nodes", is_labels=False)
    assert words == (
        "Never found: class yes. 87 of the test nodes have it, and every prediction of it is wrong; class weights or "
        "another metric to select by may help."
    )
    several = torch.tensor([[7, 0, 0, 0], [9, 1, 4, 0], [8, 2, 3, 5], [10] * 4])
    never, wrong = class_warnings("abcd", several, "test nodes", is_labels=True)
    assert never.startswith("Never predicted: label d. 5 of the test nodes have it; ")
    assert wrong.startswith("Never found: 2 labels, b, c. 5 times they are there among the test nodes, and every ")


@pytest.mark.parametrize(
    ("found", "there", "says"),
    [(8, 87, True), (17, 87, True), (18, 87, False), (8, 135, True), (8, 136, False), (40, 60, False), (8, 60, True)],
)
def test_the_smaller_of_two_classes_that_is_hardly_found_warns_though_it_is_not_rare(found, there, says):
    counts = torch.tensor([[271 - there, found], [271 - found, found], [271 - there, there], [271] * 2])
    words = class_warnings(["no", "yes"], counts, "test nodes", is_labels=False)
    is_rare = 4 * there < 271
    start = f"Hardly found among the test nodes{', and rare' * is_rare}: {found} of {there} yes"
    assert [word.startswith(start) for word in words] == [True] * says
    assert len(class_warnings(["no", "yes"], counts, "test nodes", is_labels=True)) <= is_rare


def test_a_run_warns_of_its_test_nodes_and_else_of_its_validation_nodes(tmp_path):
    _, _, found = trained(tmp_path / "run", "classification")
    counts = torch.tensor([[5, 0, 1], [9, 0, 1], [6, 3, 1], [10] * 3])
    parts = {name: replace(part, counts=counts) for name, part in found.parts.items()}
    assert [word[:35] for word in replace(found, parts=parts).warnings()] == ["Never predicted: class 1. 3 of the "]
    assert "3 of the test nodes" in replace(found, parts=parts).warnings()[0]
    alone = replace(found, parts={"val": parts["val"]})
    assert "3 of the validation nodes" in alone.warnings()[0]
    assert replace(found, parts={}).warnings() == []
