import gc

import numpy
import pytest
from myarray import MyArray, sum


def test_an_array_and_numpy_share_memory():
    made = MyArray(4)
    array = numpy.from_dlpack(made)
    array[:] = [1, 2, 3, 4]
    assert len(made) == 4 and sum(made) == 10
    assert numpy.from_dlpack(made).tolist() == [1, 2, 3, 4]


def test_the_memory_lives_as_long_as_an_array_of_it():
    array = numpy.from_dlpack(MyArray(1000))
    gc.collect()
    assert array.sum() == 0


def test_a_copy_shares_nothing():
    made = MyArray(2)
    copy = numpy.from_dlpack(made, copy=True)
    copy[:] = 1
    assert sum(made) == 0


@pytest.mark.parametrize("writable", [True, False])
def test_an_array_of_numpy_comes_and_goes_without_a_copy(writable):
    array = numpy.arange(5.0)
    array.flags.writeable = writable
    again = numpy.from_dlpack(MyArray.from_dlpack(array))
    assert numpy.shares_memory(array, again) and again.flags.writeable == writable


def test_sum_takes_any_strides():
    assert sum(numpy.arange(10.0)[::-3]) == 9 + 6 + 3 + 0


@pytest.mark.parametrize("x", [numpy.zeros(3, "float32"), numpy.zeros((2, 2))])
def test_another_dtype_or_rank_is_refused(x):
    with pytest.raises(BufferError, match="x: .* was asked for"):
        sum(x)
    with pytest.raises(BufferError):
        MyArray.from_dlpack(x)


def test_an_object_without_an_array_is_refused():
    with pytest.raises(AttributeError):
        sum([1.0, 2.0])


def test_a_length_that_is_negative_or_too_large_is_refused():
    for length in -1, 2**62:
        with pytest.raises(ValueError):
            MyArray(length)
