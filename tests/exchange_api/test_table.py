"""The exchange table that the header makes for a producer: its place and its functions (X1, X3 to X7).

The tests call the functions as another library does: out parameters hold garbage before the call, and NULL after a
failure.
"""

import ctypes
import gc
import subprocess
import sys
import weakref

import dlarray
import dltensor
import pytest
from collecting import not_on_pypy
from dltensor import CUDA_HOST, FORMS, LEGACY, PADDED, READ_ONLY, VERSIONED, Made, Taken
from exchange_probe import (
    COPY_NEGATIVE,
    DO_NOT_LEND,
    REFUSE_NEGATIVE,
    Holder,
    Moment,
    add_to_unready,
    borrow,
    borrow_two,
    call_allocate,
    call_borrowed,
    call_make,
    call_owned,
    call_stream,
    immutable,
)

ATTRIBUTE = "__dlpack_c_exchange_api__"


def table(kind):
    return getattr(kind, ATTRIBUTE)


ARRAY, HOLDER = table(dlarray.Array), table(Holder)


def matrix():
    return dlarray.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "float64")


# ---- The place of the table: X1 ----


@pytest.mark.parametrize("kind", [dlarray.Array, Holder], ids=["heap type", "static type"])
def test_the_table_is_a_named_capsule_in_the_dict_of_the_type_X1(kind):
    assert dltensor.name(vars(kind)[ATTRIBUTE]) == "dlpack_exchange_api"


def test_a_type_that_python_code_cannot_change_may_have_a_table_X1():
    kind = immutable()
    assert dltensor.address(table(kind)) == dltensor.address(HOLDER)


@pytest.mark.parametrize("capsule", [ARRAY, HOLDER], ids=["heap type", "static type"])
def test_the_table_has_its_version_and_all_functions_X2_X3(capsule):
    first = 8 // ctypes.sizeof(ctypes.c_void_p)  # the version has 8 bytes
    words = (ctypes.c_void_p * (first + 6)).from_address(dltensor.address(capsule))
    version = (ctypes.c_uint32 * 2).from_address(dltensor.address(capsule))
    assert tuple(version) == (1, 3)
    assert words[first] is None  # prev_api
    assert all(words[first + 1 :])


def test_a_static_type_is_made_ready_before_its_table_is_added_X1():
    with pytest.raises(SystemError, match="PyType_Ready"):
        add_to_unready()


# ---- managed_tensor_from_py_object_no_sync: X3, X6, X7 ----


def test_an_owned_tensor_equals_the_export_of_the_method_X3():
    a = matrix().transpose()
    before = sys.getrefcount(a)
    taken = Taken(call_owned(ARRAY, a))
    says = taken.says
    assert (says.form, says.version, says.flags) == (VERSIONED, (1, 3), 0)
    assert (says.data, says.shape, says.strides, says.byte_offset) == (a.data_ptr, (3, 2), (1, 3), 0)
    assert taken.values() == [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]
    assert sys.getrefcount(a) == before + 1
    taken.delete()
    assert sys.getrefcount(a) == before


def test_an_owned_tensor_keeps_the_array_alive_P9():
    a = matrix()
    gone = weakref.ref(a)
    taken = Taken(call_owned(ARRAY, a))
    del a
    gc.collect()
    assert gone() is not None
    taken.delete_on_a_foreign_thread()
    assert gone() is None


def test_an_owned_tensor_has_the_flags_read_only_and_padded_X3():
    a = matrix()
    a.setflags(writeable=False)
    assert dltensor.read(call_owned(ARRAY, a)).flags == READ_ONLY
    padded = Holder(Made(dtype=(17, 4, 1), flags=PADDED).capsule())
    assert dltensor.read(call_owned(HOLDER, padded)).flags == PADDED


def test_a_legacy_import_is_exported_read_only_C7():
    assert dltensor.read(call_owned(ARRAY, dlarray.from_dlpack(Made(LEGACY).capsule()))).flags == READ_ONLY


