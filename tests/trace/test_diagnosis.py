"""Networks built to fail in each way, and networks that do not: a wrong word either way fails."""

import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import nn

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.graph import Propagation
from graphjoule.nn import EGNN, GCN
from graphjoule.ops import propagate
from graphjoule.tasks import load_task
from graphjoule.trace import LayerTrace, RecordedTrace, Trace
from graphjoule.trace import diagnosis as module
from graphjoule.trace.diagnosis import SYMPTOMS, diagnose
from graphjoule.training.build import build_model
from graphjoule.training.recipe import load_recipe
from tests.graphs import normal, random_edges

PAGE = Path(__file__).resolve().parents[2] / "docs" / "trace.md"
NORM, DIRECTION, SMOOTHING, SEPARATION, VANISHING, EXPLODING, UNUSED = (symptom.kind for symptom in SYMPTOMS)


@pytest.fixture(scope="module")
def task():
    return load_task("digits")


@pytest.fixture(scope="module")
def graph():
    return random_edges(60, 200).graph()


@pytest.fixture(scope="module")
def x():
    return normal(60, 16, dtype=torch.float32)


def judged(model, x, graph, watch=None, gradients=True):
    """The diagnosis of one evaluation pass, with the gradients of a loss against random labels."""
    labels = torch.randint(3, (graph.num_nodes,), generator=torch.Generator().manual_seed(0))
    with Trace(model.eval(), graph, watch=watch, gradients=gradients) as trace:
        scores = model(x, graph)
        if gradients:
            F.cross_entropy(scores, labels).backward()
    return diagnose(trace)


def kinds(diagnosis):
    return {finding.kind for finding in diagnosis.findings}


def initialised(name, layers, task):
    return build_model(load_recipe(name, "digits", layers), task, seed=0)


class Renormalised(nn.Module):
    """``X <- P X / ||P X||``: the norm never changes, and all nodes end up alike."""

    def __init__(self, num_layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Identity() for _ in range(num_layers))

    def forward(self, x, graph):
        for layer in self.layers:
            h = propagate(x, graph)
            x = layer(h * (x.norm() / h.norm()))
        return x


class PairNormed(nn.Module):
    """``X <- P X W`` with a mean of zero and a norm of one per node and layer, and orthogonal ``W``."""

    def __init__(self, channels, num_layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(channels, channels, bias=False) for _ in range(num_layers))
        for layer in self.layers:
            nn.init.orthogonal_(layer.weight)

    def forward(self, x, graph):
        for layer in self.layers:
            h = propagate(x, graph)
            h = h - h.mean(dim=0)
            x = layer(h / h.square().sum(dim=1).mean().sqrt())
        return x


class HighPass(nn.Module):
    """``X <- (X - P X) / ||.||``: neighbours are driven apart at a norm that stays."""

    def __init__(self, num_layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Identity() for _ in range(num_layers))

    def forward(self, x, graph):
        for layer in self.layers:
            h = x - propagate(x, graph)
            x = layer(h * (x.norm() / h.norm()))
        return x


def test_a_dead_gcn_of_64_layers_has_lost_norm_direction_and_gradients(task):
    found = judged(initialised("gcn", 64, task), task.features, task.graph)
    assert found.verdict == NORM
    assert kinds(found) == {NORM, DIRECTION, VANISHING}
    begins = {finding.kind: int(finding.layer.removeprefix("convs.")) for finding in found.findings}
    assert 8 <= begins[NORM] <= 24
    assert 20 <= begins[DIRECTION] <= 48
    assert 8 <= begins[VANISHING] <= 56
    assert "a layer" in found.findings[0].evidence


def test_a_gcn_of_64_layers_stays_dead_when_it_is_trained(task):
    """Biases have brought the norm back; what is left points one way."""
    model = fit(load_recipe("gcn", "digits", 64, {"epochs": 10}), task, device="cpu").models[0]
    found = judged(model, task.features, task.graph)
    assert DIRECTION in kinds(found)
    assert VANISHING in kinds(found)


