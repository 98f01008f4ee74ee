"""dlarray as an array, apart from exchange with other libraries."""

import cmath
import gc
import itertools
import math
import pickle
import subprocess
import sys
import weakref

import dlarray
import dltensor
import pytest
from collecting import collect, not_on_pypy
from hypothesis import given
from hypothesis import strategies as st
from optional import numpy
from patience import PATIENCE

HUGE = sys.maxsize // 2 + 1
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
SIGNED = {name: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for name, bits in BITS.items()}
UNSIGNED = {"u" + name: (0, 2**bits - 1) for name, bits in BITS.items()}
INTEGERS = {**SIGNED, **UNSIGNED}
FLOATS = {"float16": 2, "float32": 4, "float64": 8}
COMPLEX = {"complex64": 8, "complex128": 16}
DTYPES = ["bool", *INTEGERS, *FLOATS, *COMPLEX]
ITEMSIZE = {"bool": 1, **{n: int(n.lstrip("uint")) // 8 for n in INTEGERS}, **FLOATS, **COMPLEX}

# Values that each dtype holds exactly, with its extremes.
VALUES = {
    "bool": [False, True],
    **{name: [low, high, 0, 1, 100] for name, (low, high) in INTEGERS.items()},
    "float16": [0.0, -1.5, 65504.0, 2.0**-24, math.inf, -math.inf],
    "float32": [0.0, -1.5, 2.0**127, 2.0**-149, math.inf, -math.inf],
    "float64": [0.0, -1.5, sys.float_info.max, 5e-324, math.inf, -math.inf],
    "complex64": [0j, 1.5 - 2.5j, complex(math.inf, -(2.0**127))],
    "complex128": [0j, 1.5 - 2.5j, complex(math.inf, -sys.float_info.max)],
}


class Derived(dlarray.Array):
    """Has a __dict__, as every class written in Python."""


def flat(values):
    """The elements of nested lists, in order."""
    return [v for item in values for v in flat(item)] if isinstance(values, list) else [values]


def distances(array):
    """The distance of each element from the first, in row-major order."""
    steps = [[i * stride for i in range(extent)] for extent, stride in zip(array.shape, array.strides)]
    return [sum(choice) for choice in itertools.product(*steps)]


# ---- Elements ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_returns_the_values_from_which_it_was_made(dtype):
    """D7"""
    values = dlarray.array(VALUES[dtype], dtype).tolist()
    assert values == VALUES[dtype]
    assert [type(v) for v in values] == [type(v) for v in VALUES[dtype]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_assigning_an_element_changes_it_and_no_other(dtype):
    for value in VALUES[dtype]:
        a = dlarray.zeros(3, dtype)
        a[1] = value
        assert a[1] == value and type(a[1]) is type(value)
        assert a[0] == a[2] == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_are_zero_and_of_their_dtype(dtype):
    a = dlarray.zeros((2, 3), dtype)
    assert a.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert (a.dtype, a.itemsize, a.nbytes) == (dtype, ITEMSIZE[dtype], 6 * ITEMSIZE[dtype])


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
def test_nan_stays_nan(dtype):
    assert cmath.isnan(dlarray.array([math.nan], dtype)[0])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_an_integer_that_does_not_fit_is_overflow_error_and_changes_nothing(dtype):
    a = dlarray.array([1, 1], dtype)
    low, high = INTEGERS[dtype]
    for value in (low - 1, high + 1, 2**70, -(2**70)):
        with pytest.raises(OverflowError):
            a[:] = value
    assert a.tolist() == [1, 1]


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
def test_a_finite_number_that_would_become_infinite_is_overflow_error(dtype):
    a = dlarray.array([1], dtype)
    for value in (1e39, -1e300) + ((complex(0, 1e39),) if dtype == "complex64" else ()):
        with pytest.raises(OverflowError, match="too large"):
            a[0] = value
    with pytest.raises(OverflowError):
        a[0] = 10**400
    assert a.tolist() == [1]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int32", 1.0),
        ("int32", "1"),
        ("uint8", None),
        ("float64", "1"),
        ("float64", 1j),
        ("complex64", "1"),
        ("bool", "yes"),
        ("bool", None),
    ],
)
def test_a_value_of_another_kind_is_type_error(dtype, value):
    with pytest.raises(TypeError):
        dlarray.zeros(1, dtype)[0] = value


def test_another_array_is_no_element():
    for dtype in DTYPES:
        with pytest.raises(TypeError):
            dlarray.zeros(2, dtype)[:] = dlarray.zeros(2, dtype)


def test_any_number_is_a_bool_by_its_truth():
    assert dlarray.array([0, 2, 0.0, 0.5, 0j, 1j, False, True], "bool").tolist() == [False, True] * 4


# ---- Making ----


def test_the_attributes_describe_the_array():
    a = dlarray.zeros((2, 3, 4), "float32")
    assert (a.shape, a.strides, a.ndim) == ((2, 3, 4), (12, 4, 1), 3)
    assert (a.size, a.itemsize, a.nbytes, a.dtype) == (24, 4, 96, "float32")
    assert (a.device, a.readonly, a.owner) == ((1, 0), False, None)
    for name in ("shape", "dtype", "readonly", "owner", "data_ptr"):
        with pytest.raises(AttributeError):
            setattr(a, name, None)


@pytest.mark.parametrize("make", [dlarray.empty, dlarray.zeros])
def test_new_arrays_take_a_shape_as_int_tuple_or_list(make):
    assert make(3).shape == make((3,)).shape == make([3]).shape == make(shape=(3,), dtype="int8").shape == (3,)
    assert make(()).shape == () and make(()).size == 1
    assert make((1,) * 64).ndim == 64
    assert make(3).dtype == "float64"


def test_new_memory_is_aligned_to_64_bytes():
    """D2"""
    arrays = [dlarray.zeros(n, "uint8") for n in range(1, 200)] + [dlarray.empty(n, "int8") for n in range(1, 200)]
    assert {a.data_ptr % 64 for a in arrays} == {0}


def test_without_elements_there_is_no_memory():
    """D3"""
    for shape in [(0,), (3, 0), (0, 3), (HUGE, 0), (HUGE, 4, 0)]:
        a = dlarray.empty(shape, "complex128")
        assert (a.shape, a.size, a.nbytes, a.data_ptr) == (shape, 0, 0, 0)


@pytest.mark.parametrize("make", [dlarray.empty, dlarray.zeros])
@pytest.mark.parametrize(
    "shape",
    [-1, (2, -1), (0, -1), 2**63, (2**31, 2**32), (2**62, 2**62), 2**60, (2**59, 2), (1,) * 65],
)
def test_an_invalid_shape_is_value_error(make, shape):
    """D8"""
    with pytest.raises(ValueError):
        make(shape, "complex128")


def test_too_much_memory_is_memory_error():
    for shape in [sys.maxsize, sys.maxsize - 63, *([2**55] if sys.maxsize > 2**32 else [])]:
        with pytest.raises(MemoryError):
            dlarray.empty(shape, "uint8")


@pytest.mark.parametrize("shape", [None, 1.5, "ab", (1, 1.5), object()])
def test_a_shape_of_another_kind_is_type_error(shape):
    with pytest.raises(TypeError):
        dlarray.zeros(shape)


@pytest.mark.parametrize(
    "dtype",
    ["int4", "handle64", "complex32", "bcomplex32", "float128", "bfloat8", "float8_e4m3x2", "int7", "float32x2"]
    + ["float 32", "", "Float32", "bool8"],
)
def test_an_unknown_dtype_is_value_error(dtype):
    for make in (dlarray.zeros, dlarray.empty, dlarray.array, lambda _, dtype: dlarray.frombuffer(b"", dtype)):
        with pytest.raises(ValueError, match=f"dtype is '{dtype}'"):
            make([], dtype)
    with pytest.raises(ValueError):
        dlarray.arange(3, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arange_counts_as_range_does(dtype):
    for limits in [(5,), (2, 5), (0, 9, 2), (9, 0, -3), (0,), (5, 2)]:
        if dtype == "bool":
            assert dlarray.arange(*limits, dtype=dtype).tolist() == [v != 0 for v in range(*limits)]
        else:
            a = dlarray.arange(*limits, dtype=dtype)
            assert (a.tolist(), a.dtype) == (list(range(*limits)), dtype)
    assert dlarray.arange(3).dtype == "int64"


def test_arange_refuses_arguments_that_range_refuses_and_values_that_do_not_fit():
    for arguments in [(), (1.5,), ("3",), (0, 3, 0.5), (1, 2, 3, 4)]:
        with pytest.raises(TypeError):
            dlarray.arange(*arguments)
    with pytest.raises(ValueError):
        dlarray.arange(0, 3, 0)
    with pytest.raises(OverflowError):
        dlarray.arange(200, dtype="int8")
    assert dlarray.arange(2**64 - 2, 2**64, dtype="uint64").tolist() == [2**64 - 2, 2**64 - 1]


def test_nested_lists_and_tuples_become_dimensions():
    a = dlarray.array([[1, 2, 3], (4, 5, 6)], "int16")
    assert (a.shape, a.tolist()) == ((2, 3), [[1, 2, 3], [4, 5, 6]])
    assert dlarray.array(7, "int16").shape == ()
    assert dlarray.array([[], []]).shape == (2, 0)
    deepest = 5
    for _ in range(64):
        deepest = [deepest]
    assert dlarray.array(deepest).shape == (1,) * 64
    with pytest.raises(ValueError, match="64"):
        dlarray.array([deepest])


@pytest.mark.parametrize("values", [[[1], [1, 2]], [[1], 1], [1, [1]], [[1, 2], [1]], [[], [1]], [[[1]], [[1, 2]]]])
def test_lists_of_different_lengths_are_value_error(values):
    with pytest.raises(ValueError, match="one shape"):
        dlarray.array(values)


def test_a_list_that_contains_itself_is_value_error():
    endless = []
    endless.append(endless)
    with pytest.raises(ValueError):
        dlarray.array(endless)


def test_a_list_that_shrinks_while_it_is_read_is_an_error_and_no_crash():
    class Shrinking:
        def __index__(self):
            values.clear()
            return 1

    values = [Shrinking(), 2, 3]
    with pytest.raises(IndexError):
        dlarray.array(values, "int8")


# ---- Indexing ----


def look(values, shape, key):
    """The item of nested lists of that shape at a key, and the shape of the item."""
    named = sum(item is not None and item is not Ellipsis for item in key)
    rest = (slice(None),) * (len(shape) - named)
    if Ellipsis in key:
        at = key.index(Ellipsis)
        return walk(values, shape, key[:at] + rest + key[at + 1 :])
    return walk(values, shape, key + rest)


def walk(values, shape, key):
    if not key:
        return values, ()
    if key[0] is None:
        inner, inner_shape = walk(values, shape, key[1:])
        return [inner], (1, *inner_shape)
    if isinstance(key[0], slice):
        chosen = [walk(v, shape[1:], key[1:])[0] for v in values[key[0]]]
        inner_shape = walk(dlarray.zeros(shape[1:]).tolist(), shape[1:], key[1:])[1]
        return chosen, (len(range(shape[0])[key[0]]), *inner_shape)
    return walk(values[key[0]], shape[1:], key[1:])


@st.composite
def shapes_and_keys(draw):
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=4)))
    bound = st.one_of(st.none(), st.integers(-6, 6), st.sampled_from([2**63, -(2**63)]))
    step = st.one_of(st.none(), st.integers(-4, 4).filter(bool), st.sampled_from([2**62, -(2**62)]))
    items = [draw(st.integers(-n, n - 1) | st.builds(slice, bound, bound, step)) for n in shape]
    first, last = sorted(draw(st.tuples(st.integers(0, len(shape)), st.integers(0, len(shape)))))
    if draw(st.booleans()):
        items[first:last] = [Ellipsis]
    elif draw(st.booleans()):
        del items[first:]
    for _ in range(draw(st.integers(0, 2))):
        items.insert(draw(st.integers(0, len(items))), None)
    return shape, tuple(items)


