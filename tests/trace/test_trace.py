import gc
import math
import tracemalloc
import weakref

import pytest
import torch
import torch_geometric.nn as pyg
from hypothesis import given
from torch import nn
from torch.func import functional_call

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.measures import MEASURES, Measure
from graphjoule.measures.energy import dirichlet_energy
from graphjoule.nn import EGNN, GCN, Wave
from graphjoule.trace import LayerCollapse, RecordedTrace, Trace, with_reach
from graphjoule.trace.diagnosis import diagnose
from graphjoule.trace.trace import Entry, settle
from tests.graphs import edge_lists, few, k33, normal, path3, random_edges

from . import Plain, energy, hooks, names, norm, single

# What is recorded.


def test_it_records_every_layer_of_any_model_whose_output_is_node_features():
    model, edges, x = Plain(), path3(), single(3, 2)
    with Trace(model, edges.graph()) as trace:
        model(x)
    h = model.first(x)
    outputs = [h, model.second(h.relu())]
    assert names(trace) == ["first", "second"]
    assert [row.energy for row in trace.layers] == [energy(h, edges) for h in outputs]
    assert [row.norm for row in trace.layers] == [pytest.approx(norm(h)) for h in outputs]
    assert [(row.channels, row.module, row.run) for row in trace.layers] == [(4, "Linear", None), (3, "Linear", None)]
    assert all(type(number) is float for row in trace.layers for number in row.values.values())


@few
@given(edge_lists())
def test_every_measure_is_what_its_function_gives_on_any_graph(edges):
    x, model = normal(edges.num_nodes, 2), nn.Sequential(nn.Linear(2, 3).double())
    with torch.no_grad(), Trace(model, edges.graph64(), measures=list(MEASURES)) as trace:
        output = model(x)
    (row,) = trace.layers
    assert list(row.values) == list(MEASURES)
    for name, value in row.values.items():
        assert value == pytest.approx(float(MEASURES[name].function(output, edges.graph64())), nan_ok=True)


def test_a_measure_of_ones_own_is_recorded_beside_the_known_ones():
    largest = Measure("largest", lambda x, graph: x.abs().amax(dim=(-2, -1)), "max |x|", "[0, inf)", "", "")
    model, x = nn.Sequential(nn.Linear(2, 3)), single(3, 2)
    with Trace(model, path3().graph(), measures=["norm", largest, "norm"]) as trace:
        out = model(x)
    assert trace.measures == ("norm", "largest")
    assert trace.layers[0]["largest"] == pytest.approx(float(out.detach().abs().max()))


def test_every_call_is_recorded_with_its_number_its_mark_and_its_mode():
    model = Plain()
    with Trace(model, path3().graph(), watch=["first"]) as trace:
        model(torch.ones(3, 2))
        trace.mark("epoch 1")
        model.eval()
        model(2 * torch.ones(3, 2))
    assert [(row.name, row.call, row.mark, row.training) for row in trace.layers] == [
        ("first", 0, None, True),
        ("first", 1, "epoch 1", False),
    ]
    assert trace.layers[0].energy != trace.layers[1].energy
    assert names(trace.select(call=-1)) == ["first"]
    assert trace.select(call=-1).layers == trace.select(mark="epoch 1").layers == trace.layers[1:]


def test_every_third_call_alone_is_recorded_and_the_others_have_no_hook():
    model, edges, seen = EGNN(2, 4, 3, num_layers=2).eval(), path3(), []
    with Trace(model, edges.graph(), every=3) as trace:
        for _ in range(7):
            model(torch.ones(3, 2), edges.graph())
            seen.append(len(model.convs[0]._forward_hooks))
    assert sorted({row.call for row in trace.layers}) == [0, 3, 6]
    assert seen == [1, 0, 0, 1, 0, 0, 1]
    assert hooks(model) == 0


