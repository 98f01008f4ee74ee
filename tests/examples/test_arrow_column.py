"""Arrow columns as producers, without an Arrow library: this file makes Arrow structs in ctypes. examples/arrow takes
them, or refuses them with the reason (P7, C7), and releases each struct exactly once (P9, K1).

After each test, the fixture checks all structs of the test.
"""

import contextlib
import ctypes
import gc
import itertools
import struct
import sys
import threading
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_void_p

import dltensor
import gil_probe
import pytest
from array_libraries import needs_versioned_numpy
from arrow_column import Column
from collecting import PYPY
from optional import numpy

if PYPY:
    pytest.skip("ctypes.pythonapi: not on PyPy", allow_module_level=True)

pytestmark = needs_versioned_numpy

LARGE = (sys.maxsize + 1) // 16  # half as many numbers of 8 bytes as an address space can hold

NUMBERS = {
    **{"c": "int8", "s": "int16", "i": "int32", "l": "int64", "C": "uint8", "S": "uint16", "I": "uint32"},
    **{"L": "uint64", "e": "float16", "f": "float32", "g": "float64"},
}
HUGE = 2**63 - 1
HAS_GIL = not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled()


class Schema(ctypes.Structure):
    pass


class Array(ctypes.Structure):
    pass


class Stream(ctypes.Structure):
    pass


Schema._fields_ = [
    *[("format", c_char_p), ("name", c_char_p), ("metadata", c_char_p), ("flags", c_int64), ("n_children", c_int64)],
    *[("children", POINTER(c_void_p)), ("dictionary", c_void_p), ("release", c_void_p), ("private_data", c_void_p)],
]
Array._fields_ = [
    *[("length", c_int64), ("null_count", c_int64), ("offset", c_int64), ("n_buffers", c_int64)],
    *[("n_children", c_int64), ("buffers", POINTER(c_void_p)), ("children", POINTER(c_void_p))],
    *[("dictionary", c_void_p), ("release", c_void_p), ("private_data", c_void_p)],
]
Stream._fields_ = [
    *[("get_schema", c_void_p), ("get_next", c_void_p), ("get_last_error", c_void_p)],
    *[("release", c_void_p), ("private_data", c_void_p)],
]
NAMES = {Schema: b"arrow_schema", Array: b"arrow_array", Stream: b"arrow_array_stream"}

made = {}  # by private_data; kept, because a capsule may be destroyed late
keys = itertools.count(1)


def release_of(kind):
    @CFUNCTYPE(None, c_void_p)
    def release(address):
        struct = kind.from_address(address)
        made[struct.private_data].on_release()
        struct.release = None

    return release


RELEASE = {kind: release_of(kind) for kind in NAMES}


class Made:
    """A struct that counts its releases. fields: its fields; children: other structs, which its release releases."""

    def __init__(self, kind, children=(), keep=(), **fields):
        self.children, self.keep, self.released = list(children), keep, 0
        self.pointers = (c_void_p * max(len(self.children), 1))(*[c and c.address for c in self.children])
        known = {"children": self.pointers, "n_children": len(self.children)} if kind is not Stream else {}
        release = ctypes.cast(RELEASE[kind], c_void_p)
        key = next(keys)
        self.struct = kind(**{"release": release, **known, **fields, "private_data": key})
        self.address = ctypes.addressof(self.struct)
        self.kind = kind
        made[key] = self

    def on_release(self):
        self.released += 1
        for memory in self.keep:
            if isinstance(memory, numpy.ndarray) and memory.size:
                memory.view("uint8")[:] = 0xA5  # a later read fails
        for child in self.children:
            if child is not None and child.struct.release:
                RELEASE[child.kind](child.address)

    def capsule(self, name=None):
        destroy = ctypes.cast(DESTRUCTORS[self.kind], c_void_p)
        return dltensor._new(self.address, dltensor._static(name or NAMES[self.kind]), destroy)


def destroying(kind):
    name = dltensor._static(NAMES[kind])
    is_valid, pointer = dltensor._dying_is_valid, dltensor._dying_pointer

    @ctypes.PYFUNCTYPE(None, c_void_p)
    def destroy(capsule):
        for given in (name, dltensor._static("other")):
            if is_valid(capsule, given):
                address = pointer(capsule, given)
                if kind.from_address(address).release:
                    RELEASE[kind](address)

    return destroy


