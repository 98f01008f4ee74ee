"""Settings of Sphinx for the site that `make docs` builds."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "docs" / "extension"), str(ROOT / "tests" / "build")]

project = "dlpack_py"
version = release = re.search(
    r'define DLPACK_PY_VERSION_STRING "(.*)"', (ROOT / "dlpack_tensor.h").read_text(encoding="utf-8")
)[1]
author = "the dlpack_py authors"
project_copyright = f"2026 {author}"

# The pages of docs/ and those that they link to. The root of the project is the folder of sources: a link from one page
# to another is the same on a code host and in the site.
extensions = ["myst_parser", "sphinx_design", "site_code", "site_pages", "site_reference"]
root_doc = "docs/index"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
include_patterns = [
    "docs/**.md",
    "docs/**.rst",
    "README.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "conformance/README.md",
    "examples/template/README.md",
    "packaging/README.md",
]
exclude_patterns = [".[a-z]*", "build", "tests", "benchmarks", "**/__pycache__"]

myst_enable_extensions = ["colon_fence", "attrs_block"]
myst_heading_anchors = 4  # as code hosts make them
myst_links_external_new_tab = False

html_theme = "furo"
html_title = f"dlpack_py {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_search_scorer = str(ROOT / "docs" / "extension" / "search_scorer.js")
html_theme_options = {"navigation_with_keys": False, "top_of_page_buttons": []}
pygments_style = "default"
pygments_dark_style = "github-dark"
highlight_language = "none"
smartquotes = False

# Types of the C library, of Python and of dlpack.h in declarations: they have no page here.
nitpick_ignore_regex = [(r"c:.*|cpp:.*", r"(?!dlpack_).*"), (r"c:.*", r"dlpack_\w+\.\w+")]
