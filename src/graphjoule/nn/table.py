"""`MODELS`: the networks by name, known without importing torch, so that a wrong name or option is answered at once."""

from __future__ import annotations

import ast
import inspect
import typing
from collections import UserDict
from functools import cache
from importlib import import_module, resources
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Interval
from pydantic import AfterValidator, ValidationInfo

from graphjoule.errors import GraphjouleError

if TYPE_CHECKING:
    from graphjoule.nn.base import GraphModel


def _check_part(value: float, info: ValidationInfo) -> float:
    c_min = info.data.get("c_min", 1.0)  # nothing where it was refused already
    if value > c_min:
        raise GraphjouleError(f"{info.field_name} is {value}; it must be between 0 and c_min, which is {c_min}.")
    return value


# The ranges of options, as types of a constructor's keyword arguments. A recipe checks them; a constructor that is
# called directly checks its arguments itself.
Probability = Annotated[float, Interval(ge=0, lt=1)]  # of a dropout: not everything may be dropped
UnitInterval = Annotated[float, Interval(ge=0, le=1)]
PartOfCMin = Annotated[float, Interval(ge=0, le=1), AfterValidator(_check_part)]  # of a `c_min` that comes before it
OpenInterval = Annotated[float, Interval(gt=0, lt=1)]
Positive = Annotated[float, Interval(gt=0)]
NonNegative = Annotated[float, Interval(ge=0)]

_RANGES = {
    "Probability": Probability,
    "UnitInterval": UnitInterval,
    "PartOfCMin": PartOfCMin,
    "OpenInterval": OpenInterval,
    "Positive": Positive,
    "NonNegative": NonNegative,
}
_TYPES: dict[str, Any] = {"float": float, "int": int, "bool": bool, "str": str, **_RANGES}


class ModelTable(UserDict[str, Any]):
    """Networks by name; one of ours, given as "module:Class", is imported when it is asked for."""

    def __getitem__(self, name: str) -> type[GraphModel]:
        if isinstance(home := self.data[name], str):
            module, _, attribute = home.partition(":")
            self.data[name] = getattr(import_module(module), attribute)
        model: type[GraphModel] = self.data[name]
        return model

    def signature(self, name: str) -> tuple[dict[str, tuple[Any, Any]], tuple[str, ...]]:
        """Type and default of every keyword option of a constructor, and the names of the parameter groups.

        Of a network that is not imported yet they are read from the text of its file.
        """
        entry = self.data[name]
        return _read_signature(entry) if isinstance(entry, str) else _inspect_signature(entry)


@cache  # recipes ask thousands of times
def _inspect_signature(model: type[GraphModel]) -> tuple[dict[str, tuple[Any, Any]], tuple[str, ...]]:
    hints = typing.get_type_hints(model.__init__, include_extras=True)
    options = {
        name: (hints[name], ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(model.__init__).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    return options, tuple(model.parameter_group_names)


@cache
def _read_signature(home: str) -> tuple[dict[str, tuple[Any, Any]], tuple[str, ...]]:
    module, _, attribute = home.partition(":")
    package, _, last = module.rpartition(".")
    text = resources.files(package).joinpath(f"{last}.py").read_text(encoding="utf-8")
    found = next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == attribute)
    named = (n for n in found.body if isinstance(n, ast.AnnAssign) and ast.unparse(n.target) == "parameter_group_names")
    if (own := next(named, None)) is not None and own.value is not None:
        groups = tuple(ast.literal_eval(own.value))
    else:  # those of another model, or the one of `GraphModel`
        base = next((home for home in _HOMES.values() if home.endswith(f":{ast.unparse(found.bases[0])}")), None)
        groups = _read_signature(base)[1] if base else ("all",)
    constructor = next(n for n in found.body if isinstance(n, ast.FunctionDef) and n.name == "__init__").args
    options = {
        argument.arg: (_type(argument.annotation), ... if default is None else ast.literal_eval(default))
        for argument, default in zip(constructor.kwonlyargs, constructor.kw_defaults, strict=True)
    }
    return options, groups


def _type(node: ast.expr | None) -> Any:
    """The type that an annotation names: a number, a range of numbers, a word, or a choice of words."""
    match node:
        case ast.Name(id=name) if name in _TYPES:
            return _TYPES[name]
        case ast.Subscript(value=ast.Name(id="Literal"), slice=words):
            return Literal[ast.literal_eval(words)]
        case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
            return _type(left) | None
    raise TypeError(f"an option of a network cannot have the type {ast.unparse(node) if node else None}")


_HOMES = {
    "egnn": "graphjoule.nn.egnn:EGNN",
    "gcn": "graphjoule.nn.gcn:GCN",
    "pairnorm": "graphjoule.nn.pairnorm:PairNormGCN",
    "dropedge": "graphjoule.nn.dropedge:DropEdgeGCN",
    "sgc": "graphjoule.nn.sgc:SGC",
    "jknet": "graphjoule.nn.jknet:JKNet",
    "appnp": "graphjoule.nn.appnp:APPNP",
    "gcnii": "graphjoule.nn.gcnii:GCNII",
    "resgcn": "graphjoule.nn.resgcn:ResGCN",
    "wave": "graphjoule.nn.wave:Wave",
}

MODELS = ModelTable(_HOMES)
