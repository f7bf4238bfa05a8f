import os
from copy import deepcopy
from functools import partial

import pytest
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.measures.energy import dirichlet_energy
from graphjoule.nn import EGNN, GCNII, EGNNConv, SReLU
from graphjoule.nn.base import BatchNorm
from graphjoule.nn.egnn import norms_for_stack
from graphjoule.ops import make_key, use_backend
from tests.graphs import k33, normal, random_edges

INITIAL = [0.25, 0.4, 1.0, 2.0]


def model(**options) -> EGNN:
    return EGNN(5, 4, 3, num_layers=3, **options)


def weights(model: EGNN) -> list[torch.Tensor]:
    return [conv.weight for conv in model.convs]


@pytest.mark.parametrize("c_max", INITIAL)
def test_weights_start_as_sqrt_c_max_then_one_times_the_identity(c_max):
    first, *others = weights(model(c_max=c_max))
    assert first.equal(torch.eye(4) * c_max**0.5)
    assert len(others) == 2
    assert all(weight.equal(torch.eye(4)) for weight in others)


def test_glorot_weights_stay_within_glorots_bound():
    torch.manual_seed(0)
    for weight in weights(model(weight_init="glorot")):
        assert 0.5 * (6 / 8) ** 0.5 < weight.abs().max() <= (6 / 8) ** 0.5
        assert not weight.equal(torch.eye(4))


@pytest.mark.parametrize("c_max", INITIAL)
def test_the_penalty_and_its_gradient_are_zero_at_the_start(c_max):
    egnn = model(c_max=c_max)
    penalty = egnn.penalty()
    assert penalty == 0
    for gradient in torch.autograd.grad(penalty, weights(egnn)):
        assert gradient.equal(torch.zeros(4, 4))


@pytest.mark.parametrize("gamma", [0.0, 1e-4, 20.0])
def test_the_penalty_is_gamma_times_the_sum_of_distances(gamma):
    egnn = model(gamma=gamma, c_max=0.4).double()
    with torch.no_grad():
        for k, weight in enumerate(weights(egnn)):
            weight.copy_(normal(4, 4, seed=k))
    targets = [0.4**0.5 * torch.eye(4, dtype=torch.float64), torch.eye(4), torch.eye(4)]
    squares = [(weight - target).square().sum() for weight, target in zip(weights(egnn), targets, strict=True)]
    expected = gamma * sum(square.sqrt() for square in squares)
    torch.testing.assert_close(egnn.penalty(), expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(egnn.penalty(), weights(egnn)), torch.autograd.grad(expected, weights(egnn))
    )


def test_a_layer_at_its_start_among_others_that_moved_has_no_gradient():
    egnn = model()
    with torch.no_grad():
        egnn.convs[1].weight.add_(1)
    gradients = torch.autograd.grad(egnn.penalty(), weights(egnn))
    assert gradients[0].count_nonzero() == gradients[2].count_nonzero() == 0
    torch.testing.assert_close(gradients[1].norm(), torch.tensor(20.0))


def test_the_glorot_penalty_pulls_to_zero():
    egnn = model(weight_init="glorot", gamma=0.5)
    expected = 0.5 * sum(weight.norm() for weight in weights(egnn))
    torch.testing.assert_close(egnn.penalty(), expected)
    gradient, *_ = torch.autograd.grad(egnn.penalty(), weights(egnn))
    torch.testing.assert_close(gradient, 0.5 * weights(egnn)[0] / weights(egnn)[0].norm())


def test_only_srelu_has_shifts_and_they_start_at_one_constant():
    assert model(activation="relu").parameter_groups()["shift"] == []
    assert model(activation="linear").parameter_groups()["shift"] == []
    for conv in model(srelu_init=-3.5).convs:
        assert conv.activation.shift.tolist() == [-3.5] * 4


