"""The options of a model as settings: what its constructor takes by keyword is what a recipe may set."""

import inspect
import typing
from collections.abc import Callable
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

from graphjoule.nn import MODELS

__all__ = ["STRICT", "model_options"]

# "0.3" in quotes is a mistake in a file, not a number; an integer where a float is meant is none.
STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


def model_options(model: str) -> type[BaseModel]:
    """The checks for a model's options, read from the keyword-only parameters of its constructor."""
    return _options_of(MODELS[model].__init__, MODELS[model].__name__)


@cache  # a study asks thousands of times; not by the key of `MODELS`, which may get another model
def _options_of(constructor: Callable[..., None], name: str) -> type[BaseModel]:
    hints = typing.get_type_hints(constructor, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints[name], ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(constructor).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    return create_model(f"{name}Options", __config__=STRICT, **fields)
