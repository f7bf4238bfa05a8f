import os
import pickle
from collections import defaultdict

import numpy as np
import pytest
import scipy.sparse as sp

from graphjoule.errors import GraphjouleError
from graphjoule.tasks.pickles import unpickle_arrays

# What Python 2 wrote, by hand: numpy.core.multiarray._reconstruct, and an array's bytes as text.
PYTHON_2 = (
    b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    b"(K\x01K\x02\x85cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    b"\x89U\x02\x07\xfetb."
)


class Call:
    """An object whose pickle calls a function."""

    def __init__(self, function, *args):
        self.reduced = function, args

    def __reduce__(self):
        return self.reduced


def test_arrays_matrices_and_lists_come_back():
    matrix = sp.csr_matrix(np.array([[0.0, 2.0], [3.0, 0.0]]))
    graph = defaultdict(list, {0: [1], 1: [0, 0]})
    array, again, cited = unpickle_arrays(pickle.dumps([np.arange(3), matrix, graph], protocol=3), "it")
    assert array.tolist() == [0, 1, 2]
    assert again.toarray().tolist() == matrix.toarray().tolist()
    assert cited == graph


def test_an_array_of_python_2_comes_back():
    assert unpickle_arrays(PYTHON_2, "it").tolist() == [7, 254]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    ("function", "name"), [(os.system, rf"{os.name}\.system"), (eval, r"(builtins|__builtin__)\.eval")]
)
def test_nothing_is_called(tmp_path, protocol, function, name):
    (tmp_path / "sprung.py").touch()
    argument = (
        f"rm {tmp_path}/sprung.py" if function is os.system else f"__import__('os').remove('{tmp_path}/sprung.py')"
    )
    content = pickle.dumps({0: Call(function, argument)}, protocol=protocol)
    with pytest.raises(GraphjouleError, match=rf"^The pickle ind\.x asks for {name}, which could run code; expected"):
        unpickle_arrays(content, "ind.x")
    assert (tmp_path / "sprung.py").exists()
    pickle.loads(content)
    assert not (tmp_path / "sprung.py").exists()


@pytest.mark.parametrize("content", [b"", b"<html>", PYTHON_2[:-9], b"\x80\x02cnumpy\nndarray\nU\x01x\x85R."])
def test_no_pickle_is_one_sentence(content):
    with pytest.raises(GraphjouleError, match=r"^The pickle ind\.x cannot be read \(\w+: "):
        unpickle_arrays(content, "ind.x")
