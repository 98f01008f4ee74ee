"""The pages whose list of links is a table of contents. Needs no Sphinx."""

import re

PAGES = {
    "docs/index",
    "docs/guides/index",
    "docs/figures",
    "docs/project",
    "docs/reference/index",
    "docs/with_whom",
    "docs/upstream/README",
}
# The text of a link that begins an item of a list or a row of a table, its target, and the suffix of the target.
LISTED = re.compile(r"^(?:- |\| )\[([^\]\n]*)\]\(([^)#:\n]+)\.(md|rst)\)", re.MULTILINE)