DESTRUCTORS = {kind: destroying(kind) for kind in NAMES}


@pytest.fixture(autouse=True)
def each_struct_is_released_once():
    yield
    gc.collect()
    assert [(m.kind.__name__, m.released) for m in made.values() if m.released != 1] == []


def schema(format="l", children=(), **fields):
    return Made(Schema, children, format=format.encode(), **fields)


def array(values=(), dtype="int64", *, bits=None, children=None, **fields):
    """Numbers, or with children a list or a struct. bits: the bitmap, from the first bit of the buffer on."""
    memory = numpy.array(values, dtype)
    bitmap = numpy.packbits(numpy.array(bits or [], bool), bitorder="little")
    addresses = [bitmap.ctypes.data if bits else None] + ([memory.ctypes.data] if children is None else [])
    buffers = (c_void_p * 2)(*addresses)
    known = {"length": len(values), "n_buffers": len(addresses), "buffers": buffers, **fields}
    result = Made(Array, children or (), keep=[memory, bitmap, buffers], **known)
    result.data = memory.ctypes.data
    return result


class Producer:
    def __init__(self, *structs, names=(None, None)):
        self.answer = tuple(s.capsule(name) for s, name in zip(structs, names))

    def __arrow_c_array__(self, requested_schema=None):
        assert requested_schema is None
        return self.answer


class StreamProducer:
    """Offers a stream of chunks. An exception in place of a chunk, or of the schema, fails with its errno and text."""

    def __init__(self, schema, *chunks, **fields):
        self.error, self.left = None, list(chunks)

        def give(kind, what, out):
            ctypes.memset(out, 0, ctypes.sizeof(kind))
            if isinstance(what, OSError):
                self.error = what.strerror and what.strerror.encode()
                return what.errno
            if what is not None:
                ctypes.memmove(out, what.address, ctypes.sizeof(kind))
                what.struct.release = None
            return 0

        def get_next(stream, out):
            return give(Array, self.left.pop(0) if self.left else None, out)

        function = CFUNCTYPE(c_int, c_void_p, c_void_p)
        self.callbacks = [
            *[function(lambda stream, out: give(Schema, schema, out)), function(get_next)],
            CFUNCTYPE(c_void_p, c_void_p)(lambda stream: self.error and ctypes.cast(self.error, c_void_p).value),
        ]
        names = ["get_schema", "get_next", "get_last_error"]
        addresses = {name: ctypes.cast(f, c_void_p) for name, f in zip(names, self.callbacks)}
        owned = [
            s for s in (schema, *chunks) if isinstance(s, Made)
        ]  # the stream releases the structs that it has not returned
        self.made = Made(Stream, owned, **{**addresses, **fields})
        self.capsule = self.made.capsule()

    def __arrow_c_stream__(self, requested_schema=None):
        assert requested_schema is None
        return self.capsule


def take(producer):
    """The traceback of an exception keeps the producer: ctypes cannot destroy capsules with an exception in flight."""
    return Column(producer)


def column(schema, array):
    return take(Producer(schema, array))


def lists(size, child, **fields):
    """(schema, array) of a fixed-size list whose child is such a pair."""
    return schema(f"+w:{size}", [child[0]]), array([], children=[child[1]], **fields)


def numbers(count, **fields):
    return schema(), array(range(count), **fields)


def table(*columns, **fields):
    return schema("+s", [c[0] for c in columns]), array([], children=[c[1] for c in columns], **fields)


def refused(text, *pair, error=BufferError):
    """The exception of a refusal. The capsules release the structs."""
    with pytest.raises(error) as raised:
        column(*pair)
    assert text in str(raised.value)
    assert str(raised.value).startswith("Column: ")


# ---- What is taken ----


@pytest.mark.parametrize("format", NUMBERS)
def test_numbers_are_exported_in_place_and_read_only_C7(format):
    source = array([1, 2, 3], NUMBERS[format])
    a = numpy.from_dlpack(column(schema(format), source))
    assert (a.dtype, a.shape, a.tolist()) == (NUMBERS[format], (3,), [1, 2, 3])
    assert a.ctypes.data == source.data
    assert not a.flags.writeable


