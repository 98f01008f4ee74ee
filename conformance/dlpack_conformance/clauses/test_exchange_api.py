"""The exchange table of the library's type, and the tables that the library finds on types of the suite."""

import gc
import threading

import _dlpack_conformance as native
import pytest

from dlpack_conformance import standard
from dlpack_conformance.adapter import DTYPES, compact
from dlpack_conformance.kit import (
    CHOICE,
    CPU,
    MUST,
    READ_ONLY,
    SHOULD,
    clause,
    data_of,
    settled,
    tensor,
    without_frames,
)

ATTRIBUTE = "__dlpack_c_exchange_api__"
OWNED, LENT, TO, ALLOCATE, ASKED = range(5)  # of calls_of_tables()


def attempt(function, *arguments, **keywords):
    try:
        return function(*arguments, **keywords), None
    except Exception as error:
        return None, without_frames(error)


def joined(elements):
    return b"".join(elements)


# ---- The library's table ----


@clause("X1", MUST, standard.ON_THE_TYPE, "the table is an integer, or a capsule of another name")
def test_X1_the_table_is_a_capsule_on_the_type(lib):
    """__dlpack_c_exchange_api__ of the type is a capsule named "dlpack_exchange_api"."""
    capsule = getattr(lib.table(), ATTRIBUTE)
    assert type(capsule).__name__ == "PyCapsule", f"it is {capsule!r}"
    assert native.name(capsule) == b"dlpack_exchange_api", f"its name is {native.name(capsule)!r}"


@clause("X1", MUST, standard.CHECK_MAJOR, "the table says another version than its layout has")
def test_X1_the_table_has_version_1_3_or_newer(lib):
    """The header of the table has the major version 1, and a minor version of 3 or more."""
    version = native.table_facts(lib.table())["version"]
    assert version[0] == 1 and version[1] >= 3, f"the version is {version}"


@clause("X1", MUST, standard.STAYS, "the table is made anew, and an old pointer leads nowhere")
def test_X1_the_table_stays_where_it_is(lib):
    """The table lives as long as the process: its address does not change."""
    kind = lib.table()
    before = native.table_facts(kind)["address"]
    gc.collect()
    assert native.table_facts(kind)["address"] == before


@clause("X3", MUST, standard.NOT_NULL, "a function that may not be NULL is NULL")
def test_X3_the_table_has_all_functions_but_one(lib):
    """All functions but dltensor_from_py_object_no_sync are not NULL."""
    lacks = set(native.table_facts(lib.table())["lacks"]) - {"dltensor_from_py_object_no_sync"}
    assert not lacks, f"the table lacks {', '.join(sorted(lacks))}"


@clause("X3", MUST, standard.OWNED, "the table exports other elements than __dlpack__")
@pytest.mark.parametrize("dtype", DTYPES)
def test_X3_an_owned_tensor_has_the_values_of_the_array(lib, dtype):
    """managed_tensor_from_py_object_no_sync gives a tensor with dtype, shape and values of the array."""
    lib.table()
    array = lib.make(dtype)
    taken = native.take_by_table(array)
    assert taken.says["dtype"] == DTYPES[dtype], f"the dtype is {taken.says['dtype']}"
    assert taken.says["shape"] == lib.shape and taken.says["version"][0] == 1
    assert joined(taken.elements()) == data_of(dtype, lib.shape)


@clause("X3", MUST, standard.STRIDES_SET, "strides are NULL in a table of 1.3")
def test_X3_tensors_of_a_table_have_strides(lib):
    """Since DLPack 1.2 strides are not NULL if ndim is not 0."""
    lib.table()
    array = lib.some()
    assert native.take_by_table(array).says["strides"] is not None, "an owned tensor has NULL strides"
    if "dltensor_from_py_object_no_sync" not in native.table_facts(type(array))["lacks"]:
        assert native.borrow_by_table(array)[0]["strides"] is not None, "a borrowed tensor has NULL strides"


