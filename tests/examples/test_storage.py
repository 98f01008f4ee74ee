"""Storage-only dtypes and float16, compared with bits that are packed by hand (D6)."""

import ctypes
import itertools
import math
import random
import struct
import sys

import dlarray
import dltensor
import pytest
from collecting import not_on_pypy
from dltensor import IS_COPIED, LEGACY, PADDED, READ_ONLY, STORED, VERSIONED
from hypothesis import given
from hypothesis import strategies as st
from optional import numpy

SUB_BYTE = [name for name, (_, bits, _) in STORED.items() if bits < 8]
ONE_PER_WIDTH = ["bfloat16", "float8_e5m2", "float6_e3m2fn", "float4_e2m1fn"]


def pack(codes, bits):
    """Codes side by side, the first in the lowest bits."""
    number = sum(code << i * bits for i, code in enumerate(codes))
    return number.to_bytes((len(codes) * bits + 7) // 8, "little")


def unpack(memory, bits, count):
    number = int.from_bytes(memory, "little")
    return [number >> i * bits & (1 << bits) - 1 for i in range(count)]


def codes_of(a):
    """The bits of each element in row-major order, from the memory of a copy."""
    compact = a.copy()
    bits = 8 if a.dtype in SUB_BYTE and is_padded(a) else STORED[a.dtype][1]
    memory = ctypes.string_at(compact.data_ptr, compact.nbytes) if a.size else b""
    return unpack(memory, bits, a.size)


def is_padded(a):
    return bool(dltensor.read(a.__dlpack__(max_version=(1, 0))).flags & PADDED)


def stored(codes, dtype, shape):
    bits = STORED[dtype][1]
    return dlarray.frombuffer(bytearray(pack(codes, bits)), dtype, len(codes)).reshape(shape)


def random_codes(count, bits, seed=0):
    generator = random.Random(seed)
    return [generator.getrandbits(bits) for _ in range(count)]


# ---- What there is ----


@pytest.mark.parametrize("dtype", STORED)
def test_arrays_of_storage_only_dtypes_are_made_and_exported(dtype):
    bits = STORED[dtype][1]
    for make in (dlarray.zeros, dlarray.empty):
        a = make((3, 5), dtype)
        assert (a.dtype, a.shape, a.strides, a.size) == (dtype, (3, 5), (5, 1), 15)
        assert (a.itemsize, a.nbytes) == ((bits + 7) // 8, (15 * bits + 7) // 8)
        says = dltensor.read(a.__dlpack__(max_version=(1, 0)))
        assert (says.dtype, says.data, says.strides, says.flags) == (STORED[dtype], a.data_ptr, (5, 1), 0)
        assert dltensor.read(a.__dlpack__()).dtype == STORED[dtype]
    assert codes_of(dlarray.zeros((3, 5), dtype)) == [0] * 15


@pytest.mark.parametrize("form", [LEGACY, VERSIONED])
@pytest.mark.parametrize("dtype", STORED)
def test_arrays_of_storage_only_dtypes_are_imported_and_exported(dtype, form):
    producer = dltensor.Producer(form, dtype=STORED[dtype], shape=(2, 4), strides=(8, 2))
    a = dlarray.from_dlpack(producer)
    assert (a.dtype, a.shape, a.strides, a.data_ptr) == (dtype, (2, 4), (8, 2), producer.made[0].address)
    again = dltensor.read(a.transpose().__dlpack__(max_version=None if form == LEGACY else (1, 0)))
    assert (again.form, again.dtype, again.strides, again.data) == (form, STORED[dtype], (2, 8), a.data_ptr)
    assert codes_of(dlarray.from_dlpack(a, copy=True)) == codes_of(a)


@pytest.mark.parametrize("dtype", STORED)
def test_reading_or_writing_values_is_type_error_that_names_the_type(dtype):
    scalar, a, empty = dlarray.zeros((), dtype), dlarray.zeros((2, 3), dtype), dlarray.zeros(0, dtype)
    for call in (
        scalar.tolist,
        a.tolist,
        empty.tolist,
        lambda: scalar[()],
        lambda: a[0, 0],
        lambda: a[1, 2],  # begins within a byte, which does not matter here
        lambda: a.__setitem__((1, 2), 0),
        lambda: a.__setitem__(..., None),
        lambda: empty.__setitem__(slice(None), 0),
        lambda: dlarray.array([], dtype),
        lambda: dlarray.array([[1.0, 2.0]], dtype),
        lambda: dlarray.arange(3, dtype=dtype),
    ):
        with pytest.raises(TypeError, match=f"{dtype} are only stored"):
            call()


@not_on_pypy("the module in tp_name")
@pytest.mark.parametrize("dtype", STORED)
def test_repr_shows_shape_and_dtype_only(dtype):
    assert repr(dlarray.zeros((2, 3), dtype)) == f"<dlarray.Array of shape (2, 3), dtype '{dtype}'>"
    assert repr(dlarray.zeros((), dtype)) == f"<dlarray.Array of shape (), dtype '{dtype}'>"


@pytest.mark.parametrize("dtype", STORED)
def test_a_dtype_without_a_format_has_no_buffer(dtype):
    a = dlarray.zeros(8, dtype)
    for take in (memoryview, bytes, dlarray.frombuffer):
        with pytest.raises(BufferError, match=f"dtype is {dtype}, the buffer protocol has no such format"):
            take(a)


@pytest.mark.parametrize("dtype", STORED)
def test_a_read_only_array_stays_read_only(dtype):
    """C7, P3"""
    a = dlarray.zeros(8, dtype)
    a.setflags(writeable=False)
    assert a[4:].readonly and dlarray.from_dlpack(a).readonly
    with pytest.raises(ValueError, match="read-only"):
        a[:] = 0
    with pytest.raises(BufferError, match="read-only"):
        a.__dlpack__()


def test_packed_elements_are_rounded_up_once_for_the_whole():
    for dtype, shape in itertools.product(
        SUB_BYTE, [(), (1,), (2,), (3,), (5,), (3, 3), (7, 9), (0,), (sys.maxsize, 0)]
    ):
        bits, size = STORED[dtype][1], math.prod(shape)
        assert dlarray.empty(shape, dtype).nbytes == -(-size * bits // 8)
    with pytest.raises(ValueError):
        dlarray.zeros((2**62, 2), "float4_e2m1fn")


# ---- Views ----

bounds = st.one_of(st.none(), st.integers(-9, 9))
steps = st.one_of(st.none(), st.integers(-3, 3).filter(bool))


@st.composite
def shapes_and_keys(draw):
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    items = [draw(st.integers(-n, n - 1) | st.builds(slice, bounds, bounds, steps)) for n in shape]
    items = items[: draw(st.integers(0, len(items)))]
    for _ in range(draw(st.integers(0, 1))):
        items.insert(draw(st.integers(0, len(items))), None)
    if not any(item is None or isinstance(item, slice) for item in items):
        items.append(...)  # a view, not a value
    return shape, tuple(items)


@given(st.sampled_from(ONE_PER_WIDTH), st.data())
def test_a_view_shows_its_elements_or_would_begin_within_a_byte(dtype, data):
    """D1: a tensor begins at a byte. NumPy indexes an array of element numbers to tell which elements a view has."""
    shape, key = data.draw(shapes_and_keys())
    bits = STORED[dtype][1]
    codes = random_codes(math.prod(shape), bits)
    a = stored(codes, dtype, shape)
    chosen = numpy.arange(math.prod(shape)).reshape(shape)[key]
    if chosen.size and int(chosen.flat[0]) * bits % 8:
        with pytest.raises(ValueError, match=f"begin with element {chosen.flat[0]}, in the middle of a byte"):
            a[key]
        return
    view = a[key]
    assert (view.shape, view.dtype, view.owner) == (chosen.shape, dtype, a.owner)
    assert codes_of(view) == [codes[i] for i in chosen.flat]
    if chosen.size:
        assert view.data_ptr == a.data_ptr + int(chosen.flat[0]) * bits // 8


@given(st.sampled_from(ONE_PER_WIDTH), st.data())
def test_views_of_views_and_other_shapes_show_the_same_elements(dtype, data):
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    bits = STORED[dtype][1]
    codes = random_codes(math.prod(shape), bits, seed=1)
    axes = data.draw(st.permutations(range(len(shape))))
    a = stored(codes, dtype, shape).transpose(axes)
    chosen = numpy.arange(math.prod(shape)).reshape(shape).transpose(axes)
    for step in data.draw(st.lists(st.sampled_from([4, 2, -1, -2, -4]), max_size=3)):
        try:
            a = a[::step]
        except ValueError:
            assert int(chosen[::step].flat[0]) * bits % 8
        else:
            chosen = chosen[::step]
        assert codes_of(a) == [codes[i] for i in chosen.flat]
    wide = a.broadcast_to((2, *a.shape))
    assert codes_of(wide) == 2 * codes_of(a)
    assert codes_of(a.copy().reshape(-1)) == codes_of(dlarray.from_dlpack(a)) == codes_of(a)


@pytest.mark.parametrize("dtype", SUB_BYTE)
def test_a_view_may_skip_parts_of_bytes_if_it_begins_at_a_byte(dtype):
    """Only the first element of the view must be at a byte. The offset of each index alone need not be."""
    codes = random_codes(25, STORED[dtype][1])
    a = stored(codes, dtype, (5, 5))
    assert codes_of(a[1, 3:]) == codes[8:10]
    assert codes_of(a[4:0:-1, 4::-1]) == [codes[5 * i + k] for i in (4, 3, 2, 1) for k in (4, 3, 2, 1, 0)]
    assert a[1, 1:1].shape == (0,) and a[3:3, 1].shape == (0,)
    with pytest.raises(ValueError, match="element 5, in the middle of a byte"):
        a[1]


def test_strides_that_reach_far_are_accepted_without_access():
    """D8: no memory is so large, but the tensor is well-formed."""
    far = sys.maxsize // 2 + 1
    for dtype, bits in (("float4_e2m1fn", 4), ("float6_e2m3fn", 6)):
        a = dlarray.from_dlpack(
            dltensor.Producer(shape=(2, 2), strides=(far, far // 2), dtype=STORED[dtype], data=4096)
        )
        assert a[1].data_ptr - a.data_ptr == far // 8 * bits
        assert a[:, ::-1].data_ptr - a.data_ptr == far // 16 * bits


# ---- Buffers of them ----


@given(st.sampled_from(list(STORED)), st.integers(0, 13), st.integers(-1, 20))
def test_frombuffer_counts_elements_in_bits(dtype, size, count):
    bits = STORED[dtype][1]
    memory = bytes(random_codes(size, 8))
    if count > size * 8 // bits or (count < 0 and size * 8 % bits):
        with pytest.raises(ValueError, match=f"{size} bytes hold {size * 8 // bits} elements of {dtype}"):
            dlarray.frombuffer(memory, dtype, count)
        return
    a = dlarray.frombuffer(memory, dtype, count)
    assert a.shape == (size * 8 // bits if count < 0 else count,)
    assert codes_of(a) == unpack(memory, bits, a.size)


# ---- Padded: each element has a byte of its own ----


@pytest.mark.parametrize("dtype", SUB_BYTE)
def test_padded_memory_stays_padded_in_views_copies_and_exports(dtype):
    """P3, C7"""
    made = dltensor.Made(dtype=STORED[dtype], shape=(3, 3), flags=PADDED)
    memory = (ctypes.c_uint8 * 9).from_buffer(made.memory)
    memory[:] = range(9)
    a = dlarray.from_dlpack(dltensor.Offer(made))
    assert (a.nbytes, a.itemsize, a[1].data_ptr) == (9, 1, a.data_ptr + 3)
    for b, expected in [
        (a, [*range(9)]),
        (a[1], [3, 4, 5]),
        (a[1:, ::-1].transpose(), [5, 8, 4, 7, 3, 6]),
        (a.copy()[1], [3, 4, 5]),
        (a[::2].reshape(2, 3).copy().reshape(6), [0, 1, 2, 6, 7, 8]),
        (dlarray.from_dlpack(a[2]), [6, 7, 8]),
        (dlarray.from_dlpack(a[:, 0], copy=True), [0, 3, 6]),
        (a[0].broadcast_to((2, 3)), [0, 1, 2] * 2),
    ]:
        assert is_padded(b) and codes_of(b) == expected
        assert b.nbytes == b.size
        with pytest.raises(BufferError, match="padded"):
            b.__dlpack__()
    assert dltensor.read(a.__dlpack__(max_version=(1, 0), copy=True)).flags == PADDED | IS_COPIED
    a.setflags(writeable=False)
    assert dltensor.read(a.__dlpack__(max_version=(1, 0))).flags == PADDED | READ_ONLY


# ---- float16 has values ----


def test_every_float16_is_the_number_that_numpy_reads():
    halves = numpy.arange(2**16, dtype="uint16").view("float16")
    a = dlarray.from_dlpack(halves)
    numpy.testing.assert_array_equal(numpy.array(a.tolist()), halves.astype("float64"))


@given(st.floats(width=64) | st.floats(-1e5, 1e5) | st.floats(-1e-4, 1e-4))
def test_a_number_is_rounded_to_float16_as_by_struct(number):
    a = dlarray.zeros(1, "float16")
    try:
        expected = struct.pack("=e", number)
    except OverflowError:
        with pytest.raises(OverflowError):
            a[0] = number
        return
    a[0] = number
    assert bytes(a) == expected
