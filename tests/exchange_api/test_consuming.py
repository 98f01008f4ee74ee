"""How the header's consumer finds, prefers or ignores the exchange tables of other libraries (X1 to X4, X8, X9)."""

import contextlib
import ctypes
import gc
import sys
import types
import weakref

import dlarray
import dltensor
import pytest
import race_probe
from array_libraries import needs_writable_numpy
from collecting import not_on_pypy
from dltensor import CPU, CUDA, CUDA_HOST, FORMS, LEGACY, PADDED, READ_ONLY, VERSIONED, Made, Taken, Unreadable
from exchange_probe import (
    COPY_IF_NEEDED,
    NO_TABLE,
    Holder,
    add_contradictory,
    allocate_like,
    borrow,
    borrow_two,
    call_borrowed,
    call_owned,
    check_like,
    delegate,
    hook,
    return_borrowed_like,
    return_like,
    set_previous,
    table,
)
from optional import numpy
from table_consumer import CACHED_TYPES, DLPACK_PY_ANY_DEVICE, check, consume

ATTRIBUTE = "__dlpack_c_exchange_api__"
VERSION = {"max_version": (1, 3)}
UNKNOWN = 0x101  # DLPACK_PY_READ_ONLY_UNKNOWN


class Library:
    """An array of another library that records calls. exchange_probe.c lists what owned and borrowed may return."""

    def __init__(self, owned=(), borrowed=(), method=(), **fields):
        self.fields = fields
        self.answers = {"owned": list(owned), "borrowed": list(borrowed)}
        self.method = list(method)
        self.calls = []
        self.made = []

    def make(self, form=VERSIONED):
        self.made.append(Made(form, **self.fields))
        return self.made[-1]

    def answer(self, which, default):
        self.calls.append(which)
        answer = self.answers[which].pop(0) if self.answers[which] else default()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def owned(self):
        return self.answer("owned", lambda: ctypes.addressof(self.make().managed))

    def borrowed(self):
        return self.answer("borrowed", lambda: ctypes.addressof(self.make().managed.dl_tensor))

    def __dlpack__(self, **keywords):
        self.calls.append(keywords)
        return (self.method.pop(0) if self.method else self.make()).capsule()

    @property
    def deleted(self):
        return [made.deleted for made in self.made]


def library(capsule=None, **attributes):
    """A class with its own table."""
    return type("Array", (Library,), {ATTRIBUTE: table() if capsule is None else capsule, **attributes})


def data(view):
    return (view.data, view.shape, view.strides)


# ---- The table is preferred; owned tensors: X2, X3 ----


def test_the_table_is_used_and_the_method_is_not_called_X2():
    a = library()()
    view = consume(a)
    assert a.calls == ["owned"]
    assert data(view) == (a.made[0].address, (3,), (1,))
    assert (view.form, view.readonly, a.deleted) == (1, 0, [0])
    view.release()
    assert a.deleted == [1]


@pytest.mark.parametrize("use", [consume, borrow])
def test_the_method_is_called_with_the_option_for_no_table_C9(use):
    a = library()()
    if use is consume:
        consume(a, {"options": NO_TABLE})
    else:
        borrow(a, options=NO_TABLE)
    assert a.calls == [VERSION]


def test_a_producer_reads_the_version_that_the_consumer_of_its_file_passes_P2():
    seen = []
    borrow(Holder(Made().capsule(), veto=lambda *request: seen.append(request)), options=NO_TABLE)
    assert seen == [(VERSION["max_version"], 0)]


@pytest.mark.parametrize("flags, readonly", [(0, 0), (READ_ONLY, 1), (2**63, 0)])
def test_flags_are_read_from_the_table_as_from_a_capsule_C7_C8(flags, readonly):
    view = consume(library()(flags=flags))
    assert (view.flags, view.readonly) == (flags, readonly)


def test_a_tensor_that_does_not_meet_the_requirements_is_deleted_once_C9():
    a = library()()
    with pytest.raises(BufferError, match="dtype is float64, int32 was asked for"):
        consume(a, {"dtype": "int32"})
    assert (a.calls, a.deleted) == (["owned"], [1])


def test_a_needed_copy_is_made_of_the_tensor_of_the_table_C9():
    a = library()(shape=(2, 2), strides=(1, 2))
    view = consume(a, {"order": "C", "options": COPY_IF_NEEDED})
    assert (view.strides, view.readonly, a.calls, a.deleted) == ((2, 1), 0, ["owned"], [1])


@pytest.mark.parametrize("keywords", [{"copy": True}, {"copy": False}, {"device": CPU}])
def test_the_method_is_called_with_keywords_that_a_table_does_not_have_C3(keywords):
    a = library()()
    consume(a, **keywords)
    (call,) = a.calls
    assert call.keys() == VERSION.keys() | {"dl_device" if name == "device" else name for name in keywords}


# ---- When a table is found, and when not: X1, X2 ----

LEFT_ALONE = {
    "a newer major": lambda: table(major=2),
    "major 0": lambda: table(major=0),
    "a chain that does not come to ours": lambda: table(major=4, prev=table(major=2)),
    "a chain that jumps over ours": lambda: table(major=2, prev=table(major=0)),
    "no allocator": lambda: table(without="allocator"),
    "no owned": lambda: table(without="owned"),
    "no make": lambda: table(without="make"),
    "no stream": lambda: table(without="stream"),
    "ours in the chain lacks a function": lambda: table(major=2, prev=table(without="owned")),
    "another name": lambda: table(name="dlpack_other_api"),
    "an integer, as older code has": lambda: dltensor.address(table()),
    "None": lambda: None,
    "a property": lambda: property(lambda self: table()),
    "text": lambda: "dlpack_exchange_api",
}


@pytest.mark.parametrize("capsule", LEFT_ALONE.values(), ids=LEFT_ALONE)
@pytest.mark.parametrize("ask", [consume, borrow])
def test_an_unusable_table_counts_as_absent_X2(ask, capsule):
    a = type("Array", (Library,), {ATTRIBUTE: capsule()})()
    ask(a)
    assert a.calls == [VERSION]


@pytest.mark.parametrize("majors", [(2,), (9, 4, 2)])
def test_the_chain_is_searched_for_the_major_version_of_the_header_X2(majors):
    capsule = table()
    for major in reversed(majors):
        capsule = table(major=major, prev=capsule)
    a = library(capsule)()
    consume(a)
    assert a.calls == ["owned"]


def test_a_chain_that_is_a_ring_counts_as_absent_X2():
    one, other = table(major=2), table(major=3)
    set_previous(one, other)
    set_previous(other, one)
    for capsule in (one, other):
        a = library(capsule)()
        consume(a)
        assert a.calls == [VERSION]


