"""The buffer protocol and __array_interface__ of a type that a function describes, and numpy.asarray by each path."""

import ctypes
import gc
import itertools
import sys
import weakref
import zlib

import dlarray
import dltensor
import pytest
from array_libraries import needs_versioned_numpy, needs_writable_numpy
from buffer_probe import kind, release_raising, request, rude, view_of
from collecting import OLD_PYPY, collect, not_on_pypy
from dltensor import CUDA, CUDA_HOST, READ_ONLY, VERSIONED, Made
from optional import numpy
from samples import Samples

WRITABLE, FORMAT, ND, STRIDES, C, F, ANY, INDIRECT = 1, 4, 8, 0x18, 0x38, 0x58, 0x98, 0x118
REQUESTS = [
    flags | more for flags in (0, ND, STRIDES, C, F, ANY, INDIRECT) for more in (0, WRITABLE, FORMAT, WRITABLE | FORMAT)
]

All, Buffer, Interface, DLPack = kind(1, 1, 1), kind(0, 1, 0), kind(0, 0, 1), kind(1, 0, 0)


class Only:
    """An object that has the array interface of a thing and no other protocol."""

    def __init__(self, thing):
        self.__array_interface__, self.thing = thing.__array_interface__, thing


SHAPES = [(), (1,), (0,), (3,), (2, 3), (3, 0), (1, 3), (3, 1), (2, 3, 4)]


def layouts():
    for shape in SHAPES:
        a = numpy.arange(float(numpy.prod(shape))).reshape(shape)
        yield a
        yield numpy.asfortranarray(a)
        if a.ndim:
            yield a[::-1]
            yield a[..., ::2]
            yield numpy.broadcast_to(a[:1], a.shape)


def answer(obj, flags):
    try:
        return request(obj, flags)
    except (BufferError, ValueError):
        return None


def without_noise(said, array):
    """Replaces strides that reach no element: they may have any value."""
    if said is None:
        return None
    address, length, itemsize, readonly, _, format, shape, strides = said
    if array.size == 0:
        address = strides = None
    elif strides is not None:
        strides = [stride if extent > 1 else None for stride, extent in zip(strides, array.shape)]
    return address, length, itemsize, readonly, format, shape or None, strides or None


@needs_versioned_numpy
@pytest.mark.parametrize("flags", REQUESTS)
def test_every_request_is_answered_as_numpy_answers_it(flags):
    for a in layouts():
        a = a.view()
        for writeable in {bool(a.flags.writeable), False}:
            a.flags.writeable = writeable
            ours, theirs = answer(Buffer(a), flags), answer(a, flags)
            assert without_noise(ours, a) == without_noise(theirs, a), (a.shape, a.strides, writeable)


@needs_versioned_numpy
@pytest.mark.parametrize("flags, ndim", [(0, 1), (FORMAT, 1), (WRITABLE, 1), (ND, 2), (STRIDES, 2)])
def test_a_request_without_a_shape_gets_one_dimension(flags, ndim):
    assert request(Buffer(numpy.zeros((2, 3))), flags)[4] == ndim


@needs_versioned_numpy
def test_a_function_of_python_that_asks_for_bytes_is_refused_other_memory():
    a = numpy.zeros((2, 3))
    assert zlib.crc32(Buffer(a)) == zlib.crc32(bytes(48))
    with pytest.raises(BufferError, match="the memory is not row-major, a buffer without strides was asked for"):
        zlib.crc32(Buffer(a.T))


@needs_versioned_numpy
def test_the_message_of_a_refusal_names_the_request():
    a = numpy.zeros((2, 3))
    a.flags.writeable = False
    for array, flags, text in [
        (a, WRITABLE, "the memory is read-only, a writable buffer was asked for"),
        (a.T, C, "the memory is not row-major, a C-contiguous buffer was asked for"),
        (a, F, "the memory is not column-major, a Fortran-contiguous buffer was asked for"),
        (a[:, ::2], ANY, "the memory is not contiguous, a contiguous buffer was asked for"),
        (a.T, ND, "the memory is not row-major, a buffer without strides was asked for"),
    ]:
        with pytest.raises(BufferError, match=text):
            request(Buffer(array), flags)


@needs_versioned_numpy
def test_a_buffer_is_counted_as_an_export_until_its_release_P9():
    thing = Buffer(numpy.zeros(3), counted=True)
    views = [memoryview(thing), memoryview(thing)[1:], numpy.asarray(thing)]
    assert thing.count == 3
    while views:
        views.pop()
        gc.collect()
        assert thing.count == len(views)
    for flags in (WRITABLE, F):
        request(thing, flags)
    assert thing.count == 0


