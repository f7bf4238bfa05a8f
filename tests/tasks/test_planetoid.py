import pickle
import shutil

import pytest
import torch
from torch_geometric.datasets import Planetoid

from graphjoule.errors import GraphjouleError
from graphjoule.features import SparseFeatures
from graphjoule.tasks.planetoid import CORA, PUBMED, load_planetoid


@pytest.fixture
def cora_root(data_root, tmp_path):
    """A copy of the raw Cora files that may be changed."""
    shutil.copytree(CORA.folder(data_root), CORA.folder(tmp_path))
    folder = CORA.folder(tmp_path)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("raw", "nodes", "edges", "features", "classes", "train"),
    [(CORA, 2708, 5278, 1433, 7, 140), (PUBMED, 19717, 44324, 500, 3, 60)],
    ids=["cora", "pubmed"],
)
def test_sizes_and_public_split(data_root, raw, nodes, edges, features, classes, train):
    task = load_planetoid(raw, data_root)
    assert task.name == raw.name.lower()
    assert (task.num_nodes, task.graph.num_edges, task.num_features, task.num_classes) == (
        nodes,
        edges,
        features,
        classes,
    )
    assert isinstance(task.features, SparseFeatures)
    split = task.split()
    assert (split.name, len(split.train), len(split.val), len(split.test)) == ("public", train, 500, 1000)
    assert task.labels[split.train].bincount().tolist() == [20] * classes


def test_cora_is_what_pyg_reads(data_root, cora_root):
    task = load_planetoid(CORA, data_root)
    data = Planetoid(str(cora_root), "Cora")[0]
    assert task.features.to_dense().equal(data.x)
    assert task.labels.equal(data.y)
    adjacency = torch.zeros(2708, 2708, dtype=torch.bool)
    adjacency[data.edge_index[0], data.edge_index[1]] = True
    assert (task.graph.to_dense() > 0).equal(adjacency | torch.eye(2708, dtype=torch.bool))
    split = task.split("public")
    for part in ("train", "val", "test"):
        assert getattr(split, part).equal(data[f"{part}_mask"].nonzero().view(-1))


@pytest.mark.parametrize("raw", [CORA, PUBMED], ids=["cora", "pubmed"])
def test_our_file_names_are_pygs(raw):
    pyg = Planetoid.__new__(Planetoid)
    pyg.name = raw.name
    assert sorted(raw.files) == sorted(pyg.raw_file_names)


def test_a_changed_file_is_refused_before_it_is_unpickled(cora_root, trap):
    (CORA.folder(cora_root) / "ind.cora.graph").write_bytes(pickle.dumps(trap))
    with pytest.raises(GraphjouleError, match=r"Cora/raw/ind\.cora\.graph has SHA-256 \w{64}, expected 58f13302"):
        load_planetoid(CORA, cora_root)
    assert not trap.sprung.exists()


def test_a_cut_off_file_is_refused(cora_root):
    path = CORA.folder(cora_root) / "ind.cora.test.index"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(GraphjouleError, match=r"ind\.cora\.test\.index has SHA-256"):
        load_planetoid(CORA, cora_root)


def test_pygs_processed_file_is_not_read(cora_root, trap):
    processed = cora_root / "Cora" / "processed"
    processed.mkdir()
    torch.save(trap, processed / "data.pt")
    assert load_planetoid(CORA, cora_root).num_nodes == 2708
    assert not trap.sprung.exists()


def test_nothing_is_written_under_the_data_root(cora_root):
    (cora_root / "Cora").chmod(0o555)
    CORA.folder(cora_root).chmod(0o555)

    def snapshot():
        # Modification times too: a folder's moves when anything in it comes or goes, even for a superuser's test run.
        return {path: path.stat().st_mtime_ns for path in (cora_root, *cora_root.rglob("*"))}

    before = snapshot()
    load_planetoid(CORA, cora_root)
    assert snapshot() == before
    (cora_root / "Cora").chmod(0o755)
    CORA.folder(cora_root).chmod(0o755)
