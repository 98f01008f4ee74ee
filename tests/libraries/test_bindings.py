"""C++ extensions exchange arrays with dlarray and NumPy: with pybind11 and dlpack_py.h, and with nanobind.

examples/pybind11 adds DLPack to a class of pybind11 by the header; nanobind has its own DLPack code (P, K, C).
"""

import gc
import importlib.util
import os
import re
import sys
import sysconfig
import threading
import weakref
from pathlib import Path

import array_libraries
import dlarray
import dltensor
import machine
import pytest
from dltensor import ARRAY_API_DTYPES, DTYPES
from optional import numpy

missing = {"reason": "pybind11 and nanobind: make test-libraries installs it"}
pybind11 = pytest.importorskip("pybind11", exc_type=ModuleNotFoundError, **missing)
nanobind = pytest.importorskip("nanobind", exc_type=ModuleNotFoundError, **missing)

HERE = Path(__file__).parent
PYBIND_SOURCE = machine.ROOT / "examples" / "pybind11" / "matrix.cpp"
FLAGS = ["-std=c++17", "-O1", "-fvisibility=hidden"]
NANOBIND = Path(nanobind.include_dir())


def build(folder, source, *flags):
    """Compiles a source without a warning; the result has the name of the source."""
    compilers = [pair for pair in machine.compilers().values() if pair[1] is not None]
    if not compilers:
        without = pytest.fail if os.environ.get("DLPACK_PY_COMPLETE") else pytest.skip
        without("NOT TESTED with pybind11 and nanobind: no C++ compiler here")
    suffix = ".o" if "-c" in flags else sysconfig.get_config_var("EXT_SUFFIX")
    result = folder / (Path(source).stem + suffix)
    done = machine.compile_c(source, *FLAGS, *map(str, flags), "-o", str(result), compiler=compilers[-1])
    assert done.returncode == 0, done.stderr
    return result


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pybind(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pybind11")
    return load("matrix", build(folder, PYBIND_SOURCE, "-shared", "-isystem", pybind11.get_include()))


@pytest.fixture(scope="module")
def with_nanobind(tmp_path_factory):
    """Compiles nanobind. Returns a function that builds a source with it, and loads the module."""
    folder = tmp_path_factory.mktemp("nanobind")
    include = ["-isystem", NANOBIND, "-isystem", NANOBIND.parent / "ext" / "robin_map" / "include"]
    library = build(
        folder, Path(nanobind.source_dir()) / "nb_combined.cpp", "-c", "-w", "-fno-strict-aliasing", *include
    )
    return lambda source: load(source.stem, build(folder, source, "-shared", library, *include))


@pytest.fixture(scope="module")
def nano(with_nanobind):
    return with_nanobind(HERE / "nanobind_arrays.cpp")


@pytest.fixture(params=["dlarray", "numpy"])
def lib(request):
    return getattr(array_libraries, request.param)()


def matrix(lib):
    return lib.array([[0, 1, 2], [3, 4, 5]], "float64")


VIEWS = {
    "rows": lambda a: a,
    "columns": lambda a: a.transpose(),
    "steps": lambda a: a[:, ::2],
    "backwards": lambda a: a[::-1],
    "no rows": lambda a: a[2:],
}
with_views = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)


# ---- pybind11, with dlpack_py.h ----


def elements(m):
    return [[m[i, j] for j in range(m.shape[1])] for i in range(m.shape[0])]


def test_pybind11_a_matrix_is_exported_without_a_copy_P8_D4(pybind, lib):
    m = pybind.Matrix(2, 3)
    m[1, 2] = 5
    a = lib.from_dlpack(m)
    assert (lib.pointer(a), lib.shape(a), lib.strides(a)) == (m.address, (2, 3), (3, 1))
    assert (lib.dtype(a), lib.values(a)) == ("float64", [[0, 0, 0], [0, 0, 5]])
    assert m.__dlpack_device__() == (1, 0)
    m[0, 0] = 7
    a[1, 0] = 8
    assert lib.values(a) == elements(m) == [[7, 0, 0], [8, 0, 5]]


