"""A consumer checks a capsule, then takes it or leaves it unchanged (K, D, C2, C8, C10)."""

import sys
import threading

import consumer_probe
import dlarray
import dltensor
import pytest
from collecting import collect, not_on_pypy
from consumer_probe import DLPACK_PY_ANY_DEVICE, DLPACK_PY_LEGACY, DLPACK_PY_VERSIONED, consume
from dltensor import CPU, DTYPES, FORMS, LEGACY, READ_ONLY, VERSIONED, Kept, Made, Producer

both_forms = pytest.mark.parametrize("form", FORMS)
raw_or_offered = pytest.mark.parametrize("offered", [False, True], ids=["raw", "offered"])


def values(view):
    return dltensor.values(view.data, view.dtype, view.shape, view.strides)


def refuses(made, error, text, want=None):
    """The capsule is refused and unchanged: it can be consumed later, and it deletes its tensor."""
    capsule = made.capsule()
    struct = made.bytes()
    before = sys.getrefcount(capsule)
    with pytest.raises(error, match=text):
        consume(capsule, want or {})
    assert sys.getrefcount(capsule) == before
    assert dltensor.name(capsule) == made.form
    assert made.bytes() == struct
    assert made.deleted == 0
    del capsule
    assert made.deleted == 1


# ---- Ownership: K2, K3, K4, K5 ----


@both_forms
@raw_or_offered
def test_the_capsule_is_renamed_and_the_deleter_called_once_when_the_view_is_released_K4(form, offered):
    made = Made(form)
    capsule = made.capsule()
    view = consume(Kept(capsule) if offered else capsule)
    assert dltensor.name(capsule) == "used_" + form
    assert view.form == {VERSIONED: DLPACK_PY_VERSIONED, LEGACY: DLPACK_PY_LEGACY}[form]
    del capsule
    assert made.deleted == 0
    view.release()
    assert made.deleted == 1
    view.release()
    del view
    assert made.deleted == 1


@both_forms
def test_a_consumed_capsule_is_refused_and_left_alone_K4(form):
    made = Made(form)
    capsule = made.capsule()
    view = consume(capsule)
    for _ in range(2):
        with pytest.raises(ValueError, match="'used_" + form + "'"):
            consume(capsule)
    with pytest.raises(ValueError, match="'used_" + form + "'"):
        consume(Kept(capsule))
    assert made.deleted == 0
    assert values(view) == [0.0, 1.0, 2.0]
    del view
    assert made.deleted == 1


@both_forms
def test_of_many_threads_one_gets_the_capsule_K4(form):
    made = Made(form)
    capsule = made.capsule()
    ready = threading.Barrier(4)
    got, refused = [], []

    def run():
        ready.wait()
        try:
            got.append(consume(capsule))
        except ValueError as error:
            refused.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), len(refused)) == (1, 3)
    got.clear()
    assert made.deleted == 1


@both_forms
@pytest.mark.parametrize("misfit", [{"dtype": "int32"}, {"ndim": 2}, {"device": 2}, {"alignment": 2**30}])
def test_a_misfit_is_found_before_the_capsule_is_renamed_K4(form, misfit):
    refuses(Made(form), BufferError, "asked for", misfit)


@both_forms
def test_a_refused_capsule_may_be_consumed_by_another_consumer_K4(form):
    made = Made(form)
    capsule = made.capsule()
    with pytest.raises(BufferError):
        consume(capsule, {"dtype": "int32"})
    assert values(consume(capsule)) == [0.0, 1.0, 2.0]


@both_forms
def test_an_offered_capsule_that_is_refused_frees_itself_once_K1(form):
    producer = Producer(form)
    before = sys.getrefcount(producer)
    with pytest.raises(BufferError):
        consume(producer, {"dtype": "int32"})
    assert producer.deleted == [1]
    assert sys.getrefcount(producer) == before


@both_forms
def test_a_null_deleter_is_not_called_K3(form):
    view = consume(Made(form, deleter=False).capsule())
    assert values(view) == [0.0, 1.0, 2.0]
    view.release()
    assert not view.held


@both_forms
def test_a_released_or_moved_view_holds_no_tensor_K4(form):
    made = Made(form, strides=None)
    view = consume(made.capsule())
    moved = view.move()
    assert (view.held, moved.held) == (False, True)
    view.release()
    del view
    assert made.deleted == 0
    assert (moved.strides, values(moved)) == ((1,), [0.0, 1.0, 2.0])
    moved.release()
    assert made.deleted == 1


