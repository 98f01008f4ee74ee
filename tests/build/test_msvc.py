"""What cl.exe refuses or warns about at /W4 is in no header, no example and no code of the guides.

cl.exe is not here. clang-cl compiles for Windows in its place, with the extensions of Microsoft and without __clang__:
the headers take their branches for cl.exe. The C library and pyconfig.h are those of windows.h; Python.h is that of
each interpreter of the machine. `refused` finds what clang-cl accepts and cl.exe does not. PLANTED proves each check.
"""

import functools
import itertools
import re
import shutil
import subprocess

import machine
import pytest
import test_deprecated
from test_compilers import MATRIX
from test_documents import GUIDES, samples_source, several_arrays
from test_header import TEXTS

ROOT = machine.ROOT
CLANG, QUERY = shutil.which("clang-19"), shutil.which("clang-query-19")
ARCHITECTURES = ["x86_64", "i686", "aarch64"]
MODES = {"C": ["/TC"], "C17": ["/TC", "/std:c17"], "C++17": ["/TP", "/std:c++17"]}
PYTHONS = list(machine.pythons())
USES_ALL = ROOT / "tests" / "build" / "uses_all.c"

# Left out: by_hand.c and planes.c use C11 atomics and built-ins of GCC and clang. gpu_vector.c needs the headers of a
# device runtime.
LEFT_OUT = ["by_hand.c", "planes.c", "gpu_vector.c"]
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*/*.c")) if path.name not in LEFT_OUT]

# Clang sees the parameters of Py_UNUSED; Python.h turns the warning of cl.exe off from 3.12 on.
PY_UNUSED = "-Wno-unused-parameter"

# What cl.exe warns about at /W4 has other names in clang. -Wgnu, -Wvla and -Wpedantic: language that cl.exe lacks.
# clang-cl reads -Wvla as /Wv, an option of cl.exe.
WARNINGS = """/W4 /WX -Wpedantic -Wno-language-extension-token -Wconversion -Wsign-conversion -Wshadow-all -Wgnu
    /clang:-Wvla -Wunreachable-code-aggressive -Wconditional-uninitialized -Wcast-qual""".split()

pytestmark = pytest.mark.skipif(CLANG is None, reason="clang-cl: not on this machine")
needs_query = pytest.mark.skipif(QUERY is None, reason="clang-query: not on this machine")


@pytest.fixture(scope="module")
def windows(tmp_path_factory):
    """A function that gives the flags to compile for Windows."""
    folder = tmp_path_factory.mktemp("windows")
    text = (ROOT / "tests" / "build" / "windows.h").read_text()
    parts = re.split(r"^/\* ---- (\S+) ---- \*/\n", text, flags=re.MULTILINE)
    files = dict(zip(parts[1::2], parts[2::2]))
    pyconfig = files.pop("pyconfig.h")
    for name, part in files.items():
        (folder / "library" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "library" / name).write_text(part)

    @functools.cache
    def python_headers(version):
        headers = folder / version
        shutil.copytree(machine.pythons()[version][1], headers)  # Python.h includes the pyconfig.h beside it
        (headers / "pyconfig.h").write_text(pyconfig)
        return headers

    def flags(mode, architecture="x86_64", version=PYTHONS[-1]):
        found = ["--driver-mode=cl", f"--target={architecture}-pc-windows-msvc", "-U__clang__", *MODES[mode]]
        for folder_of in folder / "library", python_headers(version), list(machine.dlpack_headers().values())[-1]:
            found += ["-imsvc", str(folder_of)]
        return [*found, f"-I{ROOT}"]

    return flags