@with_views
def test_pybind11_an_array_is_imported_without_a_copy_D5(pybind, lib, view):
    a = view(matrix(lib))
    m = pybind.Matrix.from_dlpack(a)
    assert (m.shape, elements(m), m.readonly) == (lib.shape(a), lib.values(a), False)
    b = lib.from_dlpack(m)
    if lib.shape(a)[0]:
        assert m.address == lib.pointer(a) == lib.pointer(b)
        assert lib.strides(b) == lib.strides(a)
        m[1, 1] = 9
    assert lib.values(a) == lib.values(b) == elements(m)


def test_pybind11_read_only_memory_stays_read_only_P3_C7(pybind, lib):
    a = matrix(lib)
    lib.set_readonly(a)
    m = pybind.Matrix.from_dlpack(a)
    assert m.readonly and lib.readonly(lib.from_dlpack(m))
    with pytest.raises(ValueError, match="read-only"):
        m[0, 0] = 1
    with pytest.raises(BufferError, match="read-only.*legacy"):
        m.__dlpack__()
    for readonly in (a, m):
        with pytest.raises(BufferError, match="data is read-only, writable memory was asked for"):
            pybind.scale(readonly, 2)
        assert pybind.trace(readonly) == 4
    assert not pybind.Matrix.from_dlpack(a, copy=True).readonly
    assert not lib.readonly(lib.from_dlpack(m, copy=True))


def test_pybind11_a_legacy_import_is_read_only_C7(pybind):
    m = pybind.Matrix.from_dlpack(dltensor.Producer(dltensor.LEGACY, shape=(2, 2)))
    assert m.readonly
    with pytest.raises(BufferError, match="a legacy capsule has no read-only flag"):
        pybind.scale(dltensor.Producer(dltensor.LEGACY, shape=(2, 2)), 2)


def test_pybind11_functions_take_any_array_in_place_C9(pybind, lib):
    for view, trace in ((VIEWS["rows"], 4), (VIEWS["columns"], 4), (VIEWS["steps"], 5)):
        a = view(matrix(lib))
        assert pybind.trace(a) == trace
    a = matrix(lib)
    pybind.scale(a, 2)
    pybind.scale(a.transpose(), 2)
    pybind.scale(a[1], 2)
    assert lib.values(a) == [[0, 4, 8], [24, 32, 40]]
    m = pybind.Matrix.from_dlpack(a)
    pybind.scale(m, 0.5)
    assert pybind.trace(m) == 16
    assert lib.values(a) == [[0, 2, 4], [12, 16, 20]]


def test_pybind11_an_unsupported_argument_is_refused_with_a_message_and_unchanged_C6_C9(pybind, lib):
    square = matrix(lib)[:, ::2]

    def double(a):
        pybind.scale(a, 2)

    refused = [
        (double, lib.array([1, 2], "int64"), BufferError, "dtype is int64, float64 was asked for"),
        (double, square, BufferError, "not compact in any order of the dimensions"),
        (pybind.trace, square[0], BufferError, "ndim is 1, 2 was asked for"),
        (pybind.Matrix.from_dlpack, lib.array([[1]], "float32"), BufferError, "dtype is float32"),
        (pybind.trace, [[1.0]], AttributeError, "'list' object has no attribute '__dlpack__'"),
    ]
    for function, a, error, text in refused:
        before = sys.getrefcount(a)
        with pytest.raises(error, match=text):
            function(a)
        assert sys.getrefcount(a) == before


def test_pybind11_an_exception_of_the_producer_reaches_the_caller_C1(pybind):
    class Broken:
        def __dlpack__(self, **keywords):
            raise KeyError("of the producer's own")

    for function in (pybind.trace, pybind.Matrix.from_dlpack):
        with pytest.raises(KeyError, match="of the producer's own"):
            function(Broken())


