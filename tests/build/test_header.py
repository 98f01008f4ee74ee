"""The headers can be copied into any project: their names, repeated includes, and includes beside other headers."""

import itertools
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import machine
import public_names
import pytest
from optional import needs_numpy

# The headers, and the least number of functions that the search must find in each.
LEAST = {
    "dlpack_tensor": 50,
    "dlpack_py": 60,
    "dlpack_exchange": 25,
    "dlpack_buffer": 15,
    "dlpack_copy": 5,
    "dlpack_device": 30,
    "dlpack_cuda": 10,
    "dlpack_rocm": 10,
    "dlpack_cuda_array_interface": 4,
    "dlpack_device_library": 1,
}
TEXTS = {name: (machine.ROOT / f"{name}.h").read_text() for name in LEAST}
KINDS = r"DLP_(?:COLD|NOINLINE|COPY_HOT)"  # words of linkage
STATIC = re.compile(rf"static inline |{KINDS} ")
each_header = pytest.mark.parametrize("name", TEXTS)

NO_CXX = list(machine.compilers().values())[-1][1] is None
needs_cxx = pytest.mark.skipif(NO_CXX, reason="C++ compiler: not on this machine")
both_languages = pytest.mark.parametrize("suffix", [".c", pytest.param(".cpp", marks=needs_cxx)])


def compile_text(folder, text, *flags, suffix=".c", **where):
    source = folder / f"source{suffix}"
    source.write_text(text)
    return machine.compile_c(source, *flags, "-c", "-o", str(folder / "source.o"), **where)


# The headers that each header for the CPU includes, in this order.
INCLUDES = {
    "dlpack_tensor": ["dlpack_tensor"],
    "dlpack_py": ["dlpack_tensor", "dlpack_py"],
    "dlpack_exchange": ["dlpack_exchange", "dlpack_tensor", "dlpack_py"],
    "dlpack_buffer": ["dlpack_tensor", "dlpack_py", "dlpack_buffer"],
    "dlpack_copy": ["dlpack_copy"],
}
# These headers change how another header works, so they are included before it.
BEFORE = {"dlpack_exchange": "dlpack_py", "dlpack_copy": "dlpack_tensor"}


def includes(names):
    return "".join(f'#include "{name}.h"\n' for name in names)


def too_late(names):
    """The first header of a list that comes after the header that it changes, or None."""
    seen = set()
    for name in names:
        if name not in seen and BEFORE.get(name) in seen:
            return name
        seen.update(INCLUDES[name])
    return None


def stops(done, lines=15):
    """The text of the only #error. An error for an include that is not found may follow: a header stops the compiler
    with such an include."""
    assert done.returncode != 0
    found = re.findall(r'error: (?:#error )?"(.*)"$', done.stderr, re.MULTILINE)
    others = re.findall(r"error: (?!(?:#error )?\").*$", done.stderr, re.MULTILINE)
    assert len(found) == 1, done.stderr[:3000]
    assert len(others) <= 1 and all(re.search("No such file|not found", other) for other in others), done.stderr[:3000]
    assert done.stderr.count("\n") <= lines, done.stderr
    return found[0]


ORDERS = [
    *itertools.permutations(INCLUDES, 1),
    *itertools.product(INCLUDES, repeat=2),
    ("dlpack_copy", "dlpack_exchange", "dlpack_buffer", "dlpack_py", "dlpack_tensor"),
    ("dlpack_copy", "dlpack_tensor", "dlpack_exchange", "dlpack_py", "dlpack_buffer"),
    ("dlpack_buffer", "dlpack_py", "dlpack_tensor", "dlpack_exchange", "dlpack_copy"),
]


@both_languages
@pytest.mark.parametrize("names", ORDERS, ids=", ".join)
def test_any_order_of_includes_works_or_is_one_error_with_the_fix(tmp_path, suffix, names):
    # The header itself suppresses warnings about style.
    flags = ["-Wold-style-cast", "-Wzero-as-null-pointer-constant"] if suffix == ".cpp" else []
    done = compile_text(tmp_path, includes(names), "-fsyntax-only", *flags, suffix=suffix)
    late = too_late(names)
    if late is None:
        assert done.returncode == 0 and done.stderr == "", done.stderr
    else:
        assert re.match(rf"include {late}\.h before .*{BEFORE[late]}\.h", stops(done))