def test_only_the_type_is_searched_for_a_table_X1():
    a = Library()
    setattr(a, ATTRIBUTE, table())
    consume(a)
    assert a.calls == [VERSION]

    class Proxy:
        def __init__(self, target):
            self.target = target

        def __getattr__(self, name):
            return getattr(self.target, name)

    a = library()()
    consume(Proxy(a))
    assert a.calls == [VERSION]


def test_a_subclass_without_overrides_inherits_the_table_X7():
    a = type("Parameter", (library(),), {})()
    consume(a)
    assert a.calls == ["owned"]


def test_the_method_of_a_subclass_that_overrides_it_is_called_X2():
    def dlpack(self, **keywords):
        self.calls.append("overridden")
        return self.make().capsule()

    a = type("Other", (type("Between", (library(),), {"__dlpack__": dlpack}),), {})()
    for ask in (consume, borrow):
        ask(a)
    assert a.calls == ["overridden"] * 2


def test_a_subclass_may_set_the_attribute_to_none_X2():
    a = type("Plain", (library(),), {ATTRIBUTE: None})()
    consume(a)
    assert a.calls == [VERSION]


@pytest.mark.parametrize("failing", ["__mro__", "__dict__"])
def test_after_an_error_of_the_metaclass_the_method_is_called_X2(failing):
    class Meta(type):
        def __getattribute__(cls, name):
            if name == failing:
                raise RuntimeError(name)
            return super().__getattribute__(name)

    a = Meta("Array", (Library,), {ATTRIBUTE: table()})()
    consume(a)
    assert a.calls == [VERSION]


def test_a_method_that_is_none_offers_nothing_without_a_table_C6():
    assert check(type("Array", (), {"__dlpack__": None})()) is False
    assert check(type("Array", (), {"__dlpack__": None, ATTRIBUTE: table()})()) is True


def test_an_object_whose_type_cannot_be_read_offers_nothing_and_the_error_is_reported_C6(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: reported.append(str(what.exc_value)))
    assert check(Unreadable("Array", (), {ATTRIBUTE: table()})()) is False
    assert reported == ["of the look at the type"]


def test_after_an_mro_that_is_no_tuple_the_method_is_called_X2():
    class Meta(type):
        def __getattribute__(cls, name):
            found = super().__getattribute__(name)
            return list(found) if name == "__mro__" else found

    a = Meta("Array", (Library,), {ATTRIBUTE: table()})()
    for _ in range(2):
        consume(a)
    assert a.calls == [VERSION] * 2


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_an_error_of_the_metaclass_is_not_cached_X2(error):
    class Meta(type):
        raises = True

        def __getattribute__(cls, name):
            if name == "__mro__" and Meta.raises:
                Meta.raises = False
                raise error
            return super().__getattribute__(name)

    a = Meta("Array", (Library,), {ATTRIBUTE: table()})()
    with pytest.raises(error) if error is MemoryError else contextlib.nullcontext():
        consume(a)
    consume(a)
    assert a.calls[-1] == "owned"
    assert len(a.calls) == 1 + (error is RuntimeError)


def test_a_foreign_table_with_an_allocator_of_the_header_stays_foreign_X2():
    for other in (dlarray.Array, Holder):
        a = library(table(allocator_of=getattr(other, ATTRIBUTE)))()
        assert consume(a).shape == (3,)
        assert borrow(a)[2] is False
        assert a.calls == ["owned", "borrowed"]


def test_a_class_with_the_table_of_an_unrelated_class_is_a_type_error_X7():
    for capsule in (getattr(dlarray.Array, ATTRIBUTE), getattr(Holder, ATTRIBUTE)):
        a = library(capsule)()
        for ask in (consume, borrow):
            with pytest.raises(TypeError, match="is not of the type that this table belongs to"):
                ask(a)
        assert a.calls == []


def test_an_object_with_a_table_alone_offers_a_tensor_C6():
    class Array:
        owned = Library.owned
        answer = Library.answer
        make = Library.make

    setattr(Array, ATTRIBUTE, table())
    a = Array()
    a.answers, a.calls, a.made, a.fields = {"owned": []}, [], [], {}
    assert check(a)
    assert consume(a).shape == (3,)


# ---- Cached for a type: X2 ----


@pytest.mark.parametrize("how", ["borrow", "consume", "return_like", "call_borrowed", "call_owned"])
def test_describe_may_consume_any_other_type_X2_X7(how):
    """The cached entry of a type is not read again after foreign code has run, which may have overwritten it."""
    made, seen = Made(), []
    others = [library(table())() for _ in range(300)]

    def consume_others(*request):
        seen.append(request)
        for other in others:
            assert consume(other).shape == (3,)
            assert borrow(other)[0][1] == (3,)

    holder = Holder(made.capsule(), veto=consume_others)
    if how == "borrow":
        assert borrow(holder)[0] == (made.address, (3,), (1,))
    elif how == "consume":
        assert consume(holder).data == made.address
    elif how == "return_like":
        assert type(return_like(holder, Holder(Made().capsule()))) is Holder
    else:
        call = {"call_borrowed": call_borrowed, "call_owned": call_owned}[how]
        assert call(getattr(Holder, ATTRIBUTE), holder) is not None
    assert len(seen) == (how != "return_like")
    for other in others:
        assert set(other.calls) <= {"owned", "borrowed"} and len(other.calls) == 2 * len(seen)


def test_a_table_of_another_library_may_consume_any_other_type_X2_X7():
    others = [library(table())() for _ in range(300)]

    def consuming(method):
        def consume_others(self):
            for other in others:
                consume(other)
            return method(self)

        return consume_others

    kind = library(owned=consuming(Library.owned), borrowed=consuming(Library.borrowed))
    for _ in range(2):
        a = kind()
        assert consume(a).data == a.made[0].address
        assert borrow(a)[0][0] == a.made[1].address
        assert a.calls == ["owned", "borrowed"]


def noting(reads):
    """A metaclass that notes the attributes that are read from its classes."""

    class Meta(type):
        def __getattribute__(cls, name):
            reads.append(name)
            return super().__getattribute__(name)

    return Meta


