"""What can fail does, at each point: the exception is that of the failure, and nobody loses memory, references or what
was in flight (K2, K4, P7, X6).

A scenario prepares objects, and an operation on them that is run once for each point: a call of the header's to
CPython, or an allocation of either's. That one fails, or all from there on. What holds then is said in attempt().
"""

import array
import gc
import importlib.util
import itertools
import os
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import dltensor
import pytest
from dltensor import CPU, CUDA, CUDA_HOST, READ_ONLY

KINDS = {"calls": (1, MemoryError), "interrupted calls": (1, KeyboardInterrupt), "memory": (2, MemoryError)}
FILES = {path.name.split(".")[0]: path for path in Path(os.environ["DLPACK_PY_BUILD_DIR"]).glob("faults*")}

NUMBERS = array.array("d", range(6))
ADDRESS = NUMBERS.buffer_info()[0]
NEW = {"max_version": (1, 3)}


# ---- The harness ----


def load(variant, name):
    """One of the modules that a variant's file holds."""
    loader = importlib.machinery.ExtensionFileLoader(f"{variant}.{name}", str(FILES[variant]))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=sorted(FILES))
def v(request):
    """The modules, and thing(): a producer."""
    names = {"faults": "faults", "producer": "producer_probe", "consumer": "consumer_probe"}
    names.update({"exchange": "exchange_probe", "dlarray": "dlarray"})
    made = SimpleNamespace(load=partial(load, request.param), **{k: load(request.param, n) for k, n in names.items()})
    made.thing = lambda shape=(2, 3), strides=(3, 1), **fields: made.producer.Thing(ADDRESS, shape, strides, **fields)
    made.exchange.Holder(made.consumer.consume(made.thing()))  # no use from here on is the first
    gc.collect()
    gc.freeze()
    gc.disable()
    made.faults.hook(True)
    yield made
    made.faults.hook(False)
    gc.enable()
    gc.unfreeze()


def see(value, raised=False):
    """All that matters of a result or an exception, without a reference to it."""
    if raised:
        text = f"{type(value).__name__} ({value})"
        if text.startswith("SystemError (<function"):  # of Python's, which raised and got no traceback
            return "MemoryError"
        return text if text.startswith("SystemError") else type(value).__name__
    says = None
    if type(value).__name__ == "PyCapsule":
        says = dltensor.read(value)
    elif hasattr(value, "__dlpack__"):
        says = dltensor.read(value.__dlpack__(**NEW))
    if says is None:
        return repr(value)
    numbers = dltensor.values(says.data, says.dtype, says.shape, says.strides)
    return says.form, says.flags, says.device, says.strides, numbers, getattr(value, "readonly", None)


def references(objects):
    """How many each has, and its type, but for what everybody refers to."""
    own = [obj for obj in objects if not isinstance(obj, (type(None), int, float, str, type))]
    return [sys.getrefcount(obj) for obj in (*own, *map(type, own))]


def attempt(v, scenario, kind, first, onward, plain=None):
    """One run. Without a plain one to compare it with nothing fails; returns what was seen, or where it failed."""
    at_first = v.faults.blocks()[0]
    operation, *objects = scenario.prepare(v)
    before = references(objects)
    value, raised, failed, line, trespasser, unraisable = v.faults.run(operation, kind[0], first, onward, kind[1])
    seen = see(value, raised)
    kept = value is objects[0] if scenario.kept else True
    del value
    lost = [now - then for now, then in zip(references(objects), before)]
    if plain is None:
        assert failed is None
        plain = seen, lost
    where = f"{failed} of line {line}" if line else failed
    assert trespasser is None, f"{where} failed, and {trespasser} was called with the exception in flight"
    assert kept, f"{where} failed, and the exception in flight was lost"
    assert not unraisable or (failed and scenario.reports), f"{where} failed, and was reported as unraisable"
    if seen == plain[0]:
        assert lost == plain[1], f"{where} failed, the result is the same, references are not"
    else:
        raises = "RuntimeError" if failed == "PyInterpreterState_GetDict" else kind[1].__name__
        documented = ("MemoryError", raises, *scenario.also)
        assert seen in documented or unraisable, f"{where} failed, and the result was {seen}"
        assert lost == (plain[1] if scenario.steals else [0] * len(lost)), f"{where} failed, and references are wrong"
        if not scenario.steals:
            seen = v.faults.run(operation, 0, 0, 0, None)[:2]
            assert see(*seen) == plain[0], f"{where} failed, and so did the next call, when nothing did"
            del seen
    del operation, objects
    if scenario.cyclic:
        gc.collect()
    assert v.faults.blocks()[0] == at_first, f"{where} failed, and blocks of the header's are left"
    return plain if failed is None else where


SCENARIOS = {}


