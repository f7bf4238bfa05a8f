import gzip
import hashlib
import shutil
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.tasks import DATASETS
from graphjoule.tasks.datasets import OgbSizes
from graphjoule.tasks.ogb import load_ogb, read_numbers
from reproduction.bench import CitationGraph
from reproduction.experiments.synthetic_arxiv import write_ogb
from tests.graphs import few

NODES, EDGES, FEATURES, CLASSES = 40, 60, 5, 3
ARXIV = DATASETS["arxiv"].raw
MINI = replace(ARXIV, sizes=OgbSizes(NODES, EDGES, FEATURES, CLASSES, (21, 7, 12)))


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
        ("raw/edge", lambda text: text + "1,2\n", r"edge\.csv\.gz cannot be read: it has 61 lines, expected 60"),
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


def test_a_missing_archive_is_downloaded_checked_and_read(serve, zipped, written, tmp_path):
    sha256 = hashlib.sha256((zipped / "arxiv.zip").read_bytes()).hexdigest()
    files, root = replace(MINI, url=serve(zipped), sha256=sha256), tmp_path / "new" / "root"
    assert files.missing(root) == [root / "arxiv.zip"]
    same(load_ogb(files, root), written)
    assert [path.name for path in root.iterdir()] == ["arxiv.zip"]
    assert files.missing(root) == []
    (zipped / "arxiv.zip").unlink()
    same(load_ogb(files, root), written)  # and not downloaded again


def test_a_wrong_download_leaves_nothing(serve, zipped, tmp_path):
    root = tmp_path / "new" / "root"
    with pytest.raises(
        GraphjouleError,
        match=rf"The file {root}/arxiv\.zip is missing and could not be downloaded \(ValueError: SHA256 hash of "
        r"downloaded file \(arxiv\.zip\) does not match the known hash: expected 0{64} but got \w{64}\. .*\); let "
        r"`data_root` or GRAPHJOULE_DATA name a folder that holds arxiv\.zip\.",
    ):
        load_ogb(replace(MINI, url=serve(zipped), sha256="0" * 64), root)
    assert not root.parent.exists()


def test_the_address_is_ogbs_and_every_file_of_its_layout_is_needed():
    assert f"{ARXIV.url}/{ARXIV.name}.zip" == "https://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"
    assert len(ARXIV.sha256) == 64
    assert sum(ARXIV.sizes.split) == ARXIV.sizes.num_nodes
    assert set(ARXIV.files) == {
        *(f"raw/{name}.csv.gz" for name in ("edge", "node-feat", "node-label", "num-node-list", "num-edge-list")),
        *(f"split/time/{name}.csv.gz" for name in ("train", "valid", "test")),
    }


# One table.


@pytest.fixture
def save(tmp_path):
    def write(content, name="table.csv.gz"):
        content = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(gzip.compress(content))
        return tmp_path / name

    return write


def refused(file, rows, **more):
    with pytest.raises(GraphjouleError) as caught:
        read_numbers(file, rows, **more)
    sentence = str(caught.value)
    assert str(file) in sentence
    assert "\n" not in sentence
    return sentence.replace(str(file), "FILE")


def test_numbers_with_a_fraction_are_float32(save):
    table = read_numbers(save("0.5,-1e-3\n+2,3.25\n"), rows=2, columns=2)
    assert table.dtype == np.float32
    assert table.tolist() == [[0.5, np.float32(-1e-3)], [2.0, 3.25]]


def test_whole_numbers_are_int64(save):
    table = read_numbers(save("0\n7\n"), rows=2, below=8)
    assert table.dtype == np.int64
    assert table.tolist() == [[0], [7]]


@pytest.mark.parametrize("text", ["1,2\r\n3,4\r\n", "1,2\n3,4", " 1, 2\n3,4 \n"])
def test_line_ends_and_blanks_around_numbers_do_not_matter(save, text):
    assert read_numbers(save(text), rows=2, columns=2, below=9).tolist() == [[1, 2], [3, 4]]