@pytest.mark.parametrize("capsule", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_that_the_table_of_a_type_is_unusable_is_cached_X2(capsule):
    reads = []
    a = noting(reads)("Array", (Library,), {ATTRIBUTE: capsule()})()
    for _ in range(3):
        consume(a)
    assert (a.calls, reads.count("__mro__")) == ([VERSION] * 3, 1 if CACHED_TYPES else 3)


def test_the_metaclass_of_a_type_without_a_table_is_not_asked_X2():
    reads = []
    a = noting(reads)("Array", (Library,), {})()
    consume(a)
    assert (a.calls, reads) == ([VERSION], [])


def test_a_table_may_be_added_and_taken_away_later_X2():
    kind = type("Array", (Library,), {})
    a = kind()
    consume(a)
    setattr(kind, ATTRIBUTE, table())
    consume(a)
    delattr(kind, ATTRIBUTE)
    consume(a)
    assert a.calls == [VERSION, "owned", VERSION]


def test_a_change_of_a_base_is_seen_X2():
    base = type("Base", (Library,), {})
    a = type("Derived", (base,), {})()
    consume(a)
    setattr(base, ATTRIBUTE, table())
    consume(a)
    base.__dlpack__ = lambda self, **keywords: self.make().capsule()
    consume(a)
    assert a.calls == [VERSION, "owned", "owned"]  # both in one class
    a = type("Derived", (base,), {"__dlpack__": Library.__dlpack__})()
    consume(a)
    assert a.calls == [VERSION]


def test_a_class_that_changes_while_it_is_read_is_not_cached_X2():
    """The class overrides __dlpack__ while its type is read. The header must not cache what it read before."""
    changed = []

    class Meta(type):
        def __getattribute__(cls, name):
            if name == "__dict__" and cls is base and not changed:  # after the class itself was read
                changed.append(True)
                kind.__dlpack__ = lambda self, **keywords: Library.__dlpack__(self, **keywords)
                assert kind().calls == []  # attribute lookup gives the changed class a version tag
            return super().__getattribute__(name)

    base = Meta("Base", (Library,), {ATTRIBUTE: table()})
    kind = Meta("Derived", (base,), {})
    a = kind()
    for _ in range(3):
        consume(a)
    assert changed and a.calls == ["owned", VERSION, VERSION]


def test_a_consumer_that_comes_while_a_table_is_added_does_not_hide_it_X7():
    """The consumer sees the table on the type before dlpack_py_exchange_add has finished."""
    refused = []

    class Meta(type):
        def __setattr__(cls, name, value):
            super().__setattr__(name, value)
            if name == ATTRIBUTE:
                with pytest.raises(TypeError, match="not of the type that this table belongs to"):
                    race_probe.consume(thing)
                refused.append(cls)

    thing = Meta("Thing", (race_probe.new_type_without_table(),), {})()
    race_probe.add_table(type(thing))
    assert refused == [type(thing)]
    assert race_probe.consume(thing) == 6.0


def test_an_error_of_the_metaclass_ends_the_adding_of_a_table_X1():
    capsules = []

    class Meta(type):
        def __setattr__(cls, name, value):
            capsules.append(value)
            raise KeyError(name)

    kind = Meta("Thing", (race_probe.new_type_without_table(),), {})
    with pytest.raises(KeyError, match=ATTRIBUTE) as raised:
        race_probe.add_table(kind)
    raised.value.__traceback__ = None  # frames keep the capsule alive
    del raised
    capsules.append(table())
    assert sys.getrefcount(capsules[0]) == sys.getrefcount(capsules[1])
    assert not hasattr(kind, ATTRIBUTE)
    assert race_probe.consume(kind()) == 6.0  # by __dlpack__


def test_a_look_at_a_type_that_fails_leaves_the_view_empty_C9():
    with pytest.raises(MemoryError, match="of the look at the type"):
        borrow(Unreadable("Array", (library(),), {})())


def test_a_class_that_refuses_the_attribute_is_left_as_it_was_X1():
    class Refusing(type):
        def __setattr__(cls, name, value):
            raise KeyError(name)

    kind = Refusing("Kind", (), {})
    reference = weakref.ref(kind)
    before = sys.getrefcount(reference)
    with pytest.raises(KeyError, match=ATTRIBUTE):
        race_probe.add_table(kind)
    assert not hasattr(kind, ATTRIBUTE)
    assert sys.getrefcount(reference) == before


def test_a_table_whose_requirements_contradict_each_other_is_not_added_C9():
    kind = race_probe.new_type_without_table()
    with pytest.raises(SystemError, match="want: order is 'Q'"):
        add_contradictory(kind)
    assert not hasattr(kind, ATTRIBUTE)


def test_after_a_replacement_the_new_method_is_called_C6():
    kind = type("Array", (Library,), {})
    a = kind()
    for answer in ("first", "second", "third"):

        def dlpack(self, answer=answer, **keywords):
            self.calls.append(answer)
            return self.make().capsule()

        kind.__dlpack__ = dlpack
        consume(a)
        consume(a)
    assert a.calls == ["first"] * 2 + ["second"] * 2 + ["third"] * 2


def test_a_method_that_deletes_itself_runs_to_its_end_C6():
    kind = type("Array", (Library,), {})

    def dlpack(self, **keywords):
        del kind.__dlpack__
        gc.collect()
        self.calls.append("replaced")
        return self.make().capsule()

    kind.__dlpack__ = dlpack
    del dlpack
    a = kind()
    consume(a)
    consume(a)
    assert a.calls == ["replaced", VERSION]


class Old(delegate()):
    """A producer whose __dlpack__ is a C function without keywords. Its objects have no dictionary."""

    __slots__ = ("calls", "made")

    def __init__(self):
        self.calls = []

    def answer(self, **keywords):
        self.calls.append(keywords)
        if keywords:
            raise TypeError("__dlpack__() takes no keyword arguments")
        self.made = Made(LEGACY)
        return self.made.capsule()


def asked(old, **want):
    view = consume(old, want)
    assert data(view) == (old.made.address, (3,), (1,))
    view.release()
    assert old.made.deleted == 1
    return old.calls


def test_each_object_of_an_old_type_is_called_with_keywords_first_C1():
    kind = type("Kind", (Old,), {"__slots__": ()})
    for _ in range(3):
        assert asked(kind()) == [VERSION, {}]
        assert asked(kind(), dtype="float64", order="F") == [VERSION, {}]
    with pytest.raises(BufferError, match="dtype is float64, int8 was asked for"):
        consume(kind(), {"dtype": "int8"})


def test_an_object_may_take_the_keywords_that_another_object_of_its_type_refused_C1():
    class Mixed(Old):
        __slots__ = ("takes",)

        def __init__(self, takes):
            super().__init__()
            self.takes = takes

        def answer(self, **keywords):
            if self.takes and keywords == VERSION:
                self.calls.append(keywords)
                self.made = Made(VERSIONED)
                return self.made.capsule()
            return super().answer(**keywords)

    for _ in range(3):
        assert asked(Mixed(False)) == [VERSION, {}]
        assert asked(Mixed(True)) == asked(Mixed(True), writable=1) == [VERSION]


def test_a_proxy_is_called_with_keywords_whatever_its_last_object_refused_C1():
    """A method in Python may answer differently for each object."""

    class Proxy:
        __slots__ = ("producer",)

        def __init__(self, producer):
            self.producer = producer

        def __dlpack__(self, **keywords):
            return self.producer.__dlpack__(**keywords)

    for _ in range(3):
        old = Old()
        consume(Proxy(old))
        assert old.calls == [VERSION, {}]
        new = dltensor.Producer()
        consume(Proxy(new), {"writable": 1})
        assert new.calls == [VERSION]


def test_an_old_type_whose_second_call_fails_is_asked_again_C1():
    kind = type("Kind", (Old,), {"__slots__": ()})

    def refuse(self, **keywords):
        self.calls.append(keywords)
        raise TypeError("not now") if keywords else KeyError("not now")

    kind.__dlpack__ = refuse
    for _ in range(3):
        old = kind()
        with pytest.raises(KeyError, match="not now") as raised:
            consume(old)
        assert old.calls == [VERSION, {}]
        assert isinstance(raised.value.__context__, TypeError)


def test_an_old_type_in_the_cache_raises_its_own_error_C1():
    kind = type("Kind", (Old,), {"__slots__": ()})
    for _ in range(3):
        old = kind()
        asked(old)
    old.calls = None  # AttributeError
    with pytest.raises(AttributeError, match="append"):
        consume(old)


def test_the_cache_distinguishes_many_types_X2():
    kinds = [type(f"Array{i}", (Library,), {ATTRIBUTE: table()} if i % 2 else {}) for i in range(200)]
    for _ in range(3):
        for i, kind in enumerate(kinds):
            a = kind()
            consume(a)
            assert a.calls == (["owned"] if i % 2 else [VERSION])


def test_the_cache_distinguishes_a_type_from_a_freed_type_at_its_address_X2():
    for i in range(300):
        kind = type("Array", (Library,), {ATTRIBUTE: table()} if i % 2 else {})
        a = kind()
        consume(a)
        assert a.calls == (["owned"] if i % 2 else [VERSION])
        del kind, a
        gc.collect(0 if i % 50 else 2)


# ---- What a table cannot say: X4, X9 ----


@pytest.mark.parametrize("dtype", ["complex64", "complex128", (18, 32, 1)])
@pytest.mark.parametrize("ask, way", [(consume, "owned"), (borrow, "borrowed")])
def test_for_complex_numbers_of_another_library_the_method_is_called_X9(ask, way, dtype):
    a = library()(dtype=dtype)
    ask(a)
    assert a.calls == ([way, "owned", VERSION] if ask is borrow else ["owned", VERSION])
    assert a.deleted[-2] == 1  # the tensor from the table


@pytest.mark.parametrize("ask, way", [(consume, "owned"), (borrow, "borrowed")])
@pytest.mark.parametrize("conjugated, by_table", [(False, True), (0, True), (True, False), (1, False)])
def test_complex_numbers_without_lazy_conjugation_are_taken_from_the_table_X9(ask, way, conjugated, by_table):
    asked = []
    a = library(
        is_conj=lambda self: [asked.append("is_conj"), conjugated][1],
        is_neg=lambda self: pytest.fail("asked"),  # __dlpack__ of PyTorch exports negated data, too
    )(dtype="complex64", shape=(2,))
    view = ask(a)
    # is_conj() may run code that frees what a table has lent: a lent tensor is given up before it is called
    assert a.calls == (["borrowed"] if ask is borrow else []) + ["owned"] + ([] if by_table else [VERSION])
    assert asked == ["is_conj"]
    del view
    assert sum(a.deleted) == len(a.deleted) - (way == "borrowed")


@pytest.mark.parametrize("ask", [consume, borrow])
def test_the_answer_of_is_conj_is_released_X9(ask):
    class Answer:
        def __bool__(self):
            return False

    answer = Answer()
    a = library(is_conj=lambda self: answer)(dtype="complex64")
    before = sys.getrefcount(answer)
    ask(a)
    assert sys.getrefcount(answer) == before


@pytest.mark.parametrize("ask, way", [(consume, "owned"), (borrow, "borrowed")])
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_an_error_of_is_conj_is_raised_X9_P7(ask, way, error):
    def fail(self):
        raise error

    a = library(is_conj=fail)(dtype="complex64")
    with pytest.raises(error):
        ask(a)
    assert a.calls == (["borrowed", "owned"] if ask is borrow else ["owned"])
    assert a.deleted == ([0, 1] if ask is borrow else [1])


def test_is_conj_is_not_called_for_real_numbers_X9():
    a = library(is_conj=lambda self: pytest.fail("asked"))()
    assert consume(a).shape == (3,)
    assert a.calls == ["owned"]


@pytest.mark.parametrize("strides", [(1,), (-1,)], ids=str)
@pytest.mark.parametrize("writable", [False, True])
def test_complex_numbers_of_a_type_with_a_table_of_the_header_are_used_as_they_are_X9(writable, strides):
    class Asked(Holder):
        def is_conj(self):
            pytest.fail("asked")

    made = Made(dtype="complex64", shape=(2,), strides=strides, byte_offset=8)
    (address, *_), _, owned = borrow(Asked(made.capsule()), writable=writable)
    assert (address, owned) == (made.address + 8, writable)


def test_complex_numbers_of_dlarray_are_taken_from_the_table_X9():
    class Array(dlarray.Array):
        pass

    a = dlarray.array([1j], "complex64")
    assert consume(Array(a)).dtype == dltensor.DTYPES["complex64"]


@pytest.mark.parametrize("ask", [consume, borrow])
def test_for_memory_that_is_not_cpu_memory_the_method_is_called_X4_C5(ask):
    a = library()(device=CUDA_HOST, method=[Made(device=CUDA_HOST), Made(device=CPU)])
    ask(a)
    assert a.calls[-2:] == [VERSION, {**VERSION, "dl_device": CPU}]
    a = library()(device=CUDA)
    with pytest.raises(BufferError, match="device is cuda:0"):
        ask(a)
    assert a.calls[-1] == VERSION


# ---- Failures: X8 ----

FAILURES = {
    "raises": (ZeroDivisionError("in the table"), ZeroDivisionError, "in the table"),
    "fails silently": (False, RuntimeError, "managed_tensor_from_py_object_no_sync failed without an exception"),
    "leaves out unset": (None, RuntimeError, "managed_tensor_from_py_object_no_sync failed without an exception"),
    "succeeds with an exception and nothing": ((), KeyError, "beside success"),
}


@pytest.mark.parametrize("answer, error, text", FAILURES.values(), ids=FAILURES)
def test_a_failing_table_function_is_an_exception_and_the_method_is_not_called_X8(answer, error, text):
    a = library()(owned=[answer])
    before = sys.getrefcount(a)
    with pytest.raises(error, match=text) as raised:
        consume(a)
    raised.value.__traceback__ = None  # frames keep the object alive
    del raised
    assert a.calls == ["owned"]
    assert sys.getrefcount(a) == before


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"version": (2, 0)}, "major version 1 was wanted"),
        ({"shape": (-1,)}, "must not be negative"),
        ({"data": None}, "data is NULL"),
        ({"dtype": (0, 0, 1)}, "bits"),
    ],
)
def test_an_invalid_tensor_of_a_table_is_refused_and_deleted_once_X8(fields, text):
    a = library()(**fields)
    with pytest.raises(BufferError, match=text):
        consume(a)
    assert (a.calls, a.deleted) == (["owned"], [1])


