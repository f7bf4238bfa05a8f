import hashlib
import logging
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.tasks import download as module
from graphjoule.tasks.download import Remote, download

CONTENT = bytes(range(256)) * 4096  # 1 MiB, several chunks
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def serve(monkeypatch):
    """A web server that plays a script: for every request how many bytes to send before it hangs up, or a status."""
    monkeypatch.setattr(module, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setenv("no_proxy", "*")

    @contextmanager
    def running(script, *, knows_ranges=True, content=CONTENT):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.headers.get("Range"))
                step = script[min(len(asked), len(script)) - 1]
                if step >= 400 and step < 600:
                    self.send_error(step)
                    return
                start = int(asked[-1][6:-1]) if asked[-1] and knows_ranges else 0
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(content) - start))
                self.end_headers()
                self.wfile.write(content[start:][:step])

            def log_message(self, *args):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield Remote(f"http://127.0.0.1:{server.server_port}/file.zip", len(CONTENT), SHA256), asked
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    return running


ALL = len(CONTENT) * 2


def test_a_file_is_downloaded_with_its_size_said(serve, tmp_path, caplog):
    with serve([ALL]) as (remote, asked), caplog.at_level(logging.INFO, "graphjoule"):
        download(remote, tmp_path / "file.zip")
    assert (tmp_path / "file.zip").read_bytes() == CONTENT
    assert asked == [None]
    assert caplog.messages == [f"Downloading {remote.url} (1 MB)"]


def test_a_broken_connection_is_taken_up_where_it_stopped(serve, tmp_path):
    with serve([300_000, 200_000, ALL]) as (remote, asked):
        download(remote, tmp_path / "file.zip")
    assert (tmp_path / "file.zip").read_bytes() == CONTENT
    assert asked == [None, "bytes=300000-", "bytes=500000-"]


def test_a_server_without_ranges_is_read_from_the_start_again(serve, tmp_path):
    with serve([300_000, ALL], knows_ranges=False) as (remote, asked):
        download(remote, tmp_path / "file.zip")
    assert (tmp_path / "file.zip").read_bytes() == CONTENT
    assert len(asked) == 2


def test_after_some_attempts_it_gives_up(serve, tmp_path):
    with serve([1000]) as (remote, asked), pytest.raises(ConnectionError, match="broke off after 4,000 of 1,048,576"):
        download(remote, tmp_path / "file.zip")
    assert len(asked) == 4


def test_a_refusal_is_not_asked_again(serve, tmp_path):
    with serve([404]) as (remote, asked), pytest.raises(OSError, match="HTTP Error 404"):
        download(remote, tmp_path / "file.zip")
    assert len(asked) == 1


def test_a_file_with_other_bytes_is_refused(serve, tmp_path):
    with (
        serve([ALL], content=b"\1" + CONTENT[1:]) as (remote, _),
        pytest.raises(GraphjouleError, match=rf"file\.zip has SHA-256 \w{{64}}, expected {SHA256}\.$"),
    ):
        download(remote, tmp_path / "file.zip")


def test_a_file_that_does_not_end_is_not_received_to_the_end(serve, tmp_path):
    with (
        serve([100 * ALL], content=CONTENT * 20) as (remote, _),
        pytest.raises(GraphjouleError, match=r"is longer than the 1,048,576 bytes expected\.$"),
    ):
        download(remote, tmp_path / "file.zip")
    assert (tmp_path / "file.zip").stat().st_size <= len(CONTENT) + module._CHUNK


def test_a_log_tells_how_far_it_is(serve, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_LINES", 0.0)
    with serve([ALL]) as (remote, _), caplog.at_level(logging.INFO, "graphjoule"):
        download(remote, tmp_path / "file.zip")
    assert caplog.messages[1] == f"{remote.url}: 25 %"
    assert caplog.messages[-1] == f"{remote.url}: 100 %"


def test_a_terminal_sees_a_bar(serve, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with serve([ALL]) as (remote, _):
        download(remote, tmp_path / "file.zip")
    captured = capsys.readouterr()
    assert "file.zip" in captured.err
    assert "1.0/1.0 MB" in captured.err
    assert captured.out == ""
