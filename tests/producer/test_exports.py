"""The tensor in the capsule, compared with the array that was exported (P3, P4, P8, D1 to D9, K8)."""

import ctypes
import sys

import dltensor
import pytest
from array_libraries import library
from dltensor import ARRAY_API_DTYPES, CPU, DTYPES, FORMS, IS_COPIED, LEGACY, READ_ONLY, VERSIONED, Taken

ASK = {LEGACY: {}, VERSIONED: {"max_version": (1, 0)}}
both_forms = pytest.mark.parametrize("form", FORMS)


def count(n, dtype="int32"):
    """0, 1, 2 … as elements of a dtype."""
    kind = {"b": bool, "f": float, "c": complex}.get(dtype[0], int)
    return [kind(i) for i in range(n)]


def vector(n=6, dtype="int32"):
    return library.array(count(n, dtype), dtype)


def matrix(rows=3, columns=4, dtype="int32"):
    numbers = count(rows * columns, dtype)
    return library.array([numbers[i * columns : (i + 1) * columns] for i in range(rows)], dtype)


def says_the_same(capsule, a):
    """The capsule describes the memory of the array, and the memory holds the elements."""
    says = dltensor.read(capsule)
    assert says.ndim == len(library.shape(a))
    assert (says.shape or ()) == library.shape(a)
    assert (says.strides or ()) == library.strides(a)
    assert says.dtype == DTYPES[library.dtype(a)]
    assert (says.data or 0, says.byte_offset) == (library.pointer(a) if 0 not in library.shape(a) else 0, 0)
    assert dltensor.values(says.data, says.dtype, library.shape(a), library.strides(a)) == library.values(a)
    return says


@both_forms
@pytest.mark.parametrize("dtype", ARRAY_API_DTYPES)
def test_every_dtype_of_the_array_api_is_exported_in_place_D7(form, dtype):
    a = matrix(dtype=dtype)
    says_the_same(a.__dlpack__(**ASK[form]), a)


LAYOUTS = {
    "rows": lambda: matrix(),
    "columns": lambda: matrix().transpose(),
    "a row": lambda: matrix()[1],
    "a column": lambda: matrix()[:, 2],
    "a block": lambda: matrix()[1:, 1:3],
    "steps": lambda: matrix(6, 6)[::2, 1::3],
    "backwards": lambda: vector()[::-1],
    "backwards in steps": lambda: matrix()[::-2, ::-1],
    "one row backwards": lambda: matrix()[::-1][:1],
    "a scalar": lambda: library.array(7, "int32"),
    "a scalar of an array": lambda: vector()[3, ...],
    "a new dimension": lambda: vector()[None, :, None],
    "one element": lambda: matrix()[1:2, 2:3],
    "repeated": lambda: library.broadcast_to(vector(4), (3, 4)),
    "one element repeated": lambda: library.broadcast_to(library.array(7, "int32"), (2, 3)),
    "no elements": lambda: vector(0),
    "no rows": lambda: matrix()[3:],
    "no columns": lambda: matrix()[:, 4:],
    "no elements, backwards": lambda: matrix()[::-1, 2:2],
}


@both_forms
@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_goes_out_as_it_is_D4_D5(form, make):
    a = make()
    if form == LEGACY and library.readonly(a):
        pytest.skip("this library's repeated arrays are read-only, which the legacy form cannot say")
    says_the_same(a.__dlpack__(**ASK[form]), a)


@both_forms
@pytest.mark.parametrize("ndim", [*range(8), 32, 63, 64])
def test_every_rank_is_exported_D8(form, ndim):
    a = library.array([1, 2], "int32")[(None,) * (ndim - 1)] if ndim > 0 else library.array(7, "int32")
    says = dltensor.read(a.__dlpack__(**ASK[form]))
    assert (says.shape or ()) == (1,) * (ndim - 1) + (2,) * (ndim > 0)
    assert (says.strides or ()) == library.strides(a)


@both_forms
def test_strides_are_exported_for_row_major_arrays_and_for_arrays_without_elements_D4(form):
    for shape in [(3,), (2, 3), (2, 1, 3), (0,), (3, 0, 2), (1,) * 5]:
        a = library.broadcast_to(library.array(0, "int32"), shape).copy()
        says = dltensor.read(a.__dlpack__(**ASK[form]))
        assert says.strides is not None
        if 0 not in shape:
            assert says.strides == dltensor.compact(shape)


