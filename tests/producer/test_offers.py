"""Producers beyond arrays: each export function, vetoes, embedding, other devices, wrapped memory (P, K, D)."""

import ctypes
import functools
import gc
import subprocess
import sys
import sysconfig
import threading
import time
import weakref

import consumer_probe
import dltensor
import pytest
from collecting import collect, not_on_pypy
from dltensor import (
    CPU,
    CUDA_HOST,
    CUDA_MANAGED,
    FORMS,
    IS_COPIED,
    LEGACY,
    PADDED,
    READ_ONLY,
    ROCM_HOST,
    TPU_HOST,
    VERSIONED,
    Made,
    Taken,
)
from optional import numpy
from producer_probe import (
    DLPACK_PY_OFFER_COPY_NEGATIVE,
    DLPACK_PY_OFFER_COPY_READ_ONLY,
    DLPACK_PY_OFFER_READ_ONLY_UNKNOWN,
    DLPACK_PY_OFFER_REFUSE_NEGATIVE,
    Thing,
    steal,
    steal_legacy,
    wrap,
)

ASK = {LEGACY: {}, VERSIONED: {"max_version": (1, 0)}}
both_forms = pytest.mark.parametrize("form", FORMS)
allocated_or_embedded = pytest.mark.parametrize("embedded", [False, True], ids=["allocated", "embedded"])

memory = (ctypes.c_double * 16)(*range(16))
address = ctypes.addressof(memory)


class Owner(Thing):
    """A Thing that supports weak references."""


def thing(shape=(3,), strides=None, data=address, **fields):
    if strides is None and fields.get("embedded"):
        strides = dltensor.compact(shape)
    return Owner(data, shape, strides, **fields)


# ---- The export functions ----

WAYS = ["__dlpack__", "produce", "produce_args"]


@both_forms
@pytest.mark.parametrize("way", WAYS)
def test_each_export_function_exports_an_equal_tensor_P2(form, way):
    owner = thing((2, 3), (1, 2))
    before = sys.getrefcount(owner)
    capsule = getattr(owner, way)(stream=-1, dl_device=CPU, copy=False, **ASK[form])
    says = dltensor.read(capsule)
    assert (says.form, says.data, says.shape, says.strides) == (form, address, (2, 3), (1, 2))
    assert sys.getrefcount(owner) == before + 1
    del capsule
    assert sys.getrefcount(owner) == before
    copied = dltensor.read(getattr(owner, way)(copy=True, **ASK[form]))
    assert copied.strides == (3, 1)


@pytest.mark.parametrize("way", WAYS)
def test_none_is_equal_to_an_absent_argument_P1(way):
    call = getattr(thing(), way)
    absent = dltensor.read(call())
    none = dltensor.read(call(stream=None, max_version=None, dl_device=None, copy=None))
    assert (absent.form, absent.data) == (none.form, none.data) == (LEGACY, address)


