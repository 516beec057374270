"""The site of `make docs`: Sphinx reads these pages and docstrings; pages of GENERATED are completed from sources."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent.parent))
from scripts.reference_pages import command_line_pages, proto_pages

project = "Callsheet"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["conf.py"]
html_title = "Callsheet"
html_theme_options = {"page_width": "1100px", "fixed_sidebar": True}
myst_heading_anchors = 4
autodoc_default_options = {"members": True, "member-order": "bysource", "exclude-members": "backend"}
napoleon_use_ivar = True
default_role = "code"
autodoc_typehints_format = "short"
# References must lead somewhere; those to other projects cannot, as the build reads no network.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!callsheet\.).*"),
    ("py:.*", r"callsheet\..*\.(S|\w*T(_co)?)"),  # type variables
    ("py:.*", r"callsheet\.v1\..*"),  # the contract has a page of its own
    ("py:.*", r"callsheet\.scheduler\.core\..*"),  # not for programs outside
    ("py:.*", r"callsheet\.client\.(backend\.(Backend|Connector)|sync\.job\.CoroutineThread)"),  # seams
]

GENERATED = {"reference/protos": proto_pages, "reference/command-line": command_line_pages}


def _complete(app: Sphinx, page: str, source: list[str]) -> None:
    if page in GENERATED:
        source[0] += "\n" + GENERATED[page]()


def setup(app: Sphinx) -> None:
    """Registers what completes pages."""
    app.connect("source-read", _complete)
