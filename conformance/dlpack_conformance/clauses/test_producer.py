"""__dlpack__ and __dlpack_device__ of the library's arrays."""

import enum
import itertools

import _dlpack_conformance as native
import pytest

from dlpack_conformance import standard
from dlpack_conformance.adapter import DTYPES, compact, itemsize
from dlpack_conformance.kit import (
    CHOICE,
    CPU,
    IS_COPIED,
    MUST,
    READ_ONLY,
    SHOULD,
    VERSIONED,
    DeviceType,
    clause,
    data_of,
    elements_of,
    leaked,
    shown,
    without_frames,
)

VIEWS = ("transposed", "steps", "backwards", "slice")
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


def readonly_array(lib):
    try:
        return lib.make_readonly(shape=(2, 3))
    except pytest.skip.Exception:
        return lib.make_readonly()


# ---- P1: arguments ----


@clause("P1", MUST, standard.STREAM_PARAMETER, "a producer refuses keywords that consumers send")
@pytest.mark.parametrize("name", ["stream", "max_version", "dl_device", "copy"])
def test_P1_each_keyword_may_be_given_as_None(lib, name):
    """__dlpack__ accepts stream, max_version, dl_device and copy as keywords, each with its default None. All but
    stream were added in 2023.12."""
    if name != "stream" and not lib.claims_version("2023.12"):
        pytest.skip("from 2023.12 of the array API standard on, which the library does not claim")
    assert lib.knows(name), f"__dlpack__({name}=None) raised TypeError"


@clause("P1", MUST, standard.STREAM_PARAMETER, "keywords are accepted one at a time only")
@pytest.mark.parametrize(
    "names",
    [c for n in (0, 2, 3, 4) for c in itertools.combinations(("stream", "max_version", "dl_device", "copy"), n)],
    ids="-".join,
)
def test_P1_any_combination_of_keywords(lib, names):
    """The keywords that __dlpack__ knows may be given in any combination, each with its default None."""
    lib.needs_keyword(*names)
    taken, error = attempt(native.take, lib.some(), **dict.fromkeys(names))
    if isinstance(error, BufferError):
        pytest.skip(f"the library exports no legacy capsule: {shown(error)}")
    assert error is None, f"__dlpack__({', '.join(f'{name}=None' for name in names)}) raised {shown(error)}"


@clause("P1", MUST, standard.KEYWORD, "keywords are compared by identity, and what C callers pass is ignored")
def test_P1_keywords_are_matched_by_value(lib):
    """Keywords are matched by their text: a keyword may be a string object that is not interned."""
    lib.needs_keyword("max_version")
    name = "".join(["max_", "version"])  # a new object
    plain, error = attempt(native.take, lib.some(), max_version=(1, 3))
    other, other_error = attempt(native.call, lib.some(), (name,), ((1, 3),))
    assert type(error) is type(other_error), f"an interned keyword: {error!r}; another: {other_error!r}"
    if plain is not None:
        assert plain.says["version"] == other.says["version"], "the keyword was ignored"


@clause("P1", SHOULD, standard.NO_SUCH_KEYWORD, "a misspelt keyword is ignored")
def test_P1_an_unknown_keyword_is_a_TypeError(lib):
    """An unknown keyword of __dlpack__ is a TypeError."""
    _, error = attempt(native.take, lib.some(), max_versions=(1, 3))
    assert isinstance(error, TypeError), f"raised {error!r}"


@clause(
    "P1",
    SHOULD,
    standard.STREAM_PARAMETER,
    "positional arguments bind a caller to an order that the standard does not fix",
)
def test_P1_the_arguments_are_keyword_only(lib):
    """All arguments of __dlpack__ are keyword-only: a positional argument is a TypeError."""
    _, error = attempt(lib.some().__dlpack__, None)
    assert isinstance(error, TypeError), f"raised {error!r}"


# ---- P2: versions ----


@clause("P2", SHOULD, standard.RECOMMENDED, "a versioned capsule for a consumer that cannot read it")
@pytest.mark.parametrize("keywords", [{}, {"max_version": None}], ids=["no keyword", "None"])
def test_P2_without_max_version_no_versioned_capsule_comes(lib, keywords):
    """Without max_version, or with None, __dlpack__ returns a legacy capsule, or raises BufferError."""
    lib.needs_keyword(*keywords)
    taken, error = attempt(native.take, lib.some(), **keywords)
    if error is not None:
        assert isinstance(error, BufferError), f"raised {shown(error)}"
    else:
        assert taken.says["version"] is None, f"a versioned capsule came, of version {taken.says['version']}"