@needs_cxx
@pytest.mark.parametrize(
    "names", [*INCLUDES, *map(list, itertools.permutations(["dlpack_exchange", "dlpack_py"]))], ids=str
)
def test_the_cpp_view_may_be_included_after_any_header(tmp_path, names):
    text = includes([names] if isinstance(names, str) else names)
    text += '#include "dlpack_py.hpp"\nint use(PyObject *x);\n'
    text += "int use(PyObject *x) { dlpack_py_unique_view v; return dlpack_py_consume(x, nullptr, v.reset()); }\n"
    done = compile_text(tmp_path, text, "-fsyntax-only", suffix=".cpp")
    if too_late([names] if isinstance(names, str) else names) is None:
        assert done.returncode == 0 and done.stderr == "", done.stderr
    else:
        assert "include dlpack_exchange.h before" in stops(done)


@both_languages
def test_headers_may_come_after_dlpack_h(tmp_path, suffix):
    text = "#include <dlpack/dlpack.h>\n" + includes(["dlpack_copy", "dlpack_exchange", "dlpack_buffer"])
    done = compile_text(tmp_path, text, "-fsyntax-only", suffix=suffix)
    assert done.returncode == 0 and done.stderr == "", done.stderr


@needs_cxx
def test_a_class_with_a_view_gives_no_warning_and_no_symbol_of_the_header(tmp_path):
    """With default visibility, as setuptools compiles (G2)."""
    text = """
        #include "dlpack_py.hpp"
        #include <utility>
        struct Field {
            dlpack_py_unique_view view;
        };
        Field *take(Field &&from);
        Field *take(Field &&from) { return new Field(std::move(from)); }
    """
    done = compile_text(tmp_path, text, "-O0", suffix=".cpp")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    library = tmp_path / "library.so"
    cxx = list(machine.compilers().values())[-1][1]
    subprocess.run([cxx, "-shared", str(tmp_path / "source.o"), "-o", str(library)], check=True)
    symbols = subprocess.run(["nm", "-DC", "--defined-only", library], capture_output=True, text=True, check=True)
    assert "take" in symbols.stdout and "T dlpack_py_" not in symbols.stdout and "W dlpack_py_" not in symbols.stdout


def test_each_result_of_a_call_that_fills_a_view_must_be_checked():
    text = "".join(path.read_text() for path in sorted(machine.ROOT.glob("dlpack_*.h")))
    functions = re.findall(r"^(.*)\n(dlpack_\w*(?:consume|from_dlpack|borrow|allocate_like)\w*)\(", text, re.MULTILINE)
    assert {"dlpack_py_consume", "dlpack_cuda_consume", "dlpack_rocm_from_dlpack"} <= {name for _, name in functions}
    assert [name for line, name in functions if "DLP_MUST_CHECK" not in line] == []


def test_each_error_ends_the_compilation():
    for path in [*machine.ROOT.glob("dlpack_*.h"), machine.ROOT / "dlpack_py.hpp"]:
        errors = re.findall(r"^# *error (?:.*\\\n)*.*\n(.*)", path.read_text(), re.MULTILINE)
        assert [line for line in errors if 'include "stop"' not in line] == [], path.name


@both_languages
@pytest.mark.parametrize(
    "call",
    [
        "dlpack_py_consume(x, NULL, &v)",
        "dlpack_py_from_dlpack_obj_args(x, NULL, NULL, NULL, &v)",
        "dlpack_py_borrow(x, NULL, &v)",
        "dlpack_py_allocate_like(x, &v.tensor, &v)",
        "dlpack_buffer_get(x, NULL, &b, 0)",
    ],
    ids=str,
)
def test_a_result_that_is_not_checked_is_a_warning(tmp_path, call, suffix):
    text = (
        '#include "dlpack_exchange.h"\n#include "dlpack_buffer.h"\n'
        "void f(PyObject *x);\nstatic dlpack_py_view v;\nstatic Py_buffer b;\n"
        "void f(PyObject *x) { (void)&v; (void)&b; %s; }\n"
    )
    done = compile_text(tmp_path, text % call, "-O0", "-Wno-error", suffix=suffix)
    assert done.returncode == 0 and "warn_unused_result" in done.stderr
    done = compile_text(tmp_path, text % f"if ({call} < 0) return", "-O0", suffix=suffix)
    assert done.returncode == 0 and done.stderr == "", done.stderr


