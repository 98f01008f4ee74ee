"""Puts the reference of a header in place of a line `.. header:: dlpack_py.h`."""

import re

import headers


def write_reference(app, docname, content):
    if docname.startswith("docs/reference/"):
        content[0] = re.sub(
            r"^\.\. header:: (\S+)$", lambda found: headers.to_rst(found[1]), content[0], flags=re.MULTILINE
        )


def setup(app):
    app.connect("source-read", write_reference)
    return {"parallel_read_safe": False}
