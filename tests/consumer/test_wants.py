"""Requirements of a caller of dlpack_py_consume: a tensor meets them, is copied, or is refused (C5, C6, C7, C9)."""

import array
import ctypes
import math
import os
import subprocess
import sys

import dltensor
import pytest
from collecting import PYPY, collect, not_on_pypy
from consumer_probe import (
    DLPACK_PY_ANY_DEVICE,
    DLPACK_PY_READ_ONLY,
    DLPACK_PY_READ_ONLY_UNKNOWN,
    DLPACK_PY_SCALAR,
    DLPACK_PY_VERSIONED,
    DLPACK_PY_WANT_COPY_IF_NEEDED,
    DLPACK_PY_WANT_LEGACY_IS_WRITABLE,
    DLPACK_PY_WANT_NOTHING_PENDING,
    DLPACK_PY_WANT_OVERLAP_IS_FINE,
    DLPACK_PY_WRITABLE,
    check,
    consume,
    from_dlpack,
    raise_error,
)
from dltensor import FORMS, IS_COPIED, LEGACY, PADDED, READ_ONLY, VERSIONED, Made, Producer
from optional import numpy

both_forms = pytest.mark.parametrize("form", FORMS)

UNALIGNED = {"byte_offset": dltensor.ALIGNMENT // 2}
MATRIX = {"shape": (2, 3)}
TRANSPOSED = {"shape": (3, 2), "strides": (1, 3)}


def values(view):
    return dltensor.values(view.data, view.dtype, view.shape, view.strides)


# ---- Requirements: C9 ----

# fields of the producer's tensor, requirements, the text of the error
MISFITS = {
    "dtype": ({}, {"dtype": "int32"}, "dtype is float64, int32 was asked for"),
    "dtypes": ({}, {"dtypes": ("int32", "float32")}, "dtype is float64, int32 or float32 was asked for"),
    "dtype and dtypes": ({}, {"dtype": "bool", "dtypes": ("int8",)}, "dtype is float64, bool or int8 was asked for"),
    "lanes": ({"dtype": (2, 32, 4)}, {"dtype": "float32"}, "dtype is float32x4, float32 was asked for"),
    "rank": ({}, {"ndim": 2}, "ndim is 1, 2 was asked for"),
    "scalar": ({}, {"ndim": DLPACK_PY_SCALAR}, "ndim is 1, 0 was asked for"),
    "no scalar": ({"shape": ()}, {"ndim": 1}, "ndim is 0, 1 was asked for"),
    "rank below a range": ({}, {"ndim": 2, "max_ndim": 4}, "ndim is 1, 2 to 4 was asked for"),
    "rank above a range": (MATRIX, {"max_ndim": 1}, "ndim is 2, 0 to 1 was asked for"),
    "shape": (MATRIX, {"ndim": 2, "shape": (-1, 4)}, r"shape\[1\] is 3, 4 was asked for"),
    "no elements": ({}, {"ndim": 1, "shape": (0,)}, r"shape\[0\] is 3, 0 was asked for"),
    "order C": (TRANSPOSED, {"order": "C"}, r"strides\[1\] is 3, 1 was asked for by order 'C'"),
    "order C of rows": ({**MATRIX, "strides": (4, 1)}, {"order": "C"}, r"strides\[0\] is 4, 3 was asked for"),
    "order C of columns behind an extent of 1": (
        {"shape": (1, 3, 2), "strides": (9, 1, 3)},
        {"order": "C"},
        r"strides\[2\] is 3, 1 was asked for by order 'C'",
    ),
    "order F of huge rows behind an extent of 1": (
        {"shape": (1, 3, 2**31), "strides": (0, 2**31, 1), "dtype": "int8"},
        {"order": "F"},
        r"strides\[1\] is 2147483648, 1 was asked for by order 'F'"
        if sys.maxsize > 2**32
        else "leaves the address range",
    ),
    "order F of huge rows without strides": (
        {"shape": (3, 2**31), "strides": None, "dtype": "int8"},
        {"order": "F"},
        r"strides\[0\] is 2147483648, 1 was asked for by order 'F'"
        if sys.maxsize > 2**32
        else "leaves the address range",
    ),
    "order F": (MATRIX, {"order": "F"}, r"strides\[0\] is 3, 1 was asked for by order 'F'"),
    "order A": ({"strides": (2,)}, {"order": "A"}, r"strides\[0\] is 2, 1 was asked for by order 'A'"),
    "order K": ({**MATRIX, "strides": (4, 1)}, {"order": "K"}, "not compact in any order .* order 'K' was asked for"),
    "order R of columns": (TRANSPOSED, {"order": "R"}, r"strides\[1\] is 3, 1 was asked for by order 'R'"),
    "order R of one row": ({"strides": (2,)}, {"order": "R"}, r"strides\[0\] is 2, 1 was asked for by order 'R'"),
    "name of the argument": ({}, {"dtype": "int32", "name": "out"}, "^out: dtype is float64, int32 was asked for$"),
    "device": ({"device": (2, 1)}, {}, "device is cuda:1, memory that the CPU can read was asked for"),
    "device of a type": ({}, {"device": 2}, "device is cpu, cuda was asked for"),
    "device of an unknown type": ({}, {"device": 99}, "device is cpu, .*99.* was asked for"),
    "alignment": (UNALIGNED, {}, f"alignment to {dltensor.ALIGNMENT} bytes was asked for"),
    "more alignment": ({"byte_offset": 32}, {"alignment": 64}, "alignment to 64 bytes was asked for"),
}


@both_forms
@pytest.mark.parametrize("came, want, text", MISFITS.values(), ids=MISFITS)
def test_the_refusal_of_a_misfit_names_the_tensor_and_the_requirement_C9(form, came, want, text):
    producer = Producer(form, **came)
    before = sys.getrefcount(producer)
    with pytest.raises(BufferError, match=text):
        consume(producer, want)
    assert len(producer.calls) == 1
    assert producer.deleted == [1]
    assert sys.getrefcount(producer) == before


FITS = {
    "dtype": ({}, {"dtype": "float64"}),
    "one of the dtypes": ({}, {"dtypes": ("int32", "float64")}),
    "dtype beside dtypes": ({}, {"dtype": "float64", "dtypes": ("int8",)}),
    "lanes": ({"dtype": (2, 32, 4)}, {"dtype": "float32x4"}),
    "rank": (MATRIX, {"ndim": 2}),
    "scalar": ({"shape": ()}, {"ndim": DLPACK_PY_SCALAR}),
    "range from 0": ({"shape": ()}, {"max_ndim": 2}),
    "range from scalar": (MATRIX, {"ndim": DLPACK_PY_SCALAR, "max_ndim": 2}),
    "range": (MATRIX, {"ndim": 1, "max_ndim": 2}),
    "shape": (MATRIX, {"ndim": 2, "shape": (-1, 3)}),
    "order C": (MATRIX, {"order": "C"}),
    "order F": (TRANSPOSED, {"order": "F"}),
    "order A of rows": (MATRIX, {"order": "A"}),
    "order A of columns": (TRANSPOSED, {"order": "A"}),
    "order K": ({"shape": (3, 2, 4), "strides": (4, 12, 1)}, {"order": "K"}),
    "order R with a pitch": ({**MATRIX, "strides": (8, 1)}, {"order": "R"}),
    "order R upwards": ({"shape": (2, 2, 3), "strides": (-6, 3, 1), "byte_offset": 48}, {"order": "R"}),
    "order R of one row": ({}, {"order": "R"}),
    "order of what has one element in a row": ({"shape": (3, 1), "strides": (1, 77)}, {"order": "C"}),
    "alignment of half a complex": ({"dtype": "complex128", "byte_offset": 8}, {}),
    "no alignment": (UNALIGNED, {"alignment": 1}),
    "much alignment": ({}, {"alignment": 64}),
    "device": ({"device": (2, 0)}, {"device": 2}),
    "any device": ({"device": (10, 3)}, {"device": DLPACK_PY_ANY_DEVICE}),
}


@both_forms
@pytest.mark.parametrize("came, want", FITS.values(), ids=FITS)
def test_a_tensor_that_meets_the_requirements_is_taken_unchanged_C9(form, came, want):
    producer = Producer(form, **came)
    view = consume(producer, want)
    assert view.data == producer.made[0].address + came.get("byte_offset", 0)
    assert view.strides == came.get("strides", dltensor.compact(view.shape))


@pytest.mark.parametrize("pitch, overlaps", [(8, False), (3, False), (-8, False), (2, True), (0, True)])
def test_writable_rows_do_not_overlap_C9(pitch, overlaps):
    rows = Producer(shape=(2, 3), strides=(pitch, 1), byte_offset=64)
    if overlaps:
        with pytest.raises(BufferError, match="elements may share memory"):
            consume(rows, {"order": "R", "writable": 1})
    else:
        assert consume(rows, {"order": "R", "writable": 1}).strides == (pitch, 1)


@pytest.mark.parametrize("want", [{"order": "C"}, {"dtype": "int8"}, {"ndim": 1}, {"writable": 1}])
def test_an_unsupported_device_is_the_first_error_C5_C9(want):
    with pytest.raises(BufferError, match="device is cuda:0, memory that the CPU can read was asked for"):
        consume(Producer(LEGACY, shape=(2, 3), strides=(1, 2), device=(2, 0)), want)


@pytest.mark.parametrize("want", [{"order": "C"}, {"dtype": "int8"}, {"ndim": 1}, {"writable": 1}])
def test_cpu_memory_where_a_device_is_wanted_is_the_first_error_C5_C9(want):
    with pytest.raises(BufferError, match="device is cpu, cuda was asked for"):
        consume(Producer(LEGACY, shape=(2, 3), strides=(1, 2)), {**want, "device": 2})


# ---- Requirements that make no sense: C9 ----

CONTRADICTIONS = {
    "shape without a rank": ({"shape": (1, 2)}, r"ndim is 0 and max_ndim is 0, .* \(one rank where shape is set\)"),
    "shape with a range": ({"ndim": 2, "max_ndim": 3, "shape": (1, 2)}, "ndim is 2 and max_ndim is 3, a range"),
    "shape with a range from 0": ({"max_ndim": 3, "shape": (1, 2)}, "ndim is 0 and max_ndim is 3, a range"),
    "a range upside down": ({"ndim": 3, "max_ndim": 2}, "ndim is 3 and max_ndim is 2, a range"),
    "a negative range": ({"max_ndim": -1}, "max_ndim is -1"),
    "a negative range of scalars": ({"ndim": DLPACK_PY_SCALAR, "max_ndim": -1}, "max_ndim is -1"),
    "a negative rank": ({"ndim": -2}, "ndim is -2 and max_ndim is 0, a range"),
    "a negative device": ({"device": -5}, "device is -5, a DLDeviceType or DLPACK_PY_ANY_DEVICE was wanted"),
    "a small order": ({"order": "c"}, "order is 'c', 'C', 'F', 'A', 'K' or 'R' was wanted"),
    "an unknown order": ({"order": "Q"}, "order is 'Q'"),
    "an odd alignment": ({"alignment": 24}, "alignment is 24, a power of two was wanted"),
    "a code in a list of dtypes": ({"dtypes": ("int8", 2, "int16")}, "want: dtype is 2, a dtype such as"),
    "a code in place of a dtype": ({"dtype": 2}, "dtype is 2, a dtype such as DLPACK_PY_FLOAT32 was wanted"),
}


@pytest.mark.parametrize("want, text", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradictory_requirements_are_an_error_before_the_object_is_called_C9(want, text):
    producer, made = Producer(), Made()
    capsule = made.capsule()
    for obj in (producer, capsule, object()):
        with pytest.raises(SystemError, match=text):
            consume(obj, want)
    assert (producer.calls, made.deleted, dltensor.name(capsule)) == ([], 0, VERSIONED)


def test_the_error_of_a_contradiction_has_the_name_of_the_argument_C9():
    with pytest.raises(SystemError, match="^out: want: order is 'Q'"):
        consume(Producer(), {"order": "Q", "name": "out"})


@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3)])
def test_requirements_like_another_tensor_fix_its_rank_C9(shape):
    like = consume(Producer(shape=shape, dtype="int16"))
    assert consume(Producer(shape=shape, dtype="int16"), like=like).shape == shape
    for other in ((), (3,), (4,), (2, 0, 3), (2, 0, 4), (1, 3)):
        if other != shape:
            with pytest.raises(BufferError, match="was asked for"):
                consume(Producer(shape=other, dtype="int16"), like=like)
    with pytest.raises(BufferError, match="dtype is uint16, int16 was asked for"):
        consume(Producer(shape=shape, dtype="uint16"), like=like)