@not_on_pypy("a buffer that ends with its last reference")
def test_a_growable_type_refuses_to_grow_while_a_buffer_lives_P9():
    samples = Samples()
    for value in range(8):
        samples.append(value)
    view = memoryview(samples)
    collect()
    assert view.tolist() == list(range(8)) and numpy.asarray(samples).tolist() == list(range(8))
    with pytest.raises(BufferError, match="the memory is shared with another array, it cannot move"):
        samples.append(8)
    view[3] = 30.0
    collect()
    assert samples[3] == 30.0
    view.release()
    collect()
    samples.append(8)
    assert not hasattr(samples, "__array_interface__")


def test_a_refusal_counts_no_export_and_holds_no_reference():
    thing = Buffer(Made(VERSIONED, dtype=(4, 16, 1)).capsule(), counted=True)
    before = sys.getrefcount(thing)
    with pytest.raises(BufferError, match="dtype is bfloat16, the buffer protocol has no such format"):
        memoryview(thing)
    thing = Buffer(Made(VERSIONED, flags=READ_ONLY).capsule(), counted=True)
    with pytest.raises(BufferError, match="read-only"):
        request(thing, WRITABLE)
    assert thing.count == 0 and sys.getrefcount(thing) == before


class Owner:
    """Any object that can be referenced weakly."""


@pytest.mark.parametrize("counted", [False, True])
def test_a_buffer_holds_the_owner_of_the_offer_until_its_release_P9(counted):
    thing, owner = Buffer(numpy.zeros(3), counted=counted), Owner()
    thing.owner, gone = owner, weakref.ref(owner)
    before = sys.getrefcount(owner)
    view = memoryview(thing)
    assert sys.getrefcount(owner) == before + 1
    thing.owner = Owner()
    del owner
    assert gone() is not None
    view.release()
    assert gone() is None


@not_on_pypy("a finalizer that runs at once")
@pytest.mark.parametrize("counted", [False, True])
def test_an_exception_in_flight_survives_the_owner_of_a_buffer_K2(counted, monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: unraisable.append(str(what.exc_value)))
    thing, error = Buffer(numpy.zeros(3), counted=counted), KeyError("in flight")
    thing.owner = rude()
    with pytest.raises(KeyError) as raised:
        release_raising(thing, STRIDES | FORMAT, error)
    collect()
    assert raised.value is error
    assert unraisable == ["left behind"]
    assert thing.count == 0 or not counted


@not_on_pypy("tracemalloc")
def test_a_buffer_has_memory_for_its_shape_and_strides_and_no_more():
    import tracemalloc

    thing = Buffer(dltensor.Offer(Made(VERSIONED, shape=(1,) * 64)))
    gc.disable()
    tracemalloc.start()
    try:
        view = memoryview(thing)
        sizes = [trace.size for trace in tracemalloc.take_snapshot().traces]
    finally:
        tracemalloc.stop()
        gc.enable()
    assert view.ndim == 64
    assert ctypes.sizeof(ctypes.c_ssize_t) * (2 + 2 * 64) in sizes  # two pointers, 64 extents, 64 strides


@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (2, 1, 3), (1,) * 64])
def test_shape_and_strides_of_every_rank_are_given(shape):
    if OLD_PYPY and len(shape) > 36:
        pytest.skip("a Py_buffer of rank 64: not on PyPy 3.9")
    a = numpy.zeros(shape)
    view = memoryview(Buffer(a))
    assert (view.ndim, view.shape, view.nbytes) == (a.ndim, shape, a.nbytes)
    assert view.strides == a.strides


class PyBuffer(ctypes.Structure):
    """A Py_buffer of CPython."""

    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t)]
    _fields_ += [("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int)]
    _fields_ += [(name, ctypes.c_void_p) for name in ("format", "shape", "strides", "suboffsets", "internal")]


@not_on_pypy("ctypes.pythonapi")
def test_a_buffer_of_rank_0_has_neither_shape_nor_strides_D3():
    """As the documentation of Py_buffer says."""
    buffer, thing = PyBuffer(), Buffer(Made(VERSIONED, shape=()).capsule())
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(thing), ctypes.byref(buffer), STRIDES)
    assert (buffer.ndim, buffer.shape, buffer.strides, buffer.suboffsets) == (0, None, None, None)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))


