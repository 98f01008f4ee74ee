"""Counts the instructions of the calls of scenarios.py with callgrind. As a command, holds this library to its record.

Run by `make instructions`. The record, benchmarks/record.json, is that of one interpreter and compiler: CPython 3.11
built without a profile, gcc 12 at -O2 and x86-64; on others the command only prints. A call that costs more than 2 %
above its record makes the command fail. A call that costs more than 2 % below it is named: `make instructions RECORD=1`
then writes a new record. Two kinds of calls are not part of the record: those of many types depend on the addresses of
the types, and the first call of a process depends on what was imported. `make instructions PROFILE="f(numpy)"` prints
in which functions a call spends its instructions.
"""

import bisect
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

import scenarios

HERE = Path(__file__).resolve().parent
RECORD = HERE / "record.json"
CALLS = 200
ALLOWED = 1.02
UNSTEADY = ("types", "first")  # names of calls that are not part of the record begin so
LOOP = "dlpack_py_benchmark_loop"  # the function of loop.c that is counted

# Functions that allocate, and those of the Python allocator that call the first ones for large blocks.
ALLOCATORS = {"malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc", "memalign"}
OBJECT_ALLOCATORS = {"_PyObject_Malloc", "_PyObject_Calloc", "_PyObject_Realloc"}
RAW_ALLOCATORS = {"PyMem_RawMalloc", "PyMem_RawCalloc", "PyMem_RawRealloc"}


# ---- Under callgrind: each loop is one dump of the counters ----


def run(peers):
    """Prints the name of each loop, as JSON, in the order of the dumps. There is a dump before each loop as well."""
    import loop

    def say(place):
        print(json.dumps(None), json.dumps(place), sep="\n", flush=True)

    held = []

    def count(place, call):
        """Twice: a loop whose last free block ends a pool of the allocator costs 85 instructions more in each call. The
        blocks that are allocated in between move the second loop away from there."""
        for _ in range(2):
            call(loop.calls, CALLS)
            say([*place, CALLS])
            held.extend(bytes(size) for size in range(1, 480, 16) for _ in range(4))

    libraries = scenarios.Libraries(peers)
    for column, call in libraries.first().items():
        call(loop.calls, 1)
        say(["row", "first f(numpy) in a process", column, 1])
    rows, lines = libraries.rows(), libraries.lines()
    for name, cells in rows.items():
        for column, call in cells.items():
            count(["row", name, column], call)
    for name, calls in lines.items():
        for place, call in calls.items():
            count(["line", name, place], call)
    for many in scenarios.TYPES:
        objects = libraries.types(many)
        loop.in_turn(2 * many, libraries.ours.consume, objects)
        say(None)
        loop.in_turn(960, libraries.ours.consume, objects)  # a multiple of each number of types
        say(["line", "types, f(own), README's producer", many, 960])
    made = 0
    for exchanges in scenarios.EXCHANGES:
        for name, row in scenarios.LONG_LIVED.items():
            if row in rows:
                rows[row]["ours"](loop.calls, exchanges - made)
                say(None)
                count(["line", name, exchanges], rows[row]["ours"])
        made = exchanges


# ---- Reading the dumps ----


class Dump:
    """One loop: instructions, calls from function to function, and instructions by function."""

    NAMED = re.compile(r"\((\d+)\)(?: (.*))?$")

    def __init__(self, path, calls):
        self.calls, self.total, self.edges, self.by_function = calls, 0, Counter(), Counter()
        names, line, function, source, binary, is_call, callee = {}, 0, "", "", "", False, ""
        for text in path.read_text().splitlines():
            key, is_pair, value = text.partition("=")
            if is_pair and key.isalpha():
                kind = {"cfn": "fn", "cob": "ob"}.get(key, "fl" if key in ("fi", "fe", "cfi", "cfl") else key)
                named = self.NAMED.match(value)
                if named:
                    value = names.setdefault((kind, named[1]), named[2])
                if key == "fn":
                    function = value
                elif key == "ob":
                    binary = value
                elif key in ("fl", "fi", "fe"):
                    source = value
                elif key == "cfn":
                    callee = value
                elif key == "calls":
                    is_call = True
                    self.edges[plain(function), plain(callee)] += int(value.split()[0])
                continue
            cost = re.match(r"([+*-]?)(\d*) (\d+)$", text)
            if cost is None:
                continue
            step = int(cost[2] or 0)
            line = {"+": line + step, "-": line - step, "*": line, "": step}[cost[1]]
            if is_call:  # what the callee costs stands with the callee
                is_call = False
                continue
            self.total += int(cost[3])
            inlined = function_at(source, line) if source.startswith(str(HERE.parent)) else None
            self.by_function[inlined or f"{plain(function)} ({Path(binary).name.split('.')[0]})"] += int(cost[3])

    def instructions(self):
        return self.total / self.calls

    def allocations(self):
        made = sum(n for (_, to), n in self.edges.items() if to in ALLOCATORS | OBJECT_ALLOCATORS)
        twice = sum(n for (by, to), n in self.edges.items() if by in OBJECT_ALLOCATORS and to in RAW_ALLOCATORS)
        return (made - twice) / self.calls


