"""__dlpack__ and __dlpack_device__ of the library's arrays."""

import itertools

import _dlpack_conformance as native
import pytest

from dlpack_conformance.adapter import DTYPES, compact
from dlpack_conformance.kit import (
    CHOICE,
    CPU,
    DEVICE_METHOD,
    DTYPE,
    FLAGS,
    IMPLEMENTATION,
    IS_COPIED,
    MANAGED,
    METHOD,
    MUST,
    OPEN,
    READ_ONLY,
    SHOULD,
    TENSOR,
    VERSIONED,
    DeviceType,
    clause,
    data_of,
    elements_of,
    leaked,
    shown,
    without_frames,
)

FORMS = {"versioned": VERSIONED, "legacy": {}}
both_forms = pytest.mark.parametrize("keywords", FORMS.values(), ids=FORMS)


def attempt(function, *arguments, **keywords):
    """(result, None), or (None, the exception)."""
    try:
        return function(*arguments, **keywords), None
    except Exception as error:
        return None, without_frames(error)


def elements(taken):
    return b"".join(taken.elements())


def first(says):
    """The address of the first element."""
    return says["data"] + says["byte_offset"]


def take(array, **keywords):
    """A tensor in the form that the keywords ask for. Skips if the library has the other form only."""
    taken, error = attempt(native.take, array, **keywords)
    if error is not None:
        if not keywords:
            pytest.skip(f"the library exports no legacy capsule: {shown(error)}")
        raise error
    if keywords and taken.says["version"] is None:
        pytest.skip("the library exports legacy capsules only")
    return taken


# ---- P1: arguments ----


@clause("P1", MUST, METHOD, "a producer refuses keywords that consumers send")
@pytest.mark.parametrize(
    "names",
    [c for n in range(5) for c in itertools.combinations(("stream", "max_version", "dl_device", "copy"), n)],
    ids="-".join,
)
def test_P1_each_keyword_may_be_given_as_None(lib, names):
    """__dlpack__ accepts stream, max_version, dl_device and copy as keywords, in any combination, each with its default
    None."""
    taken, error = attempt(native.take, lib.some(), **dict.fromkeys(names))
    assert error is None, f"__dlpack__({', '.join(f'{name}=None' for name in names)}) raised {shown(error)}"


@clause("P1", MUST, METHOD, "keywords are compared by identity, and what C callers pass is ignored")
def test_P1_keywords_are_matched_by_value(lib):
    """Keywords are matched by their text: a keyword may be a string object that is not interned."""
    name = "".join(["max_", "version"])  # a new object
    plain, error = attempt(native.take, lib.some(), max_version=(1, 3))
    other, other_error = attempt(native.call, lib.some(), (name,), ((1, 3),))
    assert type(error) is type(other_error), f"an interned keyword: {error!r}; another: {other_error!r}"
    if plain is not None:
        assert plain.says["version"] == other.says["version"], "the keyword was ignored"


@clause("P1", SHOULD, METHOD, "a misspelt keyword is ignored")
def test_P1_an_unknown_keyword_is_a_TypeError(lib):
    """An unknown keyword of __dlpack__ is a TypeError."""
    _, error = attempt(native.take, lib.some(), max_versions=(1, 3))
    assert isinstance(error, TypeError), f"raised {error!r}"


@clause("P1", SHOULD, METHOD, "positional arguments bind a caller to an order that the standard does not fix")
def test_P1_the_arguments_are_keyword_only(lib):
    """All arguments of __dlpack__ are keyword-only: a positional argument is a TypeError."""
    _, error = attempt(lib.some().__dlpack__, None)
    assert isinstance(error, TypeError), f"raised {error!r}"


# ---- P2: versions ----


@clause("P2", MUST, METHOD, "a versioned capsule for a consumer that cannot read it")
@pytest.mark.parametrize("keywords", [{}, {"max_version": None}], ids=["no keyword", "None"])
def test_P2_without_max_version_no_versioned_capsule_comes(lib, keywords):
    """Without max_version, or with None, __dlpack__ returns a legacy capsule, or raises BufferError."""
    taken, error = attempt(native.take, lib.some(), **keywords)
    if error is not None:
        assert isinstance(error, BufferError), f"raised {shown(error)}"
    else:
        assert taken.says["version"] is None, f"a versioned capsule came, of version {taken.says['version']}"