def run(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


def compiles(source, *flags, more=()):
    done = run(CLANG, *flags, *WARNINGS, *more, "/Zs", "--", source)
    assert done.returncode == 0 and done.stderr == "", done.stderr


def sample(values, step):
    """All values with DLPACK_PY_MATRIX, else each so many-th."""
    return list(values) if MATRIX else list(values)[::step]


def combinations(*dimensions):
    """All combinations with DLPACK_PY_MATRIX, else each value once."""
    if MATRIX:
        return list(itertools.product(*dimensions))
    return list(itertools.islice(zip(*map(itertools.cycle, dimensions)), max(map(len, dimensions))))


@pytest.mark.parametrize("version, architecture, mode", combinations(PYTHONS, ARCHITECTURES, list(MODES)))
def test_the_headers_compile_for_windows(windows, version, architecture, mode):
    forms = [[], ["-DUSES_ALL_PLAIN"]]
    if version == "3.13":
        forms += [["-DPy_GIL_DISABLED=1"], ["-DPy_LIMITED_API=0x030C0000"]]
    for form in forms:
        compiles(USES_ALL, *windows(mode, architecture, version), *form)


@pytest.mark.parametrize("architecture, mode", combinations(ARCHITECTURES, list(MODES)))
def test_the_tensor_layer_and_the_fast_copy_compile_for_windows(windows, architecture, mode):
    for copy in [], ["/FIdlpack_copy.h"], ["/FIdlpack_copy.h", "-DDLPACK_COPY_PORTABLE"]:
        compiles(USES_ALL, *windows(mode, architecture), "-DUSES_ALL_TENSORS", *copy)


@pytest.mark.parametrize("example", sample(EXAMPLES, 4), ids=lambda path: path.name)
def test_the_examples_compile_for_windows(windows, example):
    for architecture, mode in combinations(ARCHITECTURES, ["C", "C17"]):
        compiles(example, *windows(mode, architecture), more=[PY_UNUSED])


# What C89 lacks and cl.exe accepts without a warning.
ACCEPTED = re.compile(
    "'long long' is an extension|variadic macros are a C99 feature|ISO C90 forbids mixing declarations"
    "|variable declaration in for loop|designated initializers are a C99 feature|commas at the end of enumerator lists"
    "|empty macro arguments are a C99 feature"
)

# C4204 and C4221: C89 allows constants only. The headers turn the warnings off, and the guide says that they come.
RUN_TIME_VALUE = "initializer for aggregate is not a compile-time constant"

# Words that cl.exe does not know in all modes. clang's own headers use some built-ins.
FOREIGN = re.compile(
    r"\b(?!__builtin_(?:offsetof|va_|ia32_|shufflevector)\w*\b)(?:__attribute__|__builtin_\w+|__extension__|__typeof__|typeof|__int128"
    r"|_Complex|_Thread_local|_Alignas|_Static_assert|_Noreturn|_Generic|_Atomic|restrict|__asm__|asm)\b"
    r"|# *pragma (?:GCC|clang)\b"
)

OURS = 'isExpansionInFileMatching("dlpack_[a-z]+[.]hp*$|uses_all[.]c$|source[.]cp*$|examples/[a-z_/]+[.]c$")'
IN_HEADERS = 'isExpansionInFileMatching("dlpack_[a-z]+[.]hp*$")'
ASSIGNMENT = "ignoringParenImpCasts(binaryOperator(isAssignmentOperator()))"
# Neither a variable nor a call is in it; a single literal is allowed.
CONSTANT = """ignoringParenImpCasts(expr(unless(anyOf(integerLiteral(), cxxBoolLiteral(), callExpr(), memberExpr(),
    declRefExpr(unless(to(enumConstantDecl()))), hasDescendant(callExpr()),
    hasDescendant(declRefExpr(unless(to(enumConstantDecl()))))))))"""
IMPORTED = 'declRefExpr(to(functionDecl(hasAttr("attr::DLLImport"))))'
WIDE = """hasImplicitDestinationType(qualType(isInteger(), hasCanonicalType(anyOf(asString("long long"),
    asString("unsigned long long")))))"""


def conditions(what):
    return f"""stmt({OURS}, anyOf(ifStmt(hasCondition({what})), whileStmt(hasCondition({what})),
        forStmt(hasCondition({what})), doStmt(hasCondition({what})),
        binaryOperator(hasAnyOperatorName("&&", "||"), hasEitherOperand({what}))))"""


# What clang has no warning for, as clang-query finds it in the syntax tree.
MATCHERS = {
    "C4706: an assignment as a condition": conditions(ASSIGNMENT),
    "C4127: a constant condition": conditions(CONSTANT),
    "C4146: minus before an unsigned value": f"""unaryOperator({OURS}, hasOperatorName("-"),
        hasUnaryOperand(hasType(isUnsignedInteger())))""",
    "C4505: a function of a header that is static, and not inline": f"""functionDecl({IN_HEADERS}, isDefinition(),
        isStaticStorageClass(), unless(isInline()))""",
    "C4232: static data with the address of an imported function": f"""varDecl({OURS}, hasStaticStorageDuration(),
        hasInitializer(anyOf(ignoringParenCasts({IMPORTED}), hasDescendant({IMPORTED}))))""",
    "C4319 and C4334: 32 bits of ~ or << become 64": f"""implicitCastExpr({OURS}, {WIDE}, hasSourceExpression(
        ignoringParens(expr(anyOf(unaryOperator(hasOperatorName("~")), binaryOperator(hasOperatorName("<<")))))))""",
    "C4090: const of a pointer to a pointer, which cl.exe loses": f"""implicitCastExpr({OURS},
        hasImplicitDestinationType(pointsTo(qualType(voidType(), unless(isConstQualified())))),
        hasSourceExpression(hasType(pointsTo(qualType(pointerType(pointee(isConstQualified()))))))) """,
}


def places(text):
    return re.findall(r"^(\S*?)\((\d+),\d+\): note: \"root\" binds here$", text, re.MULTILINE)


def found_in_tree(folder, flags, source):
    """[(what, file, line)] of all that the matchers find."""
    queries = folder / "queries"
    lines = [f"match {' '.join(matcher.split())}" for matcher in MATCHERS.values()]
    queries.write_text("\n".join(["set output diag", *lines]) + "\n")
    includes_it = folder / "source.c"  # a path that begins as an option of cl does, such as /work, is taken for one
    if source != includes_it:
        includes_it.write_text(f'#include "{source}"\n')
    done = run(QUERY, "-f", queries, includes_it, "--", *flags)
    answers = re.split(r"^\d+ match(?:es)?\.$", done.stdout, flags=re.MULTILINE)
    assert len(answers) == len(MATCHERS) + 1, done.stdout[-2000:] + done.stderr
    for what, answer in zip(MATCHERS, answers):
        for place in places(answer):
            yield f"{what}: {place}"


def problems(text):
    return re.findall(r"^.*(?:error|warning): .*$", text, re.MULTILINE)


def refused(folder, windows, source, mode, *more):
    """Finds what cl.exe would refuse or warn about, in a file and in what it includes of ours."""
    flags = windows(mode)
    yield from problems(run(CLANG, *flags, *WARNINGS, *more, "/Zs", "--", source).stderr)
    flags += more
    ours = False
    for line in run(CLANG, *flags, "/E", "--", source).stdout.splitlines():
        marker = re.match(r'#(?: |line )\d+ "(.*?)"', line)
        if marker:
            ours = re.search(r"dlpack_\w+\.hp*$|uses_all\.c$|source\.c|examples/\w+/\w+\.c$", marker[1])
        elif ours and (word := FOREIGN.search(line)):
            yield f"{ours[0]}: {word[0]}: {line.strip()}"
    if mode != "C++17":
        in_c89 = ["-Xclang", "-std=c89", "-Dinline=__inline", "-Wno-everything"]
        in_c89 += ["-Wc99-extensions", "-Wc11-extensions", "-Wc23-extensions"]
        found = problems(run(CLANG, *flags, *in_c89, "/Zs", "--", source).stderr)
        yield from (line for line in found if not ACCEPTED.search(line))
    yield from found_in_tree(folder, flags, source)


PLANTED = {
    "statement expression": "int f(int a) { return ({ a; }); }",
    "attribute": "int f(void) __attribute__((cold));",
    "built-in": "int f(int a) { return __builtin_popcount((unsigned)a); }",
    "pragma": '_Pragma("GCC diagnostic ignored \\"-Wshadow\\"")',
    "variable length array C2057": "int f(int n) { int a[n]; a[0] = n; return a[0]; }",
    "empty struct C2016": "typedef struct empty { } empty;",
    "array of no items C4200": "typedef struct items { int count; int item[0]; } items;",
    "flexible array C4200": "typedef struct items { int count; int item[]; } items;",
    "empty initializer": "int f(void) { int a[2] = {}; return a[0]; }",
    "restrict": "int f(int *restrict a); ",
    "typeof": "int f(int a) { typeof(a) b = a; return b; }",
    "static assertion": '_Static_assert(1, "");',
    "alignas": "typedef struct wide { _Alignas(16) int a; } wide;",
    "thread local": "static _Thread_local int value; int *f(void); int *f(void) { return &value; }",
    "complex": "double _Complex f(double _Complex z);",
    "unnamed struct C4201": "typedef struct outer { struct { int a; }; } outer;",
    "static in an array parameter": "int f(int a[static 2]);",
    "range of cases": "int f(int a) { switch (a) { case 1 ... 3: return 1; default: return 0; } }",
    "? without a middle": "int f(int a) { return a ?: 1; }",
    "void pointer arithmetic": "void *f(void *a) { return a + 1; }",
    "run-time value in an aggregate C4204": "int f(int n) { const int a[2] = {n, 1}; return a[0]; }",
    "run-time value in a struct C4204": "typedef struct s { int a; } s; int f(int n) { s v = {n}; return v.a; }",
    "address of a local C4221": "int f(void) { int a = 1; int *p[1] = {&a}; return *p[0]; }",
    "address of imported data C2099": "PyTypeObject *type = &PyType_Type;",
    "address of an imported function C4232": "getattrofunc get = PyObject_GenericGetAttr;",
    "64 bits in a long": "long f(int64_t a) { return a; }",
    "1UL": "uint64_t f(void) { return 1UL << 40; }",
    "shift of 32 bits C4334": "int64_t f(int a) { return 1 << a; }",
    "complement of 32 bits C4319": "uint64_t f(uint64_t a, uint32_t b) { return a & ~b; }",
    "assignment in if C4706": "int f(int a, int b) { if ((a = b)) return a; return 0; }",
    "assignment in while C4706": "int f(const char *a) { int c; while ((c = *a++)) ++a; return c; }",
    "constant condition C4127": "int f(int a) { if (sizeof(void *) == 8) return a; return 0; }",
    "constant operand C4127": "int f(int a) { return a && sizeof(long) > 4 ? 1 : 0; }",
    "minus unsigned C4146": "unsigned f(unsigned a) { return -a; }",
    "unused parameter C4100": "int f(int a) { return 0; }",
    "unused variable C4189": "int f(void) { int a = 1; return 0; }",
    "hidden variable C4456": "int f(int a) { if (a) { int a = 2; return a; } return 0; }",
    "hidden global C4459": "static int a = 1; int f(int b) { int a = b; return a; } int g(void) { return a; }",
    "not initialized C4701": "int f(int a) { int b; if (a) b = 1; return b; }",
    "unreachable C4702": "int f(int a) { return a; a = 1; return a; }",
    "signs in a comparison C4389": "int f(int a, unsigned b) { return a == (int)b && b < a; }",
    "smaller integer C4244": "short f(int a) { return a; }",
    "size_t in an int C4267": "int f(size_t a) { return a; }",
    "function pointer as data C4152": "void *f(void) { return f; }",
    "const of a pointer to a pointer C4090": "void f(const char **a) { free(a); }",
    "deprecated function C4996": "void f(char *a, const char *b) { strcpy(a, b); }",
    "getenv C4996": 'char *f(void) { return getenv("HOME"); }',
    "function of POSIX": "int f(void) { return getpid(); }",
    "header of POSIX": "#include <unistd.h>",
    "strdup": "char *f(const char *a) { return strdup(a); }",
    "aligned_alloc": "void *f(void) { return aligned_alloc(64, 64); }",
}


@needs_query
@pytest.mark.parametrize("name", sample(PLANTED, 6))
def test_what_cl_refuses_is_found(tmp_path, windows, name):
    source = tmp_path / "source.c"
    header = "dlpack_py.h" if "Py" in PLANTED[name] else "dlpack_tensor.h"
    source.write_text(f'#include "{header}"\n{PLANTED[name]}\n')
    assert any("source.c" in line for line in refused(tmp_path, windows, source, "C"))


@needs_query
def test_what_cl_refuses_in_a_header_is_found(tmp_path, windows):
    """C4505, and an initializer with a name, which C++ has from C++20 on."""
    (tmp_path / "dlpack_planted.h").write_text("static int f(void) { return 1; }\ntypedef struct s { int a; } s;\n")
    source = tmp_path / "source.cpp"
    source.write_text('#include "dlpack_planted.h"\nint g() { return f(); }\n')
    assert any("C4505" in line for line in refused(tmp_path, windows, source, "C++17"))
    source.write_text('#include "dlpack_planted.h"\nint g() { s v = {.a = f()}; return v.a; }\n')
    assert any("designated" in line for line in refused(tmp_path, windows, source, "C++17"))


@needs_query
@pytest.mark.parametrize("form", [[], ["-DUSES_ALL_PLAIN"], ["-DUSES_ALL_TENSORS"]], ids=["all", "plain", "tensors"])
@pytest.mark.parametrize("mode", ["C", "C++17"])
def test_nothing_in_the_headers_is_refused(tmp_path, windows, mode, form):
    found = refused(tmp_path, windows, USES_ALL, mode, *form)
    assert [line for line in found if RUN_TIME_VALUE not in line] == []


def test_each_header_turns_off_warnings_of_cl_and_restores_them(windows):
    text = run(CLANG, *windows("C"), "/E", "--", USES_ALL).stdout
    pragmas = re.findall(r"^#pragma warning\((push|pop|disable: 4204 4221)\)$", text, re.MULTILINE)
    assert " ".join(pragmas).count("push disable: 4204 4221 pop") == 4 == pragmas.count("disable: 4204 4221")


@pytest.mark.parametrize("mode", MODES)
def test_each_use_of_a_deprecated_name_is_a_warning_for_windows(tmp_path, windows, mode):
    source = tmp_path / "source.c"
    source.write_text(f'#include "{test_deprecated.SOURCE}"\n')
    compiles(source, *windows(mode))
    done = run(CLANG, *windows(mode), "/W4", "-DUSES", "/Zs", "--", source)
    assert done.returncode == 0 and test_deprecated.warned(done.stderr) == test_deprecated.INSTEAD, done.stderr


@needs_query
@pytest.mark.parametrize("example", EXAMPLES[:: 1 if MATRIX == "all" else 4], ids=lambda path: path.name)  # 8 s each
def test_nothing_in_the_examples_is_refused(tmp_path, windows, example):
    """Except for run-time values in initializers: C without them is longer."""
    found = refused(tmp_path, windows, example, "C", PY_UNUSED)
    assert [line for line in found if RUN_TIME_VALUE not in line] == []
    assert "C4204" in GUIDES["packaging"]


@needs_query
@pytest.mark.parametrize("code", [several_arrays, samples_source], ids=["several arrays", "Samples"])
def test_nothing_in_the_code_of_the_guides_is_refused(tmp_path, windows, code):
    source = tmp_path / "source.c"
    source.write_text(code())
    assert [line for line in refused(tmp_path, windows, source, "C") if RUN_TIME_VALUE not in line] == []


def modules():
    """The files below tests/ that CMake builds with MSVC, without what PyPy or a device needs."""
    lists = (ROOT / "tests" / "CMakeLists.txt").read_text()
    (left_out,) = re.findall(r'^if\(MSVC\)\n +list\(FILTER sources EXCLUDE REGEX "(.*)"', lists, re.MULTILINE)
    left_out = left_out.replace("\\\\", "\\")
    others = re.compile(r"/(?:build|fuzz|platforms|proofs|streams)/|/(?:faults|newer_version|embed_host)\.c$")
    for path in sorted((ROOT / "tests").glob("*/*.c")):
        if not re.search(left_out, str(path)) and not others.search(str(path)):
            yield path


@pytest.mark.parametrize("source", modules(), ids=lambda path: path.name)
def test_the_modules_of_the_tests_compile_for_windows(windows, source):
    flags = windows("C17")
    done = run(CLANG, *flags, "-Wno-everything", "-Wgnu", "-Wno-language-extension-token", "/Zs", "--", source)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    text = run(CLANG, *flags, "/E", "--", source).stdout
    own = re.findall(
        r'^# \d+ ".*?/tests/[\w/]+\.[ch]".*\n((?:(?!# \d).*\n)*)', text.replace("#line", "#"), re.MULTILINE
    )
    assert own and FOREIGN.search("".join(own)) is None


CUDA = [include for name, include in machine.runtimes().items() if name.startswith("CUDA")]


@needs_query
@pytest.mark.skipif(not CUDA, reason="headers of CUDA: not on this machine")
@pytest.mark.parametrize("mode", ["C", "C++17"])
def test_nothing_in_the_headers_for_cuda_is_refused(tmp_path, windows, mode):
    source = tmp_path / "source.c"
    uses = ROOT / "tests" / "build" / "uses_device.c"
    source.write_text(f'#include "dlpack_cuda.h"\n#include "{uses}"\n')
    found = refused(tmp_path, windows, source, mode, "-imsvc", CUDA[-1])
    assert [line for line in found if RUN_TIME_VALUE not in line] == []


FILES = [
    *(ROOT / f"{name}.h" for name in TEXTS),
    ROOT / "dlpack_py.hpp",
    *sorted((ROOT / "examples").glob("*/*.[ch]*")),
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_are_of_ascii_and_do_not_look_for_a_standard_of_c(path):
    """C4819; and cl.exe defines __STDC_VERSION__ only with /std."""
    text = path.read_text(encoding="utf-8")
    assert text.isascii() and "__STDC_VERSION__" not in text
    assert path.name in LEFT_OUT or "stdatomic.h" not in text


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_load_on_windows_does_not_write(tmp_path, windows, architecture):
    source = tmp_path / "source.c"
    source.write_text('#include "dlpack_py.h"\ndlp_atomic load(dlp_atomic *w) { return DLP_LOAD(w); }\n')
    done = run(
        CLANG,
        *windows("C", architecture),
        "/O2",
        "/c",
        "/FA",
        f"/Fa{tmp_path}/code.asm",
        f"/Fo{tmp_path}/o",
        "--",
        source,
    )
    assert done.returncode == 0, done.stderr
    body = re.search(r"^_?load:.*?\b(?:ret|br)", (tmp_path / "code.asm").read_text(), re.DOTALL | re.MULTILINE)[0]
    assert not re.search(r"lock|xchg|\bst", body), body
