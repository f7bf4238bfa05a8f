import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from graphjoule.cli.audit import show
from graphjoule.graph import Propagation
from graphjoule.tasks import load_task
from graphjoule.theory import Setting, audit
from graphjoule.training.recipe import load_recipe

from . import run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tables(tmp_path):
    """Writes a graph as the two tables that `--nodes` and `--edges` read."""

    def write(num_nodes, pairs):
        nodes, edges = tmp_path / "nodes.csv", tmp_path / "edges.csv"
        nodes.write_text("id,x,label\n" + "".join(f"{node},{node / 7:.3f},{node % 2}\n" for node in range(num_nodes)))
        edges.write_text("source,target\n" + "".join(f"{one},{other}\n" for one, other in pairs))
        return "--nodes", nodes, "--edges", edges

    return write


def documented(name):
    """The block of docs/theory.md that shows the audit of a dataset."""
    text = (ROOT / "docs/theory.md").read_text()
    return re.search(rf"<!-- audit {name} -->\n```\n(.*?)```\n<!-- end -->", text, flags=re.DOTALL)[1]


def audited(*arguments):
    result = run("audit", *arguments, "--json")
    assert (result.code, result.err) == (0, "")
    return json.loads(result.out)


def test_the_digits_are_audited_with_the_settings_of_their_recipe():
    result = run("audit")
    assert (result.code, result.err) == (0, "")
    options = load_recipe("egnn", "digits", 64).model.options
    expected = audit(
        load_task("digits").graph, Setting(options["c_min"], options["c_max"], options["beta"], num_layers=64)
    )
    assert result.out == "\n".join(expected.lines()) + "\n"
    for title in ("Non-zero eigenvalues", "Lemmas", "Energy at the initial point", "What it means"):
        assert title in result.out


def test_json_says_the_same_to_a_program():
    fields = audited("--layers", "2", "--set", "c_min=0.3", "--set", "beta=0.05", "--set", "c_max=0.5")
    assert fields["dataset"] == "digits"
    assert fields["setting"] == {"c_min": 0.3, "c_max": 0.5, "beta": 0.05, "num_layers": 2, "alpha": 0.25}
    assert [lemma["number"] for lemma in fields["lemmas"]] == [1, 2, 3, 4, 5]
    assert [layer["layer"] for layer in fields["layers"]] == [1, 2]
    assert fields["spectrum"]["is_complete"]


def test_a_terminal_gets_tables():
    result, screen = audit(load_task("digits").graph, Setting(num_layers=2)), io.StringIO()
    show(result, Console(file=screen, force_terminal=True, width=200))
    text = screen.getvalue()
    assert "─" in text
    for cell in ("lambda_max", "fails here", "E(X_k) <= c_max E(X_0)"):
        assert cell in text
    for sentence in result.meaning():
        assert sentence[:60] in text


def test_a_bipartite_graph(tables):
    fields = audited(*tables(6, [(one, other) for one in range(3) for other in range(3, 6)]), "--layers", "1")
    assert fields["spectrum"]["lambda_max"]["value"] == pytest.approx(1.5)
    assert fields["lemmas"][0]["verdict"] == "fails here"
    assert fields["layers"][0]["total_min"] == pytest.approx([0.04, 0.04])


def test_a_disconnected_graph(tables):
    fields = audited(*tables(7, [(0, 1), (1, 2), (3, 4), (4, 5)]))
    assert fields["spectrum"]["num_components"] == 3
    assert fields["spectrum"]["lambda_0"]["value"] == pytest.approx(0.5)
    assert "3 connected components" in fields["meaning"][0]


def test_no_edges(tables):
    fields = audited(*tables(4, []))
    assert (fields["spectrum"]["num_components"], fields["spectrum"]["lambda_0"]) == (4, None)
    assert fields["meaning"] == ["The graph has no edges: every feature has energy 0, and every limit reads 0 <= 0."]


def test_one_node_is_a_graph(tables):
    fields = audited(*tables(1, []))
    assert (fields["spectrum"]["num_components"], fields["spectrum"]["lambda_0"]) == (1, None)