@given(shapes_and_keys())
def test_a_key_selects_the_elements_that_it_selects_in_nested_lists(shape_and_key):
    shape, key = shape_and_key
    size = math.prod(shape)
    a = dlarray.arange(size).reshape(shape)
    found = a[key]
    values, expected_shape = look(a.tolist(), shape, key)
    if len(key) == len(shape) and all(isinstance(item, int) for item in key):
        assert type(found) is int and found == values
    else:
        assert (found.tolist(), found.shape) == (values, expected_shape)
        assert found.owner is a.owner


@given(shapes_and_keys())
def test_assigning_to_a_key_changes_only_the_selected_elements(shape_and_key):
    shape, key = shape_and_key
    a = dlarray.arange(math.prod(shape)).reshape(shape)
    touched = set(flat(look(a.tolist(), shape, key)[0]))
    a[key] = -1
    assert flat(a.tolist()) == [-1 if v in touched else v for v in range(math.prod(shape))]


def test_one_int_for_each_dimension_gives_a_value_and_anything_else_a_view():
    a = dlarray.array([[1, 2], [3, 4]], "int8")
    assert a[1, 0] == 3 and type(a[1, 0]) is int
    for key in [(1, 0, ...), (..., 1, 0), (1, 0, None)]:
        assert isinstance(a[key], dlarray.Array)
    scalar = dlarray.array(5, "int8")
    assert scalar[()] == 5 and type(scalar[()]) is int
    assert isinstance(scalar[...], dlarray.Array) and scalar[...].shape == ()


