"""The arguments of __dlpack__: accepted values, and the errors for other values (P1, P2, P4, P5, P6)."""

import enum
import inspect
import itertools
import sys

import dltensor
import pytest
from array_libraries import library
from collecting import not_on_pypy
from dltensor import CPU, LEGACY, VERSIONED
from optional import numpy

KEYWORDS = {"stream": -1, "max_version": (1, 0), "dl_device": CPU, "copy": True}


class Number(enum.IntEnum):
    MINUS_ONE = -1
    ZERO = 0
    ONE = 1


class Index:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value

    def __repr__(self):
        return f"Index({self.value!r})"


def array():
    return library.array([1.0, 2.0, 3.0], "float64")


def shown(value):
    """How a message shows a value: numbers, short texts and short tuples of both by a repr of at most 200 characters,
    all other values by their type."""
    items = value if type(value) is tuple else (value,)
    is_number = [
        type(x) in (int, float, bool, type(None)) and not (type(x) is int and abs(x) >= 10**200) for x in items
    ]
    is_text = [type(x) is str and len(x) <= 60 for x in items]
    if len(items) <= 4 and all(map(max, is_number, is_text)) and len(repr(value)) <= 200:
        return repr(value)
    of_numpy = type(value).__module__ == "numpy"
    return "numpy." * of_numpy + type(value).__name__


def refuses(error, text, **keywords):
    """Checks that the call fails with this error, and keeps no reference to the array."""
    a = array()
    before = sys.getrefcount(a)
    with pytest.raises(error) as raised:
        a.__dlpack__(**keywords)
    assert type(raised.value) is error
    assert text in str(raised.value) or not library.names_values
    assert sys.getrefcount(a) == before
    assert library.values(a) == [1.0, 2.0, 3.0]


# ---- Keywords: P1 ----


def fresh(name):
    """An equal string that is not interned, as C callers and f(**d) pass it."""
    made = "".join(list(name))
    assert made is not name
    return made


@pytest.mark.parametrize("names", [names for n in range(5) for names in itertools.permutations(KEYWORDS, n)])
def test_keywords_are_matched_by_value_in_any_order_and_number_P1(names):
    a = array()
    for name in (str, fresh):
        capsule = a.__dlpack__(**{name(n): KEYWORDS[n] for n in names})
        says = dltensor.read(capsule)
        assert says.form == (VERSIONED if "max_version" in names else LEGACY)
        assert (says.data != library.pointer(a)) == ("copy" in names)


def test_keywords_that_are_none_are_equal_to_absent_keywords_P1():
    a = array()
    says = dltensor.read(a.__dlpack__(**dict.fromkeys(KEYWORDS)))
    assert (says.form, says.data) == (LEGACY, library.pointer(a))


@pytest.mark.parametrize(
    "name", ["cop", "copyy", "Copy", "", "device", "version", "copy\0", "copy\0x", "k" * 1000, "é"]
)
def test_any_other_keyword_is_a_type_error_that_names_it_P1(name):
    refuses(TypeError, name, **{name: None})


def test_a_keyword_without_utf_8_is_a_type_error_P1():
    with pytest.raises(TypeError):
        array().__dlpack__(**{"\ud800": None})


@pytest.mark.parametrize("args", [(None,), (1,), ((1, 0),), (None,) * 4])
def test_positional_arguments_are_a_type_error_P1(args):
    a = array()
    before = sys.getrefcount(a)
    for keywords in ({}, {"max_version": (1, 0)}):
        with pytest.raises(TypeError, match="positional"):
            a.__dlpack__(*args, **keywords)
    assert sys.getrefcount(a) == before


@not_on_pypy("signatures of methods of extensions")
def test_the_methods_have_signatures_and_documentation_P1():
    of_dlpack = inspect.signature(library.Array.__dlpack__).parameters
    assert list(of_dlpack) == ["self", "stream", "max_version", "dl_device", "copy"]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is None for name, p in of_dlpack.items() if name != "self")
    assert list(inspect.signature(library.Array.__dlpack_device__).parameters) == ["self"]
    assert library.Array.__dlpack__.__doc__ and library.Array.__dlpack_device__.__doc__


@pytest.mark.parametrize("args, keywords", [((None,), {}), ((), {"stream": None})])
def test_dlpack_device_takes_no_arguments_P8(args, keywords):
    with pytest.raises(TypeError, match="argument"):
        array().__dlpack_device__(*args, **keywords)


