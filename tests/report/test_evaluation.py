import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from graphjoule.fitting import fit
from graphjoule.report import report_page
from graphjoule.report.evaluation import (
    _Sample,
    agreement_groups,
    class_rows,
    colour_groups,
    curve_charts,
    degree_groups,
    distance_groups,
    evaluation_view,
    matrix_view,
    reliability,
    worst_confusions,
)
from graphjoule.tasks import Binary, Classification, MultiLabel, Regression
from graphjoule.tasks.metrics import ECE, LABELS_ECE
from graphjoule.training.evaluation import Evaluation, PartEvaluation, Planes, class_warnings
from graphjoule.training.folder import RunFolder
from graphjoule.training.recipe import load_recipe
from tests.known_answers import OBJECTIVES_OF, known_task

from .cells import cell
from .markup import Page

EVIL = "</script><script>alert(1)</script>\"'&"
NAMES = ("low", EVIL)


def part_of(objective, *, n=200, seed=0, **fields):
    """Predictions that are right more often than not."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(objective.num_classes, (n,), generator=generator)
    logits = torch.randn(n, objective.num_classes, generator=generator)
    p = (logits + torch.nn.functional.one_hot(target, objective.num_classes)).softmax(dim=1)
    true, found, number = target, p.argmax(dim=1), objective.num_classes
    confusion = torch.bincount(true * number + found, minlength=number**2).view(number, number)
    counts = torch.stack([confusion.diag(), confusion.sum(0), confusion.sum(1), torch.full((number,), n)])
    return PartEvaluation(n, p, target, torch.ones(n), counts, confusion, **fields)


def evaluation(objective=None, **fields):
    objective = objective or Binary(class_names=NAMES)
    places = {"degree": torch.arange(200.0) % 9, "distance": torch.arange(200.0) % 4, "agreement": torch.rand(200)}
    points = torch.randint(0, 500, (3, 200, 2), generator=torch.Generator().manual_seed(1)).to(torch.int16)
    planes = Planes(
        "test", torch.arange(200), ("encoder", "convs.0", "convs.1"), points, (0.5, 0.6, 0.7), (3.0, 2.0, 1.0)
    )
    parts = {"val": part_of(objective, seed=1), "test": part_of(objective, **places)}
    return Evaluation(4, "loss", 0.3, objective, "node", parts, planes, **fields)


@pytest.fixture(scope="module")
def text():
    return report_page([cell(evaluation=evaluation())], title="t")


def test_a_page_without_evaluations_has_no_such_part():
    plain = report_page([cell()], title="t")
    assert 'id="predictions"' not in plain
    assert "#predictions" not in plain


def test_the_part_stays_whole_and_names_from_data_are_text(text):
    page = Page(text)
    assert EVIL not in text
    section = page.all("section", id="predictions")[0]["text"]
    assert "seed 4, the best run by its validation loss" in section
    assert EVIL in section  # read as text
    assert not any("style" in e or any(key.startswith("on") for key in e) for e in page.elements)
    pictures = [e for e in page.all("svg") if e.get("aria-hidden") != "true"]
    assert all(e["role"] == "img" and e["aria-label"] for e in pictures)
    assert len(pictures) == 3 + 2 * 3 + 3 + 1  # ROC, PR, reliability of both parts, three places, the plane
    assert all("label" in e["inside"] for e in page.all("input"))
    ids = [e["id"] for e in page.elements if "id" in e]
    assert len(ids) == len(set(ids))


def test_the_table_and_the_matrix_have_the_counts(text):
    test = evaluation().parts["test"]
    tables = Page(text).rows("precision, %")
    assert len(tables) == 2  # test nodes first
    assert [row[4:] for row in tables[0][1:]] == [[str(int(c[2])), str(int(c[1]))] for c in test.counts.T]
    matrix = Page(text).rows("true, predicted as:")[0]
    assert [[int(value) for value in row[1:]] for row in matrix[1:]] == test.confusion.tolist()


def test_the_script_has_the_points_of_every_layer_group_by_group(text):
    page, test = Page(text), evaluation().parts["test"]
    (plane,) = json.loads(next(e["text"] for e in page.all("script", id="data")))["planes"]
    assert plane["counts"] == torch.bincount(test.target).tolist()
    order = torch.argsort(test.target, stable=True)
    for packed, points in zip(plane["points"], evaluation().planes.points, strict=True):
        numbers = [int(packed[k : k + 2], 36) for k in range(0, len(packed), 2)]
        assert numbers == points[order].flatten().tolist()
    assert "50 % of its variance" in plane["words"][0]
    dots = [e for e in page.all("path") if e["class"].startswith("dots") and e.get("d", "").count("M") > 1]
    assert [e["d"].count("M") for e in dots] == plane["counts"]  # without a script the last layer is there
    x, y = evaluation().planes.points[-1][order][0].tolist()
    assert dots[0]["d"].startswith(f"M{x} {y}h0M")


def test_a_class_that_is_never_predicted_is_said():
    counts = torch.tensor([[7, 0, 0, 0], [9, 0, 0, 0], [8, 2, 0, 0], [10] * 4])
    (missed, absent) = class_warnings("abcd", counts, "test nodes", is_labels=False)
    assert missed.startswith("Never predicted: class b. 2 of the test nodes have it")
    assert absent.endswith("how they are predicted: c, d.")
    assert class_rows("abcd", counts)[1] == ["b", "", "0.0", "0.0", "2", "0"]
    part = replace(part_of(Classification(4)), counts=counts)
    page = Page(report_page([cell(evaluation=replace(evaluation(Classification(4)), parts={"test": part}))], title="t"))
    assert [e["text"] for e in page.all("p", **{"class": "bad"}) if "Never" in e["text"]]
    assert len(page.all("tr", **{"class": "missed"})) == 1


def test_a_class_that_is_predicted_but_never_found_is_marked_too():
    counts = torch.tensor([[183, 0], [270, 1], [184, 87], [271] * 2])
    part = replace(part_of(Classification(2)), counts=counts)
    page = Page(report_page([cell(evaluation=replace(evaluation(Classification(2)), parts={"test": part}))], title="t"))
    assert [e["text"] for e in page.all("p", **{"class": "bad"}) if "Never found: class 1. 87 " in e["text"]]
    assert len(page.all("tr", **{"class": "missed"})) == 1


def test_many_classes_have_a_list_instead_of_a_matrix():
    names, confusion = [f"c{k}" for k in range(40)], torch.eye(40, dtype=torch.long) * 9
    confusion[3, 5] = 4
    assert matrix_view(names, confusion) is None
    assert worst_confusions(names, confusion) == [["c3", "c5", "4"]]
    assert worst_confusions(names[:3], confusion[:3, :3]) == []


def test_areas_are_those_of_all_nodes_whatever_the_weights_stand_for():
    sample = _Sample.of(Classification(12), part_of(Classification(12)))
    roc, pr = curve_charts(sample, "test nodes")
    assert "the 8 lowest of 12" in roc.title
    assert len(roc.lines) == len(pr.lines) == 8
    truth = np.eye(12)[sample.t]
    areas = sorted(roc_auc_score(truth[:, k], sample.p[:, k]) for k in range(12))
    assert [line.label.split("AUC ")[1] for line in roc.lines] == [f"{100 * area:.1f} %" for area in areas[:8]]
    twice = replace(sample, weight=np.full(200, 2.0))
    assert [line.label for line in curve_charts(twice, "test nodes")[0].lines] == [line.label for line in roc.lines]


def test_of_a_binary_task_the_curve_is_of_the_positive_class():
    objective = Binary(class_names=("ill", "sound"), positive=0)
    part = part_of(objective)
    (line,) = curve_charts(_Sample.of(objective, part), "test nodes")[0].lines
    area = roc_auc_score(part.target == 0, part.prediction[:, 0])
    assert line.label == f"ill: AUC {100 * area:.1f} %"
    assert len(line.x) <= 102


def test_the_calibration_error_is_the_metrics():
    objective = Classification(3)
    part = part_of(objective)
    *_, error = reliability(_Sample.of(objective, part))
    assert error == pytest.approx(float(ECE.value(part.prediction.double(), part.target)))
    labels = MultiLabel(2)
    target = torch.tensor([[1.0, 0.0], [torch.nan, 1.0], [0.0, 0.0], [1.0, torch.nan]])
    p = torch.tensor([[0.9, 0.2], [0.3, 0.6], [0.7, 0.1], [0.8, 0.5]])
    *_, error = reliability(_Sample.of(labels, PartEvaluation(4, p, target, torch.ones(4))))
    assert error == pytest.approx(float(LABELS_ECE.value(p.double(), target.double())))
    assert reliability(_Sample.of(Regression(), PartEvaluation(1, p[:1, :1], p[:1, :1], torch.ones(1)))) is None


def test_groups_hold_every_node_once():
    steps = np.array([0, 1, 2, 5, 6, 40, np.inf])
    shares = np.array([0, 0.19, 0.2, 0.99, 1.0, np.nan])
    for groups, values in ((distance_groups(steps), steps), (agreement_groups(shares), shares)):
        assert np.sum([mask for _, mask in groups], axis=0).tolist() == [1] * len(values)
    assert [name for name, _ in distance_groups(steps)] == ["0", "1", "2", "5", "6 or more", "no way"]
    assert {name: int(mask.sum()) for name, mask in agreement_groups(shares)} == {
        "0–20": 2,
        "20–40": 1,
        "80–100": 2,
        "unknown": 1,
    }


def test_colours_of_many_classes_of_labels_and_of_numbers():
    kinds, groups = colour_groups(Classification(14), torch.arange(14).repeat_interleave(torch.arange(14) + 1))
    assert [name for name, _ in kinds] == [*map(str, range(13, 3, -1)), "others"]
    assert kinds[-1][1] == "p10"
    assert np.bincount(groups).tolist() == [*range(14, 4, -1), 1 + 2 + 3 + 4]
    kinds, groups = colour_groups(MultiLabel(2), torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, torch.nan]]))
    assert (kinds[-1][0], groups.tolist()) == ("no label", [1, 0, 2])
    kinds, groups = colour_groups(Regression(), torch.tensor([5.0, 1.0, 3.0, 2.0, 4.0, torch.nan]))
    assert groups.tolist() == [4, 0, 2, 1, 3, 5]
    assert [colour for _, colour in kinds] == ["q0", "q1", "q2", "q3", "q4", "p10"]


@pytest.mark.parametrize("about_graphs", [False, True], ids=["nodes", "graphs"])
@pytest.mark.parametrize("name", OBJECTIVES_OF)
def test_every_objective_has_a_page(tmp_path, name, about_graphs):
    task = known_task(name, about_graphs=about_graphs)
    settings = {"epochs": 3, "hidden_channels": 8}
    fit(load_recipe("gcn", "known", 2), task, settings=settings, out=tmp_path / "run", device="cpu")
    found = RunFolder(tmp_path / "run").evaluation()
    view = evaluation_view(found, 2000)
    titles = [chart.title for part in view["parts"] for chart in (*part["charts"], *part["places"])]
    assert any("number of n" in title for title in titles)
    assert any("Residuals" in title for title in titles) == (name == "regression")
    assert any("ROC" in title for title in titles) == (name in ("classification", "binary", "multilabel"))
    Page(report_page([cell(evaluation=found)], title="t"))


@pytest.mark.slow
def test_many_networks_leave_out_evaluations_before_they_burst():
    one = evaluation(Classification(9))
    many = [replace(cell(layers=k), evaluation=one) for k in range(1, 90)]
    text = report_page(many, title="t")
    assert len(text.encode()) <= 2_000_000
    assert "For want of room 88 other networks have no part here" in text


def test_degrees_that_no_node_has_end_in_a_group():
    """The logarithm of 2**60 + 1 is that of 2**60, so that its group once ended before it began, for ever."""
    values = np.array([0.0, 4.0, 1e30, np.inf, np.nan])
    assert [int(mask.sum()) for _, mask in degree_groups(values)] == [1, 1, 1]
