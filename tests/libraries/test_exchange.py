"""Exchange of arrays between dlarray and NumPy or PyTorch: values, memory, lifetime (D, P, K, C)."""

import gc
import importlib.util
import sys
import threading
import weakref

import array_libraries
import dlarray
import dltensor
import pytest
from array_libraries import needs_versioned_numpy
from dltensor import ARRAY_API_DTYPES
from optional import numpy

LIBRARIES = ["numpy", "torch"] if importlib.util.find_spec("torch") else ["numpy"]
needs_torch = pytest.mark.skipif("torch" not in LIBRARIES, reason="torch: make test-libraries installs it")


def pairs(libraries, **marks):
    """Each library once as the target and once as the source."""
    every = [(pair, name) for name in libraries for pair in (("dlarray", name), (name, "dlarray"))]
    cases = [pytest.param(*pair, marks=marks.get(name, ()), id="-to-".join(pair)) for pair, name in every]
    return pytest.mark.parametrize("source, target", cases, indirect=True)


@pytest.fixture
def source(request):
    return getattr(array_libraries, request.param)()


@pytest.fixture
def target(request):
    return getattr(array_libraries, request.param)()


with_libraries = pairs(LIBRARIES)
with_libraries_by_keywords = pairs(LIBRARIES, numpy=needs_versioned_numpy)
with_numpy = pairs(["numpy"])  # PyTorch ends the process when it imports a negative stride (D11)


@needs_torch
def test_the_pairs_contain_pytorch():
    assert "torch" in LIBRARIES


# ---- Layouts: D ----


def vector(lib, dtype, n=6):
    kind = {"b": bool, "f": float, "c": complex}.get(dtype[0], int)
    return lib.array([kind(i * 7 % 5) for i in range(n)], dtype)


def matrix(lib, dtype):
    kind = {"b": bool, "f": float, "c": complex}.get(dtype[0], int)
    return lib.array([[kind((i * 4 + j) * 7 % 5) for j in range(4)] for i in range(3)], dtype)


LAYOUTS = {
    "rows": matrix,
    "columns": lambda lib, dtype: matrix(lib, dtype).transpose(*([0, 1] if lib.name == "torch" else [])),
    "a row": lambda lib, dtype: matrix(lib, dtype)[1],
    "a column": lambda lib, dtype: matrix(lib, dtype)[:, 2],
    "a block": lambda lib, dtype: matrix(lib, dtype)[1:, 1:3],
    "steps": lambda lib, dtype: matrix(lib, dtype)[::2, 1::2],
    "new dimensions": lambda lib, dtype: vector(lib, dtype)[None, ::2, None],
    "a scalar": lambda lib, dtype: vector(lib, dtype)[3, ...],
    "no elements": lambda lib, dtype: vector(lib, dtype, 0),
    "no rows": lambda lib, dtype: matrix(lib, dtype)[3:],
    "no columns": lambda lib, dtype: matrix(lib, dtype)[:, 4:],
}


def is_shared(source, a, target, b):
    """Asserts that both arrays have equal shape, strides, dtype, values and memory."""
    assert target.dtype(b) == source.dtype(a)
    assert target.shape(b) == source.shape(a)
    assert target.values(b) == source.values(a)
    if 0 not in source.shape(a):
        assert target.pointer(b) == source.pointer(a)
        assert steps(target, b) == steps(source, a)
    return True


def steps(lib, a):
    """The strides that have a meaning: NumPy before 2.4 exports no strides for a compact array."""
    return [stride for extent, stride in zip(lib.shape(a), lib.strides(a)) if extent > 1]


