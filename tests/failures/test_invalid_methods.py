"""Invalid __dlpack__ methods of every kind of callable (C1, C2, C6), and invalid arguments for producers (P1 to P6)."""

import asyncio
import functools
import gc
import sys
import types
import unittest.mock
import warnings
import weakref

import _dlpack_conformance as native
import dlarray
import pytest
from _dlpack_conformance import Conventions
from collecting import PYPY, not_on_pypy
from consumer_probe import check, consume, from_dlpack
from failures.model import Offer, failure, kept, three

REFUSAL = "unexpected keyword argument 'max_version'"


def raising(*errors):
    """An object whose calls of __dlpack__ raise the errors in order."""
    left = list(errors)

    def answer(**keywords):
        error = left.pop(0)
        try:
            raise error
        finally:
            del error

    return Offer(answer)


def is_taken(source, made):
    """Asserts that the tensor of the source is imported correctly and deleted once."""
    view = consume(source)
    assert (view.data, view.shape, made.deleted) == (made.address, (3,), 0)
    view.release()
    assert made.deleted == 1


# ---- Where the method comes from: C6 ----


@pytest.mark.parametrize("name", ["noargs", "o", "varargs", "keywords", "fastcall", "fastcall_keywords", "method"])
def test_a_method_in_c_of_each_calling_convention_is_called_C1(name):
    made = three(False)
    native.answer_is(made.capsule)
    kind = type("Kind", (Conventions,), {"__dlpack__": getattr(Conventions, name)})
    source = kind()
    with kept(source, kind):
        if name == "o":  # this convention needs an argument
            with pytest.raises(TypeError, match="takes exactly one argument"):
                consume(source)
            native.take(made.capsule()).delete()
        else:
            is_taken(source, made)
    native.answer_is(None)


@pytest.mark.parametrize("name", ["of_class", "of_nobody"])
@pytest.mark.parametrize("kind", [Conventions, type("Derived", (Conventions,), {})])
def test_a_class_or_static_method_in_c_is_called_C6(name, kind):
    made = three()
    native.answer_is(made.capsule)
    is_taken(type("Kind", (kind,), {"__dlpack__": Conventions.__dict__[name]})(), made)
    native.answer_is(None)


def test_a_bound_method_of_something_else_is_called_C6():
    made = three()
    native.answer_is(made.capsule)
    is_taken(type("Kind", (), {"__dlpack__": Conventions().keywords})(), made)
    native.answer_is(None)


def test_a_method_descriptor_of_another_type_is_a_type_error_C6():
    for descriptor in (list.append, Conventions.keywords, dlarray.Array.__dlpack__):
        with pytest.raises(TypeError, match=r"requires a|doesn't apply|append\(\) missing 1 required"):
            consume(type("Kind", (), {"__dlpack__": descriptor})())


@pytest.mark.skipif(hasattr(sys, "gettotalrefcount"), reason="a debug build of Python ends itself on such functions")
def test_a_c_function_whose_result_and_exception_disagree_is_a_system_error_K1():
    with pytest.raises(SystemError):
        consume(type("Kind", (Conventions,), {"__dlpack__": Conventions.nothing})())
    made = three()
    native.answer_is(made.capsule)
    with pytest.raises(SystemError) as raised:
        consume(type("Kind", (Conventions,), {"__dlpack__": Conventions.both})())
    assert PYPY or type(raised.value.__cause__) is KeyError
    native.answer_is(None)
    assert made.deleted == 1


class Static:
    made = three()

    @staticmethod
    def __dlpack__(max_version=None):
        return Static.made.capsule()


class OfClass:
    made = three()

    @classmethod
    def __dlpack__(cls, max_version=None):
        return cls.made.capsule()


class Chained:
    """A property that gives a partial of a bound method."""

    made = three()

    @property
    def __dlpack__(self):
        return functools.partial(self.give, Chained.made)

    def give(self, made, **keywords):
        return made.capsule()


class Generated:
    """__getattribute__ returns a method that the type does not have, as for `x.__dlpack__()`."""

    made = three()

    def __getattribute__(self, name):
        return lambda **keywords: Generated.made.capsule()

    def __dlpack__(self, **keywords):
        raise ZeroDivisionError


class Fickle:
    """__getattr__ returns a different object each time."""

    made = three()
    answers = [lambda **keywords: Fickle.made.capsule(), 3, None]

    def __getattr__(self, name):
        return Fickle.answers.pop(0)


