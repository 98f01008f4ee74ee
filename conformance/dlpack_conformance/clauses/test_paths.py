"""Each field of a tensor on each way out of the library and into it.

A library has one piece of code for each: __dlpack__ in both forms, its copies, views, what it imported itself, and the
functions of its exchange table. What is right on one way may be forgotten on another.
"""

import ctypes
import enum
import gc
import mmap
import sys

import _dlpack_conformance as native
import pytest

from dlpack_conformance import standard
from dlpack_conformance.adapter import DTYPES, compact, itemsize
from dlpack_conformance.clauses.test_exchange_api import ATTRIBUTE, LENT, OWNED, kind_of
from dlpack_conformance.kit import (
    CHOICE,
    IS_COPIED,
    MUST,
    PADDED,
    READ_ONLY,
    SHOULD,
    VERSIONED,
    Offer,
    clause,
    data_of,
    elements_of,
    leaked,
    settled,
    shown,
    tensor,
    without_frames,
)

# ---- Ways out ----

SOURCES = {
    "itself": lambda lib: lib.some(),
    "transposed": lambda lib: lib.view("transposed", lib.make(shape=(4, 3))),
    "slice": lambda lib: lib.view("slice", lib.make(shape=(4, 3))),
    "read-only": lambda lib: lib.make_readonly(),
    "read-only slice": lambda lib: lib.view("slice", lib.make_readonly(shape=(4, 3))),
    "imported": lambda lib: imported_array(lib),
    "imported read-only": lambda lib: imported_array(lib, form=True, flags=READ_ONLY),
    "large": lambda lib: lib.large(),
}


def imported_array(lib, form=None, **fields):
    array, error = lib.attempt(lib.offer(form, **fields))
    if error is not None:
        pytest.skip(f"the library does not take the tensor: {shown(error)}")
    if not hasattr(array, "__dlpack__"):
        pytest.skip("the library does not produce")
    return array


def by_table(lib, array, function):
    facts = getattr(type(array), ATTRIBUTE, None) and native.table_facts(type(array))
    if not facts or function in facts["lacks"]:
        pytest.skip("the array's type has no exchange table with this function")


class Lent:
    """A tensor that the table lent, as it was."""

    def __init__(self, array):
        self.says, self.list = native.borrow_by_table(array)
        self.says.update(version=(1, 3), flags=None)

    def elements(self):
        return self.list


def lend(lib, array):
    by_table(lib, array, "dltensor_from_py_object_no_sync")
    return Lent(array)


def own(lib, array):
    by_table(lib, array, "managed_tensor_from_py_object_no_sync")
    return native.take_by_table(array)


def copy(lib, array, **keywords):
    lib.needs_keyword("copy")
    return lib.take(array, copy=True, **keywords)


HOWS = {
    "versioned": lambda lib, array: lib.take(array, **VERSIONED),
    "legacy": lambda lib, array: lib.take(array),
    "versioned copy": lambda lib, array: copy(lib, array, **VERSIONED),
    "legacy copy": copy,
    "owned": own,
    "lent": lend,
}


def take(lib, how, array):
    """The tensor of an array. Skips where the library has no such way, or refuses this array."""
    try:
        return HOWS[how](lib, array)
    except Exception as error:
        assert "another major version" not in str(error), "a tensor of another major version came"
        pytest.skip(f"refused: {shown(without_frames(error))}")


def first(says):
    return says["data"] + says["byte_offset"]


sources = pytest.mark.parametrize("source", [source for source in SOURCES if source != "large"])
hows = pytest.mark.parametrize("how", HOWS)
managed = pytest.mark.parametrize("how", [how for how in HOWS if how != "lent"])
versioned = pytest.mark.parametrize("how", ["versioned", "versioned copy", "owned"])


@clause("D1", MUST, standard.OFFSET, "one of the ways out begins elsewhere, or has other strides")
@sources
@hows
def test_D1_every_export_has_the_values_of_the_array(lib, how, source):
    """data + byte_offset is the first element, and strides lead to the others, on each way out."""
    array = SOURCES[source](lib)
    taken = take(lib, how, array)
    assert b"".join(taken.elements()) == lib.values(array), "the tensor has other values"


@clause("D3", MUST, standard.SHAPE, "one of the ways out has another shape")
@sources
@hows
def test_D3_every_export_has_the_shape_of_the_array(lib, how, source):
    """ndim and shape are those of the array, on each way out."""
    array = SOURCES[source](lib)
    says = take(lib, how, array).says
    wanted = lib.described(array).shape
    if wanted is None:
        pytest.skip("the library does not tell the shape")
    assert (says["ndim"], says["shape"]) == (len(wanted), tuple(wanted)), f"ndim is {says['ndim']}, {says['shape']}"


