"""Objects without __dlpack__: buffers, then __array_interface__ (dlpack_buffer_fallback), and the order of the three
protocols: C6, C7, D3, D8, D10."""

import array
import ctypes
import gc
import mmap
import sys
import weakref

import dlarray
import dltensor
import pytest
from buffer_probe import dtype_of, fallback, kind, ndim_of
from collecting import not_on_pypy
from consumer_probe import DLPACK_PY_READ_ONLY, DLPACK_PY_WRITABLE
from consumer_probe import consume as consume_strictly
from optional import numpy

NATIVE, FOREIGN = ("<", ">") if sys.byteorder == "little" else (">", "<")


def consume(obj, **want):
    return consume_strictly(obj, {"fallback": 1, **want})


def values(view):
    return dltensor.values(view.data, view.dtype, view.shape, view.strides)


class Interface:
    """An object that has __array_interface__ and no other protocol."""

    def __init__(self, array=None, **changes):
        if array is not None:
            changes = {**array.__array_interface__, "array": array, **changes}
        self.__array_interface__ = changes


# ---- Formats of buffers: D10 ----


@pytest.mark.parametrize(
    "format, itemsize, dtype",
    [
        (None, 1, "uint8"),
        ("?", 1, "bool"),
        ("c", 1, "uint8"),
        ("e", 2, "float16"),
        ("@l", 8, "int64"),
        ("<l" if NATIVE == "<" else ">l", 4, "int32"),
        ("=L", 4, "uint32"),
        ("n", 8, "int64"),
        ("N", 8, "uint64"),
        ("Zf", 8, "complex64"),
        ("Zd", 16, "complex128"),
        ("F", 8, "complex64"),
        ("D", 16, "complex128"),
        (NATIVE + "d", 8, "float64"),
        (FOREIGN + "b", 1, "int8"),
        (NATIVE + "b", 1, "int8"),
        (NATIVE + "B", 2, None),
        (None, 2, None),
        ("!B", 1, "uint8"),
        ("!d", 8, None if NATIVE == "<" else "float64"),
        (FOREIGN + "d", 8, None),
        (FOREIGN + "Zd", 16, None),
        *[(format, 8, None) for format in ("", "@", "2f", "ff", "d:x:", "T{d:x:}", "Z", "Zg", "P", "O", "&d", "<<d")],
        *[(format, 4, None) for format in ("d", "h", "b", "s", "4s", "p", "u", "w", "g", "X{}", "x", "l2")],
        ("l", 2, None),
        ("L", 9, None),
        ("f", 0, None),
    ],
)
def test_a_format_has_one_dtype_or_none_D10(format, itemsize, dtype):
    assert dtype_of(format, itemsize) == dtype


def test_a_stride_of_a_buffer_that_reaches_no_element_may_have_any_value_D5():
    for shape, strides in [((0, 3), (8, 3)), ((3, 0), (3, 8)), ((1, 1), (3, 3)), ((1, 1), (-3, sys.maxsize))]:
        assert ndim_of(shape, strides) == 2
    with pytest.raises(BufferError, match=r"strides\[1\] is 3 bytes, a multiple of 8 was wanted"):
        ndim_of((1, 2), (8, 3))


def test_a_buffer_without_a_format_has_bytes_D10():
    assert ndim_of((1, 2), (2, 1), None, 1) == 2
    with pytest.raises(BufferError, match="the buffer's format is 'B' with 8 bytes, one of a DLPack dtype"):
        ndim_of((1, 2), (16, 8), None, 8)


@pytest.mark.parametrize(
    "shape, strides, text",
    [((-1, 2), (16, 8), "must not be negative"), ((sys.maxsize, sys.maxsize), (0, 0), "elements")],
    ids=str,
)
def test_a_malformed_buffer_is_refused_D8(shape, strides, text):
    with pytest.raises(BufferError, match=text):
        ndim_of(shape, strides)


