"""Measures the calls of scenarios.py by each library, in one process; run by `make bench`.

Writes performance.md and performance.svg into the folder that is named, and bench.json into the build folder.
Instructions and allocations are counted with callgrind; times are taken apart, and depend on the machine.
"""

import json
import os
import platform
import re
import resource
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

import chart
import instructions
import scenarios
import size

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
C, CXX = size.COMPILER, os.environ.get("CXX", "c++")
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
SHARED = ["-fPIC", "-shared", "-DNDEBUG", "-fvisibility=hidden"]

# The flags of nanobind's CMake module in a release with NOMINSIZE, and with the library built into the module.
NANOBIND = ["-std=c++17", "-fno-strict-aliasing", "-ffunction-sections", "-fdata-sections", "-DNB_COMPACT_ASSERTIONS"]


# ---- Building ----


def compile(compiler, *arguments):
    """Runs a command; returns its seconds of CPU time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([compiler, *map(str, arguments)], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def other_libraries():
    """{name: flags of the compiler}"""
    import nanobind
    import pybind11
    import tvm_ffi.libinfo

    python = ["-isystem", sysconfig.get_path("include")]
    nano = Path(nanobind.include_dir())
    library = Path(tvm_ffi.libinfo.find_libtvm_ffi()).parent
    dlpack = ["-isystem", tvm_ffi.libinfo.find_dlpack_include_path()]
    tvm = [*dlpack, "-isystem", tvm_ffi.libinfo.find_include_path()]
    return {
        "nanobind": [*NANOBIND, *python, "-isystem", nano, "-isystem", nano.parent / "ext/robin_map/include"],
        "tvm": ["-std=c++17", *tvm, f"-L{library}", f"-Wl,-rpath,{library}"],
        "pybind11": ["-std=c++17", *python, *dlpack, "-isystem", pybind11.get_include()],
    }


def nanobind_library(folder, flags, optimize):
    import nanobind

    target = folder / f"nanobind{optimize}.o"
    source = Path(nanobind.source_dir()) / "nb_combined.cpp"
    seconds = compile(CXX, *flags, "-fPIC", "-DNDEBUG", "-fvisibility=hidden", optimize, "-c", source, "-o", target)
    return target, seconds


def build_calls(folder):
    """Builds the modules with the calls of the other libraries, if a source is newer."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, flags in other_libraries().items():
        source = HERE / "libraries" / f"calls_{name}.cpp"
        target = folder / (source.stem + (".so" if name == "tvm" else SUFFIX))
        newest = max(path.stat().st_mtime for path in (HERE / "libraries").iterdir())
        if target.exists() and target.stat().st_mtime > newest:
            continue
        optimize, more = "-O2", ["-ltvm_ffi"] if name == "tvm" else []
        if name == "nanobind":
            optimize = "-O3"
            more = [nanobind_library(folder, flags, optimize)[0], "-Wl,--gc-sections"]
        compile(CXX, *SHARED, "-g", optimize, *flags, source, "-o", target, *more)


def examples(folder):
    """{name: {"seconds", "bytes", "text"}} of examples/minimal/image.c by each library, at -O2."""
    folder.mkdir(parents=True, exist_ok=True)
    include, found = size.include_flags(), {}
    bare = folder / "bare.c"
    bare.write_text(size.without_dlpack())
    builds = {
        "without DLPack": [C, *SHARED, "-O2", *include, bare],
        BY_HAND: [C, *SHARED, "-O2", *include, size.BY_HAND],
        "dlpack_py": [C, *SHARED, "-O2", *include, size.EXAMPLE],
    }
    for name, flags in other_libraries().items():
        source = HERE / "libraries" / f"image_{name}.cpp"
        builds[scenarios.COLUMNS[name]] = [CXX, *SHARED, "-O2", *flags, source]
    library, seconds = nanobind_library(folder, other_libraries()["nanobind"], "-O2")
    builds["nanobind"] += [library, "-Wl,--gc-sections"]
    small, _ = nanobind_library(folder, other_libraries()["nanobind"], "-Os")
    source = HERE / "libraries" / "image_nanobind.cpp"
    builds["nanobind, -Os"] = [CXX, *SHARED, "-Os", *other_libraries()["nanobind"], source, small, "-Wl,--gc-sections"]
    builds["tvm-ffi"] += ["-ltvm_ffi"]
    for name, command in builds.items():
        target = folder / f"image-{re.sub('[^a-z-]+', '-', name)}.so"
        spent = []
        while len(spent) < 5 and sum(spent) < 12:
            spent.append(compile(*command, "-o", target))
        subprocess.run(["strip", target], check=True)
        sections = subprocess.run(["size", "-A", target], capture_output=True, text=True, check=True).stdout
        text = int(re.search(r"^\.text +(\d+)", sections, re.M)[1])
        found[name] = {"seconds": min(spent), "bytes": target.stat().st_size, "text": text}
        check_example(name, target)
    found["nanobind"]["library seconds"] = seconds
    return found


