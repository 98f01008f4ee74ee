"""Each call that can fail is made to fail: the exception of the failure is raised, and no memory, no reference and no
exception in flight is lost (K2, K4, P7, X6).

A scenario prepares objects and an operation on them, which runs once for each point: a call of the header to CPython,
or an allocation of the header or CPython. That call fails, or all calls from there on. attempt() checks the outcome.
"""

import array
import atexit
import ctypes
import gc
import importlib.util
import itertools
import operator
import os
import re
import sys
import sysconfig
import types
from bisect import bisect
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import dltensor
import pytest
from collecting import PYPY
from dltensor import CPU, CUDA, CUDA_HOST, READ_ONLY

if PYPY:
    pytest.skip("sys.getallocatedblocks: not on PyPy", allow_module_level=True)

# All cases, or the cases that a change of the header breaks first.
ALL = os.environ.get("DLPACK_PY_FAULTS") == "all"

KINDS = {
    "calls": (1, MemoryError),
    "interrupted calls": (1, KeyboardInterrupt),
    "erring calls": (1, ArithmeticError),
    "memory": (2, MemoryError),
}
ALL_BUT_MEMORY = list(KINDS)[:3]
FILES = {path.name.split(".")[0]: path for path in Path(os.environ["DLPACK_PY_BUILD_DIR"]).glob("faults*")}
HOLD = dict.fromkeys(FILES, ["faults", "producer_probe", "consumer_probe", "buffer_probe", "exchange_probe", "dlarray"])
HOLD["faults_limited"] = [name for name in HOLD["faults"] if name != "exchange_probe"]

NUMBERS = array.array("d", range(6))
ADDRESS = NUMBERS.buffer_info()[0]
NEW = {"max_version": (1, 3)}


# ---- The harness ----


def create(variant, name):
    """A module in the file of a variant, and a function that executes it."""
    loader = importlib.machinery.ExtensionFileLoader(f"{variant}.{name}", str(FILES[variant]))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    return module, partial(loader.exec_module, module)


@pytest.fixture(scope="module")
def v(request):
    """A variant: its modules, and functions that make objects of their types."""
    made = SimpleNamespace(variant=request.param, create=partial(create, request.param))
    for name in HOLD[request.param]:
        module, execute = made.create(name)
        setattr(made, name.replace("_probe", ""), module)
        execute()
    derived = {}

    def new_to_all(base):
        """A derived class for which nothing is cached, as it has just changed."""
        derived.setdefault(base, type("Derived", (base,), {})).changed = object()
        return derived[base]

    made.new_to_all = new_to_all
    sys.modules.setdefault("producer_probe", made.producer)  # the __module__ of its types
    made.thing = lambda shape=(2, 3), strides=(3, 1), **fields: made.producer.Thing(ADDRESS, shape, strides, **fields)
    first = made.consumer.consume(made.thing())
    if "exchange_probe" in HOLD[request.param]:
        made.exchange.Holder(first)
    del first
    gc.collect()
    gc.freeze()
    gc.disable()
    report, sys.unraisablehook = sys.unraisablehook, lambda report: None  # no report keeps references
    made.faults.hook(True)
    ask_interpreter(made)
    yield made
    made.faults.hook(False)
    sys.unraisablehook = report
    gc.enable()
    gc.unfreeze()


# What a Python function raises on this interpreter when there is no memory. MemoryError is correct. Before 3.12 the
# interpreter may lose the exception and raise a SystemError, or lose the text of an exception.
ANSWERS = set()


def answer(exception):
    """The type and text of an exception, without the name and address of a function."""
    return re.sub(r"<function [^>]*>", "<function>", f"{type(exception).__name__} ({exception})")


def call_without_memory(v, call, first, onward):
    """Calls a Python function; one allocation fails, or all from there on. Returns the answer, and if one failed."""
    value, _, failed, *_ = v.faults.run(call, KINDS["memory"][0], first, onward, None)
    return answer(value), failed is not None


def ask_interpreter(v):
    """Fills ANSWERS with two calls of a Python function: it raises, or its arguments are refused."""
    for call, onward in itertools.product((partial(refuse, 1, 2), partial(refuse, unknown=1)), (False, True)):
        answers = set()
        for first in itertools.count(1):
            raised, failed = call_without_memory(v, call, first, onward)
            if not failed:
                break
            answers.add(raised)
        ANSWERS.update(answers - {raised})
    # If an exception loses its text, the SystemError for a function that returned NULL without an exception may too.
    if any(text.endswith(" ()") for text in ANSWERS - {"MemoryError ()"}):
        ANSWERS.add("SystemError ()")