def test_a_legacy_consumer_is_refused_as_the_data_is_read_only_C7():
    c = column(*numbers(3))
    assert c.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError, match="read-only"):
        c.__dlpack__()
    assert dltensor.read(c.__dlpack__(max_version=(1, 0))).flags == dltensor.READ_ONLY


def test_the_offset_is_honoured():
    source = array(range(10), length=4, offset=3)
    a = numpy.from_dlpack(column(schema(), source))
    assert a.tolist() == [3, 4, 5, 6]
    assert a.ctypes.data == source.data + 24


@pytest.mark.parametrize("offset", [0, 5])
def test_without_rows_the_buffers_may_be_NULL(offset):
    c = column(schema("f"), array([], offset=offset, buffers=(c_void_p * 2)()))
    tensor = dltensor.read(c.__dlpack__(max_version=(1, 0)))
    assert (tensor.data, tensor.shape, tensor.dtype) == (None, (0,), dltensor.DTYPES["float32"])


def test_fixed_size_lists_are_rank_2_with_the_offsets_of_list_and_child():
    source = numbers(20, offset=2)
    source[1].struct.length = 18
    a = numpy.from_dlpack(column(*lists(3, source, length=4, offset=1)))
    assert a.tolist() == [[5, 6, 7], [8, 9, 10], [11, 12, 13], [14, 15, 16]]
    assert a.ctypes.data == source[1].data + 40


def test_nested_lists_have_a_dimension_for_each_level():
    inner = lists(2, numbers(24, length=23, offset=1), length=11)
    a = numpy.from_dlpack(column(*lists(3, inner, length=2, offset=1)))
    assert a.tolist() == numpy.arange(7, 19).reshape(2, 3, 2).tolist()


def test_lists_of_no_elements_have_a_dimension_of_0():
    assert numpy.from_dlpack(column(*lists(0, numbers(0), length=3))).shape == (3, 0)


def test_eight_dimensions_are_taken_and_nine_are_refused():
    pair = numbers(1)
    for _ in range(7):
        pair = lists(1, pair, length=1)
    assert numpy.from_dlpack(column(*pair)).shape == (1,) * 8
    pair = numbers(1)
    for _ in range(8):
        pair = lists(1, pair, length=1)
    refused("nested lists have more than 8 dimensions", *pair)


def test_a_table_of_one_column_is_its_column():
    a = numpy.from_dlpack(column(*table(numbers(10, length=9, offset=1), length=4, offset=2)))
    assert a.tolist() == [3, 4, 5, 6]


# ---- Nulls ----


def test_a_null_anywhere_in_the_window_is_refused():
    for offset, length, null in itertools.product([0, 1, 7, 8, 9], [0, 1, 7, 8, 9, 17], range(27)):
        bits = [i != null for i in range(27)]
        pair = schema(), array(range(27), length=length, offset=offset, null_count=-1, bits=bits)
        if offset <= null < offset + length:
            refused(f"element {null - offset} is null", *pair)
        else:
            assert numpy.from_dlpack(column(*pair)).tolist() == list(range(offset, offset + length))


def test_counted_nulls_are_refused():
    refused(
        "element 1 is null, and DLPack has no nulls: fill or drop the nulls first",
        *numbers(3, null_count=1, bits=[True, False, True]),
    )


def test_a_null_count_of_0_is_trusted_and_a_missing_bitmap_means_no_nulls():
    assert numpy.from_dlpack(column(*numbers(2, null_count=0, bits=[True, False]))).tolist() == [0, 1]
    assert numpy.from_dlpack(column(*numbers(2, null_count=-1))).tolist() == [0, 1]
    refused("has 2 nulls and no bitmap", *numbers(3, null_count=2))


def test_nulls_of_lists_and_of_tables_are_refused_and_of_children_in_the_window_alone():
    nulls = {"null_count": 1, "bits": [True, False]}
    refused("element 1 is null", *lists(2, numbers(4), length=2, **nulls))
    refused("element 1 is null", *table(numbers(2), length=2, **nulls))
    child = {"null_count": 1, "bits": [True, False, True, True]}
    assert numpy.from_dlpack(column(*lists(2, numbers(4, **child), length=1, offset=1))).tolist() == [[2, 3]]
    refused("element 1 is null", *lists(2, numbers(4, **child), length=1))
    child["bits"] = [True, True, True, False]
    refused("element 1 is null", *lists(2, numbers(4, **child), length=1, offset=1))