def scenario(name, prepare, **how):
    """prepare(v) returns an operation, and objects whose references are counted.

    kinds     not all of KINDS
    also      what it may end with, beside MemoryError, and what it ends with untouched
    kept      it ends with the exception that is the first of the objects, whatever fails
    steals    it uses up what it was given, also when it fails
    reports   errors are reported as unraisable
    leaks     a failure may cost an object
    cyclic    it leaves cycles to the garbage collector
    xfail     what is wrong with it
    """
    assert name not in SCENARIOS
    most = dict(kinds=KINDS, also=(), kept=False, steals=False, reports=False, leaks=False, cyclic=False, xfail=None)
    SCENARIOS[name] = SimpleNamespace(prepare=prepare, **{**most, **how})


# ---- Producing ----


class Index:
    """Has __index__, and is no int."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


class Mute:
    """Has no repr()."""

    def __repr__(self):
        raise LookupError("mute")


def refuse(*request):
    raise LookupError("vetoed")


PRODUCED = {
    "a legacy capsule": ({}, {}),
    "a versioned one": ({}, NEW),
    "all keywords": ({}, {"stream": -1, **NEW, "dl_device": CPU, "copy": False}),
    "integers by __index__": ({}, {"stream": Index(-1), "max_version": (Index(1), Index(3))}),
    "a copy": ({}, {**NEW, "copy": True}),
    "a legacy copy": ({"flags": READ_ONLY}, {"copy": True}),
    "a copy of negative strides": ({"strides": (3, -1), "byte_offset": 16, "options": 4}, NEW),
    "negative strides refused": ({"strides": (3, -1), "byte_offset": 16, "options": 2}, NEW),
    "read-only": ({"flags": READ_ONLY}, NEW),
    "read-only in a legacy capsule": ({"flags": READ_ONLY}, {}),
    "pinned": ({"device": CUDA_HOST}, NEW),
    "pinned as the CPU's": ({"device": CUDA_HOST}, {**NEW, "dl_device": CPU}),
    "of another device": ({}, {"dl_device": CUDA}),
    "malformed": ({"shape": (2, -3)}, {}),
    "vetoed": ({"veto": refuse}, {}),
    "not vetoed": ({"veto": lambda *request: True}, {}),
    "vetoed without a word": ({"veto": lambda *request: False}, {}),
    "an unknown keyword": ({}, {"streams": None}),
    "an unknown keyword beyond ASCII": ({}, {"cop\xefe": None}),
    "a stream on the CPU": ({}, {"stream": 7}),
    "a stream below all": ({}, {"stream": -(2**70)}),
    "a stream that is text": ({}, {"stream": "7"}),
    "a version that is text": ({}, {"max_version": "1.3"}),
    "a version of floats": ({}, {"max_version": (1.0, 3)}),
    "a device that is a list": ({}, {"dl_device": [1, 0]}),
    "a copy that is no bool": ({}, {"copy": 1}),
    "a copy without a repr": ({}, {"copy": Mute()}),
}
for name, (fields, asked) in PRODUCED.items():

    def prepare(v, fields=fields, asked=asked, method="__dlpack__", **more):
        thing = v.thing(**fields, **more)
        return (partial(getattr(thing, method), **asked), thing, *asked.values())

    scenario(f"produce: {name}", prepare)
    if not fields:
        scenario(f"produce_args: {name}", partial(prepare, method="produce_args"))
    if name in ("a legacy capsule", "a versioned one", "a copy", "read-only", "pinned as the CPU's"):
        scenario(f"produce: {name}, embedded", partial(prepare, embedded=True))
        scenario(f"produce_with: {name}", partial(prepare, method="produce_with"))


def on_thing(operation, **fields):
    """Prepares operation(v, thing), with the thing watched."""

    def prepare(v):
        thing = v.thing(**fields)
        return partial(operation(v, thing)), thing

    return prepare


scenario("produce: positional", on_thing(lambda v, thing: partial(thing.__dlpack__, 1)))
scenario("device", on_thing(lambda v, thing: thing.__dlpack_device__))
scenario("device: pinned", on_thing(lambda v, thing: thing.__dlpack_device__, device=CUDA_HOST))
scenario("cpu_device", on_thing(lambda v, thing: thing.cpu_device))
scenario("embed", lambda v: [partial(v.producer.Thing, ADDRESS, (2, 3), (3, 1), embedded=True)])
scenario("embed: malformed", lambda v: [partial(v.producer.Thing, ADDRESS, (2, -3), (3, 1), embedded=True)])
scenario("wrap", on_thing(lambda v, thing: partial(v.producer.wrap, thing, gc.isenabled)), also=["None"])


def address(capsule):
    """Of the tensor in a capsule, which is not the capsule's any more."""
    address = dltensor.address(capsule)
    dltensor.rename(capsule, "used")
    return address


