"""What the table says about a network before it is imported."""

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.nn import MODELS
from graphjoule.nn.table import _HOMES, _inspect_signature, _read_signature
from graphjoule.training.recipe import load_recipe


@pytest.mark.parametrize("name", _HOMES)
def test_the_signature_read_from_the_file_is_that_of_the_class(name):
    assert _read_signature(_HOMES[name]) == _inspect_signature(MODELS[name])


RANGES = {
    "dropout": ([0, 0.5], [-0.1, 1, 2]),
    "output_dropout": ([0.0], [1.0]),
    "edge_dropout": ([0.9], [1.0, -1]),
    "c_min": ([0.1, 1], [-0.1, 1.1]),
    "alpha": ([0, 1], [-0.1, 1.1]),
    "beta": ([0, 0.2], [-0.1, 1.1]),
    "c_max": ([0.1, 5], [0, -1]),
    "theta": ([0.1, 5], [0, -1]),
    "scale": ([0.1, 5], [0, -1]),
    "gamma": ([0, 50], [-1]),
}
OPTIONS = [(name, option) for name in _HOMES for option in MODELS.signature(name)[0] if option in RANGES]


@pytest.mark.parametrize(("model", "option"), OPTIONS)
def test_a_recipe_refuses_what_the_constructor_refuses(model, option):
    good, bad = RANGES[option]
    for value in good:
        recipe = load_recipe(model, "digits", 2, {option: value})
        MODELS[model](3, 4, 2, 2, **recipe.model.options)
    options = load_recipe(model, "digits", 2).model.options
    for value in bad:
        with pytest.raises(GraphjouleError, match=f"^{option} = {value} cannot be used: it should be "):
            load_recipe(model, "digits", 2, {option: value})
        with pytest.raises(GraphjouleError, match=f"^{option} is {value}; it must "):
            MODELS[model](3, 4, 2, 2, **options | {option: value})


@pytest.mark.parametrize("options", [{"beta": 0.3}, {"c_min": 0.05}, {"c_min": 0.5, "beta": 0.51}])
def test_beta_is_a_part_of_c_min_in_a_recipe_too(options):
    with pytest.raises(
        GraphjouleError, match=r"^beta is 0\.\d+; it must be between 0 and c_min, which is 0\.\d+\.$"
    ) as said:
        load_recipe("egnn", "digits", 2, options)
    with pytest.raises(GraphjouleError) as same:
        MODELS["egnn"](3, 4, 2, 2, **options)
    assert str(said.value) == str(same.value)
