"""The buffer protocol: buffers of an array, and arrays over the buffers of other objects."""

import array as stdlib_array
import ctypes
import gc
import io
import itertools
import math
import mmap
import subprocess
import sys
import threading
import weakref
from types import SimpleNamespace

import dlarray
import dltensor
import pytest
from collecting import PYPY
from hypothesis import given
from hypothesis import strategies as st
from optional import numpy
from patience import PATIENCE

if PYPY:
    pytest.skip("ctypes.pythonapi: not on PyPy", allow_module_level=True)

# Requests, by their names in Python's documentation.
WRITABLE, FORMAT, ND, STRIDES, C, F, ANY, INDIRECT = 1, 4, 8, 0x18, 0x38, 0x58, 0x98, 0x118
FULL, FULL_RO = INDIRECT | WRITABLE | FORMAT, INDIRECT | FORMAT


HUGE = sys.maxsize // 2 + 1


class Derived(dlarray.Array):
    """Has a __dict__."""


class Buffer(ctypes.Structure):
    """Python's struct Py_buffer."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)),
        ("internal", ctypes.c_void_p),
    ]


_get = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Buffer), ctypes.c_int)(
    ("PyObject_GetBuffer", ctypes.pythonapi)
)
_release = ctypes.PYFUNCTYPE(None, ctypes.POINTER(Buffer))(("PyBuffer_Release", ctypes.pythonapi))


def ask(exporter, flags):
    """The fields of the exporter's buffer, which is released already; None if the exporter refuses."""
    buffer = Buffer()
    try:
        _get(exporter, buffer, flags)
    except (BufferError, ValueError):  # NumPy's
        return None
    says = {name: getattr(buffer, name) for name in ("buf", "len", "itemsize", "readonly", "ndim", "format")}
    says["obj"] = buffer.obj is exporter
    says["shape"] = tuple(buffer.shape[: buffer.ndim]) if buffer.shape else None
    says["strides"] = tuple(buffer.strides[: buffer.ndim]) if buffer.strides else None
    says["suboffsets"] = bool(buffer.suboffsets)
    _release(buffer)
    return says


def as_numpy(a):
    """A NumPy array over the memory of a, made without buffers and DLPack."""
    described = {
        "version": 3,
        "typestr": numpy.dtype(a.dtype).str,
        "shape": a.shape,
        "strides": tuple(stride * a.itemsize for stride in a.strides),
        "data": (a.data_ptr or 64, a.readonly),  # NumPy needs an address even without elements
    }
    return numpy.asarray(SimpleNamespace(__array_interface__=described))


@st.composite
def views(draw):
    """Arrays of every layout."""
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(st.sampled_from(["uint16", "int32", "float32", "complex128"]))
    a = dlarray.arange(math.prod(2 * n for n in shape), dtype=dtype).reshape([2 * n for n in shape])
    steps = st.sampled_from([slice(None), slice(None, None, 2), slice(None, None, -1), slice(1, 2), slice(0, 0)])
    a = a[tuple(draw(steps) for _ in shape)] if shape else a
    a = a.transpose(draw(st.permutations(range(a.ndim))))
    if draw(st.booleans()):
        a = a.broadcast_to((draw(st.integers(1, 2)), *a.shape))
    if draw(st.booleans()):
        a.setflags(writeable=False)
    return a


# ---- What is exported ----


@given(views())
def test_every_request_is_met_or_refused_as_in_numpy(a):
    same = as_numpy(a)
    layouts = [0, ND, STRIDES, C, F, ANY, INDIRECT, C | F]
    for layout, writable, format in itertools.product(layouts, (0, WRITABLE), (0, FORMAT)):
        ours, theirs = ask(a, layout | writable | format), ask(same, layout | writable | format)
        assert (ours is None) == (theirs is None)
        if ours is None:
            continue
        assert ours["obj"] and not ours["suboffsets"]
        for field in ("len", "itemsize", "readonly", "shape"):
            assert (field, ours[field]) == (field, theirs[field])
        assert (ours["format"] is not None) == bool(format)
        assert (ours["strides"] is not None) == (theirs["strides"] is not None)
        if a.size > 0:
            assert ours["buf"] == a.data_ptr
            meant = [i for i, extent in enumerate(ours["shape"] or ()) if extent > 1 and ours["strides"]]
            assert [ours["strides"][i] for i in meant] == [a.strides[i] * a.itemsize for i in meant]
        if ours["shape"] is None:
            assert ours["ndim"] == (a.ndim if layout & ND else 1)


