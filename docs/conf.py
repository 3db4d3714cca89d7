"""How Sphinx builds the docs; ``launch/docs.sh`` runs it."""

import sys
from pathlib import Path

from sphinx.application import Sphinx

import distscan

sys.path.insert(0, str(Path(__file__).resolve().parent))

import measured
import options

project = "distscan"
version = release = distscan.__version__
copyright = "the authors of distscan"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_copybutton",
    "myst_nb",
]
nb_execution_mode = "off"  # launch/docs.sh executes the notebook, and its outputs are in the file
exclude_patterns = ["generated/measured*.rst", "generated/options*.rst"]  # pages include them
templates_path = ["templates"]
default_role = "code"
highlight_language = "none"

autodoc_typehints = "none"  # the docstrings say more
autodoc_member_order = "bysource"
autodoc_mock_imports = ["xarray", "pandas"]  # large, for a few signatures
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = f"distscan {release}"
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_sidebars = {page: [] for page in ("index", "gallery", "beside")}  # they have no sections
html_theme_options = {
    "show_prev_next": True,
    "header_links_before_dropdown": 6,
    "navigation_depth": 2,
    "secondary_sidebar_items": ["page-toc"],
}
copybutton_selector = (
    "div.highlight-python pre, div.highlight-bash pre"  # what is not typed has none
)


def _generate(app: Sphinx) -> None:
    """Make the tables of measurements and options, which are not checked in."""
    folder = Path(app.srcdir) / "generated"
    measured.write(folder)
    options.write(folder)


def setup(app: Sphinx) -> None:
    """Have Sphinx call ``_generate`` before it reads the first page."""
    app.connect("builder-inited", _generate, priority=100)  # autosummary's comes behind
