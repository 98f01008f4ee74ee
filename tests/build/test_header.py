"""The header can be copied into anybody's tree: what it defines, and how often and with whom it is included."""

import os
import re
import subprocess
import sys
from pathlib import Path

import machine
import pytest

# The headers, and how many functions must be found in each, at least.
LEAST = {"dlpack_py": 50, "dlpack_buffer": 15, "dlpack_device": 30, "dlpack_copy": 7}
TEXTS = {name: (machine.ROOT / f"{name}.h").read_text() for name in LEAST}
TEXT = TEXTS["dlpack_py"]
KINDS = ("PY_IMPL_RARE", "PY_IMPL_GENERAL", "PY_IMPL_SHARED", "PY_IMPL_HOT", "PY_IMPL_INLINE", "COPY_IMPL_HOT")
STATIC = ("static inline ", *(f"DLPACK_{kind} " for kind in KINDS))
each_header = pytest.mark.parametrize("name", TEXTS)

NO_CXX = list(machine.compilers().values())[-1][1] is None
needs_cxx = pytest.mark.skipif(NO_CXX, reason="C++ compiler: not on this machine")
both_languages = pytest.mark.parametrize("suffix", [".c", pytest.param(".cpp", marks=needs_cxx)])


def compile_text(folder, text, *flags, suffix=".c", **where):
    source = folder / f"source{suffix}"
    source.write_text(text)
    return machine.compile_c(source, *flags, "-c", "-o", str(folder / "source.o"), **where)


INCLUDE, COPY = '#include "dlpack_py.h"', '#include "dlpack_copy.h"'
WITHOUT, WITH = "#define DLPACK_PY_NO_PYTHON", "#undef DLPACK_PY_NO_PYTHON"


@both_languages
@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([INCLUDE, INCLUDE], id="twice"),
        pytest.param([WITHOUT, INCLUDE, WITH, INCLUDE], id="without Python, then with it"),
        pytest.param([INCLUDE, WITHOUT, INCLUDE], id="with Python, then without"),
        pytest.param(["#include <dlpack/dlpack.h>", INCLUDE], id="after dlpack.h"),
        pytest.param([COPY, INCLUDE, COPY], id="between dlpack_copy.h and itself"),
        pytest.param([COPY, WITHOUT, INCLUDE, WITH, COPY, INCLUDE], id="after dlpack_copy.h, in both ways"),
    ],
)
def test_any_order_of_includes_gives_both_layers(tmp_path, suffix, lines):
    # The pedantry of style is answered inside the header.
    flags = ["-Wold-style-cast", "-Wzero-as-null-pointer-constant"] if suffix == ".cpp" else []
    use = ["int use(PyObject *x);", "int use(PyObject *x) { return dlpack_py_check(x); }"]
    done = compile_text(tmp_path, "\n".join([*lines, *use]), *flags, suffix=suffix)
    assert done.returncode == 0 and done.stderr == "", done.stderr


