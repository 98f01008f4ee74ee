"""Invalid exchange tables of other libraries (X1 to X8), and tables of the header called from native code."""

import gc
import re
import sys

import _dlpack_conformance as native
import dlarray
import dltensor
import pytest
from _dlpack_conformance import Managed
from dltensor import PADDED, READ_ONLY
from exchange_probe import Holder, allocate_like, borrow, call_make, return_like
from failures.model import (
    ANY,
    ATTRIBUTE,
    ENDINGS,
    VALUES,
    Array,
    Offer,
    failure,
    fields_of_tensors,
    is_valid,
    kept,
    three,
)
from hypothesis import assume, given
from table_consumer import check, consume


@pytest.fixture(autouse=True)
def fair():
    """Resets the native table after each test, so that its functions succeed."""
    yield
    native.outcome()
    native.allocator_is(None)


def library(attribute, kind=Array, **attributes):
    """A class of arrays with `attribute` in place of its table."""
    return type("Array", (kind,), {ATTRIBUTE: attribute, **attributes})


def misleads(says):
    """Whether the header asks the method in place of the table (X4, X9)."""
    return says["device"][0] != 1 or says["dtype"][0] in (5, 18)


def is_misaligned(says, error):
    """Whether the data is misaligned as the error says (C9)."""
    wanted = re.search(r"alignment to (\d+) bytes", str(error))
    return wanted is not None and (says["data"] + says["byte_offset"]) % int(wanted[1]) != 0


# ---- The attribute: X1, X2 ----


def raising(error):
    def fail(*args):
        raise error

    return fail


class Descriptor:
    __get__ = raising(KeyboardInterrupt())


