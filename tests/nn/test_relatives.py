"""EGNN contains its relatives: the settings of the paper's "Connections to previous work", tried on whole networks."""

import pytest
import torch

from graphjoule.nn import APPNP, EGNN, GCNII, SGC
from graphjoule.ops import make_key
from tests.graphs import normal, random_edges

GRAPH = random_edges(weighted=True).graph64()
X = normal(9, 5)
DEPTHS = [1, 2, 16]
exact = {"rtol": 1e-12, "atol": 1e-13}


def egnn(num_layers, *, hidden_channels=4, **settings):
    """An EGNN whose layers keep their first weight I; its encoder and head are random numbers."""
    torch.manual_seed(0)
    return EGNN(5, hidden_channels, 3, num_layers, c_max=1.0, **settings).double().eval()


def copy_(parameter, value):
    with torch.no_grad():
        parameter.copy_(value)


@pytest.mark.parametrize("num_layers", DEPTHS)
def test_without_residuals_and_shifts_at_minus_infinity_egnn_is_sgc_on_its_first_embeddings(num_layers):
    model = egnn(num_layers, c_min=0.0, beta=0.0, srelu_init=-torch.inf)
    copy_(model.head.bias, 0)
    sgc = SGC(4, 64, 3, num_layers).double()
    copy_(sgc.linear.weight, model.head.weight)
    torch.testing.assert_close(model(X, GRAPH), sgc(model.encoder(X), GRAPH), **exact)


@pytest.mark.parametrize("num_layers", DEPTHS)
def test_with_an_encoder_that_changes_nothing_egnn_is_sgc(num_layers):
    """Counts of words are not negative, so the encoder's ReLU lets them through."""
    counts = X.abs()
    model = egnn(num_layers, hidden_channels=5, c_min=0.0, beta=0.0, activation="linear")
    copy_(model.encoder.first.weight, torch.eye(5))
    copy_(model.encoder.first.bias, 0)
    copy_(model.head.bias, 0)
    sgc = SGC(5, 64, 3, num_layers).double()
    copy_(sgc.linear.weight, model.head.weight)
    torch.testing.assert_close(model(counts, GRAPH), sgc(counts, GRAPH), **exact)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("num_layers", DEPTHS)
def test_with_all_residual_to_the_first_embeddings_egnn_is_appnp(num_layers, alpha):
    model = egnn(num_layers, c_min=alpha, beta=alpha, srelu_init=-torch.inf)
    appnp = APPNP(5, 4, 3, num_layers, alpha=alpha).double().eval()
    # APPNP propagates its output bias and EGNN adds it at the end: they differ unless it is 0.
    for parameter in (model.head.bias, appnp.second.bias):
        copy_(parameter, 0)
    appnp.first.load_state_dict(model.encoder.first.state_dict())
    copy_(appnp.second.weight, model.head.weight)
    torch.testing.assert_close(model(X, GRAPH), appnp(X, GRAPH), **exact)
    copy_(appnp.second.bias, 1)
    assert not torch.allclose(model(X, GRAPH), appnp(X, GRAPH))


@pytest.mark.parametrize("key", [None, make_key(3)], ids=["eval", "training"])
@pytest.mark.parametrize("num_layers", DEPTHS)
def test_with_relu_and_its_weights_rewritten_egnn_is_gcnii_in_training_too(num_layers, key):
    gcnii = GCNII(5, 4, 3, num_layers, alpha=0.2, theta=0.5, dropout=0.3).double().train(key is not None)
    model = egnn(num_layers, c_min=0.2, beta=0.2, activation="relu", dropout=0.3, output_dropout=0.3)
    model.train(key is not None)
    model.encoder.load_state_dict(gcnii.encoder.state_dict())
    model.head.load_state_dict(gcnii.head.state_dict())
    for ours, theirs in zip(model.convs, gcnii.convs, strict=True):
        identity, weight = torch.eye(4, dtype=torch.float64), theirs.weight
        copy_(ours.weight, theirs.identity * identity + (1 - theirs.identity) * weight)
    torch.testing.assert_close(model(X, GRAPH, key=key), gcnii(X, GRAPH, key=key), **exact)


def test_srelu_at_zero_is_gcniis_relu():
    gcnii = GCNII(5, 4, 3, 3).double().eval()
    model = egnn(3, c_min=0.1, beta=0.1, srelu_init=0.0)
    for ours, theirs in zip(model.convs, gcnii.convs, strict=True):
        copy_(ours.weight, theirs.effective_weight())
    model.encoder.load_state_dict(gcnii.encoder.state_dict())
    model.head.load_state_dict(gcnii.head.state_dict())
    torch.testing.assert_close(model(X, GRAPH), gcnii(X, GRAPH), **exact)