@needs_cxx
def test_a_class_with_a_view_gives_no_warning_and_no_symbol_of_the_header(tmp_path):
    """With default visibility, as setuptools compiles (G2)."""
    text = """
        #include "dlpack_py.h"
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


@needs_cxx
def test_style_warnings_of_cpp_are_as_before_behind_the_header(tmp_path):
    text = '#include "dlpack_py.h"\n#include "dlpack_py.h"\nlong f(double d);\nlong f(double d) { return (long)d; }\n'
    done = compile_text(tmp_path, text, "-Wold-style-cast", suffix=".cpp")
    assert "old-style" in done.stderr
    assert compile_text(tmp_path, text, suffix=".cpp").returncode == 0


def test_a_copy_that_comes_too_late_is_refused_by_name(tmp_path):
    done = compile_text(tmp_path, f"{INCLUDE}\n{COPY}\n")
    assert done.returncode != 0 and "include dlpack_copy.h before dlpack_py.h" in done.stderr


def test_python_h_comes_before_dlpack_copy_h(tmp_path):
    """Python.h sets feature macros for the C library. In another order, the headers of Python 3.11 make warnings, which
    are seen only where their folder is not one of the system."""
    source = tmp_path / "source.c"
    source.write_text(f"#include <Python.h>\n{COPY}\n{INCLUDE}\n")
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
    text = f"""
        {COPY}
        void turn(char *to, const char *from);
        void turn(char *to, const char *from)
        {{
            const dlpack_copy_loop rows = {{100, 400, 4}}, items = {{100, 4, 400}};
            dlpack_copy_rows(to, &rows, from, &items, 4, 40000);
        }}
    """
    flags = ["-Wold-style-cast", "-Wzero-as-null-pointer-constant"] if suffix == ".cpp" else []
    for portable in ([], ["-DDLPACK_COPY_PORTABLE"]):
        done = compile_text(tmp_path, text, *flags, *portable, suffix=suffix)
        assert done.returncode == 0 and done.stderr == "", done.stderr


def test_two_versions_in_one_file_are_refused_by_name(tmp_path):
    (tmp_path / "other.h").write_text(TEXT.replace("0x000100", "0x000200"))
    done = compile_text(tmp_path, '#include "dlpack_py.h"\n#include "other.h"\n')
    assert done.returncode != 0
    assert "this file includes two versions of dlpack_py.h" in done.stderr


@needs_cxx
def test_a_c_and_a_cpp_file_of_one_module_share_arrays(tmp_path):
    """G2: each has its own state and deleters, and takes what the other made."""
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
            const DLTensor t = dlpack_py_cpu(&seven, DLPACK_PY_INT8, 0, nullptr, nullptr);
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
def test_including_it_leaves_nothing_in_the_object_file(tmp_path, suffix):
    assert compile_text(tmp_path, '#include "dlpack_py.h"\n', suffix=suffix).returncode == 0
    symbols = subprocess.run(["nm", str(tmp_path / "source.o")], capture_output=True, text=True, check=True)
    assert "dlpack_py" not in symbols.stdout
    assert not re.search(r"^\w+ [A-TV-Z] ", symbols.stdout, re.MULTILINE)


@each_header
def test_every_macro_it_leaves_defined_has_its_prefix(tmp_path, name):
    (tmp_path / "source.c").write_text(f'#include "{name}.h"\n')
    listing = machine.compile_c(tmp_path / "source.c", "-E", "-dD").stdout
    here, left = False, set()
    for line in listing.splitlines():
        marker = re.match(r'# \d+ "(.*?)"', line)
        if marker:
            here = marker[1].endswith(f"/{name}.h")
        change = re.match(r"#(define|undef) (\w+)", line)
        if here and change:
            (left.add if change[1] == "define" else left.discard)(change[2])
    assert len(left) >= {"dlpack_py": 6, "dlpack_buffer": 4}.get(name, 5)
    others = {"PY_SSIZE_T_CLEAN"}  # which is for Python.h
    assert [macro for macro in left - others if not macro.startswith(f"{name.upper()}_")] == []


@each_header
def test_every_name_it_defines_has_its_prefix(name):
    text = TEXTS[name]
    names = re.findall(r"^(\w+)\(", text, re.MULTILINE)
    names += re.findall(r"^} (\w+);", text, re.MULTILINE)
    names += re.findall(r"^(?:typedef )?(?:struct|union|enum) (\w+)", text, re.MULTILINE)
    assert len(names) > LEAST[name]
    # One is given to an old dlpack.h; one is the macro for a function of dlpack_cuda.h or dlpack_rocm.h.
    others = {"DLManagedTensorVersioned", "DLPACK_DEVICE_API", "DLPACK_DEVICE_API_FIND_DEVICE"}
    assert [found for found in names if not found.startswith(f"{name}_") and found not in others] == []


@each_header
def test_every_function_is_static_inline(name):
    functions = re.findall(r"^(.*)\n\w+\(", TEXTS[name], re.MULTILINE)
    assert len(functions) > LEAST[name]
    assert [result for result in functions if not result.startswith(STATIC)] == []


@pytest.mark.parametrize("name", ["dlpack_py", "dlpack_buffer", "dlpack_device"])
def test_the_contents_are_the_banners(name):
    text = TEXTS[name]
    contents = re.search(r"/\* Contents\n(.*?)\*/", text, re.DOTALL)[1]
    listed = re.findall(r"^ \* +(\d+(?:\.\d+)? .*)$", contents, re.MULTILINE)
    banners = re.findall(r"^/\* ---- (.*?) -+ \*/$", text, re.MULTILINE)
    assert len(banners) > 3 and listed == banners


@each_header
def test_all_banners_have_one_form(name):
    assert {len(line) for line in TEXTS[name].splitlines() if line.startswith("/* ---- ")} == {79}


def test_an_extension_for_the_cpu_has_no_device_code():
    """What dlpack_device.h does is linked into no module that does not include it."""
    module = next(Path(os.environ["DLPACK_PY_BUILD_DIR"]).glob("image.*"))
    symbols = subprocess.run(["nm", str(module)], capture_output=True, text=True, check=True).stdout
    assert "dlpack_py_" in symbols
    device = r"dlpack_device_|capture|event|stream_of|synchronize|copy_to_host|collect|work_stream|release_on|order"
    assert re.findall(rf"^.* [tTdDbBrR] .*(?:{device}).*$", symbols, re.MULTILINE) == []


def test_the_synopsis_compiles(tmp_path):
    comment = re.search(r"/\* Synopsis\n(.*?)\*/", TEXT, re.DOTALL)[1]
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


def test_a_missing_dlpack_h_is_named_with_where_to_get_it(tmp_path):
    done = compile_text(tmp_path, '#include "dlpack_py.h"\n', dlpack=str(tmp_path))
    assert done.returncode != 0
    assert "dlpack.h is missing: pip install apache-tvm-ffi" in done.stderr


def test_where_it_cannot_work_the_header_says_so_or_is_left_out(tmp_path):
    text = '#include "dlpack_py.h"\n#if DLPACK_PY_AVAILABLE\n#error "available"\n#endif\n'
    text += "uint32_t dtype(const DLTensor *t);\nuint32_t dtype(const DLTensor *t) { return dlpack_py_dtype(t); }\n"
    done = compile_text(tmp_path, text, '-DPYPY_VERSION="7.3"')
    assert done.returncode != 0 and "dlpack_py.h needs CPython 3.9 or newer" in done.stderr
    done = compile_text(tmp_path, text, '-DPYPY_VERSION="7.3"', "-DDLPACK_PY_OPTIONAL")
    assert done.returncode == 0, done.stderr
    done = compile_text(tmp_path, text, "-DDLPACK_PY_OPTIONAL")
    assert done.returncode != 0 and "available" in done.stderr


SIGNATURES = {
    "PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames": True,
    "PyObject *self, PyObject *args": False,
    "PyObject *self, PyObject *args, PyObject *kwargs": False,
    "PyObject *self, PyObject *const *args, int nargs, PyObject *kwnames": False,
}


@pytest.mark.parametrize("suffix", ["c", pytest.param("cpp", marks=needs_cxx)])
@pytest.mark.parametrize("signature, is_right", SIGNATURES.items())
def test_a_method_of_another_signature_is_told_by_the_compiler(tmp_path, suffix, signature, is_right):
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
def test_a_view_of_cpp_releases_itself(tmp_path):
    source = tmp_path / "made.cpp"
    source.write_text(
        """
        #include "dlpack_py.h"
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