def test_requirements_like_pinned_memory_accept_any_memory_that_the_cpu_can_read_C9():
    pinned = Producer(device=dltensor.CUDA_HOST)
    like = consume(pinned, {"options": DLPACK_PY_WANT_NOTHING_PENDING})
    assert like.device == dltensor.CUDA_HOST
    assert consume(Producer(), like=like).device == dltensor.CPU


def test_requirements_like_device_memory_accept_any_device_of_its_type_C9():
    like = consume(Producer(device=dltensor.CUDA), {"device": dltensor.CUDA[0]})
    assert consume(Producer(device=(dltensor.CUDA[0], 3)), like=like).device == (dltensor.CUDA[0], 3)
    with pytest.raises(BufferError, match="device is cpu, cuda was asked for"):
        consume(Producer(), like=like)


@pytest.mark.parametrize("form, flagged", [(VERSIONED, READ_ONLY), (LEGACY, READ_ONLY)])
def test_the_readonly_field_of_a_view_is_safe_as_flags_C7(form, flagged):
    assert consume(Producer(form, flags=READ_ONLY if form == VERSIONED else 0)).readonly & 7 == flagged


# ---- Writable memory: C7, C9 ----


def test_a_versioned_tensor_without_the_read_only_flag_is_writable_C7():
    view = consume(Producer(), {"writable": 1})
    assert view.readonly == DLPACK_PY_WRITABLE