JUNK = {
    "0": 0,
    "-1": -1,
    "the address of a table, as older code has": dltensor.address(native.table()),
    "2**64": 2**64,
    "2**1000": 2**1000,
    "True": True,
    "a float": 1.5,
    "text": "dlpack_exchange_api",
    "bytes": b"\0" * 64,
    "a class": Array,
    "a function": lambda self: native.table(),
    "a tuple of it": (native.table(),),
    "a capsule without a name": native.table(None),
    "a capsule of no name": native.table(b""),
    "a capsule of a longer name": native.table(b"dlpack_exchange_api_"),
    "a capsule of a shorter name": native.table(b"dlpack_exchange_ap"),
    "a capsule of the name in capitals": native.table(b"DLPACK_EXCHANGE_API"),
    "a capsule of bytes": native.table(b"dlpack_exchange_api\xff"),
    "a tensor's capsule": three().capsule(destructor=False),
    "a consumed capsule": three().capsule(b"used_dltensor_versioned", destructor=False),
    "a property that raises": property(raising(LookupError())),
    "a property that interrupts": property(raising(KeyboardInterrupt())),
    "a descriptor that interrupts": Descriptor(),
    "a header of a newer major": native.header(2),
    "a header of the newest major": native.header(2**32 - 1),
    "a header of no major": native.header(0),
    "a header of no major before a table": native.header(0, native.table()),
    "a newer one before one of no major": native.header(2, native.header(0, native.table())),
    "a newer one before an equal one": native.header(2, native.header(2, native.table())),
    "a newer one before one that is newer yet": native.header(2, native.header(3, native.table())),
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_an_invalid_table_attribute_counts_as_absent_in_every_function_X2(junk):
    a = library(junk)(other=three())
    with kept(a):
        for ask in (consume, borrow):
            ask(a)
            assert a.other.deleted == 1
            a.other = three()
        assert check(a)
        holder = allocate_like(a, (5,))
        assert native.take(holder).says["shape"] == (5,)
        with pytest.raises(TypeError, match="cannot make an object like Array: its library has no from_dlpack"):
            return_like(a, holder)
    assert a.managed is None


@pytest.mark.parametrize(
    "capsule",
    [
        native.table(b"dlpack_exchange_api", 0),
        native.table(b"dlpack_exchange_api", 99),
        native.table(b"dlpack_exchange_api", 2**32 - 1),
        native.header(2, native.table()),
        native.header(2**32 - 1, native.header(3, native.header(2, native.table()))),
    ],
    ids=["1.0", "1.99", "1.4294967295", "2", "2**32-1, 3, 2"],
)
def test_tables_of_each_minor_version_are_used_and_of_newer_major_versions_only_the_header_is_read_X2(capsule):
    a = library(capsule)(three())
    assert borrow(a)[2] is False
    view = consume(a)
    assert (view.data, a.managed.deleted) == (a.managed.address, 0)
    view.release()
    assert a.managed.deleted == 1


def test_a_table_of_the_header_is_found_behind_a_newer_table_X2_X7():
    a = dlarray.arange(3)
    kind = library(native.header(2, getattr(dlarray.Array, ATTRIBUTE)), dlarray.Array)
    assert consume(kind(a)).data == a.data_ptr
    assert borrow(kind(a))[2] is False


def test_an_attribute_of_the_metaclass_is_no_table_of_the_type_X1():
    class Meta(type):
        pass

    setattr(Meta, ATTRIBUTE, native.table())
    a = Meta("Kind", (Offer,), {})(lambda **keywords: made.capsule())
    made = three()
    consume(a).release()
    assert made.deleted == 1


class OtherTable(type):
    """Attribute lookup does not return the attribute that the type has."""

    def __getattribute__(cls, name):
        return raising(KeyboardInterrupt())() if name == ATTRIBUTE else super().__getattribute__(name)


def test_the_table_is_read_from_the_type_without_its_metaclass_X1():
    a = OtherTable("Kind", (Array,), {ATTRIBUTE: native.table()})(three())
    consume(a).release()
    assert a.managed.deleted == 1


@pytest.mark.parametrize("bases", [None, 3, (), (3,), (object,), [Array]], ids=str)
def test_the_method_is_called_if_a_type_has_a_wrong_mro_X2(bases):
    class Meta(type):
        @property
        def __mro__(cls):
            return bases

    kind = Meta("Kind", (Array,), {ATTRIBUTE: native.table()})
    for ask in (consume, borrow):
        a = kind(three(), three())
        ask(a)
        assert (a.managed.deleted, a.other.deleted) == (0, 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_during_the_lookup_of_a_table_reaches_the_caller_X2(error):
    class Meta(type):
        interrupted = False

        def __getattribute__(cls, name):
            if name == "__mro__" and not Meta.interrupted:
                Meta.interrupted = True
                raise error
            return super().__getattribute__(name)

    a = Meta("Kind", (Array,), {ATTRIBUTE: native.table()})(three(), three())
    with pytest.raises(error):
        consume(a)
    assert (a.managed.deleted, a.other.deleted) == (0, 0)


# ---- Memory that the deleter frees: X8 ----


@pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("null", [False, True], ids=["strides", "NULL"])
@pytest.mark.parametrize("deleter", [True, False], ids=["deleter", "no deleter"])
def test_a_tensor_of_a_table_is_not_read_after_its_deleter_X8_K3_K4(end, null, deleter):
    mades = [three(deleter=deleter, **({"strides": None} if null else {})) for _ in range(2)]
    a = Array(*mades)
    with kept(a):
        end(a)
        gc.collect()
        by_table, by_method = [made.deleted for made in mades]
        if deleter:
            is_lent = end is ENDINGS["borrowed"]  # the consumer must not delete it
            assert by_table + by_method == (0 if is_lent else 1)
        else:
            assert by_table + by_method == 0
            assert [made.says["shape"] for made in mades] == [(3,), (3,)]  # the tensors are not freed


@pytest.mark.parametrize("fields", [{"dtype": (5, 64, 1)}, {"device": (7, 0)}, {"device": (3, 0)}], ids=str)
def test_a_tensor_of_a_table_is_released_before_the_method_is_called_X4_X9(fields):
    def answer(**keywords):
        order.append(a.managed.deleted)
        return made.capsule()

    made, order = three(**{**fields, "device": (1, 0)}), []
    a = library(native.table(), __dlpack__=lambda self, **keywords: answer(**keywords))(three(**fields))
    with kept(a):
        view = consume(a)
        assert (view.data, order, made.deleted) == (made.address, [1], 0)
        view.release()
    assert made.deleted == 1


# ---- Tensors that a table returns: X8 ----


@given(fields_of_tensors)
def test_an_owned_tensor_is_taken_exactly_if_it_is_valid_X8_D8(fields):
    a = Array(*[Managed(values=VALUES, **fields) for _ in range(2)])
    says = a.managed.says
    sound, by_method = is_valid(says), misleads(says)
    source = a.other if by_method else a.managed
    try:
        view = consume(a, ANY)
    except BufferError as error:
        assert not is_valid(source.says if by_method and source.deleted == 0 else says), error
    else:
        assert sound, says
        assert (view.shape, view.dtype, view.device) == (says["shape"] or (), says["dtype"], says["device"])
        assert (a.managed.deleted, a.other.deleted) == (by_method, 0)
        view.release()
    assert (a.managed.deleted, a.other.deleted) == (1, by_method)


@given(fields_of_tensors)
def test_a_borrowed_tensor_is_used_exactly_if_it_is_valid_X3_X8(fields):
    a = Array(*[Managed(values=VALUES, **fields) for _ in range(2)])
    says = a.managed.says
    sound = is_valid({**says, "flags": 0})
    try:
        (data, shape, strides), readonly, owned = borrow(a)
    except BufferError as error:
        assert not sound or misleads(says) or is_misaligned(says, error)
        owned = True
    else:
        assert sound
        assert shape == (says["shape"] or ())
        if not owned:
            assert (data - says["byte_offset"] - says["data"]) % 2**64 == 0
            assert (strides, readonly) == (says["strides"] or strides, 0x101)
            assert not misleads(says) and says["dtype"][1] >= 8
    assert a.managed.deleted == owned
    assert a.other.deleted == (owned and misleads(says))


# ---- What a function returns: X6, X8 ----

OUTCOMES = {
    "-1 and no exception": ((-1,), RuntimeError),
    "-1 and an exception": ((-1, LookupError("in the table")), LookupError),
    "1 and no exception": ((1,), RuntimeError),
    "-2**31 and an exception": ((-(2**31), LookupError("in the table")), LookupError),
    "0 and an exception": ((0, LookupError("beside success")), LookupError),
    "0 and an interrupt": ((0, KeyboardInterrupt("beside success")), KeyboardInterrupt),
    "-1 and an interrupt": ((-1, KeyboardInterrupt("in the table")), KeyboardInterrupt),
}
outcomes = pytest.mark.parametrize("outcome, error", OUTCOMES.values(), ids=OUTCOMES)


def check_failure(raised, outcome):
    """Asserts that the exception is the table's, or says that the table failed without an exception."""
    if len(outcome) == 2:
        assert raised is outcome[1]
        assert raised.__context__ is None
        raised.__traceback__ = None
    else:
        assert "failed" in str(raised)


@outcomes
def test_an_owned_tensor_of_a_function_that_fails_or_raises_is_deleted_once_X8(outcome, error):
    seen = []
    a = Array(three(on_delete=lambda: seen.append(consume(three().capsule()).shape)), three())
    with kept(a, *outcome[1:]):
        native.outcome(*outcome)
        raised = failure(error, consume, a)
        native.outcome()
        check_failure(raised, outcome)
        del raised
    assert (a.managed.deleted, a.other.deleted) == (1, 0)


@outcomes
def test_a_borrowed_tensor_of_a_function_that_fails_is_not_used_X3_X8(outcome, error):
    a = Array(three(), three())
    with kept(a, *outcome[1:]):
        native.outcome(*outcome)
        raised = failure(error, borrow, a)
        check_failure(raised, outcome)
        del raised
        native.outcome()
    assert a.managed.deleted == (error is not KeyboardInterrupt)  # after an interrupt no further call is made
    assert a.other.deleted == 0


@outcomes
def test_memory_of_an_allocator_that_fails_or_raises_is_deleted_once_X5_X8(outcome, error):
    made = Managed(values=bytes(40), shape=(5,), strides=(1,))
    native.allocator_is(lambda prototype: made)
    native.outcome(*outcome)
    raised = failure(error, allocate_like, Array(), (5,))
    check_failure(raised, outcome)
    assert made.deleted == 1


@outcomes
def test_an_object_of_a_function_that_fails_or_raises_is_released_once_X6_X8(outcome, error):
    made = three()
    holder = Holder(made.capsule())
    native.outcome(*outcome)
    raised = failure(error, return_like, Array(), holder)
    check_failure(raised, outcome)
    assert made.deleted == 1


@pytest.mark.parametrize("flags", [0, READ_ONLY, PADDED, READ_ONLY | PADDED, 2**40], ids=bin)
@pytest.mark.parametrize("change", [False, True], ids=["as it came", "changed"])
def test_a_result_for_a_table_keeps_the_flags_of_its_memory_X6_C7(change, flags):
    made = Managed(values=b"\x07\x08\x09", shape=(3,), strides=(1,), dtype=(17, 4, 1), flags=flags)
    taken = return_like(Array(), Holder(made.capsule()), change)
    assert taken.says["flags"] & (READ_ONLY | PADDED) == flags & (READ_ONLY | PADDED)
    wanted = [b"\x07", b"\x08", b"\x09"] if flags & PADDED else [b"\x07", b"\x00", b"\x08"]
    assert taken.elements() == wanted[: 2 if change else 3]
    assert made.deleted == 0
    del taken
    assert made.deleted == 1


# ---- Functions that re-enter, change what is asked, and raise: X8 ----


class Acting(Array):
    """The table's functions run act() before they return the tensor."""

    def __init__(self, act, managed, other=None):
        self.act, self.given = act, managed
        self.other = other

    @property
    def managed(self):
        self.act(self)
        return self.given


def test_table_functions_may_call_the_consumer_again_X8():
    mades = [three() for _ in range(30)]

    def act(a):
        inner = mades.index(a.given) + 1
        if inner < len(mades) and not mades[inner].deleted:
            view = consume(Acting(act, mades[inner]))
            assert (view.data, a.given.deleted) == (mades[inner].address, 0)
            assert borrow(Array(three()))[2] is False

    for ask in (borrow, consume):
        ask(Acting(act, mades[0]))
    assert {made.deleted for made in mades} == {1}


@pytest.mark.parametrize("ask", [consume, borrow])
def test_a_table_may_be_removed_from_its_type_during_a_call_X2_X8(ask):
    def act(a):
        if ATTRIBUTE in vars(kind):
            delattr(kind, ATTRIBUTE)
            del kind.__dlpack__
            for i in range(300):  # overwrites the cached entry of the type
                consume(type("Other", (Array,), {ATTRIBUTE: native.table()})(three()))
            gc.collect()

    kind = type("Kind", (Acting,), {ATTRIBUTE: native.table(), "__dlpack__": Array.__dlpack__})
    a = kind(act, three())
    with kept(a, kind):
        view = ask(a)
        del view
    if ask is consume:
        assert a.given.deleted == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RecursionError, MemoryError, BufferError])
