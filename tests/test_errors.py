from graphjoule.errors import counted


def test_one_is_singular_and_none_and_many_are_plural():
    assert [counted(number, "node") for number in (0, 1, 2, 1_000_000)] == [
        "0 nodes",
        "1 node",
        "2 nodes",
        "1,000,000 nodes",
    ]
    assert [counted(number, "class", "classes") for number in (0, 1, 2)] == ["0 classes", "1 class", "2 classes"]
