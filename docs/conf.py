"""The site's settings for Sphinx: ``make site``. What is made of lessons and rooms is in tools/site_pages.py."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import dgc_lab  # noqa: E402

project, author, release = "DGC Lab", "The authors of DGC Lab", dgc_lab.__version__
root_doc = "index"
include_patterns = [
    *("*.md", "docs/*.md", "docs/reference/*.md", "benchmarks/README.md", "notebooks/exercises/README.md"),
    *("notebooks/*.ipynb", "notebooks/exercises/release/*/*.ipynb"),
]
exclude_patterns = ["README.md"]  # index.md says it here
extensions = [
    *("myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"),
    "site_pages",
]
nitpicky = False  # docstrings name arguments and files between backticks, too
default_role = "py:obj"

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # a lesson is shown as it was stored
nb_ipywidgets_js = {}
nb_custom_formats = {".ipynb": "site_pages.read_lesson"}
nb_mime_priority_overrides = [("html", "text/html", 0)]

autodoc_member_order = "groupwise"
autodoc_typehints_format = "short"
napoleon_use_ivar = True
html_math_renderer = "mathml"

html_theme = "sphinx_book_theme"
html_title = "DGC Lab"
html_static_path = ["site"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_sidebars = {"**": ["navbar-logo", "search-button-field", "sbt-sidebar-nav"]}
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": False,
    "show_toc_level": 1,
    **{f"navbar_{place}": [] for place in ("start", "center", "end", "persistent")},
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
