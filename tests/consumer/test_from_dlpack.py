"""from_dlpack of a library: which tensors it imports, and which it refuses (C1 to C8, D, K4, K6)."""

import sys

import dltensor
import pytest
from array_libraries import library
from dltensor import ARRAY_API_DTYPES, CPU, FORMS, LEGACY, READ_ONLY, VERSIONED, Kept, Made, Offer, Producer

both_forms = pytest.mark.parametrize("form", FORMS)


# ---- What is imported ----


@both_forms
@pytest.mark.parametrize("dtype", ARRAY_API_DTYPES)
def test_every_dtype_of_the_array_api_comes_in_in_place_D7(form, dtype):
    made = Made(form, shape=(4,), dtype=dtype, data=None)
    wanted = library.array([False, True, True, False] if dtype == "bool" else [0, 1, 2, 3], dtype)
    made.managed.dl_tensor.data = library.pointer(wanted)
    a = library.from_dlpack(Offer(made))
    assert (library.dtype(a), library.pointer(a)) == (dtype, library.pointer(wanted))
    assert library.values(a) == library.values(wanted)


LAYOUTS = {
    "rows": ({"shape": (2, 3)}, [[0, 1, 2], [3, 4, 5]]),
    "columns": ({"shape": (2, 3), "strides": (1, 2)}, [[0, 2, 4], [1, 3, 5]]),
    "steps": ({"shape": (2, 2), "strides": (8, 3)}, [[0, 3], [8, 11]]),
    "null strides": ({"shape": (2, 3), "strides": None}, [[0, 1, 2], [3, 4, 5]]),
    "an offset": ({"byte_offset": 24}, [3, 4, 5]),
    "backwards": ({"strides": (-2,), "byte_offset": 80}, [10, 8, 6]),
    "repeated": ({"shape": (2, 2), "strides": (0, 1), "byte_offset": 8}, [[1, 2], [1, 2]]),
    "windows": ({"shape": (3, 2), "strides": (1, 1)}, [[0, 1], [1, 2], [2, 3]]),
    "a scalar": ({"shape": (), "byte_offset": 16}, 2),
    "a scalar without shape and strides": ({"ndim": 0, "shape": None, "strides": None}, 0),
    "extents of 1": ({"shape": (1, 3, 1), "strides": (77, 1, -5)}, [[[0], [1], [2]]]),
    "no elements": ({"shape": (0,)}, []),
    "no elements, no data": ({"shape": (2, 0), "data": None}, [[], []]),
    "no elements, no strides": ({"shape": (0, 5), "strides": None, "data": None}, []),
}