def see(value, raised=False):
    """A description of a result or an exception to compare, without a reference to it."""
    if raised:
        if answer(value) in ANSWERS:
            return "MemoryError"
        return answer(value) if isinstance(value, SystemError) else type(value).__name__
    says = None
    if type(value).__name__ == "PyCapsule":
        says = dltensor.read(value)
    elif hasattr(value, "__dlpack__"):
        says = dltensor.read(value.__dlpack__(**NEW))
    if says is None:
        return repr(value[1:] if isinstance(value, tuple) else value)  # the first item of a tuple is an address
    numbers = dltensor.values(says.data, says.dtype, says.shape or (), says.strides or ())
    return says.form, says.flags, says.device, says.strides, numbers, getattr(value, "readonly", None)


def references(objects):
    """The reference counts of the objects and their types, without objects that other code refers to."""
    own = [obj for obj in objects if not isinstance(obj, (type(None), int, float, str, type))]
    return [sys.getrefcount(obj) for obj in (*own, *map(type, own))]


def leave_repr(objects):
    """CPython keeps a list of the containers whose repr() runs. Without memory, repr() cannot remove its container."""
    leave = ctypes.pythonapi.Py_ReprLeave
    leave.restype = None
    for obj in objects:
        leave(ctypes.py_object(obj))


def attempt(v, scenario, kind, first, onward, plain=None):
    """One run. plain: the outcome of a run without a failure; None: nothing fails. Returns plain or the failed call."""
    at_first = v.faults.blocks()[0]
    operation, *objects = scenario.prepare(v)
    before = references(objects)
    value, raised, failed, line, trespasser, unraisable = v.faults.run(operation, kind[0], first, onward, kind[1])
    seen = see(value, raised)
    kept = value is objects[0] if scenario.kept else True
    del value
    leave_repr(objects)
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
        documented = [kind[1].__name__, *scenario.also]
        documented += ["MemoryError"] * (failed == "DLPACK_PY_MALLOC")
        documented += ["RuntimeError"] * (failed == "PyInterpreterState_GetDict")
        if kind[1] is ArithmeticError:  # the header treats an error of a lookup as absence
            documented += ["BufferError", "TypeError"]
        assert seen in documented or unraisable, f"{where} failed, and the result was {seen}"
        assert lost == [0] * len(lost) or scenario.steals and lost == plain[1], f"{where} failed, references are wrong"
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

    kinds     the kinds of failures, if not all of KINDS
    also      outcomes that are allowed beside MemoryError and the outcome without a failure
    kept      it raises the exception that is the first of the objects, whatever fails
    steals    it consumes its argument, also when it fails
    reports   errors are reported as unraisable
    leaks     a failure may cost an object
    cyclic    it leaves cycles to the garbage collector
    needs     a module that not all variants have
    """
    assert name not in SCENARIOS
    most = dict.fromkeys(["kept", "steals", "reports", "leaks", "cyclic"], False)
    most.update(kinds=KINDS, also=(), needs="faults")
    SCENARIOS[name] = SimpleNamespace(prepare=prepare, **{**most, **how})


# ---- Producing ----


class Index:
    """Has __index__, but is not an int."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


class Mute:
    """repr() of it raises."""

    def __repr__(self):
        raise LookupError("mute")


def refuse(*request):
    raise LookupError("vetoed")