@given(views())
def test_memoryview_numpy_and_bytes_see_the_same_elements(a):
    expected = numpy.array(a.tolist(), dtype=a.dtype).reshape(a.shape)
    seen = numpy.asarray(a)
    assert (seen.dtype.name, seen.shape, seen.tolist()) == (a.dtype, a.shape, a.tolist())
    assert seen.flags.writeable == (not a.readonly)
    assert seen.size == 0 or seen.ctypes.data == a.data_ptr
    view = memoryview(a)
    assert (view.shape, view.nbytes, view.readonly) == (a.shape, expected.nbytes, a.readonly)
    assert view.c_contiguous == (view.nbytes == 0 or expected.size == 1 or as_numpy(a).flags.c_contiguous)
    assert bytes(a) == view.tobytes() == expected.tobytes()
    if a.dtype != "complex128":  # memoryview cannot unpack complex numbers
        assert view.tolist() == a.tolist()


@pytest.mark.parametrize("dtype", dltensor.DTYPES)
def test_formats_are_formats_of_struct_and_numpy_reads_them(dtype):
    """D7"""
    a = dlarray.array([[0, 1], [1, 0]], dtype)
    assert dltensor.format_of(memoryview(a)) == dltensor.format_of(memoryview(numpy.zeros(1, dtype)))
    seen = numpy.asarray(a)
    assert (seen.dtype, seen.tolist()) == (numpy.dtype(dtype), a.tolist())
    assert numpy.frombuffer(a, dtype).tolist() == [0, 1, 1, 0]


def test_writing_to_a_buffer_shows_in_the_array():
    a = dlarray.arange(6, dtype="int16").reshape(2, 3)
    view = memoryview(a[:, ::-1])
    view[1, 0] = -7
    assert a.tolist() == [[0, 1, 2], [3, 4, -7]]
    numpy.asarray(a)[0] = 9
    assert a.tolist() == [[9, 9, 9], [3, 4, -7]]
    assert io.BytesIO(stdlib_array.array("h", [1, 2, 3]).tobytes()).readinto(a[1]) == 6
    assert a.tolist() == [[9, 9, 9], [1, 2, 3]]


def test_a_read_only_array_gives_read_only_buffers():
    a = dlarray.zeros(3, "uint8")
    a.setflags(writeable=False)
    assert memoryview(a).readonly and memoryview(a[1:]).readonly
    with pytest.raises(BufferError, match="read-only"):
        _get(a, Buffer(), FULL)
    with pytest.raises(TypeError):
        memoryview(a)[0] = 1
    with pytest.raises((BufferError, TypeError)):
        io.BytesIO(b"123").readinto(a)
    legacy = dlarray.from_dlpack(dlarray.zeros(3).__dlpack__())  # a legacy capsule has no read-only flag (C7)
    assert memoryview(legacy).readonly


def test_an_exported_buffer_stays_writable_when_the_array_becomes_read_only():
    a = dlarray.zeros(3, "uint8")
    view = memoryview(a)
    a.setflags(writeable=False)
    view[0] = 1
    assert a.tolist() == [1, 0, 0] and memoryview(a).readonly


def test_a_layout_that_was_not_requested_is_buffer_error():
    a = dlarray.zeros((2, 3))
    for refused, flags in [
        (a[:, ::2], [0, ND, C, F, ANY]),
        (a[:, ::-1], [0, ND, C, F, ANY]),
        (a.transpose(), [0, ND, C]),
        (a, [F]),
        (a[:1].broadcast_to((2, 3)), [0, ND, C, F, ANY]),
    ]:
        for request in flags:
            with pytest.raises(BufferError, match="memory is not (row-major|column-major|contiguous), a "):
                _get(refused, Buffer(), request)
        assert ask(refused, STRIDES) is not None


def test_rank_0_is_one_element_without_shape_and_strides():
    """D3"""
    a = dlarray.array(5, "int8")
    assert ask(a, FULL) == {
        "buf": a.data_ptr,
        "len": 1,
        "itemsize": 1,
        "readonly": 0,
        "ndim": 0,
        "format": b"b",
        "obj": True,
        "shape": None,
        "strides": None,
        "suboffsets": False,
    }
    view = memoryview(a)
    view[()] = 7
    assert (view[()], a[()], bytes(a)) == (7, 7, b"\7")


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (HUGE, 0), (5, HUGE, 0)])
def test_a_buffer_without_elements_is_empty_and_not_null(shape):
    """D3, D5"""
    a = dlarray.zeros(shape)
    assert bytes(a) == b"" and memoryview(a).shape == shape
    if HUGE not in shape:  # NumPy has no such shape
        assert numpy.asarray(a).shape == shape
    says = ask(a, FULL)
    assert says["buf"] and says["len"] == 0