@clause("P2", MUST, standard.ACCEPTS, "nothing is exported")
def test_P2_a_plain_array_is_exported(lib):
    """A plain array is exported in one form of capsules at least, with its dtype, its shape and its values."""
    if lib.adapter.make is None:
        pytest.skip("the library does not produce")
    error = lib.export_error()
    taken, error = (None, error) if error else attempt(lib.take_any, lib.make())
    assert error is None, f"a plain array of {lib.dtype} and shape {lib.shape}: raised {shown(error)}"
    assert taken.says["dtype"] == DTYPES[lib.dtype], f"the dtype is {taken.says['dtype']}"
    assert taken.says["shape"] == lib.shape, f"the shape is {taken.says['shape']}"
    assert elements(taken) == lib.data, "the values differ"


@clause("P2", CHOICE, standard.OKAY_TO_RAISE, "producers that export versioned capsules only lose older consumers")
def test_P2_without_max_version_a_legacy_capsule_comes(lib):
    """Without max_version, a library exports a legacy capsule, or refuses: until March 2025 it should export one."""
    taken, error = attempt(native.take, lib.some())
    if error is None and taken.says["version"] is not None:
        pytest.skip("a versioned capsule comes")
    lib.choose("a legacy capsule for who asks for nothing", "refused" if error else "exported")


@clause("P2", SHOULD, standard.OF_MAX_VERSION, "max_version is accepted but ignored")
@pytest.mark.parametrize("version", [(1, 0), (1, 3)], ids=str)
def test_P2_a_consumer_of_version_1_gets_a_versioned_capsule(lib, version):
    """With max_version=(1, x) __dlpack__ returns a versioned capsule of major version 1."""
    lib.needs_keyword("max_version")
    says = native.take(lib.some(), max_version=version).says
    assert says["version"] is not None, "a legacy capsule came"
    assert says["version"][0] == 1, f"a capsule of version {says['version']} came"


@clause("P2", SHOULD, standard.RECOMMENDED, "a producer refuses a minor version that it does not know")
@pytest.mark.parametrize("version", [(1, 4), (1, 99), (1, 2**31), (2, 0), (10, 10), (100, 3)], ids=str)
def test_P2_a_newer_consumer_gets_what_the_producer_has(lib, version):
    """With a max_version above the producer's own version, __dlpack__ returns a capsule of the producer's version."""
    lib.needs_keyword("max_version")
    taken, error = attempt(native.take, lib.some(), max_version=version)
    assert error is None, f"max_version={version} raised {shown(error)}"
    came = taken.says["version"]
    assert came is None or came <= version, f"a capsule of version {came} came"
    _, older = attempt(native.take, lib.some(), max_version=(1, 0))
    if older is None:
        assert (came is None) == (native.take(lib.some(), max_version=(1, 0)).says["version"] is None), (
            "the form differs"
        )


@clause("P2", SHOULD, standard.RAISE_BUFFER_ERROR, "the version check is the wrong way round")
@pytest.mark.parametrize("version", [(0, 8), (0, 0), (0, 99)], ids=str)
def test_P2_a_consumer_of_version_0_gets_a_legacy_capsule_or_a_BufferError(lib, version):
    """With max_version=(0, x) __dlpack__ returns a legacy capsule, or raises BufferError."""
    lib.needs_keyword("max_version")
    taken, error = attempt(native.take, lib.some(), max_version=version)
    if error is not None:
        assert isinstance(error, BufferError), f"raised {shown(error)}"
    else:
        assert taken.says["version"] is None, f"a capsule of version {taken.says['version']} came"


@clause("P2", CHOICE, standard.OPEN, "a malformed max_version reads past the end of a tuple")
@pytest.mark.parametrize("version", [[1, 0], (1,), (1, 0, 0), "10", 1, (1.0, 0.0), (None, None), (2**70, 0)], ids=repr)
def test_P2_an_odd_max_version(lib, version):
    """A max_version that is not a 2-tuple of integers, or is beyond 64 bits, is refused or tolerated."""
    lib.needs_keyword("max_version")
    taken, error = attempt(native.take, lib.some(), max_version=version)
    lib.choose(f"max_version={version!r}", "refused" if error else "accepted")


# ---- P3: read-only data ----


@clause("P3", MUST, standard.READ_ONLY_FLAG, "read-only memory is exported without saying so")
def test_P3_a_versioned_capsule_of_read_only_data_is_flagged(lib):
    """A versioned capsule of read-only data has DLPACK_FLAG_BITMASK_READ_ONLY set."""
    array = readonly_array(lib)
    says = lib.take(array, **VERSIONED).says
    assert says["flags"] & READ_ONLY, f"flags are {says['flags']}"


@clause("P3", SHOULD, standard.FLAGS_0, "all data is flagged read-only, and consumers refuse to write")
def test_P3_a_versioned_capsule_of_writable_data_is_not_flagged(lib):
    """A versioned capsule of writable data does not have DLPACK_FLAG_BITMASK_READ_ONLY set."""
    array = lib.some()
    if lib.described(array).readonly is not False:
        pytest.skip("the library's arrays are read-only, or the library does not tell")
    says = lib.take(array, **VERSIONED).says
    assert not says["flags"] & READ_ONLY, f"flags are {says['flags']}"


