import gzip
import hashlib
import shutil
import zipfile
from dataclasses import replace

import pytest
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.download import Remote
from graphjoule.tasks.ogb import ARXIV, Sizes, load_ogb
from reproduction.bench import CitationGraph
from reproduction.experiments.synthetic_arxiv import write_ogb

NODES, EDGES, FEATURES, CLASSES = 40, 60, 5, 3
MINI = replace(ARXIV, sizes=Sizes(NODES, EDGES, FEATURES, CLASSES, (21, 7, 12)))


@pytest.fixture
def written():
    """What the miniature in OGB's layout was written from."""
    return CitationGraph(NODES, EDGES, FEATURES, CLASSES).task("mini")


@pytest.fixture
def root(written, tmp_path):
    """A data root with the miniature as a folder."""
    write_ogb(written, tmp_path / "arxiv")
    return tmp_path


@pytest.fixture
def zipped(root):
    """A data root with the miniature as a zip, as OGB publishes it."""
    shutil.make_archive(str(root / "arxiv"), "zip", root, "arxiv")
    shutil.rmtree(root / "arxiv")
    return root


def rewrite(path, change):
    path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()).decode()).encode()))


def same(task, written):
    assert (task.name, task.out_channels, task.objective.class_names) == ("arxiv", CLASSES, None)
    torch.testing.assert_close(task.features, written.features, atol=1e-6, rtol=0)
    assert task.features.dtype == torch.float32
    assert task.targets.equal(written.targets)
    assert task.graph.to_dense().equal(written.graph.to_dense())
    assert task.default_split == "public"
    assert task.split().sha256 == written.split("public").sha256


def test_a_folder_is_read(root, written):
    same(load_ogb(MINI, root), written)


def test_the_folder_that_ogbs_package_makes_is_read(root, written):
    (root / "arxiv").rename(root / "ogbn_arxiv")
    same(load_ogb(MINI, root), written)


def test_a_zip_is_read_and_not_unpacked(zipped, written):
    before = (zipped / "arxiv.zip").stat().st_mtime_ns
    same(load_ogb(MINI, zipped), written)
    assert [path.name for path in zipped.iterdir()] == ["arxiv.zip"]
    assert (zipped / "arxiv.zip").stat().st_mtime_ns == before


def test_a_folder_that_is_not_whole_does_not_hide_the_zip(zipped, written):
    (zipped / "arxiv" / "raw").mkdir(parents=True)
    same(load_ogb(MINI, zipped), written)


def test_a_citation_counts_in_both_directions_and_once(root):
    # One citation turned round, one given both ways, one of a paper by itself.
    def change(text):
        lines = text.splitlines()
        source, target = lines[0].split(",")
        return (
            "\n".join([f"{target},{source}", lines[1], ",".join(lines[1].split(",")[::-1]), "7,7", *lines[4:]]) + "\n"
        )

    rewrite(root / "arxiv/raw/edge.csv.gz", change)
    graph = load_ogb(MINI, root).graph
    assert graph.num_edges == EDGES - 2
    assert graph.to_dense().equal(graph.to_dense().T)


def test_features_take_the_default_dtype(root):
    torch.set_default_dtype(torch.float64)
    try:
        assert load_ogb(MINI, root).features.dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_graph_without_citations(root):
    rewrite(root / "arxiv/raw/edge.csv.gz", lambda text: "")
    rewrite(root / "arxiv/raw/num-edge-list.csv.gz", lambda text: "0\n")
    task = load_ogb(replace(MINI, sizes=replace(MINI.sizes, num_edges=0)), root)
    assert task.graph.num_edges == 0


def test_classes_have_arxivs_names_where_the_file_is_there(root):
    path = root / "arxiv" / ARXIV.class_names
    path.parent.mkdir()
    path.write_bytes(gzip.compress(b"label idx,arxiv category\n0,arxiv cs na\n1,arxiv cs mm\n2,something else\n"))
    assert load_ogb(MINI, root).objective.class_names == ("cs.NA", "cs.MM", "something else")
    path.write_bytes(gzip.compress(b"label idx,arxiv category\n0,arxiv cs na\n"))
    assert load_ogb(MINI, root).objective.class_names is None
    path.write_bytes(b"no gzip")
    with pytest.raises(GraphjouleError, match=r"labelidx2arxivcategeory\.csv\.gz cannot be read"):
        load_ogb(MINI, root)


