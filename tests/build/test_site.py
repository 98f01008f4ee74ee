"""The site of the documentation. `make docs` builds it, and runs the tests of the built pages: DLPACK_PY_SITE."""

import functools
import html
import os
import re
import sys
import urllib.parse
import zlib
from pathlib import Path
from xml.etree import ElementTree

import machine
import public_names
import pytest

DOCS = machine.ROOT / "docs"
sys.path.append(str(DOCS / "extension"))
import headers  # noqa: E402
import indexes  # noqa: E402

SITE = Path(os.environ.get("DLPACK_PY_SITE", "build/docs")).resolve()
needs_site = pytest.mark.skipif("DLPACK_PY_SITE" not in os.environ, reason="the site: make docs builds and tests it")
HEADERS = [f"dlpack_{name}" for name in public_names.HEADERS]


# ---- The sources of the site --------------------------------------------


@pytest.mark.parametrize("header", HEADERS)
def test_the_reference_reads_each_public_name_of_a_header(header):
    found = headers.read(header)
    assert {item.name for item in found} == set(public_names.names(header.removeprefix("dlpack_")))
    lines = (machine.ROOT / header).read_text().splitlines()
    for item in found:
        assert re.search(rf"\b{item.name}\b", lines[item.line - 1]), item.name
        if item.kind == "struct":
            declared = item.contract[1:]
            assert len(item.fields) >= len(declared), item.name
    assert f".. header:: {header}\n" in "".join(path.read_text() for path in (DOCS / "reference").glob("*.rst"))


@pytest.mark.parametrize("header", HEADERS)
def test_each_function_has_a_comment_in_the_reference(header):
    assert [item.name for item in headers.read(header) if item.kind == "function" and not item.comment] == []


def test_each_page_is_listed_in_a_table_of_contents():
    listed = {DOCS / "index.md"}
    for index in indexes.PAGES:
        page = (machine.ROOT / index).with_suffix(".md")
        for _, target, suffix in indexes.LISTED.findall(page.read_text()):
            listed.add((page.parent / f"{target}.{suffix}").resolve())
    pages = {path for suffix in ("md", "rst") for path in DOCS.rglob(f"*.{suffix}")}
    assert pages - listed == set()


@pytest.mark.parametrize("drawing", sorted((DOCS / "diagrams").glob("*.svg")), ids=lambda path: path.stem)
def test_a_drawing_has_a_title_the_colours_of_the_page_and_no_other_file(drawing):
    text = drawing.read_text()
    assert ElementTree.fromstring(text).get("aria-labelledby") == f"{drawing.stem}-title"
    assert f'<title id="{drawing.stem}-title">' in text
    assert "prefers-color-scheme: dark" in text and 'fill="currentColor"' in text
    assert re.findall(r"https?:[^\"]*|href|@import|url\((?!#)", text) == ["http://www.w3.org/2000/svg"]
    assert f"](diagrams/{drawing.name})" in "".join(path.read_text() for path in DOCS.glob("*.md"))


# ---- The built pages ----------------------------------------------------


def pages():
    return sorted(SITE.rglob("*.html"))


@functools.cache
def names_in(page):
    """What a link to a part of a page may name."""
    return {html.unescape(name) for name in re.findall(r'\b(?:id|name)="([^"]*)"', page.read_text())}


@needs_site
def test_no_page_loads_anything_from_another_host():
    loads = r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\b(?:src|srcset)=\"([^\"]*)\"|<link\b([^>]*)>"
    loads += r"|<(?:object|image|use)\b[^>]*?\b(?:data|href|xlink:href)=\"([^\"]*)\""
    for page in pages():
        for source, link, data in re.findall(loads, page.read_text()):
            address = source or data or re.search(r'href="([^"]*)"', link)[1]
            assert not re.match(r"(?:\w+:)?//", address), f"{page}: {address}"
    for style in SITE.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", style.read_text()), style


@needs_site
def test_each_link_within_the_site_leads_somewhere():
    wrong = []
    for page in pages():
        for address in re.findall(r'<a\b[^>]*?\bhref="([^"]*)"|<img\b[^>]*?\bsrc="([^"]*)"', page.read_text()):
            address = html.unescape("".join(address))
            if re.match(r"[a-z]+:", address):
                continue
            path, _, part = address.partition("#")
            target = (page.parent / urllib.parse.unquote(path)).resolve() if path else page
            if not target.is_file() or (part and urllib.parse.unquote(part) not in names_in(target)):
                wrong.append(f"{page.relative_to(SITE)}: {address}")
    assert wrong == []


@needs_site
def test_each_public_name_is_in_the_inventory_of_the_site():
    """The inventory is what other sites use to link here."""
    *_, body = (SITE / "objects.inv").read_bytes().split(b"\n", 4)
    found = set(re.findall(r"^(\S+) c(?:pp)?:\w+ ", zlib.decompress(body).decode(), re.MULTILINE))
    for header in public_names.HEADERS:
        names = public_names.names(header)
        assert set(names) - found == set(), header
        for name, contract in names.items():
            if contract[0] == f"struct {name}":
                fields = {re.search(r"\(\*(\w+)\)|(\w+)(?:\[.*\])?$", field) for field in contract[1:]}
                assert {f"{name}.{field[1] or field[2]}" for field in fields} - found == set()


@needs_site
def test_no_name_of_a_method_is_in_bold_without_its_underscores():
    for page in pages():
        assert not re.search(r"<strong>(?:c_)?(?:dlpack|array|cuda)\w*</strong>", page.read_text()), page


@needs_site
def test_each_clause_that_a_page_links_to_has_a_row():
    protocol = SITE / "docs" / "protocol.html"
    rows = set(re.findall(r'<tr\b[^>]*\bid="([a-z]\d+)"', protocol.read_text()))
    assert {"d1", "p9", "k4", "c9", "x9", "s1", "g1"} <= rows and len(rows) > 50


@needs_site
def test_the_first_page_leads_to_the_sections():
    text = (SITE / "docs" / "index.html").read_text()
    menu = re.search(r'<div class="sidebar-tree">(.*?)</aside>', text, re.DOTALL)[1]
    found = re.findall(r'<li class="toctree-l1[^"]*"><a[^>]*>(.*?)</a>', menu)
    assert found == SECTIONS


SECTIONS = [
    "Start",
    "How DLPack works",
    "Guides",
    "Reference",
    "What works with whom",
    "Performance",
    "Platforms",
    "Stability",
    "Errors",
    "The project",
]
