"""Compares each copy with NumPy, on shapes that fill blocks, tiles and lines of the cache, and on similar shapes.

The copies: the loops of dlpack_py.h, dlpack_copy.h, and the part of dlpack_copy.h that needs no SSE2.
"""

import ctypes
import mmap
import os

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from optional import numpy as np
from tensor.library import COPIES, tensor

MARGIN = 128
each_copy = pytest.mark.parametrize("copies", COPIES)


class Memory:
    """An array of items of `size` bytes, in memory with random bytes around the items.

    array      the items, with their bytes as last dimension
    memory     all bytes
    place      where in memory the first item is
    """

    def __init__(self, shape, strides, size, misaligned, seed):
        steps = [(n - 1) * step for n, step in zip(shape, strides)]
        below, above = -sum(s for s in steps if s < 0), sum(s for s in steps if s > 0) + 1
        begin = MARGIN + misaligned
        length = (below + above) * size + begin + MARGIN
        whole = np.empty(length + 64, np.uint8)
        begin_line = -whole.ctypes.data % 64
        self.memory = whole[begin_line : begin_line + length]
        self.memory[:] = np.resize(np.random.default_rng(seed).integers(0, 256, 4099, np.uint8), length)
        self.place = begin + below * size  # of the first item
        first = self.memory[self.place :]
        self.array = np.lib.stride_tricks.as_strided(first, [*shape, size], [*(step * size for step in strides), 1])
        self.tensor = tensor((1, 8, size), shape, strides, first.ctypes.data)


def check(copies, shape, size, dst_strides, src_strides, dst_misaligned=0, src_misaligned=0, seed=0):
    src = Memory(shape, src_strides, size, src_misaligned, seed)
    dst, expected = (Memory(shape, dst_strides, size, dst_misaligned, seed + 1) for _ in range(2))
    before = src.memory.copy()
    expected.array[...] = src.array
    assert COPIES[copies].copy(dst.tensor, src.tensor, 0, None) == 0
    assert np.array_equal(dst.memory, expected.memory)
    assert np.array_equal(src.memory, before)


edges = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 56, 57, 63, 64, 65, 97, 128, 130, 257, 300, 513])
sizes = st.sampled_from([1, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 24, 32])
misaligned = st.one_of(st.sampled_from([0, 1, 4, 8, 16]), st.integers(0, 63))


@st.composite
def shapes(draw, most):
    """Extents with at most this number of items in total."""
    shape = []
    for extent in draw(st.lists(edges, max_size=5)):
        shape.append(extent if np.prod(shape, dtype=int) * extent <= most else 1)
    return shape


def distinct(draw, shape, gaps):
    """Strides of items that share no memory: dimensions in any order, with gaps, of any sign."""
    strides, step = [0] * len(shape), 1
    for i in draw(st.permutations(range(len(shape)))):
        step += draw(st.sampled_from(gaps))
        strides[i] = step * draw(st.sampled_from([1, 1, 1, -1]))
        step *= shape[i]
    return strides


def any_strides(draw, shape):
    """Any strides, including strides that repeat items: broadcast arrays, windows."""
    if draw(st.integers(0, 4)):
        return distinct(draw, shape, [0, 0, 0, 1, 2, 60])
    return [draw(st.sampled_from([0, 0, 1, 2, 3, -1, 64])) for _ in shape]


@each_copy
@given(st.data(), shapes(20000), sizes, misaligned, misaligned, st.integers(0, 2**32))
def test_items_of_any_size_are_copied_between_any_strides_D4(copies, data, shape, size, to, from_, seed):
    dst_strides = distinct(data.draw, shape, [0, 0, 0, 1, 2, 60])
    check(copies, shape, size, dst_strides, any_strides(data.draw, shape), to, from_, seed)


# Copies of more than 2 MiB bypass the cache, and copy in tiles.
@each_copy
@given(
    st.sampled_from([2, 3, 4, 5, 15, 16, 17, 64, 65, 100, 128, 250, 256, 300, 1024, 1025, 1448]),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.integers(0, 70),
    st.sampled_from([(0, 0), (0, 0), (1, 0), (0, 1), (3, 5), (64, 0)]),
    st.booleans(),
    misaligned,
    misaligned,
)
@example(3, 1, 5, (0, 0), False, 1, 1)
@example(3, 1, 5, (0, 0), True, 1, 1)
@example(3, 1, 5, (0, 0), True, 16, 1)  # pixels of three items, not through the cache
@example(3, 4, 5, (0, 0), True, 16, 4)
@example(3, 1, 16, (0, 0), False, 0, 1)  # planes that begin at multiples of 16 bytes, and planes that do not
@example(3, 4, 1, (0, 0), False, 0, 4)
@example(3, 4, 1, (1, 0), False, 0, 4)
@example(128, 1, 3, (70, 0), True, 8, 1)  # rows of 128 bytes that are not adjacent in dst
@example(64, 4, 3, (0, 0), True, 4, 4)  # rows that are adjacent in dst
@example(128, 4, 3, (1, 0), True, 0, 0)  # rows that are nearly adjacent
@example(16, 4, 0, (0, 0), True, 60, 4)
@example(1024, 4, 0, (0, 0), True, 16, 16)
def test_a_large_matrix_is_transposed_D4(copies, short, size, more, gaps, high, to, from_):
    long = 2**21 // (short * size) + 1 + more
    shape = [long, short] if high else [short, long]
    event(f"{size=} {gaps=}")
    check(copies, shape, size, [shape[1] + gaps[0], 1], [1, shape[0] + gaps[1]], to, from_)