@clause("P2", SHOULD, IMPLEMENTATION, "producers that export versioned capsules only lose older consumers")
def test_P2_without_max_version_a_legacy_capsule_comes(lib):
    """During the transition a library should still export a legacy capsule."""
    taken, error = attempt(native.take, lib.some())
    assert error is None, f"raised {shown(error)}"
    assert taken.says["version"] is None


@clause("P2", SHOULD, METHOD, "max_version is accepted but ignored")
@pytest.mark.parametrize("version", [(1, 0), (1, 3)], ids=str)
def test_P2_a_consumer_of_version_1_gets_a_versioned_capsule(lib, version):
    """With max_version=(1, x) __dlpack__ returns a versioned capsule of major version 1."""
    says = native.take(lib.some(), max_version=version).says
    assert says["version"] is not None, "a legacy capsule came"
    assert says["version"][0] == 1, f"a capsule of version {says['version']} came"


@clause("P2", MUST, METHOD, "a producer refuses a minor version that it does not know")
@pytest.mark.parametrize("version", [(1, 4), (1, 99), (1, 2**31), (2, 0), (10, 10), (100, 3)], ids=str)
def test_P2_a_newer_consumer_gets_what_the_producer_has(lib, version):
    """With a max_version above the producer's own version, __dlpack__ returns a capsule of the producer's version."""
    taken, error = attempt(native.take, lib.some(), max_version=version)
    assert error is None, f"max_version={version} raised {shown(error)}"
    assert taken.says["version"] is None or taken.says["version"] <= version


@clause("P2", SHOULD, METHOD, "the version check is the wrong way round")
@pytest.mark.parametrize("version", [(0, 8), (0, 0), (0, 99)], ids=str)
def test_P2_a_consumer_of_version_0_gets_a_legacy_capsule_or_a_BufferError(lib, version):
    """With max_version=(0, x) __dlpack__ returns a legacy capsule, or raises BufferError."""
    taken, error = attempt(native.take, lib.some(), max_version=version)
    if error is not None:
        assert isinstance(error, BufferError), f"raised {shown(error)}"
    else:
        assert taken.says["version"] is None, f"a capsule of version {taken.says['version']} came"


@clause("P2", CHOICE, OPEN, "a malformed max_version reads past the end of a tuple")
@pytest.mark.parametrize("version", [[1, 0], (1,), (1, 0, 0), "10", 1, (1.0, 0.0), (None, None), (2**70, 0)], ids=repr)
def test_P2_an_odd_max_version(lib, version):
    """A max_version that is not a 2-tuple of integers, or is beyond 64 bits, is refused or tolerated."""
    taken, error = attempt(native.take, lib.some(), max_version=version)
    lib.choose(f"max_version={version!r}", "refused" if error else "accepted")


# ---- P3: read-only data ----


@clause("P3", MUST, FLAGS, "read-only memory is exported without saying so")
def test_P3_a_versioned_capsule_of_read_only_data_is_flagged(lib):
    """A versioned capsule of read-only data has DLPACK_FLAG_BITMASK_READ_ONLY set."""
    try:
        array = lib.make_readonly()
    except pytest.skip.Exception:
        array = lib.make_readonly(shape=(6,))
    says = take(array, **VERSIONED).says
    assert says["flags"] & READ_ONLY, f"flags are {says['flags']}"


@clause("P3", MUST, FLAGS, "all data is flagged read-only, and consumers refuse to write")
def test_P3_a_versioned_capsule_of_writable_data_is_not_flagged(lib):
    """A versioned capsule of writable data does not have DLPACK_FLAG_BITMASK_READ_ONLY set."""
    array = lib.some()
    if lib.described(array).readonly is not False:
        pytest.skip("the library's arrays are read-only, or the library does not tell")
    says = take(array, **VERSIONED).says
    assert not says["flags"] & READ_ONLY, f"flags are {says['flags']}"


