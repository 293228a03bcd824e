"""The site of the documentation: sphinx-build -W -j 2 docs build/site (extra docs)."""

import os
import pathlib
import sys

ROOT = str(pathlib.Path(__file__).parents[1])
sys.path.insert(0, ROOT)
# The notebooks run commands, which find Python and the package as this process does.
os.environ["PYTHONPATH"] = os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])
# Threads that wait for one another would take a quarter of the time.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1")
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])

from tfrank import __version__

project, author, copyright = "tfrank", "the authors of tfrank", "the authors of tfrank"
version = release = __version__
extensions = ["myst_nb", "sphinx.ext.githubpages", "docs._ext.site_pages"]
# A page docs/search.md would be overwritten: Sphinx writes its own search.html.
exclude_patterns = ["_ext", "experiments"]

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["config.cache"]
nb_execution_mode = "auto"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True

toc_object_entries_show_parents = "hide"
html_theme = "pydata_sphinx_theme"
html_math_renderer = "mathml"
html_title = "tfrank"
html_sidebars = {"index": [], "choose": []}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "header_links_before_dropdown": 7,
    "navbar_align": "left",
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_version_warning_banner": False,
}