def test_a_gcn_of_16_layers_is_dying(task):
    found = judged(initialised("gcn", 16, task), task.features, task.graph, gradients=False)
    assert kinds(found) == {NORM}


@pytest.mark.parametrize("layers", [2, 16, 64])
@pytest.mark.parametrize("watch", [None, ["encoder", "convs.*"], ["convs.*"]])
def test_an_initialised_egnn_is_healthy(task, layers, watch):
    found = judged(initialised("egnn", layers, task), task.features, task.graph, watch)
    assert found.is_healthy, str(found)
    assert found.verdict == "healthy energy"
    assert found.not_judged == ()


def test_a_trained_egnn_of_64_layers_is_healthy(task):
    model = fit(load_recipe("egnn", "digits", 64, {"epochs": 5}), task, device="cpu").models[0]
    assert judged(model, task.features, task.graph).is_healthy


@pytest.mark.parametrize("layers", [2, 3])
def test_a_trained_shallow_gcn_is_healthy(task, layers):
    model = fit(load_recipe("gcn", "digits", layers, {"epochs": 40}), task, device="cpu").models[0]
    found = judged(model, task.features, task.graph)
    assert found.is_healthy, str(found)


def test_a_norm_that_is_kept_does_not_hide_a_lost_direction(x, graph):
    found = judged(Renormalised(64), x, graph, watch="layers.*", gradients=False)
    assert kinds(found) == {DIRECTION}
    assert "effective rank fell from" in found.findings[0].evidence


def test_direction_collapse_is_found_without_the_rank_too(x, graph):
    trace = Trace.of(Renormalised(64), graph, (x, graph), ["energy", "norm"], watch="layers.*")
    (finding,) = diagnose(trace).findings
    assert finding.kind == DIRECTION
    assert "E/||X||^2 fell from" in finding.evidence


def test_a_network_with_pair_norm_and_orthogonal_weights_is_healthy(x, graph):
    torch.manual_seed(0)
    found = judged(PairNormed(16, 12), x, graph)
    assert found.is_healthy, str(found)


def with_large_weights(num_layers, factor):
    torch.manual_seed(0)
    model = GCN(16, 16, 3, num_layers=num_layers)
    with torch.no_grad():
        for conv in model.convs:
            conv.linear.weight.mul_(factor)
    return model


def test_weights_that_are_too_large_separate_nodes_and_explode_gradients(x, graph):
    found = judged(with_large_weights(6, 40), x, graph)
    assert kinds(found) == {SEPARATION, EXPLODING}
    assert found.verdict == SEPARATION


def test_an_exploding_deep_gcn_is_over_separated_and_has_lost_its_rank_at_once(x, graph):
    """The energy is huge, and yet made of a single direction: either number alone would mislead."""
    assert kinds(judged(with_large_weights(24, 6), x, graph)) == {DIRECTION, SEPARATION, EXPLODING}


def test_neighbours_that_are_driven_apart_at_a_constant_norm_are_over_separated(x, graph):
    smooth = propagate(propagate(propagate(x, graph), graph), graph)
    found = judged(HighPass(24), smooth, graph, watch="layers.*", gradients=False)
    assert kinds(found) == {SEPARATION}


def test_overflow_is_over_separation(x, graph):
    assert SEPARATION in kinds(judged(with_large_weights(24, 1e3), x, graph, gradients=False))


def test_residual_layers_without_edges_are_not_called_dead(x):
    """Without edges there is no energy; rank and gradients are still judged, and the rest says why not."""
    alone = Propagation.from_edge_index(torch.empty(2, 0, dtype=torch.int64), num_nodes=60)
    found = judged(EGNN(16, 8, 3, num_layers=4), x, alone)
    assert found.verdict == "undecided"
    assert [what.split(",")[0] for what in found.not_judged] == [NORM, SMOOTHING, SEPARATION]
    assert "the energy of encoder.first is zero" in found.not_judged[0]