@clause("P3", CHOICE, OPEN, "a legacy capsule cannot say read-only, and a consumer writes to the data")
def test_P3_read_only_data_in_a_legacy_capsule(lib):
    """Asked for a legacy capsule of read-only data, a producer raises BufferError, or exports without the flag."""
    try:
        array = lib.make_readonly()
    except pytest.skip.Exception:
        array = lib.make_readonly(shape=(6,))
    taken, error = attempt(native.take, array)
    lib.choose("read-only data in a legacy capsule", "refused" if error else "exported")


@clause("P3", MUST, FLAGS, "flags are not initialized")
def test_P3_no_unknown_flag_is_set(lib):
    """Flags that dlpack.h does not define are 0, and so is the flag of padded sub-byte data."""
    says = take(lib.some(), **VERSIONED).says
    assert says["flags"] & ~(READ_ONLY | IS_COPIED) == 0, f"flags are {says['flags']:#x}"


# ---- P4: copies ----


@clause("P4", MUST, METHOD, "copy=True is refused or not honoured")
@both_forms
def test_P4_copy_True_copies(lib, keywords):
    """With copy=True the capsule holds a copy: another memory with the same values."""
    array = lib.some()
    kept, _ = attempt(native.take, array, **keywords)
    taken, error = attempt(native.take, array, copy=True, **keywords)
    assert error is None, f"copy=True raised {shown(error)}"
    assert elements(taken) == lib.values(array), "the copy has other values"
    pointers = {lib.pointer(array), first(kept.says) if kept else None}
    assert first(taken.says) not in pointers, "the capsule has the memory of the array"


@clause("P4", MUST, METHOD, "the consumer cannot know that it owns a copy alone")
def test_P4_a_copy_is_flagged_as_a_copy(lib):
    """When a copy happens, DLPACK_FLAG_BITMASK_IS_COPIED is set."""
    array = lib.some()
    taken, error = attempt(native.take, array, copy=True, **VERSIONED)
    if error is not None:
        pytest.skip(f"copy=True is refused: {shown(error)}")
    if taken.says["version"] is None:
        pytest.skip("the library exports legacy capsules only")
    if first(taken.says) == lib.pointer(array):
        pytest.skip("copy=True is not honoured")
    assert taken.says["flags"] & IS_COPIED, f"flags are {taken.says['flags']}"


@clause("P4", MUST, FLAGS, "shared memory is flagged as a copy")
@pytest.mark.parametrize("copy", [None, False], ids=["None", "False"])
def test_P4_shared_memory_is_not_flagged_as_a_copy(lib, copy):
    """A capsule that shares the array's memory does not have DLPACK_FLAG_BITMASK_IS_COPIED set."""
    array = lib.some()
    says = take(array, copy=copy, **VERSIONED).says
    if first(says) != lib.pointer(array):
        pytest.skip("the capsule has other memory")
    assert not says["flags"] & IS_COPIED, f"flags are {says['flags']}"


@clause("P4", SHOULD, FLAGS, "a copy of read-only data is flagged read-only, though the consumer alone owns it")
def test_P4_a_copy_of_read_only_data_is_writable(lib):
    """A copy is solely owned by the consumer: the copy of a read-only array is not flagged read-only."""
    try:
        array = lib.make_readonly()
    except pytest.skip.Exception:
        array = lib.make_readonly(shape=(6,))
    taken, error = attempt(native.take, array, copy=True, **VERSIONED)
    if error is not None or taken.says["version"] is None:
        pytest.skip(f"no versioned copy: {error and shown(error)}")
    assert not taken.says["flags"] & READ_ONLY, f"flags are {taken.says['flags']}"


@clause("P4", MUST, METHOD, "copy=False copies")
@both_forms
def test_P4_copy_False_shares_the_memory(lib, keywords):
    """With copy=False the function never copies: the capsule has the memory of the array."""
    array = lib.some()
    taken, error = attempt(native.take, array, copy=False, **keywords)
    if error is not None:
        assert isinstance(error, BufferError), f"copy=False raised {shown(error)}"
        assert False, f"copy=False raised {shown(error)}, though no copy is needed"
    assert first(taken.says) == lib.pointer(array), "the capsule has other memory than the array"


@clause("P4", MUST, METHOD, "None is treated as True")
@both_forms
def test_P4_without_copy_the_memory_is_reused(lib, keywords):
    """With copy=None the function reuses the memory if possible."""
    array = lib.some()
    assert first(take(array, **keywords).says) == lib.pointer(array), "the capsule has other memory than the array"


