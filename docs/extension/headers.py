"""Reads the public names of a header with their comments, and writes them as reStructuredText for the C domain.

The text of the reference is that of the headers: there is no second one. Needs no Sphinx.
"""

import re
import textwrap
from pathlib import Path

import public_names

ROOT = Path(__file__).resolve().parents[2]
BANNER = re.compile(r"^/\* ---- (?:\d+ )?(.*?) -+ \*/$")
CLAUSE = re.compile(r"\b[DPKCXSG][1-9]\d?\b")
NOT_SHOWN = re.compile(r"^(?:Version |Copyright |SPDX-)")


class Item:
    """A public name of a header: kind is function, macro, struct, type or class; line is that of its declaration."""

    def __init__(self, name, kind, line, contract):
        self.name, self.kind, self.line, self.contract = name, kind, line, contract
        self.first = line  # the first line of a group of macros, for the comment above
        self.comment, self.fields, self.section = None, [], ""


def find_line(lines, name, kind):
    """The number, from 1, of the first line that declares a name."""
    pattern = {
        "macro": rf"^ *# *define {name}\b",
        "struct": rf"^(?:typedef )?struct {name} \{{",
        "class": rf"^class {name} \{{",
        "type": rf"^typedef .*\(\*{name}\)",
        "function": rf"^{name}\(",
    }[kind]
    return next(number for number, line in enumerate(lines, 1) if re.search(pattern, line))


def kind_of(contract):
    first = contract[0]
    for kind, beginning in (("macro", "#define"), ("struct", "struct "), ("class", "class "), ("type", "typedef ")):
        if first.startswith(beginning) and not (kind == "struct" and "(" in first):
            return kind
    return "function"


def comment_before(lines, number):
    """(text, number of its last line) of the comment that ends right above a line, or None."""
    end = number - 1
    if end < 1 or not lines[end - 1].rstrip().endswith("*/") or BANNER.match(lines[end - 1]):
        return None
    begin = end
    while begin > 1 and "/*" not in lines[begin - 1]:
        begin -= 1
    if not lines[begin - 1].startswith("/*"):  # a comment behind code
        return None
    return clean("\n".join(lines[begin - 1 : end])), end


def clean(comment):
    """The text of a comment without its marks."""
    text = re.sub(r"^/\* ?|\s*\*/$", "", comment.strip())
    return re.sub(r"^[ \t]*\*(?: |$)", "", text, flags=re.MULTILINE)


def read(header):
    """The items of a header, in the order of their lines."""
    lines = (ROOT / header).read_text(encoding="utf-8").splitlines()
    items = []
    for name, contract in public_names.names(header.removeprefix("dlpack_")).items():
        kind = kind_of(contract)
        items.append(Item(name, kind, find_line(lines, name, kind), contract))
    items.sort(key=lambda item: item.line)
    for item in items:
        sections = [found[1] for line in lines[: item.line] if (found := BANNER.match(line))]
        item.section = sections[-1] if sections else ""
        item.first = first_line(lines, item)
        found = comment_before(lines, item.first)
        item.comment = without_name(found[0], item.name) if found else mentioned(lines, item)
        if item.kind == "macro":
            item.comment = own_term(item.comment, item.name) or item.comment
        if item.kind == "struct":
            item.fields = fields(lines, item.line)
    return items


def without_name(comment, name):
    """The comment without the name that it may begin with, which stands above it."""
    text = comment.removeprefix(f"{name}: ")
    return text[:1].upper() + text[1:] if text != comment else comment


def first_line(lines, item):
    """The line below the comment: that of the result of a function, or of the first of a group of macros."""
    number = item.line
    if item.kind == "function":
        number -= 2 if lines[number - 2].startswith("DLP_DEPRECATED") else 1
        if lines[number - 2].startswith("#else"):  # the same function with other types
            while not lines[number - 2].startswith("#if"):
                number -= 1
        return number - 1 if lines[number - 2].startswith("#if") else number
    if item.kind == "macro":
        while re.match(r"^ *# *(?:define|ifndef|ifdef|if|else|elif|endif|pragma)\b|^    .*[;\\]$", lines[number - 2]):
            number -= 1
    return number