@with_libraries
@pytest.mark.parametrize("dtype", ARRAY_API_DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_dtype_and_layout_is_shared_and_written_on_both_sides_D7_D4(source, target, layout, dtype):
    a = LAYOUTS[layout](source, dtype)
    before = source.references(a)
    b = target.from_dlpack(a)
    assert is_shared(source, a, target, b)
    assert source.references(a) == before + 1
    a[...] = 1
    assert target.values(b) == source.values(a)
    if not target.readonly(b):
        b[...] = 0
        assert target.values(b) == source.values(a)
    del b
    assert source.references(a) == before


@with_numpy
@pytest.mark.parametrize("dtype", ARRAY_API_DTYPES)
@pytest.mark.parametrize("key", [slice(None, None, -1), slice(4, 0, -2), (None, slice(None, None, -3))], ids=str)
def test_negative_steps_are_shared_D5_D11(source, target, key, dtype):
    a = vector(source, dtype)[key]
    b = target.from_dlpack(a)
    assert is_shared(source, a, target, b)
    a[...] = 1
    assert target.values(b) == source.values(a)


@with_libraries_by_keywords
@pytest.mark.parametrize("shape", [(2, 6), (3, 1, 6)])
def test_repeated_elements_are_shared_D5(source, target, shape):
    a = source.broadcast_to(vector(source, "float32"), shape)
    b = target.from_dlpack(a)
    assert is_shared(source, a, target, b)
    assert 0 in target.strides(b)


def with_strides(lib, shape, strides):
    """A float64 array with exactly these strides, even if the library would change them."""
    if lib.name == "dlarray":
        return lib.from_dlpack(dltensor.Producer(shape=shape, strides=strides))
    a = lib.array([float(i) for i in range(64)], "float64")
    if lib.name == "torch":
        return a.as_strided(shape, strides)
    return numpy.lib.stride_tricks.as_strided(a, shape, [8 * stride for stride in strides])


@with_libraries
@pytest.mark.parametrize("strides", [(77, 1), (1, 1), (0, 1), (1000, 2)], ids=str)
def test_strides_of_extent_1_are_kept_D5(source, target, strides):
    for shape, strides in [((1, 3), strides), ((3, 1), strides[::-1])]:
        a = with_strides(source, shape, strides)
        b = target.from_dlpack(a)
        assert is_shared(source, a, target, b)
        assert target.strides(b) == (dltensor.read(a.__dlpack__()).strides or dltensor.compact(shape))
        assert target.strides(b) == strides or source.name == "numpy"


@with_libraries
@pytest.mark.parametrize("ndim", range(33))
def test_every_rank_up_to_32_is_shared_D8(source, target, ndim):
    a = source.array(7.0, "float64")[(None,) * ndim] if ndim else source.array(7.0, "float64")
    assert is_shared(source, a, target, target.from_dlpack(a))


# ---- Lifetime: P9, K1, K4 ----


@with_libraries
def test_the_memory_survives_its_array_while_an_import_lives_P9(source, target):
    a = vector(source, "float64")
    b, gone, wanted = target.from_dlpack(a), weakref.ref(a), source.values(a)
    del a
    gc.collect()
    kept = [vector(source, "float64") for _ in range(10)]
    assert target.values(b) == wanted
    assert gone() is not None
    del b
    assert gone() is None
    del kept


@with_libraries
def test_the_array_survives_the_release_of_its_import_P9(source, target):
    a = vector(source, "float64")
    wanted, before = source.values(a), source.references(a)
    b = target.from_dlpack(a)
    views = [b[1:], b[None]]
    del b
    assert source.references(a) == before + 1
    del views
    assert (source.references(a), source.values(a)) == (before, wanted)


@with_libraries
def test_two_imports_of_one_array_are_independent_P9(source, target):
    a = vector(source, "float64")
    before = source.references(a)
    first, second = target.from_dlpack(a), target.from_dlpack(a)
    assert source.references(a) == before + 2
    del first
    assert source.references(a) == before + 1
    assert is_shared(source, a, target, second)
    del second
    assert source.references(a) == before


@with_libraries
def test_an_import_may_be_released_on_another_thread_K5(source, target):
    a = vector(source, "float64")
    before = source.references(a)
    imports = [target.from_dlpack(a)]
    thread = threading.Thread(target=imports.clear)
    thread.start()
    thread.join()
    del thread
    assert source.references(a) == before


@pytest.mark.parametrize("keywords", [{}, pytest.param({"max_version": (1, 0)}, marks=needs_versioned_numpy)], ids=str)
@with_libraries
def test_an_unconsumed_capsule_releases_the_array_when_it_is_freed_K1(source, target, keywords):
    a = vector(source, "float64")
    before = source.references(a)
    for _ in range(10):
        a.__dlpack__(**keywords)
    assert source.references(a) == before
    gone = weakref.ref(a)
    capsule = a.__dlpack__(**keywords)
    del a
    assert gone() is not None
    del capsule
    assert gone() is None


@with_libraries
def test_an_exception_in_flight_survives_the_release_of_an_import_K2(source, target):
    a = vector(source, "float64")
    before = source.references(a)
    error = KeyError("in flight")

    def fail():
        raise error

    for make in (
        lambda: target.from_dlpack(a),
        lambda: a.__dlpack__(),
        lambda: (a.__dlpack__(), target.from_dlpack(a)),
    ):
        with pytest.raises(KeyError) as raised:
            _ = (make(), fail())
        assert raised.value is error
        assert error.__context__ is None
    assert source.references(a) == before


@with_libraries
def test_a_capsule_is_consumed_once_K4(source, target):
    a = vector(source, "float64")
    before = source.references(a)
    capsule = a.__dlpack__()
    kept = dltensor.Kept(capsule)
    b = target.from_dlpack(kept)
    with pytest.raises((ValueError, RuntimeError)):
        target.from_dlpack(kept)
    assert is_shared(source, a, target, b)
    del capsule, kept, b
    assert source.references(a) == before


@with_libraries_by_keywords
def test_a_chain_there_and_back_keeps_the_first_array_alive_P9(source, target):
    a = b = vector(source, "float64")
    gone, wanted = weakref.ref(a), source.values(a)
    for _ in range(10):
        b = source.from_dlpack(target.from_dlpack(b))
    assert is_shared(source, a, source, b)
    del a
    assert gone() is not None
    assert source.values(b) == wanted
    del b
    assert gone() is None


@needs_torch
def test_a_chain_through_all_libraries_keeps_the_first_array_alive_P9():
    import torch

    a = dlarray.arange(6)
    gone = weakref.ref(a)
    b = a
    for _ in range(5):
        for from_dlpack in (torch.from_dlpack, numpy.from_dlpack, dlarray.from_dlpack):
            b = from_dlpack(b)
    assert (b.data_ptr, b.tolist()) == (a.data_ptr, [0, 1, 2, 3, 4, 5])
    del a
    assert gone() is not None
    b[0] = 9
    assert b.tolist() == [9, 1, 2, 3, 4, 5]
    del b
    assert gone() is None


@with_libraries
def test_a_thousand_rounds_leave_no_reference_K4(source, target):
    a = vector(source, "float64")
    before = source.references(a)
    for _ in range(1000):
        target.from_dlpack(a)
    assert source.references(a) == before


# ---- Copy and device: P4, P5, C3 ----


@with_libraries_by_keywords
@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("copy", [None, True, False])
def test_copy_and_device_are_honoured_P4_P5(source, target, device, copy):
    a = matrix(source, "float32")
    before = source.references(a)
    b = target.from_dlpack(a, device=device, copy=copy)
    assert target.values(b) == source.values(a)
    assert not target.readonly(b)
    assert (target.pointer(b) != source.pointer(a)) == (copy is True)
    assert source.references(a) == before + (copy is not True)
    b[...] = 1
    assert (target.values(b) == source.values(a)) == (copy is not True)
    del b
    assert source.references(a) == before


@with_libraries_by_keywords
@pytest.mark.parametrize("layout", ["columns", "steps", "no rows", "a scalar"])
def test_copies_of_any_layout_have_the_same_elements_P4(source, target, layout):
    a = LAYOUTS[layout](source, "float32")
    b = target.from_dlpack(a, copy=True)
    assert target.values(b) == source.values(a)
    assert target.shape(b) == source.shape(a)


@pytest.mark.parametrize("source", LIBRARIES, indirect=True)
def test_the_device_may_be_a_tuple_for_dlarray_C3(source):
    a = vector(source, "float32")
    assert dlarray.from_dlpack(a, device=(1, 0)).data_ptr == source.pointer(a)


def test_another_device_is_refused_by_numpy_C3_C5():
    a = numpy.arange(3)
    before = sys.getrefcount(a)
    with pytest.raises((BufferError, ValueError)):  # ValueError from NumPy before 2.3
        dlarray.from_dlpack(a, device=(2, 0))
    assert sys.getrefcount(a) == before


# ---- Read-only: P3, C7 ----


@needs_versioned_numpy
def test_read_only_arrays_of_dlarray_are_read_only_in_numpy_P3():
    a = dlarray.arange(3)
    a.setflags(writeable=False)
    b = numpy.from_dlpack(a)
    assert not b.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        b[0] = 1
    with pytest.raises(ValueError):
        b.flags.writeable = True
    assert numpy.from_dlpack(a, copy=True).flags.writeable


@needs_versioned_numpy
def test_read_only_arrays_of_numpy_are_read_only_in_dlarray_C7():
    a = numpy.arange(3)
    a.flags.writeable = False
    b = dlarray.from_dlpack(a)
    assert b.readonly
    with pytest.raises(ValueError):
        b[0] = 1
    with pytest.raises(ValueError):
        b.setflags(writeable=True)
    with pytest.raises(BufferError, match="read-only"):
        b.__dlpack__()
    assert not dlarray.from_dlpack(a, copy=True).readonly


def test_a_legacy_import_is_read_only_in_both_libraries_C7():
    class Old:
        def __init__(self, a):
            self.a = a

        def __dlpack__(self, stream=None):
            return self.a.__dlpack__()

        def __dlpack_device__(self):
            return (1, 0)

    assert dlarray.from_dlpack(Old(numpy.arange(3))).readonly
    assert not numpy.from_dlpack(Old(dlarray.arange(3))).flags.writeable
    again = numpy.from_dlpack(Old(dlarray.from_dlpack(Old(numpy.arange(3)))))
    assert again.tolist() == [0, 1, 2]


@needs_torch
def test_pytorch_imports_read_only_arrays_of_dlarray_P3():
    import torch

    a = dlarray.arange(3)
    a.setflags(writeable=False)
    b = torch.from_dlpack(a)
    assert (b.tolist(), b.data_ptr()) == ([0, 1, 2], a.data_ptr)


# ---- Arrays that a library or dlarray refuses ----


def test_an_array_that_numpy_cannot_export_raises_numpys_error_P7():
    for a in (numpy.array(["text"]), numpy.array([1], ">i4"), numpy.array("2026-01-01", "M8[D]"), numpy.longdouble(1)):
        with pytest.raises((BufferError, AttributeError)):
            dlarray.from_dlpack(a)
    structured = numpy.zeros(3, [("a", "i4"), ("b", "i1")])["a"]  # strides that are no multiple of the item size
    before = sys.getrefcount(structured)
    with pytest.raises(BufferError):
        dlarray.from_dlpack(structured)
    assert sys.getrefcount(structured) == before


def test_an_unaligned_array_is_refused_C9():
    a = numpy.frombuffer(bytearray(17), "float64", 2, 1)
    before = sys.getrefcount(a)
    with pytest.raises(BufferError, match="alignment to 8 bytes"):
        dlarray.from_dlpack(a)
    assert sys.getrefcount(a) == before


@needs_torch
def test_a_tensor_that_pytorch_refuses_to_export_raises_pytorchs_error_P7():
    import torch

    for t in (
        torch.ones(3, dtype=torch.complex64).conj(),
        torch.eye(3).to_sparse(),
        torch.ones(3, device="meta"),
    ):
        with pytest.raises((BufferError, ValueError, RuntimeError)) as raised:
            dlarray.from_dlpack(t)
        assert raised.value.__context__ is None
        assert str(raised.value)


@needs_torch
def test_a_dtype_of_pytorch_that_dlarray_lacks_is_refused_by_name_C8():
    import torch

    t = torch.zeros(3, dtype=torch.complex32)
    before = sys.getrefcount(t)
    with pytest.raises(BufferError, match="dtype is complex32"):
        dlarray.from_dlpack(t)
    assert sys.getrefcount(t) == before


@needs_torch
@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_storage_only_dtypes_are_exchanged_there_and_back_D6(name):
    import torch

    t = torch.arange(24, dtype=torch.uint8).view(getattr(torch, name)).reshape(2, -1)
    a = dlarray.from_dlpack(t)
    assert (a.dtype, a.shape, a.data_ptr) == (name, tuple(t.shape), t.data_ptr())
    back = torch.from_dlpack(a.transpose())
    assert (back.dtype, back.data_ptr()) == (t.dtype, t.data_ptr()) and back.stride() == t.T.stride()


def test_subclasses_of_another_librarys_type_are_imported_C6():
    class Sub(numpy.ndarray):
        pass

    assert dlarray.from_dlpack(numpy.arange(3).view(Sub)).tolist() == [0, 1, 2]

    class Image(dlarray.Array):
        pass

    assert numpy.from_dlpack(Image(dlarray.arange(3))).tolist() == [0, 1, 2]