BAD_REQUESTS = [
    ({"stream": 5}, ValueError, "stream is 5"),
    ({"stream": -2}, ValueError, "stream is -2"),
    ({"stream": 1.0}, TypeError, "stream is 1.0"),
    ({"max_version": [1, 0]}, TypeError, "max_version is list"),
    ({"dl_device": "cpu"}, TypeError, "dl_device is 'cpu'"),
    ({"dl_device": (2, 1)}, BufferError, "dl_device is cuda:1"),
    ({"copy": 1}, TypeError, "copy is 1"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("keywords, error, text", BAD_REQUESTS)
def test_each_export_function_refuses_with_an_equal_text_P1(way, keywords, error, text):
    owner = thing()
    before = sys.getrefcount(owner)
    with pytest.raises(error, match=text):
        getattr(owner, way)(**keywords)
    assert sys.getrefcount(owner) == before


def test_the_device_of_a_type_that_is_always_on_the_cpu_P8():
    assert thing().cpu_device() == CPU
    assert [type(x) for x in thing().cpu_device()] == [int, int]


# ---- Malformed tensors: D8, P7 ----

MALFORMED = {
    "a negative extent": ({"shape": (3, -1)}, r"shape\[1\] is -1"),
    "no data": ({"data": 0}, "data is NULL"),
    "too many elements": ({"shape": (2**62, 4)}, r"shape\[1\] = 4"),
    "an offset that wraps": ({"byte_offset": 2**64 - 1}, "byte_offset is 18446744073709551615"),
    "strides that reach too far": ({"shape": (3,), "strides": (2**62,)}, "strides reach"),
    "no lanes": ({"dtype": (2, 64, 0)}, "has 64 bits and 0 lanes, at least 1 lane was wanted"),
    "a bool of 16 bits": ({"dtype": (6, 16, 1)}, r"dtype code 6 \(.*\) has 16 bits"),
    "a complex of odd width": ({"dtype": (5, 65, 1)}, "65 bits"),
}


@both_forms
@pytest.mark.parametrize("copy", [None, True, False])
@pytest.mark.parametrize("fields, text", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_tensor_is_not_exported_D8(form, copy, fields, text):
    owner = thing(**fields)
    before = sys.getrefcount(owner)
    for way in WAYS:
        with pytest.raises(BufferError, match=text):
            getattr(owner, way)(copy=copy, **ASK[form])
    assert sys.getrefcount(owner) == before


@pytest.mark.parametrize("fields, text", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_tensor_is_not_embedded_nor_wrapped_D8(fields, text):
    with pytest.raises(BufferError, match=text):
        thing(embedded=True, **fields)
    assert wrap(thing(**fields)) is None


def test_an_embedded_tensor_needs_its_strides_D4():
    with pytest.raises(ValueError, match="strides is NULL"):
        Thing(address, (3,), embedded=True)
    says = dltensor.read(Thing(address, (), embedded=True).__dlpack__(max_version=(1, 0)))
    assert (says.data, says.ndim) == (address, 0)  # a scalar has none


@both_forms
def test_strides_that_are_null_are_filled_in_D4(form):
    for shape in (2, 3), (2, 0, 3):
        assert dltensor.read(thing(shape).__dlpack__(**ASK[form])).strides == dltensor.compact(shape)


@both_forms
def test_an_exported_scalar_has_no_shape_and_no_strides_D3(form):
    says = dltensor.read(thing(()).__dlpack__(**ASK[form]))
    assert (says.ndim, says.shape, says.strides) == (0, None, None)


@both_forms
@allocated_or_embedded
def test_byte_offset_is_folded_into_data_and_no_elements_have_no_data_D1_D3(form, embedded):
    says = dltensor.read(thing(byte_offset=16, embedded=embedded).__dlpack__(**ASK[form]))
    assert (says.data, says.byte_offset) == (address + 16, 0)
    says = dltensor.read(thing((0, 3), byte_offset=16, embedded=embedded).__dlpack__(**ASK[form]))
    assert (says.data, says.byte_offset) == (None, 0)


@pytest.mark.parametrize("kind", [1, 2, 4, 7, 8, 14, 15])
def test_byte_offset_is_not_added_to_a_handle_D1(kind):
    says = dltensor.read(wrap(thing(device=(kind, 0), byte_offset=16)))
    is_address = kind in (1, 2, 14)
    assert (says.data, says.byte_offset) == ((address + 16, 0) if is_address else (address, 16))


@pytest.mark.parametrize("kind", [1, 2, 4, 7, 8, 14, 15])
def test_memory_without_elements_has_no_data_on_any_device_D3(kind):
    assert dltensor.read(wrap(thing((0,), device=(kind, 0)))).data is None


@both_forms
@pytest.mark.parametrize(
    "dtype", [(0, 4, 1), (3, 64, 1), (4, 16, 1), (9, 8, 1), (16, 6, 1), (17, 4, 1), (18, 32, 1), (200, 8, 1)]
)
def test_dtypes_of_any_code_are_exported_and_copied_D6(form, dtype):
    for copy in (None, True):
        assert dltensor.read(thing(dtype=dtype).__dlpack__(copy=copy, **ASK[form])).dtype == dtype


# ---- Flags: P3, P4, C8 ----


@allocated_or_embedded
@pytest.mark.parametrize("flag, word", [(READ_ONLY, "read-only"), (PADDED, "padded")])
def test_a_flag_in_the_legacy_form_is_a_buffer_error_P3(embedded, flag, word):
    owner = thing(dtype=(17, 4, 1), flags=flag, embedded=embedded)
    before = sys.getrefcount(owner)
    assert dltensor.read(owner.__dlpack__(max_version=(1, 0))).flags == flag
    for copy in (None, False):
        with pytest.raises(BufferError, match=word):
            owner.__dlpack__(copy=copy)
    assert sys.getrefcount(owner) == before


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_padded_data_is_padded_and_one_of_read_only_data_writeable_P4(way):
    padded = thing(dtype=(17, 4, 1), flags=PADDED | READ_ONLY)
    call = getattr(padded, way)
    assert dltensor.read(call(max_version=(1, 0), copy=True)).flags == PADDED | IS_COPIED
    with pytest.raises(BufferError, match="padded"):
        call(copy=True)
    readonly = getattr(thing(flags=READ_ONLY), way)
    assert dltensor.read(readonly(copy=True)).form == LEGACY


@allocated_or_embedded
@pytest.mark.parametrize("flags", [IS_COPIED, 2**3, 2**63, 2**64 - 1])
def test_an_export_in_place_carries_neither_copied_nor_unknown_flags_P4_C8(embedded, flags):
    owner = thing(flags=flags, embedded=embedded)
    assert dltensor.read(owner.__dlpack__(max_version=(1, 0))).flags == flags & READ_ONLY


@allocated_or_embedded
def test_flags_of_an_offer_are_added_to_an_embedded_tensor_P3(embedded):
    owner = thing(embedded=embedded)
    assert dltensor.read(owner.__dlpack__(max_version=(1, 0))).flags == 0
    owner.freeze()
    before = sys.getrefcount(owner)
    capsule = owner.__dlpack__(max_version=(1, 0))
    assert (dltensor.read(capsule).flags, sys.getrefcount(owner)) == (READ_ONLY, before + 1)
    del capsule
    assert sys.getrefcount(owner) == before
    with pytest.raises(BufferError, match="read-only"):
        owner.__dlpack__()


@allocated_or_embedded
@pytest.mark.parametrize("dtype", [(0, 8, 1), (2, 64, 1)])
def test_the_padded_flag_has_no_meaning_for_elements_of_whole_bytes_D6_P3(embedded, dtype):
    owner = thing(dtype=dtype, flags=PADDED, embedded=embedded)
    assert dltensor.read(owner.__dlpack__()).form == LEGACY
    assert dltensor.read(owner.__dlpack__(max_version=(1, 0))).flags == 0
    assert dltensor.read(owner.__dlpack__(max_version=(1, 0), copy=True)).flags == IS_COPIED
    assert dltensor.read(wrap(owner)).flags == 0


@allocated_or_embedded
@pytest.mark.parametrize("kind", [1, 3, 11, 13])
def test_host_memory_is_exported_with_device_id_0_D9(embedded, kind):
    owner = thing(device=(kind, 3), embedded=embedded)
    assert owner.__dlpack_device__() == (kind, 0)
    for asked in (None, (kind, 0)):
        assert dltensor.read(owner.__dlpack__(dl_device=asked)).device == (kind, 0)
    with pytest.raises(BufferError, match=r"dl_device is (\w+):3, the data is on \1$"):
        owner.__dlpack__(dl_device=(kind, 3))


def test_data_whose_access_is_unknown_is_exported_in_the_legacy_form_too_C7():
    owner = thing(flags=READ_ONLY, options=DLPACK_PY_OFFER_READ_ONLY_UNKNOWN)
    assert dltensor.read(owner.__dlpack__()).data == address
    assert dltensor.read(owner.__dlpack__(max_version=(1, 0))).flags == READ_ONLY


# ---- Negative strides: D11 ----

BACKWARDS = {"data": address + 16, "strides": (-1,)}


@both_forms
def test_a_negative_stride_is_exported_unchanged_D11(form):
    says = dltensor.read(thing(**BACKWARDS).__dlpack__(**ASK[form]))
    assert (says.data, says.strides) == (address + 16, (-1,))


@both_forms
def test_a_negative_stride_is_refused_with_the_option_refuse_negative_D11(form):
    owner = thing(**BACKWARDS, options=DLPACK_PY_OFFER_REFUSE_NEGATIVE)
    for copy in (None, False):
        with pytest.raises(BufferError, match="negative"):
            owner.__dlpack__(copy=copy, **ASK[form])
    taken = Taken(owner.__dlpack__(copy=True, **ASK[form]))
    assert taken.values() == [2.0, 1.0, 0.0]
    taken.delete()


@both_forms
def test_a_negative_stride_is_copied_with_the_option_copy_negative_D11(form):
    owner = thing(**BACKWARDS, options=DLPACK_PY_OFFER_COPY_NEGATIVE)
    for copy in (None, True):
        taken = Taken(owner.__dlpack__(copy=copy, **ASK[form]))
        assert (taken.values(), taken.says.strides) == ([2.0, 1.0, 0.0], (1,))
        assert taken.says.flags == (IS_COPIED if form == VERSIONED else None)
        taken.delete()
    with pytest.raises(BufferError, match="negative.*copy is False"):
        owner.__dlpack__(copy=False, **ASK[form])


def test_a_consumer_that_wants_no_copy_where_it_is_supported_gets_none_P4():
    """An array interface passes the consumer's request on."""
    owner = thing(**BACKWARDS, options=DLPACK_PY_OFFER_COPY_NEGATIVE)
    as_needed, never_if_supported = 0, 3  # DLPACK_PY_COPY_...
    taken = Taken(owner.answer(as_needed))
    assert taken.says.flags == IS_COPIED
    taken.delete()
    with pytest.raises(BufferError, match="negative.*copy is False"):
        owner.answer(never_if_supported)


@both_forms
@pytest.mark.parametrize("option", [DLPACK_PY_OFFER_REFUSE_NEGATIVE, DLPACK_PY_OFFER_COPY_NEGATIVE])
@pytest.mark.parametrize(
    "shape, strides", [((3,), (1,)), ((3,), (0,)), ((1, 3), (-5, 1)), ((0, 3), (-1, -1)), ((), ())]
)
def test_negative_strides_without_effect_are_not_copied_nor_refused_D5(form, option, shape, strides):
    says = dltensor.read(thing(shape, strides, options=option).__dlpack__(**ASK[form]))
    assert (says.strides or ()) == strides
    assert says.flags in (None, 0)


# ---- Pinned and managed memory: P5, P6, D9 ----

HOST_READABLE = pytest.mark.parametrize(
    "device", [CUDA_HOST, ROCM_HOST, CUDA_MANAGED, TPU_HOST], ids=["pinned", "rocm", "managed", "tpu"]
)


@HOST_READABLE
@both_forms
@allocated_or_embedded
def test_host_readable_memory_is_exported_in_place_with_its_device_or_as_cpu_memory_P5(device, form, embedded):
    owner = thing(device=device, embedded=embedded)
    assert owner.__dlpack_device__() == device
    for dl_device, wanted in [(None, device), (device, device), (CPU, CPU)]:
        before = sys.getrefcount(owner)
        for copy in (None, False):
            capsule = owner.__dlpack__(dl_device=dl_device, copy=copy, **ASK[form])
            says = dltensor.read(capsule)
            assert (says.data, says.device) == (address, wanted)
            assert sys.getrefcount(owner) == before + 1
            del capsule
        assert sys.getrefcount(owner) == before
    copied = Taken(owner.__dlpack__(dl_device=CPU, copy=True, **ASK[form]))
    assert (copied.says.device, copied.values()) == (CPU, [0.0, 1.0, 2.0])
    copied.delete()


@HOST_READABLE
@both_forms
def test_a_copy_on_another_device_than_dlpack_device_returns_is_refused_P8(device, form):
    owner = thing(device=device)
    for dl_device in (None, device):
        with pytest.raises(BufferError, match=r"a copy of data on .* ask with dl_device=\(1, 0\)"):
            owner.__dlpack__(dl_device=dl_device, copy=True, **ASK[form])


@HOST_READABLE
def test_any_other_device_is_a_buffer_error_P5(device):
    for asked in [(2, 0), (1, 1), (device[0], 1), (99, 0)]:
        with pytest.raises(BufferError, match="dl_device is "):
            thing(device=device).__dlpack__(dl_device=asked)


@both_forms
@allocated_or_embedded
@pytest.mark.parametrize("device", [(2, 0), (8, 0), (10, 1), (99, 0)])
def test_memory_that_the_cpu_cannot_read_is_refused_by_the_name_of_its_device_P7(device, form, embedded):
    owner = thing(device=device, embedded=embedded)
    assert owner.__dlpack_device__() == device
    with pytest.raises(BufferError, match="device is "):
        owner.__dlpack__(**ASK[form])


@pytest.mark.parametrize("device, wrong", [(CUDA_HOST, 0), (CUDA_MANAGED, 0), (ROCM_HOST, 1)])
def test_pinned_and_managed_memory_accepts_a_stream_unless_the_cpu_is_requested_P6(device, wrong):
    owner = thing(device=device)
    for stream in (-1, 5, sys.maxsize + 9):
        owner.__dlpack__(stream=stream)
    owner.__dlpack__(stream=-1, dl_device=CPU)
    with pytest.raises(ValueError, match=f"stream is {wrong}"):
        owner.__dlpack__(stream=wrong)
    with pytest.raises(ValueError, match=str(sys.maxsize + 9)):
        owner.__dlpack__(stream=sys.maxsize + 9, dl_device=CPU)


# ---- The veto: P7 ----


@both_forms
@allocated_or_embedded
def test_a_veto_gets_the_request_and_refuses_by_its_own_exception_P7(form, embedded):
    asked, error = [], BufferError("the values are not what the bytes say")

    def veto(max_version, copy):
        asked.append((max_version, copy))
        raise error

    owner = thing(veto=veto, embedded=embedded)
    before = sys.getrefcount(owner)
    for copy, code in [(None, 0), (True, 1), (False, 2)]:
        with pytest.raises(BufferError) as raised:
            owner.__dlpack__(copy=copy, **ASK[form])
        assert raised.value is error
        assert asked.pop() == ((1, 0) if form == VERSIONED else (0, 0), code)
        del raised
    error.__traceback__ = None
    assert sys.getrefcount(owner) == before


def test_a_veto_gets_the_major_and_the_minor_number_of_max_version_P2():
    asked = []
    owner = thing(veto=lambda max_version, copy: asked.append(max_version) or True)
    for given in (0, 8), (1, 2), (1, 3), (2, 7), (1, -1), (1, 2**40):
        owner.__dlpack__(max_version=given)
    assert asked == [(0, 8), (1, 2), (1, 3), (2, 7), (1, 0), (1, 2**31 - 1)]


def test_a_veto_without_an_exception_is_a_buffer_error_P7():
    with pytest.raises(BufferError, match="exported"):
        thing(veto=lambda *request: False).__dlpack__()


def test_a_bad_request_is_refused_before_the_veto_is_called_P7():
    asked = []
    owner = thing(veto=lambda *request: asked.append(request) or True)
    owner.__dlpack__()
    with pytest.raises(TypeError):
        owner.__dlpack__(copy=1)
    assert len(asked) == 1


# ---- Embedded tensors: K1, K7, P9 ----


@both_forms
def test_an_embedded_tensor_is_exported_in_place_and_holds_its_object_K7(form):
    owner = thing((2, 3), embedded=True)
    gone, before = weakref.ref(owner), sys.getrefcount(owner)
    first, second = (owner.__dlpack__(**ASK[form]) for _ in range(2))
    assert dltensor.address(first) == dltensor.address(second)
    assert sys.getrefcount(owner) == before + 2
    taken = Taken(first)
    del owner, first
    collect()
    gc.collect()
    assert taken.values() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    del second
    collect()
    assert gone() is not None
    taken.delete()
    assert gone() is None


def test_an_embedded_tensor_is_exported_in_both_forms_at_once_K7():
    owner = thing(embedded=True)
    taken = [Taken(owner.__dlpack__(**ASK[form])) for form in FORMS]
    gone = weakref.ref(owner)
    del owner
    collect()
    assert [one.values() for one in taken] == [[0.0, 1.0, 2.0]] * 2
    taken.pop().delete()
    taken.pop().delete_on_a_foreign_thread()
    assert gone() is None


@both_forms
def test_an_offer_with_a_tensor_beside_the_embedded_tensor_exports_the_tensor_of_the_offer_K7(form):
    owner = thing(embedded=True)
    owner.move(address + 8)
    taken = Taken(owner.__dlpack__(**ASK[form]))
    assert taken.values() == [1.0, 2.0, 3.0]
    taken.delete()


@both_forms
def test_a_copy_of_an_embedded_tensor_holds_nothing_of_its_object_P4(form):
    owner = thing(embedded=True)
    gone = weakref.ref(owner)
    taken = Taken(owner.__dlpack__(copy=True, **ASK[form]))
    del owner
    collect()
    assert gone() is None
    assert taken.values() == [0.0, 1.0, 2.0]
    taken.delete()


def test_an_embedded_tensor_that_was_never_exported_dies_quietly_K1():
    owner = thing(embedded=True)
    gone = weakref.ref(owner)
    del owner
    collect()
    assert gone() is None


# ---- Memory without an object: wrap and steal ----


def test_wrapped_memory_is_freed_once_when_the_capsule_dies_K1():
    freed = []
    capsule = wrap(thing((2, 3), (1, 2), flags=READ_ONLY), lambda: freed.append(1))
    says = dltensor.read(capsule)
    assert (says.data, says.shape, says.strides, says.flags, says.version) == (
        address,
        (2, 3),
        (1, 2),
        READ_ONLY,
        (1, 3),
    )
    assert says.manager_ctx
    assert freed == []
    del capsule
    collect()
    assert freed == [1]


def test_wrapped_memory_is_freed_by_its_consumer_on_any_thread_K5():
    freed = []
    taken = Taken(wrap(thing(), lambda: freed.append(1)))
    assert taken.values() == [0.0, 1.0, 2.0]
    taken.delete_on_a_foreign_thread()
    assert freed == [1]


def test_an_exception_in_flight_survives_the_function_that_frees_wrapped_memory_K2(monkeypatch):
    reported, freed = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: reported.append(type(what.exc_value)))

    def fail(error=ZeroDivisionError):
        raise error

    error = KeyError("in flight")
    for free in lambda: freed.append(1), fail:
        with pytest.raises(KeyError) as raised:
            _ = (wrap(thing(), free), fail(error))
        collect()
        assert raised.value is error
        assert error.__context__ is None
    assert (freed, reported) == ([1], [ZeroDivisionError])


def test_memory_without_a_free_function_may_be_wrapped_K3():
    taken = Taken(wrap(thing()))
    assert taken.values() == [0.0, 1.0, 2.0]
    assert taken.says.manager_ctx
    taken.delete()


def test_a_wrapped_tensor_may_have_the_copied_flag_P4():
    assert dltensor.read(wrap(thing(flags=IS_COPIED))).flags == IS_COPIED


STEAL = {VERSIONED: steal, LEGACY: steal_legacy}


@both_forms
def test_no_managed_tensor_gives_no_capsule(form):
    with pytest.raises(BufferError, match="the managed tensor is NULL"):
        STEAL[form](0)


@both_forms
def test_a_stolen_tensor_is_deleted_once_with_its_capsule_K1(form):
    made = Made(form)
    capsule = STEAL[form](ctypes.addressof(made.managed))
    assert dltensor.name(capsule) == form
    assert made.deleted == 0
    del capsule
    assert made.deleted == 1


@both_forms
def test_a_stolen_tensor_that_was_consumed_is_not_deleted_by_its_capsule_K1(form):
    made = Made(form)
    taken = Taken(STEAL[form](ctypes.addressof(made.managed)))
    assert made.deleted == 0
    taken.delete()
    assert made.deleted == 1


@both_forms
def test_a_capsule_calls_no_null_deleter_K3(form):
    made = Made(form, deleter=False)
    STEAL[form](ctypes.addressof(made.managed))
    assert made.deleted == 0


@both_forms
def test_a_capsule_whose_deleter_runs_python_code_keeps_the_exception_in_flight_K2(form, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: reported.append(type(what.exc_value)))
    error = KeyError("in flight")

    def fail(error):
        raise error

    for on_delete, wanted in [(lambda: None, []), (lambda: fail(ZeroDivisionError()), [ZeroDivisionError])]:
        made = Made(form, on_delete=on_delete)
        with pytest.raises(KeyError) as raised:
            _ = (STEAL[form](ctypes.addressof(made.managed)), fail(error))
        assert raised.value is error
        assert error.__context__ is None
        assert made.deleted == 1
        assert reported == wanted


@both_forms
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (0, 0)])
def test_a_capsule_deletes_its_tensor_of_any_version_K1(form, version):
    made = Made(form, version=version).poison()
    STEAL[form](ctypes.addressof(made.managed))
    assert made.deleted == 1


# ---- Counted exports: P9 ----


@both_forms
def test_live_exports_are_counted_P9(form):
    owner = thing(counted=True)
    capsules = [owner.__dlpack__(**ASK[form]) for _ in range(3)]
    assert owner.exports() == 3
    view = consumer_probe.consume(capsules.pop())
    del capsules
    collect()
    assert owner.exports() == 1
    view.release()
    collect()
    assert owner.exports() == 0


def test_an_export_that_is_released_on_another_thread_is_counted_down_K5():
    owner = thing(counted=True)
    view = consumer_probe.consume(owner)
    assert owner.exports() == 1
    view.release_detached()
    assert owner.exports() == 0


def test_an_object_that_counts_exports_is_not_exported_embedded_P9():
    owner = thing(counted=True, embedded=True)
    capsule = owner.__dlpack__(max_version=(1, 0))
    assert owner.exports() == 1
    del capsule
    collect()
    assert owner.exports() == 0


@pytest.mark.parametrize("asked", [{"copy": 7}, {"dl_device": (2, 0)}, {"stream": 5}])
def test_a_refused_request_is_not_counted_P9(asked):
    owner = thing(counted=True)
    with pytest.raises((TypeError, ValueError, BufferError)):
        owner.__dlpack__(**asked)
    assert owner.exports() == 0


# ---- Copies: P4 ----


@functools.cache
def large_matrix():
    return numpy.arange(3000 * 3000, dtype="float64").reshape(3000, 3000)


def large(**fields):
    return Owner(large_matrix().ctypes.data, (3000, 3000), (1, 3000), **fields)


def call_while(look, call):
    """Returns call(). Until call() returns, another thread calls look() repeatedly."""
    done = threading.Event()

    def watch():
        while not done.is_set():
            look()
            time.sleep(0.0001)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        return call()
    finally:
        done.set()
        thread.join()


def ticks_during(call):
    """Returns call(), and how often another thread ran between 10 % and 90 % of the time of the call."""
    ticks, times = [], []

    def timed():
        times.append(time.monotonic())
        result = call()
        times.append(time.monotonic())
        return result

    result = call_while(lambda: ticks.append(time.monotonic()), timed)
    start, end = times
    tenth = (end - start) / 10
    return result, sum(start + tenth < at < end - tenth for at in ticks)


@pytest.mark.parametrize("by", ["producer", "consumer"])
def test_other_threads_run_while_a_large_copy_is_made_P4(by):
    owner, ticks = large(), 0
    for _ in range(20):  # on a busy machine the other thread may get no time; with the GIL held it never gets any
        if by == "producer":
            made, ticks = ticks_during(lambda: owner.__dlpack__(copy=True, max_version=(1, 0)))
            made = consumer_probe.consume(made)
        else:
            made, ticks = ticks_during(lambda: consumer_probe.consume(owner.__dlpack__(max_version=(1, 0)), copy=True))
        if ticks > 0:
            break
    assert ticks > 0
    assert numpy.array_equal(numpy.from_dlpack(made), large_matrix().T)


def another_thread_runs_during(call):
    """Whether a thread that waits for the GIL, and does not ask for it, gets it: only call() can release it."""
    lock, ran, interval = threading.Lock(), threading.Event(), sys.getswitchinterval()

    def wait():
        with lock:
            ran.set()

    thread = threading.Thread(target=wait)
    lock.acquire()
    sys.setswitchinterval(1000)
    gc.disable()  # a destructor of an earlier test may release the GIL
    try:
        thread.start()
        lock.release()
        call()
        return ran.is_set()
    finally:
        gc.enable()
        sys.setswitchinterval(interval)
        thread.join()


@not_on_pypy("a thread that waits for the GIL and does not ask for it")
@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="without a GIL, threads always run at once"
)
def test_no_other_thread_runs_while_a_small_copy_is_made_P4():
    owner = thing()

    def copy_often():
        for _ in range(20_000):
            owner.__dlpack__(copy=True)

    # A thread of pytest-xdist may have asked for the GIL just before.
    assert not all(another_thread_runs_during(copy_often) for _ in range(3))