def test_read_only_memory_is_refused_if_writable_memory_is_wanted_C7():
    producer = Producer(flags=READ_ONLY)
    assert consume(producer).readonly == DLPACK_PY_READ_ONLY
    with pytest.raises(BufferError, match="data is read-only, writable memory was asked for$"):
        consume(producer, {"writable": 1})
    assert producer.deleted == [1, 1]


def test_the_option_for_legacy_capsules_does_not_make_read_only_memory_writable_C7():
    with pytest.raises(BufferError, match="read-only"):
        consume(Producer(flags=READ_ONLY), {"writable": 1, "options": DLPACK_PY_WANT_LEGACY_IS_WRITABLE})


def test_the_refusal_of_a_legacy_capsule_says_that_it_has_no_flag_C7():
    producer = Producer(LEGACY)
    assert consume(producer).readonly == DLPACK_PY_READ_ONLY_UNKNOWN
    with pytest.raises(
        BufferError, match=r"read-only, writable memory was asked for \(a legacy capsule has no read-only flag\)$"
    ):
        consume(producer, {"writable": 1})


def test_a_legacy_capsule_is_writable_with_the_option_C7():
    view = consume(Producer(LEGACY), {"writable": 1, "options": DLPACK_PY_WANT_LEGACY_IS_WRITABLE})
    assert view.readonly == DLPACK_PY_WRITABLE
    assert dltensor.read(view.__dlpack__(max_version=(1, 0))).flags == 0
    assert dltensor.read(view.__dlpack__()).form == LEGACY


