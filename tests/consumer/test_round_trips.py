"""Round trips of any shape, strides and dtype: hypothesis searches for a tensor that is exported changed (D, P, C)."""

import ctypes
import math

import dltensor
from array_libraries import library
from consumer_probe import consume
from dltensor import ARRAY_API_DTYPES, DTYPES, FORMS, IS_COPIED, LEGACY, READ_ONLY, VERSIONED, Made, Offer, Taken
from hypothesis import given
from hypothesis import strategies as st

ROOM = 512  # elements before and after the first element


@st.composite
def layouts(draw):
    """A shape with strides that stay within ROOM elements of the first."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=5)))
    strides = []
    for extent in shape:
        reach = 1000 if extent < 2 or 0 in shape else 24  # strides without a meaning may have any value
        strides.append(draw(st.integers(-reach, reach)))
    return shape, tuple(strides)


def memory_of(dtype, seed):
    """Memory of varied bytes, which are 0 or 1 for bool. Returns the memory and the address of its middle."""
    size = 2 * ROOM * 16
    raw = bytes((i * 7 + seed) % 251 & (1 if dtype == "bool" else 255) for i in range(size))
    memory = ctypes.create_string_buffer(raw, size + 16)
    return memory, ctypes.addressof(memory) + size // 2 // 16 * 16


def same(a, b):
    """Equal, where NaN equals NaN."""
    return repr(a) == repr(b)


@given(layouts(), st.sampled_from(ARRAY_API_DTYPES), st.sampled_from(FORMS), st.integers(0, 250))
def test_an_import_has_the_elements_that_lie_there_D1_D5_D7(layout, dtype, form, seed):
    shape, strides = layout
    memory, middle = memory_of(dtype, seed)
    made = Made(form, shape=shape, strides=strides, dtype=dtype, data=middle)
    a = library.from_dlpack(Offer(made))
    assert (library.shape(a), library.dtype(a)) == (shape, dtype)
    if 0 not in shape:
        assert (library.pointer(a), library.strides(a)) == (middle, strides)
    assert same(library.values(a), dltensor.values(middle, DTYPES[dtype], shape, strides))
    del a
    assert made.deleted == 1
    del memory


@given(
    layouts(),
    st.sampled_from(ARRAY_API_DTYPES),
    st.sampled_from(FORMS),
    st.sampled_from([None, True, False]),
    st.integers(0, 250),
)
def test_an_imported_tensor_is_exported_unchanged_P4_D4(layout, dtype, form, copy, seed):
    shape, strides = layout
    memory, middle = memory_of(dtype, seed)
    made = Made(form, shape=shape, strides=strides, dtype=dtype, data=middle)
    a = library.from_dlpack(Offer(made))
    ask = {"max_version": (1, 0)} if form == VERSIONED else {}
    taken = Taken(a.__dlpack__(copy=copy, **ask))
    del a
    says = taken.says
    assert ((says.shape or ()), says.dtype, says.byte_offset) == (shape, DTYPES[dtype], 0)
    assert (says.data is None) == (0 in shape)
    if 0 not in shape:
        wanted = dltensor.compact(shape) if copy else strides
        assert (says.strides or ()) == wanted
        assert (says.data == middle) == (copy is not True)
    assert says.flags == ({True: IS_COPIED}.get(copy, 0) if form == VERSIONED else None)
    assert made.deleted == (1 if copy else 0)
    assert same(taken.values(), dltensor.values(middle, DTYPES[dtype], shape, strides))
    taken.delete()
    assert made.deleted == 1
    del memory


@given(layouts(), st.sampled_from(ARRAY_API_DTYPES), st.integers(0, 250))
def test_a_copy_has_the_same_elements_C3(layout, dtype, seed):
    shape, strides = layout
    memory, middle = memory_of(dtype, seed)
    made = Made(LEGACY, shape=shape, strides=strides, dtype=dtype, data=middle)
    a = library.from_dlpack(Offer(made), copy=True) if seed % 2 else library.from_dlpack(Offer(made)).copy()
    wanted = dltensor.values(middle, DTYPES[dtype], shape, strides)
    ctypes.memset(memory, 1, ctypes.sizeof(memory))
    assert same(library.values(a), wanted)
    assert not library.readonly(a)


dtypes = st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 4))
extents = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 5)


@given(
    st.sampled_from(FORMS),
    st.lists(st.tuples(extents, extents), max_size=4),
    dtypes,
    st.integers(0, 2**64 - 1) | st.integers(0, 64),
    st.integers(0, 2**64 - 1),
    st.sampled_from([None, 8, 2**64 - 8]),
)
def test_a_capsule_with_any_fields_is_taken_or_refused_and_deleted_once_K4_D8(
    form, dims, dtype, byte_offset, flags, data
):
    fields = {} if data is None else {"data": data}
    shape, strides = (tuple(part) for part in zip(*dims)) if dims else ((), ())
    made = Made(form, shape=shape, strides=strides, dtype=dtype, byte_offset=byte_offset, flags=flags, **fields)
    capsule = made.capsule()
    struct = made.bytes()
    try:
        view = consume(capsule, {"alignment": 1})
    except BufferError as error:
        assert str(error)
        assert made.deleted == 0
        assert dltensor.name(capsule) == form
    else:
        assert min(shape, default=0) >= 0
        assert (view.shape, view.strides, view.dtype) == (shape, strides, dtype)
        assert view.readonly == ({VERSIONED: flags & READ_ONLY, LEGACY: 0x101}[form])
        size = math.prod(shape)
        assert size < 2**63
        if size:
            assert view.data == made.address + byte_offset
            width = dtype[1] * dtype[2]
            reach = sum((n - 1) * abs(stride) for n, stride in zip(shape, strides))
            assert reach * width // 8 < 2**64
        del view
    assert made.bytes()[1:] == struct[1:]
    del capsule
    assert made.deleted == 1