def test_a_large_copy_that_is_being_made_is_counted_P4_P9():
    owner, counts = large(counted=True), set()
    capsule = call_while(lambda: counts.add(owner.exports()), lambda: owner.__dlpack__(copy=True, max_version=(1, 0)))
    assert {0} < counts <= {0, 1, 2}  # one more while an export is made
    assert owner.exports() == 0
    del capsule


@both_forms
@pytest.mark.parametrize("copy", [None, True])
def test_a_copy_that_the_author_made_is_exported_in_place_with_the_copied_flag_P4(form, copy):
    says = dltensor.read(thing(is_copy=True).__dlpack__(copy=copy, **ASK[form]))
    assert (says.data, says.flags) == (address, IS_COPIED if form == VERSIONED else None)


def test_a_copy_that_the_author_made_is_refused_where_copy_is_false_P4():
    with pytest.raises(BufferError, match="this producer made a copy of the data, and copy is False"):
        thing(is_copy=True).__dlpack__(copy=False)


@both_forms
def test_read_only_data_can_be_exported_as_a_copy_only_P3_P4(form):
    owner = thing(flags=READ_ONLY, options=DLPACK_PY_OFFER_COPY_READ_ONLY)
    says = dltensor.read(owner.__dlpack__(**ASK[form]))
    assert says.data != address and says.flags == (IS_COPIED if form == VERSIONED else None)
    with pytest.raises(BufferError, match="exports read-only data only as a copy, and copy is False"):
        owner.__dlpack__(copy=False, **ASK[form])
    reversed_too = thing(
        **BACKWARDS, flags=READ_ONLY, options=DLPACK_PY_OFFER_COPY_READ_ONLY | DLPACK_PY_OFFER_REFUSE_NEGATIVE
    )
    taken = Taken(reversed_too.__dlpack__(**ASK[form]))
    assert (taken.values(), taken.says.strides) == ([2.0, 1.0, 0.0], (1,))  # a copy has no negative stride (D11)
    taken.delete()
    writable = thing(options=DLPACK_PY_OFFER_COPY_READ_ONLY)
    assert dltensor.read(writable.__dlpack__(**ASK[form])).data == address


