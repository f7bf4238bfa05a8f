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
from graphjoule.tasks.new_nodes import load_new_nodes

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


GRAPHS = b"id,label,split\ng0,u,train\ng1,v,train\ng2,u,val\ng3,v,test\n"
ATOMS = b"id,graph,x,kind\n" + b"".join(
    b"n%d,g%d,%d.5,%s\n" % (i, i // 3, i, b"ab"[i % 2 : i % 2 + 1]) for i in range(12)
)
BONDS = b"source,target,type\n" + b"".join(
    b"n%d,n%d,%s\n" % (i, i + 1, b"ab"[i % 2 : i % 2 + 1]) for i in range(12) if i % 3 < 2
)


@fuzzed
@given(EDITS | st.just([]), EDITS | st.just([]), EDITS | st.just([]), st.sampled_from(("both", "mutual", "kept")))
def test_tables_of_many_graphs(folder, graphs, nodes, edges, direction):
    (folder / "graphs.csv").write_bytes(mutated(GRAPHS, graphs))
    (folder / "atoms.csv").write_bytes(mutated(ATOMS, nodes))
    (folder / "bonds.csv").write_bytes(mutated(BONDS, edges))
    tables = (folder / "atoms.csv", folder / "bonds.csv")
    options = {"direction": direction, "edge_type": "type", "types": "separate"}
    takes(lambda: load_tables(*tables, graphs=folder / "graphs.csv", **options))


@pytest.fixture(scope="module")
def trained_on(folder):
    """A task from tables that are as they were."""
    (folder / "old.csv").write_bytes(NODES)
    (folder / "old-edges.csv").write_bytes(EDGES)
    return load_tables(folder / "old.csv", folder / "old-edges.csv", one_hot=["city"])


NEW = b"id,x,y,city,label\nm0,1.5,2,a,\nm1,2.5,0,b,u\nm2,0.5,1,c,v\n"
LINKS = b"source,target,weight\nm0,n3,1.5\nm1,m0,2\nn4,m2,1\n"


@fuzzed
@given(EDITS | st.just([]), EDITS | st.just([]) | st.none(), st.booleans())
def test_tables_of_new_nodes(folder, trained_on, nodes, edges, update_old):
    (folder / "new.csv").write_bytes(mutated(NEW, nodes))
    (folder / "links.csv").write_bytes(mutated(LINKS, edges or []))
    links = None if edges is None else folder / "links.csv"
    about = (trained_on.source, trained_on.objective)
    takes(lambda: load_new_nodes(*about, folder / "new.csv", links, update_old=update_old))


def test_the_good_files_are_read(folder, trained_on):
    """Else the others would prove nothing."""
    for name, data in {"g.csv": NODES, "e.csv": EDGES, "g.parquet": PARQUET, "g.npz": ARCHIVE}.items():
        (folder / name).write_bytes(data)
    assert load_tables(folder / "g.csv", folder / "e.csv", one_hot=["city"]).num_nodes == 12
    assert load_tables(folder / "g.parquet").num_nodes == 8
    assert load_npz(folder / "g.npz").num_nodes == 6
    for name, data in {"gr.csv": GRAPHS, "at.csv": ATOMS, "bo.csv": BONDS, "ne.csv": NEW, "li.csv": LINKS}.items():
        (folder / name).write_bytes(data)
    many = load_tables(folder / "at.csv", folder / "bo.csv", graphs=folder / "gr.csv", edge_type="type")
    assert (many.num_nodes, len(many.targets)) == (12, 4)
    given = load_new_nodes(trained_on.source, trained_on.objective, folder / "ne.csv", folder / "li.csv")
    assert (len(given.targets), given.num_old) == (15, 12)


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
