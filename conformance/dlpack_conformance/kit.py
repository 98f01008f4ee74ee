"""What the tests of clauses share: grades, the tensors that they offer, and the library as they see it."""

import ctypes
import enum
import gc
import itertools
import math
import os
import re
import subprocess
import sys
import time
from typing import NamedTuple

import pytest
from _dlpack_conformance import Managed, allocate_by_table, take

from .adapter import DTYPES, Description, compact, itemsize
from .runtime import Runtime
from .standard import OPEN, Sentence

CPU = (1, 0)
READ_ONLY, IS_COPIED, PADDED = 1, 2, 4
VERSIONED = {"max_version": (1, 3)}

# ---- Clauses ----

MUST, SHOULD, CHOICE = "must", "should", "choice"


class Clause(NamedTuple):
    id: str
    grade: str
    asks: str
    sentence: Sentence
    pitfall: str
    anyway: bool = False  # the test runs also if the library does not claim the sentence: it may refuse then

    @property
    def standard(self):
        """The source, from when it holds, and its words."""
        if self.sentence is OPEN:
            return OPEN.document
        return f'{self.sentence.source}, since {self.sentence.since}: "{self.sentence.words}"'


def clause(id, grade, sentence, pitfall, anyway=False):
    """A test of a clause. The docstring of the test says what the clause asks."""

    def mark(test):
        test.clause = Clause(id, grade, " ".join(test.__doc__.split()), sentence, pitfall, anyway)
        return test

    return mark


# ---- Values ----