@clause("P3", CHOICE, standard.OPEN, "a legacy capsule cannot say read-only, and a consumer writes to the data")
def test_P3_read_only_data_in_a_legacy_capsule(lib):
    """Asked for a legacy capsule of read-only data, a producer raises BufferError, or exports without the flag."""
    array = readonly_array(lib)
    lib.capsule(lib.some())
    taken, error = attempt(native.take, array)
    lib.choose("read-only data in a legacy capsule", "refused" if error else "exported")


@clause("P3", SHOULD, standard.FLAGS_0, "flags are not initialized")
def test_P3_no_unknown_flag_is_set(lib):
    """Flags that dlpack.h does not define are 0, and so is the flag of padded sub-byte data."""
    says = lib.take(lib.some(), **VERSIONED).says
    assert says["flags"] & ~(READ_ONLY | IS_COPIED) == 0, f"flags are {says['flags']:#x}"


# ---- P4: copies ----


@clause("P4", MUST, standard.COPY_TRUE, "copy=True is refused or not honoured", anyway=True)
@both_forms
def test_P4_copy_True_copies(lib, keywords):
    """With copy=True the capsule holds a copy: another memory with the same values. A legacy capsule cannot say that it
    is a copy, and may be refused with BufferError."""
    array = lib.some()
    kept = lib.take(array, **keywords)
    lib.needs_keyword("copy")
    taken, error = attempt(native.take, array, copy=True, **keywords)
    if error is not None and not (isinstance(error, BufferError) and not keywords):
        lib.refused(error, "copy=True")
    lib.choose(f"copy=True in a {'versioned' if keywords else 'legacy'} capsule", "refused" if error else "copied")
    if error is None:
        assert elements(taken) == lib.values(array), "the copy has other values"
        pointers = {lib.pointer(array), first(kept.says)}
        assert first(taken.says) not in pointers, "the capsule has the memory of the array"


def versioned_copy(lib, array):
    """The tensor of copy=True. Skips where there is none, or where the memory is shared, which copy=True tests."""
    lib.needs_keyword("copy", "max_version")
    taken, error = attempt(native.take, array, copy=True, **VERSIONED)
    if error is not None:
        pytest.skip(f"copy=True is refused: {shown(error)}")
    if taken.says["version"] is None:
        pytest.skip("the library exports legacy capsules only")
    if first(taken.says) == lib.pointer(array):
        pytest.skip("copy=True is not honoured")
    return taken


@clause("P4", MUST, standard.IS_COPIED_SET, "the consumer cannot know that it owns a copy alone")
@pytest.mark.parametrize("view", ["itself", *VIEWS])
def test_P4_a_copy_is_flagged_as_a_copy(lib, view):
    """When a copy happens, DLPACK_FLAG_BITMASK_IS_COPIED is set, also for a view."""
    array = lib.some() if view == "itself" else lib.view(view, lib.make(shape=(4, 3)))
    taken = versioned_copy(lib, array)
    assert taken.says["flags"] & IS_COPIED, f"flags are {taken.says['flags']}"


@clause("P4", MUST, standard.SOLELY_OWNED, "shared memory is flagged as a copy")
@pytest.mark.parametrize("copy", [None, False], ids=["None", "False"])
def test_P4_shared_memory_is_not_flagged_as_a_copy(lib, copy):
    """A capsule that shares the array's memory does not have DLPACK_FLAG_BITMASK_IS_COPIED set."""
    array = lib.some()
    lib.needs_keyword("copy")
    taken, error = attempt(lib.take, array, copy=copy, **VERSIONED)
    if error is not None:
        pytest.skip(f"copy={copy} is refused: {shown(error)}")
    says = taken.says
    if first(says) != lib.pointer(array):
        pytest.skip("the capsule has other memory")
    assert not says["flags"] & IS_COPIED, f"flags are {says['flags']}"


@clause(
    "P4",
    CHOICE,
    standard.SOLELY_OWNED,
    "a copy of read-only data is flagged read-only, though the consumer alone owns it",
)
def test_P4_a_copy_of_read_only_data_is_writable(lib):
    """A copy is solely owned by the consumer: the copy of a read-only array need not be flagged read-only."""
    taken = versioned_copy(lib, readonly_array(lib))
    lib.choose("a copy of read-only data", "flagged read-only" if taken.says["flags"] & READ_ONLY else "writable")


