"""Counts the instructions of the calls of scenarios.py with callgrind. As a command, compares with the record.

Run by `make instructions`. Two builds are counted: "full", modules that include dlpack_exchange.h, and "plain", modules
that do not, which lack the calls that need tables or embedded managed tensors. Both are compared with one record,
benchmarks/record.json. It is that of one interpreter and compiler: CPython 3.11 built without a profile, gcc 12 at -O2
and x86-64; on others the command only prints. A call whose ratio to the record is above MUST is named. It makes the
command fail, too, and is listed with the functions in which it spends its instructions, where it costs more than what
is held for it: the count that was reached, in the part "held" of record.json, which RECORD=1 lowers and never raises. A
call of the full build that costs less than the record by more than 2 % is named: `make instructions RECORD=1` then
writes a new record, in which no number is larger than before. Two kinds of calls are not part of the record: those of
many types depend on the addresses of the types, and the first call of a process depends on what was imported.
`make instructions PROFILE="f(numpy)"` counts only the calls whose names begin so, and prints in which functions they
spend their instructions, in both builds.
"""

import bisect
import json
import math
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import scenarios

HERE = Path(__file__).resolve().parent
RECORD = HERE / "record.json"
CALLS = 200
MUST = {"full": 1.05, "plain": 1.3}  # times the record
CHEAPER = 1.02
STEADY = 1.02  # a count above the count that is held for it, by less than this, is not dearer
NOISE = 1.005  # a count above its limit by less is not dearer: memory addresses change counts
UNSTEADY = ("types", "first")  # names of calls that are not part of the record begin so
LOOP = "dlpack_py_benchmark_loop"  # the function of loop.c that is counted

# Functions that allocate, and those of the Python allocator that call the first ones for large blocks.
ALLOCATORS = {"malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc", "memalign"}
OBJECT_ALLOCATORS = {"_PyObject_Malloc", "_PyObject_Calloc", "_PyObject_Realloc"}
RAW_ALLOCATORS = {"PyMem_RawMalloc", "PyMem_RawCalloc", "PyMem_RawRealloc"}


# ---- Under callgrind: each loop is one dump of the counters ----


def run(folder):
    """Prints the name of each loop, as JSON, in the order of the dumps. There is a dump before each loop as well."""
    import loop

    def say(place):
        print(json.dumps(None), json.dumps(place), sep="\n", flush=True)

    held = []

    def count(place, call):
        """Three times: a loop whose last free block ends a pool of an allocator costs 85 to 230 instructions more in
        each call. The blocks that are allocated in between move the next loop away from there."""
        for _ in range(3):
            call(loop.calls, CALLS)
            say([*place, CALLS])
            held.extend(bytes(size) for size in range(1, 960, 16) for _ in range(4))

    libraries = scenarios.Libraries(folder)
    for column, call in libraries.first().items():
        call(loop.calls, 1)
        say(["row", "first f(numpy) in a process", column, 1])
    rows, lines = libraries.rows(), libraries.lines()
    wanted = os.environ.get("PROFILE", "")
    for name, cells in rows.items():
        for column, call in cells.items():
            if name.startswith(wanted):
                count(["row", name, column], call)
    if wanted:
        return
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
            if is_call:  # the cost of the callee is counted for the callee
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
    """The name of a function without the mark of a recursive call."""
    return function.partition("'")[0]


@cache
def starts(source):
    """The first lines and the names of the functions in a source file of this project."""
    lines = Path(source).read_text().splitlines() if Path(source).exists() else []
    found = [(i, name[1]) for i, text in enumerate(lines, 1) if (name := re.match(r"(\w+)\(", text))]
    return [i for i, _ in found], [name for _, name in found]


@cache
def function_at(source, line):
    lines, names = starts(source)
    place = bisect.bisect_right(lines, line) - 1
    return names[place] if place >= 0 else None


def count(others=None, form=None):
    """{("row", name, column) or ("line", name, place): Dump}. form: the folder of modules that come first, full
    or plain. Without it, calls includes dlpack_exchange.h, and image does not."""
    if shutil.which("valgrind") is None:
        sys.exit("MISSING: valgrind")
    with tempfile.TemporaryDirectory() as folder:
        options = [f"--toggle-collect={LOOP}", f"--zero-before={LOOP}", f"--dump-after={LOOP}"]
        out = f"--callgrind-out-file={folder}/counts"
        command = ["valgrind", "--tool=callgrind", *options, out, sys.executable, __file__, "run"]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        command += [] if others is None else [str(others)]
        if form is not None:
            modules = os.environ["DLPACK_PY_BUILD_DIR"]
            environment["PYTHONPATH"] = os.pathsep.join([f"{modules}/{form}", modules])
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