def test_modes_are_as_before_after_the_trace_of_one_call_also_when_it_fails():
    model, graph = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), nn.Linear(3, 3)), path3().graph()
    model[0].eval()
    trace = Trace.of(model, graph, (torch.ones(3, 2),), ["energy"])
    assert [module.training for module in model] == [False, True, True]
    assert names(trace) == ["0", "2"]
    assert not any(row.training for row in trace.layers)
    with pytest.raises(RuntimeError, match="mat1"):
        Trace.of(model, graph, (torch.ones(3, 7),))
    assert [module.training for module in model] == [False, True, True]


def test_a_tensor_handed_on_has_one_row_under_the_outermost_name():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.inner = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())

        def forward(self, x):
            return self.inner(self.linear(x))

    model = nn.Sequential(nn.Linear(2, 4), nn.Identity(), nn.Dropout(0.5), Block(), nn.Identity()).eval()
    with Trace(model, path3().graph()) as trace:
        model(torch.ones(3, 2))
    assert names(trace) == ["0", "3.linear", "3.inner.0", "3"]
    assert trace.layers[-1].module == "Block"


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_change_in_place_is_a_new_row(mode):
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(inplace=True), nn.Identity())
    with mode(), Trace(model, path3().graph(), ["norm"]) as trace:
        out = model(single(3, 2))
    assert names(trace) == ["0", "1"]
    assert trace.layers[0].norm > trace.layers[1].norm == pytest.approx(norm(out))


def test_memory_that_is_used_again_is_not_taken_for_the_same_tensor():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)))
    with torch.no_grad(), Trace(model, path3().graph(), ["norm"]) as trace:
        model(single(3, 4))
    assert names(trace) == [str(k) for k in range(20)]


def test_a_module_used_twice_in_a_call_has_two_rows():
    shared = nn.Linear(3, 3)
    model = nn.ModuleDict({"shared": shared})
    model.forward = lambda x: shared(shared(x).relu())
    with Trace(model, path3().graph(), ["norm"]) as trace:
        model(single(3, 3))
        model(single(3, 3))
    assert [(row.name, row.call) for row in trace.layers] == [
        (name, k) for k in (0, 1) for name in ("shared", "shared#2")
    ]
    assert trace.layers[0].norm != trace.layers[1].norm
    assert len(trace.select("shared").layers) == 4
    assert names(trace.select("shared#2")) == ["shared#2", "shared#2"]


def test_one_activation_for_all_layers_has_numbered_rows():
    model, edges = pyg.GCN(2, 4, num_layers=4, out_channels=3).eval(), path3()
    with torch.no_grad(), Trace(model, edges.index) as trace:
        model(single(3, 2), edges.index)
    assert names(trace) == ["convs.0", "act", "convs.1", "act#2", "convs.2", "act#3", "convs.3"]
    with torch.no_grad(), Trace(model, edges.index, watch="act") as trace:
        model(single(3, 2), edges.index)
    assert names(trace) == ["act", "act#2", "act#3"]