@clause("D4", MUST, standard.STRIDES_SET, "one of the ways out has NULL strides")
@sources
@hows
def test_D4_every_export_of_1_2_or_newer_has_strides(lib, how, source):
    """Since DLPack 1.2 strides are not NULL if ndim is not 0, on each way out."""
    says = take(lib, how, SOURCES[source](lib)).says
    if says["version"] is None or says["version"] < (1, 2) or says["ndim"] == 0:
        pytest.skip("strides may be NULL")
    assert says["strides"] is not None, "strides are NULL"


@clause("D6", MUST, standard.DTYPE, "one of the ways out has another dtype")
@sources
@hows
def test_D6_every_export_has_the_dtype_of_the_array(lib, how, source):
    """The dtype is that of the array, on each way out."""
    says = take(lib, how, SOURCES[source](lib)).says
    assert says["dtype"] == DTYPES[lib.dtype], f"{lib.dtype} is exported as {says['dtype']}"


@clause("D6", MUST, standard.DTYPE, "one of the ways out has the wrong code, bits or lanes for some dtypes")
@hows
@pytest.mark.parametrize("dtype", DTYPES)
def test_D6_each_dtype_on_every_way_out(lib, dtype, how):
    """An array of each dtype is exported with the code, bits and lanes of dlpack.h, on each way out."""
    says = take(lib, how, lib.make(dtype)).says
    assert says["dtype"] == DTYPES[dtype], f"{dtype} is exported as {says['dtype']}"


@clause("P8", MUST, standard.DEVICE_FIELD, "one of the ways out has another device")
@sources
@hows
def test_P8_every_export_has_the_device_of_the_array(lib, how, source):
    """The device is that which __dlpack_device__() returns, on each way out."""
    array = SOURCES[source](lib)
    says = take(lib, how, array).says
    kind, number = array.__dlpack_device__()
    kind = kind.value if isinstance(kind, enum.Enum) else kind
    assert says["device"][0] == kind and number in (None, says["device"][1]), f"the device is {says['device']}"


@clause("P2", MUST, standard.VERSION_FIELD, "the version is not initialized on one of the ways out")
@sources
@versioned
def test_P2_every_export_has_a_version_of_DLPack(lib, how, source):
    """The version is one of DLPack's, with the major version 1, on each way out."""
    version = take(lib, how, SOURCES[source](lib)).says["version"]
    assert version[0] == 1 and version[1] < 64, f"the version is {version}"


@clause("P3", MUST, standard.READ_ONLY_FLAG, "one of the ways out loses the read-only flag")
@pytest.mark.parametrize("source", ["read-only", "read-only slice", "imported read-only"])
@pytest.mark.parametrize("how", ["versioned", "owned"])
def test_P3_every_export_of_read_only_data_is_flagged(lib, how, source):
    """A tensor of read-only data has DLPACK_FLAG_BITMASK_READ_ONLY set, on each way out."""
    array = SOURCES[source](lib)
    if source == "imported read-only" and lib.described(array).readonly is not True:
        pytest.skip("the library does not take read-only data as read-only")
    says = take(lib, how, array).says
    assert says["flags"] & (READ_ONLY | IS_COPIED), f"flags are {says['flags']}"


@clause("P3", SHOULD, standard.FLAGS_0, "one of the ways out flags writable data read-only")
@sources
@versioned
def test_P3_no_export_of_writable_data_is_flagged(lib, how, source):
    """A tensor of writable data does not have DLPACK_FLAG_BITMASK_READ_ONLY set, on each way out."""
    array = SOURCES[source](lib)
    if lib.described(array).readonly is not False:
        pytest.skip("the array is read-only, or the library does not tell")
    says = take(lib, how, array).says
    assert not says["flags"] & READ_ONLY, f"flags are {says['flags']}"


@clause("P4", MUST, standard.IS_COPIED_SET, "copies of some arrays are not flagged")
@pytest.mark.parametrize("source", ["read-only", "read-only slice", "imported", "imported read-only"])
def test_P4_every_copy_is_flagged(lib, source):
    """A copy of any array has DLPACK_FLAG_BITMASK_IS_COPIED set."""
    if not take(lib, "versioned copy", lib.some()).says["flags"] & IS_COPIED:
        pytest.skip("no copy is flagged, which another clause tests")
    array = SOURCES[source](lib)
    says = take(lib, "versioned copy", array).says
    if first(says) == lib.pointer(array):
        pytest.skip("copy=True is not honoured")
    assert says["flags"] & IS_COPIED, f"flags are {says['flags']}"