# Words and what is missing.


def rows(count=4, **values):
    return [LayerTrace(f"layer.{k}", {name: v[k] for name, v in values.items()}, channels=8) for k in range(count)]


def test_what_was_not_recorded_is_named():
    found = diagnose(RecordedTrace(rows(norm=[1, 1, 1, 1]), ["norm"]))
    assert found.verdict == "undecided"
    assert found.not_judged == (
        f"{NORM}, which needs measures energy and norm",
        f"{DIRECTION}, which needs measures effective_rank or rayleigh or energy and norm",
        f"{SMOOTHING}, which needs measures energy",
        f"{SEPARATION}, which needs measures energy and norm",
        f"{VANISHING}, which needs `gradients=True` and a backward pass",
        f"{EXPLODING}, which needs `gradients=True` and a backward pass",
    )
    assert str(found).splitlines()[0] == "undecided: layer.0 to layer.3: norm 1 to 1."
    assert str(found).count("not judged: ") == 6


def test_an_illness_begins_after_the_last_healthy_layer():
    ranks = [8.0, 1.0, 8.0, 1.1]
    (finding,) = diagnose(RecordedTrace(rows(effective_rank=ranks), ["effective_rank"])).findings
    assert (finding.kind, finding.layer) == (DIRECTION, "layer.3")
    assert "from 8 at layer.0 to 1.1 at layer.3" in finding.evidence
    dip = diagnose(RecordedTrace(rows(effective_rank=[8.0, 1.0, 1.0, 8.0]), ["effective_rank"]))
    assert not dip.findings


def test_whatever_is_measured_a_dead_gcn_is_never_called_healthy(task):
    """Too few measures leave the verdict open; with the energy they say that it is dead."""
    names = ["energy", "norm", "rayleigh", "effective_rank", "mad"]
    whole = Trace.of(initialised("gcn", 64, task), task.graph, (task.features, task.graph), names)
    for measures in itertools.chain.from_iterable(itertools.combinations(names, size) for size in range(1, 5)):
        kept = [replace(row, values={name: row[name] for name in measures}) for row in whole.layers]
        found = diagnose(RecordedTrace(kept, measures))
        assert not found.is_healthy, measures
        assert found.verdict != "healthy energy"
        assert found.findings or "energy" not in measures, measures


def test_energy_alone_tells_a_healthy_network_from_a_smooth_one_and_says_what_it_cannot():
    kept = diagnose(RecordedTrace(rows(energy=[1.0, 0.5, 0.4, 0.4]), ["energy"]))
    assert (kept.verdict, kept.is_healthy) == ("undecided", False)
    assert str(kept).startswith("undecided: layer.0 to layer.3: energy 1 to 0.4.")
    (finding,) = diagnose(RecordedTrace(rows(energy=[1.0, 1e-3, 1e-6, 1e-9]), ["energy"])).findings
    assert (finding.kind, finding.layer) == (SMOOTHING, "layer.2")


def test_a_problem_of_low_rank_is_not_called_collapsed():
    assert not diagnose(RecordedTrace(rows(effective_rank=[2.2, 2.0, 1.6, 1.5]), ["effective_rank"])).findings


@pytest.mark.parametrize("out_channels", [1, 2])
@pytest.mark.parametrize("network", [pyg.GCN, pyg.GraphSAGE])
def test_one_or_two_scores_after_a_single_layer_are_no_collapse(network, out_channels, graph):
    """They are all that there is to compare the first layer with, and cannot have its rank."""
    torch.manual_seed(0)
    model = network(16, 64, num_layers=2, out_channels=out_channels)
    with Trace(model, watch=["convs.*"]) as trace:
        model(normal(60, 16, dtype=torch.float32), graph.edge_index)
    assert [row.channels for row in trace.layers] == [64, out_channels]
    assert diagnose(trace).findings == ()