@pytest.mark.parametrize("call", [call_owned, call_borrowed])
def test_an_object_of_another_type_is_a_type_error_X7(call):
    for other in (object(), 1, Holder(matrix())):
        with pytest.raises(TypeError, match="is not of the type that this table belongs to"):
            call(ARRAY, other)
    with pytest.raises(TypeError, match="Holder is not of the type that this table belongs to"):
        call(table(Moment), Holder(matrix()))  # a type with another table of the same file
    with pytest.raises(TypeError, match="NULL"):
        call(ARRAY, None)


@pytest.mark.parametrize("call", [call_owned, call_borrowed, call_make])
def test_a_null_out_is_an_error_X6(call):
    a = matrix()
    before = sys.getrefcount(a)
    made = Made()
    with pytest.raises(ValueError, match="out is NULL"):
        call(ARRAY, ctypes.addressof(made.managed) if call is call_make else a, False)
    assert sys.getrefcount(a) == before
    assert made.deleted == (call is call_make)  # call_make steals the tensor even if it fails


@pytest.mark.parametrize("call", [call_owned, call_borrowed])
@pytest.mark.parametrize("error", [BufferError("not now"), KeyError("whatever")], ids=repr)
def test_the_veto_is_called_for_owned_and_borrowed_tensors_P7(call, error):
    def veto(*request):
        asked.append(request)
        raise error

    asked = []
    holder = Holder(matrix(), veto=veto)
    before = sys.getrefcount(holder)
    with pytest.raises(type(error)) as raised:
        call(HOLDER, holder)
    assert raised.value is error
    assert asked == [()]
    assert sys.getrefcount(holder) == before


@pytest.mark.parametrize("call", [call_owned, call_borrowed])
def test_an_unrelated_class_with_the_capsule_is_a_type_error_X7(call):
    class Thief:
        pass

    setattr(Thief, ATTRIBUTE, ARRAY)
    with pytest.raises(TypeError, match="Thief.* is not of the type that this table belongs to"):
        call(ARRAY, Thief())


@pytest.mark.parametrize("device", [(1, 0), (2, 0), (3, 0), (99, 0)])
def test_operations_of_a_device_that_are_null_are_not_called_X4(device):
    made = Made(device=device)
    holder = Holder(made.capsule(), empty_device=True)
    for call in (call_owned, call_borrowed):
        try:
            call(HOLDER, holder)
        except (BufferError, SystemError):
            pass
    del holder
    assert made.deleted == 1


# ---- Work that is pending: S10, X4 ----


def pinned(ready):
    """An object whose table exports pinned memory, on which work is pending until ready() has returned."""
    made = Made(device=CUDA_HOST)
    return made, Holder(made.capsule(), ready=ready)


@pytest.mark.parametrize("call", [call_owned, call_borrowed])
def test_pending_work_is_ordered_as_the_last_step_of_a_table_X4(call):
    asked = []
    made, holder = pinned(lambda: asked.append(made.deleted))
    result = call(HOLDER, holder)
    assert asked == [0]
    assert (dltensor.read(result).data if call is call_owned else result[0]) == made.address


@pytest.mark.parametrize("call", [call_owned, call_borrowed])
@pytest.mark.parametrize("error", [BufferError, KeyboardInterrupt])
def test_an_error_of_the_order_drops_the_export_of_a_table_X4_P7(call, error):
    def ready():
        raise error("not ordered")

    made, holder = pinned(ready)
    before = sys.getrefcount(holder)
    for _ in range(2):
        with pytest.raises(error, match="not ordered"):
            call(HOLDER, holder)
        assert sys.getrefcount(holder) == before
    del holder
    assert made.deleted == 1


def test_no_work_is_ordered_for_a_tensor_that_is_not_lent_X3_X4():
    made = Made(device=CUDA_HOST, flags=READ_ONLY)
    holder = Holder(made.capsule(), ready=lambda: pytest.fail("ordered"))
    with pytest.raises(BufferError, match="is read-only"):
        call_borrowed(HOLDER, holder)