class Liar:
    """Its __class__ claims that it is a dlarray.Array."""

    made = three()
    __class__ = dlarray.Array

    def __dlpack__(self, **keywords):
        return Liar.made.capsule()


class Unhashable:
    """Cannot be compared, hashed or printed, and is false."""

    made = three()

    def fail(self, *args):
        raise ZeroDivisionError

    __eq__ = __hash__ = __bool__ = __len__ = __repr__ = __str__ = __iter__ = fail

    def __dlpack__(self, **keywords):
        return Unhashable.made.capsule()


@pytest.mark.parametrize("kind", [Static, OfClass, Chained, Generated, Fickle, Liar, Unhashable])
def test_unusual_methods_are_called_as_python_calls_them_C6(kind):
    source = kind()
    with kept(source):
        is_taken(source, kind.made)


def test_modules_and_other_objects_may_have_the_method_C6():
    mades = [three() for _ in range(4)]
    module = types.ModuleType("module")
    module.__dlpack__ = lambda **keywords: mades[0].capsule()
    is_taken(module, mades[0])
    is_taken(types.SimpleNamespace(__dlpack__=lambda **keywords: mades[1].capsule()), mades[1])

    def function():
        pass

    function.__dlpack__ = lambda **keywords: mades[2].capsule()
    is_taken(function, mades[2])
    target = Offer(lambda **keywords: mades[3].capsule())
    proxy = weakref.proxy(target)
    is_taken(proxy, mades[3])
    del target
    with pytest.raises(ReferenceError):
        consume(proxy)
    assert not check(object)


def test_a_mock_is_no_producer_until_it_is_configured_C6():
    mock = unittest.mock.MagicMock()
    with pytest.raises(AttributeError):
        consume(mock)
    made = three()
    type(mock).__dlpack__ = lambda self, **keywords: made.capsule()
    is_taken(mock, made)


def test_lookups_that_never_end_are_a_recursion_error_C6():
    class Endless:
        def __getattr__(self, name):
            return getattr(self, name + "_")

    class Itself:
        def __dlpack__(self, **keywords):
            return from_dlpack(self)

    chain = functools.partial(from_dlpack)  # calls in C alone
    for _ in range(sys.getrecursionlimit() * 4 if sys.version_info < (3, 12) else 40):
        chain = functools.partial(from_dlpack, type("Link", (), {"__dlpack__": staticmethod(chain)})())
    # PyPy may make a SystemError of an end of the stack in C code.
    for endless in (Endless(), Itself()):
        with kept(endless), pytest.raises((RecursionError, SystemError) if PYPY else RecursionError):
            consume(endless)


# ---- What the method raises: C1 ----


class Silent(BaseException):
    pass


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, Silent, StopIteration, MemoryError])
@pytest.mark.parametrize("call", [1, 2])
def test_any_exception_of_a_method_reaches_the_caller_unchanged_C1(kind, call):
    error, refusal = kind(REFUSAL), TypeError(REFUSAL)
    source = raising(error) if call == 1 else raising(refusal, error)
    with kept(source):
        assert failure(kind, consume, source) is error
        assert error.__context__ is (None if call == 1 else refusal)
        refusal.__traceback__ = None


class Text(str):
    def __contains__(self, part):
        raise ZeroDivisionError

    find = index = __eq__ = __contains__
    __hash__ = str.__hash__


def unprintable(error):
    def fail(self):
        raise error

    return type("Unprintable", (TypeError,), {"__str__": fail, "__repr__": fail})()


OTHERS = {
    "long": TypeError("x" * 10_000_000),
    "no UTF-8": TypeError("\ud800 " + REFUSAL),
    "no text": TypeError(None, 3, object),
    "not a text": type("Odd", (TypeError,), {"__str__": lambda self: 3})(),
    "endless": unprintable(RecursionError()),
    "after a NUL": TypeError("no\0 " + REFUSAL),
    "another word": TypeError("unexpected keyword argument 'max_versio'"),
    "a format": TypeError("%s%n%U"),
}


@pytest.mark.parametrize("error", OTHERS.values(), ids=OTHERS)
def test_a_type_error_of_any_text_is_followed_by_one_more_call_C1(error):
    last = TypeError("last")
    assert failure(TypeError, consume, raising(error, last)) is last
    assert last.__context__ is error and error.__context__ is None
    assert sys.exc_info() == (None, None, None)
    error.__traceback__ = None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()], ids=repr)
