import pickle
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch_geometric.datasets
from torch_geometric.io import read_npz

from graphjoule.errors import GraphjouleError
from graphjoule.graph.features import SparseFeatures
from graphjoule.tasks import DATASETS
from graphjoule.tasks.bag_of_words import load_bag_of_words

CS, PHYSICS = DATASETS["cs"].raw, DATASETS["physics"].raw


def tiny_arrays():
    """Four authors: counts, a negative value and a duplicate in the words; a self-loop and one-way links."""
    words = sp.csr_matrix(np.zeros((4, 9), dtype=np.float32))
    words.data = np.array([2, 1, -3, 0.5, 0.25], dtype=np.float32)
    words.indices, words.indptr = np.array([0, 5, 2, 8, 8]), np.array([0, 2, 3, 5, 5])
    links = sp.csr_matrix(([1.0, 1.0, 1.0, 1.0], ([0, 1, 1, 3], [1, 1, 2, 0])), shape=(4, 4))
    arrays = {"labels": np.array([0, 1, 1, 0])}
    for name, matrix in (("adj", links), ("attr", words)):
        for piece in ("data", "indices", "indptr", "shape"):
            arrays[f"{name}_{piece}"] = np.asarray(getattr(matrix, piece))
    return arrays


@pytest.fixture
def save(tmp_path):
    """Writes arrays as a Physics file under a data root, with some of them changed."""

    def write(**changes):
        folder = PHYSICS.folder(tmp_path)
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {key: value for key, value in (tiny_arrays() | changes).items() if value is not None}
        np.savez(folder / PHYSICS.files[0], **arrays)
        return folder / PHYSICS.files[0]

    return write


def test_physics_sizes(data_root):
    task = load_bag_of_words(PHYSICS, data_root)
    assert (task.name, task.num_nodes, task.graph.num_edges) == ("physics", 34493, 247962)
    assert (task.num_features, task.out_channels) == (8415, 5)
    assert isinstance(task.features, SparseFeatures)
    assert task.features.value.unique().tolist() == [1.0]
    split = task.split(seed=2)
    assert (split.name, len(split.train), len(split.val), len(split.test)) == ("per-class-20-30", 100, 150, 34243)


def test_the_meaning_is_that_of_pygs_parser(save, tmp_path):
    data = read_npz(str(save()), to_undirected=True)
    task = load_bag_of_words(PHYSICS, tmp_path)
    assert task.features.to_dense().equal(data.x)
    assert data.x.unique().tolist() == [-3, 0, 1]
    adjacency = torch.eye(4, dtype=torch.bool)
    adjacency[data.edge_index[0], data.edge_index[1]] = True
    assert (task.graph.to_dense() > 0).equal(adjacency)
    assert task.targets.equal(data.y)


CLASSES = {
    "cs": "Coauthor",
    "physics": "Coauthor",
    "computers": "Amazon",
    "photo": "Amazon",
    "cora-ml": "CitationFull",
    "citeseer-full": "CitationFull",
    "dblp": "CitationFull",
    "pubmed-full": "CitationFull",
}
ALL = [DATASETS[name].raw for name in CLASSES]


@pytest.mark.parametrize("raw", ALL, ids=lambda raw: raw.task)
def test_our_file_folder_and_address_are_pygs(raw, tmp_path):
    base = getattr(torch_geometric.datasets, CLASSES[raw.task])
    made = []

    class Named(base):
        def _download(self):
            made.append((self.raw_paths, self.name))

        has_process, load = False, None

    with pytest.raises(TypeError):  # at load, which is not there
        Named(str(tmp_path), raw.name)
    assert made[0][0] == [str(raw.folder(tmp_path) / raw.files[0])]
    assert base.url.removesuffix("/{}.npz").rstrip("/") == raw.url


def test_every_set_of_this_layout_is_read_under_its_own_name(tmp_path):
    assert len(ALL) == 8
    for raw in ALL:
        raw.folder(tmp_path).mkdir(parents=True, exist_ok=True)
        np.savez(raw.folder(tmp_path) / raw.files[0], **tiny_arrays())
        task = load_bag_of_words(raw, tmp_path)
        assert (task.name, task.num_nodes, task.graph.num_edges) == (raw.task, 4, 3)
    assert len({raw.task for raw in ALL}) == 8


