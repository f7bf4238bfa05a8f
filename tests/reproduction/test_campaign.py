"""The campaign on embedded data: what it plans, that it stops and goes on, and what it packs."""

import json
import subprocess
from types import SimpleNamespace

import pytest

from graphjoule.studies import STUDIES, find_study, read_collection
from graphjoule.tasks import load_task
from reproduction import campaign

SEARCH = """
title = "Small"
datasets = ["digits"]
models = ["gcn"]
depths = [2]
[[block]]
settings = { hidden_channels = 4, epochs = 2, patience = 2, dropout = 0.0 }
[[sweep]]
component = "orthogonal penalty"
setting = "terms.orthogonal.gamma"
values = [0.1, 1]
[[variant]]
component = "constraint"
value = "one"
settings = { terms.energy.method = "penalty", terms.energy.c_min = 0.5 }
[protocol]
select_on = "accuracy"
"""
QUICK = {"hidden_channels": 4, "epochs": 2}
READING = campaign.Path("table1/readings/epochs-2-hidden_channels-4")


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Steps on embedded digits, and a search of three settings."""
    (tmp_path / "constraint-search.toml").write_text(SEARCH)
    study = find_study(str(tmp_path / "constraint-search.toml"))
    monkeypatch.setattr(campaign, "search_study", lambda: study)
    monkeypatch.setattr(campaign, "SEARCH_SEEDS", (10,))
    monkeypatch.setattr(
        campaign,
        "STEPS",
        (
            campaign.Step("table1", "table1", ["digits"], ["gcn"], [2], QUICK, num_seeds=1),
            campaign.Step("search", "constraint-search", ["digits"]),
            campaign.Step(
                "depth", "depth", ["digits"], ["gcn"], [2, 3], QUICK, num_seeds=2
            ),  # the first again, and more
        ),
    )
    campaign.load.cache_clear()
    campaign.load_without_test.cache_clear()
    return tmp_path / "out"


def test_it_stops_goes_on_elsewhere_and_packs_all_records_with_their_protocols(small, tmp_path, capsys):
    assert campaign.train(small, "cpu", lambda: True) == 3  # no time at all
    assert campaign.train(small, "cpu", lambda: False, ["table1"]) == 0
    assert not (small / "search").exists()  # a step alone is that step alone
    (energies,) = small.rglob("energies.json")  # of table 1, because depth has the recipe too and needs its models
    assert json.loads(energies.read_text())["seeds"] == [0, 1]
    campaign.save(small, tmp_path / "done")
    elsewhere = tmp_path / "elsewhere"
    with campaign.tarfile.open(tmp_path / "done-1.tar.gz") as archive:
        archive.extractall(elsewhere, filter="data")
    assert not list(elsewhere.rglob("*.safetensors"))
    assert campaign.train(elsewhere, "cpu", lambda: False) == 0
    searched = list(read_collection([elsewhere / "search"]))
    assert len(searched) == 3
    assert not any(record.test for record in searched)  # no test label is read by a search
    assert set(campaign.winners(elsewhere)) == {"constraint", "orthogonal penalty"}
    results = tmp_path / "results"
    campaign.collect(elsewhere, results)
    packed = read_collection([results])
    assert {record.protocol.partition(":")[0] for record in packed} == {"table1", "constraint-search", "depth"}
    assert len(list(packed)) == len(list(read_collection([elsewhere]))) == 7
    for study in ("table1", "depth"):
        (file,) = (results / "protocols").glob(f"{study}-*.protocol.json")
        assert json.loads(file.read_text())["sha256"] == campaign.study_of(study).protocol.sha256
    assert not (results / campaign.UNFINISHED).exists()


def test_the_next_session_counts_committed_records_of_the_same_code_alone(small, tmp_path, monkeypatch, capsys):
    results, bare, other = (tmp_path / name for name in ("results", "bare", "other"))
    assert campaign.train(small, "cpu", lambda: False, ["table1"]) == 0
    one = next((small / "studies").rglob("records.jsonl"))
    (results / READING).mkdir(parents=True)
    old = results / READING / "gcn-digits.jsonl.gz"  # with settings of its own it is another reading
    old.write_bytes(
        campaign.gzip.compress(one.read_bytes().splitlines()[0].replace(campaign.source_sha256().encode(), b"old"))
    )
    (results / "protocols").mkdir()  # an older record of the same run, and one of another
    campaign.train(tmp_path / "once", "cpu", lambda: False, ["depth"])
    (other_line,) = (path.read_bytes().splitlines()[0] for path in (tmp_path / "once").rglob("records.jsonl"))
    lines = [old.read_bytes(), campaign.gzip.compress(b"\n" + other_line)]
    (results / "protocols/some.jsonl.gz").write_bytes(b"".join(lines))
    with one.open("ab") as file:
        file.write(b'{"run_id": "torn')  # by a kill
    monkeypatch.setattr(
        campaign, "STEPS", (*campaign.STEPS, campaign.Step("more", "figure1", ["digits"], ["gcn"], [4]))
    )
    campaign.collect(small, results)
    assert [record.seed for record in campaign.read_records(old)] == [0, 1]  # in the place of the old ones
    (other_run,) = campaign.read_records(results / "protocols/some.jsonl.gz")
    assert other_run.num_layers == 3
    campaign.restore(bare, results)
    assert "1 recipes are done" in capsys.readouterr().out
    table1, depth = (campaign.jobs_by_step(bare)[name] for name in ("table1", "depth"))
    assert all(job.is_done() for job in table1)
    assert not any(job.is_done() for job in depth)
    campaign.save(bare, tmp_path / "nothing")
    assert "0 recipes are done" in capsys.readouterr().out  # committed records need not travel again
    monkeypatch.setattr(campaign, "source_sha256", lambda: "of other code")
    campaign.restore(other, results)
    assert not any(job.is_done() for job in campaign.jobs_by_step(other)["table1"])


def test_a_study_that_is_not_whole_waits_beside_the_others(small, tmp_path, capsys):
    results = tmp_path / "results"
    campaign.train(small, "cpu", lambda: False, ["search"])
    done = campaign.search_plan(small).jobs[0]
    campaign.shutil.rmtree(done.folder.path)
    campaign.collect(small, results)
    assert len(list(read_collection([results / campaign.UNFINISHED / "constraint-search"]))) == 2
    campaign.restore(tmp_path / "bare", results)
    assert sum(job.is_done() for job in campaign.search_plan(tmp_path / "bare").jobs) == 2


def test_a_search_leaves_the_runs_of_a_study_with_the_same_recipes_alone(small, tmp_path, capsys):
    results = tmp_path / "results"
    campaign.train(small, "cpu", lambda: False, ["search"])
    campaign.collect(small, results)
    (found,) = (results / "constraint-search").glob("*.jsonl.gz")
    (results / "constraint").mkdir()
    older = campaign.shutil.copy(found, results / "constraint" / found.name)
    campaign.collect(small, results)
    assert older.read_bytes() == found.read_bytes()


def test_what_is_saved_is_cut_into_files_that_may_travel(small, tmp_path, monkeypatch, capsys):
    campaign.train(small, "cpu", lambda: False, ["search"])
    monkeypatch.setattr(campaign, "MOST_BYTES", 4_000)
    campaign.save(small, tmp_path / "done")
    files = sorted(tmp_path.glob("done-*.tar.gz"))
    assert len(files) > 1
    for file in files:
        with campaign.tarfile.open(file) as archive:
            archive.extractall(tmp_path / "there", filter="data")
    assert all(job.is_done() for job in campaign.search_plan(tmp_path / "there").jobs)


def test_two_folders_are_compared_to_the_bit(small, tmp_path, capsys):
    for out in (small, tmp_path / "again"):
        campaign.train(out, "cpu", lambda: False, ["table1"])
    capsys.readouterr()
    assert campaign.compare(small, tmp_path / "again") == 0
    assert capsys.readouterr().out == "2 runs are in both, 2 are the same to the bit.\n"
    (path,) = (tmp_path / "again").rglob("records.jsonl")
    lines = path.read_text().splitlines()
    record = json.loads(lines[1])
    record["curve"]["train_loss"][1] += 1e-6
    path.write_text(lines[0] + "\n" + json.dumps(record) + "\n")
    assert campaign.compare(small, tmp_path / "again") == 1
    assert f"gcn, 2 layers, digits, seed {record['seed']}: from epoch 1 on\n" in capsys.readouterr().out


def test_a_folder_that_is_no_pinned_code_is_refused(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("all of it")
    with pytest.raises(campaign.GraphjouleError, match="no copy that --pin made"):
        campaign.pin(tmp_path / "mine", tmp_path / "out", tmp_path / "results")
    assert (tmp_path / "mine/thesis.txt").exists()
    (tmp_path / "out").mkdir()
    lines = "".join(json.dumps({"commit": commit}) + "\n" for commit in ("one", "two"))
    (tmp_path / "out" / campaign.CALLS).write_text(lines)
    with pytest.raises(campaign.GraphjouleError, match="of several commits: one, two"):
        campaign.pin(tmp_path / "new", tmp_path / "out", tmp_path / "results")
    with pytest.raises(campaign.GraphjouleError, match="no file COMMIT"):
        campaign.run_pinned(tmp_path / "mine", ["--code", "mine", "--plan"])


def test_a_commit_that_history_has_lost_is_found_by_the_hash_of_its_files(monkeypatch, tmp_path, capsys):
    lost, made = "0" * 40, SimpleNamespace(versions={"commit": "0" * 40, "source": "those files"})
    monkeypatch.setattr(campaign, "earlier_records", lambda out, results: [made])
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=campaign.ROOT
    ).stdout.strip()
    if not head:
        pytest.skip("this is no checkout")
    monkeypatch.setattr("graphjoule.training.source_of_commit", lambda name: "those files" if name == head else None)
    monkeypatch.setattr(
        "graphjoule.training.commit_of_source", lambda source: head if source == "those files" else None
    )
    assert campaign.in_history(lost, tmp_path, tmp_path) == head
    assert "is not in the history; " in capsys.readouterr().out
    assert campaign.in_history(head, tmp_path, tmp_path) == head
    monkeypatch.setattr("graphjoule.training.source_of_commit", lambda name: None)
    monkeypatch.setattr("graphjoule.training.commit_of_source", lambda source: None)
    with pytest.raises(campaign.GraphjouleError, match="no other has its files"):
        campaign.in_history(lost, tmp_path, tmp_path)


def test_pinned_code_comes_before_the_path_that_libraries_are_on(tmp_path, monkeypatch, capfd):
    (tmp_path / "code/reproduction").mkdir(parents=True)
    (tmp_path / "code/COMMIT").write_text("0123abc")
    script = "import library, os; print(os.environ['GRAPHJOULE_COMMIT'])"
    (tmp_path / "code/reproduction/campaign.py").write_text(script)
    (tmp_path / "libraries/reproduction").mkdir(parents=True)
    (tmp_path / "libraries/library.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "libraries"))
    assert campaign.run_pinned(tmp_path / "code", ["--code", "code", "--plan"]) == 0
    assert capfd.readouterr().out == "0123abc\n"


def test_the_best_setting_of_each_rival_stands_in_every_cell_of_the_study():
    best = {"constraint": campaign.Variant(settings={"terms.energy.c_min": 0.5})}
    free, held, penalty = STUDIES["constraint"].cells(["cora"], ["gcn"], [8])
    assert campaign._with_winner(free, best) == free
    assert campaign._with_winner(penalty, best) == penalty
    changed = campaign._with_winner(held, best)
    assert changed.variant.value == "constraint"
    assert changed.recipe.terms["energy"]["c_min"] == 0.5


def test_both_rivals_have_as_many_tries_and_the_plan_says_how_long(small, monkeypatch):
    search = find_study(str(campaign.SEARCH))
    tries = [cell.variant.component for cell in search.cells()]
    assert tries.count("constraint") == tries.count("orthogonal penalty") == 18
    monkeypatch.setattr(campaign, "earlier_records", lambda out, results: [])
    text = campaign.plan_text(small, small, "NVIDIA H200")
    assert text.startswith("7 runs are left; ")
    assert "- search: 3 runs, " in text
    assert "- table1: 2 runs, " in text
    assert "- depth: 2 runs, " in text
    assert "search" not in campaign.plan_text(small, small, "NVIDIA H200", ["table1"])
    assert "how long it takes is not known" in text
    assert load_task("digits").name == "digits"
