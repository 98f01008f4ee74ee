"""Objects whose exchange table has the offset of their embedded managed tensors: consumers in the file of the table
take them without a call of describe (X2, X3, C9)."""

import sys

import dltensor
import pytest
from array_libraries import needs_versioned_numpy
from collecting import collect
from exchange_probe import NO_TABLE, call_owned
from optional import numpy
from race_probe import (
    blocks,
    borrow,
    consume,
    consume_detached,
    consume_integers,
    from_dlpack,
    lends,
    look,
    new_type,
    skips_describe,
)

Thing = new_type()
CONSUMERS = [borrow, consume, consume_detached]
WRITABLE, READONLY, UNKNOWN = 0, 1, 0x101  # the values of dlpack_py_view.readonly


@pytest.mark.parametrize("take", CONSUMERS)
def test_an_embedded_tensor_is_taken_and_released_X2_X3(take):
    thing = Thing()
    before = sys.getrefcount(thing)
    for _ in range(3):
        assert take(thing) == 6.0
    assert sys.getrefcount(thing) == before


def test_an_embedded_tensor_that_does_not_meet_the_requirements_is_refused_and_released_C9():
    thing = Thing()
    before = sys.getrefcount(thing)
    with pytest.raises(BufferError, match="dtype is float64, int32 was asked for"):
        consume_integers(thing)
    assert sys.getrefcount(thing) == before


@pytest.mark.parametrize("take", CONSUMERS)
def test_an_object_of_the_type_without_embedded_tensors_is_described_X2(take):
    assert take(Thing(Thing())) == 6.0
    assert take(Thing(numpy.arange(4.0))) == 6.0


@needs_versioned_numpy
def test_another_library_gets_the_same_memory_X3():
    thing = Thing()
    address = dltensor.read(thing.__dlpack__()).data
    assert numpy.from_dlpack(thing).ctypes.data == address


def test_an_embedded_tensor_is_lent_without_requirements_X3():
    for _ in range(2):
        assert lends(Thing())
        assert not lends(Thing(None, READONLY))


@pytest.mark.parametrize("take", CONSUMERS)
def test_the_method_of_a_class_that_overrides_it_is_called_X2(take):
    class Refuses(Thing):
        def __dlpack__(self, **keywords):
            raise KeyError("asked")

    with pytest.raises(KeyError, match="asked"):
        take(Refuses())


def test_a_borrowed_tensor_does_not_say_whether_it_is_read_only_X3():
    assert look(Thing(), True, False, 0) == (UNKNOWN, False, 0)
    assert look(Thing(), True, True, 0) == (WRITABLE, True, 0)
    assert look(Thing(), False, True, 0) == (WRITABLE, True, 0)


def test_read_only_memory_is_not_borrowed_X3_C7():
    assert look(Thing(None, READONLY), True, False, 0)[:2] == (READONLY, True)
    assert look(Thing(None, READONLY), False, False, 0)[:2] == (READONLY, True)
    for borrows in (False, True):
        with pytest.raises(BufferError, match="data is read-only"):
            look(Thing(None, READONLY), borrows, True, 0)


@pytest.mark.parametrize("borrows", [False, True])
def test_a_consumer_that_wants_no_table_calls_the_method_X9(borrows):
    assert look(Thing(), borrows, False, NO_TABLE) == (WRITABLE, True, 1)


FLOAT32, FLOAT64 = 0x02200001, 0x02400001


@pytest.mark.parametrize("borrows", [False, True])
def test_the_refusals_come_again_after_an_embedded_tensor_was_taken_C7_C9_X9(borrows):
    """With requirements that ask for a dtype and a rank only, which the embedded tensors alone can answer."""
    for _ in range(3):
        assert look(Thing(), borrows, False, 0, FLOAT64, 4) == (UNKNOWN if borrows else WRITABLE, not borrows, 0)
        assert look(Thing(), borrows, True, 0, FLOAT64, 4) == (WRITABLE, True, 0)
        assert look(Thing(), borrows, False, NO_TABLE, FLOAT64, 4) == (WRITABLE, True, 1)
        assert look(Thing(None, READONLY), borrows, False, 0, FLOAT64, 4) == (READONLY, True, 0)
        with pytest.raises(BufferError, match="data is read-only"):
            look(Thing(None, READONLY), borrows, True, 0, FLOAT64, 4)
        with pytest.raises(BufferError, match="ndim is 1, 2 was asked for"):
            look(Thing(), borrows, False, 0, FLOAT64, 0, 2)
        with pytest.raises(BufferError, match="dtype is float64, float32 was asked for"):
            look(Thing(), borrows, False, 0, FLOAT32, 4)


needs_skips = pytest.mark.skipif(
    not skips_describe(), reason="describe is called: before CPython 3.11, without a GIL, in the plain form"
)