def check_example(name, module):
    """In a process of its own: the example of each library blurs a NumPy array, and exports an image to NumPy."""
    if name in ("without DLPack", BY_HAND):
        return
    done = subprocess.run([sys.executable, __file__, "check", name, module], capture_output=True, text=True)
    assert done.returncode == 0, f"the example by {name} does not work: {done.stderr}"


def run_check(name, path):
    import numpy

    if name == "tvm-ffi":
        import tvm_ffi

        image = tvm_ffi.load_module(path)
        picture = tvm_ffi.register_object("image.Image")(type("Image", (tvm_ffi.Object,), {}))(2, 3)
        exported = numpy.from_dlpack(picture.pixels)
    else:
        image = scenarios.load(path, "image")
        picture = image.Image(2, 3)
        exported = numpy.from_dlpack(picture)
    picture.fill(1, 2, 3)
    assert exported.shape == (2, 3, 3) and exported.tolist()[1][2] == list(picture.pixel(1, 2)) == [1, 2, 3]
    array = numpy.zeros((1, 3, 3), numpy.uint8)
    array[0, 1] = 90
    image.blur(array)
    assert array[0, :, 0].tolist() == [30, 30, 30], array
    assert image.brightness(10, 10, 10) == 10
    for wrong in [array.astype(float), array[:, ::2], array[0], array[:, :, :2].copy()]:
        try:
            image.blur(wrong)
        except (BufferError, TypeError, ValueError):
            continue
        raise AssertionError(f"{name} took an array of {wrong.dtype} {wrong.shape}")


# ---- Measuring ----


def run_times(peers_folder):
    """In a process of its own: prints the best nanoseconds of each call, as JSON."""
    import loop

    rows = scenarios.Libraries(Path(peers_folder)).rows()
    times = {name: {} for name in rows}
    for _ in range(3):  # three rounds apart: a disturbance of the machine seldom lasts so long
        for name, cells in rows.items():
            for column, call in cells.items():
                call(loop.calls, 20)
                best = min(call(loop.nanoseconds, 100) / 100 for _ in range(30))
                times[name][column] = min(best, times[name].get(column, best))
    print(json.dumps(times))