@both_forms
def test_a_view_that_is_moved_to_its_own_place_keeps_its_tensor_K4(form):
    made = Made(form, strides=None)
    view = consume(made.capsule())
    for _ in range(2):
        view.move_onto_itself()
        assert (view.held, view.strides, values(view), made.deleted) == (True, (1,), [0.0, 1.0, 2.0], 0)
    view.release()
    view.move_onto_itself()
    assert (view.empty, made.deleted) == (True, 1)


@both_forms
def test_a_view_may_be_released_on_a_thread_that_is_not_attached_K5(form):
    made = Made(form)
    consume(made.capsule()).release_detached()
    assert made.deleted == 1


@both_forms
def test_an_exception_in_flight_survives_a_release_K2(form):
    made = Made(form)
    error = KeyError("in flight")
    with pytest.raises(KeyError) as raised:
        consume(made.capsule()).release_raising(error)
    assert raised.value is error
    assert error.__context__ is None
    assert made.deleted == 1


@both_forms
def test_an_exception_in_flight_is_not_made_an_instance_by_a_release_K2(form):
    made = []

    class Refusal(Exception):
        def __init__(self):
            made.append(self)

    before_3_12 = sys.version_info < (3, 12)  # since 3.12 raising makes an instance
    tensor = Made(form, on_delete=lambda: seen.append(len(made)))
    seen = []
    with pytest.raises(Refusal):
        consume(tensor.capsule()).release_raising(Refusal)
    assert (seen, len(made)) == ([0 if before_3_12 else 1], 1)


@both_forms
def test_an_exception_in_flight_survives_a_deleter_that_fails_and_the_deleters_is_reported_K2(form, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: reported.append(type(what.exc_value)))

    def fail():
        raise ZeroDivisionError

    error = KeyError("in flight")
    with pytest.raises(KeyError) as raised:
        consume(Made(form, on_delete=fail).capsule()).release_raising(error)
    assert raised.value is error
    assert reported == [ZeroDivisionError]


@not_on_pypy("a finalizer that runs at once")
@both_forms
def test_the_refusal_survives_a_failing_deleter_of_the_capsule_K2(form, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: reported.append(type(what.exc_value)))

    def fail():
        raise ZeroDivisionError

    with pytest.raises(BufferError, match="dtype is float64"):
        consume(Producer(form, on_delete=fail), {"dtype": "int32"})
    assert reported == [ZeroDivisionError]


@both_forms
def test_a_deleter_may_run_python_code_that_uses_the_library_K5(form):
    inner = Made(form)
    outer = Made(form, on_delete=lambda: consume(inner.capsule()))
    consume(outer.capsule()).release()
    assert (outer.deleted, inner.deleted) == (1, 1)


# ---- Versions and forms: C2, K6 ----


@raw_or_offered
@pytest.mark.parametrize("version", [(0, 8), (2, 0), (2, 3), (100, 3), (2**32 - 1, 2**32 - 1)])
def test_a_capsule_of_an_unknown_major_version_is_consumed_and_deleted_but_not_read_K6(version, offered):
    made = Made(version=version, flags=2**64 - 1).poison()
    capsule = made.capsule()
    with pytest.raises(BufferError, match=r"version {}\.{}\b".format(*version)):
        consume(Kept(capsule) if offered else capsule)
    assert dltensor.name(capsule) == "used_dltensor_versioned"
    assert made.deleted == 1
    del capsule
    assert made.deleted == 1


def test_an_unknown_major_version_with_a_null_deleter_is_consumed_K6():
    made = Made(version=(2, 0), deleter=False).poison()
    capsule = made.capsule()
    with pytest.raises(BufferError):
        consume(capsule)
    assert dltensor.name(capsule) == "used_dltensor_versioned"


def test_the_refusal_of_a_version_survives_a_deleter_that_fails_K6(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: reported.append(type(what.exc_value)))

    def fail():
        raise ZeroDivisionError

    capsule = Made(version=(2, 0), on_delete=fail).capsule()
    with pytest.raises(BufferError, match=r"version 2\.0"):
        consume(capsule)
    assert reported == [ZeroDivisionError]