@clause("P4", MUST, standard.COPY_FALSE, "copy=False copies", anyway=True)
@both_forms
def test_P4_copy_False_shares_the_memory(lib, keywords):
    """With copy=False the function never copies: the capsule has the memory of the array. In the legacy form, which
    knows no copies, it may be refused with BufferError."""
    array = lib.some()
    lib.take(array, **keywords)
    lib.needs_keyword("copy")
    taken, error = attempt(native.take, array, copy=False, **keywords)
    if error is not None and not (isinstance(error, BufferError) and not keywords):
        lib.refused(error, "copy=False, though no copy is needed,")
    lib.choose(f"copy=False in a {'versioned' if keywords else 'legacy'} capsule", "refused" if error else "shared")
    if error is not None:
        return
    assert first(taken.says) == lib.pointer(array), "the capsule has other memory than the array"


@clause("P4", MUST, standard.COPY_NONE, "None is treated as True")
@both_forms
def test_P4_without_copy_the_memory_is_reused(lib, keywords):
    """With copy=None the function reuses the memory if possible."""
    array = lib.some()
    assert first(lib.take(array, **keywords).says) == lib.pointer(array), "the capsule has other memory than the array"


@clause("P4", CHOICE, standard.OPEN, "junk is taken as None")
@pytest.mark.parametrize("copy", ["yes", 2, 1.0, ()], ids=repr)
def test_P4_a_copy_argument_that_is_no_bool(lib, copy):
    """A copy argument other than None, True and False is refused or tolerated."""
    lib.needs_keyword("copy")
    taken, error = attempt(lib.take_any, lib.some(), copy=copy)
    lib.choose(f"copy={copy!r}", "refused" if error else "accepted")


@clause("P4", MUST, standard.COPY_TRUE, "the copy of a strided view has the wrong elements", anyway=True)
@both_forms
@pytest.mark.parametrize("view", VIEWS)
def test_P4_a_copy_of_a_view_has_the_values_of_the_view(lib, view, keywords):
    """With copy=True the copy of a view has the values of the view, and other memory than the array."""
    base = lib.make(shape=(4, 3))
    array = lib.view(view, base)
    lib.needs_keyword("copy", *keywords)
    taken, error = attempt(native.take, array, copy=True, **keywords)
    if error is not None:
        pytest.skip(f"copy=True of the view is refused: {shown(error)}")
    assert elements(taken) == lib.values(array), "the copy has other values"
    begin = lib.pointer(base)
    inside = begin is not None and begin <= first(taken.says) < begin + 12 * itemsize(lib.dtype)
    assert not inside, "the capsule has the memory of the array"


@clause("P3", MUST, standard.READ_ONLY_FLAG, "a view of read-only memory is exported as writable")
@pytest.mark.parametrize("view", VIEWS)
def test_P3_a_view_of_read_only_data_is_flagged(lib, view):
    """A versioned capsule of a view of read-only data has DLPACK_FLAG_BITMASK_READ_ONLY set."""
    array = lib.view(view, lib.make_readonly(shape=(4, 3)))
    taken, error = attempt(lib.take, array, **VERSIONED)
    if error is not None:
        pytest.skip(f"the view is refused: {shown(error)}")
    assert taken.says["flags"] & (READ_ONLY | IS_COPIED), f"flags are {taken.says['flags']}"


# ---- P5: dl_device ----


@clause(
    "P5",
    MUST,
    standard.FORMAT_OF_DEVICE,
    "dl_device is compared with the wrong thing, and the own device refused",
    anyway=True,
)
@pytest.mark.parametrize("kind", ["own", "CPU", "enum"])
def test_P5_the_own_device_may_be_asked_for(lib, kind):
    """dl_device may be the device of the array in the format of __dlpack_device__, or the CPU; the type may be an enum
    member."""
    lib.needs_keyword("dl_device")
    array = lib.some()
    lib.take_any(array)
    device = {"own": lambda: array.__dlpack_device__(), "CPU": lambda: CPU, "enum": lambda: (DeviceType.CPU, 0)}[kind]()
    taken, error = attempt(lib.take_any, array, dl_device=device)
    if error is not None:
        lib.refused(error, f"dl_device={device}")
    assert taken.says["device"][0] == 1, f"the capsule is on the device {taken.says['device']}"
    assert elements(taken) == lib.values(array)


@clause("P5", MUST, standard.DEVICE_CANNOT, "another device is asked for, and memory of the CPU comes", anyway=True)
@both_forms
@pytest.mark.parametrize("device", [(2, 0), (10, 0), (7, 3), (99, 0)], ids=str)
def test_P5_a_device_that_cannot_be_served_is_a_BufferError(lib, device, keywords):
    """If the producer cannot handle the dl_device asked for, __dlpack__ raises BufferError."""
    lib.needs_keyword("dl_device", *keywords)
    taken, error = attempt(native.take, lib.some(), dl_device=device, **keywords)
    if error is None:
        assert taken.says["device"][0] == device[0], f"dl_device={device} gave memory of {taken.says['device']}"
    elif not isinstance(error, BufferError):
        lib.refused(error, f"dl_device={device}")