def descriptions(thing, take):
    """How often three calls of take(thing) call describe, after the first call."""
    take(thing)
    before = thing.descriptions()
    for _ in range(3):
        take(thing)
    return thing.descriptions() - before


@needs_skips
@pytest.mark.parametrize("borrows", [False, True])
def test_an_embedded_tensor_that_meets_the_requirements_is_not_described_X2_C9(borrows):
    for order in "\0C":
        assert descriptions(Thing(), lambda thing: look(thing, borrows, False, 0, FLOAT64, 4, 1, order)) == 0
        assert descriptions(Thing(), lambda thing: look(thing, borrows, False, 0, FLOAT64, 1, 1, order)) == 0
    assert descriptions(Thing(), lambda thing: look(thing, borrows, False, 0, FLOAT64, 4, 1, "F")) == 3
    assert descriptions(Thing(), lambda thing: look(thing, borrows, False, NO_TABLE, FLOAT64, 4)) == 3
    assert descriptions(Thing(), lambda thing: look(thing, borrows, True, 0, FLOAT64, 4)) == 0


@needs_skips
def test_read_only_embedded_memory_is_not_described_either_C7():
    assert descriptions(Thing(None, READONLY), lambda thing: look(thing, False, False, 0, FLOAT64, 4)) == 0


@needs_skips
def test_from_dlpack_with_one_argument_does_not_describe_an_embedded_tensor_C3():
    assert descriptions(Thing(), from_dlpack) == 0


@pytest.mark.parametrize("borrows", [False, True])
def test_each_field_is_filled_whatever_the_memory_held_before_C9(borrows):
    thing = Thing()
    thing.embed_matrix(2, 1)  # in memory that is filled with 0x55
    for _ in range(2):
        assert look(thing, borrows, False, 0, FLOAT64, 0, 2)[1] is not borrows
        with pytest.raises(BufferError, match="dtype is float64"):
            look(thing, borrows, False, 0, 0x55555555, 0, 2)


def test_an_embedded_tensor_stays_when_a_later_tensor_is_refused_D4():
    thing = Thing()
    with pytest.raises(ValueError, match="strides is NULL"):
        thing.embed_singles()
    with pytest.raises(BufferError, match="dtype is float64, float32 was asked for"):
        look(thing, False, False, 0, FLOAT32)
    assert look(thing, False, False, 0, FLOAT64) == (WRITABLE, True, 0)


@pytest.mark.parametrize("offset", [1, 2, 10])  # the last two: one of them is 2 bytes after a multiple of 16
@pytest.mark.parametrize("dtype", [0, FLOAT64])
@pytest.mark.parametrize("borrows", [False, True])
def test_an_embedded_tensor_that_is_not_aligned_is_refused_C9(borrows, dtype, offset):
    thing = Thing()
    thing.embed_misaligned(offset)
    for _ in range(2):
        with pytest.raises(
            BufferError, match=f"data is at address 0x.*, alignment to {dltensor.ALIGNMENT} bytes was asked for"
        ):
            look(thing, borrows, False, 0, dtype, 4)


@pytest.mark.parametrize("flags", [WRITABLE, READONLY])
def test_an_export_of_an_embedded_tensor_allocates_only_its_capsule_X3(flags):
    thing = Thing(None, flags)
    collect()
    before = blocks()
    capsules = [thing.__dlpack__(max_version=(1, 0)) for _ in range(2)]
    capsules.append(call_owned(Thing.__dlpack_c_exchange_api__, thing))
    if flags == WRITABLE:
        capsules.append(thing.__dlpack__())
    assert blocks() == before


@pytest.mark.parametrize("borrows", [False, True])
def test_contradictory_requirements_are_an_error_for_an_embedded_tensor_too_C9(borrows):
    assert look(Thing(), borrows, False, 0, FLOAT64, 4)[1] is not borrows
    with pytest.raises(SystemError, match="ndim is 1 and max_ndim is -1"):
        look(Thing(), borrows, False, 0, FLOAT64, -1)


@pytest.mark.parametrize("borrows", [False, True])
def test_the_order_of_an_embedded_matrix_is_checked_C9(borrows):
    thing = Thing()
    thing.embed_matrix(2, 1)
    for _ in range(2):
        assert look(thing, borrows, False, 0, FLOAT64, 0, 2, "C")[1] is not borrows
        with pytest.raises(BufferError, match=r"strides\[0\] is 2, 1 was asked for by order 'F'"):
            look(thing, borrows, False, 0, FLOAT64, 0, 2, "F")
    thing.embed_matrix(1, 2)
    for _ in range(2):
        assert look(thing, borrows, False, 0, FLOAT64, 0, 2, "F")[1] is not borrows
        with pytest.raises(BufferError, match=r"strides\[1\] is 2, 1 was asked for by order 'C'"):
            look(thing, borrows, False, 0, FLOAT64, 0, 2, "C")
