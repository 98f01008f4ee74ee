"""examples/by_hand: the protocol in one file. tests/conformance also tests it, with the conformance suite."""

import gc
import re
import sys
import threading
from pathlib import Path

import by_hand
import dlarray
import probe
import pytest
from collecting import collect
from dltensor import (
    CPU,
    CUDA,
    CUDA_HOST,
    CUDA_MANAGED,
    FORMS,
    IS_COPIED,
    LEGACY,
    READ_ONLY,
    ROCM_HOST,
    VERSIONED,
    Made,
    Producer,
    Taken,
    name,
    read,
)
from optional import numpy

VERSION = {"max_version": (1, 3)}
SOURCE = Path(__file__).parents[2] / "examples" / "by_hand" / "by_hand.c"


def matrix():
    return by_hand.from_dlpack(numpy.arange(12.0).reshape(3, 4).T)


def test_the_file_includes_no_header_of_this_project():
    assert re.findall(r'#include "', SOURCE.read_text()) == []


def test_data_is_shared_until_the_last_deleter_has_run_K3_P9():
    made = Made()
    a = by_hand.from_dlpack(made.capsule())
    exports = [Taken(a.__dlpack__(**keywords)) for keywords in (VERSION, {}, VERSION)]
    a = None
    for export in exports:
        assert (export.says.data, export.says.shape, export.says.strides) == (made.address, (3,), (1,))
        assert export.values() == [0.0, 1.0, 2.0] and made.deleted == 0
        export.delete_on("a foreign thread")
    assert made.deleted == 1


@pytest.mark.parametrize("form", FORMS)
def test_a_capsule_is_taken_once_K4(form):
    made = Made(form)
    capsule = made.capsule()
    a = by_hand.from_dlpack(capsule)
    assert name(capsule) == "used_" + form
    with pytest.raises(ValueError, match="was consumed already"):
        by_hand.from_dlpack(capsule)
    assert made.deleted == 0 and read(a.__dlpack__(**VERSION)).data == made.address


@pytest.mark.parametrize("other", ["used_dltensor_", "used_dltensor_x", "dltensor_", "used_", ""])
def test_a_capsule_of_another_name_is_no_DLPack_capsule_C6(other):
    made = Made(LEGACY)
    capsule = made.capsule(other)
    with pytest.raises(TypeError, match="is no DLPack capsule"):
        by_hand.from_dlpack(capsule)
    assert made.deleted == 0


def test_of_eight_threads_one_takes_a_capsule_K4():
    for _ in range(20):
        made, taken, start = Made(), [], threading.Barrier(8)
        capsule = made.capsule()

        def take(capsule=capsule, taken=taken, start=start):
            start.wait()
            try:
                taken.append(by_hand.from_dlpack(capsule))
            except ValueError:
                pass

        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(taken) == 1 and made.deleted == 0
        taken.clear()
        assert made.deleted == 1


def test_a_capsule_that_is_refused_keeps_its_tensor_K4():
    made = Made(device=CUDA)
    capsule = made.capsule()
    with pytest.raises(
        BufferError, match=re.escape("CPU memory was wanted: device is (2, 0), dtype (2, 64, 1), ndim 1")
    ):
        by_hand.from_dlpack(capsule)
    assert name(capsule) == VERSIONED and made.deleted == 0


def test_an_unknown_major_version_is_taken_and_deleted_K6():
    made = Made(version=(2, 0)).poison()
    capsule = made.capsule()
    with pytest.raises(BufferError, match="the unknown major version 2"):
        by_hand.from_dlpack(capsule)
    assert made.deleted == 1 and name(capsule) == "used_" + VERSIONED


