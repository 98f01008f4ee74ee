"""The headers compile without a warning: compilers x standards x interpreters x versions of dlpack.h.

DLPACK_PY_MATRIX=all runs the full matrix; DLPACK_PY_MATRIX=pairs runs a third of it, with each pair of values;
otherwise each value of a dimension is used once.
"""

import itertools
import os
import re
import subprocess
import sys

import machine
import pytest

USES_ALL = machine.ROOT / "tests" / "build" / "uses_all.c"
MATRIX = os.environ.get("DLPACK_PY_MATRIX")
STANDARDS = machine.C_STANDARDS + machine.CXX_STANDARDS
TENSORS, PLAIN = (
    "-DUSES_ALL_TENSORS",
    "-DUSES_ALL_PLAIN",
)  # uses_all with dlpack_tensor.h alone; without dlpack_exchange.h
HEADERS = ("dlpack_tensor.h", "dlpack_py.h", "dlpack_exchange.h", "dlpack_buffer.h")


def chosen(*dimensions):
    """All combinations, or, for three dimensions with three values each, combinations with each pair of values."""
    for places in itertools.product(*map(range, map(len, dimensions))):
        if MATRIX == "all" or sum(places) % 3 == 0:
            yield [values[place] for values, place in zip(dimensions, places)]


def combinations():
    dimensions = list(machine.compilers()), STANDARDS, list(machine.pythons()), list(machine.dlpack_headers())
    if MATRIX:
        # The headers of the interpreter and dlpack.h do not depend on each other.
        compilers, standards, pythons, dlpacks = dimensions
        yield from chosen(compilers, standards, pythons, dlpacks[-1:])
        yield from chosen(compilers, standards, pythons[-1:], dlpacks[:-1])
    else:
        yield from itertools.islice(zip(*map(itertools.cycle, dimensions)), max(map(len, dimensions)))


def missing():
    for family in machine.COMPILERS:
        if not any(name.startswith(family) for name in machine.compilers()):
            yield f"{family}: not on this machine"
    for version in machine.PYTHONS:
        if version not in machine.pythons():
            yield f"CPython {version} with headers: not on this machine"
    for version in machine.DLPACKS:
        if version not in machine.dlpack_headers():
            yield f"dlpack.h {version}: `tests/build/machine.py fetch` gets it"


def build_module(folder, source, *flags, **where):
    """Builds and runs uses_all, in the interpreter that runs the tests."""
    flags = *flags, "-shared", "-o", str(folder / "uses_all.so")
    done = machine.compile_c(source, *flags, **where)
    assert done.returncode == 0, done.stderr


def run_module(folder, python=sys.executable):
    done = subprocess.run([python, "-c", "import uses_all; uses_all.run()"], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "compiler, standard, python, dlpack",
    [pytest.param(*names, id="/".join(names)) for names in combinations()]
    + [pytest.param(*4 * [None], marks=pytest.mark.skip(reason=what), id=what.split(":")[0]) for what in missing()],
)
def test_no_warning_in_any_combination(tmp_path, compiler, standard, python, dlpack):
    source = USES_ALL.with_suffix(".cpp" if standard in machine.CXX_STANDARDS else ".c")
    commands = machine.compilers()[compiler]
    if source.suffix == ".cpp" and commands[1] is None:
        pytest.skip("C++ compiler: not on this machine")
    where = {"dlpack": machine.dlpack_headers()[dlpack], "python": machine.pythons()[python][1], "compiler": commands}
    flags = [f"-std={standard}", *machine.how_far(standard, tmp_path)]
    done = machine.compile_c(source, *flags, **where)
    if done.returncode != 0:
        alone = tmp_path / f"alone{source.suffix}"
        alone.write_text("#include <Python.h>\n")
        if machine.compile_c(alone, f"-std={standard}", "-fsyntax-only", **where).returncode != 0:
            pytest.skip(f"Python.h of {python} does not compile as {standard} with {compiler}")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    done = machine.compile_c(source, PLAIN, *flags, **where)
    assert done.returncode == 0 and done.stderr == "", done.stderr


@pytest.mark.parametrize("standard", STANDARDS)
@pytest.mark.parametrize("compiler", machine.compilers())
def test_no_warning_of_dlpack_copy_h_in_any_standard(tmp_path, compiler, standard):
    commands = machine.compilers()[compiler]
    suffix = ".cpp" if standard in machine.CXX_STANDARDS else ".c"
    if suffix == ".cpp" and commands[1] is None:
        pytest.skip("C++ compiler: not on this machine")
    source = tmp_path / f"source{suffix}"
    source.write_text(f'#include "dlpack_copy.h"\n#include "{USES_ALL}"\n')
    for portable in ([], ["-DDLPACK_COPY_PORTABLE"]):
        flags = [f"-std={standard}", TENSORS, *portable, *machine.how_far(standard, tmp_path)]
        done = machine.compile_c(source, *flags, compiler=commands, python=None)
        assert done.returncode == 0 and done.stderr == "", done.stderr


ONLY_CONSUMES = """
    #include "dlpack_py.h"
    PyObject *length(PyObject *obj);
    PyObject *length(PyObject *obj)
    {
        dlpack_py_want want = dlpack_py_want_any();
        dlpack_py_view v;
        int64_t n;
        want.ndim = 1;
        want.order = 'C';
        if (dlpack_py_consume(obj, &want, &v) < 0)
            return NULL;
        n = v.tensor.shape[0];
        dlpack_py_release(&v);
        return PyLong_FromLongLong(n);
    }
"""


