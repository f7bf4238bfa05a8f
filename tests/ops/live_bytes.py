"""Exact peak of live tensor bytes: a dispatch mode that sees every storage be born and die."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Counts bytes of storages made while it is on, each once however many tensors look at it."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self._seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {storage._cdata for storage in _storages((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for storage in _storages(out):
            self._born(storage, given)
        return out

    def _born(self, storage, given):
        key = storage._cdata
        if key in self._seen or key in given:
            return
        self._seen.add(key)
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._died, key, size)

    def _died(self, key, size):
        self._seen.discard(key)
        self.now -= size


def _storages(tree):
    """Storages of the dense tensors in a tree; the pieces of a CSR matrix are made, and counted, as dense ones."""
    for tensor in tree_iter(tree):
        if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
            yield tensor.untyped_storage()
