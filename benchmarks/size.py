"""What dlpack_py.h costs those who include it and read it. Run by `make size`; fails where a limit is passed.

The size and the compile time are those of examples/minimal/image.c, beside the same file without its DLPack parts. A
path is one call of an extension built with -finstrument-functions: which functions of the header it enters, how deep,
and how often the section of the header changes from one to the next.
"""

import ctypes
import os
import re
import resource
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADER = (ROOT / "dlpack_py.h").read_text().splitlines()
EXAMPLE = ROOT / "examples" / "minimal" / "image.c"
COMPILER = os.environ.get("CC", "cc")
VERSION = re.search(r'define DLPACK_PY_VERSION_STRING "(.*)"', "\n".join(HEADER))[1]

# What each figure may not pass: what it is today. MUST is what it is to be at last.
LIMITS = {"lines": 5622, "functions": 212, "public functions": 47, "private functions with one caller": 54}
MUST = {
    "lines": 3900,
    "functions": 215,
    "public functions": 48,
    "private functions with one caller": 56,
    "stripped size, bytes": 49152,
    "export: functions, depth, sections": (20, 6, 8),
    "import: functions, depth, sections": (27, 8, 12),
}
SIZE_LIMIT = 49152  # stripped, gcc 12 -O2


def include_flags():
    import tvm_ffi.libinfo

    includes = [tvm_ffi.libinfo.find_dlpack_include_path(), sysconfig.get_path("include")]
    return [f"-I{ROOT}", *(flag for include in includes for flag in ("-isystem", include))]


def build(source, target, *flags):
    """Builds a module; the seconds of CPU time that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([COMPILER, "-fPIC", "-shared", *include_flags(), *flags, source, "-o", target], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def without_dlpack():
    """The example without its DLPack parts."""
    return re.sub(r"/\* dlpack: begin \*/.*?/\* dlpack: end \*/", "", EXAMPLE.read_text(), flags=re.DOTALL)


def size_and_time(source, folder):
    target = folder / "image.so"
    seconds = min(build(source, target, "-O2") for _ in range(5))
    subprocess.run(["strip", target], check=True)
    return target.stat().st_size, seconds


def functions():
    """{name: (section, body)} of the header's functions."""
    found, section = {}, ""
    for i, line in enumerate(HEADER):
        banner = re.match(r"/\* ---- (\d+\.\d+) ", line)
        section = banner[1] if banner else section
        name = re.match(r"(dlpack_py_\w+)\(", line)
        if name:
            begin = next(k for k in range(i, len(HEADER)) if HEADER[k] == "{" or HEADER[k].endswith(";"))
            if HEADER[begin] == "{":  # else a declaration
                found[name[1]] = (section, "\n".join(HEADER[begin : HEADER.index("}", begin)]))
    return found


def with_one_caller(known):
    private = [name for name in known if "_impl_" in name]
    callers = {
        name: sum(1 for other, (_, body) in known.items() if other != name and re.search(rf"\b{name}\b", body))
        for name in private
    }
    in_macros = [line for line in HEADER if line.startswith("#") or line.endswith("\\")]
    called_by_macros = set(re.findall(r"\w+", "\n".join(in_macros)))
    return sum(count == 1 for name, count in callers.items() if name not in called_by_macros)


def paths(known, folder):
    """What one export and one import enter: {name: (functions, depth, changes of section)}."""
    module = folder / ("image" + sysconfig.get_config_var("EXT_SUFFIX"))
    hooks = ROOT / "benchmarks" / "path.c"
    build(EXAMPLE, module, "-O0", "-finstrument-functions", "-Wl,-Bsymbolic", hooks, "-ldl")
    names = {}
    for line in subprocess.run(["nm", module], capture_output=True, text=True, check=True).stdout.splitlines():
        address, kind, name = line.split()[-3:] if len(line.split()) == 3 else ("", "", "")
        if kind in ("t", "T"):
            names[int(address, 16)] = name
    result = {}
    for what in ("export", "import"):
        command = [sys.executable, Path(__file__).resolve(), "path", what, module]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
        lines = [line.split() for line in done.stdout.splitlines()]
        entered = [(int(depth), names[int(address, 16)]) for depth, address in lines]
        ours = [(depth, name) for depth, name in entered if name in known]
        sections = [known[name][0] for _, name in ours]
        changes = sum(a != b for a, b in zip(sections, sections[1:]))
        outermost = min(depth for depth, _ in ours)
        result[what] = (len({name for _, name in ours}), max(depth for depth, _ in ours) - outermost + 1, changes)
        if "-v" in sys.argv:
            print("\n".join(f"{what} {'  ' * depth}{name} {known[name][0]}" for depth, name in ours))
    return result


def run_path(what, module):
    """In a process of its own: one export or one import, after others have filled what is remembered."""
    sys.path.insert(0, str(Path(module).parent))
    import image
    import numpy

    library = ctypes.PyDLL(module)
    picture, array = image.Image(4, 4), numpy.zeros((4, 4, 3), numpy.uint8)
    kept = []  # of an export: its end is another path
    for round in range(3):
        if round == 2:
            library.path_start()
        if what == "export":
            kept.append(picture.__dlpack__(max_version=(1, 0)))
        else:
            image.blur(array)
        if round == 2:
            library.path_stop()
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)


def main():
    known = functions()
    figures = {
        "lines": len(HEADER),
        "functions": len(known),
        "public functions": sum("_impl_" not in name for name in known),
        "private functions with one caller": with_one_caller(known),
    }
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        bare = folder / "bare.c"
        bare.write_text(without_dlpack())
        bare_size, bare_seconds = size_and_time(bare, folder)
        size, seconds = size_and_time(EXAMPLE, folder)
        walked = paths(known, folder)
    print(f"dlpack_py.h, image.c with {COMPILER} -O2\n")
    print(f"{'':42}{'now':>14}{'limit':>10}{'must':>14}")
    for name, now in figures.items():
        print(f"{name:42}{now:>14}{LIMITS[name]:>10}{MUST[name]:>14}")
    must = MUST["stripped size, bytes"]
    print(f"{'stripped size, bytes':42}{size:>14}{SIZE_LIMIT:>10}{must:>14}  {bare_size} without DLPack")
    print(f"{'compile time, CPU seconds':42}{seconds:>14.2f}{'-':>10}{1.1:>14}  {bare_seconds:.2f} without DLPack")
    for what, now in walked.items():
        name = f"{what}: functions, depth, sections"
        must = ", ".join(map(str, MUST[name]))
        print(f"{name:42}{', '.join(map(str, now)):>14}{must:>10}{must:>14}")
    passed = [name for name, now in figures.items() if now > LIMITS[name]]
    passed += [
        f"{what}: functions, depth, sections"
        for what, now in walked.items()
        if any(a > b for a, b in zip(now, MUST[f"{what}: functions, depth, sections"]))
    ]
    version = subprocess.run([COMPILER, "-dumpfullversion"], capture_output=True, text=True).stdout
    if version.startswith("12.") and size > SIZE_LIMIT:
        passed.append("stripped size")
    if passed:
        sys.exit(f"above the limit: {', '.join(passed)}")


if __name__ == "__main__":
    run_path(*sys.argv[2:]) if sys.argv[1:2] == ["path"] else main()