@pytest.mark.parametrize("stride", [2**63 - 1, -(2**63), 0])
def test_the_stride_of_one_element_has_no_meaning(stride):
    """D5"""
    a = dlarray.from_dlpack(dltensor.Producer(shape=(1, 3), strides=(stride, 1)))
    assert ask(a, C)["strides"] == (24, 8) and memoryview(a).tolist() == [[0.0, 1.0, 2.0]]


def test_a_buffer_holds_the_array_until_its_release():
    a = Derived(dlarray.arange(6))
    gone = weakref.ref(a)
    before = sys.getrefcount(a)
    view, seen = memoryview(a), numpy.asarray(a)[::2]
    assert sys.getrefcount(a) == before + 2
    view.release()
    assert sys.getrefcount(a) == before + 1
    del a
    gc.collect()
    assert gone() is not None and seen.tolist() == [0, 2, 4]
    del seen
    gc.collect()
    assert gone() is None


def test_refused_requests_hold_nothing():
    a = dlarray.zeros((2, 3))[:, ::2]
    a.setflags(writeable=False)
    before = sys.getrefcount(a)
    for flags in (0, C, F, FULL):
        buffer = Buffer()
        ctypes.memset(ctypes.byref(buffer), 0xA5, ctypes.sizeof(buffer))
        with pytest.raises(BufferError):
            _get(a, buffer, flags)
        assert ctypes.c_void_p.from_buffer(buffer, Buffer.obj.offset).value is None
    assert sys.getrefcount(a) == before


def test_a_cycle_through_a_buffer_is_collected():
    a = Derived(dlarray.arange(3))
    a.view = memoryview(a)
    gone = weakref.ref(a)
    del a
    gc.collect()
    assert gone() is None


# ---- What is taken ----


def test_frombuffer_is_over_the_same_memory():
    source = bytearray(range(8))
    a = dlarray.frombuffer(source)
    assert (a.dtype, a.shape, a.readonly, a.owner) == ("uint8", (8,), False, None)
    a[0] = 200
    source[1] = 100
    assert source[0] == 200 and a[1] == 100
    assert dlarray.frombuffer(bytes(8)).readonly


@given(
    size=st.integers(0, 40),
    dtype=st.sampled_from(list(dltensor.DTYPES)),
    count=st.integers(-2, 12),
    offset=st.integers(-1, 41),
)
def test_frombuffer_takes_the_arguments_that_numpy_takes(size, dtype, count, offset):
    source = bytes(range(size))
    try:
        expected = numpy.frombuffer(source, dtype, count, offset)
    except ValueError:
        with pytest.raises(ValueError):
            dlarray.frombuffer(source, dtype, count, offset)
        return
    if expected.size and expected.ctypes.data % numpy.dtype(dtype).alignment:
        with pytest.raises(BufferError, match="alignment to"):  # C9: an array is aligned
            dlarray.frombuffer(source, dtype, count, offset)
        return
    a = dlarray.frombuffer(source, dtype, count, offset)
    assert (a.dtype, a.shape) == (dtype, expected.shape)
    assert bytes(a) == expected.tobytes()
    assert a.size == 0 or a.data_ptr == expected.ctypes.data


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"offset": 9}, ValueError, "offset is 9, the buffer has 8 bytes"),
        ({"offset": -1}, ValueError, "offset is -1"),
        ({"offset": -sys.maxsize - 1}, ValueError, "offset is"),
        ({"dtype": "int32", "count": 3}, ValueError, "8 bytes hold 2 elements of int32, fewer than count"),
        ({"dtype": "int32", "count": 1, "offset": 5}, ValueError, "3 bytes hold 0 elements of int32, fewer"),
        ({"dtype": "int32", "offset": 2}, ValueError, "6 bytes hold 1 elements of int32 and a part of one"),
        ({"count": sys.maxsize}, ValueError, "fewer than count"),
        ({"dtype": "float32", "count": 1, "offset": 2}, BufferError, "alignment to 4 bytes"),
        ({"dtype": "text"}, ValueError, "dtype is 'text'"),
        ({"count": 1.5}, TypeError, None),
        ({"count": 2**70}, OverflowError, None),
        ({"size": 1}, TypeError, None),
    ],
)
def test_invalid_arguments_of_frombuffer_are_refused_with_a_message(arguments, error, words):
    source = bytearray(8)
    before = sys.getrefcount(source)
    with pytest.raises(error, match=words):
        dlarray.frombuffer(source, **arguments)
    assert sys.getrefcount(source) == before
    source.append(1)  # no export is left


