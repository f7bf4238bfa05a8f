"""What fewer epochs cost, and runs that blew up."""

from graphjoule.report import Evidence
from graphjoule.studies import STUDIES, Collection
from reproduction.pages import Results
from reproduction.pages.curves import budget_table
from reproduction.pages.page import whole_study
from tests.studies import made_up

from . import block, runs


def with_curve(cell, seed, losses, accuracies, **more):
    curve = {"train_loss": losses, "val_loss": losses, "val_accuracy": accuracies}
    return made_up(cell, seed, 0.5, curve=curve, epochs_run=len(losses), **more)


def test_whole_runs_are_read_as_if_they_had_ended_at_the_cap_of_deeper_ones():
    found = {(c.dataset, c.model, c.num_layers): c for c in whole_study("depth")}
    cell = found["pubmed", "egnn", 64]
    assert (found["pubmed", "egnn", 128].recipe.train.epochs, cell.recipe.train.select_on) == (200, "loss")
    early = [1.0] * 150 + [0.5] + [1.0] * 99 + [0.4]  # best within the cap at epoch 150, and at the very end
    accuracies = [0.1] * 150 + [0.7] + [0.1] * 99 + [0.9]
    steady = [1.0, 0.5, 0.6]
    runs = [with_curve(cell, 0, early, accuracies), with_curve(cell, 1, steady, [0.2, 0.8, 0.3])]
    shallow = with_curve(found["pubmed", "egnn", 2], 0, steady, [0.2, 0.8, 0.3])
    failed = made_up(cell, 2, None, curve={"train_loss": [None], "val_loss": [None], "val_accuracy": [None]})
    text = block("budgets", Results(Collection([*runs, shallow, failed])))
    assert text.splitlines()[2:] == ["| pubmed | egnn | 64 | 3 to 251 (2) | 85.00 | 200 | 75.00 |"]


def test_runs_that_select_by_accuracy_are_read_by_it_and_an_epoch_without_a_loss_never_counts():
    cells = STUDIES["depth"].cells(["cora"], ["gcn"], overrides={"select_on": "val_accuracy"})
    runs = [with_curve(cells[0], 0, [0.1, 0.9, 0.2, None], [0.3, 0.6, 0.5, 0.9])]
    evidence = Evidence(STUDIES["depth"], cells, Collection(runs))
    assert budget_table(evidence).splitlines()[2:] == ["| cora | gcn | 2 | 4 to 4 (1) | 60.00 | 600 | 60.00 |"]


def test_runs_whose_curves_were_left_out_say_nothing_about_fewer_epochs():
    (cell,) = STUDIES["depth"].cells(["cora"], ["gcn"], [64])
    assert block("budgets", Results(Collection(runs(cell, 80.0)))) == "No run with a curve is recorded."


def test_runs_that_blew_up_are_told_beside_the_same_seeds_with_other_settings():
    place = (["pubmed"], ["egnn"], [1024])
    (cell,), (slow,) = STUDIES["depth"].cells(*place), STUDIES["depth"].cells(*place, overrides={"lr": 0.005})
    accuracies = [0.4, 0.4, 0.4]
    found = [
        with_curve(cell, 0, [1.1, 1.0, 0.9], accuracies),
        with_curve(cell, 1, [1.1, 1.0, 100.0], accuracies),  # not yet
        with_curve(cell, 2, [1.1, None, 7796.75, 3e9], [*accuracies, 0.4]),
        made_up(cell, 3, None, curve={"val_loss": [1.0, 9e9]}),  # failed: no epoch of it counts
        made_up(cell, 4, 0.5),  # its curve was left out
        *(with_curve(slow, seed, [1.2, 1.3, 1.0], accuracies) for seed in (1, 2)),
    ]
    lines = block("blowups", Results(Collection(found))).splitlines()
    assert lines[0].startswith("1 of 3 runs with a recorded curve blew up: the validation loss rose above 100 times")
    assert lines[4:] == [
        "| pubmed | egnn | 1,024 | 2 |  | 4 | epoch 3 | 3e+09 | 50.0 |",
        "| pubmed | egnn | 1,024 | 2 | lr = 0.005 | 3 | none | 1.3 | 50.0 |",
    ]
    assert block("blowups", Results(Collection(found[:2]))).startswith("0 of 2 runs with a recorded curve blew up")