# ---- Borrowed: X3 ----


def test_borrowing_makes_no_owned_tensor_X3():
    a = library()()
    assert borrow(a) == ((a.made[0].address, (3,), (1,)), UNKNOWN, False)
    assert borrow(a, dtype="float64", order="C")[2] is False
    assert (a.calls, a.deleted) == (["borrowed"] * 2, [0, 0])


def test_contradictory_requirements_are_an_error_before_a_table_is_called_C9():
    a = library()()
    with pytest.raises(SystemError, match="order is 'Q'"):
        borrow(a, order="Q")
    wants = {"order is 'Q'": {"order": "Q"}, "ndim is -7": {"ndim": -7}, "max_ndim is -1": {"max_ndim": -1}}
    for text, want in wants.items():
        with pytest.raises(SystemError, match=text):
            consume(a, want)
    assert a.calls == []


def test_null_strides_of_a_borrowed_tensor_are_filled_in_D4():
    assert borrow(library()(shape=(2, 3), strides=None))[0][1:] == ((2, 3), (3, 1))


def test_for_writable_memory_an_owned_tensor_is_taken_X3():
    a = library()()
    assert borrow(a, writable=True)[1:] == (0, True)
    assert (a.calls, a.deleted) == (["owned"], [1])
    with pytest.raises(BufferError, match="read-only"):
        borrow(library()(flags=READ_ONLY), writable=True)


