"""Numbers that stand on a page by hand are found, and those that are written by a program are left alone."""

import pytest

from reproduction.pages import stated
from reproduction.pages.stated import find_stated, with_stated


def numbers(text):
    return [found[0] for found in find_stated(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("85.58 ± 0.40 % on Cora", ["85.58 ± 0.40 %"]),
        ("from 2 to 8 points, 27 times", ["2 to 8 points", "27 times"]),
        ("34 s and 1.5 GiB, 512 MiB, 3 minutes", ["34 s", "1.5 GiB", "512 MiB", "3 minutes"]),
        ("loss 0.262 against 1,234.5", ["0.262", "1,234.5"]),
        ("64 layers, ten seeds, 10,000 nodes, table 1, figure 2", []),
        ("`--lr 0.01`, [a](page-0.5.md), https://host/1706.04599", []),
        ("```\n0.5\n```\n<!--= mean a -->0.5<!--/--> %\n<!-- table t -->\n| 0.5 % |\n<!-- end -->\n", []),
    ],
)
def test_what_is_found(text, found):
    assert numbers(text) == found


def test_a_number_is_allowed_as_often_as_it_is_listed(monkeypatch):
    monkeypatch.setattr(stated, "listed", lambda: {"page": {"why": ["5 %", "5 %"], "or why": ["0.1"]}})
    assert with_stated("page", "5 %, 5 %, 0.1") == "5 %, 5 %, 0.1"
    assert with_stated("page", "5 %, 5 %, 5 %, 0.1").count(stated.NO_RECORD) == 1
    assert with_stated("page", "5 %, 6 %, 0.1") == f"5 %, {stated.NO_RECORD}, 0.15 % is in stated.toml and not here\n"
    assert with_stated("other", "64 layers") == "64 layers"