@clause("X3", MUST, standard.LENT, "the borrowed tensor of a view begins at its base")
@pytest.mark.parametrize("view", ["itself", "transposed", "slice", "steps", "backwards"])
def test_X3_a_borrowed_tensor_has_the_values_of_the_array(lib, view):
    """dltensor_from_py_object_no_sync fills a tensor with the values of the array."""
    if "dltensor_from_py_object_no_sync" in native.table_facts(lib.table())["lacks"]:
        pytest.skip("the table lacks dltensor_from_py_object_no_sync")
    array = lib.make(shape=(4, 3))
    array = array if view == "itself" else lib.view(view, array)
    says, elements = native.borrow_by_table(array)
    assert joined(elements) == lib.values(array)


@clause("X3", CHOICE, standard.OPEN, "a borrowed tensor cannot say read-only")
def test_X3_a_borrowed_tensor_of_read_only_data(lib):
    """A borrowed tensor of read-only data, which cannot say so, is given or refused."""
    if "dltensor_from_py_object_no_sync" in native.table_facts(lib.table())["lacks"]:
        pytest.skip("the table lacks dltensor_from_py_object_no_sync")
    _, error = attempt(native.borrow_by_table, lib.make_readonly())
    lib.choose("a borrowed tensor of read-only data", "refused" if error else "given")


@clause("P3", MUST, standard.READ_ONLY_FLAG, "the table loses the read-only flag")
def test_P3_an_owned_tensor_of_read_only_data_is_flagged(lib):
    """An owned tensor of read-only data has DLPACK_FLAG_BITMASK_READ_ONLY set."""
    lib.table()
    flags = native.take_by_table(lib.make_readonly()).says["flags"]
    assert flags & READ_ONLY, f"flags are {flags}"


@clause("P7", CHOICE, standard.BUFFER_IF_POSSIBLE, "the table exports what __dlpack__ refuses")
def test_P7_what_the_method_refuses(lib):
    """What __dlpack__ refuses to export, the functions of the table refuse, or export."""
    lib.table()
    if lib.adapter.unexportable is None:
        pytest.skip("the adapter makes no such arrays")
    for what, array in lib.adapter.unexportable().items():
        taken, error = attempt(native.take_by_table, array)
        lib.choose(f"{what}, by the table", "refused" if error else "exported")


@clause("P7", MUST, standard.OWNED, "the table exports other values than the array has")
def test_P7_what_the_table_exports_has_the_values_of_the_array(lib):
    """What __dlpack__ refuses to export and the table exports, it exports with the values of the array."""
    lib.table()
    if lib.adapter.unexportable is None:
        pytest.skip("the adapter makes no such arrays")
    for what, array in lib.adapter.unexportable().items():
        taken, error = attempt(native.take_by_table, array)
        if error is None:
            wanted = lib.values(array)
            got = joined(taken.elements())
            assert got == wanted, f"{what}: the array has the bytes {wanted.hex()}, its tensor {got.hex()}"


@clause("K1", MUST, standard.UNTIL_DELETER, "the deleter of the table's tensor does not free")
def test_K1_the_memory_of_an_owned_tensor_lives_until_its_deleter(lib):
    """The owned tensor keeps the memory of the array; its deleter may be called on any thread."""
    lib.table()
    array = lib.large()
    wanted, taken = lib.values(array), native.take_by_table(array)
    del array
    others = [lib.large(data=b"\0") for _ in range(20)]
    assert joined(taken.elements()) == wanted, "the memory was reused"
    del others
    taken.delete_on_thread()
    for _ in range(50):
        native.take_by_table(lib.some()).delete(False)


@clause("X6", MUST, standard.STOLEN, "the tensor is not stolen, or freed twice")
def test_X6_an_object_of_a_managed_tensor(lib):
    """managed_tensor_to_py_object_no_sync makes an array of the tensor and owns it: the deleter is called once, when
    the array is gone."""
    kind = lib.table()
    made = tensor(**lib.plain())
    array = native.make_by_table(kind, made)
    assert lib.values(array) == lib.data
    copied = lib.described(array).pointer not in (None, made.address)
    assert copied or made.deleted == 0, "the deleter was called while the array lives"
    del array
    assert settled(lambda: made.deleted >= 1), "the deleter was not called"
    assert made.deleted == 1, f"the deleter was called {made.deleted} times"


