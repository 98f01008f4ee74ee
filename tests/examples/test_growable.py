"""Containers that grow do not move exported memory: examples/growable counts its exports; for a type with the buffer
protocol, the owner of an export is a memoryview (P9, C7)."""

import re
import threading
from pathlib import Path

import dlarray
import dltensor
import producer_probe
import pytest
from array_libraries import needs_versioned_numpy, needs_writable_numpy
from collecting import collect, not_on_pypy
from optional import numpy
from samples import Samples

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "growable" / "samples.c"


def filled(count):
    samples = Samples()
    for value in range(count):
        samples.append(value)
    return samples


@needs_writable_numpy
def test_the_memory_is_exported_without_a_copy():
    samples = filled(8)
    array = numpy.from_dlpack(samples)
    assert array.tolist() == list(samples) == [0, 1, 2, 3, 4, 5, 6, 7]
    array[3] = 30
    assert samples[3] == 30


def test_a_container_refuses_to_grow_while_an_export_lives_P9():
    samples = filled(8)
    arrays = [numpy.from_dlpack(samples), numpy.from_dlpack(samples)]
    while arrays:
        with pytest.raises(BufferError, match="the memory is shared"):
            samples.append(8)
        arrays.pop()
        collect()
    samples.append(8)
    assert len(samples) == 9


@pytest.mark.parametrize("max_version", [None, (1, 0)])
@pytest.mark.parametrize("how", ["the capsule dies", "a consumer deletes", "a consumer deletes on another thread"])
def test_the_last_export_may_be_the_only_reference_to_the_container_P9_K7(how, max_version):
    """The count of exports is in the owner: it is decremented before the owner is released. ASan checks it."""
    samples = filled(8)
    capsule = samples.__dlpack__(max_version=max_version)
    del samples
    if how == "the capsule dies":
        del capsule
        return
    taken = dltensor.Taken(capsule)
    del capsule
    assert taken.values() == [0, 1, 2, 3, 4, 5, 6, 7]
    taken.delete_on("a foreign thread" if how.endswith("thread") else "this thread")


@needs_versioned_numpy
def test_the_last_view_may_be_the_only_reference_to_the_container_P9_K7():
    array = numpy.from_dlpack(filled(8))
    assert array[7] == 7
    del array
    view = memoryview(filled(8))
    assert view[7] == 7
    del view
    given = dlarray.from_dlpack(filled(8))
    assert given.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    del given


def test_a_container_may_grow_while_a_copy_lives_P4():
    samples = filled(8)
    capsule = samples.__dlpack__(copy=True, max_version=(1, 0))
    samples.append(8)
    assert len(samples) == 9
    del capsule


@needs_versioned_numpy
def test_a_container_imports_and_exports_memory_of_another_library_C7():
    array = numpy.arange(5.0)
    samples = Samples.from_dlpack(array)
    assert numpy.from_dlpack(samples).ctypes.data == array.ctypes.data
    with pytest.raises(BufferError, match="the memory is shared"):
        samples.append(5)
    array.flags.writeable = False
    assert not numpy.from_dlpack(Samples.from_dlpack(array)).flags.writeable


def test_an_unsupported_tensor_is_refused_C9():
    for other in numpy.arange(3), numpy.zeros((2, 2)), numpy.arange(9.0)[::2]:
        with pytest.raises(BufferError, match="was asked for"):
            Samples.from_dlpack(other)


def test_dlpack_takes_at_most_60_lines():
    regions = re.findall(r"/\* dlpack: begin \*/\n(.*?)/\* dlpack: end \*/", SOURCE.read_text(), re.DOTALL)
    code = re.sub(r"/\*.*?\*/", "", "\n".join(regions), flags=re.DOTALL)
    assert 20 < len([line for line in code.splitlines() if line.strip()]) <= 60


class Bits(bytearray):
    def __dlpack__(self, **keywords):
        return producer_probe.export_buffer(self, **keywords)

    def __dlpack_device__(self):
        return 1, 0


@needs_writable_numpy
def test_with_a_memoryview_as_the_owner_the_object_counts_exports_as_buffers_P9():
    bits = Bits(b"abc")
    arrays = [numpy.from_dlpack(bits), numpy.from_dlpack(bits)]
    arrays[0][1] = ord("X")
    assert bits == b"aXc"
    while arrays:
        for grow in bits.clear, lambda: bits.append(0), lambda: bits.extend(bytes(1000)):
            with pytest.raises(BufferError):
                grow()
        assert arrays.pop().tolist() == list(b"aXc")
    bits.clear()
    assert bits == b""


@not_on_pypy("a buffer that ends with its last reference")
def test_a_memoryview_as_the_owner_is_dropped_on_any_thread_and_after_a_refusal_K5_P7():
    bits = Bits(b"abc")
    held = [bits.__dlpack__(max_version=(1, 0))]
    with pytest.raises(BufferError):
        bits.append(0)
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    bits.append(0)
    for keywords, error in ({"dl_device": (2, 0)}, BufferError), ({"copy": 1}, TypeError), ({"stream": 7}, ValueError):
        with pytest.raises(error):
            bits.__dlpack__(**keywords)
        bits.append(0)
    copy = bits.__dlpack__(copy=True)
    bits.append(0)
    del copy
