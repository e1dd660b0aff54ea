"""How the site is built: ``make docs`` runs ``sphinx-build -W -n`` on this folder, without the network.

The generators beside this file write what can be read off the library itself: `reference_pages` one page a public room,
`command_pages` one page of the command line. `site_links` makes links that leave this folder lead somewhere.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "decrescendo"
author = "The decrescendo authors"
copyright = "2026, the decrescendo authors"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "myst_parser",
    "sphinx_copybutton",
    "mathml",
    "site_links",
    "command_pages",
    "reference_pages",
]

# What is in the papers' own distribution, or on its way there, is linked and not built.
exclude_patterns = ["_ext"]

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

default_role = "autolink"  # docstrings say `Plan`; reference_pages finds the page of it
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 110
# The adapters need packages that nobody must install to read about them.
autodoc_mock_imports = [name for name in ("flwr",) if find_spec(name) is None]
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = ["Guarantee", "Edge cases"]

html_theme = "furo"
html_title = "decrescendo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": False}
html_math_renderer = "mathml"
smartquotes = False  # two hyphens are an option, not a dash
toc_object_entries_show_parents = "hide"
pygments_style = "friendly"
pygments_dark_style = "monokai"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
highlight_language = "text"

# `make docs-links` asks the network about every link that leaves the site; `make docs` does not.
linkcheck_timeout = 20
linkcheck_retries = 2
