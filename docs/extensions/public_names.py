"""References between pages of the API: what a signature or docstring names leads to the one page that it has."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PyObject, PythonDomain
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

import graphjoule

_LOGGER = logging.getLogger(__name__)


def _public_names() -> dict[str, str]:
    """Where every public class and function is written, and what it is called at the one door."""
    found = ((name, getattr(graphjoule, name)) for name in graphjoule.__all__)
    return {
        f"{value.__module__}.{value.__qualname__}": f"graphjoule.{name}"
        for name, value in found
        if hasattr(value, "__qualname__")
    }


def _exists(path: str) -> bool:
    """Whether a dotted name can be imported: a module, or something in one, such as `graphjoule.ops.make_key`."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            found = getattr(found, part, None)
        return found is not None
    return False


def _page_of(target: str, domain: PythonDomain) -> str | None:
    """What a name stands under: its name at the door, or the one class or function on a page that is called so."""
    if public := _public_names().get(target):
        return public
    kinds = {"class", "exception", "function", "data"}
    same = [name for name, entry in domain.objects.items() if name.endswith(f".{target}") and entry.objtype in kinds]
    return same[0] if len(same) == 1 else None


def _resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element) -> nodes.Node | None:
    """Where a reference that Sphinx cannot resolve leads; a mere word in backticks may lead nowhere."""
    if node.get("refdomain") != "py":
        return None
    target, domain = node["reftarget"], env.domains.python_domain
    if page := _page_of(target, domain):
        return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", page, node, content)
    if target.startswith("graphjoule."):
        if not _exists(target):
            _LOGGER.warning("there is no %s", target, location=node)
        return content
    return content if node["reftype"] == "obj" else None


def _keep_sentence(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Give a property back its docstring: napoleon takes what stands before a colon in its sentence for a type."""
    if what in {"property", "attribute"} and isinstance(value, property) | hasattr(value, "func"):
        lines[:] = [*(inspect.getdoc(value) or "").splitlines(), ""]


def setup(app: Sphinx) -> dict[str, Any]:
    """Hear about every reference that Sphinx cannot resolve, and about docstrings after napoleon."""
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"  # as the docstrings say; Sphinx calls them variables
    app.connect("missing-reference", _resolve)
    app.connect("autodoc-process-docstring", _keep_sentence, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
