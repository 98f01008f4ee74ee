"""The files of --dlpack-xfails and --dlpack-skips: which tests a line names."""

import re
from pathlib import Path
from typing import NamedTuple


class Line(NamedTuple):
    file: str
    number: int
    text: str  # without the comment
    reason: str  # the comment
    is_exact: bool  # it names one test

    def __str__(self):
        return f"line {self.number} of {self.file}, {self.text}"


def all_ids():
    """The ids of all tests, as ids.txt has them."""
    return Path(__file__).with_name("ids.txt").read_text(encoding="utf-8").splitlines()


def matching(text, ids):
    """The ids that a line names: one test, all tests of a name, what begins with some words, or a pattern with *."""
    text = text.rpartition("::")[2]
    if text.startswith("test_"):
        text = text[5:]
    if "*" in text:
        pattern = re.compile(".*".join(map(re.escape, text.split("*"))))
        return [id for id in ids if pattern.fullmatch(id)]
    named = [id for id in ids if text in (id, id.partition("[")[0])]
    return named or [id for id in ids if id.startswith((text + "_", text + "["))]


def read(path, ids):
    """{id: Line}, and the lines that name no test."""
    found, unknown = {}, []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        text, *reason = re.split(r"(?:^|\s+)#\s*", line.strip(), maxsplit=1)
        if not text:
            continue
        named = matching(text, ids)
        entry = Line(str(path), number, text, "".join(reason), named == [text])
        if not named:
            unknown.append(entry)
        for id in named:
            if id not in found or entry.is_exact:
                found[id] = entry
    return found, unknown