@clause("P5", CHOICE, standard.OPEN, "a malformed dl_device reads past the end of a tuple")
@pytest.mark.parametrize("device", [[1, 0], (1,), (1, 0, 0), "cpu", 1, (None, None), (1.0, 0)], ids=repr)
def test_P5_a_malformed_dl_device(lib, device):
    """A dl_device that is not a 2-tuple of integers is refused or tolerated."""
    lib.needs_keyword("dl_device")
    taken, error = attempt(lib.take_any, lib.some(), dl_device=device)
    lib.choose(f"dl_device={device!r}", "refused" if error else "accepted")


# ---- P6: streams ----


@clause("P6", CHOICE, standard.ONLY_NONE, "a stream is accepted for memory that has none", anyway=True)
@pytest.mark.parametrize("stream", [1, 2, 2**40, -1, -2], ids=str)
def test_P6_on_the_CPU_a_stream_is_refused(lib, stream):
    """On the CPU only stream=None is accepted; a library may tolerate other numbers, which do nothing there."""
    lib.needs_keyword("stream")
    array = lib.some()
    if array.__dlpack_device__()[0] != 1:
        pytest.skip("the arrays are not on the CPU")
    taken, error = attempt(lib.take_any, array, stream=stream)
    lib.choose(f"stream={stream}", "refused" if error else "accepted")


# ---- P7: what cannot be exported ----


@clause("P7", MUST, standard.CONTAINS, "data that cannot be described is exported wrongly", anyway=True)
@both_forms
def test_P7_data_that_DLPack_cannot_describe_is_not_exported(lib, keywords):
    """Data that DLPack cannot describe is not exported with other values."""
    if lib.adapter.unexportable is None:
        pytest.skip("the adapter makes no such arrays")
    lib.needs_keyword(*keywords)
    for what, array in lib.adapter.unexportable().items():
        taken, error = attempt(native.take, array, **keywords)
        if error is None:
            assert elements(taken) == lib.values(array), f"{what}: a capsule with other values came"


@clause("P7", SHOULD, standard.BUFFER_ERROR, "the error has another type than consumers expect")
@both_forms
def test_P7_data_that_cannot_be_exported_is_a_BufferError(lib, keywords):
    """If data cannot be exported, __dlpack__ should raise BufferError."""
    if lib.adapter.unexportable is None:
        pytest.skip("the adapter makes no such arrays")
    lib.needs_keyword(*keywords)
    for what, array in lib.adapter.unexportable().items():
        taken, error = attempt(native.take, array, **keywords)
        assert error is not None, f"{what}: a capsule came"
        assert isinstance(error, BufferError), f"{what}: raised {shown(error)}"


# ---- P8: __dlpack_device__ ----


@clause("P8", MUST, standard.DEVICE_TUPLE, "the device is no pair of integers")
def test_P8_the_device_is_a_tuple_of_two_integers(lib):
    """__dlpack_device__() returns a tuple of the device type, an enum member or an int, and the device id, an int."""
    device = lib.some().__dlpack_device__()
    assert isinstance(device, tuple) and len(device) == 2, f"returned {device!r}"
    kind = device[0].value if isinstance(device[0], enum.Enum) else device[0]
    assert isinstance(kind, int) and isinstance(device[1], int), f"returned {device!r}"


@clause("P8", MUST, standard.DEVICE_FIELD, "__dlpack_device__ and the capsule disagree")
@both_forms
def test_P8_the_capsule_has_the_device_that_the_method_tells(lib, keywords):
    """The capsule has the device type that __dlpack_device__() returns, and the device id if there is one."""
    array = lib.some()
    device, says = array.__dlpack_device__(), lib.take(array, **keywords).says
    kind = device[0].value if isinstance(device[0], enum.Enum) else device[0]
    assert kind == says["device"][0] and device[1] in (None, says["device"][1]), f"{device} and {says['device']}"


@clause("P8", SHOULD, standard.ID_IS_0, "a device id other than 0 is used as the index of a GPU")
def test_P8_the_device_id_of_the_CPU_is_0(lib):
    """The device id of the CPU is 0."""
    says = lib.take_any(lib.some()).says
    if says["device"][0] != 1:
        pytest.skip("the arrays are not on the CPU")
    assert says["device"] == CPU, f"the device is {says['device']}"


# ---- P9: lifetime ----


@clause("P9", MUST, standard.UNTIL_DELETER, "the exporter takes no reference to the owner of the memory")
@both_forms
def test_P9_the_memory_lives_until_the_deleter_is_called(lib, keywords):
    """The tensor keeps the memory alive after the array is deleted."""
    array = lib.large()
    wanted = lib.values(array)
    taken = lib.take(array, **keywords)
    del array
    others = [lib.large(data=b"\0") for _ in range(20)]
    assert elements(taken) == wanted, "the memory was reused"
    del others
    taken.delete()


