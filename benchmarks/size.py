"""The costs of the headers for their users and readers. Run by `make size`; fails if a figure exceeds its limit (must).

The bytes and the compile time are those of examples/minimal/image.c, without those of the same file without its DLPack
parts, or beside them. A path is one call of this extension, built with -finstrument-functions: the functions of the
headers that it enters, the lines from one to the next where both stand in one file, and the changes of file. The bytes
are held for gcc 12 only. The seconds drift by half from machine to machine: the instructions of the compiler, which
valgrind counts, stand for them. Neither is held. `size.py -v` prints the functions of each path, and `size.py lines
FILE ...` the figures of these files, which need no compiler.
"""

import ctypes
import os
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "minimal" / "image.c"
COMPILER = os.environ.get("CC", "cc")

# {figure: (must, aim)}: no figure may pass its must, and no must is raised without new functions. None: there is none.
# dlpack_tensor.h was held to 1440 before dlpack_py_to_int64 and dlpack_py_strides_from_bytes, dlpack_py.h to 2150 lines
# and 92 functions before dlpack_py_parse_dtype, dlpack_py_parse_device and exceptions that name the argument,
# dlpack_exchange.h to 1200 before dlpack_py_check_like and results of the argument's own type. Before PyPy, dlpack_py.h
# was held to 2190 and dlpack_buffer.h to 830.
LINES = {
    "dlpack_tensor.h": (1475, 1250),
    "dlpack_py.h": (2186, 1950),
    "dlpack_exchange.h": (1240, 1050),
    "dlpack_buffer.h": (840, None),
    "dlpack_copy.h": (400, None),
    "dlpack_device.h": (1150, 1050),
    "dlpack_device_library.h": (103, None),
    "dlpack_cuda_array_interface.h": (200, None),
    "dlpack_cuda.h": (302, None),
    "dlpack_rocm.h": (304, None),
    "dlpack_py.hpp": (None, None),
}
BY_HAND = ROOT / "examples" / "by_hand" / "by_hand.c"
BY_HAND_LINES = (450, None)
FUNCTIONS = {
    "functions": (94, None),
    "public functions": (30, None),
    "prototypes of functions that follow": (0, None),
    "functions used above their definition": (0, None),
}
PATHS = {
    "export": {"functions": (28, 24), "lines travelled": (3700, None), "changes of file": (8, None)},
    "import with release": {"functions": (28, 24), "lines travelled": (11500, None), "changes of file": (8, None)},
}
BYTES = (27000, 22000)
# Millions of instructions that the compiler executes: as many as in 0.5 and in 0.4 s of the machine where the seconds
# were set. There 0.45 s are 2653 million instructions.
COMPILER_INSTRUCTIONS = (2947, 2358)


# ---- Reading a header ----


class Header:
    """The functions of a header: those of C code that is laid out in any way, but not those that macros make.

    first: {name: the first line of its first definition}; prototypes: names that are declared before they are defined
    (or are defined nowhere in this file); early: names that are used above their definition, also by way of a macro.
    Not in prototypes and early: what stands inside of `#ifdef DLPACK_..._H`, the hooks of headers that are optional.
    """

    TOKEN = re.compile(r"\w+|->|\S")
    OURS = re.compile(r"(dlpack|dlp)_\w+$")
    HOOK = re.compile(r"(ifdef\s+|if\s+defined\b[\s(]*)DLPACK_\w+_H\b[\s)]*$")

    def __init__(self, path):
        text = path.read_text()
        self.lines = text.count("\n")
        self.macros = {}
        tokens = self.tokens(self.without_comments(text))
        self.first, self.prototypes, inside = {}, [], set()
        begins = {}
        for i, last, is_definition in self.declarations(tokens):
            name, line, _ = tokens[i]
            if is_definition:
                self.first.setdefault(name, line)
                begins.setdefault(name, i)
            else:
                inside.update(range(i, last))
                if not tokens[i][2] and name not in begins:
                    self.prototypes.append(name)
        self.early = set()
        for i, (name, _, is_aside) in enumerate(tokens):
            if is_aside or i in inside or (i > 0 and tokens[i - 1][0] in ("struct", "union", "enum", ".", "->")):
                continue
            self.early.update(used for used in self.reached(name) if i < begins.get(used, i))

    @property
    def public(self):
        return [name for name in self.first if is_public(name)]

    @staticmethod
    def without_comments(text):
        """Comments and the contents of strings become blanks; lines keep their numbers."""

        def blank(found):
            if found[0][0] == "/":
                return re.sub(r"[^\n]", " ", found[0])
            return found[0][0] * 2

        return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.DOTALL)

    def tokens(self, text):
        """(token, line, whether it stands in a hook), without directives; fills macros."""
        found, hooks = [], []  # hooks: of each open #if, whether it is one
        lines = enumerate(text.split("\n"), 1)
        for number, line in lines:
            if line.lstrip().startswith("#"):
                while line.endswith("\\"):
                    line = line[:-1] + next(lines)[1]
                directive = line.strip()[1:].strip()
                if directive.startswith("if"):
                    hooks.append(self.HOOK.match(directive) is not None)
                elif directive.startswith("el"):
                    hooks[-1] = False
                elif directive.startswith("endif"):
                    hooks.pop()
                macro = re.match(r"define\s+(\w+)(.*)", directive)
                if macro:
                    self.macros.setdefault(macro[1], set()).update(re.findall(r"\w+", macro[2]))
            else:
                found += [(token, number, any(hooks)) for token in self.TOKEN.findall(line)]
        return found

    def declarations(self, tokens):
        """(first token, last token, whether it is a definition) of each function, from its name on."""
        depth, typedef, i = 0, False, 0
        while i < len(tokens):
            token = tokens[i][0]
            if token == "{":
                depth += not self.opens_linkage(tokens, i)
            elif token == "}":
                depth = max(depth - 1, 0)
            elif token in (";", "typedef") and depth == 0:
                typedef = token == "typedef"
            elif depth == 0 and not typedef and self.OURS.match(token) and tokens[i + 1 : i + 2] != []:
                if tokens[i + 1][0] == "(":
                    last = next(k for k in range(i, len(tokens)) if tokens[k][0] in ("{", ";"))
                    yield i, last, tokens[last][0] == "{"
                    i = last - 1
            i += 1

    @staticmethod
    def opens_linkage(tokens, i):
        return [token for token, _, _ in tokens[max(i - 3, 0) : i]] == ["extern", '"', '"']

    def reached(self, name, seen=None):
        """The functions that a name stands for: itself, or what a macro mentions."""
        seen = set() if seen is None else seen
        if name in seen:
            return set()
        seen.add(name)
        if self.OURS.match(name):
            return {name}
        return set().union(*(self.reached(other, seen) for other in self.macros.get(name, ())))