@not_on_pypy("ctypes.pythonapi")
def test_a_request_that_is_refused_leaves_no_obj():
    """After that, PyBuffer_Release does nothing."""
    view, vetoed = view_of(Made(VERSIONED, flags=READ_ONLY).capsule()), Buffer(numpy.zeros(3))
    vetoed.veto = BufferError("the memory is read-only today")
    for obj in (view.obj, vetoed):
        buffer = PyBuffer(obj=id(vetoed))
        with pytest.raises(BufferError, match="the memory is read-only"):
            ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(obj), ctypes.byref(buffer), WRITABLE)
        assert buffer.obj is None


def test_an_offer_without_an_owner_is_a_system_error_P9():
    thing = All(numpy.zeros(3))
    thing.owner = None
    for ask in (memoryview, lambda x: x.__array_interface__):
        with pytest.raises(SystemError, match="describe returned 0, but offer->owner is NULL"):
            ask(thing)


@pytest.mark.parametrize("error", [BufferError("no"), MemoryError("no"), KeyboardInterrupt("no")])
def test_an_exception_of_describe_is_raised_P7(error):
    thing = All(numpy.zeros(3))
    thing.veto = error
    for ask in (memoryview, lambda x: x.__array_interface__):
        with pytest.raises(type(error), match="no"):
            ask(thing)


def test_memory_of_a_device_has_neither_a_buffer_nor_an_array_interface_C5():
    thing = All(Made(VERSIONED, device=CUDA).capsule())
    with pytest.raises(BufferError, match="device is cuda:0, a buffer is memory of the CPU"):
        memoryview(thing)
    with pytest.raises(AttributeError, match="memory of a device has no __array_interface__"):
        _ = thing.__array_interface__


def test_memory_that_the_cpu_can_read_has_a_buffer_and_an_array_interface_unless_work_is_pending_S10():
    thing = All(Made(VERSIONED, device=CUDA_HOST).capsule())
    assert memoryview(thing).nbytes == thing.__array_interface__["shape"][0] * memoryview(thing).itemsize
    busy = All(Made(VERSIONED, device=CUDA_HOST).capsule(), pending=True)
    for ask in (memoryview, lambda x: x.__array_interface__):
        with pytest.raises(BufferError, match="work on the data may be pending on a stream"):
            ask(busy)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0, 3)])
def test_an_offer_without_strides_has_row_major_strides_in_a_buffer_and_an_array_interface_D4(shape):
    source = numpy.arange(float(numpy.prod(shape))).reshape(shape)
    thing = All(source)
    thing.change = 1  # no strides
    view = memoryview(thing)
    assert (view.shape, view.tobytes()) == (shape, source.tobytes())  # tolist() of a scalar ends PyPy 3.9
    assert 0 in shape or view.strides == source.strides
    assert thing.__array_interface__["strides"] is None
    assert numpy.asarray(Only(thing)).tolist() == source.tolist()


@pytest.mark.parametrize("strides", [None, (2**62, 2**62, 2**62)])
def test_extents_and_strides_of_a_tensor_without_elements_are_not_multiplied_D5(strides):
    made = Made(VERSIONED, shape=(0, 2**30, 2**30), strides=strides, dtype=(2, 32, 1))
    view = memoryview(Buffer(made.capsule()))
    assert (view.shape, view.strides) == ((0, 2**30, 2**30), (4, 4, 4))


def test_a_malformed_offer_is_a_buffer_error_D8():
    thing = All(numpy.zeros(3), counted=True)
    uncounted = All(numpy.zeros(3))
    before = sys.getrefcount(thing)
    thing.change = uncounted.change = 2  # a negative rank
    with pytest.raises(BufferError, match="ndim is -1"):
        memoryview(thing)
    with pytest.raises(BufferError, match="ndim is -1"):
        _ = uncounted.__array_interface__
    assert (thing.count, sys.getrefcount(thing)) == (0, before)


# ---- numpy.asarray by each path alone ----


@needs_versioned_numpy
@pytest.mark.parametrize("dtype", dltensor.DTYPES)
@pytest.mark.parametrize(
    "make, convert",
    [
        pytest.param(Buffer, "asarray", id="buffer"),
        pytest.param(Interface, "asarray", id="__array_interface__"),
        pytest.param(DLPack, "from_dlpack", id="DLPack", marks=needs_writable_numpy),
        pytest.param(All, "asarray", id="all"),
    ],
)
def test_numpy_shares_the_memory_by_each_protocol_alone(make, convert, dtype):
    for source in layouts():
        source = source.astype(dtype)[...]
        thing = make(source)
        gone = weakref.ref(source)
        a = getattr(numpy, convert)(thing)
        assert (a.dtype, a.shape, a.tolist()) == (source.dtype, source.shape, source.tolist())
        assert a.size == 0 or numpy.shares_memory(a, source)
        assert a.flags.writeable
        del source, thing
        assert gone() is not None or a.size == 0
        a = None
        gc.collect()
        assert gone() is None


