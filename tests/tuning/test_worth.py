"""What the graph is worth, on generated tasks whose answer is known."""

import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import FitResult, fit
from graphjoule.graph import Propagation
from graphjoule.graph.relations import DirectedPropagation
from graphjoule.tasks import Classification, Task
from graphjoule.training.budget import Budget
from graphjoule.training.folder import RunFolder
from graphjoule.training.recipe import load_recipe
from graphjoule.tuning import worth
from graphjoule.tuning.worth import assess
from tests.known_answers import OBJECTIVES_OF, known_task
from tests.training.test_budget import Clock


def blocks(n=1500, *, edges=0.85, features=1.2, seed=0):
    """Three classes: how many of the edges stay within one, and how far its features are from those of the others."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = torch.randn(n, 5, generator=generator) + features * torch.eye(3, 5)[y]
    source = torch.arange(n).repeat(3)
    stays = torch.rand(3 * n, generator=generator) < edges
    drawn = torch.randint(n // 3, (3 * n,), generator=generator) * 3
    within, anywhere = drawn + y[source], torch.randint(n, (3 * n,), generator=generator)
    edge_index = torch.stack([source, torch.where(stays, within, anywhere)])
    return Task(
        name="blocks",
        features=x,
        graph=Propagation.from_edge_index(edge_index, symmetrize=True),
        targets=y,
        objective=Classification(3, ("a", "b", "c")),
        default_split="stratified-20-50",
    )


def trained(task, *, model="gcn", layers=2, epochs=5, seeds=(0,), out=None, **settings):
    recipe = load_recipe(model, task.name, layers, {"epochs": epochs, "hidden_channels": 16, "lr": 0.05, **settings})
    return fit(recipe, task, seeds, device="cpu", out=out)


@pytest.fixture
def few_trees(monkeypatch):
    """For what is not about how good trees are."""
    monkeypatch.setattr(worth, "_ITERATIONS", 8)
    monkeypatch.setattr(worth, "_LEAST_ITERATIONS", 2)


def test_when_the_time_is_spent_rivals_are_left_out_and_the_notes_say_so():
    task = blocks(n=90)
    found = assess(task, trained(task, layers=3), device="cpu", budget=Budget(3, Clock()))
    names = [row.name for row in found.rows]
    assert [names[0], names[-2], names[-1]] == ["majority", "label propagation", "gcn with 3 layers"]
    assert "Gradient boosting is left out: the time was spent." in found.notes
    assert "A GCN of 2 layers is left out: the time was spent." in found.notes


def test_without_a_model_of_the_features_alone_nothing_is_said_of_the_graph(monkeypatch):
    task = blocks(n=90)
    result = trained(task, layers=3)
    spent = Budget(1, iter([0, *[9] * 99]).__next__)
    quick = assess(task, result, device="cpu", budget=spent)
    assert [row.name for row in quick.rows][:2] == ["majority", "logistic regression"]  # of a small table it is there
    assert "graph" in quick.answers
    monkeypatch.setattr(worth, "_QUICK_LINEAR", 0)
    found = assess(task, result, device="cpu", budget=spent)
    assert [row.name for row in found.rows] == ["majority", "label propagation", "gcn with 3 layers"]
    assert "graph" not in found.answers
    assert "features" in found.answers
    assert "Whether the graph helps is not known: there was no time for a model of the features alone." in found.notes
    assert found.sentences()


def test_the_gcn_ends_with_what_it_has_when_the_time_is_spent(monkeypatch):
    task = blocks(n=90)
    monkeypatch.setattr(
        worth, "_rivals", lambda table: [worth._Rival("majority", False, False, partial(worth._constant, table))]
    )
    found = assess(task, trained(task, layers=3, epochs=20), device="cpu", budget=Budget(8, Clock()))
    assert [row.name for row in found.rows] == ["majority", "GCN with 2 layers", "gcn with 3 layers"]
    (note,) = [note for note in found.notes if "still training" in note]
    assert int(note.split("after ")[1].split()[0]) < 20


def test_random_edges_do_not_help_and_features_do():
    task = blocks(edges=0.0, features=2.0)
    found = assess(task, trained(task), device="cpu")
    answers = {question: gain.answer for question, gain in found.answers.items()}
    assert answers["graph"] == "does not help", found.sentences()
    assert answers["features"] == "helps"
    assert found.advice == "logistic regression"  # the classes are Gaussian
    assert found.sentences()[0].startswith("The graph does not help: ")
    assert found.sentences()[-1].startswith("Use logistic regression: ")


def test_features_of_noise_do_not_help_and_the_graph_does():
    task = blocks(edges=0.9, features=0.0)
    found = assess(task, trained(task), device="cpu")
    assert found.answers["graph"].answer == "helps"
    assert found.answers["features"].answer == "does not help", found.sentences()
    assert found.advice == "label propagation"
    assert found.sentences()[1].startswith("The features do not help: ")


def test_where_both_matter_both_help_and_a_network_is_advised(few_trees):
    task = blocks(edges=0.4, features=1.0)
    found = assess(task, trained(task, epochs=60), device="cpu")
    answers = {question: gain.answer for question, gain in found.answers.items()}
    assert answers == {"graph": "helps", "features": "helps"}
    assert found.advice == "gcn with 2 layers"
    assert [row.name for row in found.rows][-1] == "gcn with 2 layers"
    assert len(found.rows) == 6  # it is the shallow network itself, and depth was not tried


def chains(num=80, length=9):
    """Chains whose middle node alone says the class of all: four steps to the ends."""
    n, middle = num * length, length // 2
    y = (torch.arange(n) // length) % 2
    x = torch.zeros(n, 2)
    x[middle::length] = torch.eye(2)[y[middle::length]]
    first = torch.arange(n)[torch.arange(n) % length != length - 1]
    graph = Propagation.from_edge_index(torch.stack([first, first + 1]), symmetrize=True)
    return Task("chains", x, graph, y, Classification(2), default_split="stratified-20-40")


def test_depth_helps_where_the_answer_is_far_away(few_trees):
    task = chains()
    found = assess(
        task,
        trained(task, model="sgc", layers=8, epochs=20, lr=0.5, weight_decay=0.0, hidden_channels=64),
        device="cpu",
    )
    gain = found.answers["depth"]
    assert (gain.of, gain.over, gain.answer) == ("sgc with 8 layers", "GCN with 2 layers", "helps"), found.sentences()
    assert gain.low > 0.1
    assert any(sentence.startswith("Depth helps: sgc with 8 layers has +") for sentence in found.sentences())


def test_depth_that_costs_is_said_and_simpler_is_advised(few_trees):
    task = blocks(edges=0.4, features=1.0)
    found = assess(task, trained(task, layers=8, epochs=15), device="cpu")
    assert found.answers["depth"].answer == "does not help"
    assert found.answers["depth"].high < 0
    assert found.advice == "GCN with 2 layers"


def test_a_network_that_ignores_its_neighbours_is_not_taken_for_the_graph(few_trees):
    task = blocks(300)
    row = assess(task, trained(task, model="appnp", layers=1, alpha=1.0), device="cpu").rows[-1]
    assert (row.name, row.uses_graph) == ("appnp with 1 layer without the graph", False)


def test_rivals_read_along_kept_directions_as_networks_do(few_trees):
    n, generator = 300, torch.Generator().manual_seed(0)
    x = torch.randn(n, 1, generator=generator)
    sources = torch.arange(n // 2).repeat(2)  # no edge leads to the first half, and none leads away from the second
    edge_index = torch.stack([sources, torch.randperm(n // 2, generator=generator).repeat(2) + n // 2])
    task = Task(
        name="arrows",
        features=x,
        graph=DirectedPropagation.of(edge_index, None, n),
        targets=torch.where(torch.arange(n) < n // 2, -1, 0),
        objective=Classification(2, ("a", "b")),
        default_split="stratified-20-50",
    )
    task.targets[edge_index[1]] = (x[edge_index[0], 0] > 0).long()
    rows = {row.name: row.test for row in assess(task, trained(task), device="cpu").rows}
    assert rows["gradient boosting with neighbours"]["accuracy"] > 0.95  # the source of a node's edge has the answer
    assert rows["gradient boosting"]["accuracy"] < 0.7


def test_few_nodes_are_undecided(few_trees):
    task = blocks(n=45, edges=0.6, features=0.7)
    found = assess(task, trained(task, layers=3), device="cpu")
    assert "undecided" in {gain.answer for gain in found.answers.values()}
    assert any(sentence.startswith("Whether ") for sentence in found.sentences())


# What is compared.


@pytest.mark.parametrize("name", OBJECTIVES_OF)
def test_every_objective_is_compared_by_its_own_metrics(few_trees, name):
    task = known_task(name)
    result = trained(task, model="sgc", layers=3, seeds=(0, 1))
    found = assess(task, result, device="cpu")
    assert found.metrics == list(worth.SHOWN[name])
    is_numbers = name in ("regression", "ordinal")
    assert [row.name for row in found.rows] == [
        "mean" if is_numbers else "majority",
        "ridge regression" if is_numbers else "logistic regression",
        "label propagation",
        "gradient boosting",
        "gradient boosting with neighbours",
        "GCN with 2 layers",
        "sgc with 3 layers",
    ]
    metric = task.objective.metric(found.metrics[0])
    constant, linear, *_, chosen = (row.test[metric.name] for row in found.rows)
    assert linear > constant if metric.is_higher_better else linear < constant  # the features have the answer
    expected = sum(record.test[metric.name] for record in result.records) / 2
    assert chosen == pytest.approx(expected, abs=1e-6)


def test_without_test_nodes_validation_judges_and_that_is_said(few_trees):
    task = replace(blocks(n=150), default_split="stratified-20-0")
    found = assess(task, trained(task), device="cpu")
    assert (found.part, found.rows[0].test) == ("val", {})
    assert found.notes[0].startswith("There are no test nodes, so the validation nodes judge")
    assert found.table()[0][1] == "validation accuracy"


def test_test_targets_choose_nothing(few_trees):
    task = blocks(n=300)
    split, targets = replace(task.split(seed=0), name="kept"), task.targets.clone()
    targets[split.test] = targets[split.test].roll(1)
    tasks = [replace(task, fixed_splits=(split,), targets=each) for each in (task.targets, targets)]
    one, other = (assess(each, trained(each, split="kept"), device="cpu") for each in tasks)
    assert [row.val for row in one.rows] == [row.val for row in other.rows]
    assert one.best == other.best
    assert one.rows[1].test != other.rows[1].test


def test_class_weights_of_the_training_are_those_of_its_rivals(few_trees):
    task = blocks(n=300, edges=0.0)
    skewed = replace(task, targets=torch.where((task.targets == 2) & (torch.arange(300) % 6 > 2), 0, task.targets))
    recalls = []
    for weights in (None, "balanced"):
        found = assess(skewed, trained(skewed, **({"class_weights": weights} if weights else {})), device="cpu")
        recalls.append(found.rows[3].test)
    assert recalls[0] != recalls[1]


# Large tables.


def test_what_is_too_large_is_left_out_or_sampled_with_a_sentence(monkeypatch, few_trees):
    task = blocks(n=600)
    result = trained(task)
    monkeypatch.setattr(worth, "MOST_COLUMNS", 4)
    monkeypatch.setattr(worth, "MOST_ROWS", 100)
    monkeypatch.setattr(worth, "_LEAST_ROWS", 50)
    monkeypatch.setattr(worth, "MOST_JUDGES", 80)
    monkeypatch.setattr(worth, "_SPREAD", 1e-9)
    found = assess(task, result, device="cpu")
    assert not any("boosting" in row.name for row in found.rows)
    assert found.notes == [
        "Scores are of a sample of 80 of 300 nodes.",
        "Gradient boosting is left out: the features have 5 columns, more than 4.",
        "A rival trains on a sample of 100 of 180 nodes.",
        "Label propagation takes 10 steps, so that it ends in time.",
    ]
    assert found.num_nodes == 80


def test_boosting_is_made_smaller_before_it_is_left_out(monkeypatch):
    task = blocks(n=600)
    result = trained(task, epochs=2)
    monkeypatch.setattr(worth, "_LEAST_ROWS", 50)
    for work, words in (
        (2.6e7, "Gradient boosting has 50 iterations and at most 1"),
        (1e6, "Gradient boosting is left"),
    ):
        monkeypatch.setattr(worth, "_LEAST_WORK", work)
        monkeypatch.setattr(worth, "_MOST_WORK", work)
        assert any(note.startswith(words) for note in assess(task, result, device="cpu").notes), words


def test_lightgbm_is_used_where_it_is_installed(monkeypatch, few_trees):
    made = []

    def like(kind):
        def make(n_estimators, num_leaves, min_child_samples, random_state, n_jobs, deterministic, **more):
            made.append((kind.__name__, n_estimators, deterministic))
            return kind(max_iter=n_estimators, random_state=random_state)

        return make

    fake = SimpleNamespace(
        LGBMClassifier=like(HistGradientBoostingClassifier), LGBMRegressor=like(HistGradientBoostingRegressor)
    )
    monkeypatch.setitem(sys.modules, "lightgbm", fake)
    monkeypatch.setattr(worth, "find_spec", lambda name: fake)
    task = blocks(n=150)
    assess(task, trained(task, epochs=2), device="cpu")
    assert made == [("HistGradientBoostingClassifier", 8, True)] * 2


# The folder.


def without_seconds(comparison):
    rows = [row.model_copy(update={"seconds": 0.0}) for row in comparison.rows]
    return comparison.model_copy(update={"rows": rows})


def test_it_is_kept_in_the_folder_made_once_and_again_for_other_runs(tmp_path, few_trees, monkeypatch):
    task, folder = blocks(n=150), RunFolder(tmp_path / "run")
    first = assess(task, trained(task, out=folder.path), device="cpu")
    assert folder.comparison() == first
    card = folder.card_path.read_text()
    assert "\n\n## What the graph is worth\n\n" in card
    assert all(f"| {row.name} | " in card for row in first.rows)
    recipe = load_recipe("gcn", task.name, 2, {"epochs": 5, "hidden_channels": 16, "lr": 0.05})
    again = fit(recipe, task, out=folder.path, resume=True, device="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(worth, "compare", None)  # would fail if it were called
        assert assess(task, again, device="cpu") == first
    folder.comparison_path.unlink()
    repeated = assess(task, again, device="cpu")
    assert without_seconds(repeated) == without_seconds(first)
    more = fit(recipe, task, [0, 1], out=folder.path, resume=True, device="cpu")
    assert folder.comparison() is None
    assert "## What the graph is worth" not in folder.card_path.read_text()
    of_both = assess(task, more, device="cpu")
    assert len(of_both.run_ids) == 2
    assert assess(task, again, device="cpu").run_ids == first.run_ids  # of a part of the folder, which is not kept
    assert folder.comparison() == of_both


def test_a_task_about_graphs_and_a_training_without_a_result_are_refused():
    task = known_task("classification", about_graphs=True)
    result = trained(task, epochs=2)
    with pytest.raises(GraphjouleError, match="has one target per graph; a comparison needs a whole graph"):
        assess(task, result)
    failed = [record.model_copy(update={"status": "failed"}) for record in result.records]
    with pytest.raises(GraphjouleError, match="nothing to compare: no run has finished"):
        assess(task, FitResult(failed, result.models))