# ---- max_version: P2 ----


@pytest.mark.parametrize(
    "max_version", [None, (0, 0), (0, 8), (0, 2**70), (-1, 3), (-(2**31), 0), (-(2**64), 0), (Number.ZERO, Number.ONE)]
)
def test_a_major_version_below_1_gives_the_legacy_form_P2(max_version):
    assert dltensor.read(array().__dlpack__(max_version=max_version)).form == LEGACY


@pytest.mark.parametrize(
    "max_version",
    [
        (1, 0),
        (1, 3),
        (1, -1),
        (1, 2**70),
        (2, 0),
        (10, 10),
        (100, 3),
        (2**31, 0),
        (2**32, 0),
        (2**63, 0),
        (2**64, 0),
        (2**70, 2**70),
        (True, False),
        (Number.ONE, Number.ZERO),
        (Index(1), Index(0)),
        type("Version", (tuple,), {})((1, 0)),
    ],
)
def test_any_other_gives_the_versioned_form_with_the_librarys_own_version_P2(max_version):
    says = dltensor.read(array().__dlpack__(max_version=max_version))
    assert (says.form, says.version) == (VERSIONED, library.version)


NO_PAIRS = [
    1,
    True,
    1.0,
    "1.0",
    (),
    (1,),
    (1, 0, 0),
    [1, 0],
    {1: 0},
    (1.0, 0),
    (1, 0.0),
    (None, 0),
    (1, None),
    (False, None),
    ("1", "0"),
    (1, 0, 0, 0),
    (1, 0, 0, 0, 0),
    (Index(1), 0, 0, 0),
    "x" * 60,
    "x" * 61,
    object(),
]


@pytest.mark.parametrize("max_version", NO_PAIRS, ids=lambda value: type(value).__name__)
def test_what_is_no_pair_of_integers_is_a_type_error_that_shows_it_P2(max_version):
    refuses(
        TypeError,
        f"max_version is {shown(max_version)}, None or a tuple of two integers was wanted",
        max_version=max_version,
    )


@pytest.mark.parametrize("name", ["max_version", "dl_device"])
def test_an_index_that_raises_is_heard_P2_P5(name):
    for pair in [(Index(ValueError("no")), 0), (1, Index(ValueError("no")))]:
        refuses(ValueError, "no", **{name: pair})
    refuses(TypeError, name, **{name: (Index(TypeError("no")), 0)})


# ---- copy: P4 ----


@pytest.mark.parametrize("copy", [0, 1, "True", 1.0, [], (), Index(1)], ids=repr)
def test_a_copy_that_is_not_none_true_or_false_is_a_type_error_that_shows_it_P4(copy):
    refuses(TypeError, f"copy is {shown(copy)}, None, True or False was wanted", copy=copy)


def test_a_bool_and_an_array_of_numpy_are_no_copy_arguments_P4():
    for copy in numpy.bool_(True), numpy.array([1, 2]):
        refuses(TypeError, f"copy is {shown(copy)}, None, True or False was wanted", copy=copy)


# ---- dl_device: P5 ----


@pytest.mark.parametrize("device", [None, CPU, (Number.ONE, Number.ZERO), (Index(1), Index(0)), (True, False)])
@pytest.mark.parametrize("copy", [None, False])
def test_the_tensors_own_device_is_exported_in_place_P5(device, copy):
    a = array()
    says = dltensor.read(a.__dlpack__(dl_device=device, copy=copy))
    assert (says.data, says.device) == (library.pointer(a), CPU)


def test_another_device_is_a_buffer_error_that_names_it_P5():
    for device, name in [
        ((2, 0), "cuda:0"),
        ((2, 3), "cuda:3"),
        ((3, 0), "cuda_host"),
        ((10, 0), "rocm:0"),
        ((13, 0), "cuda_managed"),
        ((1, 1), "cpu:1"),
        ((1, -1), "cpu:-1"),
        ((0, 0), "device(0, 0)"),
        ((99, 7), "device(99, 7)"),
        ((-1, 0), "device(-1, 0)"),
        ((2**31 - 1, 0), "device(2147483647, 0)"),
        ((2**32 + 1, 0), "device("),
        ((2**64 + 1, 0), "device("),
        ((1, 2**32), "cpu:"),
        ((1, 2**64), "cpu:"),
        ((-(2**64), 0), "device("),
    ]:
        for copy in (None, True, False):
            refuses(BufferError, f"dl_device is {name}", dl_device=device, copy=copy)


