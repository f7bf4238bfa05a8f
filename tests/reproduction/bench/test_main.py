import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace

import pytest

from reproduction.bench import read_bench_records
from reproduction.bench.__main__ import main


def run(*arguments):
    """Run ``python -m reproduction.bench ARGUMENTS``: exit code, standard output and standard error."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code or 0
    return SimpleNamespace(code=code, out=out.getvalue(), err=err.getvalue())


QUICK = ["--budget", "0", "--device", "cpu"]


def test_one_line_a_case_with_ours_the_peers_and_how_many_times_faster():
    result = run("digits-2", *QUICK)
    assert result.code == 0
    line, *rest = result.out.splitlines()
    assert rest == []
    number = r"[\d,.]+ ms"
    ratio = r"= [\d.]+x \([\d.]+ to [\d.]+, n = 5; of medians [\d.]+x\)"
    floor = rf"\(floor [\d.]+ GiB, {number}: \d+ % of ours\)"
    assert re.fullmatch(rf"digits-2 +ours {number} {floor}  pyg {number} {ratio}  pyg-csr {number} {ratio}", line)


def test_json_is_the_last_line_and_the_file_holds_the_same(tmp_path):
    out = tmp_path / "bench.jsonl"
    result = run("digits-2", *QUICK, "--runs", "2", "--peer", "pyg-csr", "--json", "--out", out)
    assert result.code == 0
    (record,) = json.loads(result.out.splitlines()[-1])
    assert (record["case"], record["peer"], record["layers"], record["runs"]) == ("digits-2", "pyg-csr", 2, 2)
    assert (record["nodes"], record["edges"], record["width"]) == (1797, 9929, 64)
    assert record["ratio"] > 0
    assert record["median_ratio"] == pytest.approx(2 * record["peer_ms"] / record["ours_ms"])
    activation, entries = 1797 * 64 * 4, (1797 + 2 * 9929) * 8
    assert record["floor_bytes"] == 2 * (2 * 12 * activation + 3 * entries + 2 * 7 * 64 * 64 * 4)
    assert record["bytes_per_second"] > 1e8
    assert record["device"].startswith("cpu")
    assert record["body"]
    assert "torch_geometric" in record["versions"]
    assert "2 runs" in result.err
    (stored,) = read_bench_records(out)
    assert json.loads(stored.model_dump_json()) == record


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["coar-64"], "Unknown case 'coar-64'; expected one of: arxiv-32, arxiv-32-bf16, arxiv-32-plain, cora-64"),
        (["--curves", "width"], "Unknown curve 'width'; expected one of: depth, nodes, runs."),
        (["--peer", "dgl"], "Unknown peer 'dgl'; expected one of: pyg, pyg-csr."),
        (["--device", "tpu"], "choose one of auto, cpu, cuda"),
        (["--out", "nowhere/bench.jsonl"], "--out is nowhere/bench.jsonl, but there is no folder "),
        (["--curves", "runs", "--runs", "3"], "--runs and --curves runs contradict each other"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exit_code_2(arguments, sentence):
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("bench: ")
    assert sentence in result.err
    assert result.err.count("\n") == 1
