"""Capsules of another library. A read outside of the tensor, or after its deleter, ends the process (K, D, C)."""

import gc
import sys

import _dlpack_conformance as native
import dlarray
import dltensor
import pytest
from _dlpack_conformance import Managed
from collecting import not_on_pypy
from consumer_probe import consume
from failures.model import ADDRESSES, ANY, ENDINGS, VALUES, Offer, fields_of_tensors, is_valid, kept, three
from hypothesis import given
from hypothesis import strategies as st
from producer_probe import Thing, wrap

NAMES = {True: b"dltensor_versioned", False: b"dltensor"}

both_forms = pytest.mark.parametrize("versioned", [True, False], ids=["versioned", "legacy"])
raw_or_offered = pytest.mark.parametrize("offered", [False, True], ids=["raw", "offered"])


def offer(capsule, offered):
    return Offer(lambda **keywords: capsule) if offered else capsule


def take_back(made):
    """Deletes a tensor that was not consumed."""
    native.take(made.capsule()).delete()
    assert made.deleted == 1


# ---- The fields of a tensor: D8 ----


@given(fields_of_tensors, st.booleans())
def test_a_capsule_is_taken_exactly_if_its_tensor_is_valid_D8_K4(fields, versioned):
    made = Managed(versioned, values=VALUES, **fields)
    says = made.says
    sound = is_valid(says)
    capsule = made.capsule()
    try:
        view = consume(capsule, ANY)
    except BufferError as error:
        assert not sound, error
        assert native.name(capsule) == NAMES[versioned]
        assert made.says == says
    else:
        assert sound, says
        assert (view.shape, view.dtype, view.device) == (says["shape"] or (), says["dtype"], says["device"])
        if says["strides"]:
            assert view.strides == says["strides"]
        assert made.deleted == 0
        view.release()
        assert made.deleted == 1
    del capsule
    assert made.deleted == 1


@given(fields_of_tensors)
def test_a_tensor_is_exported_exactly_if_it_is_valid_D8_P7(fields):
    fields = {name: value for name, value in fields.items() if name not in ("ndim", "device")}
    shape, strides = fields.pop("shape") or (), fields.pop("strides")
    strides = strides if shape else None
    says = {"ndim": len(shape), "shape": shape, "strides": strides, "device": (1, 0), "byte_offset": 0}
    says["data"] = min(2**40, ADDRESSES // 4)
    says.update(fields)
    flags = fields.pop("flags", 0) & 4  # other tests cover read-only
    fields.pop("data", None)
    thing = Thing(says["data"], shape, strides, flags=flags, **fields)
    if not is_valid({**says, "flags": flags}):
        with pytest.raises(BufferError):
            thing.__dlpack__(max_version=(1, 0))
        assert wrap(thing) is None
        return
    for capsule in (thing.__dlpack__(max_version=(1, 0)), wrap(thing)):
        taken = native.take(capsule).says
        assert taken["data"] == (0 if 0 in shape else says["data"] + says["byte_offset"])
        assert (taken["shape"] or (), taken["dtype"]) == (shape, says["dtype"])
        if strides is not None and shape:
            assert taken["strides"] == strides


# ---- Memory that the deleter frees: K4, K6 ----


@both_forms
@raw_or_offered
@pytest.mark.parametrize("null", [False, True], ids=["strides", "NULL"])
@pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)
def test_a_tensor_is_not_read_after_its_deleter_K4(end, null, offered, versioned):
    made = three(versioned, **({"strides": None} if null else {}))
    capsule = made.capsule()
    source = offer(capsule, offered)
    end(source)
    del capsule, source
    if made.deleted != 1:
        gc.collect()
    assert made.deleted == 1


@both_forms
@raw_or_offered
@pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)
def test_a_null_deleter_is_never_called_K3(end, offered, versioned):
    made = three(versioned, deleter=False)
    end(offer(made.capsule(), offered))
    assert made.deleted == 0
    assert native.take(made.capsule()).elements()  # its memory is not freed


@both_forms
def test_released_pinned_memory_is_not_read_during_the_second_call_C5(versioned):
    answers = [three(versioned, device=(3, 0)), three(versioned)]
    order = []

    def answer(**keywords):
        order.append([made.deleted for made in answers])
        return answers[len(order) - 1].capsule()

    view = consume(Offer(answer))
    assert order == [[0, 0], [1, 0]]
    assert view.data == answers[1].address
    view.release()
    assert [made.deleted for made in answers] == [1, 1]


# ---- Misaligned data: D2, C9 ----


@both_forms
@pytest.mark.parametrize("misalign", [n for n in range(1, 8) if n % dltensor.ALIGNMENT])
def test_misaligned_elements_are_refused_with_their_address_or_copied_C9(misalign, versioned):
    made = three(versioned, misalign=misalign)
    capsule = made.capsule()
    with pytest.raises(
        BufferError, match=f"data is at address 0x{made.address:x}, alignment to {dltensor.ALIGNMENT} bytes"
    ):
        consume(capsule)
    assert native.name(capsule) == NAMES[versioned]
    array = dlarray.from_dlpack(capsule, copy=True)
    assert made.deleted == 1
    assert [n.to_bytes(8, sys.byteorder) for n in array.tolist()] == [VALUES[i : i + 8] for i in (0, 8, 16)]
    assert array.data_ptr % 64 == 0