@pytest.mark.parametrize("version", [(1, 0), (1, 1), (1, 2), (1, 3), (1, 99), (1, 2**32 - 1)])
def test_any_minor_version_is_taken_C2(version):
    assert values(consume(Producer(version=version))) == [0.0, 1.0, 2.0]


def test_the_capsule_decides_the_form_and_not_the_call_C2():
    legacy = consume(Producer(LEGACY))
    assert (legacy.form, legacy.flags) == (DLPACK_PY_LEGACY, 0)
    assert consume(Producer(VERSIONED)).form == DLPACK_PY_VERSIONED


# ---- The data model: D ----

INT64_MAX = 2**63 - 1

MALFORMED = {
    "a negative rank": ({"ndim": -1}, "ndim is -1"),
    "the lowest rank": ({"ndim": -(2**31)}, "ndim is -2147483648"),
    "a rank above NumPy's": ({"shape": (1,) * 65}, "ndim is 65"),
    "an absurd rank": ({"ndim": 2**31 - 1}, "ndim is 2147483647"),
    "no shape": ({"shape": None, "ndim": 2}, "shape is NULL, ndim is 2"),
    "a negative extent": ({"shape": (3, -1), "strides": (1, 1)}, r"shape\[1\] is -1"),
    "the lowest extent": ({"shape": (-(2**63),), "strides": (1,)}, r"shape\[0\] is -9223372036854775808"),
    "a negative extent before one of 0": ({"shape": (-1, 0), "strides": (1, 1)}, r"shape\[0\] is -1"),
    "a negative extent after one of 0": ({"shape": (0, -5), "strides": (1, 1)}, r"shape\[1\] is -5"),
    "no data": ({"data": None}, "data is NULL, the tensor has 3 elements"),
    "no data for a scalar": ({"shape": (), "data": None}, "data is NULL, the tensor has 1 element"),
    "no data but an offset": ({"data": None, "byte_offset": 64}, "data is NULL"),
    "too many elements": ({"shape": (2**32, 2**31)}, r"shape\[1\] = 2147483648"),
    "many too many elements": (
        {"shape": (INT64_MAX, INT64_MAX), "strides": (0, 0)},
        r"shape\[1\] = 9223372036854775807",
    ),
    "too many bytes": ({"shape": (2**60,), "strides": (0,)}, "1152921504606846976 elements"),
    "an offset that wraps": ({"byte_offset": 2**64 - 1}, "byte_offset is 18446744073709551615"),
    "an extent that leaves the address range": ({"data": 2**64 - 16}, "strides reach from byte 0 to 24"),
    "strides below the address range": ({"data": 64, "strides": (-8,)}, "strides reach from byte -128 to 8"),
    "strides beyond 64 bits": ({"shape": (5,), "strides": (2**62,)}, "strides reach"),
    "strides below 64 bits": ({"shape": (3,), "strides": (-(2**62),)}, "strides reach"),
    "the lowest stride": ({"shape": (2,), "strides": (-(2**63),)}, "strides reach"),
    "strides whose sum leaves 64 bits": ({"shape": (2, 2), "strides": (INT64_MAX, INT64_MAX)}, "strides reach"),
    "no lanes": ({"dtype": (0, 32, 0)}, "has 32 bits and 0 lanes, at least 1 lane was wanted"),
    "no bits": ({"dtype": (2, 0, 1)}, r"dtype code 2 \(.*\) has 0 bits"),
    "a bool of one bit": ({"dtype": (6, 1, 1)}, r"dtype code 6 \(.*\) has 1 bits"),
    "a bool of 16 bits": ({"dtype": (6, 16, 1)}, r"dtype code 6 \(.*\) has 16 bits"),
    "a complex of odd width": ({"dtype": (5, 63, 1)}, "has 63 bits and 1 lanes, an even number of bits was wanted"),
    "a float8 of 16 bits": ({"dtype": (10, 16, 1)}, r"dtype code 10 \(.*\) has 16 bits"),
    "a float4 of 8 bits": ({"dtype": (17, 8, 1)}, r"dtype code 17 \(.*\) has 8 bits"),
}