@needs_cxx
def test_the_header_restores_style_warnings_of_cpp(tmp_path):
    text = '#include "dlpack_py.h"\n#include "dlpack_py.h"\nlong f(double d);\nlong f(double d) { return (long)d; }\n'
    done = compile_text(tmp_path, text, "-Wold-style-cast", suffix=".cpp")
    assert "old-style" in done.stderr
    assert compile_text(tmp_path, text, suffix=".cpp").returncode == 0


@needs_cxx
def test_macros_expand_to_code_without_c_casts_in_cpp(tmp_path):
    text = """
        #include "dlpack_exchange.h"
        #include "dlpack_buffer.h"
        static int describe(PyObject *, const dlpack_py_request *, dlpack_py_offer *) { return -1; }
        static PyObject *make(PyTypeObject *, dlpack_py_view *v) { dlpack_py_release(v); return nullptr; }
        DLPACK_PY_DESCRIBED(thing, describe);
        DLPACK_PY_EXCHANGE_API(thing_table, describe, make, nullptr);
        PyMethodDef thing_methods[] = {DLPACK_PY_METHODS(thing_dlpack, thing_dlpack_device), {}};
        int add(PyTypeObject *type);
        int add(PyTypeObject *type) { return dlpack_py_exchange_add(type, &thing_table); }
    """
    done = compile_text(tmp_path, text, "-Wold-style-cast", "-Wno-missing-field-initializers", suffix=".cpp")
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_python_h_comes_before_dlpack_copy_h(tmp_path):
    """Python.h sets feature macros for the C library. If it is not first, the headers of Python 3.11 give warnings,
    unless their folder is a system folder."""
    source = tmp_path / "source.c"
    source.write_text("#include <Python.h>\n" + includes(["dlpack_copy", "dlpack_py"]))
    command = [list(machine.compilers().values())[-1][0], "-std=c99", "-Wall", "-fsyntax-only"]
    command += [
        f"-I{machine.ROOT}",
        f"-I{machine.python_include()}",
        "-isystem",
        list(machine.dlpack_headers().values())[-1],
    ]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr


@both_languages
def test_dlpack_copy_h_is_usable_alone(tmp_path, suffix):
    text = """
        #include "dlpack_copy.h"
        void turn(char *to, const char *from);
        void turn(char *to, const char *from)
        {
            const dlpack_copy_loop rows = {100, 400, 4}, items = {100, 4, 400};
            dlpack_copy_rows(to, &rows, from, &items, 4, 40000);
        }
    """
    flags = ["-Wold-style-cast", "-Wzero-as-null-pointer-constant"] if suffix == ".cpp" else []
    for portable in ([], ["-DDLPACK_COPY_PORTABLE"]):
        done = compile_text(tmp_path, text, *flags, *portable, suffix=suffix)
        assert done.returncode == 0 and done.stderr == "", done.stderr


VERSION = re.search(r"^#define DLPACK_PY_VERSION (0x\w{6}) ", TEXTS["dlpack_tensor"], re.MULTILINE)[1]
VERSIONED = [name for name in LEAST if name != "dlpack_copy"]  # dlpack_copy.h uses no name of another header


def other_version(name, version="0x7f0000"):
    """The text of a header with another version number."""
    assert VERSION in TEXTS[name], f"{name}.h does not check the version"
    return TEXTS[name].replace(VERSION, version)


DEVICE_HEADERS = ("dlpack_device", "dlpack_device_library", "dlpack_cuda", "dlpack_rocm", "dlpack_cuda_array_interface")

PARTS = {"dlpack_device": "dlpack_cuda", "dlpack_device_library": "dlpack_cuda"}  # the files that include them


def runtime_flags(name):
    """Flags for the headers of the runtime that a device header needs. Skips the test if there are none."""
    if name in DEVICE_HEADERS:
        platform = "HIP" if name == "dlpack_rocm" else "CUDA"
        found = [include for runtime, include in machine.runtimes().items() if runtime.startswith(platform)]
        if not found:
            pytest.skip(f"headers of {platform}: not on this machine")
        flags = ["-D__HIP_PLATFORM_AMD__"] if platform == "HIP" else []
        flags += ["-DDLPACK_CUDA_AT_RUN_TIME"] if name == "dlpack_device_library" else []
        return [*flags, *([] if found[-1] == "/usr/include" else ["-isystem", found[-1]])]
    return []


