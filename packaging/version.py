"""Prints or sets the version, the date and the URL of the headers.

    packaging/version.py                        checks that all files say the same, and prints it
    packaging/version.py 0.4.0                  begins version 0.4.0, which is not released
    packaging/version.py 0.4.0 2027-01-31       releases it on that day
    packaging/version.py --url https://...      moves the project

dlpack_tensor.h has the macros. The second line of each header repeats them for a reader of a copy.
"""

import argparse
import datetime
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_RELEASED = "not released"


def headers():
    return sorted(path for path in ROOT.glob("dlpack_*") if path.suffix in (".h", ".hpp"))


def read():
    """(version, date, URL) of the macros in dlpack_tensor.h."""
    text = (ROOT / "dlpack_tensor.h").read_text(encoding="utf-8")
    return tuple(
        re.search(rf'^#define DLPACK_PY_{name} "(.*)"$', text, re.MULTILINE)[1]
        for name in ("VERSION_STRING", "VERSION_DATE", "URL")
    )


def number(version):
    """The value of DLPACK_PY_VERSION: a byte for each part."""
    major, minor, patch = map(int, version.split("."))
    return f"0x{major:02x}{minor:02x}{patch:02x}"


def second_line(version, date, url):
    return f"Version {version}{', ' if date == NOT_RELEASED else ' of '}{date}. {url}"


def heading(version, date):
    """The heading of a version in CHANGELOG.md."""
    return f"## {version}" + ("" if date == NOT_RELEASED else f" - {date}")


def edited(old, new):
    """{path: (text, text as it is to be)} of each file that names the version, if old was the version and new is."""
    files = {}

    def replace(path, *pairs):
        text = after = path.read_text(encoding="utf-8")
        for before, value in pairs:
            if before not in after:
                sys.exit(f"{path.relative_to(ROOT)} does not contain: {before}")
            after = after.replace(before, value)
        files[path] = text, after

    lines, numbers = (second_line(*old), second_line(*new)), (number(old[0]), number(new[0]))
    for path in headers():
        pairs = [lines]
        if path.name == "dlpack_tensor.h":
            pairs.append((f" /* {old[0]}: a byte", f" /* {new[0]}: a byte"))
            for name, was, now in zip(("VERSION_STRING", "VERSION_DATE", "URL"), old, new):
                pairs.append((f'#define DLPACK_PY_{name} "{was}"', f'#define DLPACK_PY_{name} "{now}"'))
        pairs.append((numbers[0], numbers[1]))  # each header compares the version
        replace(path, *pairs)
    replace(ROOT / "pyproject.toml", (f'"{old[2]}"', f'"{new[2]}"'))
    replace(ROOT / "meson.build", (f"version: '{old[0]}'", f"version: '{new[0]}'"))
    replace(ROOT / "CITATION.cff", (f"\nversion: {old[0]}\n", f"\nversion: {new[0]}\n"))
    if old[0] == new[0]:
        replace(ROOT / "CHANGELOG.md", (heading(*old[:2]) + "\n", heading(*new[:2]) + "\n"))
    else:
        first = heading(*old[:2]) + "\n"
        replace(ROOT / "CHANGELOG.md", (first, f"{heading(*new[:2])}\n\n{first}"))
    return files


def main():
    parser = argparse.ArgumentParser(
        prog="packaging/version.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version", nargs="?")
    parser.add_argument("date", nargs="?", default=NOT_RELEASED)
    parser.add_argument("--url")
    args = parser.parse_args()
    old = read()
    if args.version and not re.fullmatch(r"\d+\.\d+\.\d+", args.version):
        parser.error(f"the version is {args.version}, three numbers with dots were wanted")
    try:
        if args.date != NOT_RELEASED:
            datetime.date.fromisoformat(args.date)
    except ValueError:
        parser.error(f"the date is {args.date}, one such as 2027-01-31 was wanted")
    new = (args.version or old[0], args.date if args.version else old[1], args.url or old[2])
    for path, (before, after) in edited(old, new).items():
        if before != after:
            path.write_text(after, encoding="utf-8")
    print(second_line(*new))


if __name__ == "__main__":
    main()