def test_a_tensor_that_changes_while_its_work_is_ordered_is_not_lent_D8_X3():
    """Other threads run while a device is waited for."""
    made, holder = pinned(lambda: False)  # makes the rank negative
    before = sys.getrefcount(holder)
    with pytest.raises(BufferError, match="ndim is -1"):
        call_borrowed(HOLDER, holder)
    assert sys.getrefcount(holder) == before


# ---- Subclasses: X2, X7 ----


class Same(dlarray.Array):
    """Does not override __dlpack__."""


class Overriding(dlarray.Array):
    def __dlpack__(self, **keywords):
        raise BufferError("never")


class BelowOverriding(Overriding):
    pass


class OverridingAndAdding(dlarray.Array):
    def __dlpack__(self, **keywords):
        raise AssertionError("the table was put on this class, and says how")


setattr(OverridingAndAdding, ATTRIBUTE, ARRAY)


@pytest.mark.parametrize("kind", [Same, OverridingAndAdding])
def test_a_subclass_is_exported_by_its_own_table_and_by_the_bases_table_X7(kind):
    a = kind(matrix())
    for capsule in (table(kind), ARRAY):
        assert dltensor.read(call_owned(capsule, a)).data == a.data_ptr
        assert call_borrowed(capsule, a)[0] == a.data_ptr


@pytest.mark.parametrize("call", [call_owned, call_borrowed])
@pytest.mark.parametrize("kind", [Overriding, BelowOverriding])
def test_the_table_refuses_a_subclass_that_overrides_the_method_X2(call, kind):
    a, base = kind(matrix()), dlarray.Array
    before = sys.getrefcount(base)
    with pytest.raises(BufferError, match=f"{kind.__name__}.* overrides __dlpack__ or the table"):
        call(ARRAY, a)
    assert sys.getrefcount(base) == before


def test_a_later_override_of_the_method_is_seen_X2():
    class Changing(dlarray.Array):
        pass

    a = Changing(matrix())
    assert call_borrowed(ARRAY, a)[0] == a.data_ptr
    Changing.__dlpack__ = lambda self, **keywords: None
    with pytest.raises(BufferError, match="overrides"):
        call_borrowed(ARRAY, a)
    del Changing.__dlpack__
    assert call_borrowed(ARRAY, a)[0] == a.data_ptr


# ---- dltensor_from_py_object_no_sync: X3 ----


def test_a_borrowed_tensor_holds_no_reference_and_has_strides_X3_D4():
    a = matrix()[:, 1]
    before = sys.getrefcount(a)
    assert call_borrowed(ARRAY, a) == (a.data_ptr, (2,), (3,))
    assert sys.getrefcount(a) == before
    assert call_borrowed(ARRAY, dlarray.array(3.0))[1:] == ((), ())
    assert call_borrowed(ARRAY, dlarray.zeros((0, 4)))[:2] == (0, (0, 4))
    assert call_borrowed(HOLDER, Holder(Made(shape=(0, 4)).capsule()))[:2] == (0, (0, 4))


def test_a_borrowed_tensor_without_its_flags_or_strides_is_a_buffer_error_X3():
    a = matrix()
    a.setflags(writeable=False)
    with pytest.raises(BufferError, match="read-only.*ask for a managed tensor"):
        call_borrowed(ARRAY, a)
    padded = Holder(Made(dtype=(17, 4, 1), flags=PADDED).capsule())
    with pytest.raises(BufferError, match="padded"):
        call_borrowed(HOLDER, padded)
    with pytest.raises(BufferError, match="has no strides"):
        call_borrowed(HOLDER, Holder(matrix(), null_strides=True))
    with pytest.raises(BufferError, match="is read-only"):
        call_borrowed(HOLDER, Holder(matrix(), null_strides=True, flags=READ_ONLY))


def test_the_table_follows_the_options_of_an_offer_D11():
    backwards = dlarray.arange(5)[::-1]
    with pytest.raises(BufferError, match="negative strides are exported only as a copy"):
        call_owned(HOLDER, Holder(backwards, options=REFUSE_NEGATIVE))
    copied = Holder(backwards, options=COPY_NEGATIVE)
    assert dltensor.read(call_owned(HOLDER, copied)).strides == (1,)
    with pytest.raises(BufferError, match="copy only"):
        call_borrowed(HOLDER, copied)