@pytest.mark.parametrize("name", VERSIONED)
def test_headers_of_different_versions_in_one_file_are_one_error(tmp_path, name):
    """The folder holds one header of a different version."""
    (tmp_path / f"{name}.h").write_text(other_version(name))
    source = {"dlpack_tensor": "dlpack_py", **PARTS}.get(name, name)
    for other in TEXTS:  # an include with quotes looks first in the folder of the including file
        if other != name:
            (tmp_path / f"{other}.h").write_text(TEXTS[other])
    done = compile_text(tmp_path, includes([source]), "-fsyntax-only", *runtime_flags(name))
    assert "of different versions" in stops(done)


@pytest.mark.parametrize("name", [name for name in VERSIONED if name != "dlpack_device"])
@pytest.mark.parametrize("first", ["this", "other"])
def test_two_whole_versions_in_one_file_are_one_error(tmp_path, name, first):
    folder = tmp_path / "other"
    folder.mkdir()
    for header in VERSIONED:
        (folder / f"{header}.h").write_text(other_version(header))
    lines = [f'#include "other/{name}.h"\n', includes([name])]
    done = compile_text(
        tmp_path, "".join(lines[:: -1 if first == "this" else 1]), "-fsyntax-only", *runtime_flags(name)
    )
    assert "version" in stops(done)


@pytest.mark.parametrize("version", [VERSION, ""], ids=["another version", "no version"])
def test_a_copy_header_of_a_different_version_is_one_error(tmp_path, version):
    line = f"#define DLP_COPY_VERSION {VERSION}"
    text = TEXTS["dlpack_copy"]
    assert line in text
    (tmp_path / "dlpack_copy.h").write_text(text.replace(line, version and "#define DLP_COPY_VERSION 0x7f0000"))
    source = "#include <Python.h>\n" + includes(["dlpack_copy", "dlpack_py"])
    assert "version" in stops(compile_text(tmp_path, source, "-fsyntax-only"))


@needs_cxx
def test_a_cpp_header_of_a_different_version_is_an_error(tmp_path):
    (tmp_path / "dlpack_py.hpp").write_text((machine.ROOT / "dlpack_py.hpp").read_text().replace(VERSION, "0x7f0000"))
    done = compile_text(tmp_path, '#include "dlpack_py.hpp"\n', "-fsyntax-only", suffix=".cpp")
    assert done.returncode != 0 and "of different versions" in done.stderr


def test_the_older_single_file_version_is_one_error(tmp_path):
    """0.1.0 was a single file that defined the version itself."""
    text = "#define DLPACK_PY_VERSION 0x000100\n" + includes(["dlpack_tensor"])
    assert "version" in stops(compile_text(tmp_path, text, "-fsyntax-only"))


@needs_cxx
def test_a_c_and_a_cpp_file_of_one_module_share_arrays(tmp_path):
    """G2: each file has its own state and deleters, and consumes the capsules that the other file makes."""
    first = tmp_path / "pair.c"
    first.write_text("""
        #include "dlpack_py.h"
        PyObject *produce(PyObject *self, PyObject *unused);
        static PyObject *consume(PyObject *self, PyObject *x)
        {
            dlpack_py_view v;
            PyObject *value;
            (void)self;
            if (dlpack_py_consume(x, NULL, &v) < 0)
                return NULL;
            value = PyLong_FromLong(*(const signed char *)dlpack_py_data(&v));
            dlpack_py_release(&v);
            return value;
        }
        static PyMethodDef functions[] = {
            {"produce", produce, METH_NOARGS, NULL}, {"consume", consume, METH_O, NULL}, {NULL, NULL, 0, NULL}};
        static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "pair", NULL, 0, functions, NULL, NULL, NULL, NULL};
        PyMODINIT_FUNC PyInit_pair(void) { return PyModuleDef_Init(&module); }
    """)
    second = tmp_path / "other.cpp"
    second.write_text("""
        #include "dlpack_py.h"
        extern "C" PyObject *produce(PyObject *self, PyObject *unused);
        PyObject *produce(PyObject *self, PyObject *)
        {
            static signed char seven = 7;
            const DLTensor t = dlpack_py_cpu_tensor(&seven, DLPACK_PY_INT8, 0, nullptr, nullptr);
            return dlpack_py_produce(self, &t, 0, nullptr, 0, nullptr);
        }
    """)
    objects = []
    for source in (first, second):
        objects.append(str(source.with_suffix(".o")))
        done = machine.compile_c(source, "-c", "-o", objects[-1])
        assert done.returncode == 0, done.stderr
    cxx = list(machine.compilers().values())[-1][1]
    subprocess.run([cxx, "-shared", *objects, "-o", str(tmp_path / "pair.so")], check=True)
    code = "import pair; assert pair.consume(pair.produce()) == 7"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@both_languages