def plain(function):
    """Without the mark of a recursive call."""
    return function.partition("'")[0]


@cache
def starts(source):
    """Where the functions of a source file of this project begin: their lines and names."""
    lines = Path(source).read_text().splitlines() if Path(source).exists() else []
    found = [(i, name[1]) for i, text in enumerate(lines, 1) if (name := re.match(r"(\w+)\(", text))]
    return [i for i, _ in found], [name for _, name in found]


@cache
def function_at(source, line):
    lines, names = starts(source)
    place = bisect.bisect_right(lines, line) - 1
    return names[place] if place >= 0 else None


def count(peers=None):
    """{("row", name, column) or ("line", name, place): Dump}"""
    if shutil.which("valgrind") is None:
        sys.exit("MISSING: valgrind")
    with tempfile.TemporaryDirectory() as folder:
        options = [f"--toggle-collect={LOOP}", f"--zero-before={LOOP}", f"--dump-after={LOOP}"]
        out = f"--callgrind-out-file={folder}/counts"
        command = ["valgrind", "--tool=callgrind", *options, out, sys.executable, __file__, "run"]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        command += [] if peers is None else [str(peers)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)
        places = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(places) + 1 == len(os.listdir(folder)), "a dump for each loop, and one at the end"
        dumps = {}
        for i, place in enumerate(places, 1):
            if place:
                dump, name = Dump(Path(folder, f"counts.{i}"), place[3]), tuple(place[:3])
                dumps[name] = min(dump, dumps.get(name, dump), key=Dump.instructions)
        return dumps


# ---- The record ----


def is_reference():
    compiler = subprocess.run([os.environ.get("CC", "cc"), "-dumpfullversion"], capture_output=True, text=True).stdout
    return (
        sys.version_info[:2] == (3, 11)
        and platform.python_implementation() == "CPython"
        and platform.machine() == "x86_64"
        and compiler.startswith("12.")
        and "-fprofile" not in (sysconfig.get_config_var("PY_CFLAGS") or "")
    )


def print_profile(dump, name):
    print(f"\n{name}: {dump.instructions():.0f} instructions, {dump.allocations():.1f} allocations")
    for function, cost in dump.by_function.most_common():
        if cost >= dump.calls * 2:
            print(f"{cost / dump.calls:8.1f}  {function}")


def main():
    dumps = count()
    counted = {" ".join(map(str, place[1:])): dump for place, dump in dumps.items()}
    counted = {name.removesuffix(" ours"): dump for name, dump in counted.items()}
    wanted = os.environ.get("PROFILE")
    if wanted:
        for name, dump in counted.items():
            if name.startswith(wanted):
                print_profile(dump, name)
        return
    record = json.loads(RECORD.read_text())
    limits, aims = record["instructions"], record["aims"]
    dearer, cheaper = [], []
    print(f"instructions of a call of this library, CPython {platform.python_version()}, float64 (3, 4)\n")
    print(f"{'':58}{'counted':>8}{'record':>8}{'aim':>8}")
    for name, dump in counted.items():
        now, before = round(dump.instructions()), limits.get(name)
        said = ""
        if before is not None and now > before * ALLOWED:
            said, dearer = "  dearer", [*dearer, name]
        elif before is not None and now * ALLOWED < before:
            said, cheaper = "  cheaper", [*cheaper, name]
        print(f"{name:58}{now:8}{before or '-':>8}{aims.get(name, ''):>8}{said}")
    for name in limits.keys() - counted.keys():
        print(f"{name:58}{'-':>8}{limits[name]:8}{aims.get(name, ''):>8}  not counted: a library is not installed")
    if os.environ.get("RECORD"):
        now = {name: round(dump.instructions()) for name, dump in counted.items() if not name.startswith(UNSTEADY)}
        record["instructions"] = limits | now
        RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        print(f"\nwritten: {RECORD}")
        return
    if cheaper:
        print(f"\ncheaper than the record, make instructions RECORD=1 writes a new one: {', '.join(cheaper)}")
    if dearer and is_reference():
        sys.exit(f"\nmore than 2 % above the record: {', '.join(dearer)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(Path(sys.argv[2]) if sys.argv[2:] else None)
    else:
        main()