@both_forms
def test_a_scalar_has_rank_0_and_one_element_D3(form):
    capsule = library.array(7, "int32").__dlpack__(**ASK[form])
    says = dltensor.read(capsule)
    assert (says.ndim, dltensor.values(says.data, says.dtype, (), ())) == (0, 7)


@both_forms
@pytest.mark.parametrize("make", [lambda: vector(0), lambda: matrix()[:, 4:], lambda: matrix()[:, :0].copy()])
def test_data_is_null_without_elements_D3(form, make):
    for copy in (None, True, False):
        says = dltensor.read(make().__dlpack__(copy=copy, **ASK[form]))
        assert (says.data, says.byte_offset) == (None, 0)


@both_forms
@pytest.mark.parametrize("stride", [0, 1, 77, -5, 2**62])
def test_strides_of_extent_1_go_out_as_they_came_D5(form, stride):
    made = dltensor.Made(shape=(1, 3, 1), strides=(stride, 1, -stride))
    a = library.from_dlpack(dltensor.Offer(made))
    assert library.strides(a) == (stride, 1, -stride)
    assert dltensor.read(a.__dlpack__(**ASK[form])).strides == (stride, 1, -stride)


@both_forms
def test_byte_offset_is_folded_into_data_D1(form):
    made = dltensor.Made(byte_offset=16)
    a = library.from_dlpack(dltensor.Offer(made))
    says = dltensor.read(a.__dlpack__(**ASK[form]))
    assert (says.data, says.byte_offset) == (made.address + 16, 0)


def test_the_version_is_the_librarys_own_and_a_new_array_has_no_flag_P2():
    says = dltensor.read(vector().__dlpack__(max_version=(1, 0)))
    assert (says.version, says.flags) == (library.version, 0)


@both_forms
def test_context_and_deleter_are_never_null_K8(form):
    for copy in (None, True):
        says = dltensor.read(vector(0).__dlpack__(copy=copy, **ASK[form]))
        assert says.manager_ctx and says.deleter


# ---- Devices: P8, D9 ----


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_the_device_is_a_tuple_of_two_ints_for_views_too_P8(make):
    device = make().__dlpack_device__()
    assert device == CPU
    assert [type(device), *map(type, device)] == [tuple, int, int]


@both_forms
@pytest.mark.parametrize("keywords", [{}, {"copy": True}, {"dl_device": CPU}, {"dl_device": CPU, "copy": True}])
def test_the_capsule_says_the_device_that_the_method_says_P8(form, keywords):
    a = vector()
    assert dltensor.read(a.__dlpack__(**keywords, **ASK[form])).device == a.__dlpack_device__()


def test_asking_for_the_device_leaves_the_refcount_as_it_was_P8():
    a = vector()
    before = sys.getrefcount(a)
    for _ in range(100):
        a.__dlpack_device__()
    assert sys.getrefcount(a) == before


# ---- Read-only: P3 ----


def readonly_vector():
    a = vector()
    library.set_readonly(a)
    return a


def test_read_only_data_has_the_read_only_flag_P3():
    for a in (readonly_vector(), readonly_vector()[1:]):
        says = says_the_same(a.__dlpack__(max_version=(1, 0)), a)
        assert says.flags == READ_ONLY


@pytest.mark.parametrize(
    "keywords", [{}, {"max_version": (0, 8)}, {"max_version": None}, {"copy": False}, {"dl_device": CPU}]
)
def test_read_only_data_in_the_legacy_form_is_a_buffer_error_P3(keywords):
    a = readonly_vector()
    before = sys.getrefcount(a)
    with pytest.raises(BufferError, match="read-?only"):
        a.__dlpack__(**keywords)
    assert sys.getrefcount(a) == before


def test_an_array_made_writeable_again_is_exported_in_both_forms_P3():
    a = readonly_vector()
    library.set_writeable(a)
    says_the_same(a.__dlpack__(), a)
    assert dltensor.read(a.__dlpack__(max_version=(1, 0))).flags == 0


def test_an_export_keeps_the_flag_that_it_had_P3():
    a = vector()
    capsule = a.__dlpack__(max_version=(1, 0))
    library.set_readonly(a)
    assert dltensor.read(capsule).flags == 0


# ---- Copies: P4, D2 ----


