"""Every row of the table in docs/loops.md is run by a test: those that no other file has are here."""

import os
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from graphjoule import EnergyConstraint, Trace
from graphjoule.errors import GraphjouleError
from graphjoule.nn import EGNN, GCN, GCNII
from tests.forked import context
from tests.graphs import normal, path3

ROOT = Path(__file__).parents[1]
ROWS = {
    "a plain loop": "terms/test_energy.py::test_a_deep_network_that_loses_its_energy_is_brought_within_its_limits",
    "`torch.compile`": "trace/test_compiled.py::test_a_constraint_holds_a_compiled_model",
    "`torch.autocast`": "nn/test_contract.py::test_autocast_and_half_precision_give_nearly_the_scores_of_float32",
    "`model.bfloat16()`": "nn/test_contract.py::test_autocast_and_half_precision_give_nearly_the_scores_of_float32",
    "gradient accumulation": "terms/test_energy.py::test_accumulated_batches_move_the_multipliers_by_their_mean",
    "`torch.utils.checkpoint`": "terms/test_energy.py::test_a_checkpoint_calls_layers_again_and_has_each_row_once",
    "checkpoints of a module": "terms/test_energy.py::test_a_module_that_has_a_constraint_saves_its_multipliers",
    "copies of a model": "trace/test_hooks.py::test_a_copy_of_a_watched_model_works_and_is_not_watched",
    "parts of a model": "trace/test_graphs.py::test_layers_that_two_models_share_are_told_apart_by_who_calls_them",
    "Lightning": "trace/test_lightning.py::test_energies_are_logged_and_multipliers_are_in_the_checkpoint",
    "loaders of PyG": "trace/test_graphs.py::test_limits_of_a_constraint_are_those_of_the_trace_on_every_batch",
    "DistributedDataParallel": "test_loops.py::test_two_processes_train_one_model_with_trace_and_constraint",
    "FullyShardedDataParallel": "test_loops.py::test_sharded_weights_have_energies_multipliers_penalty_of_whole_ones",
    "`torch.func`": "test_loops.py::test_inside_transforms_all_have_derivatives_of_any_order",
    "`torch.export`": "training/test_export.py::test_a_program_says_what_the_model_says_on_any_graph",
}


def test_every_row_of_the_page_has_a_test():
    page = (ROOT / "docs" / "loops.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| yes \|", page, flags=re.MULTILINE)
    assert set(rows) == ROWS.keys()
    for place in ROWS.values():
        path, name = place.split("::")
        assert f"def {name}" in (ROOT / "tests" / path).read_text(), place