def test_a_block_that_is_used_again_is_numbered_by_its_own_uses():
    """The first use gives what its part gave, so its row changes its name, and must take the number with it."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.act = nn.Linear(3, 3), nn.Tanh()

        def forward(self, x):
            return self.act(self.linear(x))

    model = nn.Module()
    model.block = Block()
    model.forward = lambda x: model.block(model.block(x))
    with Trace(model, path3().graph(), gradients=True) as trace:
        model(single(3, 3)).sum().backward()
    assert names(trace) == ["block.linear", "block", "block.linear#2", "block#2"]
    assert [row.weight_gradient is not None for row in trace.layers] == [False, False, True, True]


def test_parts_called_by_themselves_are_recorded_too():
    model, edges = Plain(), path3()
    with Trace(model, edges.index) as trace:
        model.first(single(3, 2))
    assert [(row.name, row.call) for row in trace.layers] == [("first", 0)]


# A trace without rows.


def test_a_trace_without_rows_warns_with_what_it_saw():
    model, graph = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3)), path3().graph()
    said = r"nothing.* with 3 rows, .* the outputs were: 0 \[5, 4\]; 1 \[5, 3\]\."
    with pytest.warns(UserWarning, match=said), Trace(model, graph):
        model(torch.ones(5, 2))
    said = r"nothing: of the modules that it watches \(0, 1\) none was called"
    with pytest.warns(UserWarning, match=said), Trace(model, graph):
        pass
    deep = nn.Sequential(*(nn.Linear(2, 2) for _ in range(7)))
    with pytest.warns(UserWarning, match=r"4 \[2, 2\]; \.\.\.\."), Trace(deep, path3().index):
        deep(torch.ones(2, 2))  # too few rows for three nodes: their number is never told
    assert hooks(model) == hooks(deep) == 0


def test_an_error_inside_the_block_is_not_hidden_by_the_warning():
    with pytest.raises(ZeroDivisionError), Trace(Plain(), path3().graph()):
        raise ZeroDivisionError


# It leaves no trace itself.


def test_it_lets_go_when_the_block_ends_also_after_an_error():
    model = Plain()
    with Trace(model, path3().index, gradients=True):
        assert hooks(model) == 4 + 2 + 5  # modules, before and after the model itself, parameters
        model(torch.ones(3, 2))
    assert hooks(model) == 0
    with pytest.raises(RuntimeError, match="mat1"), Trace(model, path3().index, gradients=True):
        model(torch.ones(3, 7))
    assert hooks(model) == 0


def test_a_hook_of_someone_else_stays():
    model = Plain()
    model.first.register_forward_hook(lambda *_: None)
    with Trace(model, path3().index):
        model(torch.ones(3, 2))
    assert hooks(model) == 1


@pytest.mark.parametrize("gradients", [False, True])
def test_it_changes_neither_scores_nor_gradients_nor_random_numbers(gradients):
    edges, x = random_edges(), single(9, 2)
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(4, 3))

    def step():
        torch.manual_seed(0)
        scores = model(x)
        return scores, *torch.autograd.grad(scores.square().sum(), list(model.parameters())), torch.get_rng_state()

    plain = step()
    with Trace(model, edges.graph(), list(MEASURES), gradients=gradients):
        watched = step()
    assert all(a.equal(b) for a, b in zip(plain, watched, strict=True))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_its_numbers_are_the_same_with_and_without_gradients(mode):
    edges, x = random_edges(weighted=True), single(9, 2)
    model = GCN(2, 4, 3, num_layers=2).eval()
    with mode(), Trace(model, edges.graph(), watch=["convs.*"]) as trace:
        scores = model(x, edges.graph())
    assert trace.layers[1].energy == energy(scores, edges)


@pytest.mark.parametrize("gradients", [False, True])
def test_it_keeps_no_activation(gradients):
    model, activations = Plain(), []
    model.first.register_forward_hook(lambda module, inputs, output: activations.append(weakref.ref(output)))
    with Trace(model, path3().index, gradients=gradients) as trace:
        model(torch.ones(3, 2)).sum().backward()
        gc.collect()
        assert activations[0]() is None
        assert len(trace.layers) == 2
        assert all(not isinstance(number, torch.Tensor) for entry in trace._entries for number in entry.values.values())


def test_numbers_stay_on_the_device_until_they_are_read_and_come_home_together(monkeypatch):
    module = "graphjoule.trace.trace"
    monkeypatch.setattr(f"{module}._MOST_WAITING", 3)
    model, entries = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), []
    with Trace(model, path3().graph(), ["norm"]) as trace:
        for _ in range(3):
            model(torch.ones(3, 2))
            entries.append([isinstance(entry.values["norm"], torch.Tensor) for entry in trace._entries])
    assert entries == [[True] * 2, [True] * 4, [False] * 4 + [True] * 2]
    assert len(trace.layers) == 6
    assert not any(isinstance(entry.values["norm"], torch.Tensor) for entry in trace._entries)


def test_settling_splits_numbers_as_they_were():
    entries = [Entry("a", "A", 0, None, True, num_runs=2), Entry("b", "B", 0, None, True)]
    entries[0].values = {"energy": torch.tensor([1.0, 2.0]), "norm": torch.tensor(3.0)}
    entries[1].gradient = {"norm": torch.tensor(4.0)}
    settle(entries)
    settle(entries)  # again: nothing waits
    assert [(row.run, row.energy, row.norm) for row in entries[0].rows()] == [(0, 1.0, 3.0), (1, 2.0, 3.0)]
    assert [(row.run, row.gradient) for row in entries[1].rows()] == [(None, 4.0)]


# Gradients.


def test_gradients_by_outputs_and_by_parameters_are_those_of_autograd():
    model, x = Plain(), single(3, 2)
    with Trace(model, path3().graph(), gradients=True, watch=["first", "second"]) as trace:
        h = model.first(x)
        out = model.second(h.relu())
        wanted = torch.autograd.grad(out.square().sum(), [h, out, *model.first.parameters()], retain_graph=True)
        out.square().sum().backward()
    first, second = trace.layers
    assert (first.gradient, second.gradient) == tuple(pytest.approx(float(g.norm())) for g in wanted[:2])
    assert first.weight_gradient == pytest.approx(math.sqrt(sum(float(g.square().sum()) for g in wanted[2:])))
    assert first["gradient"] == first.gradient


def test_a_backward_pass_after_the_block_is_not_recorded_and_none_is_none():
    model = Plain()
    with Trace(model, path3().graph(), gradients=True) as trace:
        out = model(single(3, 2))
    out.sum().backward()
    assert all(row.gradient is None and row.weight_gradient is None for row in trace.layers)
    with pytest.raises(GraphjouleError, match=r"first has no 'gradient'; recorded are: effective_rank, energy, norm"):
        trace.layers[0]["gradient"]


def test_weights_count_for_the_module_that_gives_its_name_to_the_row():
    model = nn.ModuleDict({"block": nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3))})
    model.forward = lambda x: model["block"](x)
    with Trace(model, path3().graph(), gradients=True) as trace:
        model(single(3, 2)).square().sum().backward()
    assert names(trace) == ["block.0", "block"]
    whole = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    assert trace.layers[1].weight_gradient == pytest.approx(whole)


def test_an_evaluation_after_the_training_step_does_not_take_its_gradients():
    model, x = Plain(), single(3, 2)
    with Trace(model, path3().graph(), gradients=True) as trace:
        loss = model(x).square().sum()
        with torch.no_grad():
            model.eval()(x)
        loss.backward()
    assert [row.gradient is None for row in trace.layers] == [False, False, True, True]
    assert [row.weight_gradient is None for row in trace.layers] == [False, False, True, True]


# Many runs.


def test_a_leading_axis_is_runs():
    edges, x = random_edges(), single(4, 9, 2)
    model = nn.Sequential(nn.Linear(2, 3))
    with Trace(model, edges.graph(), list(MEASURES), gradients=True) as trace:
        out = model(x)
        (out * torch.arange(4)[:, None, None]).sum().backward()
    assert [row.run for row in trace.layers] == [0, 1, 2, 3]
    for row, run in zip(trace.layers, out, strict=True):
        with Trace(alone := nn.Sequential(nn.Identity()), edges.graph(), list(MEASURES)) as single_trace:
            alone(run.detach())
        assert row.values == pytest.approx(dict(single_trace.layers[0].values), rel=1e-6)
        assert row.gradient == pytest.approx(row.run * 27**0.5)
    assert [row.run for row in trace.select(run=2).layers] == [2]


@pytest.mark.parametrize("axis", [0, 1])
def test_inside_vmap_every_run_is_recorded_with_its_gradient(axis):
    """As training does it: parameters with a run axis, `functional_call` under `vmap`, autograd around it."""
    edges, x = random_edges(), single(9, 2)
    models = [GCN(2, 4, 3, num_layers=2).eval() for _ in range(3)]
    template = models[0]
    stacked = {
        name: torch.stack([dict(m.named_parameters())[name].detach() for m in models], dim=axis).requires_grad_()
        for name, _ in template.named_parameters()
    }
    loss_of = lambda p: functional_call(template, p, (x, edges.graph())).square().sum()  # noqa: E731
    with Trace(template, edges.graph(), gradients=True) as trace:
        torch.vmap(loss_of, in_dims=axis)(stacked).sum().backward()
    assert hooks(template) == 0
    assert [(row.name, row.run) for row in trace.layers] == [(f"convs.{k}", run) for k in range(2) for run in range(3)]
    for run, model in enumerate(models):
        with Trace(model, edges.graph(), gradients=True) as alone:
            model(x, edges.graph()).square().sum().backward()
        for row, expected in zip(trace.select(run=run).layers, alone.layers, strict=True):
            assert row.values == pytest.approx(dict(expected.values), rel=1e-4)
            assert row.gradient == pytest.approx(expected.gradient, rel=1e-4)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_inside_vmap_the_run_axis_may_be_anywhere(axis):
    runs = single(4, 9, 3)
    x = runs.movedim(0, axis).clone().requires_grad_()
    model, edges = nn.Sequential(nn.Identity()), random_edges()
    with Trace(model, edges.graph(), gradients=True) as trace:
        (torch.vmap(model, in_dims=axis)(x).sum(dim=(1, 2)) * torch.arange(4)).sum().backward()
    assert [row.energy for row in trace.layers] == pytest.approx([energy(run, edges) for run in runs])
    assert [row.gradient for row in trace.layers] == pytest.approx([run * 27**0.5 for run in range(4)])


def test_inside_vmap_what_all_runs_share_stands_once():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3))
    weights = single(4, 3, 3)
    with Trace(model, path3().graph()) as trace:
        torch.vmap(lambda w: functional_call(model, {"1.weight": w}, (torch.ones(3, 2),)))(weights)
    assert [(row.name, row.run) for row in trace.layers] == [("0", None), *(("1", run) for run in range(4))]
    assert [row.name for row in trace.select(run=1).layers] == ["0", "1"]


def test_a_transform_by_torch_func_is_measured_without_gradients():
    model = nn.Sequential(nn.Linear(2, 3))
    weights, x = single(2, 3, 2), single(3, 2)
    step = torch.func.grad(lambda w: functional_call(model, {"0.weight": w}, (x,)).square().sum())
    with Trace(model, path3().graph(), gradients=True) as trace:
        torch.vmap(step)(weights)
    assert [row.run for row in trace.layers] == [0, 1]
    expected = [energy(x @ w.t() + model[0].bias, path3()) for w in weights]
    assert [row.energy for row in trace.layers] == pytest.approx(expected, rel=1e-5)


def test_all_measures_take_less_than_30_kb_per_layer_and_epoch():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(8)))
    trace = Trace(model, random_edges().graph(), list(MEASURES), gradients=True)

    def epochs(count):
        for _ in range(count):
            model(single(9, 4)).sum().backward()
        settle(trace._entries)

    with trace:
        epochs(1)  # what is kept once, the graph's operators
        tracemalloc.start()
        epochs(5)
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    assert taken / 40 < 30_000
    assert len(trace.to_json()) / 48 < 30_000


def test_a_graph_on_the_cpu_serves_a_float64_model():
    graph = Propagation.from_edge_index(path3().index)
    model = nn.Sequential(nn.Linear(2, 3).double())
    with Trace(model, graph) as trace:
        out = model(normal(3, 2))
    assert trace.layers[0].energy == pytest.approx(float(dirichlet_energy(out.detach(), graph)), rel=1e-12)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_on_a_gpu_a_graph_from_the_cpu_serves_and_nothing_waits_inside_the_hooks():
    edges, x = random_edges(), single(9, 2)
    model = GCN(2, 4, 3, num_layers=2).eval()
    on_cpu = Trace.of(model, edges.graph(), (x, edges.graph()))
    model, x, graph = model.cuda(), x.cuda(), edges.graph().to("cuda")
    with torch.no_grad(), Trace(model, edges.graph(), ["energy", "norm"]) as trace:
        model(x, graph)  # moves the graph, once
        torch.cuda.set_sync_debug_mode("error")
        try:
            model(x, graph)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len(trace._entries) == 4
    assert all(entry.values["energy"].is_cuda for entry in trace._entries)
    for row, expected in zip(trace.select(call=1).layers, on_cpu.layers, strict=True):
        assert row.energy == pytest.approx(expected.energy, rel=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [EGNN, GCN, Wave])
def test_on_a_gpu_all_layers_are_measured_at_once_with_the_numbers_of_the_cpu(kind):
    edges, x = random_edges(4200, 9000), single(4200, 8)
    model, graph = kind(8, 64, 3, num_layers=5).eval(), edges.graph()
    measures = ["energy", "norm", "rayleigh", "second_energy", "kernel_distance", "effective_rank"]
    on_cpu = Trace.of(model, graph, (x, graph), measures).layers
    model, x, graph = model.cuda(), x.cuda(), graph.to("cuda")
    with torch.no_grad(), Trace(model, graph, measures) as trace:
        model(x, graph)
        model(x, graph)
    for rows in (trace.select(call=0).layers, trace.select(call=1).layers):
        assert [row.name for row in rows] == [row.name for row in on_cpu]
        for row, expected in zip(rows, on_cpu, strict=True):
            assert row.values == pytest.approx(expected.values, rel=1e-3)


# Alarms.


def dying(factor: float) -> torch.nn.Module:
    class Smooth(torch.nn.Module):
        def forward(self, x):
            return factor * x + (1 - factor) * x.mean()

    return torch.nn.Sequential(torch.nn.Identity(), Smooth(), torch.nn.Linear(1, 1).double())


def test_a_dead_layer_warns_once_stops_or_calls():
    graph, x = k33().graph64(), normal(6, 1)
    with Trace(dying(0.5), graph, on_collapse="stop") as trace:  # nothing is dead
        trace._model(x)
    with Trace(dying(1e-6), graph, on_collapse="warn", watch="1") as trace:
        with pytest.warns(UserWarning, match=r"^1 has collapsed in call 0: norm .*, rayleigh [\d.e-]+\.$"):
            trace._model(x)
        trace._model(x)  # a second warning would be an error
    with Trace(dying(1e-6), graph, on_collapse="stop") as trace, pytest.raises(LayerCollapse, match="is stopped"):
        trace._model(x)
    rows = []
    with Trace(dying(math.nan), graph, on_collapse=rows.append, watch="1") as trace:
        trace._model(x)
    assert [row.name for row in rows] == ["1"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"on_collapse": "shout"}, "on_collapse is 'shout'; expected 'warn', 'stop' or a function"),
        ({"on_collapse": "warn", "measures": ["norm"]}, "needs the measures norm and rayleigh; rayleigh is missing"),
    ],
)
def test_an_alarm_that_cannot_be_is_refused(options, sentence):
    with pytest.raises(GraphjouleError, match=sentence):
        Trace(dying(0.5), k33().graph64(), **options)


def test_what_is_no_trace_no_input_and_no_measure_is_refused_in_a_sentence():
    model, x = torch.nn.Linear(2, 2), single(3, 2)
    with pytest.raises(GraphjouleError, match="every is 'a'; expected a whole number"):
        Trace(model, every="a")
    with pytest.raises(GraphjouleError, match=r"The inputs are a tensor; expected all .* \(x, edge_index\)"):
        Trace.of(model, None, x)
    with pytest.raises(GraphjouleError, match=r"A measure is <.*; expected a name, or Measure"):
        Trace(model, measures=[lambda x, graph: x.sum()])
    with pytest.raises(GraphjouleError, match="What to diagnose is of type Linear; expected a Trace"):
        diagnose(model)
    with pytest.raises(GraphjouleError, match="The trace is of type int"):
        with_reach(3, 4)
    with pytest.raises(GraphjouleError, match="What was found is of type int; expected what `reach` returned"):
        with_reach(RecordedTrace([], ["energy"]), 4)