@both_forms
@pytest.mark.parametrize("fields, text", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_tensor_is_refused_before_its_data_is_read_D8(form, fields, text):
    refuses(Made(form, **fields), BufferError, text)


@both_forms
@pytest.mark.parametrize("fields, text", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_tensor_is_refused_on_any_device_D8(form, fields, text):
    refuses(Made(form, device=(2, 0), **fields), BufferError, text, {"device": DLPACK_PY_ANY_DEVICE})


@both_forms
@pytest.mark.parametrize("offset", [0, 8, 64, 320])
def test_data_and_byte_offset_make_the_first_element_D1(form, offset):
    made = Made(form, byte_offset=offset)
    view = consume(made.capsule())
    assert view.data == made.address + offset
    assert values(view) == [offset / 8, offset / 8 + 1, offset / 8 + 2]


@both_forms
@pytest.mark.parametrize("strides", [None, ()], ids=["NULL", "not NULL"])
@pytest.mark.parametrize("shape", [None, ()], ids=["no shape", "a shape"])
def test_a_scalar_has_one_element_with_or_without_shape_and_strides_D3(form, shape, strides):
    view = consume(Made(form, ndim=0, shape=shape, strides=strides, byte_offset=16).capsule())
    assert (view.ndim, dltensor.values(view.data, view.dtype, (), ())) == (0, 2.0)


@not_on_pypy("a view at the address id()")
@both_forms
def test_a_scalar_without_strides_gets_none_D4(form):
    view = consume(Made(form, ndim=0, shape=None, strides=None).capsule())
    assert not dltensor.Tensor.from_address(id(view) + object.__basicsize__).strides


@both_forms
@pytest.mark.parametrize("data", [None, 1, 0xDEAD0001, 2**64 - 8])
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 2**62), (2**62, 0), (2**62, 2**62, 0)])
@pytest.mark.parametrize("strides", [None, -(2**63), 0, INT64_MAX])
def test_without_elements_neither_data_nor_offset_nor_strides_matter_D3_D5(form, data, shape, strides):
    strides = strides if strides is None else (strides,) * len(shape)
    producer = Producer(form, data=data, byte_offset=2**64 - 1, shape=shape, strides=strides)
    want = {"order": "C", "alignment": 4096}
    if form == VERSIONED:
        want["writable"] = 1
    view = consume(producer, want)
    assert view.shape == shape
    view.release()
    assert producer.deleted == [1]


@both_forms
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 1, 3), (1,) * 64, (4, 0, 2)])
def test_null_strides_are_filled_in_row_major_and_the_producers_struct_is_unchanged_D4_C10(form, shape):
    made = Made(form, shape=shape, strides=None)
    struct = made.bytes()
    view = consume(made.capsule())
    assert view.strides == dltensor.compact(shape)
    assert made.bytes() == struct


@both_forms
@pytest.mark.parametrize("ndim", [8, 9, 64])
def test_strides_that_were_filled_in_move_with_the_view_D4(form, ndim):
    shape = (1,) * (ndim - 1) + (3,)
    made = Made(form, shape=shape, strides=None)
    view = consume(made.capsule())
    moved = view.move()
    assert (moved.shape, moved.strides) == (shape, dltensor.compact(shape))
    assert (view.empty, moved.empty) == (True, False)
    moved.release()
    assert (moved.empty, made.deleted) == (True, 1)


def test_a_view_is_small_C10():
    assert consumer_probe.VIEW_SIZE <= 200


@pytest.mark.parametrize(
    "shape, strides, overlaps",
    [
        ((3,), (1,), 0),
        ((3,), (-1,), 0),
        ((3,), (2,), 0),
        ((3,), (0,), 1),
        ((1, 3), (0, 1), 0),
        ((2, 3), None, 0),
        ((2, 3), (1, 1), 1),
        ((2, 3), (0, 1), 1),
        ((3, 2), (1, 3), 0),
        ((0, 3), (0, 0), 0),
    ],
)
def test_a_view_tells_if_elements_may_share_memory_C9(shape, strides, overlaps):
    made = Made(shape=shape, strides=strides, byte_offset=64)
    view = consume(made.capsule())
    assert (view.overlaps, view.readonly) == (overlaps, 0)
    copy = consume(Made(shape=shape, strides=strides, byte_offset=64).capsule(), copy=True)
    assert copy.overlaps == 0


@both_forms
def test_strides_without_a_meaning_are_kept_D5(form):
    strides = (-7, 3, INT64_MAX, 0, 1)
    view = consume(Made(form, shape=(1, 2, 1, 1, 3), strides=strides).capsule(), {"order": "C"})
    assert view.strides == strides


