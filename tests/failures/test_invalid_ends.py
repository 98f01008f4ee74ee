"""Exports of the header, read by another library's consumer, and the reverse: dtypes x layouts x forms x flags.

The expected elements are computed here, from the memory taken as one large integer.
"""

import functools
import itertools
import random
import struct

import _dlpack_conformance as native
import dlarray
import pytest
from _dlpack_conformance import Managed
from consumer_probe import consume
from dltensor import DTYPES, FORMATS, IS_COPIED, PADDED, READ_ONLY, compact
from exchange_probe import Holder, borrow
from failures.model import ANY, Array, reach
from producer_probe import Thing, wrap
from table_consumer import consume as consume_by_table

NEW = {"max_version": (1, 0)}
FOREIGN = [2**40, READ_ONLY | IS_COPIED | 2**63]  # flags that the header does not set

ALL = {
    **DTYPES,
    "bfloat16": (4, 16, 1),
    "bcomplex32": (18, 32, 1),
    "float8_e4m3fn": (10, 8, 1),
    "float8_e8m0fnu": (14, 8, 1),
    "float6_e2m3fn": (15, 6, 1),
    "float4_e2m1fn": (17, 4, 1),
    "int4": (0, 4, 1),
    "uint1": (1, 1, 1),
    "int24": (0, 24, 1),
    "float32x4": (2, 32, 4),
    "float6x3": (15, 6, 3),
    "int128": (0, 128, 1),
}
# Shape, strides, and the index of the first element, which is at a whole byte.
LAYOUTS = {
    "a scalar": ((), (), 0),
    "rows": ((3, 4), (4, 1), 0),
    "columns": ((3, 4), (1, 3), 0),
    "axes moved": ((4, 2, 3), (1, 12, 4), 0),
    "every other": ((3, 2), (8, 2), 0),
    "backwards": ((9,), (-1,), 8),
    "rows backwards": ((3, 3), (-3, 1), 8),
    "repeated rows": ((3, 4), (0, 1), 0),
    "one element, repeated": ((2, 3), (0, 0), 8),
    "windows": ((4, 3), (1, 1), 0),
    "from the middle": ((2, 2), (4, 1), 8),
    "extents of 1": ((1, 3, 1), (2**40, 1, -7), 0),
    "no elements": ((2, 0, 3), (3, 3, 1), 0),
    "64 dimensions": ((1,) * 62 + (2, 3), (6,) * 62 + (3, 1), 0),
}


def size(dtype, flags=0):
    """Bits of an element in memory."""
    _, bits, lanes = dtype
    return (8 if bits < 8 and flags & PADDED else bits) * lanes


