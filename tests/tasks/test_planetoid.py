import hashlib
import os
import pickle
import shutil
from collections import defaultdict
from dataclasses import replace
from functools import reduce
from operator import xor
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.datasets import Planetoid

from graphjoule.errors import GraphjouleError
from graphjoule.graph.features import SparseFeatures
from graphjoule.tasks import DATASETS
from graphjoule.tasks.planetoid import load_planetoid, read_checked, unpickle_arrays

CORA, CITESEER, PUBMED = (DATASETS[name].raw for name in ("cora", "citeseer", "pubmed"))


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
    assert (task.num_nodes, task.graph.num_edges, task.num_features, task.out_channels) == (
        nodes,
        edges,
        features,
        classes,
    )
    assert isinstance(task.features, SparseFeatures)
    split = task.split()
    assert (split.name, len(split.train), len(split.val), len(split.test)) == ("public", train, 500, 1000)
    assert task.targets[split.train].bincount().tolist() == [20] * classes


def test_cora_is_what_pyg_reads(data_root, cora_root):
    task = load_planetoid(CORA, data_root)
    data = Planetoid(str(cora_root), "Cora")[0]
    assert task.features.to_dense().equal(data.x)
    assert task.targets.equal(data.y)
    adjacency = torch.zeros(2708, 2708, dtype=torch.bool)
    adjacency[data.edge_index[0], data.edge_index[1]] = True
    assert (task.graph.to_dense() > 0).equal(adjacency | torch.eye(2708, dtype=torch.bool))
    split = task.split("public")
    for part in ("train", "val", "test"):
        assert getattr(split, part).equal(data[f"{part}_mask"].nonzero().view(-1))


@pytest.mark.parametrize("raw", [CORA, CITESEER, PUBMED], ids=["cora", "citeseer", "pubmed"])
def test_our_file_names_are_pygs(raw):
    pyg = Planetoid.__new__(Planetoid)
    pyg.name = raw.name
    assert sorted(raw.files) == sorted(pyg.raw_file_names)
    assert raw.url == Planetoid.url


def test_a_changed_file_is_refused_before_it_is_unpickled(cora_root, trap):
    (CORA.folder(cora_root) / "ind.cora.graph").write_bytes(pickle.dumps(trap))
    with pytest.raises(GraphjouleError, match=r"Cora/raw/ind\.cora\.graph has SHA-256 \w{64}, expected 58f13302"):
        load_planetoid(CORA, cora_root)
    assert not trap.sprung.exists()


def test_a_file_that_is_swapped_after_it_was_opened_is_not_read(cora_root, trap, monkeypatch):
    open_path = Path.open

    def open_and_swap(path, *args, **kwargs):
        stream = open_path(path, *args, **kwargs)
        with open_path(path.with_name("other"), "wb") as other:
            pickle.dump(trap, other)
        path.with_name("other").replace(path)
        return stream

    expected = load_planetoid(CORA, cora_root).facts().sha256
    monkeypatch.setattr(Path, "open", open_and_swap)
    assert load_planetoid(CORA, cora_root).facts().sha256 == expected
    assert not trap.sprung.exists()


def test_a_pickle_that_runs_code_is_refused_even_if_its_hash_is_the_expected_one(gapped, trap):
    raw, root, *_ = gapped
    (raw.folder(root) / "ind.citeseer.graph").write_bytes(pickle.dumps(trap))
    with pytest.raises(GraphjouleError, match=r"raw/ind\.citeseer\.graph asks for \w+\.mkdir, which could run code"):
        load_planetoid(replace(CITESEER, sha256=hashes(raw.folder(root))), root)
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


def test_citeseers_hashes_are_the_published_ones():
    # CiteSeer's files are not at hand here. DataDeps.jl states one checksum for a set of files: the exclusive or of
    # theirs. GraphMLDatasets.jl has it for the 24 Planetoid files, and the 16 that are here are known.
    hashes = [int(sha256, 16) for raw in (CORA, CITESEER, PUBMED) for sha256 in raw.sha256.values()]
    assert len(hashes) == 24
    assert f"{reduce(xor, hashes):x}" == "f52b3d47f5993912d7509b51e8090b6807228c4ba8c7d906f946868005c61c18"


def hashes(folder):
    """SHA-256 of the files of a CiteSeer, whatever they hold."""
    return {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in CITESEER.files}


