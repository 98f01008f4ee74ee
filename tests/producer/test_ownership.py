"""Ownership: what the capsule, its deleter and the array keep alive and release (P9, K1 to K5, K7)."""

import gc
import sys
import threading
import weakref

import dltensor
import pytest
from array_libraries import library
from collecting import collect, not_on_pypy
from dltensor import FORMS, LEGACY, VERSIONED, Made, Offer, Taken

ASK = {LEGACY: {}, VERSIONED: {"max_version": (1, 0)}}
both_forms = pytest.mark.parametrize("form", FORMS)


def vector():
    return library.array([1.0, 2.0, 3.0], "float64")


class Watched(library.Array):
    """An array that reports its deallocation."""

    def __del__(self):
        self.on_end()


def watched(on_end):
    a = library.as_class(Watched, vector())
    a.on_end = on_end
    return a


# ---- Dropped capsules: K1 ----


@both_forms
def test_dropping_an_unconsumed_capsule_releases_the_array_once_K1(form):
    a = vector()
    before = sys.getrefcount(a)
    capsule = a.__dlpack__(**ASK[form])
    assert sys.getrefcount(a) == before + 1
    del capsule
    assert sys.getrefcount(a) == before


@both_forms
def test_a_capsule_keeps_the_array_alive_K1(form):
    a = vector()
    capsule, gone = a.__dlpack__(**ASK[form]), weakref.ref(a)
    del a
    collect()
    assert gone() is not None
    del capsule
    collect()
    assert gone() is None


@both_forms
def test_a_consumed_capsule_does_nothing_when_it_dies_K1(form):
    a = vector()
    before = sys.getrefcount(a)
    capsule = a.__dlpack__(**ASK[form])
    taken = Taken(capsule)
    assert dltensor.name(capsule) == "used_" + form
    del capsule
    assert sys.getrefcount(a) == before + 1
    taken.delete()
    assert sys.getrefcount(a) == before


@both_forms
@pytest.mark.parametrize(
    "name", ["used_dltensor", "used_dltensor_versioned", "dltensor_versione", "dltensors", "", None]
)
def test_a_capsule_of_any_other_name_does_nothing_when_it_dies_K1(form, name):
    a = vector()
    before = sys.getrefcount(a)
    capsule = a.__dlpack__(**ASK[form])
    taken = Taken(capsule)
    dltensor.rename(capsule, name)
    del capsule
    assert sys.getrefcount(a) == before + 1
    taken.delete()
    assert sys.getrefcount(a) == before


@both_forms
def test_the_name_is_compared_by_value_K1(form):
    a = vector()
    before = sys.getrefcount(a)
    capsule = a.__dlpack__(**ASK[form])
    dltensor.rename(capsule, form)  # an equal string at another address
    del capsule
    assert sys.getrefcount(a) == before


@both_forms
def test_a_capsule_of_a_copy_frees_the_copy_when_it_dies_K1(form):
    a = vector()
    before = sys.getrefcount(a)
    for _ in range(100):
        a.__dlpack__(copy=True, **ASK[form])
    assert sys.getrefcount(a) == before


# ---- Exceptions: K2 ----


@both_forms
def test_an_exception_in_flight_survives_a_capsule_that_dies_K2(form):
    a = vector()
    before = sys.getrefcount(a)
    error = KeyError("in flight")

    def fail():
        raise error

    with pytest.raises(KeyError) as raised:
        _ = (a.__dlpack__(**ASK[form]), fail())  # dropped from the stack while the exception unwinds it
    assert raised.value is error
    assert error.__context__ is None
    assert sys.getrefcount(a) == before


@not_on_pypy("a finalizer that runs at once")
@both_forms
def test_an_exception_in_flight_survives_a_finalizer_that_raises_and_the_second_is_reported_K2(form, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: reported.append(type(what.exc_value)))
    error = KeyError("in flight")

    def fail(error=error):
        raise error

    def end():
        fail(ZeroDivisionError())

    with pytest.raises(KeyError) as raised:
        _ = (watched(end).__dlpack__(**ASK[form]), fail())
    assert raised.value is error
    assert reported == [ZeroDivisionError]


@both_forms
def test_a_finalizer_that_raises_is_reported_without_an_exception_in_flight_K2(form, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: reported.append(type(what.exc_value)))

    def end():
        raise ZeroDivisionError

    watched(end).__dlpack__(**ASK[form])
    collect()
    assert reported == [ZeroDivisionError]
    taken = Taken(watched(end).__dlpack__(**ASK[form]))
    taken.delete()
    collect()
    assert reported == [ZeroDivisionError] * 2


@both_forms
def test_a_finalizer_of_an_owner_may_use_the_library_K2(form):
    seen = []
    inner = vector()
    watched(lambda: seen.append(library.values(library.from_dlpack(inner)))).__dlpack__(**ASK[form])
    collect()
    assert seen == [[1.0, 2.0, 3.0]]


# ---- The data lives until the deleter ran: P9, K7 ----


@both_forms
@pytest.mark.parametrize(
    "view", [lambda a: a, lambda a: a[::-1][1:], lambda a: a[None]], ids=["whole", "part", "reshaped"]
)
@pytest.mark.parametrize("order", [["array", "capsule"], ["capsule", "array"]])
def test_the_memory_lives_until_the_deleter_ran_in_any_order_P9(form, view, order):
    whole = vector()
    gone = weakref.ref(whole)
    names = {"array": view(whole)}
    del whole
    collect()
    names["capsule"] = names["array"].__dlpack__(**ASK[form])
    taken = Taken(names["capsule"])
    wanted = library.values(names["array"])
    for name in order:
        del names[name]
        collect()
        gc.collect()
    kept = [vector() for _ in range(10)]  # a new array would reuse freed memory
    assert taken.values() == wanted
    assert gone() is not None
    taken.delete()
    assert gone() is None
    del kept
    collect()


