"""docs/trace.md: its table is that of the constants."""

import re
from pathlib import Path

from graphjoule.trace import symptoms

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "trace.md").read_text()


def test_the_verdicts_and_their_thresholds_are_those_of_the_code():
    verdicts = PAGE[PAGE.index("| verdict |") : PAGE.index("## What it costs")]
    rows = dict(re.findall(r"^\| ([a-z -]+) \| (.+) \|$", verdicts, flags=re.MULTILINE))
    del rows["verdict"]
    assert list(rows) == [*(symptom.kind for symptom in symptoms.SYMPTOMS), "healthy", "undecided"]
    assert (symptoms.ENERGY_LOST, symptoms.NORM_LOST) == (1e-5, 1e-2)
    assert (symptoms.RANK_LEFT, symptoms.RANK_LOST, symptoms.RAYLEIGH_LOST) == (2.0, 0.2, 1e-3)
    assert (symptoms.ENERGY_GAINED, symptoms.RAYLEIGH_GAINED) == (1e4, 1.0)
    assert (symptoms.GRADIENT_LOST, symptoms.GRADIENT_GAINED) == (1e-6, 1e4)
    assert "1e-5" in rows["over-smoothing by norm collapse"]
    assert "1e-2" in rows["over-smoothing by norm collapse"]
    assert "1e-6" in rows["vanishing gradients"]