def test_the_text_of_a_type_error_is_never_read_C1(error):
    made, errors = three(False), [unprintable(error)]

    def answer(**keywords):
        if errors:
            raise errors.pop()
        return made.capsule()

    is_taken(Offer(answer), made)
    assert sys.exc_info() == (None, None, None)


@pytest.mark.parametrize(
    "error",
    [
        TypeError("x" * 10_000_000 + REFUSAL),
        TypeError(Text(REFUSAL)),
        type("Derived", (TypeError,), {"__str__": lambda self: Text("…" + REFUSAL)})(),
    ],
    ids=["long", "a derived text", "a derived error"],
)
def test_a_type_error_with_any_text_is_a_refusal_C1(error):
    made, errors = three(False), [error]

    def answer(**keywords):
        if errors:
            raise errors.pop()
        return made.capsule()

    is_taken(Offer(answer), made)
    error.__traceback__ = None


def test_a_method_that_is_deleted_before_the_second_call_is_an_attribute_error_C1_C6():
    refusal = TypeError(REFUSAL)

    class Kind:
        def __dlpack__(self, **keywords):
            del Kind.__dlpack__
            gc.collect()
            raise refusal

    error = failure(AttributeError, consume, Kind())
    assert error.__context__ is refusal
    refusal.__traceback__ = None


@pytest.mark.parametrize("length, is_kept", [(0, True), (1, False), (200, False)])
def test_the_first_error_is_the_context_of_a_second_error_without_one_C1(length, is_kept):
    second, first = BufferError("second"), TypeError(REFUSAL)
    last = second
    for i in range(length):
        last.__context__ = ValueError(i)
        last = last.__context__
    failure(BufferError, consume, raising(first, second))
    assert last.__context__ is (first if is_kept else None)
    error = second
    for i in range(length):
        error = error.__context__
        assert error.args == (i,)


# ---- What the method answers: C2, C5, C6 ----


class Unprintable:
    def __repr__(self):
        raise KeyboardInterrupt


class Verbose:
    def __repr__(self):
        return "verbose " * 1_000_000


Surrogate = type("S\ud800".encode("utf-8", "replace").decode() + " %s %n", (), {})
Long = type("Long" * 1000, (), {})


@pytest.mark.parametrize("kind", [Unprintable, Verbose, Surrogate, Long], ids=lambda kind: kind.__name__[:20])
def test_a_returned_object_is_named_by_its_type_and_released_C6(kind):
    if PYPY and kind is Long:
        pytest.skip("a precision in PyErr_Format: not on PyPy")
    answer = kind()
    with kept(answer):
        error = failure(TypeError, consume, Offer(lambda **keywords: answer))
        assert str(error) == f"__dlpack__ returned {kind.__name__[:200]}, a capsule was wanted"


def test_a_coroutine_is_no_capsule_C6():
    class Kind:
        async def __dlpack__(self, **keywords):
            await asyncio.sleep(0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # it was never awaited
        with pytest.raises(TypeError, match="returned coroutine, a capsule was wanted"):
            consume(Kind())


def test_a_method_may_call_the_consumer_again_K4():
    made = []

    def answer(**keywords):
        made.append(three())
        capsule = made[-1].capsule()
        if len(made) % 7 == 0:
            gc.collect()
        if len(made) < 20:
            assert consume(source).shape == (3,)
            dlarray.from_dlpack(source)
        return capsule

    source = Offer(answer)
    consume(source).release()
    assert {m.deleted for m in made} == {1}


def test_a_method_may_change_the_object_and_its_class_during_the_call_C6():
    made = three()

    class After:
        def __dlpack__(self, **keywords):
            raise AssertionError("the call had begun")

    class Before:
        def __dlpack__(self, **keywords):
            self.__class__ = After
            for name in [name for name in vars(Before) if name == "__dlpack__"]:
                delattr(Before, name)
            gc.collect()
            return made.capsule()

    source = Before()
    is_taken(source, made)
    with pytest.raises(AssertionError):
        consume(source)


def test_the_device_of_the_capsule_counts_and_not_that_of_the_object_C4_C5():
    class Kind(Offer):
        def __dlpack_device__(self):
            return says

    for says, device in [((2, 0), (1, 0)), ((1, 0), (2, 0)), ("junk", (1, 0)), (None, (7, 3))]:
        made = three(device=device)
        source = Kind(lambda **keywords: made.capsule())
        if device == (1, 0):
            is_taken(source, made)
        else:
            with pytest.raises(BufferError, match="device is (cuda:0|vulkan:3)"):
                consume(source)
            assert made.deleted == 1


SECOND_ANSWERS = {
    "junk": (lambda first: 3, TypeError, "a capsule was wanted"),
    "nothing": (lambda first: None, TypeError, "a capsule was wanted"),
    "the first again": (lambda first: first, BufferError, "may be pending"),
    "pinned again": (lambda first: three(device=(3, 0)).capsule(), BufferError, "may be pending"),
    "another device": (lambda first: three(device=(2, 1)).capsule(), BufferError, "device is cuda:1"),
    "another version": (lambda first: three(version=(9, 9)).capsule(), BufferError, r"version 9\.9"),
    "malformed": (lambda first: three(ndim=99).capsule(), BufferError, "ndim is 99"),
}


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("second, error, text", SECOND_ANSWERS.values(), ids=SECOND_ANSWERS)
def test_each_capsule_of_an_object_that_changes_between_calls_is_checked_C5(second, error, text, versioned):
    first, capsules = three(versioned, device=(11, 0)), []

    def answer(**keywords):
        capsules.append(second(capsules[0]) if capsules else first.capsule())
        return capsules[-1]

    source = Offer(answer)
    with kept(source), pytest.raises(error, match=text):
        consume(source)
    assert first.deleted == 0, "the first capsule was not consumed"
    capsules.clear()
    assert first.deleted == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, TypeError("boom"), TypeError("unexpected keyword 'dl_device'")])