@pytest.fixture
def gapped(tmp_path):
    """A small CiteSeer: 502 papers, test papers 503, 505 and 502 in that order, and 504 in the graph only."""
    random = np.random.RandomState(0)
    labels = np.eye(3, dtype=np.int32)[random.randint(3, size=505)]
    words = sp.csr_matrix((random.random_sample((505, 4)) < 0.4).astype(np.float32))
    parts = {"x": words[:2], "y": labels[:2], "allx": words[:502], "ally": labels[:502]}
    # The rows of tx and ty stand in the order of test.index.
    parts |= {"tx": words[502:], "ty": labels[502:], "graph": {i: [(i + 1) % 506] for i in range(506)}}
    folder = CITESEER.folder(tmp_path)
    folder.mkdir(parents=True)
    for part, content in parts.items():
        (folder / f"ind.citeseer.{part}").write_bytes(pickle.dumps(content, protocol=3))
    (folder / "ind.citeseer.test.index").write_text("503\n505\n502\n")
    return replace(CITESEER, sha256=hashes(folder)), tmp_path, words.toarray(), labels.argmax(1)


def test_a_paper_that_stands_in_the_graph_alone_has_no_label(gapped):
    raw, root, _, labels = gapped
    task = load_planetoid(raw, root)
    assert (task.name, task.num_nodes, task.graph.num_edges, task.out_channels) == ("citeseer", 506, 506, 3)
    assert task.targets[504] == -1
    assert task.targets[[503, 505, 502]].tolist() == labels[502:].tolist()
    assert task.targets[:502].tolist() == labels[:502].tolist()
    assert task.split().test.tolist() == [502, 503, 505]
    drawn = task.split("per-class-5-5")
    assert 504 not in torch.cat([drawn.train, drawn.val, drawn.test])


def test_words_of_test_papers_are_put_in_their_places(gapped):
    raw, root, words, _ = gapped
    features = load_planetoid(raw, root).features
    dense = features if isinstance(features, torch.Tensor) else features.to_dense()
    assert dense[[503, 505, 502]].tolist() == words[502:].tolist()
    assert not dense[504].any()


def test_a_changed_citeseer_is_refused(gapped, trap):
    raw, root, *_ = gapped
    (raw.folder(root) / "ind.citeseer.ty").write_bytes(pickle.dumps(trap))
    for files in (raw, CITESEER):
        with pytest.raises(GraphjouleError, match=r"CiteSeer/raw/ind\.citeseer\.\w+ has SHA-256"):
            load_planetoid(files, root)
    assert not trap.sprung.exists()


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path):
    with pytest.raises(GraphjouleError, match=r"^The file shown/gone cannot be read \(No such file or directory\)\.$"):
        read_checked({"gone": "0" * 64}, tmp_path, "shown")


# Pickles.

# What Python 2 wrote, by hand: numpy.core.multiarray._reconstruct, and an array's bytes as text.
PYTHON_2 = (
    b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    b"(K\x01K\x02\x85cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    b"\x89U\x02\x07\xfetb."
)


class Call:
    """An object whose pickle calls a function."""

    def __init__(self, function, *args):
        self.reduced = function, args

    def __reduce__(self):
        return self.reduced


def test_arrays_matrices_and_lists_come_back():
    matrix = sp.csr_matrix(np.array([[0.0, 2.0], [3.0, 0.0]]))
    graph = defaultdict(list, {0: [1], 1: [0, 0]})
    array, again, cited = unpickle_arrays(pickle.dumps([np.arange(3), matrix, graph], protocol=3), "it")
    assert array.tolist() == [0, 1, 2]
    assert again.toarray().tolist() == matrix.toarray().tolist()
    assert cited == graph


def test_an_array_of_python_2_comes_back():
    assert unpickle_arrays(PYTHON_2, "it").tolist() == [7, 254]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    ("function", "name"), [(os.system, rf"{os.name}\.system"), (eval, r"(builtins|__builtin__)\.eval")]
)
def test_nothing_is_called(tmp_path, protocol, function, name):
    (tmp_path / "sprung.py").touch()
    argument = (
        f"rm {tmp_path}/sprung.py" if function is os.system else f"__import__('os').remove('{tmp_path}/sprung.py')"
    )
    content = pickle.dumps({0: Call(function, argument)}, protocol=protocol)
    with pytest.raises(GraphjouleError, match=rf"^The pickle ind\.x asks for {name}, which could run code; expected"):
        unpickle_arrays(content, "ind.x")
    assert (tmp_path / "sprung.py").exists()
    pickle.loads(content)
    assert not (tmp_path / "sprung.py").exists()


@pytest.mark.parametrize("content", [b"", b"<html>", PYTHON_2[:-9], b"\x80\x02cnumpy\nndarray\nU\x01x\x85R."])
def test_no_pickle_is_one_sentence(content):
    with pytest.raises(GraphjouleError, match=r"^The pickle ind\.x cannot be read \(\w+: "):
        unpickle_arrays(content, "ind.x")
