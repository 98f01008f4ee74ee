"""Each refusal comes again after an accepted tensor of the same type, for which the consumer has cached what the type
offers: the __dlpack__ of a class whose objects have no dictionary, or a table (X2, C9)."""

import ctypes
import gc
import mmap
import os
import sys
import weakref

import pytest
from collecting import not_on_pypy
from dltensor import CUDA, LEGACY, READ_ONLY, VERSIONED, Made, VersionedManaged
from exchange_probe import NO_TABLE, borrow, delegate, rude, table
from table_consumer import DLPACK_PY_SCALAR, consume

ATTRIBUTE = "__dlpack_c_exchange_api__"
VERSION = {"max_version": (1, 3)}


class Offers:
    """An object without a dictionary that records its calls. reply() makes what __dlpack__ returns; None: a capsule of
    a new Made with the fields."""

    __slots__ = ("calls", "fields", "made", "reply")

    def __init__(self, reply=None, **fields):
        self.reply = reply
        self.fields = fields
        self.calls = []
        self.made = []

    def make(self):
        self.made.append(Made(**self.fields))
        return self.made[-1]

    def owned(self):
        self.calls.append("owned")
        return ctypes.addressof(self.make().managed)

    def borrowed(self):
        self.calls.append("borrowed")
        return ctypes.addressof(self.make().managed.dl_tensor)

    def answer(self, **keywords):
        self.calls.append(keywords)
        return self.make().capsule() if self.reply is None else self.reply()


def in_python(**attributes):
    own = {"__slots__": (), "__dlpack__": lambda self, **keywords: self.answer(**keywords)}
    return type("Array", (Offers,), {**own, **attributes})


def in_c():
    return type("Array", (Offers, delegate()), {"__slots__": ()})  # its __dlpack__ calls answer()


METHODS = {"a method in Python": in_python, "a method in C": in_c}
WAYS = {**METHODS, "a table": lambda: in_python(**{ATTRIBUTE: table()})}


def accepted(kind, ask=consume):
    a = kind()
    view = ask(a)
    assert (view.data if ask is consume else view[0][0]) == a.made[-1].address
    return a


