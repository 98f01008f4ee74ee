"""What a tensor may say of itself (D6, D8), decided by integers that have no end; and what the tests here share."""

import contextlib
import gc
import itertools
import math
import os
import sys

import pytest
from hypothesis import settings

HAVE_ADDRESSES = (1, 2, 3, 10, 11, 13)  # device types
ONLY_BITS = {6: 8, **dict.fromkeys(range(7, 15), 8), 15: 6, 16: 6, 17: 4}
BELOW = 2**63


def is_dtype(code, bits, lanes):
    return lanes > 0 and bits > 0 and bits == ONLY_BITS.get(code, bits) and (code not in (5, 18) or bits % 2 == 0)


def compact(shape):
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def reach(shape, strides):
    """The first and the last element from the first one: of all corners, where there are few of them."""
    steps = [(n - 1) * stride for n, stride in zip(shape, strides)]
    if len(steps) > 6:
        return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)
    corners = [sum(corner) for corner in itertools.product(*[(0, step) for step in steps])]
    return min(corners), max(corners)


def is_valid(says):
    """says: as Managed.says has it."""
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
    return first < 2**64 and first + lowest >= 0 and first + highest < 2**64


# More of them, and others each time, with DLPACK_PY_REPEAT.
REPEAT = int(os.environ.get("DLPACK_PY_REPEAT", "1"))
some_hundred = settings(deadline=None, derandomize=REPEAT == 1, max_examples=300 * REPEAT, database=None)


@contextlib.contextmanager
def kept(*objects):
    """Nobody has more or fewer references to the objects afterwards."""
    before = [sys.getrefcount(object) for object in objects]
    yield
    if [sys.getrefcount(object) for object in objects] != before:
        gc.collect()  # which takes its time: frames that a traceback holds
        assert [sys.getrefcount(object) for object in objects] == before


def failure(kind, function, *arguments, **keywords):
    """The exception that a call raises, which keeps no frame alive."""
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