# ---- Names: K1, C6 ----

ODD_NAMES = [
    b"",
    b" ",
    b"dltensor\xff",
    b"dltensor_",
    b"dltensor_versione",
    b"dltensor_versioned_",
    b"dltensor_versioned\n",
    b"DLTENSOR_VERSIONED",
    b"used_",
    b"used_dltensor_versioned_",
    b"used_used_dltensor",
    b"%s%s%n%p%U",
    "…".encode() * 30,
    b"\xe2\x80" * 40,
    b"a" * 100_000,
]


@both_forms
@raw_or_offered
@pytest.mark.parametrize("name", ODD_NAMES, ids=lambda name: ascii(name[:20]))
def test_a_foreign_capsule_name_is_a_type_error_that_shows_the_name_C6(name, offered, versioned):
    made = three(versioned)
    capsule = made.capsule(name)
    with kept(capsule), pytest.raises(TypeError, match="the capsule is named '") as raised:
        consume(offer(capsule, offered))
    assert f"'{name[:60].decode(errors='replace')}'" in str(raised.value)
    assert native.name(capsule) == name
    del capsule
    take_back(made)


# ---- Destructors and contexts: K1, K2 ----


def meddle(seen):
    """A function that does what foreign code may do: collect garbage, use the library, raise."""

    def run(*args):
        gc.collect()
        inner = three()
        array = dlarray.from_dlpack(inner.capsule())
        native.take(array).delete()
        with pytest.raises(TypeError):
            consume(object, {"ndim": 3}, copy="junk")
        del array
        seen.append(inner.deleted)
        raise LookupError("in foreign code")

    return run


@both_forms
@pytest.mark.parametrize("want", [{}, {"dtype": "int8"}], ids=["taken", "refused"])
@pytest.mark.parametrize("where", ["deleter", "destructor", "both"])
def test_destructors_and_deleters_may_use_the_library_and_fail_K2(where, want, versioned, monkeypatch):
    seen, reported = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: reported.append(type(what.exc_value)))
    run = meddle(seen)
    made = three(versioned, **({"on_delete": run} if where != "destructor" else {}))
    source = Offer(lambda **keywords: made.capsule(**({"on_destroy": run} if where != "deleter" else {})))
    with kept(source):
        if want:
            with pytest.raises(BufferError, match="dtype is uint64, int8 was asked for") as raised:
                consume(source, want)
            assert raised.value.__context__ is None
            del raised
        else:
            consume(source, want).release()
    assert made.deleted == 1
    assert seen == [1] * (2 if where == "both" else 1)
    assert reported == [LookupError] * len(seen)


@both_forms
def test_an_exception_in_flight_survives_a_deleter_that_uses_the_library_K2(versioned, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", lambda what: None)
    seen, error = [], KeyError("in flight")
    made = three(versioned, on_delete=meddle(seen))
    with pytest.raises(KeyError) as raised:
        consume(made.capsule()).release_raising(error)
    assert raised.value is error
    assert (error.__context__, seen, made.deleted) == (None, [1], 1)


@both_forms
def test_a_deleter_that_releases_its_own_array_runs_once_K4(versioned):
    holder = []
    made = three(versioned, on_delete=holder.clear)
    holder.append(dlarray.from_dlpack(made.capsule()))
    holder[0].__dlpack__()
    del holder[0]
    assert made.deleted == 1


# ---- Exports of dlarray that a consumer changed: D8 ----


@both_forms
@pytest.mark.parametrize("extent", [-1, -(2**63), 2**63 - 1, 2**62])
def test_an_export_that_its_consumer_changed_is_checked_again_D8(extent, versioned):
    array = dlarray.arange(6).reshape(2, 3)
    ask = {"max_version": (1, 0)} if versioned else {}
    with kept(array):
        capsule = native.take(array, **ask).changed(extent)
        for refused in (consume, dlarray.from_dlpack):
            with pytest.raises(BufferError, match=r"shape\[0\] is -|shape has 2\^63|2\^63 bytes"):
                refused(capsule)
        del capsule


# ---- Near the recursion limit: K4 ----


@both_forms
@not_on_pypy("a recursion limit that counts calls")
def test_near_the_recursion_limit_each_tensor_is_deleted_once_K4(versioned):
    made = []

    def answer(**keywords):
        made.append(three(versioned))
        return made[-1].capsule()

    source, outcomes = Offer(answer), set()

    def at_depth(depth):
        if depth > 0:
            return at_depth(depth - 1)
        return consume(source, copy=True if depth % 2 else None)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(250)
    try:
        for depth in range(150, 250):
            try:
                at_depth(depth).release()
                outcomes.add("taken")
            except RecursionError:
                outcomes.add("refused")
    finally:
        sys.setrecursionlimit(limit)
    assert outcomes == {"taken", "refused"}
    assert {m.deleted for m in made} == {1}