@pytest.mark.parametrize("level", ["-O0", "-Og", "-O1", "-Os", "-O3"])
def test_no_warning_at_any_level_of_optimization(tmp_path, level):
    """Warnings about uninitialized variables depend on inlining. All other tests compile with -O2."""
    only = tmp_path / "only.c"
    only.write_text(ONLY_CONSUMES)
    for commands in list(machine.compilers().values())[0 if MATRIX else -1 :]:
        for source, *flags in [(only,), (USES_ALL,), (USES_ALL, PLAIN)]:
            done = machine.compile_c(source, level, *flags, "-c", "-o", str(tmp_path / "o"), compiler=commands)
            assert done.returncode == 0 and done.stderr == "", done.stderr


WITH_COPY = ["-include", str(machine.ROOT / "dlpack_copy.h")]


@pytest.mark.parametrize("flags", [[], [PLAIN], WITH_COPY], ids=["all", "without dlpack_exchange.h", "dlpack_copy.h"])
@pytest.mark.parametrize("suffix", [".c", ".cpp"])
def test_every_function_works_as_c_and_as_cpp(tmp_path, suffix, flags):
    if suffix == ".cpp" and list(machine.compilers().values())[-1][1] is None:
        pytest.skip("C++ compiler: not on this machine")
    build_module(tmp_path, USES_ALL.with_suffix(suffix), *flags)
    run_module(tmp_path)


def test_uses_all_uses_every_function_and_macro():
    used = set(re.findall(r"\b(?:dlpack|DLPACK)_\w+(?=\(|;|,)", USES_ALL.read_text()))
    for name in HEADERS:
        header = (machine.ROOT / name).read_text()
        functions = set(re.findall(r"^(dlpack_(?:py|buffer)_\w+)\(", header, re.MULTILINE))
        macros = set(re.findall(r"^#define (DLPACK_(?:PY|BUFFER)_\w+)\(.*\\$", header, re.MULTILINE))
        assert len(functions) >= {"dlpack_tensor.h": 15, "dlpack_py.h": 20}.get(name, 6)
        by_others = {"dlpack_buffer_getbuffer_described", "dlpack_buffer_array_interface"}
        by_others |= {"dlpack_buffer_memoryview_steal"}
        assert (functions | macros) - by_others - used == set()


def capabilities():
    """Macros of 0 and 1 in the sections for differences, which a build may override."""
    text = "".join((machine.ROOT / name).read_text() for name in HEADERS)
    return re.findall(r"^#ifndef (DLP_HAS_\w+|DLP_HAS_\w+)", text, re.MULTILINE)


@pytest.mark.parametrize("switch", ["DLPACK_PY_PLAIN=1", *(f"{name}=0" for name in capabilities())])
@pytest.mark.parametrize("exchange", [[], [PLAIN]], ids=["all", "without dlpack_exchange.h"])
def test_every_function_works_without_a_capability(tmp_path, switch, exchange):
    build_module(tmp_path, USES_ALL, f"-D{switch}", *exchange, "-O0")
    run_module(tmp_path)


@pytest.mark.parametrize("exchange", [[], [PLAIN]], ids=["all", "without dlpack_exchange.h"])
@pytest.mark.parametrize("built_for", ["3.12", "3.13"])
def test_every_function_works_under_the_limited_api(tmp_path, built_for, exchange):
    pythons = {version: found for version, found in machine.pythons().items() if machine.has_gil(found[0])}
    if built_for not in pythons:
        pytest.skip(f"CPython {built_for} with headers: not on this machine")
    build_module(tmp_path, USES_ALL, "-DPy_LIMITED_API=0x030C0000", *exchange, python=pythons[built_for][1])
    for version in ("3.12", "3.13"):
        if version in pythons:
            run_module(tmp_path, pythons[version][0])


@pytest.mark.parametrize("standard", machine.C_STANDARDS)
def test_the_tensor_layer_needs_no_python(tmp_path, standard):
    program = tmp_path / "program"
    flags = TENSORS, f"-std={standard}", "-o", str(program)
    done = machine.compile_c(USES_ALL, *flags, python=None)
    assert done.returncode == 0, done.stderr
    assert subprocess.run([program]).returncode == 0


TENSOR_TESTS = sorted(path for path in (machine.ROOT / "tests" / "tensor").glob("*.c") if path.stem != "tensor_lib")


@pytest.mark.parametrize("source", TENSOR_TESTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("copy", ["", '#include "dlpack_copy.h"\n'], ids=["loops", "dlpack_copy.h"])
@pytest.mark.parametrize("flavour", ["-m32", "C++", "-DDLPACK_PY_PLAIN=1", *(f"-D{name}=0" for name in capabilities())])
def test_the_tensor_layer_is_right_in_each_flavour(tmp_path, source, flavour, copy):
    includes_it = tmp_path / ("source.cpp" if flavour == "C++" else "source.c")
    includes_it.write_text(f'{copy}#include "{source}"\n')
    flags = [] if flavour == "C++" else [flavour]
    if flavour == "C++" and list(machine.compilers().values())[-1][1] is None:
        pytest.skip("C++ compiler: not on this machine")
    empty, program = tmp_path / "empty.c", str(tmp_path / "program")
    empty.write_text("int main(void) { return 0; }")
    if flavour == "-m32" and machine.compile_c(empty, *flags, "-o", program, python=None).returncode != 0:
        pytest.skip("32-bit libraries: not on this machine")
    done = machine.compile_c(includes_it, *flags, "-o", program, python=None)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_short_enums_are_an_error_that_names_them():
    done = machine.compile_c(USES_ALL, "-fshort-enums", "-fsyntax-only")
    assert done.returncode != 0
    assert "enum_has_4_bytes" in done.stderr