@pytest.fixture
def moments():
    memory = (ctypes.c_double * 12)(*range(12))
    address = ctypes.addressof(memory)
    rows = Moment(address, (3, 2), (4, 2), options=DO_NOT_LEND)
    cube = Moment(address + 8, (2, 1, 3), (6, 3, 1), options=DO_NOT_LEND)
    yield (rows, (address, (3, 2), (4, 2))), (cube, (address + 8, (2, 1, 3), (6, 3, 1)))
    del memory


def test_two_arrays_with_strides_in_temporary_memory_are_used_at_once_X3(moments):
    (rows, says_rows), (cube, says_cube) = moments
    assert borrow_two(rows, cube) == ((says_rows, True), (says_cube, True))  # exported, not lent
    assert borrow_two(cube, rows) == ((says_cube, True), (says_rows, True))
    assert borrow(rows)[::2] == (says_rows, True)


def test_a_tensor_with_strides_in_temporary_memory_is_not_borrowed_X3(moments):
    for moment, _ in moments:
        before = sys.getrefcount(moment)
        with pytest.raises(BufferError, match="shape or strides .*cannot be borrowed"):
            call_borrowed(table(Moment), moment)
        assert sys.getrefcount(moment) == before


def test_exports_copy_strides_from_temporary_memory_X3_K7(moments):
    exports = [Taken(call_owned(table(Moment), moment)) for moment, _ in moments]
    exports += [Taken(moment.__dlpack__(max_version=(1, 0))) for moment, _ in moments]
    for taken, (_, (address, shape, strides)) in zip(exports, [*moments, *moments]):
        assert (taken.says.data, taken.says.shape, taken.says.strides) == (address, shape, strides)
    for taken in exports:
        taken.delete()


# ---- managed_tensor_to_py_object_no_sync: X6 ----


def test_an_object_is_made_of_a_managed_tensor_and_owns_it_X6():
    made = Made(shape=(2, 3))
    a = call_make(ARRAY, ctypes.addressof(made.managed))
    assert type(a) is dlarray.Array
    assert (a.data_ptr, a.tolist(), made.deleted) == (made.address, [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], 0)
    assert not a.readonly
    del a
    assert made.deleted == 1


def test_an_object_made_of_a_read_only_tensor_is_read_only_C7():
    made = Made(flags=READ_ONLY)
    a = call_make(ARRAY, ctypes.addressof(made.managed))
    assert a.readonly
    with pytest.raises(ValueError):
        a.setflags(writeable=True)


REFUSED = {
    "dtype": ({"dtype": (200, 8, 1)}, BufferError, "dtype"),
    "device": ({"device": (2, 0)}, BufferError, "device is cuda"),
    "pinned": ({"device": (3, 0)}, BufferError, "device work may be pending"),
    "malformed": ({"shape": (-1,)}, BufferError, "must not be negative"),
    "unknown major": ({"version": (2, 0)}, BufferError, "major version 1 was wanted"),
}


@pytest.mark.parametrize("fields, error, text", REFUSED.values(), ids=REFUSED)
def test_a_tensor_that_is_refused_for_an_object_is_deleted_once_X6(fields, error, text):
    made = Made(**fields)
    with pytest.raises(error, match=text):
        call_make(ARRAY, ctypes.addressof(made.managed))
    assert made.deleted == 1


def test_a_null_tensor_is_an_error_X6():
    with pytest.raises(ValueError, match="NULL"):
        call_make(ARRAY, 0)


def test_the_author_of_a_table_chooses_its_requirements_C9():
    made = Made(device=(3, 0))
    call_make(HOLDER, ctypes.addressof(made.managed))  # any device
    deep = Made(shape=(1,) * 5)
    with pytest.raises(BufferError, match="ndim is 5, 0 to 4 was asked for"):
        call_make(HOLDER, ctypes.addressof(deep.managed))
    assert (made.deleted, deep.deleted) == (1, 1)