def test_a_view_begins_where_its_first_element_is():
    """D1"""
    a = dlarray.zeros((4, 5), "int16")
    assert a[1:, 2:].data_ptr == a.data_ptr + (5 + 2) * 2
    assert (a[::-1].data_ptr, a[::-1].strides) == (a.data_ptr + 3 * 5 * 2, (-5, 1))
    assert (a[:, ::-2].data_ptr, a[:, ::-2].strides) == (a.data_ptr + 4 * 2, (5, -2))
    assert a[None, 1].strides[1:] == (1,) and a[None, 1].shape == (1, 5)


def test_a_view_and_its_owner_share_writes():
    a = dlarray.zeros((3, 3), "int32")
    column = a[:, 1]
    column[:] = 5
    a[2, 1] = 7
    assert a.tolist() == [[0, 5, 0], [0, 5, 0], [0, 7, 0]]
    assert column.tolist() == [5, 5, 7]


def test_a_view_of_a_view_looks_into_the_first_array():
    a = dlarray.zeros((3, 3))
    view = a[1:][:, ::-1].transpose()[None].reshape(1, 3, 2)
    assert view.owner is a and a[0].owner is a and a.owner is None


@pytest.mark.parametrize("key", [3, -4, (0, 2), (0, 0, 0), (..., ...), 2**70, (slice(None), -3), (None, 3)])
def test_an_index_outside_of_the_array_is_index_error(key):
    a = dlarray.zeros((3, 2))
    with pytest.raises(IndexError):
        a[key]
    with pytest.raises(IndexError):
        a[key] = 1
    assert a.tolist() == [[0, 0]] * 3