def is_public(name):
    return name.startswith("dlpack_")


# ---- The example ----


def include_flags():
    import tvm_ffi.libinfo

    includes = [tvm_ffi.libinfo.find_dlpack_include_path(), sysconfig.get_path("include")]
    # Asserts in macros of Python.h hold the path of the header: without the map a longer path makes a larger module.
    mapped = f"-fmacro-prefix-map={ROOT}/="
    return [f"-I{ROOT}", mapped, *(flag for include in includes for flag in ("-isystem", include))]


def build(source, target, *flags):
    """Builds a module. Returns the seconds of CPU time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([COMPILER, "-fPIC", "-shared", *include_flags(), *flags, source, "-o", target], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def without_dlpack():
    """The example without its DLPack parts."""
    return re.sub(r"/\* dlpack: begin \*/.*?/\* dlpack: end \*/", "", EXAMPLE.read_text(), flags=re.DOTALL)


def code_size(module):
    """The bytes of .text and .rodata, or None without the tool `size`."""
    if shutil.which("size") is None:
        return None
    table = subprocess.run(["size", "-A", module], capture_output=True, text=True, check=True).stdout
    return sum(int(size) for size in re.findall(r"^\.(?:text|rodata)\s+(\d+)", table, re.MULTILINE))


def size_and_time(source, folder, *flags):
    target = folder / "image.so"
    seconds = min(build(source, target, "-O2", *flags) for _ in range(5))
    return code_size(target), seconds


def compiler_instructions(source, folder):
    """Millions of instructions that gcc executes to compile a preprocessed file, or None without gcc or valgrind."""
    compiler = subprocess.run([COMPILER, "-print-prog-name=cc1"], capture_output=True, text=True).stdout.strip()
    if shutil.which("valgrind") is None or shutil.which(compiler) is None:
        return None
    text = folder / f"{source.stem}.i"
    subprocess.run([COMPILER, "-O2", "-fPIC", "-E", *include_flags(), source, "-o", text], check=True)
    command = [compiler, "-quiet", "-O2", "-fPIC", "-fpreprocessed", text, "-o", text.with_suffix(".s")]
    counted = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *command],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(re.search(r"Collected : (\d+)", counted.stderr)[1]) / 1e6


def paths(headers, folder):
    """{"export" or "import with release": {figure: number}}"""
    module = folder / ("image" + sysconfig.get_config_var("EXT_SUFFIX"))
    build(EXAMPLE, module, "-O0", "-finstrument-functions", "-Wl,-Bsymbolic", ROOT / "benchmarks" / "path.c", "-ldl")
    symbols = subprocess.run(["nm", module], capture_output=True, text=True, check=True).stdout
    names = {int(address, 16): name for address, name in re.findall(r"^(\w+) [tT] (\w+)$", symbols, re.MULTILINE)}
    places = {name: (file, line) for file, header in headers.items() for name, line in header.first.items()}
    result = {}
    for what in PATHS:
        command = [sys.executable, Path(__file__).resolve(), "path", what, module]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
        entered = [(int(depth), names[int(at, 16)]) for depth, at in map(str.split, done.stdout.splitlines())]
        entered = [(depth, name, *places[name]) for depth, name in entered if name in places]
        steps = list(zip(entered, entered[1:]))
        result[what] = {
            "functions": len({name for _, name, _, _ in entered}),
            "lines travelled": sum(abs(a[3] - b[3]) for a, b in steps if a[2] == b[2]),
            "changes of file": sum(a[2] != b[2] for a, b in steps),
        }
        if "-v" in sys.argv:
            print(f"{what}:")
            print("\n".join(f"  {'  ' * depth}{name} {file}:{line}" for depth, name, file, line in entered))
    return result


def run_path(what, module):
    """In a process of its own: one export or one import, after other exchanges have filled the caches."""
    sys.path.insert(0, str(Path(module).parent))
    import image
    import numpy

    library = ctypes.PyDLL(module)
    picture, array = image.Image(4, 4), numpy.zeros((4, 4, 3), numpy.uint8)
    kept = []  # the export, whose release is another path
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


# ---- The table ----


class Table:
    def __init__(self):
        self.passed = []
        print(f"{'':66}{'now':>8}{'must':>8}{'aim':>8}")

    def row(self, name, now, limits, said="", is_held=True):
        must, aim = limits
        is_above = must is not None and now is not None and now > must
        if is_above and is_held:
            self.passed.append(name)
        cells = "".join(f"{'-' if cell is None else cell:>8}" for cell in (now, must, aim))
        print(f"{name:66}{cells}{'  above its must' * is_above}{'  ' * bool(said)}{said}")


def print_lines(table, headers):
    for name, header in headers.items():
        table.row(f"{name}: lines", header.lines, LINES.get(name, (None, None)))


def print_functions(table, name, header, limits):
    figures = [len(header.first), len(header.public), len(header.prototypes), len(header.early)]
    named = ["", "", ", ".join(header.prototypes), ", ".join(sorted(header.early))]
    for (figure, must), now, said in zip(limits.items(), figures, named):
        table.row(f"{name}: {figure}", now, must, said)


def main():
    headers = {name: Header(ROOT / name) for name in LINES}
    table = Table()
    print_lines(table, headers)
    table.row("examples/by_hand/by_hand.c: lines", len(BY_HAND.read_text().splitlines()), BY_HAND_LINES)
    print_functions(table, "dlpack_py.h", headers["dlpack_py.h"], FUNCTIONS)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for what, figures in paths(headers, folder).items():
            for figure, now in figures.items():
                table.row(f"one {what}: {figure}", now, PATHS[what][figure])
        bare = folder / "bare.c"
        bare.write_text(without_dlpack())
        bare_size, bare_seconds = size_and_time(bare, folder)
        size, seconds = size_and_time(EXAMPLE, folder)
        fast_size, fast_seconds = size_and_time(EXAMPLE, folder, "-include", ROOT / "dlpack_exchange.h")
        with ThreadPoolExecutor() as pool:
            bare_counted, counted = pool.map(compiler_instructions, [bare, EXAMPLE], [folder, folder])
    version = subprocess.run([COMPILER, "-dumpfullversion"], capture_output=True, text=True).stdout.strip()
    is_reference = version.startswith("12.")
    said = f"{bare_size} without DLPack" + ", not held: no gcc 12" * (not is_reference)
    table.row("image.c, -O2: .text + .rodata, bytes", size, BYTES, f"{said}, {COMPILER} {version}", is_reference)
    seconds, fast_seconds = round(seconds - bare_seconds, 2), round(fast_seconds - bare_seconds, 2)
    table.row("image.c: CPU seconds to compile its DLPack parts", seconds, (None, None), f"{bare_seconds:.2f} without")
    said = "not counted: no gcc, or no valgrind" if counted is None else "not held"
    counted = None if counted is None else round(counted - bare_counted)
    table.row("image.c: million instructions to do so", counted, COMPILER_INSTRUCTIONS, said, False)
    table.row("the same with dlpack_exchange.h: bytes", fast_size, (None, None))
    table.row("the same with dlpack_exchange.h: CPU seconds", fast_seconds, (None, None))
    if table.passed:
        sys.exit(f"\nabove their must: {'; '.join(table.passed)}")


def print_files(paths):
    headers = {path.name: Header(path) for path in map(Path, paths)}
    table = Table()
    print_lines(table, headers)
    for name, header in headers.items():
        print_functions(table, name, header, dict.fromkeys(FUNCTIONS, (None, None)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["path"]:
        run_path(*sys.argv[2:])
    elif sys.argv[1:2] == ["lines"]:
        print_files(sys.argv[2:])
    else:
        main()