def test_groups_are_conv_weights_shifts_and_all_that_is_dense():
    groups = EGNN(5, 4, 3, num_layers=2, encoder="mlp", batch_norm=True).parameter_groups()
    assert groups["conv"] == ["convs.0.weight", "convs.1.weight"]
    assert groups["shift"] == ["convs.0.activation.shift", "convs.1.activation.shift"]
    dense = ["encoder.first", "encoder.norm", "encoder.second", "convs.0.norm", "convs.1.norm", "head"]
    assert sorted(groups["dense"]) == sorted(f"{name}.{kind}" for name in dense for kind in ("weight", "bias"))


def test_freezing_the_last_shift_freezes_it_and_the_last_batch_norm():
    plain, frozen = (model(batch_norm=True, freeze_last_shift=freeze).parameter_groups() for freeze in (False, True))
    moved = ["convs.2.norm.weight", "convs.2.norm.bias", "convs.2.activation.shift"]
    assert frozen["frozen"] == moved
    for group, names in plain.items():
        assert frozen[group] == [name for name in names if name not in moved]


def test_freezing_changes_no_score():
    torch.manual_seed(0)
    plain = model().eval()
    frozen = model(freeze_last_shift=True).eval()
    frozen.load_state_dict(plain.state_dict())
    x, edges = normal(9, 5, dtype=torch.float32), random_edges()
    assert frozen(x, edges.index).equal(plain(x, edges.index))


def test_output_dropout_falls_on_the_head_alone():
    x, edges = normal(9, 5, dtype=torch.float32), random_edges()
    egnn = model(dropout=0.0, output_dropout=0.5)
    inputs = []
    egnn.head.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    scores = [egnn(x, edges.index, key=make_key(seed)) for seed in (0, 1)]
    assert inputs[0].equal(inputs[1])
    assert not scores[0].equal(scores[1])


def test_a_deep_egnn_keeps_its_energy_where_a_gcn_without_residuals_loses_it():
    edges, x0 = random_edges(30, 90), normal(30, 4)
    kept, lost = (EGNNConv(4, c_min=c_min, beta=beta).double() for c_min, beta in ((0.2, 0.1), (0.0, 0.0)))
    start = dirichlet_energy(x0, edges.graph64())
    for conv, low, high in ((kept, 0.01, 1.0), (lost, 0.0, 1e-6)):
        x = x0
        for _ in range(64):
            x = conv(x, x0, edges.graph64())
        assert low < dirichlet_energy(x.detach(), edges.graph64()) / start < high


def test_one_layer_on_k33_loses_more_energy_than_lemma_4_allows():
    conv = EGNNConv(1, c_min=0.2, beta=0.1, activation="linear").double()
    sign, graph = torch.tensor([1.0, 1, 1, -1, -1, -1], dtype=torch.float64)[:, None], k33().graph64()
    ratio = dirichlet_energy(conv(sign, sign, graph).detach(), graph) / dirichlet_energy(sign, graph)
    assert abs(ratio - 0.04) < 1e-14


@pytest.mark.parametrize("options", [{}, {"batch_norm": True}, {"activation": "relu"}, {"srelu_init": 0.1}], ids=str)
def test_a_layer_without_gradients_gives_the_same_and_changes_nothing_it_was_given(options):
    graph, (x, x0) = random_edges(12, 20).graph(), normal(2, 12, 4, dtype=torch.float32)
    conv = EGNNConv(4, **options).eval()
    expected, before = conv(x, x0, graph).detach(), (x.clone(), x0.clone())
    seen = []
    with torch.no_grad():
        torch.testing.assert_close(conv(x, x0, graph), expected, rtol=0, atol=0)
        with conv.activation.register_forward_hook(lambda module, given, out: seen.extend([given[0], out])):
            torch.testing.assert_close(conv(x, x0, graph), expected, rtol=0, atol=0)
    assert (x.equal(before[0]), x0.equal(before[1])) == (True, True)
    torch.testing.assert_close(conv.activation(seen[0]), seen[1], rtol=0, atol=0)
    assert options.get("srelu_init") is None or not seen[0].equal(seen[1])  # what went in is still what it was