# ---- Types that are refused ----

LIST = "cast to fixed-size lists, or export the flattened values first"


@pytest.mark.parametrize(
    "format, text",
    [
        ("n", "nulls only (Arrow format 'n') have no DLPack dtype: fill the nulls first"),
        ("b", "booleans in single bits (Arrow format 'b') have no DLPack dtype: cast to uint8 first"),
        *[(f, f"strings (Arrow format '{f}') have no DLPack dtype: cast to numbers first") for f in ("u", "U", "vu")],
        *[(f, f"binary values (Arrow format '{f}') have no") for f in ("z", "Z", "vz")],
        ("w:16", "binary values of a fixed size (Arrow format 'w:16')"),
        ("d:10,2", "decimals (Arrow format 'd:10,2') have no DLPack dtype: cast to float64 or int64 first"),
        *[
            (f, f"dates or times (Arrow format '{f}') have no DLPack dtype: cast to int32 or int64 first")
            for f in ("tdD", "tdm", "tts", "ttn", "tss:", "tsn:UTC", "tDs", "tiM", "tin")
        ],
        *[(f, f"lists of any length (Arrow format '{f}') have no DLPack dtype: {LIST}") for f in ("+l", "+L")],
        *[(f, f"lists of any length (Arrow format '{f}') have no DLPack dtype: {LIST}") for f in ("+vl", "+vL")],
        ("+m", "maps (Arrow format '+m') have no DLPack dtype: export the keys or the items first"),
        ("+ud:0,1", "unions (Arrow format '+ud:0,1') have no DLPack dtype: export one of the children first"),
        ("+us:0", "unions (Arrow format '+us:0')"),
        ("+r", "run-end encoded values (Arrow format '+r') have no DLPack dtype: decode the runs first"),
        ("q", "Arrow format 'q' is not known"),
        ("", "Arrow format '' is not known"),
        ("ll", "Arrow format 'll' is not known"),
        ("+w:", "Arrow format '+w:' is not known"),
        ("+w:-1", "Arrow format '+w:-1' is not known"),
        ("+w: 1", "Arrow format '+w: 1' is not known"),
        ("+w:1x", "Arrow format '+w:1x' is not known"),
        ("+w:9223372036854775807", "Arrow format '+w:9223372036854775807' is not known"),
        ("+w:99999999999999999999", "Arrow format '+w:99999999999999999999' is not known"),
    ],
)
def test_a_type_without_a_dtype_is_refused_with_advice_P7(format, text):
    refused(text, schema(format), array([1]))
    refused(text, *lists(1, (schema(format), array([1])), length=1))


def test_tables_of_other_than_one_column_and_structs_inside_are_refused():
    refused("a table or struct of 2 columns: select one column first", *table(numbers(1), numbers(1), length=1))
    refused("a table or struct of 0 columns", *table())
    refused("structs inside lists or structs (Arrow format '+s')", *table(table(numbers(1), length=1), length=1))
    refused("select one field first", *lists(1, table(numbers(1), length=1), length=1))


def test_a_dictionary_is_refused():
    values = schema("u")
    encoded = schema("i", [], dictionary=values.address)
    refused("encoded by a dictionary: decode them first", encoded, array([0], "int32"))
    values.on_release()


def metadata(*pairs):
    texts = b"".join(struct.pack("=i", len(text)) + text for pair in pairs for text in pair)
    return ctypes.create_string_buffer(struct.pack("=i", len(pairs)) + texts)


def with_metadata(text, format="l", children=()):
    return schema(format, children, metadata=ctypes.cast(text, c_char_p), keep=[text])


def test_an_extension_type_is_refused_by_name_and_other_metadata_is_not_read():
    name = (b"ARROW:extension:name", b"arrow.bool8")
    text = "the extension type 'arrow.bool8' has no DLPack dtype: export its storage"
    for pairs in ([name], [(b"", b""), (b"k", b"value"), name, (b"x", b"")]):
        refused(text, with_metadata(metadata(*pairs)), array([1]))
    refused(text, *lists(1, (with_metadata(metadata(name)), array([1])), length=1))
    for pairs in ([], [(b"ARROW:extension:none", b"x")], [(b"x", name[0])]):
        assert numpy.from_dlpack(column(with_metadata(metadata(*pairs)), array([7]))).tolist() == [7]
    for wrong in (struct.pack("=ii", 1, -(2**31)), struct.pack("=iii", 2, 0, -(2**31)), struct.pack("=i", -1)):
        text = ctypes.create_string_buffer(wrong)
        assert numpy.from_dlpack(column(with_metadata(text), array([7]))).tolist() == [7]