def test_packed_elements_may_be_padded_and_are_not_borrowed_X3():
    a = library()(dtype=(17, 4, 1), flags=PADDED)
    assert borrow(a)[2] is True
    assert a.calls == ["borrowed", "owned"]


def test_pinned_memory_is_not_borrowed_X4():
    """Device work may be pending, and a borrowed tensor names no stream."""
    a = library()(device=CUDA_HOST)
    assert borrow(a, device=CUDA_HOST[0])[2] is True
    assert a.calls[0] == "borrowed" and a.deleted[0] == 0


def test_an_interrupt_is_not_swallowed_X3():
    a = library()(borrowed=[KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        borrow(a)
    assert a.calls == ["borrowed"]


@pytest.mark.parametrize("answer", [BufferError("read-only"), RuntimeError("dtype"), False, (), None], ids=repr)
def test_after_a_failed_borrow_an_owned_tensor_is_taken_X3(answer):
    a = library()(borrowed=[answer])
    assert borrow(a)[2] is True
    assert a.calls == ["borrowed", "owned"]


def test_what_a_table_leaves_unset_is_not_the_tensor_of_an_earlier_call_X8():
    one, other = library()(), library()(borrowed=[None])
    (first, _), (second, owned) = borrow_two(one, other)
    assert (first, second, owned) == ((one.made[0].address, (3,), (1,)), (other.made[0].address, (3,), (1,)), True)


def test_a_table_need_not_have_the_borrow_function_X3():
    a = library(table(without="borrowed"))()
    assert borrow(a)[2] is True
    assert a.calls == ["owned"]


def test_a_borrowed_tensor_that_does_not_meet_the_requirements_is_refused_or_copied_C9():
    a = library()(shape=(2, 2), strides=(1, 2))
    with pytest.raises(BufferError, match="was asked for by order"):
        borrow(a, order="C")
    (_, _, strides), readonly, owned = borrow(a, order="C", options=COPY_IF_NEEDED)
    assert (strides, readonly, owned) == ((2, 1), 0, True)
    assert a.deleted.count(1) == 2


@pytest.mark.parametrize("form", FORMS)
def test_borrow_consumes_an_object_without_a_table_C6(form):
    producer = dltensor.Producer(form)
    assert borrow(producer)[2] is True
    assert producer.deleted == [1]
    capsule = Made(form).capsule()
    assert borrow(capsule)[2] is True
    assert dltensor.name(capsule) == "used_" + form
    with pytest.raises(AttributeError):
        borrow(object())


def test_arrays_of_dlarray_are_borrowed_unless_they_are_read_only_X3():
    a = dlarray.arange(3)
    before = sys.getrefcount(a)
    assert borrow(a) == ((a.data_ptr, (3,), (1,)), UNKNOWN, False)
    a.setflags(writeable=False)
    assert borrow(a)[1:] == (1, True)
    assert sys.getrefcount(a) == before


# ---- Memory and results like an argument ----


@pytest.mark.parametrize("byte_offset", [0, 16])
def test_memory_comes_from_the_allocator_of_the_arguments_table_D1(byte_offset):
    made = Made(shape=(5,))
    asked = []
    hook("allocate", lambda ndim, extent, report: asked.append((ndim, extent)) or ctypes.addressof(made.managed))
    holder = allocate_like(library()(), (5,), "float64", *CPU, byte_offset)
    assert asked == [(1, 5)]
    assert dltensor.read(holder.__dlpack__()).data == made.address
    del holder
    assert made.deleted == 1


def test_memory_of_an_allocator_may_have_any_alignment_D2():
    made = Made(shape=(5,), byte_offset=1)
    hook("allocate", lambda ndim, extent, report: ctypes.addressof(made.managed))
    assert dltensor.read(allocate_like(library()(), (5,)).__dlpack__()).data == made.address + 1


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": (4,)},
        {"shape": (5, 1)},
        {"shape": (5,), "dtype": "int64"},
        {"shape": (5,), "device": CUDA_HOST},
        {"shape": (5,), "device": (2, 7)},
    ],
    ids=str,
)
def test_memory_that_differs_from_the_request_is_refused_and_deleted_X8(fields):
    made = Made(**fields)
    hook("allocate", lambda ndim, extent, report: ctypes.addressof(made.managed))
    with pytest.raises(BufferError, match="the exchange table's allocator: .* was asked for"):
        allocate_like(library()(), (5,))
    assert made.deleted == 1


def test_memory_on_another_device_than_the_prototypes_is_refused_and_deleted_X8():
    made = Made(shape=(5,), device=CUDA)
    hook("allocate", lambda ndim, extent, report: ctypes.addressof(made.managed))
    with pytest.raises(BufferError, match="allocator: device is cuda:0, cuda:1 was asked for"):
        allocate_like(library()(), (5,), "float64", 2, 1)
    assert made.deleted == 1
    made = Made(shape=(5,), device=(2, 1))
    holder = allocate_like(library()(), (5,), "float64", 2, 1)
    del holder
    assert made.deleted == 1


