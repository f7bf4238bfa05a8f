"""A command begins only where nothing of anybody else's is, and says what there is."""

import os

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.files import check_free, ensure_folder, foreign_names


def test_a_new_and_an_empty_folder_are_free_and_stay_as_they_are(tmp_path):
    check_free(tmp_path)
    check_free(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["b.csv"], "holds b.csv, and nothing"),
        (["b.csv", "a.csv"], "holds a.csv and 1 other thing, and nothing"),
        ([".git", "b.csv", ".half.tmp"], "holds .git and 2 other things, and nothing"),
    ],
)
def test_what_is_there_is_said_and_what_to_do(tmp_path, names, said):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(GraphjouleError) as caught:
        check_free(tmp_path)
    assert said in str(caught.value)
    assert str(caught.value).endswith("choose a new or an empty folder with --out.")


def test_what_a_kill_can_leave_is_not_foreign(tmp_path):
    for name in (".lock", ".graphjoule-0123abcd.tmp", ".graphjoule-parts-2"):
        (tmp_path / name).touch()
    assert foreign_names(tmp_path) == [".lock"]
    check_free(tmp_path, own=[".lock"])


def test_a_file_is_left_to_who_makes_the_folder(tmp_path):
    (tmp_path / "file").touch()
    check_free(tmp_path / "file")
    with pytest.raises(GraphjouleError, match="Cannot use"):
        ensure_folder(tmp_path / "file")


def test_a_folder_that_cannot_be_looked_into_is_a_sentence(tmp_path, monkeypatch):
    def fail(path):
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(type(tmp_path), "iterdir", fail)
    with pytest.raises(GraphjouleError, match=r"as an output folder: permission denied\.$"):
        check_free(tmp_path)