def _in_parallel(model: torch.nn.Module, kind: str) -> torch.nn.Module:
    if kind == "FullyShardedDataParallel":
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    if kind == "fully_shard":
        mesh = init_device_mesh("cpu", (2,))
        for conv in model.convs:
            fully_shard(conv, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    return DistributedDataParallel(model)


class _WithPenalty(torch.nn.Module):
    """The scores and the model's penalty, both from one forward pass."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model, self.convs = model, model.convs

    def forward(self, x, edges):
        return self.model(x, edges), self.model.penalty()


def _network(name: str) -> torch.nn.Module:
    """A GCN, which has no penalty, or an EGNN away from where its penalty is zero."""
    torch.manual_seed(0)
    if name == "gcn":
        return GCN(4, 4, 2, num_layers=3, dropout=0.0)
    return EGNN(4, 4, 2, num_layers=3, dropout=0.0, output_dropout=0.0, weight_init="glorot", gamma=0.5)


def _train(rank: int, folder: str, kind: str, name: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{kind}", rank=rank, world_size=2)
    model = _network(name)
    wrapped = _in_parallel(_WithPenalty(model), kind)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    x, y = normal(3, 4, seed=rank, dtype=torch.float32), torch.tensor([0, 1, 0])
    with Trace(model) as trace, EnergyConstraint(model, layers=["convs.*"]) as constraint:
        for _ in range(3):
            optimizer.zero_grad()
            scores, penalty = wrapped(x, path3().index)
            if kind == "fully_shard":  # outside of a forward pass it is the same
                penalty = model.penalty()
            (F.cross_entropy(scores, y) + constraint() + penalty).backward()
            optimizer.step()
            constraint.update()
    own = constraint.multipliers.clone()
    dist.all_reduce(constraint.multipliers)
    is_whole = kind == "DistributedDataParallel"
    weights = model.state_dict() if is_whole else {}
    found = {"energies": torch.tensor([row.energy for row in trace.layers]), "own": own, "sum": constraint.multipliers}
    found["penalty"] = penalty.detach()
    if kind == "FullyShardedDataParallel" and name == "egnn":
        with pytest.raises(GraphjouleError, match="leaves each process a flat part"):
            model.penalty()
    torch.save({**found, "weights": weights}, f"{folder}/{kind}-{rank}.pt")
    dist.destroy_process_group()
    os._exit(0)  # what wraps the model still holds gloo's group, whose end can wait for its own thread for ever


def _trained(folder: Path, kind: str, name: str = "gcn") -> list[dict]:
    """What both processes found."""
    processes = [context().Process(target=_train, args=(rank, str(folder), kind, name)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    return [torch.load(folder / f"{kind}-{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.slow
def test_two_processes_train_one_model_with_trace_and_constraint(tmp_path):
    first, second = _trained(tmp_path, "DistributedDataParallel")
    assert len(first["energies"]) == len(second["energies"]) == 9
    for name, weight in first["weights"].items():
        assert weight.equal(second["weights"][name])
    torch.testing.assert_close(first["sum"], first["own"] + second["own"])
    assert first["sum"].equal(second["sum"])


@pytest.mark.slow
@pytest.mark.parametrize("network", ["gcn", "egnn"])
@pytest.mark.parametrize("kind", ["FullyShardedDataParallel", "fully_shard"])
def test_sharded_weights_have_energies_multipliers_penalty_of_whole_ones(tmp_path, kind, network):
    whole, sharded = (_trained(tmp_path, each, network) for each in ("DistributedDataParallel", kind))
    assert (whole[0]["penalty"] > 0) == (network == "egnn")
    for expected, found in zip(whole, sharded, strict=True):
        for name in ("energies", "own", "sum", "penalty"):
            torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-6)


def _autocast(model, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(x, EDGES)


def _checkpointed(model, x):
    return checkpoint(model, x, EDGES, use_reentrant=False)


EDGES = path3().index
STEPS = {"plain": lambda model, x: model(x, EDGES), "autocast": _autocast, "checkpoint": _checkpointed}


@pytest.mark.parametrize("network", [GCN, EGNN, GCNII])
@pytest.mark.parametrize("loop", ["plain", "autocast", "bfloat16", "checkpoint", "accumulation"])
def test_a_loop_trains_with_trace_and_constraint_on(loop, network):
    torch.manual_seed(0)
    dtype = torch.bfloat16 if loop == "bfloat16" else torch.float32
    model = network(4, 4, 2, num_layers=3, dropout=0.0).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    x, y = normal(3, 4, dtype=torch.float32).to(dtype), torch.tensor([0, 1, 0])
    per_step = 2 if loop == "accumulation" else 1
    with Trace(model, watch=["convs.*"]) as trace, EnergyConstraint(model, layers=["convs.*"], c_min=0.9) as constraint:
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(per_step):
                scores = STEPS.get(loop, STEPS["plain"])(model, x)
                (F.cross_entropy(scores.float(), y) + constraint()).backward()
            optimizer.step()
            constraint.update()
    assert len(trace.layers) == 3 * 3 * per_step  # no row is missing, none is there twice
    assert all(row.energy >= 0 and row.energy < float("inf") for row in trace.layers)
    assert constraint.multipliers.abs().sum() > 0
    after = list(model.parameters())
    assert all(parameter.isfinite().all() for parameter in after)
    assert any(not old.equal(new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("network", [EGNN, GCN, GCNII])
def test_inside_transforms_all_have_derivatives_of_any_order(network):
    torch.manual_seed(0)
    edges, x = path3(), normal(3, 4)
    model = network(4, 4, 2, num_layers=3).double().eval()

    def loss(row):
        features = torch.cat([row[None], x[1:]])
        return model(features, edges.index).square().sum() + constraint()

    with EnergyConstraint(model, layers="convs.*", c_min=0.9) as constraint, Trace(model) as trace:
        step = torch.func.grad(loss)(x[0])
        hessian = torch.func.jacrev(torch.func.jacrev(loss))(x[0])
        rows = torch.vmap(torch.func.grad(loss))(x[:2])
        assert trace.layers
        torch.testing.assert_close(torch.autograd.functional.jacobian(loss, x[0]), step)
        torch.testing.assert_close(torch.autograd.functional.hessian(loss, x[0]), hessian)
        torch.testing.assert_close(rows[0], step)
    assert float(hessian.detach().norm()) > 0