@pytest.mark.parametrize("key", ["0", 1.0, [0], slice("a", None), (0, "x")])
def test_an_index_of_another_kind_is_type_error(key):
    with pytest.raises(TypeError):
        dlarray.zeros((3, 2))[key]


def test_a_slice_with_step_0_is_value_error():
    with pytest.raises(ValueError):
        dlarray.zeros(3)[::0]


def test_a_view_has_at_most_64_dimensions():
    """D8"""
    a = dlarray.zeros(2)
    assert a[(None,) * 63].ndim == 64
    with pytest.raises(ValueError, match="64"):
        a[(None,) * 64]


def test_elements_cannot_be_deleted():
    with pytest.raises(TypeError):
        del dlarray.zeros(3)[0]


def test_an_array_without_elements_can_be_sliced_and_reshaped():
    """D3, D5"""
    a = dlarray.zeros((3, 0, 2))
    assert a[1].shape == (0, 2) and a[::-2].shape == (2, 0, 2) and a[..., 1].shape == (3, 0)
    assert a.transpose().shape == (2, 0, 3) and a.reshape(0, 7).shape == (0, 7) and a.reshape(-1).shape == (0,)
    assert a.broadcast_to((4, 3, 0, 2)).shape == (4, 3, 0, 2)
    assert a.tolist() == [[], [], []] and a.copy().shape == (3, 0, 2)
    a[:] = 1
    huge = dlarray.zeros((5, HUGE, 0))
    assert huge[::4].shape == (2, HUGE, 0) and huge[-1].shape == (HUGE, 0)


# ---- Other shapes ----


def test_transpose_reverses_the_axes_or_takes_them_by_number():
    a = dlarray.arange(24).reshape(2, 3, 4)
    assert (a.transpose().shape, a.transpose().strides) == ((4, 3, 2), (1, 4, 12))
    for axes in itertools.permutations(range(3)):
        for b in (a.transpose(*axes), a.transpose(axes), a.transpose(*[axis - 3 for axis in axes])):
            assert b.shape == tuple(a.shape[i] for i in axes)
            assert b.strides == tuple(a.strides[i] for i in axes)
            assert b.data_ptr == a.data_ptr
    assert dlarray.zeros(()).transpose().shape == ()


@pytest.mark.parametrize("axes", [(0,), (0, 1, 2), (0, 0), (0, 2), (0, -3), (0, -2), ((),), (0, 2**40)])
def test_axes_that_are_no_permutation_are_value_error(axes):
    with pytest.raises(ValueError):
        dlarray.zeros((2, 3)).transpose(*axes)


def test_reshape_works_out_one_extent():
    a = dlarray.arange(12)
    assert a.reshape(3, -1).shape == a.reshape((3, -1)).shape == a.reshape([-1, 4]).shape == (3, 4)
    assert a.reshape(-1).shape == (12,) and a[:1].reshape(()).shape == () and a[0:0].reshape(5, -1).shape == (5, 0)


@pytest.mark.parametrize("shape", [(5,), (-1, 5), (-1, -1), (-2, -6), (0, -1), (12, 0), (2**62, 2**62), (7, -1), ()])
def test_a_shape_for_another_number_of_elements_is_value_error(shape):
    with pytest.raises(ValueError):
        dlarray.arange(12).reshape(*shape)


def strides_for(array, shape):
    """The strides with which shape shows the same elements in the same order, or None."""
    offsets = dict(zip(itertools.product(*map(range, shape)), distances(array)))
    unit = [tuple(int(i == axis) for i in range(len(shape))) for axis in range(len(shape))]
    strides = [offsets[unit[axis]] if extent > 1 else 0 for axis, extent in enumerate(shape)]
    right = all(sum(i * s for i, s in zip(index, strides)) == offset for index, offset in offsets.items())
    return strides if right else None


@st.composite
def views_and_shapes(draw):
    extents = draw(st.lists(st.sampled_from([1, 2, 2, 3, 4]), min_size=1, max_size=4))
    a = dlarray.arange(math.prod(extents) * 2 ** len(extents)).reshape([2 * extent for extent in extents])
    pieces = st.sampled_from([slice(None, None, 2), slice(None, None, -2)])
    a = a[tuple(draw(st.one_of(st.just(slice(0, extent)), pieces)) for extent in extents)]
    a = a.transpose(draw(st.permutations(range(len(extents)))))
    if draw(st.booleans()):
        a = a.broadcast_to((draw(st.integers(1, 3)), *a.shape))
    left, shape = a.size, []
    while left > 1:
        extent = draw(st.sampled_from([n for n in range(1, left + 1) if left % n == 0]))
        shape.append(extent)
        left //= extent
        if len(shape) > 8:
            shape.append(left)
            break
    return a, draw(st.permutations(shape))


