"""Colours that can be told from their ground, in light, dark and print."""

import re
from importlib import resources

import pytest

CSS = (resources.files("graphjoule.report") / "templates" / "report.css").read_text()
LIGHT, DARK, PRINT = (
    dict(re.findall(r"--(\w+): (#[0-9a-f]{6})(?![0-9a-f])", block))
    for block in re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
)


def luminance(colour):
    """Relative luminance as WCAG defines it."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK, PRINT], ids=["light", "dark", "print"])
@pytest.mark.parametrize("ground", ["paper", "raised"])
def test_text_and_lines_stand_out(theme, ground):
    for name in ("ink", "quiet", "link", "good", "bad"):
        assert contrast(theme[name], theme[ground]) >= 4.5, name  # WCAG AA for text
    for name in (f"s{k}" for k in range(8)):
        assert contrast(theme[name], theme[ground]) >= 3, name  # and for graphics


def test_no_two_lines_look_alike():
    looks = re.findall(r"\.s\d \{ stroke: (.*?); (?:stroke-dasharray: (.*?); )?\}", CSS)
    assert len(looks) == len({dash for _, dash in looks}) == 8


def test_motion_is_only_for_those_who_want_it():
    without = re.sub(r"@media \(prefers-reduced-motion: no-preference\) \{.*?\} \}", "", CSS)
    assert not re.search(r"transition|animation|scroll-behavior", without)