@both_forms
@pytest.mark.parametrize("fields, wanted", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_comes_in_as_it_is_D1_D3_D4_D5(form, fields, wanted):
    made = Made(form, **fields)
    struct = made.bytes()
    a = library.from_dlpack(Offer(made))
    assert library.values(a) == wanted
    assert library.shape(a) == (fields.get("shape", (3,)) or ())
    if 0 not in library.shape(a):
        assert library.pointer(a) == made.address + fields.get("byte_offset", 0)
        assert library.strides(a) == (fields.get("strides") or dltensor.compact(library.shape(a)))
    assert made.bytes() == struct
    assert made.deleted == 0
    del a
    assert made.deleted == 1


@both_forms
@pytest.mark.parametrize("ndim", [0, 1, 2, 5, 32, 63, 64])
def test_every_rank_comes_in_D8(form, ndim):
    shape = (1,) * (ndim - 1) + (3,) * (ndim > 0)
    assert library.shape(library.from_dlpack(Offer(Made(form, shape=shape)))) == shape


@pytest.mark.parametrize("version", [(1, 0), (1, 3), (1, 99)])
def test_any_minor_version_comes_in_C2(version):
    assert library.values(library.from_dlpack(Producer(version=version))) == [0.0, 1.0, 2.0]


def test_the_producer_may_answer_in_either_form_C2():
    for form in FORMS:
        assert library.values(library.from_dlpack(Producer(form))) == [0.0, 1.0, 2.0]


def test_writeable_memory_is_shared_both_ways_C7():
    made = Made()
    a = library.from_dlpack(Offer(made))
    assert not library.readonly(a)
    a[1] = 7.0
    assert list(made.memory[:3]) == [0.0, 7.0, 2.0]
    made.memory[0] = 9.0
    assert library.values(a) == [9.0, 7.0, 2.0]


@pytest.mark.parametrize("fields", [{"flags": READ_ONLY}, {"form": LEGACY}], ids=["flagged", "legacy"])
def test_read_only_and_legacy_memory_cannot_be_written_C7(fields):
    made = Made(**fields)
    a = library.from_dlpack(Offer(made))
    assert library.readonly(a)
    with pytest.raises(ValueError):
        a[0] = 1.0
    assert made.memory[0] == 0.0


def test_unknown_flags_are_ignored_C8():
    a = library.from_dlpack(Producer(flags=2**3 | 2**40 | 2**63))
    assert library.values(a) == [0.0, 1.0, 2.0]
    assert not library.readonly(a)


def test_a_raw_capsule_comes_in_C6():
    for form in FORMS:
        made = Made(form)
        assert library.values(library.from_dlpack(made.capsule())) == [0.0, 1.0, 2.0]
        assert made.deleted == 1


# ---- Device and copy: C3 ----


def test_an_array_of_the_librarys_own_comes_in_as_a_view_C3():
    a = library.array([1.0, 2.0, 3.0], "float64")
    before = sys.getrefcount(a)
    for device in (None, CPU, "cpu"):
        for copy in (None, False):
            b = library.from_dlpack(a, device=device, copy=copy)
            assert library.pointer(b) == library.pointer(a)
            assert sys.getrefcount(a) == before + 1
            del b
    assert sys.getrefcount(a) == before


@pytest.mark.parametrize("device", [None, CPU, "cpu"])
def test_a_copy_shares_nothing_and_holds_nothing_P4(device):
    a = library.array([1.0, 2.0, 3.0], "float64")
    library.set_readonly(a)
    before = sys.getrefcount(a)
    b = library.from_dlpack(a, device=device, copy=True)
    assert sys.getrefcount(a) == before
    assert not library.readonly(b)
    b[0] = 9.0
    assert (library.values(a), library.values(b)) == ([1.0, 2.0, 3.0], [9.0, 2.0, 3.0])


def test_an_unknown_device_is_a_value_error_C3():
    with pytest.raises(ValueError):
        library.from_dlpack(library.array([1.0], "float64"), device="gpu")


def test_from_dlpack_takes_one_positional_argument_C3():
    a = library.array([1.0], "float64")
    for call in (
        lambda: library.from_dlpack(),
        lambda: library.from_dlpack(a, "cpu"),
        lambda: library.from_dlpack(x=a),
        lambda: library.from_dlpack(a, stream=None),
    ):
        with pytest.raises(TypeError):
            call()


def test_an_old_producer_is_asked_without_the_keywords_C1():
    made = Made(LEGACY)

    class Old:
        def __dlpack__(self, stream=None):
            return made.capsule()

    assert library.values(library.from_dlpack(Old())) == [0.0, 1.0, 2.0]


# ---- What is refused ----


@both_forms
def test_a_used_capsule_is_refused_and_left_alone_K4(form):
    made = Made(form)
    capsule = made.capsule()
    a = library.from_dlpack(Kept(capsule))
    with pytest.raises(ValueError):
        library.from_dlpack(Kept(capsule))
    assert (made.deleted, library.values(a)) == (0, [0.0, 1.0, 2.0])
    del a
    assert made.deleted == 1


@pytest.mark.parametrize("version", [(2, 0), (0, 9), (100, 0)])
def test_an_unknown_major_version_is_refused_and_deleted_once_K6(version):
    made = Made(version=version).poison()
    with pytest.raises(BufferError):
        library.from_dlpack(Offer(made))
    assert made.deleted == 1


@both_forms
@pytest.mark.parametrize(
    "dtype",
    [(3, 64, 1), (0, 4, 1), (5, 32, 1), (18, 32, 1), (200, 8, 1), (0, 128, 1), (2, 64, 2), (0, 32, 0), (6, 16, 1)],
)
def test_elements_that_the_library_cannot_read_are_refused_and_deleted_once_C8(form, dtype):
    producer = Producer(form, dtype=dtype)
    before = sys.getrefcount(producer)
    with pytest.raises(BufferError):
        library.from_dlpack(producer)
    assert producer.deleted == [1]
    assert sys.getrefcount(producer) == before


@both_forms
@pytest.mark.parametrize("device", [(2, 0), (10, 1), (8, 0), (99, 0)])
def test_another_device_is_refused_and_deleted_once_C5(form, device):
    producer = Producer(form, device=device)
    with pytest.raises(BufferError):
        library.from_dlpack(producer)
    assert producer.deleted == [1]


MALFORMED = {
    "a negative rank": {"ndim": -1},
    "a rank above 64": {"shape": (1,) * 65},
    "no shape": {"shape": None, "ndim": 2},
    "a negative extent": {"shape": (3, -1), "strides": (1, 1)},
    "no data": {"data": None},
    "too many elements": {"shape": (2**62, 8)},
    "strides that reach too far": {"strides": (2**62,)},
    "an offset that wraps": {"byte_offset": 2**64 - 1},
}


@both_forms
@pytest.mark.parametrize("fields", MALFORMED.values(), ids=MALFORMED)
def test_what_is_malformed_is_refused_and_deleted_once_D8(form, fields):
    producer = Producer(form, **fields)
    with pytest.raises(BufferError):
        library.from_dlpack(producer)
    assert producer.deleted == [1]


@pytest.mark.parametrize("thing, error", [(3, AttributeError), ("text", AttributeError), (None, AttributeError)])
def test_an_object_without_the_method_is_an_attribute_error_C6(thing, error):
    with pytest.raises(error, match="__dlpack__"):
        library.from_dlpack(thing)


@pytest.mark.parametrize("answer", [None, 3, object()], ids=lambda value: type(value).__name__)
def test_an_answer_that_is_no_capsule_is_a_type_error_C6(answer):
    with pytest.raises(TypeError):
        library.from_dlpack(Kept(answer))


def test_the_error_of_the_producer_is_passed_on_C1():
    error = BufferError("not now")

    class Failing:
        calls = 0

        def __dlpack__(self, **keywords):
            self.calls += 1
            raise error

    producer = Failing()
    with pytest.raises(BufferError) as raised:
        library.from_dlpack(producer)
    assert raised.value is error
    assert producer.calls == 1


def test_a_view_of_an_import_keeps_the_form_of_its_source_C7():
    for form, version in [(VERSIONED, (1, 0)), (LEGACY, None)]:
        a = library.from_dlpack(Producer(form))[1:]
        assert dltensor.read(a.__dlpack__(max_version=version)).form == form