class _Doubled(SReLU):
    def forward(self, z):
        return 2 * super().forward(z)


@torch.no_grad()
def test_an_activation_of_ones_own_and_hooks_on_all_modules_are_respected_without_gradients():
    graph, x = random_edges(12, 20).graph(), normal(12, 4, dtype=torch.float32)
    conv = EGNNConv(4)
    plain, seen = conv(x, x, graph), []
    with torch.nn.modules.module.register_module_forward_hook(lambda module, given, out: seen.append(module)):
        conv(x, x, graph)
    assert conv.activation in seen
    conv.activation = _Doubled(4)
    torch.testing.assert_close(conv(x, x, graph), 2 * plain)


@torch.no_grad()
def test_a_layer_without_gradients_takes_what_one_with_gradients_takes():
    graph, x = random_edges(12, 20).graph(), normal(12, 4, dtype=torch.float32)
    conv, many = EGNNConv(4), normal(3, 12, 4, dtype=torch.float32, seed=1)
    torch.vmap(lambda x0: conv(x, x0, graph))(many)
    shifts = normal(3, 4, dtype=torch.float32, seed=2)
    by_shift = torch.vmap(lambda shift: torch.func.functional_call(conv, {"activation.shift": shift}, (x, x, graph)))(
        shifts
    )
    assert by_shift.shape == (3, 12, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert conv(x, x, graph).dtype == torch.float32


@torch.no_grad()
def test_many_layers_at_once_without_gradients_are_those_one_by_one():
    graph, x = random_edges(12, 20).graph(), normal(3, 12, 4, dtype=torch.float32)
    conv = EGNNConv(4, srelu_init=0.1)
    together = torch.vmap(lambda x: conv(x, x, graph))(x)
    torch.testing.assert_close(together, torch.stack([conv(run, run, graph) for run in x]), rtol=0, atol=0)


def test_srelu_is_a_module_with_a_shift_per_channel():
    module = SReLU(3, init=-1.0)
    assert module.shift.tolist() == [-1, -1, -1]
    assert module(torch.tensor([[-2.0, -1.0, 0.5]])).tolist() == [[-1, -1, 0.5]]
    assert SReLU(2)(torch.tensor([[-9.0, -11.0]])).tolist() == [[-9, -10]]
    with torch.no_grad():
        module.shift.zero_()
    module.reset_parameters()
    assert module.shift.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"c_min": 1.5}, r"c_min is 1.5; it must be in \[0, 1\]"),
        ({"c_min": -0.1}, r"c_min is -0.1; it must be in \[0, 1\]"),
        ({"c_min": torch.nan}, r"c_min is nan; it must be in \[0, 1\]"),
        ({"c_min": 0.05}, r"beta is 0.1; it must be between 0 and c_min, which is 0.05"),
        ({"beta": -0.1}, r"beta is -0.1; it must be between 0 and c_min, which is 0.2"),
        ({"beta": torch.nan}, r"beta is nan; it must be between 0 and c_min"),
        ({"gamma": -1.0}, r"gamma is -1.0; it must not be negative"),
        ({"gamma": torch.nan}, r"gamma is nan; it must not be negative"),
        ({"c_max": 0.0}, r"c_max is 0.0; it must be positive"),
        ({"c_max": -1.0}, r"c_max is -1.0; it must be positive"),
        ({"c_max": torch.nan}, r"c_max is nan; it must be positive"),
        ({"output_dropout": 1.0}, r"output_dropout is 1.0; it must be in \[0, 1\)"),
        ({"activation": "gelu"}, r"activation is 'gelu'; choose one of srelu, relu, linear"),
        ({"weight_init": "normal"}, r"weight_init is 'normal'; choose one of orthogonal, glorot"),
        ({"encoder": "gcn"}, r"encoder is 'gcn'; choose one of linear, mlp"),
    ],
)
def test_an_option_outside_its_range_is_refused_with_value_and_range(options, sentence):
    with pytest.raises(GraphjouleError, match=sentence):
        model(**options)