def test_memory_of_the_prototypes_kind_is_taken_although_the_cpu_can_read_it_too_X5():
    made = Made(shape=(5,), device=CUDA_HOST)
    hook("allocate", lambda ndim, extent, report: ctypes.addressof(made.managed))
    says = dltensor.read(allocate_like(library()(), (5,), "float64", *CUDA_HOST).__dlpack__())
    assert (says.device, says.data) == (CUDA_HOST, made.address)


def test_read_only_memory_for_a_result_is_refused_and_deleted_X8():
    made = Made(shape=(5,), flags=READ_ONLY)
    hook("allocate", lambda ndim, extent, report: ctypes.addressof(made.managed))
    with pytest.raises(BufferError, match="read-only"):
        allocate_like(library()(), (5,))
    assert made.deleted == 1


def test_an_allocator_that_returns_0_with_an_exception_has_failed_X5():
    hook("allocate", lambda ndim, extent, report: ())
    with pytest.raises(KeyError, match="beside success"):
        allocate_like(library()(), (5,))


@pytest.mark.parametrize("like", [1, None, dlarray.arange(3), dltensor.Producer()], ids=lambda x: type(x).__name__)
def test_memory_for_an_argument_without_a_table_is_allocated_by_the_header_D2(like):
    says = dltensor.read(allocate_like(like, (2, 3), "float32").__dlpack__())
    assert (says.shape, says.strides, says.dtype, says.data % 64) == ((2, 3), (3, 1), (2, 32, 1), 0)
    with pytest.raises(BufferError, match="cuda"):
        allocate_like(like, (2, 3), "float32", 2)


@pytest.mark.parametrize("like", [dlarray.arange(3), Holder(Made().capsule()), None], ids=lambda x: type(x).__name__)
def test_memory_for_one_element_is_allocated_like_an_argument_D3(like):
    says = dltensor.read(allocate_like(like, (), "int16").__dlpack__())
    assert (says.ndim, says.dtype, says.data % 64) == (0, (0, 16, 1), 0)


@pytest.mark.parametrize("like", [dlarray.arange(3), Holder(Made().capsule()), None], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("shape, text", [((2, -1), "must not be negative"), ((2**40, 2**40), "element")], ids=str)
def test_a_malformed_prototype_is_refused_before_an_allocator_is_called_D8(like, shape, text):
    with pytest.raises(BufferError, match=text):
        allocate_like(like, shape)


def test_an_allocator_of_another_library_is_not_asked_for_a_negative_extent_D8():
    hook("allocate", lambda ndim, extent, report: pytest.fail("asked"))
    with pytest.raises(BufferError, match="must not be negative"):
        allocate_like(library()(), (-1,))


@not_on_pypy("a function of a table by ctypes")
def test_an_allocator_gets_no_data_strides_or_offset_of_the_prototype_X5():
    seen = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(dltensor.Tensor), *[ctypes.c_void_p] * 3)
    def allocator(prototype, out, context, set_error):
        t = prototype.contents
        seen.append((t.data, bool(t.strides), t.byte_offset, t.shape[: t.ndim]))
        return -1

    capsule, size = table(), ctypes.sizeof(ctypes.c_void_p)
    functions = (ctypes.c_void_p * 5).from_address(dltensor.address(capsule) + 8 + size)  # after version and prev_api
    functions[0] = ctypes.cast(allocator, ctypes.c_void_p)
    with pytest.raises(RuntimeError, match="the allocator of the exchange table failed"):
        allocate_like(library(capsule)(), (5, 6))
    assert seen == [(None, False, 0, [5, 6])]


REPORTS = {
    "a kind": ([("MemoryError", "no more")], False, MemoryError, "no more"),
    "the first counts": ([("BufferError", "first"), ("ValueError", "second")], False, BufferError, "first"),
    "an unknown kind": ([("Whatever", "odd")], False, RuntimeError, "odd"),
    "NULL": ([(None, None)], False, RuntimeError, "the allocator of the exchange table failed"),
    "no report": ([], False, RuntimeError, "the allocator of the exchange table failed"),
    "out left unset": ([], None, RuntimeError, "the allocator of the exchange table failed"),
    "success and a report": ([("ValueError", "odd")], None, ValueError, "odd"),
}


@pytest.mark.parametrize("reports, result, error, text", REPORTS.values(), ids=REPORTS)
def test_the_reported_error_of_an_allocator_is_raised_X5(reports, result, error, text):
    def allocate(ndim, extent, report):
        for kind, message in reports:
            report(kind, message)
        return result

    hook("allocate", allocate)
    with pytest.raises(error, match=text):
        allocate_like(library()(), (5,))


def test_an_exception_of_an_allocator_is_raised_X5():
    def allocate(ndim, extent, report):
        raise ZeroDivisionError("instead")

    hook("allocate", allocate)
    with pytest.raises(ZeroDivisionError, match="instead"):
        allocate_like(library()(), (5,))


@not_on_pypy("the address of an object by id()")
def test_a_result_is_made_by_the_arguments_table():
    taken, results = [], []

    def make(address):
        taken.append(address)
        results.append(object())
        return id(results[-1])

    hook("make", make)
    made = Made()
    assert return_like(library()(), Holder(made.capsule())) is results[0]
    assert taken == [ctypes.addressof(made.managed)]  # the managed tensor itself, not a wrapper


def test_a_table_that_fails_to_make_an_object_deletes_the_tensor_X6():
    def make(address):
        dltensor._DELETER(made.managed.deleter)(address)
        raise ZeroDivisionError("in the table")

    hook("make", make)
    made = Made()
    with pytest.raises(ZeroDivisionError):
        return_like(library()(), Holder(made.capsule()))
    assert made.deleted == 1
    hook("make", lambda address: False)
    with pytest.raises(RuntimeError, match="managed_tensor_to_py_object_no_sync failed without an exception"):
        return_like(library()(), Holder(Made().capsule()))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("change", [False, True], ids=["as it came", "changed"])
def test_a_result_for_an_array_of_dlarray_is_an_array_of_dlarray(form, change):
    made = Made(form)
    result = return_like(dlarray.arange(1), Holder(made.capsule()), change)
    assert type(result) is dlarray.Array
    assert (result.data_ptr, result.shape, made.deleted) == (made.address, (2 if change else 3,), 0)
    assert result.readonly == (form != VERSIONED)
    del result
    assert made.deleted == 1