@clause("P4", MUST, standard.SOLELY_OWNED, "shared memory is flagged as a copy on one of the ways out")
@sources
@pytest.mark.parametrize("how", ["versioned", "owned"])
def test_P4_no_export_of_shared_memory_is_flagged_as_a_copy(lib, how, source):
    """A tensor that shares the array's memory does not have DLPACK_FLAG_BITMASK_IS_COPIED set, on each way out."""
    array = SOURCES[source](lib)
    says = take(lib, how, array).says
    if first(says) != lib.pointer(array):
        pytest.skip("the tensor has other memory")
    assert not says["flags"] & IS_COPIED, f"flags are {says['flags']}"


@clause("P3", SHOULD, standard.FLAGS_0, "flags are not initialized on one of the ways out")
@sources
@versioned
def test_P3_no_export_has_an_unknown_flag(lib, how, source):
    """Flags that dlpack.h does not define are 0, and so is the flag of padded sub-byte data, on each way out."""
    flags = take(lib, how, SOURCES[source](lib)).says["flags"]
    assert flags & ~(READ_ONLY | IS_COPIED) == 0, f"flags are {flags:#x}"


@clause("P9", MUST, standard.UNTIL_DELETER, "one of the ways out does not keep the memory")
@pytest.mark.parametrize("source", SOURCES)
@managed
def test_P9_every_export_keeps_the_memory_until_its_deleter(lib, how, source):
    """The memory, shape and strides live until the deleter is called, on each way out."""
    array = SOURCES[source](lib)
    wanted, taken = lib.values(array), take(lib, how, array)
    del array
    gc.collect()
    others = [lib.large(data=b"\0") if lib.adapter.make else None for _ in range(10)]
    assert b"".join(taken.elements()) == wanted, "the memory was reused"
    del others
    taken.delete()


@clause("K1", MUST, standard.DELETES_SELF, "a struct or the owner leaks on one of the ways out")
@pytest.mark.parametrize("source", ["itself", "slice", "read-only", "read-only slice", "imported"])
@managed
def test_K1_no_export_leaves_memory_behind(lib, how, source):
    """After the deleter was called, struct and data are freed, on each way out."""
    count = (1 << 20) // itemsize(lib.dtype)
    shape = lib.scaled(count)

    def large():
        if source == "imported":
            array = imported_array(lib, shape=shape, values=zeros)
        elif source.startswith("read-only"):
            array = lib.make_readonly(shape=shape, data=zeros)
        else:
            array = lib.make(shape=shape, data=zeros)
        take(lib, how, lib.view("slice", array) if source.endswith("slice") else array).delete()

    array = SOURCES[source](lib)
    take(lib, how, array)
    zeros = bytes(itemsize(lib.dtype) * count_of(shape))
    for run, rounds, limit in (lambda: take(lib, how, array).delete(), 4000, 128 << 10), (large, 20, 10 << 20):
        grown = leaked(run, rounds, limit)
        assert not grown, f"{rounds} exports left {grown >> 10} KB"


def count_of(shape):
    return compact((1, *shape))[0]


@clause("K5", MUST, standard.GIL, "one of the deleters uses the C API without an attached thread state")
@sources
@managed
def test_K5_the_deleter_of_every_export_works_without_the_GIL(lib, how, source):
    """The deleter may be called while the GIL is released, and on any thread, on each way out."""
    array = SOURCES[source](lib)
    for _ in range(5):
        take(lib, how, array).delete(False)
        take(lib, how, array).delete_on_thread()


@clause("K5", MUST, standard.GIL, "the last owner of the memory is freed without an attached thread state")
@sources
@managed
def test_K5_the_deleter_may_free_the_array_without_the_GIL(lib, how, source):
    """The deleter may be the last owner of the array, and be called without the GIL, on each way out."""
    for on_thread in (False, True):
        array = SOURCES[source](lib)
        taken = take(lib, how, array)
        del array
        gc.collect()
        taken.delete_on_thread() if on_thread else taken.delete(False)


@clause("X3", MUST, standard.LENT, "tensors that are lent share their shape or strides")
@pytest.mark.parametrize("source", ["itself", "transposed", "slice"])
def test_X3_two_arrays_are_lent_at_once(lib, source):
    """Two arrays may be lent at once: each tensor has its own shape and strides."""
    one, other = SOURCES[source](lib), lib.make(shape=(3, 4))
    by_table(lib, one, "dltensor_from_py_object_no_sync")
    _, elements, _, others = native.borrow_both_by_table(one, other)
    assert b"".join(elements) == lib.values(one), "the first tensor has the values of something else"
    assert b"".join(others) == lib.values(other), "the second tensor has the values of something else"


# ---- The allocator ----


