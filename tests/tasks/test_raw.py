import shutil
from dataclasses import replace
from urllib.error import HTTPError, URLError

import aiohttp
import pytest
from torch_geometric.datasets import CitationFull, Coauthor, Planetoid, WikiCS

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.planetoid import CORA, load_planetoid
from graphjoule.tasks.wikics import WIKICS, load_wikics
from graphjoule.tasks.words import CORA_ML, PHYSICS, load_words

REQUEST = aiohttp.RequestInfo("https://x", "GET", {}, "https://x")  # type: ignore[arg-type]
FAILURES = [
    URLError("[Errno -3] Temporary failure in name resolution"),
    HTTPError("https://x", 404, "Not Found", {}, None),  # type: ignore[arg-type]
    aiohttp.ClientConnectionError("Cannot connect to host github.com:443"),
    aiohttp.ClientResponseError(REQUEST, (), status=503, message="Service\nUnavailable"),
    FileNotFoundError("https://x"),
    TimeoutError(),
    OSError(28, "No space left on device"),
]


@pytest.fixture
def mirror(data_root, monkeypatch):
    """Lets PyG download from the local raw files instead of the network."""
    monkeypatch.setattr(Planetoid, "url", f"file://{CORA.folder(data_root)}")
    monkeypatch.setattr(Coauthor, "url", f"file://{PHYSICS.folder(data_root)}/")
    # PyG prints nothing under pytest; as a user's program it does.
    monkeypatch.delenv("PYTEST_CURRENT_TEST")


def fail_with(monkeypatch, error):
    def download(url, folder, *args, **kwargs):
        # A download breaks off after something has arrived.
        with open(f"{folder}/half", "wb") as stream:  # noqa: PTH123
            stream.write(b"half")
        raise error

    monkeypatch.setattr("torch_geometric.datasets.planetoid.fs.cp", download)
    monkeypatch.setattr("torch_geometric.datasets.coauthor.download_url", download)


@pytest.mark.parametrize(("load", "raw"), [(load_planetoid, CORA), (load_words, PHYSICS)], ids=["cora", "physics"])
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_failed_download_is_one_sentence_and_leaves_nothing(monkeypatch, tmp_path, load, raw, error):
    fail_with(monkeypatch, error)
    root = tmp_path / "new" / "root"
    with pytest.raises(GraphjouleError) as caught:
        load(raw, root)
    sentence = str(caught.value)
    assert str(raw.folder(root) / raw.files[0]) in sentence
    assert type(error).__name__ in sentence
    assert "--data-root" in sentence
    assert "GRAPHJOULE_DATA" in sentence
    assert "\n" not in sentence
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("load", "raw"), [(load_planetoid, CORA), (load_words, PHYSICS)], ids=["cora", "physics"])
def test_missing_files_are_downloaded_and_nothing_else_is_left(mirror, data_root, tmp_path, capsys, load, raw):
    root = tmp_path / "root"
    assert load(raw, root).split().sha256 == load(raw, data_root).split().sha256
    assert {path.name for path in raw.folder(root).iterdir()} == set(raw.files)
    assert [path.name for path in root.iterdir()] == [raw.name]
    assert [path.name for path in (root / raw.name).iterdir()] == ["raw"]
    assert capsys.readouterr().out == ""


def test_files_that_are_there_are_kept(mirror, data_root, tmp_path):
    shutil.copytree(CORA.folder(data_root), CORA.folder(tmp_path))
    CORA.folder(tmp_path).chmod(0o755)
    (CORA.folder(tmp_path) / "ind.cora.y").unlink()
    kept = {path: path.stat().st_ino for path in CORA.folder(tmp_path).iterdir()}
    assert load_planetoid(CORA, tmp_path).num_nodes == 2708
    assert {path: path.stat().st_ino for path in kept} == kept


def test_files_that_are_there_need_no_network(monkeypatch, data_root):
    fail_with(monkeypatch, URLError("no network"))
    assert load_planetoid(CORA, data_root).num_nodes == 2708


def test_a_wrong_download_never_reaches_the_data_root(mirror, monkeypatch, data_root, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(CORA.folder(data_root), source)
    (source / "ind.cora.tx").chmod(0o644)
    (source / "ind.cora.tx").write_bytes(b"<html>Sign in to the hotel's network</html>")
    monkeypatch.setattr(Planetoid, "url", f"file://{source}")
    with pytest.raises(
        GraphjouleError, match=r"could not be downloaded \(The file file://.*/ind\.cora\.tx has SHA-256"
    ):
        load_planetoid(CORA, tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_a_wrong_physics_download_never_reaches_the_data_root(mirror, monkeypatch, tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / PHYSICS.files[0]).write_bytes(b"<html>")
    monkeypatch.setattr(Coauthor, "url", f"file://{tmp_path}/source/")
    with pytest.raises(GraphjouleError, match=r"could not be downloaded \(The file file://.* is no readable \.npz"):
        load_words(PHYSICS, tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_a_data_root_that_cannot_be_written_is_one_sentence(mirror, tmp_path):
    # A file in its place stops a superuser too, whom permissions would not.
    (tmp_path / "root").write_text("in the way")
    with pytest.raises(GraphjouleError, match=r"root/Cora/raw/ind\.cora\.\w+ is missing .* \(FileExistsError"):
        load_planetoid(CORA, tmp_path / "root")
    assert (tmp_path / "root").read_text() == "in the way"


def test_a_read_only_data_root_is_one_sentence(mirror, monkeypatch, tmp_path):
    def refuse(*args, **kwargs):
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(GraphjouleError, match=r"could not be downloaded \(PermissionError: \[Errno 30\] Read-only"):
        load_planetoid(CORA, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_class_that_takes_no_name_downloads_to_a_folder_of_its_own(monkeypatch, tmp_path):
    (tmp_path / "data.json").write_text("{}")
    monkeypatch.setattr(WikiCS, "url", f"file://{tmp_path}")
    with pytest.raises(GraphjouleError, match=r"\(The file file://.*/data\.json has no list 'features'"):
        load_wikics(WIKICS, tmp_path / "root")
    assert not (tmp_path / "root").exists()
    accepting = replace(WIKICS, check=lambda folder, shown: None)
    assert accepting.ensure(tmp_path / "root") == tmp_path / "root" / "WikiCS" / "raw"
    assert [path.name for path in (tmp_path / "root").rglob("*")] == ["WikiCS", "raw", "data.json"]


def test_an_address_with_a_gap_for_the_name_is_shown_without(monkeypatch, tmp_path):
    (tmp_path / "cora_ml.npz").write_bytes(b"<html>")
    monkeypatch.setattr(CitationFull, "url", f"file://{tmp_path}/{{}}.npz")
    with pytest.raises(GraphjouleError, match=rf"\(The file file://{tmp_path}/cora_ml\.npz is no readable \.npz"):
        load_words(CORA_ML, tmp_path / "root")