@both_forms
def test_shape_and_strides_live_as_long_as_the_struct_K7(form):
    a = library.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "float64").transpose()
    capsule = a.__dlpack__(**ASK[form])
    wanted = dltensor.read(capsule)
    del a
    gc.collect()
    kept = [vector()[None] for _ in range(10)]
    assert dltensor.read(capsule) == wanted
    del kept


@both_forms
def test_two_exports_are_independent_P9(form):
    a = vector()
    before = sys.getrefcount(a)
    first, second = (Taken(a.__dlpack__(**ASK[form])) for _ in range(2))
    assert sys.getrefcount(a) == before + 2
    first.delete()
    assert sys.getrefcount(a) == before + 1
    assert second.values() == [1.0, 2.0, 3.0]
    gone = weakref.ref(a)
    del a
    collect()
    assert second.values() == [1.0, 2.0, 3.0]
    second.delete()
    assert gone() is None


def test_both_forms_may_live_at_once_P9():
    a = vector()
    taken = [Taken(a.__dlpack__(**ASK[form])) for form in FORMS]
    gone = weakref.ref(a)
    del a
    collect()
    for one in taken:
        assert one.values() == [1.0, 2.0, 3.0]
        one.delete()
    assert gone() is None


@both_forms
def test_writes_are_seen_on_both_sides_P9(form):
    a = vector()
    taken = Taken(a.__dlpack__(**ASK[form]))
    a[1] = 7.0
    assert taken.values() == [1.0, 7.0, 3.0]
    dltensor.ctypes.c_double.from_address(taken.says.data).value = 9.0
    assert library.values(a) == [9.0, 7.0, 3.0]
    taken.delete()


# ---- Deleters on other threads: K5 ----


@both_forms
def test_a_deleter_may_run_on_a_thread_that_python_never_saw_K5(form):
    a = vector()
    before = sys.getrefcount(a)
    taken = Taken(a.__dlpack__(**ASK[form]))
    taken.delete_on_a_foreign_thread()
    assert sys.getrefcount(a) == before


def delete_on_a_foreign_thread(form, on_end):
    """Deallocates an array there. Without a GIL, a living thread deallocates the objects that it created itself."""
    taken = []
    thread = threading.Thread(target=lambda: taken.append(Taken(watched(on_end).__dlpack__(**ASK[form]))))
    thread.start()
    thread.join()
    taken.pop().delete_on_a_foreign_thread()


@not_on_pypy("a finalizer that runs at once")
@both_forms
def test_a_deleter_on_a_foreign_thread_may_deallocate_the_owner_K5(form):
    seen = []
    delete_on_a_foreign_thread(form, lambda: seen.append(threading.get_ident()))
    assert len(seen) == 1
    assert seen[0] != threading.get_ident()


@not_on_pypy("a finalizer that runs at once")
@both_forms
def test_a_deleter_leaves_nothing_of_a_foreign_thread_K5(form):
    local, left = threading.local(), []

    def end():
        local.value = type("Value", (), {})()
        left.append(weakref.ref(local.value))

    delete_on_a_foreign_thread(form, end)
    collect()
    assert [value() for value in left] == [None]


@both_forms
def test_a_deleter_may_run_on_another_python_thread_K5(form):
    a = vector()
    before = sys.getrefcount(a)
    taken = Taken(a.__dlpack__(**ASK[form]))
    thread = threading.Thread(target=taken.delete)
    thread.start()
    thread.join()
    del thread
    assert sys.getrefcount(a) == before


# ---- Imports: K4 ----


@both_forms
def test_an_import_calls_the_deleter_once_when_the_last_view_is_gone_K4(form):
    made = Made(form)
    a = library.from_dlpack(Offer(made))
    views = [a[1:], a[::-1], a[None]]
    del a
    assert [made.deleted, library.values(views[1])] == [0, [2.0, 1.0, 0.0]]
    del views
    assert made.deleted == 1


@both_forms
def test_an_import_with_a_null_deleter_is_an_import_K3(form):
    a = library.from_dlpack(Offer(Made(form, deleter=False)))
    assert library.values(a) == [0.0, 1.0, 2.0]
    del a
    gc.collect()


@both_forms
def test_a_chain_of_exports_and_imports_keeps_the_first_array_to_the_last_P9(form):
    a = vector()
    first, gone = a, weakref.ref(a)
    for _ in range(50):
        a = library.from_dlpack(a[:])
    del first
    collect()
    gc.collect()
    assert gone() is not None
    assert library.values(a) == [1.0, 2.0, 3.0]
    del a
    collect(110)
    assert gone() is None


@not_on_pypy("cycles through objects of extensions")
def test_a_cycle_through_an_import_is_collected_P9():
    class Image(library.Array):
        pass

    a = library.as_class(Image, vector())
    a.again = library.from_dlpack(a)
    gone = weakref.ref(a)
    del a
    gc.collect()
    assert gone() is None


@not_on_pypy("sys.getallocatedblocks")
@both_forms
def test_thousands_of_exchanges_leak_nothing_K1_K4(form):
    a = vector()
    before = sys.getrefcount(a)
    blocks = []
    for _ in range(5):
        for _ in range(1000):
            a.__dlpack__(**ASK[form])
            a.__dlpack__(copy=True, **ASK[form])
            library.from_dlpack(a)
            Taken(a.__dlpack__(**ASK[form])).delete()
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    assert sys.getrefcount(a) == before
    # Threads of pytest-xdist allocate now and then. A leak shows in every measurement.
    assert min(now - then for then, now in zip(blocks, blocks[1:])) < 100