def test_a_legacy_import_is_exported_as_legacy_or_with_the_read_only_flag_C7():
    view = consume(Producer(LEGACY))
    assert dltensor.read(view.__dlpack__()).data == view.data
    assert dltensor.read(view.__dlpack__(max_version=(1, 0))).flags == READ_ONLY


def test_a_read_only_import_is_exported_in_the_versioned_form_only_C7():
    view = consume(Producer(flags=READ_ONLY))
    with pytest.raises(BufferError, match="read-only"):
        view.__dlpack__()
    assert dltensor.read(view.__dlpack__(max_version=(1, 0))).flags == READ_ONLY


def test_the_padded_flag_is_kept_on_export_C7():
    view = consume(Producer(dtype=(17, 4, 1), flags=PADDED), {"alignment": 1})
    with pytest.raises(BufferError, match="padded"):
        view.__dlpack__()
    assert dltensor.read(view.__dlpack__(max_version=(1, 0))).flags == PADDED


OVERLAPPING = {"broadcast": {"strides": (0,)}, "windows": {"shape": (4, 3), "strides": (1, 1)}}


@both_forms
@pytest.mark.parametrize("came", OVERLAPPING.values(), ids=OVERLAPPING)
def test_writable_memory_that_overlaps_itself_is_refused_without_the_option_C9(form, came):
    options = DLPACK_PY_WANT_LEGACY_IS_WRITABLE
    with pytest.raises(BufferError, match="elements may share memory, writable memory without overlap was asked for"):
        consume(Producer(form, **came), {"writable": 1, "options": options})
    consume(Producer(form, **came), {"writable": 1, "options": options | DLPACK_PY_WANT_OVERLAP_IS_FINE})
    consume(Producer(form, **came))


# ---- A copy where one is needed ----

CURABLE = {
    "order C": (TRANSPOSED, {"order": "C"}),
    "order C on the CPU": (TRANSPOSED, {"order": "C", "device": 1}),
    "order F": (MATRIX, {"order": "F"}),
    "order A": ({"strides": (2,)}, {"order": "A"}),
    "order K": ({**MATRIX, "strides": (4, 1)}, {"order": "K"}),
    "alignment": ({"dtype": "int32", "byte_offset": 6}, {}),
    "64 bytes": ({"byte_offset": 32}, {"alignment": 64}),
    "4096 bytes": ({"byte_offset": 8}, {"alignment": 4096}),
    "read-only": ({"flags": READ_ONLY}, {"writable": 1}),
    "broadcast": ({"strides": (0,)}, {"writable": 1}),
    "negative": ({"strides": (-1,), "byte_offset": 16}, {"order": "C"}),
    "everything": (
        {**TRANSPOSED, "flags": READ_ONLY, "byte_offset": 8},
        {"order": "F", "writable": 1, "alignment": 128},
    ),
}


@pytest.mark.parametrize("came, want", CURABLE.values(), ids=CURABLE)
def test_a_misfit_that_a_copy_can_fix_is_copied_with_the_option_C9(came, want):
    producer = Producer(**came)
    plain = consume(producer, {"alignment": 1})
    wanted, wish = values(plain), {**want, "options": DLPACK_PY_WANT_COPY_IF_NEEDED}
    struct = producer.made[0].bytes()
    with pytest.raises(BufferError):
        consume(producer, want)

    view = consume(producer, wish)
    assert producer.deleted == [0, 1, 1]
    assert values(view) == wanted
    assert view.data != plain.data
    assert view.data % max(want.get("alignment", 64), 1) == 0
    assert (view.readonly, view.flags, view.form) == (DLPACK_PY_WRITABLE, IS_COPIED, DLPACK_PY_VERSIONED)
    in_order = dltensor.compact(view.shape[::-1])[::-1] if want.get("order") == "F" else dltensor.compact(view.shape)
    assert view.strides == in_order
    ctypes.memset(view.data, 0x55, 8)
    assert values(plain) == wanted
    assert producer.made[0].bytes() == struct


def test_a_legacy_tensor_is_copied_if_writable_memory_is_wanted_C7():
    producer = Producer(LEGACY)
    view = consume(producer, {"writable": 1, "options": DLPACK_PY_WANT_COPY_IF_NEEDED})
    assert (values(view), view.readonly) == ([0.0, 1.0, 2.0], DLPACK_PY_WRITABLE)
    assert producer.deleted == [1]


