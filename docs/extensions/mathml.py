"""Formulas become MathML when the site is built, so that a page needs neither a script nor a network to show them."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

_LOGGER = logging.getLogger(__name__)
# Where docutils' converter differs from LaTeX: it stretches brackets by itself and has no \Big; it reads \tfrac12 as
# the number 12; it sets named operators without a space before them.
_SPELLINGS = (
    (r"\\[bB]igg?[lrm]?(?![a-zA-Z])", ""),
    (r"\\tfrac\s*(\d)(\d)", r"\\tfrac{\1}{\2}"),
    (r"\\operatorname(?=\{)", r"\\,\\operatorname"),
)


def mathml(tex: str, *, is_block: bool) -> str:
    """One formula of LaTeX as a MathML element.

    >>> "".join(mathml("x^2", is_block=False).split()).partition(">")[2]
    '<msup><mi>x</mi><mn>2</mn></msup></math>'
    """
    for pattern, spelling in _SPELLINGS:
        tex = re.sub(pattern, spelling, tex)
    return str(tex2mathml(tex, as_block=is_block))


def _append(translator: Any, node: nodes.math | nodes.math_block, *, is_block: bool) -> None:
    try:
        translator.body.append(mathml(node.astext(), is_block=is_block))
    except MathError as error:
        _LOGGER.warning("formula %r: %s", node.astext(), error, location=node)
    raise nodes.SkipNode


def _inline(translator: Any, node: nodes.math) -> None:
    _append(translator, node, is_block=False)


def _block(translator: Any, node: nodes.math_block) -> None:
    _append(translator, node, is_block=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Offer the renderer; `html_math_renderer = "mathml"` takes it."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
