import resource
import zipfile

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.graph.features import SparseFeatures
from graphjoule.tasks.archive import load_npz, load_npz_graph, load_npz_like
from graphjoule.tasks.objective import Classification, Regression

ADJACENCY = sp.csr_matrix(np.array([[0, 2.0, 0, 0], [0, 1, 0, 0], [0, 0.5, 0, 0], [0, 0, 0, 0]]))
FEATURES = np.arange(12.0).reshape(4, 3)
LABELS = np.array([0, 1, 1, -1])
MASK = np.arange(4)


def pieces(name, matrix):
    return {f"{name}_{piece}": getattr(matrix, piece) for piece in ("data", "indices", "indptr", "shape")}


def arrays(**changes):
    made = pieces("adj", ADJACENCY) | {"features": FEATURES, "labels": LABELS} | changes
    return {key: value for key, value in made.items() if value is not None}


def write(tmp_path, **changes):
    path = tmp_path / "graph.npz"
    np.savez(path, **arrays(**changes))
    return path


def test_an_archive_is_a_task(tmp_path):
    names = {"class_names": np.array(["cat", "dog"]), "node_ids": np.array(["w", "x", "y", "z"])}
    task = load_npz(write(tmp_path, **names))
    assert (task.name, task.objective.class_names, task.node_ids) == ("graph.npz", ("cat", "dog"), ("w", "x", "y", "z"))
    assert torch.equal(task.features, torch.from_numpy(FEATURES).float())  # as stored: not standardised
    assert task.targets.tolist() == [0, 1, 1, -1]
    assert task.graph.degree.tolist() == [2, 2.5, 0.5, 0]  # symmetric, weighted, without the self-loop
    assert task.default_split == "stratified-20-0"
    assert [file.role for file in task.source.files] == ["npz"]
    assert task.source.columns is None


def test_features_may_be_sparse_pieces_and_masks_a_split(tmp_path):
    words = sp.random(4, 40, density=0.1, random_state=0, format="csr")
    masks = {f"{part}_mask": np.arange(4) == i for i, part in enumerate(("train", "val", "test"))}
    task = load_npz(write(tmp_path, features=None, **pieces("attr", words), **masks))
    assert isinstance(task.features, SparseFeatures)
    assert np.allclose(task.features.to_dense(), words.toarray(), atol=1e-6)
    assert task.default_split == "public"
    assert task.split().val.tolist() == [1]
    assert task.node_ids == ("0", "1", "2", "3")


def test_two_masks_are_a_split_without_a_test_part_and_it_is_said(tmp_path, caplog):
    with caplog.at_level("INFO", "graphjoule"):
        task = load_npz(write(tmp_path, train_mask=MASK < 2, val_mask=MASK == 2))
    split = task.split()
    assert (split.name, split.train.tolist(), split.val.tolist(), split.test.tolist()) == ("public", [0, 1], [2], [])
    assert "its masks are the split 'public': 2 to train, 1 to validate, 0 to test" in caplog.text


def test_what_was_loaded_is_told(tmp_path, caplog):
    with caplog.at_level("INFO", "graphjoule"):
        load_npz(write(tmp_path, features=np.ones((4, 1))))
    assert "graph.npz: 2 edges between 4 nodes, 1 node without an edge" in caplog.text
    assert "graph.npz: 4 nodes, 1 feature; 3 labelled with 2 classes (0, 1), 1 to predict" in caplog.text
    assert "one labelled node alone in the class 0" in caplog.text
    assert "masks" not in caplog.text


def test_the_graph_alone_needs_the_adjacency_alone(tmp_path):
    graph = load_npz_graph(write(tmp_path, features=None, labels=None))
    assert torch.equal(graph.to_dense(), load_npz(write(tmp_path)).graph.to_dense())
    assert load_npz_graph(write(tmp_path, labels=np.zeros(2), train_mask=MASK)).num_nodes == 4  # others stay unread
    with pytest.raises(GraphjouleError, match="has no array 'adj_indptr'"):
        load_npz_graph(write(tmp_path, adj_indptr=None))