@both_forms
@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("readonly", [False, True])
def test_a_copy_is_compact_writeable_and_shares_nothing_P4(form, make, readonly):
    a = make()
    wanted = library.values(a)
    if readonly:
        library.set_readonly(a)
    taken = Taken(a.__dlpack__(copy=True, **ASK[form]))
    says = taken.says
    assert says.flags == (IS_COPIED if form == VERSIONED else None)
    assert (says.shape or ()) == library.shape(a)
    if 0 not in library.shape(a):
        assert (says.strides or ()) == dltensor.compact(library.shape(a))
        assert says.data % 64 == 0
    assert taken.values() == wanted
    if 0 not in library.shape(a):
        size = 4 * len(list(flat(wanted)))
        ctypes.memset(says.data, 0x55, size)
        assert set(flat(taken.values())) == {0x55555555}
    assert library.values(a) == wanted
    taken.delete()


def flat(nested):
    if not isinstance(nested, list):
        return [nested]
    return [value for part in nested for value in flat(part)]


@both_forms
@pytest.mark.parametrize("dtype", ARRAY_API_DTYPES)
def test_every_dtype_of_the_array_api_is_copied_P4(form, dtype):
    a = matrix(dtype=dtype)[::-1, ::3]
    taken = Taken(a.__dlpack__(copy=True, **ASK[form]))
    assert taken.says.dtype == DTYPES[dtype]
    assert taken.values() == library.values(a)
    taken.delete()


@both_forms
def test_a_copy_holds_nothing_of_the_array_P4(form):
    a = vector()
    before = sys.getrefcount(a)
    capsule = a.__dlpack__(copy=True, **ASK[form])
    assert sys.getrefcount(a) == before
    taken = Taken(capsule)
    del a, capsule
    assert taken.values() == count(6)
    taken.delete()


@both_forms
@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_nothing_is_copied_unless_that_was_asked_for_P4(form, make):
    a = make()
    if form == LEGACY and library.readonly(a):
        pytest.skip("this library's repeated arrays are read-only, which the legacy form cannot say")
    for copy in (None, False):
        says = says_the_same(a.__dlpack__(copy=copy, **ASK[form]), a)
        assert says.flags in (None, 0, READ_ONLY)


@both_forms
def test_a_copy_larger_than_memory_is_a_memory_error_P7(form):
    a = library.broadcast_to(vector(1), (2**20, 2**15, 2**15))
    before = sys.getrefcount(a)
    with pytest.raises(MemoryError):
        a.__dlpack__(copy=True, **ASK[form])
    assert sys.getrefcount(a) == before


def test_copied_memory_that_is_exported_again_in_place_does_not_say_so_P4():
    a = library.from_dlpack(vector(), copy=True)
    assert dltensor.read(a.__dlpack__(max_version=(1, 0))).flags == 0


@pytest.mark.parametrize("make", [lambda: vector(), lambda: vector().copy(), lambda: matrix(1, 1)])
def test_memory_of_the_librarys_own_is_aligned_to_64_bytes_D2(make):
    kept = [make() for _ in range(20)]
    assert {library.pointer(a) % 64 for a in kept} == {0}


# ---- Imported arrays are exported again: C7, C8 ----


def test_an_imported_read_only_array_is_exported_read_only_and_cannot_be_made_writeable_C7():
    a = library.from_dlpack(dltensor.Producer(flags=READ_ONLY))
    assert library.readonly(a)
    for view in (a, a[1:], a[None]):
        with pytest.raises(ValueError):
            library.set_writeable(view)
        assert dltensor.read(view.__dlpack__(max_version=(1, 0))).flags == READ_ONLY
        with pytest.raises(BufferError, match="read-?only"):
            view.__dlpack__()


def test_what_came_in_the_legacy_form_goes_out_in_it_again_and_flagged_in_the_other_C7():
    a = library.from_dlpack(dltensor.Producer(LEGACY))
    assert library.readonly(a)
    with pytest.raises(ValueError):
        library.set_writeable(a)
    for view in (a, a[1:]):
        assert dltensor.read(view.__dlpack__()).data == library.pointer(view)
        assert dltensor.read(view.__dlpack__(max_version=(1, 0))).flags == READ_ONLY


def test_an_array_set_read_only_is_not_exported_in_the_legacy_form_C7():
    a = library.from_dlpack(dltensor.Producer(LEGACY))
    library.set_readonly(a)
    with pytest.raises(BufferError, match="read-?only"):
        a.__dlpack__()


def test_unknown_flags_do_not_go_out_again_C8():
    a = library.from_dlpack(dltensor.Producer(flags=2**64 - 1 - dltensor.PADDED))
    assert dltensor.read(a.__dlpack__(max_version=(1, 0))).flags == READ_ONLY
