import numpy as np
import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.labels import find_objective, find_objective_of_columns, read_target_columns, read_targets
from tests.tasks import column


def test_several_labels_of_a_node_are_a_matrix_with_names(table):
    labels = column("a;b", None, "c", "b ; a;", "c;;a")
    objective, names = find_objective(table, "tags", labels, "multilabel")
    assert (objective, names) == ("multilabel", ("a", "b", "c"))
    targets = read_targets(table, "tags", labels, objective, names)
    assert targets[[0, 2, 3, 4]].tolist() == [[1, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1]]
    assert np.isnan(targets[1]).all()
    with pytest.raises(GraphjouleError, match="'d' is not a class of the model; those are: a, b, c, or blank"):
        read_targets(table, "tags", column("a;d"), objective, names)


def test_missing_words_are_no_classes(table):
    labels = column("0", "NA", "1", None, "nan")
    assert find_objective(table, "y", labels, None) == ("classification", ("0", "1"))
    assert read_targets(table, "y", labels, "classification", ("0", "1")).tolist() == [0, -1, 1, -1, -1]
    assert find_objective(table, "y", column("NA", "EU"), "classification") == ("classification", ("EU", "NA"))
    assert read_targets(table, "y", column("NA", "EU"), "classification", ("EU", "NA")).tolist() == [1, 0]
    assert read_targets(table, "y", column("a;b", "NA"), "multilabel", ("a", "b"))[0].tolist() == [1, 1]
    with pytest.raises(GraphjouleError, match="every label is blank"):
        find_objective(table, "y", column("NA", None), None)


@pytest.mark.parametrize("word", ["unknown", "Unlabeled", "unlabelled"])
def test_a_word_that_may_say_unknown_is_asked_about(table, word):
    for labels in (column("gold", "gold", word, "iron", word), column("1", "2", word)):
        with pytest.raises(GraphjouleError, match=f"the label '{word}'; leave it blank if it is unknown, or say"):
            find_objective(table, "y", labels, None)
    assert find_objective(table, "y", column("gold", word), "classification")[1] == tuple(sorted(["gold", word]))


@pytest.mark.parametrize("sign", [";", "|", ","])
def test_several_labels_of_a_node_may_stand_between_signs(table, sign):
    labels = column(f"a{sign}b", f"b {sign} c", "c", sign)
    objective, names = find_objective(table, "tags", labels, "multilabel")
    assert names == ("a", "b", "c")
    targets = read_targets(table, "tags", labels, objective, names)
    assert targets.tolist() == [[1, 1, 0], [0, 1, 1], [0, 0, 1], [0, 0, 0]]
    named = find_objective(table, "tags", column("red, dark;blue", "blue"), "multilabel")[1]
    assert named == ("blue", "red, dark")
    assert read_targets(table, "tags", column("red, dark"), objective, named).tolist() == [[0, 1]]
    assert find_objective(table, "y", column("Rome, Italy", "Oslo, Norway"), None)[0] == "classification"


def test_the_positive_class_comes_second_and_classes_keep_their_order(table):
    flags = column("fraud", "ok", None)
    assert find_objective(table, "y", flags, "binary") == ("binary", ("fraud", "ok"))
    assert find_objective(table, "y", flags, "binary", "fraud") == ("binary", ("ok", "fraud"))
    grades, order = column("high", "low"), ("low", "middle", "high")
    assert find_objective(table, "y", grades, "ordinal", None, order) == ("ordinal", order)
    for asked in (None, "ordinal", "binary"):
        with pytest.raises(
            GraphjouleError, match=r"has the labels '1' and '1.0', which are one number; write them alike"
        ):
            find_objective(table, "y", column("1", "1.0", "2"), asked)


def test_several_columns_are_several_targets(table):
    both = {"a": column("yes", None, "0"), "b": column("1", "NA", "false")}
    assert find_objective_of_columns(table, both, "multilabel") == ("multilabel", ("a", "b"))
    found = read_target_columns(table, both, "multilabel")
    np.testing.assert_array_equal(found, [[1, 1], [np.nan, np.nan], [0, 0]])
    np.testing.assert_array_equal(
        read_target_columns(table, {"a": column("1.5", None), "b": column("2", "-3")}, "regression"),
        [[1.5, 2], [np.nan, -3]],
    )
    with pytest.raises(GraphjouleError, match="column 'a': 'perhaps' is neither yes nor no; expected 1, true, yes, 0"):
        read_target_columns(table, {"a": column("yes", "perhaps")}, "multilabel")
    with pytest.raises(GraphjouleError, match="`label` names 2 columns, a, b; say `objective=regression` if each"):
        find_objective_of_columns(table, both, None)
    with pytest.raises(GraphjouleError, match="every value of the label 'a' is blank"):
        find_objective_of_columns(table, {"a": column(None, "NA"), "b": column("1", "2")}, "regression")


ASKED = {
    "prices": (column(*(f"{i}.5" for i in range(20))), "20 different numbers in 20 labels; say `objective=regression`"),
    "few fractions": (column("0.5", "1.5", "0.5", "1.5"), "2 different numbers in 4 labels"),
    "whole prices": (column(*map(str, range(298)), *map(str, range(298)), *map(str, range(298))), "has 298 different"),
    "numbers with gaps": (column("1.5", "2.5", "NA"), "2 different numbers in 2 labels"),
    "names": (column(*(f"n{i}" for i in range(20))), "20 different values in 20 labels; is it the right `label`?"),
    "several labels": (column("a;b", "a"), "labels such as 'a;b'; say `objective=multilabel` if that is several"),
}


@pytest.mark.parametrize(("labels", "said"), ASKED.values(), ids=ASKED)
def test_labels_that_may_mean_two_things_are_asked_about(table, labels, said):
    with pytest.raises(GraphjouleError) as caught:
        find_objective(table, "y", labels, None)
    assert said in str(caught.value)
    assert "`objective=classification`" in str(caught.value)
    assert find_objective(table, "y", labels, "classification")[0] == "classification"


def test_classes_in_order_are_numbers(table):
    assert find_objective(table, "y", column("10", "9"), "ordinal") == ("ordinal", ("9", "10"))
    with pytest.raises(GraphjouleError, match="has the label 'high'; with `objective=ordinal` labels are numbers"):
        find_objective(table, "y", column("low", "high"), "ordinal")


def test_classes_that_were_written_as_fractions_are_still_found(table):
    assert read_targets(table, "y", column("0", "1", None), "classification", ("0.0", "1.0")).tolist() == [0, 1, -1]
    assert read_targets(table, "y", column("true"), "classification", ("False", "True")).tolist() == [1]