@not_on_pypy("a bytearray, a BytesIO and an mmap that a buffer locks")
def test_a_memory_mapped_file_is_consumed_C6(tmp_path):
    (tmp_path / "file").write_bytes(bytes(range(8)))
    with open(tmp_path / "file", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    view = consume(mapped)
    assert values(view) == list(range(8)) and view.readonly == DLPACK_PY_READ_ONLY
    with pytest.raises(BufferError):
        mapped.close()
    del view
    mapped.close()


# ---- __array_interface__: C6 ----


@pytest.mark.parametrize("dtype", dltensor.DTYPES)
def test_an_array_interface_is_taken_without_a_copy_C6(dtype):
    source = numpy.arange(12).reshape(3, 4).astype(dtype)[::-1, ::2]
    thing = Interface(source)
    with pytest.raises(AttributeError, match="__dlpack__"):
        consume_strictly(thing)
    before = sys.getrefcount(thing)
    view = consume(thing)
    assert (view.data, view.shape) == (source.__array_interface__["data"][0], (3, 2))
    assert values(view) == source.tolist() and view.readonly == DLPACK_PY_WRITABLE
    assert sys.getrefcount(thing) == before + 1
    del view
    assert sys.getrefcount(thing) == before


def test_an_array_interface_keeps_its_object_alive_and_stays_read_only_C7_P9():
    thing = Interface(numpy.arange(3.0))
    thing.__array_interface__["data"] = (thing.__array_interface__["data"][0], True)
    gone = weakref.ref(thing)
    view = consume(thing)
    del thing
    assert values(view) == [0.0, 1.0, 2.0] and view.readonly == DLPACK_PY_READ_ONLY
    del view
    gc.collect()
    assert gone() is None


@not_on_pypy("a bytearray, a BytesIO and an mmap that a buffer locks")
@pytest.mark.parametrize("data, offset, wanted", [
    (b"\x01\x02\x03\x04", None, [1, 2]),
    (b"\x01\x02\x03\x04", 2, [3, 4]),
    (bytearray(b"\x01\x02\x03\x04"), 1, [2, 3]),
])  # fmt: skip
def test_data_may_be_a_buffer_with_an_offset_C6(data, offset, wanted):
    thing = Interface(version=3, typestr="|u1", shape=(2,), data=data, offset=offset)
    view = consume(thing)
    assert values(view) == wanted
    assert view.readonly == (DLPACK_PY_READ_ONLY if isinstance(data, bytes) else DLPACK_PY_WRITABLE)
    if isinstance(data, bytearray):
        with pytest.raises(BufferError):
            data.append(1)
        del view
        data.append(1)


def test_an_empty_array_may_have_any_address_D3():
    f8 = NATIVE + "f8"
    assert consume(Interface(version=3, typestr=f8, shape=(0, 3), data=(0, False))).shape == (0, 3)
    assert consume(Interface(version=3, typestr="|i1", shape=(0,), data=b"")).shape == (0,)
    assert consume(Interface(version=3, typestr=f8, shape=(0, 3), strides=(8, 3), data=(0, False))).shape == (0, 3)


@pytest.mark.parametrize("ndim", [0, 64])
def test_an_array_interface_may_have_any_rank_up_to_64_D3_D8(ndim):
    view = consume(Interface(version=3, typestr="|u1", shape=(1,) * ndim, data=b"7"))
    assert (view.shape, ctypes.string_at(view.data, 1)) == ((1,) * ndim, b"7")


@pytest.mark.parametrize("typestr, dtype", [
    ("=f4", (2, 32, 1)), (NATIVE + "f4", (2, 32, 1)), ("=u1", (1, 8, 1)), ("|u1", (1, 8, 1)), ("<b1", (6, 8, 1)),
    (">i1", (0, 8, 1)), (NATIVE + "c8", (5, 64, 1)), (NATIVE + "f2", (2, 16, 1)),
])  # fmt: skip
def test_a_typestr_has_one_dtype_D10(typestr, dtype):
    assert consume(Interface(version=3, typestr=typestr, shape=(1,), data=bytes(8))).dtype == dtype


def test_a_version_newer_than_3_is_taken():
    assert consume(Interface(version=4, typestr="|u1", shape=(1,), data=bytes(8))).shape == (1,)


BAD_TYPESTRS = [None, 5]
BAD_TYPESTRS += "- < <f <f3 <f16 <f32 <f1 <i16 <c4 <b2 |f8 f8 <f8x <M8[s] |O8 |S3 <U3 |V8 <t8 xu1 @f4 =f16".split()
BAD_TYPESTRS += ["<f:", "<fa", "<f/4", "<f8\0", "<f\0", "\0f8", "<\x008", "\0u1"]
GOOD = {"version": 3, "typestr": NATIVE + "f8", "shape": (3,), "data": bytes(24)}


in_64_bits = pytest.mark.skipif(
    sys.maxsize < 2**32,
    reason="a pointer has 32 bits: 2 GiB behind an address may be no address, which is refused with another text",
)


class Undecided:
    def __bool__(self):
        raise ValueError("neither")


@pytest.mark.parametrize(
    "changes, error, text",
    [
        ({"version": 2}, BufferError, "__array_interface__ has version 2, 3 or newer was wanted"),
        ({"version": None}, BufferError, "has version None, 3 or newer was wanted"),
        ({"version": "3"}, BufferError, "has version '3', 3 or newer was wanted"),
        (
            {"typestr": FOREIGN + "f8"},
            BufferError,
            f"has typestr '{FOREIGN}f8', one of a DLPack dtype in native byte order, such as '{NATIVE}f4', was",
        ),
        *[
            (
                {"typestr": typestr},
                BufferError,
                f"has typestr .*, one of a DLPack dtype .* such as '{NATIVE}f4', was wanted",
            )
            for typestr in BAD_TYPESTRS
        ],
        ({"shape": None}, BufferError, "has shape None, a tuple of at most 64 extents was wanted"),
        ({"shape": [3]}, BufferError, "has shape list, a tuple of at most 64 extents was wanted"),
        ({"shape": (1,) * 65}, BufferError, "has shape .*, a tuple of at most 64 extents"),
        ({"shape": (2**70,)}, BufferError, "has shape .*, a tuple"),
        ({"shape": ("3",)}, BufferError, "has shape .*, a tuple"),
        ({"shape": (2.9,)}, BufferError, "has shape .*, a tuple"),  # Python 3.9 would truncate it
        ({"strides": (8.5,)}, BufferError, r"has strides \(8.5,\), a tuple with one stride in bytes for each extent"),
        ({"version": 3.7}, BufferError, "has version 3.7, 3 or newer was wanted"),
        ({"shape": (-1,)}, BufferError, r"shape\[0\] is -1"),
        ({"shape": (2**32 + 1, 2**32 + 1)}, BufferError, r"shape has 2\^63 elements or more"),
        ({"strides": (8, 8)}, BufferError, "a tuple with one stride in bytes for each extent was wanted"),
        ({"shape": (), "strides": (8,)}, BufferError, "a tuple with one stride in bytes for each extent was wanted"),
        ({"strides": (4,)}, BufferError, r"has strides \(4,\), multiples of 8 .the item size. was wanted"),
        ({"mask": [1, 1, 1]}, BufferError, r"None \(a DLPack tensor has no mask\) was wanted"),
        ({"shape": (4,)}, BufferError, "has 24 bytes of data, and elements from byte 0 to 32 after offset 0"),
        ({"strides": (-8,)}, BufferError, "elements from byte -16 to 8 after offset 0"),
        ({"strides": (-8,), "offset": 8}, BufferError, "elements from byte -16 to 8 after offset 8"),
        ({"offset": 8}, BufferError, "elements from byte 0 to 24 after offset 8"),
        ({"offset": -8}, BufferError, "elements from byte 0 to 24 after offset -8"),
        ({"offset": -sys.maxsize - 1}, BufferError, f"elements from byte 0 to 24 after offset {-sys.maxsize - 1}"),
        ({"offset": 32}, BufferError, "elements from byte 0 to 24 after offset 32"),
        *[
            pytest.param(
                {"typestr": "|u1", "shape": (sys.maxsize,), "offset": offset},
                BufferError,
                f"has 24 bytes of data, and elements from byte 0 to {sys.maxsize} after offset {offset}",
                marks=in_64_bits,
            )
            for offset in (sys.maxsize, -sys.maxsize - 1)
        ],
        ({"offset": 2**70}, BufferError, "cannot fit"),
        ({"offset": "0"}, BufferError, "__array_interface__ has offset '0', an integer was wanted"),
        ({"offset": 1.5}, BufferError, "__array_interface__ has offset 1.5, an integer was wanted"),
        ({"data": 5}, BufferError, r"has data 5, \(address, read-only\) or a buffer was wanted"),
        ({"data": None}, BufferError, r"has data None, \(address, read-only\) or a buffer was wanted"),
        ({"data": (1,)}, BufferError, r"has data \(1,\), \(address, read-only\) was wanted"),
        ({"data": ("1", False)}, BufferError, "has data .*, .address, read-only. was wanted"),
        ({"data": (2**70, False)}, BufferError, "has data .*, .address, read-only. was wanted"),
        ({"data": (0, False)}, BufferError, "NULL"),
        ({"data": (8, Undecided())}, BufferError, "has data .*, .address, read-only. was wanted"),
        pytest.param(
            {"data": memoryview(bytes(48))[::2]},
            BufferError,
            "contiguous",
            marks=not_on_pypy("a memoryview with gaps that refuses PyBUF_SIMPLE"),
        ),
    ],
)
def test_an_array_interface_that_cannot_be_used_is_refused_P7_D8(changes, error, text):
    interface = {**GOOD, **changes}
    thing = Interface(**interface)
    before = sys.getrefcount(thing)
    with pytest.raises(error, match=text):
        consume(thing)
    assert sys.getrefcount(thing) == before


def test_the_keys_and_numbers_of_an_array_interface_are_not_kept():
    bytes_8 = bytearray(8)
    address = ctypes.addressof(ctypes.c_char.from_buffer(bytes_8))
    version, extent, stride = map(int, ("300", "300", "400"))  # objects of their own
    interface = {"version": version, "typestr": NATIVE + "f8", "shape": (extent, 0), "strides": (stride, 8)}
    interface["data"] = (address, False)
    held = [address, version, extent, stride, *(sys.intern(key) for key in interface)]
    gc.collect()  # garbage of other tests may hold the keys
    before = [sys.getrefcount(each) for each in held]
    assert consume(Interface(**interface)).shape == (300, 0)
    assert [sys.getrefcount(each) for each in held] == before


def test_a_message_shows_the_type_of_a_long_value():
    with pytest.raises(BufferError, match=r"has mask list, .*None \(a DLPack tensor has no mask\)"):
        consume(Interface(**{**GOOD, "mask": [1] * 100_000}))


def test_a_message_truncates_a_long_text():
    with pytest.raises(BufferError, match="typestr") as raised:
        consume(Interface(**{**GOOD, "typestr": "x" * 100_000}))
    assert len(str(raised.value)) < 400


def test_repr_of_a_value_in_an_array_interface_is_not_called():
    class Value:
        def __repr__(self):
            return "repr"

        __str__ = __repr__

    for name in ("version", "shape", "strides", "typestr", "data", "mask"):
        with pytest.raises(BufferError, match=f"{name} Value"):
            consume(Interface(**{**GOOD, name: Value()}))
    thing = Interface()
    thing.__array_interface__ = Value()
    with pytest.raises(TypeError, match="__array_interface__ is Value, a dict was wanted"):
        consume(thing)


def test_negative_strides_may_reach_the_begin_of_the_data_D11():
    data = numpy.arange(3.0)
    assert values(consume(Interface(**{**GOOD, "data": data.tobytes(), "strides": (-8,), "offset": 16}))) == [2, 1, 0]


def test_a_class_with_an_array_interface_is_consumed_as_any_object_C6():
    with pytest.raises(TypeError, match="__dlpack__.* needs an argument"):
        consume(numpy.ndarray)


def test_a_class_whose_instances_have_an_array_interface_is_not_taken_for_one_C6():
    class Thing:
        __array_interface__ = GOOD

    assert values(consume(Thing())) == [0.0, 0.0, 0.0]
    with pytest.raises(AttributeError, match="__dlpack__"):
        consume(Thing)


def test_an_array_interface_that_is_not_a_dict_is_a_type_error():
    thing = Interface()
    thing.__array_interface__ = [1]
    with pytest.raises(TypeError, match="__array_interface__ is list, a dict was wanted"):
        consume(thing)


def test_an_error_of_the_getter_is_raised_unless_it_is_an_attribute_error():
    class Fails:
        error = ValueError("broken")

        @property
        def __array_interface__(self):
            raise self.error

    with pytest.raises(ValueError, match="broken"):
        consume(Fails())
    Fails.error = AttributeError("none")
    with pytest.raises(AttributeError, match="__dlpack__"):
        consume(Fails())
    Fails.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        consume(Fails())


def test_the_fallback_itself_fails_with_the_error_of_the_getter_C6():
    class Fails:
        @property
        def __array_interface__(self):
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fallback(Fails())
    assert (fallback(b"abc"), fallback(Interface(**GOOD)), fallback(Fails), fallback(None)) == (0, 0, 0, 0)


# ---- The order: C6 ----


def test_dlpack_comes_before_the_buffer_and_that_before_the_array_interface_C6():
    asked = []

    class Bytes(bytes):
        @property
        def __array_interface__(self):
            asked.append("interface")
            return GOOD

    class Both(Bytes):
        def __dlpack__(self, **keywords):
            asked.append("dlpack")
            return dltensor.Made(dltensor.VERSIONED).capsule()

    assert consume(Both(b"abc")).dtype != (1, 8, 1) and asked == ["dlpack"]
    assert values(consume(Bytes(b"abc"))) == [97, 98, 99] and asked == ["dlpack"]
    assert values(consume(Interface(**GOOD))) == [0.0, 0.0, 0.0]


def test_a_property_that_raises_AttributeError_is_no_dlpack_C6():
    class Hidden(bytes):
        @property
        def __dlpack__(self):
            raise AttributeError("not today")

    assert not hasattr(Hidden(b"abc"), "__dlpack__")
    assert values(consume(Hidden(b"abc"))) == [97, 98, 99]


def test_after_an_error_of_dlpack_no_other_protocol_is_used_C6():
    class Refuses(bytes):
        def __dlpack__(self, **keywords):
            raise BufferError("no export today")

    with pytest.raises(BufferError, match="no export today"):
        consume(Refuses(b"abc"))


def test_after_a_refused_buffer_no_other_protocol_is_used_C6():
    class Text(array.array):
        __array_interface__ = GOOD

    with pytest.raises(BufferError, match="format is 'w'|format is 'u'"):
        consume(Text("w" if sys.version_info >= (3, 13) else "u", "ab"))


@pytest.mark.parametrize("protocols", [(1, 1, 1), (0, 1, 1), (0, 1, 0), (0, 0, 1)])
def test_a_type_of_the_header_is_consumed_by_each_of_its_protocols_C6(protocols):
    source = numpy.arange(3.0)
    view = consume(kind(*protocols)(source))
    assert view.data == source.__array_interface__["data"][0] and values(view) == [0.0, 1.0, 2.0]


def test_numpy_makes_an_array_of_the_array_interface_of_dlarray():
    a = dlarray.arange(6).reshape(2, 3)
    interface = a.__array_interface__
    assert interface["data"] == (a.data_ptr, False)
    assert numpy.asarray(Interface(**interface)).tolist() == a.tolist()


def test_a_buffer_with_suboffsets_is_refused_P7():
    """Such a buffer holds pointers to its rows."""
    exporters = pytest.importorskip("_testbuffer", reason="CPython was installed without its test modules")
    rows = exporters.ndarray(list(range(6)), shape=[2, 3], format="B", flags=exporters.ND_PIL)
    assert memoryview(rows).suboffsets == (0, -1)
    with pytest.raises(BufferError, match="suboffsets"):
        consume(rows)