@each_copy
@given(sizes, st.sampled_from([2, -1, -2, 3, 7]), edges, st.integers(1, 3), misaligned, misaligned)
def test_rows_with_a_step_are_copied_D4(copies, size, step, count, rows, to, from_):
    check(copies, [rows, 7 * count], size, [7 * count + 1, 1], [7 * count * abs(step), step], to, from_)


@each_copy
@given(
    st.sampled_from([1, 2, 4]), st.sampled_from([2, -1]), st.sampled_from([1, 3, 1000]), st.integers(0, 70),
    st.sampled_from([0, 0, 1, 4, 16]), misaligned, misaligned,
)  # fmt: skip
@example(4, 2, 1, 0, 0, 0, 0)
@example(1, 2, 3, 5, 16, 16, 1)
@example(1, -1, 3, 5, 16, 16, 1)
@example(4, -1, 1, 1, 0, 0, 4)
def test_large_rows_with_a_step_are_copied_D4(copies, size, step, rows, more, gap, to, from_):
    count = 2**21 // (rows * size) + 1 + more
    check(copies, [rows, count], size, [count + gap, 1], [2 * count, step], to, from_)


@each_copy
@given(
    st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 2, 3, 3, 4, 4, 5]), st.integers(0, 1), edges, edges,
    st.booleans(), misaligned, misaligned,
)  # fmt: skip
@example(4, 3, 0, 2, 33, False, 0, 0)
@example(4, 3, 0, 2, 33, True, 0, 0)
@example(1, 2, 0, 2, 130, True, 16, 0)
@example(1, 2, 0, 2, 130, False, 0, 1)
@example(1, 4, 0, 2, 130, True, 16, 0)
@example(1, 4, 0, 2, 130, False, 0, 1)
@example(2, 2, 0, 2, 130, True, 16, 0)
@example(2, 2, 0, 2, 130, False, 0, 1)
@example(2, 4, 0, 2, 130, True, 16, 0)
@example(2, 4, 0, 2, 130, False, 0, 1)
@example(4, 2, 0, 2, 130, True, 16, 0)
@example(4, 2, 0, 2, 130, False, 0, 1)
@example(4, 4, 0, 2, 130, True, 16, 0)
@example(8, 2, 0, 2, 130, True, 16, 0)
@example(8, 2, 0, 2, 130, False, 0, 1)
def test_pixels_are_joined_from_planes_and_taken_apart_D4(
    copies, size, channels, unused, height, width, join, to, from_
):
    every = channels + unused  # items of a pixel
    shape, planes, pixels = [height, width, channels], [width, 1, height * width], [width * every, every, 1]
    check(copies, shape, size, *((pixels, planes) if join else (planes, pixels)), to, from_)


@each_copy
@pytest.mark.parametrize("size, channels", [(1, 2), (1, 3), (1, 4), (2, 2), (2, 4), (4, 2), (4, 3), (4, 4), (8, 2)])
@pytest.mark.parametrize("join", [False, True], ids=["apart", "joined"])
def test_pixels_of_a_large_image_are_joined_and_taken_apart_D4(copies, size, channels, join):
    """Large memory is written past the cache, where dst is aligned to a register."""
    width = 2**21 // (size * channels) + 48
    shape, planes, pixels = [width, channels], [1, width], [channels, 1]
    for misaligned in (-MARGIN & 63, 1):  # Memory begins MARGIN bytes behind a line
        check(copies, shape, size, *((pixels, planes) if join else (planes, pixels)), misaligned)


@each_copy
def test_small_matrices_in_large_memory_are_transposed_D4(copies):
    check(copies, [2**17 + 1, 4, 4], 1, [17, 4, 1], [16, 1, 4])
    check(copies, [2**13 + 1, 16, 16], 1, [257, 16, 1], [256, 1, 16])