def test_an_object_whose_second_call_fails_leaks_no_tensor_C5(error):
    made = []

    def answer(**keywords):
        if "dl_device" in keywords:
            raise error
        made.append(three(device=(13, 0)))
        return made[-1].capsule()

    # The call after a TypeError passes no dl_device: it returns pinned memory again.
    failure(BufferError if type(error) is TypeError else KeyboardInterrupt, consume, Offer(answer))
    assert {m.deleted for m in made} == {1}


# ---- Invalid arguments for __dlpack__: P1 to P6 ----


class Number(int):
    """An integer whose methods all raise if Python code or the header calls them."""

    def trap(self, *args):
        raise ZeroDivisionError

    __index__ = __int__ = __eq__ = __ne__ = __lt__ = __gt__ = __hash__ = __bool__ = __repr__ = __str__ = trap
    __and__ = __rshift__ = __add__ = __neg__ = __float__ = __trunc__ = trap


class Pair(tuple):
    def trap(self, *args):
        raise ZeroDivisionError

    if not PYPY:  # whose functions of C for tuples call these methods
        __len__ = __getitem__ = __iter__ = __eq__ = __hash__ = __repr__ = __bool__ = __contains__ = trap


class Index:
    def __init__(self, action):
        self.action = action

    def __index__(self):
        return self.action()


def test_derived_integers_and_tuples_are_read_by_their_content_P2_P5_P6():
    array = dlarray.arange(3)
    one, zero, none = Number(1), Number(0), Number(-1)
    with kept(array, one, zero, none):
        taken = native.take(array, max_version=Pair((one, zero)), dl_device=Pair((one, zero)), stream=none)
        assert (taken.says["version"], taken.says["data"]) == ((1, 3), array.data_ptr)
        taken.delete()
        del taken
        assert native.take(array, max_version=Pair((zero, one))).says["version"] is None
        view = dlarray.from_dlpack(array, device=Pair((one, zero)))
        assert view.data_ptr == array.data_ptr
        del view
        for keyword in ({"max_version": Pair((1,))}, {"dl_device": Pair((1, 2, 3))}, {"stream": Pair()}):
            with pytest.raises(TypeError, match=f"{list(keyword)[0]} is Pair, "):
                native.take(array, **keyword)
        with pytest.raises(ValueError, match="stream is 2 "):
            native.take(array, stream=Number(2))
        with pytest.raises(ValueError, match="stream is (-2|Number), None, -1 or a handle"):
            native.take(array, stream=Number(-2))


@pytest.mark.parametrize("size", [10, 63, 64, 65, 1000, 100_000])
@pytest.mark.parametrize("sign", [1, -1])
def test_integers_of_any_size_are_accepted_or_refused_correctly_P2_P6(size, sign):
    array, huge = dlarray.arange(3), sign * 2**size
    with kept(array, huge):
        version = native.take(array, max_version=(huge, huge)).says["version"]
        assert version == ((1, 3) if sign > 0 else None)
        with pytest.raises(ValueError, match="stream is "):
            native.take(array, stream=huge)
        for device in [(huge, 0), (1, huge), (huge, huge)]:
            with pytest.raises(BufferError, match="dl_device is "):
                native.take(array, dl_device=device)
            with pytest.raises(BufferError, match="device is "):
                from_dlpack(array, device=device)
        del device


