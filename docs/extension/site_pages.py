"""The site beyond Sphinx: tables of contents from lists of links, pages for source files, links to clauses.

Pages are written so that they read well on a code host, too:

- A page of indexes.PAGES is a list of links to other pages. The list is its table of contents, with its own names.
- A link to a file or folder of the project leads to a page with the highlighted file, `source/PATH.html`.
- So does the path of a file in `code`.
- The id of a clause (K4) leads to its row in docs/protocol.md, and the name of a function to its place in the
  reference, in text and in `code`.
"""

import html
import re
from pathlib import Path

import headers
import indexes
from docutils import nodes
from sphinx import addnodes
from sphinx.highlighting import PygmentsBridge
from sphinx.util import logging
from sphinx.util.osutil import relative_uri

logger = logging.getLogger(__name__)

LANGUAGES = {".c": "c", ".h": "c", ".cpp": "cpp", ".hpp": "cpp", ".py": "python", ".pyi": "python", ".pyx": "cython"}
LANGUAGES |= {".pxd": "cython", ".toml": "toml", ".yml": "yaml", ".cmake": "cmake"}
CLAUSE = headers.CLAUSE.pattern
NAME = r"\b(?:dlpack|DLPACK)_\w+"


def add_table_of_contents(app, docname, content):
    if docname in indexes.PAGES:
        pages = {page: f"{text} <{page}>" for text, page, _ in indexes.LISTED.findall(content[0])}
        content[0] += "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(pages.values()) + "\n```\n"


CODE_OR_UNDERSCORES = re.compile(r"(^```.*?^```$|``.+?``|`[^`]*`)|__(\w+?)__", re.DOTALL | re.MULTILINE)


def keep_underscores(app, docname, content):
    """Markdown would take __dlpack__ in a text as dlpack in bold: no page means that."""
    if str(app.env.doc2path(docname)).endswith(".md"):
        content[0] = CODE_OR_UNDERSCORES.sub(lambda found: found[1] or rf"\_\_{found[2]}\_\_", content[0])


def leave_out_of_search(app, doctree):
    """These pages have words for everything, and answers for contributors only."""
    docname = app.env.current_document.docname
    if docname in ("CHANGELOG", "CONTRIBUTING"):
        app.env.metadata[docname]["nosearch"] = True


class Sources:
    """The files and folders of the project that pages link to."""

    def __init__(self, root):
        self.root = root
        self.wanted = {path.name for suffix in ("h", "hpp", "pxd") for path in root.glob(f"*.{suffix}")}
        self.wanted |= {self.name(path) for path in (root / "examples").rglob("*") if self.is_shown(path)}

    def is_shown(self, path):
        return path.is_file() and path.suffix != ".pyc" and path.stat().st_size < 500_000

    def name(self, path):
        return path.relative_to(self.root).as_posix()

    def find(self, docname, target):
        """The name of a file or folder that a page links to, or None."""
        path = (self.root / docname).parent / target
        if not target or not path.exists():
            return None
        path = path.resolve()
        return self.name(path) if path != self.root and self.root in path.parents else None

    def pages(self):
        """(name of the page, its title, its HTML) of each file and folder. A folder is a list of its files."""
        wanted = set(self.wanted)
        for name in self.wanted:
            if (self.root / name).is_dir():
                files = [path for path in (self.root / name).rglob("*") if self.is_shown(path)]
                files = [path for path in files if not {"__pycache__", ".venv"} & set(path.parts)]
                wanted |= {self.name(path) for path in files}
        for name in sorted(wanted):
            path, page = self.root / name, f"source/{name}"
            if path.is_dir():
                items = [other for other in sorted(wanted) if other.startswith(f"{name}/")]
                lines = [(f"source/{other}.html", other.removeprefix(f"{name}/")) for other in items]
                links = "".join(f'<li><a href="{relative_uri(page, url)}">{html.escape(t)}</a>' for url, t in lines)
                yield page, name, f"<ul>{links}</ul>"
            else:
                yield page, name, f'<div class="source-file">{self.highlight(path)}</div>'

    def highlight(self, path):
        bridge = PygmentsBridge("html", "default")
        language = LANGUAGES.get(path.suffix, "none")
        text = path.read_text(encoding="utf-8", errors="replace")
        return bridge.highlight_block(text, language, force=True, linenos="inline", lineanchors="line")


def builder_inited(app):
    app.sources = Sources(Path(app.srcdir).resolve())


def find_links_to_sources(app, doctree):
    """Before Sphinx makes downloads of the files that a page links to."""
    docname = app.env.current_document.docname
    for node in list(doctree.findall(addnodes.download_reference)) + list(doctree.findall(addnodes.pending_xref)):
        target = node.get("reftarget", "").partition("#")[0]
        is_download = isinstance(node, addnodes.download_reference)
        if not is_download and node.get("reftype") != "myst":
            continue
        name = app.sources.find("page", target.lstrip("/")) if is_download else None
        name = name or app.sources.find(docname, target)
        if name is None or name.rpartition(".")[0] in app.env.found_docs:
            continue
        app.sources.wanted.add(name)
        link = nodes.reference("", "", *node.children, refuri=f"source:{name}", internal=True)
        node.replace_self(link)


