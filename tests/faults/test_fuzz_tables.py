"""Tables and archives: whatever is in the file, a task or a sentence."""

import gc
import io
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.tasks import load_npz, load_tables

from . import fuzz
from .fuzz import EDITS, fuzzed, mutated, takes

NODES = b"id,x,y,city,label\n" + b"".join(
    b"n%d,%d.5,%d,%s,%s\n" % (i, i, i % 3, b"ab"[i % 2 : i % 2 + 1], (b"u", b"v", b"")[i % 3]) for i in range(12)
)
EDGES = b"source,target,weight\n" + b"".join(b"n%d,n%d,1.5\n" % (i, (i + 1) % 12) for i in range(12))


def parquet() -> bytes:
    table = pa.table({"id": [f"n{i}" for i in range(8)], "x": [float(i) for i in range(8)], "label": list("abababab")})
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file)
    return file.getvalue()


def archive() -> bytes:
    file = io.BytesIO()
    ring = sp.csr_matrix((np.ones(6, dtype=np.float32), (np.arange(6), (np.arange(6) + 1) % 6)))
    parts = {"data": ring.data, "indices": ring.indices, "indptr": ring.indptr, "shape": np.array(ring.shape)}
    matrix = {f"adj_{name}": part for name, part in parts.items()}
    np.savez(file, features=np.eye(6, dtype=np.float32), labels=np.arange(6) % 2, **matrix)
    return file.getvalue()


PARQUET, ARCHIVE = parquet(), archive()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


@fuzzed
@given(EDITS, EDITS | st.just([]))
def test_csv(folder, nodes, edges):
    (folder / "nodes.csv").write_bytes(mutated(NODES, nodes))
    (folder / "edges.csv").write_bytes(mutated(EDGES, edges))
    takes(lambda: load_tables(folder / "nodes.csv", folder / "edges.csv", one_hot=["city"]))


@fuzzed
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="surrogatepass")))
def test_csv_of_anything(folder, nodes):
    (folder / "any.csv").write_bytes(nodes)
    takes(lambda: load_tables(folder / "any.csv"))


@fuzzed
@given(EDITS)
def test_parquet(folder, edits):
    (folder / "nodes.parquet").write_bytes(mutated(PARQUET, edits))
    takes(lambda: load_tables(folder / "nodes.parquet"))


@fuzzed
@given(EDITS)
def test_npz(folder, edits):
    (folder / "graph.npz").write_bytes(mutated(ARCHIVE, edits))
    takes(lambda: load_npz(folder / "graph.npz"))


def test_the_good_files_are_read(folder):
    """Else the others would prove nothing."""
    for name, data in {"g.csv": NODES, "e.csv": EDGES, "g.parquet": PARQUET, "g.npz": ARCHIVE}.items():
        (folder / name).write_bytes(data)
    assert load_tables(folder / "g.csv", folder / "e.csv", one_hot=["city"]).num_nodes == 12
    assert load_tables(folder / "g.parquet").num_nodes == 8
    assert load_npz(folder / "g.npz").num_nodes == 6


def forever():
    while True:
        pass


@pytest.mark.parametrize(
    ("parse", "found", "limits"),
    [
        (forever, "hang", {"SECONDS": 0.2}),
        (lambda: time.sleep(5), "hang", {"WAIT": 0.2}),
        (lambda: len(b"x" * 2**28), "memory", {"BYTES": 2**24}),  # more than what other tests left to be freed
        (lambda: 1 / 0, "traceback", {}),
    ],
)
def test_a_parser_that_hangs_waits_or_takes_much_memory_for_a_moment_is_found(parse, found, limits, monkeypatch):
    gc.collect()
    for name, value in {"COUNTS": {}, **limits}.items():
        monkeypatch.setattr(fuzz, name, value)
    with pytest.raises(AssertionError if limits else ZeroDivisionError):
        takes(parse)
    (counts,) = fuzz.COUNTS.values()
    assert counts[found] == 1
    assert counts["read"] == counts["refused"] == 0