@pytest.mark.parametrize("name", [name for name in LEAST if name not in PARTS])
def test_a_header_alone_adds_no_symbol_to_the_object_file(tmp_path, suffix, name):
    flags = runtime_flags(name)
    done = compile_text(tmp_path, includes([name]), *flags, suffix=suffix)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    symbols = subprocess.run(["nm", str(tmp_path / "source.o")], capture_output=True, text=True, check=True)
    assert "dlpack_" not in symbols.stdout and "dlp_" not in symbols.stdout
    assert not re.search(r"^\w+ [A-TV-Z] ", symbols.stdout, re.MULTILINE)


PREFIXES = {
    "dlpack_tensor": "dlpack_py",
    "dlpack_exchange": "dlpack_py",
    "dlpack_cuda_array_interface": "dlpack",  # with the names of dlpack_device.h and dlpack_rocm.h
}  # of public names; by default the name of the file
PRIVATE = ("dlp_", "DLP_")  # of private names, in each file


def has_prefix(name, header):
    prefix = f"{PREFIXES.get(header, header)}_"
    guards = f"{header}_H".upper(), f"{header}_LAYER".upper()
    return name.startswith((prefix, prefix.upper(), *PRIVATE)) or name in guards


@each_header
def test_every_macro_that_a_header_leaves_defined_has_its_prefix(tmp_path, name):
    including = PARTS.get(name, name)
    (tmp_path / "source.c").write_text(includes([including]))
    listing = machine.compile_c(tmp_path / "source.c", "-E", "-dD", *runtime_flags(name)).stdout
    here, left = False, set()
    for line in listing.splitlines():
        marker = re.match(r'# \d+ "(.*?)"', line)
        if marker:
            here = marker[1].endswith(f"/{name}.h")
        change = re.match(r"#(define|undef) (\w+)", line)
        if here and change:
            (left.add if change[1] == "define" else left.discard)(change[2])
    assert len(left) >= {
        "dlpack_py": 6,
        "dlpack_tensor": 50,
        "dlpack_cuda": 2,
        "dlpack_rocm": 2,
        "dlpack_cuda_array_interface": 3,
    }.get(name, 3)
    others = {"PY_SSIZE_T_CLEAN"}  # a macro for Python.h
    if name in ("dlpack_cuda", "dlpack_rocm"):  # macros that give dlpack_device.h the names of the runtime
        others |= {macro for macro in left if macro.startswith("DLPACK_DEVICE_API")}
    assert [macro for macro in left - others if not has_prefix(macro, name)] == []


@each_header
def test_every_name_that_a_header_defines_has_its_prefix(name):
    text = TEXTS[name]
    names = re.findall(r"^(\w+)\(", text, re.MULTILINE)
    names += re.findall(r"^} (\w+);", text, re.MULTILINE)
    names += re.findall(r"^(?:typedef )?(?:struct|union|enum) (\w+)", text, re.MULTILINE)
    assert len(names) > LEAST[name]
    # One name is added to an old dlpack.h; one is the macro for a function of dlpack_cuda.h or dlpack_rocm.h.
    others = {"DLManagedTensorVersioned", "DLPACK_DEVICE_API", "DLPACK_DEVICE_API_FIND_DEVICE"}
    others |= {"GetModuleHandleA", "LoadLibraryExA", "HINSTANCE__", "__declspec", "intptr_t"}  # of windows.h
    assert [found for found in names if not has_prefix(found, name) and found not in others] == []


