"""Made-up runs, and the text between two marks of a page."""

from graphjoule.studies import STUDIES
from reproduction.pages import fill_page
from reproduction.pages.page import whole_study
from tests.studies import made_up

TABLE1 = STUDIES["table1"]


def block(name, results):
    text = fill_page(f"before\n<!-- results {name} -->\nold\n<!-- end -->\nafter\n", results)
    assert text.startswith(f"before\n<!-- results {name} -->\n")
    assert text.endswith("\n<!-- end -->\nafter\n")
    return text.removeprefix(f"before\n<!-- results {name} -->\n").removesuffix("\n<!-- end -->\nafter\n")


def runs(cell, mean, scale=0.2, n=10):
    return [made_up(cell, seed, (mean + scale * (-1) ** seed) / 100) for seed in range(n)]


def cells(name, datasets):
    return [cell for cell in whole_study(name) if cell.dataset in datasets]


def table1_runs(shift=lambda cell: 0.0, datasets=("cora", "pubmed", "physics")):
    return [record for cell in cells("table1", datasets) for record in runs(cell, cell.reference + shift(cell))]
