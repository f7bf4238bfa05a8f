import json
import sys
from functools import partial

import pytest
import torch

from graphjoule.graph.features import SparseFeatures
from reproduction.experiments import ingredients, tuned

from ...training import small_task


@pytest.mark.parametrize("dataset", tuned.DATASETS)
def test_every_variant_is_a_recipe_and_none_is_there_twice(dataset):
    recipes = [ingredients.recipe_of(dataset, changes) for changes in ingredients.PLAN["variants"].values()]
    assert recipes[0].differences(tuned.start("egnn", dataset)) == []
    names = ingredients.variants_of(dataset)
    assert names[0] == "as published"
    assert len(names) >= len(recipes) - 3
    assert set(ingredients.PLAN["seeds"]).isdisjoint(tuned.PLAN["winner"]["seeds"])


def test_rows_of_length_one_are_the_same_sparse_and_dense_and_rows_of_zeros_stay():
    x = torch.tensor([[3.0, 0.0, 4.0], [0.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    expected = torch.tensor([[0.6, 0.0, 0.8], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    torch.testing.assert_close(ingredients.rows_of_length_one(x), expected)
    sparse = ingredients.rows_of_length_one(SparseFeatures.from_dense(x))
    torch.testing.assert_close(sparse.value, torch.tensor([0.6, 0.8, 1.0]))


def test_a_variant_sees_no_test_label_and_a_second_call_goes_on(tmp_path, monkeypatch, capsys):
    settings = tuned.PLAN["settings"] | {"train.epochs": 2, "model.hidden_channels": 4}
    small = partial(tuned.start, plan={"layers": {"egnn": 2}, "settings": settings})
    monkeypatch.setattr(ingredients, "start", small)
    variants = {name: ingredients.PLAN["variants"][name] for name in ("as published", "128 wide", "rows of length 1")}
    monkeypatch.setattr(ingredients, "PLAN", ingredients.PLAN | {"seeds": [7, 8], "variants": variants})
    monkeypatch.setattr(ingredients, "_loaded", lambda dataset, device: small_task(sparse=True))
    seen = []

    class Here:  # in place of processes, which would not know what is patched
        def __init__(self, workers):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *of):
            pass

        imap_unordered = staticmethod(map)

    monkeypatch.setattr(ingredients.multiprocessing, "get_context", lambda kind: type("Context", (), {"Pool": Here}))
    monkeypatch.setattr(
        ingredients, "fit", lambda recipe, task, *of, **to: seen.append(task) or tuned.fit(recipe, task, *of, **to)
    )
    out = tmp_path / "ingredients.jsonl"
    arguments = ["ingredients", "--device", "cpu", "--datasets", "cora", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [*arguments, "--seconds", "0"])
    ingredients.main()
    assert capsys.readouterr().out == "0 of 3 variants tried\n"
    monkeypatch.setattr(sys, "argv", arguments)
    ingredients.main()
    first, *_, last = lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["variant"] for line in lines] == list(variants)
    assert first["settings"] == {}
    assert last["settings"] == {"features": "length"}
    assert all(0 <= line["layers_within"] <= line["layers"] == 2 for line in lines)
    assert all(len(line["val_accuracy"]) == len(line["val_loss"]) == 2 for line in lines)
    assert all(task.split(seed=7).test.numel() == 0 and (task.targets < 0).any() for task in seen)
    out.write_text("".join(f"{json.dumps(line)}\n" for line in lines[1:]))
    ingredients.main()
    assert [json.loads(line)["variant"] for line in out.read_text().splitlines()][2:] == ["as published"]