@pytest.mark.parametrize("nodes", ["id,x\n0,1\n1,2\n2,4\n", "id,x,label\n0,1,\n1,2,\n2,4,\n", "name\n0\n1\n2\n"])
def test_a_graph_without_labels_is_audited_like_one_with(tables, nodes):
    options = tables(3, [(0, 1), (1, 2)])
    expected = audited(*options)
    options[1].write_text(nodes)
    assert audited(*options) == expected


def test_neighbours_and_an_archive_without_labels_are_audited(tmp_path):
    (tmp_path / "nodes.csv").write_text("x\n1\n2\n4\n")
    np.savez(
        tmp_path / "g.npz", adj_data=[1, 1], adj_indices=[1, 2], adj_indptr=[0, 1, 2, 2], adj_shape=[3, 3]
    )  # a path, as the nearest neighbours are
    fields = audited("--nodes", tmp_path / "nodes.csv", "--knn", "1")
    archive = audited("--npz", tmp_path / "g.npz")
    assert fields["spectrum"] == archive["spectrum"]
    assert fields["spectrum"]["num_components"] == 1


def test_the_documented_audit_of_cora_is_what_the_command_prints(data_root):
    result = run("audit", "--dataset", "cora", "--data-root", data_root)
    assert documented("cora") == result.out
    record = json.loads((ROOT / "reproduction/results/audit/cora.json").read_text())
    assert all(f"- {sentence}\n" in result.out for sentence in record["meaning"])


@pytest.mark.parametrize("name", ["pubmed", "physics"])
def test_the_documented_meaning_is_that_of_the_record(name):
    record = json.loads((ROOT / f"reproduction/results/audit/{name}.json").read_text())
    assert documented(name) == "".join(f"- {sentence}\n" for sentence in record["meaning"])


def test_cora_has_78_components_and_breaks_lemma_4():
    fields = json.loads((ROOT / "reproduction/results/audit/cora.json").read_text())
    assert fields["spectrum"]["num_components"] == 78
    assert [lemma["verdict"] for lemma in fields["lemmas"]] == ["holds here"] * 3 + ["fails here", "holds here"]
    assert fields["setting"]["c_min"] == 0.15


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--dataset", "coar"], "Unknown dataset 'coar'"),
        (["--layers", "0"], "num_layers = 0 cannot be used"),
        (["--set", "c_min=1.5"], "c_min = 1.5 cannot be used: it should be less than or equal to 1"),
        (["--set", "beta=0.5"], "beta is 0.5; it must be between 0 and c_min, which is 0.2"),
        (["--set", "c_max=0"], "c_max = 0 cannot be used: it should be greater than 0"),
        (["--set", "cmin=0.1"], '"cmin" is not a setting of egnn, did you mean "c_min"?'),
        (["--set", "lr=0.1"], "--set lr would change nothing here: an audit depends on c_min, c_max, beta."),
        (["--set", "c_min"], "'c_min' is not a setting: expected key=value"),
    ],
)
def test_what_cannot_be_audited_is_refused_with_a_sentence(arguments, sentence):
    result = run("audit", *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("graphjoule: ")
    assert result.err.count("\n") == 1
    assert sentence in result.err


@pytest.mark.slow
def test_a_million_edges_are_audited_without_a_dense_matrix():
    """With 512 MiB of Lanczos vectors; a dense matrix would have 320 GB."""
    random = np.random.default_rng(0)
    num_nodes, num_edges = 200_000, 1_000_000
    half = torch.from_numpy(random.integers(0, num_nodes, (2, num_edges)))
    graph = Propagation.from_edge_index(half, num_nodes=num_nodes, symmetrize=True)
    result = audit(graph, Setting(num_layers=64))
    found = result.spectrum
    assert not found.is_complete
    assert found.lambda_0.low <= found.lambda_0.value < 1 < found.lambda_max.value <= found.lambda_max.high < 2
    assert found.risk == 1e-9
    assert len(result.layers) == 64
    assert "certain up to a risk of 1e-09" in "\n".join(result.meaning())
