"""The site asks no other host for anything: a page that would load something from one is a warning, so an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

_LOGGER = logging.getLogger(__name__)
# What a browser fetches by itself; a link that the reader may follow is none of these.
_FETCHED = (
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc\s*=\s*[\"']?((?:https?:)?//[^\"'\s>]+)",
    r"<link\b(?=[^>]*\brel\s*=\s*[\"']?(?:stylesheet|preload|icon|preconnect))[^>]*\bhref\s*=\s*[\"']?((?:https?:)?//[^\"'\s>]+)",
    r"@import\s+(?:url\()?[\"']?((?:https?:)?//[^\"')\s]+)",
    r"\burl\(\s*[\"']?((?:https?:)?//[^\"')\s]+)",
)


def fetched_hosts(text: str) -> list[str]:
    """Addresses of other hosts that a page or a stylesheet would fetch.

    >>> fetched_hosts('<script src="https://cdn.example/x.js"></script> <a href="https://example.org">there</a>')
    ['https://cdn.example/x.js']
    """
    return [address for pattern in _FETCHED for address in re.findall(pattern, text)]


def _check(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    for path in sorted(Path(app.outdir).rglob("*")):
        if path.suffix in {".html", ".css"}:
            for address in fetched_hosts(path.read_text(encoding="utf-8")):
                _LOGGER.warning("%s would be fetched from the network by %s", address, path.relative_to(app.outdir))


def setup(app: Sphinx) -> dict[str, Any]:
    """Look at every page once all are written."""
    app.connect("build-finished", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
