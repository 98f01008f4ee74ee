"""Lists the public names of the headers and their contracts as text: functions with signatures, macros, structs.

As a program: writes public_names.txt, unless the version in it is a released one, or a name has gone that the release
before had and did not deprecate. packaging/version.py begins a new version.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_suffix(".txt")
RELEASED = Path(__file__).with_name("public_names_released.txt")  # the list of the version before
HEADERS = ["tensor.h", "py.h", "py.hpp", "exchange.h", "buffer.h", "copy.h", "device.h", "cuda.h", "rocm.h"]
HEADERS += ["cuda_array_interface.h"]

# Names with these words are private: parts of the headers, guards, and macros that connect the device headers.
PRIVATE = re.compile(r"(?i)^dlp_|_H$|_HPP$|_LAYER$|^DLPACK_DEVICE_API")
# These words of a comment state the contract: a change of such a word is a change of the contract.
PROMISES = re.compile(
    r"\b[A-Z]\w+Error\b|\b(?:[Ss]tolen|[Bb]orrowed)\b|[Nn]eeds no thread state|[Mm]ust not throw|critical section"
)
COMMENT = r"(/\*(?:(?!\*/).)*\*/\n)?"  # an optional comment above a definition

DEPRECATED = re.compile(r'DLP_DEPRECATED\("(.*?)"\)\s+')


def deprecations(found):
    return [f"deprecated: {text}" for text in found]


def one_line(text):
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.sub(r"\* (?=\w)", "*", re.sub(r"\s+", " ", text.replace("\\\n", " "))).strip()


def is_public(name):
    return name.lower().startswith("dlpack_") and not PRIVATE.search(name)


def promises(comment):
    comment = re.sub(r"\s+(?:\* )?\s*", " ", comment)
    found = {word if word.endswith("Error") else word.lower() for word in PROMISES.findall(comment)}
    return [", ".join(sorted(found))] if found else []


def functions(text):
    pattern = rf"{COMMENT}^((?:static|DLP)[^\n;{{}}#]*)\n(dlpack_\w+)(\([^{{}};]*\))\n\{{"
    for comment, result, name, parameters in re.findall(pattern, text, re.DOTALL | re.MULTILINE):
        if is_public(name):
            deprecated = DEPRECATED.findall(result)
            result = re.sub(r"^(?:(?:static inline|DLP[A-Z_]+)\s+)+", "", DEPRECATED.sub("", result))
            yield name, [one_line(f"{result} {name}{parameters}"), *deprecations(deprecated), *promises(comment)]


def macros(text):
    """A deprecated constant is cast to a type that is deprecated."""
    types = {
        name: said for said, name in re.findall(rf"^{DEPRECATED.pattern}typedef [^;]*\b(\w+);", text, re.MULTILINE)
    }
    values = {}
    for name, parameters, value in re.findall(
        r"^ *# *define (DLPACK_\w+)(\([^)]*\))?((?:.*\\\n)*.*)$", text, re.MULTILINE
    ):
        if is_public(name):
            # The value of a constant is part of the contract; the body of a macro with parameters is not.
            value = "" if parameters else one_line(value)
            values.setdefault(name, []).append((name + parameters, value))
    for name, found in values.items():
        told = " or ".join(dict.fromkeys(value for _, value in found if value))
        deprecated = [said for cast, said in types.items() if f"({cast})" in told]
        yield name, [f"#define {found[0][0]}" + (f" {told}" if told else ""), *deprecations(deprecated)]


def types(text):
    for name, fields in re.findall(r"^(?:typedef )?struct (\w+) \{\n(.*?)^\}", text, re.DOTALL | re.MULTILINE):
        if is_public(name):
            yield name, [f"struct {name}", *(part.strip() for part in one_line(fields).split(";") if part.strip())]
    pattern = rf"{COMMENT}^(typedef [^;{{}}#]*\(\*(dlpack_\w+)\)[^;]*);"
    for comment, declaration, name in re.findall(pattern, text, re.DOTALL | re.MULTILINE):
        if is_public(name):
            yield name, [one_line(declaration), *promises(comment)]
    for name, body in re.findall(r"^class (\w+) \{\n  public:\n(.*?)^  private:", text, re.DOTALL | re.MULTILINE):
        members = re.findall(r"^    (?:DLP\w+ )?(\S[^\n;]*?)(?: : view\(\))?(?:\n    \{$|;$)", body, re.MULTILINE)
        yield name, [f"class {name}", *members]


def names(header):
    """{name: lines} of a header."""
    text = (ROOT / f"dlpack_{header}").read_text()
    found = {}
    for kind in (types, macros, functions):
        for name, lines in kind(text):
            # Without Python the device headers define a macro of dlpack_py.h.
            if header not in ("cuda.h", "rocm.h") or not name.startswith("DLPACK_PY_"):
                found[name] = lines
    return found


def version():
    return re.search(
        r'^#define DLPACK_PY_VERSION_STRING "(.*)"$', (ROOT / "dlpack_tensor.h").read_text(), re.MULTILINE
    )[1]


def is_released():
    return '#define DLPACK_PY_VERSION_DATE "not released"\n' not in (ROOT / "dlpack_tensor.h").read_text()


def write_text():
    lines = [
        "# The public names and promises of the headers. tests/build/public_names.py writes this file.",
        f"version {version()}",
    ]
    for header in HEADERS:
        lines += ["", f"dlpack_{header}"]
        for _, (first, *rest) in sorted(names(header).items()):
            lines += [f"  {first}", *(f"      {line}" for line in rest)]
    return "\n".join(lines) + "\n"


def without_version(text):
    return re.sub(r"^version .*$|^.*DLPACK_PY_(VERSION|URL).*$", "", text, flags=re.MULTILINE)


def gone(text, old):
    """The names of the old list that are not in the new one and were not deprecated."""

    def listed(text):
        for entry in re.split(r"\n  (?! )", text)[1:]:
            found = re.match(
                r"(?:#define |(?:struct|class) (?=\w+$)|typedef [^(]*\(\*|[^(]*?(?=\w+\())(\w+)", entry, re.MULTILINE
            )
            yield found[1], "\n      deprecated: " in entry

    now = dict(listed(text))
    return [name for name, deprecated in listed(old) if name not in now and not deprecated]


def main():
    text, old = write_text(), LIST.read_text() if LIST.exists() else ""
    if f"\nversion {version()}\n" in old and is_released() and without_version(text) != without_version(old):
        sys.exit(f"public names have changed since {version()} was released: packaging/version.py sets a new version")
    released = RELEASED.read_text() if RELEASED.exists() else ""
    if old and f"\nversion {version()}\n" not in old:
        released = old  # of the version before, which is released
    names = gone(text, released)
    if names:
        sys.exit(f"names have gone that no release has deprecated (docs/stability.md): {', '.join(names)}")
    if released:
        RELEASED.write_text(released)
    LIST.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