def test_a_tensor_with_null_strides_can_be_copied_D4():
    view = consume(Producer(**MATRIX, strides=None), {"order": "F", "options": DLPACK_PY_WANT_COPY_IF_NEEDED})
    assert (values(view), view.strides) == ([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], (1, 2))


@pytest.mark.parametrize("came, want", FITS.values(), ids=FITS)
def test_a_tensor_that_meets_the_requirements_is_not_copied_C9(came, want):
    producer = Producer(**came)
    view = consume(producer, {**want, "options": DLPACK_PY_WANT_COPY_IF_NEEDED})
    assert view.data == producer.made[0].address + came.get("byte_offset", 0)
    assert producer.deleted == [0]


INCURABLE = ["dtype", "lanes", "rank", "shape", "device", "device of a type"]


@pytest.mark.parametrize("came, want, text", [MISFITS[name] for name in INCURABLE], ids=INCURABLE)
def test_a_misfit_that_a_copy_cannot_fix_is_refused_C9(came, want, text):
    producer = Producer(**came)
    with pytest.raises(BufferError, match=text):
        consume(producer, {**want, "options": DLPACK_PY_WANT_COPY_IF_NEEDED})
    assert producer.deleted == [1]


def test_a_needed_copy_is_refused_with_copy_false_P4():
    producer = Producer(**TRANSPOSED)
    with pytest.raises(BufferError, match="1 was asked for by order 'C'"):
        consume(producer, {"order": "C", "options": DLPACK_PY_WANT_COPY_IF_NEEDED}, copy=False)
    assert producer.deleted == [1]


def test_a_raw_capsule_that_needs_a_copy_is_unchanged_with_copy_false_K4():
    made = Made(**TRANSPOSED)
    capsule = made.capsule()
    with pytest.raises(BufferError, match="1 was asked for by order 'C'"):
        consume(capsule, {"order": "C", "options": DLPACK_PY_WANT_COPY_IF_NEEDED}, copy=False)
    assert (dltensor.name(capsule), made.deleted) == (VERSIONED, 0)


def test_memory_of_another_device_is_not_copied_C5():
    producer = Producer(**TRANSPOSED, device=(2, 0))
    want = {"device": DLPACK_PY_ANY_DEVICE, "order": "C", "options": DLPACK_PY_WANT_COPY_IF_NEEDED}
    with pytest.raises(BufferError, match=r"strides\[1\] is 3, 1 was asked for by order 'C'"):
        consume(producer, want)
    assert producer.deleted == [1]


@pytest.mark.parametrize("flags, packed", [(0, b"\x21\x03"), (PADDED, b"\x01\x02\x03")])
def test_sub_byte_elements_are_copied_as_stored_D6(flags, packed):
    stored = ctypes.create_string_buffer(b"\x21\x43\x65" if flags == 0 else b"\x01\x02\x03")
    producer = Producer(dtype=(17, 4, 1), data=ctypes.addressof(stored), flags=flags | READ_ONLY)
    view = consume(producer, {"writable": 1, "options": DLPACK_PY_WANT_COPY_IF_NEEDED})
    copied = bytearray(ctypes.string_at(view.data, len(packed)))
    if flags == 0:
        copied[1] &= 0x0F  # the unused half of the last byte
    assert copied == packed
    assert view.flags == flags | IS_COPIED


def test_a_copy_without_enough_memory_is_a_memory_error_and_releases_the_tensor_P7():
    producer = Producer(shape=(2**33, 2**25), strides=(0, 0))
    with pytest.raises(MemoryError, match="2305843009213693952 bytes"):
        consume(producer, {"order": "C", "options": DLPACK_PY_WANT_COPY_IF_NEEDED})
    assert producer.deleted == [1]


@pytest.mark.parametrize(
    "fields, want",
    [
        ({"shape": (2**60 - 1,), "strides": (0,)}, {"order": "C"}),  # with head and alignment beyond ptrdiff_t
        ({}, {"alignment": -sys.maxsize - 1}),  # as size_t: sys.maxsize + 1
        ({"shape": (2**60 - 1,), "strides": (0,)}, {"alignment": -sys.maxsize - 1}),  # beyond size_t
    ],
)
def test_a_copy_that_no_address_range_holds_is_a_memory_error_P7(fields, want):
    producer = Producer(**fields)
    with pytest.raises(MemoryError, match=f"no memory for {8 * math.prod(fields.get('shape', (3,)))} bytes"):
        consume(producer, {**want, "options": DLPACK_PY_WANT_COPY_IF_NEEDED})
    assert producer.deleted == [1]


@pytest.mark.parametrize(
    "code, error",
    [
        (1, BufferError),
        (2, ValueError),
        (3, TypeError),
        (4, MemoryError),
        (5, RuntimeError),
        (6, SystemError),
        (0, BufferError),
        (7, BufferError),
        (-1, BufferError),
    ],
)
def test_each_code_of_an_error_has_its_exception_and_an_unknown_code_is_a_buffer_error_P7(code, error):
    with pytest.raises(error, match="^what is wrong$") as raised:
        raise_error(code, "what is wrong")
    assert type(raised.value) is error


