"""examples/cython: a producer and a consumer in Cython with dlpack_py.pxd. Each name of the .pxd files compiles."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from optional import numpy

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "build"))
import machine  # noqa: E402
import test_declarations  # noqa: E402
import test_header  # noqa: E402

SOURCE = ROOT / "examples" / "cython" / "wave.pyx"


def cythonize(source):
    """Compiles a .pyx file to C, without a warning."""
    pytest.importorskip("Cython", exc_type=ModuleNotFoundError, reason="cython: make test-libraries installs it")
    command = [sys.executable, "-m", "cython", "-3", "--warning-errors", source.name]
    done = subprocess.run(command, cwd=source.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return source.with_suffix(".c")


def compile_c(source, *flags):
    """Compiles the C code of Cython. A type in a .pxd file that differs from the header is an error."""
    include = ["-isystem", list(machine.dlpack_headers().values())[-1], "-isystem", machine.python_include()]
    command = [list(machine.compilers().values())[-1][0], "-O2", "-shared", "-fPIC", f"-I{ROOT}", *include]
    command += ["-Werror=incompatible-pointer-types", "-Werror=int-conversion", *flags, *machine.TEST_CFLAGS]
    done = subprocess.run([*command, str(source), "-o", str(source.with_suffix(".so"))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wave(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cython")
    for file in (SOURCE, ROOT / "dlpack_py.pxd", ROOT / "dlpack_tensor.pxd"):
        (folder / file.name).write_text(file.read_text())
    compile_c(cythonize(folder / SOURCE.name))
    sys.path.insert(0, str(folder))
    import wave

    return wave


def test_arrays_go_both_ways_without_a_copy(wave):
    made = wave.Wave(3)
    array = numpy.from_dlpack(made)
    array[:] = 2
    assert (wave.total(made), wave.total(array), wave.total(array[:1])) == (6, 6, 2)
    assert numpy.from_dlpack(made, copy=True).ctypes.data != array.ctypes.data


def test_an_unsupported_argument_is_refused_and_no_reference_is_kept(wave):
    for x, text in (numpy.arange(3), "dtype is int64"), (numpy.zeros((2, 2)), "ndim is 2"):
        before = sys.getrefcount(x)
        with pytest.raises(BufferError, match=text):
            wave.total(x)
        assert sys.getrefcount(x) == before
    with pytest.raises(TypeError, match="max_version is 1"):
        wave.Wave(3).__dlpack__(max_version=1)
    with pytest.raises(AttributeError):
        wave.total(7)


@pytest.mark.parametrize("where", ["beside", "in a package"])
@pytest.mark.parametrize("name", ["tensor", "py", "exchange", "buffer", "copy", "cuda", "rocm"])
def test_each_declaration_compiles(tmp_path, name, where):
    """Each function, constant, type and field of a .pxd file is used; all .pxd files are copied."""
    flags = test_header.runtime_flags(f"dlpack_{name}")
    for file in ROOT.glob("*.pxd"):
        (tmp_path / file.name).write_text(file.read_text())
    lines = [f"from {'.' if where == 'in a package' else ''}dlpack_{name} cimport *", "", "def use():"]
    lines += ["    cdef void *function", "    cdef long long number = 0", "    cdef const char *text"]
    for part in {"cuda": ["device", "cuda"], "rocm": ["device", "rocm"]}.get(name, [name]):
        declared = test_declarations.Declarations(part)
        for called in declared.functions:
            if called.isupper():
                lines.append(f"    number += {called}(1, 1, 1)")
            else:
                lines.append(f"    function = <void *>{called}")
        for constant, kind in declared.constants.items():
            lines.append(f"    text = {constant}" if "*" in kind else f"    number += <long long>{constant}")
        for i, (struct, fields) in enumerate(declared.structs.items()):
            lines.append(f"    cdef {struct} *struct{i} = NULL")
            for field in fields:
                member = re.sub(r' "\w+"$', "", field)
                member = re.search(r"\(\*(\w+)\)|(\w+)(?:\[\w+\])?$", member)
                lines.append(f"    number += sizeof(struct{i}.{member[1] or member[2]})")
            lines.append(f"    number += sizeof({struct}) + (struct{i} != NULL)")
        for kind in declared.types:
            lines.append(f"    number += sizeof({kind})")
    lines += ["    return number"]
    assert len(lines) > {"tensor": 100, "py": 70, "copy": 10}.get(name, 12)
    if where == "in a package":
        (tmp_path / "__init__.py").write_text("")
    source = tmp_path / "use.pyx"
    source.write_text("\n".join(lines) + "\n")
    compile_c(cythonize(source), *flags)


def test_the_exchange_api_and_buffers_are_declared_together(tmp_path):
    for file in ROOT.glob("*.pxd"):
        (tmp_path / file.name).write_text(file.read_text())
    source = tmp_path / "use.pyx"
    source.write_text("""