def steal(v, thing):
    return partial(v.producer.steal, address(thing.__dlpack__(**NEW)))


def steal_legacy(v, thing):
    return partial(v.producer.steal_legacy, address(thing.__dlpack__()))


scenario("capsule_steal", on_thing(steal), steals=True)
scenario("capsule_legacy_steal", on_thing(steal_legacy), steals=True)

# ---- Consuming ----


class Forwarding:
    def __init__(self, source):
        self.source = source

    def __dlpack__(self, **asked):
        return self.source.__dlpack__(**asked)


class Property(Forwarding):
    @property
    def __dlpack__(self):
        return self.source.__dlpack__


class Proxy:
    def __init__(self, source):
        self.__dlpack__ = source.__dlpack__


class Old(Forwarding):
    """Knows no keyword."""

    def __dlpack__(self, **asked):
        if asked:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        return self.source.__dlpack__()


class OldAndEmpty(Old):
    def __dlpack__(self, **asked):
        if asked:
            raise TypeError("d\xe9sol\xe9: unexpected keyword max_version")
        raise LookupError("nothing there")


class Uncopied(Forwarding):
    """Does not know how to copy, nor what a device is."""

    def __dlpack__(self, *, max_version=None):
        return self.source.__dlpack__(max_version=max_version)


class Stern(Forwarding):
    def __dlpack__(self, **asked):
        raise TypeError("not today")


class Junk(Forwarding):
    def __dlpack__(self, **asked):
        return 7


class Bound:
    """What stands on its class is no function of its."""


def bound(thing):
    Bound.__dlpack__ = thing.__dlpack__
    return Bound()


CONSUMED = {
    "as it is": ({}, lambda thing: thing, {}, {}),
    "of a wish": ({}, lambda thing: thing, {"dtype": "float64", "order": "C", "writable": 1}, {}),
    "of another dtype": ({}, lambda thing: thing, {"dtype": "int32"}, {}),
    "read-only": ({"flags": READ_ONLY}, lambda thing: thing, {"writable": 1}, {}),
    "a copy of read-only": ({"flags": READ_ONLY}, lambda thing: thing, {"writable": 1, "options": 1}, {}),
    "a copy": ({}, lambda thing: thing, {}, {"copy": True}),
    "no copy": ({}, lambda thing: thing, {}, {"copy": False}),
    "on the CPU": ({}, lambda thing: thing, {}, {"device": CPU}),
    "on the CPU by name": ({}, lambda thing: thing, {}, {"device": "cpu"}),
    "on pinned memory": ({}, lambda thing: thing, {}, {"device": CUDA_HOST}),
    "on a device of no name": ({}, lambda thing: thing, {}, {"device": "c\xefpu"}),
    "on a device that is a number": ({}, lambda thing: thing, {}, {"device": 1.5}),
    "a copy that is no bool": ({}, lambda thing: thing, {}, {"copy": 1}),
    "pinned": ({"device": CUDA_HOST}, lambda thing: thing, {}, {}),
    "pinned, with nothing pending": ({"device": CUDA_HOST}, lambda thing: thing, {"options": 16}, {}),
    "pinned, of one who knows no devices": ({"device": CUDA_HOST}, Uncopied, {}, {}),
    "from C to Python and back": ({}, Forwarding, {}, {}),
    "by a property": ({}, Property, {}, {}),
    "by a proxy": ({}, Proxy, {}, {}),
    "by a bound method": ({}, bound, {}, {}),
    "of an old producer": ({}, Old, {}, {}),
    "of an old one that has nothing": ({}, OldAndEmpty, {}, {}),
    "of an old one, to be written": ({}, Old, {"writable": 1}, {}),
    "a copy, of one who knows none": ({}, Uncopied, {}, {"copy": True}),
    "no copy, of one who knows none": ({}, Uncopied, {}, {"copy": False}),
    "refused for another reason": ({}, Stern, {}, {}),
    "junk": ({}, Junk, {}, {}),
    "a type": ({}, type, {}, {}),
    "nothing": ({}, lambda thing: 7, {}, {}),
    "nothing, nor a buffer": ({}, lambda thing: 7, {"options": 8}, {}),
    "a buffer": ({}, lambda thing: bytearray(16), {"options": 8}, {}),
    "a read-only buffer": ({}, lambda thing: memoryview(b"1234"), {"options": 8}, {}),
    "a buffer of no dtype": ({}, lambda thing: memoryview(bytearray(8)).cast("P"), {"options": 8}, {}),
    "a buffer of another dtype": ({}, lambda thing: bytearray(16), {"options": 8, "dtype": "int32"}, {}),
    "a capsule": ({}, lambda thing: thing.__dlpack__(**NEW), {}, {}),
    "a legacy capsule": ({}, lambda thing: thing.__dlpack__(), {}, {}),
    "a copy of a capsule": ({}, lambda thing: thing.__dlpack__(**NEW), {}, {"copy": True}),
    "a capsule of another dtype": ({}, lambda thing: thing.__dlpack__(**NEW), {"dtype": "int32"}, {}),
}
for name, (fields, make, want, asked) in CONSUMED.items():

    def prepare(v, fields=fields, make=make, want=want, asked=asked, **more):
        thing = v.thing(**fields)
        source = make(thing)
        return partial(v.consumer.consume, source, *([want] if want else []), **asked, **more), source, thing

    refused = "what str() raises of a refusal is lost" if make in (Old, OldAndEmpty, Uncopied) else None
    scenario(f"consume: {name}", prepare, xfail=refused)
    if not asked:
        scenario(f"consume_with: {name}", partial(prepare, with_state=True), xfail=refused)