def allocate(lib, shape=None, kind=None):
    kind = kind or lib.table()
    return lib.allocate(kind, tensor(lib.dtype, shape or lib.shape, strides=None, data=0, values=b""))


@clause("X5", MUST, standard.ALLOCATED, "a field of an allocated tensor is wrong")
def test_X5_every_field_of_an_allocated_tensor(lib):
    """An allocated tensor has dtype, ndim, shape and device of the prototype, strides, and a version of DLPack."""
    says = allocate(lib).says
    wanted = {"dtype": DTYPES[lib.dtype], "ndim": len(lib.shape), "shape": lib.shape, "strides": compact(lib.shape)}
    wanted.update(device=(1, 0))
    assert {name: says[name] for name in wanted} == wanted, f"the tensor is {says}"
    assert says["version"][0] == 1 and says["version"][1] < 64, f"the version is {says['version']}"


@clause("X5", SHOULD, standard.FLAGS_0, "flags of an allocated tensor are not initialized")
def test_X5_an_allocated_tensor_has_no_flags(lib):
    """By default flags are 0: an allocated tensor is writable, and no copy."""
    flags = allocate(lib).says["flags"]
    assert flags & ~IS_COPIED == 0, f"flags are {flags:#x}"


@clause("X5", MUST, standard.SOLELY_OWNED, "an allocated tensor is flagged as a copy, though it is none")
def test_X5_an_allocated_tensor_is_no_copy(lib):
    """A tensor that is allocated is no copy of another."""
    flags = allocate(lib).says["flags"]
    assert not flags & IS_COPIED, f"flags are {flags:#x}"