@clause("X6", CHOICE, standard.STOLEN, "a tensor that is refused leaks, or is freed twice")
def test_X6_a_tensor_that_is_refused(lib):
    """If managed_tensor_to_py_object_no_sync fails, the deleter was called once, because the tensor is stolen, or it
    was not called."""
    kind = lib.table()
    made = tensor(**lib.plain(dtype=(200, 32, 1)))
    array, error = attempt(native.make_by_table, kind, made)
    if error is None:
        pytest.skip("the tensor is taken")
    assert made.deleted <= 1, f"the deleter was called {made.deleted} times"
    lib.choose(
        "a tensor that managed_tensor_to_py_object_no_sync refuses", "deleted" if made.deleted else "not deleted"
    )


@clause("X5", MUST, standard.ALLOCATED, "the allocated tensor has another shape or dtype")
@pytest.mark.parametrize("shape", [(6,), (2, 3), (), (0, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_X5_the_allocator_gives_what_the_prototype_says(lib, dtype, shape):
    """managed_tensor_allocator gives a tensor with dtype, shape and device of the prototype, on any thread."""
    kind = lib.table()
    prototype = tensor(dtype, shape, strides=None, data=0)
    taken = lib.allocate(kind, prototype)
    says = taken.says
    assert (says["dtype"], says["shape"] or (), says["device"][0]) == (DTYPES[dtype], shape, 1), f"it is {says}"
    assert says["strides"] in (None, compact(shape)) or 0 in shape
    assert 0 in shape or says["data"], "data is NULL"
    if 0 not in shape:
        taken.elements()
    taken.delete()


@clause("X5", MUST, standard.SET_ERROR, "a failure is reported as success, twice or never")
@pytest.mark.parametrize(
    "fields",
    [{"shape": (2**60,), "values": b""}, {"dtype": (200, 32, 1), "shape": (3,)}, {"shape": (3,), "device": (99, 0)}],
    ids=["too large", "unknown dtype", "unknown device"],
)
def test_X5_the_allocator_reports_a_failure_through_SetError(lib, fields):
    """SetError is called exactly when the allocation fails."""
    kind = lib.table()
    taken, error = attempt(native.allocate_by_table, kind, tensor(**fields))
    if error is None and "device" not in fields:
        pytest.skip("the allocation succeeds")
    assert error is not None, "memory of an unknown device was allocated"
    assert isinstance(error, RuntimeError), str(error)


@clause("X4", CHOICE, standard.NULL_STREAM, "the out parameter stays unset")
def test_X4_the_stream_of_the_CPU_is_set(lib):
    """current_work_stream of the CPU succeeds, and sets the stream to NULL, or to something else, or not at all."""
    kind = lib.table()
    stream, error = attempt(native.stream_by_table, kind)
    if error is not None and "unset" not in str(error):
        raise error
    lib.choose("the stream of the CPU", "left unset" if error else "set" if stream else "NULL")


@clause("X7", CHOICE, standard.SAME_TYPE, "an object of another type is read as an array")
@pytest.mark.parametrize("other", [3, None, "text", object(), []], ids=lambda other: type(other).__name__)
def test_X7_an_object_of_another_type(lib, other):
    """An object of another type than that of the table, which is against the contract, is an exception."""
    _, error = attempt(native.take_by_table_of, lib.table(), other)
    assert not isinstance(error, AssertionError), str(error)
    lib.choose("an object of another type for the table", "refused" if error else "taken")


@clause("G1", CHOICE, standard.OPEN, "the functions of the table damage each other on several threads")
def test_G1_eight_threads_use_the_table(lib):
    """Several threads may use the functions of the table."""
    kind = lib.table()
    array = lib.some()
    wanted, wrong, barrier = lib.values(array), [], threading.Barrier(8)

    def work(i):
        barrier.wait()
        for _ in range(50):
            taken = native.take_by_table(array)
            if joined(taken.elements()) != wanted:
                wrong.append(i)
            taken.delete(False)
            native.make_by_table(kind, tensor(**lib.plain()))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, f"threads {wrong} read other values"


# ---- Tables that the library finds ----


def kind_of(lib, table, bases=(), **members):
    """A class with an exchange table. `by_table` of an object is the tensor that the table gives, `by_method` the offer
    of __dlpack__."""

    class Array(*bases):
        def __init__(self):
            self.managed = tensor(**lib.plain())
            self.by_method = lib.offer(values=bytes(len(lib.data)))

        def __dlpack__(self, **keywords):
            return self.by_method.__dlpack__(**keywords)

        def __dlpack_device__(self):
            return CPU

    if table is not None:
        setattr(Array, ATTRIBUTE, table)
    for name, member in members.items():
        setattr(Array, name, member)
    return Array


def ways(lib, array):
    """Takes the object: "table", "method" or "refused". Its values are right, and each tensor is deleted once."""
    lib.needs_objects()
    native.calls_of_tables()
    result, error = lib.attempt(array)
    counts = native.calls_of_tables()
    way = "refused"
    if error is None:
        values = lib.values(result)
        by_table = values == lib.data
        assert by_table or values == bytes(len(lib.data)), f"the values are {values.hex()}"
        assert by_table == (counts[OWNED] + counts[LENT] > 0 and not array.by_method.made), "both ways were asked"
        way = "table" if by_table else "method"
        del result
    if counts[OWNED]:
        assert settled(lambda: array.managed.deleted == 1), f"the deleter was called {array.managed.deleted} times"
    for made in array.by_method.made:
        assert settled(lambda made=made: made.deleted == 1), f"the deleter was called {made.deleted} times"
    return way


@pytest.fixture
def reads_tables(lib):
    """Skips where the library ignores a right table."""
    lib.needs_objects()
    if not hasattr(lib, "reads_tables"):
        native.calls_of_tables()
        lib.attempt(kind_of(lib, native.table())())
        lib.reads_tables = any(native.calls_of_tables())
    if not lib.reads_tables:
        pytest.skip("the library asks no exchange tables")


@clause("X2", CHOICE, standard.OPEN, "a table gives other values than the method")
def test_X2_a_type_with_a_table(lib):
    """A type with an exchange table is asked by its table, or by __dlpack__."""
    way = ways(lib, kind_of(lib, native.table())())
    assert way != "refused", "refused"
    lib.choose("exchange tables of other libraries", "used" if way == "table" else "not used")


@clause("X3", MUST, standard.MAY_BE_NULL, "a function that may be NULL is called")
def test_X3_a_table_without_borrowed_tensors(lib, reads_tables):
    """dltensor_from_py_object_no_sync can be NULL: the tensor is taken another way."""
    assert ways(lib, kind_of(lib, native.table(without=8))()) != "refused", "refused"


@clause("X3", CHOICE, standard.NOT_NULL, "a function that is NULL is called")
@pytest.mark.parametrize("without", [1, 2, 4, 16, 31], ids=["allocator", "owned", "to object", "stream", "all"])
def test_X3_a_table_that_lacks_functions(lib, reads_tables, without):
    """A table in which a function is NULL that must not be is used as far as it goes, ignored or refused."""
    lib.choose(f"a table without functions {without:05b}", ways(lib, kind_of(lib, native.table(without=without))()))


@clause("X2", MUST, standard.CHECK_MAJOR, "the version is not checked, and a struct of another layout is read")
@pytest.mark.parametrize("major", [0, 2, 99])
def test_X2_a_table_of_another_major_version_is_not_used(lib, reads_tables, major):
    """The consumer checks the major version before it uses the struct: only the header of another version is read."""
    way = ways(lib, kind_of(lib, native.header(major))())
    assert way != "table"


@clause("X2", CHOICE, standard.OLDER, "prev_api is not followed, and the fast way is lost")
def test_X2_an_older_table_behind_a_newer_one(lib, reads_tables):
    """From a table of a newer major version the consumer may walk prev_api to a table that it knows, or call
    __dlpack__."""
    way = ways(lib, kind_of(lib, native.header(2, native.header(3, native.table())))())
    assert way != "refused", "refused"


@clause("X2", SHOULD, standard.MINOR, "a newer minor version is refused")
@pytest.mark.parametrize("minor", [3, 4, 99])
def test_X2_any_minor_version_of_a_table(lib, reads_tables, minor):
    """Minor versions are compatible: a type with a table of version (1, x) is taken."""
    assert ways(lib, kind_of(lib, native.table(minor=minor))()) != "refused", "refused"


@clause("X1", CHOICE, standard.OPEN, "an integer is read as the address of a table")
def test_X1_an_attribute_that_is_an_integer(lib):
    """An attribute that is an integer, as in drafts of the exchange API, is ignored, or the object refused."""
    lib.choose("an exchange table that is an integer", ways(lib, kind_of(lib, 0)()))


JUNK = {
    "None": lambda: None,
    "text": lambda: "dlpack_exchange_api",
    "a capsule of another name": lambda: native.table(b"exchange_api"),
    "a capsule without a name": lambda: native.table(None),
}


@clause("X1", MUST, standard.ON_THE_TYPE, "whatever the attribute is, it is read as a table")
@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_X1_an_attribute_that_is_no_table_is_not_read(lib, junk):
    """An attribute that is not a capsule of the right name is not used as a table."""
    way = ways(lib, kind_of(lib, junk())())
    assert way != "table"


@clause(
    "X1",
    SHOULD,
    standard.LOOK_UP,
    "a wrapper forwards the attribute, and the table gets an object that it does not know",
)
def test_X1_a_table_of_an_instance_is_not_used(lib):
    """The table is looked up on the type: an attribute of the instance is ignored."""
    array = kind_of(lib, None)()
    setattr(array, ATTRIBUTE, native.table())
    assert ways(lib, array) != "table"


@clause("X2", CHOICE, standard.OPEN, "a subclass changes what an export means, and its base's table is asked")
def test_X2_a_subclass_that_overrides_the_method(lib, reads_tables):
    """A subclass that overrides __dlpack__ and inherits the table is asked by the table, or by the method."""
    base = kind_of(lib, native.table())
    array = kind_of(lib, None, (base,))()
    lib.choose("a subclass that overrides __dlpack__", ways(lib, array))


@clause("X8", MUST, standard.OWNED_FAILS, "a failure is taken for success, or the exception is lost")
@pytest.mark.parametrize("outcome", [(-1, LookupError("in the table")), (-1,)], ids=["with an exception", "without"])
def test_X8_a_function_that_fails(lib, reads_tables, outcome):
    """If a function of the table fails, its exception reaches the caller, or the consumer calls __dlpack__."""
    array = kind_of(lib, native.table())()
    native.outcome(*outcome)
    try:
        result, error = lib.attempt(array)
    finally:
        native.outcome()
    assert array.managed.deleted <= 1, f"the deleter was called {array.managed.deleted} times"
    assert error is not None or array.by_method.made, "the tensor of a failed call was taken"
    if error is None:
        del result


@clause("X8", MUST, standard.OFFSET, "what a table gives is not checked")
@pytest.mark.parametrize("field", ["byte_offset", "NULL strides", "unknown dtype"])
def test_X8_what_a_table_gives_is_read_as_any_tensor(lib, reads_tables, field):
    """A tensor of a table is read as any tensor: byte_offset is added, and what cannot be read is refused."""
    fields = {
        "byte_offset": {"values": bytes(16) + lib.data, "byte_offset": 16},
        "NULL strides": {"strides": None, "version": (1, 1)},
        "unknown dtype": {"dtype": (200, 32, 1)},
    }[field]
    array = kind_of(lib, native.table(without=8))()
    array.managed = tensor(**lib.plain(**fields))
    result, error = lib.attempt(array)
    if error is None and not array.by_method.made:
        assert field in ("byte_offset", "NULL strides") or lib.described(result).dtype not in DTYPES
        if field in ("byte_offset", "NULL strides"):
            assert lib.values(result) == lib.data, "the values are others"
    result = None
    assert settled(lambda: array.managed.deleted == 1), f"the deleter was called {array.managed.deleted} times"


@clause("K6", SHOULD, standard.MAJOR, "what a table gives is read whatever its version is")
def test_K6_a_tensor_of_another_major_version_from_a_table(lib, reads_tables):
    """If a table gives a tensor of an unknown major version, the consumer calls the deleter and reads nothing else.
    Here dl_tensor cannot be read."""
    array = kind_of(lib, native.table(without=8))()
    array.managed = tensor(**lib.plain(version=(2, 0), sealed=True))
    result, error = lib.attempt(array)
    assert error is not None or array.by_method.made, "the tensor was taken"
    del result
    assert settled(lambda: array.managed.deleted == 1), f"the deleter was called {array.managed.deleted} times"