def test_an_exception_of_a_table_function_reaches_the_caller_unchanged_X8(error):
    raised = error("in the table")
    a = Acting(raising(raised), three(), three())
    with kept(a):
        for ask in (consume, borrow):
            assert failure(error, ask, a) is raised
            assert raised.__context__ is None
    assert (a.given.deleted, a.other.deleted) == (0, 0)


def test_the_method_of_a_subclass_that_vetoes_is_called_and_not_the_table_X2():
    def veto(self, **keywords):
        raise BufferError("never")

    vetoes = type("Vetoes", (library(native.table()),), {"__dlpack__": veto})
    for kind in (vetoes, type("Below", (vetoes,), {})):
        a = kind(three())
        with kept(a):
            for ask in (consume, borrow):
                with pytest.raises(BufferError, match="^never$"):
                    ask(a)
        assert a.managed.deleted == 0


# ---- Allocators: X5, X8 ----


def five(**fields):
    return Managed(**{"values": bytes(40), "shape": (5,), "strides": (1,), **fields})


def test_an_allocator_that_changes_the_prototype_does_not_change_the_check_X8():
    def allocate(prototype):
        t = dltensor.Tensor.from_address(prototype)
        assert (t.ndim, t.shape[0], t.dtype.code, t.dtype.bits) == (1, 5, 2, 64)
        t.shape[0] = 1
        t.ndim = 1
        t.dtype.bits = 8
        return made

    made = five(shape=(1,))
    native.allocator_is(allocate)
    with pytest.raises(BufferError, match="the exchange table's allocator: .* was asked for"):
        allocate_like(Array(), (5,))
    assert made.deleted == 1