def test_class_scores_at_the_end_count_for_gradients_alone():
    layers = [LayerTrace(f"layer.{k}", {"effective_rank": 8.0}, channels=8, gradient=1e-9) for k in range(3)]
    scores = LayerTrace("head", {"effective_rank": 1.0}, channels=2, gradient=1.0)
    (finding,) = diagnose(RecordedTrace([*layers, scores], ["effective_rank"])).findings
    assert (finding.kind, finding.layer) == (VANISHING, "layer.2")
    assert finding.evidence == "||dL/dX|| is 1 at head and falls to 1e-09 at layer.0"


def test_a_gradient_that_never_comes_has_vanished():
    still = [LayerTrace(f"layer.{k}", {}, gradient=0.0) for k in range(3)]
    assert kinds(diagnose(RecordedTrace(still, []))) == {VANISHING}


def test_a_last_call_is_judged_and_numbers_that_are_not_are_said():
    calls = [LayerTrace("a", {"norm": 1.0, "energy": 1.0}), LayerTrace("b", {"norm": 1e-9, "energy": 1e-18})]
    calls += [LayerTrace(name, {"norm": 1.0, "energy": 1.0}, call=1) for name in "ab"]
    assert diagnose(RecordedTrace(calls, ["energy", "norm"])).is_healthy
    assert not diagnose(RecordedTrace(calls[:2], ["energy", "norm"])).is_healthy
    nan = diagnose(RecordedTrace(rows(2, energy=[math.nan] * 2, norm=[math.nan] * 2), ["energy", "norm"]))
    assert all("are not finite" in what for what in nan.not_judged[:3])


def test_a_trace_with_nothing_to_compare_is_refused():
    with pytest.raises(GraphjouleError, match="The trace is empty, so there is no diagnosis"):
        diagnose(RecordedTrace([], []))
    with pytest.raises(GraphjouleError, match="compares layers, but the trace has embeddings of 1 only, 'a'"):
        diagnose(RecordedTrace([LayerTrace("a", {"norm": 1.0})], ["norm"]))
    many = [LayerTrace("a", {"norm": 1.0}, run=run) for run in range(2)]
    with pytest.raises(GraphjouleError, match="holds 2 runs"):
        diagnose(RecordedTrace(many, ["norm"]))


def test_findings_are_words_and_json():
    values = {"energy": [1.0, 1e-3, 1e-6, 1e-9], "norm": [1.0, 1e-1, 1e-3, 1e-4]}
    found = diagnose(RecordedTrace(rows(**values), list(values)))
    text = str(found).splitlines()[0]
    assert text.startswith(
        f"{NORM}, from layer.2 on: from layer.0 to layer.3 the energy fell from 1 to 1e-09, by 1e+03 x"
    )
    assert "Try: Feed X_0 into every layer (EGNN" in text
    told = json.loads(found.to_json())
    assert (told["verdict"], told["findings"][0]["layer"]) == (NORM, "layer.2")


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=lambda symptom: symptom.kind)
def test_every_illness_has_advice_and_a_need(symptom):
    assert symptom.advice.endswith(".")
    assert all(symptom.needs)


def test_the_verdicts_and_their_thresholds_are_those_of_the_code():
    page = PAGE.read_text()
    verdicts = page[page.index("| verdict |") : page.index("## What it costs")]
    rows = dict(re.findall(r"^\| ([a-z -]+) \| (.+) \|$", verdicts, flags=re.MULTILINE))
    del rows["verdict"]
    assert list(rows) == [*(symptom.kind for symptom in SYMPTOMS), "healthy energy", "undecided"]
    assert (module.ENERGY_LOST, module.NORM_LOST) == (1e-5, 1e-2)
    assert (module.RANK_LEFT, module.RANK_LOST, module.RAYLEIGH_LOST) == (2.0, 0.2, 1e-3)
    assert (module.ENERGY_GAINED, module.RAYLEIGH_GAINED) == (1e4, 1.0)
    assert (module.GRADIENT_LOST, module.GRADIENT_GAINED) == (1e-6, 1e4)
    assert "1e-5" in rows["over-smoothing by norm collapse"]
    assert "1e-2" in rows["over-smoothing by norm collapse"]
    assert "1e-6" in rows["vanishing gradients"]