# ---- Malformed structs ----


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"length": -1}, "length -1, offset 0 and null_count 0"),
        ({"length": HUGE}, f"length {HUGE}, offset 0"),
        ({"offset": -1}, "offset -1"),
        ({"offset": HUGE}, f"length 3, offset {HUGE}"),
        ({"offset": 2**60 - 1}, f"length 3, offset {2**60 - 1}"),
        ({"null_count": -2}, "null_count -2"),
        ({"n_buffers": 1}, "has 1 buffers and 0 children, its type has 2 and 0"),
        ({"n_buffers": -1}, "has -1 buffers"),
        ({"n_buffers": 3}, "has 3 buffers"),
        ({"n_children": 1}, "has 2 buffers and 1 children"),
        ({"buffers": None}, "has 2 buffers"),
        ({"buffers": (c_void_p * 2)()}, "the buffer of 3 numbers is NULL"),
    ],
)
def test_a_malformed_array_is_refused(fields, text):
    refused(text, *numbers(3, **fields))


@pytest.mark.parametrize("offset", [LARGE >> 2, LARGE >> 1, LARGE], ids=["1/64", "1/32", "1/16"])
def test_a_large_offset_is_not_cut_off(offset):
    source = numbers(1, offset=offset)
    first = source[1].struct.buffers[1]
    address = numpy.from_dlpack(column(*source)).ctypes.data  # no element is read, not even for the text of a failure
    assert address == first + 8 * offset


def test_lists_and_children_that_do_not_match_are_refused():
    refused("a child ArrowArray has 5 elements, its parent uses 6 from 0 on", *lists(3, numbers(5), length=2))
    refused("a child ArrowArray has 8 elements, its parent uses 6 from 3 on", *lists(3, numbers(8), length=2, offset=1))
    refused("a child ArrowArray has 2 elements", *table(numbers(2), length=3))
    refused("a child ArrowArray has 5 elements, its parent uses 0 from 6 on", *lists(3, numbers(5), length=0, offset=2))
    refused(f"3 lists of {LARGE} elements are too many", *lists(LARGE, numbers(3), length=3))
    refused(f"0 lists of {LARGE} elements", *lists(LARGE, numbers(3), length=0, offset=9))
    refused("has 1 buffers and 0 children, its type has 1 and 1", schema("+w:1", [schema()]), array([], children=[]))
    for children in (None, (c_void_p * 1)()):
        pair = lists(1, numbers(1), length=1)
        pair[1].struct.children = children
        refused("NULL" if children else "buffers", *pair)
    pair = lists(1, numbers(1), length=1)
    moved, pair[1].children[0].struct.release = pair[1].children[0], None
    refused("the ArrowArray, or a child of it, is NULL or empty", *pair)
    moved.on_release()


def test_a_malformed_schema_is_refused():
    text = "the ArrowSchema, or a child of it, is NULL, empty or has no format"
    refused(text, Made(Schema, format=None), array([1]))
    for fields in ({"n_children": 0}, {"n_children": -1}, {"n_children": 2}, {"children": None}):
        pair = lists(1, numbers(1), length=1)
        pair[0].struct.n_children = fields.get("n_children", 1)
        pair[0].struct.children = fields.get("children", pair[0].pointers)
        refused("the ArrowSchema of lists or of a struct has no child", *pair)
    refused(text, Made(Schema, [None], format=b"+w:1"), array([], children=[array([])]))


# ---- Ownership of the memory ----


@pytest.mark.parametrize("last", ["column", "array"])
def test_the_array_is_released_after_the_column_and_all_consumers_P9(last):
    pair = numbers(3)
    producer = Producer(*pair)
    c = Column(producer)
    first, second = numpy.from_dlpack(c), numpy.from_dlpack(c)
    del producer
    assert [s.released for s in pair] == [1, 0]
    if last == "column":
        del first, second
        assert pair[1].released == 0
        del c
    else:
        del c, first
        assert (pair[1].released, second.tolist()) == (0, [0, 1, 2])
        del second
    assert [s.released for s in pair] == [1, 1]