@pytest.mark.parametrize("value", [2**70, -7, "\ud800", 1.5], ids=ascii)
def test_a_value_of_a_derived_class_is_named_by_its_class_P6(value):
    kind = type("Kind", (type(value),), {"__repr__": lambda self: pytest.fail("asked")})
    with pytest.raises((TypeError, ValueError), match="^stream is (Kind|1180591620717411303424|-7), None"):
        dlarray.arange(3).__dlpack__(stream=kind(value))
    if isinstance(value, str):
        with pytest.raises(ValueError, match="^device is Kind, 'cpu' was wanted"):
            from_dlpack(dlarray.arange(3), device=kind(value))


@pytest.mark.parametrize("keyword, pair", [("stream", False), ("max_version", True), ("dl_device", True)])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RecursionError, MemoryError, OverflowError])
def test_an_exception_of_index_is_raised_P2_P5_P6(error, keyword, pair):
    def fail():
        raise raised

    if PYPY and error is OverflowError and pair:
        pytest.skip("a clamp that raises the OverflowError of __index__: not on PyPy")
    raised = error("in __index__")
    array, index = dlarray.arange(3), Index(fail)
    with kept(array, index):
        for value in [(index, 0), (1, index)] if pair else [index]:
            assert failure(error, array.__dlpack__, **{keyword: value}) is raised
            del value


def test_python_checks_an_index_that_is_not_a_plain_integer_P2():
    array = dlarray.arange(3)
    derived = Index(lambda: Number(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DeprecationWarning, match="instance of a strict subclass of int is deprecated"):
            array.__dlpack__(max_version=(derived, 0))
        warnings.simplefilter("ignore")
        assert native.take(array, max_version=(derived, 0)).says["version"] == (1, 3)
    for answer in ("1", 1.0, None):
        with pytest.raises(TypeError, match="max_version is "):
            array.__dlpack__(max_version=(Index(lambda: answer), 0))


def test_an_index_may_use_the_array_that_is_being_exported_P1():
    array = dlarray.arange(3)
    taken = []

    def use():
        taken.append(native.take(array, max_version=(1, 0)))
        array.setflags(writeable=False)
        gc.collect()
        return 1

    with kept(array):
        taken.append(native.take(array, max_version=(1, 0), dl_device=(Index(use), 0)))
        assert array.readonly
        assert [t.says["flags"] for t in taken] == [0, 1]  # the flag at the time when the arguments have been parsed
        assert native.take(array, max_version=(1, 0)).says["flags"] == 1
        taken.clear()


class Name(str):
    """Is equal to no text, so that a call may pass it beside the keyword with its text."""

    def __eq__(self, other):
        return False

    def __hash__(self):
        return 7


@pytest.mark.parametrize(
    "name",
    ["copy\0", "copy\udcff", "\udcffcopy", "ｃopy", "copy ", "", "copy" * 10_000, Name("сopy")],
    ids=lambda name: ascii(name[:20]),  # Windows' environment has no room for a long one
)
def test_a_name_that_resembles_a_keyword_is_a_type_error_P1(name):
    array = dlarray.arange(3)
    calls = [array.__dlpack__, functools.partial(dlarray.from_dlpack, array)]
    with kept(array):
        for call in calls:
            with pytest.raises(TypeError, match="unexpected keyword argument"):
                call(**{name: None})
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            native.call(array, (name, "copy"), (None, None))


def test_keywords_are_compared_by_their_text_P1():
    array = dlarray.arange(3)
    with kept(array):
        taken = native.take(array, **{Name("max_version"): (1, 0), Name("copy"): True})
        assert (taken.says["version"], taken.says["flags"]) == ((1, 3), 2)
        del taken


@not_on_pypy("a call that passes a keyword twice")
def test_of_two_equal_keywords_the_last_counts_P1():
    array = dlarray.arange(3)
    with kept(array):
        for copies in [(True, False), (False, True)]:
            taken = native.call(array, ("copy", Name("copy"), "max_version"), (*copies, (1, 0)))
            assert taken.says["flags"] == (2 if copies[1] else 0)
        del taken