# ---- The buffer protocol: C6 ----

BUFFERS = {
    **{f"array {code}": (array.array(code, [1, 2, 3]), [1, 2, 3]) for code in "bBhHiIlLqQfd"},
    "bytes": (b"\x01\x02\x03", [1, 2, 3]),
    "bytearray": (bytearray(b"\x01\x02\x03"), [1, 2, 3]),
    "matrix": (memoryview(bytes(range(6))).cast("B", (2, 3)), [[0, 1, 2], [3, 4, 5]]),
    "steps": (memoryview(bytes(range(6)))[1::2], [1, 3, 5]),
    "backwards": (memoryview(array.array("i", [1, 2, 3]))[::-1], [3, 2, 1]),
    "scalar": (memoryview(b"\x07").cast("B", ()), 7),
    "bools": (memoryview(b"\x01\x00").cast("?"), [True, False]),
    "characters": (memoryview(b"ab").cast("c"), [97, 98]),
    "empty": (b"", []),
    "ctypes": ((ctypes.c_int16 * 2 * 3)((1, 2), (3, 4), (5, 6)), [[1, 2], [3, 4], [5, 6]]),
    "native order": (
        (ctypes.c_double.__ctype_le__ if sys.byteorder == "little" else ctypes.c_double.__ctype_be__)(1.5),
        1.5,
    ),
}


