"""A container that grows and counts its exports: examples/growable (P9, C7)."""

import re
from pathlib import Path

import numpy
import pytest
from adapter import needs_versioned_numpy
from samples import Samples

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "growable" / "samples.c"


def filled(count):
    samples = Samples()
    for value in range(count):
        samples.append(value)
    return samples


@needs_versioned_numpy
def test_the_memory_is_shown_without_a_copy():
    samples = filled(8)
    array = numpy.from_dlpack(samples)
    assert array.tolist() == list(samples) == [0, 1, 2, 3, 4, 5, 6, 7]
    array[3] = 30
    assert samples[3] == 30


def test_it_refuses_to_grow_while_it_is_exported_and_grows_again_P9():
    samples = filled(8)
    arrays = [numpy.from_dlpack(samples), numpy.from_dlpack(samples)]
    while arrays:
        with pytest.raises(BufferError, match="the memory is shared"):
            samples.append(8)
        arrays.pop()
    samples.append(8)
    assert len(samples) == 9


def test_a_copy_leaves_it_free_to_grow_P4():
    samples = filled(8)
    capsule = samples.__dlpack__(copy=True, max_version=(1, 0))
    samples.append(8)
    assert len(samples) == 9
    del capsule


@needs_versioned_numpy
def test_it_takes_the_memory_of_another_library_and_hands_it_on_C7():
    array = numpy.arange(5.0)
    samples = Samples.from_dlpack(array)
    assert numpy.from_dlpack(samples).ctypes.data == array.ctypes.data
    with pytest.raises(BufferError, match="the memory is shared"):
        samples.append(5)
    array.flags.writeable = False
    assert not numpy.from_dlpack(Samples.from_dlpack(array)).flags.writeable


@pytest.mark.parametrize("other", [numpy.arange(3), numpy.zeros((2, 2)), numpy.arange(9.0)[::2]])
def test_what_it_cannot_hold_is_refused_C9(other):
    with pytest.raises(BufferError, match="was asked for"):
        Samples.from_dlpack(other)


def test_dlpack_takes_at_most_60_lines():
    regions = re.findall(r"/\* dlpack: begin \*/\n(.*?)/\* dlpack: end \*/", SOURCE.read_text(), re.DOTALL)
    code = re.sub(r"/\*.*?\*/", "", "\n".join(regions), flags=re.DOTALL)
    assert 20 < len([line for line in code.splitlines() if line.strip()]) <= 60
