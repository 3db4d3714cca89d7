"""How Sphinx builds the docs; ``launch/docs.sh`` runs it."""

import sys
from pathlib import Path

from sphinx.application import Sphinx

import distscan

sys.path.insert(0, str(Path(__file__).resolve().parent))

import measured
import pictures

project = "distscan"
version = release = distscan.__version__
copyright = "the authors of distscan"

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc", "myst_nb"]
nb_execution_mode = "off"  # launch/docs.sh executes the notebook, and its outputs are in the file
exclude_patterns = ["generated/measured*.rst"]  # pages include them
templates_path = ["templates"]
default_role = "code"
highlight_language = "none"

autodoc_typehints = "none"  # the docstrings say more
autodoc_member_order = "bysource"
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = f"distscan {release}"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"show_prev_next": False, "secondary_sidebar_items": ["page-toc"]}


def _generate(app: Sphinx) -> None:
    """Make what is not checked in: pictures and tables."""
    folder = Path(app.srcdir) / "generated"
    pictures.write(folder)
    measured.write(folder)


def setup(app: Sphinx) -> None:
    """Have Sphinx call ``_generate`` before it reads the first page."""
    app.connect("builder-inited", _generate, priority=100)  # autosummary's comes behind