@clause("P9", MUST, standard.UNTIL_DELETER, "a view does not keep the memory of its base")
@pytest.mark.parametrize("view", ["transposed", "steps", "backwards", "slice"])
def test_P9_the_capsule_of_a_view_keeps_the_memory(lib, view):
    """The tensor of a view keeps the memory alive after the view and its base are deleted."""
    array = lib.make(shape=(40, 30))
    part = lib.view(view, array)
    wanted = lib.values(part)
    taken, error = attempt(lib.take_any, part)
    if error is not None:
        pytest.skip(f"the view is not exported: {shown(error)}")
    del array, part
    others = [lib.make(shape=(40, 30), data=bytes(1200 * itemsize(lib.dtype))) for _ in range(20)]
    assert elements(taken) == wanted, "the memory was reused"
    del others


@clause("P9", MUST, standard.DELETES_SELF, "two exports share one struct, shape or strides")
@both_forms
def test_P9_two_exports_are_independent(lib, keywords):
    """The deleter of one export leaves another export of the same array as it is."""
    array = lib.some()
    one, other = lib.take(array, **keywords), lib.take(array, **keywords)
    says, wanted = other.says, lib.values(array)
    one.delete()
    del array
    assert elements(other) == wanted
    assert other.says == says


# ---- D: tensors ----

ARRAY_API = [name for name in DTYPES if name not in ("float16", "bfloat16")]


@clause("D6", MUST, standard.DTYPE, "a dtype has the wrong code, bits or lanes")
@both_forms
@pytest.mark.parametrize("dtype", DTYPES)
def test_D6_each_dtype_has_its_code_and_bits(lib, dtype, keywords):
    """An array of each dtype is exported with the code, bits and lanes of dlpack.h, and with its values."""
    array = lib.make(dtype)
    taken, refusal = attempt(lib.take, array, **keywords)
    if refusal is not None:
        if dtype == lib.dtype:
            raise refusal
        pytest.skip(f"{dtype} is refused: {shown(refusal)}")
    assert taken.says["dtype"] == DTYPES[dtype], f"{dtype} is exported as {taken.says['dtype']}"
    assert elements(taken) == data_of(dtype, lib.shape), "the values differ"


SHAPES = [(), (1,), (6,), (2, 3), (2, 1, 3), (0,), (2, 0, 3), (1,) * 32, (2,) * 8]


@clause("D3", MUST, standard.SHAPE, "the shape is wrong for scalars, empty arrays or extents of 1")
@both_forms
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"ndim {len(shape)}" if len(shape) > 3 else str(shape))
def test_D3_each_shape_is_exported(lib, shape, keywords):
    """Arrays of rank 0, with extents of 1, without elements and of a high rank have their shape and values in the
    capsule."""
    array = lib.make(None, shape)
    taken = lib.take(array, **keywords)
    assert taken.says["ndim"] == len(shape), f"ndim is {taken.says['ndim']}"
    assert (taken.says["shape"] or ()) == shape, f"the shape is {taken.says['shape']}"
    assert elements(taken) == data_of(lib.dtype, shape)


@clause("D3", SHOULD, standard.EMPTY, "an empty tensor has a pointer that leads nowhere")
def test_D3_the_data_of_an_empty_tensor_is_NULL(lib):
    """The data pointer of a tensor of size zero should be NULL."""
    says = lib.take_any(lib.make(None, (0, *lib.shape[1:]))).says
    assert says["data"] == 0, f"data is {says['data']:#x}"


@clause("D4", MUST, standard.STRIDES_SET, "strides are NULL since 1.2, or counted in bytes")
@pytest.mark.parametrize("shape", [None, (2, 3), (2, 1, 3)], ids=str)
def test_D4_a_versioned_capsule_of_1_2_or_newer_has_strides(lib, shape):
    """Since DLPack 1.2 strides are not NULL if ndim is not 0, and they count elements."""
    says = lib.take(lib.make(None, shape or lib.shape), **VERSIONED).says
    if says["version"] < (1, 2):
        pytest.skip(f"the capsule has the version {says['version']}")
    assert says["strides"] is not None, f"strides are NULL in a capsule of version {says['version']}"


@clause("D4", MUST, standard.STRIDES, "strides are counted in bytes")
@both_forms
@pytest.mark.parametrize("shape", [None, (2, 3), (4, 2, 3)], ids=str)
def test_D4_strides_count_elements(lib, shape, keywords):
    """Strides count elements, not bytes."""
    shape = shape or lib.shape
    array = lib.make(None, shape)
    says = lib.take(array, **keywords).says
    strides = says["strides"] or compact(shape)
    known = lib.described(array).strides
    assert strides == tuple(known or compact(shape)), f"strides are {strides}"