def test_a_file_that_scipy_wrote_gets_a_hint(tmp_path):
    sp.save_npz(tmp_path / "graph.npz", ADJACENCY)
    for load in (load_npz, load_npz_graph):
        with pytest.raises(GraphjouleError, match=r"scipy\.sparse\.save_npz"):
            load(tmp_path / "graph.npz")


def test_classes_without_a_label_are_kept_by_their_names(tmp_path):
    assert load_npz(write(tmp_path, class_names=np.array(["a", "b", "c"]))).out_channels == 3


def test_another_archive_needs_no_labels_and_as_many_features(tmp_path):
    given = load_npz_like(write(tmp_path, labels=None), 3, Classification(2))
    assert given.targets.tolist() == [-1] * 4
    with pytest.raises(GraphjouleError, match=r"graph.npz has 3 features; the model was trained with 5\."):
        load_npz_like(write(tmp_path), 5, Classification(2))


def test_whole_numbers_may_be_stored_as_floats(tmp_path):
    floats = {f"adj_{key}": np.array(getattr(ADJACENCY, key), dtype=float) for key in ("indices", "indptr", "shape")}
    assert load_npz(write(tmp_path, **floats)).facts().sha256 == load_npz(write(tmp_path)).facts().sha256


BAD = {
    "no labels": ({"labels": None}, "has no array 'labels'"),
    "no adjacency": ({"adj_indptr": None}, "has no array 'adj_indptr'"),
    "no features": ({"features": None}, "has no array 'attr_data'"),
    "text as features": ({"features": np.array([["a"]] * 4)}, "The array 'features' of"),
    "labels with fractions": ({"labels": LABELS + 0.5}, "graph.npz holds float64; expected whole numbers."),
    "labels of text": ({"labels": np.array(list("abca"))}, "graph.npz holds text; expected whole numbers."),
    "masks of numbers": ({"train_mask": np.ones(4)}, "graph.npz holds float64; expected booleans."),
    "flat features": ({"features": np.ones(4)}, "features has shape [4]; expected [num_nodes, num_features]"),
    "too few features": ({"features": np.ones((3, 2))}, "features is for [3] nodes; expected 4"),
    "too few labels": ({"labels": LABELS[:3]}, "labels is for [3] nodes; expected 4"),
    "too few names": ({"node_ids": np.array(["a"])}, "node_ids is for [1] nodes; expected 4"),
    "not square": ({"adj_shape": np.array([4, 9])}, "adj is for [9] nodes; expected 4"),
    "index outside": ({"adj_indices": ADJACENCY.indices + 7}, "the arrays adj_* are no sparse matrix"),
    "negative index": ({"adj_indices": ADJACENCY.indices - 7}, "the arrays adj_* are no sparse matrix"),
    "rows that run backwards": ({"adj_indptr": np.array([0, 3, 1, 3, 3])}, "the arrays adj_* are no sparse matrix"),
    "one size": ({"adj_shape": np.array([4])}, "the arrays adj_* are no sparse matrix"),
    "index with a fraction": (
        {"adj_indices": ADJACENCY.indices + 0.7},
        "adj_indices[0] is 1.7; expected a whole number",
    ),
    "row starts with fractions": ({"adj_indptr": ADJACENCY.indptr + 0.5}, "adj_indptr[0] is 0.5; expected a whole"),
    "sizes with fractions": ({"adj_shape": np.array([4.9, 4.9])}, "adj_shape[0] is 4.9; expected a whole number"),
    "indices of booleans": ({"adj_indices": ADJACENCY.indices > 0}, "graph.npz holds bool; expected numbers."),
    "index beyond int64": (
        {"adj_indices": ADJACENCY.indices.astype(np.uint64) + np.uint64(2**64 - 2)},
        f"adj_indices[0] is {2**64 - 1}; expected a whole number",
    ),
    "label beyond int64": (
        {"labels": np.array([0, 1, 1, 2**64 - 1], dtype=np.uint64)},
        f"labels[3] is {2**64 - 1}; expected a whole number",
    ),
    "weights too large": ({"adj_data": np.full(3, 1e308)}, "weights of the edges at node 1 add up to more than"),
    "equal class names": ({"class_names": np.array([7, 7])}, "classes 0 and 1 of task 'graph.npz' are both called '7'"),
    "negative labels": ({"labels": np.full(len(LABELS), -5)}, "labels holds -5; expected the classes 0, 1, 2"),
    "negative weight": ({"adj_data": -ADJACENCY.data}, "adj_data[0] is -2.0; weights must be finite"),
    "NaN": ({"features": FEATURES * np.nan}, "The features hold nan at node 0, column 0"),
    "one class": ({"labels": np.zeros(4, dtype=int)}, "labels holds one class, 0; at least two are needed"),
    "one class name": ({"class_names": np.array(["a"])}, "class_names has shape [1]; expected a list of two names"),
    "ids twice": ({"node_ids": np.array(list("abcb"))}, "node_ids[3] is 'b', and so is node_ids[1]; ids must differ"),
    "train mask alone": ({"train_mask": MASK == 0}, "There is train_mask but no val_mask; expected"),
    "no validation mask": (
        {"train_mask": MASK == 0, "test_mask": MASK == 1},
        "There is train_mask and test_mask but no val_mask",
    ),
    "no train mask": ({"val_mask": MASK == 0, "test_mask": MASK == 1}, "but no train_mask"),
    "masks overlap": (
        {"train_mask": MASK == 0, "val_mask": MASK < 2},
        "names node 0 twice, in train and in val; the parts must not overlap",
    ),
    "mask too short": ({"train_mask": MASK[:3] == 0, "val_mask": MASK == 1}, "train_mask is for [3] nodes; expected 4"),
    "mask of an unlabelled node": ({"train_mask": MASK == 3, "val_mask": MASK == 1}, "whose target is unknown"),
    "a matrix of SciPy's": (
        {piece: np.ones(1) for piece in ("data", "indices", "indptr", "shape")}
        | {f"adj_{piece}": None for piece in ("data", "indices", "indptr", "shape")},
        "as scipy.sparse.save_npz writes it; save its data, indices, indptr, shape as adj_data, adj_indices",
    ),
    "no label known": ({"labels": np.full(4, -1)}, "no label"),
    "label below -1": ({"labels": np.array([0, 1, -3, 0])}, "The label of node 2"),
}


