"""The memory that `fit` plans with, counted: every model says how many activations a training step needs."""

import pytest
import torch
import torch.nn.functional as F

from graphjoule.nn import MODELS
from graphjoule.ops import make_key, use_backend
from tests.graphs import normal, random_edges
from tests.nn.test_contract import every_model
from tests.ops.live_bytes import LiveBytes

NUM_NODES, WIDTH, CLASSES = 1000, 32, 5
GRAPH = random_edges(NUM_NODES, 2000).graph()
X = normal(NUM_NODES, 20, dtype=torch.float32)


def step_bytes(model) -> int:
    """Peak of a forward and a backward pass; the first call makes what is kept with the graph."""
    for _ in range(2):
        with LiveBytes() as live:
            F.cross_entropy(model(X, GRAPH, key=make_key(0)), torch.arange(NUM_NODES) % CLASSES).backward()
        model.zero_grad(set_to_none=True)
    return live.peak


@every_model
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_step_needs_no_more_than_the_model_says_and_not_much_less(name, options, backend):
    for num_layers in (4, 24):
        model = MODELS[name](20, WIDTH, CLASSES, num_layers, **options)
        with use_backend(backend):
            peak = step_bytes(model)
        parameters = sum(parameter.nbytes for parameter in model.parameters())
        planned = model.kept_activations(is_fused=backend != "reference") * NUM_NODES * WIDTH * 4 + 4 * parameters
        assert 0.2 * planned < peak <= planned, num_layers