@each_header
def test_every_function_is_static_inline(name):
    functions = re.findall(r"^(.*)\n[a-z]\w+\([^;{}]*\)\n\{$", TEXTS[name], re.MULTILINE)
    assert len(functions) > LEAST[name]
    assert [result for result in functions if not STATIC.match(result)] == []


def opening(name):
    """The comments above the first line of the preprocessor."""
    return re.split(r"^#", TEXTS[name], maxsplit=1, flags=re.MULTILINE)[0]


def test_the_synopsis_names_all_public_functions():
    """The synopsis is a table. A user of the header need not read further."""
    table, found, _ = opening("dlpack_py").partition("Stop here if you only use the header")
    assert found
    names = public_names.names("py.h").items()
    functions = {name for name, lines in names if re.search(rf"^\w[^(]*\b{name}\(", lines[0]) and name.islower()}
    assert len(functions) > 20
    assert {name for name in functions if not re.search(rf"\b{name}\b", table)} == set()


WITHOUT_CONTENTS = ("dlpack_copy", "dlpack_cuda", "dlpack_rocm", "dlpack_device_library")


@pytest.mark.parametrize("name", [name for name in LEAST if name not in WITHOUT_CONTENTS])
def test_the_contents_are_the_banners(name):
    """The contents stand in the opening comment, in columns or each on a line."""
    banners = re.findall(r"^/\* ---- (.*?) -+ \*/$", TEXTS[name], re.MULTILINE)
    names = [part for line in opening(name).splitlines() for part in re.split(r" {2,}", line.strip(" */")) if part]
    assert len(banners) > (1 if name == "dlpack_cuda_array_interface" else 3)
    places = [i for i in range(len(names)) if names[i] == banners[0]]
    assert any(names[i : i + len(banners)] == banners for i in places), (banners, names)


@each_header
def test_all_banners_have_one_form(name):
    banners = [line for line in TEXTS[name].splitlines() if line.startswith("/* ---")]
    assert {len(line) for line in banners} <= {79}
    assert all(re.fullmatch(r"/\* ---- .*? -+ \*/", line) for line in banners)


def test_an_extension_for_the_cpu_has_no_device_code():
    """Only a module that includes dlpack_device.h links its code."""
    module = next(Path(os.environ["DLPACK_PY_BUILD_DIR"]).glob("image.*"))
    symbols = subprocess.run(["nm", str(module)], capture_output=True, text=True, check=True).stdout
    assert "dlpack_py_" in symbols
    device = r"dlpack_device_|capture|event|synchronize|copy_to_host|collect|work_stream|release_on|device_order"
    assert re.findall(rf"^.* [tTdDbBrR] .*(?:{device}).*$", symbols, re.MULTILINE) == []


def test_the_synopsis_compiles(tmp_path):
    comment = re.search(r"/\* Synopsis\n(.*?)\*/", TEXTS["dlpack_py"], re.DOTALL)[1]
    code = re.findall(r"^ \*   (.*)$", comment, re.MULTILINE)
    thing = "typedef struct Thing { PyObject_HEAD double *values; int64_t length; } Thing;"
    use = "PyMethodDef *use(PyCFunction *f); PyMethodDef *use(PyCFunction *f) { *f = sum; return thing_methods; }"
    done = compile_text(tmp_path, "\n".join(['#include "dlpack_py.h"', thing, *code, use]))
    assert len(code) > 20 and done.returncode == 0, done.stderr


MODULE = """
    static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "made", NULL, 0, functions, NULL, NULL, NULL, NULL};
    PyMODINIT_FUNC PyInit_made(void);
    PyMODINIT_FUNC PyInit_made(void) { return PyModuleDef_Init(&module); }
"""


def test_formats_with_a_size_work_where_the_macro_comes_after_the_header(tmp_path):
    source = tmp_path / "made.c"
    source.write_text(
        """
        #include "dlpack_py.h"
        #define PY_SSIZE_T_CLEAN
        #include <Python.h>
        static PyObject *size(PyObject *self, PyObject *args)
        {
            const char *text;
            Py_ssize_t count;
            (void)self;
            return PyArg_ParseTuple(args, "s#", &text, &count) ? PyLong_FromSsize_t(count) : NULL;
        }
        static PyMethodDef functions[] = {{"size", size, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
        """
        + MODULE
    )
    if sys.version_info < (3, 10):
        pytest.skip("CPython 3.9 reads sizes as int without the macro: the header leaves that to the extension")
    done = machine.compile_c(source, "-shared", "-o", str(tmp_path / "made.so"))
    assert done.returncode == 0, done.stderr
    code = "import made; assert made.size('four') == 4"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["dlpack_tensor", "dlpack_py", "dlpack_exchange", "dlpack_buffer"])
