"""examples/retrofit: types from before DLPack learn it: bits that can be resized, and a picture with several blocks.

tests/build/test_retrofit_pages.py has the tests of the pages about them, and of the versions without DLPack.
"""

import sys

import pytest
from array_libraries import needs_versioned_numpy, needs_writable_numpy
from bits import Bits
from collecting import collect, not_on_pypy
from dltensor import READ_ONLY, Made, Producer
from optional import numpy
from picture import Picture

# ---- bits ----


def test_bits_take_buffers_and_arrays_K4():
    bits = Bits()
    bits.extend(b"\x01")
    producer = Producer(dtype="uint8", shape=(3,))
    bits.extend(producer)
    bits.extend(numpy.arange(2, dtype="int64"))
    assert memoryview(bits).tobytes()[0] == 1 and len(memoryview(bits)) == 1 + 3 + 16
    assert producer.deleted == [1]
    with pytest.raises(TypeError, match="bytes-like|buffer interface"):
        bits.extend(7)


def made(data, *more):
    """Bits of bytes, with more bits behind them."""
    bits = Bits()
    bits.extend(data)
    for bit in more:
        bits.append(bit)
    return bits


@needs_writable_numpy
@pytest.mark.parametrize(
    "change", [lambda b: b.append(1), lambda b: b.extend(b"\x01"), lambda b: b.resize(3), lambda b: b.freeze()]
)
def test_bits_are_not_resized_or_frozen_while_they_are_exported_P9(change):
    bits = made(b"\x03\x80")
    array = numpy.from_dlpack(bits)
    again = array[1:]
    array[0] = 255
    assert (array.dtype, bits.count()) == ("uint8", 9)
    del array
    with pytest.raises(BufferError, match="the bits are exported"):
        change(bits)
    assert len(bits) == 16 and again.tolist() == [128]
    del again
    collect()
    change(bits)


@needs_writable_numpy
def test_what_a_consumer_writes_behind_the_last_bit_is_no_bit():
    bits = made(b"\x01", 1, 0)
    array = numpy.from_dlpack(bits)
    assert array.tolist() == [1, 1]
    array[1] = 255
    assert (len(bits), bits.count()) == (10, 3)
    del array
    collect()
    bits.resize(12)
    assert list(bits)[8:] == [1, 1, 0, 0]
    bits.resize(9)
    bits.append(0)
    assert (list(bits)[8:], bits.count()) == ([1, 0], 2)


@needs_versioned_numpy
def test_frozen_bits_are_exported_read_only_P3():
    bits = made(b"\x0f")
    bits.freeze()
    assert not numpy.from_dlpack(bits).flags.writeable
    with pytest.raises(TypeError, match="frozen"):
        bits.append(1)


@needs_writable_numpy
def test_bits_of_an_array_share_its_memory_and_keep_it_K4_C7():
    array = numpy.arange(4, dtype="uint8")
    bits = Bits.from_dlpack(array)
    array[0] = 255
    assert (len(bits), bits.count()) == (32, 8 + 1 + 1 + 2)
    with pytest.raises(BufferError, match="memory of another library"):
        bits.append(1)
    back = numpy.from_dlpack(bits)
    assert numpy.shares_memory(array, back) and back.flags.writeable
    array.flags.writeable = False
    assert not numpy.from_dlpack(Bits.from_dlpack(array)).flags.writeable
    producer = Made(dtype="uint8", shape=(2,))
    bits = Bits.from_dlpack(producer.capsule())
    assert producer.deleted == 0
    del bits
    collect()
    assert producer.deleted == 1


@pytest.mark.parametrize(
    "text, make",
    [
        ("dtype is bool, uint8 was asked for", lambda: numpy.zeros(8, bool)),
        ("ndim is 2", lambda: numpy.zeros((2, 2), "uint8")),
        ("x: ", lambda: numpy.zeros(8, "uint8")[::2]),
    ],
)
def test_bits_of_other_arrays_are_refused_C9(text, make):
    with pytest.raises(BufferError, match=text):
        Bits.from_dlpack(make())


@needs_versioned_numpy
def test_bits_that_are_packed_by_numpy_come_and_go():
    """Not by bytes: the length is not in the array."""
    flags = numpy.array([1, 0, 0, 1, 1, 1, 0, 1, 0, 0, 1], bool)
    bits = Bits.from_dlpack(numpy.packbits(flags, bitorder="little"))
    assert bits.count() == flags.sum() and list(bits)[: flags.size] == flags.tolist()
    back = numpy.unpackbits(numpy.from_dlpack(bits), count=flags.size, bitorder="little")
    assert back.tolist() == flags.tolist()


# ---- picture ----

MODES = [
    ("L", (3, 5), "uint8"),
    ("RGB", (3, 5, 3), "uint8"),
    ("RGBA", (3, 5, 4), "uint8"),
    ("I", (3, 5), "int32"),
    ("F", (3, 5), "float32"),
]


@needs_writable_numpy
@pytest.mark.parametrize("mode, shape, dtype", MODES)
def test_a_picture_has_rows_of_its_own_length_and_comes_back_D4(mode, shape, dtype):
    picture = Picture(mode, 3, 5)
    array = numpy.from_dlpack(picture, copy=False)
    assert (array.shape, array.dtype) == (shape, dtype)
    assert array.strides[0] == (5 * array[0, 0].nbytes + 7) // 8 * 8
    array[2] = 7
    again = Picture.from_dlpack(picture)
    assert again.mode == mode and again.tobytes() == picture.tobytes() == array.tobytes()
    back = numpy.from_dlpack(again)
    assert numpy.shares_memory(back, array) and back[2].min() == 7