@pytest.mark.parametrize(("changes", "said"), BAD.values(), ids=BAD)
def test_a_bad_archive_is_one_sentence(tmp_path, changes, said):
    with pytest.raises(GraphjouleError) as caught:
        load_npz(write(tmp_path, **changes))
    assert said in str(caught.value)
    assert "graph.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["labels", "features", "adj_data", "class_names", "node_ids", "train_mask"])
def test_a_pickle_in_an_archive_is_refused_and_never_run(tmp_path, trap, key):
    path = write(tmp_path, **{key: np.array([trap] * 4, dtype=object)})
    with pytest.raises(GraphjouleError, match="pickled objects are never loaded"):
        load_npz(path)
    with pytest.raises(GraphjouleError, match="pickled objects are never loaded"):
        load_npz_like(path, 3, Classification(2))
    assert not trap.sprung.exists()


@pytest.mark.parametrize("content", [b"no archive", b"PK\x03\x04", b"\x93NUMPY"])
def test_a_file_that_is_no_archive(tmp_path, content):
    (tmp_path / "graph.npz").write_bytes(content)
    with pytest.raises(GraphjouleError, match=r"graph.npz is no readable \.npz archive"):
        load_npz(tmp_path / "graph.npz")


def test_an_array_that_claims_to_be_larger_than_the_memory(tmp_path):
    path = write(tmp_path, labels=None)
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (100000000000000,), }"
    header += b" " * (64 - (10 + len(header) + 1) % 64) + b"\n"
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("labels.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(GraphjouleError, match=r"graph\.npz"):
        load_npz(path)


def bombs(folder):
    """Small archives that would fill the memory, by name."""
    for name, method, size in (
        ("bz2", zipfile.ZIP_BZIP2, 1),  # with either of these, one step may unpack all
        ("lzma", zipfile.ZIP_LZMA, 1),
        ("deflate", zipfile.ZIP_DEFLATED, 280),
    ):
        path = write(folder, features=None)
        packed = zipfile.ZipFile(path, "a", method)
        with packed as archive, archive.open("features.npy", "w") as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": "<f8", "fortran_order": False, "shape": (4, size * 31_250)}
            )
            for _ in range(size):
                file.write(bytes(1_000_000))
        yield name, path
    yield "a class", write(folder, labels=np.array([0, 1, 1, 300_000_000]))
    words = pieces("attr", sp.csr_matrix((np.ones(1), ([0], [0])), shape=(4, 10))) | {"attr_shape": [4, 10**9]}
    yield "columns", write(folder, features=None, **words)


