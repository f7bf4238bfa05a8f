"""How the folders under ``runs/`` are called."""

from __future__ import annotations

import re
from pathlib import Path

from graphjoule.training.recipe import Recipe


def run_name(recipe: Recipe) -> str:
    """A name after the data, the model and the depth, fit for a folder.

    >>> from graphjoule.training.recipe import load_recipe
    >>> run_name(load_recipe("egnn", "cora", 64)), run_name(load_recipe("gcn", "data/my nodes.csv", 2))
    ('cora-egnn-64', 'my-nodes-gcn-2')
    """
    data = re.sub(r"[^\w-]+", "-", Path(recipe.data.name).stem)
    return f"{data}-{recipe.model.name}-{recipe.model.num_layers}"