ACCENTED = {"devic\xe9": 1}
scenario("from_dlpack", on_thing(lambda v, thing: partial(v.consumer.from_dlpack, thing, device="cpu", copy=True)))
scenario("from_dlpack: of two", on_thing(lambda v, thing: partial(v.consumer.from_dlpack, thing, thing)))
scenario("from_dlpack: other keywords", on_thing(lambda v, thing: partial(v.consumer.from_dlpack, thing, **ACCENTED)))


def consumed(v):
    thing = v.thing()
    capsule = thing.__dlpack__(**NEW)
    v.consumer.consume(capsule)
    return partial(v.consumer.consume, capsule), capsule, thing


scenario("consume: what was consumed", consumed)

# ---- Letting go ----


def letting_go(make, **fields):
    """Of the last reference to what make(v, thing) makes, with an exception in flight."""

    def prepare(v):
        thing = v.thing(**fields)
        flying = KeyError("in flight")
        return partial(v.faults.drop, [make(v, thing)], flying), flying, thing

    return prepare


def releasing(v):
    thing, flying = v.thing(), KeyError("in flight")
    return partial(v.consumer.consume(thing).release_raising, flying), flying, thing


scenario("drop a capsule", letting_go(lambda v, thing: thing.__dlpack__(**NEW)), kept=True)
scenario("drop a legacy capsule", letting_go(lambda v, thing: thing.__dlpack__()), kept=True)
scenario("drop an embedded one", letting_go(lambda v, thing: thing.__dlpack__(**NEW), embedded=True), kept=True)
scenario("drop a copy", letting_go(lambda v, thing: thing.__dlpack__(copy=True)), kept=True)
scenario("drop what was wrapped", letting_go(lambda v, thing: v.producer.wrap(thing, gc.isenabled)), kept=True)
scenario("drop a view", letting_go(lambda v, thing: v.consumer.consume(thing)), kept=True)
scenario("drop a buffer", letting_go(lambda v, thing: v.consumer.consume(bytearray(8), {"options": 8})), kept=True)
scenario("release", releasing, kept=True)
scenario("move", on_thing(lambda v, thing: v.consumer.consume(thing).move))
scenario(
    "release elsewhere",
    lambda v: [dltensor.Taken(v.thing().__dlpack__(**NEW)).delete_on_a_foreign_thread],
    kinds=["calls"],
    leaks=True,  # on a thread that cannot attach (K5)
)

# ---- The tests ----


def grows(v, run):
    """Does Python's memory, each time again? Free lists and caches do not count."""
    clear_caches = getattr(sys, "_clear_internal_caches", sys._clear_type_cache)
    levels = array.array("q", bytes(6 * 8))
    for i in range(6):
        run()
        gc.collect()  # clears free lists
        clear_caches()
        levels[i] = v.faults.blocks()[1]
        if i > 0 and levels[i] <= levels[i - 1]:
            return False
    return True


def cases():
    for name, scenario in SCENARIOS.items():
        for kind in scenario.kinds:
            wrong = scenario.xfail is not None and kind != "memory"
            yield pytest.param(name, kind, marks=pytest.mark.xfail(reason=scenario.xfail) if wrong else ())


@pytest.mark.parametrize("name, kind", cases())
def test_whatever_fails_nothing_is_lost_K2_K4_P7(v, name, kind):
    scenario = SCENARIOS[name]
    plain = attempt(v, scenario, KINDS[kind], 0, False)
    level = 0
    for onward in (False, True):
        for first in itertools.count(1):
            run = partial(attempt, v, scenario, KINDS[kind], first, onward, plain)
            where = run()
            level, before = v.faults.blocks()[1], level
            assert level <= before or scenario.leaks or not grows(v, run), f"{where} failed, and Python's memory grows"
            if where is plain:
                break