@not_on_pypy("the identity of a tuple of C code")
def test_the_device_of_cpu_memory_is_one_tuple_P8():
    assert thing().__dlpack_device__() is thing().__dlpack_device__()


@pytest.mark.parametrize("device", [CPU, (2, 0), (3, 0), (13, 1), (99, 0)])
@pytest.mark.parametrize("pending", [0, 1, 2])
def test_operations_of_a_device_that_are_null_are_not_called(device, pending):
    a = thing(device=device, empty_device=True, pending=pending)
    before = sys.getrefcount(a)
    for max_version in (None, (1, 0)):
        for more in ({}, {"copy": True}, {"copy": False}, {"stream": -1}, {"stream": 5}, {"dl_device": device}):
            for to_cpu in ({}, {"dl_device": CPU}):
                try:
                    says = dltensor.read(a.__dlpack__(max_version=max_version, **{**more, **to_cpu}))
                    assert says.data == address or says.device == CPU
                except (BufferError, ValueError, SystemError):
                    assert pending or device != CPU or "stream" in more
    assert a.__dlpack_device__() == (device if device not in [(13, 1)] else (13, 0))
    assert sys.getrefcount(a) == before


@pytest.mark.parametrize("ask", ["produce", "produce_args"])
def test_an_export_without_a_tensor_is_an_error_D8(ask):
    with pytest.raises(SystemError, match="the offer has no tensor"):
        getattr(thing(no_tensor=True), ask)()