MATRIX = {"shape": (2, 3)}
MEMORY = (ctypes.c_double * 8)()
NUMBERS = ctypes.addressof(MEMORY) + -ctypes.addressof(MEMORY) % 16
REFUSED = {
    "another dtype": ({}, {"dtype": "int32"}, BufferError, "dtype is float64, int32 was asked for"),
    "none of the dtypes": ({}, {"dtypes": ("int8", "int16")}, BufferError, "dtype is float64"),
    "another rank": ({}, {"ndim": 2}, BufferError, "ndim is 1, 2 was asked for"),
    "another rank of the dtype": ({}, {"dtype": "float64", "ndim": 2}, BufferError, "ndim is 1, 2 was asked for"),
    "a lower rank": (MATRIX, {"ndim": 1}, BufferError, "ndim is 2, 1 was asked for"),
    "a scalar": ({}, {"ndim": DLPACK_PY_SCALAR}, BufferError, "ndim is 1, 0 was asked for"),
    "other ranks": ({}, {"ndim": 2, "max_ndim": 3}, BufferError, "ndim is 1, 2 to 3 was asked for"),
    "another shape": ({}, {"ndim": 1, "shape": (4,)}, BufferError, r"shape\[0\] is 3, 4 was asked for"),
    "column-major": (MATRIX, {"order": "F"}, BufferError, "was asked for by order 'F'"),
    "row-major": ({**MATRIX, "strides": (1, 2)}, {"order": "C"}, BufferError, "was asked for by order 'C'"),
    "without gaps": ({**MATRIX, "strides": (6, 2)}, {"order": "K"}, BufferError, "order 'K' was asked for"),
    "aligned": ({}, {"alignment": 1 << 30}, BufferError, "alignment to 1073741824 bytes was asked for"),
    "aligned to a number": ({"byte_offset": 1}, {}, BufferError, "alignment to . bytes was asked for"),
    "at an address": ({"data": NUMBERS + 2}, {"dtype": "float64"}, BufferError, "alignment to . bytes was asked for"),
    "on a device": ({}, {"device": 2}, BufferError, "device is cpu, cuda was asked for"),
    "on the CPU": ({"device": CUDA}, {}, BufferError, "device is cuda:0"),
    "writable": ({"flags": READ_ONLY}, {"writable": 1}, BufferError, "data is read-only, writable memory"),
    "writable rows": ({"flags": READ_ONLY}, {"writable": 1, "order": "C"}, BufferError, "data is read-only"),
    "without overlap": ({"shape": (2, 2), "strides": (0, 1)}, {"writable": 1}, BufferError, "elements may share"),
    "an unknown major version": ({"version": (2, 0)}, {}, BufferError, r"version 2\.0"),
    "an unknown major version, of a shape": ({"version": (2, 0)}, {"ndim": 1, "shape": (3,)}, BufferError, "version 2"),
    "a negative extent": ({"shape": (-1,)}, {}, BufferError, "must not be negative"),
    "no data": ({"data": None}, {}, BufferError, "data is NULL"),
    "no bits": ({"dtype": (0, 0, 1)}, {}, BufferError, "bits"),
    "an unknown order": ({}, {"order": "Q"}, SystemError, "order is 'Q'"),
    "a code": ({}, {"dtype": 2 << 24}, SystemError, "dtype is 33554432, a dtype such as"),
    "a code and lanes": ({}, {"dtype": 2 << 24 | 1}, SystemError, "dtype is 33554433, a dtype such as"),
    "one code of the dtypes": ({}, {"dtypes": ("int8", 2 << 24)}, SystemError, "dtype is 33554432"),
    "an unknown rank": ({}, {"ndim": -7}, SystemError, "ndim is -7"),
    "no rank at most": ({}, {"max_ndim": -1}, SystemError, "max_ndim is -1"),
    "a scalar and no rank": (
        {},
        {"ndim": DLPACK_PY_SCALAR, "max_ndim": -1},
        SystemError,
        "ndim is -1 and max_ndim is -1",
    ),
    "ranks from above to below": ({}, {"ndim": 3, "max_ndim": 2}, SystemError, "ndim is 3 and max_ndim is 2"),
    "a shape of no rank": ({}, {"shape": (3,)}, SystemError, "ndim is 0 and max_ndim is 0"),
    "a shape of ranks": ({}, {"ndim": 1, "max_ndim": 2, "shape": (3, 3)}, SystemError, "ndim is 1 and max_ndim is 2"),
    "no device": ({}, {"device": -2}, SystemError, "device is -2"),
    "an alignment that is no power of two": ({}, {"alignment": 3}, SystemError, "alignment is 3"),
}


