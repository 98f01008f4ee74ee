"""make test-matrix: the suite on each platform and Python that this machine has or can get, as one table.

    matrix.py [ROW ...]

Runs the named rows, or all of them, prints the table, and writes docs/platforms.md: rows that were not named keep their
last result. The row compiled runs no suite. The output of a row is in build/platforms/ROW.log. Exits with status 1 if a
test failed, or if a row ended without the counts of pytest.
"""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "build" / "platforms"
PAGE = ROOT / "docs" / "platforms.md"
sys.path.insert(0, str(ROOT / "tests" / "build"))
import machine  # noqa: E402

# Left out: tests/libraries needs libraries with wheels for few platforms; tests/build compiles for all Pythons itself;
# tests/conformance uses no header.
LEFT_OUT = "--ignore=tests/libraries --ignore=tests/build --ignore=tests/conformance --ignore=tests/fuzz"
SLOW = "--ignore=tests/lifetime --ignore=tests/streams --ignore=tests/examples/test_typing.py"  # with an emulator
NOT_RUN = 77  # the status of a script that the machine cannot run
LINUX = "Linux x86_64, 64 bits, little-endian"

# The platform and Python of each row, for the page of a machine that cannot run it.
ROWS = {
    **{version: (LINUX, f"CPython {version}") for version in machine.PYTHONS},
    "3.13t": (LINUX, "CPython 3.13t"),
    "pypy3.9": (LINUX, "PyPy 3.9"),
    "pypy3.11": (LINUX, "PyPy 3.11"),
    "i386": ("Linux i686, 32 bits, little-endian", "CPython 3.13"),
    "s390x": ("Linux s390x, 64 bits, big-endian", "CPython 3.14"),
    "windows": ("Windows AMD64, 64 bits, little-endian", "CPython 3.13"),
}

# Tests that compile the headers and examples for platforms where nothing runs, and their compiler.
COMPILED = {"tests/build/test_platforms.py": "zig", "tests/build/test_msvc.py": "clang-cl"}
TARGET = re.compile(r"^(PASSED|FAILED) \S+\[(?:.*-)?((?:x86|x86_64|i686|arm|aarch64)-[\w-]*?)(?:-[^-\]]*)?\]")


def on_this_machine(python):
    venv = (
        [] if os.path.samefile(python, sys.base_prefix + "/bin/python3") else [f"VENV=build/venv-{Path(python).name}"]
    )
    return ["make", "test", f"PYTHON={python}", *venv, f"PYTEST_ARGS={LEFT_OUT}"]


def in_debian(*system, more=""):
    return ["tests/platforms/debian.sh", *system, *LEFT_OUT.split(), *more.split()]