def test_an_offer_without_an_owner_is_an_error_P9():
    with pytest.raises(SystemError, match="describe returned 0, but offer->owner is NULL"):
        thing(no_owner=True).__dlpack__()


def test_a_number_of_arguments_with_a_flag_is_an_error_P1():
    with pytest.raises(SystemError, match=r"__dlpack__\(\): nargs is -\d+, PyVectorcall_NARGS\(nargs\) was wanted"):
        thing().produce_flagged()


def test_an_embedded_tensor_follows_the_options_of_its_offer_D11_P4():
    backwards = {"shape": (3,), "strides": (-1,), "byte_offset": 16}
    assert dltensor.read(thing(embedded=True, **backwards).__dlpack__(max_version=(1, 0))).strides == (-1,)
    copied = thing(embedded=True, options=DLPACK_PY_OFFER_COPY_NEGATIVE, **backwards)
    says = dltensor.read(copied.__dlpack__(max_version=(1, 0)))
    assert (says.strides, says.flags) == ((1,), IS_COPIED)
    refused = thing(embedded=True, options=DLPACK_PY_OFFER_REFUSE_NEGATIVE, **backwards)
    with pytest.raises(BufferError, match="negative strides are exported only as a copy"):
        refused.__dlpack__(max_version=(1, 0))
    assert dltensor.read(thing(embedded=True, is_copy=True).__dlpack__(max_version=(1, 0))).flags == IS_COPIED


