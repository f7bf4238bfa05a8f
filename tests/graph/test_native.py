"""Loops built by the C compiler, against the same by PyTorch and in float64."""

import logging
import stat
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from graphjoule import GraphjouleError
from graphjoule.graph import Propagation, native
from graphjoule.graph.native import Mask, Matrix
from graphjoule.graph.product import Product
from graphjoule.ops import make_key, use_backend
from graphjoule.ops.dropout import dropped_of_65536, keep_mask, keep_scale
from tests.graphs import few

pytestmark = pytest.mark.skipif(not native.is_built(), reason="there is no C compiler")
ROWS = [1, 5, 6, 7, 47, 48, 49, 481]  # around a block of rows, a tile, and a stretch of tiles
CHANNELS = [16, 32, 48, 64, 80, 256]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def matrix(rows: int, seed: int = 0) -> tuple[Matrix, torch.Tensor]:
    """A random matrix with empty rows and a full one, and the same in float64."""
    dense = normal(rows, rows, seed=seed)
    dense[normal(rows, rows, seed=seed + 1) < 1] = 0
    dense[rows // 2] = 1
    sparse = csr_matrix(dense.numpy())
    return Matrix(*map(torch.from_numpy, (sparse.indptr, sparse.indices, sparse.data))), dense.double()


def kept(shape: torch.Size, key: torch.Tensor, p: float) -> torch.Tensor:
    with use_backend("reference"):
        return keep_mask(key[None], shape, p, torch.float32)[0] != 0


def mask_of(key: torch.Tensor, p: float, count: int) -> Mask:
    return Mask.of(key.tolist(), dropped_of_65536(p), count)


@few
@given(st.integers(1, 3000), st.sampled_from([0.1, 0.5, 1 / 3, 0.99999]), st.integers(0, 2**40), st.integers(1, 3))
def test_what_is_dropped_is_what_the_plain_mask_drops(count, p, seed, threads):
    x, key = normal(count), make_key(seed)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    found = native.drop(x, torch.full_like(x, torch.nan), mask_of(key, p, count))
    torch.set_num_threads(before)
    assert found.equal(torch.where(kept(x.shape, key, p), x, 0))
    assert native.drop(x, x, mask_of(key, p, count)).equal(found)


def test_the_masks_of_large_tensors_are_those_of_the_reference_to_the_bit():
    keys, shape = make_key(torch.arange(3)), (301, 111)
    with use_backend("native"):
        found = keep_mask(keys, shape, 0.6, torch.float32)
    with use_backend("reference"):
        assert found.equal(keep_mask(keys, shape, 0.6, torch.float32))
    assert found.unique().tolist() == [0, np.float32(keep_scale(0.6))]


@pytest.mark.parametrize("count", [1, 100, 2048, 2049, 100_000])
def test_inner_products_are_those_of_float64_whatever_the_threads(count):
    x, y = normal(count), normal(count, seed=1) + 1
    found = native.inner_products(x, y, 2048)
    truth = [float(torch.dot(x.double(), other.double())) for other in (x, y)]
    size = float(x.double().norm() * y.double().norm())
    assert found == pytest.approx(truth, abs=1e-6 * size)
    torch.set_num_threads(3)
    assert native.inner_products(x, y, 2048) == found
    torch.set_num_threads(1)


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("rows", ROWS)
def test_a_form_without_the_kernel_is_that_of_float64_whatever_the_threads(rows, channels):
    component = (torch.arange(rows) * 3 // rows).contiguous()
    sparse, dense = matrix(rows)
    x, scale, means = normal(rows, channels), 1 + normal(rows, 1, seed=1).abs(), normal(3, channels, seed=2)
    found = native.form(sparse, x, scale, means, component)
    # The matrix is of no graph: an entry between two components counts with the mean of its row's.
    mean = means.double()[component]
    own = x.double() - scale.double() * mean
    others = x.double()[None] - scale.double()[None] * mean[:, None]
    truth = [float((own * own).sum()), float(torch.einsum("ij,ic,ijc->", dense, own, others))]
    assert found == pytest.approx(truth, rel=1e-5, abs=1e-5 * truth[0] * rows)
    torch.set_num_threads(3)
    assert native.form(sparse, x, scale, means, component) == found
    torch.set_num_threads(1)


@pytest.mark.parametrize("p", [None, 0.4])
@pytest.mark.parametrize("rows", ROWS)
def test_gathered_rows_are_the_product(rows, p):
    sparse, dense = matrix(rows)
    x, key = normal(rows, 48), make_key(4)
    found = native.gather(sparse, x, torch.full_like(x, torch.nan), p and mask_of(key, p, x.numel()))
    truth = dense @ x.double()
    if p:
        truth *= kept(x.shape, key, p)
    torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("rows", ROWS)
def test_a_layer_and_its_gradient_are_those_of_float64(rows, channels):
    sparse, dense = matrix(rows)
    x, x0, weight, shift, grad = (
        normal(*shape, seed=seed)
        for seed, shape in enumerate([(rows, channels)] * 2 + [(channels, channels), (channels,), (rows, channels)])
    )
    key = make_key(rows)
    mask = mask_of(key, 0.3, x.numel())
    out, mixed = torch.full_like(x, torch.nan), torch.full_like(x, torch.nan)
    active = torch.zeros(rows, channels // 16, dtype=torch.int16)
    is_cut, sums = native.egnn_layer(
        sparse, x, x0, 0.5, weight, shift, out, mixed=mixed, active=active, mask=mask, want_sums=True
    )

    m = (dense @ x.double() + 0.5 * x0.double()).requires_grad_()
    w, b = weight.double().requires_grad_(), shift.double().requires_grad_()
    z = m @ w
    truth = torch.maximum(z, b)
    torch.testing.assert_close(mixed.double(), m.detach(), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(out.double(), truth.detach() * kept(x.shape, key, 0.3), rtol=1e-4, atol=1e-3)
    assert is_cut == bool((z < b).any())
    bits = torch.from_numpy(np.unpackbits(active.numpy().view(np.uint8), bitorder="little")).bool().view(x.shape)
    is_near = (z - b).abs() < 1e-3  # where rounding decides
    assert bits[~is_near].equal((z > b)[~is_near])
    truth = torch.where(bits, z, b)
    of_x = x.double()
    assert sums == pytest.approx([float(of_x.square().sum()), float((of_x * (dense @ of_x)).sum())], rel=1e-4)

    wanted = torch.autograd.grad((truth * grad.double()).sum(), (m, w, b))
    grad_x0, parameters = torch.ones_like(x), torch.empty(channels + 1, channels)
    native.egnn_layer_backward(grad, mixed, weight.t().contiguous(), active, 0.5, mixed, grad_x0, parameters)
    for found, one in zip(
        (mixed, parameters[:-1], parameters[-1], (grad_x0 - 1) / 0.5), (*wanted, wanted[0]), strict=True
    ):
        assert float((found - one).norm() / one.norm()) < 1e-5


def test_nothing_depends_on_the_number_of_threads():
    sparse, _ = matrix(600)
    x, x0, weight, shift = normal(600, 64), normal(600, 64, seed=1), normal(64, 64, seed=2), normal(64, seed=3)
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        out, mixed, grad_x0 = torch.empty_like(x), torch.empty_like(x), torch.zeros_like(x)
        _, sums = native.egnn_layer(sparse, x, x0, 0.1, weight, shift, out, mixed=mixed, want_sums=True)
        parameters = torch.empty(65, 64)
        native.egnn_layer_backward(x, mixed, weight, None, 0.1, mixed, grad_x0, parameters)
        results.append([out, mixed, grad_x0, parameters, torch.tensor(sums)])
    torch.set_num_threads(1)
    assert all(a.equal(b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("channels", [64, 256])
def test_sums_keep_their_digits_where_all_features_are_alike(channels):
    """Sums in float32 would round one way then, and an energy is a small difference of the two."""
    node = torch.arange(6000)
    ring = Propagation.from_edge_index(torch.stack([node, (node + 1) % 6000]), symmetrize=True)
    x = (0.37 * (1 + 0.08 * (-1.0) ** (node % 3)))[:, None].repeat(1, channels)
    sparse = Matrix(ring.rowptr, ring.col, ring.mixed(0.8, 0.1))
    out = torch.empty_like(x)
    _, sums = native.egnn_layer(sparse, x, x, 0.1, torch.eye(channels), None, out, want_sums=True)
    energy, truth = Product(None, ring, 0.8, 0.1, sums).energies(x), ring.laplacian.form(x.double())
    assert float(truth) < 0.01 * float(x.norm() ** 2)
    assert float(energy) == pytest.approx(float(truth), rel=1e-5)


def test_the_gradient_is_that_of_float32_whatever_the_defaults_of_torch():
    x, mixed, weight = normal(600, 16), normal(600, 16, seed=1), normal(16, 16, seed=2)
    found = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            parameters = torch.empty(17, 16, dtype=torch.float32)
            native.egnn_layer_backward(x, mixed, weight, None, 0.1, mixed.clone(), torch.zeros_like(x), parameters)
        finally:
            torch.set_default_dtype(torch.float32)
        found.append(parameters)
    assert found[0].equal(found[1])
    assert found[0].equal(found[2])
    torch.testing.assert_close(found[0][:16], mixed.T @ x, rtol=1e-4, atol=1e-3)


def test_what_the_loops_are_for():
    x, rowptr = torch.zeros(64, 16), torch.zeros(65, dtype=torch.int32)
    assert native.has_memory(x)
    assert not native.has_memory(x.to("meta"))
    assert not native.has_memory(torch.nn.Parameter(x))
    assert native.has_layers(x, rowptr)
    assert not native.has_layers(x.view(-1, 8), rowptr)
    assert not native.has_layers(x.view(-1, 512), rowptr)
    assert not native.has_layers(x, rowptr.long())
    assert not native.has_layers(x, rowptr, rowptr.long())


@pytest.fixture
def built_again():
    native._library.cache_clear()
    yield
    native._library.cache_clear()


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for a compiler")
@pytest.mark.parametrize("text", ["echo no such option >&2; exit 1", "echo nothing"])
def test_a_compiler_that_fails_is_said_once_and_done_without(text, built_again, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("CC", script(tmp_path / "compiler", text))
    caplog.set_level(logging.INFO, logger="graphjoule")
    assert not native.is_built()
    assert not native.is_built()
    assert [record.message for record in caplog.records] == [
        f"{tmp_path}/compiler cannot build a library here, so that training on a CPU takes longer"
    ]
    assert list(tmp_path.iterdir()) == [tmp_path / "compiler"]


@pytest.mark.skipif(sys.platform != "linux", reason="loops are built on Linux")
def test_a_compiler_may_have_options(built_again, tmp_path, monkeypatch):
    compiler = script(tmp_path / "a compiler", 'test "$1" = -DSOME && exec cc "$@"')
    monkeypatch.setenv("CC", f"'{compiler}' -DSOME")
    assert native.is_built()


def test_no_compiler_is_said_once(built_again, monkeypatch, caplog):
    monkeypatch.setenv("CC", "there-is-no-such-compiler")
    caplog.set_level(logging.INFO, logger="graphjoule")
    assert native._library() is None
    assert "there-is-no-such-compiler" in caplog.text


def test_a_setting_does_without(built_again, monkeypatch, caplog):
    monkeypatch.setenv("GRAPHJOULE_COMPILE", "0")
    caplog.set_level(logging.INFO, logger="graphjoule")
    assert native._library() is None
    assert not caplog.records
    native._library.cache_clear()
    monkeypatch.setenv("GRAPHJOULE_COMPILE", "no")
    with pytest.raises(GraphjouleError, match="GRAPHJOULE_COMPILE is 'no'; it is 1, or 0"):
        native._library()