@clause("P4", CHOICE, OPEN, "junk is taken as None")
@pytest.mark.parametrize("copy", ["yes", 2, 1.0, ()], ids=repr)
def test_P4_a_copy_argument_that_is_no_bool(lib, copy):
    """A copy argument other than None, True and False is refused or tolerated."""
    taken, error = attempt(native.take, lib.some(), copy=copy)
    lib.choose(f"copy={copy!r}", "refused" if error else "accepted")


@clause("P4", MUST, METHOD, "the copy of a strided view has the wrong elements")
@pytest.mark.parametrize("view", ["transposed", "steps", "backwards", "slice"])
def test_P4_a_copy_of_a_view_has_the_values_of_the_view(lib, view):
    """With copy=True the copy of a view has the values of the view."""
    array = lib.view(view, lib.make(shape=(4, 3)))
    taken, error = attempt(native.take, array, copy=True, **VERSIONED)
    if error is not None:
        pytest.skip(f"copy=True of the view is refused: {shown(error)}")
    assert elements(taken) == lib.values(array), "the copy has other values"


# ---- P5: dl_device ----


@clause("P5", MUST, METHOD, "dl_device is compared with the wrong thing, and the own device refused")
@pytest.mark.parametrize("kind", ["own", "CPU", "enum"])
def test_P5_the_own_device_may_be_asked_for(lib, kind):
    """dl_device may be the device of the array in the format of __dlpack_device__, or the CPU; the type may be an enum
    member."""
    array = lib.some()
    device = {"own": lambda: array.__dlpack_device__(), "CPU": lambda: CPU, "enum": lambda: (DeviceType.CPU, 0)}[kind]()
    taken, error = attempt(native.take, array, dl_device=device)
    assert error is None, f"dl_device={device} raised {shown(error)}"
    assert taken.says["device"][0] == 1, f"the capsule is on the device {taken.says['device']}"
    assert elements(taken) == lib.values(array)


@clause("P5", MUST, METHOD, "another device is asked for, and memory of the CPU comes")
@both_forms
@pytest.mark.parametrize("device", [(2, 0), (10, 0), (7, 3), (99, 0)], ids=str)
def test_P5_a_device_that_cannot_be_served_is_a_BufferError(lib, device, keywords):
    """If the producer cannot handle the dl_device asked for, __dlpack__ raises BufferError."""
    taken, error = attempt(native.take, lib.some(), dl_device=device, **keywords)
    if error is None:
        assert taken.says["device"][0] == device[0], f"dl_device={device} gave memory of {taken.says['device']}"
    else:
        assert isinstance(error, BufferError), f"dl_device={device} raised {shown(error)}"


@clause("P5", CHOICE, OPEN, "a malformed dl_device reads past the end of a tuple")
@pytest.mark.parametrize("device", [[1, 0], (1,), (1, 0, 0), "cpu", 1, (None, None), (1.0, 0)], ids=repr)
def test_P5_a_malformed_dl_device(lib, device):
    """A dl_device that is not a 2-tuple of integers is refused or tolerated."""
    taken, error = attempt(native.take, lib.some(), dl_device=device)
    lib.choose(f"dl_device={device!r}", "refused" if error else "accepted")


# ---- P6: streams ----


@clause("P6", MUST, METHOD, "a stream is accepted for memory that has none")
@pytest.mark.parametrize("stream", [1, 2, 2**40, -2], ids=str)
def test_P6_on_the_CPU_a_stream_is_refused(lib, stream):
    """On the CPU only stream=None is accepted."""
    array = lib.some()
    if array.__dlpack_device__()[0] != 1:
        pytest.skip("the arrays are not on the CPU")
    taken, error = attempt(native.take, array, stream=stream)
    assert error is not None, f"stream={stream} was accepted"


@clause("P6", CHOICE, METHOD, "a consumer passes -1 to all devices")
def test_P6_stream_minus_1_on_the_CPU(lib):
    """On the CPU stream=-1, which asks for no synchronization, is refused or tolerated."""
    taken, error = attempt(native.take, lib.some(), stream=-1)
    lib.choose("stream=-1", "refused" if error else "accepted")


# ---- P7: what cannot be exported ----