@pytest.mark.parametrize("device", NO_PAIRS, ids=lambda value: type(value).__name__)
def test_a_device_that_is_no_pair_of_integers_is_a_type_error_that_shows_it_P5(device):
    refuses(TypeError, f"dl_device is {shown(device)}, None or a tuple of two integers was wanted", dl_device=device)


# ---- stream: P6 ----

anywhere = pytest.mark.parametrize("more", [{}, {"dl_device": CPU}, {"copy": True}, {"max_version": (1, 0)}], ids=str)


def test_integers_of_numpy_are_integers_P2_P5_P6():
    version, device = (numpy.uint8(1), numpy.int64(0)), (numpy.int32(1), numpy.int8(0))
    says = dltensor.read(array().__dlpack__(max_version=version, dl_device=device, stream=numpy.int64(-1)))
    assert (says.version, says.device) == (library.version, CPU)


@anywhere
@pytest.mark.parametrize("stream", [None, -1, Number.MINUS_ONE, Index(-1)], ids=repr)
def test_on_the_cpu_no_stream_and_no_synchronization_are_accepted_P6(stream, more):
    a = array()
    assert dltensor.read(a.__dlpack__(stream=stream, **more)).shape == (3,)


@anywhere
@pytest.mark.parametrize(
    "stream",
    [0, 1, 2, 3, -2, 2**31, 2**32 - 1, 2**63 - 1, 2**63 + 8, 2**64 - 1, 2**64, 2**70, -(2**63), -(2**70), True],
)
def test_on_the_cpu_any_other_integer_is_a_value_error_that_shows_it_P6(stream, more):
    refuses(
        ValueError,
        f"stream is {int(stream)}",
        stream=stream,
        **more,
    )


@anywhere
@pytest.mark.parametrize(
    "stream", [1.0, -1.0, "1", "", b"", [], (), object(), 1j], ids=lambda value: type(value).__name__
)
def test_what_is_no_integer_is_a_type_error_that_shows_it_P6(stream, more):
    refuses(TypeError, f"stream is {shown(stream)}, None or an integer was wanted", stream=stream, **more)


@pytest.mark.parametrize("digits, text", [(200, str(10**199)), (201, "int")], ids=["200", "201"])
def test_a_repr_of_200_characters_is_shown_P6(digits, text):
    refuses(ValueError, f"stream is {text}, ", stream=10 ** (digits - 1))


def test_a_stream_whose_index_raises_is_heard_P6():
    refuses(ZeroDivisionError, "no", stream=Index(ZeroDivisionError("no")))


# ---- All arguments ----


@not_on_pypy("counts of a tuple's references")
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("max_version", [(1, 0), (0, 8), "junk"], ids=str)
def test_no_reference_to_an_argument_is_kept_P1(max_version, copy):
    stream, major, device = object(), Index(1), Index(0)
    for keywords in (
        {"max_version": (major, 0), "dl_device": (1, device), "copy": copy},
        {"max_version": max_version, "dl_device": (major, device), "stream": stream},
    ):
        values = [stream, major, device, *keywords.values()]
        before = [sys.getrefcount(value) for value in values if type(value) is not bool]
        try:
            array().__dlpack__(**keywords)
        except TypeError:
            pass
        assert [sys.getrefcount(value) for value in values if type(value) is not bool] == before


class Unshown:
    def __repr__(self):
        return "repr"

    __str__ = __repr__


class Text(str):
    __repr__ = __str__ = Unshown.__repr__


LONG = [
    Unshown(),
    [10**5000],
    (10**5000, "1"),
    (Unshown(), 1),
    ((1, 2), 3),
    Text("1"),
    "x" * 10**6,
    [Unshown()],
    ("\n" * 60,) * 2,
]
SHOWN = ["Unshown", "list", "tuple", "tuple", "tuple", "Text", "str", "list", "tuple"]


@pytest.mark.parametrize("keyword", ["stream", "max_version", "dl_device", "copy"])
@pytest.mark.parametrize("value, shown", [*zip(LONG, SHOWN)], ids=lambda x: x if type(x) is str and len(x) < 99 else "")
def test_a_value_that_is_no_number_and_no_short_text_is_named_by_its_type_P1(keyword, value, shown):
    refuses(TypeError, f"{keyword} is {shown}, ", **{keyword: value})
