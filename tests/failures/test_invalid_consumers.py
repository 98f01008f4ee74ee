"""Consumers that change exports of the header in invalid ways (K1, K4, K7, P9)."""

import gc

import _dlpack_conformance as native
import dlarray
import pytest
from _dlpack_conformance import Managed
from collecting import PYPY, collect
from consumer_probe import consume
from exchange_probe import Holder
from failures.model import kept, three
from producer_probe import Thing, wrap

NEW, OLD = {"max_version": (1, 0)}, {}
MEMORY = Managed(values=bytes(range(48)))


def thing(**fields):
    return Thing(MEMORY.address, (2, 3), (3, 1), **fields)


def array():
    return dlarray.arange(6).reshape(2, 3)


# A function that makes an object, and a way to consume its tensor.
WAYS = {
    "an array": (array, lambda a: native.take(a, **NEW)),
    "an array, the legacy form": (array, lambda a: native.take(a, **OLD)),
    "an array by its table": (array, native.take_by_table),
    "a copy": (array, lambda a: native.take(a, copy=True, **NEW)),
    "a copy, the legacy form": (array, lambda a: native.take(a, copy=True, **OLD)),
    "an object": (thing, lambda a: native.take(a, **NEW)),
    "an object, the legacy form": (thing, lambda a: native.take(a, **OLD)),
    "memory without an object": (thing, lambda a: native.take(wrap(a))),
    "a view": (lambda: consume(array()), lambda a: native.take(a, **NEW)),
    "a view by its table": (lambda: Holder(array()), native.take_by_table),
}
ways = pytest.mark.parametrize("make, take", WAYS.values(), ids=WAYS)


@ways
@pytest.mark.parametrize("attached", [True, False])
def test_a_consumer_may_overwrite_all_except_the_context_and_the_deleter_K7_P9(make, take, attached):
    source = make()
    with kept(source):
        first, second = take(source), take(source)
        wanted, says = first.elements(), first.says
        first.scribble()
        assert second.elements() == wanted  # the second tensor has its own struct, shape and strides
        first.delete(attached)
        third = take(source)
        assert third.elements() == wanted
        assert {**third.says, "data": 0} == {**says, "data": 0}
        second.scribble()
        third.scribble()
        del first, second, third


@pytest.mark.parametrize("ask", [NEW, OLD], ids=["versioned", "legacy"])
@pytest.mark.parametrize("extent", [-1, 2**62])
def test_an_embedded_tensor_that_a_consumer_made_invalid_is_refused_D8_K4(ask, extent):
    source = thing(embedded=True)
    with kept(source):
        capsule = native.take(source, **ask).changed(extent)
        with pytest.raises(BufferError):
            consume(source.__dlpack__(**ask))  # the new capsule shares the struct
        del capsule


@pytest.mark.parametrize("name", [None, b"", b"used_dltensor", b"used_dltensor_versioned", b"numpy_dltensor", b"\xff"])
@pytest.mark.parametrize("ask", [NEW, OLD], ids=["versioned", "legacy"])
def test_a_consumer_may_remove_the_destructor_and_rename_the_capsule_K1_K4(ask, name):
    source = array()
    with kept(source):
        capsule = source.__dlpack__(**ask)
        taken = native.take(capsule)
        native.strip(capsule, name)
        with pytest.raises((ValueError, TypeError), match="consumed already|the capsule is named"):
            consume(capsule)
        del capsule
        gc.collect()
        assert taken.elements()
        taken.delete()


@pytest.mark.parametrize("ask", [NEW, OLD], ids=["versioned", "legacy"])
def test_a_changed_unconsumed_capsule_releases_its_owner_K1(ask):
    source = array()
    with kept(source):
        capsule = native.take(source, **ask).changed(-(2**63))
        del capsule


@pytest.mark.parametrize("ask", [NEW, OLD], ids=["versioned", "legacy"])
def test_a_tensor_that_is_imported_many_times_is_deleted_by_the_last_import_K4(ask):
    made = three(ask is NEW)
    source = dlarray.from_dlpack(made.capsule())
    for _ in range(20 if PYPY else 200):
        taken = native.take(source, **ask)
        source = dlarray.from_dlpack(taken.changed(3))
        del taken
    assert (source.tolist(), made.deleted) == (dlarray.from_dlpack(three().capsule()).tolist(), 0)
    del source
    collect(20)  # one link of the chain each
    assert made.deleted == 1
