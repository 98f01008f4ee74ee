"""__dlpack__ of a type by its own buffer protocol (DLPACK_BUFFER_METHODS): P1, P3, P9, D10."""

import array
import ctypes
import gc
import io
import mmap
import sys
import weakref

import dltensor
import pytest
from array_libraries import needs_writable_numpy
from buffer_probe import add_methods
from collecting import PYPY, not_on_pypy
from optional import numpy

Bytes = add_methods(type("Bytes", (bytes,), {}))
Growable = add_methods(type("Growable", (bytearray,), {}))
Numbers = add_methods(type("Numbers", (array.array,), {}))
Mapped = add_methods(type("Mapped", (mmap.mmap,), {}))
Strided = add_methods(type("Strided", (numpy.ndarray,), {}))
Matrix = add_methods(type("Matrix", (ctypes.c_int16 * 2 * 3,), {}))
Nothing = add_methods(type("Nothing", (), {}))

VERSION = {"max_version": (1, 3)}


def strided(a):
    return numpy.asarray(a).view(Strided)


@needs_writable_numpy
def test_an_array_shares_the_memory_of_the_buffer_P9():
    numbers = Numbers("d", [1.0, 2.0, 3.0])
    a = numpy.from_dlpack(numbers)
    assert (a.dtype, a.tolist()) == (numpy.float64, [1.0, 2.0, 3.0])
    a[1] = 20.0
    assert list(numbers) == [1.0, 20.0, 3.0]
    assert numbers.__dlpack_device__() == (1, 0)


@needs_writable_numpy
def test_read_only_memory_is_exported_as_read_only_P3():
    a = numpy.from_dlpack(Bytes(b"abc"))
    assert a.tolist() == [97, 98, 99] and not a.flags.writeable
    with pytest.raises(BufferError, match="data is read-only, and a legacy capsule has no flags"):
        Bytes(b"abc").__dlpack__()
    copy = numpy.from_dlpack(Bytes(b"abc"), copy=True)
    assert copy.flags.writeable


@not_on_pypy("a bytearray, a BytesIO and an mmap that a buffer locks")
def test_memory_cannot_be_resized_while_an_export_lives_P9():
    grows = Growable(b"abc")
    arrays = [numpy.from_dlpack(grows), numpy.from_dlpack(grows)]
    capsule = grows.__dlpack__(**VERSION)
    while arrays:
        with pytest.raises(BufferError):
            grows.append(1)
        arrays.pop()
    with pytest.raises(BufferError):
        grows.append(1)
    del capsule
    grows.append(1)
    assert bytes(grows) == b"abc\x01"


@not_on_pypy("a bytearray, a BytesIO and an mmap that a buffer locks")
def test_a_memory_mapped_file_cannot_be_closed_while_an_export_lives_P9(tmp_path):
    (tmp_path / "file").write_bytes(bytes(range(16)))
    with open(tmp_path / "file", "r+b") as file:
        mapped = Mapped(file.fileno(), 0)
    a = numpy.from_dlpack(mapped)
    with pytest.raises(BufferError):
        mapped.close()
    assert a.tolist() == list(range(16))
    del a
    mapped.close()
    with pytest.raises(ValueError, match="closed"):
        mapped.__dlpack__()


@pytest.mark.parametrize("dtype", dltensor.DTYPES)
@pytest.mark.parametrize("cut", [..., (slice(None, None, -1), slice(None, None, 2)), (slice(0), slice(None)), (0, 0)])
def test_format_shape_and_strides_are_those_of_the_buffer_D7_D11(dtype, cut):
    source = numpy.asarray(numpy.arange(12).reshape(3, 4).astype(dtype)[cut])
    a = numpy.from_dlpack(strided(source))
    assert (a.dtype, a.shape, a.tolist()) == (source.dtype, source.shape, source.tolist())
    assert a.size == 0 or numpy.shares_memory(a, source)


def test_a_ctypes_array_has_all_its_dimensions_D7():
    matrix = Matrix((1, 2), (3, 4), (5, 6))
    assert numpy.from_dlpack(matrix).tolist() == [[1, 2], [3, 4], [5, 6]]


def test_the_owner_lives_as_long_as_the_last_export_P9():
    numbers = Growable(b"abc")
    gone = weakref.ref(numbers)
    before = sys.getrefcount(numbers)
    a, b = numpy.from_dlpack(numbers), numpy.from_dlpack(numbers)
    del a
    assert PYPY or sys.getrefcount(numbers) == before + 1  # PyPy counts no reference of its memoryviews
    del numbers
    assert gone() is not None
    assert b.tolist() == [97, 98, 99]
    del b
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    "thing, text",
    [
        (
            strided(numpy.zeros(2, ">f4" if sys.byteorder == "little" else "<f4")),
            "format is '[<>]f' with 4 bytes, one of a DLPack dtype in native byte order was wanted",
        ),
        (strided(numpy.zeros(2, "S3")), "format is '3s' with 3 bytes"),
        (strided(numpy.zeros(2, "U3")), "format is '3w' with 12 bytes"),
        (strided(numpy.zeros(2, [("a", "i4"), ("b", "f4")])), "format is 'T{[il]:a:f:b:}' with 8 bytes"),
        (strided(numpy.zeros(2, "g")), f"format is 'g' with {numpy.dtype('g').itemsize} bytes"),
        (strided(numpy.zeros(2, "O")), f"format is 'O' with {numpy.dtype('O').itemsize} bytes"),
        (strided(numpy.zeros(3, [("a", "i4"), ("b", "i1")])["a"]), r"strides\[0\] is 5 bytes, a multiple of 4"),
    ],
    ids=["byte order", "bytes", "text", "struct", "long double", "objects", "odd strides"],
)
def test_a_buffer_that_dlpack_cannot_describe_is_refused_P7_D10(thing, text):
    before = sys.getrefcount(thing)
    for keywords in ({}, VERSION):
        with pytest.raises(BufferError, match=text):
            thing.__dlpack__(**keywords)
    assert sys.getrefcount(thing) == before


def test_a_type_without_the_buffer_protocol_is_a_type_error_P7():
    with pytest.raises(TypeError, match="bytes-like|buffer"):
        Nothing().__dlpack__()


@pytest.mark.parametrize("keywords", [{"stream": 3}, {"max_version": 1}, {"dl_device": (2, 0)}, {"what": 1}])
def test_a_refused_request_holds_no_reference_P1_P6_P8(keywords):
    grows = Growable(b"abc")
    with pytest.raises((TypeError, ValueError, BufferError)):
        grows.__dlpack__(**keywords)
    grows.append(1)


def test_arguments_are_parsed_before_the_buffer_is_requested_P1():
    with pytest.raises(TypeError, match="max_version is 1"):
        strided(numpy.zeros(2, "S3")).__dlpack__(max_version=1)
    grows = Growable(b"abc")

    class Grows:
        def __index__(self):
            grows.append(1)
            return 1

    assert numpy.from_dlpack(grows).size == 3
    capsule = grows.__dlpack__(max_version=(Grows(), 0))
    assert dltensor.read(capsule).shape == (4,)


@not_on_pypy("a bytearray, a BytesIO and an mmap that a buffer locks")
def test_a_chain_of_exporters_is_kept_alive_P9():
    stream = io.BytesIO(b"abcd")
    a = numpy.from_dlpack(strided(numpy.frombuffer(stream.getbuffer(), "u1")))
    with pytest.raises(BufferError):
        stream.truncate(0)
    assert a.tolist() == [97, 98, 99, 100]
    del a
    stream.truncate(0)
