"""Runs each exchange many times: no memory and no references leak (K, C, P, X).

DLPACK_PY_ROUNDS is the number of runs. References are counted in a debug build of Python only.
"""

import ctypes
import functools
import gc
import os
import sys
import sysconfig

import consumer_probe
import dlarray
import echo
import exchange_probe
import probe
import producer_probe
import pytest
import race_probe
from collecting import PYPY
from optional import numpy

if PYPY:
    pytest.skip("sys.getallocatedblocks: not on PyPy", allow_module_level=True)

ROUNDS = int(os.environ.get("DLPACK_PY_ROUNDS", "2000"))
INTERPRETERS = ROUNDS // 5000 + 10
WARM_UP = 500


class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd u fsm uordblks f keep".split()]


# mallinfo2 is a function of glibc. Without it, only the resident memory of the process shows a leak.
mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None) if os.name == "posix" else None
if mallinfo is not None:
    mallinfo.restype = Mallinfo


def allocated():
    info = Mallinfo() if mallinfo is None else mallinfo()
    return info.uordblks + info.hblkhd


class MemoryCounters(ctypes.Structure):  # of Windows
    _fields_ = [("size", ctypes.c_ulong), ("faults", ctypes.c_ulong), ("peak", ctypes.c_size_t)]
    _fields_ += [("resident", ctypes.c_size_t), ("others", ctypes.c_size_t * 6)]


def resident():
    if os.name == "nt":
        counters = MemoryCounters(size=ctypes.sizeof(MemoryCounters))
        process = ctypes.c_void_p(-1)  # this one
        assert ctypes.WinDLL("kernel32").K32GetProcessMemoryInfo(process, ctypes.byref(counters), counters.size)
        return counters.resident
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0


# {name: (function, limit)}. The limit covers the measuring itself and other threads; it does not depend on the rounds.
GROWTH = {
    "blocks": (sys.getallocatedblocks, 50),
    "bytes allocated": (allocated, 32 << 10),
    "bytes resident": (resident, 2 << 20),
    "references": (getattr(sys, "gettotalrefcount", int), 50),
}
# A sanitizer's allocator keeps freed memory, and the sanitizer looks for leaks itself.
if os.environ.get("PYTHONMALLOC") == "malloc":
    GROWTH.clear()


def measure():
    gc.collect()
    return [function() for function, _ in GROWTH.values()]


def grown(function, rounds):
    """{name: growth} of what grows beyond its limit in each of three times `rounds` calls."""
    for _ in range(WARM_UP):
        function()
    for _ in range(3):  # work that Python does now and then grows only once
        before = measure()
        for _ in range(rounds):
            function()
        by = {name: now - then for name, then, now in zip(GROWTH, before, measure())}
        too_much = {name: growth for name, growth in by.items() if growth > GROWTH[name][1]}
        if not too_much:
            break
    return too_much