def test_an_unconsumed_capsule_releases_the_array_K1():
    pair = numbers(3)
    capsule = column(*pair).__dlpack__(max_version=(1, 0))
    assert pair[1].released == 0
    del capsule
    assert pair[1].released == 1


def test_an_array_is_moved_out_of_its_capsule_unless_it_is_refused():
    pair = numbers(3)
    producer = Producer(*pair)
    c = Column(producer)
    assert pair[1].struct.release is None
    with pytest.raises(ValueError, match="what __arrow_c_array__ returned is empty: another consumer took it before"):
        Column(producer)
    del c
    pair = numbers(1)
    pair[0].struct.release = None
    pair[0].on_release()
    with pytest.raises(ValueError, match="is empty"):
        column(*pair)
    other = schema("u"), array([1])
    producer = Producer(*other)
    with pytest.raises(BufferError):
        Column(producer)
    assert [s.released for s in other] == [0, 0]


def test_only_one_of_many_threads_takes_an_array():
    producers = [Producer(*numbers(3)) for _ in range(300)]
    barrier, results = threading.Barrier(4), []

    def taking():
        barrier.wait()
        for producer in producers:
            try:
                results.append(Column(producer))
            except ValueError:
                results.append(None)

    threads = [threading.Thread(target=taking) for _ in range(4)]
    for step in (threading.Thread.start, threading.Thread.join):
        for thread in threads:
            step(thread)
    assert results.count(None) == 900


# ---- What an object offers ----


class Answers:
    def __init__(self, method, answer):
        setattr(self, method, lambda: answer)


@pytest.mark.parametrize(
    "answer, text",
    [
        (None, "__arrow_c_array__ returned NoneType, a tuple of two capsules was wanted"),
        ([1, 2], "__arrow_c_array__ returned list"),
        ((), "__arrow_c_array__ returned a tuple of another length"),
        ((1, 2, 3), "a tuple of another length"),
        ((1, 2), "__arrow_c_array__ returned int, a capsule 'arrow_schema' was wanted"),
    ],
)
def test_a_result_other_than_two_capsules_is_a_TypeError(answer, text):
    with pytest.raises(TypeError, match=text):
        Column(Answers("__arrow_c_array__", answer))


def test_a_capsule_of_another_name_is_a_TypeError():
    for names, text in [
        (("other", None), "returned a capsule 'other', 'arrow_schema' was wanted"),
        ((None, "other"), "returned a capsule 'other', 'arrow_array' was wanted"),
    ]:
        with pytest.raises(TypeError, match=text):
            take(Producer(*numbers(1), names=names))
    with pytest.raises(TypeError, match="__arrow_c_stream__ returned int, a capsule 'arrow_array_stream' was wanted"):
        Column(Answers("__arrow_c_stream__", 1))


def test_an_object_without_the_methods_is_a_TypeError():
    with pytest.raises(TypeError, match="Column: int has no __arrow_c_array__ and no __arrow_c_stream__"):
        Column(1)
    with pytest.raises(TypeError):
        Column()
    with pytest.raises(TypeError):
        Column(obj=1)


@pytest.mark.parametrize("method", ["__arrow_c_array__", "__arrow_c_stream__"])
def test_an_exception_of_the_producer_reaches_the_caller(method):
    def fails(self):
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError):
        Column(type("Fails", (), {method: fails})())
    with pytest.raises(ZeroDivisionError):
        Column(type("Fails", (), {method: property(fails)})())


# ---- Streams ----


def test_a_stream_of_one_chunk_with_rows_is_taken():
    for empty_before, empty_after in itertools.product(range(3), range(3)):
        chunks = [array() for _ in range(empty_before)] + [array([1, 2])] + [array() for _ in range(empty_after)]
        c = take(StreamProducer(schema(), *chunks))
        assert [chunk.released for chunk in chunks] == [int(chunk.struct.length == 0) for chunk in chunks]
        assert numpy.from_dlpack(c).tolist() == [1, 2]


@pytest.mark.parametrize("chunks", [0, 1, 2])
def test_a_stream_without_rows_is_a_column_without_rows(chunks):
    c = take(StreamProducer(schema("f"), *[array([], "float32") for _ in range(chunks)]))
    tensor = dltensor.read(c.__dlpack__(max_version=(1, 0)))
    assert (tensor.shape, tensor.dtype) == ((0,), dltensor.DTYPES["float32"])