@both_forms
@pytest.mark.parametrize(
    "stride, offset, wanted", [(0, 8, [1.0] * 3), (-1, 16, [2.0, 1.0, 0.0]), (-20, 400, [50, 30, 10])]
)
def test_zero_and_negative_strides_are_legal_and_data_is_the_first_element_D5(form, stride, offset, wanted):
    view = consume(Made(form, strides=(stride,), byte_offset=offset).capsule())
    assert (view.strides, values(view)) == ((stride,), wanted)


@both_forms
def test_rank_64_is_taken_D8(form):
    view = consume(Made(form, shape=(1,) * 63 + (3,)).capsule())
    assert view.ndim == 64
    assert dltensor.values(view.data, view.dtype, (3,), (1,)) == [0.0, 1.0, 2.0]


@both_forms
def test_extents_beyond_32_bits_are_taken_D8(form):
    view = consume(Made(form, shape=(2**33, 2), strides=(0, 1)).capsule())
    assert (view.shape, view.strides) == ((2**33, 2), (0, 1))


@both_forms
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_of_the_array_api_is_taken_D7(form, dtype):
    view = consume(Made(form, dtype=dtype).capsule(), {"dtype": dtype})
    assert view.dtype == DTYPES[dtype]


# ---- What is unknown: C8 ----


@both_forms
@pytest.mark.parametrize("dtype", [(0, 4, 1), (3, 64, 1), (4, 16, 1), (8, 8, 1), (15, 6, 1), (17, 4, 2), (18, 32, 1)])
def test_dtypes_of_the_specification_and_lanes_are_kept_D6(form, dtype):
    assert consume(Made(form, dtype=dtype).capsule(), {"alignment": 1}).dtype == dtype


@both_forms
@pytest.mark.parametrize("dtype", [(19, 8, 1), (200, 7, 3), (255, 255, 65535)])
def test_unknown_dtype_codes_are_kept_and_meet_no_wanted_dtype_C8(form, dtype):
    fields = {"dtype": dtype, "shape": (1,)}
    assert consume(Made(form, **fields).capsule(), {"alignment": 1}).dtype == dtype
    refuses(Made(form, **fields), BufferError, r"dtype is dtype\({}, {}, {}\)".format(*dtype), {"dtype": "int8"})


@pytest.mark.parametrize("flags", [2**3, 2**40, 2**63, 2**64 - 1, 6])
def test_unknown_flags_are_kept_visible_and_ignored_C8(flags):
    view = consume(Made(flags=flags).capsule())
    assert view.flags == flags
    assert view.readonly == (flags & 1)
    assert values(view) == [0.0, 1.0, 2.0]


def test_unknown_flags_are_not_exported_again_C8():
    view = consume(Made(flags=2**64 - 1).capsule())
    capsule = view.__dlpack__(max_version=(1, 0))
    assert dltensor.read(capsule).flags == dltensor.READ_ONLY  # padded has no meaning for whole bytes (D6)


def test_copied_memory_that_is_exported_in_place_has_no_copied_flag_P4():
    view = consume(Made(flags=dltensor.IS_COPIED).capsule())
    assert dltensor.read(view.__dlpack__(max_version=(1, 0))).flags == 0


# ---- Everything at once ----


@both_forms
@raw_or_offered
def test_thousands_of_rounds_leave_no_reference_K4(form, offered):
    made = []
    for _ in range(100):
        producer = Producer(form)
        for _ in range(25):
            consume(producer if offered else producer.__dlpack__(max_version=(1, 0)))
        made += producer.made
    collect()
    assert {m.calls for m in made} == {1}
    assert len(made) == 2500


def test_a_view_has_the_device_of_the_tensor_D9():
    assert consume(Made().capsule()).device == CPU
    assert consume(Made(device=(2, 7)).capsule(), {"device": DLPACK_PY_ANY_DEVICE}).device == (2, 7)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 3)])
def test_a_view_of_an_empty_read_only_array_is_read_only_C7_D3(shape):
    array = dlarray.zeros(shape)
    array.setflags(writeable=False)
    for obj in array, array.__dlpack__(max_version=(1, 3)), Made(shape=shape, data=None, flags=READ_ONLY).capsule():
        assert consume(obj).readonly == READ_ONLY
    with pytest.raises(BufferError, match="data is read-only"):
        consume(array, {"writable": 1})
