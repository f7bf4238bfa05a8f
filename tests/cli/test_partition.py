"""``graphjoule partition``."""

import json

from typer.testing import CliRunner

from graphjoule.cli import app
from graphjoule.errors import GraphjouleError
from graphjoule.parallel import load_part, read_partition
from graphjoule.parallel.partition import cut_nodes
from tests.parallel.tasks import Sized


def test_the_command_says_what_a_training_will_need(tmp_path):
    options = ["--dataset", "digits", "--parts", "3", "--method", "blocks", "--out", str(tmp_path / "p"), "--json"]
    done = CliRunner().invoke(app, ["partition", *options])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["num_nodes"] == [599, 599, 599]
    assert said["num_cut_edges"] > 0
    assert "3 parts by blocks, 599 nodes each; " in done.stderr
    assert f"{said['num_cut_edges']:,} of " in done.stderr
    made = read_partition(tmp_path / "p")
    assert made.data.name == "digits"
    part = load_part(tmp_path / "p", 1, Sized(3))
    assert part.graph.halo.num_nodes == made.num_halo[1] == said["num_halo"][1]
    graph_parts = cut_nodes(part.to("cpu").graph, 1, "blocks")
    assert graph_parts.numel() == 599


def test_one_part_is_said_in_the_singular(tmp_path):
    done = CliRunner().invoke(app, ["partition", "--parts", "1", "--method", "blocks", "--out", str(tmp_path / "p")])
    assert done.exit_code == 0, done.output
    assert "digits: 1 part by blocks, 1,797 nodes each; 0 of " in done.stdout
    assert "edges cut (0.0 %), a part fetches 0 rows per layer" in done.stdout


def test_the_command_refuses_more_parts_than_nodes(tmp_path):
    done = CliRunner().invoke(app, ["partition", "--parts", "9999", "--out", str(tmp_path / "p")])
    assert isinstance(done.exception, GraphjouleError)
    assert "it must be from 1 to 1797" in str(done.exception)
    assert not (tmp_path / "p").exists()