def test_small_archives_that_would_fill_the_memory_are_refused(tmp_path):
    limit = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + 2**18  # KiB
    for name, path in bombs(tmp_path):
        assert path.stat().st_size < 2**20
        with pytest.raises(GraphjouleError, match=r"graph\.npz"):
            load_npz(path)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < limit, name


def test_a_folder_and_no_file(tmp_path):
    with pytest.raises(GraphjouleError, match="is a folder; expected a file"):
        load_npz(tmp_path)
    with pytest.raises(GraphjouleError, match="There is no file"):
        load_npz(tmp_path / "no.npz")


# Numbers instead of classes.

TARGETS = np.array([1.5, np.nan, -2.0, 0.25])


def test_targets_are_a_regression(tmp_path, caplog):
    with caplog.at_level("INFO", "graphjoule"):
        task = load_npz(write(tmp_path, labels=None, targets=TARGETS), loss="absolute", objective="regression")
    assert task.objective == Regression(1, "absolute")
    assert task.targets.dtype == torch.get_default_dtype()
    assert task.is_known.tolist() == [True, False, True, True]
    assert "graph.npz: 4 nodes, 3 features; 3 with a number from -2 to 1.5, 1 to predict" in caplog.text
    two = load_npz(write(tmp_path, labels=None, targets=np.ones((4, 2)), target_names=np.array(["a", "b"])))
    assert two.objective == Regression(2, "squared", ("a", "b"))
    column = load_npz(write(tmp_path, labels=None, targets=TARGETS[:, None]))
    assert column.targets.shape == (4,)


def test_labels_and_targets_need_a_word(tmp_path):
    path = write(tmp_path, targets=TARGETS)
    with pytest.raises(GraphjouleError, match="has both labels and targets; say `objective="):
        load_npz(path)
    assert load_npz(path, objective="regression").objective == Regression(1)
    assert load_npz(path, objective="classification").objective == Classification(2)
    with pytest.raises(GraphjouleError, match="has no array 'targets'"):
        load_npz(write(tmp_path), objective="regression")


def test_another_archive_of_a_regression(tmp_path):
    assert load_npz_like(write(tmp_path, labels=None), 3, Regression(1)).targets.isnan().all()
    given = load_npz_like(write(tmp_path, targets=TARGETS), 3, Regression(1))
    assert given.targets[0] == 1.5
    with pytest.raises(GraphjouleError, match=r"targets has shape \[4\]; the model predicts 2 numbers per node"):
        load_npz_like(write(tmp_path, targets=TARGETS), 3, Regression(2))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"targets": TARGETS * np.inf}, "The target of node 0 in task 'graph.npz' is infinite"),
        ({"targets": TARGETS * np.nan}, "has no target: all 4 are NaN"),
        ({"targets": TARGETS[:3]}, "targets is for [3] nodes; expected 4"),
        ({"targets": np.array(list("abcd"))}, "holds text; expected numbers"),
        ({"targets": TARGETS, "target_names": np.array(["a", "b"])}, "has 1 targets but 2 target names"),
    ],
)
def test_bad_targets_are_one_sentence(tmp_path, changes, said):
    with pytest.raises(GraphjouleError) as caught:
        load_npz(write(tmp_path, labels=None, **changes))
    assert said in str(caught.value)


def test_an_archive_of_a_later_version_of_zip_is_refused(tmp_path):
    path = write(tmp_path)
    data = path.read_bytes()
    at = data.index(b"PK\x01\x02") + 6  # of the first file in the list: the version that is needed to unpack it
    path.write_bytes(data[:at] + bytes([200]) + data[at + 1 :])
    with pytest.raises(GraphjouleError, match=r"is no readable \.npz archive \(zip file version 20\.0\)"):
        load_npz(path)