@given(fields_of_tensors)
def test_memory_is_used_exactly_if_it_meets_the_request_X8(fields):
    made = Managed(values=bytes(40), **fields)
    says = made.says
    wanted = (says["dtype"], says["shape"], says["device"][0]) == ((2, 64, 1), (5,), 1) and is_valid(says)
    wanted = wanted and not says["flags"] & 1 and says["strides"] != (0,)  # the result does not overlap itself
    native.allocator_is(lambda prototype: made)
    try:
        holder = allocate_like(Array(), (5,))
    except BufferError as error:
        assert not wanted, error
    else:
        assert wanted
        del holder
    native.allocator_is(None)
    assert made.deleted == 1


@pytest.mark.parametrize("fields", [{"strides": (0,)}, {"flags": 1}, {"shape": (6,), "strides": (1,)}])
def test_memory_that_does_not_meet_the_request_is_refused_and_deleted_X8(fields):
    made = five(**fields)
    native.allocator_is(lambda prototype: made)
    with pytest.raises(BufferError):
        allocate_like(Array(), (5,))
    assert made.deleted == 1


@pytest.mark.parametrize("fields", [{}, {"strides": None}, {"byte_offset": 8, "values": bytes(48)}, {"deleter": False}])
def test_memory_that_meets_the_request_in_an_unusual_way_is_used_X8(fields):
    made = five(**fields)
    native.allocator_is(lambda prototype: made)
    holder = allocate_like(Array(), (5,))
    taken = native.take(holder, max_version=(1, 0))
    assert taken.says["data"] == made.address + fields.get("byte_offset", 0)
    assert taken.elements() == [bytes(8)] * 5
    del taken, holder
    assert made.deleted == fields.get("deleter", True)