@pytest.mark.parametrize(
    ("file", "change", "sentence"),
    [
        ("raw/num-node-list", lambda text: "41\n", r"num-node-list\.csv\.gz says 41 nodes; arxiv has 40\."),
        ("raw/num-edge-list", lambda text: "1\n", r"num-edge-list\.csv\.gz says 1 edges; arxiv has 60\."),
        ("raw/edge", lambda text: text + "1,2\n", r"edge\.csv\.gz has more than the 60 lines expected"),
        ("raw/edge", lambda text: "0,40\n" + text.partition("\n")[2], r"Line 1, column 2 of .*edge\.csv\.gz is '40'"),
        ("raw/node-label", lambda text: "3\n" + text.partition("\n")[2], "is '3'; expected a whole number from 0 to 2"),
        ("raw/node-label", lambda text: text.partition("\n")[2], "it has 39 lines, expected 40"),
        ("raw/node-feat", lambda text: "a" + text, r"Line 1, column 1 of .*node-feat\.csv\.gz is 'a"),
        ("raw/node-feat", lambda text: "1," + text, r"Line 1 of .*node-feat\.csv\.gz has 6 values; expected 5"),
        ("split/time/valid", lambda text: text.partition("\n")[2], "valid.csv.gz cannot be read: it has 6 lines"),
        ("split/time/test", lambda text: text.splitlines()[1] + "\n" + text.partition("\n")[2], "twice"),
    ],
)
@pytest.mark.parametrize("is_zipped", [False, True])
def test_a_malformed_file_is_named_with_its_line(root, file, change, sentence, is_zipped):
    rewrite(root / "arxiv" / f"{file}.csv.gz", change)
    if is_zipped:
        shutil.make_archive(str(root / "arxiv"), "zip", root, "arxiv")
        shutil.rmtree(root / "arxiv")
    with pytest.raises(GraphjouleError, match=sentence) as caught:
        load_ogb(MINI, root)
    assert "\n" not in str(caught.value)


def test_another_graph_is_not_taken_for_ogbn_arxiv(root):
    with pytest.raises(GraphjouleError, match=r"num-node-list\.csv\.gz says 40 nodes; arxiv has 169,343\."):
        load_ogb(ARXIV, root)


def test_a_zip_that_is_none_or_lacks_a_file_is_one_sentence(zipped):
    path = zipped / "arxiv.zip"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            if not name.endswith("edge.csv.gz"):
                archive.writestr(name, data)
    with pytest.raises(GraphjouleError, match=r"The archive .*arxiv\.zip has no file arxiv/raw/edge\.csv\.gz\."):
        load_ogb(MINI, zipped)
    path.write_bytes(b"<html>")
    with pytest.raises(GraphjouleError, match=r"arxiv\.zip is no readable zip archive"):
        load_ogb(MINI, zipped)


def test_a_changed_byte_in_a_zip_is_noticed(zipped):
    path = zipped / "arxiv.zip"
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("arxiv/raw/node-feat.csv.gz")
    data = bytearray(path.read_bytes())
    data[info.header_offset + len(info.filename) + 30 + info.compress_size // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(GraphjouleError, match=r"node-feat\.csv\.gz"):
        load_ogb(MINI, zipped)


def test_names_in_a_zip_are_no_paths_to_write(zipped, written):
    with zipfile.ZipFile(zipped / "arxiv.zip", "a") as archive:
        archive.writestr("../../escaped.txt", b"out")
        archive.writestr("/tmp/escaped-absolute.txt", b"out")
        archive.writestr("arxiv/../../../escaped.txt", b"out")
    same(load_ogb(MINI, zipped), written)
    assert [path.name for path in zipped.iterdir()] == ["arxiv.zip"]
    assert not (zipped.parent / "escaped.txt").exists()


def test_a_missing_archive_is_downloaded_checked_and_read(zipped, written, tmp_path):
    data = (zipped / "arxiv.zip").read_bytes()
    remote = Remote(f"file://{zipped}/arxiv.zip", len(data), hashlib.sha256(data).hexdigest())
    files, root = replace(MINI, remote=remote), tmp_path / "new" / "root"
    assert files.missing(root) == [root / "arxiv.zip"]
    same(load_ogb(files, root), written)
    assert [path.name for path in root.iterdir()] == ["arxiv.zip"]
    assert files.missing(root) == []
    (zipped / "arxiv.zip").unlink()
    same(load_ogb(files, root), written)  # and not downloaded again


def test_a_wrong_download_leaves_nothing(zipped, tmp_path):
    remote = Remote(f"file://{zipped}/arxiv.zip", (zipped / "arxiv.zip").stat().st_size, "0" * 64)
    root = tmp_path / "new" / "root"
    with pytest.raises(
        GraphjouleError,
        match=rf"The file {root}/arxiv\.zip is missing and could not be downloaded \(The file file://.* has SHA-256 "
        r"\w{64}, expected 0{64}\.\); let --data-root or GRAPHJOULE_DATA name a folder that holds arxiv\.zip\.",
    ):
        load_ogb(replace(MINI, remote=remote), root)
    assert not root.parent.exists()


def test_the_address_is_ogbs_and_every_file_of_its_layout_is_needed():
    assert ARXIV.remote.url == "https://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"
    assert len(ARXIV.remote.sha256) == 64
    assert sum(ARXIV.sizes.split) == ARXIV.sizes.num_nodes
    assert set(ARXIV.files) == {
        *(f"raw/{name}.csv.gz" for name in ("edge", "node-feat", "node-label", "num-node-list", "num-edge-list")),
        *(f"split/time/{name}.csv.gz" for name in ("train", "valid", "test")),
    }
