"""The hot loops: one signature each, with a plain body that reads like the equation."""

from graphjoule.ops.dropout import dropout, fold_in, make_key, split_key
from graphjoule.ops.egnn import egnn_layer, residual_mix, srelu
from graphjoule.ops.propagate import propagate
from graphjoule.ops.sparse_linear import sparse_linear

__all__ = [
    "dropout",
    "egnn_layer",
    "fold_in",
    "make_key",
    "propagate",
    "residual_mix",
    "sparse_linear",
    "split_key",
    "srelu",
]
