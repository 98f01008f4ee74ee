"""The documents agree with the headers."""

import os
import platform
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import machine
import pytest
from array_libraries import needs_versioned_numpy, needs_writable_numpy
from optional import numpy

HEADER = (machine.ROOT / "dlpack_tensor.h").read_text()
README = (machine.ROOT / "README.md").read_text()
GUIDES = {path.stem: path.read_text() for path in sorted((machine.ROOT / "docs" / "guides").glob("*.md"))}
VERSION = re.search(r'define DLPACK_PY_VERSION_STRING "(.*?)"', HEADER)[1]


@pytest.fixture
def added_lines():
    """The lines for DLPack in examples/minimal: its marked regions, with a blank line between two regions."""
    text = (machine.ROOT / "examples" / "minimal" / "image.c").read_text()
    regions = re.findall(r"^ */\* dlpack: begin \*/\n(.*?)^ */\* dlpack: end \*/$", text, re.DOTALL | re.MULTILINE)
    assert len(regions) > 1
    return "\n\n".join(region.strip("\n") for region in regions) + "\n"


def test_the_code_in_the_readme_is_the_example(added_lines):
    section = re.split(r"^#+ .*examples/minimal.*$", README, flags=re.MULTILINE)[1]
    assert re.search(r"^```c\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)[1] == added_lines


def blocks(language, text):
    """The blocks of code of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def several_arrays():
    """The code of the guide for several arrays, in a function."""
    (code,) = blocks("c", GUIDES["out"])
    return (
        '#include "dlpack_py.h"\nPyObject *use(PyObject *x, PyObject *out);\n'
        f"PyObject *use(PyObject *x, PyObject *out)\n{{\ndlpack_py_view in, to;\n{code}"
        "dlpack_py_release(&in);\ndlpack_py_release(&to);\nPy_RETURN_NONE;\n}\n"
    )


def test_the_code_for_several_arrays_in_the_guide_compiles(tmp_path):
    source = tmp_path / "several.c"
    source.write_text(several_arrays())
    done = machine.compile_c(source, "-c", "-o", str(tmp_path / "o"))
    assert done.returncode == 0 and done.stderr == "", done.stderr


# ---- The blocks of C and C++ in the guides ------------------------------

ARGUMENTS = "PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames"


def memoryview_as_owner(block):
    declared = f"PyObject *use(DLTensor t, uint64_t flags, {ARGUMENTS})"
    return f'#include "dlpack_py.h"\n{declared};\n{declared}\n{{\n{block}}}\n'


def buffer_lines(block):
    """Each line in its place: the methods of a type, a function, the file."""
    methods, fallback, memoryview, get, described, interface = block.split("\n\n")
    getter = interface.splitlines()[1]
    return f"""
        #include "dlpack_buffer.h"
        typedef struct {{ PyObject_HEAD DLTensor tensor; }} Samples;
        static int
        samples_describe(PyObject *self, const dlpack_py_request *request, dlpack_py_offer *offer)
        {{
            (void)request;
            offer->tensor = &((Samples *)self)->tensor;
            return 0;
        }}
        #define image_describe samples_describe
        {described}
        {interface.splitlines()[0]}
        PyMethodDef methods[] = {{ {methods} {{NULL, NULL, 0, NULL}} }};
        PyGetSetDef getters[] = {{ {getter} {{NULL, NULL, NULL, NULL, NULL}} }};
        PyBufferProcs *used = &samples_as_buffer;
        PyObject *use(PyObject *obj);
        PyObject *use(PyObject *obj)
        {{
            dlpack_py_want want = dlpack_py_want_any();
            Py_buffer buffer;
            {fallback}
            {memoryview}
            {get}
            PyBuffer_Release(&buffer);
            return memory;
        }}
    """


def device_lines(block):
    produce, consume = block.split("\n\n")
    tensor, answer, device = produce.splitlines()
    return f"""
        #include "dlpack_cuda.h"
        typedef struct {{ PyObject_HEAD float *pixels; int device; cudaStream_t stream; }} Image;
        typedef struct {{ dlpack_py_view kept; }} Graph;
        void launch_blur(void *, cudaStream_t);
        PyObject *use(Image *im, const int64_t *shape, {ARGUMENTS});
        PyObject *use(Image *im, const int64_t *shape, {ARGUMENTS})
        {{
            {tensor}
            if (nargs < 0) {{
                {device}
            }}
            {answer}
        }}
        PyObject *take(PyObject *obj, cudaStream_t stream, Graph *graph);
        PyObject *take(PyObject *obj, cudaStream_t stream, Graph *graph)
        {{
            dlpack_py_want wanted_on_cuda = dlpack_py_want_any();
            dlpack_py_view v;
            {consume}
            Py_RETURN_NONE;
        }}
    """


def sum_of_numpy(block):
    return f'#include "dlpack_py.h"\n{block}PyObject *(*used)(PyObject *, PyObject *) = sum;\n'


def pybind11_method(block):
    return f"""
        #include <pybind11/pybind11.h>
        #include "dlpack_py.hpp"
        namespace py = pybind11;
        struct Class {{ double value = 0; DLTensor tensor() const; }};
        DLTensor Class::tensor() const
        {{
            return dlpack_py_cpu_tensor(const_cast<double *>(&value), DLPACK_PY_FLOAT64, 0, nullptr, nullptr);
        }}
        PYBIND11_MODULE(block, module)
        {{
            py::class_<Class> type(module, "Class");
            type.def(py::init<>());
            {block}
        }}
    """


def pybind11_sum(block):
    return f"""
        #include <pybind11/pybind11.h>
        #include "dlpack_py.hpp"
        namespace py = pybind11;
        {block}
        PYBIND11_MODULE(block, module) {{ module.def("sum", sum); }}
    """


IN_AN_EXAMPLE, TESTED = "in an example, word for word but for blanks", "another test of this file has it"
BLOCKS = {  # what makes a source file of each block of a guide, in order
    ("describe", "c"): [TESTED],
    ("from_dlpack", "c"): [TESTED],
    ("out", "c"): [TESTED],
    ("growing", "c"): [memoryview_as_owner],
    ("exchange_tables", "c"): [IN_AN_EXAMPLE],
    ("buffers", "c"): [buffer_lines],
    ("devices", "c"): [device_lines],
    ("threads", "c"): [IN_AN_EXAMPLE],
    ("interpreters", "c"): [IN_AN_EXAMPLE],
    ("moving", "c"): [sum_of_numpy],
    ("moving", "cpp"): [pybind11_sum],
    ("languages", "cpp"): [pybind11_method],
    ("languages", "cython"): [TESTED],
}


def test_each_block_in_a_guide_is_tested():
    found = {
        (guide, language): len(blocks(language, text))
        for guide, text in GUIDES.items()
        for language in set(re.findall(r"^```(\w+)$", text, re.MULTILINE))
    }
    assert found == {key: len(makers) for key, makers in BLOCKS.items()}


@pytest.mark.parametrize("guide, language", BLOCKS)
def test_a_block_in_a_guide_is_code_of_an_example_or_compiles(tmp_path, guide, language):
    examples = "".join(path.read_text() for path in sorted((machine.ROOT / "examples").glob("*/*.c")))
    for block, make in zip(blocks(language, GUIDES[guide]), BLOCKS[guide, language]):
        if make == IN_AN_EXAMPLE:
            assert "".join(block.split()) in "".join(examples.split())
        elif make != TESTED:
            flags = ["-c", "-o", str(tmp_path / "o")]
            if make is device_lines:
                runtimes = [include for name, include in machine.runtimes().items() if name.startswith("CUDA")]
                if not runtimes:
                    pytest.skip("headers of CUDA: not on this machine")
                flags += ["-isystem", runtimes[-1]]
            if language == "cpp":
                pybind11 = pytest.importorskip("pybind11", reason="pybind11: make test-package installs it")
                flags += ["-isystem", pybind11.get_include(), "-std=c++17"]
            source = tmp_path / f"block.{language}"
            source.write_text(textwrap.dedent(make(block)))
            done = machine.compile_c(source, *flags)
            assert done.returncode == 0 and done.stderr == "", done.stderr


SAMPLES = """
#include "dlpack_py.h"
typedef struct {
    PyObject_HEAD
    double *values;
    int64_t length;
    int readonly;
    DLTensor tensor;
    dlpack_py_counter exports;
    dlpack_py_view view;
} Samples;
@CODE@
static PyMethodDef samples_methods[] = {
@METHODS@
    {NULL, NULL, 0, NULL},
};
static void samples_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    dlpack_py_release(&((Samples *)self)->view);
    PyObject_Free(self);
    Py_DECREF(type);
}
static PyType_Slot slots[] = {
    {Py_tp_methods, samples_methods}, {Py_tp_dealloc, (void *)(uintptr_t)samples_dealloc}, {0, NULL}};
