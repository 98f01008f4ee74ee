"""Decides with unbounded integers whether a tensor is valid (D6, D8). Also helpers that the tests here share."""

import contextlib
import gc
import itertools
import math
import sys

import _dlpack_conformance as native
import dlarray
import pytest
from _dlpack_conformance import Managed
from consumer_probe import DLPACK_PY_ANY_DEVICE, consume
from dltensor import compact
from exchange_probe import COPY_IF_NEEDED, borrow
from hypothesis import strategies as st

HAVE_ADDRESSES = (1, 2, 3, 10, 11, 13)  # device types
ONLY_BITS = {6: 8, **dict.fromkeys(range(7, 15), 8), 15: 6, 16: 6, 17: 4}
BELOW = 2**63
ADDRESSES = 2 * sys.maxsize + 2


def is_dtype(code, bits, lanes):
    return lanes > 0 and bits > 0 and bits == ONLY_BITS.get(code, bits) and (code not in (5, 18) or bits % 2 == 0)


def reach(shape, strides):
    """The lowest and highest offset of an element from the first, in elements; up to 6 dimensions from all corners."""
    steps = [(n - 1) * stride for n, stride in zip(shape, strides)]
    if len(steps) > 6:
        return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)
    corners = [sum(corner) for corner in itertools.product(*[(0, step) for step in steps])]
    return min(corners), max(corners)


def is_valid(says):
    """says: the fields of a tensor as in Managed.says."""
    if not is_dtype(*says["dtype"]) or not 0 <= says["ndim"] <= 64:
        return False
    if says["ndim"] > 0 and says["shape"] is None:
        return False
    shape = says["shape"] or ()
    if min(shape, default=0) < 0:
        return False
    if 0 in shape:
        return True
    size = math.prod(shape)
    if says["data"] == 0 or size >= BELOW:
        return False
    code, bits, lanes = says["dtype"]
    bits = (8 if bits < 8 and (says["flags"] or 0) & 4 else bits) * lanes
    lowest, highest = reach(shape, says["strides"] or compact(shape))
    if max(-lowest, highest + 1) >= BELOW:
        return False
    lowest, highest = lowest * bits // 8, ((highest + 1) * bits + 7) // 8  # whole bytes
    if max((size * bits + 7) // 8, -lowest, highest) >= BELOW:
        return False
    if says["device"][0] not in HAVE_ADDRESSES:
        return True
    first = says["data"] + says["byte_offset"]
    return first < ADDRESSES and first + lowest >= 0 and first + highest < ADDRESSES


@contextlib.contextmanager
def kept(*objects):
    """Asserts that the reference counts of the objects are unchanged afterwards."""
    before = [sys.getrefcount(object) for object in objects]
    yield
    if [sys.getrefcount(object) for object in objects] != before:
        gc.collect()  # slow, so only if needed: frees frames that a traceback holds
        assert [sys.getrefcount(object) for object in objects] == before


def failure(kind, function, *arguments, **keywords):
    """The exception that a call raises, without its traceback, which would keep frames alive."""
    with pytest.raises(kind) as raised:
        function(*arguments, **keywords)
    raised.value.__traceback__ = None
    return raised.value


class Offer:
    """An object whose __dlpack__ answers with what answer(**keywords) returns."""

    def __init__(self, answer):
        self.answer = answer

    def __dlpack__(self, **keywords):
        return self.answer(**keywords)


ATTRIBUTE = "__dlpack_c_exchange_api__"


class Array:
    """An array of a library with a table; its method returns a different tensor."""

    def __init__(self, managed=None, other=None):
        self.managed = managed
        self.other = other

    def __dlpack__(self, **keywords):
        return self.other.capsule()


setattr(Array, ATTRIBUTE, native.table())


# ---- Tensors ----

ANY = {"device": DLPACK_PY_ANY_DEVICE, "alignment": 1}
VALUES = bytes(range(24))  # three elements of 8 bytes


def three(versioned=True, **fields):
    return Managed(versioned, **{"values": VALUES, "shape": (3,), "strides": (1,), "dtype": (1, 64, 1), **fields})


# Fields for Managed, of tensors of any kind.
edges = st.sampled_from(
    [0, 1, -1, 2, 3, 2**31, -(2**31), 2**32 - 1, 2**32, 2**59, 2**60, 2**61, 2**62, -(2**62), 2**63 - 1, -(2**63)]
)
int64 = edges | st.integers(-3, 5) | st.integers(-(2**63), 2**63 - 1)
uint64 = st.sampled_from([0, 1, 8, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 25, 2**64 - 9, 2**64 - 8, 2**64 - 1])
plain = st.sampled_from([(0, 8, 1), (1, 64, 1), (2, 64, 1), (2, 16, 4), (5, 128, 1), (17, 4, 1), (15, 6, 3), (0, 3, 1)])
dtypes = plain | plain | st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 65535))
devices = st.sampled_from([(1, 0), (1, 0), (1, -1), (2, 3), (4, 0), (7, 0), (99, -5), (-1, 0), (2**31 - 1, 2**31 - 1)])
null = st.sampled_from(["shape", "strides", "shape strides"])
flags = st.sampled_from([0, 4, 2**64 - 1])
tame = st.fixed_dictionaries(
    {"dims": st.lists(st.tuples(st.integers(0, 40).map(lambda n: n // 10), st.integers(-9, 9)), max_size=5)},
    optional={"dtype": plain, "byte_offset": st.integers(0, 24), "null": null, "flags": flags},
)
wild = st.fixed_dictionaries(
    {"dims": st.lists(st.tuples(int64 | st.integers(0, 3), int64), max_size=5), "dtype": dtypes},
    optional={
        "data": uint64.map(lambda address: address % ADDRESSES),
        "byte_offset": uint64 | st.integers(0, 64),
        "device": devices,
        "null": null,
        "ndim": st.sampled_from([-(2**31), -1, 65, 2**31 - 1]),
        "flags": flags,
    },
)


def split(drawn):
    fields = {"dtype": (1, 64, 1), "ndim": len(drawn["dims"]), **drawn}
    fields["shape"], fields["strides"] = (tuple(part) for part in zip(*drawn["dims"])) if drawn["dims"] else ((), ())
    fields.update({name: None for name in fields.pop("null", "").split()})
    del fields["dims"]
    return fields


fields_of_tensors = (tame | wild).map(split)


# ---- Ways to end a tensor ----

ENDINGS = {
    "released": lambda source: consume(source).release(),
    "released without a thread state": lambda source: consume(source).release_detached(),
    "copied": lambda source: consume(source, copy=True).release(),
    "copied where needed": lambda source: consume(source, {"alignment": 4096, "options": COPY_IF_NEEDED}).release(),
    "borrowed": lambda source: borrow(source),
    "an array": lambda source: dlarray.from_dlpack(source),
    "an array, and views of it": lambda source: dlarray.from_dlpack(source)[::-1][1:],
    "a copied array": lambda source: dlarray.from_dlpack(source, copy=True),
    "handed on": lambda source: native.take(dlarray.from_dlpack(source), max_version=(1, 0)).delete(),
    "handed on without a thread state": lambda source: native.take(dlarray.from_dlpack(source)).delete(False),
    "refused by dtype": lambda source: pytest.raises(BufferError, consume, source, {"dtype": "int8"}),
    "refused by rank": lambda source: pytest.raises(BufferError, consume, source, {"ndim": 7}),
    "refused by device": lambda source: pytest.raises(BufferError, consume, source, {"device": 2}),
    "refused by place": lambda source: pytest.raises(BufferError, consume, source, device=(2, 1)),
}