@pytest.mark.parametrize("options", [{"c_min": 0.0, "beta": 0.0}, {"c_min": 1.0, "beta": 1.0}, {"gamma": 0.0}])
def test_the_ends_of_the_ranges_are_allowed(options):
    assert model(**options).eval()(torch.ones(9, 5), random_edges().index).isfinite().all()


def test_a_certified_egnn_names_the_limits_of_its_weights_and_holds_them():
    certified = model(c_max=0.4, certified=True)
    assert list(certified.spectral_limits().values()) == pytest.approx([0.4**0.5] + [1.0] * (certified.num_layers - 1))
    assert model().spectral_limits() == {}
    with torch.no_grad():
        for weight in weights(certified):
            weight.add_(0.3)
    certified.hold_weights()
    for weight, limit in zip(weights(certified), certified.spectral_limits().values(), strict=True):
        assert float(torch.linalg.matrix_norm(weight.detach(), ord=2)) <= limit


def test_a_batch_norm_excludes_a_certificate():
    with pytest.raises(GraphjouleError, match="certified is True and batch_norm is True"):
        model(certified=True, batch_norm=True)


def normed(**options) -> EGNN:
    return EGNN(5, 16, 3, num_layers=3, batch_norm=True, srelu_init=-0.5, **options)


def test_norms_are_fused_only_where_all_are_as_they_were_written_and_alike():
    def can_fuse(change=None):
        egnn = normed()
        if change is not None:
            change(egnn)
        return norms_for_stack(egnn.layers()) is not None

    assert can_fuse()
    assert can_fuse(lambda egnn: egnn.eval())
    assert not can_fuse(lambda egnn: egnn.convs[1].norm.eval())
    assert not can_fuse(lambda egnn: setattr(egnn.convs[1], "norm", None))
    assert not can_fuse(lambda egnn: setattr(egnn.convs[1].norm, "eps", 1e-3))
    assert not can_fuse(lambda egnn: egnn.convs[2].norm.register_forward_hook(lambda *_: None))
    assert not can_fuse(lambda egnn: setattr(egnn.convs[1], "norm", torch.nn.BatchNorm1d(16)))
    assert not can_fuse(lambda egnn: [setattr(conv.norm, "momentum", None) for conv in egnn.convs])
    assert not can_fuse(lambda egnn: [setattr(conv, "norm", BatchNorm(16, affine=False)) for conv in egnn.convs])
    assert norms_for_stack(model().layers()) is None
    assert normed()._stack() is None
    assert normed()._stack(or_norms=True) is not None


FUSED_DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="no kernels here")),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


@pytest.mark.parametrize("device", FUSED_DEVICES)
@pytest.mark.parametrize("kind", [normed, partial(GCNII, 5, 16, 3, num_layers=3, batch_norm=True)])
def test_fused_norms_train_and_evaluate_as_layers_one_by_one(kind, device, monkeypatch):
    torch.manual_seed(0)
    start, edges, key = kind().to(device), random_edges(num_nodes=40, num_edges=90), make_key(1).to(device)
    x, graph = normal(40, 5).float().to(device), edges.graph().to(device)
    found = []
    for is_fused in (True, False):
        if not is_fused:
            monkeypatch.setattr("graphjoule.nn.egnn.fuses_norms", lambda *_: False)
        network = deepcopy(start)
        with use_backend("triton"):
            for _ in range(2):
                scores = network(x, graph, key=key)
            scores.square().sum().backward()
            network.eval()
            with torch.no_grad():
                evaluated = network(x, graph)
        grads = [parameter.grad for parameter in network.parameters()]
        found.append([scores.detach(), evaluated, *grads, *network.buffers()])
    for ours, truth in zip(*found, strict=True):
        torch.testing.assert_close(ours.float(), truth.float(), rtol=1e-3, atol=1e-4 * float(truth.abs().max()))