def mentioned(lines, item):
    """The last comment above an item that names it, or "": several names may share a comment."""
    text = "\n".join(lines[: item.line - 1])
    comments = [clean(found) for found in re.findall(r"^ *(/\*(?:(?!\*/).)*\*/)$", text, re.DOTALL | re.MULTILINE)]
    for comment in reversed(comments[-12:]):
        if re.search(rf"\b{item.name}\b", comment) and not comment.startswith("Names"):
            return own_term(comment, item.name) or comment
    return ""


def own_term(comment, name):
    """What a list of terms in a comment says of a name, or None."""
    call = r"(?:\(\w*\))?"
    term = rf"^(?:\w+{call}, )?{name}{call}(?:, \w+{call})?(?:\n)? {{2,}}(.*(?:\n {{4,}}.*)*)"
    found = re.search(term, comment, re.MULTILINE)
    return re.sub(r"\n +", "\n", found[1]) if found else None


def fields(lines, number):
    """(declaration, comment) of each field of the struct that begins at a line."""
    found, text = [], []
    for line in lines[number:]:
        if line.startswith("}"):
            break
        text.append(line)
    pattern = r"(?:^ *(/\*(?:(?!\*/).)*\*/)\n)?^ +([^;/]+);(?:[ \t]*(/\*(?:(?!\*/).)*\*/))?"
    for above, declaration, behind in re.findall(pattern, "\n".join(text), re.DOTALL | re.MULTILINE):
        comment = " ".join(clean(part).replace("\n", " ").strip() for part in (above, behind) if part)
        for one in split_declaration(re.sub(r"\s+", " ", declaration)):
            found.append((one, re.sub(r"\s+", " ", comment)))
    return found


def split_declaration(text):
    """int a, b: int a and int b."""
    if "(" in text or "," not in text:
        return [text]
    first, *others = text.split(", ")
    kind = re.match(r"^(.*?)\**\w+(?:\[.*)?$", first)[1]
    return [first, *(kind + other for other in others)]


def escape(text):
    return re.sub(r"([\\*`|])|_(?=\W|$)", lambda found: "\\" + found[0], text)


TERM = re.compile(r"^(\S(?:[^\n]*?\S)?) {2,}(\S.*)$")
CODE = re.compile(r"[;{}]$|^#|^static |,$|\);", re.MULTILINE)


def kind_of_line(line, following, last):
    """text, term (a name, then two spaces or a new line, and what it means), more (of a term), or code."""
    indent = len(line) - len(line.lstrip())
    if indent == 0:
        deep = len(following) - len(following.lstrip()) >= 8
        return "term" if TERM.match(line) or deep else "text"
    if last in ("term", "more") and indent > 3:
        return "more"
    if TERM.match(line.lstrip()) and re.match(r" +\w+ {2,}\w", line) and last != "code":
        return "term"
    return "text" if last == "text" and indent == 2 and line.lstrip()[0].islower() else "code"


def parts(comment):
    """The parts of a comment, (kind, lines): text, terms or code. A blank line ends a text."""
    found, last = [], None
    lines = comment.strip("\n").split("\n")
    for line, following in zip(lines, [*lines[1:], ""]):
        if not line.strip():
            if last == "code":
                found[-1][1].append("")
            else:
                last = None
            continue
        kind = kind_of_line(line, following, last)
        group = "terms" if kind in ("term", "more") else kind
        if not found or last is None or found[-1][0] != group:
            found.append((group, []))
        found[-1][1].append(line)
        last = kind
    for kind, lines in found:
        plain = textwrap.dedent("\n".join(lines)).strip("\n")
        if kind == "code" and not CODE.search(plain) and all(TERM.match(line) for line in plain.split("\n")):
            kind = "terms"
        yield kind, plain.split("\n")


def comment_to_rst(comment):
    """A comment as lines of reStructuredText: paragraphs, lists of terms, and code."""
    out = []
    for kind, lines in parts(comment):
        if kind == "text":
            out += [escape(line.strip()) for line in lines if not NOT_SHOWN.match(line)]
        elif kind == "code":
            out += [".. code-block:: c" if CODE.search("\n".join(lines)) else ".. code-block:: none", ""]
            out += ["    " + line for line in lines]
        for line in lines if kind == "terms" else []:
            found = TERM.match(line)
            if found:
                out += [f"``{found[1]}``", "    " + escape(found[2].strip())]
            else:
                out += ["    " + escape(line.strip()) if line.startswith(" ") else f"``{line}``"]
        out += [""]
    return out


