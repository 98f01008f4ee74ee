"""The pages docs/retrofit_*.md show the difference of two files of examples/retrofit, in parts.

    python tests/build/retrofit_pages.py        writes the parts and the counts into the pages

A part is a hunk of the difference. A page has each one once, in any order:

    <!-- part 3 -->
    ```diff
    ```
"""

import difflib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "retrofit"
NAMES = ["bits", "picture"]
README = ROOT / "README.md"
PART = re.compile(r"(<!-- part (\d+) -->\n```diff\n)(.*?)(^```$)", re.DOTALL | re.MULTILINE)
COUNTS = re.compile(r"\b\d+ lines are added, and \d+ (?:lines are|line is) removed\b")


def page(name):
    return ROOT / "docs" / f"retrofit_{name}.md"


def parts(name):
    """The hunks, with a line before and after each, and without the numbers of lines."""
    before, after = ((FOLDER / file).read_text().splitlines() for file in (f"{name}_before.c", f"{name}.c"))
    lines = [line.rstrip() for line in difflib.unified_diff(before, after, n=1, lineterm="")]
    return [hunk.strip("\n") for hunk in re.split(r"^@@.*@@$", "\n".join(lines), flags=re.MULTILINE)[1:]]


def counts(name):
    """The lines that are added and removed; empty lines are not counted."""
    lines = "\n".join(parts(name)).splitlines()
    return tuple(sum(line[:1] == sign and line[1:].strip() > "" for line in lines) for sign in "+-")


def readme_row():
    """The line of the README about both, which has the counts of added lines."""
    return re.search(r"^\| `examples/retrofit` \|.*$", README.read_text(), re.MULTILINE)[0]


def rendered(name):
    """The text of a page, with its parts and counts as they are now."""
    hunks = parts(name)
    added, removed = counts(name)
    text = PART.sub(lambda found: f"{found[1]}{hunks[int(found[2]) - 1]}\n{found[4]}", page(name).read_text())
    verb = "line is" if removed == 1 else "lines are"
    return COUNTS.sub(f"{added} lines are added, and {removed} {verb} removed", text)


if __name__ == "__main__":
    for name in NAMES:
        page(name).write_text(rendered(name))
        print(f"{page(name).relative_to(ROOT)}: {counts(name)[0]} lines are added")