@pytest.mark.parametrize("error", [ValueError, MemoryError, KeyboardInterrupt])
def test_an_error_of_the_namespace_lookup_is_raised_P7(error):
    class Array:
        def __getattr__(self, name):
            if name == "__array_namespace__":
                raise error("of the look-up")
            raise AttributeError(name)

    made = Made()
    with pytest.raises(error, match="of the look-up"):
        return_like(Array(), Holder(made.capsule()))
    assert made.deleted == 1


@needs_writable_numpy
def test_a_result_is_made_by_the_array_namespace_of_the_argument():
    made = Made(shape=(2, 2))
    result = return_like(numpy.zeros(1), Holder(made.capsule()))
    assert type(result) is numpy.ndarray
    assert result.__array_interface__["data"][0] == made.address
    assert result.flags.writeable
    result[0, 0] = 7.0
    assert made.memory[0] == 7.0
    del result
    gc.collect()
    assert made.deleted == 1
    readonly = Made(flags=READ_ONLY)
    assert not return_like(numpy.zeros(1), Holder(readonly.capsule())).flags.writeable


def test_a_result_is_made_by_from_dlpack_of_the_module_or_its_package(tmp_path, monkeypatch):
    package = tmp_path / "some_arrays"
    (package / "core").mkdir(parents=True)
    (package / "__init__.py").write_text("def from_dlpack(x):\n    return ('package', x.__dlpack_device__())\n")
    (package / "core" / "__init__.py").write_text("class Array:\n    pass\n")
    (package / "own.py").write_text("class Array:\n    pass\ndef from_dlpack(x):\n    return ('module', x)\n")
    monkeypatch.syspath_prepend(tmp_path)
    import some_arrays.core
    import some_arrays.own

    made = Made()
    assert return_like(some_arrays.core.Array(), Holder(made.capsule())) == ("package", CPU)
    assert made.deleted == 1  # the result was not consumed
    which, result = return_like(some_arrays.own.Array(), Holder(Made().capsule()))
    assert which == "module"
    assert dltensor.read(result.__dlpack__()).form == dltensor.LEGACY
    assert consume(result).shape == (3,)


def test_a_package_whose_modules_cannot_be_imported_is_asked_itself(monkeypatch):
    package = types.ModuleType("odd_arrays")
    package.__path__ = 5  # import raises TypeError
    package.from_dlpack = lambda x: "package"
    monkeypatch.setitem(sys.modules, "odd_arrays", package)
    like = type("Array", (), {"__module__": "odd_arrays.core"})()
    assert return_like(like, Holder(Made().capsule())) == "package"


class Nowhere:
    pass


Nowhere.__module__ = "a.module.that.does.not.exist"


class Unnamed:
    pass


Unnamed.__module__ = None


class NamedByBytes:
    pass


NamedByBytes.__module__ = b"a.module"


@pytest.mark.parametrize(
    "like, shown",
    [
        (1, "1"),
        (object(), "object"),
        (Nowhere(), "Nowhere"),
        (Unnamed(), "Unnamed"),
        (NamedByBytes(), "NamedByBytes"),
    ],
)
def test_a_library_without_from_dlpack_is_a_type_error_that_names_the_argument(like, shown):
    made = Made()
    with pytest.raises(TypeError, match=f"cannot make an object like {shown}: its library has no from_dlpack"):
        return_like(like, Holder(made.capsule()))
    assert made.deleted == 1


def test_a_class_without_a_module_is_a_type_error_that_names_the_argument():
    class Meta(type):
        @property
        def __module__(cls):
            raise AttributeError("no module")

    made = Made()
    with pytest.raises(TypeError, match="its library has no from_dlpack"):
        return_like(Meta("Nameless", (), {})(), Holder(made.capsule()))
    assert made.deleted == 1


@not_on_pypy("PyType_Modified")
def test_from_dlpack_is_found_again_after_a_change_of_a_static_type(monkeypatch):
    """The function for the last static type is cached, as long as the type is unchanged."""
    view = consume(Made().capsule())  # of a static type of the module consumer_probe, which stands in for a library
    changed = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("PyType_Modified", ctypes.pythonapi))
    seen = []

    class Module(types.ModuleType):
        changes = False

        def __getattr__(self, name):
            if name != "from_dlpack":
                raise AttributeError(name)
            if self.changes:
                changed(type(view))
                assert not hasattr(view, "other")  # the type gets a new version tag
            found = len(seen)
            seen.append(found)
            return lambda x: found

    monkeypatch.setitem(sys.modules, type(view).__module__, Module("stand_in"))
    changed(type(view))
    results = [return_like(view, Holder(Made().capsule())) for _ in range(3)]
    changed(type(view))
    results += [return_like(view, Holder(Made().capsule())) for _ in range(2)]
    sys.modules[type(view).__module__].changes = True  # while it is looked up: nothing is cached
    changed(type(view))
    results += [return_like(view, Holder(Made().capsule())) for _ in range(2)]
    assert results == ([0, 0, 0, 1, 1, 2, 3] if CACHED_TYPES else list(range(7)))
    changed(type(view))


def test_objects_of_one_class_may_have_different_namespaces():
    class Namespace:
        def __init__(self, name):
            self.name = name

        def from_dlpack(self, x):
            return self.name

    class Wrapper:
        def __init__(self, name):
            self.namespace = Namespace(name)

        def __array_namespace__(self):
            return self.namespace

    for name in ("one", "other"):
        assert return_like(Wrapper(name), Holder(Made().capsule())) == name
    nothing = Wrapper("none")
    nothing.namespace = gc
    with pytest.raises(TypeError, match="Wrapper: its library has no from_dlpack"):
        return_like(nothing, Holder(Made().capsule()))


def library_with(from_dlpack):
    """An object of a library with this from_dlpack."""
    return type("Wrapper", (), {"__array_namespace__": lambda self: types.SimpleNamespace(from_dlpack=from_dlpack)})()


def test_a_result_is_exported_once_and_has_its_device_before_and_after_K4():
    def from_dlpack(x):
        device = x.__dlpack_device__()
        first = Taken(x.__dlpack__(max_version=(1, 0)))
        with pytest.raises(BufferError, match="exported already"):
            x.__dlpack__(max_version=(1, 0))
        assert (x.__dlpack_device__(), device) == (device, first.says.device)
        gc.collect()  # visits the result, whose view is empty
        return first

    made = Made()
    taken = return_like(library_with(from_dlpack), Holder(made.capsule()))
    assert (taken.says.data, made.deleted) == (made.address, 0)
    taken.delete()
    assert made.deleted == 1


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"byte_offset": 8}, {"byte_offset": 0}),
        ({"device": (1, 3)}, {"device": CPU}),
        ({"shape": (0,)}, {"data": None}),
        ({"shape": (0,), "data": None}, {"data": None}),
        ({}, {"manager_ctx": ...}),
    ],
    ids=str,
)
def test_a_result_is_exported_like_a_tensor_of_this_header_D1_D3_D9_K8(fields, says):
    """The struct of its producer is not passed on if it has what other consumers do not expect."""
    made = Made(**fields)
    if not fields:
        made.managed.manager_ctx = None
    first = made.address and made.address + made.managed.dl_tensor.byte_offset
    taken = return_like(library_with(lambda x: Taken(x.__dlpack__(max_version=(1, 0)))), Holder(made.capsule()))
    assert taken.says.manager_ctx
    expected = {"byte_offset": 0, "device": CPU, "data": first, "manager_ctx": taken.says.manager_ctx}
    expected |= {name: value for name, value in says.items() if value is not ...}
    assert {name: getattr(taken.says, name) for name in expected} == expected
    taken.delete()
    assert made.deleted == 1


