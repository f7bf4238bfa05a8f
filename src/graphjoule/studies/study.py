"""What a study is: a TOML file, and the cells it comes to, each a recipe to train with every seed.

The paper's tables and figures are files beside this one; docs/studies.md describes the format.
"""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    Strict,
    ValidationError,
    model_validator,
)

from graphjoule.errors import GraphjouleError, unknown
from graphjoule.files import reason
from graphjoule.nn import MODELS
from graphjoule.studies.protocol import Protocol, Table
from graphjoule.tasks import DATASETS
from graphjoule.training.recipe import Recipe, load_recipe
from graphjoule.training.settings import explain, resolve, setting_names

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_NAMES_OF_A_ROW: Final = ("model", "component", "value")


Names = Annotated[tuple[str, ...], Strict(False), Field(min_length=1)]
Depths = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Strict(False), Field(min_length=1)]
DepthsOf = Annotated[  # one list is that of every dataset
    dict[str, Depths], BeforeValidator(lambda depths: {"default": depths} if isinstance(depths, list) else depths)
]
Numbers = Annotated[tuple[float, ...], Strict(False), Field(min_length=1)]


class Variant(Table):
    """One way in which a study changes a recipe.

    Attributes:
        component: what is changed, such as "c_min"; empty for the recipe as it is.
        value: to what, as a table shows it.
        settings: overrides of the recipe; models without such a setting are left as they are.
        at_most: settings that are lowered to this value where the recipe has a larger one.
    """

    component: str = ""
    value: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)
    at_most: dict[str, float] = Field(default_factory=dict)


class Sweep(Table):
    """One setting over several values, a variant each, and how it is drawn.

    Attributes:
        component: what the tables call it.
        setting: the setting of the recipe that gets each of the values.
        values: one cell each.
        at_most: settings that are lowered to the value where the recipe has a larger one.
        label: what stands at the axis of a drawing; the component by default.
        scale: of that axis; "shift" is linear around 0 and logarithmic beyond 1.
        recommended: the lowest and the highest value that the reference recommends; a drawing shades them.
    """

    component: str
    setting: str
    values: Numbers
    at_most: Annotated[tuple[str, ...], Strict(False)] = ()
    label: str = ""
    scale: Literal["linear", "log", "shift"] = "linear"
    recommended: Annotated[tuple[float, float], Strict(False)] | None = None

    def variants(self) -> list[Variant]:
        """The sweep as variants.

        >>> Sweep(component="c_min", setting="c_min", values=[0.5], at_most=["beta"]).variants()
        [Variant(component='c_min', value='0.5', settings={'c_min': 0.5}, at_most={'beta': 0.5})]
        """
        return [
            Variant(
                component=self.component,
                value=f"{value:g}",
                settings={self.setting: value},
                at_most=dict.fromkeys(self.at_most, value),
            )
            for value in self.values
        ]


class Block(Table):
    """Settings that a study gives to some of its cells, or to all.

    Attributes:
        settings: overrides of the recipe; models without such a setting are left as they are.
        dataset: whose cells; None for those of every dataset.
        min_layers: the smallest depth.

    >>> Block(settings={"epochs": 200}, dataset="pubmed", min_layers=128).applies_to("pubmed", 64)
    False
    """

    settings: dict[str, Any]
    dataset: str | None = None
    min_layers: int = Field(default=1, ge=1)

    def applies_to(self, dataset: str, num_layers: int) -> bool:
        """Whether a cell gets the settings."""
        return self.dataset in (None, dataset) and num_layers >= self.min_layers