static PyType_Spec spec = {"readme.Samples", sizeof(Samples), 0, Py_TPFLAGS_DEFAULT, slots};
static int add_type(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&spec);
    int failed = type == NULL || PyObject_SetAttrString(module, "Samples", type) < 0;
    Py_XDECREF(type);
    return failed ? -1 : 0;
}
static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void *)(uintptr_t)add_type}, {0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "readme", NULL, 0, NULL, module_slots, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_readme(void);
PyMODINIT_FUNC PyInit_readme(void) { return PyModuleDef_Init(&module); }
"""


def samples_source():
    """A module with the two functions of the guides that describe Samples and make a Samples, copied word for word."""
    code, methods = [], []
    for guide, method in [
        ("describe", r"^    DLPACK_PY_METHODS\(.*$"),
        ("from_dlpack", r'^    \{"from_dlpack".*$'),
    ]:
        (block,) = blocks("c", GUIDES[guide])
        (line,) = re.findall(method, block, re.MULTILINE)
        methods.append(line)
        code.append(block.replace(line, ""))
    return SAMPLES.replace("@CODE@", "".join(code)).replace("@METHODS@", "\n".join(methods))


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    source = folder / "readme.c"
    source.write_text(samples_source())
    done = machine.compile_c(source, "-std=c99", "-shared", "-o", str(folder / "readme.so"))
    assert done.returncode == 0 and done.stderr == "", done.stderr
    sys.path.insert(0, str(folder))
    import readme

    return readme.Samples


@pytest.mark.parametrize(
    "writable",
    [pytest.param(True, marks=needs_writable_numpy), pytest.param(False, marks=needs_versioned_numpy)],
)
def test_the_samples_of_the_guides_keep_the_read_only_flag_P3_C7(samples, writable):
    array = numpy.arange(5.0)
    array.flags.writeable = writable
    made = samples.from_dlpack(array)
    again = numpy.from_dlpack(made)
    assert again.flags.writeable == writable
    assert numpy.shares_memory(again, array) and again.tolist() == [0, 1, 2, 3, 4]
    if writable:
        made.__dlpack__()
    else:
        with pytest.raises(BufferError, match="read-only"):  # a legacy capsule has no read-only flag
            made.__dlpack__()
    assert made.__dlpack_device__() == (1, 0)


def test_the_cython_code_in_the_guide_is_the_example():
    (block,) = blocks("cython", GUIDES["languages"])
    example = (machine.ROOT / "examples" / "cython" / "wave.pyx").read_text()
    regions = re.findall(r"# dlpack: begin\n(.*?) *# dlpack: end", example, re.DOTALL)
    assert block.split() == " ".join(regions).split()


# Variables of CMake.
OTHER_NAMES = {"DLPACK_INCLUDE_DIR", "DLPACK_PY_EXAMPLES", "DLPACK_PY_TESTS", "dlpack_py_DIR"}
DOCUMENTS = [machine.ROOT / "README.md", *sorted((machine.ROOT / "docs").glob("*.md"))]
DOCUMENTS += sorted((machine.ROOT / "docs" / "guides").glob("*.md"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_name_of_the_headers_in_a_document_exists(document):
    files = [path for suffix in ("h", "hpp", "pxd") for path in machine.ROOT.glob(f"*.{suffix}")]
    known = set(re.findall(r"\b(?:dlpack|DLPACK)_\w+", "".join(path.read_text() for path in files)))
    known |= OTHER_NAMES | {path.stem for path in files}
    pattern = r"\b(?:dlpack|DLPACK)_(?:PY|py|cuda|CUDA|rocm|ROCM|device|DEVICE|buffer|BUFFER|copy|tensor|exchange)_\w+"
    named = set(re.findall(pattern, document.read_text()))
    assert {name for name in named if name not in known and not name.endswith("_")} == set()
    files = {path.name for path in files}
    named = set(re.findall(r"\bdlpack_[a-z_]+\.(?:hpp|h|pxd)\b", document.read_text()))
    assert named - files == set()


def levels():
    """{files: (lines, KB or None)} of the table of levels in the README."""
    rows = re.findall(r"^\| [^|]* \| ([^|]*) \|[^|]*\|[^|]*\| ([\d,]+) \| (?:(\d+) KB)? ?\|$", README, re.MULTILINE)
    return {row[0]: (int(row[1].replace(",", "")), int(row[2]) if row[2] else None) for row in rows}


def test_the_table_of_levels_has_all_files_with_their_lines():
    """To within 5 %: the table only helps to choose a level."""
    rows, found = levels(), set()
    for files, (lines, _) in rows.items():
        names = re.findall(r"`(dlpack_\w+\.(?:hpp|h))`", re.sub(r", before .*| or .*", "", files))
        found |= set(re.findall(r"dlpack_\w+\.(?:hpp|h)", files))
        count = sum(len((machine.ROOT / name).read_text().splitlines()) for name in names)
        assert abs(count - lines) <= count / 20, f"{files}: {count}"
    assert found == {path.name for suffix in ("h", "hpp") for path in machine.ROOT.glob(f"dlpack_*.{suffix}")}


USES = {  # The code that each level adds to the example of the first screen.
    "dlpack_py.h": "",
    "dlpack_exchange.h": '#include "dlpack_exchange.h"\n',
    "dlpack_buffer.h": """
        #include "dlpack_buffer.h"
        PyObject *use(PyObject *x);
        PyObject *use(PyObject *x)
        {
            dlpack_py_want want = dlpack_py_want_any();
            want.fallback = dlpack_buffer_fallback;
            return dlpack_buffer_memoryview(x, &want);
        }
    """,
    "dlpack_copy.h": '#include "dlpack_copy.h"\n',
    "dlpack_device.h": """
        #include "dlpack_cuda.h"
        PyObject *use(PyObject *x, const DLTensor *t, cudaStream_t s, PyObject *const *a, Py_ssize_t n, PyObject *k);
        PyObject *use(PyObject *x, const DLTensor *t, cudaStream_t s, PyObject *const *a, Py_ssize_t n, PyObject *k)
        {
            dlpack_py_view v;
            if (dlpack_cuda_consume(x, NULL, s, &v) < 0 || dlpack_cuda_release(&v, s) < 0)
                return NULL;
            return dlpack_cuda_produce(x, t, 0, s, a, n, k);
        }
    """,
}


def code_size(folder, text, *flags):
    """Bytes of code and constants in an object file."""
    source, target = folder / "source.c", folder / "source.o"
    source.write_text(text)
    gcc = next(pair for name, pair in reversed(machine.compilers().items()) if name.startswith("gcc"))
    done = machine.compile_c(source, *flags, "-c", "-o", str(target), compiler=gcc)
    assert done.returncode == 0, done.stderr
    listing = subprocess.run(["size", "-A", target], capture_output=True, text=True, check=True).stdout
    return sum(int(size) for size in re.findall(r"^\.(?:text|rodata)\S*\s+(\d+)", listing, re.MULTILINE))


@pytest.mark.skipif(
    sys.implementation.name != "cpython" or sys.version_info < (3, 11),
    reason="README gives the sizes on CPython 3.11 or newer, which has fast paths that others lack",
)
@pytest.mark.parametrize("header", USES)
def test_the_table_of_levels_has_the_size_that_a_level_adds_to_an_example(tmp_path, header):
    """To within 10 %, or 1 KB."""
    if "gcc-12" not in machine.compilers() or platform.machine() != "x86_64":
        pytest.skip("gcc 12 on x86-64: not on this machine")
    runtimes = [include for name, include in machine.runtimes().items() if name.startswith("CUDA")]
    if header == "dlpack_device.h" and not runtimes:
        pytest.skip("headers of CUDA: not on this machine")
    flags = ["-isystem", runtimes[-1]] if header == "dlpack_device.h" else []
    example = (machine.ROOT / "examples" / "minimal" / "image.c").read_text()
    plain = re.sub(r"/\* dlpack: begin \*/.*?/\* dlpack: end \*/", "", example, flags=re.DOTALL)
    assert plain != example
    without = plain if header == "dlpack_py.h" else example
    added = (code_size(tmp_path, USES[header] + example, *flags) - code_size(tmp_path, without)) / 1024
    (told,) = [kilobytes for files, (_, kilobytes) in levels().items() if files.startswith(f"`{header}`")]
    assert abs(added - told) <= max(1, added / 10), f"{added:.1f} KB"


def test_the_example_adds_at_most_thirty_lines(added_lines):
    code = re.sub(r"/\*.*?\*/", "", added_lines, flags=re.DOTALL)
    lines = [line for line in code.splitlines() if line.strip()]
    assert 0 < len(lines) <= 30
    assert max(map(len, lines)) <= 120


HANDSHAKES = sorted(Path(os.environ["DLPACK_PY_BUILD_DIR"]).glob("handshake_*"))
NO_HANDSHAKE = pytest.mark.skip(reason="headers of CUDA or HIP: not on this machine")


@pytest.mark.parametrize(
    "program", HANDSHAKES or [pytest.param(None, marks=NO_HANDSHAKE)], ids=lambda path: getattr(path, "name", None)
)
def test_the_documented_calls_of_each_case_are_tested(program):
    tables = subprocess.run([program, "--table"], capture_output=True, text=True, check=True).stdout
    assert tables.count("\n| ") > 40
    assert (machine.ROOT / "docs" / "streams.md").read_text().endswith(f"\n\n{tables}")


def test_only_one_line_of_the_headers_defines_the_version():
    files = [path for suffix in ("h", "hpp") for path in machine.ROOT.glob(f"dlpack_*.{suffix}")]
    text = "".join(path.read_text() for path in files)
    assert len(re.findall(r"define DLPACK_PY_VERSION\b", text)) == 1
    assert len(re.findall(r"define DLPACK_PY_VERSION_STRING\b", text)) == 1


def test_dlpack_py_h_lists_the_clauses_that_the_headers_name():
    text = (machine.ROOT / "dlpack_py.h").read_text()
    found, *_ = re.findall(r"^/\* The clauses .*?\*/", text, re.DOTALL | re.MULTILINE)
    listed = set(re.findall(r"^ \* ([DPKCXSG]\d+) ", found, re.MULTILINE))
    headers = "".join(path.read_text() for path in machine.ROOT.glob("dlpack_*.h")).replace(found, "")
    comments = "".join(re.findall(r"/\*.*?\*/", headers, re.DOTALL))
    named = set(re.findall(r"\b([DPKCXSG]\d+)\b", comments)) - {"C99", "C11"}
    document = (machine.ROOT / "docs" / "protocol.md").read_text()
    explained = {name for row in re.findall(r"^\| ([^|]+) \|", document, re.MULTILINE) for name in row.split(", ")}
    assert len(listed) > 40
    assert named - explained == set() and listed - explained == set()
    assert explained - listed - {"clause"} == {"D7"}, "D7 is in the document only"
    assert named - listed - {"S5", "S6", "S8", "S9"} == set()  # only the device headers name these
    assert re.search(r"C1 .*TypeError", found) and "on the type, then on the instance" not in found


def test_the_licence_in_the_header_is_the_licence_of_the_project():
    def words(text):
        return re.sub(r"[\s*]+", " ", text[text.index("Permission is hereby granted") :].split("*/")[0]).strip()

    assert words(HEADER) == words((machine.ROOT / "LICENSE").read_text())
    for path in [*machine.ROOT.glob("dlpack_*.h"), *machine.ROOT.glob("dlpack_*.hpp")]:
        assert "SPDX-License-Identifier: MIT" in path.read_text()
        if "licence stands" in path.read_text() and path.name != "dlpack_tensor.h":
            assert "licence stands at the end of dlpack_tensor.h" in path.read_text(), path.name


def test_the_levels_of_the_readme_have_the_stated_number_of_lines():
    rows = re.findall(r"^\|[^|]*\|([^|]*`dlpack_\w+\.hp*`[^|]*)\|.*\| ([\d,]+) \|[^|]*\|$", README, re.MULTILINE)
    for files, said in rows:
        names = re.findall(r"`(dlpack_\w+\.hp*)`", re.sub(r", before .*| or .*", "", files))
        lines = sum(len((machine.ROOT / name).read_text().splitlines()) for name in names)
        assert int(said.replace(",", "")) == lines, names
    assert len(rows) == 8


def test_no_line_is_longer_than_120_columns():
    files = [path for suffix in ("h", "hpp", "pxd") for path in sorted(machine.ROOT.glob(f"*.{suffix}"))]
    lines = [f"{path.name}: {line}" for path in files for line in path.read_text().splitlines() if len(line) > 120]
    assert lines == []


def test_no_special_method_is_in_bold_letters():
    """Markdown takes __dlpack__ outside of code for the bold word dlpack."""
    found = []
    for path in [machine.ROOT / "README.md", *(machine.ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"^```.*?^```$|`[^`]*`", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        found += [f"{path.name}: {name}" for name in re.findall(r"(?<![\w\\])__\w+__", text)]
    assert found == []