@given(views_and_shapes())
def test_reshape_is_a_view_exactly_when_strides_for_it_exist(view_and_shape):
    a, shape = view_and_shape
    expected = strides_for(a, shape)
    if expected is None:
        with pytest.raises(ValueError, match="copy"):
            a.reshape(shape)
        assert flat(a.copy().reshape(shape).tolist()) == flat(a.tolist())
    else:
        b = a.reshape(shape)
        assert b.data_ptr == a.data_ptr and b.shape == tuple(shape)
        assert [s for s, n in zip(b.strides, shape) if n > 1] == [s for s, n in zip(expected, shape) if n > 1]


def test_extents_of_1_do_not_prevent_reshape():
    """D5"""
    a = dlarray.arange(24).reshape(4, 6)[:, ::2]
    for b in (a, a[:, None], a[None, :, :, None], a[:, None, None]):
        assert b.reshape(12).strides == (2,) and b.reshape(2, 2, 1, 3).strides[:2] == (12, 6)


def test_broadcast_to_repeats_extents_of_1():
    a = dlarray.arange(3, dtype="int8").reshape(3, 1)
    b = a.broadcast_to((2, 3, 4))
    assert (b.shape, b.strides, b.data_ptr, b.owner) == ((2, 3, 4), (0, 1, 0), a.data_ptr, a.owner)
    assert b.tolist() == [[[0] * 4, [1] * 4, [2] * 4]] * 2
    assert dlarray.array(5).broadcast_to(2).tolist() == [5, 5]
    assert a.broadcast_to((3, 0)).shape == (3, 0) and a.broadcast_to([3, 1]).shape == (3, 1)


def test_writing_to_a_repeated_element_shows_everywhere():
    a = dlarray.arange(2, dtype="int8")
    b = a.broadcast_to((3, 2))
    b[0, 1] = 9
    assert b.tolist() == [[0, 9]] * 3 and a.tolist() == [0, 9]


@pytest.mark.parametrize("shape", [(), 2, (3, 3), (2,), (2, 3, 4), (2, -1), (-1, 2, 3), (2**62, 2, 3), (0, 3)])
def test_a_shape_that_an_array_does_not_repeat_to_is_value_error(shape):
    with pytest.raises(ValueError):
        dlarray.zeros((2, 3)).broadcast_to(shape)


# ---- Copies, repr ----


def test_a_copy_is_compact_and_has_its_own_memory():
    a = dlarray.arange(12).reshape(3, 4)[::-1, ::2].transpose()
    b = a.copy()
    assert (b.tolist(), b.shape, b.strides, b.dtype) == (a.tolist(), (2, 3), (3, 1), "int64")
    assert b.owner is None and b.data_ptr % 64 == 0
    b[:] = 0
    assert a.tolist() != b.tolist()


def test_a_copy_of_read_only_elements_may_be_written():
    a = dlarray.zeros(2)
    a.setflags(writeable=False)
    b = a.copy()
    b[0] = 1
    assert (a.tolist(), b.tolist(), b.readonly) == ([0, 0], [1, 0], False)


@not_on_pypy("the module in tp_name")
def test_repr_shows_the_call_that_makes_the_array():
    a = dlarray.array([[1, 2], [3, 4]], "int8")
    assert repr(a) == "dlarray.Array([[1, 2], [3, 4]], dtype='int8')"
    assert repr(dlarray.array(1.5)) == "dlarray.Array(1.5, dtype='float64')"
    assert repr(dlarray.zeros((101,))) == "<dlarray.Array of shape (101,), dtype 'float64'>"
    assert repr(dlarray.zeros((HUGE, 0))) == f"<dlarray.Array of shape ({HUGE}, 0), dtype 'float64'>"
    assert repr(Derived(a)).startswith("Derived([[1, 2]")


# ---- Read-only ----


def test_a_read_only_array_cannot_be_assigned():
    a = dlarray.zeros(3)
    a.setflags(writeable=False)
    for key in (0, slice(None), ..., 99):
        with pytest.raises(ValueError, match="read-only"):
            a[key] = 1
    assert a.readonly and a.tolist() == [0, 0, 0]
    a.setflags(writeable=True)
    a[0] = 1
    assert not a.readonly and a.tolist() == [1, 0, 0]


def test_views_of_a_read_only_array_are_read_only():
    a = dlarray.zeros((2, 3))
    a.setflags(writeable=False)
    views = [a[0], a[::-1], a.transpose(), a.reshape(6), a.broadcast_to((4, 2, 3))]
    assert all(view.readonly for view in views)
    views[0].setflags(writeable=True)
    views[0][0] = 1
    assert a.readonly and a.tolist() == [[1, 0, 0], [0, 0, 0]]