class Reference(Table):
    """Values from elsewhere to compare with: of the metric that an objective shows first, shares in percent.

    Attributes:
        name: what the tables call it, such as "paper".
        source: where the values are from.
        table: a CSV file beside the study file, with the rows.
        rows: the same in the study file. A row names a `model`, a `component` and its `value`, as far as they matter,
            and has a number for each ``DATASET_LAYERS``, such as ``cora_64 = 85.7``.
        runs: how many runs each value is the mean of.
        one_split: datasets on which all its runs had one split, so that their mean scatters like that of a split.
        decimals: to how many the values are rounded; by default as many as the longest of them has.
        leaves_open: settings that the source does not state. Runs that differ in nothing else are other readings of it.
    """

    name: str = "reference"
    source: str = ""
    table: str = ""
    rows: Annotated[tuple[dict[str, Any], ...], Strict(False)] = ()
    runs: int = Field(default=10, ge=1)
    one_split: Annotated[tuple[str, ...], Strict(False)] = ()
    decimals: int | None = Field(default=None, ge=0)
    leaves_open: Annotated[tuple[str, ...], Strict(False)] = ()

    @cached_property
    def values(self) -> dict[tuple[str, str, str], dict[tuple[str, int], float]]:
        """Numbers by model, component and value, "" where a row does not name them, then by dataset and depth."""
        found: dict[tuple[str, str, str], dict[tuple[str, int], float]] = {}
        for number, row in enumerate(self.rows, start=1):
            model, component, value = (row.get(name, "") for name in _NAMES_OF_A_ROW)
            numbers = found.setdefault((model, component, value), {})
            for key, given in row.items():
                dataset, _, layers = key.rpartition("_")
                is_name = key in _NAMES_OF_A_ROW
                if not is_name and (dataset not in DATASETS or not layers.isdecimal()):
                    raise GraphjouleError(
                        f'reference row {number}: "{key}" is not a column; expected {", ".join(_NAMES_OF_A_ROW)} or '
                        "DATASET_LAYERS such as cora_64."
                    )
                if not isinstance(given, str if is_name else int | float) or isinstance(given, bool):
                    expected = "a name in quotes" if is_name else "a number, a share in percent"
                    raise GraphjouleError(
                        f"reference row {number}: {key} = {given!r} cannot be used: expected {expected}."
                    )
                if is_name:
                    continue
                if (dataset, int(layers)) in numbers:
                    named = ", ".join(row[name] for name in _NAMES_OF_A_ROW if row.get(name)) or "any model"
                    raise GraphjouleError(
                        f"reference row {number}: an earlier row has {key} of {named} too; expected one of them."
                    )
                numbers[dataset, int(layers)] = float(given)
        return found

    @property
    def places(self) -> int:
        """To how many decimals the values are rounded.

        >>> Reference(rows=[{"cora_2": 0.853}]).places, Reference(rows=[{"cora_2": 85}]).places
        (3, 1)
        """
        if self.decimals is not None:
            return self.decimals
        numbers = (number for several in self.values.values() for number in several.values())
        return max((-int(Decimal(repr(number)).as_tuple().exponent) for number in numbers), default=1)

    @property
    def rounding(self) -> float:
        """The most that rounding took from a value."""
        return float(0.5 * 10.0**-self.places)

    def value(self, model: str, dataset: str, num_layers: int, variant: Variant) -> float | None:
        """The value of a cell, that of the model before that of any; None where there is none."""
        rows = (self.values.get((name, variant.component, variant.value), {}) for name in (model, ""))
        return next((row[dataset, num_layers] for row in rows if (dataset, num_layers) in row), None)


