"""Sphinx configuration of the metastable site: `make docs`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

from metastable import __version__

project = "metastable"
author = "The metastable developers"
copyright = "the metastable developers"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "gallery",
    "plain_docstrings",
]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "_extensions", "gallery/pictures"]
default_role = "code"

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_class_signature = "mixed"
autodoc_default_options = {"members": True, "show-inheritance": False}
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"metastable {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#1c4f7c",
        "color-brand-content": "#0b5d8f",
        "font-stack": "Georgia, 'Times New Roman', serif",
        "font-stack--headings": "Georgia, 'Times New Roman', serif",
    },
    "dark_css_variables": {"color-brand-primary": "#7fb6dd", "color-brand-content": "#8fc3e8"},
}