def measure(build):
    calls = build / "calls"
    build_calls(calls)
    done = subprocess.run([sys.executable, __file__, "times", calls], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = {name: {} for name in scenarios.ROWS}
    lines = {}
    times = json.loads(done.stdout)
    for (kind, name, place), dump in instructions.count(calls).items():
        if kind == "line":
            lines.setdefault(name, {})[place] = round(dump.instructions())
        else:
            cell = {"instructions": round(dump.instructions())}
            if name in times:
                cell |= {"allocations": round(dump.allocations()), "nanoseconds": round(times[name][place])}
            rows.setdefault(name, {})[place] = cell
    return {"versions": versions(), "rows": rows, "lines": lines, "examples": examples(build / "examples")}


def versions():
    compiler = subprocess.run([CXX, "-dumpfullversion"], capture_output=True, text=True).stdout.strip()
    packages = ["numpy", "torch", "nanobind", "apache-tvm-ffi", "pybind11"]
    ours = re.search(r'define DLPACK_PY_VERSION_STRING "(.*)"', (ROOT / "dlpack_tensor.h").read_text())[1]
    found = {"dlpack_py": ours, "CPython": platform.python_version(), "gcc": compiler}
    return found | {name: version(name) for name in packages}


# ---- Writing ----

PAGE = """# Performance

`make bench` measures and writes this page, and `performance.svg`. The same work is done by dlpack_py, by code for
DLPack that is written by hand (`examples/by_hand`), and by other libraries with which extensions exchange arrays. One
loop in C makes all calls, in one process.

- **Instructions** are the mean of {calls} calls, counted by callgrind, without the first call. They decide: they hardly
  depend on the machine, but they depend on the build of Python and on the compiler.
- **Allocations** are the calls of `malloc` and of Python's allocator in one call.
- **Nanoseconds** are the best of 90 loops of 100 calls. They differ by up to 30 % from run to run.

The arrays are float64 of shape (3, 4), row-major, on the CPU. f is a function that takes an array, and returns when it
has checked the array. A method is looked up in each call. The code by hand is complete for an array type on the CPU. It
has one function f, which takes float64 of rank 2 with any strides, and adds the elements up: 12 additions. It makes a
tensor of its own for what it takes: one allocation. [protocol.md](protocol.md) has the clauses.

Measured with {versions}. nanobind is built at -O3, all else at -O2.

## Instructions

A number in bold is lower than that of dlpack_py.

{instructions}

### Where another library is ahead

{ahead}

## Nanoseconds and allocations

{times}

## What the rows compare

All consumers check dtype, rank, order and device. In every row, dlpack_py also checks sizes and addresses (D8), the
version and the name of the capsule (C2, K4) and the read-only flag (C7); it keeps exceptions (K2), and its deleters run
on any thread (K5).

{notes}

## What does not grow

![Bars: instructions of the commonest calls. Lines: instructions by dimensions, arguments and types.](performance.svg)

A further argument costs as much as the first one. In `f(own)`, a further dimension costs {dimension} instructions by
dlpack_py, {readme_dimension} with the README's producer, which copies and validates shape and strides, and
{nano_dimension} by nanobind. The instructions of a call, in a process that has met {types} types, after the first
exchange and after many:

{long_lived}

## Two threads without a GIL

`make bench-threads` measures how many more exchanges two threads make than one. Where they exchange different arrays,
nothing that they write is shared. Where they exchange the same array, they wait for each other: both count references
to it, and an exchange table locks it while it reads it. The command also prints what a reference and a lock alone cost.

## Compile time and size

`examples/minimal/image.c`, the same example by the other libraries, and the code by hand, at -O2 where nothing else is
said: the best CPU time of up to five compilations, the size of the stripped module, and its machine code (`.text`). The
library of nanobind is part of the module; to compile it takes {library:.0f} s once more. The library of tvm-ffi is not
part of the module: users install it.

{examples}
"""

README = "rank, f(own), README's producer"
BY_HAND = "by hand: `examples/by_hand`, whole"


def escaped(text):
    """Markdown of a text: two underscores would begin bold letters."""
    return text.replace("__", r"\_\_")


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def write(results, folder):
    rows, lines, columns = results["rows"], results["lines"], scenarios.COLUMNS
    main = [name for name in scenarios.ROWS if rows.get(name)]
    notes = [f"- **{escaped(name)}**: {escaped(note)}" for name in main if (note := scenarios.ROWS[name])]

    others = [column for column in columns if column not in ("ours", "by_hand")]

    def is_ahead(name, column):
        cells = rows[name]
        return column in others and column in cells and cells[column]["instructions"] < cells["ours"]["instructions"]

    def cell(name, column, show):
        return show(rows[name][column]) if column in rows[name] else "–"

    def counted(name, column):
        text = cell(name, column, lambda cell: f"{cell['instructions']:,}")
        return f"**{text}**" if is_ahead(name, column) else text

    ahead = {}
    for name in main:
        first = [columns[column] for column in others if is_ahead(name, column)]
        if first:
            ahead.setdefault((" and ".join(first), scenarios.AHEAD[name]), []).append(f"`{name}`")

    def filled(show, names):
        return table(["", *columns.values()], [[escaped(n), *(cell(n, c, show) for c in columns)] for n in names])

    def growth(name):
        values = lines[name]
        return (values[8] - values[1]) / 7

    first, *_, last = scenarios.EXCHANGES
    long_lived = [[row, f"{lines[n][first]:,}", f"{lines[n][last]:,}"] for n, row in scenarios.LONG_LIVED.items()]
    page = PAGE.format(
        calls=instructions.CALLS,
        versions=", ".join(f"{name} {version}" for name, version in results["versions"].items()),
        instructions=table(["", *columns.values()], [[escaped(n), *(counted(n, c) for c in columns)] for n in main]),
        ahead="\n".join(f"- {library}: {', '.join(names)}. {why}" for (library, why), names in ahead.items()),
        times=filled(
            lambda cell: f"{cell['nanoseconds']:,} ns, {cell['allocations']}",
            [name for name in main if "nanoseconds" in rows[name]["ours"]],
        ),
        notes="\n".join(notes),
        dimension=f"{growth('rank, f(own), dlpack_py'):.0f}",
        readme_dimension=f"{growth(README):.0f}",
        nano_dimension=f"{growth('rank, f(own), nanobind'):.0f}",
        types=sum(scenarios.TYPES),
        long_lived=table(["", "after the first", f"after {last:,}"], long_lived),
        library=results["examples"]["nanobind"]["library seconds"],
        examples=table(
            ["", "CPU seconds", "bytes", "machine code, bytes"],
            [
                [name, f"{one['seconds']:.2f}", f"{one['bytes']:,}", f"{one['text']:,}"]
                for name, one in results["examples"].items()
            ],
        ),
    )
    (folder / "performance.md").write_text(page)
    instructions_only = {n: {c: cell["instructions"] for c, cell in cells.items()} for n, cells in rows.items()}
    (folder / "performance.svg").write_text(chart.draw(instructions_only, lines, columns))


def main():
    build, docs = Path(sys.argv[1]), Path(sys.argv[2])
    kept = build.parent / "bench.json"
    if sys.argv[3:] != ["again"]:  # else writes what was measured before
        kept.write_text(json.dumps(measure(build / "bench"), indent=1, ensure_ascii=False) + "\n")
    results = json.loads(kept.read_text())
    results["lines"] = {n: {int(place): v for place, v in line.items()} for n, line in results["lines"].items()}
    write(results, docs)
    print((docs / "performance.md").read_text())


if __name__ == "__main__":
    if sys.argv[1] == "times":
        run_times(sys.argv[2])
    elif sys.argv[1] == "check":
        run_check(*sys.argv[2:])
    else:
        main()