def test_flags_are_given_by_name():
    for arguments in [(), (False,)]:
        with pytest.raises(TypeError):
            dlarray.zeros(1).setflags(*arguments)
    with pytest.raises(TypeError):
        dlarray.zeros(1).setflags(write=False)


def test_an_array_that_a_value_s_own_code_makes_read_only_is_not_written():
    a = dlarray.zeros(3)

    class Value:
        def __float__(self):
            a.setflags(writeable=False)
            return 1.0

    with pytest.raises(ValueError, match="read-only"):
        a[0] = Value()
    assert a.tolist() == [0, 0, 0]


def test_a_read_only_import_cannot_be_made_writeable():
    """C7"""
    a = dlarray.zeros(3)
    a.setflags(writeable=False)
    b = dlarray.from_dlpack(a)
    a.setflags(writeable=True)
    for array in (b, b[1:], b.reshape(3, 1), Derived(b)):
        assert array.readonly
        with pytest.raises(ValueError, match="read-only"):
            array.setflags(writeable=True)
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 1
    assert not dlarray.from_dlpack(b, copy=True).readonly and not b.copy().readonly


def test_a_legacy_import_is_read_only_and_is_exported_as_legacy():
    """C7"""
    a = dlarray.from_dlpack(dlarray.arange(3).__dlpack__())
    assert a.readonly
    with pytest.raises(ValueError):
        a.setflags(writeable=True)
    again = dlarray.from_dlpack(a[1:].__dlpack__())
    assert again.tolist() == [1, 2] and again.readonly
    assert dlarray.from_dlpack(a).readonly and dlarray.from_dlpack(a[1:]).readonly  # the versioned form has the flag
    a.setflags(writeable=False)  # now the flag is set
    with pytest.raises(BufferError, match="read-only"):
        a.__dlpack__()


# ---- Importing ----


def test_array_of_a_source_is_a_view_of_the_source():
    a = dlarray.arange(6, dtype="float32").reshape(2, 3)
    b = dlarray.Array(a[:, ::-1])
    assert (b.shape, b.strides, b.dtype, b.data_ptr) == ((2, 3), (3, -1), "float32", a.data_ptr + 8)
    b[0, 0] = 9
    assert a[0, 2] == 9
    assert b.owner is None and type(b) is dlarray.Array
    for arguments, names in [((), {}), ((a, a), {}), ((), {"source": a})]:
        with pytest.raises(TypeError):
            dlarray.Array(*arguments, **names)
    with pytest.raises(AttributeError):
        dlarray.Array([1, 2])


def test_elements_that_are_not_aligned_are_refused():
    """C9, D2"""
    unaligned = numpy.zeros(17, "uint8")[1:].view("float64")
    assert unaligned.ctypes.data % 8 != 0
    with pytest.raises(BufferError, match=f"alignment to {dltensor.ALIGNMENT} bytes"):
        dlarray.from_dlpack(unaligned)
    assert dlarray.from_dlpack(unaligned, copy=True).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("dtype", "name"),
    [((0, 4, 1), "int4"), ((3, 64, 1), "handle64"), ((5, 32, 1), "complex32"), ((2, 32, 2), "float32x2")],
)
def test_a_dtype_that_no_array_has_is_refused_by_name(dtype, name):
    """C9"""
    producer = dltensor.Producer(dtype=dtype)
    with pytest.raises(BufferError, match=f"dtype is {name}, bool or int8"):
        dlarray.from_dlpack(producer)
    assert producer.deleted == [1]


def test_odd_strides_of_one_element_are_kept_and_harmless():
    """D5"""
    a = dlarray.array([[1, 2, 3]], "int8").transpose()[:, :, None][::3]
    b = dlarray.from_dlpack(a)
    assert (b.shape, b.strides) == (a.shape, a.strides) == ((1, 1, 1), (1, 3, 0))
    assert b.tolist() == [[[1]]] and b.reshape(1).tolist() == [1] and b[-1, 0, 0] == 1


def test_the_byte_offset_of_an_import_is_added_to_the_address():
    """D1"""
    made = dltensor.Made(shape=(2, 2), strides=(-2, 1), byte_offset=16)
    a = dlarray.from_dlpack(dltensor.Offer(made))
    assert a.data_ptr == made.address + 16 and a.tolist() == [[2, 3], [0, 1]]
    assert a[1].data_ptr == made.address


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((3, 0), (2**63 - 1, -(2**63))),
        ((3, 3, 0), (-(2**63), 2**62, 1)),
        ((0, 3), (1, 2**63 - 1)),
        ((1, 3), (2**63 - 1, 1)),
        ((3, 1), (1, -(2**63))),
        ((1, 1), (-(2**63), 2**63 - 1)),
    ],
)
def test_strides_without_a_meaning_are_harmless(shape, strides):
    """D3, D5: with extents of 1 or no elements, for any address and offset."""
    size = math.prod(shape)
    anywhere = {"data": 2**64 - 8, "byte_offset": 2**64 - 1} if size == 0 else {}
    a = dlarray.from_dlpack(dltensor.Producer(shape=shape, strides=strides, **anywhere))
    elements = [float(n) for n in range(size)]
    assert (a.shape, a.size, flat(a.tolist())) == (shape, size, elements)
    assert (a.data_ptr == 0) == (size == 0)
    for key in itertools.product([slice(None), slice(None, None, -1), slice(None, None, 2**62)], repeat=len(shape)):
        values, expected_shape = look(a.tolist(), shape, key)
        assert (a[key].tolist(), a[key].shape) == (values, expected_shape)
    assert a[(None, ..., slice(None, None, 2))].reshape(-1).ndim == 1
    assert flat(a.transpose().copy().reshape(-1).tolist()) == flat(a.reshape(-1).tolist()) == elements
    assert a.broadcast_to((2, *shape)).size == 2 * size
    a[...] = 7
    assert flat(a.tolist()) == [7.0] * size
    assert dlarray.from_dlpack(a).shape == shape