@clause("P7", MUST, METHOD, "data that cannot be described is exported wrongly")
@both_forms
def test_P7_data_that_DLPack_cannot_describe_is_not_exported(lib, keywords):
    """Data that DLPack cannot describe is not exported."""
    if lib.adapter.unexportable is None:
        pytest.skip("the adapter makes no such arrays")
    for what, array in lib.adapter.unexportable().items():
        taken, error = attempt(native.take, array, **keywords)
        assert error is not None, f"{what}: a capsule came"


@clause("P7", SHOULD, METHOD, "the error has another type than consumers expect")
@both_forms
def test_P7_data_that_cannot_be_exported_is_a_BufferError(lib, keywords):
    """If data cannot be exported, __dlpack__ should raise BufferError."""
    if lib.adapter.unexportable is None:
        pytest.skip("the adapter makes no such arrays")
    for what, array in lib.adapter.unexportable().items():
        taken, error = attempt(native.take, array, **keywords)
        assert isinstance(error, (BufferError, type(None))), f"{what}: raised {shown(error)}"


# ---- P8: __dlpack_device__ ----


@clause("P8", MUST, DEVICE_METHOD, "the device is no pair of integers")
def test_P8_the_device_is_a_tuple_of_two_integers(lib):
    """__dlpack_device__() returns a tuple of the device type, an enum member or an int, and the device id, an int."""
    device = lib.some().__dlpack_device__()
    assert isinstance(device, tuple) and len(device) == 2, f"returned {device!r}"
    assert isinstance(device[0], int) and isinstance(device[1], int), f"returned {device!r}"


@clause("P8", MUST, DEVICE_METHOD, "__dlpack_device__ and the capsule disagree")
@both_forms
def test_P8_the_capsule_has_the_device_that_the_method_tells(lib, keywords):
    """The capsule has the device type that __dlpack_device__() returns, and the device id if there is one."""
    array = lib.some()
    device, says = array.__dlpack_device__(), take(array, **keywords).says
    assert device[0] == says["device"][0] and device[1] in (None, says["device"][1]), f"{device} and {says['device']}"


@clause("P8", SHOULD, TENSOR, "a device id other than 0 is used as the index of a GPU")
def test_P8_the_device_id_of_the_CPU_is_0(lib):
    """The device id of the CPU is 0."""
    says = take(lib.some()).says
    if says["device"][0] != 1:
        pytest.skip("the arrays are not on the CPU")
    assert says["device"] == CPU, f"the device is {says['device']}"


# ---- P9: lifetime ----


@clause("P9", MUST, IMPLEMENTATION, "the exporter takes no reference to the owner of the memory")
@both_forms
def test_P9_the_memory_lives_until_the_deleter_is_called(lib, keywords):
    """The tensor keeps the memory alive after the array is deleted."""
    array = lib.make(shape=(1000,))
    wanted = lib.values(array)
    taken = take(array, **keywords)
    del array
    others = [lib.make(shape=(1000,), data=bytes(4000)) for _ in range(20)]
    assert elements(taken) == wanted, "the memory was reused"
    del others
    taken.delete()


@clause("P9", MUST, IMPLEMENTATION, "a view does not keep the memory of its base")
@pytest.mark.parametrize("view", ["transposed", "steps", "backwards", "slice"])
def test_P9_the_capsule_of_a_view_keeps_the_memory(lib, view):
    """The tensor of a view keeps the memory alive after the view and its base are deleted."""
    array = lib.make(shape=(40, 30))
    part = lib.view(view, array)
    wanted = lib.values(part)
    capsule, error = attempt(part.__dlpack__)
    if error is not None:
        pytest.skip(f"the view is not exported: {shown(error)}")
    del array, part
    others = [lib.make(shape=(40, 30), data=bytes(4800)) for _ in range(20)]
    assert elements(native.take(capsule)) == wanted, "the memory was reused"
    del others


@clause("P9", MUST, IMPLEMENTATION, "two exports share one struct, shape or strides")
@both_forms
def test_P9_two_exports_are_independent(lib, keywords):
    """The deleter of one export leaves another export of the same array as it is."""
    array = lib.some()
    one, other = take(array, **keywords), take(array, **keywords)
    says, wanted = other.says, lib.values(array)
    one.delete()
    del array
    assert elements(other) == wanted
    assert other.says == says