@pytest.mark.parametrize("device", [CUDA_HOST, ROCM_HOST, CUDA_MANAGED])
def test_pinned_memory_is_requested_again_as_CPU_memory_C5(device):
    producer = Producer(answers=[{"device": device}, {"device": CPU}])
    by_hand.from_dlpack(producer)
    assert producer.calls == [VERSION, {**VERSION, "dl_device": CPU}]
    producer = Producer(device=device)
    with pytest.raises(BufferError, match="CPU memory was wanted"):
        by_hand.from_dlpack(producer)
    assert len(producer.calls) == 2
    gc.collect()
    assert [made.deleted for made in producer.made] == [1, 1]


@pytest.mark.parametrize(
    "keywords, passed",
    [
        ({}, VERSION),
        ({"copy": None, "device": None}, VERSION),
        ({"copy": False}, {**VERSION, "copy": False}),
        ({"device": (1, 0)}, {**VERSION, "dl_device": CPU}),
        ({"copy": True, "device": (1, 0)}, {**VERSION, "dl_device": CPU, "copy": True}),
    ],
)
def test_keywords_are_passed_when_they_are_needed_C3_C4(keywords, passed):
    producer = Producer()
    by_hand.from_dlpack(producer, **keywords)
    assert producer.calls == [passed]


@pytest.mark.parametrize("form, copies", [(VERSIONED, False), (LEGACY, True)])
def test_the_consumer_copies_if_the_producer_may_have_ignored_copy_C3(form, copies):
    producer = Producer(form)
    a = by_hand.from_dlpack(producer, copy=True)
    assert (read(a.__dlpack__(**VERSION)).data != producer.made[0].address) == copies
    assert producer.made[0].deleted == copies
    made = Made()
    assert read(by_hand.from_dlpack(made.capsule(), copy=True).__dlpack__(**VERSION)).data != made.address
    assert made.deleted == 1


def test_an_old_producer_is_called_again_without_keywords_C1():
    class Old:
        calls = []

        def __dlpack__(self, **keywords):
            self.calls.append(keywords)
            if keywords:
                raise TypeError("no keywords")
            return Made().capsule()

    by_hand.from_dlpack(Old(), copy=True)
    assert Old.calls == [{**VERSION, "copy": True}, {}]
    with pytest.raises(BufferError, match="copy is False, and __dlpack__ raised TypeError"):
        by_hand.from_dlpack(Old(), copy=False)


def test_read_only_data_and_legacy_capsules_P3_C7():
    legacy = by_hand.from_dlpack(Made(LEGACY).capsule())
    assert read(legacy.__dlpack__(**VERSION)).flags == READ_ONLY
    assert read(legacy.__dlpack__()).form == LEGACY
    readonly = by_hand.from_dlpack(Made(flags=READ_ONLY).capsule())
    with pytest.raises(BufferError, match="read-only"):
        readonly.__dlpack__()
    assert read(readonly.__dlpack__(copy=True)).form == LEGACY
    assert read(readonly.__dlpack__(copy=True, **VERSION)).flags == IS_COPIED
    assert read(by_hand.from_dlpack(readonly.__dlpack__(**VERSION), copy=True).__dlpack__(**VERSION)).flags == 0


def test_views_are_copied_row_by_row_P4():
    a = numpy.arange(24.0).reshape(2, 3, 4)[::-1, 1:, ::2]
    copied = numpy.from_dlpack(by_hand.from_dlpack(by_hand.from_dlpack(a).__dlpack__(), copy=True))
    assert copied.flags.c_contiguous and (copied == a).all()


def test_a_consumer_has_its_own_requirements_C9():
    assert by_hand.sum(matrix()) == by_hand.sum(dlarray.from_dlpack(matrix())) == 66.0
    for wrong in [{"dtype": "int64"}, {}, {"shape": (1, 1), "data": Made().address + 4}]:
        made = Made(**{"shape": (3,), **wrong})
        capsule = made.capsule()
        with pytest.raises(BufferError, match="a matrix of aligned float64 was wanted: device"):
            by_hand.sum(capsule)
        assert name(capsule) == VERSIONED and made.deleted == 0