def free_threaded():
    done = subprocess.run(["tests/lifetime/build_python.sh"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        return done.stderr.strip().rpartition("\n")[2]
    folders = [
        str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").glob("*/")) if any(path.glob("test_*.py"))
    ]
    folders = [name for name in folders if name not in ("tests/libraries", "tests/build", "tests/conformance")]
    python = done.stdout.strip()
    return ["make", "test-folders", f"PYTHON={python}", "VENV=build/venv-python3.13t", f"FOLDERS={' '.join(folders)}"]


def command(row):
    """The command of a row, or the reason why it cannot run here."""
    here = machine.pythons()
    if row in here:
        return on_this_machine(here[row][0])
    if row in ("3.14", "3.15"):
        return in_debian("forky", "amd64", f"python{row}")
    if row in machine.PYTHONS:
        return f"no CPython {row} with headers"
    if row == "3.13t":
        return free_threaded()
    if row == "pypy3.9":
        return on_this_machine("/usr/bin/pypy3") if os.path.exists("/usr/bin/pypy3") else "no pypy3"
    if row == "pypy3.11":
        return in_debian("forky", "amd64", "pypy3")
    if row == "i386":
        return in_debian("trixie", "i386", "python3")
    if row == "s390x":
        return in_debian("forky", "s390x", "python3", more=SLOW)
    return ["make", "test-windows"]


def counted(output):
    """The counts of all closing lines of pytest: a row may run several processes."""
    counts = Counter()
    for line in re.findall(r"^.*\d (?:passed|failed|error).* in [\d.]+s.*$", output, re.MULTILINE):
        for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", line):
            counts["failed" if word == "error" else word] += int(number)
    return counts


def print_failures(row, output):
    """Prints the tests that failed, and the end of the output: build/platforms is not kept by every CI."""
    failures = re.findall(r"^(?:FAILED|ERROR) .*$", output, re.MULTILINE)
    for line in [*failures, *output.splitlines()[-60:]]:
        print(f"   {row}: {line}")
    sys.stdout.flush()


def run(row):
    """Runs a row. Returns its columns, and whether it failed."""
    platform, python = ROWS[row]
    words = command(row)
    if isinstance(words, str):
        return [row, platform, python, "", "", "", "", "", f"not run: {words}"], False
    print(f"-- {row}: {' '.join(words)}", flush=True)
    start = time.monotonic()
    done = subprocess.run(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    LOGS.mkdir(parents=True, exist_ok=True)
    (LOGS / f"{row}.log").write_text(done.stdout)
    counts = counted(done.stdout)
    reason = re.search(r"^SKIPPED: (.*)$", done.stdout, re.MULTILINE)
    if not counts and reason and done.returncode in (0, NOT_RUN):
        return [row, platform, python, "", "", "", "", "", f"not run: {reason[1]}"], False
    print(f"   {dict(counts)}, {time.monotonic() - start:.0f} s, status {done.returncode}", flush=True)
    if done.returncode != 0:
        print_failures(row, done.stdout)
    told = re.search(r"^PLATFORM: (.*)$", done.stdout, re.MULTILINE)
    described = told[1].strip().split(" | ") if told else [platform, python, "", ""]
    remark = "" if counts else f"it ended with status {done.returncode}"
    if row == "s390x":
        remark = remark or "without tests/lifetime and tests/streams"
    columns = [row, *described, *(str(counts[word]) for word in ("passed", "failed", "skipped")), remark]
    return columns, done.returncode != 0 or not counts


def compiled():
    """A line for each platform that the headers are only compiled for."""
    lines = []
    for tests, compiler in COMPILED.items():
        pytest = [sys.executable, "-m", "pytest", "-q", "-rA", "-n", "auto", tests]
        said = subprocess.run(pytest, cwd=ROOT, capture_output=True, text=True).stdout
        counts = {}
        for match in filter(None, map(TARGET.match, said.splitlines())):
            counts.setdefault(match[2], Counter())[match[1]] += 1
        lines += [[name, compiler, str(count["PASSED"]), str(count["FAILED"])] for name, count in counts.items()]
    return lines


def table(head, lines):
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *lines])


def kept():
    """The lines of the page, by their first column."""
    text = PAGE.read_text() if PAGE.exists() else ""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {line[0]: [*line, ""][:9] for line in lines}


HEAD = ["row", "platform", "Python", "compiler", "NumPy", "passed", "failed", "skipped", "remark"]


def main():
    names = sys.argv[1:] or [*ROWS, "compiled"]
    if unknown := set(names) - {*ROWS, "compiled"}:
        sys.exit(f"there is no row {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}, compiled")
    failed = []
    last = {**{row: [row, *ROWS[row], "", "", "", "", "", "not run yet"] for row in ROWS}, **kept()}
    only = [line[:4] for line in last.values() if line[1] in COMPILED.values()]
    for row in names:
        if row == "compiled":
            only = compiled()
            failed += [line[0] for line in only if line[3] != "0"]
        else:
            last[row], has_failed = run(row)
            failed += [row] * has_failed
        write_page([last[row] for row in ROWS], only)  # after each row: the next ones take long
    print(table(HEAD, [last[row] for row in names if row in ROWS]))
    print("failed:", ", ".join(failed) or "none")
    return 1 if failed else 0


def write_page(ran, only):
    only = table(["platform", "compiled by", "passed", "failed"], only)
    PAGE.write_text(DOCUMENT.format(ran=table(HEAD, ran), only=only))


DOCUMENT = """\
# Platforms

`make test-matrix` writes this page; `make test-matrix ROWS="3.14 windows"` runs two rows of it again.

## The suite has run

Each row is a run of ctest and pytest, without the folders `build`, `conformance` and `libraries` of `tests/`. A test is
skipped where the platform lacks what it needs; the output of the row, `build/platforms/ROW.log`, gives the reasons.

{ran}

## The headers and examples are compiled, and nothing runs

{only}
"""

if __name__ == "__main__":
    sys.exit(main())
