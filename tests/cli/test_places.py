import json

import pytest

from . import TINY, run

pytestmark = pytest.mark.usefixtures("here")


def folders(here):
    return sorted(path.name for path in (here / "runs").iterdir())


def test_every_training_gets_a_folder_of_its_own_and_resume_finds_the_newest_with_the_same_settings(here):
    slow, quick = ("--set", "lr=0.001"), ("--set", "lr=0.1")
    arguments = ["train", "--epochs", "1", "--set", "hidden_channels=4", "--device", "cpu", "--json"]
    told = [json.loads(run(*arguments, *settings).out)["records"] for settings in (slow, quick, slow)]
    assert told == [f"runs/digits-egnn-32{number}/records.jsonl" for number in ("", "-2", "-3")]
    assert folders(here) == ["digits-egnn-32", "digits-egnn-32-2", "digits-egnn-32-3"]

    resumed = [json.loads(run(*arguments, *settings, "--resume").out)["records"] for settings in (slow, quick)]
    assert resumed == [told[2], told[1]]
    more = json.loads(run(*arguments, *quick, "--resume", "--seeds", "2").out)
    assert (more["records"], more["n"]) == (told[1], 2)
    assert folders(here) == ["digits-egnn-32", "digits-egnn-32-2", "digits-egnn-32-3"]

    nothing = run(*arguments, "--set", "lr=0.5", "--resume")
    assert nothing.code == 2
    assert "no training of digits-egnn-32 with these settings under runs/, so there is nothing to resume" in nothing.err
    (here / "runs/digits-egnn-32-4").mkdir()
    (here / "runs/digits-egnn-32-4/.lock").touch()  # killed before it could say its settings
    begun = run(*arguments, "--set", "lr=0.5", "--resume")
    assert json.loads(begun.out)["records"] == "runs/digits-egnn-32-4/records.jsonl"


def test_a_folder_that_holds_something_else_is_passed_over(here):
    (here / "runs/digits-egnn-2").mkdir(parents=True)
    (here / "runs/digits-egnn-2/notes.txt").write_text("mine")
    for more in ([], ["--resume"]):
        told = json.loads(run("train", *TINY, "--json", *more).out)
        assert told["records"] == "runs/digits-egnn-2-2/records.jsonl"
    assert [path.name for path in (here / "runs/digits-egnn-2").iterdir()] == ["notes.txt"]