REPORTS = [
    (b"BufferError", b"", BufferError),
    (b"BufferError", b"%s%n%d%*p", BufferError),
    (b"MemoryError", b"\xff\xfe", MemoryError),
    (b"ValueError", "…".encode() * 10_000, ValueError),
    (b"TypeError", b"\xe2\x80" * 10_000, TypeError),
    (b"", b"no kind", RuntimeError),
    (b"KeyboardInterrupt", b"no kind of ours", RuntimeError),
    (b"Buffer", b"no kind of ours", RuntimeError),
    (b"BufferErrors", b"no kind of ours", RuntimeError),
    (b"\xff" * 10_000, b"no kind of ours", RuntimeError),
]


@pytest.mark.parametrize("kind, message, error", REPORTS, ids=[f"{kind[:20]}, {text[:9]}" for kind, text, _ in REPORTS])
def test_reported_errors_of_any_bytes_are_an_exception_X5(kind, message, error):
    native.allocator_is(raising(Exception(kind, message)))
    raised = failure(error, allocate_like, Array(), (5,))
    assert type(raised) is error
    assert str(raised)[:40] == message[:120].decode(errors="replace")[:40]


# ---- A table of the header used by another library: X3, X5, X6 ----


TOO_LARGE = 2**55 if sys.maxsize > 2**32 else 2**34  # in bits


@given(fields_of_tensors)
def test_the_headers_allocator_follows_the_prototype_or_reports_an_error_X5_D8(fields):
    prototype = Managed(values=VALUES, **fields)
    says = prototype.says
    asked = {**says, "device": (4, 0), "strides": None, "data": 1, "byte_offset": 0, "flags": 0}
    sound = is_valid(asked) and says["device"][0] == 1
    size = 1
    for extent in says["shape"] or ():
        size *= extent
    size *= says["dtype"][1] * says["dtype"][2]
    assume(not sound or not 2**27 < size < TOO_LARGE)  # the memory surely is available, or surely is not
    try:
        taken = native.allocate_by_table(dlarray.Array, prototype)
    except RuntimeError as error:
        assert str(error).startswith("MemoryError: " if sound else "BufferError: ")
        assert not sound or size >= TOO_LARGE
    else:
        assert sound, says
        got = taken.says
        assert (got["shape"] or (), got["dtype"], got["flags"]) == (says["shape"] or (), says["dtype"], 0)
        assert got["data"] % 64 == 0
        assert (got["data"] == 0) == (0 in got["shape"] if got["shape"] else False)
    assert prototype.says == says


@given(fields_of_tensors)
def test_the_headers_table_makes_objects_of_valid_tensors_and_deletes_invalid_tensors_X6(fields):
    made = Managed(values=VALUES, **fields)
    says = made.says
    try:
        holder = native.make_by_table(Holder, made)
    except BufferError as error:
        assert not is_valid(says) or says["ndim"] > 4 or is_misaligned(says, error)
    else:
        assert is_valid(says)
        assert made.deleted == 0
        del holder
    assert made.deleted == 1


def test_the_headers_table_checks_its_own_export_that_was_changed_D8_X6():
    array = dlarray.arange(6).reshape(2, 3)
    table = getattr(dlarray.Array, ATTRIBUTE)
    with kept(array):
        for extent in (-1, 2**62):
            capsule = native.take_by_table(array).changed(extent)
            address = dltensor.address(capsule)
            dltensor.rename(capsule, "used_dltensor_versioned")
            with pytest.raises(BufferError, match="must not be negative|2\\^63"):
                call_make(table, address)
            del capsule