@functools.lru_cache(None)
def memory(bits, layout):
    """Random bytes as far as the layout reaches, rounded up to 16 bytes, the largest alignment of an element."""
    shape, strides, first = layout
    count = first + reach(shape, strides)[1] + 1
    return random.Random(bits).randbytes((count * bits // 8 + 16) // 16 * 16)


@functools.lru_cache(None)
def elements(bits, layout):
    shape, strides, first = layout
    whole = int.from_bytes(memory(bits, layout), "little")
    places = [
        first + sum(i * stride for i, stride in zip(index, strides)) for index in itertools.product(*map(range, shape))
    ]
    return [(whole >> place * bits & (1 << bits) - 1).to_bytes((bits + 7) // 8, "little") for place in places]


def extents(says):
    """Shape and strides; for a scalar they may be NULL (D3)."""
    return says["shape"] or (), says["strides"] or ()


def numbers(dtype, raw):
    """The number in the bytes of an element of a dtype of the array API."""
    parts = struct.unpack("=" + FORMATS[dtype], raw)
    return complex(*parts) if len(parts) == 2 else parts[0]


NUMBERS = {name: dtype for name, dtype in DTYPES.items() if name != "bool"}  # few random bytes are a valid bool
every_dtype = pytest.mark.parametrize("dtype", ALL.values(), ids=ALL)
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def flags_of(dtype, *others):
    """Flags for a dtype. Only dtypes below 8 bits can be padded."""
    return [0, READ_ONLY, *others] + ([PADDED, PADDED | READ_ONLY] if dtype[1] < 8 else [])


# ---- From another library to the header ----


def foreign(dtype, layout, flags=0, versioned=True, null=False):
    shape, strides, first = layout
    bits = size(dtype, flags)
    return Managed(
        versioned,
        values=memory(bits, layout),
        shape=shape,
        strides=None if null else strides,
        dtype=dtype,
        byte_offset=first * bits // 8,
        flags=flags,
    )


def check_view(view, made, layout, dtype, flags, form):
    shape, strides, first = layout
    assert (view.shape, view.strides, view.dtype, view.device) == (shape, strides, dtype, (1, 0))
    assert view.data == made.address + first * size(dtype, flags) // 8
    assert (view.flags, view.form) == (flags, form)
    assert view.readonly == (0x101 if form == 2 else flags & READ_ONLY)


@every_dtype
@every_layout
def test_tensors_of_another_library_are_read_and_exported_correctly_D1_D4_D6_C7_C10(dtype, layout):
    shape, strides, first = layout
    cases = [(flags, True) for flags in flags_of(dtype, *FOREIGN)] + [(0, False)]
    nulls = [False, True] if compact(shape) == strides else [False]
    mades = []
    for (flags, versioned), null in itertools.product(cases, nulls):
        bits = size(dtype, flags)
        wanted = elements(bits, layout)
        made = foreign(dtype, layout, flags, versioned, null)
        view = consume(made.capsule(), ANY)
        check_view(view, made, layout, dtype, flags, 1 if versioned else 2)
        lasting = flags & PADDED | (READ_ONLY if view.readonly else 0)
        taken = native.take(view, **NEW)
        assert taken.elements() == wanted
        assert (taken.says["flags"], *extents(taken.says)) == (lasting, shape, strides)
        taken = native.take(view, copy=True, **NEW)
        assert taken.elements() == wanted
        assert (taken.says["flags"], *extents(taken.says)) == (IS_COPIED | flags & PADDED, shape, compact(shape))
        del view, taken
        mades.append(made)
        made = foreign(dtype, layout, flags, versioned, null)
        view = consume(made.capsule(), ANY, copy=True)
        assert (made.deleted, view.readonly) == (1, 0)  # deleted, and not read again
        assert native.take(view, **NEW).elements() == wanted
    assert {made.deleted for made in mades} == {1}


@pytest.mark.parametrize("dtype", NUMBERS.values(), ids=NUMBERS)
@every_layout
def test_arrays_of_dlarray_have_the_values_of_tensors_of_another_library_D7(dtype, layout):
    array = dlarray.from_dlpack(foreign(dtype, layout).capsule())
    assert native.take(array).elements() == elements(size(dtype), layout)
    if array.ndim > 1:
        array = array.copy().reshape(-1)
    wanted = [numbers(dtype, raw) for raw in elements(size(dtype), layout)]
    assert repr(array.tolist()) == repr(wanted if array.ndim else wanted[0])  # repr() makes NaN comparable


@every_dtype
@every_layout
def test_tensors_of_another_librarys_table_are_read_correctly_X3_X9_D6(dtype, layout):
    shape, strides, first = layout
    for flags in flags_of(dtype, *FOREIGN):
        a = Array(foreign(dtype, layout, flags), foreign(dtype, layout, flags))
        source = a.other if dtype[0] in (5, 18) else a.managed
        address = source.address + first * size(dtype, flags) // 8
        if source is a.managed and dtype[1] >= 8:
            assert borrow(a)[0] == (address, shape, strides)
        view = consume_by_table(a, ANY)
        check_view(view, source, layout, dtype, flags, 1)
        assert native.take(view, **NEW).elements() == elements(size(dtype, flags), layout)


# ---- From the header to another library ----

SHALLOW = {name: layout for name, layout in LAYOUTS.items() if len(layout[0]) <= 4}  # Holder accepts up to 4 dimensions


def check_taken(taken, layout, dtype, address, flags, version):
    shape, strides, first = layout
    says = taken.says
    assert extents(says) == (shape, strides)
    assert (says["dtype"], says["device"]) == (dtype, (1, 0))
    assert says["data"] == (0 if 0 in shape else address + first * size(dtype, flags) // 8)
    assert (says["flags"], says["version"]) == (flags if version else None, version)
    assert taken.elements() == elements(size(dtype, flags), layout)


@every_dtype
@every_layout
def test_another_library_reads_exports_in_place_correctly_D1_D4_D6_P2_P3(dtype, layout):
    shape, strides, first = layout
    for flags in flags_of(dtype):
        bits = size(dtype, flags)
        kept = Managed(values=memory(bits, layout))  # between pages that cannot be accessed
        offset = first * bits // 8
        fields = {"dtype": dtype, "flags": flags}
        things = [
            Thing(kept.address, shape, strides, byte_offset=offset, **fields),
            Thing(kept.address + offset, shape, strides, **fields),
            Thing(kept.address, shape, strides, byte_offset=offset, embedded=True, **fields),
        ]
        if compact(shape) == strides:
            things.append(Thing(kept.address, shape, None, byte_offset=offset, **fields))
        for thing in things:
            for call in (thing.__dlpack__, thing.produce, thing.produce_args):
                check_taken(native.take(call(**NEW)), layout, dtype, kept.address, flags, (1, 3))
                if flags:
                    with pytest.raises(BufferError):
                        call()
                else:
                    check_taken(native.take(call()), layout, dtype, kept.address, flags, None)
            check_taken(native.take(wrap(thing)), layout, dtype, kept.address, flags, (1, 3))


@every_dtype
@every_layout
def test_another_library_reads_exported_copies_correctly_P4_D6(dtype, layout):
    shape, strides, first = layout
    for flags in flags_of(dtype):
        bits = size(dtype, flags)
        kept = Managed(values=memory(bits, layout))
        thing = Thing(kept.address, shape, strides, byte_offset=first * bits // 8, dtype=dtype, flags=flags)
        for form in (NEW, {}):
            if flags & PADDED and not form:
                with pytest.raises(BufferError, match="padded"):
                    thing.__dlpack__(copy=True)
                continue
            taken = native.take(thing, copy=True, **form)
            assert taken.elements() == elements(bits, layout)
            says = taken.says
            assert extents(says) == (shape, compact(shape))
            assert (says["dtype"], says["device"]) == (dtype, (1, 0))
            assert says["flags"] == (IS_COPIED | flags & PADDED if form else None)
            assert says["data"] % 64 == 0 and (says["data"] == 0) == (0 in shape)


@every_dtype
@pytest.mark.parametrize("layout", SHALLOW.values(), ids=SHALLOW)
def test_another_library_reads_tensors_of_the_headers_table_correctly_X3_X6_D6(dtype, layout):
    mades = []
    for flags in flags_of(dtype):
        made = foreign(dtype, layout, flags)
        holder = native.make_by_table(Holder, made)
        check_taken(native.take_by_table(holder), layout, dtype, made.address, flags, (1, 3))
        if flags:
            with pytest.raises(BufferError, match="ask for a managed tensor"):
                native.borrow_by_table(holder)
        else:
            says, lent = native.borrow_by_table(holder)
            assert lent == elements(size(dtype), layout)
            assert extents(says) == layout[:2]
        del holder
        mades.append(made)
    assert {made.deleted for made in mades} == {1}