def mark_messages(app, doctree):
    """On a narrow screen, a table of messages is a list: docs/static/site.css."""
    for table in doctree.findall(nodes.table):
        first = next(table.findall(nodes.entry))
        if first.astext() == "message":
            table["classes"].append("messages")


def mark_clauses(app, doctree):
    """Gives each row of the tables of docs/protocol.md the id of its clause."""
    if app.env.current_document.docname != "docs/protocol":
        return
    for row in doctree.findall(nodes.row):
        for clause in re.findall(CLAUSE, row[0].astext()):
            row["ids"].append(clause.lower())
            app.clauses.add(clause)


def link(app, docname, text):
    """The relative address that a clause or a public name leads to, or None."""
    builder, wanted = app.builder, re.match(NAME, text)
    if re.fullmatch(CLAUSE, text):
        if text in app.clauses:
            return builder.get_relative_uri(docname, "docs/protocol") + f"#{text.lower()}"
        return None
    found = wanted and app.public.get(wanted[0])
    if found is None:
        return None
    return builder.get_relative_uri(docname, found[0]) + f"#{found[1]}"


def link_file(app, docname, text):
    """The relative address of the page of a file, or a folder of examples, that is named in `code`, or None."""
    name = app.sources.find("page", text) if re.fullmatch(r"[a-z][\w.-]*/[\w./-]+", text) else None
    if name is None or name.startswith("build/") or ((app.sources.root / name).is_dir() and "examples" not in name):
        return None
    app.sources.wanted.add(name)
    return relative_uri(app.builder.get_target_uri(docname), f"source/{name}.html")


def reference(address, *children):
    return nodes.reference("", "", *children, refuri=address, internal=True)


def resolve(app, doctree, docname):
    """Sets the addresses of links to sources, and adds the links to clauses and to the reference."""
    for node in doctree.findall(nodes.reference):
        if node.get("refuri", "").startswith("source:"):
            name = node["refuri"].removeprefix("source:")
            name, _, line = name.partition("#")
            page = relative_uri(app.builder.get_target_uri(docname), f"source/{name}.html")
            node["refuri"] = page + (f"#{line}" if line else "")
    if docname == "CHANGELOG":  # old entries have names that have gone, and clauses with other numbers
        return
    skipped = (nodes.reference, nodes.title, nodes.literal_block, addnodes.desc_signature, nodes.comment, nodes.raw)
    for node in list(doctree.findall(nodes.literal)):
        if not has_parent(node, skipped):
            address = link(app, docname, node.astext()) or link_file(app, docname, node.astext())
            if address:
                parent, place = node.parent, node.parent.index(node)
                parent.remove(node)
                parent.insert(place, reference(address, node))
    if docname == "docs/protocol":  # it has the rows that clauses lead to
        return
    for node in list(doctree.findall(nodes.Text)):
        if not has_parent(node, (*skipped, nodes.literal)):
            link_words(app, docname, node)


def has_parent(node, kinds):
    node = node.parent
    while node is not None:
        if isinstance(node, kinds):
            return True
        node = node.parent
    return False


def link_words(app, docname, node):
    parts = re.split(rf"({CLAUSE}|{NAME})", node.astext())
    made = []
    for part in parts:
        address = link(app, docname, part) if re.fullmatch(rf"{CLAUSE}|{NAME}", part) else None
        if address:
            made.append(reference(address, nodes.inline("", part, classes=["clause"])))
        elif part:
            made.append(nodes.Text(part))
    if any(not isinstance(part, nodes.Text) for part in made):
        node.parent.replace(node, made)


def source_pages(app):
    for page, title, body in app.sources.pages():
        yield page, {"title": title, "body": f"<h1>{html.escape(title)}</h1>{body}"}, "page.html"


def write_first_page(app, exception):
    """The address of the site itself leads to docs/index.html."""
    if exception is None and app.builder.format == "html":
        text = '<!DOCTYPE html><meta charset="utf-8"><title>dlpack_py</title>'
        text += '<meta http-equiv="refresh" content="0; url=docs/index.html"><a href="docs/index.html">dlpack_py</a>\n'
        Path(app.outdir, "index.html").write_text(text, encoding="utf-8")


def find_public_names(app, env):
    """Where the reference has a public name. Members of structs have a dot in their names."""
    for domain in ("cpp", "c"):
        for name, _, _, docname, anchor, _ in env.domains[domain].get_objects():
            if docname.startswith("docs/reference/"):
                app.public[name] = (docname, anchor)


def find_c_name(app, env, node, contents):
    """C++ declarations name types of C."""
    if node.get("refdomain") == "cpp" and node.get("reftarget") in app.public:
        return reference(link(app, node["refdoc"], node["reftarget"]), contents)
    return None


def setup(app):
    app.clauses, app.public = set(), {}
    app.connect("env-check-consistency", find_public_names)
    app.connect("builder-inited", builder_inited)
    app.connect("missing-reference", find_c_name)
    app.connect("source-read", add_table_of_contents)
    app.connect("source-read", keep_underscores)
    app.connect("doctree-read", leave_out_of_search)
    app.connect("doctree-read", find_links_to_sources, priority=100)
    app.connect("doctree-read", mark_clauses)
    app.connect("doctree-read", mark_messages)
    app.connect("doctree-resolved", resolve)
    app.connect("html-collect-pages", source_pages)
    app.connect("build-finished", write_first_page)
    return {"parallel_read_safe": False}
