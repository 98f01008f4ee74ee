"""dlpack_buffer_get takes buffers as PyObject_GetBuffer does, and DLPack arrays as well (C6, C7, C9, K4)."""

import array

import pytest
from buffer_probe import get
from collecting import OLD_PYPY, not_on_pypy
from dltensor import CUDA, READ_ONLY, Made, Producer
from optional import numpy

SIMPLE, WRITABLE, C_CONTIGUOUS = 0, 0x1, 0x38  # PyBUF_...
FULL_RO = 0x18 | 0x100 | 0x4
NUMBERS = array.array("d", [0, 1, 2]).tobytes()


@pytest.mark.parametrize(
    "make",
    [bytes, bytearray, lambda size: array.array("d", range(size)), lambda size: numpy.arange(size)],
    ids=["bytes", "bytearray", "array", "numpy"],
)
def test_an_object_with_the_buffer_protocol_gives_its_own_buffer(make):
    source = make(3)
    view = memoryview(source)
    if OLD_PYPY and type(source) in (bytearray, array.array):  # the buffer does not say whether it is read-only
        pytest.skip("Py_buffer.readonly: not on PyPy 3.9")
    assert get(source, FULL_RO) == (view.tobytes(), view.itemsize, view.readonly, view.ndim, view.format)


def test_an_object_with_both_protocols_is_not_asked_for_a_capsule():
    class Both(bytearray):
        def __dlpack__(self, **keywords):
            raise AssertionError("the buffer protocol is enough")

    assert get(Both(b"abc"), SIMPLE)[0] == b"abc"


def test_an_array_without_the_buffer_protocol_is_consumed_and_released_K4():
    producer = Producer()
    assert get(producer, FULL_RO) == (NUMBERS, 8, False, 1, "d")
    assert producer.deleted == [1]
    assert get(Made().capsule(), SIMPLE)[0] == NUMBERS


@pytest.mark.parametrize("flags", [WRITABLE, WRITABLE | FULL_RO])
def test_read_only_data_gives_no_writable_buffer_C7(flags):
    assert get(Producer(), flags)[2] is False
    assert get(Producer(flags=READ_ONLY), FULL_RO)[2] is True
    producer = Producer(flags=READ_ONLY)
    with pytest.raises(BufferError, match="not writable|read-only"):
        get(producer, flags)
    assert producer.deleted == [1]


@not_on_pypy("a memoryview that checks PyBUF_C_CONTIGUOUS")
def test_flags_and_requirements_are_checked_and_the_tensor_released_C9():
    producer = Producer(shape=(2, 2), strides=(1, 2))
    with pytest.raises(BufferError):
        get(producer, C_CONTIGUOUS)
    with pytest.raises(BufferError, match="ndim is 2, 1 was asked for"):
        get(producer, FULL_RO, 1)
    assert producer.deleted == [1, 1]
    for fields in {"dtype": (4, 16, 1)}, {"device": CUDA}:
        producer = Producer(**fields)
        with pytest.raises(BufferError, match="no such format|cuda"):
            get(producer, FULL_RO)
        assert set(producer.deleted) == {1}


def test_an_object_without_both_protocols_is_the_type_error_of_python_C6():
    with pytest.raises(TypeError, match="'int'"):
        get(7, SIMPLE)
    with pytest.raises(TypeError, match="'object'"):
        get(object(), SIMPLE)


@pytest.mark.parametrize("error", [KeyError, AttributeError])
def test_the_error_of_a_producer_is_raised_C6(error):
    class Refusing:
        def __dlpack__(self, **keywords):
            raise error("not today")

    with pytest.raises(error, match="not today"):
        get(Refusing(), SIMPLE)


def test_an_array_of_rank_0_and_an_empty_one_are_buffers_D3():
    assert get(Producer(shape=(), strides=None), FULL_RO)[:2] == (NUMBERS[:8], 8)
    assert get(Producer(shape=(0, 3), data=None, strides=None), SIMPLE)[0] == b""
    assert get(Producer(dtype="bool", shape=(3,)), FULL_RO)[4] == "?"