def count_forms():
    """{form: {name: Dump}}, one process for each form, at once."""
    with ThreadPoolExecutor() as pool:
        running = {form: pool.submit(count, form=form) for form in MUST}
        counted = {form: dumps.result() for form, dumps in running.items()}
    return {
        form: {" ".join(map(str, place[1:])).removesuffix(" ours"): dump for place, dump in dumps.items()}
        for form, dumps in counted.items()
    }


def smaller(counted, again):
    """The smaller of two counts of each call."""
    return {
        form: {name: min(dump, again[form].get(name, dump), key=Dump.instructions) for name, dump in dumps.items()}
        for form, dumps in counted.items()
    }


def main():
    counted = count_forms()
    wanted = os.environ.get("PROFILE")
    if wanted:
        for form, dumps in counted.items():
            for name, dump in dumps.items():
                if name.startswith(wanted):
                    print_profile(dump, f"{name}, {form}")
        return
    record = json.loads(RECORD.read_text())
    before, aims, held = record["instructions"], record["aims"], record.setdefault("held", {form: {} for form in MUST})
    dearer, cheaper = {}, []

    def is_dear(form, name, dump):
        limit = max(held[form].get(name, 0) * STEADY, MUST[form] * before.get(name, math.inf) * NOISE)
        return dump.instructions() > limit

    # Count a call that is too dear again, in another process: in few processes, memory addresses double a count.
    dear = [name for form, dumps in counted.items() for name, dump in dumps.items() if is_dear(form, name, dump)]
    if dear and is_reference():
        counted = smaller(counted, count_forms())
    print(f"instructions of a call of this library, CPython {platform.python_version()}, float64 (3, 4)")
    print("full: with dlpack_exchange.h; plain: without it; beside each: times the record\n")
    musts = "".join(f"{'must ' + str(must):>14}" for must in MUST.values())
    print(f"{'':52}{'record':>8}{''.join(f'{form:>14}' for form in MUST)}{'aim':>8}\n{'':60}{musts}")
    for name in dict.fromkeys([*counted["full"], *before]):
        recorded, cells, said = before.get(name), "", ""
        for form, must in MUST.items():
            dump = counted[form].get(name)
            now = None if dump is None else round(dump.instructions())
            ratio = None if None in (now, recorded) else now / recorded
            cells += f"{'-' if now is None else now:>8}{'' if ratio is None else f'{ratio:.2f}':>6}"
            if ratio is not None and ratio > must:
                limit = held[form].get(name, 0)
                said += f"  {form} above its must, held at {limit}"
                if is_dear(form, name, dump):
                    dearer[f"{name} ({form})"] = dump
                if os.environ.get("RECORD"):
                    held[form][name] = min(now, limit or now)
            elif os.environ.get("RECORD"):
                held[form].pop(name, None)
        if name not in counted["full"]:
            said = "  not counted: a library is not installed"
        elif recorded is not None and counted["full"][name].instructions() * CHEAPER < recorded:
            cheaper.append(name)
        print(f"{name:52}{'-' if recorded is None else recorded:>8}{cells}{aims.get(name, ''):>8}{said}")
    for form in MUST:
        ratios = [dump.instructions() / before[name] for name, dump in counted[form].items() if name in before]
        mean = statistics.geometric_mean(ratios)
        print(f"{form}: {len(ratios)} calls, {mean:.2f} times the record in the mean, {max(ratios):.2f} at most")
    if os.environ.get("RECORD"):
        now = {n: round(dump.instructions()) for n, dump in counted["full"].items() if not n.startswith(UNSTEADY)}
        record["instructions"] = before | {name: min(new, before.get(name, new)) for name, new in now.items()}
        RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        print(f"\nwritten: {RECORD}")
        return
    if cheaper:
        print(f"\nbelow the record, make instructions RECORD=1 writes a new one: {', '.join(cheaper)}")
    if dearer and is_reference():
        for name, dump in dearer.items():
            print_profile(dump, name)
        sys.exit(f"\nabove the must, and above what is held: {', '.join(dearer)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(Path(sys.argv[2]) if sys.argv[2:] else None)
    else:
        main()
