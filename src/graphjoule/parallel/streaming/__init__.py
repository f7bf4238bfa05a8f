"""Evaluation of a model on a graph of any size: the model's own forward, a block of rows at a time."""

from graphjoule.parallel.streaming.evaluation import BLOCK_BYTES, evaluate_in_blocks

__all__ = ["BLOCK_BYTES", "evaluate_in_blocks"]