def test_strides_that_reach_far_are_accepted_without_access():
    """D8: no memory is so large, but the tensor is well-formed."""
    a = dlarray.from_dlpack(dltensor.Producer(shape=(2, 2), strides=(HUGE - 2, HUGE), dtype="uint8", data=4096))
    assert a.transpose().strides == (HUGE, HUGE - 2) and a[:, ::-1].strides == (HUGE - 2, -HUGE)
    assert a[0].reshape(2, 1).shape == (2, 1)
    with pytest.raises(ValueError, match="copy"):
        a.reshape(4)


@pytest.mark.parametrize("shape", [(2**40,), (2**40, 0)], ids=str)
def test_an_extent_that_no_index_reaches_is_refused(shape):
    """D8: where a Py_ssize_t has 32 bits."""
    source = dltensor.Producer(shape=shape, strides=(0, 0)[: len(shape)])
    if sys.maxsize >= 2**40:
        assert dlarray.from_dlpack(source)[2**35 :].shape == (2**40 - 2**35, *shape[1:])
    else:
        with pytest.raises(BufferError, match=r"shape\[0\] is 1099511627776, "):
            dlarray.from_dlpack(source)
    assert source.deleted == [1]


# ---- Derived classes ----


def test_views_and_copies_are_of_the_derived_class_and_have_their_own_dict():
    a = Derived(dlarray.arange(6))
    a.name = "a"
    for b in (a[1:], a[...], a.transpose(), a.reshape(2, 3), a.broadcast_to((2, 6)), a.copy()):
        assert type(b) is Derived and not hasattr(b, "name")
    assert type(dlarray.from_dlpack(a)) is dlarray.Array
    assert (a[1:].owner is a, a.copy().owner) == (True, None)


@not_on_pypy("a derived class without a dictionary")
def test_a_derived_class_may_have_its_own_slots_and_arguments():
    class Named(dlarray.Array):
        __slots__ = ("name",)

        def __new__(cls, source, name):
            self = super().__new__(cls, source)
            self.name = name
            return self

    a = Named(dlarray.arange(3), "a")
    assert (a.name, a.tolist(), a[1]) == ("a", [0, 1, 2], 1)
    assert not hasattr(a, "__dict__")


# ---- Lifetime ----


def test_a_view_holds_its_owner_until_the_view_is_freed():
    a = Derived(dlarray.arange(6))
    before = sys.getrefcount(a)
    views = [a[1:], a[1:][1:], a.transpose(), a.reshape(2, 3)]
    assert sys.getrefcount(a) == before + 4
    views.append(dlarray.from_dlpack(views[0]))  # an export holds the exported view
    assert sys.getrefcount(a) == before + 4
    del views[:]
    assert sys.getrefcount(a) == before


def test_the_memory_lives_as_long_as_the_last_array_over_it():
    """P9"""
    a = Derived(dlarray.arange(6))
    gone = weakref.ref(a)
    last = dlarray.from_dlpack(dlarray.from_dlpack(a[1:])[::2])[1:]
    del a
    collect()
    assert gone() is not None and last.tolist() == [3, 5]
    del last
    collect(8)
    gc.collect()
    assert gone() is None


def fail_in_all_ways(a):
    """a: of shape (3, 2) and transposed."""
    for call in [
        lambda: a[9],
        lambda: a["x"],
        lambda: a.reshape(6),
        lambda: a.reshape(5),
        lambda: a.transpose(0),
        lambda: a.broadcast_to(7),
        lambda: a.__setitem__(0, "x"),
        lambda: a[(None,) * 70],
        lambda: dlarray.from_dlpack(a, device=(2, 0)),
        lambda: dlarray.from_dlpack(a, copy=1),
        lambda: dlarray.array([[0.5, 1.5], [2.5]]),
        lambda: dlarray.array([0.5, "x"]),
        lambda: dlarray.array([300], "int8"),
        lambda: dlarray.arange(300, dtype="int8"),
        lambda: dlarray.zeros(-1),
        lambda: dlarray.zeros(("x",)),
        lambda: dlarray.frombuffer(a),
        lambda: dlarray.frombuffer(a.copy(), "int64", 99),
        lambda: dlarray.frombuffer(a.copy(), "int64", 1, 3),
        lambda: dlarray.frombuffer("text"),
        lambda: memoryview(dlarray.zeros(3, "bfloat16")),
        lambda: dlarray.zeros(3, "bfloat16").tolist(),
        lambda: dlarray.zeros((3, 3), "float4_e2m1fn")[1],
    ]:
        try:
            call()
        except (IndexError, TypeError, ValueError, OverflowError, BufferError):
            continue
        raise AssertionError("did not fail")


