"""make test-matrix: the suite on each platform and Python that this machine has or can get, as one table.

    matrix.py [--write] [ROW ...]

Runs the named rows, or all of them, and prints the table. --write also writes docs/platforms.md, and needs all rows.
The output of a row is in build/platforms/ROW.log. Exits with status 1 if a test failed, or if a row ended without the
counts of pytest.
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
sys.path.insert(0, str(ROOT / "tests" / "build"))
import machine  # noqa: E402

# Left out: tests/libraries needs libraries with wheels for few platforms; tests/build compiles for all Pythons itself.
SUITE = "PYTEST_ARGS=--ignore=tests/libraries --ignore=tests/build --ignore=tests/conformance"
NOT_RUN = 77  # the status of a script that the machine cannot run

# What a row that cannot run here would be.
NAMES = {
    "pypy3.9": ("Linux x86_64, 64 bits, little-endian", "PyPy 3.9"),
    "pypy3.11": ("Linux x86_64, 64 bits, little-endian", "PyPy 3.11"),
    "3.13t": ("Linux x86_64, 64 bits, little-endian", "CPython 3.13t"),
    "i386": ("Linux i686, 32 bits, little-endian", "CPython 3.13"),
    "s390x": ("Linux s390x, 64 bits, big-endian", "CPython 3.13"),
    "windows": ("Windows AMD64, 64 bits, little-endian", "CPython 3.13"),
    **{version: ("Linux x86_64, 64 bits, little-endian", f"CPython {version}") for version in machine.PYTHONS},
}

# Platforms that the headers and examples are compiled for, and where nothing runs: the tests, and what they compile by.
COMPILED = {"tests/build/test_platforms.py": "zig", "tests/build/test_msvc.py": "clang-cl"}


def on_this_machine(python, *more):
    name = os.path.basename(python)
    venv = [] if os.path.samefile(python, sys.base_prefix + "/bin/python3") else [f"VENV=build/venv-{name}"]
    return ["make", "test", f"PYTHON={python}", *venv, SUITE, *more]


def in_debian(suite, architecture, python, *arguments):
    return ["tests/platforms/debian.sh", suite, architecture, python, *arguments]


def rows():
    """The command of each row, or the reason why it cannot run here."""
    here = {version: command for version, (command, _) in machine.pythons().items()}
    arguments = SUITE.partition("=")[2].split()
    commands = {}
    for version in machine.PYTHONS:
        if version in here:
            commands[version] = on_this_machine(here[version])
        elif version in ("3.14", "3.15"):
            commands[version] = in_debian("forky", "amd64", f"python{version}", *arguments)
        else:
            commands[version] = f"no CPython {version} with headers"
    free_threaded = subprocess.run(["tests/lifetime/build_python.sh"], cwd=ROOT, capture_output=True, text=True)
    python = free_threaded.stdout.strip()
    commands["3.13t"] = on_this_machine(python) if python else free_threaded.stderr.strip().splitlines()[-1]
    commands["pypy3.9"] = on_this_machine("/usr/bin/pypy3") if os.path.exists("/usr/bin/pypy3") else "no pypy3"
    commands["pypy3.11"] = in_debian("forky", "amd64", "pypy3", *arguments)
    commands["i386"] = in_debian("trixie", "i386", "python3", *arguments)
    commands["s390x"] = in_debian("trixie", "s390x", "python3", *arguments)
    commands["windows"] = ["make", "test-windows"]
    return commands


def counted(output):
    """The counts of all closing lines of pytest: a row may run several processes."""
    counts = Counter()
    for line in re.findall(r"^.*\d (?:passed|failed|error).* in [\d.]+s.*$", output, re.MULTILINE):
        for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", line):
            counts["failed" if word == "error" else word] += int(number)
    return counts


def run(name, command):
    """Runs a row. Returns the columns of the table, and whether it failed."""
    unknown = [*NAMES[name], "", ""]
    if isinstance(command, str):
        return [*unknown, "", "", "", f"not run: {command}"], False
    print(f"-- {name}: {' '.join(command)}", flush=True)
    start = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    LOGS.mkdir(parents=True, exist_ok=True)
    (LOGS / f"{name}.log").write_text(done.stdout)
    reason = re.search(r"^SKIPPED: (.*)$", done.stdout, re.MULTILINE)
    counts = counted(done.stdout)
    if not counts and reason and done.returncode in (0, NOT_RUN):
        return [*unknown, "", "", "", f"not run: {reason[1]}"], False
    platform = re.search(r"^PLATFORM: (.*)$", done.stdout, re.MULTILINE)
    described = platform[1].strip().split(" | ") if platform else unknown
    failed = done.returncode != 0 or not counts
    remark = "" if counts else f"it ended with status {done.returncode}"
    print(f"   {dict(counts)}, {time.monotonic() - start:.0f} s, status {done.returncode}", flush=True)
    return [*described, *(str(counts[word]) for word in ("passed", "failed", "skipped")), remark], failed


def compiled():
    """A line for each platform that the headers are only compiled for: its name, by what, and how many tests passed."""
    lines = []
    for tests, compiler in COMPILED.items():
        if not (ROOT / tests).exists():
            continue
        command = [sys.executable, "-m", "pytest", "-q", "-rA", "-n", "auto", tests]
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
        counts = {}
        for word, target in re.findall(
            r"^(PASSED|FAILED) \S+\[(?:[^\]]*-)?((?:x86|x86_64|arm|arm64|aarch64|i686)-[^\]]*)\]", said, re.MULTILINE
        ):
            counts.setdefault(target, Counter())[word] += 1
        for target, count in counts.items():
            lines.append([target, compiler, str(count["PASSED"]), str(count["FAILED"])])
    return lines


def table(head, lines):
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *lines])


def main():
    arguments = sys.argv[1:]
    commands = rows()
    names = [name for name in arguments if name != "--write"] or list(commands)
    if unknown := set(names) - set(commands):
        sys.exit(f"there is no row {', '.join(sorted(unknown))}; there are {', '.join(commands)}")
    results = [run(name, commands[name]) for name in names]
    head = ["platform", "Python", "compiler", "NumPy", "passed", "failed", "skipped", "remark"]
    text = table(head, [line for line, _ in results])
    print(text)
    if "--write" in arguments and names == list(commands):
        document = ROOT / "docs" / "platforms.md"
        only = table(["platform", "compiled by", "passed", "failed"], compiled())
        document.write_text(DOCUMENT.format(run=text, compiled=only))
    return 1 if any(failed for _, failed in results) else 0


DOCUMENT = """\
# Platforms

`make test-matrix` wrote this page.

## The suite has run

Each row is a run of ctest and pytest, without the folders `build`, `conformance` and `libraries` of `tests/`. A skipped
test needs what the platform lacks; the log of the row gives each reason.

{run}

## The headers and examples are compiled, and nothing runs

{compiled}
"""

if __name__ == "__main__":
    sys.exit(main())
