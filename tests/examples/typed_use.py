"""Typed code that uses dlarray: test_typing.py runs it, and mypy --strict checks it. For mypy, an ignore comment
without an error is an error too."""

from typing import Any

import dlarray
import numpy
from typing_extensions import assert_type


class Named(dlarray.Array):
    name: str


class Producer:
    """A producer without keywords."""

    def __dlpack__(self) -> object:
        return dlarray.zeros(3).__dlpack__()


def make() -> None:
    a = assert_type(dlarray.zeros((2, 3), "float16"), dlarray.Array)
    dlarray.empty([2, 3], dtype="float4_e2m1fn")
    dlarray.array([[1, 2.5], (3, 4)], "complex64")
    dlarray.array(numpy.float32(1))
    dlarray.arange(2, 5, dtype="uint8")
    dlarray.empty(3, a.dtype)
    dlarray.frombuffer(bytearray(8), "int16", count=2, offset=2)
    dlarray.frombuffer(dlarray.zeros(3))


def refused() -> None:
    dlarray.zeros(3, "float23")  # type: ignore[arg-type]
    dlarray.zeros(1.5)  # type: ignore[arg-type]
    dlarray.array([1], "bfloat16")  # type: ignore[arg-type]
    dlarray.arange(3, "int8")  # type: ignore[call-overload]
    dlarray.frombuffer("text")  # type: ignore[arg-type]
    dlarray.from_dlpack([1, 2])  # type: ignore[arg-type]
    dlarray.from_dlpack(dlarray.zeros(3), stream=1)  # type: ignore[call-arg]
    a = dlarray.zeros(3)
    a.shape = (1, 3)  # type: ignore[misc]
    a[0.5]  # type: ignore[call-overload]
    a[:] = "text"  # type: ignore[assignment]
    a.setflags(False)  # type: ignore[misc]
    a.__dlpack__(None)  # type: ignore[misc]


def look() -> None:
    a = dlarray.arange(6).reshape(2, 3)
    assert_type(a.shape, tuple[int, ...])
    assert_type(a[1:], dlarray.Array)
    assert_type(a[...], dlarray.Array)
    assert_type(a[1, 2], Any)
    assert_type(a.transpose((1, 0)).transpose(1, 0).reshape((3, 2)).broadcast_to((4, 3, 2)), dlarray.Array)
    assert_type(a.owner, "dlarray.Array | None")
    a[0, :] = a[1, 1] + 0.5 if a.dtype == "float64" else 7
    a.setflags(writeable=False)


def derive() -> None:
    named = Named(dlarray.arange(3))
    assert_type(named, Named)
    assert_type(named[1:], Named)
    assert_type(named.copy(), Named)
    assert_type(dlarray.from_dlpack(named), dlarray.Array)


def exchange() -> None:
    a = dlarray.arange(3)
    capsule = a.__dlpack__(max_version=(1, 0), dl_device=a.__dlpack_device__(), copy=None)
    for source in (a, capsule, Producer(), numpy.zeros(3)):
        dlarray.from_dlpack(source, device="cpu", copy=True)
    dlarray.Array(a)
    numpy.from_dlpack(a)
    assert_type(memoryview(a), "memoryview[int]")
    numpy.asarray(a)
    bytes(a)


if __name__ == "__main__":
    make()
    look()
    derive()
    exchange()