def succeed_in_all_ways(a):
    views = [a[1:], a[1], a[..., None], a.transpose(), a.reshape(3, 1, 2), a.broadcast_to((2, 3, 2)), a.copy()]
    views += [dlarray.Array(a), dlarray.from_dlpack(a), dlarray.from_dlpack(a, copy=True), Derived(a[1:])]
    views += [dlarray.from_dlpack(a.__dlpack__()), dlarray.zeros((3, 2)), dlarray.arange(1000)]
    views += [dlarray.frombuffer(a.copy(), "float64", 2, 8), dlarray.frombuffer(bytes(a))]
    for view in views:
        repr(view)
        bytes(view)
        view.tolist()
        a[0, 0] = 1.5
        dlarray.array(view.tolist(), view.dtype)


@not_on_pypy("memoryviews of C code that PyPy 3.9 frees")
def test_failures_leave_no_reference():
    a = dlarray.arange(6).reshape(2, 3).transpose()
    before = sys.getrefcount(a)
    fail_in_all_ways(a)
    assert sys.getrefcount(a) == before


def test_freed_arrays_leave_no_memory():
    tracemalloc = pytest.importorskip("tracemalloc", reason="tracemalloc: not on PyPy")

    def use():
        a = dlarray.array([[0.5, 1e9, 2e9], [3e9, 4e9, 5e9]]).transpose()
        succeed_in_all_ways(a)
        fail_in_all_ways(a)

    def growth():
        """By how much 20 rounds increase the memory in use."""
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            use()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    use()
    references = sys.getrefcount(dlarray.Array)
    tracemalloc.start()
    try:
        # A leak grows each time. Memory that the interpreter keeps for later use stops growing; without a GIL, late.
        assert any(growth() < 20 * 16 for _ in range(100))
    finally:
        tracemalloc.stop()
    references_after = sys.getrefcount(dlarray.Array)
    assert references_after == references


def test_arrays_take_weak_references():
    a = dlarray.zeros(1)
    called = []
    reference = weakref.ref(a, called.append)
    assert reference() is a
    del a
    gc.collect()
    assert called == [reference] and reference() is None


@not_on_pypy("cycles through objects of extensions")
@pytest.mark.parametrize("legacy", [False, True])
def test_a_cycle_through_an_import_is_collected(legacy):
    """An array that holds an import of itself."""
    a = Derived(dlarray.arange(3))
    a.itself = dlarray.from_dlpack(a.__dlpack__() if legacy else a)
    a.view = a.itself[1:]
    gone = weakref.ref(a)
    del a
    gc.collect()
    assert gone() is None


@not_on_pypy("cycles through objects of extensions")
def test_a_cycle_through_a_view_is_collected():
    a = Derived(dlarray.arange(3))
    a.view = a[1:]
    gone = weakref.ref(a.view)
    del a
    gc.collect()
    assert gone() is None


def test_the_collector_does_not_free_arrays_in_use():
    a = Derived(dlarray.arange(3))
    a.itself = dlarray.from_dlpack(a)
    last = a.itself
    del a
    gc.collect()
    assert last.tolist() == [0, 1, 2]


def test_a_long_chain_of_imports_is_freed_without_recursion():
    code = """if True:
        import dlarray
        a = dlarray.arange(3)
        for _ in range(50_000):
            a = dlarray.from_dlpack(a)
        assert a.tolist() == [0, 1, 2]
        del a
        print("freed")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120 * PATIENCE)
    assert (done.stdout, done.returncode) == ("freed\n", 0), done.stderr


@not_on_pypy("a type that Python code cannot call")
def test_arrays_cannot_be_pickled_or_made_by_object_new():
    with pytest.raises(TypeError):
        pickle.dumps(dlarray.zeros(1))
    with pytest.raises(TypeError):
        object.__new__(dlarray.Array)


# ---- Documentation ----


@not_on_pypy("docstrings of methods of extensions")
def test_everything_has_a_docstring():
    names = [name for name in dir(dlarray) if not name.startswith("__")]
    assert names == ["Array", "arange", "array", "empty", "from_dlpack", "frombuffer", "zeros"]
    documented = [dlarray, dlarray.Array, *(getattr(dlarray, name) for name in names)]
    members = [name for name in vars(dlarray.Array) if not name.startswith("__") or "dlpack" in name]
    assert len(members) == 20
    documented += [getattr(dlarray.Array, name) for name in members]
    assert [thing for thing in documented if not thing.__doc__] == []