def test_without_a_public_split_the_rule_is_seeded_per_class(tmp_path):
    labels = np.repeat([0, 1], 60)
    arrays = {"labels": labels}
    for name, matrix in (("adj", sp.csr_matrix((120, 120))), ("attr", sp.csr_matrix(np.eye(120)))):
        for piece in ("data", "indices", "indptr", "shape"):
            arrays[f"{name}_{piece}"] = np.asarray(getattr(matrix, piece))
    CS.folder(tmp_path).mkdir(parents=True)
    np.savez(CS.folder(tmp_path) / CS.files[0], **arrays)
    task = load_bag_of_words(CS, tmp_path)
    first, again, other = task.split(seed=0), task.split(seed=0), task.split(seed=1)
    assert (first.name, len(first.train), len(first.val), len(first.test)) == ("per-class-20-30", 40, 60, 20)
    assert task.graph.num_edges == 0
    assert first.sha256 == again.sha256 != other.sha256


def test_a_pickle_inside_is_refused_and_not_run(save, tmp_path, trap):
    save(labels=np.array([trap] * 4, dtype=object))
    with pytest.raises(
        GraphjouleError, match=r"ms_academic_phy\.npz holds something other .* pickled objects are never"
    ):
        load_bag_of_words(PHYSICS, tmp_path)
    assert not trap.sprung.exists()


def test_a_bare_pickle_is_refused_and_not_run(save, tmp_path, trap):
    save().write_bytes(pickle.dumps(trap))
    with pytest.raises(GraphjouleError, match=r"is no readable \.npz archive"):
        load_bag_of_words(PHYSICS, tmp_path)
    assert not trap.sprung.exists()


def test_a_pickled_array_that_is_not_needed_does_no_harm(save, tmp_path, trap):
    # The original file may carry names as object arrays; they are never opened.
    save(node_names=np.array([trap], dtype=object))
    assert load_bag_of_words(PHYSICS, tmp_path).num_nodes == 4
    assert not trap.sprung.exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"attr_indptr": None}, "has no array 'attr_indptr'"),
        ({"labels": np.array(["a", "b", "c", "d"])}, "holds text; expected"),
        ({"labels": np.array([0, 1, 1])}, r"labels of task 'physics' have shape \[3\]"),
        ({"labels": np.array([0.0, 1.0, 1.0, 0.0])}, "expected an integer dtype"),
        ({"adj_indices": np.array([1, 1, 2, 9])}, r"npz: the arrays adj_\* are no sparse matrix"),
        ({"attr_indices": np.array([0, 5, 2, -8, 8])}, r"npz: the arrays attr_\* are no sparse matrix"),
        ({"adj_indices": np.array([1, 1, 2.5, 0])}, r"npz: adj_indices\[2\] is 2\.5; expected a whole number"),
        ({"labels": np.array([0, 1, 1, 2**64 - 1], dtype=np.uint64)}, "have the number 18446744073709551615; expected"),
        ({"attr_shape": np.array([4])}, r"arrays attr_\*"),
        ({"attr_data": np.array([1, 1, np.nan, 1, 1])}, "nan at node 1, column 2"),
    ],
)
def test_damaged_arrays_are_one_sentence(save, tmp_path, changes, sentence):
    save(**changes)
    with pytest.raises(GraphjouleError, match=sentence):
        load_bag_of_words(PHYSICS, tmp_path)


def test_a_cut_off_archive_is_refused(save, tmp_path):
    path = save()
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(GraphjouleError, match=r"is no readable \.npz archive"):
        load_bag_of_words(PHYSICS, tmp_path)


def test_a_member_that_is_no_array_is_refused(save, tmp_path):
    with zipfile.ZipFile(save(labels=None), "a") as archive:
        archive.writestr("labels.npy", b"hello")
    with pytest.raises(GraphjouleError, match="something other than plain arrays"):
        load_bag_of_words(PHYSICS, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
def test_physics_is_never_dense(data_root):
    code = f"""
import graphjoule.tasks as tasks, graphjoule.tasks.bag_of_words
def status(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) / 1024
before = status("VmRSS:")
tasks.load_task("physics", {str(data_root)!r})
print(status("VmHWM:") - before)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert float(done.stdout) < 300, "MB above the imports; the dense matrix alone is 1,160"
