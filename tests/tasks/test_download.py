import hashlib
import logging
import shutil
import sys
from dataclasses import replace

import pytest
import requests

from graphjoule.errors import GraphjouleError
from graphjoule.tasks import DATASETS
from graphjoule.tasks.bag_of_words import load_bag_of_words
from graphjoule.tasks.download import download
from graphjoule.tasks.planetoid import load_planetoid
from graphjoule.tasks.several_splits import load_wikics

CORA, PHYSICS, WIKICS = (DATASETS[name].raw for name in ("cora", "physics", "wikics"))
LOADERS = [(load_planetoid, CORA), (load_bag_of_words, PHYSICS)]
CONTENT = bytes(range(256)) * 4096  # 1 MiB, several chunks
SHA256 = hashlib.sha256(CONTENT).hexdigest()
FAILURES = [
    requests.ConnectionError("[Errno -3] Temporary failure in name resolution"),
    requests.HTTPError("404 Client Error: Not\nFound"),
    requests.exceptions.ChunkedEncodingError("Connection broken"),
    requests.Timeout(),
    FileNotFoundError("https://x"),
    OSError(28, "No space left on device"),
]


def fail_with(monkeypatch, error):
    def get(self, url, output_file, pooch, check_only=False):
        # A download breaks off after something has arrived.
        with open(output_file, "wb") as stream:  # noqa: PTH123
            stream.write(b"half")
        raise error

    monkeypatch.setattr("pooch.HTTPDownloader.__call__", get)
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)


@pytest.mark.parametrize(("load", "raw"), LOADERS, ids=["cora", "physics"])
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_failed_download_is_one_sentence_and_leaves_nothing(monkeypatch, tmp_path, load, raw, error):
    fail_with(monkeypatch, error)
    root = tmp_path / "new" / "root"
    with pytest.raises(GraphjouleError) as caught:
        load(raw, root)
    sentence = str(caught.value)
    assert str(raw.folder(root) / raw.files[0]) in sentence
    assert type(error).__name__ in sentence
    assert "`data_root`" in sentence
    assert "GRAPHJOULE_DATA" in sentence
    assert "\n" not in sentence
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("load", "raw"), LOADERS, ids=["cora", "physics"])
def test_missing_files_are_downloaded_and_nothing_else_is_left(serve, data_root, tmp_path, capsys, load, raw):
    root = tmp_path / "root"
    served = replace(raw, url=serve(raw.folder(data_root)))
    assert load(served, root).split().sha256 == load(raw, data_root).split().sha256
    assert {path.name for path in raw.folder(root).iterdir()} == set(raw.files)
    assert [path.name for path in root.iterdir()] == [raw.name]
    assert [path.name for path in (root / raw.name).iterdir()] == ["raw"]
    assert capsys.readouterr() == ("", "")


def test_files_that_are_there_are_kept(serve, data_root, tmp_path):
    shutil.copytree(CORA.folder(data_root), CORA.folder(tmp_path))
    CORA.folder(tmp_path).chmod(0o755)
    (CORA.folder(tmp_path) / "ind.cora.y").unlink()
    kept = {path: path.stat().st_ino for path in CORA.folder(tmp_path).iterdir()}
    assert load_planetoid(replace(CORA, url=serve(CORA.folder(data_root))), tmp_path).num_nodes == 2708
    assert {path: path.stat().st_ino for path in kept} == kept


def test_files_that_are_there_need_no_network(monkeypatch, data_root):
    fail_with(monkeypatch, requests.ConnectionError("no network"))
    assert load_planetoid(CORA, data_root).num_nodes == 2708


def test_a_wrong_download_never_reaches_the_data_root(serve, data_root, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(CORA.folder(data_root), source)
    (source / "ind.cora.tx").chmod(0o644)
    (source / "ind.cora.tx").write_bytes(b"<html>Sign in to the hotel's network</html>")
    with pytest.raises(
        GraphjouleError, match=r"could not be downloaded \(ValueError: SHA256 hash of downloaded file \(ind\.cora\.tx\)"
    ):
        load_planetoid(replace(CORA, url=serve(source)), tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_a_wrong_physics_download_never_reaches_the_data_root(serve, tmp_path):
    (tmp_path / PHYSICS.files[0]).write_bytes(b"<html>")
    with pytest.raises(GraphjouleError, match=r"could not be downloaded \(The file http://.* is no readable \.npz"):
        load_bag_of_words(replace(PHYSICS, url=serve(tmp_path)), tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_a_wrong_wikics_download_never_reaches_the_data_root(serve, tmp_path):
    (tmp_path / "data.json").write_text("{}")
    with pytest.raises(GraphjouleError, match=r"\(The file http://.*/data\.json has no list 'features'"):
        load_wikics(replace(WIKICS, url=serve(tmp_path)), tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_a_data_root_that_cannot_be_written_is_one_sentence(tmp_path):
    # A file in its place stops a superuser too, whom permissions would not.
    (tmp_path / "root").write_text("in the way")
    with pytest.raises(GraphjouleError, match=r"root/Cora/raw/ind\.cora\.\w+ is missing .* \(FileExistsError"):
        load_planetoid(CORA, tmp_path / "root")
    assert (tmp_path / "root").read_text() == "in the way"


def test_a_read_only_data_root_is_one_sentence(monkeypatch, tmp_path):
    def refuse(*args, **kwargs):
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(GraphjouleError, match=r"could not be downloaded \(PermissionError: \[Errno 30\] Read-only"):
        load_planetoid(CORA, tmp_path)
    assert list(tmp_path.iterdir()) == []


# The download itself, from a server on this machine.


@pytest.fixture
def web(tmp_path):
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "file.zip").write_bytes(CONTENT)
    return folder


def test_a_file_is_downloaded_and_it_is_said(serve, web, tmp_path, caplog):
    url = serve(web)
    with caplog.at_level(logging.INFO, "graphjoule"):
        download(url, {"file.zip": SHA256}, tmp_path / "root", tmp_path / "root")
    assert (tmp_path / "root" / "file.zip").read_bytes() == CONTENT
    assert caplog.messages == [f"Downloading {url}/file.zip"]


def test_a_broken_connection_is_tried_again(serve, web, tmp_path, monkeypatch):
    asked = []
    get = requests.get

    def break_twice(url, **options):
        asked.append(url)
        if len(asked) < 3:
            raise requests.ConnectionError("broken")
        return get(url, **options)

    monkeypatch.setattr(requests, "get", break_twice)
    download(serve(web), {"file.zip": SHA256}, tmp_path / "root", tmp_path / "root")
    assert (tmp_path / "root" / "file.zip").read_bytes() == CONTENT
    assert len(asked) == 3


def test_a_file_that_is_cut_off_is_refused(serve, web, tmp_path):
    (web / "file.zip").write_bytes(CONTENT[:-1])
    with pytest.raises(GraphjouleError, match="does not match the known hash"):
        download(serve(web), {"file.zip": SHA256}, tmp_path / "root", tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_a_file_that_is_not_on_the_server(serve, web, tmp_path):
    with pytest.raises(GraphjouleError, match=r"\(HTTPError: 404 Client Error: File not found"):
        download(serve(web), {"other.zip": None}, tmp_path / "root", tmp_path / "root")


def test_a_terminal_sees_a_bar(serve, web, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    download(serve(web), {"file.zip": SHA256}, tmp_path / "root", tmp_path / "root")
    captured = capsys.readouterr()
    assert "1.05M/1.05M" in captured.err
    assert captured.out == ""