PRODUCED = {
    "a legacy capsule": ({}, {}),
    "a versioned capsule": ({}, NEW),
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
    "vetoed without an exception": ({"veto": lambda *request: False}, {}),
    "an unknown keyword": ({}, {"streams": None}),
    "an unknown keyword beyond ASCII": ({}, {"cop\xefe": None}),
    "a stream on the CPU": ({}, {"stream": 7}),
    "a stream below the range": ({}, {"stream": -(2**70)}),
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
    if name in ("a legacy capsule", "a versioned capsule", "a copy", "read-only", "pinned as the CPU's"):
        scenario(f"produce: {name}, embedded", partial(prepare, embedded=True))
        scenario(f"produce, function: {name}", partial(prepare, method="produce"))


def on_thing(operation, **fields):
    """Prepares operation(v, thing); the references of the thing are counted."""

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
    """The address of the tensor in a capsule, which is marked as consumed."""
    address = dltensor.address(capsule)
    dltensor.rename(capsule, "used")
    return address


def steal(v, thing):
    return partial(v.producer.steal, address(thing.__dlpack__(**NEW)))


def steal_legacy(v, thing):
    return partial(v.producer.steal_legacy, address(thing.__dlpack__()))


scenario("capsule_steal", on_thing(steal), steals=True)
scenario("capsule_legacy_steal", on_thing(steal_legacy), steals=True)


def object_steal(v, thing):
    return partial(v.producer.object_steal, address(thing.__dlpack__(**NEW)))


def object_steal_legacy(v, thing):
    return partial(v.producer.object_steal, address(thing.__dlpack__()), True)


def of_object(method, **keywords):
    return lambda v, thing: partial(
        getattr(v.producer.object_steal(address(thing.__dlpack__(**NEW))), method), **keywords
    )


scenario("object_steal", on_thing(object_steal), steals=True)
scenario("object_steal: legacy", on_thing(object_steal_legacy), steals=True)
scenario("object_steal: NULL", lambda v: [partial(v.producer.object_steal, 0)])
scenario("object: produce", on_thing(of_object("__dlpack__", **NEW)))
scenario("object: produce, a copy", on_thing(of_object("__dlpack__", copy=True)))
scenario("object: device", on_thing(of_object("__dlpack_device__")))

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
    """A producer that takes no keyword."""

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
    """A producer without the keywords copy and dl_device."""

    def __dlpack__(self, *, max_version=None):
        return self.source.__dlpack__(max_version=max_version)


class Stern(Forwarding):
    def __dlpack__(self, **asked):
        raise TypeError("not today")


class Junk(Forwarding):
    def __dlpack__(self, **asked):
        return 7


class Interface:
    """Has __array_interface__ and no other protocol."""

    def __init__(self, **changes):
        typestr = "<f8" if sys.byteorder == "little" else ">f8"
        self.__array_interface__ = {"version": 3, "typestr": typestr, "shape": (6,), **changes}


class NoInterface:
    __array_interface__ = ("version", 3)


class Bound:
    """The __dlpack__ of its class is the bound method of a different object."""


def bound(thing):
    Bound.__dlpack__ = thing.__dlpack__
    return Bound()


NULL_STRIDES = dltensor.Made(shape=(1,) * 9, strides=None, deleter=False)

CONSUMED = {
    "as it is": ({}, lambda thing: thing, {}, {}),
    "with requirements": ({}, lambda thing: thing, {"dtype": "float64", "order": "C", "writable": 1}, {}),
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
    "pinned, with nothing pending": ({"device": CUDA_HOST}, lambda thing: thing, {"options": 8}, {}),
    "pinned, of a producer without dl_device": ({"device": CUDA_HOST}, Uncopied, {}, {}),
    "from C to Python and back": ({}, Forwarding, {}, {}),
    "by a property": ({}, Property, {}, {}),
    "by a proxy": ({}, Proxy, {}, {}),
    "by a bound method": ({}, bound, {}, {}),
    "of an old producer": ({}, Old, {}, {}),
    "of an old producer that raises": ({}, OldAndEmpty, {}, {}),
    "of an old producer, to be written": ({}, Old, {"writable": 1}, {}),
    "a copy, of a producer without copy": ({}, Uncopied, {}, {"copy": True}),
    "no copy, of a producer without copy": ({}, Uncopied, {}, {"copy": False}),
    "refused for another reason": ({}, Stern, {}, {}),
    "junk": ({}, Junk, {}, {}),
    "a type": ({}, type, {}, {}),
    "nothing": ({}, lambda thing: 7, {}, {}),
    "neither a producer nor a buffer": ({}, lambda thing: 7, {"fallback": 1}, {}),
    "a buffer": ({}, lambda thing: bytearray(16), {"fallback": 1}, {}),
    "a read-only buffer": ({}, lambda thing: memoryview(b"1234"), {"fallback": 1}, {}),
    "a buffer of no dtype": ({}, lambda thing: memoryview(bytearray(8)).cast("P"), {"fallback": 1}, {}),
    "a buffer of another dtype": ({}, lambda thing: bytearray(16), {"fallback": 1, "dtype": "int32"}, {}),
    "an array interface": ({}, lambda thing: Interface(data=(ADDRESS, False)), {"fallback": 1}, {}),
    "an array interface of bytes": ({}, lambda thing: Interface(data=bytes(48), offset=0), {"fallback": 1}, {}),
    "an array interface of too few bytes": ({}, lambda thing: Interface(data=bytes(8)), {"fallback": 1}, {}),
    "an array interface of read-only memory": ({}, lambda thing: Interface(data=(ADDRESS, True)), {"fallback": 1}, {}),
    "an array interface of strided bytes": (
        {},
        lambda thing: Interface(data=memoryview(bytes(96))[::2]),
        {"fallback": 1},
        {},
    ),
    "an array interface that is no dict": ({}, lambda thing: NoInterface(), {"fallback": 1}, {}),
    "an array interface that is not ASCII": ({}, lambda thing: Interface(typestr="\xe9\xe9"), {"fallback": 1}, {}),
    "an array interface that is refused": ({}, lambda thing: Interface(typestr="|O8"), {"fallback": 1}, {}),
    "null strides of many dimensions": ({}, lambda thing: NULL_STRIDES.capsule(), {}, {}),
    "a copy of null strides of many dimensions": ({}, lambda thing: NULL_STRIDES.capsule(), {}, {"copy": True}),
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

    scenario(f"consume: {name}", prepare)
    if not asked:
        scenario(f"consume_request: {name}", partial(prepare, by_request=True))

for stream in (-1, 7):
    scenario(
        f"consume_request: with stream {stream}",
        on_thing(lambda v, thing, stream=stream: partial(v.consumer.consume, thing, by_request=True, stream=stream)),
    )

ACCENTED = {"devic\xe9": 1}
scenario("from_dlpack", on_thing(lambda v, thing: partial(v.consumer.from_dlpack, thing, device="cpu", copy=True)))
scenario("from_dlpack: of two", on_thing(lambda v, thing: partial(v.consumer.from_dlpack, thing, thing)))
scenario("from_dlpack: other keywords", on_thing(lambda v, thing: partial(v.consumer.from_dlpack, thing, **ACCENTED)))


def consumed(v):
    thing = v.thing()
    capsule = thing.__dlpack__(**NEW)
    v.consumer.consume(capsule)
    return partial(v.consumer.consume, capsule), capsule, thing


scenario("consume: a consumed capsule", consumed)

# ---- Releasing ----


def letting_go(make, **fields):
    """Drops the last reference to the object of make(v, thing) while an exception is in flight."""

    def prepare(v):
        thing = v.thing(**fields)
        flying = KeyError("in flight")
        return partial(v.faults.drop, [make(v, thing)], flying), flying, thing

    return prepare


def releasing(v):
    thing, flying = v.thing(), KeyError("in flight")
    return partial(v.consumer.consume(thing).release_raising, flying), flying, thing


def releasing_elsewhere(v):
    """A thread that cannot attach leaks the owner (K5)."""
    thing = v.thing()
    taken = dltensor.Taken(thing.__dlpack__(**NEW))

    def release():
        before = sys.getrefcount(thing)
        taken.delete_on_a_foreign_thread()
        if sys.getrefcount(thing) < before:
            return "released"
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(thing))
        return "leaked"

    return release, thing


scenario("drop a capsule", letting_go(lambda v, thing: thing.__dlpack__(**NEW)), kept=True)
scenario("drop a legacy capsule", letting_go(lambda v, thing: thing.__dlpack__()), kept=True)
scenario("drop an embedded capsule", letting_go(lambda v, thing: thing.__dlpack__(**NEW), embedded=True), kept=True)
scenario("drop a copy", letting_go(lambda v, thing: thing.__dlpack__(copy=True)), kept=True)
scenario("drop a wrapped capsule", letting_go(lambda v, thing: v.producer.wrap(thing, gc.isenabled)), kept=True)
scenario("drop a view", letting_go(lambda v, thing: v.consumer.consume(thing)), kept=True)
scenario("drop a buffer", letting_go(lambda v, thing: v.consumer.consume(bytearray(8), {"fallback": 1})), kept=True)
scenario("release", releasing, kept=True)
scenario("move", on_thing(lambda v, thing: v.consumer.consume(thing).move))
scenario("release on a foreign thread", releasing_elsewhere, kinds=["calls"], also=["'leaked'"], steals=True)

# ---- Buffers ----


def by_buffer(v):
    kind = v.buffer.add_methods(type("Numbers", (bytearray,), {}))
    thing = kind(16)
    return partial(thing.__dlpack__, **NEW), thing


def described(operation):
    def prepare(v):
        thing = v.thing()
        made = v.buffer.kind(True, True, True)(thing)
        return partial(operation, v, made), made, thing

    return prepare


scenario("__dlpack__ by a buffer", by_buffer)
scenario("memoryview", on_thing(lambda v, thing: lambda: bytes(v.buffer.view_of(thing))))
scenario(
    "memoryview of a dtype without a format",
    on_thing(lambda v, thing: partial(v.buffer.view_of, thing), dtype=(4, 16, 1)),
)
scenario("dlpack_buffer_get", on_thing(lambda v, thing: partial(v.buffer.get, thing, 0x1C)))
scenario("dlpack_buffer_get: a buffer", lambda v: [partial(v.buffer.get, bytearray(8), 0x1C)])
scenario("dlpack_buffer_get: neither", lambda v: [partial(v.buffer.get, object(), 0x1C)], reports=True)
scenario("getbuffer", described(lambda v, made: v.buffer.request(made, 0x1C)))
scenario("__array_interface__", described(lambda v, made: made.__array_interface__))


def described_by_strides(v):
    """Integers that CPython allocates: it keeps those below 257."""
    thing = v.thing(shape=(300, 2), strides=(600, 2))
    made = v.buffer.kind(True, True, True)(thing)
    return partial(getattr, made, "__array_interface__"), made, thing


# Calls: where Py_BuildValue fails before it begins, it does not drop what it is given.
scenario("__array_interface__: with strides", described_by_strides, kinds=["memory"])

# ---- Dtypes and devices that objects name ----


class Says:
    def __dlpack_data_type__(self):
        return Index(2), 32, 1

    def __dlpack_device__(self):
        return 1, Index(0)


scenario("parse_dtype", lambda v: [partial(v.consumer.parse_dtype, Says())])
scenario("parse_device", lambda v: [partial(v.consumer.parse_device, Says())])

# ---- dlpack_py_has_tensor ----

CHECKED = {"a producer": lambda thing: thing, "a proxy": Proxy, "a capsule": lambda thing: thing.__dlpack__()}
CHECKED.update({"a type": type, "nothing": lambda thing: object()})
for name, make in CHECKED.items():
    check = on_thing(lambda v, thing, make=make: partial(v.consumer.check, make(thing)))
    scenario(f"check: {name}", check, reports=True)


def checking(v):
    flying = KeyError("in flight")
    return partial(v.consumer.check_in_flight, v.thing(), flying), flying


scenario("check: with an exception in flight", checking, kept=True, reports=True)

# ---- Exchange tables, and results like an argument ----


def holder(v, veto=None, new=False, **fields):
    """An object of a type whose table belongs to the file that calls the header."""
    kind = v.new_to_all(v.exchange.Holder) if new else v.exchange.Holder
    return kind(v.thing(**fields), **({} if veto is None else {"veto": veto}))


def foreign(v, dtype="float64", new=False, writeable=True):
    """An object of a type whose table belongs to another file."""
    made = v.dlarray.array([[0, 1, 2], [3, 4, 5]], dtype)
    made.setflags(writeable=writeable)
    return v.new_to_all(v.dlarray.Array)(made) if new else made


def resolved(v):
    """A complex array with is_conj(), as PyTorch's tensors have for lazy conjugation (X9)."""
    answers = {"is_conj": lambda self: False}
    return type("Tensor", (v.dlarray.Array,), answers)(foreign(v, "complex64"))


def conjugated(v):
    answers = {"is_conj": lambda self: True}
    return type("Tensor", (v.dlarray.Array,), answers)(foreign(v, "complex64"))


def pinned(v):
    return v.exchange.Holder(v.consumer.consume(v.thing(device=CUDA_HOST), {"options": 8}))


OFFERED = {
    "own table": holder,
    "own table, of a new class": partial(holder, new=True),
    "own table, vetoed": partial(holder, veto=refuse),
    "own table, read-only": partial(holder, flags=READ_ONLY),
    "own table, negative strides": lambda v: v.exchange.Holder(v.thing(strides=(3, -1), byte_offset=16), options=4),
    "other table": foreign,
    "other table, of a new class": partial(foreign, new=True),
    "other table, complex": partial(foreign, dtype="complex64"),
    "other table, complex, not conjugated": lambda v: resolved(v),
    "other table, read-only": partial(foreign, writeable=False),
    "no table": lambda v: v.thing(),
    "no table, of a new class": lambda v: v.new_to_all(v.producer.Thing)(ADDRESS, (2, 3), (3, 1)),
}


def table(v):
    return v.exchange.Holder.__dlpack_c_exchange_api__


ON_OFFERED = {
    "check": lambda v, x: partial(v.consumer.check, x),
    "consume": lambda v, x: partial(v.consumer.consume, x),
    "consume, for another dtype": lambda v, x: partial(v.consumer.consume, x, {"dtype": "int8"}),
    "consume by a table": lambda v, x: partial(v.exchange.Holder, x),
    "borrow": lambda v, x: partial(v.exchange.borrow, x),
    "borrow, to be written": lambda v, x: partial(v.exchange.borrow, x, writable=True),
    "borrow, of another order": lambda v, x: partial(v.exchange.borrow, x, order="F", options=1),
    "allocate_like": lambda v, x: partial(v.exchange.allocate_like, x, (0, 3)),
    "check_like": lambda v, x: partial(v.exchange.check_like, x),
    "table's owned tensor": lambda v, x: partial(v.exchange.call_owned, table(v), x),
    "table's borrowed tensor": lambda v, x: partial(v.exchange.call_borrowed, table(v), x),
}


for (name, make), (doing, operation) in itertools.product(OFFERED.items(), ON_OFFERED.items()):

    def prepare(v, make=make, operation=operation):
        x = make(v)
        return operation(v, x), x

    owned = [f"({int('read-only' in name)}, True)"] if doing.startswith("borrow") else []
    scenario(f"{doing}: {name}", prepare, also=owned, reports=doing == "check", needs="exchange_probe")


class Namespaced:
    """Its array namespace has a from_dlpack."""

    def __array_namespace__(self):
        return self.namespace


class Packaged:
    """The package of its module has a from_dlpack."""


class Moduled:
    """Its module has a from_dlpack."""


class Lost:
    """Its module does not exist."""


def of_library(kind, module=None, package=None):
    def make(v):
        Namespaced.namespace = v.consumer
        sys.modules["stand_in"] = types.ModuleType("stand_in")
        sys.modules["stand_in.part"] = types.ModuleType("stand_in.part")
        vars(sys.modules["stand_in" if kind is Packaged else "stand_in.part"])["from_dlpack"] = v.consumer.from_dlpack
        kind.__module__ = "there_is_no.such_module" if kind is Lost else "stand_in.part"
        return kind()

    return make


RETURNED = {kind.__name__: of_library(kind) for kind in (Namespaced, Packaged, Moduled, Lost)}
RETURNED.update({name: make for name, make in OFFERED.items() if "of a new class" in name or "," not in name})
for (name, make), change in itertools.product(RETURNED.items(), (False, True)):

    def prepare(v, make=make, change=change):
        x, thing = make(v), v.thing(shape=(3,), strides=(1,))
        held = v.exchange.Holder(thing)
        return partial(v.exchange.return_like, x, held, change), x, held, thing

    kinds = ALL_BUT_MEMORY if name == "Lost" else KINDS  # Python waits for the memory of a lock
    scenario(f"return_like: {name}{', changed' * change}", prepare, kinds=kinds, steals=True, needs="exchange_probe")


def overriding(v):
    """The table of the header refuses a class that overrides __dlpack__ (X2)."""
    if not hasattr(v, "has_two"):
        v.has_two = v.exchange.immutable()  # adds the table to Holder again, too
    kind = type("Overriding", (v.exchange.Holder,), {"__dlpack__": lambda self, **keywords: None})
    x = kind(v.thing())
    return partial(v.exchange.call_owned, table(v), x), x


def consuming_conjugated(v):
    x = conjugated(v)
    return partial(v.consumer.consume, x), x


class Slotted:
    """Its objects have no dictionary: the __dlpack__ of the class is cached. It takes no keyword."""

    __slots__ = ("source",)

    def __init__(self, source):
        self.source = source


def old(v):
    kind = type("OldKind", (Slotted, v.exchange.delegate()), {"__slots__": (), "answer": answer_of_old})
    x = kind(v.thing())
    for _ in range(2):
        v.exchange.Holder(x)
    return partial(v.exchange.Holder, x), x


def answer_of_old(self, **asked):
    if asked:
        raise TypeError("no keywords")
    return self.source.__dlpack__()


scenario("table's owned tensor: overridden", overriding, cyclic=True, needs="exchange_probe")
scenario("consume: other table, complex, conjugated", consuming_conjugated, cyclic=True, needs="exchange_probe")
scenario("consume: a cached method without keywords", old, cyclic=True, needs="exchange_probe")


def returning_borrowed(v):
    x = holder(v)
    return partial(v.exchange.return_borrowed_like, x, x), x


def making(v):
    thing = v.thing()
    return partial(v.exchange.call_make, table(v), address(thing.__dlpack__(**NEW))), thing


def allocating(v):
    return [partial(v.exchange.call_allocate, table(v), (0, 3))]


# The view is owned, and the call succeeds, if an error prevents the lookup of the table.
scenario("return_like: a borrowed view", returning_borrowed, kinds=["calls", "memory"], needs="exchange_probe")
scenario("table's object", making, steals=True, needs="exchange_probe")
scenario("table's allocator", allocating, also=["('MemoryError', 'no memory for 0 bytes')"], needs="exchange_probe")
scenario("table's stream", lambda v: [partial(v.exchange.call_stream, table(v), 2, 0)], needs="exchange_probe")
# One of the two types outlives the call and is added again.
scenario(
    "exchange_add",
    lambda v: [v.exchange.immutable],
    kinds=["calls"],
    cyclic=True,
    leaks=True,
    needs="exchange_probe",
)
scenario("exchange_add: by a module", lambda v: v.create("dlarray")[1:], kinds=ALL_BUT_MEMORY, cyclic=True, leaks=True)

# ---- The first use of an interpreter ----


class Registrar:
    """Takes the callback that a first use registers. Its destructor forgets the use and the callback."""

    def __init__(self, v):
        self.callbacks = callbacks = []
        self.forget = v.faults.forget
        self.before = atexit.register
        atexit.register = callbacks.append
        self.forget()

    def __del__(self):
        atexit.register = self.before
        self.callbacks.clear()  # callbacks hold the states
        self.forget()


class Returned(Forwarding):
    namespace = None

    def __array_namespace__(self):
        return self.namespace


def using(v, back):
    Returned.namespace = v.consumer
    source = Returned(v.thing())
    return partial(v.faults.use, source, back), source, Registrar(v)


STARTS = {
    "init": lambda v: None,
    "cpu_device": lambda v: None,
    "check": lambda v: v.thing(),
    "produce": lambda v: v.thing(),
    "answer": lambda v: v.thing(),
    "object_steal": lambda v: None,
    "memoryview_steal": lambda v: None,
    "memoryview_steal: a borrowed view": lambda v: None,
    "fallback": lambda v: bytearray(16),
    "fallback: an array interface": lambda v: Interface(data=(NULL_STRIDES.address, False)),
    "from_dlpack": lambda v: v.thing(),
}
STARTS_OF_EXCHANGE = {
    "add": lambda v: type("Kind", (), {}),
    "embed": lambda v: v.thing(),
    "check_like": lambda v: holder(v),
    "make": lambda v: None,
    "borrow": lambda v: v.thing(),
    "borrow, to be written": lambda v: v.thing(),
    "consume a copy": lambda v: v.thing(),
}


def starting(v, how, function):
    """A first use by another function than those of use()."""
    source = {**STARTS, **STARTS_OF_EXCHANGE}[how](v)
    return partial(getattr(v.faults, function), how, source), source, Registrar(v)


def closing(v):
    use, _, registrar = using(v, False)
    use()
    return registrar.callbacks[-1], registrar


# Since 3.13.0 dict.setdefault() miscounts its items when there is no memory for a new item. In all versions
# PyType_FromSpec() may then fail without an exception.
kinds = KINDS if sys.version_info < (3, 13) else ALL_BUT_MEMORY
scenario("first use", partial(using, back=False), kinds=kinds)
scenario("first use, and back", partial(using, back=True), kinds=ALL_BUT_MEMORY, also=["TypeError"])
for how in STARTS:
    scenario(
        f"first use: {how}",
        partial(starting, how=how, function="start"),
        kinds=ALL_BUT_MEMORY,
        also=["False"] * (how == "check"),
        reports=how == "check",
    )
for how in STARTS_OF_EXCHANGE:
    scenario(
        f"first use: {how}",
        partial(starting, how=how, function="start_exchange"),
        kinds=ALL_BUT_MEMORY,
        cyclic=how == "add",
        leaks=how == "add",
        needs="exchange_probe",
    )
scenario("closing", closing, kinds=["calls"])

# ---- The example ----

ON_ARRAY = {
    "array": lambda a, d: partial(d.array, [[1.5, 2.5], [3.5, 4.5]], "float32"),
    "arange": lambda a, d: partial(d.arange, 5),
    "zeros": lambda a, d: partial(d.zeros, (2, 3), "int16"),
    "frombuffer": lambda a, d: partial(d.frombuffer, bytearray(16), "int32"),
    "from_dlpack": lambda a, d: partial(d.from_dlpack, a, copy=True),
    "Array": lambda a, d: partial(d.Array, a),
    "copy": lambda a, d: a.copy,
    "tolist": lambda a, d: a.tolist,
    "repr": lambda a, d: partial(repr, a),
    "buffer": lambda a, d: partial(bytes, a),
    "view": lambda a, d: partial(operator.getitem, a, (slice(1), None)),
    "element": lambda a, d: partial(operator.getitem, a, (1, 1)),
    "set": lambda a, d: partial(operator.setitem, a, (slice(1), None), d.array(7, a.dtype)),
    "transpose": lambda a, d: a.transpose,
    "reshape": lambda a, d: partial(a.reshape, 3, -1),
    "broadcast_to": lambda a, d: partial(a.broadcast_to, (2, 2, 3)),
    "attributes": lambda a, d: partial(operator.attrgetter("shape", "strides", "dtype", "device", "nbytes"), a),
}
for name, operation in ON_ARRAY.items():

    def prepare(v, operation=operation):
        made = foreign(v)
        return operation(made, v.dlarray), made

    scenario(f"dlarray: {name}", prepare)

# ---- The tests ----


def settled(v):
    """The number of blocks of Python, after free lists and caches are cleared."""
    gc.collect()
    getattr(sys, "_clear_internal_caches", sys._clear_type_cache)()
    return v.faults.blocks()[1]


def grows(v, runs):
    """Whether the memory of Python grows on each of four repetitions."""
    levels = array.array("q", bytes(5 * 8))
    for i in range(5):
        for run in runs:
            run()
        levels[i] = settled(v)
        if i > 0 and levels[i] <= levels[i - 1]:
            return False
    return True


ran = set()


WITHOUT_GIL = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

# The new list then has the items of an earlier list, and drops them twice. The other kinds still make calls and the
# header's allocator fail.
WITHOUT_LISTS = pytest.mark.skip(reason="PyList_New of 3.13 without a GIL does not survive that there is no memory")


def cases():
    for variant, (name, scenario) in itertools.product(sorted(FILES), SCENARIOS.items()):
        kinds = scenario.kinds if scenario.needs in HOLD[variant] else []
        for kind in kinds if ALL or variant == "faults" else set(kinds) & {"calls"}:
            yield pytest.param(variant, name, kind, marks=WITHOUT_LISTS if kind == "memory" and WITHOUT_GIL else ())


@pytest.mark.parametrize("v, name, kind", cases(), indirect=["v"], scope="module")
def test_a_failure_at_any_call_loses_nothing_K2_K4_P7_X6(v, name, kind):
    ran.add((v.variant, name, kind))
    scenario = SCENARIOS[name]
    plain = attempt(v, scenario, KINDS[kind], 0, False)
    runs = []
    for onward in [False, True] if kind in ("calls", "memory") else [False]:
        for first in itertools.count(1):
            runs.append(partial(attempt, v, scenario, KINDS[kind], first, onward, plain))
            if runs[-1]() is plain:
                break
    # In the last run nothing fails. Without a GIL, 3.13 keeps memory of freed classes even then.
    leaks = scenario.leaks or (WITHOUT_GIL and grows(v, runs[-1:] * len(runs)))
    if not leaks and grows(v, runs):
        pytest.fail(f"Python's memory grows where this fails: {[run() for run in runs if grows(v, [run])]}")


def run_failing(v, kind, make):
    """Calls make() of new objects until nothing fails: (what failed, what the call returned or raised)."""
    for first in itertools.count(1):
        value, raised, failed, *_ = v.faults.run(make(), KINDS[kind][0], first, False, KINDS[kind][1])
        if failed is None:
            break
        yield failed, see(value, raised)


def run_without_memory(v, make):
    return run_failing(v, "memory", make)


in_the_usual_file = pytest.mark.parametrize("v", ["faults"], indirect=True, scope="module")


@in_the_usual_file
def test_a_look_at_a_type_allocates_no_memory_of_the_header_X2(v):
    looks = run_without_memory(v, lambda: partial(v.consumer.check, type("New", (), {})()))
    assert "DLPACK_PY_MALLOC" not in dict(looks)


@in_the_usual_file
def test_no_memory_for_the_refusal_of_a_capsule_is_raised_X2_P7(v):
    """The attribute of the exchange table is no capsule: CPython allocates an exception, which the header drops."""
    set_string = ctypes.PYFUNCTYPE(None, ctypes.py_object, ctypes.c_char_p)(("PyErr_SetString", ctypes.pythonapi))
    *_, (_, raised) = run_without_memory(v, lambda: partial(set_string, KeyError, b"text"))  # ctypes allocates before
    if raised != "MemoryError":
        pytest.skip("PyErr_SetString loses the MemoryError of its text: not on this CPython")
    attributes = {"__dlpack_c_exchange_api__": None}
    looks = run_without_memory(
        v, lambda: partial(v.consumer.consume, type("New", (v.producer.Thing,), attributes)(ADDRESS, (2, 3), (3, 1)))
    )
    assert [answer for _, answer in looks if answer != "MemoryError"] == []


@in_the_usual_file
def test_the_device_of_cpu_memory_needs_no_memory_P8(v):
    for method in ("__dlpack_device__", "cpu_device"):
        assert list(run_without_memory(v, lambda: getattr(v.thing(), method))) == []


@in_the_usual_file
def test_a_call_of_dlpack_with_max_version_alone_makes_no_tuple_C4(v):
    """The object has a dictionary: its type's __dlpack__ is not cached."""
    kind = v.new_to_all(v.producer.Thing)
    calls = dict(run_failing(v, "calls", lambda: partial(v.consumer.consume, kind(ADDRESS, (2, 3), (3, 1)))))
    assert "PyObject_VectorcallMethod" in calls and "PyTuple_New" not in calls


@in_the_usual_file
@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11),
    reason="only in CPython 3.11, PyType_FromSpec without memory was seen to fail without an exception",
)
def test_no_object_is_made_where_its_type_fails_without_an_exception(v):
    def make():
        operation, _, registrar = SCENARIOS["first use: object_steal"].prepare(v)
        operation.registrar = registrar  # until the operation is gone
        return operation

    answers = [re.match(r"\w+", answer)[0] for _, answer in run_without_memory(v, make)]
    assert "MemoryError" in answers and set(answers) <= {"MemoryError", "SystemError"}


def test_every_call_of_the_header_was_made_to_fail():
    if len(ran) < len(list(cases())):
        pytest.skip("not all others of this file ran before")
    failures = Counter()
    for variant in FILES:
        for _, file, line, failed in create(variant, "faults")[0].points():
            failures[Path(file).name, line] += failed
    left = set()
    for file in {file for file, _ in failures}:
        lines = (Path(__file__).parents[2] / file).read_text().splitlines()
        begun = [0] + [i for i, text in enumerate(lines) if re.match(r"dlp(ack)?_\w+\(", text)]
        for line in (line for name, line in failures if name == file and not failures[name, line]):
            left.add((file, lines[begun[bisect(begun, line) - 1]].split("(")[0], line))
    assert len(failures) > 50 and left == set()
