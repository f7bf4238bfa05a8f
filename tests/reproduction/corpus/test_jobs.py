"""Jobs write what they made as they end, nothing is begun too late, and a broken GPU stops the rest."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from reproduction.corpus import jobs
from reproduction.corpus.jobs import read_records, run_jobs


@pytest.fixture(autouse=True)
def no_processes(monkeypatch):
    monkeypatch.setattr(jobs, "ProcessPoolExecutor", lambda workers, *options: ThreadPoolExecutor(workers))


def unit(job):
    return [{"kind": "fit", "task": job}, {"kind": "time", "task": job, "all": 1.0}]


def test_every_job_leaves_its_records_and_packed_files_can_be_read(tmp_path, capsys):
    out = tmp_path / "new/found.jsonl"
    run_jobs(unit, ["a", "b", "c"], out, workers=2)
    assert sorted(record["task"] for record in read_records(out)) == list("aabbcc")
    assert "b: 1.0 s" in capsys.readouterr().out
    packed = tmp_path / "found.jsonl.gz"
    packed.write_bytes(gzip.compress(out.read_bytes()))
    assert read_records(packed) == read_records(out)
    out.write_text(out.read_text() + json.dumps({"kind": "time"})[:5])
    assert len(read_records(out)) == 6
    assert read_records(tmp_path / "none") == []


def test_nothing_is_begun_when_the_time_is_up(tmp_path, capsys):
    run_jobs(unit, ["a", "b"], tmp_path / "found.jsonl", workers=1, limit=0.0)
    assert read_records(tmp_path / "found.jsonl") == []
    assert "stopped with 2 jobs left; the same command goes on" in capsys.readouterr().out


def test_a_failed_gpu_stops_the_rest_and_another_failure_does_not(tmp_path):
    def fails(job):
        return [{"kind": "failure", "task": job, "why": "CUDA error: it broke" if job == "b" else "no data here"}]

    run_jobs(fails, ["a", "b", "c"], tmp_path / "found.jsonl", workers=1)
    assert [record["task"] for record in read_records(tmp_path / "found.jsonl")] == ["a", "b"]