def test_a_result_in_pinned_memory_outlives_a_consumer_that_asks_again_for_the_cpu_C5():
    def from_dlpack(x):
        x.__dlpack__(max_version=(1, 0))  # a capsule that is dropped: its device is not the CPU
        assert made.deleted == 0
        return Taken(x.__dlpack__(max_version=(1, 0)))

    made = Made(device=CUDA_HOST)
    taken = return_like(library_with(from_dlpack), Holder(made.capsule(), empty_device=True))
    assert (taken.says.data, taken.says.device, made.deleted) == (made.address, CUDA_HOST, 0)
    taken.delete()
    assert made.deleted == 1


def test_a_result_that_was_shared_by_an_export_is_not_given_away_by_the_next_P9():
    def from_dlpack(x):
        return Taken(x.__dlpack__()), Taken(x.__dlpack__(max_version=(1, 0)))

    made = Made()
    legacy, versioned = return_like(library_with(from_dlpack), Holder(made.capsule()))
    versioned.delete()
    assert (legacy.says.data, made.deleted) == (made.address, 0)
    legacy.delete()
    assert made.deleted == 1


@pytest.mark.parametrize(
    "keywords", [{}, {"max_version": (1, 0), "copy": True}, {"max_version": (1, 0), "dl_device": CPU}], ids=str
)
def test_a_result_that_is_requested_with_other_keywords_may_be_exported_twice_P1(keywords):
    def from_dlpack(x):
        return [Taken(x.__dlpack__(**keywords)) for _ in range(2)]

    made = Made()
    for taken in return_like(library_with(from_dlpack), Holder(made.capsule())):
        assert (taken.says.data == made.address) == ("copy" not in keywords)
        taken.delete()
    assert made.deleted == 1


def test_a_result_on_the_cpu_is_refused_for_a_stream_and_exported_without_one_P6():
    def from_dlpack(x):
        with pytest.raises(ValueError, match="stream is 7 for data on cpu"):
            x.__dlpack__(max_version=(1, 0), stream=7)
        return Taken(x.__dlpack__(max_version=(1, 0)))

    made = Made()
    taken = return_like(library_with(from_dlpack), Holder(made.capsule()))
    assert (taken.says.data, made.deleted) == (made.address, 0)
    taken.delete()
    assert made.deleted == 1


def test_a_result_that_is_refused_or_not_requested_is_released_K4():
    made, from_dlpack = [Made(), Made()], lambda x: None
    like = library_with(from_dlpack)
    before = sys.getrefcount(from_dlpack)
    assert return_like(like, Holder(made[0].capsule())) is None
    assert sys.getrefcount(from_dlpack) == before
    with pytest.raises(TypeError, match="copy is 3"):
        return_like(library_with(lambda x: x.__dlpack__(max_version=(1, 0), copy=3)), Holder(made[1].capsule()))
    assert [m.deleted for m in made] == [1, 1]


@pytest.mark.parametrize("error", [ZeroDivisionError, ImportError, TypeError])
def test_an_error_of_the_namespace_is_raised(error):
    class Array:
        def __array_namespace__(self):
            raise error("no namespace")

    made = Made()
    with pytest.raises(error, match="^no namespace$"):
        return_like(Array(), Holder(made.capsule()))
    assert made.deleted == 1


def test_a_result_whose_view_is_read_only_is_returned_read_only():
    made = Made()
    assert return_like(dlarray.arange(1), Holder(made.capsule()), False, True).readonly
    assert made.deleted == 1


def test_a_result_with_an_invalid_shape_is_a_buffer_error():
    made = Made(shape=(0,))
    with pytest.raises(BufferError, match="must not be negative"):
        return_like(dlarray.arange(1), Holder(made.capsule()), True)
    assert made.deleted == 1


def test_a_borrowed_tensor_is_not_returned():
    with pytest.raises(ValueError, match="the view is empty or borrowed"):
        return_borrowed_like(dlarray.arange(1), dlarray.arange(3))


def test_a_table_that_refuses_a_device_is_followed_by_the_method_where_any_device_is_wanted_X4_C5():
    refusal = BufferError("no stream")
    a = library()(owned=[refusal], device=CUDA)
    consume(a, {"device": DLPACK_PY_ANY_DEVICE})
    assert a.calls == ["owned", VERSION]
    for device in (0, 1):
        a = library()(owned=[refusal], device=CUDA)
        with pytest.raises(BufferError, match="no stream"):
            consume(a, {"device": device})  # a CPU consumer does not ask further
        assert a.calls == ["owned"]
    a = library()(owned=[KeyError("lost")], device=CUDA)
    with pytest.raises(KeyError, match="lost"):
        consume(a, {"device": DLPACK_PY_ANY_DEVICE})  # this is no refusal
    assert a.calls == ["owned"]


def test_a_result_has_the_type_of_the_argument_that_has_the_table_X6():
    """As for two instances of a module: the table makes objects of the type to which it was added last."""
    first, second = race_probe.new_type(), race_probe.new_type()
    derived = type("Derived", (first,), {})
    for like, kind in (first(), first), (second(), second), (derived(), first), (first(), first):
        result = race_probe.return_like(like, first())
        assert type(result) is kind and race_probe.consume(result) == 6.0


def test_a_result_like_the_argument_can_be_asked_for_before_it_is_computed_C6():
    def from_dlpack(x):
        return None

    likes = library()(), dlarray.arange(1), race_probe.new_type()(), library_with(from_dlpack)
    before = sys.getrefcount(from_dlpack)
    for like in likes:
        assert check_like(like) is None
    assert sys.getrefcount(from_dlpack) == before
    capsule = Made().capsule()
    for like in capsule, object(), None, Nowhere():
        with pytest.raises(TypeError, match="its library has no from_dlpack"):
            check_like(like)
    assert dltensor.name(capsule) == VERSIONED

    class Broken:
        def __array_namespace__(self):
            raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        check_like(Broken())