def facts(item):
    """What the comment says in fixed words, as fields: exceptions, threads and clauses."""
    comment = " ".join((item.comment or "").split())
    returns = re.search(r"\b(?:Returns|return) .*", comment)
    errors = re.findall(r"\b[A-Z]\w+Error\b", returns[0]) if returns and " with " in returns[0] else []
    threads = ["needs no thread state"] if "Needs no thread state" in comment else []
    titles = (("Exceptions", errors), ("Threads", threads), ("Clauses", CLAUSE.findall(comment)))
    return [f":{title}: {', '.join(dict.fromkeys(words))}" for title, words in titles if words]


def declaration(item):
    """The directive of the C or C++ domain, and what it declares."""
    first = item.contract[0]
    if item.kind == "function":
        return "c:function", first
    if item.kind == "type":
        return "c:type", first.removeprefix("typedef ")
    if item.kind == "macro":
        return "c:macro", re.match(r"#define (\w+(?:\([^)]*\))?)", first)[1]
    return ("c:struct" if item.kind == "struct" else "cpp:class"), item.name


def groups(items):
    """Items that follow each other and share a comment: several constants, for example."""
    found = []
    for item in items:
        last = found[-1][0] if found else None
        if last and item.kind == last.kind == "macro" and (item.first, item.comment) == (last.first, last.comment):
            found[-1].append(item)
        else:
            found.append([item])
    return found


def defined_lines(lines, group):
    """The lines of the constants of a group, as they stand in the header."""
    found = [lines[item.line - 1].strip() for item in group if "(" not in declaration(item)[1]]
    return [re.sub(r"^# +", "#", line) for line in found]


def group_to_rst(header, group, lines):
    directive, _ = declaration(group[0])
    margin = " " * (len(directive) + 6)
    out = [f".. {directive}:: {declaration(group[0])[1]}", *(margin + declaration(item)[1] for item in group[1:]), ""]
    body = []
    constants = defined_lines(lines, group) if group[0].kind == "macro" else []
    if constants:
        body += [".. code-block:: c", "", *("    " + line for line in constants), ""]
    if group[0].comment:
        body += comment_to_rst(group[0].comment)
    if group[0].kind == "class":
        for member in group[0].contract[1:]:
            body += [f".. cpp:function:: {member}", ""]
    for text, comment in group[0].fields:
        body += [f".. c:member:: {text}", "", *(["    " + escape(comment), ""] if comment else [])]
    told = facts(group[0])
    body += [*told, f":Source: `{header}, line {group[0].line} <source:{header}#line-{group[0].line}>`__", ""]
    return out + ["    " + line if line else "" for line in body]


def opening(lines):
    """The comments at the beginning of a header, without licence and without what is for readers of the code."""
    text = "\n".join(lines)
    if text.startswith("//"):
        return ""
    found = re.match(r"(?:\s*/\*(?:(?!\*/).)*\*/)+", text, re.DOTALL)[0]
    comments = [clean(comment) for comment in re.findall(r"/\*(?:(?!\*/).)*\*/", found, re.DOTALL)]
    comments[0] = re.sub(r"^\S+ - ", "", comments[0])
    comments[0] = comments[0][0].upper() + comments[0][1:]
    text = "\n\n".join(comment.split("Stop here if you only")[0] for comment in comments)
    titles = "|".join(re.escape(found[1]) for line in lines if (found := BANNER.match(line)))
    if titles:
        text = re.sub(rf"^(?:\s*(?:\d+ )?(?:{titles})\s*)+$", "", text, flags=re.MULTILINE)
    return re.sub(r"(?:^| )Contents:?$", "", text, flags=re.MULTILINE)


def to_rst(header):
    """The whole page of a header, below its title."""
    lines = (ROOT / header).read_text(encoding="utf-8").splitlines()
    out = [f"`{header} <source:{header}>`__ as it is.", ""]
    out += comment_to_rst(opening(lines))
    section = ""
    for group in groups(read(header)):
        if group[0].section != section:
            section = group[0].section
            out += [section, "-" * len(section), ""]
        out += group_to_rst(header, group, lines)
    return "\n".join(out) + "\n"