# ---- managed_tensor_allocator: X5 ----


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4)])
def test_memory_is_allocated_compact_aligned_and_writeable_X5_D2(shape):
    capsule = call_allocate(ARRAY, shape)
    says = dltensor.read(capsule)
    assert (says.form, says.flags, says.device, says.dtype) == (VERSIONED, 0, (1, 0), (2, 32, 1))
    assert (says.shape or (), says.strides or ()) == (shape, dltensor.compact(shape))
    assert (says.data or 0) % 64 == 0
    assert (says.data is None) == (0 in shape)
    if says.data is not None:
        ctypes.memset(says.data, 0x55, 4 * max(1, len(shape)))
    Taken(capsule).delete_on_a_foreign_thread()


UNALLOCATED = {
    "device": (((3,), 2), "BufferError", "cuda"),
    "pinned": (((3,), 3), "BufferError", "cuda_host"),
    "negative": (((-3,),), "BufferError", "negative"),
    "too many": (((2**40, 2**40),), "BufferError", "elements"),
    "too large": (((2**60,),), "MemoryError", "no memory"),
    "dtype": (((3,), 1, 0), "BufferError", "bits"),
    "prototype": ((None,), "ValueError", "prototype is NULL"),
    "out": (((3,), 1, 32, False), "ValueError", "out is NULL"),
}


@pytest.mark.parametrize("arguments, kind, text", UNALLOCATED.values(), ids=UNALLOCATED)
def test_a_failed_allocation_is_reported_once_by_kind_and_message_X5(arguments, kind, text):
    calls, said, message = call_allocate(ARRAY, *arguments)
    assert (calls, said) == (1, kind)
    assert text in message


def test_without_set_error_a_failure_is_silent_X5_X6():
    assert call_allocate(ARRAY, (3,), 2, 32, True, False) == (0, "", "")


# ---- current_work_stream: X4 ----


def test_on_the_cpu_there_is_no_stream_X4():
    for device in [(1, 0), (1, 7), (3, 0), (13, 0)]:
        assert call_stream(ARRAY, *device) == 0


def test_the_stream_of_another_device_is_a_buffer_error_that_names_it_X4():
    with pytest.raises(BufferError, match="cuda:1"):
        call_stream(ARRAY, 2, 1)
    with pytest.raises(ValueError, match="out is NULL"):
        call_stream(ARRAY, 1, 0, False)


# ---- Types that are freed and made again ----


@not_on_pypy("types of extensions that are freed")
def test_a_table_does_not_keep_its_type_alive_and_makes_objects_of_the_newest_type():
    script = """
import ctypes, gc, importlib, sys, weakref
import dltensor, exchange_probe
import dlarray
first = dlarray
table = first.Array.__dlpack_c_exchange_api__
gone = weakref.ref(first.Array)
a = first.arange(3)

del sys.modules["dlarray"]
import dlarray as second
assert second.Array is not first.Array
made = dltensor.Made()
assert type(exchange_probe.call_make(table, ctypes.addressof(made.managed))) is second.Array
for array in (a, second.arange(3)):  # one table serves the types that have it
    assert exchange_probe.call_borrowed(table, array)[0] == array.data_ptr

del a, array, first, dlarray
gc.collect()
assert gone() is None
del second, sys.modules["dlarray"]
gc.collect()
made = dltensor.Made()
try:
    exchange_probe.call_make(table, ctypes.addressof(made.managed))
except RuntimeError as error:
    assert "no type with this exchange table" in str(error)
assert made.deleted == 1
print("done")
"""
    out = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{script}"], capture_output=True, text=True
    )
    assert (out.stdout, out.stderr) == ("done\n", "")


@pytest.mark.parametrize("form", FORMS)
def test_many_rounds_of_tables_and_capsules_leave_no_reference_K4_X6(form):
    a = matrix()
    before = sys.getrefcount(a)
    for _ in range(2000):
        b = call_make(ARRAY, Taken(call_owned(ARRAY, a))._address)
        call_borrowed(ARRAY, b)
        dlarray.from_dlpack(b.__dlpack__(max_version=None if form == LEGACY else (1, 0)))
    del b
    assert sys.getrefcount(a) == before