@pytest.mark.parametrize("fields", [{}, {"flags": READ_ONLY}])
def test_memory_without_an_owner_is_not_exported_P9(fields):
    owned, unowned = thing(**fields), thing(no_owner=True, **fields)
    for method in ("produce", "produce_args"):
        getattr(owned, method)(max_version=(1, 0))
        with pytest.raises(SystemError, match="the offer has no owner"):
            getattr(unowned, method)(max_version=(1, 0))


def test_an_offer_without_a_tensor_is_an_error_P7():
    for ask in (Thing.__dlpack__, Thing.__dlpack_device__):
        with pytest.raises(SystemError, match="tensor is NULL"):
            ask(thing(no_tensor=True))


def test_a_wrapped_tensor_has_no_flags_that_are_reserved_C8():
    unsaid = consumer_probe.DLPACK_PY_READ_ONLY_UNKNOWN
    assert dltensor.read(wrap(thing(flags=unsaid))).flags == READ_ONLY


def test_a_copy_that_the_author_made_is_copied_where_its_strides_are_refused_D11():
    fields = {"strides": (-1,), "byte_offset": 16, "options": DLPACK_PY_OFFER_REFUSE_NEGATIVE, "is_copy": True}
    says = dltensor.read(thing(**fields).__dlpack__(copy=True, max_version=(1, 0)))
    assert (says.strides, says.flags) == ((1,), IS_COPIED)
    with pytest.raises(BufferError, match="ask with copy=True"):
        thing(**fields).__dlpack__(max_version=(1, 0))


def test_a_tensor_that_the_first_use_changes_is_checked_after_the_change_D8():
    script = """if 1:
        import atexit, ctypes, producer_probe
        data = ctypes.c_double()
        thing = producer_probe.Thing(ctypes.addressof(data), (1,))
        def register(function, register=atexit.register):
            thing.__init__(ctypes.addressof(data), (-1,))
            return register(function)
        atexit.register = register
        try:
            thing.produce_args()
        except BufferError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("shape[0] is -1, it must not be negative\n", "")