# ---- D: tensors ----

ARRAY_API = [name for name in DTYPES if name not in ("float16", "bfloat16")]


@clause("D6", MUST, DTYPE, "a dtype has the wrong code, bits or lanes")
@both_forms
@pytest.mark.parametrize("dtype", DTYPES)
def test_D6_each_dtype_has_its_code_and_bits(lib, dtype, keywords):
    """An array of each dtype is exported with the code, bits and lanes of dlpack.h, and with its values."""
    array = lib.make(dtype, (6,))
    _, refusal = attempt(array.__dlpack__, **keywords)
    if refusal is not None:
        pytest.skip(f"{dtype} is refused: {shown(refusal)}")
    taken = take(array, **keywords)
    assert taken.says["dtype"] == DTYPES[dtype], f"{dtype} is exported as {taken.says['dtype']}"
    assert elements(taken) == data_of(dtype, (6,)), "the values differ"


SHAPES = [(), (1,), (6,), (2, 3), (2, 1, 3), (0,), (2, 0, 3), (1,) * 32, (2,) * 8]


@clause("D3", MUST, TENSOR, "the shape is wrong for scalars, empty arrays or extents of 1")
@both_forms
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"ndim {len(shape)}" if len(shape) > 3 else str(shape))
def test_D3_each_shape_is_exported(lib, shape, keywords):
    """Arrays of rank 0, with extents of 1, without elements and of a high rank have their shape and values in the
    capsule."""
    array = lib.make("int32", shape)
    taken = take(array, **keywords)
    assert taken.says["ndim"] == len(shape), f"ndim is {taken.says['ndim']}"
    assert (taken.says["shape"] or ()) == shape, f"the shape is {taken.says['shape']}"
    assert elements(taken) == data_of("int32", shape)


@clause("D3", SHOULD, TENSOR, "an empty tensor has a pointer that leads nowhere")
def test_D3_the_data_of_an_empty_tensor_is_NULL(lib):
    """The data pointer of a tensor of size zero should be NULL."""
    says = take(lib.make("int32", (0,))).says
    assert says["data"] == 0, f"data is {says['data']:#x}"


@clause("D4", MUST, TENSOR, "strides are NULL since 1.2, or counted in bytes")
@pytest.mark.parametrize("shape", [(6,), (2, 3), (2, 1, 3)], ids=str)
def test_D4_a_versioned_capsule_of_1_2_or_newer_has_strides(lib, shape):
    """Since DLPack 1.2 strides are not NULL if ndim is not 0, and they count elements."""
    says = take(lib.make("int32", shape), **VERSIONED).says
    if says["version"] < (1, 2):
        pytest.skip(f"the capsule has the version {says['version']}")
    assert says["strides"] is not None, f"strides are NULL in a capsule of version {says['version']}"


@clause("D4", MUST, TENSOR, "strides are counted in bytes")
@both_forms
@pytest.mark.parametrize("shape", [(6,), (2, 3), (4, 2, 3)], ids=str)
def test_D4_strides_count_elements(lib, shape, keywords):
    """Strides count elements, not bytes."""
    array = lib.make("int32", shape)
    says = take(array, **keywords).says
    strides = says["strides"] or compact(shape)
    known = lib.described(array).strides
    assert strides == tuple(known or compact(shape)), f"strides are {strides}"


@clause("D1", MUST, TENSOR, "the pointer of a view is that of its base")
@both_forms
@pytest.mark.parametrize("view", ["transposed", "steps", "backwards", "slice", "repeated"])
def test_D1_a_view_is_exported_with_its_own_elements(lib, view, keywords):
    """data + byte_offset is the address of the first element of the view, and strides lead to the others."""
    array = lib.view(view, lib.make("int32", (4, 3)))
    try:
        says = native.take(array, **keywords)
    except BufferError as error:
        pytest.skip(f"the view is refused: {shown(error)}")
    assert elements(says) == lib.values(array), "the capsule has other values than the view"


@clause("D1", CHOICE, TENSOR, "consumers ignore byte_offset")
def test_D1_byte_offset(lib):
    """A view is exported with the offset in data, or in byte_offset."""
    array = lib.view("slice", lib.make("int32", (6,)))
    says = take(array).says
    lib.choose("byte_offset of a slice", "0" if says["byte_offset"] == 0 else "used")