@pytest.mark.parametrize("thing, wanted", BUFFERS.values(), ids=BUFFERS)
def test_buffers_are_taken_if_the_caller_allows_it_C6(thing, wanted):
    with pytest.raises(AttributeError, match="__dlpack__"):
        consume(thing)
    before = sys.getrefcount(thing)
    view = consume(thing, {"fallback": 1})
    memory = memoryview(thing)
    assert values(view) == wanted
    assert view.shape == memory.shape
    assert view.strides == tuple(stride // memory.itemsize for stride in memory.strides)
    assert view.readonly == (DLPACK_PY_READ_ONLY if memory.readonly else DLPACK_PY_WRITABLE)
    assert view.device == (1, 0)
    del memory, view
    assert sys.getrefcount(thing) == before
    assert not check(thing)


def test_a_buffer_is_shared_and_held_until_the_view_is_released_C6():
    thing = bytearray(b"\x01\x02\x03")
    view = consume(thing, {"fallback": 1, "writable": 1})
    thing[1] = 9
    assert values(view) == [1, 9, 3]
    ctypes.memset(view.data, 7, 1)
    assert thing[0] == 7
    if not PYPY:  # there a buffer does not lock a bytearray
        with pytest.raises(BufferError):  # exports exist
            thing.append(1)
    view.release_detached()
    collect()  # PyPy unlocks it only now
    thing.append(1)


def test_a_read_only_buffer_is_refused_if_writable_memory_is_wanted_C7():
    with pytest.raises(BufferError, match="read-only"):
        consume(b"abc", {"fallback": 1, "writable": 1})
    view = consume(b"abc", {"fallback": 1, "options": DLPACK_PY_WANT_COPY_IF_NEEDED, "writable": 1})
    assert values(view) == [97, 98, 99]


@pytest.mark.parametrize(
    "thing, text",
    [
        (memoryview(bytearray(8)).cast("P"), "'P'"),
        (array.array("w" if sys.version_info >= (3, 13) else "u", "ab"), "format is '[uw]'"),
        (
            type("Pair", (ctypes.Structure,), {"_fields_": [("a", ctypes.c_int), ("b", ctypes.c_int)]})(),
            "format is 'T{",
        ),
        (ctypes.c_longdouble(1.0) if ctypes.sizeof(ctypes.c_longdouble) > 8 else (ctypes.c_void_p * 1)(), "format is "),
        (
            ctypes.c_int32.__ctype_be__(1) if sys.byteorder == "little" else ctypes.c_int32.__ctype_le__(1),
            "format is '[><]",
        ),
    ],
    ids=["pointers", "text", "structs", "long double", "foreign byte order"],
)
def test_a_buffer_whose_elements_have_no_dtype_is_refused_by_its_format_D10(thing, text):
    before = sys.getrefcount(thing)
    with pytest.raises(BufferError, match=text):
        consume(thing, {"fallback": 1})
    assert sys.getrefcount(thing) == before


@pytest.mark.parametrize("dtype", dltensor.DTYPES)
def test_buffers_of_every_dtype_are_taken_D7(dtype):
    numbers = numpy.array([0, 1, 1], dtype)
    view = consume(memoryview(numbers)[::-1], {"fallback": 1})
    assert (view.dtype, view.strides) == (dltensor.DTYPES[dtype], (-1,))
    assert values(view) == [1, 1, 0]


def test_a_buffer_of_foreign_byte_order_is_refused_unless_its_elements_are_bytes_D10():
    swapped = numpy.array([1, 2], "i4").byteswap().view(numpy.dtype("i4").newbyteorder())
    with pytest.raises(BufferError, match="format is '[><][il]'"):
        consume(memoryview(swapped), {"fallback": 1})
    assert values(consume(memoryview(numpy.array([1, 2], ">i1")), {"fallback": 1})) == [1, 2]


def test_a_buffer_whose_strides_are_no_multiple_of_the_item_size_is_refused_unless_it_has_one_element_P7():
    column = numpy.zeros(3, [("a", "i4"), ("b", "i1")])["a"]
    with pytest.raises(BufferError, match=r"strides\[0\] is 5 bytes, a multiple of 4"):
        consume(memoryview(column), {"fallback": 1})
    assert values(consume(memoryview(column[:1]), {"fallback": 1})) == [0]


def test_a_buffer_that_does_not_meet_the_requirements_is_released_C9():
    thing = bytearray(3)
    with pytest.raises(BufferError, match="dtype is uint8, float32 was asked for"):
        consume(thing, {"fallback": 1, "dtype": "float32"})
    collect()
    thing.append(1)


def test_dlpack_comes_before_the_buffer_protocol_C6():
    made = Made()

    class Both(bytearray):
        def __dlpack__(self, **keywords):
            return made.capsule()

    assert consume(Both(3), {"fallback": 1}).data == made.address

    class Refusing(bytearray):
        def __dlpack__(self, **keywords):
            raise BufferError("not now")

    with pytest.raises(BufferError, match="not now"):
        consume(Refusing(3), {"fallback": 1})


@pytest.mark.parametrize("how", ["in the method", "by a look-up in it", "from C", "of the second call"])
def test_an_attribute_error_of_the_method_does_not_mean_its_absence_C6(how):
    error = AttributeError("of the producer")

    class Failing(bytearray):
        def __dlpack__(self, **keywords):
            if how == "by a look-up in it":
                return self.missing
            if how == "from C":
                return memoryview(b"").missing
            if how == "of the second call" and keywords:
                raise TypeError("no keywords")
            raise error

    with pytest.raises(AttributeError) as raised:
        consume(Failing(3), {"fallback": 1})
    if how in ("in the method", "of the second call"):
        assert raised.value is error
    else:
        assert "missing" in str(raised.value)


def test_an_error_of_the_second_look_for_a_method_that_is_absent_is_raised_C6():
    class Odd(bytearray):
        errors = [ValueError("of the second look"), AttributeError("of the first look")]

        def __getattr__(self, name):
            raise self.errors.pop() if name == "__dlpack__" else AttributeError(name)

    with pytest.raises(ValueError, match="^of the second look$"):
        consume(Odd(3), {"fallback": 1})
    assert Odd.errors == []


def test_an_attribute_error_of_the_method_of_an_array_is_raised_C6():
    class Failing(array.array):
        def __dlpack__(self, **keywords):
            raise AttributeError("not now")

    with pytest.raises(AttributeError, match="^not now$"):
        consume(Failing("d", [1.0]), {"fallback": 1})


@not_on_pypy("counts of references")
def test_after_an_attribute_error_of_the_method_no_reference_is_kept_C6():
    class Failing(bytearray):
        def __dlpack__(self, **keywords):
            raise AttributeError("not now")

    failing = Failing(3)
    before = sys.getrefcount(failing)
    for _ in range(3):
        with pytest.raises(AttributeError, match="not now"):
            consume(failing, {"fallback": 1})
    assert sys.getrefcount(failing) == before


def test_an_object_with_neither_dlpack_nor_buffer_is_an_attribute_error_C6():
    with pytest.raises(AttributeError, match="__dlpack__"):
        consume(object(), {"fallback": 1})


def test_a_misfit_is_refused_by_its_requirement_if_no_copy_can_be_made_C9():
    copied = {"order": "C", "options": DLPACK_PY_WANT_COPY_IF_NEEDED}
    for device, want in [((2, 0), {"device": 2}), ((2, 0), {"device": -1}), ((3, 0), {"device": 3})]:
        producer = Producer(shape=(2, 3), strides=(1, 2), device=device)
        with pytest.raises(BufferError, match=r"strides\[1\] is 2, 1 was asked for by order 'C'"):
            consume(producer, {**copied, **want})


def test_a_copying_fallback_is_refused_with_copy_false_C3():
    assert consume(object(), {"fallback": 3}).flags == IS_COPIED
    with pytest.raises(BufferError, match="out: copy is False, and this object only offers a copy"):
        consume(object(), {"fallback": 3, "name": "out"}, copy=False)


def test_a_fallback_that_fails_without_an_exception_is_a_systemerror_C6():
    for want in {}, {"name": "out"}:
        with pytest.raises(SystemError, match="^want->fallback raised no exception$"):
            consume(object(), {"fallback": 2, **want})


def test_a_tensor_of_a_fallback_that_fails_is_not_taken_C6():
    for want in {}, {"name": "out"}:
        with pytest.raises(ValueError, match="^too late$"):
            consume(object(), {"fallback": 4, **want})


def test_a_buffer_is_copied_on_request_C3():
    thing = bytearray(b"\x01\x02\x03")
    view = consume(thing, {"fallback": 1}, copy=True)
    assert (values(view), view.flags) == ([1, 2, 3], IS_COPIED)
    collect()
    thing.append(1)


def test_a_buffer_that_meets_the_requirements_is_not_copied_with_copy_false_C3():
    thing = bytearray(b"\x01\x02\x03")
    view = consume(thing, {"fallback": 1}, copy=False, device="cpu")
    thing[0] = 9
    assert values(view) == [9, 2, 3]
    with pytest.raises(BufferError, match="device is cpu, cuda:0 was asked for"):
        consume(thing, {"fallback": 1}, device=(2, 0))


# ---- Copies on request: C3, P4 ----


@both_forms
@pytest.mark.parametrize("order, strides", [("C", (2, 1)), ("F", (1, 3)), ("K", None), (None, None)])
@pytest.mark.parametrize("came", [TRANSPOSED, MATRIX, {"shape": (3, 2), "strides": (4, 2)}], ids=str)
def test_a_requested_copy_has_the_wanted_order_P4(form, order, strides, came):
    """The producer's copy has the order of the original, as in NumPy. The consumer copies it into the wanted order."""
    came = {**came, "shape": (3, 2), "strides": came.get("strides", (2, 1))}
    producer = Producer(form, flags=IS_COPIED if form == VERSIONED else 0, **came)
    want = {"writable": 1, **({"order": order} if order else {})}
    view = consume(producer, want, copy=True)
    x, y = came["strides"]
    assert values(view) == [[float(i * x + j * y) for j in range(2)] for i in range(3)]
    assert strides is None or view.strides == strides
    assert view.readonly == DLPACK_PY_WRITABLE
    assert producer.calls == [{"max_version": (1, 3), "copy": True}]


@pytest.mark.parametrize("want", [{"order": "C"}, {"alignment": 32, "dtype": "float64"}])
def test_copy_false_is_refused_if_the_requirements_need_a_copy_C3(want):
    producer = Producer(**TRANSPOSED, byte_offset=8)
    with pytest.raises(BufferError, match="was asked for"):
        consume(producer, {**want, "options": DLPACK_PY_WANT_COPY_IF_NEEDED}, copy=False)
    assert producer.deleted == [1]


def test_a_numpy_array_in_columns_is_copied_into_rows_P4():
    columns = numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3))
    view = consume(columns, {"order": "C"}, copy=True)
    assert (values(view), view.strides) == (columns.tolist(), (3, 1))
    assert view.data != columns.__array_interface__["data"][0]