def test_a_missing_dlpack_h_is_one_error_with_where_to_get_it(tmp_path, name):
    for compiler in machine.compilers().values():
        done = compile_text(tmp_path, includes([name]), dlpack=str(tmp_path), compiler=compiler)
        assert stops(done).startswith("dlpack.h is missing: pip install apache-tvm-ffi")


@pytest.mark.parametrize("name", ["dlpack_tensor", "dlpack_py", "dlpack_exchange", "dlpack_buffer"])
def test_an_older_dlpack_h_is_one_error(tmp_path, name):
    old = tmp_path / "dlpack" / "dlpack.h"
    old.parent.mkdir()
    old.write_text("#define DLPACK_DLPACK_H_\n#define DLPACK_VERSION 80\n")
    done = compile_text(tmp_path, includes([name]), "-fsyntax-only", dlpack=str(tmp_path))
    assert "needs dlpack.h 1.x, and another dlpack.h was included" in stops(done)


def dlpack_with_minor(folder, minor):
    """A copy of the newest dlpack.h that says it is 1.minor. NumPy's copy of 1.0 has the typedefs of newer ones too."""
    newest, path = max(machine.dlpack_headers().items())
    text, count = re.subn(
        r"(#define DLPACK_MINOR_VERSION) \d+", rf"\1 {minor}", Path(path, "dlpack", "dlpack.h").read_text()
    )
    assert count == 1, f"dlpack.h {newest}"
    (folder / "dlpack").mkdir()
    (folder / "dlpack" / "dlpack.h").write_text(text)
    return folder


@pytest.mark.parametrize("name", ["dlpack_tensor", "dlpack_py", "dlpack_buffer"])
def test_a_dlpack_h_1_0_that_has_the_newer_typedef_gives_no_warning(tmp_path, name):
    """C99 allows no second typedef of a name. dlpack.h is found by -I: compilers do not warn about system folders."""
    folder = dlpack_with_minor(tmp_path, 0)
    for compiler in machine.compilers().values():
        done = compile_text(tmp_path, includes([name]), f"-I{folder}", "-std=c99", compiler=compiler)
        assert done.returncode == 0 and done.stderr == "", done.stderr


def test_the_exchange_api_without_dlpack_h_1_3_is_one_error(tmp_path):
    folder = dlpack_with_minor(tmp_path, 2)
    done = compile_text(tmp_path, includes(["dlpack_exchange"]), dlpack=str(folder))
    assert "dlpack_exchange.h needs dlpack.h 1.3 or newer" in stops(done)


def python_3_8(folder):
    """A folder with a Python.h that says it is of Python 3.8."""
    include = machine.python_include()
    text = '#pragma GCC system_header\n#include "{}/{}"\n#undef PY_VERSION_HEX\n#define PY_VERSION_HEX 0x03080000\n'
    for name in ("patchlevel.h", "Python.h"):
        (folder / name).write_text(text.format(include, name))
    return str(folder)


def test_a_limited_api_before_3_12_is_one_error_with_the_reason(tmp_path):
    done = compile_text(tmp_path, '#include "dlpack_py.h"\n', "-DPy_LIMITED_API=0x030B0000")
    assert "before 3.12 no thread can tell that it has the GIL" in stops(done)