@clause("D5", MUST, TENSOR, "negative strides are made positive")
def test_D5_negative_strides_are_exported_as_they_are(lib):
    """A view with a negative stride is exported with its first element and its negative stride, or as a copy, or is
    refused with BufferError."""
    array = lib.view("backwards", lib.make("int32", (6,)))
    wanted = elements_of(data_of("int32", (6,)), 4, (6,), (-1,), 5)
    assert lib.values(array) == wanted
    taken, error = attempt(native.take, array)
    if error is not None:
        assert isinstance(error, (BufferError, ValueError)), f"raised {shown(error)}"
        return
    assert elements(taken) == wanted, f"strides are {taken.says['strides']}, and the values differ"


@clause("D8", MUST, TENSOR, "extents or strides are cut to 32 bits")
def test_D8_an_extent_beyond_32_bits_is_exported_whole(lib):
    """Extents are 64-bit integers."""
    one = lib.make("int8", (1,))
    repeat = getattr(lib.adapter, "repeat", None)
    if repeat is None:
        pytest.skip("the adapter has no repeat(array, count)")
    says = take(repeat(one, 2**33)).says
    assert says["shape"] == (2**33,) and says["strides"] == (0,), f"{says['shape']}, {says['strides']}"


# ---- K: capsules and deleters ----


@clause("K1", MUST, IMPLEMENTATION, "nothing frees a capsule that no one consumed")
@both_forms
def test_K1_dropping_an_unconsumed_capsule_calls_the_deleter_once(lib, keywords):
    """The destructor of an unconsumed capsule calls the deleter."""
    capsule = lib.some().__dlpack__(**keywords)
    watch = native.watch(capsule)
    del capsule
    if native.calls(watch) == 0:  # the destructor may call the function without a look into the struct
        data = bytes(4 << 20)
        grown = leaked(lambda: lib.make("uint8", (len(data),), data).__dlpack__(**keywords), 10, 20 << 20)
        assert not grown, "the deleter was not called, and the memory leaks"
        return
    assert native.calls(watch) == 1, f"the deleter was called {native.calls(watch)} times"


@clause("K1", MUST, IMPLEMENTATION, "the destructor frees what a consumer owns")
@both_forms
def test_K1_dropping_a_consumed_capsule_calls_nothing(lib, keywords):
    """The destructor of a consumed capsule, whose name begins with "used_", does not call the deleter."""
    capsule = lib.some().__dlpack__(**keywords)
    watch = native.watch(capsule)
    taken = native.take(capsule)
    del capsule
    assert native.calls(watch) == 0, "the destructor called the deleter, though the capsule was consumed"
    taken.delete()
    assert native.calls(watch) == 1


@clause("K1", MUST, IMPLEMENTATION, "the name of a capsule is freed before the capsule")
@both_forms
def test_K1_the_name_has_static_storage(lib, keywords):
    """The capsule's name is one of DLPack's, and lives longer than the array."""
    array = lib.some()
    capsule = array.__dlpack__(**keywords)
    del array
    others = [lib.some().__dlpack__(**keywords) for _ in range(50)]
    name = native.name(capsule)
    assert name in (b"dltensor", b"dltensor_versioned"), f"the capsule is named {name!r}"
    assert (name == b"dltensor") == (native.peek(capsule)["version"] is None)
    del others


@clause("K2", MUST, IMPLEMENTATION, "the destructor clears or replaces an exception that is in flight")
@both_forms
@pytest.mark.parametrize("consumed", [False, True], ids=["unconsumed", "consumed"])
def test_K2_an_exception_in_flight_survives_the_destructor(lib, consumed, keywords):
    """A capsule may die while an exception is in flight: the exception stays."""
    capsule = lib.some().__dlpack__(**keywords)
    taken = native.take(capsule) if consumed else None
    held = [capsule]
    del capsule
    error = native.drop_with_error(held)
    assert type(error) is ValueError and str(error) == "in flight", f"afterwards {error!r} was in flight"
    del taken


