import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from graphjoule.tasks.reading import Table


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def serve(monkeypatch):
    """Serves folders on this machine as a web server does; returns their addresses. Retries do not wait."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    running = []

    def start(folder):
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server, thread in running:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def table(tmp_path):
    """A table to be named in sentences; its rows are not read."""
    path = tmp_path / "t.csv"
    path.write_text("a\n" + "x\n" * 3)
    return Table(path)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to stand in, with two small tables."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nodes.csv").write_text("id,x,label\na,1.5,u\nb,,v\nc,2.5,\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\nb,c\n")
    return tmp_path
