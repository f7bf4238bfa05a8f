import pytest
from pydantic import ValidationError

from graphjoule.tasks.encoders import CategoryColumn, NumberColumn, TableColumns
from graphjoule.tasks.facts import Source, SourceFile, TaskFacts
from graphjoule.tasks.objective import Classification, Regression

COLUMNS = TableColumns(
    id="id",
    label="price",
    numbers=(NumberColumn(name="x", mean=1.0, std=2.0),),
    categories=(CategoryColumn(name="city", categories=("Bern", "Rome")),),
    knn=3,
)
SOURCE = Source(files=(SourceFile(role="nodes", path="/nodes.csv", sha256="0" * 64),), columns=COLUMNS)
SIZES = {"name": "t", "num_nodes": 4, "num_edges": 3, "num_features": 3, "num_labels": 2, "sha256": "1" * 64}


@pytest.mark.parametrize("objective", [Classification(2, ("a", "b")), Regression(1, "absolute", ("price",))])
def test_facts_come_back_from_json(objective):
    facts = TaskFacts(**SIZES, objective=objective, source=SOURCE)
    assert TaskFacts.model_validate_json(facts.model_dump_json()) == facts
    assert facts.classes == (objective.class_names if isinstance(objective, Classification) else ())


def test_facts_of_before_the_objective_are_of_a_classification():
    old = TaskFacts.model_validate(SIZES | {"num_classes": 2, "class_names": ["a", "b"]})
    assert old.objective == Classification(2, ("a", "b"))


def test_columns_of_older_run_folders_are_read():
    old = {"id": "id", "label": "y", "numbers": [{"name": "x", "mean": 1.0, "std": 0.0}], "source": "a", "target": "b"}
    columns = TableColumns.model_validate(old)
    assert (columns.direction, columns.edge_type, columns.texts) == ("both", None, ())
    assert (columns.numbers[0].kind, columns.feature_names) == ("number", ("x",))


def test_every_input_has_a_name():
    assert COLUMNS.feature_names == ("x", "city=Bern", "city=Rome")


def test_a_file_is_found_by_its_role():
    assert SOURCE.file("nodes").path == "/nodes.csv"
    assert SOURCE.file("edges") is None


@pytest.mark.parametrize(
    "forged",
    [
        {"objective": {"name": "classification", "num_classes": 2, "class_names": ["a", None]}},
        {"objective": {"name": "classification", "num_classes": 2, "class_names": 7}},
        {"source": SOURCE.model_dump() | {"columns": None}},
        {"source": SOURCE.model_dump() | {"columns": COLUMNS.model_dump() | {"label": []}}},
    ],
)
def test_what_no_reader_wrote_is_refused(forged):
    with pytest.raises(ValidationError, match=r"not an objective|no file of the role npz|at least 1 item"):
        TaskFacts.model_validate(SIZES | {"objective": {"name": "regression"}} | forged)


def test_unknown_fields_are_refused():
    with pytest.raises(ValidationError):
        TableColumns(id=None, label="y", numbers=(), colour="red")
