"""Code of examples in pages, and drawings.

```{example} ../examples/by_hand/by_hand.c
capsule_destructor
```

shows functions, structs and arrays of a C file by their names, each with the comment above it. With the options `from`
and `to` it shows the lines of that function from the first to the last that contain these texts. A page never has a
copy of the code, and a name that has gone is a warning.

A drawing of docs/diagrams is put into the page as it is, so that it has the colours of the page.
"""

import re
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

COMMENT = r"(?:^/\*(?:(?!\*/).)*\*/\n)?"
KINDS = (
    COMMENT + r"^[a-zA-Z][^\n;{{}}]*\n{name}\((?:(?!^\}}).)*^\}}\n",  # a function
    COMMENT + r"^typedef struct(?: \w+)? \{{(?:(?!^\}}).)*^\}} {name};\n",
    r"^static [\w ]*\b{name}(?:\[\])? = \{{(?:(?!^\}}).)*^\}};\n",
    COMMENT + r"^class {name}[^\n]*\{{(?:(?!^\}};).)*^\}};\n",
)


def find(text, name):
    """(the code, the number of its first line) of what a file defines, or None."""
    for pattern in KINDS:
        found = re.search(pattern.format(name=re.escape(name)), text, re.DOTALL | re.MULTILINE)
        if found:
            return found[0], text.count("\n", 0, found.start()) + 1
    return None


def cut(code, first, begin, end):
    """The lines from the first that contains a text to the first after it that contains another."""
    lines = code.splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if begin in line), None)
    stop = next((i for i, line in enumerate(lines) if start is not None and i >= start and end in line), None)
    if stop is None:
        return None
    return "".join(lines[start : stop + 1]), first + start


class Example(SphinxDirective):
    required_arguments = 1
    has_content = True
    option_spec = {"from": directives.unchanged, "to": directives.unchanged}

    def run(self):
        name, path = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(name)
        text = Path(path).read_text(encoding="utf-8")
        made = []
        for wanted in self.content:
            found = find(text, wanted.strip())
            if found and self.options:
                found = cut(*found, self.options["from"], self.options["to"])
            if found is None:
                raise self.error(f"{name} has no {wanted} with these lines")
            made.append(self.block(name, *found))
        return made

    def block(self, name, code, first):
        block = nodes.literal_block(code, code, language="cpp" if name.endswith("pp") else "c", linenos=True)
        block["highlight_args"] = {"linenostart": first}
        last = first + code.count("\n") - 1
        link = nodes.reference("", f"{Path(name).name}, lines {first} to {last}", refuri=f"source:{name}#line-{first}")
        self.set_source_info(block)
        return nodes.container("", block, nodes.paragraph("", "", link), classes=["from-file"])


def put_drawings(app, doctree, docname):
    """The text of an SVG of docs/diagrams in place of its image; the colours of the page in place of its own."""
    if app.builder.format != "html":
        return
    for node in list(doctree.findall(nodes.image)):
        uri = node["uri"]
        if uri.startswith("docs/diagrams/"):
            text = Path(app.srcdir, uri).read_text(encoding="utf-8")
            text = re.sub(r"<style>.*?</style>\n?", "", text, flags=re.DOTALL)
            html = f'<div class="drawing" tabindex="0">{text}</div>'
            node.replace_self(nodes.raw("", html, format="html"))


def setup(app):
    app.add_directive("example", Example)
    app.connect("doctree-resolved", put_drawings, priority=400)
    return {"parallel_read_safe": False}
