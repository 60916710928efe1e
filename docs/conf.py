"""Sphinx configuration: pages in Markdown (MyST), the API from the docstrings (numpydoc).

Build with `sphinx-build docs build/docs` in an environment that has the `docs` extra.
"""

import runpy
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# The rooms are mapped into one package by setuptools; autosummary follows folders, so it is shown the linked view.
runpy.run_path(str(ROOT / "tools/typeview.py"), run_name="__main__")
sys.path.insert(0, str(ROOT / "build/typeview"))

project = PROJECT["name"]
version = release = PROJECT["version"]
author = copyright = "the perfmodel contributors"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc"]
myst_heading_anchors = 3
templates_path = ["_templates"]
exclude_patterns = ["_templates"]
html_theme = "alabaster"
html_theme_options = {"description": PROJECT["description"], "fixed_sidebar": True, "page_width": "1150px"}

# Triton has no build for a machine without a GPU, and torch is an extra: their names suffice to read the docstrings.
autodoc_mock_imports = ["torch", "triton"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_default_options = {"no-value": True}
autosummary_generate = True
numpydoc_show_class_members = False