@clause("D1", MUST, standard.OFFSET, "the pointer of a view is that of its base")
@both_forms
@pytest.mark.parametrize("view", ["transposed", "steps", "backwards", "slice", "repeated"])
def test_D1_a_view_is_exported_with_its_own_elements(lib, view, keywords):
    """data + byte_offset is the address of the first element of the view, and strides lead to the others."""
    array = lib.view(view, lib.make(None, (4, 3)))
    try:
        says = lib.take(array, **keywords)
    except BufferError as error:
        pytest.skip(f"the view is refused: {shown(error)}")
    assert elements(says) == lib.values(array), "the capsule has other values than the view"


@clause("D1", CHOICE, standard.OFFSET, "consumers ignore byte_offset")
def test_D1_byte_offset(lib):
    """A view is exported with the offset in data, or in byte_offset."""
    array = lib.view("slice", lib.make())
    says = lib.take_any(array).says
    lib.choose("byte_offset of a slice", "0" if says["byte_offset"] == 0 else "used")


@clause("D5", MUST, standard.STRIDES, "negative strides are made positive")
def test_D5_negative_strides_are_exported_as_they_are(lib):
    """A view with a negative stride is exported with its first element and its negative stride, or as a copy, or is
    refused."""
    array = lib.view("backwards", lib.make(shape=(6,)))
    wanted = elements_of(data_of(lib.dtype, (6,)), itemsize(lib.dtype), (6,), (-1,), 5)
    assert lib.values(array) == wanted
    taken, error = attempt(lib.take_any, array)
    if error is not None:
        pytest.skip(f"the view is refused: {shown(error)}")
    assert elements(taken) == wanted, f"strides are {taken.says['strides']}, and the values differ"


@clause("D8", MUST, standard.SHAPE_64, "extents or strides are cut to 32 bits")
def test_D8_an_extent_beyond_32_bits_is_exported_whole(lib):
    """Extents are 64-bit integers."""
    one = lib.make(shape=(1,))
    repeat = getattr(lib.adapter, "repeat", None)
    if repeat is None:
        pytest.skip("the adapter has no repeat(array, count)")
    says = lib.take_any(repeat(one, 2**33)).says
    assert says["shape"] == (2**33,) and says["strides"] == (0,), f"{says['shape']}, {says['strides']}"


# ---- K: capsules and deleters ----


@clause("K1", MUST, standard.DESTRUCTOR, "nothing frees a capsule that no one consumed")
@both_forms
def test_K1_dropping_an_unconsumed_capsule_calls_the_deleter_once(lib, keywords):
    """The destructor of an unconsumed capsule calls the deleter."""
    capsule = lib.capsule(lib.some(), **keywords)
    watch = native.watch(capsule)
    del capsule
    if native.calls(watch) == 0:  # the destructor may call the function without a look into the struct
        count = (4 << 20) // itemsize(lib.dtype)
        grown = leaked(lambda: lib.large(count, b"\0").__dlpack__(**keywords), 10, 20 << 20)
        assert not grown, "the deleter was not called, and the memory leaks"
        return
    assert native.calls(watch) == 1, f"the deleter was called {native.calls(watch)} times"


@clause("K1", MUST, standard.RENAMING, "the destructor frees what a consumer owns")
@both_forms
def test_K1_dropping_a_consumed_capsule_calls_nothing(lib, keywords):
    """The destructor of a consumed capsule, whose name begins with "used_", does not call the deleter."""
    capsule = lib.capsule(lib.some(), **keywords)
    watch = native.watch(capsule)
    taken = native.take(capsule)
    del capsule
    assert native.calls(watch) == 0, "the destructor called the deleter, though the capsule was consumed"
    taken.delete()
    assert native.calls(watch) == 1


@clause("K1", MUST, standard.STATIC_NAME, "the name of a capsule is freed before the capsule")
@both_forms
def test_K1_the_name_has_static_storage(lib, keywords):
    """The capsule's name is one of DLPack's, and lives longer than the array."""
    array = lib.some()
    capsule = lib.capsule(array, **keywords)
    del array
    others = [lib.capsule(lib.some(), **keywords) for _ in range(50)]
    name = native.name(capsule)
    assert name in (b"dltensor", b"dltensor_versioned"), f"the capsule is named {name!r}"
    assert (name == b"dltensor") == (native.peek(capsule)["version"] is None)
    del others


@clause("K2", MUST, standard.IN_FLIGHT, "the destructor clears or replaces an exception that is in flight")
@both_forms
@pytest.mark.parametrize("consumed", [False, True], ids=["unconsumed", "consumed"])
def test_K2_an_exception_in_flight_survives_the_destructor(lib, consumed, keywords):
    """A capsule may die while an exception is in flight: the exception stays."""
    capsule = lib.capsule(lib.some(), **keywords)
    taken = native.take(capsule) if consumed else None
    held = [capsule]
    del capsule
    error = native.drop_with_error(held)
    assert type(error) is ValueError and str(error) == "in flight", f"afterwards {error!r} was in flight"
    del taken


