"""examples/table: a type with an exchange table, and a function whose result is an array of the caller's library."""

import sys

import dlarray
import pytest
from array_libraries import needs_writable_numpy
from dltensor import READ_ONLY, Made, Producer
from echo import echo
from optional import numpy
from ring import Ring, mix

pytestmark = needs_writable_numpy


def filled(count):
    ring = Ring(count)
    numpy.from_dlpack(ring)[:] = numpy.arange(count)
    return ring


def values(ring):
    return numpy.from_dlpack(ring).tolist()


def test_a_ring_is_exchanged_by_its_table_and_by_its_method_X1_P9():
    ring = filled(4)
    assert values(ring) == [0, 1, 2, 3] and [ring.at(i) for i in (-1, 0, 5)] == [3, 0, 1]
    again = echo(ring)  # another library: exports by the table, and makes a Ring by it
    assert type(again) is Ring
    numpy.from_dlpack(again)[1] = 10
    assert ring.at(1) == 10


def test_a_ring_over_the_memory_of_another_library_P3_K4():
    made = Made(flags=READ_ONLY)
    ring = Ring.from_dlpack(made.capsule())
    array = numpy.from_dlpack(ring)
    del ring
    assert not array.flags.writeable and made.deleted == 0
    del array
    assert made.deleted == 1
    with pytest.raises(BufferError, match="dtype is int64, float64 was asked for"):
        Ring.from_dlpack(numpy.arange(3, dtype="int64"))


def test_a_length_that_is_no_length_is_refused():
    with pytest.raises(BufferError, match="shape"):
        Ring(-1)
    with pytest.raises((MemoryError, BufferError)):
        Ring(sys.maxsize)
    with pytest.raises(IndexError, match="the ring is empty"):
        Ring(0).at(0)


@pytest.mark.parametrize(
    "make", [lambda v: numpy.array(v), lambda v: dlarray.array(v, "float64")], ids=["numpy", "dlarray"]
)
def test_a_result_is_an_array_of_the_library_of_the_first_argument(make):
    a, b = make([0.0, 2.0, 4.0]), filled(3)
    mixed = mix(a, b)
    assert type(mixed) is type(a) and mixed.tolist() == [0, 1.5, 3]
    assert type(mix(b, a)) is Ring and values(mix(b, a)) == [0, 1.5, 3]


def test_a_result_in_out_K4():
    a, b, out = numpy.array([2.0, 4.0]), filled(2), numpy.zeros(4)
    assert mix(a, b, out[::2]) is not None and out.tolist() == [1, 0, 2.5, 0]
    assert mix(a, b, out=a) is a and a.tolist() == [1, 2.5]
    before = sys.getrefcount(out)
    with pytest.raises(BufferError, match="out: overlaps an input"):
        mix(out[:3], out[:3], out=out[1:])
    for wrong, text in (
        (numpy.zeros(3), r"^out: shape\[0\] is 3, 2 was asked for"),
        (numpy.zeros(2, "f4"), "^out: dtype is float32"),
        (b"", "^out: 'bytes' object has no attribute '__dlpack__'"),
    ):
        with pytest.raises((BufferError, AttributeError), match=text):
            mix(a, b, out=wrong)
    a.flags.writeable = False
    with pytest.raises(BufferError, match="^out: data is read-only"):
        mix(b, b, out=a)
    assert sys.getrefcount(out) == before


def test_an_argument_without_a_library_is_refused_before_it_is_consumed_C6():
    producer = Producer()
    with pytest.raises(TypeError, match="its library has no from_dlpack"):
        mix(producer, filled(3))
    assert producer.calls == []
    assert mix(producer, filled(3), out=filled(3)).at(2) == 2
