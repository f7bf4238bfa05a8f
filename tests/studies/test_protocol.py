import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.studies import STUDIES, Protocol, read_study, work
from graphjoule.training.records import read_records

from . import CELLS, load_small, small_plan


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_one_rule_for_all_models_and_depths_of_a_dataset(name):
    study = STUDIES[name]
    for dataset in study.datasets:
        cells = [cell for cell in study.cells([dataset]) if cell.variant == study.variants[0]]
        assert {cell.recipe.train.select_on for cell in cells} == {study.protocol.rule_of(dataset)}
    assert all(vars(study.protocol)[part] for part in ("epochs", "splits", "search", "failed"))


def test_any_change_of_a_protocol_changes_how_it_is_cited():
    plain = Protocol(select_on="loss", failed="in no mean")
    others = [Protocol(select_on="accuracy", failed="in no mean"), Protocol(select_on="loss"), Protocol(margin=1.0)]
    assert len({each.cited("mine", {}) for each in (plain, *others)}) == 4
    assert plain.cited("mine", {}) == Protocol(select_on={"default": "loss"}, failed="in no mean").cited("mine", {})
    assert plain.cited("mine", {"lr": 0.1, "epochs": 5}) == f"mine:{plain.sha256[:16]}, but with epochs=5, lr=0.1"


def test_every_record_of_a_study_cites_its_protocol(tmp_path):
    plan = small_plan(tmp_path, CELLS[:1], [0], protocol="mine:0123")
    work(plan, load_small, device="cpu")
    (record,) = read_records(plan.jobs[0].folder.records_path)
    assert record.protocol == "mine:0123"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('select_on = { core = "loss" }', 'core" is not a dataset in select_on'),
        ("margin = 0.0", "margin"),
        ('selects = "loss"', '"selects" is not a key of protocol'),
    ],
)
def test_a_protocol_that_cannot_be_used_is_a_sentence(tmp_path, line, sentence):
    file = tmp_path / "mine.toml"
    file.write_text(f'title = "t"\ndatasets = ["cora"]\nmodels = ["gcn"]\ndepths = [2]\n[protocol]\n{line}\n')
    with pytest.raises(GraphjouleError, match=sentence):
        read_study(file)


def test_a_setting_by_hand_wins_over_the_rule():
    (cell,) = STUDIES["table1"].cells(["cora"], ["gcn"], [2], {"select_on": "accuracy"})
    assert cell.recipe.train.select_on == "accuracy"