@given(
    st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3), max_size=5)
)
@few
def test_what_is_written_is_read(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("numbers") / "table.csv.gz"
    path.write_bytes(gzip.compress("".join(",".join(map(repr, row)) + "\n" for row in rows).encode()))
    table = read_numbers(path, rows=len(rows), columns=3)
    assert table.shape == (len(rows), 3)
    assert table.tolist() == rows


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1,2\n3,x\n", "Line 2, column 2 of FILE is 'x'; expected a whole number from 0 to 9."),
        ("1,2\n3,4.0\n", "Line 2, column 2 of FILE is '4.0'; expected a whole number from 0 to 9."),
        ("1,2\n3,10\n", "Line 2, column 2 of FILE is '10'; expected a whole number from 0 to 9."),
        ("-1,2\n3,4\n", "Line 1, column 1 of FILE is '-1'; expected a whole number from 0 to 9."),
        ("1,2\n3,99999999999999999999\n", "Line 2, column 2 of FILE is '99999999999999999999'; expected a whole"),
        ("1,2\n3,\n", "Line 2, column 2 of FILE is ''; expected a whole number"),
        ("1,2\n3,\xe9\n", "Line 2, column 2 of FILE is 'é'; expected a whole"),
        ("1,2\n3\n", "Line 2 of FILE has 1 values; expected 2 divided by commas."),
        ("1,2,3\n4,5,6\n", "Line 1 of FILE has 3 values; expected 2 divided by commas."),
        ("1,2\n\n3,4\n", "Line 2, column 1 of FILE is ''; expected a whole number"),
        ("1,2\n\n", "Line 2, column 1 of FILE is ''; expected a whole number"),
        ("1,2\n", "The file FILE cannot be read: it has 1 lines, expected 2."),
        ("", "The file FILE cannot be read: it has 0 lines, expected 2."),
        ("1,2\n3,4\n5,6\n", "The file FILE cannot be read: it has 3 lines, expected 2."),
        ("1,2\n#3,4\n", "Line 2, column 1 of FILE is '#3'; expected a whole"),
        ("1,2\n3,0_1\n", "Line 2, column 2 of FILE is '0_1'; expected a whole"),
    ],
)
def test_a_wrong_line_is_named(save, text, sentence):
    assert refused(save(text), rows=2, columns=2, below=10).startswith(sentence)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "", "one"])
def test_a_number_that_is_none_is_named(save, value):
    sentence = refused(save(f"0.5,1\n2,{value}\n"), rows=2, columns=2)
    assert sentence == f"Line 2, column 2 of FILE is {value!r}; expected a finite number."


@pytest.mark.parametrize("content", [b"1", b"1\n"], ids=["a line without end", "lines without end"])
def test_no_more_is_unpacked_than_the_lines_can_have(save, monkeypatch, content):
    read, seen = gzip.GzipFile.read, []
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, size=-1: seen.append(size) or read(self, size))
    said = refused(save(content * 10_000_000), rows=3, below=10)
    assert said == "The file FILE unpacks to more than 160 bytes; expected 3 lines."
    assert seen == [161]


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-12], lambda data: b"1,2\n", lambda data: b"", lambda data: data[:20] + b"\0" + data[21:]],
    ids=["cut", "not gzip", "empty", "changed"],
)
def test_a_damaged_file_is_one_sentence(save, damage):
    path = save("".join(f"{i},{i % 7}\n" for i in range(1000)))
    path.write_bytes(damage(path.read_bytes()))
    assert refused(path, rows=1000, columns=2, below=1000).startswith(
        ("The file FILE is no readable .csv.gz file", "The file FILE cannot be read: it has 0 lines")
    )


def test_a_missing_file_or_a_folder_is_one_sentence(tmp_path):
    assert "no readable .csv.gz file ([Errno 2] No such file" in refused(tmp_path / "gone.csv.gz", rows=1)
    (tmp_path / "folder.csv.gz").mkdir()
    assert "no readable .csv.gz file ([Errno 21] Is a directory" in refused(tmp_path / "folder.csv.gz", rows=1)


def test_a_member_of_a_zip_is_read_in_place(save, tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.write(save("1,2\n3,4\n"), "inside/table.csv.gz")
    member = zipfile.Path(tmp_path / "all.zip", "inside/") / "table.csv.gz"
    assert read_numbers(member, rows=2, columns=2, below=9).tolist() == [[1, 2], [3, 4]]
    sentence = refused(member, rows=2, columns=2, below=4)
    assert sentence == "Line 2, column 2 of FILE is '4'; expected a whole number from 0 to 3."