class Method:
    """An array whose type has no exchange table."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Old(Method):
    """An array whose __dlpack__ does not accept max_version: the consumer calls __dlpack__ twice."""

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()


class Failing(Method):
    def __dlpack__(self, **options):
        raise KeyError("not now")


class Namespace(Method):
    """An array whose from_dlpack is found by __array_namespace__."""

    def __array_namespace__(self):
        return dlarray


class Interface:
    """An object with __array_interface__, of three float64."""

    def __init__(self, data, **fields):
        self.__array_interface__ = {"version": 3, "shape": (3,), "typestr": FLOAT64, "data": data, **fields}


def refused(error, function, *arguments, **options):
    def call():
        try:
            function(*arguments, **options)
        except error:
            return
        pytest.fail(f"no {error.__name__}")

    return call


def used(capsule):
    consumer_probe.consume(capsule)
    return capsule


FLOAT64 = {"little": "<f8", "big": ">f8"}[sys.byteorder]
ARRAY = dlarray.arange(12, dtype="float64").reshape(3, 4)
READ_ONLY = dlarray.arange(12)
READ_ONLY.setflags(writeable=False)
STEPS = dlarray.arange(12)[::2]
BYTES = bytearray(64)
TABLE = dlarray.Array.__dlpack_c_exchange_api__
METHOD, OLD, NAMESPACE = Method(ARRAY), Old(ARRAY), Namespace(ARRAY)
THING = producer_probe.Thing(ARRAY.data_ptr, (3, 4))
BY_ADDRESS, BY_BUFFER = Interface((ARRAY.data_ptr, False), strides=(8,)), Interface(bytes(40), offset=16)

consume = consumer_probe.consume

PRODUCING = {
    "legacy": lambda: ARRAY.__dlpack__(),
    "versioned": lambda: ARRAY.__dlpack__(max_version=(1, 0)),
    "of strides": lambda: STEPS.__dlpack__(max_version=(1, 0)),
    "copied": lambda: ARRAY.__dlpack__(max_version=(1, 0), copy=True),
    "device": lambda: ARRAY.__dlpack_device__(),
    "embedded": lambda: probe.capsule(probe.Array(), "embedded"),
    "embedded legacy": lambda: probe.capsule(probe.Array(), "embedded legacy"),
    "wrapped": lambda: producer_probe.wrap(THING, gc.isenabled),
    "produced": lambda: THING.produce(max_version=(1, 0)),
    "produced from objects": lambda: THING.produce_args(max_version=(1, 0)),
    "refused stream": refused(ValueError, ARRAY.__dlpack__, stream=-2),
    "refused stream of many digits": refused(ValueError, ARRAY.__dlpack__, stream=-(10**300)),
    "refused device": refused(BufferError, ARRAY.__dlpack__, dl_device=(2, 0)),
    "refused version": refused(TypeError, ARRAY.__dlpack__, max_version="1.0"),
    "refused keyword": refused(TypeError, ARRAY.__dlpack__, versions=(1, 0)),
    "refused read-only": refused(BufferError, READ_ONLY.__dlpack__),
}

CONSUMING = {
    "by table": lambda: dlarray.from_dlpack(ARRAY),
    "by method": lambda: consume(METHOD),
    "by an old method": lambda: consume(OLD),
    "by a request": lambda: consume(ARRAY, by_request=True),
    "legacy capsule": lambda: consume(ARRAY.__dlpack__()),
    "versioned capsule": lambda: consume(ARRAY.__dlpack__(max_version=(1, 0))),
    "read-only": lambda: consume(READ_ONLY),
    "of strides": lambda: consume(STEPS),
    "copied": lambda: dlarray.from_dlpack(ARRAY, copy=True),
    "copied by its producer": lambda: consume(METHOD, copy=True),
    "copied as needed": lambda: consume(STEPS, {"order": "C", "options": consumer_probe.DLPACK_PY_WANT_COPY_IF_NEEDED}),
    "from a buffer": lambda: consume(BYTES, {"fallback": 1}),
    "from an address": lambda: consume(BY_ADDRESS, {"fallback": 1}),
    "from a buffer by its interface": lambda: consume(BY_BUFFER, {"fallback": 1}),
    "refused strides of an interface": refused(
        BufferError, consume, Interface((8, False), strides=(2.5,)), {"fallback": 1}
    ),
    "refused data of an interface": refused(BufferError, consume, Interface(bytes(8)), {"fallback": 1}),
    "as a buffer": lambda: memoryview(ARRAY),
    "released detached": lambda: consume(ARRAY).release_detached(),
    "released while raising": refused(KeyError, lambda: consume(ARRAY).release_raising(KeyError)),
    "moved": lambda: consume(ARRAY).move(),
    "as an array interface": lambda: ARRAY.__array_interface__,
    "borrowed by table": lambda: exchange_probe.borrow(ARRAY),
    "borrowed by method": lambda: exchange_probe.borrow(METHOD),
    "borrowed to be written": lambda: exchange_probe.borrow(ARRAY, writable=True),
    "checked": lambda: consumer_probe.check(ARRAY) and consumer_probe.check(METHOD) and consumer_probe.check(None),
    "new types": lambda: consume(type("Sub", (dlarray.Array,), {})(ARRAY)),
    "refused dtype": refused(BufferError, consume, ARRAY, {"dtype": "int8"}),
    "refused dtype by method": refused(BufferError, consume, METHOD, {"dtype": "int8"}),
    "refused order": refused(BufferError, consume, STEPS, {"order": "C"}),
    "refused writing": refused(BufferError, consume, READ_ONLY, {"writable": 1}),
    "refused borrowing": refused(BufferError, exchange_probe.borrow, ARRAY, dtype="int8"),
    "refused capsule": lambda: refused(BufferError, consume, ARRAY.__dlpack__(), {"dtype": "int8"})(),
    "refused for it was consumed": refused(ValueError, consume, used(ARRAY.__dlpack__())),
    "refused for it is no array": refused(AttributeError, consume, None),
    "refused for it makes no capsule": refused(TypeError, consume, type("No", (), {"__dlpack__": lambda self: 1})()),
    "refused by its producer": refused(KeyError, consume, Failing(ARRAY)),
    "refused device": refused(TypeError, dlarray.from_dlpack, ARRAY, device=1.5),
}

if sysconfig.get_config_var("Py_GIL_DISABLED"):
    del CONSUMING["new types"]  # CPython 3.13 without a GIL leaks memory for each deleted type


class Unchanging(type):
    def __setattr__(cls, name, value):
        raise KeyError(name)


TABLES = {
    "owned": lambda: exchange_probe.call_owned(TABLE, ARRAY),
    "borrowed": lambda: exchange_probe.call_borrowed(TABLE, ARRAY),
    "made": lambda: exchange_probe.call_make(TABLE, probe.take(probe.capsule(dlarray))),
    "allocated": lambda: exchange_probe.call_allocate(TABLE, (3, 4)),
    "stream": lambda: exchange_probe.call_stream(TABLE, 1, 0),
    "there and back": lambda: echo.echo(ARRAY),
    "memory like an argument": lambda: exchange_probe.allocate_like(ARRAY, (3, 4)),
    "memory like one without a table": lambda: exchange_probe.allocate_like(METHOD, (3, 4)),
    "a result like an argument": lambda: exchange_probe.return_like(ARRAY, exchange_probe.allocate_like(ARRAY, (3, 4))),
    "a result by the namespace": lambda: exchange_probe.return_like(
        NAMESPACE, exchange_probe.allocate_like(NAMESPACE, (3, 4))
    ),
    "asked for a result": lambda: [exchange_probe.check_like(like) for like in (ARRAY, NAMESPACE)],
    "refused owned": refused(TypeError, exchange_probe.call_owned, TABLE, METHOD),
    "refused borrowed": refused(BufferError, exchange_probe.call_borrowed, TABLE, READ_ONLY),
    "refused by a type": refused(KeyError, race_probe.add_table, Unchanging("Unchanging", (), {})),
    "refused allocation": lambda: exchange_probe.call_allocate(TABLE, (1 << 60,)),
    "refused result": refused(ValueError, exchange_probe.return_borrowed_like, ARRAY, ARRAY),
}


@functools.cache
def matrix():
    return numpy.arange(12.0).reshape(3, 4)


# The release build of NumPy does not count all references.
NUMPY = {
    "from NumPy": lambda: dlarray.from_dlpack(matrix()),
    "from NumPy by its capsule": lambda: consume(matrix().__dlpack__()),
    "from NumPy, copied": lambda: dlarray.from_dlpack(matrix(), copy=True),
    "from NumPy, refused": lambda: refused(BufferError, consume, matrix(), {"dtype": "int8"})(),
    "to NumPy": lambda: numpy.from_dlpack(ARRAY),
    "to NumPy as a buffer": lambda: numpy.asarray(memoryview(ARRAY)),
    "a result for NumPy": lambda: exchange_probe.return_like(matrix(), exchange_probe.allocate_like(matrix(), (3, 4))),
}

FORMS = ["versioned", "legacy", "embedded", "embedded legacy"]


def each_form(use):
    return lambda: [use(probe.capsule(probe.Array(), form)) for form in FORMS]


DELETERS = {
    "attached": each_form(lambda capsule: probe.drop(probe.take(capsule))),
    "detached": each_form(lambda capsule: probe.drop_detached(probe.take(capsule))),
    "of a consumer": each_form(probe.Consumer),
    "of a capsule": each_form(id),
}


def cases(**kinds):
    return [pytest.param(named[name], id=f"{kind}: {name}") for kind, named in kinds.items() for name in named]


@pytest.mark.parametrize("exchange", cases(produce=PRODUCING, consume=CONSUMING, table=TABLES, deleters=DELETERS))
def test_an_exchange_leaks_nothing(exchange):
    assert grown(exchange, ROUNDS) == {}


@pytest.mark.parametrize("exchange", cases(numpy=NUMPY))
def test_an_exchange_with_numpy_leaks_nothing(exchange):
    assert grown(exchange, ROUNDS).keys() <= {"references"}


@pytest.mark.parametrize("past", ["none", "former"])
def test_deleters_on_foreign_threads_leak_nothing_K5(past):
    def drop_100():
        probe.start([probe.take(probe.capsule(probe.Array(), form)) for form in FORMS * 25], past)
        probe.join()

    assert grown(drop_100, ROUNDS // 100) == {}


@pytest.mark.skipif(not GROWTH, reason="a sanitizer looks for leaks")
def test_a_leak_is_noticed():
    kept = []
    names = {"blocks", "references"} if hasattr(sys, "gettotalrefcount") else {"blocks"}
    assert grown(lambda: kept.append(probe.Array()), 1000).keys() >= names
    assert "bytes allocated" in grown(probe.wrap, 1000) or mallinfo is None


def test_interpreters_that_start_and_end_leak_nothing_G1(child, own_gil):
    """Only CPython 3.11 frees all memory of an interpreter. For other versions, counts the header's blocks only."""
    child(
        f"""
        import gc, race_probe
        counters = [lambda: probe.counts()["blocks"], race_probe.records]
        if sys.version_info[:2] == (3, 11):
            counters += [sys.getallocatedblocks, getattr(sys, "gettotalrefcount", int)]
        def count():
            gc.collect()
            return [function() for function in counters]
        def come_and_go(times):
            for i in range(times):
                inside('''if 1:
                    import dlarray, echo
                    a = dlarray.arange(3)
                    kept = [a, dlarray.from_dlpack(a), echo.echo(a), dlarray.from_dlpack(probe.capsule(object()))]
                    probe.Consumer(a)  # caches the type of the array for this interpreter
                    import builtins, race_probe
                    builtins.from_dlpack = partial(id)
                    race_probe.return_like(1, a)  # caches the function for the type int
                    race_probe.new_type()
                    kept += [probe.Consumer(probe.capsule(probe.Array(), form)) for form in FORMS]
                    for tensor in exports() + [probe.wrap()]:
                        probe.drop(tensor)
                    for past in PASTS:
                        probe.start(exports(), past)
                        probe.join()
                ''', {own_gil})
        come_and_go(5)
        before = count()
        come_and_go({INTERPRETERS})
        grown = [now - then for then, now in zip(before, count())]
        assert grown[0] == 0 and max(grown) < {INTERPRETERS}, grown
        probe.settle(0, {INTERPRETERS + 5})
        """,
        limit=300,
    )


def test_a_result_for_numpy_leaves_no_names_in_the_type_cache():
    """CPython caches a name by its address: strings made between the calls give each new name a different address."""
    result, between = NUMPY["a result for NumPy"], []
    for _ in range(WARM_UP):
        result()
    before = sys.getallocatedblocks()
    for i in range(1000):
        result()
        between.append(f"as long as the names {i:04}")
    assert sys.getallocatedblocks() - before - len(between) <= 50
