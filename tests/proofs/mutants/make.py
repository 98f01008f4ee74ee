"""Puts all mutants of the headers into one copy of them: an environment variable chooses the mutant of a process.

A mutant is one change of an expression or a statement in a function of a header. `a < b` becomes

    (dlp_mutant(17) ? (a) <= (b) : (a) < (b))

so that one build serves for all mutants. dlp_mutant(17) notes that mutant 17 was reached, and returns 1 if mutant 17 is
chosen. Number and notes are in the file $DLPACK_PY_MUTANT, which each module and program maps at one address.
libclang finds the expressions. What a macro writes, constant expressions, and code that this platform leaves out are
not changed.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from clang.cindex import CursorKind, Index, TypeKind

SIZE = 1 << 14  # of the file: 4 bytes for the number of the chosen mutant, then a byte for each mutant: was it reached?
ADDRESS = 0x100000000000
PRELUDE = r"""
#ifndef DLP_MUTANT_H
#define DLP_MUTANT_H
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
__attribute__((constructor(101))) static void dlp_mutant_open(void)
{
    const char *name = getenv("DLPACK_PY_MUTANT");
    int fd = name == NULL ? -1 : open(name, O_RDWR);
    int flags = MAP_FIXED | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
    if (mmap((void *)%(address)s, %(size)d, PROT_READ | PROT_WRITE, flags, fd, 0) == MAP_FAILED)
        abort();
    if (fd >= 0)
        close(fd);
}
__attribute__((unused)) static int dlp_mutant(int number)
{
    ((volatile unsigned char *)%(address)s)[4 + number] = 1;
    return *(volatile int *)%(address)s == number;
}
#endif
"""
BOUNDARIES = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
ARITHMETIC = {"+": "-", "-": "+", "*": "+", "/": "*", "%": "/", "&": "|", "|": "&", "^": "|", "<<": ">>", ">>": "<<"}
ASSIGNMENTS = {"+=": "-=", "-=": "+=", "*=": "+=", "|=": "&=", "&=": "|=", "/=": "*="}
INTEGERS = [
    getattr(TypeKind, name)
    for name in "BOOL CHAR_U UCHAR USHORT UINT ULONG ULONGLONG CHAR_S SCHAR SHORT INT LONG LONGLONG ENUM".split()
]


@dataclass
class Mutant:
    number: int
    file: str
    function: str
    line: int
    old: str
    new: str


class Header:
    """One header: collects changes as text, innermost first, so that a change contains the changes inside it."""

    def __init__(self, path, mutants, before):
        self.path, self.text, self.mutants, self.before = path, path.read_bytes().decode(), mutants, before
        self.function = None

    def add(self, cursor, old, new):
        number, line = self.before + len(self.mutants) + 1, cursor.extent.start.line
        mutant = Mutant(number, self.path.name, self.function, line, " ".join(old.split()), " ".join(new.split()))
        self.mutants.append(mutant)
        return f"dlp_mutant({mutant.number})"

    def source(self, cursor):
        return self.text[cursor.extent.start.offset : cursor.extent.end.offset]

    def is_written(self, cursor):
        """Is the cursor text of this file, and not of a macro?"""
        start, end = cursor.extent.start, cursor.extent.end
        if start.file is None or Path(start.file.name).name != self.path.name or end.offset <= start.offset:
            return False
        return self.text[start.offset - 1] != "#"

    def inside(self, cursor, children, change=None):
        """The text of a cursor, with the texts that change, or self.change, gives for these children."""
        place, parts = cursor.extent.start.offset, []
        for child in children:
            start, end = child.extent.start.offset, child.extent.end.offset
            if start < place or end > cursor.extent.end.offset:
                raise Macro
            parts += [self.text[place:start], (change or self.change)(child)]
            place = end
        return "".join(parts) + self.text[place : cursor.extent.end.offset]

    def operator(self, left, right):
        between = self.text[left.extent.end.offset : right.extent.start.offset]
        return re.sub(r"/\*.*?\*/", "", between, flags=re.S).strip()

    def change(self, cursor):
        """The text that replaces a cursor."""
        if not self.is_written(cursor):
            return self.source(cursor)
        mark = len(self.mutants)
        try:
            return self.changed(cursor)
        except Macro:
            del self.mutants[mark:]
            return self.source(cursor)

    def changed(self, cursor):
        kind, children = cursor.kind, list(cursor.get_children())
        if kind in (CursorKind.CASE_STMT, CursorKind.DEFAULT_STMT):
            return self.inside(cursor, children[-1:])
        if kind == CursorKind.VAR_DECL:
            static = cursor.storage_class.name == "STATIC" or cursor.type.kind == TypeKind.CONSTANTARRAY
            return self.source(cursor) if static else self.inside(cursor, self.expressions(children))
        if kind == CursorKind.CXX_UNARY_EXPR:
            return self.source(cursor)  # sizeof
        if kind == CursorKind.COMPOUND_STMT:
            return self.inside(cursor, children, self.statement)
        if kind == CursorKind.IF_STMT:
            return self.inside(cursor, children, lambda c: (self.condition if c is children[0] else self.change)(c))
        if kind in (CursorKind.FOR_STMT, CursorKind.WHILE_STMT, CursorKind.DO_STMT):
            return self.inside(cursor, sorted(children, key=lambda child: child.extent.start.offset))
        if kind == CursorKind.RETURN_STMT:
            return self.returned(cursor, children)
        if kind == CursorKind.BINARY_OPERATOR and len(children) == 2:
            return self.binary(cursor, *children)
        if kind == CursorKind.COMPOUND_ASSIGNMENT_OPERATOR and len(children) == 2:
            return self.assignment(cursor, *children)
        if kind == CursorKind.CONDITIONAL_OPERATOR and len(children) == 3:
            return self.conditional(cursor, *children)
        if kind == CursorKind.INTEGER_LITERAL:
            return self.literal(cursor)
        if kind == CursorKind.CALL_EXPR:
            return self.inside(cursor, children[1:])
        return self.inside(cursor, self.expressions(children))

    @staticmethod
    def expressions(children):
        types = (CursorKind.TYPE_REF, CursorKind.STRUCT_DECL, CursorKind.UNION_DECL, CursorKind.ENUM_DECL)
        return [child for child in children if child.kind not in types]

    def statement(self, child):
        """A statement of a block: a call or an assignment may be left out."""
        text = self.change(child)
        kinds = (CursorKind.CALL_EXPR, CursorKind.BINARY_OPERATOR, CursorKind.COMPOUND_ASSIGNMENT_OPERATOR,
                 CursorKind.UNARY_OPERATOR, CursorKind.CSTYLE_CAST_EXPR)  # fmt: skip
        if not self.is_written(child) or child.kind not in kinds or self.text[child.extent.end.offset] != ";":
            return text
        if self.source(child).startswith("(void)") and "(" not in self.source(child)[6:]:
            return text  # an unused parameter
        return f"if (!{self.add(child, self.source(child), '')})\n{text}"

    def condition(self, cursor):
        """A condition, which may be 0 or 1 as well."""
        if not self.is_written(cursor):
            raise Macro
        text = self.change(cursor)
        never, always = self.add(cursor, self.source(cursor), "0"), self.add(cursor, self.source(cursor), "1")
        return f"({never} ? 0 : {always} ? 1 : ({text}) != 0)"

    def conditional(self, cursor, condition, first, second):
        if condition.extent.end.offset > first.extent.start.offset:
            raise Macro
        chosen = self.condition(condition)
        return f"({chosen} ? {self.change(first)} : {self.change(second)})"

    def returned(self, cursor, children):
        if not children or not self.is_written(children[0]) or not self.source(cursor).startswith("return"):
            return self.source(cursor)
        text, source = self.change(children[0]), self.source(children[0])
        other = {"0": "-1", "-1": "0", "1": "0"}.get(source)
        if other is None or children[0].type.get_canonical().kind not in INTEGERS:
            return f"return {text}"
        return f"return {self.add(children[0], 'return ' + source, 'return ' + other)} ? {other} : {text}"

    def binary(self, cursor, left, right):
        if not self.is_written(left) or not self.is_written(right):
            raise Macro
        operator = self.operator(left, right)
        if operator in ("=", ","):
            return self.inside(cursor, [right] if operator == "=" else [left, right])
        first, second = self.change(left), self.change(right)
        plain = f"({first}) {operator} ({second})"
        source = self.source(cursor)
        if operator in ("&&", "||"):
            one, two = self.add(cursor, source, self.source(left)), self.add(cursor, source, self.source(right))
            return f"({one} ? ({first}) != 0 : {two} ? ({second}) != 0 : {plain})"
        integers = all(c.type.get_canonical().kind in INTEGERS for c in (left, right))
        other = BOUNDARIES.get(operator) or (ARITHMETIC.get(operator) if integers else None)
        if other is None:
            return plain if operator in {*BOUNDARIES, *ARITHMETIC} else self.source(cursor)
        new = f"{self.source(left)} {other} {self.source(right)}"
        return f"({self.add(cursor, source, new)} ? ({first}) {other} ({second}) : {plain})"

    def assignment(self, cursor, left, right):
        if not self.is_written(left) or not self.is_written(right):
            raise Macro
        operator = self.operator(left, right)
        other, value = ASSIGNMENTS.get(operator), self.change(right)
        target = self.source(left)
        if other is None or left.type.get_canonical().kind not in INTEGERS:
            return f"{target} {operator} {value}"
        number = self.add(cursor, self.source(cursor), f"{target} {other} {self.source(right)}")
        return f"({number} ? ({target} {other} {value}) : ({target} {operator} {value}))"

    def literal(self, cursor):
        source = self.source(cursor)
        if not source[0].isdigit() or source in ("0", "1", "0u", "1u"):
            return source
        return f"({self.add(cursor, source, source + ' + 1')} ? {source} + 1 : {source})"


class Macro(Exception):
    """A place where a macro writes a part of an expression."""


def instrument(folder, headers, umbrella, flags, before):
    """Writes the headers of a folder with all mutants in them; numbered from before + 1. Returns the mutants."""
    main = folder / "mutants_umbrella.c"
    main.write_text(umbrella)
    unit = Index.create().parse(str(main), args=flags)
    errors = [str(d) for d in unit.diagnostics if d.severity >= 3]
    if errors:
        raise SystemExit("\n".join(errors[:20]))
    mutants, texts = [], {}
    opened = {name: Header(folder / name, mutants, before) for name in headers}
    replaced = {name: [] for name in headers}
    for cursor in unit.cursor.get_children():
        name = cursor.location.file and Path(cursor.location.file.name).name
        if name not in opened or cursor.kind != CursorKind.FUNCTION_DECL or not cursor.is_definition():
            continue
        header, body = opened[name], list(cursor.get_children())[-1]
        header.function = cursor.spelling
        if body.kind == CursorKind.COMPOUND_STMT and header.is_written(body) and header.source(body)[0] == "{":
            replaced[name].append((body.extent.start.offset, body.extent.end.offset, header.change(body)))
    for name, header in opened.items():
        place, parts = 0, []
        for start, end, new in replaced[name]:
            parts += [header.text[place:start], new]
            place = end
        texts[name] = PRELUDE % {"size": SIZE, "address": hex(ADDRESS)} + "".join(parts) + header.text[place:]
    for name, text in texts.items():
        (folder / name).write_text(text)
    main.unlink()
    assert before + len(mutants) < SIZE - 4, "the shared file is too small"
    return mutants
