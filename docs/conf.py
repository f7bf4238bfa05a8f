"""How Sphinx builds the site: `make docs`. Warnings are errors, and no page needs the network to be read."""

import sys
from pathlib import Path

from pygments.lexers.shell import BashLexer
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

import graphjoule

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "graphjoule"
author = "the graphjoule authors"
release = version = graphjoule.__version__
copyright = author

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "commands",
    "mathml",
    "public_names",
    "offline",
]
exclude_patterns = ["_static"]
highlight_language = "none"  # blocks without a language are output, not Python
smartquotes_action = "q"  # quotes, but no dashes: --edges is an option
nitpicky = True
# Other projects' names: their indexes are on the network, which a build does not ask.
nitpick_ignore_regex = [
    ("py:.*", r"(torch|numpy|np|scipy|pydantic|sklearn|matplotlib|collections|typing|os|pathlib|enum)\..*"),
    ("py:.*", r"annotated_types\..*"),
    # Imported for types alone, or beside what is: named without their packages.
    ("py:.*", r"(Tensor|Data|Figure|Path)"),
]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

default_role = "py:obj"  # `name` in a docstring: a link where there is a page for it, else code
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "exclude-members": "model_config"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # pydantic's have validators in them, which say nothing to a reader
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"graphjoule {release}"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}


def setup(app: Sphinx) -> None:
    """Colour commands also where no prompt stands before them; show tables of commas as they are."""
    app.add_lexer("console", BashLexer)
    app.add_lexer("csv", TextLexer)
