"""Does one kernel for all layers pay? Epochs of EGNN with it and with the package's kernels, in turns, in one process.

    python -m tools.persistent [--cases cora-64] [--runs 1 10] [--out FILE]

Needs a CUDA GPU. Before a case is timed, values and gradients of its stack are compared with float64 in plain PyTorch,
and two passes with each other, which must agree to the bit. A plan that fails in either is named and not timed.
"""

import argparse
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch

from graphjoule.errors import GraphjouleError
from graphjoule.ops import describe_backend, egnn_stack, fold_in, make_key, stack_triton, use_backend
from graphjoule.training import describe_device, resolve_device, versions
from reproduction.bench import find_case, make_sides
from reproduction.bench.measure import WARM_UP, Side, Spread, measure_sides, paired_ratio
from reproduction.experiments.record import write_record
from tools.persistent_stack import PersistentStack, Plan

CASES, RUNS = ("cora-64", "pubmed-64", "physics-32"), (1, 10)
PLANS = {
    "16 slots, 4 warps, 2": Plan(16, 8, 2, 4),
    "16 slots, 4 warps, 3": Plan(16, 8, 3, 4),
    "16 slots, 4 warps, 4": Plan(16, 8, 4, 4),
    "16 slots, 8 warps, 1": Plan(16, 16, 1, 8),
    "16 slots, 8 warps, 2": Plan(16, 8, 2, 8),
    "32 slots, 8 warps, 2": Plan(32, 8, 2, 8),
}
"""The last number says how many programs share a multiprocessor."""
WORST, CHECKED_LAYERS = 2e-5, 8  # relative error in value and gradient of so many layers


@contextmanager
def persistent(plan):
    """Let the stacks of narrow layers be one kernel."""
    plain = stack_triton.stack_of

    def stack_of(channels):
        return partial(PersistentStack, plan=plan) if channels in (16, 32, 64) else plain(channels)

    with patch.object(stack_triton, "stack_of", stack_of):
        yield


def value_and_gradients(tensors, graph, keys, backend):
    """Of a stack with dropout."""
    leaves = [t.clone().requires_grad_() for t in tensors]
    with use_backend(backend):
        out = egnn_stack(leaves[0], graph, *leaves[1:], c_min=0.2, beta=0.1, p=0.5, keys=keys)
        out.sin().sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def stack_of_case(graph, width, layers, device):
    """Features, weights, shifts and keys; a shift cuts its channel or does not, so that no rounding decides it."""
    generator = torch.Generator().manual_seed(0)
    x0 = torch.randn(graph.num_nodes, width, generator=generator)
    weights = torch.eye(width).repeat(layers, 1, 1) + 0.1 * torch.randn(layers, width, width, generator=generator)
    shifts = 50.0 * (torch.rand(layers, width, generator=generator) < 0.1) - 25
    keys = fold_in(make_key(0), torch.arange(layers, dtype=torch.int32)).to(device)
    return [t.to(device) for t in (x0, weights, shifts)], keys


def worst_error(plan, graph, width, layers, device):
    """The largest relative error against float64, in value and gradient."""
    tensors, keys = stack_of_case(graph, width, layers, device)
    with persistent(plan):
        found, again = (value_and_gradients(tensors, graph, keys, "triton") for _ in range(2))
    if not all(torch.equal(a, b) for a, b in zip(found, again, strict=True)):
        raise GraphjouleError("Two passes differ: a race.")
    truth = value_and_gradients([t.double() for t in tensors], graph.to(dtype=torch.float64), keys, "reference")
    return max(((a - b).norm() / b.norm()).item() for a, b in zip(found, truth, strict=True))


def measure(case, runs, device, budget):
    """Milliseconds of an epoch of every plan and how many times it is as fast as the package's kernels."""
    task = case.task()
    graph, recipe = task.graph.to(device), case.recipe()
    errors, sides = {}, [make_sides(case, task, device, ())[0]]
    for name, plan in PLANS.items():
        build = partial(_within, plan, make_sides(case, task, device, ())[0].build)
        try:
            errors[name] = worst_error(plan, graph, recipe.model.hidden_channels, CHECKED_LAYERS, device)
            step = build()
            for _ in range(WARM_UP[device.type]):  # a driver may refuse to record it
                step()
        except Exception as error:  # whatever a compiler or a driver says of a plan, others may do
            errors[name] = f"{type(error).__name__}: {str(error)[:300]}"
        if isinstance(errors[name], float) and errors[name] < WORST:
            sides.append(Side(name, build))
    measure_sides(sides, device, budget)
    found = {"case": case.name, "runs": runs, "errors": errors, "plain_ms": _median_ms(sides[0])}
    for side in sides[1:]:
        ratio = paired_ratio(sides[0], side)
        found[side.name] = {
            "ms": _median_ms(side),
            "faster": [round(v, 3) for v in (ratio.median, ratio.low, ratio.high)],
        }
    return found


def _within(plan, build):
    """A step that is built, captured and made with a plan."""
    with persistent(plan):
        step = build()

    def planned():
        with persistent(plan):
            step()

    return planned


def _median_ms(side):
    return round(1e3 * Spread.of(side.seconds).median, 3)


def main():
    """Measure all cases, print, and write the record after each if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--runs", nargs="+", type=int, default=RUNS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--budget", type=float, default=6.0, help="seconds of timed turns for a case")
    parser.add_argument("--out", type=Path, help="write the record to this JSON file")
    given = parser.parse_args()
    device = resolve_device(given.device)
    described = {"device": describe_device(device), "ops": describe_backend(device), "versions": versions()}
    found = []
    for name in given.cases:
        for runs in given.runs:
            found.append(measure(replace(find_case(name), runs=runs), runs, device, given.budget))
            print(found[-1], flush=True)
            if given.out is not None:
                write_record(given.out, {**described, "cases": found})


if __name__ == "__main__":
    main()