def reaching(*reaches, num_layers=20):
    """A healthy trace of which some layers have a mean reach."""
    rows = []
    for k in range(num_layers):
        more = {"reach": reaches[k]} if k < len(reaches) - 1 else {}
        more = {"reach": reaches[-1]} if k == num_layers - 1 else more
        rows.append(LayerTrace(f"convs.{k}", {"energy": 1.0, "norm": 1.0, "effective_rank": 4.0, **more}, channels=8))
    return RecordedTrace(rows, ["energy", "norm", "effective_rank", "reach"])


def test_depth_that_reaches_no_further_is_called_unused():
    found = diagnose(reaching(0.5, 1.0, 1.5, 1.95, 1.9, 1.98, 2.0))
    assert (found.verdict, found.findings[0].layer) == (UNUSED, "convs.3")
    assert "depth beyond convs.3 is not used" in found.findings[0].evidence
    assert "the 16 layers" in found.findings[0].evidence


@pytest.mark.parametrize("reaches", [(0.5, 1.0, 1.5, 1.8, 2.0), (0.5, 2.0), (0.0, 0.0, 0.0, 0.0)])
def test_depth_is_not_called_unused_where_it_grows_or_too_little_is_measured(reaches):
    assert diagnose(reaching(*reaches)).is_healthy


def test_molecules_that_atoms_are_read_out_to_have_not_collapsed():
    """AttentiveFP passes messages from the atoms to their molecule, and no two molecules share an atom."""
    torch.manual_seed(0)
    model, batch = pyg.AttentiveFP(4, 4, 4, 4, 2, 2).eval(), torch.arange(12) // 4
    index = random_edges(12, 30).index
    index = index[:, batch[index[0]] == batch[index[1]]]
    inputs = normal(12, 4, dtype=torch.float32), index, normal(index.size(1), 4, dtype=torch.float32), batch
    trace = Trace.of(model, None, inputs)
    found = diagnose(trace)
    assert found.verdict == "healthy energy"
    assert "mol_conv, mol_gru, mol_conv#2, mol_gru#2, lin2, of other nodes that share no neighbours" in found.not_judged
    dead = [replace(row, values={**row.values, "norm": 0.0}) if row.energy == 0 else row for row in trace.layers]
    assert diagnose(RecordedTrace(dead, trace.measures)).verdict != "healthy energy"


@pytest.mark.parametrize(
    ("ranks", "scores", "verdict"),
    [
        ((3.0, 1.1, 1.1, 1.4), 7, "undecided"),  # a GCN of 32 layers on Cora, as trained for 60 epochs
        ((3.0, 1.1, 1.1, 1.4), 2, "healthy energy"),  # one direction tells two classes apart
        ((3.0, 1.1, 1.1, 1.6), 7, "healthy energy"),
        ((8.0, 4.0, 1.1, 1.1), 7, "over-smoothing by direction collapse"),
    ],
)
def test_embeddings_that_never_had_more_than_one_direction_for_many_scores_are_not_healthy(ranks, scores, verdict):
    size = {"energy": 1.0, "norm": 1.0}
    layers = [LayerTrace(f"convs.{k}", {**size, "effective_rank": r}, channels=8) for k, r in enumerate(ranks)]
    layers.append(LayerTrace("head", {**size, "effective_rank": 1.2}, channels=scores))
    found = diagnose(RecordedTrace(layers, [*size, "effective_rank"]))
    assert found.verdict == verdict
    said = f"convs.3 has an effective rank of 1.4, one direction for {scores} scores"
    assert (said in " ".join(found.not_judged)) == (verdict == "undecided")
