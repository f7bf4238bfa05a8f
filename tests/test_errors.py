from graphjoule.errors import counted, unknown


def test_one_is_singular_and_none_and_many_are_plural():
    assert [counted(number, "node") for number in (0, 1, 2, 1_000_000)] == [
        "0 nodes",
        "1 node",
        "2 nodes",
        "1,000,000 nodes",
    ]
    assert [counted(number, "class", "classes") for number in (0, 1, 2)] == ["0 classes", "1 class", "2 classes"]


def test_an_unknown_name_is_answered_with_the_nearest_and_all_choices():
    assert unknown("gpt", ["gcn", "egnn"], "model") == '"gpt" is not a model. The choices are: egnn, gcn.'
    assert unknown("gnc", iter(["gcn", "egnn"]), "model").startswith('"gnc" is not a model, did you mean "gcn"? The')