def test_an_empty_matrix_has_any_address_and_sum_0_D3():
    for shape in [(0, 3), (2**59, 0)]:
        assert by_hand.sum(Made(shape=shape, data=Made().address + 4).capsule()) == 0.0


def test_the_cpu_is_a_device_by_name_and_as_a_tuple_C3():
    x = numpy.arange(3.0)
    for device in ["cpu", (1, 0), None]:
        assert numpy.shares_memory(numpy.from_dlpack(by_hand.from_dlpack(x, device=device)), x)
    with pytest.raises(TypeError):
        by_hand.from_dlpack(x, device="gpu")


def test_a_device_that_is_not_the_CPU_is_refused_C5():
    for device in [(2, 0), (1, 7)]:
        with pytest.raises(BufferError, match=re.escape(f"device is {device}, CPU memory was wanted")):
            by_hand.from_dlpack(numpy.arange(3.0), device=device)


def test_an_exception_in_flight_survives_deleters_of_other_libraries_K2():
    class Offers:
        def __dlpack__(self, **keywords):
            return Made(shape=(1, 2)).capsule()

    def drop_an_array_and_raise():
        return (by_hand.from_dlpack(Made().capsule()), 1 / 0)

    with pytest.raises(ZeroDivisionError):
        drop_an_array_and_raise()
    assert by_hand.sum(Offers()) == 1.0


def test_an_exception_of_another_library_s_deleter_is_unraisable_K2(monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: unraisable.append(str(args.exc_value)))
    by_hand.from_dlpack(probe.rude_capsule())
    by_hand.from_dlpack(probe.rude_capsule()).__dlpack__()
    collect()
    assert unraisable == ["left behind by a deleter"] * 2


@pytest.mark.parametrize(
    "fields, taken",
    [
        ({"shape": (0, *[2**63 - 1] * 17), "strides": None, "data": None}, True),
        ({"shape": (-(2**63),)}, False),
        ({"shape": (3,), "strides": (2**59,)}, False),
        ({"shape": (2**62, 2), "strides": (0, 0)}, False),
        ({"shape": (2**62,), "strides": (0,)}, False),
        ({"shape": (2**59,), "strides": (0,)}, True),
        ({"byte_offset": 2**64 - 8}, False),
        ({"data": None}, False),
        ({"shape": (), "strides": None}, True),
        ({"dtype": (10, 16, 1)}, False),  # float8 of 16 bits
        ({"dtype": (17, 8, 1)}, False),  # float4 of 8 bits
        ({"dtype": (10, 8, 1)}, True),
        ({"dtype": (6, 16, 1)}, False),
        ({"dtype": (5, 40, 1)}, False),
        ({"dtype": (2, 64, 0)}, False),
        ({"ndim": 65}, False),
        ({"shape": None, "strides": None, "ndim": 1}, False),
    ],
)
def test_a_tensor_is_checked_before_it_is_taken_C8_D3_D8(fields, taken):
    made = Made(**fields)
    capsule = made.capsule()
    if taken:
        by_hand.from_dlpack(capsule)
    else:
        with pytest.raises(BufferError):
            by_hand.from_dlpack(capsule)
    assert made.deleted == taken and name(capsule) == ("used_" if taken else "") + VERSIONED


def test_a_long_chain_of_exchanges_with_itself_is_one_tensor_K3():
    made = Made()
    x = by_hand.from_dlpack(made.capsule())
    for _ in range(1_000_000):
        x = by_hand.from_dlpack(x)
    assert read(x.__dlpack__(**VERSION)).data == made.address
    del x  # deleters that call each other would overflow the stack
    collect()
    assert made.deleted == 1


def test_a_copy_that_was_taken_is_exported_without_the_flag_of_a_copy_P4():
    copied = by_hand.from_dlpack(by_hand.from_dlpack(Made().capsule()), copy=True)
    assert read(copied.__dlpack__(**VERSION)).flags == 0