@dataclass(frozen=True)
class Cell:
    """One cell of a study: what is trained with every seed, and what the reference says about it.

    Attributes:
        model: a key of `MODELS`.
        dataset: a key of `DATASETS`.
        num_layers: the depth.
        variant: what is changed in the recipe.
        overrides: further settings, the user's own, by dotted or short name; the variant wins over them.
        reference: the reference's value, a share in percent; None where it has none.
        base: settings from the study's blocks; the user's own and the variant win over them. These and the variant's
            have dotted names, and a model without such a setting is left as it is.
        select_on: the protocol's rule; a setting in `base` or `overrides` wins over it.

    >>> Cell("egnn", "cora", 64, Variant(component="activation", value="relu")).name
    'egnn, 64 layers, cora, activation relu'
    """

    model: str
    dataset: str
    num_layers: int
    variant: Variant = Variant()  # noqa: RUF009 - frozen
    overrides: Mapping[str, Any] = field(default_factory=dict)
    reference: float | None = None
    base: Mapping[str, Any] = field(default_factory=dict)
    select_on: str | None = None

    @property
    def name(self) -> str:
        """The cell in words."""
        changed = f", {self.variant.component} {self.variant.value}" if self.variant.component else ""
        return f"{self.model}, {self.num_layers} layers, {self.dataset}{changed}"

    @cached_property
    def recipe(self) -> Recipe:
        """All settings of the cell, resolved."""
        names = setting_names(self.model)
        base = {key: value for key, value in self.base.items() if key in names}
        changes = {key: value for key, value in self.variant.settings.items() if key in names}
        base |= resolve(self.overrides, names, self.model)
        plain = load_recipe(self.model, self.dataset, self.num_layers, base)
        if self.select_on not in (None, plain.train.select_on) and "train.select_on" not in base:
            base["train.select_on"] = self.select_on
            plain = load_recipe(self.model, self.dataset, self.num_layers, base)
        settings = plain.settings()
        lowered = {k: limit for k, limit in self.variant.at_most.items() if k in settings and settings[k] > limit}
        if not changes and not lowered:
            return plain
        return load_recipe(self.model, self.dataset, self.num_layers, {**base, **changes, **lowered})