@pytest.mark.parametrize("make", [Buffer, Interface])
def test_strides_of_every_sign_reach_numpy(make):
    source = numpy.arange(24).reshape(2, 3, 4)
    for cut in itertools.product([slice(None), slice(None, None, -1), slice(None, None, 2)], repeat=3):
        assert numpy.asarray(make(source[cut].transpose(2, 0, 1))).tolist() == source[cut].transpose(2, 0, 1).tolist()


@needs_versioned_numpy
@pytest.mark.parametrize("make", [Buffer, Interface])
def test_read_only_memory_stays_so_in_numpy_C7(make):
    source = numpy.zeros(3)
    source.flags.writeable = False
    assert not numpy.asarray(make(source)).flags.writeable


@needs_versioned_numpy
def test_the_array_interface_equals_that_of_numpy():
    for source in layouts():
        ours, theirs = Interface(source).__array_interface__, source.__array_interface__
        assert set(ours) == {"shape", "typestr", "data", "strides", "version"}
        for key in ("shape", "typestr", "version"):
            assert ours[key] == theirs[key]
        assert ours["data"][0] == theirs["data"][0] if source.size else ours["data"][0] != 0


def test_the_array_interface_of_an_array_without_elements_has_an_address_D3():
    """NumPy 2.2 refuses NULL."""
    thing = Interface(Made(VERSIONED, shape=(0, 3), data=None).capsule())
    assert thing.__array_interface__["data"][0] != 0
    assert numpy.asarray(thing).shape == (0, 3)


@not_on_pypy("a buffer that ends with its last reference")
def test_memory_that_can_move_has_no_array_interface_P9():
    thing = All(numpy.zeros(3), counted=True)
    assert not hasattr(thing, "__array_interface__")
    a = numpy.asarray(thing)  # uses the buffer protocol
    assert thing.count == 1
    del a
    collect()
    assert thing.count == 0


def test_memory_of_a_separate_owner_has_no_array_interface_P9():
    """NumPy keeps a reference to the object that has the attribute, not to the owner."""
    thing = Interface(numpy.zeros(3))
    thing.owner = Owner()
    with pytest.raises(AttributeError, match="memory of another owner has no __array_interface__"):
        _ = thing.__array_interface__


@pytest.mark.parametrize("counted, fields", [(True, {}), (False, {"device": CUDA}), (False, {"dtype": (4, 16, 1)})])
def test_there_is_no_array_interface_whether_work_is_pending_or_not(counted, fields):
    """After AttributeError NumPy tries the next protocol; BufferError would end the search."""
    thing = All(Made(VERSIONED, **{"device": CUDA_HOST, **fields}).capsule(), counted, True)
    assert not hasattr(thing, "__array_interface__")


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float4_e2m1fn"])
def test_a_dtype_without_a_typestr_has_no_array_interface_D6(dtype):
    thing = All(dlarray.zeros(4, dtype))
    with pytest.raises(AttributeError, match=f"no __array_interface__ for {dtype}"):
        _ = thing.__array_interface__


@pytest.mark.parametrize("dtype, text", [
    ((2, 128, 1), "float128"),  # f16 is long double
    ((2, 8, 1), "float8"),
    ((5, 32, 1), "complex32"),
    ((0, 128, 1), "int128"),
    ((2, 32, 4), "float32x4"),
])  # fmt: skip
def test_a_typestr_that_means_a_different_dtype_is_not_used_D6(dtype, text):
    with pytest.raises(AttributeError, match=f"no __array_interface__ for {text}"):
        _ = All(Made(VERSIONED, dtype=dtype).capsule()).__array_interface__


@pytest.mark.parametrize("stride", [2**62, -(2**63), 0, 3])
def test_a_stride_that_reaches_no_element_is_not_multiplied_D5(stride):
    made = Made(VERSIONED, shape=(2, 1, 2), strides=(3, stride, 1), dtype=(2, 32, 1))
    thing = All(made.capsule())
    assert thing.__array_interface__["strides"] == (12, 4, 4)
    assert numpy.asarray(thing).tolist() == numpy.asarray(Only(thing)).tolist()