@clause("K1", MUST, standard.DELETES_SELF, "allocated memory leaks")
def test_K1_an_allocated_tensor_leaves_no_memory_behind(lib):
    """After the deleter of an allocated tensor was called, struct and data are freed."""
    kind = lib.table()
    shape = lib.scaled((4 << 20) // itemsize(lib.dtype))

    def large():
        taken = allocate(lib, shape, kind)
        ctypes.memset(first(taken.says), 1, 4 << 20)
        taken.delete()

    for run, rounds, limit in (large, 20, 40 << 20), (lambda: allocate(lib, None, kind).delete(), 4000, 128 << 10):
        grown = leaked(run, rounds, limit)
        assert not grown, f"{rounds} allocations left {grown >> 10} KB"


@clause("K5", MUST, standard.GIL, "the deleter of an allocated tensor uses the C API without an attached thread state")
def test_K5_the_deleter_of_an_allocated_tensor_works_without_the_GIL(lib):
    """The deleter of an allocated tensor may be called while the GIL is released, and on any thread."""
    for _ in range(20):
        allocate(lib).delete(False)
        allocate(lib).delete_on_thread()


# ---- Ways in ----


class Given:
    """A tensor on its way into the library."""

    def __init__(self, lib, way, **fields):
        self.lib, self.way, self.fields = lib, way, lib.plain(**fields)
        self.made = []

    def source(self):
        form = self.way in ("versioned", "versioned capsule")
        if self.way.endswith("capsule"):
            self.made.append(tensor(versioned=form, **self.fields))
            return self.made[0].capsule()
        if self.way == "table":
            array = kind_of(self.lib, native.table(without=8))()
            array.managed = tensor(**self.fields)
            self.made.append(array.managed)
            native.calls_of_tables()
            return array
        self.offer = Offer(form, **self.fields)
        return self.offer

    def take(self):
        """(array, None), or (None, the exception). Skips where the library went another way."""
        lib = self.lib
        if self.way == "to_object":
            kind = lib.table()
            self.made.append(tensor(**self.fields))
            try:
                array = native.make_by_table(kind, self.made[0])
                lib.described(array)
                return array, None
            except Exception as error:
                return None, without_frames(error)
        if self.way == "table":
            lib.needs_objects()
        source = self.source()
        if self.way == "copy":
            if not lib.claims_version("2023.12"):
                pytest.skip("the library does not claim from_dlpack with copy")
            array, error = lib.attempt(source, copy=True)
        else:
            array, error = lib.attempt(source)
        if self.way == "table":
            counts = native.calls_of_tables()
            if source.by_method.made or not counts[OWNED] + counts[LENT]:
                array = None
                if counts[OWNED]:
                    self.deleted_once()
                pytest.skip("the library does not use the table for this tensor")
        elif not self.way.endswith("capsule"):
            self.made += self.offer.made
        return array, error

    def deleted_once(self):
        for made in self.made:
            assert settled(lambda made=made: made.deleted >= 1), "the deleter was not called"
            assert made.deleted == 1, f"the deleter was called {made.deleted} times"


# Of the first two, test_consumer.py has most tests: they are here where that file has none.
WAYS = ("versioned", "legacy", "versioned capsule", "legacy capsule", "copy", "table", "to_object")
OF_VERSIONED = ("versioned", "versioned capsule", "table", "to_object")
all_ways = pytest.mark.parametrize("way", WAYS)
ways = pytest.mark.parametrize("way", WAYS[2:])
versioned_ways = pytest.mark.parametrize("way", OF_VERSIONED[1:])


def needs_way(lib, way):
    """Skips where the library does not take a plain tensor on this way."""
    if lib.adapter.from_dlpack is None and way != "to_object":
        pytest.skip("the library does not consume")
    if not hasattr(lib, "ways"):
        lib.ways = {}
    if way not in lib.ways:
        _, lib.ways[way] = Given(lib, way).take()
    if lib.ways[way] is not None:
        pytest.skip(f"the library takes no tensor by {way}: {shown(lib.ways[way])}")


def reads(lib, way, wanted, **fields):
    """Gives a tensor, and checks the values and the shape of the array. Skips where an object with such a tensor is
    read wrong, too: test_consumer.py tells this once."""
    usual = "versioned" if way in OF_VERSIONED else "legacy"
    needs_way(lib, way)
    if way != usual and way != "to_object":
        try:
            reads(lib, usual, wanted, **fields)
        except pytest.skip.Exception:
            pass
        except AssertionError:
            pytest.skip("an object with such a tensor is read wrong, too, which another clause tests")
    given = Given(lib, way, **fields)
    array, error = given.take()
    if error is None:
        says = lib.described(array)
        assert says.shape in (None, given.fields["shape"]), f"the array has the shape {says.shape}"
        assert says.dtype in (None, given.fields["dtype"]), f"the array has the dtype {says.dtype}"
        try:
            got = lib.values(array)
        except Exception as late:
            error = without_frames(late)
        else:
            assert got == wanted, f"the array has the bytes {got[:32].hex()}, the tensor {wanted[:32].hex()}"
        del array, says
    if way != "to_object" or error is None:
        given.deleted_once()


@clause("D9", MUST, standard.ACCEPTS, "one of the ways in reads other values")
@ways
@pytest.mark.parametrize("dtype", DTYPES)
def test_D9_every_way_in_reads_each_dtype(lib, dtype, way):
    """A tensor of each dtype is read with its shape, dtype and values, or refused, on each way in."""
    reads(lib, way, data_of(dtype, lib.shape), dtype=dtype)


@clause("D1", MUST, standard.OFFSET, "one of the ways in ignores byte_offset, or adds it twice")
@ways
@pytest.mark.parametrize("offset", [16, 256])
def test_D1_every_way_in_adds_byte_offset(lib, offset, way):
    """data + byte_offset is the first element, on each way in, or the tensor is refused."""
    reads(lib, way, lib.data, values=bytes(offset) + lib.data, byte_offset=offset)


@clause("D1", MUST, standard.OFFSET, "one of the ways in cuts byte_offset to 32 bits")
@all_ways
def test_D1_every_way_in_adds_a_byte_offset_beyond_32_bits(lib, way):
    """byte_offset is a 64-bit integer, on each way in, or the tensor is refused."""
    try:
        reads(lib, way, lib.data, values=bytes(256) + lib.data, byte_offset=256)
    except AssertionError:
        pytest.skip("byte_offset is not added, which another clause tests")
    memory, offset = tensor(values=bytes(256) + lib.data), 2**33
    if memory.address < offset:
        pytest.skip("the address of memory is less than the offset")
    reads(lib, way, lib.data, values=b"", data=memory.address + 256 - offset, byte_offset=offset)


LAYOUTS = {
    "columns": ((3, 4), (1, 3), 0),
    "every other": ((3, 2), (4, 2), 0),
    "broadcast": ((3, 4), (0, 1), 0),
    "backwards": ((6,), (-1,), 5),
}


@clause("D5", MUST, standard.STRIDES, "one of the ways in ignores strides, or makes them positive")
@ways
@pytest.mark.parametrize("layout", LAYOUTS)
def test_D5_every_way_in_follows_strides(lib, layout, way):
    """Strides lead to the elements, on each way in, or the tensor is refused."""
    shape, strides, begin = LAYOUTS[layout]
    needs_way(lib, way)
    if layout == "backwards" and lib.adapter.name == "torch":
        pytest.skip("negative strides end the process, which D5_negative_strides tests")
    if lib.described(Given(lib, way).take()[0]).shape is None:
        pytest.skip("the library has no shapes: it tells the bytes in the order of memory")
    size = itemsize(lib.dtype)
    data = data_of(lib.dtype, (12,))
    memory = tensor(values=bytes(256 - size * begin) + data)
    wanted = elements_of(data, size, shape, strides, begin)
    reads(lib, way, wanted, values=b"", data=memory.address + 256, shape=shape, strides=strides)


FAR = 2**32  # elements between two elements


def far_memory(lib):
    """Address of memory with two elements so far apart, its owner, the dtype and the elements."""
    dtype = next((name for name in ("uint8", "int8", "bool") if name in lib.adapter.dtypes), lib.dtype)
    size = itemsize(dtype)
    if sys.maxsize < 2**33 or not hasattr(mmap, "MAP_PRIVATE"):
        pytest.skip("the address range or the system has no memory that is so large and empty")
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        memory = mmap.mmap(-1, (FAR + 1) * size, flags=flags)
    except (OSError, ValueError) as error:
        pytest.skip(f"the system has no memory that is so large and empty: {error}")
    data = data_of(dtype, (2,))
    memory[:size], memory[FAR * size :] = data[:size], data[size:]
    owner = ctypes.c_char.from_buffer(memory)
    return ctypes.addressof(owner), (memory, owner), dtype, data


@clause("D8", MUST, standard.SHAPE_64, "one of the ways in cuts strides to 32 bits")
@all_ways
def test_D8_every_way_in_follows_a_stride_beyond_32_bits(lib, way):
    """Strides are 64-bit integers, on each way in, or the tensor is refused."""
    needs_way(lib, way)
    address, owner, dtype, data = far_memory(lib)
    reads(lib, way, data, dtype=dtype, values=b"", data=address, shape=(2,), strides=(FAR,))
    del owner


@clause("D8", MUST, standard.SHAPE_64, "strides are cut to 32 bits in an export")
def test_D8_a_stride_beyond_32_bits_is_exported_whole(lib):
    """Strides are 64-bit integers: an array that came with a large stride is exported with its elements, or refused."""
    address, owner, dtype, data = far_memory(lib)
    array = imported_array(lib, dtype=dtype, values=b"", data=address, shape=(2,), strides=(FAR,))
    try:
        taken = lib.take_any(array)
    except Exception as error:
        pytest.skip(f"refused: {shown(without_frames(error))}")
    assert b"".join(taken.elements()) == data, f"strides are {taken.says['strides']}, and the values differ"
    del owner


@clause("D6", MUST, standard.LANES, "one of the ways in ignores lanes")
@ways
def test_D6_every_way_in_refuses_lanes_or_keeps_them(lib, way):
    """A tensor of two lanes is refused, or not taken for a dtype of the array API, on each way in."""
    needs_way(lib, way)
    code, bits, _ = DTYPES[lib.dtype]
    found = {}
    for each in {"versioned" if way in OF_VERSIONED else "legacy", way}:
        given = Given(lib, each, dtype=(code, bits, 2), values=lib.data * 2)
        array, error = given.take()
        found[each] = None if error is not None else lib.described(array).dtype
        del array
        if each != "to_object" or error is None:
            given.deleted_once()
    if way != "to_object" and any(found[each] in DTYPES for each in found if each != way):
        pytest.skip("lanes are ignored in an object's tensor, too, which another clause tests")
    assert found[way] not in DTYPES, f"it is read as {found[way]}"


@clause("C5", SHOULD, standard.UNSUPPORTED, "one of the ways in takes memory of a device for memory of the CPU")
@ways
@pytest.mark.parametrize("device", [(2, 0), (10, 0), (8, 0)], ids=["CUDA", "ROCm", "Metal"])
def test_C5_every_way_in_refuses_memory_of_a_GPU(lib, device, way):
    """Memory of a GPU is refused by a library that has no GPU, on each way in. The data here cannot be read."""
    needs_way(lib, way)
    given = Given(lib, way, data=4096)
    given.fields["device"] = device
    if way in ("versioned", "legacy", "copy"):
        given.fields.pop("device")
        given.source = lambda: told(given, device)
    array, error = given.take()
    assert error is not None, f"a tensor on the device {device} was taken"
    if way != "to_object":
        given.deleted_once()


def told(given, device):
    given.offer = Offer(given.way == "versioned", device=device, **given.fields)
    given.offer.fields["device"] = device
    return given.offer


@clause("C7", MUST, standard.READ_ONLY_FLAG, "one of the ways in loses the read-only flag")
@versioned_ways
def test_C7_every_way_in_keeps_read_only_data_read_only(lib, way):
    """A library that has read-only arrays honours DLPACK_FLAG_BITMASK_READ_ONLY on each way in."""
    needs_way(lib, way)
    if lib.adapter.readonly is None:
        pytest.skip("the library has no read-only arrays")
    given = Given(lib, way, flags=READ_ONLY)
    array, error = given.take()
    if error is not None:
        pytest.skip(f"read-only data is refused: {shown(error)}")
    says = lib.described(array)
    if says.readonly is None or says.pointer not in (None, given.made[-1].address):
        pytest.skip("the library does not tell whether an array is read-only, or copies")
    assert says.readonly, "the array is writable"


@clause("K6", SHOULD, standard.MAJOR, "one of the ways in reads a struct of another major version")
@versioned_ways
def test_K6_every_way_in_refuses_another_major_version(lib, way):
    """If the major version is unknown, the consumer calls the deleter and reads nothing else, on each way in. Here
    dl_tensor cannot be read."""
    needs_way(lib, way)
    given = Given(lib, way, version=(2, 0), sealed=True)
    array, error = given.take()
    assert error is not None, "a tensor of version (2, 0) was taken"
    if way != "to_object":
        given.deleted_once()


@clause("K4", MUST, standard.DELETER_CALLED, "one of the ways in calls the deleter never, twice or too early")
@ways
def test_K4_every_way_in_deletes_the_tensor_once(lib, way):
    """The deleter is called once, when the array is gone, on each way in. Memory here cannot be read after it."""
    needs_way(lib, way)
    given = Given(lib, way)
    array, error = given.take()
    assert error is None
    gc.collect()
    assert lib.values(array) == lib.data
    copied = lib.described(array).pointer not in (None, given.made[-1].address)
    assert copied or given.made[-1].deleted == 0, "the deleter was called while the array uses the memory"
    del array
    given.deleted_once()


@clause("K3", MUST, standard.NO_DELETER, "one of the ways in calls a NULL deleter")
@ways
def test_K3_no_way_in_calls_a_NULL_deleter(lib, way):
    """The deleter can be NULL: the tensor is taken, and nothing is called, on each way in."""
    needs_way(lib, way)
    given = Given(lib, way, deleter=False)
    array, error = given.take()
    assert error is None, f"raised {shown(error)}"
    assert lib.values(array) == lib.data
    del array
    gc.collect()


@clause("K4", MUST, standard.OWNERSHIP, "a tensor that one of the ways in refuses leaks, or is freed twice")
@pytest.mark.parametrize("way", [way for way in WAYS if way != "to_object"])
def test_K4_every_way_in_deletes_what_it_refuses_once(lib, way):
    """If the consumer refuses a tensor, the deleter is called once, on each way in."""
    needs_way(lib, way)
    given = Given(lib, way, dtype=(200, 32, 1))
    array, error = given.take()
    if error is None:
        pytest.skip("the tensor is taken")
    given.deleted_once()


@clause("C8", MUST, standard.PADDED_FLAG, "one of the ways in reads padded data as packed")
@versioned_ways
def test_C8_no_way_in_reads_padded_data_as_packed(lib, way):
    """A tensor of 4-bit elements with the flag of padded data is read so, or refused, on each way in."""
    needs_way(lib, way)
    given = Given(lib, way, shape=(4,), dtype=(1, 4, 1), values=b"\1\2\3\4", flags=PADDED)
    array, error = given.take()
    if error is not None or not hasattr(array, "__dlpack__"):
        pytest.skip("the library takes no padded data")
    elements = lib.take(array, **VERSIONED).elements()
    assert elements == [b"\1", b"\2", b"\3", b"\4"], f"the elements are {elements}"


# ---- Several tensors, and who keeps what ----


@clause("K4", MUST, standard.DELETER_CALLED, "of two tensors with the same memory one is released")
@all_ways
def test_K4_two_tensors_with_the_same_memory(lib, way):
    """Two tensors that have the same memory are two tensors: each deleter is called once."""
    needs_way(lib, way)
    memory = tensor(values=lib.data)
    one, other = (Given(lib, way, values=b"", data=memory.address) for _ in range(2))
    (array, error), (second, late) = one.take(), other.take()
    assert error is None and late is None, "one of the two was refused"
    assert lib.values(array) == lib.data == lib.values(second)
    del array
    gc.collect()
    assert lib.values(second) == lib.data
    del second
    one.deleted_once()
    other.deleted_once()


@clause("K4", CHOICE, standard.OPEN, "a reference to the source or to the capsule leaks")
@pytest.mark.parametrize("what", ["source", "capsule"])
@pytest.mark.parametrize("form", [True, False], ids=["versioned", "legacy"])
def test_K4_no_reference_is_left_behind(lib, form, what):
    """After the array is gone, the consumer holds neither the source nor the capsule."""
    lib.needs_objects()
    needs_way(lib, "versioned" if form else "legacy")
    if not hasattr(sys, "getrefcount"):
        pytest.skip("this Python does not count references")
    offer = lib.offer(form)
    capsules = []

    class Source:
        def __dlpack__(self, **keywords):
            capsules.append(offer.__dlpack__(**keywords))
            return capsules[-1]

        def __dlpack_device__(self):
            return 1, 0

    source = Source()
    held = {"source": source}.get(what)
    before = sys.getrefcount(source)
    array = lib.from_dlpack(source)
    assert lib.values(array) == lib.data
    del array
    gc.collect()
    if held is not None:
        assert settled(lambda: sys.getrefcount(source) <= before), "a reference to the source is left"
    else:  # the list, and the argument of getrefcount
        assert settled(lambda: sys.getrefcount(capsules[-1]) <= 2), "a reference to the capsule is left"


@clause("K4", MUST, standard.DELETER_CALLED, "the first of several tensors leaks when the second is refused")
@pytest.mark.parametrize("form", [True, False], ids=["versioned", "legacy"])
def test_K4_several_tensors_of_which_one_is_refused(lib, form):
    """If one of several tensors is refused, the deleter of each that was exported is called once."""
    if lib.adapter.from_several is None:
        pytest.skip("the adapter has no from_several(sources)")
    offers = [lib.offer(form), lib.offer(form, dtype=(200, 32, 1))]
    try:
        lib.adapter.from_several(offers)
    except Exception as error:
        without_frames(error)
    else:
        pytest.skip("both are taken")
    for made in offers[0].made + offers[1].made:
        assert settled(lambda made=made: made.deleted >= 1), "the deleter was not called"
        assert made.deleted == 1, f"the deleter was called {made.deleted} times"


@clause("C1", MUST, standard.PROPAGATE, "what was exported leaks when __dlpack_device__ raises")
def test_C1_an_error_of_dlpack_device_leaves_nothing_behind(lib):
    """If __dlpack_device__ raises an exception, it reaches the caller or does not matter, and what was exported is
    deleted once."""
    lib.needs_objects()
    needs_way(lib, "versioned")

    class Failing(Offer):
        def __dlpack_device__(self):
            raise MemoryError("cannot tell the device")

    offer = Failing(**lib.plain())
    array, error = lib.attempt(offer)
    assert error is None or isinstance(error, MemoryError), f"raised {error!r}"
    del array
    for made in offer.made:
        assert settled(lambda made=made: made.deleted >= 1), "the deleter was not called"
        assert made.deleted == 1, f"the deleter was called {made.deleted} times"


@clause("K1", MUST, standard.DESTRUCTOR, "the destructor compares the address of the name")
@pytest.mark.parametrize("keywords", [VERSIONED, {}], ids=["versioned", "legacy"])
def test_K1_a_capsule_that_is_given_back(lib, keywords):
    """A consumer that fails may give a capsule its name back: the destructor calls the deleter once."""
    capsule = lib.capsule(lib.some(), **keywords)
    watch, name = native.watch(capsule), native.name(capsule)
    native.rename(capsule, b"used_" + name)
    native.rename(capsule, bytes(bytearray(name)))
    del capsule
    if native.calls(watch) == 0:
        # The destructor may call its own function in place of the deleter.
        count = (4 << 20) // itemsize(lib.dtype)

        def give_back():
            capsule = lib.large(count, b"\0").__dlpack__(**keywords)
            native.rename(capsule, b"used_" + name)
            native.rename(capsule, name)

        assert not leaked(give_back, 10, 20 << 20), "the deleter was not called, and the memory leaks"
        return
    assert native.calls(watch) == 1, f"the deleter was called {native.calls(watch)} times"


@clause("K2", MUST, standard.IN_FLIGHT, "the destructor of an argument or a local variable replaces an exception")
@pytest.mark.parametrize("keywords", [VERSIONED, {}], ids=["versioned", "legacy"])
@pytest.mark.parametrize("where", ["argument", "local", "unused"])
def test_K2_an_exception_survives_a_capsule_that_dies(lib, where, keywords):
    """A capsule may die as an argument of a function that raises an exception, or as a local variable of it: the
    exception reaches the caller. A capsule that dies without an exception leaves none."""
    lib.capsule(lib.some(), **keywords)
    array = lib.some()

    def raises():
        capsule = array.__dlpack__(**keywords)
        assert capsule is not None
        raise LookupError("in flight")

    if where == "unused":
        held = [array.__dlpack__(**keywords)]
        held.clear()
        return
    try:
        int(array.__dlpack__(**keywords)) if where == "argument" else raises()
    except Exception as error:
        wanted = TypeError if where == "argument" else LookupError
        assert type(error) is wanted, f"{error!r} came in place of a {wanted.__name__}"
        without_frames(error)
    else:
        raise AssertionError("no exception came")