from dlpack_exchange cimport *
from dlpack_buffer cimport *

def copy(x):
    cdef dlpack_py_want want = dlpack_py_want_any()
    cdef dlpack_py_view v, result
    cdef dlpack_py_error error
    want.fallback = dlpack_buffer_fallback
    dlpack_py_consume(x, &want, &v)
    try:
        dlpack_py_allocate_like(x, &v.tensor, &result)
        if dlpack_py_copy(&result.tensor, &v.tensor, v.flags, &error) < 0:
            dlpack_py_release(&result)
            dlpack_py_raise(&error)
        return dlpack_py_return_like_steal(x, &result)
    finally:
        dlpack_py_release(&v)
""")
    compile_c(cythonize(source))
    code = "import numpy, use; x = numpy.arange(6.0)[::2]; y = use.copy(x); assert (x == y).all() and y.base is not x"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


WINDOW = ROOT / "examples" / "cython" / "window.pyx"


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    folder = tmp_path_factory.mktemp("window")
    for file in (WINDOW, *(ROOT / f"dlpack_{name}.pxd" for name in ("tensor", "py", "buffer"))):
        (folder / file.name).write_text(file.read_text())
    compile_c(cythonize(folder / WINDOW.name))
    sys.path.insert(0, str(folder))
    import window

    return window


def test_a_window_exports_a_part_of_a_view_P9_D1_D4(window):
    x = numpy.arange(10.0)
    for source, expected in (x, [2, 3, 4]), (x[::2], [4, 6, 8]), (x[::-1], [7, 6, 5]):
        part = numpy.from_dlpack(window.Window(source, 2, 5))
        assert part.tolist() == expected and numpy.shares_memory(part, x)
    inner = numpy.from_dlpack(window.Window(window.Window(x, 1, 9), 1, 4))
    assert inner.tolist() == [2, 3, 4] and numpy.shares_memory(inner, x)
    assert numpy.from_dlpack(window.Window(x, 10, 10)).size == 0


def test_a_window_keeps_memory_and_the_read_only_flag_P3_K4(window):
    x = numpy.arange(5.0)
    before = sys.getrefcount(x)
    x.flags.writeable = False
    part = numpy.from_dlpack(window.Window(window.Window(x, 0, 4), 1, 3))
    assert sys.getrefcount(x) == before + 1 and not part.flags.writeable and part.tolist() == [1, 2]
    del part
    with pytest.raises(BufferError, match="read-only"):
        window.Window(x, 1, 4).__dlpack__()
    for start, stop in (-1, 2), (3, 2), (0, 6):
        with pytest.raises(IndexError):
            window.Window(x, start, stop)
    with pytest.raises(AttributeError, match="^x: 'list' object has no attribute '__dlpack__'"):
        window.Window([1.0], 0, 1)
    assert sys.getrefcount(x) == before


def test_a_typed_memoryview_of_any_array_is_one_line_D4_C7(window):
    x = numpy.arange(6.0).reshape(2, 3)
    x.flags.writeable = False
    assert window.sums(x) == [3, 12] and window.sums(x.T) == [3, 5, 7] and window.sums(x[::-1, ::2]) == [8, 2]
    assert window.sums(memoryview(x)) == [3, 12] and window.sums(x[:0]) == []
    for wrong in x[0], x.astype(int), b"abc":
        with pytest.raises(BufferError):
            window.sums(wrong)


def test_dlpack_takes_at_most_25_lines_and_no_extern_block():
    text = SOURCE.read_text()
    regions = re.findall(r"# dlpack: begin\n(.*?)# dlpack: end", text, re.DOTALL)
    lines = [line for line in "".join(regions).splitlines() if line.strip()]
    assert 10 < len(lines) <= 25
    assert "extern" not in text