def test_only_compact_buffers_are_taken():
    with pytest.raises(TypeError, match="bytes-like"):
        dlarray.frombuffer([1, 2])
    for source in (memoryview(bytes(8))[::2], numpy.zeros((2, 3)).T, dlarray.zeros(3)[::-1]):
        with pytest.raises(BufferError, match="compact"):
            dlarray.frombuffer(source)
    with pytest.raises(BufferError):
        dlarray.frombuffer(dlarray.zeros(3, "bfloat16"))


def test_frombuffer_takes_the_bytes_of_any_format():
    doubles = stdlib_array.array("d", [1.5, -2.0])
    structured = numpy.zeros(2, [("x", "i4"), ("y", "f4")])
    structured["y"] = 1
    with mmap.mmap(-1, 4096) as memory:
        memory[:4] = b"abcd"
        a = dlarray.frombuffer(memory, count=4)
        assert bytes(a) == b"abcd"
        with pytest.raises(BufferError):
            memory.close()
        del a
    assert dlarray.frombuffer(doubles, "float64").tolist() == [1.5, -2.0]
    assert dlarray.frombuffer(structured, "float32").tolist() == [0, 1, 0, 1]
    assert dlarray.frombuffer(dlarray.array([[1, 2], [3, 4]], "int16"), "int16").tolist() == [1, 2, 3, 4]
    assert dlarray.frombuffer((ctypes.c_int * 3)(1, 2, 3), "int32").tolist() == [1, 2, 3]


def test_an_array_over_a_read_only_buffer_cannot_be_made_writeable():
    """C7"""
    a = dlarray.frombuffer(b"abc")
    for array in (a, a[1:], dlarray.from_dlpack(a)):
        assert array.readonly
        with pytest.raises(ValueError, match="read-only"):
            array.setflags(writeable=True)
    with pytest.raises(ValueError, match="read-only"):
        a[0] = 1
    with pytest.raises(BufferError, match="read-only"):
        a.__dlpack__()  # the legacy form has no read-only flag (P3)
    assert dltensor.read(a.__dlpack__(max_version=(1, 0))).flags == dltensor.READ_ONLY
    b = dlarray.frombuffer(bytearray(3))
    b.setflags(writeable=False)
    b.setflags(writeable=True)
    assert dltensor.read(b.__dlpack__(max_version=(1, 0))).flags == 0


def test_frombuffer_holds_the_exporter_until_the_array_is_freed():
    source = bytearray(8)
    a = dlarray.frombuffer(source)[2:]
    with pytest.raises(BufferError):
        source.append(1)
    exported = numpy.from_dlpack(a)
    del a
    gc.collect()
    with pytest.raises(BufferError):
        source.append(1)
    del exported
    gc.collect()
    source.append(1)


def test_an_array_survives_the_release_of_its_memoryview():
    source = bytearray(b"abc")
    with memoryview(source) as view:
        a = dlarray.frombuffer(view)
    assert bytes(a) == b"abc"
    with pytest.raises(BufferError):
        source.append(1)
    del a
    source.append(1)


def test_a_cycle_through_frombuffer_is_collected():
    class Bytes(bytearray):
        pass

    source = Bytes(8)
    source.array = dlarray.frombuffer(source)
    gone = weakref.ref(source)
    del source
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("where", ["thread", "foreign"])
def test_the_last_export_may_be_released_on_any_thread(where):
    """K5"""
    source = bytearray(64)
    taken = dltensor.Taken(dlarray.frombuffer(source).__dlpack__(max_version=(1, 0)))
    gc.collect()
    with pytest.raises(BufferError):
        source.append(1)
    if where == "foreign":
        taken.delete_on_a_foreign_thread()
    else:
        thread = threading.Thread(target=taken.delete)
        thread.start()
        thread.join()
    source.append(1)


def test_a_long_chain_of_buffers_is_freed_without_recursion():
    code = """if True:
        import dlarray
        a = bytearray(3)
        for _ in range(50_000):
            a = dlarray.frombuffer(a)
        assert a.tolist() == [0, 0, 0]
        del a
        print("freed")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120 * PATIENCE)
    assert (done.stdout, done.returncode) == ("freed\n", 0), done.stderr
