"""Dtypes and devices that Python objects name, and exceptions that name the argument (C3, C6, C8, C9)."""

import re

import dlarray
import pytest
from consumer_probe import consume, from_dlpack, parse_device, parse_dtype
from dltensor import CPU, CUDA, Producer
from optional import numpy


class Says:
    """An object with one method, which returns or raises the answer."""

    def __init__(self, method, answer):
        self.answer = answer
        setattr(type(self), method, type(self).call)

    def call(self):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def dtype(answer):
    return type("DType", (Says,), {})("__dlpack_data_type__", answer)


def device(answer):
    return type("Device", (Says,), {})("__dlpack_device__", answer)


class Index:
    def __index__(self):
        return 2


def test_a_dtype_object_says_code_bits_and_lanes_C8():
    assert parse_dtype(dtype((2, 32, 1))) == (2, 32, 1)
    assert parse_dtype(dtype((Index(), numpy.int8(64), True))) == (2, 64, 1)
    assert parse_dtype(dtype((0, 8, 65535))) == (0, 8, 65535)


@pytest.mark.parametrize(
    "answer",
    [
        (2, 32, 0),
        (2, 0, 1),
        (17, 3, 1),
        (258, 32, 1),
        (2, 288, 1),
        (2, 32, 65537),
        (-1, 32, 1),
        (2, -32, 1),
        (2, 32, 2**70),
    ],
    ids=str,
)
def test_an_impossible_dtype_is_a_buffer_error_C8(answer):
    with pytest.raises(BufferError, match="dtype") as info:
        parse_dtype(dtype(answer))
    assert all(0 <= part < 256 for part in answer) or f"dtype is {answer}, " in str(info.value)


@pytest.mark.parametrize("answer", [None, (2, 32), [2, 32, 1], (2, 32, 1.0), (300, "8", 1), "float32"], ids=repr)
def test_a_dtype_object_that_says_no_three_integers_is_a_type_error_C8(answer):
    with pytest.raises(TypeError, match="three integers were wanted"):
        parse_dtype(dtype(answer))


def test_an_object_that_names_no_dtype_is_an_attribute_error_and_its_own_error_is_raised_C8():
    with pytest.raises(AttributeError, match="__dlpack_data_type__"):
        parse_dtype("float32")
    with pytest.raises(KeyError, match="busy"):
        parse_dtype(dtype(KeyError("busy")))


@pytest.mark.parametrize(
    "said, is_",
    [("cpu", CPU), ((2, 1), (2, 1)), (device((2, 1)), (2, 1)), (dlarray.arange(1), CPU)],
    ids=["name", "tuple", "device", "array"],
)
def test_a_device_is_a_name_a_tuple_or_an_object_C3(said, is_):
    assert parse_device(said) == is_


@pytest.mark.parametrize(
    "wrong", [None, 1, [1, 0], (1,), (1, 0.0), object(), device(None), device([1, 0])], ids=lambda x: type(x).__name__
)
def test_anything_else_is_no_device_C3(wrong):
    with pytest.raises(TypeError, match="'cpu', a tuple of two integers or a device was wanted"):
        parse_device(wrong)
    if wrong is not None:
        with pytest.raises(TypeError, match="a device was wanted"):
            from_dlpack(Producer(), device=wrong)


def test_another_name_is_a_value_error_and_the_error_of_an_object_is_raised_C3():
    with pytest.raises(ValueError, match="device is 'gpu', 'cpu' was wanted"):
        parse_device("gpu")
    with pytest.raises(KeyError, match="busy"):
        parse_device(device(KeyError("busy")))


def test_from_dlpack_passes_the_device_of_an_object_on_C3_C5():
    producer = Producer()
    from_dlpack(producer, device=device(CPU))
    assert producer.calls == [{"max_version": (1, 3), "dl_device": CPU}]
    with pytest.raises(BufferError, match=re.escape("cuda")):
        from_dlpack(Producer(), device=device(CUDA))


@pytest.mark.parametrize("obj", [None, 7, [1.0, 2.0], object], ids=str)
def test_an_object_without_dlpack_is_named_as_the_argument_C6(obj):
    text = "type object 'object'" if obj is object else f"'{type(obj).__name__}' object"
    with pytest.raises(AttributeError, match=f"^weights: {text} has no attribute '__dlpack__'$"):
        consume(obj, {"name": "weights"})
    with pytest.raises(AttributeError, match="has no attribute '__dlpack__'$") as raised:
        consume(obj)
    assert "weights" not in str(raised.value)


def test_the_attribute_error_of_a_producer_stays_as_it_is_C6():
    class Broken:
        def __dlpack__(self, **keywords):
            return self.missing

    class Hiding:
        def __getattr__(self, name):
            raise AttributeError("not today")

    with pytest.raises(AttributeError, match="^'Broken' object has no attribute 'missing'$"):
        consume(Broken(), {"name": "weights"})
    with pytest.raises(AttributeError, match="^weights: not today$"):
        consume(Hiding(), {"name": "weights"})


def test_an_attribute_error_without_a_value_is_raised_C6():
    class Once:
        asked = 0

        def __getattr__(self, name):
            self.asked += 1
            if self.asked > 1:
                raise AttributeError(name)
            return lambda **keywords: consume(Producer()).release_raising(AttributeError)  # a value from 3.12 on

    with pytest.raises(AttributeError, match="^(weights: )?$"):
        consume(Once(), {"name": "weights"})


def test_a_buffer_is_taken_before_the_argument_is_named_C6():
    assert consume(bytearray(3), {"name": "weights", "fallback": 1}).shape == (3,)
    with pytest.raises(AttributeError, match="^weights: 'int' object has no attribute '__dlpack__'$"):
        consume(7, {"name": "weights", "fallback": 1})


@pytest.mark.parametrize("name", ["stream", "max_version", "dl_device", "__dlpack__", "__dlpack_device__"])
def test_from_dlpack_takes_no_other_keyword_C3(name):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        from_dlpack(Producer(), **{name: None})