@clause("K2", CHOICE, standard.OPEN, "the deleter clears or replaces an exception that is in flight")
@both_forms
def test_K2_an_exception_in_flight_survives_the_deleter(lib, keywords):
    """A deleter may be called while an exception is in flight: the exception stays, or is lost."""
    held = [native.take(lib.capsule(lib.some(), **keywords))]
    error = native.drop_with_error(held)
    survives = type(error) is ValueError and str(error) == "in flight"
    lib.choose("an exception in flight when the deleter is called", "survives" if survives else "is lost")


@clause("K5", MUST, standard.GIL, "the deleter uses the C API without an attached thread state")
@both_forms
def test_K5_the_deleter_works_without_the_GIL(lib, keywords):
    """The deleter acquires the GIL itself: a consumer may call it while the GIL is released."""
    for _ in range(50):
        native.take(lib.capsule(lib.some(), **keywords)).delete(False)


@clause("K5", MUST, standard.GIL, "the deleter needs a thread that Python knows")
@both_forms
def test_K5_the_deleter_works_on_a_thread_that_Python_has_never_seen(lib, keywords):
    """The deleter may be called on any thread."""
    for _ in range(50):
        native.take(lib.capsule(lib.some(), **keywords)).delete_on_thread()


@clause("K8", CHOICE, standard.CONTEXT, "a consumer calls the deleter only if manager_ctx is not NULL")
def test_K8_manager_ctx(lib):
    """manager_ctx is set, or NULL."""
    lib.choose("manager_ctx", "set" if lib.take_any(lib.some()).says["has_context"] else "NULL")


@clause("K7", MUST, standard.UNTIL_DELETER, "a consumer reads shape and strides after the array was changed or deleted")
@both_forms
def test_K7_shape_and_strides_live_as_long_as_the_struct(lib, keywords):
    """Shape and strides live until the deleter is called, whatever happens to the array."""
    array = lib.some()
    taken, says = lib.take(array, **keywords), None
    says = taken.says
    shape, strides = says["shape"], says["strides"] or compact(says["shape"])
    wanted = lib.values(array)
    del array
    others = [lib.capsule(lib.some(), **keywords) for _ in range(100)]
    assert elements(taken) == wanted
    assert (shape, strides) == (says["shape"], says["strides"] or compact(shape))
    del others


WAYS = {
    "dropped": lambda capsule: None,
    "consumed": lambda capsule: native.take(capsule).delete(),
    "consumed without the GIL": lambda capsule: native.take(capsule).delete(False),
}


@clause("K1", MUST, standard.DELETES_SELF, "the struct or the reference to the owner leaks")
@both_forms
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_K1_an_export_leaves_no_memory_behind(lib, way, keywords):
    """After a capsule was dropped or its deleter called, struct and data are freed."""
    count = (4 << 20) // itemsize(lib.dtype)
    lib.capsule(lib.some(), **keywords)

    def large():
        way(lib.large(count, b"\0").__dlpack__(**keywords))

    def small():
        way(array.__dlpack__(**keywords))

    array = lib.some()
    for run, rounds, limit in (large, 20, 40 << 20), (small, 15000, 1 << 20):
        grown = leaked(run, rounds, limit)
        assert not grown, f"{rounds} exports of {run.__name__} arrays left {grown >> 10} KB"


@clause("K1", CHOICE, standard.OPEN, "an export that fails leaves the struct or a reference behind")
def test_K1_an_export_that_fails_leaves_no_memory_behind(lib):
    """After __dlpack__ raised, nothing is left."""
    if lib.adapter.unexportable is None:
        pytest.skip("the adapter makes no such arrays")
    lib.needs_keyword("max_version")
    for what, array in lib.adapter.unexportable().items():
        grown = leaked(lambda array=array: attempt(array.__dlpack__, max_version=(1, 0)), 10000, 800 << 10)
        assert not grown, f"{what}: 10000 refusals left {grown >> 10} KB"


@clause("G1", CHOICE, standard.OPEN, "exports on several threads damage each other")
def test_G1_eight_threads_export_one_array(lib):
    """Several threads may export one array, and call the deleters."""
    import threading

    array = lib.some()
    wanted, wrong, forms = lib.values(array), [], []
    for form in FORMS.values():
        if all(map(lib.knows, form)) and attempt(native.take, array, **form)[1] is None:
            forms.append(form)
    barrier = threading.Barrier(8)

    def work(i):
        barrier.wait()
        for k in range(100):
            taken = native.take(array, **forms[k % len(forms)])
            if elements(taken) != wanted:
                wrong.append(i)
            taken.delete(k % 3 == 0)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, f"threads {wrong} read other values"
