"""The hot loops: one signature each, with a plain backend that reads like the equation."""

from graphjoule.ops.backend import backend_for, describe_backend, use_backend
from graphjoule.ops.dropout import dropout, fold_in, make_key, split_key
from graphjoule.ops.egnn import egnn_layer, egnn_norm_stack, egnn_stack, fuses_norms, may_overwrite, residual_mix, srelu
from graphjoule.ops.memory import Memory, using_memory
from graphjoule.ops.propagate import propagate
from graphjoule.ops.sparse_linear import sparse_linear
from graphjoule.ops.spectral import limit_spectral_norm
from graphjoule.ops.wave import wave_layer, wave_stack, wave_start

__all__ = [
    "Memory",
    "backend_for",
    "describe_backend",
    "dropout",
    "egnn_layer",
    "egnn_norm_stack",
    "egnn_stack",
    "fold_in",
    "fuses_norms",
    "limit_spectral_norm",
    "make_key",
    "may_overwrite",
    "propagate",
    "residual_mix",
    "sparse_linear",
    "split_key",
    "srelu",
    "use_backend",
    "using_memory",
    "wave_layer",
    "wave_stack",
    "wave_start",
]
