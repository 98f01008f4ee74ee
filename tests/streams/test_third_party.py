"""A device that no header knows: its struct of operations, of which any may be missing (docs/devices.md)."""

import re
from pathlib import Path

import pytest
import third_party
from dltensor import CPU, Taken

MAKE_READY, COPY, WORK_STREAM = 1, 2, 4
SHAPE_CHANGES = 8  # during a copy
ROOT = Path(__file__).resolve().parents[2]
types = pytest.mark.parametrize("name", ["Array", "Exchanged"] if hasattr(third_party, "Exchanged") else ["Array"])


class Queue:
    def __init__(self, number):
        self.number = number


@pytest.fixture(autouse=True)
def nothing_queued():
    third_party.reset()


def make(name, queue, lacks=0):
    return getattr(third_party, name)(queue, lacks)


def values_on_cpu(array):
    taken = Taken(array.__dlpack__(dl_device=CPU))
    values = taken.values()
    taken.delete()
    return values


# ---- Operations that are NULL ----


@types
def test_without_an_order_pending_work_is_refused_unless_it_is_the_copy_s_S1(name):
    array = make(name, 1, MAKE_READY)
    with pytest.raises(BufferError, match="cannot order work on data on oneapi:0"):
        array.__dlpack__(stream=2)
    with pytest.raises(BufferError, match="cannot order work on data on oneapi:0"):
        third_party.consume(array, 2)
    array.fill(7)
    assert values_on_cpu(array) == [7] * 8
    assert third_party.consume(make(name, 0, MAKE_READY), 2) == 0  # nothing is pending


@types
def test_without_a_copy_the_cpu_is_refused_P5(name):
    array = make(name, 1, COPY)
    with pytest.raises(BufferError, match="cannot copy data on oneapi:0"):
        array.__dlpack__(dl_device=CPU)
    array.fill(7)
    assert third_party.consume(array, 2) == 7


@pytest.mark.skipif(not hasattr(third_party, "Exchanged"), reason="no exchange tables: dlpack.h is older than 1.3")
def test_without_a_work_stream_a_table_exports_nothing_and_the_method_is_asked_X4():
    import exchange_probe

    table = third_party.Exchanged.__dlpack_c_exchange_api__
    for array in (make("Exchanged", 1, WORK_STREAM), make("Exchanged", 1, MAKE_READY)):
        with pytest.raises(BufferError, match="name no stream for exchange tables|cannot order work"):
            exchange_probe.call_owned(table, array)
    array = make("Exchanged", 1, WORK_STREAM)
    array.fill(7)
    assert third_party.consume(array, 2) == 7
    assert third_party.counts() == (1, 0)


@types
def test_all_operations_may_be_missing(name):
    array = make(name, 0, MAKE_READY | COPY | WORK_STREAM)
    assert third_party.consume(array, 2) == 0
    with pytest.raises(BufferError, match="cannot copy"):
        array.__dlpack__(dl_device=CPU)


# ---- The device as a producer and a consumer ----


@types
def test_a_third_party_s_consumer_is_ordered_after_the_producer_S1_S4(name):
    array = make(name, 1)
    array.fill(7)
    assert third_party.consume(array, 2) == 7
    assert third_party.counts() == (1, 0)
    array.fill(8)
    assert third_party.consume(array, 1) == 8  # the same queue
    assert third_party.counts() == (1, 0)


def test_a_queue_that_is_not_ordered_reads_old_data_S2():
    array = make("Array", 1)
    array.fill(7)
    array.__dlpack__(stream=-1)
    assert third_party.consume(array.__dlpack__(stream=-1), 2) == 0
    assert third_party.counts() == (0, 0)


def test_queues_may_be_objects_S1():
    array = make("Array", 1)
    array.fill(7)
    assert third_party.consume_object(array, Queue(2)) == 7
    assert third_party.counts() == (1, 0)
    with pytest.raises(AttributeError, match="number"):
        array.__dlpack__(stream=object())
    with pytest.raises(BufferError, match="cannot be ordered"):
        array.__dlpack__(stream=Queue(99))


def test_other_consumers_get_a_copy_on_the_cpu_P5():
    array = make("Array", 1)
    array.fill(9)
    assert values_on_cpu(array) == [9] * 8
    assert third_party.counts() == (0, 1)


def test_the_code_of_the_document_is_that_of_this_device():
    source = (ROOT / "tests" / "streams" / "third_party.c").read_text()
    blocks = re.findall(r"```c\n(.*?)```", (ROOT / "docs" / "devices.md").read_text(), re.DOTALL)
    shown = re.findall(r"/\* docs: \w+ \*/\n(.*?)/\* docs: end \*/\n", source, re.DOTALL)
    assert sorted(blocks) == sorted(shown)


# ---- Copies ----


@types
def test_a_shape_that_changes_during_a_copy_does_not_change_the_copy(name):
    array = make(name, 1, SHAPE_CHANGES)
    array.fill(7)
    assert values_on_cpu(array) == [7] * 8
