"""The tensor layer, compared with the simplest algorithms: they visit every element, every byte and every bit."""

import ctypes
import itertools
import math
import random

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from tensor.library import ADDRESS_MAX, COPIES, PADDED, lib, tensor

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


# ---- The expected results, by the simplest algorithms ----


def item_bits(dtype, flags):
    _, bits, lanes = dtype
    return (8 if bits < 8 and flags & PADDED else bits) * lanes


def row_major(shape):
    return [math.prod(extent or 1 for extent in shape[i + 1 :]) for i in range(len(shape))]


def offsets(shape, strides):
    """The positions of the elements, counted in elements from the first element; the last index changes fastest."""
    if 0 in shape:
        return []
    strides = row_major(shape) if strides is None else strides
    indices = itertools.product(*map(range, shape))
    return [sum(i * step for i, step in zip(index, strides)) for index in indices]


def turned(shape, strides, order):
    """Shape and strides of the tensor with its dimensions in this order."""
    strides = row_major(shape) if strides is None else strides
    return [shape[i] for i in order], [strides[i] for i in order]


def reach(dtype, flags, shape, strides):
    """The bytes [lowest, highest) of the elements, counted from the first byte of the first element."""
    bits = item_bits(dtype, flags)
    places = [place * bits for place in offsets(shape, strides)]
    return (min(places) // 8, -(-(max(places) + bits) // 8)) if places else (0, 0)


def touched(dtype, flags, shape, strides):
    size = item_bits(dtype, flags) // 8
    return {place * size + byte for place in offsets(shape, strides) for byte in range(size)}


def extent_of(t, flags):
    lowest, highest = ctypes.c_int64(7), ctypes.c_int64(7)
    result = lib.byte_range(t, flags, lowest, highest)
    return (lowest.value, highest.value) if result == 0 else result


# ---- Random tensors ----

whole_dtypes = [(0, 8, 1), (2, 16, 1), (2, 16, 3), (2, 32, 1), (5, 128, 1), (17, 4, 2), (0, 24, 1)]
packed_dtypes = [(17, 4, 1), (15, 6, 1), (17, 4, 3), (0, 12, 1), (1, 1, 1), (15, 6, 5)]
dtypes = st.sampled_from(whole_dtypes + packed_dtypes)
flags = st.sampled_from([0, PADDED, 2**64 - 1, 2**64 - 1 - PADDED])  # unknown flags have no meaning (C8)
shapes = st.lists(st.sampled_from([2, 3, 1, 2, 3, 1, 4, 5, 0]), max_size=4)
odd = st.sampled_from([INT64_MIN, INT64_MAX, -1, 0, 1, 77])


@st.composite
def apart(draw, shape):
    """Strides of elements that share no memory: dimensions in any order, compact or with gaps, of either sign."""
    strides, step = [0] * len(shape), 1
    gaps, signs = draw(st.sampled_from([([0], [1]), ([0, 1, 3], [1, -1])]))
    for i in draw(st.permutations(range(len(shape)))):
        step += draw(st.sampled_from(gaps))
        strides[i] = draw(odd) if shape[i] == 1 else step * draw(st.sampled_from(signs))
        step *= shape[i] or 1
    return strides


def any_strides(shape):
    """Any strides, including strides that repeat or interleave elements."""
    free = [odd if extent == 1 else st.integers(-9, 9) for extent in shape]
    return st.one_of(st.tuples(*free), apart(shape), st.none())


@st.composite
def layouts(draw):
    shape = draw(shapes)
    return draw(dtypes), draw(flags), shape, draw(any_strides(shape))


# ---- Tests ----


@given(dtypes, flags, st.one_of(shapes, st.tuples(st.integers(0, INT64_MAX // 16))))
def test_sizes_in_elements_and_bytes_D6(dtype, flags, shape):
    t, bits = tensor(dtype, shape, None), item_bits(dtype, flags)
    assert lib.size(t) == math.prod(shape)
    assert lib.itemsize(t.dtype, flags) == -(-bits // 8)
    assert lib.nbytes(t, flags) == -(-math.prod(shape) * bits // 8)


@given(shapes)
def test_strides_of_a_shape_make_its_elements_adjacent_D5(shape):
    filled = [extent or 1 for extent in shape]
    numbers = ctypes.c_int64 * len(shape)
    for order, dimensions in [(b"C", range(len(shape))), (b"F", range(len(shape))[::-1])]:
        strides = numbers()
        lib.strides(len(shape), numbers(*shape), order, strides)
        assert offsets(*turned(filled, strides, dimensions)) == list(range(math.prod(filled)))
        assert lib.is_contiguous(tensor((0, 8, 1), shape, strides), order)


@pytest.mark.parametrize("last", [1, 7, 49, INT64_MAX])
def test_the_strides_of_a_shape_are_at_most_the_maximum_of_int64_D8(last):
    shape, strides = (1, INT64_MAX // last, last), (ctypes.c_int64 * 3)()
    lib.strides(3, (ctypes.c_int64 * 3)(*shape), b"C", strides)
    assert list(strides) == [INT64_MAX, last, 1]


@given(layouts())
def test_the_byte_range_covers_the_bytes_of_all_elements_D5_D6(layout):
    dtype, flags, shape, strides = layout
    assert extent_of(tensor(dtype, shape, strides), flags) == reach(dtype, flags, shape, strides)


@given(layouts())
def test_a_tensor_is_contiguous_when_its_elements_are_adjacent_and_in_order_D5(layout):
    _, _, shape, strides = layout
    t, n, ndim = tensor((2, 32, 1), shape, strides), math.prod(shape), len(shape)
    c = offsets(shape, strides) == list(range(n))
    f = offsets(*turned(shape, strides, range(ndim)[::-1])) == list(range(n))
    k = any(offsets(*turned(shape, strides, order)) == list(range(n)) for order in itertools.permutations(range(ndim)))
    event(f"{c=} {f=} {k=}")
    assert [lib.is_contiguous(t, order) for order in (b"C", b"F", b"A", b"K")] == [c, f, c or f, k]


@given(layouts())
def test_a_tensor_whose_elements_share_an_address_overlaps_itself_C9(layout):
    dtype, _, shape, strides = layout
    places = offsets(shape, strides)
    shared = len(set(places)) < len(places)
    event(f"overlaps: {shared}")
    assert lib.overlaps_itself(tensor(dtype, shape, strides)) >= shared


@given(dtypes, st.data(), shapes)
def test_a_tensor_of_nested_strides_does_not_overlap_itself_C9(dtype, data, shape):
    assert not lib.overlaps_itself(tensor(dtype, shape, data.draw(apart(shape))))


@given(layouts(), layouts(), st.integers(-60, 60), st.integers(0, 99))
@example(((2, 16, 3), 0, [2, 2, 2, 2], (0, 0, 0, -1)), ((2, 16, 3), 0, [2, 2, 2, 2], (0, 0, 0, 0)), -6, 0)
def test_two_tensors_that_touch_one_byte_overlap_C9(one, other, distance, byte_offset):
    base = 2**30
    a = tensor(one[0], *one[2:], data=base)
    b = tensor(other[0], *other[2:], data=base + distance - byte_offset, byte_offset=byte_offset)
    (from_a, to_a), (from_b, to_b) = reach(*one), reach(*other)
    meet = math.prod(one[2]) * math.prod(other[2]) != 0 and from_a < to_b + distance and from_b + distance < to_a
    if all(item_bits(dtype, flags) % 8 == 0 for dtype, flags, _, _ in (one, other)):
        shared = not touched(*one).isdisjoint(byte + distance for byte in touched(*other))
    else:  # packed elements share bytes: compare the byte ranges
        shared = meet
    event(f"overlap: {shared}")
    assert shared <= lib.overlap(a, one[1], b, other[1]) <= meet
    assert lib.overlap(b, other[1], a, one[1]) == lib.overlap(a, one[1], b, other[1])


@given(st.sampled_from(whole_dtypes), st.data(), shapes, st.integers(-60, 60))
def test_two_tensors_of_equal_nested_strides_that_touch_one_byte_overlap_C9(dtype, data, shape, distance):
    strides = data.draw(apart(shape))
    part = [data.draw(st.integers(min(1, extent), extent)) for extent in shape]  # parts of one array
    a, b = tensor(dtype, shape, strides, data=2**30), tensor(dtype, part, strides, data=2**30 + distance)
    here, there = touched(dtype, 0, shape, strides), touched(dtype, 0, part, strides)
    shared = not here.isdisjoint(byte + distance for byte in there)
    event(f"overlap: {shared}")
    assert lib.overlap(a, 0, b, 0) == lib.overlap(b, 0, a, 0) >= shared


class Memory:
    """Random bytes around the byte range of a tensor, beyond the bytes that the tensor uses."""

    MARGIN = 16

    def __init__(self, seed, dtype, flags, shape, strides, byte_offset):
        lowest, highest = reach(dtype, flags, shape, strides)
        size = highest - lowest + 2 * self.MARGIN
        self.buffer = ctypes.create_string_buffer(random.Random(seed).randbytes(size), size)
        self.first = self.MARGIN - lowest
        data = ctypes.addressof(self.buffer) + self.first - byte_offset
        self.tensor = tensor(dtype, shape, strides, data, byte_offset)
        self.places = [8 * self.first + place * item_bits(dtype, flags) for place in offsets(shape, strides)]

    def bits(self):
        return int.from_bytes(self.buffer.raw, "little")


@pytest.mark.parametrize("copies", COPIES)
@given(layouts(), st.data(), st.integers(0, 2**32), st.integers(0, 5))
def test_a_copy_moves_each_element_and_not_one_bit_more_D1_D6(copies, layout, data, seed, byte_offset):
    dtype, flags, shape, strides = layout
    src = Memory(seed, dtype, flags, shape, strides, byte_offset)
    dst = Memory(~seed, dtype, flags, shape, data.draw(st.one_of(st.none(), apart(shape))), 5 - byte_offset)
    before, expected, mask = src.bits(), dst.bits(), 2 ** item_bits(dtype, flags) - 1
    for out_of, to in zip(src.places, dst.places):
        expected = expected & ~(mask << to) | (before >> out_of & mask) << to
    assert COPIES[copies].copy(dst.tensor, src.tensor, flags, None) == 0
    assert dst.bits() == expected
    assert src.bits() == before


@pytest.mark.parametrize("copies", COPIES)
def test_a_scalar_is_copied_without_shape_and_strides_D3(copies):
    memory = [ctypes.c_double(value) for value in (0, 7)]
    dst, src = (tensor((2, 64, 1), None, None, ctypes.addressof(number), ndim=0) for number in memory)
    assert COPIES[copies].copy(dst, src, 0, None) == 0
    assert memory[0].value == 7


edges = [0, 1, 2, 3, 2**31, 2**61, 2**62 - 1, 2**62, 2**62 + 1, INT64_MAX - 1, INT64_MAX]
extents = st.sampled_from([*edges, 1, 2, 3, -1, INT64_MIN])
steps = st.sampled_from([*edges, *(-edge for edge in edges), INT64_MIN])
addresses = st.sampled_from(
    [0, 1, 8, 4096, ADDRESS_MAX // 4, ADDRESS_MAX // 2, ADDRESS_MAX - 4096, ADDRESS_MAX - 2, ADDRESS_MAX]
)


def is_valid(dtype, flags, shape, strides, data, byte_offset):
    """D8, computed in numbers that do not overflow."""
    if any(extent < 0 for extent in shape):
        return False
    if 0 in shape:
        return True
    bits = item_bits(dtype, flags)
    if data == 0 or math.prod(shape) > INT64_MAX or -(-math.prod(shape) * bits // 8) > INT64_MAX:
        return False
    steps = [(extent - 1) * step for extent, step in zip(shape, row_major(shape) if strides is None else strides)]
    below, above = -sum(step for step in steps if step < 0), 1 + sum(step for step in steps if step > 0)
    lowest, highest = -(-below * bits // 8), -(-above * bits // 8)
    if max(below, above, lowest, highest) > INT64_MAX:
        return False
    return lowest <= data + byte_offset and data + byte_offset + highest <= ADDRESS_MAX


@given(dtypes, flags, st.data(), addresses, addresses, addresses)
def test_validate_accepts_tensors_whose_addresses_do_not_overflow_D8(dtype, flags, data, address, offset, elsewhere):
    shape = data.draw(st.lists(extents, max_size=3))
    strides = data.draw(st.one_of(st.none(), st.tuples(*[steps] * len(shape))))
    t, valid = tensor(dtype, shape, strides, address, offset), is_valid(dtype, flags, shape, strides, address, offset)
    event(f"{valid=}")
    assert lib.validate(t, flags, None) == (0 if valid else -1)
    if not valid:
        return
    # Nothing below may overflow: a build with sanitizers checks this. Compare the results whose values are known.
    places = offsets(shape, strides) if math.prod(shape) <= 100 else None
    if places is not None:
        assert extent_of(t, flags) == reach(dtype, flags, shape, strides)
        assert lib.is_contiguous(t, b"C") == (places == list(range(len(places))))
        assert lib.overlaps_itself(t) >= (len(set(places)) < len(places))
    one = tensor((0, 8, 1), [1], None, elsewhere)
    assert lib.is_contiguous(t, b"K") <= (not lib.overlaps_itself(t))
    if is_valid((0, 8, 1), 0, [1], None, elsewhere, 0):
        assert lib.overlap(t, flags, one, 0) == lib.overlap(one, 0, t, flags)


def test_strides_that_interleave_are_taken_to_overlap_C9():
    assert lib.overlaps_itself(tensor((2, 32, 1), [2, 3], [3, 2]))  # 0 2 4 3 5 7: no overlap
    assert lib.overlaps_itself(tensor((2, 32, 1), [2, 3], [4, 2]))  # 0 2 4 4 6 8


@pytest.mark.parametrize("strides", [(3, 1), (4, -1), (-7, 2), (1, 1), (2, 1), (2, 3), (-2, 2), (0, 1)])
def test_parts_of_one_small_array_overlap_when_they_touch_one_byte_C9(strides):
    steps = sorted(map(abs, strides))
    for a, b in itertools.product(itertools.product((1, 2, 3), repeat=2), repeat=2):
        reaches = [max(x, y) - 1 for _, x, y in sorted(zip(map(abs, strides), a, b))]
        nested = 0 in reaches or steps[1] > steps[0] * reaches[0]
        for distance in range(-15, 16):
            here, there = set(offsets(a, strides)), {place + distance for place in offsets(b, strides)}
            shared = not here.isdisjoint(there)
            one, other = tensor((0, 8, 1), a, strides, 2**30), tensor((0, 8, 1), b, strides, 2**30 + distance)
            said = lib.overlap(one, 0, other, 0)
            assert said == shared if nested else said >= shared


def test_an_overlap_of_many_dimensions_is_assumed_rather_than_searched_for_C9():
    steps = [2 ** (k + 1) for k in range(60)]
    a, b, c = (tensor((0, 8, 1), 60 * [2], steps, data=2**61 + place) for place in (0, 1, 2))
    assert not lib.overlap(a, 0, b, 0)  # even and odd addresses
    assert lib.overlap(a, 0, c, 0)
    steps[0] = 1
    a, b, c = (tensor((0, 8, 1), 60 * [2], steps, data=2**61 + place) for place in (0, 1, 2))
    assert lib.overlap(a, 0, b, 0)
    assert not lib.overlap(a, 0, c, 0)  # 0, 1, 4, 5, 8 and so on


@pytest.mark.parametrize("stride", [-1, 0, 1, 3, INT64_MAX, INT64_MIN])
def test_the_stride_of_an_extent_of_1_makes_no_overlap_D5(stride):
    a, b = (tensor((0, 8, 1), [2, 2, 2, 1], [2, 4, 6, stride], data=2**30 + place) for place in (0, 5))
    assert not lib.overlap(a, 0, b, 0) and not lib.overlap(b, 0, a, 0)  # even and odd addresses


def test_packed_elements_overlap_wherever_their_ranges_of_bytes_do_C9_D6():
    packed = tensor((0, 12, 1), [2], [8], 2**30)  # bytes 0 and 1, 12 and 13
    for place in range(-2, 16):
        byte = tensor((0, 8, 1), [1], None, 2**30 + place)
        assert lib.overlap(packed, 0, byte, 0) == lib.overlap(byte, 0, packed, 0) == (0 <= place < 14)


@pytest.mark.parametrize("stride", [12, -12, 13])
@pytest.mark.parametrize("size", [1, 4])
def test_the_left_and_the_right_part_of_one_image_do_not_overlap_C9(stride, size):
    dtype, base = (0, 8 * size, 1), 2**30
    for left in range(1, 12):
        for begin in range(12):
            a = tensor(dtype, [5, left], [stride, 1], base)
            b = tensor(dtype, [5, 12 - begin], [stride, 1], base + begin * size)
            assert lib.overlap(a, 0, b, 0) == lib.overlap(b, 0, a, 0) == (begin < left)
    quarters = [
        tensor(dtype, [5, 6, 3], [12 * 3, 3, 1], base + size * (row * 12 * 3 + column * 3))
        for row in (0, 5)
        for column in (0, 6)
    ]
    for a, b in itertools.combinations(quarters, 2):
        assert not lib.overlap(a, 0, b, 0)


def test_overlap_at_the_ends_of_the_address_range_does_not_overflow_C9():
    byte, far = (0, 8, 1), ADDRESS_MAX // 4 + 2
    ends = tensor(byte, [2], [far], 4096)
    for place, shared in [
        (4096, True),
        (4097, False),
        (4095 + far, False),
        (4096 + far, True),
        (ADDRESS_MAX - 1, False),
    ]:
        for one in (tensor(byte, [1], None, place), tensor(byte, [1], None, place - 8, 8)):
            assert lib.overlap(ends, 0, one, 0) == lib.overlap(one, 0, ends, 0) == shared
            assert lib.overlap(one, 0, one, 0)
    assert lib.overlap(ends, 0, tensor(byte, [2], [-far], 4096 + far), 0)
    assert not lib.overlaps_itself(tensor(byte, [2, 2], [2**62 + 5, -(2**62) - 1]))
    assert lib.overlaps_itself(tensor(byte, [2, 2], [2**62 + 1, -(2**62) - 1]))


@pytest.mark.parametrize(
    "dtype, shape, strides",
    [
        ((0, 8, 1), (3,), (2**62,)),
        ((0, 8, 1), (2, 2), (2**63 - 1, 1)),
        ((0, 8, 1), (3,), (-(2**63),)),
        ((0, 8, 1), (2,), (-(2**63),)),
        ((2, 64, 1), (2,), (2**61,)),
        ((2, 64, 1), (2,), (-(2**61),)),
        ((2, 64, 1), (2**61,), None),
    ],
)
def test_a_tensor_that_reaches_beyond_int64_has_no_byte_range_and_may_overlap_D8_C9(dtype, shape, strides):
    """Such a tensor is not valid. The answers are those for which nothing is written to it."""
    far, near = tensor(dtype, shape, strides, 4096), tensor(dtype, (1,), (1,), 8192)
    ends = [(ctypes.c_int64 * 1)() for _ in range(2)]
    assert lib.byte_range(near, 0, *ends) == 0
    assert lib.byte_range(far, 0, *ends) == -1
    assert lib.overlap(far, 0, near, 0) == lib.overlap(near, 0, far, 0) == 1


def test_two_tensors_that_fill_the_address_range_overlap_C9():
    byte, half = (0, 8, 1), ADDRESS_MAX // 2 - 16
    wide = [tensor(byte, (2, 2), (half, -half), ADDRESS_MAX // 2 + i) for i in range(2)]
    for a, b in itertools.product(wide, wide):
        assert lib.validate(a, 0, None) == 0
        # The two share no byte. Where int64_t cannot hold their distances, the answer is 1.
        assert lib.overlap(a, 0, b, 0) == (a is b or ADDRESS_MAX > 2**32)


@pytest.mark.parametrize("padding", [0, 64])
def test_channels_tiles_and_lines_of_one_image_do_not_overlap_C9(padding):
    """Layouts from practice: large and interleaved."""
    height, width, data, byte = 1080, 1920, 2**30, (1, 8, 1)
    line = 3 * width + padding
    channels = [tensor(byte, [height, width], [line, 3], data + i) for i in range(3)]
    columns = [tensor(byte, [height, width // 2, 3], [line, 6, 1], data + 3 * i) for i in range(2)]
    lines = [tensor(byte, [height // 2, 3 * width], [-2 * line, 1], data + i * line) for i in (height - 2, height - 1)]
    for parts in (channels, columns, lines):
        for a, b in itertools.combinations_with_replacement(parts, 2):
            assert lib.overlap(a, 0, b, 0) == (a is b)
        assert not any(map(lib.overlaps_itself, parts))
    assert lib.overlap(channels[0], 0, columns[0], 0)
    assert lib.overlap(columns[1], 0, lines[0], 0)
