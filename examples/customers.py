"""Write customers.csv and calls.csv, the made-up data of docs/what-now.md, and strangers.csv, whose calls mean nothing.

Usage: python examples/customers.py
"""

import csv

import numpy as np

KINDS, SHARES = ("loyal", "casual", "dormant", "fraud"), (0.66, 0.20, 0.08, 0.06)
NUM, NUM_LABELLED, CALLS_EACH = 2500, 900, 3

draw = np.random.default_rng(0)
kind = draw.choice(4, NUM, p=SHARES)
spend = draw.lognormal(np.array([4.2, 3.6, 2.6, 4.0])[kind], 0.8)
months = draw.gamma(2.0, np.array([14, 10, 16, 6])[kind])
visits = draw.poisson(np.array([6, 3, 1, 5])[kind])
age = draw.normal(45, 14, NUM).clip(18, 90)
channel = np.where(draw.random(NUM) < np.array([0.5, 0.6, 0.3, 0.6])[kind], "app", "shop")
is_known = draw.permutation(NUM) < NUM_LABELLED


def write(name: str, head: list[str], rows: list[list[object]]) -> None:
    """Write a table."""
    with open(name, "w", newline="") as file:  # noqa: PTH123
        csv.writer(file).writerows([head, *rows])


def calls(own_kind: float) -> list[list[object]]:
    """Who calls whom: so often somebody of one's own kind, else anybody."""
    rows: list[list[object]] = []
    for caller in draw.integers(NUM, size=CALLS_EACH * NUM):
        same = np.flatnonzero(kind == kind[caller]) if draw.random() < own_kind else np.arange(NUM)
        rows.append([f"c{caller}", f"c{draw.choice(same)}"])
    return rows


write(
    "customers.csv",
    ["id", "age", "months", "visits", "spend", "channel", "label"],
    [
        [
            *(f"c{i}", f"{age[i]:.0f}", f"{months[i]:.1f}", visits[i], f"{spend[i]:.2f}", channel[i]),
            KINDS[kind[i]] if is_known[i] else "",
        ]
        for i in range(NUM)
    ],
)
write("calls.csv", ["source", "target"], calls(0.6))
write("strangers.csv", ["source", "target"], calls(0.0))
print(f"{NUM} customers, {NUM_LABELLED} of a known kind, {CALLS_EACH * NUM} calls")
