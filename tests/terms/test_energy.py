import gc
import json
import math
import weakref
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import nn
from torch.utils.checkpoint import checkpoint

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.measures.energy import dirichlet_energy
from graphjoule.nn import EGNN, GCN
from graphjoule.terms import METHODS, ConstraintReport, EnergyConstraint, LayerState
from graphjoule.terms.energy import EmbeddingHooks
from graphjoule.trace import Trace
from graphjoule.trace.limits import limits
from tests.graphs import k33, no_edges, normal, path3, random_edges

AL, PENALTY = "augmented_lagrangian", "penalty"


class Scale(nn.Module):
    """``X -> w X``: multiplies the energy by ``w^2``, so every optimum can be had by hand."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x):
        return self.weight * x


def scales(*starts: float) -> nn.Sequential:
    return nn.Sequential(*map(Scale, starts))


# Gaps and terms.


def test_gaps_are_those_of_the_limits():
    graph, x = random_edges(12, 20).graph64(), normal(12, 5)
    torch.manual_seed(0)
    model = GCN(5, 5, 2, num_layers=6).double().eval()
    with EnergyConstraint(model, graph, 0.4, 0.7, layers=["convs.*"]) as constraint:
        model(x, graph)
    gaps = constraint.gaps()
    trace = Trace.of(model, graph, (x, graph), ["energy"], watch=["convs.*"])
    energies = [float(dirichlet_energy(x, graph)), *(row.energy for row in trace.layers[:-1])]  # without class scores
    lower = [math.log(0.4 * before / e) for before, e in pairwise(energies)]
    upper = [math.log(e / (0.7 * energies[0])) for e in energies[1:]]
    torch.testing.assert_close(gaps, torch.tensor([lower, upper], dtype=torch.float64), rtol=1e-9, atol=1e-9)
    assert constraint.names() == ["input of convs.0", *(f"convs.{k}" for k in range(5))]
    violations = [float(v) for v in constraint.violations().values()]
    assert violations == pytest.approx([math.expm1(max(a, b, 0)) for a, b in zip(lower, upper, strict=True)])


def test_every_call_of_a_module_that_is_used_again_has_its_violation_by_the_name_of_its_row():
    edges, x = random_edges(8, 14), normal(8, 4, dtype=torch.float32)
    torch.manual_seed(0)
    model = pyg.GCN(4, 4, num_layers=4)
    with EnergyConstraint(model, c_min=0.9) as constraint, Trace(model) as trace:
        model(x, edges.index)
    names = constraint.names()[1:]
    assert {"act", "act#2", "act#3"} <= set(names)
    assert set(names) <= {row.name for row in trace.layers}
    report = constraint.report()
    assert list(constraint.violations()) == [layer.name for layer in report.layers] == names
    found = [float(v) for v in constraint.violations().values()]
    assert found == pytest.approx([layer.violation for layer in report.layers])


def test_a_call_without_gradients_between_a_forward_pass_and_its_term_is_refused():
    edges, x = path3(), normal(3, 2)
    model = scales(1.0, 0.1)
    with EnergyConstraint(model, edges.graph64(), layers="*") as constraint:
        for _ in range(2):
            model(x)
            with torch.no_grad():
                model(x)
                model(x)
                assert constraint().isfinite()  # to look at it
            with pytest.raises(GraphjouleError, match=r"last call of Sequential was without gradients, as for a valid"):
                constraint()
            model(x)
            assert constraint().requires_grad
            with torch.no_grad():
                model(x)
            with pytest.raises(GraphjouleError, match=r"Call constraint\(\) between the call that it should count"):
                constraint()  # nor would its gaps belong into the next update
            assert list(constraint.violations()) == ["0", "1"]


def test_a_call_that_ends_in_an_error_has_no_energies():
    edges, x = path3(), normal(3, 2)
    model = scales(1.0, 0.1, 2.0)
    with EnergyConstraint(model, edges.graph64(), layers="*") as constraint:
        model(x)
        handle = model[2].register_forward_pre_hook(lambda *_: 1 / 0)
        try:
            model(x)
        except ZeroDivisionError:
            handle.remove()
            with pytest.raises(GraphjouleError, match="ended in an error, so there are no energies; call it again"):
                constraint()
            model(x)  # also while another error is being handled
            assert constraint().requires_grad


def test_a_constraint_without_hooks_gives_no_term():
    edges, x = path3(), normal(3, 2)
    model = scales(1.0, 0.1)
    with EnergyConstraint(model, edges.graph64(), layers="*") as constraint:
        model(x)
        constraint()
    with pytest.raises(GraphjouleError, match=r"taken off Sequential by detach\(\) .* Make a new constraint"):
        constraint()
    assert constraint.gaps().shape == (2, 2)


@pytest.mark.parametrize("method", METHODS)
def test_the_term_is_its_formula(method):
    gaps, multipliers, rho = normal(2, 5), normal(2, 5, seed=1).abs(), 0.7
    expected = 0.0
    for g, m in zip(gaps.flatten().tolist(), multipliers.flatten().tolist(), strict=True):
        expected += rho * max(g, 0) ** 2 if method == PENALTY else (max(m + rho * g, 0) ** 2 - m**2) / (2 * rho)
    assert float(METHODS[method].term(gaps, multipliers, rho)) == pytest.approx(expected)
    updated = METHODS[method].updated(gaps, multipliers, rho)
    assert updated.equal(multipliers if method == PENALTY else (multipliers + rho * gaps).clamp(min=0))


@pytest.mark.parametrize("method", METHODS)
def test_the_whole_terms_gradient_by_the_weights_is_right(method):
    graph, x = random_edges(10, 14).graph64(), normal(10, 4)
    torch.manual_seed(0)
    model = EGNN(4, 4, 2, num_layers=3, dropout=0.0, output_dropout=0.0, activation="linear").double()
    with EnergyConstraint(model, graph, 0.9, 0.95, layers="convs.*", method=method) as constraint:
        model(x, graph)
        assert (constraint.gaps() > 0).any()

        def term(weight):
            torch.func.functional_call(model, {"convs.1.weight": weight}, (x, graph))
            return constraint()

        weight = model.convs[1].weight.detach() + 0.1 * normal(4, 4, seed=5)
        assert torch.autograd.gradcheck(term, weight.requires_grad_())


def test_the_same_layer_in_other_units_has_the_same_gaps():
    x, edges = normal(6, 3), k33()
    found = []
    for unit in (1.0, 1e-9, 1e9):
        model = scales(0.5, 2.0)
        with EnergyConstraint(model, edges.graph64(), layers="*") as constraint:
            model(unit * x)
            found.append(constraint.gaps())
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


def test_the_term_has_the_dtype_of_the_features():
    graph = path3().graph()
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with EnergyConstraint(model, graph) as constraint:
        model(normal(3, 2, dtype=torch.float32))
        assert constraint().dtype == torch.float32
        assert constraint.gaps().dtype == torch.float64


# Dead and smooth layers.


def test_a_dead_layer_gives_finite_numbers_and_a_broken_limit():
    model = scales(1.0, 0.0, 1.0)
    x = normal(3, 2)
    with EnergyConstraint(model, path3().graph64(), 0.5, 1.0, layers="*", method=PENALTY) as constraint:
        model(x)
        term = constraint()
        term.backward()
    assert term.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    lower, upper = constraint.gaps().tolist()
    assert lower[1] > 10  # 0 >= c_min E does not hold
    assert lower[2] == -1  # E >= c_min 0 does
    assert upper[1] == upper[2] == -1


@pytest.mark.parametrize("edges", [no_edges(3), no_edges(1)], ids=["no edges", "one node"])
def test_a_graph_without_edges_has_nothing_to_hold(edges):
    model = scales(3.0, 0.1)
    with EnergyConstraint(model, edges.graph64(), 0.5, 0.6, layers="*") as constraint:
        model(normal(edges.num_nodes, 2))
        assert float(constraint().detach()) == 0
        assert max(float(v) for v in constraint.violations().values()) == 0


# Optima that are known.


def minimise(model, constraint, loss, x, steps=400, lr=0.05):
    """Ten steps of descent between two updates, so that each multiplier answers to a minimum."""
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(steps):
        model(x)
        optimiser.zero_grad()
        (loss(model) + constraint()).backward()
        optimiser.step()
        if step % 10 == 9:
            constraint.update()
    model(x)
    return constraint.report()


def test_the_constrained_optimum_is_found_at_the_lower_limit():
    """Least ``w_1^2 + w_2^2``: both limits bind, ``w = sqrt(c_min)`` and ``lambda = w^2 = c_min``."""
    model, x = scales(1.0, 1.3), normal(6, 3)
    with EnergyConstraint(model, k33().graph64(), 0.3, 1.0, layers="*", rho=1.0) as constraint:
        report = minimise(model, constraint, lambda m: sum(p.square() for p in m.parameters()), x)
    assert [p.item() for p in model.parameters()] == pytest.approx([0.3**0.5] * 2, rel=1e-3)
    assert report.max_violation < 0.01
    assert report.num_broken == 0
    assert report.max_slackness < 1e-3
    assert [layer.lower_multiplier for layer in report.layers] == pytest.approx([0.3, 0.3], rel=1e-2)
    assert [layer.upper_multiplier for layer in report.layers] == [0, 0]


def test_the_constrained_optimum_is_found_at_the_upper_limit():
    """Least ``(w - 2)^2``: the upper limit binds, ``w = 1`` and ``lambda = 1``."""
    model, x = scales(0.7), normal(6, 3)
    with EnergyConstraint(model, k33().graph64(), 0.3, 1.0, layers="*", rho=1.0) as constraint:
        report = minimise(model, constraint, lambda m: (m[0].weight - 2).square(), x)
    assert model[0].weight.item() == pytest.approx(1, rel=1e-3)
    assert report.layers[0].upper_multiplier == pytest.approx(1, rel=1e-2)
    assert report.layers[0].lower_multiplier == 0
    assert report.max_slackness < 1e-3


def test_a_penalty_comes_near_and_the_multipliers_reach_it():
    found = {}
    for method in METHODS:
        model, x = scales(1.0), normal(6, 3)
        with EnergyConstraint(model, k33().graph64(), 0.5, 1.0, layers="*", method=method, rho=0.5) as constraint:
            found[method] = minimise(model, constraint, lambda m: m[0].weight.square(), x).max_violation
    assert found[AL] < 1e-3 < 0.05 < found[PENALTY] < 1


def test_a_penalty_that_is_never_updated_keeps_no_gaps_of_earlier_steps():
    model, x = scales(1.0), normal(6, 3)
    with EnergyConstraint(model, k33().graph64(), 0.5, 1.0, layers="*", method=PENALTY) as constraint:
        kept = []
        for _ in range(4):
            model(x)
            constraint()
            kept.append(weakref.ref(constraint._latest[-1]))
    assert [ref() is not None for ref in kept] == [False, False, False, True]


def test_where_no_limit_binds_the_optimum_is_the_free_one():
    model, x = scales(0.7), normal(6, 3)
    with EnergyConstraint(model, k33().graph64(), 0.1, 1.0, layers="*") as constraint:
        report = minimise(model, constraint, lambda m: (m[0].weight - 0.6).square(), x)
    assert model[0].weight.item() == pytest.approx(0.6, rel=1e-4)
    assert report.max_slackness == report.max_violation == 0


@pytest.mark.slow
def test_a_deep_network_that_loses_its_energy_is_brought_within_its_limits():
    edges = random_edges(40, 80, seed=1)
    graph, x, y = edges.graph64(), normal(40, 5), torch.arange(40) % 2
    reports = {}
    for rho in (None, 1.0):
        torch.manual_seed(0)
        model = GCN(5, 8, 2, num_layers=7, dropout=0.0).double()
        optimiser = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 300)
        with EnergyConstraint(model, graph, 0.6, 1.5, layers="convs.*", rho=rho or 1.0) as constraint:
            for step in range(300):
                optimiser.zero_grad()
                loss = F.cross_entropy(model(x, graph), y)
                (loss if rho is None else loss + constraint()).backward()
                optimiser.step()
                schedule.step()
                if rho is not None and step % 10 == 9:
                    constraint.update()
            model(x, graph)
            reports[rho] = constraint.report()
    assert reports[None].num_broken == 5
    assert reports[1.0].max_violation < 0.01
    assert all(min(layer.lower_multiplier, layer.upper_multiplier) >= 0 for layer in reports[1.0].layers)
    trace = Trace.of(model, graph, (x, graph), ["energy"], watch=["convs.*"])
    rows = trace.select(*(f"convs.{k}" for k in range(6)))
    assert all(layer.lower_slack > 0.99 for layer in limits(rows, 0.6, 1.5).layers)


# Anybody's model.


def test_a_model_of_pyg_and_its_edge_index():
    edge_index, x = random_edges(9, 12).index, normal(9, 4, dtype=torch.float32)
    torch.manual_seed(0)
    model = pyg.GCN(4, 6, num_layers=5, out_channels=3)
    with EnergyConstraint(model, edge_index, 0.9, 1.0, layers="convs.*") as constraint:
        (model(x, edge_index).sum() * 0 + constraint()).backward()
    assert constraint.names() == [f"convs.{k}" for k in range(4)]  # of 4 to 6 channels X_0 is what comes out
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert model.convs[1].lin.weight.grad.abs().max() > 0


def test_layers_can_be_named_by_type_and_found_by_default():
    graph, x = path3().graph(), normal(3, 4, dtype=torch.float32)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Dropout(0.0), nn.Linear(4, 4))
    for layers, count in ((nn.Linear, 3), (None, 4)):  # dropout of nothing hands on what it was given
        with EnergyConstraint(model.eval(), graph, layers=layers) as constraint:
            model(x)
            assert constraint.gaps().shape == (2, count)


@pytest.mark.parametrize("form", ["axis", "vmap"])
def test_a_batch_of_runs_has_gaps_terms_and_multipliers_of_its_own(form):
    graph, x = k33().graph64(), normal(6, 3)
    starts = torch.tensor([0.9, 0.2, 0.5], dtype=torch.float64)

    class Batch(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Identity(), nn.Identity()

        def forward(self, x, w):
            return self.second(w * self.first(w * x))

    model = Batch()
    with EnergyConstraint(model, graph, 0.3, 1.0, layers=["first", "second"]) as constraint:
        if form == "axis":
            model(x, starts[:, None, None])
            assert constraint().shape == (3,)
            constraint.update()
            assert constraint.multipliers.shape == (3, 2, 1)
            assert constraint.report(run=1).num_broken == 1
            with pytest.raises(GraphjouleError, match="have 3 runs: say which"):
                constraint.report()
            gaps = constraint.gaps()
        else:

            def one(w):
                model(x, w)
                return constraint.gaps()

            gaps = torch.vmap(one)(starts)
    torch.testing.assert_close(gaps[:, 0, 0], math.log(0.3) - 2 * starts.log())


# Behaviour.


def test_hooks_are_gone_after_the_block_also_after_an_error_and_nothing_is_kept_alive():
    model, graph = scales(1.0, 1.0), path3().graph64()
    with pytest.raises(ZeroDivisionError), EnergyConstraint(model, graph):
        raise ZeroDivisionError
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    constraint = EnergyConstraint(model, graph, layers="*")
    out = model(normal(3, 2))
    constraint.detach()
    before = constraint.gaps()
    model(5 * normal(3, 2, seed=9))
    assert constraint.gaps().equal(before)  # it no longer looks
    del before
    seen = weakref.ref(out)
    del out
    gc.collect()
    assert seen() is None


def test_evaluation_between_loss_and_update_does_not_move_the_multipliers():
    model, x = scales(0.1, 1.0), normal(3, 2)
    with EnergyConstraint(model, path3().graph64(), layers="*") as constraint:
        model(x)
        constraint()
        expected = METHODS[AL].updated(
            constraint.gaps().detach(), torch.zeros(2, 2, dtype=torch.float64), constraint.rho
        )
        with torch.no_grad():
            model.eval()(x[:, :1])
        constraint.update()
    assert constraint.multipliers.equal(expected)
    assert not constraint.multipliers.requires_grad


def test_the_multipliers_can_be_saved_and_loaded():
    model, x = scales(0.1), normal(3, 2)
    first, second = (EnergyConstraint(model, path3().graph64(), layers="*") for _ in range(2))
    assert first.state_dict() == {}
    model(x)
    first()
    first.update()
    second.load_state_dict(first.state_dict())
    assert second().equal(first())
    assert not second().equal(EnergyConstraint.term(second, second.gaps(), torch.zeros(2, 1)))


def test_a_report_tells_what_is_wrong():
    report = ConstraintReport("encoder", (LayerState("convs.0", 0.5, -2.0, 0.25), LayerState("convs.1", -0.2, -1.9)))
    assert str(report).startswith("1 of 2 layers after encoder miss a limit by more than 1 %; the largest violation is")
    assert report.max_slackness == 0.125
    head, *lines = report.table().splitlines()
    assert head.split() == ["layer", "lower", "gap", "upper", "gap", "violation", "lambda"]
    assert [line.split()[0] for line in lines] == ["convs.0", "convs.1"]
    assert json.loads(report.to_json())["layers"][0]["violation"] == pytest.approx(math.expm1(0.5))
    assert LayerState("dead", 1e4, 0.0).violation == math.inf


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"c_min": 0.0}, "c_min is 0.0; it must be between 0 and 1."),
        ({"c_min": 1.5}, "c_min is 1.5; it must be between 0 and 1."),
        ({"c_min": 0.5, "c_max": 0.4}, "c_max is 0.4; it must be a number from c_min = 0.5 on"),
        ({"c_max": math.nan}, "c_max is nan"),
        ({"method": "lagrange"}, "method is 'lagrange'; the choices are: augmented_lagrangian, penalty."),
        ({"rho": 0.0}, "rho is 0.0; it must be positive."),
        ({"layers": "convs.*"}, r"No module is called 'convs.\*'"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(options, sentence):
    model = scales(1.0)
    with pytest.raises(GraphjouleError, match=sentence):
        EnergyConstraint(model, path3().graph64(), **options)
    assert not model._forward_hooks


def test_a_call_too_early_or_of_too_few_layers_is_refused_with_a_sentence():
    model = nn.Sequential(nn.Linear(2, 3))
    constraint = EnergyConstraint(model, path3().graph())
    with pytest.raises(GraphjouleError, match="call the model first"):
        constraint()
    with pytest.raises(GraphjouleError, match=r"call constraint\(\) for the loss first"):
        constraint.update()
    model(torch.ones(3, 2))
    with pytest.raises(GraphjouleError, match="There is no layer after '0'"):
        constraint()


def test_a_model_that_changes_its_layers_is_refused_with_a_sentence():
    model, x = scales(0.1, 1.0), normal(3, 2)
    with EnergyConstraint(model, path3().graph64(), layers="*") as constraint:
        model(x)
        constraint()
        constraint.update()
        constraint._hooks._seen.pop()
        with pytest.raises(GraphjouleError, match="must call the same layers every time"):
            constraint()


def test_a_propagation_of_another_dtype_serves():
    model, x = scales(0.5), normal(6, 2)
    found = []
    for dtype in (torch.float32, torch.float64):
        graph = Propagation.from_edge_index(k33().index, dtype=dtype)
        with EnergyConstraint(model, graph, layers="*") as constraint:
            model(x)
            found.append(constraint.gaps())
    torch.testing.assert_close(*found, rtol=0, atol=1e-14)


# What the hooks measure.


def test_every_call_is_measured_anew_and_every_layer_once():
    graph, model = random_edges(9, 14).graph64(), GCN(5, 5, 5, num_layers=3).double().eval()
    hooks = EmbeddingHooks(model, graph, "convs.*", None)
    for seed in (0, 1):
        x = normal(9, 5, seed=seed)
        model(x, graph)
        chain = hooks.chain()
        assert [each.name for each in chain] == ["input of convs.0", "convs.0", "convs.1", "convs.2"]
        assert float(chain[0].log_energy.exp()) == pytest.approx(float(dirichlet_energy(x, graph)))
    hooks.clear()
    with pytest.raises(GraphjouleError, match="call the model first"):
        hooks.chain()
    hooks.remove()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_scores_of_another_width_are_left_free_where_two_layers_remain():
    graph, x = path3().graph(), normal(3, 4, dtype=torch.float32)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2))
    hooks = EmbeddingHooks(model, graph, "*", None)
    model(x)
    assert [each.channels for each in hooks.chain()] == [6, 6]
    short = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    hooks = EmbeddingHooks(short, graph, "*", None)
    short(x)
    assert [each.channels for each in hooks.chain()] == [6, 2]


def test_the_nodes_of_an_edge_index_are_counted_by_the_features():
    edge_index, x = path3().index, normal(5, 4, dtype=torch.float32)  # two nodes without edges
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    hooks = EmbeddingHooks(model, edge_index, None, 5)
    model(x)
    assert len(hooks.chain()) == 3


def test_a_module_that_has_a_constraint_saves_its_multipliers():
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = scales(0.1)
            self.constraint = EnergyConstraint(self.net, path3().graph64(), layers="*")

    first, second, x = Module(), Module(), normal(3, 2)
    assert not any("multipliers" in key for key in first.state_dict())
    for module in (first, second):
        module.net(x)
        module.constraint()
    first.constraint.update()
    assert list(first.constraint.parameters()) == []  # the model is no part of it
    state = first.state_dict()
    assert state["constraint.multipliers"].equal(first.constraint.multipliers)
    second.load_state_dict(state)
    assert second.constraint().equal(first.constraint())
    first.to(torch.bfloat16)  # multipliers add up over a training and are not rounded
    assert first.constraint.multipliers.equal(state["constraint.multipliers"])
    second.load_state_dict(Module().state_dict())  # of before the first update
    assert second.constraint.multipliers is None
    with pytest.raises(RuntimeError, match="Unexpected key"):
        second.constraint.load_state_dict({"multiplier": torch.zeros(2, 1)})


def test_accumulated_batches_move_the_multipliers_by_their_mean():
    model = scales(0.1)
    constraint = EnergyConstraint(model, path3().graph64(), layers="*")
    gaps = []
    for seed in range(3):
        model(normal(3, 2, seed=seed))
        constraint()
        gaps.append(constraint.gaps().detach())
    constraint.update()
    torch.testing.assert_close(constraint.multipliers, torch.relu(torch.stack(gaps).mean(dim=0)))
    model(normal(3, 2))
    constraint()
    before = constraint.multipliers
    constraint.update()  # what was accumulated before counts no more
    torch.testing.assert_close(constraint.multipliers, torch.relu(before + constraint.gaps().detach()))
    with pytest.raises(GraphjouleError, match=r"call constraint\(\) .* again before the next update"):
        constraint.update()


class Checkpointed(torch.nn.Module):
    def __init__(self, use_reentrant: bool | None) -> None:
        super().__init__()
        self.use_reentrant, self.layers = use_reentrant, torch.nn.ModuleList(scales(0.7, 0.1, 0.6))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) if self.use_reentrant is None else checkpoint(layer, x, use_reentrant=self.use_reentrant)
        return x


def gradient_of_a_checkpointed_model(use_reentrant: bool | None):
    x, model = normal(3, 2).requires_grad_(), Checkpointed(use_reentrant)
    with Trace(model, path3().graph64()) as trace, EnergyConstraint(model, path3().graph64(), layers="*.*") as held:
        (model(x).sum() + held()).backward()
        assert len(held.names()) == 4
    return [row.name for row in trace.layers], x.grad


def test_a_checkpoint_calls_layers_again_and_has_each_row_once_and_the_same_gradient():
    names, gradient = gradient_of_a_checkpointed_model(use_reentrant=None)
    assert names == ["layers.0", "layers.1", "layers.2"]
    again, same = gradient_of_a_checkpointed_model(use_reentrant=False)
    assert again == names
    torch.testing.assert_close(same, gradient)


def test_a_reentrant_checkpoint_hides_layers_from_the_constraint_and_is_warned_of():
    with pytest.warns(UserWarning, match=r"'layers.0' runs without gradients.*take `use_reentrant=False`"):
        names, _ = gradient_of_a_checkpointed_model(use_reentrant=True)
    assert len(names) == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"c_min": "a"}, "c_min is 'a'; expected a number"),
        ({"rho": True}, "rho is True; expected a number"),
        ({"every": 0}, "every is 0; it must be at least 1"),
        ({"every": 1.5}, "every is 1.5; expected a whole number"),
        ({"num_nodes": -3}, "num_nodes is -3; it must be at least 1"),
    ],
)
def test_numbers_that_are_none_are_refused(options, sentence):
    with pytest.raises(GraphjouleError, match=sentence):
        EnergyConstraint(scales(1.0, 1.0), **options)
    with pytest.raises(GraphjouleError, match=r"model is of type str; expected a torch\.nn\.Module"):
        EnergyConstraint("gcn")