def test_pybind11_a_capsule_is_consumed_once_K4(pybind, lib):
    a = matrix(lib)
    before = sys.getrefcount(a)
    capsule = a.__dlpack__()
    assert pybind.trace(capsule) == 4
    assert sys.getrefcount(a) == before
    with pytest.raises(ValueError, match="consumed"):
        pybind.trace(capsule)


def test_pybind11_requests_are_met_or_refused_P1_P4_P5_P6(pybind):
    m = pybind.Matrix(2, 2)
    for keywords in ({"stream": None}, {"stream": -1}, {"dl_device": (1, 0)}, {"copy": False}):
        assert dltensor.name(m.__dlpack__(**keywords)) == dltensor.LEGACY
        assert dltensor.name(m.__dlpack__(max_version=(1, 0), **keywords)) == dltensor.VERSIONED
    copied = dltensor.Taken(m.__dlpack__(max_version=(1, 3), copy=True))
    assert copied.says.flags == dltensor.IS_COPIED and copied.says.data != m.address
    copied.delete()
    refused = [
        ({"unknown": 1}, TypeError, "incompatible function arguments"),
        ({"max_version": 1}, TypeError, "max_version is 1"),
        ({"stream": 5}, ValueError, "stream is 5"),
        ({"dl_device": (2, 0)}, BufferError, "dl_device is cuda:0"),
        ({"copy": 1}, TypeError, "copy is 1"),
    ]
    for keywords, error, text in refused:
        with pytest.raises(error, match=text):
            m.__dlpack__(**keywords)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        m.__dlpack__(None)


def test_pybind11_copies_share_nothing_P4(pybind, lib):
    a = matrix(lib)
    m = pybind.Matrix.from_dlpack(a, copy=True)
    b = lib.from_dlpack(m, copy=True)
    assert len({lib.pointer(a), m.address, lib.pointer(b)}) == 3
    assert lib.values(a) == lib.values(b) == elements(m)
    assert pybind.Matrix.from_dlpack(a, device="cpu", copy=False).address == lib.pointer(a)


def test_pybind11_the_matrix_lives_as_long_as_an_array_over_it_P9(pybind, lib):
    m = pybind.Matrix(2, 2)
    m[0, 1] = 3
    gone = weakref.ref(m)
    a = lib.from_dlpack(m)
    del m
    gc.collect()
    assert gone() is not None and lib.values(a) == [[0, 3], [0, 0]]
    del a
    assert gone() is None


def test_pybind11_the_array_lives_as_long_as_a_matrix_over_it_K4(pybind, lib):
    a = matrix(lib)
    before = lib.references(a)
    m = pybind.Matrix.from_dlpack(a)
    assert lib.references(a) == before + 1
    b = lib.from_dlpack(m)
    del m
    assert lib.references(a) == before + 1
    del b
    assert lib.references(a) == before