def large():
    """A picture of 1,000 rows in several blocks, each row with its own pixels."""
    picture = Picture("RGB", 1000, 100)
    picture.frombytes(b"".join(bytes([row % 251]) * 300 for row in range(1000)))
    assert picture.blocks == 5
    return picture


@needs_writable_numpy
@pytest.mark.parametrize("copy", [None, True])
def test_a_picture_of_several_blocks_is_copied_once_P6(copy):
    picture = large()
    array = numpy.from_dlpack(picture, copy=copy)
    assert (array[:, 0, 0] == numpy.arange(1000) % 251).all() and array.tobytes() == picture.tobytes()
    array[:] = 255
    assert picture.tobytes()[:300] == bytes(300)
    if copy:  # the copy in one block is the copy: its rows have padding
        assert array.strides == (304, 3, 1)


@not_on_pypy("tracemalloc")
@needs_writable_numpy
def test_the_copy_of_a_picture_is_freed_with_its_array_K1():
    import tracemalloc

    picture = large()
    tracemalloc.start()
    try:
        array = numpy.from_dlpack(picture)
        held, _ = tracemalloc.get_traced_memory()
        del array
        with pytest.raises(BufferError, match="cuda"):
            picture.__dlpack__(max_version=(1, 0), dl_device=(2, 0))
        assert held > 300_000 > tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@needs_versioned_numpy
def test_a_picture_of_several_blocks_has_no_array_without_a_copy_P6():
    picture = large()
    before = sys.getrefcount(picture)
    with pytest.raises(BufferError, match=r"the pixels are in 5 blocks: export each strip\(i\), or copy them"):
        numpy.from_dlpack(picture, copy=False)
    assert sys.getrefcount(picture) == before


@needs_writable_numpy
def test_the_strips_of_a_picture_are_its_memory_P9():
    picture = large()
    arrays = [numpy.from_dlpack(picture.strip(i), copy=False) for i in range(picture.blocks)]
    assert sum(map(len, arrays)) == 1000
    assert b"".join(array.tobytes() for array in arrays) == picture.tobytes()
    for array in arrays:
        array[:, 0] = 255
    assert picture.tobytes()[::300] == b"\xff" * 1000
    last = arrays[-1]
    del picture, arrays, array
    collect()
    assert last[0, 0].tolist() == [255, 255, 255]  # the array holds the strip, which holds the picture


@needs_versioned_numpy
def test_rows_that_are_not_contiguous_are_copied_and_upside_down_rows_are_not_C9():
    array = numpy.arange(60, dtype="uint8").reshape(3, 20)
    for source, shared in (array[::-1], True), (array[:, 4:8], True), (array[:, ::2], False), (array.T, False):
        picture = Picture.from_dlpack(source)
        back = numpy.from_dlpack(picture)
        assert (back == source).all() and numpy.shares_memory(back, array) == shared
        assert picture.tobytes() == source.tobytes()


@needs_versioned_numpy
def test_read_only_pixels_stay_read_only_and_live_with_the_picture_P3_C7_K4():
    made = Made(dtype="float32", shape=(1, 3), flags=READ_ONLY)
    picture = Picture.from_dlpack(made.capsule())
    with pytest.raises(ValueError, match="read-only"):
        picture.frombytes(bytes(12))
    array = numpy.from_dlpack(picture)
    del picture
    collect()
    assert not array.flags.writeable and made.deleted == 0
    del array
    collect()
    assert made.deleted == 1


@needs_writable_numpy
def test_a_frozen_picture_and_its_strips_are_read_only_P3():
    picture = Picture("L", 2, 2)
    picture.freeze()
    assert not numpy.from_dlpack(picture).flags.writeable
    assert not numpy.from_dlpack(picture.strip(0)).flags.writeable
    whole = large()
    whole.freeze()
    numpy.from_dlpack(whole)[:] = 1  # a copy is the consumer's own
    assert whole.tobytes()[:300] == bytes(300)


@needs_versioned_numpy
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (0, 5, 3)])
def test_a_picture_without_pixels_is_exchanged_D3(shape):
    mode = "RGB" if len(shape) == 3 else "L"
    assert numpy.from_dlpack(Picture(mode, *shape[:2])).shape == shape
    picture = Picture.from_dlpack(numpy.zeros(shape, "uint8"))
    assert (picture.mode, picture.blocks, picture.tobytes()) == (mode, 1, b"")
    assert numpy.from_dlpack(picture).shape == shape


@pytest.mark.parametrize("bands, dtype", [(2, "uint8"), (3, "int32")])
def test_an_array_without_a_mode_is_refused_and_released(bands, dtype):
    array = numpy.zeros((2, 2, bands), dtype)
    before = sys.getrefcount(array)
    with pytest.raises(BufferError, match="x: no mode has [23] bands of this dtype"):
        Picture.from_dlpack(array)
    assert sys.getrefcount(array) == before


def test_requirements_and_the_argument_are_named_C9():
    with pytest.raises(BufferError, match="^x: dtype is float64"):
        Picture.from_dlpack(numpy.zeros((2, 2)))
    with pytest.raises(AttributeError, match="^x: 'NoneType' object has no attribute '__dlpack__'"):
        Picture.from_dlpack(None)