@each_copy
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 16])
def test_one_item_is_repeated_in_dst_or_in_each_row_of_dst_D4(copies, size):
    for shape in [1, 3], [1, 64], [3, 65], [257, 300], [1, 2**21 // size + 5], [2**19 // size, 5], [5, 2**19 // size]:
        for src_strides in [0, 0], [1, 0], [0, 1]:
            check(copies, shape, size, [shape[1], 1], src_strides, 4)


# Three rows of 16 bytes are left after the last whole tile. The last two shapes have more than 2 MiB.
@each_copy
@pytest.mark.parametrize("shape, size", [([35, 16], 1), ([19, 4], 4), ([131075, 16], 1), ([131075, 4], 4)])
def test_a_sliding_window_is_not_copied_as_pixels_D4(copies, shape, size):
    check(copies, shape, size, [shape[1], 1], [1, 3])


def close_page(address):
    page = ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE)
    if os.name == "nt":
        no_access, before = 1, ctypes.c_ulong()
        assert ctypes.WinDLL("kernel32").VirtualProtect(*page, no_access, ctypes.byref(before)) != 0
    else:
        assert ctypes.CDLL(None).mprotect(*page, 0) == 0


@pytest.fixture
def pages():
    """Creates arrays of bytes that begin after, or end before, a page whose access crashes the process."""
    kept = []

    def make(size, place):
        length = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = mmap.mmap(-1, length + 2 * mmap.PAGESIZE)
        kept.append(memory)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for guard in (address, address + mmap.PAGESIZE + length):
            close_page(guard)
        first = mmap.PAGESIZE + (0 if place == "begin" else length - size)
        return np.frombuffer(memory, np.uint8, size, first)

    return make


@each_copy
@pytest.mark.parametrize("place", ["begin", "end"])
@pytest.mark.parametrize("size", [1, 4])
def test_nothing_is_written_outside_of_a_dst_that_overlaps_itself(copies, size, place, pages):
    src, dst = pages(480 * size, place), pages((2 * (16 // size) + 160) * size, place)
    strides = [16 // size, 1]
    tensors = [tensor((1, 8, size), [3, 160], s, a.ctypes.data) for s, a in ((strides, dst), ([1, 3], src))]
    assert COPIES[copies].copy(*tensors, 0, None) == 0


@each_copy
@pytest.mark.parametrize("place", ["begin", "end"])
@pytest.mark.parametrize(
    "layout",
    [
        "transposed",
        "step",
        "reversed",
        "repeated",
        *(f"{n} {what}" for n in (2, 3, 4) for what in ("planes", "pixels")),
    ],
)
@pytest.mark.parametrize("n", [64, 67, 2**21 + 3])  # the last: more than 2 MiB
def test_nothing_is_read_or_written_outside_of_memory(copies, n, layout, place, pages):
    """The memory begins after, or ends before, a page that must not be accessed."""
    side, planes = min(n, 1451), int(layout[0]) if layout[0].isdigit() else 1
    part = -(-n // planes)
    shape, dst_strides, src_strides = {
        "transposed": ([side, side], [side, 1], [1, side]),
        f"{planes} planes": ([planes, part], [part, 1], [1, planes]),
        f"{planes} pixels": ([part, planes], [planes, 1], [1, part]),
        "step": ([n], [1], [2]),
        "reversed": ([n], [1], [-1]),
        "repeated": ([n], [1], [0]),
    }[layout]
    for size in (1, 4) if n > 2**21 else (1, 2, 4, 8):
        tensors, arrays = [], []
        for strides in (dst_strides, src_strides):
            reach = (sum((extent - 1) * abs(step) for extent, step in zip(shape, strides)) + 1) * size
            memory = pages(reach, place)
            memory[:] = np.arange(reach) % 251
            first = memory[(n - 1) * size :] if strides == [-1] else memory
            arrays.append(np.lib.stride_tricks.as_strided(first, [*shape, size], [*(s * size for s in strides), 1]))
            tensors.append(tensor((1, 8, size), shape, strides, first.ctypes.data))
        assert COPIES[copies].copy(*tensors, 0, None) == 0
        assert np.array_equal(*arrays)


@each_copy
@given(st.data(), shapes(3000), st.sampled_from([1, 2, 3, 4, 8]), st.integers(0, 40))
def test_parts_of_one_array_that_interleave_are_copied_C9(copies, data, shape, size, distance):
    """x[..., 0] to x[..., 1]: the strides are equal, and the overlap test reports that no byte is shared."""
    strides = [step * 3 for step in distinct(data.draw, shape, [0, 0, 1])]
    dst, expected = (Memory(shape, strides, size, 0, 1) for _ in range(2))
    src, other = (
        np.lib.stride_tricks.as_strided(
            memory.memory[memory.place + distance :], [*shape, size], [*(step * size for step in strides), 1]
        )
        for memory in (dst, expected)
    )
    src_tensor = tensor((1, 8, size), shape, strides, src.ctypes.data)
    overlap = COPIES[copies].overlap(dst.tensor, 0, src_tensor, 0)
    event(f"{overlap=}")
    if not overlap:
        expected.array[...] = other.copy()
        assert COPIES[copies].copy(dst.tensor, src_tensor, 0, None) == 0
        assert np.array_equal(dst.memory, expected.memory)