def test_pybind11_a_matrix_may_be_freed_on_another_thread_K5(pybind, lib):
    a = matrix(lib)
    before = lib.references(a)
    held = [pybind.Matrix.from_dlpack(a)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert lib.references(a) == before


def test_pybind11_a_thousand_rounds_leave_no_reference_K1_K4(pybind, lib):
    m, a = pybind.Matrix(2, 2), matrix(lib)
    before = sys.getrefcount(m), sys.getrefcount(a)
    for _ in range(1000):
        m.__dlpack__(max_version=(1, 0))
        lib.from_dlpack(m)
        pybind.Matrix.from_dlpack(a)
        pybind.scale(a, 1)
    assert (sys.getrefcount(m), sys.getrefcount(a)) == before


def test_pybind11_a_class_derived_in_python_is_exported_C6(pybind, lib):
    class Named(pybind.Matrix):
        name = "derived"

    m = Named(1, 1)
    assert lib.pointer(lib.from_dlpack(m)) == m.address


def test_pybind11_dlpack_takes_at_most_100_lines():
    regions = re.findall(r"// dlpack: begin\n(.*?)// dlpack: end", PYBIND_SOURCE.read_text(), re.DOTALL)
    lines = [line for line in "".join(regions).splitlines() if line.split("//")[0].strip()]
    assert 20 < len(lines) <= 100


# ---- nanobind, with its own DLPack code ----


@with_views
@pytest.mark.parametrize("dtype", ARRAY_API_DTYPES)
def test_nanobind_takes_every_dtype_and_layout_without_a_copy_D7_D5(nano, dtype, view):
    a = view(dlarray.array([[0, 1, 1], [1, 0, 1]], dtype))
    address, shape, strides, code = nano.describe(a)
    assert (address, shape, strides, code) == (a.data_ptr if a.size else 0, a.shape, a.strides, DTYPES[dtype])


@with_views
def test_nanobind_reads_and_writes_in_place(nano, lib, view):
    whole = matrix(lib)
    a = view(whole)
    assert nano.total(a) == sum(map(sum, lib.values(a)))
    nano.fill(a, 7)
    assert {value for row in lib.values(a) for value in row} <= {7}
    if lib.shape(a) == (2, 2):
        assert lib.values(whole) == [[7, 1, 7], [7, 4, 7]]


def test_nanobind_takes_read_only_memory_for_reading_only_P3(nano, lib):
    a = matrix(lib)
    lib.set_readonly(a)
    assert (nano.total(a), nano.describe(a)[0]) == (15, lib.pointer(a))
    for function in (nano.fill, nano.fill_compact):
        before = sys.getrefcount(a)
        with pytest.raises(TypeError, match="incompatible function arguments"):
            function(a, 1)
        assert sys.getrefcount(a) == before
    assert lib.values(a) == [[0, 1, 2], [3, 4, 5]]


def test_nanobind_refuses_other_dtypes_ranks_and_orders(nano, lib):
    square = matrix(lib)[:, ::2]
    refused = [
        (nano.total, lib.array([[1]], "float32")),
        (nano.total, square[0]),
        (lambda a: nano.fill_compact(a, 1), square),
    ]
    for function, a in refused:
        before = sys.getrefcount(a)
        with pytest.raises(TypeError, match="incompatible function arguments"):
            function(a)
        assert sys.getrefcount(a) == before


def test_nanobind_copies_an_array_of_numpy_where_it_refuses_one_of_dlarray(nano):
    """noconvert() forbids the copy. Values that are written into the copy are lost."""
    theirs, ours = numpy.zeros((2, 3))[:, ::2], dlarray.zeros((2, 3))[:, ::2]
    nano.fill_compact_or_copy(theirs, 1)
    assert theirs.tolist() == [[0, 0], [0, 0]]
    with pytest.raises(TypeError, match="incompatible function arguments"):
        nano.fill_compact_or_copy(ours, 1)


def test_nanobind_keeps_an_array_alive_P9(nano, lib):
    a = matrix(lib)
    gone = weakref.ref(a)
    nano.keep(a)
    del a
    gc.collect()
    assert gone() is not None and lib.values(gone()) == [[0, 1, 2], [3, 4, 5]]
    nano.drop()
    assert gone() is None


def test_nanobind_gives_arrays_without_a_copy_K4(nano, lib):
    theirs = nano.numbers(4)
    a = lib.from_dlpack(theirs)
    assert (lib.values(a), lib.dtype(a), lib.readonly(a)) == ([0, 1, 2, 3], "float64", False)
    assert lib.pointer(a) == nano.describe(theirs)[0]
    a[1] = 9
    assert lib.values(lib.from_dlpack(theirs)) == [0, 9, 2, 3]
    before = nano.freed()
    del theirs
    assert nano.freed() == before and lib.values(a) == [0, 9, 2, 3]
    del a
    assert nano.freed() == before + 1


def test_nanobind_gives_constants_read_only_C7(nano, lib):
    a = lib.from_dlpack(nano.constants(4))
    assert (lib.values(a), lib.readonly(a)) == ([0, 1, 2, 3], True)
    with pytest.raises(ValueError, match="read-only"):
        a[0] = 1


def test_nanobind_never_copies_C3(nano, lib):
    with pytest.raises(BufferError, match="copy=True is not supported"):
        lib.from_dlpack(nano.numbers(4), copy=True)
    assert lib.values(lib.from_dlpack(nano.numbers(4), copy=False)) == [0, 1, 2, 3]


def test_nanobind_a_view_keeps_the_array_through_all_exchanges_P9(nano, lib):
    a = matrix(lib)
    gone, address = weakref.ref(a), lib.pointer(a)
    b = lib.from_dlpack(nano.row(a.transpose(), 1))
    del a
    gc.collect()
    assert gone() is not None
    assert (lib.pointer(b), lib.strides(b), lib.values(b)) == (address + 8, (3,), [1, 4])
    b[0] = 9
    assert lib.values(gone()) == [[0, 9, 2], [3, 4, 5]]
    del b
    assert gone() is None


def test_nanobind_and_pybind11_exchange_with_each_other(nano, pybind):
    m = pybind.Matrix(2, 2)
    nano.fill(m, 3)
    assert (elements(m), nano.describe(m)[0]) == ([[3, 3], [3, 3]], m.address)
    row = nano.row(m, 1)
    pybind.scale(row, 2)
    assert elements(m) == [[3, 3], [6, 6]]
    with pytest.raises(BufferError, match="read-only"):
        pybind.scale(nano.constants(2), 2)


# ---- Type casters ----


@pytest.fixture(scope="module", params=["pybind11", "nanobind"])
def sums(request, tmp_path_factory):
    source = machine.ROOT / "examples" / request.param / "sums.cpp"
    if request.param == "nanobind":
        return request.getfixturevalue("with_nanobind")(source)
    folder = tmp_path_factory.mktemp("sums")
    return load("sums", build(folder, source, "-shared", "-isystem", pybind11.get_include()))


def test_a_function_takes_the_arrays_of_any_library_D4_C7(sums):
    a = numpy.arange(12.0).reshape(3, 4)
    readonly = a.copy()
    readonly.flags.writeable = False
    for x, total in (a, 66), (a.T, 66), (a[::-1, ::2], 30), (readonly, 66), (a[:0], 0), (dlarray.from_dlpack(a), 66):
        assert sums.total(x) == total
    assert sums.total(a.__dlpack__(max_version=(1, 0))) == 66
    integers = sums.total(numpy.full((1, 2), 2**61 + 1))  # the second overload
    assert type(integers) is int and integers == 2**62 + 2
    v = numpy.arange(4.0)
    sums.scale(v, 2)
    sums.scale(v[::-2], factor=10)
    assert v.tolist() == [0, 20, 4, 60]


def test_an_array_that_does_not_fit_is_named_and_released_C9(sums):
    class Broken:
        def __dlpack__(self, **keywords):
            raise ZeroDivisionError("broken")

    v = numpy.arange(3.0)
    readonly = v.copy()
    readonly.flags.writeable = False
    for x, error, text in (
        (readonly, BufferError, "data is read-only"),
        (v.astype("f4"), BufferError, "dtype is float32, float64 was asked for"),
        (v.reshape(1, 3), BufferError, "ndim is 2, 1 was asked for"),
        (Broken(), ZeroDivisionError, "broken"),
        ([1.0], TypeError, "incompatible function arguments"),
        (None, TypeError, "incompatible function arguments"),
    ):
        before = sys.getrefcount(x)
        with pytest.raises(error, match=text):
            sums.scale(x, 2.0)
        assert x is None or sys.getrefcount(x) == before
    for x in v, v.astype("f4").reshape(1, 3), Broken(), "x":
        with pytest.raises(TypeError, match="incompatible function arguments"):
            sums.total(x)  # no overload fits
    producer = dltensor.Producer(shape=(3,), dtype="int32")
    with pytest.raises(BufferError):
        sums.scale(producer, 2.0)
    assert set(producer.deleted) == {1}


@pytest.mark.parametrize("binder", ["pybind11", "nanobind"])
def test_a_caster_has_at_most_40_lines_of_code(binder):
    text = (machine.ROOT / "examples" / binder / "caster.hpp").read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.strip().startswith(("//", "#"))]
    assert 20 < len(lines) <= 40