class Study(Table):
    """A table or a figure as data: what a study file holds.

    Attributes:
        title: one line about it.
        datasets: those it is made of unless others are asked for.
        models: those it is made of unless others are asked for.
        depths: numbers of layers by dataset, and "default" for any other.
        other_models: whether models besides `models` can be asked for.
        given_variants: what is changed, one cell each; in the file ``[[variant]]``.
        sweeps: variants along one setting; in the file ``[[sweep]]``.
        blocks: settings of some or all cells; of two that apply, the later wins. In the file ``[[block]]``.
        has_energies: whether the energy of every layer is measured too.
        drawing: how its figure is drawn, a key of `graphjoule.report.drawings.DRAWINGS`; None for none.
        reference: what to compare with.
        protocol: the rules that were written before the runs.
    """

    title: str
    datasets: Names
    models: Names
    depths: DepthsOf
    other_models: bool = True
    given_variants: Annotated[tuple[Variant, ...], Strict(False)] = Field(default=(), alias="variant")
    sweeps: Annotated[tuple[Sweep, ...], Strict(False)] = Field(default=(), alias="sweep")
    blocks: Annotated[tuple[Block, ...], Strict(False)] = Field(default=(), alias="block")
    has_energies: bool = False
    drawing: Literal["depth", "differences", "energies", "sides", "sweeps"] | None = None
    reference: Reference = Reference()
    protocol: Protocol = Protocol()
    _source: str = PrivateAttr("study")

    @property
    def name(self) -> str:
        """The name of its file, without folder and ending."""
        return Path(self._source).stem

    @property
    def source(self) -> str:
        """What `find_study` finds it by: a key of `STUDIES` or the path of a file."""
        return self._source

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """All variants, settings by their dotted names; without any variant, the recipes as they are."""
        swept = (variant for sweep in self.sweeps for variant in sweep.variants())
        found = []
        for one in (*self.given_variants, *swept):
            dotted = {name: self._dotted(getattr(one, name)) for name in ("settings", "at_most")}
            found.append(one.model_copy(update=dotted))
        return tuple(found) or (Variant(),)

    @cached_property
    def leaves_open(self) -> frozenset[str]:
        """The dotted names of the settings that the reference leaves open."""
        return frozenset(self._dotted(dict.fromkeys(self.reference.leaves_open)))

    def _dotted(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings by their dotted names; a short name is looked for in all models of the study.

        So `c_max` is `model.c_max` in a study of EGNN and GCN: GCN is left as it is, and gets no limit of a term.
        """
        names = dict.fromkeys(name for model in self.models for name in setting_names(model))
        rooms = ("model.", "train.", "data.", "terms.")
        ordered = [name for room in rooms for name in names if name.startswith(room)]
        return resolve(settings, ordered, " or ".join(self.models))

    def cells(
        self,
        datasets: Sequence[str] | None = None,
        models: Sequence[str] | None = None,
        layers: Sequence[int] | None = None,
        overrides: Mapping[str, Any] = _NOTHING,
    ) -> list[Cell]:
        """The cells of the study, or of the part that is asked for.

        Args:
            datasets: names of datasets, any of `DATASETS`.
            models: names of models: any, unless `other_models` is false.
            layers: numbers of layers instead of the study's own.
            overrides: settings that win over the recipes in every cell.

        Returns:
            One cell per dataset, model, depth and variant, those of a dataset together.
        """
        datasets = _known(datasets or self.datasets, DATASETS, "dataset")
        choices = MODELS if self.other_models else self.models
        models = _known(models or self.models, choices, f"model of {self.name}")
        if any(depth < 1 for depth in layers or ()):
            raise GraphjouleError(f"layers are {list(layers or ())}; expected numbers of at least 1.")
        cells = []
        for dataset in datasets:
            depths = layers or self.depths.get(dataset, self.depths.get("default"))
            if not depths:
                raise GraphjouleError(f"{self.source} has no depths for {dataset} and no default; choose `layers`.")
            for model, depth in product(models, depths):
                base: dict[str, Any] = {}
                for block in self.blocks:
                    base |= self._dotted(block.settings) if block.applies_to(dataset, depth) else {}
                for variant in self.variants:
                    value = self.reference.value(model, dataset, depth, variant)
                    rule = self.protocol.rule_of(dataset)
                    cells.append(Cell(model, dataset, depth, variant, overrides, value, base, rule))
        return cells

    @model_validator(mode="after")
    def _all_names_are_known(self) -> Self:
        """A name with a typo would be left out of every cell without a word."""
        _known(self.datasets, DATASETS, "dataset")
        _known(self.models, MODELS, "model")
        _known((name for name in self.depths if name != "default"), DATASETS, "dataset in depths")
        _known((block.dataset for block in self.blocks if block.dataset), DATASETS, "dataset of a block")
        if missing := [name for name in self.datasets if not {name, "default"} & self.depths.keys()]:
            raise GraphjouleError(f"depths has no list for {missing[0]} and no default.")
        _known((name for name in self.protocol.select_on if name != "default"), DATASETS, "dataset in select_on")
        _known(self.reference.one_split, DATASETS, "dataset in one_split")
        for block in self.blocks:
            self._dotted(block.settings)
        _ = self.leaves_open
        variants = [(variant.component, variant.value) for variant in self.variants]
        if twice := [variant for variant in variants if variants.count(variant) > 1]:
            named = " ".join(twice[0]).strip() or "without a component and a value"
            raise GraphjouleError(f"the study has two variants {named}; their names must differ.")
        for (model, component, value), numbers in self.reference.values.items():
            _known([model] if model else [], MODELS, "model of the reference")
            if (component, value) not in variants:
                named = f"{component} {value}".strip() or "no change"
                raise GraphjouleError(f"the reference has a row for {named}, and no variant of the study is that.")
            for dataset, layers in numbers:
                depths = self.depths.get(dataset, self.depths.get("default", ()))
                if layers not in depths:
                    raise GraphjouleError(
                        f"the reference has {dataset}_{layers}, and the study no network of {layers} layers there; its "
                        f"depths for {dataset} are: {', '.join(map(str, depths)) or 'none'}."
                    )
        return self


def _known(names: Iterable[str], choices: Iterable[str], what: str) -> list[str]:
    """The names, each once; one that is not among the choices is an error that lists them."""
    names = list(dict.fromkeys(names))
    for name in names:
        if name not in choices:
            raise GraphjouleError(unknown(name, choices, what))
    return names


def find_study(name: str) -> Study:
    """The study of a name in `STUDIES`, or of a file whose path ends in ``.toml``.

    >>> find_study("figure4").datasets
    ('physics',)
    """
    if name in STUDIES:
        return STUDIES[name]
    if name.endswith(".toml"):
        return read_study(Path(name))
    raise GraphjouleError(f"{unknown(name, STUDIES, 'study')} Or give the path of a study file, such as mine.toml.")


def read_study(file: Path) -> Study:
    """Read a study file.

    Raises:
        GraphjouleError: It cannot be read, or a key or value in it cannot be used; the sentence says which.
    """
    return _parse(file, file.parent, str(file))


def _parse(file: Traversable, folder: Traversable, source: str) -> Study:
    try:
        content = tomllib.loads(_read_text(file, f"study file {source}"))
        reference = content.get("reference")
        if isinstance(reference, dict) and isinstance(table := reference.get("table"), str):
            if "rows" in reference:
                raise GraphjouleError(f"{source}: reference has both table and rows; expected one of them.")
            where, rows = f"{source}: reference.table = {table!r}", []
            for number, line in enumerate(csv.DictReader(_read_text(folder / table, f"table {where}").splitlines()), 2):
                if None in line or None in line.values():
                    raise GraphjouleError(f"{where}, line {number}: expected as many cells as the first line has.")
                try:  # empty cells are left out
                    rows.append({k: v if k in _NAMES_OF_A_ROW else float(v) for k, v in line.items() if v})
                except ValueError as error:
                    raise GraphjouleError(
                        f"{where}, line {number}: {error}; expected numbers, shares in percent."
                    ) from error
            reference["rows"] = rows
        study = Study.model_validate(content)
    except tomllib.TOMLDecodeError as error:
        raise GraphjouleError(f"{source} is not valid TOML: {error}.") from error
    except ValidationError as error:
        raise GraphjouleError(f"{source}: {_sentence(error)}") from error
    study._source = source
    return study


def _read_text(file: Traversable, name: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise GraphjouleError(f"Cannot read the {name}: {reason(error)}.") from error
    except UnicodeDecodeError as error:
        raise GraphjouleError(f"Cannot read the {name}: it is not text in UTF-8.") from error


_TABLES: Final[dict[str, type[Table]]] = {
    "variant": Variant,
    "sweep": Sweep,
    "block": Block,
    "reference": Reference,
    "protocol": Protocol,
}


def _sentence(error: ValidationError) -> str:
    """The first thing that is wrong in a study file: the key, what it holds, and what was expected."""
    first = error.errors(include_url=False)[0]
    # People count the tables of a list from 1; a string among the keys keeps its dots.
    path = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        *above, key = first["loc"]
        table = _TABLES.get(str(above[0]), Study) if above else Study
        names = [field.alias or name for name, field in table.model_fields.items()]
        return unknown(str(key), names, f"key of {path.rpartition('.')[0] or 'a study'}")
    if first["type"] == "missing":
        return f"{path} is missing."
    key, sentence = explain(error)
    plain = {"a valid tuple": "a list", "a valid dictionary": "a table", "a valid string": "text in quotes"}
    sentence = sentence.replace(f"{key} =", f"{path} =", 1) if key else sentence
    return re.sub("|".join(plain), lambda found: plain[found[0]], sentence)


_FOLDER: Final = resources.files(__package__)
_FILES: Final = sorted(file.name for file in _FOLDER.iterdir() if file.name.endswith(".toml"))

STUDIES: Final[dict[str, Study]] = {
    name.removesuffix(".toml"): _parse(_FOLDER / name, _FOLDER, name.removesuffix(".toml")) for name in _FILES
}
"""The studies that come with graphjoule, by name: the paper's tables and figures, and two of our own."""
