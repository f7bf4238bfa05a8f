import inspect
from typing import ClassVar

import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.nn import MODELS
from graphjoule.training.recipe import load_recipe
from graphjoule.training.settings import ModelSettings, model_options, parse_overrides, resolve, setting_names


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x=0.3", 0.3),
        ("x = 5e-4", 5e-4),
        ("x=.5", 0.5),
        ("x=3", 3),
        ("x=true", True),
        ("x=relu", "relu"),
        ('x="0.3"', "0.3"),
        ("x=per-class-20-30", "per-class-20-30"),
        ("x=a=b", "a=b"),
        ("x=none", None),
        ("x=1\ny=2", "1\ny=2"),
    ],
)
def test_override_values_are_read_as_toml_or_else_as_a_bare_string(text, value):
    ((key, parsed),) = parse_overrides([text]).items()
    assert key == "x"
    assert parsed == value
    assert type(parsed) is type(value)


def test_the_checks_for_options_are_made_once_for_a_model_and_anew_for_another_of_its_name(monkeypatch):
    class Toy:
        parameter_group_names: ClassVar = ("all",)

        def __init__(self, in_channels: int, *, speed: float = 1.5, loud: bool = False) -> None: ...

    class Other:
        parameter_group_names: ClassVar = ("all",)

        def __init__(self, in_channels: int, *, loud: bool = True) -> None: ...

    monkeypatch.setitem(MODELS, "toy", Toy)
    first = model_options("toy")
    assert model_options("toy") is first
    monkeypatch.setitem(MODELS, "toy", Other)
    assert set(model_options("toy").model_fields) == {"loud"} < set(first.model_fields)


def test_no_model_option_has_the_name_of_another_setting():
    for name, model in MODELS.items():
        own = {key for key, p in inspect.signature(model.__init__).parameters.items() if p.kind is p.KEYWORD_ONLY}
        others = {n.partition(".")[2] for n in setting_names(name) if not n.startswith(("model.", "terms."))}
        assert not own & ({*others, *ModelSettings.model_fields}), name


NAMES = ["model.c_min", "train.lr", "train.weight_decay.conv", "train.weight_decay.dense", "train.clusters.parts"]
NAMES += ["terms.energy.c_min", "terms.energy.rho"]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"c_min": 0.3}, {"model.c_min": 0.3}),
        ({"lr": 1, "train.clusters.parts": 2}, {"train.lr": 1, "train.clusters.parts": 2}),
        ({"train": {"lr": 1, "clusters": {"parts": 2}}}, {"train.lr": 1, "train.clusters.parts": 2}),
        ({"clusters.parts": 2}, {"train.clusters.parts": 2}),
        ({"parts": 2}, {"train.clusters.parts": 2}),
        ({"clusters": None}, {"train.clusters": None}),
        ({"terms.energy": None}, {"terms.energy": None}),
        ({"terms.energy.c_min": 0.2, "rho": 1.0}, {"terms.energy.c_min": 0.2, "terms.energy.rho": 1.0}),
        ({"energy.rho": 1.0, "terms.energy.c_min": 1}, {"terms.energy.rho": 1.0, "terms.energy.c_min": 1}),
        ({"weight_decay": 0.1}, {"train.weight_decay.conv": 0.1, "train.weight_decay.dense": 0.1}),
        ({"weight_decay.conv": 0, "weight_decay": 1}, {"train.weight_decay.conv": 0, "train.weight_decay.dense": 1}),
        ({"conv": 0}, {"train.weight_decay.conv": 0}),
    ],
)
def test_names_as_people_type_them_become_full_names(given, found):
    assert resolve(given, NAMES, "egnn") == found


def test_a_short_name_of_a_term_counts_only_where_the_term_is():
    with pytest.raises(GraphjouleError, match='"rho" is not a setting of egnn'):
        resolve({"rho": 1.0}, NAMES, "egnn")
    assert resolve({"rho": 1.0}, NAMES, "egnn", terms=["energy"]) == {"terms.energy.rho": 1.0}


def test_a_model_of_the_users_own_has_no_settings_but_those_of_its_training():
    assert not [name for name in setting_names("mine.build") if name.startswith("model.")]
    assert "train.weight_decay.all" in setting_names("mine.build")
    assert ModelSettings(name="mine.build", num_layers=2, options={"heads": 8}).is_own
    with pytest.raises(ValueError, match=r'"build" is not a model\.'):
        ModelSettings(name="build", num_layers=2)


def test_class_weights_may_be_written_as_the_command_line_has_them():
    recipe = load_recipe("gcn", "digits", 2)
    assert recipe.with_settings({"class_weights": "1,2.5"}).train.class_weights == [1.0, 2.5]
    for wrong in ("1,-2", "1,,2", "heavy", ","):
        with pytest.raises(GraphjouleError, match="expected balanced, or a list of numbers above 0"):
            recipe.with_settings({"class_weights": wrong})