@clause("K2", MUST, IMPLEMENTATION, "the deleter clears or replaces an exception that is in flight")
@both_forms
def test_K2_an_exception_in_flight_survives_the_deleter(lib, keywords):
    """A deleter may be called while an exception is in flight: the exception stays."""
    held = [native.take(lib.some().__dlpack__(**keywords))]
    error = native.drop_with_error(held)
    assert type(error) is ValueError and str(error) == "in flight", f"afterwards {error!r} was in flight"


@clause("K5", MUST, IMPLEMENTATION, "the deleter uses the C API without an attached thread state")
@both_forms
def test_K5_the_deleter_works_without_the_GIL(lib, keywords):
    """The deleter acquires the GIL itself: a consumer may call it while the GIL is released."""
    for _ in range(50):
        native.take(lib.some().__dlpack__(**keywords)).delete(False)


@clause("K5", MUST, IMPLEMENTATION, "the deleter needs a thread that Python knows")
@both_forms
def test_K5_the_deleter_works_on_a_thread_that_Python_has_never_seen(lib, keywords):
    """The deleter may be called on any thread."""
    for _ in range(50):
        native.take(lib.some().__dlpack__(**keywords)).delete_on_thread()


@clause("K8", CHOICE, MANAGED, "a consumer calls the deleter only if manager_ctx is not NULL")
def test_K8_manager_ctx(lib):
    """manager_ctx is set, or NULL."""
    lib.choose("manager_ctx", "set" if take(lib.some()).says["has_context"] else "NULL")


@clause("K7", MUST, MANAGED, "a consumer reads shape and strides after the array was changed or deleted")
@both_forms
def test_K7_shape_and_strides_live_as_long_as_the_struct(lib, keywords):
    """Shape and strides live until the deleter is called, whatever happens to the array."""
    array = lib.some()
    taken, says = take(array, **keywords), None
    says = taken.says
    shape, strides = says["shape"], says["strides"] or compact(says["shape"])
    wanted = lib.values(array)
    del array
    others = [lib.some().__dlpack__(**keywords) for _ in range(100)]
    assert elements(taken) == wanted
    assert (shape, strides) == (says["shape"], says["strides"] or compact(shape))
    del others


WAYS = {
    "dropped": lambda capsule: None,
    "consumed": lambda capsule: native.take(capsule).delete(),
    "consumed without the GIL": lambda capsule: native.take(capsule).delete(False),
}


@clause("K1", MUST, IMPLEMENTATION, "the struct or the reference to the owner leaks")
@both_forms
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_K1_an_export_leaves_no_memory_behind(lib, way, keywords):
    """After a capsule was dropped or its deleter called, struct and data are freed."""
    data = bytes(4 << 20)

    def large():
        way(lib.make("uint8", (len(data),), data).__dlpack__(**keywords))

    def small():
        way(array.__dlpack__(**keywords))

    array = lib.make("uint8", (16,), bytes(16))
    for run, rounds, limit in (large, 20, 40 << 20), (small, 15000, 1 << 20):
        grown = leaked(run, rounds, limit)
        assert not grown, f"{rounds} exports of {run.__name__} arrays left {grown >> 10} KB"


@clause("K1", MUST, IMPLEMENTATION, "an export that fails leaves the struct or a reference behind")
def test_K1_an_export_that_fails_leaves_no_memory_behind(lib):
    """After __dlpack__ raised, nothing is left."""
    if lib.adapter.unexportable is None:
        pytest.skip("the adapter makes no such arrays")
    for what, array in lib.adapter.unexportable().items():
        grown = leaked(lambda array=array: attempt(array.__dlpack__, max_version=(1, 0)), 10000, 800 << 10)
        assert not grown, f"{what}: 10000 refusals left {grown >> 10} KB"


@clause("G1", MUST, IMPLEMENTATION, "exports on several threads damage each other")
def test_G1_eight_threads_export_one_array(lib):
    """Several threads may export one array, and call the deleters."""
    import threading

    array = lib.some()
    wanted, wrong = lib.values(array), []
    barrier = threading.Barrier(8)

    def work(i):
        barrier.wait()
        for k in range(100):
            keywords = VERSIONED if k % 2 else {}
            taken = native.take(array, **keywords)
            if elements(taken) != wanted:
                wrong.append(i)
            taken.delete(k % 3 == 0)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, f"threads {wrong} read other values"