def test_an_unsupported_build_is_an_error_or_leaves_the_exchange_api_out(tmp_path):
    text = '#include "dlpack_py.h"\n#if DLPACK_PY_AVAILABLE\n#error "available"\n#endif\n'
    text += "uint32_t dtype(const DLTensor *t);\nuint32_t dtype(const DLTensor *t) { return dlpack_py_dtype(t); }\n"
    old, behind = {"python": python_3_8(tmp_path)}, ["-idirafter", machine.python_include()]
    done = compile_text(tmp_path, text, *behind, **old)
    assert "dlpack_py.h needs Python 3.9 or newer" in stops(done)
    for limited in ([], ["-DPy_LIMITED_API=0x03080000"]):
        done = compile_text(tmp_path, text, "-DDLPACK_PY_OPTIONAL", *limited, *behind, **old)
        assert done.returncode == 0, done.stderr
    for name in ("dlpack_exchange.h", "dlpack_buffer.h", *([] if NO_CXX else ["dlpack_py.hpp"])):
        suffix = ".c" if name.endswith(".h") else ".cpp"
        text = f'#include "{name}"\n'
        done = compile_text(tmp_path, text, "-DDLPACK_PY_OPTIONAL", "-fsyntax-only", *behind, suffix=suffix, **old)
        assert done.returncode == 0 and done.stderr == "", done.stderr
    done = compile_text(tmp_path, '#include "dlpack_py.h"\nint available = DLPACK_PY_AVAILABLE == 1 ? 0 : -1;\n')
    assert done.returncode == 0, done.stderr


SIGNATURES = {
    "PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames": True,
    "PyObject *self, PyObject *args": False,
    "PyObject *self, PyObject *args, PyObject *kwargs": False,
    # Py_ssize_t is an int on some machines of 32 bits.
    "PyObject *self, PyObject *const *args, int nargs, PyObject *kwnames": struct.calcsize("n") == struct.calcsize("i"),
}


@pytest.mark.parametrize("suffix", ["c", pytest.param("cpp", marks=needs_cxx)])
@pytest.mark.parametrize("signature, is_right", SIGNATURES.items())
def test_the_compiler_rejects_a_method_with_a_wrong_signature(tmp_path, suffix, signature, is_right):
    source = tmp_path / f"methods.{suffix}"
    source.write_text(f"""
        #include "dlpack_py.h"
        PyObject *thing_dlpack({signature});
        extern PyMethodDef methods[3];
        PyMethodDef methods[3] = {{
            DLPACK_PY_METHODS(thing_dlpack, dlpack_py_cpu_device),
            {{NULL, NULL, 0, NULL}},
        }};
    """)
    done = machine.compile_c(source, "-c", "-o", str(tmp_path / "o"))
    assert (done.returncode == 0 and not done.stderr) == is_right, done.stderr


@needs_cxx
@needs_numpy
def test_a_view_of_cpp_releases_itself(tmp_path):
    source = tmp_path / "made.cpp"
    source.write_text(
        """
        #include "dlpack_py.hpp"
        #include <utility>
        #include <stdexcept>
        static dlpack_py_unique_view take(PyObject *x)
        {
            dlpack_py_unique_view v;
            if (dlpack_py_consume(x, nullptr, v.reset()) < 0)
                throw std::runtime_error("refused");
            return v;
        }
        static PyObject *use(PyObject *, PyObject *x)
        {
            try {
                dlpack_py_unique_view first = take(x), second;
                second = take(x);
                second = std::move(first);
                if (first.data() != nullptr || first->tensor.ndim != 0 || second.data() == nullptr)
                    return PyErr_Format(PyExc_AssertionError, "a moved view is not empty");
                if (dlpack_py_consume(x, nullptr, second.reset()) < 0) /* again, into the same view */
                    return nullptr;
                if (second->tensor.shape[0] == 3)
                    throw std::runtime_error("three");
                return PyLong_FromLongLong(second->tensor.shape[0]);
            }
            catch (const std::runtime_error &error) {
                if (PyErr_Occurred() == nullptr)
                    PyErr_SetString(PyExc_RuntimeError, error.what());
                return nullptr;
            }
        }
        static PyMethodDef functions[] = {{"use", use, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};
        """
        + MODULE.replace("NULL", "nullptr")
    )
    done = machine.compile_c(source, "-std=c++17", "-shared", "-o", str(tmp_path / "made.so"))
    assert done.returncode == 0 and done.stderr == "", done.stderr
    (tmp_path / "check.py").write_text("""
import sys, made, numpy

for array, error in (numpy.zeros(5), None), (numpy.zeros(3), RuntimeError), (numpy.zeros(2, "M8[s]"), Exception):
    before = sys.getrefcount(array)
    for _ in range(10):
        try:
            assert made.use(array) == 5 and error is None
        except (error or ()) as raised:
            assert not isinstance(raised, AssertionError), raised
    assert sys.getrefcount(array) == before
""")
    done = subprocess.run([sys.executable, "check.py"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