@pytest.mark.parametrize("form", FORMS)
def test_a_requested_copy_does_not_change_dtype_or_rank_P4(form):
    producer = Producer(form, **TRANSPOSED)
    with pytest.raises(BufferError, match="dtype is float64, int8 was asked for"):
        consume(producer, {"order": "C", "dtype": "int8"}, copy=True)
    assert producer.deleted == [1]


@both_forms
@pytest.mark.parametrize(
    "came", [{}, TRANSPOSED, {"strides": (0,)}, {"strides": (-1,), "byte_offset": 16}, {"shape": ()}]
)
def test_a_copy_that_the_consumer_makes_has_the_same_elements_and_shares_nothing_C3(form, came):
    made = Made(form, **came)
    capsule = made.capsule()
    wanted = values(consume(Made(form, **came).capsule()))
    view = from_dlpack(capsule, copy=True)
    assert values(view) == wanted
    assert view.strides == dltensor.compact(view.shape)
    assert view.data % 64 == 0
    assert (view.readonly, view.flags, view.form) == (DLPACK_PY_WRITABLE, IS_COPIED, DLPACK_PY_VERSIONED)
    assert made.deleted == 1


def test_a_copy_without_elements_has_no_data_D3():
    view = from_dlpack(Made(shape=(2, 0, 3), data=1).capsule(), copy=True)
    assert (view.shape, view.data) == ((2, 0, 3), 0)


def test_consume_request_checks_requirements_as_consume_does_C9():
    with pytest.raises(BufferError, match="dtype is float64, int32 was asked for"):
        consume(Producer(), {"dtype": "int32"}, by_request=True)
    view = consume(bytearray(b"ab"), {"fallback": 1}, by_request=True)
    assert values(view) == [97, 98]
    assert consume(Producer(VERSIONED), by_request=True).form == DLPACK_PY_VERSIONED


def test_the_unused_bits_of_a_copy_of_packed_elements_are_zero_D6():
    script = """
import ctypes, consumer_probe, dltensor
view = consumer_probe.consume(dltensor.Made(dtype=(17, 4, 1), shape=(3,)).capsule(), copy=True)
print(hex(ctypes.string_at(view.data, 2)[1] >> 4))
"""
    environment = {**os.environ, "MALLOC_PERTURB_": "90", "PYTHONPATH": os.pathsep.join(sys.path)}  # glibc's
    out = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout == "0x0\n"
