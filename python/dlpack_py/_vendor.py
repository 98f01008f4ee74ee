"""Headers in another project: copies them, compares them with this package, updates them.

A stamp file beside them says of which version and commit they are, with the sha256 of each file: a file whose sha256
differs was changed. In a folder without a stamp, the first lines of a header say its version; a change by hand cannot
be told from an old version there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parent
STAMP = "dlpack_py.json"
DLPACK_H = "dlpack/dlpack.h"


class Refused(Exception):
    """A request that is not carried out; the text says why, in one line."""


class Stamp(NamedTuple):
    version: str
    files: dict[str, str]  # the sha256 of each


class Found(NamedTuple):
    """A file of a project."""

    name: str  # below the folder
    state: str  # current, old, newer, changed, missing or dropped
    version: str  # of the file; "" if unknown

    def text(self) -> str:
        here = source()["version"]
        if self.state == "old" and self.version == here:
            return f"differs: of another commit of {here}"
        return {
            "current": "as in this package",
            "old": f"old: {self.version}, this package has {here}",
            "newer": f"newer: {self.version}, this package has {here}",
            "changed": f"changed by hand, was {self.version or 'of an unknown version'}",
            "missing": "missing",
            "dropped": f"dropped: {here} has no such file, delete it",
        }[self.state]


def source() -> dict[str, str]:
    """The version, the commit and the address of this package."""
    return dict(json.loads((PACKAGE / "source.json").read_text("utf-8")))


def path_of(name: str) -> Path:
    """The file of this package for a file of a project. dlpack.h may lie beside the headers, or in dlpack/."""
    special = {"dlpack.h": DLPACK_H, "dlpack_py.LICENSE": "../LICENSE"}
    return PACKAGE / "include" / special.get(name, name)


def headers() -> list[str]:
    """All headers and declarations of this package."""
    return sorted(path.name for path in (PACKAGE / "include").iterdir() if path.is_file())


def digest(content: bytes) -> str:
    """The sha256, with line ends of Unix: git may change the line ends of a project on Windows."""
    return hashlib.sha256(content.replace(b"\r\n", b"\n")).hexdigest()


def with_included(names: set[str]) -> set[str]:
    """Those headers, and those that they include."""
    found: set[str] = set()
    waiting = sorted(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            text = path_of(name).read_text("utf-8")
            waiting += re.findall(r'^[ #]*include "(dlpack_\w+\.\w+)"', text, re.MULTILINE)
    return found


def chosen(names: list[str], present: set[str]) -> set[str]:
    """The files that the names on the command line stand for, with what they include."""
    known = headers()
    files = {name for name in present if name in known}
    for name in names:
        matching = [name, f"dlpack_{name}.h", f"dlpack_py.{name}"]
        if name != "pxd":
            found = [file for file in matching if file in known]
            if not found:
                words = ", ".join(re.sub(r"dlpack_(\w+)\.h$", r"\1", file) for file in known if file.endswith(".h"))
                raise Refused(f"there is no header {name!r}: there are {words}, hpp and pxd")
            files.add(found[0])
    files = with_included(files or {"dlpack_py.h"})
    if "pxd" in names or any(name.endswith(".pxd") for name in present):
        declared = {re.sub(r"\.h$", ".pxd", file) for file in files}
        files = with_included(files | {file for file in declared if file in known})
    return files


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def version_in(content: bytes) -> str:
    """The version that a header names: in its first lines, in a macro, or in two, as dlpack.h; "" if it names none."""
    text = content.decode("utf-8", "replace")
    if named := re.search(r"\bVersion (\d+\.\d+\.\d+)\b", "\n".join(text.splitlines()[:12])):
        return named[1]
    if named := re.search(r'define DLPACK_PY_VERSION_STRING "(\d+\.\d+\.\d+)"', text):
        return named[1]
    macros = re.findall(r"define DLPACK_M(?:AJOR|INOR)_VERSION (\d+)", text)
    return ".".join(macros) if len(macros) == 2 else ""


def read_stamp(folder: Path) -> Stamp | None:
    path = folder / STAMP
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text("utf-8"))
        stamp = Stamp(content["version"], dict(content["files"]))
        number(stamp.version)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refused(f"{path} is no stamp of dlpack_py: without it --update goes by the headers") from None
    return stamp


def look(folder: Path) -> list[Found]:
    """The files of dlpack_py in a folder, and those that they need."""
    if not folder.is_dir():
        raise Refused(f"{folder} is no folder")
    stamp = read_stamp(folder)
    stamped = stamp.files if stamp else {}
    names = [*headers(), "dlpack.h", DLPACK_H]
    present = {name for name in names if (folder / name).exists()}
    if not stamped and not present & set(headers()):
        raise Refused(f"{folder} has no headers of dlpack_py")
    stamped = {name: sha for name, sha in stamped.items() if is_known(name) or is_left(folder, name)}
    needed = with_licences(with_included({name for name in present | set(stamped) if name in headers()}) | present)
    named = [version_in((folder / name).read_bytes()) for name in ("dlpack_py.h", "dlpack_tensor.h") if name in present]
    version = stamp.version if stamp else next(filter(None, named), "")
    return [look_at(folder, name, stamped.get(name), version) for name in sorted(present | set(stamped) | needed)]


def is_known(name: str) -> bool:
    """Has this package such a file?"""
    return name in headers() or name in ("dlpack.h", DLPACK_H, "dlpack/LICENSE", "dlpack_py.LICENSE")


def is_left(folder: Path, name: str) -> bool:
    """Does the folder still have a file that this package has no more? The stamp may name any file."""
    return re.fullmatch(r"dlpack\w*\.\w+", name) is not None and (folder / name).exists()


def look_at(folder: Path, name: str, stamped: str | None, version: str) -> Found:
    path = folder / name
    if not is_known(name):
        return Found(name, "dropped", version)
    if not path.exists():
        return Found(name, "missing", "")
    content, here = path.read_bytes(), path_of(name).read_bytes()
    of_here = source()["version"]
    if digest(content) == digest(here):
        return Found(name, "current", of_here)
    if stamped is None and name in ("dlpack.h", DLPACK_H):
        version, of_here = version_in(content), version_in(here)
    elif stamped is None:
        version = version_in(content) or version
    if stamped is not None and digest(content) != stamped:
        return Found(name, "changed", version)
    if not version or (stamped is None and version == of_here):
        return Found(name, "changed", version)
    return Found(name, "newer" if number(version) > number(of_here) else "old", version)


def check(folder: Path) -> int:
    """Prints the state of each file. Returns 1 if one is changed, missing or dropped, 3 if of another version."""
    found = look(folder)
    for file in found:
        print(f"{folder / file.name}: {file.text()}")
    states = {file.state for file in found} - {"current"}
    return 0 if not states else 3 if states <= {"old", "newer"} else 1


def copy(folder: Path, names: list[str], dlpack_h: bool, force: bool) -> None:
    if (folder / STAMP).exists() and not force:
        raise Refused(f"{folder / STAMP} is there already: --update updates, and adds headers")
    files = with_licences(chosen(names, set()) | ({DLPACK_H} if dlpack_h else set()))
    for name in sorted(files):
        path = folder / name
        if path.exists() and digest(path.read_bytes()) != digest(path_of(name).read_bytes()) and not force:
            raise Refused(f"{path} is there already, and differs: --force overwrites it, --update only an old version")
    write(folder, files)


def update(folder: Path, names: list[str], dlpack_h: bool, force: bool) -> None:
    found = look(folder)
    refused = [f"{file.name} ({file.text()})" for file in found if file.state in ("changed", "newer")]
    if refused and not force:
        raise Refused(f"nothing was updated, --force overwrites: {', '.join(refused)}")
    present = {file.name for file in found if file.state != "dropped"}
    kept = {name for name in present if name in ("dlpack.h", DLPACK_H) and dlpack_h}
    write(folder, with_licences(chosen(names, present) | kept), {file.name: file for file in found})
    for file in found:
        if file.state == "dropped":
            print(f"{folder / file.name}: {file.text()}")


def with_licences(files: set[str]) -> set[str]:
    return files | {"dlpack_py.LICENSE"} | ({"dlpack/LICENSE"} if files & {"dlpack.h", DLPACK_H} else set())


def write(folder: Path, files: set[str], before: dict[str, Found] | None = None) -> None:
    """Writes the files and the stamp, and prints what became of each file."""
    digests = {name: digest(path_of(name).read_bytes()) for name in sorted(files)}
    dropped = [name for name, file in (before or {}).items() if file.state == "dropped"]
    digests.update({name: digest((folder / name).read_bytes()) for name in dropped})
    for name in sorted(files):
        old = (before or {}).get(name)
        what = "overwritten" if old is None and (folder / name).exists() else "added"
        if old and old.state == "current":
            what = old.text()
        elif old and old.state != "missing":
            what = f"updated, was {old.text().split(', this package')[0].replace('old: ', '').replace('newer: ', '')}"
        replace(folder / name, path_of(name).read_bytes())
        print(f"{folder / name}: {what}")
    replace(folder / STAMP, (json.dumps({**source(), "files": digests}, indent=2) + "\n").encode())
    print(f"{folder / STAMP}: version, commit and sha256 of these files; commit it with them")


def replace(path: Path, content: bytes) -> None:
    """Writes a file, which is never there in part. What is there already is not written."""
    if path.exists() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(content)
    os.replace(temporary, path)