def test_a_stream_of_lists_without_a_chunk_keeps_the_size_of_the_lists():
    child = schema("f")
    c = take(StreamProducer(schema("+w:3", [child])))
    assert numpy.from_dlpack(c).shape == (0, 3)


def test_several_chunks_are_refused_and_later_chunks_are_not_requested():
    producer = StreamProducer(schema(), array([1]), array(), array([2]), array([3]))
    with pytest.raises(BufferError, match=r"several chunks: combine them first, .*combine_chunks\(\).* rechunk\(\)"):
        Column(producer)
    assert len(producer.left) == 1


def test_a_type_is_refused_before_rows_are_requested():
    producer = StreamProducer(schema("u"), array([1]))
    with pytest.raises(BufferError, match="strings"):
        Column(producer)
    assert len(producer.left) == 1


def test_a_chunk_with_nulls_is_refused():
    with pytest.raises(BufferError, match="element 0 is null"):
        take(StreamProducer(schema(), array([1], null_count=1, bits=[False])))


@pytest.mark.parametrize("attempt", range(1 if HAS_GIL else 10))
@pytest.mark.parametrize("make", [Producer, StreamProducer])
def test_only_one_of_two_threads_takes_the_content_of_a_capsule(make, attempt):
    producers = [make(schema(), array([1])) for _ in range(1000)]
    start, taken = threading.Barrier(2), []

    def take_all():
        start.wait()
        for i, producer in enumerate(producers):
            with contextlib.suppress(ValueError):  # the other thread was first
                Column(producer)
                taken.append(i)

    threads = [threading.Thread(target=take_all) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(1000))


def test_a_failure_of_a_stream_names_function_errno_and_reason():
    with pytest.raises(RuntimeError, match="get_schema of the Arrow stream failed with errno 5: no disk"):
        take(StreamProducer(OSError(5, "no disk")))
    with pytest.raises(RuntimeError, match="get_next of the Arrow stream failed with errno 12: no reason was given"):
        take(StreamProducer(schema(), array([1]), OSError(12, None)))


def test_the_functions_of_a_stream_run_without_the_gil():
    """PyGILState_Check replaces a function: it writes no output, and would return 1, an errno, if it held the GIL."""
    check = ctypes.cast(ctypes.pythonapi.PyGILState_Check, c_void_p)
    column = take(StreamProducer(schema(), get_next=check))
    assert dltensor.read(column.__dlpack__(max_version=(1, 0))).shape == (0,)
    with pytest.raises(BufferError, match="the ArrowSchema, or a child of it, is NULL, empty"):
        take(StreamProducer(schema(), get_schema=check))
    taken = contextlib.nullcontext()
    failed, refused = pytest.raises(RuntimeError, match="errno 5: no disk"), pytest.raises(BufferError)
    for outcome, calls, producer in [
        (taken, 1, StreamProducer(schema())),
        (failed, 2, StreamProducer(schema(), OSError(5, "no disk"))),
        (refused, 1, StreamProducer(schema(), get_next=None)),
    ]:
        stream = producer.made.struct
        stream.get_last_error, stream.release = gil_probe.watch(stream.get_last_error, stream.release)
        with outcome:
            take(producer)
        assert gil_probe.counts() == (calls, 0)


def test_a_stream_without_functions_is_refused_and_one_without_reasons_fails():
    for name in ("get_schema", "get_next"):
        with pytest.raises(BufferError, match="has no get_schema or no get_next"):
            take(StreamProducer(schema(), array([1]), **{name: None}))
    with pytest.raises(RuntimeError, match="failed with errno 5: no reason was given"):
        take(StreamProducer(OSError(5, "no disk"), get_last_error=None))


def test_a_stream_is_moved_out_of_its_capsule():
    producer = StreamProducer(schema(), array([1]))
    Column(producer)
    with pytest.raises(ValueError, match="what __arrow_c_stream__ returned is empty"):
        Column(producer)


def test_an_array_is_preferred_to_a_stream():
    class Both(Producer):
        def __arrow_c_stream__(self):
            raise AssertionError("not asked")

    assert numpy.from_dlpack(take(Both(*numbers(2)))).tolist() == [0, 1]