@pytest.mark.parametrize("fields, want, error, text", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("way", WAYS)
def test_a_refusal_comes_again_after_an_accepted_tensor_of_the_type_C9_D8_K6(way, fields, want, error, text):
    kind = WAYS[way]()
    for _ in range(3):
        accepted(kind)
        a = kind(**fields)
        with pytest.raises(error, match=text):
            consume(a, want)
        if error is SystemError:
            assert a.calls == []  # the requirements are checked first
        else:
            assert [made.deleted for made in a.made] == [1] * len(a.calls)
    assert accepted(kind).made[0].deleted == 1


@not_on_pypy("the address of an mmap")
@pytest.mark.skipif(os.name != "posix", reason="mprotect: not on this system")
def test_of_an_unknown_major_version_nothing_behind_the_deleter_is_read_K6():
    made, size = Made(version=(2, 0), deleter=False), VersionedManaged.flags.offset
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    page = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + mmap.PAGESIZE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    ctypes.memmove(page - size, ctypes.addressof(made.managed), size)
    kind = in_python(**{ATTRIBUTE: table(), "owned": lambda self: page - size})
    for want in {}, {"writable": 1}, {"ndim": 1, "shape": (3,)}:
        with pytest.raises(BufferError, match=r"version 2\.0"):
            consume(kind(), want)


TAKEN = {
    "any": ({}, {}),
    "of the dtype": ({}, {"dtype": "float64", "ndim": 1}),
    "of up to two dimensions": (MATRIX, {"ndim": 1, "max_ndim": 2}),
    "of one of the dtypes": ({}, {"dtypes": ("int8", "float64")}),
    "of the shape": (MATRIX, {"ndim": 2, "shape": (-1, 3)}),
    "row-major and writable": (MATRIX, {"order": "C", "writable": 1}),
    "column-major": ({**MATRIX, "strides": (1, 2)}, {"order": "F"}),
    "a scalar": ({"shape": ()}, {"ndim": DLPACK_PY_SCALAR}),
    "aligned": ({}, {"alignment": 8}),
    "of the CPU": ({}, {"device": 1}),
    "strides that are NULL": ({**MATRIX, "strides": None}, {"order": "C"}),
}


@pytest.mark.parametrize("fields, want", TAKEN.values(), ids=TAKEN)
@pytest.mark.parametrize("way", WAYS)
def test_each_kind_of_requirement_is_met_by_a_tensor_of_a_type_that_was_refused_before_C9(way, fields, want):
    kind = WAYS[way]()
    for _ in range(3):
        with pytest.raises(BufferError, match="dtype is float64, int8 was asked for"):
            consume(kind(), {"dtype": "int8"})
        a = kind(**fields)
        view = consume(a, want)
        (made,) = a.made
        assert (view.data, view.shape, made.deleted) == (made.address, fields.get("shape", (3,)), 0)
        assert (view.readonly, view.overlaps) == (0, 0)
        assert len(view.strides) == len(view.shape)
        view.release()
        assert made.deleted == 1


def used(form):
    made = Made(form)
    capsule = made.capsule()
    consume(capsule).release()
    return capsule


ANSWERS = {
    "a consumed capsule": (lambda: used(VERSIONED), ValueError, "'used_dltensor_versioned'"),
    "a consumed legacy capsule": (lambda: used(LEGACY), ValueError, "'used_dltensor'"),
    "a capsule of another name": (lambda: Made().capsule("dltensor_v2"), TypeError, "'dltensor_v2'"),
    "a number": (lambda: 7, TypeError, "__dlpack__ returned 7, a capsule was wanted"),
    "None": (lambda: None, TypeError, "__dlpack__ returned None, a capsule was wanted"),
}


@pytest.mark.parametrize("reply, error, text", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("way", METHODS)
def test_an_answer_that_is_no_tensor_is_refused_after_a_tensor_K1_K4_C6(way, reply, error, text):
    kind = METHODS[way]()
    for _ in range(3):
        accepted(kind)
        with pytest.raises(error, match=text):
            consume(kind(reply))


@pytest.mark.parametrize("way", METHODS)
def test_a_legacy_answer_is_taken_after_a_versioned_one_C2_C7(way):
    kind = METHODS[way]()
    for _ in range(3):
        accepted(kind)
        made = Made(LEGACY)
        view = consume(kind(made.capsule))
        assert (view.data, view.readonly) == (made.address, 0x101)
        view.release()
        assert made.deleted == 1
        with pytest.raises(BufferError, match="a legacy capsule has no read-only flag"):
            consume(kind(Made(LEGACY).capsule), {"writable": 1})


@not_on_pypy("an exception that a destructor leaves")
def test_an_exception_that_the_destructor_of_a_capsule_leaves_is_reported_K2(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: reported.append(str(what.exc_value)))
    kind = in_python()
    for i in range(3):
        made = Made()
        view = consume(kind(lambda made=made: rude(ctypes.addressof(made.managed))))
        assert (view.data, len(reported)) == (made.address, i + 1)
        view.release()
        assert made.deleted == 1
    assert reported == ["left behind"] * 3


@pytest.mark.parametrize("ask, way", [(consume, "owned"), (borrow, "borrowed")])
def test_the_option_for_no_table_is_seen_after_the_table_was_used_C9(ask, way):
    kind = WAYS["a table"]()
    for _ in range(3):
        assert accepted(kind, ask).calls == [way]
        a = kind()
        if ask is consume:
            consume(a, {"options": NO_TABLE})
        else:
            borrow(a, options=NO_TABLE)
        assert a.calls == [VERSION]


def test_a_type_without_embedded_tensors_is_asked_whatever_its_objects_hold_X2():
    """An object that holds itself, as embedded tensors hold their owner, and whose address passes for a dtype."""
    names = [f"slot{i}" for i in range(10, 50)]
    kind = type("Array", (in_python(),), {"__slots__": names})
    accepted(kind)
    several = [kind() for _ in range(500)]
    a = next(a for a in several if id(a) & 0xFF0000)
    for name in names[8:]:  # the first ones stay empty: among them is the rank, which is 0 then
        setattr(a, name, a)
    with pytest.raises(BufferError, match="dtype is float64"):
        consume(a, {"dtype": id(a) & 0xFFFFFFFF})
    assert a.calls == [VERSION]


# ---- Which methods are cached ----


class Callable:
    """Not a descriptor."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *positional, **keywords):
        return self.function(*positional, **keywords)


@pytest.mark.parametrize("wrap", [staticmethod, classmethod, Callable])
def test_a_method_that_python_does_not_bind_as_a_function_is_called_as_python_does_C6(wrap):
    """Nothing is cached of such a method: only a look-up on the object knows its arguments."""
    arguments = []

    def dlpack(*positional, **keywords):
        arguments.append((positional, keywords))
        return Made().capsule()

    kind = in_python(__dlpack__=wrap(dlpack))
    for _ in range(3):
        assert consume(kind()).shape == (3,)
    assert arguments == [((kind,) if wrap is classmethod else (), VERSION)] * 3


@pytest.mark.parametrize("consumes", [False, True], ids=["nothing is cached after the call", "another one is cached"])
def test_a_method_may_replace_itself_as_it_refuses_its_keywords_C1(consumes):
    calls, armed = [], []

    def refuse(self, **keywords):
        calls.append(keywords)
        if keywords:
            raise TypeError("no keywords")
        if not armed:
            return Made(LEGACY).capsule()
        kind.__dlpack__ = Callable(replaced)
        if consumes:
            assert consume(kind()).shape == (3,)
        return Made(LEGACY).capsule()

    def replaced(**keywords):
        calls.append("replaced")
        return Made().capsule()

    kind = in_python()
    accepted(kind)
    for _ in range(2):
        kind.__dlpack__ = refuse
        armed.clear()
        assert consume(kind()).shape == (3,)  # caches refuse()
        armed.append(True)
        calls.clear()
        assert consume(kind()).shape == (3,)
        assert calls == [VERSION, {}] + ["replaced"] * consumes
        calls.clear()
    for _ in range(2):
        assert consume(kind()).shape == (3,)
    assert calls == ["replaced"] * 2


@not_on_pypy("objects that die at once")
def test_a_type_is_read_to_the_end_although_its_object_gets_another_class_X2():
    """Nothing else holds the type while the metaclass runs."""

    class Other:
        pass

    class Entry:
        """Stands in __mro__."""

        @property
        def __dict__(self):
            gc.collect()
            lives.append(old() is not None)
            return {"__dlpack_c_exchange_api__": 1}

    class Meta(type):
        def __getattribute__(cls, name):
            if name != "__mro__":
                return super().__getattribute__(name)
            thing.__class__ = Other
            return (Entry(),)

    def make():
        Old = Meta("Old", (), {"__dlpack_c_exchange_api__": 1})
        return Old(), weakref.ref(Old)

    thing, old = make()
    lives = []
    with pytest.raises(AttributeError):
        consume(thing)
    assert lives == [True] and type(thing) is Other