def data_of(dtype, shape):
    """Bytes of distinct small values."""
    size = itemsize(dtype)
    count = math.prod(shape)
    if dtype == "bool":
        return bytes(i % 2 for i in range(count))
    if dtype.startswith(("float", "bfloat", "complex")):
        # Any bits are right for a move, but NaN patterns may change when a library computes a copy. The high byte of
        # each part makes a number of a normal size.
        part = size // 2 if dtype.startswith("complex") else size
        parts = [bytes([(7 * i + 3 * k + 1) % 256 for k in range(part - 1)]) + b"\x3f" for i in range(count)]
        return b"".join(p * (size // part) for p in parts)
    return b"".join(bytes([(11 * i + 5 * k + 1) % 256 for k in range(size)]) for i in range(count))


def elements_of(data, size, shape, strides, first=0):
    """The elements of a strided tensor in row-major order, as one bytes object."""
    places = (first + sum(map(int.__mul__, index, strides)) for index in itertools.product(*map(range, shape)))
    return b"".join(data[place * size : (place + 1) * size] for place in places)


# ---- Tensors that the suite offers ----


def tensor(dtype="float32", shape=(2, 3), versioned=True, **fields):
    """A Managed of a compact tensor; fields replace what it says."""
    if "values" not in fields:
        fields["values"] = data_of(dtype, shape) if isinstance(dtype, str) and shape else bytes(64)
    if "strides" not in fields:
        fields["strides"] = None if shape is None else compact(shape)
    code = DTYPES[dtype] if isinstance(dtype, str) else dtype
    return Managed(versioned, shape=shape, dtype=code, **fields)


class Offer:
    """An object with __dlpack__. It records the keywords of each call, and what each call made.

    The form of the capsule is that which the consumer asks for; form=True or False is always versioned or always
    legacy.
    """

    def __init__(self, form=None, device=CPU, capsule=None, **fields):
        self.form, self.device, self.fields = form, device, fields
        self.keywords = capsule or {}
        self.calls, self.made = [], []

    def __dlpack__(self, **keywords):
        self.calls.append(keywords)
        version = keywords.get("max_version")
        form = bool(version and version[0] >= 1) if self.form is None else self.form
        self.made.append(tensor(versioned=form, **self.fields))
        return self.made[-1].capsule(**self.keywords)

    def __dlpack_device__(self):
        return self.device


class DeviceType(enum.IntEnum):
    CPU = 1


# `python -c` puts the current folder in front of PYTHONPATH.
OWN_PATH = "import sys; sys.path[:] = sys.path[sys.path[0] == '' :]"

# Multiplies the limits of time, on a machine that is slow or busy.
PATIENCE = float(os.environ.get("DLPACK_PY_PATIENCE", "1"))


def resident():
    """Bytes of memory that the process uses."""
    try:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * 4096
    except OSError:
        pytest.skip("the memory of a process is known on Linux only")


def settle_memory():
    """Gives back what the allocator of C keeps of freed memory, in which a leak would not show."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        pass


def leaked(function, rounds, limit):
    """By how many bytes the process grows in so many calls, if by more than the limit each time; else 0. Allocators
    grow at first, some of them for thousands of calls: what looks like a leak is measured again after more of them."""

    def grown():
        settle_memory()
        before = resident()
        for _ in range(rounds):
            function()
        settle_memory()
        return resident() - before

    for _ in range(max(3, rounds // 5)):
        function()
    for _ in range(3):
        if grown() < limit:
            return 0
    for _ in range(3 * rounds if rounds >= 1000 else rounds):
        function()
    found = grown()
    return found if found >= limit else 0


def settled(condition):
    """Whether the condition comes true within half a second: some libraries release memory on another thread."""
    for attempt in range(25):
        if condition():
            return True
        if attempt in (0, 5, 15):
            gc.collect()
        else:
            time.sleep(0.02)
    return condition()


def without_frames(error):
    """The exception without tracebacks, which keep the frames of a library alive."""
    seen = set()
    each = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
    return error


def shown(error):
    text = str(error).strip().split("\n")[0][:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# ---- The library ----

UNKNOWN = object()


class Library:
    """The library under test, by its adapter."""

    def __init__(self, adapter, name, cuda=False):
        self.adapter, self.spec, self.cuda = adapter, name, cuda
        self.clause = None  # of the running test
        self.chosen = {}  # what the running test found of choices
        self.no_export = UNKNOWN  # the exception of the export of a plain array
        self.known = {}  # keywords of __dlpack__: whether the library knows them
        self.dtype = "float32" if "float32" in adapter.dtypes else adapter.dtypes[0]
        self.shape = adapter.shape
        if len(self.shape) not in adapter.ranks:
            rank = min(rank for rank in adapter.ranks if rank > 0)
            self.shape = (6,) if rank == 1 else (1,) * (rank - 2) + (2, 3)
        self.data = data_of(self.dtype, self.shape)

    def begin(self, clause):
        """Before a test: skips what the library does not claim."""
        self.clause, self.chosen = clause, {}
        if not clause.anyway and not self.claims(clause.sentence):
            pytest.skip(self.unclaimed(clause.sentence))

    # -- what it claims --

    def claims(self, sentence):
        """Whether the library claims the version of the array API standard that the sentence is from."""
        return not sentence.is_array_api or self.claims_version(sentence.since)

    def claims_version(self, version):
        return self.adapter.standard is not None and self.adapter.standard >= version

    def unclaimed(self, sentence):
        claimed = self.adapter.standard or "DLPack alone"
        return f"from {sentence.since} of the array API standard on; the library claims {claimed}"

    def refused(self, error, what):
        """The library refuses what the clause asks for: a failure, unless it does not claim it."""
        if not self.claims(self.clause.sentence):
            pytest.skip(f"{self.unclaimed(self.clause.sentence)}, and refuses {what}: {shown(error)}")
        raise AssertionError(f"{what} raised {shown(error)}")

    def knows(self, keyword):
        """Whether __dlpack__ takes the keyword with its default. What it does not know, fails P1 alone."""
        if keyword not in self.known:
            try:
                self.some().__dlpack__(**{keyword: None})
                self.known[keyword] = True
            except TypeError:
                self.known[keyword] = False
            except Exception:
                self.known[keyword] = True
        return self.known[keyword]

    def needs_keyword(self, *keywords):
        for keyword in keywords:
            if not self.knows(keyword):
                pytest.skip(f"__dlpack__ does not know the keyword {keyword}, which P1 tests")

    # -- as a producer --

    def make(self, dtype=None, shape=None, data=None):
        """An array. Skips where the library has no such array."""
        if self.adapter.make is None:
            pytest.skip("the library does not produce")
        return self._make(self.adapter.make, dtype or self.dtype, self.shape if shape is None else shape, data)

    def make_readonly(self, dtype=None, shape=None, data=None):
        if self.adapter.readonly is None:
            pytest.skip("the library has no read-only arrays")
        return self._make(self.adapter.readonly, dtype or self.dtype, self.shape if shape is None else shape, data)

    def _make(self, make, dtype, shape, data):
        if dtype not in self.adapter.dtypes or len(shape) not in self.adapter.ranks:
            pytest.skip(f"the library has no array of {dtype} and rank {len(shape)}")
        self.needs_export()
        try:
            return make(dtype, shape, data_of(dtype, shape) if data is None else data)
        except Exception as error:
            if (dtype, shape) == (self.dtype, self.shape):
                raise
            pytest.skip(f"the library makes no array of {dtype} and shape {shape}: {shown(error)}")

    def export_error(self):
        """The BufferError by which the export of a plain array is refused, or None."""
        if self.no_export is UNKNOWN:
            self.no_export = None
            try:
                self.take_any(self.adapter.make(self.dtype, self.shape, self.data))
            except BufferError as error:
                self.no_export = without_frames(error)
            except Exception:
                pass  # what is wrong with it, the clauses tell
        return self.no_export

    def needs_export(self):
        """Skips where a plain array is not exported: P2_a_plain_array_is_exported has failed."""
        if self.adapter.make is not None and self.export_error() is not None:
            pytest.skip(f"the library exports no plain array: {shown(self.no_export)}")

    def scaled(self, count):
        """A plain shape with at least so many elements."""
        return (-(-count // math.prod(self.shape[1:])), *self.shape[1:])

    def large(self, count=1000, data=None):
        """An array of many elements. With data, all its bytes are this byte."""
        shape = self.scaled(count)
        return self.make(shape=shape, data=data and data * (math.prod(shape) * itemsize(self.dtype)))

    def capsule(self, array, **keywords):
        """The capsule that __dlpack__ gives. Skips where the library has the other form of capsules only."""
        self.needs_keyword(*keywords)
        try:
            return array.__dlpack__(**keywords)
        except BufferError as error:
            if "max_version" in keywords:
                raise
            pytest.skip(f"the library exports no legacy capsule: {shown(without_frames(error))}")

    def take(self, array, **keywords):
        """A tensor in the form that the keywords ask for. Skips where the library has the other form only."""
        taken = take(self.capsule(array, **keywords))
        if "max_version" in keywords and taken.says["version"] is None:
            pytest.skip("the library exports legacy capsules only")
        return taken

    def take_any(self, array, **keywords):
        """A tensor in the form that the library has."""
        for form in (VERSIONED, {}):
            if form and not self.knows("max_version"):
                continue
            try:
                return take(array.__dlpack__(**form, **keywords))
            except BufferError as error:
                refusal = without_frames(error)
        raise refusal

    def view(self, name, array):
        if name not in self.adapter.views:
            pytest.skip(f"the library has no such view: {name}")
        try:
            return self.adapter.views[name](array)
        except Exception as error:
            pytest.skip(f"the library has no such view: {name}: {shown(error)}")

    def some(self):
        """An array of rank 2 if the library has one, else of rank 1."""
        try:
            return self.make(shape=(2, 3))
        except pytest.skip.Exception:
            return self.make()

    def pointer(self, array):
        return Description(*self.adapter.describe(array)).pointer

    def table(self):
        """The type of the library's arrays, which has an exchange table."""
        kind = type(self.some())
        if getattr(kind, "__dlpack_c_exchange_api__", None) is None:
            pytest.skip("the library's type has no exchange table")
        return kind

    # -- as a consumer --

    def allocate(self, kind, prototype):
        """A tensor of the table's allocator. Skips where it makes none: SetError is for that."""
        try:
            return allocate_by_table(kind, prototype)
        except RuntimeError as error:
            if "NotImplemented" in str(error):
                pytest.skip(f"the allocator makes no tensor: {shown(error)}")
            raise

    def from_dlpack(self, source, **keywords):
        if self.adapter.from_dlpack is None:
            pytest.skip("the library does not consume")
        array = self.adapter.from_dlpack(source, **keywords)
        self.described(array)  # a library may check a tensor no sooner than it looks at it
        return array

    def attempt(self, source, **keywords):
        """(array, None), or (None, the exception)."""
        try:
            return self.from_dlpack(source, **keywords), None
        except Exception as error:
            return None, without_frames(error)

    def plain(self, **fields):
        """The fields of a tensor that the library takes, but for those given."""
        return {"dtype": self.dtype, "shape": self.shape, **fields}

    def offer(self, form=None, **fields):
        return Offer(form, **self.plain(**fields))

    def needs_objects(self):
        if not self.adapter.takes_objects:
            pytest.skip("the library takes capsules only")

    def values(self, array):
        return self.adapter.values(array)

    def described(self, array):
        return Description(*self.adapter.describe(array))

    def exchange(self, offer, data, shape, **keywords):
        """Takes what is offered, checks values, shape and the deleter: "taken", "copied", or "refused".

        Data and shape are those of the elements in row-major order. If the library refuses the tensor, the exception is
        in self.refusal.
        """
        array, self.refusal = self.attempt(offer, **keywords)
        if array is not None and data:
            try:
                got = self.values(array)
            except Exception as error:
                array, self.refusal = None, without_frames(error)
        if array is None:
            for made in offer.made:
                assert settled(lambda made=made: made.deleted >= 1), "the library refused the tensor, and it leaks"
                assert made.deleted == 1, f"the library refused the tensor; its deleter was called {made.deleted} times"
            return "refused"
        made = offer.made[-1]
        first = made.address + offer.fields.get("byte_offset", 0)
        says = self.described(array)
        copied = says.pointer is not None and data and says.pointer != first
        if not copied:
            assert made.deleted == 0 or not data, "the deleter was called while the array uses the memory"
        if says.shape is not None:
            assert tuple(says.shape) == shape, f"the array has the shape {tuple(says.shape)}, the tensor {shape}"
        if data:
            assert got == data, f"the array has the bytes {got[:32].hex()}, the tensor {data[:32].hex()}"
        del array
        for made in offer.made:
            assert settled(lambda made=made: made.deleted >= 1), "the deleter was not called"
            assert made.deleted == 1, f"the deleter was called {made.deleted} times"
        return "copied" if copied else "taken"

    # -- on a device with streams --

    def runtime(self):
        """The runtime of the device."""
        if self.adapter.device is None:
            pytest.skip("the adapter names no device, or the library finds none")
        return Runtime(self.adapter.device[0], self.adapter.runtime)

    def make_on_device(self, data=None):
        if self.adapter.make_on_device is None:
            pytest.skip("the library does not produce on the device")
        return self.adapter.make_on_device(self.dtype, self.shape, self.data if data is None else data)

    def current_stream(self):
        if self.adapter.current_stream is None:
            pytest.skip("the library has no current stream")
        return self.adapter.current_stream()

    # -- choices --

    def choose(self, name, value):
        """Holds the library to what its adapter declares of a choice."""
        declared = self.adapter.choices.get(name)
        self.chosen[name] = value
        assert declared in (None, value), f"{name}: {value}; the adapter declares {declared!r}"

    # -- other processes --

    def run(self, code, timeout=40):
        """Runs code in a new process, in which `lib` is this library. Fails if the process does not end with 0."""
        begin = (
            f"{OWN_PATH}\n"
            "import gc, os, threading\n"
            "import _dlpack_conformance as native\n"
            "from dlpack_conformance import load\n"
            "from dlpack_conformance.kit import *\n"
            f"lib = Library(load({self.spec!r}), {self.spec!r})\n"
        )
        try:
            ended = subprocess.run(
                [sys.executable, "-c", begin + code],
                capture_output=True,
                text=True,
                timeout=timeout * PATIENCE,
                env={**os.environ, "PYTHONFAULTHANDLER": "1"},
            )
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the process did not end within {timeout} s") from None
        assert ended.returncode == 0, f"the process {how_ended(ended.returncode)}: {last_line(ended.stderr)}"
        return ended.stdout


def how_ended(status):
    import signal

    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    if status >= 0xC0000000:  # of Windows, such as 0xC0000005 for an access violation
        return f"was ended by exception 0x{status:X}"
    return f"ended with status {status}"


def last_line(text):
    """The line of a process's messages that tells most: an uncaught error of C++, else Python's own, else the last."""
    logged = re.compile(r"^[A-Z]\d{4} [\d:.]+ +\d+ ")  # a time and a process, which differ from run to run
    progress = re.compile(r"^[.sxFE]*(?=Fatal|$)")  # of pytest
    lines = [progress.sub("", logged.sub("", line.strip())) for line in text.splitlines()]
    lines = [line for line in lines if line]
    lines = [
        line for line in lines if not line.startswith(("Extension modules:", "Current thread", "Thread 0x", "File "))
    ]
    # Which of its checks finds a corrupted heap differs from run to run.
    if any(re.match(r"(malloc|free|realloc|munmap_chunk)\(\): |double free|corrupted ", line) for line in lines):
        return "the C library found a corrupted heap"
    for word in ("what():", "Check failed", "terminate called", "Assertion", "Error", "Fatal Python error"):
        told = [line for line in lines if word in line]
        if told:
            return told[-1][:300]
    return (lines or ["no message"])[-1][:300]
