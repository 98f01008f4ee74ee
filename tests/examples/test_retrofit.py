"""examples/retrofit: types from before DLPack learn it, one by its buffer, one with sizes of int and rows in bytes."""

import re
import sys
from pathlib import Path

import pytest
from array_libraries import needs_versioned_numpy, needs_writable_numpy
from bits import Bits
from dltensor import READ_ONLY, Made, Producer
from optional import numpy
from picture import Picture

FOLDER = Path(__file__).parents[2] / "examples" / "retrofit"


@pytest.mark.parametrize("name, most", [("bits", 5), ("picture", 65)])
def test_dlpack_takes_few_lines(name, most):
    regions = re.findall(
        r"/\* dlpack: begin \*/\n(.*?)/\* dlpack: end \*/", (FOLDER / f"{name}.c").read_text(), re.DOTALL
    )
    lines = [line for line in "".join(regions).splitlines() if line.strip()]
    assert 0 < len(lines) <= most


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


@needs_writable_numpy
def test_bits_are_exported_and_do_not_grow_meanwhile_P9():
    bits = Bits()
    bits.extend(b"\x03\x80")
    array = numpy.from_dlpack(bits)
    array[0] = 255
    assert (array.dtype, bits.count()) == ("uint8", 9)
    with pytest.raises(BufferError, match="cannot grow"):
        bits.extend(b"\x00")
    del array
    bits.extend(b"\x01")
    assert bits.count() == 10


# ---- picture ----


@needs_writable_numpy
@pytest.mark.parametrize(
    "mode, shape, dtype",
    [
        ("L", (3, 5), "uint8"),
        ("RGB", (3, 5, 3), "uint8"),
        ("RGBA", (3, 5, 4), "uint8"),
        ("I", (3, 5), "int32"),
        ("F", (3, 5), "float32"),
    ],
)
def test_a_picture_has_rows_of_its_own_length_and_comes_back_D4(mode, shape, dtype):
    picture = Picture(mode, 3, 5)
    array = numpy.from_dlpack(picture)
    assert (array.shape, array.dtype) == (shape, dtype)
    assert array.strides[0] == (5 * array[0, 0].nbytes + 7) // 8 * 8
    array[2] = 7
    again = Picture.from_dlpack(picture)
    assert again.mode == mode
    back = numpy.from_dlpack(again)
    assert numpy.shares_memory(back, array) and back[2].min() == 7


@needs_versioned_numpy
def test_rows_that_are_not_contiguous_are_copied_and_upside_down_rows_are_not_C9():
    array = numpy.arange(60, dtype="uint8").reshape(3, 20)
    for source, shared in (array[::-1], True), (array[:, 4:8], True), (array[:, ::2], False), (array.T, False):
        back = numpy.from_dlpack(Picture.from_dlpack(source))
        assert (back == source).all() and numpy.shares_memory(back, array) == shared


@needs_versioned_numpy
def test_read_only_pixels_stay_read_only_and_live_with_the_picture_P3_C7_K4():
    made = Made(dtype="float32", shape=(1, 3), flags=READ_ONLY)
    picture = Picture.from_dlpack(made.capsule())
    array = numpy.from_dlpack(picture)
    del picture
    assert not array.flags.writeable and made.deleted == 0
    del array
    assert made.deleted == 1


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
    with pytest.raises(AttributeError, match="^x has no attribute '__dlpack__'"):
        Picture.from_dlpack(None)
